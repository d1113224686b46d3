"""Auto-forwarding: messages and dead letters that go on by themselves, as one step, four hops at most."""

import pytest

from spillway.broker.commands import (
    AttachReceiver,
    AttachSender,
    Command,
    CreateEntity,
    Credit,
    DeleteEntity,
    Describe,
    Peek,
    Schedule,
    Send,
    Settle,
    UpdateEntity,
)
from spillway.broker.effects import (
    Attached,
    Deliver,
    Descriptions,
    Detached,
    Effect,
    Failed,
    Load,
    Messages,
    Refused,
    SendSettled,
)
from spillway.broker.forwarding import RETRY_MS
from spillway.model import limits
from spillway.model.entity import (
    QUEUE,
    STATUS_ACTIVE,
    STATUS_DISABLED,
    STATUS_RECEIVE_DISABLED,
    STATUS_SEND_DISABLED,
    SUBSCRIPTION,
    TOPIC,
    EntitySettings,
)
from spillway.model.errors import ArgumentError, NotAllowed
from spillway.model.message import Message, StoredMessage
from spillway.model.records import MessageAdded, MessageMoved, MessageRemoved
from spillway.model.settlement import ABANDON, COMPLETE, DEAD_LETTER, Settlement
from spillway.testing.core import CoreHarness, message

SENDER = 1
RECEIVER = 2


def forwards(to: str = "", dead_letters_to: str = "", status: str = STATUS_ACTIVE) -> EntitySettings:
    settings = EntitySettings()
    settings.forward_to = to
    settings.forward_dead_letters_to = dead_letters_to
    settings.status = status
    return settings


class Chain(CoreHarness):
    """A namespace to make queues in that pass messages on."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 1_000

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    def make(self, kind: str, path: str, settings: EntitySettings | None = None) -> list[Effect]:
        return self.apply(CreateEntity(self.number(), kind, path, settings or EntitySettings()))

    def queue(self, path: str, to: str = "", dead_letters_to: str = "") -> list[Effect]:
        return self.make(QUEUE, path, forwards(to, dead_letters_to))

    def change(self, path: str, settings: EntitySettings) -> list[Effect]:
        return self.apply(UpdateEntity(self.number(), path, settings))

    def send(self, path: str, *messages: Message) -> list[Effect]:
        link_id = self.number()
        commands: list[Command] = [AttachSender(link_id, path), Send(link_id, 7, list(messages), False, 10)]
        return [effect for effect in self.apply(*commands) if isinstance(effect, SendSettled)]

    def receive(self, path: str, count: int = 10) -> list[Deliver]:
        """Taken under locks by a receiver that stays."""
        link_id = self.number()
        effects = self.apply(AttachReceiver(link_id, path, False), Credit(link_id, count, False))
        return [effect for effect in effects if isinstance(effect, Deliver)]

    def settle(self, delivery: Deliver, settlement: Settlement) -> None:
        self.apply(Settle(delivery.to, 7, delivery.lock_token, settlement, False))

    def peek(self, path: str) -> list[StoredMessage]:
        (answer,) = self.apply(Peek(self.number(), path, 0, 1_000))
        assert isinstance(answer, Messages)
        return answer.messages

    def bodies(self, path: str) -> list[bytes]:
        return [stored.message.raw for stored in self.peek(path)]

    def counts(self, path: str) -> tuple[int, int]:
        """Active, and dead."""
        (answer,) = self.apply(Describe(self.number(), path))
        assert isinstance(answer, Descriptions)
        return answer.descriptions[0].counters.active, answer.descriptions[0].dead_letter_count


@pytest.fixture
def chain() -> Chain:
    return Chain()


def refusal(effects: list[Effect]) -> str:
    (failed,) = effects
    assert isinstance(failed, Failed) and isinstance(failed.error, ArgumentError), failed
    return failed.error.description


# -- passing on -----------------------------------------------------------------------------------------------------


def test_what_is_sent_to_a_forwarding_queue_is_in_the_other_at_once(chain: Chain) -> None:
    chain.queue("b")
    chain.queue("a", "b")
    (settled,) = chain.send("a", message(b"1"), message(b"2"))
    assert isinstance(settled, SendSettled) and settled.error is None
    assert (chain.counts("a"), chain.counts("b")) == ((0, 0), (2, 0))
    assert [delivery.stored.message.raw for delivery in chain.receive("B")] == [b"1", b"2"]


def test_a_waiting_receiver_gets_it_in_the_turn_of_the_send(chain: Chain) -> None:
    chain.queue("b")
    chain.queue("a", "b")
    chain.apply(AttachReceiver(RECEIVER, "b", False), AttachSender(SENDER, "a"))
    chain.apply(Credit(RECEIVER, 10, False))
    decided = chain.namespace.apply([Send(SENDER, 1, [message(b"now")], False, 3)], chain.now_ms)
    assert [type(effect) for effect in decided.effects] == [SendSettled, Deliver]


def test_a_receiver_that_was_served_before_gets_it_in_the_next_turn(chain: Chain) -> None:
    chain.queue("b")
    chain.queue("a", "b")
    chain.apply(AttachReceiver(RECEIVER, "b", False), AttachSender(SENDER, "a"))
    effects = chain.apply(Credit(RECEIVER, 10, False), Send(SENDER, 1, [message(b"now")], False, 3))
    assert [type(effect) for effect in effects] == [SendSettled, Deliver]


def test_leaving_and_arriving_are_one_group(chain: Chain) -> None:
    chain.queue("b")
    chain.queue("a", "b")
    chain.apply(AttachSender(SENDER, "a"))
    decided = chain.namespace.apply([Send(SENDER, 1, [message(b"x")], False, 1)], chain.now_ms)
    assert [[type(record) for record in group] for group in decided.turn.groups] == [
        [MessageAdded],
        [MessageRemoved, MessageAdded],
    ]


def test_a_forwarded_message_keeps_its_first_number_and_begins_anew(chain: Chain) -> None:
    chain.queue("b")
    chain.queue("a")
    chain.send("b", message(b"older"))
    chain.send("a", message(b"first"), message(b"kept", ttl_ms=60_000))
    first, kept = chain.receive("a")
    chain.settle(first, Settlement(COMPLETE))
    chain.settle(kept, Settlement(ABANDON, properties={"why": b"\x54\x05"}))
    chain.now_ms += 10_000
    chain.change("a", forwards("b"))
    stored = chain.peek("b")[1]
    assert (stored.message.raw, stored.sequence_number, stored.enqueue_sequence_number) == (b"kept", 2, 2)
    assert (stored.enqueued_ms, stored.expires_ms) == (chain.now_ms, chain.now_ms + 60_000)
    assert stored.delivery_count == 0
    assert stored.overlay is not None
    assert stored.overlay.properties == {"why": b"\x54\x05"}


def test_a_scheduled_message_is_passed_on_when_it_is_due(chain: Chain) -> None:
    chain.queue("b")
    chain.queue("a", "b")
    chain.apply(Schedule(5, "a", [message(b"later", scheduled_ms=chain.now_ms + 1_000)], 5))
    assert chain.bodies("b") == []
    chain.step(1_000)
    assert (chain.bodies("a"), chain.bodies("b")) == ([], [b"later"])


def test_a_queue_passes_on_to_a_topic_and_a_subscription_to_a_queue(chain: Chain) -> None:
    chain.queue("end")
    chain.make(TOPIC, "t")
    chain.make(SUBSCRIPTION, "t/Subscriptions/plain")
    chain.make(SUBSCRIPTION, "t/Subscriptions/on", forwards("end"))
    chain.queue("a", "t")
    chain.send("a", message(b"0"))
    chain.send("a", message(b"news"))
    for path in ("t/Subscriptions/plain", "end"):
        stored = chain.peek(path)[1]
        assert (stored.message.raw, stored.sequence_number, stored.enqueue_sequence_number) == (b"news", 2, 2), path
    assert chain.bodies("t/Subscriptions/on") == []


def test_copies_of_one_message_share_it_in_all_the_queues_it_is_passed_on_to(chain: Chain) -> None:
    chain.make(TOPIC, "t")
    for name in ("one", "two"):
        chain.queue(name)
        chain.make(SUBSCRIPTION, f"t/Subscriptions/{name}", forwards(name))
    chain.apply(AttachSender(SENDER, "t"))
    decided = chain.namespace.apply([Send(SENDER, 1, [message(b"x")], False, 1)], chain.now_ms)
    added = [record.stored.message for group in decided.turn.groups for record in group if type(record) is MessageAdded]
    assert len(added) == 4 and len(set(added)) == 1


def test_nobody_receives_from_what_passes_its_messages_on(chain: Chain) -> None:
    chain.queue("b")
    chain.queue("a", "b", "b")
    for path in ("a", "a/$DeadLetterQueue"):
        (refused,) = chain.apply(AttachReceiver(RECEIVER, path, False))
        assert isinstance(refused, Refused) and isinstance(refused.error, NotAllowed)
        text = "Cannot create a message receiver on an entity with auto-forwarding enabled."
        assert refused.error.description.startswith(text)


def test_receivers_are_detached_when_forwarding_is_switched_on_and_what_they_held_is_passed_on(chain: Chain) -> None:
    chain.queue("b")
    chain.queue("a")
    chain.send("a", message(b"held"), message(b"waiting"))
    (held,) = chain.receive("a", 1)
    effects = chain.change("a", forwards("b"))
    (detached,) = [effect for effect in effects if isinstance(effect, Detached)]
    assert detached.to == held.to and isinstance(detached.error, NotAllowed)
    assert (chain.bodies("a"), chain.bodies("b")) == ([], [b"held", b"waiting"])


def test_messages_stay_when_forwarding_is_switched_off_and_are_received_again(chain: Chain) -> None:
    chain.queue("b")
    chain.queue("a", "b")
    chain.change("a", forwards("b", status=STATUS_RECEIVE_DISABLED))
    chain.send("a", message(b"1"), message(b"2"))
    assert chain.bodies("b") == []
    chain.change("a", forwards())
    first, second = chain.receive("a")
    assert (first.stored.message.raw, second.stored.message.raw) == (b"1", b"2")
    chain.send("a", message(b"3"))
    assert (chain.counts("a"), chain.bodies("b")) == ((3, 0), [])


# -- hops -----------------------------------------------------------------------------------------------------------


def long_chain(chain: Chain) -> None:
    """Hop4 → Hop3 → Hop2 → Hop1 → Hop0."""
    chain.queue("hop0")
    for number in range(1, 5):
        chain.queue(f"hop{number}", f"hop{number - 1}")


def test_four_hops_are_allowed(chain: Chain) -> None:
    long_chain(chain)
    chain.send("hop4", message(b"far"))
    assert chain.bodies("hop0") == [b"far"]


def test_the_fifth_hop_ends_in_the_dead_letter_queue_of_the_source(chain: Chain) -> None:
    long_chain(chain)
    chain.queue("last")
    chain.change("hop0", forwards("last"))
    chain.send("hop4", message(b"too far"))
    chain.send("hop3", message(b"far enough"))
    assert chain.bodies("last") == [b"far enough"]
    (stored,) = chain.peek("hop0/$DeadLetterQueue")
    assert stored.overlay is not None
    assert (stored.message.raw, stored.overlay.dead_letter_reason) == (b"too far", "MaxTransferHopCountExceeded")
    assert stored.overlay.dead_letter_source == "hop0"


def test_hops_are_counted_over_restarts(chain: Chain) -> None:
    long_chain(chain)
    chain.change("hop2", forwards("hop1", status=STATUS_RECEIVE_DISABLED))
    chain.send("hop4", message(b"far"))
    chain.restart()
    chain.queue("last")
    chain.change("hop0", forwards("last"))
    chain.change("hop2", forwards("hop1"))
    assert (chain.bodies("last"), chain.bodies("hop0/$DeadLetterQueue")) == ([], [b"far"])


def test_a_ring_ends_after_four_hops(chain: Chain) -> None:
    chain.queue("a")
    chain.queue("b", "a")
    chain.change("a", forwards("b"))
    chain.send("a", message(b"round"))
    assert (chain.counts("a"), chain.counts("b")) == ((0, 1), (0, 0))


def test_a_ring_of_dead_letters_ends_too(chain: Chain) -> None:
    """Each sends its dead letters to the other, and messages die of old age in both."""
    chain.queue("b")
    for path, other in (("a", "b"), ("b", "a")):
        settings = forwards("", other)
        settings.default_ttl_ms = 1_000
        settings.dead_letter_on_expiry = True
        if path == "a":
            chain.make(QUEUE, path, settings)
        else:
            chain.change(path, settings)
    chain.send("a", message(b"old"))
    for _ in range(10):
        chain.step(1_000)
    assert (chain.counts("a"), chain.counts("b")) == ((0, 1), (0, 0))
    chain.change("a", forwards())
    (dead,) = chain.receive("a/$DeadLetterQueue")
    assert dead.stored.message.raw == b"old"


# -- destinations that take nothing -----------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [STATUS_DISABLED, STATUS_SEND_DISABLED])
def test_what_a_disabled_destination_refuses_is_dead_lettered_at_the_source(chain: Chain, status: str) -> None:
    chain.queue("b")
    chain.queue("a", "b")
    chain.change("b", forwards(status=status))
    (settled,) = chain.send("a", message(b"x"))
    assert isinstance(settled, SendSettled) and settled.error is None
    (stored,) = chain.peek("a/$DeadLetterQueue")
    assert stored.overlay is not None
    assert stored.overlay.dead_letter_reason == "MessagingEntityDisabledException"
    assert "'b' is currently disabled" in (stored.overlay.dead_letter_description or "")
    chain.change("b", forwards())
    chain.send("a", message(b"y"))
    assert chain.bodies("b") == [b"y"]


def test_what_a_full_destination_refuses_is_dead_lettered_at_the_source(chain: Chain) -> None:
    small = EntitySettings()
    small.max_size_mb = 1
    chain.make(QUEUE, "b", small)
    chain.queue("a", "b")
    chain.send("a", *[message(b"%d" % n + b"x" * 200_000) for n in range(6)])
    assert (chain.counts("a"), chain.counts("b")) == ((0, 1), (5, 0))
    (stored,) = chain.peek("a/$DeadLetterQueue")
    assert stored.overlay is not None and stored.overlay.dead_letter_reason == "QuotaExceededException"


def test_a_destination_may_be_deleted_and_what_comes_then_is_dead_lettered_until_it_is_there_again(
    chain: Chain,
) -> None:
    chain.queue("b")
    chain.queue("a", "b")
    chain.apply(DeleteEntity(5, "b"))
    chain.send("a", message(b"lost address"))
    (stored,) = chain.peek("a/$DeadLetterQueue")
    assert stored.overlay is not None and stored.overlay.dead_letter_reason == "MessagingEntityNotFoundException"
    chain.queue("b")
    chain.send("a", message(b"found"))
    assert chain.bodies("b") == [b"found"]


def test_a_message_without_session_id_is_dead_lettered_before_a_destination_that_requires_sessions(
    chain: Chain,
) -> None:
    sessions = EntitySettings()
    sessions.requires_session = True
    chain.make(QUEUE, "b", sessions)
    chain.queue("a", "b")
    chain.send("a", message(b"without"), message(b"with", session_id="s"))
    assert chain.bodies("b") == [b"with"]
    assert chain.peek("b")[0].session_id == "s"
    (stored,) = chain.peek("a/$DeadLetterQueue")
    assert stored.overlay is not None and stored.overlay.dead_letter_reason == "Session ID is null."


# -- dead letters -----------------------------------------------------------------------------------------------------


def test_dead_letters_are_passed_on_with_their_reason_and_where_they_come_from(chain: Chain) -> None:
    chain.queue("errors")
    chain.queue("a", "", "errors")
    chain.send("a", message(b"bad", ttl_ms=90_000))
    (delivery,) = chain.receive("a")
    chain.settle(delivery, Settlement(DEAD_LETTER, "spoilt", "it smells"))
    assert chain.counts("a") == (0, 0)
    (stored,) = chain.peek("errors")
    assert stored.overlay is not None
    assert (stored.overlay.dead_letter_reason, stored.overlay.dead_letter_description) == ("spoilt", "it smells")
    assert (stored.overlay.dead_letter_source, stored.delivery_count) == ("a", 0)
    assert (stored.sequence_number, stored.enqueue_sequence_number) == (1, 1)
    assert stored.expires_ms == chain.now_ms + 90_000


def test_dead_letters_that_were_there_before_are_passed_on_when_it_is_switched_on(chain: Chain) -> None:
    chain.queue("errors")
    chain.queue("a")
    chain.send("a", message(b"bad"))
    chain.settle(chain.receive("a")[0], Settlement(DEAD_LETTER, "spoilt", None))
    chain.change("a", forwards("", "errors"))
    assert (chain.counts("a"), chain.bodies("errors")) == ((0, 0), [b"bad"])


def test_dead_letters_wait_for_a_destination_that_takes_none(chain: Chain) -> None:
    chain.queue("errors")
    chain.queue("a", "", "errors")
    chain.change("errors", forwards(status=STATUS_DISABLED))
    chain.send("a", message(b"1"), message(b"2"))
    for delivery in chain.receive("a"):
        chain.settle(delivery, Settlement(DEAD_LETTER, "spoilt", None))
    assert chain.counts("a") == (0, 2)
    chain.change("errors", forwards())
    chain.step(RETRY_MS)
    assert (chain.counts("a"), chain.bodies("errors")) == ((0, 0), [b"1", b"2"])


def test_dead_letters_are_still_there_when_forwarding_them_is_given_up(chain: Chain) -> None:
    chain.queue("errors")
    chain.queue("a", "", "errors")
    chain.apply(DeleteEntity(5, "errors"))
    chain.send("a", message(b"1"), message(b"2"))
    for delivery in chain.receive("a"):
        chain.settle(delivery, Settlement(DEAD_LETTER, "spoilt", None))
    chain.step(RETRY_MS)
    chain.change("a", forwards())
    assert [delivery.stored.message.raw for delivery in chain.receive("a/$DeadLetterQueue")] == [b"1", b"2"]


# -- backlogs ---------------------------------------------------------------------------------------------------------


def test_a_deep_backlog_is_passed_on_in_bounded_turns_and_memory(chain: Chain) -> None:
    chain.queue("b")
    chain.queue("a")
    count = 6_000  # more than a window holds
    for first in range(0, count, 500):
        chain.send("a", *[message(b"%d" % n) for n in range(first, first + 500)])
    chain.restart()  # nothing of it is in memory
    turns: list[int] = []
    commands: list[Command] = [UpdateEntity(5, "a", forwards("b"))]
    while commands or turns[-1:] != [0]:
        decided = chain.namespace.apply(commands, chain.now_ms)
        chain.ticket += 1
        chain.journal.submit(decided.turn, chain.ticket)
        for effect in decided.effects:
            if isinstance(effect, Load):
                chain.journal.load(effect.query, effect.to)
        commands, chain.answers = chain.answers, []
        turns.append(sum(type(group[0]) is MessageRemoved for group in decided.turn.groups))
        window = chain.namespace.directory.queues["a"].lane.window
        assert len(window.resident) <= limits.LOAD_MESSAGES + limits.LOAD_MESSAGES // 2
        if turns[-1] == 0 and (commands or 0 < chain.namespace.next_due_ms() <= chain.now_ms):
            turns[-1] = -1  # it only asked
    passed = [turn for turn in turns if turn > 0]
    assert sum(passed) == count and max(passed) == limits.CHORE_STEPS_PER_TURN_MAX // limits.COPY_STEPS
    assert (chain.counts("a"), chain.counts("b")) == ((0, 0), (count, 0))
    assert [d.stored.message.raw for d in chain.receive("b", 3)] == [b"0", b"1", b"2"]


def test_a_backlog_is_passed_on_after_a_restart_without_being_asked(chain: Chain) -> None:
    chain.queue("b")
    chain.queue("a", "b")
    chain.change("a", forwards("b", status=STATUS_RECEIVE_DISABLED))
    chain.send("a", message(b"1"), message(b"2"))
    settings = chain.namespace.directory.queues["a"].settings
    settings.status = STATUS_ACTIVE  # as if the change were the last thing that was remembered before a crash
    decided = chain.namespace.apply([], chain.now_ms)
    chain.namespace.directory.remember(chain.namespace.directory.queues["a"], decided)
    chain.journal.submit(decided.turn, 10_000)
    chain.restart()
    assert chain.namespace.next_due_ms() > 0
    chain.apply()
    assert (chain.counts("a"), chain.bodies("b")) == ((0, 0), [b"1", b"2"])


def test_a_topic_as_destination_makes_shorter_turns_of_it(chain: Chain) -> None:
    chain.make(TOPIC, "t")
    for number in range(9):
        chain.make(SUBSCRIPTION, f"t/Subscriptions/s{number}")
    chain.queue("a", "t")
    chain.apply(AttachSender(SENDER, "a"))
    decided = chain.namespace.apply([Send(SENDER, 1, [message(b"%d" % n) for n in range(200)], False, 1)], chain.now_ms)
    steps = limits.COPY_STEPS + 9 + 9 * limits.COPY_STEPS  # passed on, nine filters, nine copies
    passed = sum(type(group[0]) is MessageRemoved for group in decided.turn.groups)
    assert limits.CHORE_STEPS_PER_TURN_MAX // steps <= passed <= limits.CHORE_STEPS_PER_TURN_MAX // steps + 10


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["nowhere", "t/Subscriptions/s", "b/$DeadLetterQueue"])
def test_a_destination_that_is_no_queue_or_topic_is_refused(chain: Chain, target: str) -> None:
    chain.queue("b")
    chain.make(TOPIC, "t")
    chain.make(SUBSCRIPTION, "t/Subscriptions/s")
    text = refusal(chain.queue("a", target))
    assert text.startswith("The auto forwarding destination entity does not exist: ForwardTo of 'a' is")
    assert target in text
    chain.queue("a")
    assert "ForwardDeadLetteredMessagesTo" in refusal(chain.change("a", forwards("", target)))


def test_forwarding_to_itself_is_allowed_as_on_azure_and_ends_after_four_hops(chain: Chain) -> None:
    chain.make(TOPIC, "t")
    chain.make(SUBSCRIPTION, "t/Subscriptions/s")
    assert "does not exist" in refusal(chain.queue("a", "a"))  # when it is made it is not there yet
    chain.queue("a")
    chain.change("a", forwards("A"))
    chain.change("t/Subscriptions/s", forwards("t"))
    for path, source in (("a", "a"), ("t", "t/Subscriptions/s")):
        chain.send(path, message(b"round"))
        (stored,) = chain.peek(f"{source}/$DeadLetterQueue")
        assert stored.overlay is not None and stored.overlay.dead_letter_reason == "MaxTransferHopCountExceeded"
        assert chain.counts(source) == (0, 1)


def test_a_source_that_requires_sessions_is_refused_and_its_dead_letters_are_not(chain: Chain) -> None:
    chain.queue("b")
    settings = forwards("b")
    settings.requires_session = True
    assert "RequiresSession and ForwardTo" in refusal(chain.make(QUEUE, "a", settings))
    settings = forwards("", "b")
    settings.requires_session = True
    chain.make(QUEUE, "a", settings)
    assert chain.namespace.exists("a")


def test_records_of_a_move_to_the_dead_letters_are_those_of_any_other(chain: Chain) -> None:
    chain.queue("b")
    chain.queue("a", "b")
    chain.apply(DeleteEntity(5, "b"), AttachSender(SENDER, "a"))
    decided = chain.namespace.apply([Send(SENDER, 1, [message(b"x")], False, 1)], chain.now_ms)
    assert [[type(record) for record in group] for group in decided.turn.groups] == [[MessageAdded], [MessageMoved]]


def test_attaching_after_forwarding_was_given_up_is_allowed(chain: Chain) -> None:
    chain.queue("b")
    chain.queue("a", "b")
    chain.change("a", forwards())
    assert [type(effect) for effect in chain.apply(AttachReceiver(RECEIVER, "a", False))] == [Attached]
