"""A fault of ours while one command is applied: that command is refused, what it began is undone, the others go on.

The faults are planted by spoiling the memory of an entity: something of a wrong kind in one of its containers.
"""

from collections.abc import Callable
from typing import Any

import pytest

from spillway.broker.commands import (
    AttachReceiver,
    AttachSender,
    BatchDelete,
    CancelScheduled,
    Command,
    CreateEntity,
    Credit,
    DeleteEntity,
    Describe,
    DetachLink,
    Peek,
    Schedule,
    Send,
    Settle,
    UpdateDisposition,
)
from spillway.broker.effects import (
    AccessChanged,
    Attached,
    Deliver,
    Descriptions,
    Detached,
    Done,
    Effect,
    Failed,
    Messages,
    Refused,
    Report,
    SendSettled,
    SettlementAnswered,
)
from spillway.broker.forwarding import RETRY_MS
from spillway.broker.incidents import REPORTS_MAX, WAIT_MS, WAIT_MS_MAX
from spillway.broker.topic import Subscription
from spillway.model.entity import QUEUE, SUBSCRIPTION, TOPIC, EntitySettings, dead_letter_path, entity_key
from spillway.model.errors import BrokerError, EntityAlreadyExists, InternalError
from spillway.model.message import Message, StoredMessage
from spillway.model.records import Counters, EntityPut, Turn
from spillway.model.settlement import COMPLETE, Settlement
from spillway.testing.core import CoreHarness, message

ILL: Any = None  # of a kind that nothing here expects
SICK: Any = object()  # where nothing is expected sometimes
COMPLETED = Settlement(COMPLETE)
SENDER = 1
RECEIVER = 2
NEIGHBOUR = 3
ASKED = 4


class House(CoreHarness):
    """Queues `q` and `neighbour`, a topic with two subscriptions; links that stay."""

    def __init__(self) -> None:
        super().__init__()
        self.allows_incidents = True
        self.numbers = 1_000
        self.create(QUEUE, "q")
        self.create(QUEUE, "neighbour")
        self.create(TOPIC, "t")
        self.create(SUBSCRIPTION, "t/Subscriptions/a")
        self.create(SUBSCRIPTION, "t/Subscriptions/b")
        self.apply(AttachSender(NEIGHBOUR, "neighbour"))

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    def create(self, kind: str, path: str, settings: EntitySettings | None = None) -> None:
        self.apply(CreateEntity(self.number(), kind, path, settings or EntitySettings()))

    def queue(self, path: str) -> Any:
        return self.namespace.directory.queues[entity_key(path)]

    def topic(self, path: str) -> Any:
        return self.namespace.directory.topics[entity_key(path)]

    def send(self, path: str, *messages: Message) -> BrokerError | None:
        link_id = self.number()
        said = self.apply(AttachSender(link_id, path), Send(link_id, 7, list(messages), False, 10))
        (settled,) = [effect for effect in said if isinstance(effect, SendSettled)]
        self.apply(DetachLink(link_id))
        return settled.error

    def locked(self, path: str) -> Deliver:
        """A message of this queue, locked by the link RECEIVER."""
        said = self.apply(AttachReceiver(RECEIVER, path, False), Credit(RECEIVER, 1, False))
        (delivery,) = [effect for effect in said if isinstance(effect, Deliver)]
        return delivery

    def peeked(self, path: str) -> list[StoredMessage]:
        (answer,) = [
            effect for effect in self.apply(Peek(self.number(), path, 0, 1_000)) if not isinstance(effect, Report)
        ]
        assert isinstance(answer, Messages), answer
        return answer.messages

    def bodies(self, path: str) -> list[bytes]:
        return sorted(stored.message.raw for stored in self.peeked(path))

    def assert_sound(self) -> None:
        """Nothing is apart, and every counter says what the store has."""
        assert not self.namespace.directory.apart
        for entity in self.namespace.directory.by_id.values():
            twin = self.journal.recover()
            (row,) = [each for each in twin.entities if each.put.entity_id == entity.entity_id]
            held = [stored.message.raw for stored in self.journal._entities[entity.entity_id].rows.values()]
            assert numbers_of(row.counters) == numbers_of(entity.counters)
            assert (entity.counters.total, entity.counters.size_bytes) == (len(held), sum(map(len, held)))


def numbers_of(counters: Counters) -> tuple[int, ...]:
    return counters.active, counters.deferred, counters.scheduled, counters.hidden, counters.size_bytes


def errors_of(said: list[Effect]) -> list[BrokerError]:
    answers = [
        e.error
        for e in said
        if isinstance(e, (SendSettled, SettlementAnswered, Failed, Refused)) and e.error is not None
    ]
    assert all(isinstance(error, InternalError) and "incident test-" in error.description for error in answers)
    return answers


@pytest.fixture
def house() -> House:
    return House()


# -- every kind of work, each with a fault in the middle of it ---------------------------------------------------------


def spoil_receivers(house: House) -> list[Command]:
    """Serving meets it, at the end of the turn."""
    house.queue("q").lane.receivers.links.append(ILL)
    return [AttachSender(SENDER, "q"), Send(SENDER, 7, [message(b"new")], False, 10)]


def spoil_locks(house: House) -> list[Command]:
    """What is due meets it."""
    house.locked("q")
    house.queue("q").lane.locks.by_token[b"ill"] = ILL
    house.now_ms += 10 * house.queue("q").settings.lock_duration_ms
    return []


def spoil_counters_of_settled(house: House) -> list[Command]:
    delivery = house.locked("q")
    house.queue("q").counters.active = 0
    return [Settle(RECEIVER, 9, delivery.lock_token, COMPLETED, False)]


def spoil_counters_of_disposition(house: House) -> list[Command]:
    delivery = house.locked("q")
    house.queue("q").counters.active = 0
    return [UpdateDisposition(ASKED, "q", [delivery.lock_token], COMPLETED, None)]


def spoil_messages_of_send(house: House) -> list[Command]:
    return [AttachSender(SENDER, "q"), Send(SENDER, 7, [message(b"new"), ILL], False, 10)]


def spoil_messages_of_schedule(house: House) -> list[Command]:
    return [Schedule(ASKED, "q", [message(b"new", scheduled_ms=house.now_ms + 5_000), ILL], 10)]


def spoil_deletion(house: House) -> list[Command]:
    """The answer of the store meets it."""
    house.queue("q").counters.active = 0
    return [BatchDelete(ASKED, "q", 10, house.now_ms + 1)]


def spoil_cancelling(house: House) -> list[Command]:
    house.queue("q").counters.scheduled = 0
    return [CancelScheduled(ASKED, "q", [2])]


def spoil_activation(house: House) -> list[Command]:
    """A scheduled message of the topic, by a timer and an answer of the store."""
    house.apply(Schedule(house.number(), "t", [message(b"later", scheduled_ms=house.now_ms + 5_000)], 10))
    house.topic("t").counters.scheduled = 0
    house.now_ms += 5_000
    return []


def spoil_publishing(house: House) -> list[Command]:
    """The second of two subscriptions: the first has its copy already."""
    subscription = house.queue("t/Subscriptions/b")
    assert isinstance(subscription, Subscription)
    subscription.rules.compiled = [SICK]
    return [AttachSender(SENDER, "t"), Send(SENDER, 7, [message(b"new")], False, 10)]


def spoil_attaching(house: House) -> list[Command]:
    house.queue("q").owners.append(ILL)
    return [AttachReceiver(RECEIVER, "q", False)]


def spoil_detaching(house: House) -> list[Command]:
    house.apply(AttachReceiver(RECEIVER, "q", False))
    house.queue("q").owners.append(ILL)
    return [DetachLink(RECEIVER)]


def spoil_credit(house: House) -> list[Command]:
    house.apply(AttachReceiver(RECEIVER, "q", False))
    house.queue("q").owners.append(ILL)
    return [Credit(RECEIVER, 1, False)]


@pytest.mark.parametrize(
    ("spoil", "is_answered"),
    [
        (spoil_receivers, False),
        (spoil_locks, False),
        (spoil_counters_of_settled, True),
        (spoil_counters_of_disposition, True),
        (spoil_messages_of_send, True),
        (spoil_messages_of_schedule, True),
        (spoil_deletion, True),
        (spoil_cancelling, True),
        (spoil_activation, False),
        (spoil_publishing, True),
        (spoil_attaching, True),
        (spoil_detaching, False),
        (spoil_credit, False),
    ],
)
def test_a_fault_refuses_its_command_and_hurts_nobody_else(
    house: House, spoil: Callable[[House], list[Command]], is_answered: bool
) -> None:
    house.send("q", message(b"kept"))
    house.apply(Schedule(house.number(), "q", [message(b"scheduled", scheduled_ms=house.now_ms + 9_000_000)], 10))
    house.send("t", message(b"copied"))
    house.send("neighbour", message(b"theirs"))
    commands = spoil(house)
    said = house.apply(*commands, Send(NEIGHBOUR, 8, [message(b"beside")], False, 6))
    assert len(errors_of(said)) == (1 if is_answered else 0), said
    assert any(isinstance(effect, Report) and effect.is_alarm for effect in said)
    assert house.namespace.incidents.count == 1
    assert [e.error for e in said if isinstance(e, SendSettled) and e.to == NEIGHBOUR] == [None]
    # The rest is as if it had never been asked for, and everything works.
    house.assert_sound()
    assert b"kept" in house.bodies("q") and b"scheduled" in house.bodies("q")
    assert b"copied" in house.bodies("t/Subscriptions/a") and b"copied" in house.bodies("t/Subscriptions/b")
    assert house.send("q", message(b"after")) is None
    assert house.send("t", message(b"after")) is None
    assert house.bodies("neighbour") == [b"beside", b"theirs"]
    house.restart()
    house.apply()
    house.assert_sound()


# -- undone, kept ------------------------------------------------------------------------------------------------------


def test_a_publish_that_failed_halfway_left_no_copy_and_can_be_sent_again(house: House) -> None:
    subscription = house.queue("t/Subscriptions/b")
    assert isinstance(subscription, Subscription)
    subscription.rules.compiled = [SICK]
    assert isinstance(house.send("t", message(b"1")), InternalError)
    assert house.bodies("t/Subscriptions/a") == house.bodies("t/Subscriptions/b") == []
    assert house.send("t", message(b"1")) is None
    assert house.bodies("t/Subscriptions/a") == house.bodies("t/Subscriptions/b") == [b"1"]


def test_what_was_accepted_before_it_in_the_same_turn_stays(house: House) -> None:
    house.apply(AttachSender(SENDER, "q"))
    said = house.apply(
        Send(SENDER, 1, [message(b"good")], False, 4),
        Send(SENDER, 2, [message(b"half"), ILL], False, 4),
        Send(SENDER, 3, [message(b"late")], False, 4),
    )
    settled = [(e.delivery_id, e.error is None) for e in said if isinstance(e, SendSettled)]
    assert settled == [(1, True), (2, False), (3, False)]
    assert house.bodies("q") == [b"good"]


def test_links_of_the_entity_end_with_an_error_that_clients_try_again(house: House) -> None:
    house.apply(AttachSender(SENDER, "q"), AttachReceiver(RECEIVER, "q", False))
    said = house.apply(Send(SENDER, 2, [ILL], False, 4))
    ended = {e.to: e.error.condition for e in said if isinstance(e, Detached)}
    assert ended == {SENDER: "amqp:internal-error", RECEIVER: "amqp:internal-error"}


def test_a_locked_message_is_there_again_with_its_count(house: House) -> None:
    house.send("q", message(b"1"))
    house.locked("q")
    house.send("q", ILL)
    (stored,) = house.peeked("q")
    assert stored.delivery_count == 0
    assert house.locked("q").stored.message.raw == b"1"


# -- out of service ----------------------------------------------------------------------------------------------------


def fail(house: House, path: str = "q") -> None:
    assert isinstance(house.send(path, ILL), InternalError)


def test_an_entity_that_fails_again_is_left_alone_for_longer_each_time(house: House) -> None:
    fail(house)
    assert not house.namespace.directory.apart
    for wait_ms in (WAIT_MS, 2 * WAIT_MS, 4 * WAIT_MS):
        fail(house)
        house.step(wait_ms - 1)
        assert house.namespace.exists("q")
        assert "q" in house.namespace.directory.apart
        house.step(1)
        assert not house.namespace.directory.apart
    for _ in range(20):
        fail(house)
        house.step(WAIT_MS_MAX)
        assert not house.namespace.directory.apart


def apart(house: House) -> House:
    fail(house)
    fail(house)
    assert "q" in house.namespace.directory.apart
    return house


def test_who_asks_for_it_meanwhile_hears_why_and_that_it_is_worth_another_try(house: House) -> None:
    said = apart(house).apply(
        AttachSender(50, "q"),
        AttachReceiver(51, dead_letter_path("q"), False),
        Peek(52, "q", 0, 1),
        Describe(53, "q"),
    )
    assert len(errors_of(said)) == 4
    (failed,) = house.apply(CreateEntity(54, QUEUE, "q", EntitySettings()))
    assert isinstance(failed, Failed) and isinstance(failed.error, EntityAlreadyExists)


def test_it_can_be_deleted_and_made_anew(house: House) -> None:
    house.send("q", message(b"1"))
    assert [type(effect) for effect in apart(house).apply(DeleteEntity(60, "q"))] == [AccessChanged, Done]
    house.step(WAIT_MS)
    house.create(QUEUE, "q")
    assert house.bodies("q") == []
    assert house.send("q", message(b"2")) is None
    house.assert_sound()


def test_an_entity_deleted_while_it_is_read_again_stays_deleted(house: House) -> None:
    decided = house.namespace.apply(
        [AttachSender(SENDER, "q"), Send(SENDER, 1, [ILL], False, 1), DeleteEntity(60, "q")], house.now_ms
    )
    house.journal.submit(decided.turn, 1)
    house.step(WAIT_MS)
    assert not house.namespace.exists("q")
    house.assert_sound()


def test_messages_wait_for_a_destination_that_is_apart(house: House) -> None:
    settings = EntitySettings()
    settings.forward_to = "q"
    house.create(QUEUE, "in", settings)
    apart(house)
    assert house.send("in", message(b"1")) is None
    house.step(WAIT_MS)
    house.step(RETRY_MS)
    assert house.bodies("q") == [b"1"]
    assert house.bodies(dead_letter_path("in")) == []


def test_faults_that_come_with_every_command_do_not_fill_the_log(house: House) -> None:
    reports = 0
    for _ in range(5 * REPORTS_MAX):
        house.apply(AttachSender(SENDER, "q"))
        reports += sum(isinstance(e, Report) for e in house.apply(Send(SENDER, 1, [ILL], False, 1), DetachLink(SENDER)))
    assert reports <= REPORTS_MAX
    (answer,) = house.apply(Describe(61, "neighbour"))
    assert isinstance(answer, Descriptions)


# -- at the start ------------------------------------------------------------------------------------------------------


def damaged(house: House, path: str, kind: str, settings: str, parent_id: int = 0) -> None:
    """The store has something for it that cannot be understood, with a sound checksum."""
    entity = house.namespace.directory.find(path)
    assert entity is not None
    turn = Turn(house.now_ms)
    turn.add([EntityPut(entity.entity_id, kind, path, settings, parent_id)])
    house.journal.submit(turn, 99)


@pytest.mark.parametrize("settings", ["{", "[]", '{"rules": [{"name": 1}]}', ""])
@pytest.mark.parametrize(("path", "kind"), [("q", QUEUE), ("t", TOPIC)])
def test_an_entity_that_cannot_be_read_never_stops_the_start(house: House, path: str, kind: str, settings: str) -> None:
    house.send("neighbour", message(b"theirs"))
    damaged(house, path, kind, settings)
    house.restart()
    said = house.apply(AttachSender(NEIGHBOUR, "neighbour"))
    assert any(isinstance(effect, Attached) for effect in said)
    assert house.bodies("neighbour") == [b"theirs"]
    assert any(isinstance(effect, Report) and path in effect.text for effect in said)
    if kind == TOPIC:
        assert "t/subscriptions/a" in house.namespace.directory.apart
    assert any(isinstance(effect, Done) for effect in house.apply(DeleteEntity(60, path)))
    house.create(kind, path)
    assert house.send(path, message(b"1")) is None


def test_an_entity_that_can_be_read_later_comes_back_by_itself(house: House) -> None:
    house.send("q", message(b"1"))
    sound = house.queue("q").settings.to_json()
    damaged(house, "q", QUEUE, "{")
    house.restart()
    house.apply()
    assert "q" in house.namespace.directory.apart
    turn = Turn(house.now_ms)
    turn.add([EntityPut(house.namespace.directory.apart["q"].entity_ids()[0], QUEUE, "q", sound, 0)])
    house.journal.submit(turn, 100)
    house.step(WAIT_MS_MAX)
    assert house.bodies("q") == [b"1"]
    house.assert_sound()
