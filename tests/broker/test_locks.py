"""PeekLock and ReceiveAndDelete: locks, their end, and what happens to the message then."""

import pytest

from spillway.broker.commands import DetachLink, RenewLocks, Settle, Undelivered, UpdateDisposition, UpdateEntity
from spillway.broker.effects import Done, Failed, Renewed, SettlementAnswered
from spillway.broker.locks import LockTokens
from spillway.model.entity import EntitySettings
from spillway.model.errors import MessageLockLost, NotAllowed
from spillway.model.settlement import ABANDON, COMPLETE, DEAD_LETTER, DEFER, RELEASE, Settlement
from spillway.testing.core import message
from tests.broker.line import OTHER_RECEIVER, RECEIVER, Line, bodies, delivered

LOCK_MS = EntitySettings().lock_duration_ms


@pytest.mark.contract("H1", "H2")
def test_receive_and_delete_removes_the_message_as_it_is_handed_over(line: Line) -> None:
    line.send(message(b"one"))
    line.attach(deletes=True)
    (delivery,) = line.receive()
    assert delivery.lock_token == b""
    assert line.namespace.directory.queues["q"].counters.active == 0
    line.restart()
    line.attach()
    assert line.receive() == []


@pytest.mark.contract("H1", "H3", "H5")
def test_a_lock_hides_the_message_and_others_get_the_next(line: Line) -> None:
    line.send(message(b"one"), message(b"two"))
    line.attach()
    line.attach(OTHER_RECEIVER)
    (mine,) = line.receive()
    assert mine.stored.message.raw == b"one"
    assert bodies(line.receive(5, OTHER_RECEIVER)) == [b"two"]
    assert mine.locked_until_ms == line.now_ms + LOCK_MS


@pytest.mark.contract("H6")
def test_an_expired_lock_returns_the_message_to_the_front_and_counts_the_delivery(line: Line) -> None:
    line.send(message(b"one"), message(b"two"), message(b"three"))
    line.attach()
    line.receive(2)
    line.attach(OTHER_RECEIVER)
    line.step(LOCK_MS - 1)
    assert bodies(line.receive(1, OTHER_RECEIVER)) == [b"three"]
    line.step(1)
    line.limits[RECEIVER] += 2
    again = line.receive(2, OTHER_RECEIVER)
    assert bodies(again) == [b"one", b"two"]
    assert [delivery.stored.delivery_count for delivery in again] == [1, 1]


@pytest.mark.contract("H6", "H9")
def test_an_abandoned_message_comes_back_at_once_before_later_ones(line: Line) -> None:
    line.send(message(b"one"), message(b"two"))
    line.attach()
    (first,) = line.receive()
    line.settle(first, Settlement(ABANDON))
    again = line.receive(2)
    assert bodies(again) == [b"one", b"two"]
    assert [delivery.stored.delivery_count for delivery in again] == [1, 0]


@pytest.mark.contract("H7")
def test_the_last_failed_delivery_moves_the_message_to_the_dead_letter_queue(line: Line) -> None:
    line.send(message(b"poison"))
    line.attach()
    for attempt in range(10):
        (delivery,) = line.receive()
        assert delivery.stored.delivery_count == attempt
        line.settle(delivery, Settlement(ABANDON))
    assert line.receive() == []
    (dead,) = line.dead_letters()
    assert dead.stored.message.raw == b"poison"
    assert dead.stored.overlay is not None
    assert dead.stored.overlay.dead_letter_reason == "MaxDeliveryCountExceeded"
    assert dead.stored.overlay.dead_letter_source == "q"
    assert dead.stored.delivery_count == 10


@pytest.mark.contract("H7")
def test_lock_expiries_count_towards_the_maximum_and_the_count_survives_a_restart() -> None:
    settings = EntitySettings()
    settings.max_delivery_count = 3
    line = Line(settings)
    line.send(message(b"poison"))
    for _ in range(3):
        line.attach()
        assert len(line.receive()) == 1
        line.step(LOCK_MS)
        line.restart()
    line.attach()
    assert line.receive() == []
    assert bodies(line.dead_letters()) == [b"poison"]


@pytest.mark.contract("H8")
def test_a_completed_message_is_gone_for_good(line: Line) -> None:
    line.send(message(b"one"))
    line.attach()
    (delivery,) = line.receive()
    (settled,) = line.settle(delivery, Settlement(COMPLETE))
    assert isinstance(settled, SettlementAnswered)
    assert settled.error is None
    line.step(LOCK_MS * 2)
    line.restart()
    line.attach()
    assert line.receive() == []


@pytest.mark.contract("H8", "H12")
def test_settling_after_the_lock_ended_fails_with_lock_lost(line: Line) -> None:
    line.send(message(b"one"))
    line.attach()
    (delivery,) = line.receive()
    line.step(LOCK_MS)
    for kind in (COMPLETE, ABANDON, DEFER, DEAD_LETTER):
        (settled,) = line.settle(delivery, Settlement(kind))
        assert isinstance(settled, SettlementAnswered)
        assert isinstance(settled.error, MessageLockLost)


@pytest.mark.contract("H12")
def test_a_lock_that_ended_while_the_process_slept_is_lost_before_its_settlement_is_looked_at(line: Line) -> None:
    line.send(message(b"one"))
    line.attach()
    (delivery,) = line.receive()
    line.now_ms += LOCK_MS + 30_000
    said = line.apply(Settle(RECEIVER, 1, delivery.lock_token, Settlement(COMPLETE), False))
    errors = [effect.error for effect in said if isinstance(effect, SettlementAnswered)]
    assert isinstance(errors[0], MessageLockLost)
    assert line.namespace.directory.queues["q"].counters.active == 1


def test_the_same_lock_cannot_be_settled_twice(line: Line) -> None:
    line.send(message(b"one"))
    line.attach()
    (delivery,) = line.receive()
    line.settle(delivery, Settlement(COMPLETE))
    (second,) = line.settle(delivery, Settlement(COMPLETE))
    assert isinstance(second, SettlementAnswered)
    assert isinstance(second.error, MessageLockLost)


@pytest.mark.contract("H4")
def test_renewing_extends_the_lock_by_its_full_length(line: Line) -> None:
    line.send(message(b"one"))
    line.attach()
    (delivery,) = line.receive()
    line.step(LOCK_MS - 1_000)
    (renewed,) = line.apply(RenewLocks(500, "q", [delivery.lock_token]))
    assert isinstance(renewed, Renewed)
    assert renewed.locked_until_ms == [line.now_ms + LOCK_MS]
    line.step(LOCK_MS - 1)
    (settled,) = line.settle(delivery, Settlement(COMPLETE))
    assert isinstance(settled, SettlementAnswered)
    assert settled.error is None


@pytest.mark.contract("H12")
def test_renewing_a_lost_lock_fails_and_renews_none_of_the_others(line: Line) -> None:
    line.send(message(b"one"), message(b"two"))
    line.attach()
    first, second = line.receive(2)
    line.settle(first, Settlement(COMPLETE))
    (failed,) = line.apply(RenewLocks(500, "q", [second.lock_token, first.lock_token]))
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, MessageLockLost)
    line.step(LOCK_MS)
    assert bodies(line.receive()) == [b"two"]


def test_an_earlier_lock_that_was_renewed_ends_after_a_later_one_that_was_not(line: Line) -> None:
    line.send(message(b"one"), message(b"two"))
    line.attach()
    first, _ = line.receive(2)
    line.step(1_000)
    line.apply(RenewLocks(500, "q", [first.lock_token]))
    line.step(LOCK_MS - 1_000)
    assert bodies(line.receive(2)) == [b"two"]
    line.limits[RECEIVER] -= 1


def test_releasing_returns_the_message_uncounted(line: Line) -> None:
    line.send(message(b"one"))
    line.attach()
    for _ in range(30):
        (delivery,) = line.receive()
        assert delivery.stored.delivery_count == 0
        line.settle(delivery, Settlement(RELEASE))


def test_a_delivery_that_found_its_link_gone_is_unlocked_and_uncounted(line: Line) -> None:
    line.send(message(b"one"))
    line.attach()
    (delivery,) = line.receive()
    line.apply(DetachLink(RECEIVER), Undelivered("q", delivery.lock_token))
    line.attach(OTHER_RECEIVER)
    (again,) = line.receive(1, OTHER_RECEIVER)
    assert again.stored.delivery_count == 0


@pytest.mark.contract("H13")
def test_a_lock_outlives_its_link_and_can_be_settled_by_its_token(line: Line) -> None:
    line.send(message(b"one"))
    line.attach()
    (delivery,) = line.receive()
    line.apply(DetachLink(RECEIVER))
    line.attach(OTHER_RECEIVER)
    assert line.receive(1, OTHER_RECEIVER) == []
    (done,) = line.apply(UpdateDisposition(500, "q", [delivery.lock_token], Settlement(COMPLETE)))
    assert isinstance(done, Done)
    assert line.namespace.directory.queues["q"].counters.active == 0


@pytest.mark.contract("H13")
def test_settling_on_a_link_that_is_gone_says_nothing_and_changes_nothing(line: Line) -> None:
    line.send(message(b"one"))
    line.attach()
    (delivery,) = line.receive()
    line.apply(DetachLink(RECEIVER))
    assert line.settle(delivery, Settlement(COMPLETE)) == []
    assert line.namespace.directory.queues["q"].counters.active == 1


def test_several_tokens_are_settled_together_or_not_at_all(line: Line) -> None:
    line.send(message(b"one"), message(b"two"))
    line.attach()
    first, second = line.receive(2)
    (failed,) = line.apply(UpdateDisposition(500, "q", [first.lock_token, b"?" * 16], Settlement(COMPLETE)))
    assert isinstance(failed, Failed)
    (done,) = line.apply(UpdateDisposition(501, "q", [first.lock_token, second.lock_token], Settlement(COMPLETE)))
    assert isinstance(done, Done)


@pytest.mark.contract("H10")
def test_dead_lettering_keeps_reason_and_description(line: Line) -> None:
    line.send(message(b"one"))
    line.attach()
    (delivery,) = line.receive()
    line.settle(delivery, Settlement(DEAD_LETTER, "bad", "cannot be parsed", {"tag": b"\xa1\x01x"}))
    (dead,) = line.dead_letters()
    overlay = dead.stored.overlay
    assert overlay is not None
    assert (overlay.dead_letter_reason, overlay.dead_letter_description) == ("bad", "cannot be parsed")
    assert overlay.properties == {"tag": b"\xa1\x01x"}


def test_a_dead_letter_cannot_be_dead_lettered_again_and_never_expires_or_moves(line: Line) -> None:
    line.send(message(b"one", ttl_ms=1_000))
    line.attach()
    (delivery,) = line.receive()
    line.settle(delivery, Settlement(DEAD_LETTER))
    (dead,) = line.dead_letters()
    (settled,) = line.settle(dead, Settlement(DEAD_LETTER))
    assert isinstance(settled, SettlementAnswered)
    assert isinstance(settled.error, NotAllowed)
    for count in range(1, 25):
        changes = {"attempt": bytes([0x54, count])}
        dead_again = delivered(line.settle(dead, Settlement(ABANDON, properties=changes if count % 2 else None)))
        assert len(dead_again) == 1
        dead = dead_again[0]
        assert dead.stored.delivery_count == 0  # abandoning does not count here, as on Azure
        assert dead.stored.overlay is not None
        assert dead.stored.overlay.properties == {"attempt": bytes([0x54, count - 1 + count % 2])}
    (unlocked,) = delivered(line.step(100_000_000))
    assert unlocked.stored.delivery_count == 0  # nor does a lock that ran out


def test_modified_properties_travel_with_the_message_over_restarts(line: Line) -> None:
    line.send(message(b"one"))
    line.attach()
    (delivery,) = line.receive()
    line.settle(delivery, Settlement(ABANDON, properties={"attempt": b"\x54\x01"}))
    line.restart()
    line.attach()
    (again,) = line.receive()
    assert again.stored.overlay is not None
    assert again.stored.overlay.properties == {"attempt": b"\x54\x01"}


def test_changing_a_queue_drops_its_locks_without_counting(line: Line) -> None:
    line.send(message(b"one"))
    line.attach()
    (delivery,) = line.receive()
    settings = EntitySettings()
    settings.lock_duration_ms = 5_000
    line.credit(1)
    again = delivered(line.apply(UpdateEntity(500, "q", settings)))
    assert [d.stored.delivery_count for d in again] == [0]
    assert again[0].locked_until_ms == line.now_ms + 5_000
    (settled,) = line.settle(delivery, Settlement(COMPLETE))
    assert isinstance(settled, SettlementAnswered)
    assert isinstance(settled.error, MessageLockLost)


@pytest.mark.contract("H11")
def test_a_deferred_message_is_set_aside_and_not_handed_out(line: Line) -> None:
    line.send(message(b"one"), message(b"two"))
    line.attach()
    (delivery,) = line.receive()
    line.settle(delivery, Settlement(DEFER))
    assert bodies(line.receive(5)) == [b"two"]
    counters = line.namespace.directory.queues["q"].counters
    assert (counters.active, counters.deferred) == (1, 1)


def test_tokens_are_never_handed_out_twice_and_begin_with_the_seed_of_their_life() -> None:
    tokens = LockTokens(b"12345678")
    made = [tokens.next() for _ in range(100_000)]
    assert len(set(made)) == len(made)
    assert all(len(token) == 16 and token.startswith(b"12345678") for token in made)
    assert made[0] != LockTokens(b"87654321").next()
