"""The resident window: depth costs disk, not memory; order holds across it."""

import random

from spillway.broker.commands import Credit
from spillway.broker.effects import Deliver, Drained
from spillway.model import limits
from spillway.model.settlement import ABANDON, COMPLETE, Settlement
from spillway.testing.core import message
from tests.broker.line import RECEIVER, Line, bodies, delivered


def test_a_deep_queue_keeps_only_its_next_messages_in_memory(line: Line) -> None:
    line.send_many(20_000)
    window = line.namespace.directory.queues["q"].lane.window
    assert len(window.resident) <= limits.RESIDENT_MESSAGES_MAX
    assert line.namespace.directory.queues["q"].counters.active == 20_000


def test_large_messages_fill_the_window_by_bytes(line: Line) -> None:
    for _ in range(100):
        line.send(message(b"x" * 200_000))
    window = line.namespace.directory.queues["q"].lane.window
    assert window.resident_bytes <= limits.RESIDENT_BYTES_MAX + limits.MESSAGE_BYTES_MAX
    overhead = len(window.resident) * limits.RESIDENT_MESSAGE_BYTES
    assert line.namespace.directory.budget.bytes_used == window.resident_bytes + overhead


def test_every_message_of_a_deep_queue_is_delivered_once_and_in_order(line: Line) -> None:
    line.send_many(9_000)
    line.attach(deletes=True)
    got: list[bytes] = []
    while len(got) < 9_000:
        batch = line.receive(700)
        assert batch
        got += bodies(batch)
    assert got == [b"x%d" % n for n in range(9_000)]
    assert line.receive() == []


def test_messages_sent_while_the_tail_is_cold_keep_their_place(line: Line) -> None:
    line.send_many(5_000)
    line.attach(deletes=True)
    got = bodies(line.receive(1_000))
    line.send(message(b"last"))
    got += bodies(line.receive(10_000))
    assert got[-1] == b"last"
    assert len(set(got)) == 5_001


def test_after_a_restart_nothing_is_in_memory_until_somebody_receives(line: Line) -> None:
    line.send_many(3_000)
    line.restart()
    window = line.namespace.directory.queues["q"].lane.window
    assert not window.resident
    line.attach()
    assert len(line.receive(1)) == 1
    assert 0 < len(window.resident) <= limits.LOAD_MESSAGES


def test_a_returned_message_is_read_again_and_stands_before_a_cold_tail(line: Line) -> None:
    line.send_many(5_000)
    line.attach()
    first = line.receive(10)
    for delivery in first:
        line.settle(delivery, Settlement(ABANDON))
    again = line.receive(11)
    assert [delivery.stored.sequence_number for delivery in again] == list(range(1, 12))


def test_locks_hold_no_bodies(line: Line) -> None:
    line.send_many(2_000, body=b"y" * 500)
    line.attach()
    got = line.receive(2_000)
    assert len(got) == 2_000
    assert line.namespace.directory.budget.bytes_used == 0
    for delivery in got:
        line.settle(delivery, Settlement(COMPLETE))


def test_credit_is_never_exceeded_and_served_as_soon_as_messages_come(line: Line) -> None:
    line.attach()
    line.credit(3)
    seen = 0
    for _ in range(5):
        seen += len(delivered(line.send(message(b"a"), message(b"b"))))
    assert seen == 3


def test_a_drain_hands_out_what_there_is_and_then_says_so(line: Line) -> None:
    line.send(message(b"a"), message(b"b"))
    line.attach()
    said = line.credit(10, drains=True)
    assert bodies(delivered(said)) == [b"a", b"b"]
    assert isinstance(said[-1], Drained)
    assert delivered(line.send(message(b"c"))) == []  # the credit is used up by the drain


def test_a_drain_waits_for_what_the_store_still_has(line: Line) -> None:
    line.send_many(300)
    line.restart()
    line.attach()
    said = line.credit(1_000, drains=True)
    assert len(delivered(said)) == 300
    assert isinstance(said[-1], Drained)


def test_receivers_of_one_queue_are_served_in_turn(line: Line) -> None:
    for link_id in (10, 11, 12):
        line.attach(link_id)
        line.credit(1_000, link_id)
    counts = {10: 0, 11: 0, 12: 0}
    for delivery in delivered(line.send(*[message(b"m") for _ in range(96)])):
        counts[delivery.to] += 1
    assert counts == {10: 32, 11: 32, 12: 32}


def test_one_turn_hands_out_a_bounded_number_and_the_next_goes_on(line: Line) -> None:
    line.send_many(3_000)
    line.attach(deletes=True)
    decided = line.namespace.apply([Credit(RECEIVER, 3_000, False)], line.now_ms)
    assert len(delivered(decided.effects)) == 1_000
    assert line.namespace.next_due_ms() <= line.now_ms
    line.journal.submit(decided.turn, 10_000)
    assert len(delivered(line.apply())) == 2_000


def test_random_sends_and_settlements_of_a_deep_queue_lose_nothing() -> None:
    for seed in range(4):
        chance = random.Random(seed)
        line = Line()
        line.attach()
        sent = completed = 0
        held: list[Deliver] = []
        while sent < 9_000 or held or line.namespace.directory.queues["q"].counters.active:
            if sent < 9_000:
                count = chance.randint(1, 500)
                held += delivered(line.send(*[message(b"%d" % n) for n in range(sent, sent + count)]))
                sent += count
            held += line.receive(chance.randint(1, 300))
            chance.shuffle(held)
            for _ in range(chance.randint(len(held) // 2, len(held))):
                kind = ABANDON if chance.random() < 0.05 else COMPLETE
                completed += kind == COMPLETE
                held += delivered(line.settle(held.pop(), Settlement(kind)))
        dead = line.namespace.directory.queues["q/$deadletterqueue"].counters.active
        assert (completed + dead, line.namespace.directory.queues["q"].counters.active) == (sent, 0), f"seed {seed}"
