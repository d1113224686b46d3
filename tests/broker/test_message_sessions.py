"""Message sessions: one holder at a time, in order, with a state that lasts."""

import random

import pytest

from spillway.broker.commands import (
    AttachReceiver,
    AttachSender,
    CreateEntity,
    Credit,
    DetachLink,
    GetSessionState,
    ListSessions,
    Peek,
    ReceiveDeferred,
    RenewSession,
    Request,
    Send,
    SessionWish,
    SetSessionState,
    Settle,
    Undelivered,
    UpdateDisposition,
    UpdateEntity,
)
from spillway.broker.effects import (
    Attached,
    Deliver,
    Detached,
    Done,
    Effect,
    Failed,
    Messages,
    Refused,
    Renewed,
    SendSettled,
    SessionNames,
    SessionState,
    SettlementAnswered,
)
from spillway.model.entity import QUEUE, EntitySettings
from spillway.model.errors import (
    ArgumentError,
    MessageLockLost,
    NotAllowed,
    OperationTimeout,
    SessionCannotBeLocked,
    SessionLockLost,
)
from spillway.model.message import NEVER
from spillway.model.settlement import ABANDON, COMPLETE, DEFER, Settlement
from spillway.testing.core import CoreHarness, message

LOCK_MS = 60_000


class Talks(CoreHarness):
    """One queue `q` that requires sessions; sender link 1. Receivers have the numbers they are given."""

    def __init__(self) -> None:
        super().__init__()
        self.settings = EntitySettings()
        self.settings.requires_session = True
        self.apply(CreateEntity(900, QUEUE, "q", self.settings), AttachSender(1, "q"))

    def send(self, session_id: str | None, *texts: bytes, due_ms: int = NEVER) -> list[Effect]:
        messages = [message(text, session_id=session_id, scheduled_ms=due_ms) for text in texts]
        return self.apply(Send(1, 5, messages, False, 10))

    def accept(self, link_id: int, session_id: str | None = None, wait_ms: int = 1_000) -> list[Effect]:
        return self.apply(AttachReceiver(link_id, "q", False, SessionWish(session_id, wait_ms)))

    def accepted(self, link_id: int, session_id: str | None = None) -> str:
        """The session it got."""
        got = [effect for effect in self.accept(link_id, session_id) if isinstance(effect, Attached)]
        assert len(got) == 1
        assert got[0].session_id is not None
        return got[0].session_id

    def credit(self, link_id: int, count: int = 100) -> list[Deliver]:
        limit = self.namespace.links.receivers.by_number[link_id].handed_count + count
        return delivered(self.apply(Credit(link_id, limit, False)))

    def receive(self, link_id: int, count: int = 100) -> list[bytes]:
        return bodies(self.credit(link_id, count))

    def settle(self, delivery: Deliver, kind: int) -> list[Effect]:
        return self.apply(Settle(delivery.to, 7, delivery.lock_token, Settlement(kind), False))

    def ask(self, request: Request) -> Effect:
        (answer,) = self.apply(request)
        return answer


def delivered(effects: list[Effect]) -> list[Deliver]:
    return [effect for effect in effects if isinstance(effect, Deliver)]


def bodies(deliveries: list[Deliver]) -> list[bytes]:
    return [delivery.stored.message.raw for delivery in deliveries]


@pytest.fixture
def talks() -> Talks:
    return Talks()


def test_a_message_without_a_session_id_is_refused(talks: Talks) -> None:
    (settled,) = talks.send(None, b"x")
    assert isinstance(settled, SendSettled)
    assert isinstance(settled.error, NotAllowed)
    assert "SessionId" in settled.error.description


def test_a_named_session_is_held_by_one_receiver_and_gets_its_messages_in_order(talks: Talks) -> None:
    talks.send("a", b"a1")
    talks.send("b", b"b1")
    talks.send("a", b"a2", b"a3")
    (attached,) = talks.accept(10, "a")
    assert isinstance(attached, Attached)
    assert (attached.session_id, attached.locked_until_ms) == ("a", talks.now_ms + LOCK_MS)
    (refused,) = talks.accept(11, "a")
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, SessionCannotBeLocked)
    assert talks.receive(10) == [b"a1", b"a2", b"a3"]


def test_messages_that_come_while_the_session_is_held_are_delivered_at_once(talks: Talks) -> None:
    talks.accepted(10, "a")
    assert talks.receive(10) == []
    assert bodies(delivered(talks.send("a", b"a1"))) == [b"a1"]
    assert delivered(talks.send("b", b"b1")) == []


def test_an_empty_string_is_a_session_like_any_other(talks: Talks) -> None:
    talks.send("", b"x")
    assert talks.accepted(10, None) == ""
    assert talks.receive(10) == [b"x"]


def test_the_next_session_is_the_one_that_has_waited_longest(talks: Talks) -> None:
    for session_id in ("c", "a", "b"):
        talks.send(session_id, session_id.encode())
    assert [talks.accepted(link_id) for link_id in (10, 11, 12)] == ["c", "a", "b"]
    assert talks.receive(11) == [b"a"]


def test_who_waits_for_the_next_session_gets_the_first_that_has_a_message(talks: Talks) -> None:
    assert talks.accept(10, None) == []
    assert talks.accept(11, None) == []
    (attached, _) = talks.send("x", b"x1")
    assert isinstance(attached, Attached)
    assert (attached.to, attached.session_id) == (10, "x")
    assert talks.receive(10) == [b"x1"]
    (second, _) = talks.send("y", b"y1")
    assert (second.to, type(second)) == (11, Attached)


def test_who_waits_too_long_is_told_so(talks: Talks) -> None:
    talks.accept(10, None, wait_ms=3_000)
    assert talks.step(2_999) == []
    (refused,) = talks.step(1)
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, OperationTimeout)
    talks.send("a", b"a1")
    assert talks.accepted(11) == "a"  # not given to the one that left


def test_who_goes_away_while_waiting_locks_nothing(talks: Talks) -> None:
    talks.accept(10, None)
    talks.apply(DetachLink(10))
    talks.send("a", b"a1")
    assert talks.accepted(11) == "a"


def test_a_session_given_up_is_free_at_once_and_its_messages_return_uncounted(talks: Talks) -> None:
    talks.send("a", b"a1", b"a2")
    talks.accepted(10, "a")
    assert talks.receive(10) == [b"a1", b"a2"]
    assert talks.accept(11, None) == []
    said = talks.apply(DetachLink(10))
    assert [effect.to for effect in said if isinstance(effect, Attached)] == [11]
    again = talks.credit(11)
    assert bodies(again) == [b"a1", b"a2"]
    assert [delivery.stored.delivery_count for delivery in again] == [0, 0]


def test_a_session_lock_that_ends_detaches_its_receiver_and_counts_what_it_held(talks: Talks) -> None:
    talks.send("a", b"a1", b"a2")
    talks.accepted(10, "a")
    first, _ = talks.credit(10)
    (detached,) = talks.step(LOCK_MS)
    assert isinstance(detached, Detached)
    assert isinstance(detached.error, SessionLockLost)
    assert talks.settle(first, COMPLETE) == []
    talks.accepted(11, "a")
    assert [delivery.stored.delivery_count for delivery in talks.credit(11)] == [1, 1]


def deleting(talks: Talks, link_id: int, session_id: str | None) -> list[Effect]:
    return talks.apply(AttachReceiver(link_id, "q", True, SessionWish(session_id, 1_000)))


def test_a_receiver_that_deletes_stays_when_its_lock_runs_out_while_it_is_idle(talks: Talks) -> None:
    """As on Azure: it has no lock on any message, and nobody else wants the session."""
    deleting(talks, 10, "a")
    assert talks.step(LOCK_MS) == []
    assert talks.step(10 * LOCK_MS) == []
    talks.send("a", b"a1")
    assert talks.receive(10) == [b"a1"]
    renewed = talks.ask(RenewSession(500, "q", "a"))
    assert isinstance(renewed, Renewed)
    (refused,) = talks.accept(11, "a")  # it is held again
    assert isinstance(refused, Refused)


@pytest.mark.parametrize("named", [True, False])
def test_who_wants_its_session_takes_it_from_a_receiver_that_deletes_and_is_idle(talks: Talks, named: bool) -> None:
    deleting(talks, 10, "a")
    talks.step(LOCK_MS)
    talks.send("a", b"a1")
    detached, attached = talks.accept(11, "a" if named else None)
    assert isinstance(detached, Detached) and detached.to == 10 and isinstance(detached.error, SessionLockLost)
    assert isinstance(attached, Attached) and attached.session_id == "a"
    assert talks.receive(11) == [b"a1"]


def test_who_waits_for_a_session_gets_the_one_that_is_idle_when_it_has_a_message(talks: Talks) -> None:
    deleting(talks, 10, "a")
    talks.step(LOCK_MS)
    assert talks.accept(11, None) == []
    effects = talks.send("a", b"a1")
    assert [type(effect) for effect in effects] == [Detached, Attached, SendSettled]
    assert talks.receive(11) == [b"a1"]


def test_a_receiver_that_deletes_loses_its_session_while_somebody_waits_for_one(talks: Talks) -> None:
    deleting(talks, 10, "a")
    assert talks.accept(11, None, 10 * LOCK_MS) == []
    (detached,) = talks.step(LOCK_MS)
    assert isinstance(detached, Detached) and detached.to == 10


def test_renewing_a_session_keeps_it_and_only_it(talks: Talks) -> None:
    talks.accepted(10, "a")
    talks.accepted(11, "b")
    talks.step(LOCK_MS - 1)
    renewed = talks.ask(RenewSession(500, "q", "a"))
    assert isinstance(renewed, Renewed)
    assert renewed.locked_until_ms == [talks.now_ms + LOCK_MS]
    (detached,) = talks.step(1)
    assert detached.to == 11
    failed = talks.ask(RenewSession(501, "q", "b"))
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, SessionLockLost)


def test_messages_are_settled_on_the_link_or_by_token_with_the_session_id(talks: Talks) -> None:
    talks.send("a", b"a1", b"a2", b"a3")
    talks.accepted(10, "a")
    first, second, third = talks.credit(10)
    (settled,) = talks.settle(first, COMPLETE)
    assert isinstance(settled, SettlementAnswered)
    assert settled.error is None
    done = talks.ask(UpdateDisposition(500, "q", [second.lock_token], Settlement(COMPLETE), "a"))
    assert isinstance(done, Done)
    failed = talks.ask(UpdateDisposition(501, "q", [third.lock_token], Settlement(COMPLETE), "b"))
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, SessionLockLost)
    failed = talks.ask(UpdateDisposition(502, "q", [first.lock_token], Settlement(COMPLETE), "a"))
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, MessageLockLost)
    talks.restart()
    talks.accepted(11, "a")
    assert talks.receive(11) == [b"a3"]


def test_an_abandoned_message_comes_back_to_its_session_in_front(talks: Talks) -> None:
    talks.send("a", b"a1", b"a2")
    talks.accepted(10, "a")
    (first,) = talks.credit(10, 1)
    talks.settle(first, ABANDON)
    assert talks.receive(10, 5) == [b"a1", b"a2"]


def test_an_undelivered_message_returns_to_its_session(talks: Talks) -> None:
    talks.send("a", b"a1")
    talks.accepted(10, "a")
    (first,) = talks.credit(10, 1)
    talks.apply(Undelivered("q", first.lock_token))
    assert talks.receive(10, 1) == [b"a1"]


def test_deferred_messages_are_received_by_who_holds_their_session(talks: Talks) -> None:
    talks.send("a", b"a1")
    talks.accepted(10, "a")
    (first,) = talks.credit(10)
    talks.settle(first, DEFER)
    failed = talks.ask(ReceiveDeferred(500, "q", [1], False, "b"))
    assert isinstance(failed, Failed)
    found = talks.ask(ReceiveDeferred(501, "q", [1], False, "a"))
    assert isinstance(found, Messages)
    done = talks.ask(UpdateDisposition(502, "q", found.lock_tokens, Settlement(COMPLETE), "a"))
    assert isinstance(done, Done)
    assert talks.namespace.directory.queues["q"].counters.deferred == 0


def test_state_is_kept_over_holders_and_restarts(talks: Talks) -> None:
    talks.accepted(10, "a")
    never = talks.ask(GetSessionState(500, "q", "a"))
    assert isinstance(never, SessionState)
    assert never.state is None
    assert isinstance(talks.ask(SetSessionState(501, "q", "a", b"half way")), Done)
    talks.restart()
    failed = talks.ask(GetSessionState(502, "q", "a"))
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, SessionLockLost)
    talks.accepted(11, "a")
    state = talks.ask(GetSessionState(503, "q", "a"))
    assert isinstance(state, SessionState)
    assert state.state == b"half way"
    talks.ask(SetSessionState(504, "q", "a", None))
    cleared = talks.ask(GetSessionState(505, "q", "a"))
    assert isinstance(cleared, SessionState)
    assert cleared.state is None


def test_sessions_are_listed_by_messages_and_state_or_by_their_last_change_of_state(talks: Talks) -> None:
    for session_id in ("c", "a", "b"):
        talks.send(session_id, b"x")
    talks.accepted(10, "z")
    since_ms = talks.now_ms
    talks.ask(SetSessionState(500, "q", "z", b"s"))
    in_use = talks.ask(ListSessions(501, "q", NEVER, 1, 10))
    assert isinstance(in_use, SessionNames)
    assert in_use.names == ["b", "c", "z"]
    changed = talks.ask(ListSessions(502, "q", since_ms, 0, 10))
    assert isinstance(changed, SessionNames)
    assert changed.names == ["z"]
    none = talks.ask(ListSessions(503, "q", since_ms + 1, 0, 10))
    assert isinstance(none, SessionNames)
    assert none.names == []


def test_browsing_can_be_of_one_session(talks: Talks) -> None:
    talks.send("a", b"a1")
    talks.send("b", b"b1")
    found = talks.ask(Peek(500, "q", 1, 10, "b"))
    assert isinstance(found, Messages)
    assert [stored.message.raw for stored in found.messages] == [b"b1"]


def test_scheduled_messages_join_their_session(talks: Talks) -> None:
    talks.send("a", b"later", due_ms=talks.now_ms + 1_000)
    talks.accept(10, None, wait_ms=5_000)
    said = talks.step(1_000)
    assert [effect.session_id for effect in said if isinstance(effect, Attached)] == ["a"]
    assert talks.receive(10) == [b"later"]


def test_expired_messages_leave_their_session_whether_it_is_held_or_not(talks: Talks) -> None:
    for session_id in ("held", "free"):
        talks.apply(Send(1, 5, [message(b"x", session_id=session_id, ttl_ms=1_000)], False, 1))
    talks.accepted(10, "held")
    talks.step(1_000)
    assert talks.namespace.directory.queues["q"].counters.active == 0
    assert talks.receive(10) == []
    assert talks.accept(11, None) == []


def test_the_dead_letter_queue_of_sessions_is_a_plain_one(talks: Talks) -> None:
    talks.send("a", b"a1")
    for attempt in range(10):
        talks.accepted(20 + attempt, "a")
        (delivery,) = talks.credit(20 + attempt)
        talks.settle(delivery, ABANDON)
        talks.apply(DetachLink(20 + attempt))
    talks.apply(AttachReceiver(50, "q/$DeadLetterQueue", False))
    assert talks.receive(50) == [b"a1"]
    assert talks.accept(51, None) == []


def test_plain_receivers_and_session_receivers_keep_to_their_own_entities(talks: Talks) -> None:
    (refused,) = talks.apply(AttachReceiver(10, "q", False))
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, NotAllowed)
    # The sentence that Microsoft's tests look for.
    text = "It is not possible for an entity that requires sessions to create a non-sessionful message receiver."
    assert refused.error.description.startswith(text)
    talks.apply(CreateEntity(500, QUEUE, "plain", EntitySettings()))
    (refused,) = talks.apply(AttachReceiver(11, "plain", False, SessionWish("a", 10)))
    assert isinstance(refused, Refused)
    assert isinstance(refused.error, NotAllowed)


def test_sessions_are_lost_when_the_entity_changes_and_cannot_be_switched_off(talks: Talks) -> None:
    talks.accepted(10, "a")
    settings = EntitySettings()
    settings.requires_session = True
    said = talks.apply(UpdateEntity(500, "q", settings))
    assert [effect.to for effect in said if isinstance(effect, Detached)] == [10]
    failed = talks.ask(UpdateEntity(501, "q", EntitySettings()))
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, ArgumentError)


def test_many_sessions_keep_only_the_held_ones_in_memory(talks: Talks) -> None:
    for number in range(3_000):
        talks.send(f"s{number}", b"x" * 100, b"y" * 100)
    queue = talks.namespace.directory.queues["q"]
    assert talks.namespace.directory.budget.bytes_used == 0
    assert queue.sessions is not None
    assert not queue.sessions.locked
    for link_id in range(100, 150):
        talks.accepted(link_id)
        assert len(talks.receive(link_id, 1)) == 1
    assert len(queue.sessions.locked) == 50


def test_every_message_of_every_session_is_received_once_and_in_order_by_competing_receivers(talks: Talks) -> None:
    chance = random.Random(7)
    sent: dict[str, list[bytes]] = {}
    for number in range(2_000):
        session_id = f"s{chance.randint(0, 60)}"
        sent.setdefault(session_id, []).append(b"%d" % number)
        talks.send(session_id, b"%d" % number)
    got: dict[str, list[bytes]] = {}
    link_id = 1_000
    while sum(len(texts) for texts in got.values()) < 2_000:
        link_id += 1
        session_id = talks.accepted(link_id)
        for delivery in talks.credit(link_id, chance.randint(1, 60)):
            got.setdefault(session_id, []).append(delivery.stored.message.raw)
            talks.settle(delivery, COMPLETE)
        if chance.random() < 0.1:
            talks.restart()
            talks.apply(AttachSender(1, "q"))
        else:
            talks.apply(DetachLink(link_id))
    assert got == sent
