"""The double that other rooms test against keeps the journal's promises while it breaks the disk."""

import time

import pytest

from spillway.model.records import Turn
from spillway.store.memory import MemoryJournal
from spillway.testing.faulty_journal import FaultyJournal
from tests.store.listening import Desk, added, everything, numbers, queue_put


@pytest.fixture
def faulty() -> FaultyJournal:
    return FaultyJournal(MemoryJournal())


@pytest.fixture
def desk(faulty: FaultyJournal) -> Desk:
    faulty.recover()
    desk = Desk(faulty).start()
    desk.submit_records(queue_put(1))
    desk.settle()
    return desk


def test_a_held_disk_tells_nothing_and_counts_what_waits(desk: Desk, faulty: FaultyJournal) -> None:
    faulty.suspend()
    turn = Turn(1)
    turn.add([added(1, 1)])
    first = desk.submit(turn)
    query = desk.load(everything(1))
    desk.submit_records(added(1, 2))
    desk.hear_all()
    assert desk.durable < first and faulty.pending_bytes == 2 * turn.size_bytes
    faulty.release(2)
    desk.hear_all()
    assert desk.durable == first and numbers(desk.rows[query]) == [1]
    faulty.release()
    desk.settle()
    assert faulty.pending_bytes == 0


def test_a_failure_is_told_once_and_ends_it(desk: Desk, faulty: FaultyJournal) -> None:
    before = desk.durable
    fault = OSError("no more")
    faulty.fail_next(fault)
    desk.submit_records(added(1, 1))
    desk.submit_records(added(1, 2))
    desk.load(everything(1))
    desk.hear_all()
    assert (desk.failures, desk.durable, desk.rows) == ([fault], before, {})


def test_a_crash_leaves_what_was_told_and_nothing_that_was_held(desk: Desk, faulty: FaultyJournal) -> None:
    desk.submit_records(added(1, 1))
    desk.settle()
    faulty.suspend()
    desk.submit_records(added(1, 2))
    survivor = faulty.crash()
    survivor.recover()
    again = Desk(survivor).start()
    assert numbers(again.ask(everything(1))) == [1]


def test_a_slow_disk_delays_what_is_told_and_keeps_its_order() -> None:
    slow = FaultyJournal(MemoryJournal(), delay_s=0.02)
    slow.recover()
    desk = Desk(slow).start()
    begun = time.monotonic()
    desk.submit_records(queue_put(1))
    last = desk.submit_records(added(1, 1))
    desk.wait(lambda: desk.durable >= last)
    assert time.monotonic() - begun >= 0.02
    assert desk.told == [("durable", 1), ("durable", 2)]
    slow.close()


def test_the_free_space_can_be_said(faulty: FaultyJournal) -> None:
    assert faulty.free_bytes > 1 << 40
    faulty.free_bytes_said = 5
    assert faulty.free_bytes == 5
