"""What only a disk can break: durable before told, stop at the first failure, one commit for many turns."""

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spillway.model.message import SCHEDULED
from spillway.model.records import EntityRemoved, LoadActive, Turn
from spillway.store.check import check
from spillway.store.database import Database
from spillway.store.directory import DataDirectory
from spillway.store.errors import StoreError, StoreWriteFailed
from spillway.store.space import room_bytes
from spillway.store.sqlite import SqliteJournal
from tests.store.bad_disk import BadDisk
from tests.store.listening import ALL, Desk, added, counters, everything, numbers, opened, queue_put, removed

WRITER = Path(__file__).with_name("writer_process.py")
UNDER_WAY_MAX = 21  # of the writer's turns: it waits once more than 20 are not told


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


@pytest.fixture
def disk() -> Iterator[BadDisk]:
    disk = BadDisk()
    yield disk
    disk.gate.set()


def filled(desk: Desk, count: int) -> Desk:
    turn = Turn(1)
    turn.add([queue_put(1), *(added(1, number, b"x" * 1_000) for number in range(1, count + 1))])
    turn.counters[1] = counters(count, count)
    desk.submit(turn)
    desk.settle()
    return desk


# -- durable before told ------------------------------------------------------------------------------------------


def test_only_its_owner_can_read_it_whatever_the_umask_and_whoever_copied_it(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        directory = DataDirectory(tmp_path / "data")
        path = directory.journal_path("ns")
        journal = SqliteJournal(path)
        journal.recover()
        journal.close()
        for each in (path.parent, tmp_path / "data"):
            assert stat.S_IMODE(each.stat().st_mode) == 0o700
        for mode in (0o600, 0o666):
            path.chmod(mode)
            journal = SqliteJournal(path)
            journal.recover()
            assert {stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()} == {0o600}
            journal.close()
        directory.close()
    finally:
        os.umask(before)


def test_nothing_is_told_before_the_sync_has_returned(path: Path, disk: BadDisk) -> None:
    desk = filled(opened(path, vfs=disk.disk_name), 1)
    disk.gate.clear()
    turn = Turn(1)
    turn.add([added(1, 2)])
    ticket = desk.submit(turn)
    query = desk.load(everything(1))
    assert disk.is_at_gate.wait(30)
    desk.hear_all()
    assert desk.durable < ticket and query not in desk.rows
    assert desk.journal.pending_bytes == turn.size_bytes
    disk.gate.set()
    desk.wait(lambda: desk.durable >= ticket and query in desk.rows)
    assert desk.journal.pending_bytes == 0
    desk.journal.close()


def test_the_same_disk_with_synchronous_off_is_told_too_early(path: Path, disk: BadDisk) -> None:
    """The negative control: without the sync the test above would fail."""
    desk = filled(opened(path, synchronous="OFF", vfs=disk.disk_name), 1)
    disk.gate.clear()
    ticket = desk.submit_records(added(1, 2))
    desk.wait(lambda: desk.durable >= ticket)
    disk.gate.set()
    desk.journal.close()


def test_what_arrives_during_a_sync_is_one_commit(path: Path, disk: BadDisk) -> None:
    desk = filled(opened(path, vfs=disk.disk_name), 1)
    disk.gate.clear()
    desk.submit_records(added(1, 2))
    assert disk.is_at_gate.wait(30)
    before = disk.syncs
    for number in range(3, 103):
        desk.submit_records(added(1, number))
        desk.load(LoadActive(1, 0, 1, ALL))
    disk.gate.set()
    desk.settle()
    assert disk.syncs - before <= 2  # the hundred, and `settle` if it came too late for them
    assert numbers(desk.ask(everything(1))) == list(range(1, 103))
    desk.journal.close()


def test_what_was_sent_and_completed_during_a_sync_costs_no_writes(path: Path, disk: BadDisk) -> None:
    desk = filled(opened(path, vfs=disk.disk_name), 1)
    disk.gate.clear()
    desk.submit_records(added(1, 2))
    assert disk.is_at_gate.wait(30)
    before = disk.writes
    for number in range(3, 503):
        desk.submit_records(added(1, number, b"x" * 4_000))
    for number in range(3, 503):
        desk.submit_records(removed(1, number))
    disk.gate.set()
    desk.settle()
    assert disk.writes - before < 10
    assert numbers(desk.ask(everything(1))) == [1, 2]
    desk.journal.close()


# -- stop at the first failure ------------------------------------------------------------------------------------


def test_a_failed_sync_is_told_once_and_never_tried_again(path: Path, disk: BadDisk) -> None:
    desk = filled(opened(path, vfs=disk.disk_name), 3)
    told = desk.durable
    disk.fail_sync_at = disk.syncs + 1
    desk.submit_records(added(1, 4))
    error = desk.wait_for_failure()
    assert isinstance(error, StoreWriteFailed) and str(path) in str(error) and "start again" in str(error)
    failed_at = disk.syncs
    desk.submit_records(added(1, 5))
    desk.load(everything(1))
    desk.journal.close()
    desk.hear_all()
    assert desk.durable == told and desk.failures == [error] and not desk.rows
    assert disk.syncs == failed_at


def test_after_a_failed_sync_the_next_start_has_everything_that_was_told(path: Path, disk: BadDisk) -> None:
    desk = filled(opened(path, vfs=disk.disk_name), 3)
    disk.fail_sync_at = disk.syncs + 1
    desk.submit_records(added(1, 4))
    desk.wait_for_failure()
    desk.journal.close()
    again = opened(path)
    assert numbers(again.ask(everything(1)))[:3] == [1, 2, 3]
    again.journal.close()


@pytest.mark.parametrize("what", ["sync", "write"])
def test_whichever_call_fails_nothing_that_was_told_is_lost(tmp_path: Path, what: str) -> None:
    """Commits and checkpoints in turn, failing at the first call, the second, and so on, until none is left to fail."""
    for number in range(1, 500):
        path = tmp_path / f"{number}" / "journal.db"
        path.parent.mkdir()
        disk = BadDisk()
        desk = filled(opened(path, vfs=disk.disk_name, wal_bytes_max=100_000), 5)
        if what == "sync":
            disk.fail_sync_at = disk.syncs + number
        else:
            disk.fail_write_at = disk.writes + number * 7
        told = play(desk)
        again = opened(path)
        found = numbers(again.ask(everything(1)))
        again.journal.close()
        assert set(told) <= set(found), f"failing {what} {number}"
        assert check(path) == []
        if not desk.failures:
            assert number > 5, "there were calls to fail"
            return
    raise AssertionError("it never ran through")


def play(desk: Desk) -> list[int]:
    """One message a commit; those that were told durable."""
    told: list[int] = []
    for number in range(6, 16):
        turn = Turn(1)
        turn.add([added(1, number, b"y" * 20_000)])
        turn.counters[1] = counters(number, number)
        if not desk.is_durable_or_failed(desk.submit(turn)):
            break
        told.append(number)
    try:
        desk.journal.close()
    except StoreError as error:
        desk.failures.append(error)
    return told


def test_a_failure_while_closing_is_raised(path: Path, disk: BadDisk) -> None:
    desk = filled(opened(path, vfs=disk.disk_name), 3)
    disk.fail_sync_at = disk.syncs + 1
    with pytest.raises(StoreWriteFailed):
        desk.journal.close()
    again = opened(path)
    assert numbers(again.ask(everything(1))) == [1, 2, 3]
    again.journal.close()


def test_a_mistake_of_ours_stops_the_writer_as_well(path: Path) -> None:
    desk = filled(opened(path), 1)
    desk.submit_records(added(1, 1))
    assert desk.wait_for_failure() is desk.failures[0]
    desk.journal.close()


# -- kill ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [1, 40, 400])
def test_a_killed_writer_has_lost_nothing_it_told(path: Path, after: int) -> None:
    process = subprocess.Popen([sys.executable, str(WRITER), str(path)], stdout=subprocess.PIPE, env=os.environ)
    assert process.stdout is not None
    told = 0
    with process.stdout:
        while told < after:
            told = int(process.stdout.readline())
        process.kill()
        for line in process.stdout:  # what was told before the kill arrived
            if line.endswith(b"\n"):
                told = int(line)
    process.wait()
    desk = opened(path)
    found = numbers(desk.ask(everything(1)))
    desk.journal.close()
    # Turn n adds n and removes n - 100. What is found is what one whole turn left: the last that was told,
    # or one of those under way, which may be durable without anybody having heard of it.
    last = found[-1]
    assert told <= last <= told + UNDER_WAY_MAX
    assert found == list(range(max(1, last - 99), last + 1))
    assert [finding for finding in check(path) if "counters" not in finding] == []


# -- keeping house ------------------------------------------------------------------------------------------------


def test_close_leaves_one_file_that_holds_everything(path: Path) -> None:
    desk = filled(opened(path), 50)
    last = desk.submit_records(added(1, 51))
    desk.journal.close()
    desk.hear_all()
    assert desk.durable == last
    assert [file.name for file in path.parent.iterdir()] == ["journal.db"]
    again = opened(path)
    assert len(numbers(again.ask(everything(1)))) == 51
    again.journal.close()


def test_the_log_is_copied_into_the_file_when_it_is_long(path: Path) -> None:
    desk = filled(opened(path, wal_bytes_max=100_000), 1)
    for number in range(2, 22):
        desk.submit_records(added(1, number, b"x" * 50_000))
        desk.settle()
    assert path.stat().st_size > 500_000
    assert path.with_name("journal.db-wal").stat().st_size < 500_000
    desk.journal.close()


def test_files_are_for_their_owner_alone(path: Path) -> None:
    old = os.umask(0)
    try:
        desk = filled(opened(path), 1)
        modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
        desk.journal.close()
    finally:
        os.umask(old)
    assert modes == {"journal.db": 0o600, "journal.db-wal": 0o600, "journal.db-shm": 0o600}


def test_a_removed_entity_is_deleted_piece_by_piece(path: Path) -> None:
    database = Database(path)
    database.catalogue()
    turn = Turn(1)
    turn.add([queue_put(1), queue_put(2), added(2, 1), *(added(1, number) for number in range(1, 21))])
    turn.add([added(1, number, b"", SCHEDULED, 5) for number in range(21, 26)])
    batch = database.new_batch()
    batch.add(turn)
    database.begin()
    database.write(batch)
    gone = Turn(2)
    gone.add([EntityRemoved(1)])
    batch = database.new_batch()
    batch.add(gone)
    database.write(batch)
    left = []
    while database.tombstones:
        database.purge(7)
        counted = "SELECT (SELECT count(*) FROM message) + (SELECT count(*) FROM parked)"
        left += [count for (count,) in database.connection.execute(counted).fetchall()]
    database.commit()
    database.close()
    assert left == [14, 7, 1, 1]


def test_a_removal_that_was_cut_short_goes_on_at_the_next_start(path: Path) -> None:
    desk = filled(opened(path), 2_000)
    desk.submit_records(EntityRemoved(1))
    desk.journal.close()
    again = opened(path)
    assert numbers(again.ask(everything(1))) == []
    again.submit_records(queue_put(2))
    again.settle()
    again.journal.close()
    assert check(path) == []


def test_deleted_messages_leave_room_inside_the_file(path: Path) -> None:
    desk = filled(opened(path), 500)
    desk.submit_records(*(removed(1, number) for number in range(1, 501)))
    desk.journal.close()
    database = Database(path)
    assert database.free_page_bytes() > 400_000
    database.close()


def test_pages_inside_the_file_are_room_while_the_log_can_grow() -> None:
    assert room_bytes(1_000, 0, 500, 96) == 1_500
    assert room_bytes(10, 96, 500, 96) == 510  # the log has its space already
    assert room_bytes(10, 64, 500, 96) == 10


def test_the_catalogue_takes_no_more_steps_for_more_messages(tmp_path: Path) -> None:
    steps = []
    for count in (50, 5_000):
        path = tmp_path / f"{count}.db"
        desk = opened(path)
        turn = Turn(1)
        turn.add([queue_put(1), *(added(1, number, b"", time_ms=9) for number in range(1, count + 1))])
        turn.add([added(1, number, b"", SCHEDULED, 5) for number in range(count + 1, 2 * count + 1)])
        desk.submit(turn)
        desk.settle()
        desk.journal.close()
        steps.append(count_steps(Database(path)))
    assert steps[0] == steps[1]


def count_steps(database: Database) -> int:
    steps = 0

    def count() -> bool:
        nonlocal steps
        steps += 1
        return False

    database.connection.set_progress_handler(count, 1)
    database.catalogue()
    database.connection.set_progress_handler(None)
    database.close()
    return steps


def test_the_full_check_counts_what_is_there(path: Path) -> None:
    desk = filled(opened(path), 3)
    desk.journal.close()
    assert check(path) == []
    again = opened(path)
    again.submit_records(removed(1, 2))
    again.journal.close()
    assert check(path) == [
        "queue-1: it holds (2, 0, 0, 0) active, deferred, scheduled and hidden messages, its counters say (3, 0, 0, 0)"
    ]
