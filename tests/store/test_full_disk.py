"""A disk without space: nothing ends, nothing is lost, and deleting goes on in the space that the log has already."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from spillway.model import limits
from spillway.model.message import Message
from spillway.model.records import EntityRemoved, LoadActive, Turn
from spillway.store import ballast as ballast_module
from spillway.store.ballast import Ballast
from spillway.store.check import check
from spillway.store.directory import DataDirectory
from spillway.store.errors import StoreError
from spillway.store.space import Space
from spillway.store.sqlite import SqliteJournal, open_sqlite_journal
from tests.store.bad_disk import BadDisk
from tests.store.listening import ALL, Desk, added, copies, counters, everything, numbers, opened, queue_put, removed

SHORT_S = 0.6


@pytest.fixture
def disk() -> BadDisk:
    return BadDisk()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


def filled(desk: Desk, count: int, size_bytes: int = 1_000) -> Desk:
    turn = Turn(1)
    turn.add([queue_put(1), queue_put(2), *(added(1, number, b"x" * size_bytes) for number in range(1, count + 1))])
    turn.counters[1] = counters(count, count)
    desk.submit(turn)
    desk.settle()
    return desk


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_write_without_space_waits_for_it_and_is_told_in_its_order(path: Path, disk: BadDisk) -> None:
    desk = filled(opened(path, vfs=disk.disk_name), 10)
    told = list(desk.told)
    disk.is_full = True
    first = desk.submit_records(added(1, 11, b"y" * 3_000_000))
    ticket = desk.load(everything(1))
    writes = disk.writes
    wait_until(lambda: disk.writes > writes + 2)
    desk.hear_all()
    assert desk.told == told and not desk.failures
    disk.is_full = False
    desk.wait(lambda: ticket in desk.rows)
    assert desk.told[len(told) :] == [("durable", first), ("loaded", ticket)]
    assert numbers(desk.rows[ticket]) == list(range(1, 12))
    desk.journal.close()
    assert [finding for finding in check(path) if "counters" not in finding] == []


def test_what_was_begun_is_as_if_it_had_never_been(path: Path, disk: BadDisk) -> None:
    """A removed entity is removed once, a shared body has one number, the clock is what it was."""
    desk = filled(opened(path, vfs=disk.disk_name), 10)
    disk.is_full = True
    shared = Message(b"z" * 2_000_000)
    turn = Turn(99_000)
    turn.add([EntityRemoved(1)])
    turn.add(list(copies(shared, (2, 1), (2, 2))))
    turn.counters[2] = counters(2, 2)
    last = desk.submit(turn)
    writes = disk.writes
    wait_until(lambda: disk.writes > writes + 2)
    disk.is_full = False
    assert desk.is_durable_or_failed(last)
    rows = desk.ask(everything(2))
    assert [row.message.raw for row in rows.messages] == [shared.raw, shared.raw]
    assert numbers(desk.ask(everything(1))) == []
    desk.journal.close()
    assert check(path) == []


def test_messages_are_deleted_in_the_space_that_the_log_has(path: Path, disk: BadDisk) -> None:
    """Not one byte is free, and all of them go. Only what the file must still grow by needs some: the ballast's."""
    desk = filled(opened(path, vfs=disk.disk_name, wal_bytes_max=50_000), 2_000)
    desk.ask(everything(2))  # the log was copied into the file before this is answered
    disk.is_full = True
    for first in range(1, 2_001, 50):
        desk.submit_records(*(removed(1, number) for number in range(first, first + 50)))
        desk.settle()
    assert numbers(desk.ask(LoadActive(1, 0, ALL, ALL))) == []
    assert not desk.failures
    desk.journal.close()
    disk.is_full = False
    again = opened(path)
    assert numbers(again.ask(everything(1))) == []
    again.journal.close()


def test_a_log_that_cannot_be_copied_into_the_file_is_no_failure(path: Path, disk: BadDisk) -> None:
    desk = filled(opened(path, vfs=disk.disk_name, wal_bytes_max=50_000), 1)
    desk.submit_records(*(added(1, number, b"y" * 20_000) for number in range(2, 12)))
    desk.settle()
    disk.is_full = True
    desk.submit_records(*(added(1, number, b"y" * 100) for number in range(12, 14)))
    time.sleep(SHORT_S)  # until the writer has nothing to do
    disk.is_full = False
    desk.settle()
    assert not desk.failures
    disk.is_full = True
    desk.journal.close()
    disk.is_full = False
    again = opened(path)
    assert numbers(again.ask(everything(1))) == list(range(1, 14))
    again.journal.close()


def test_closing_does_not_wait_for_space_for_ever(path: Path, disk: BadDisk) -> None:
    desk = filled(opened(path, vfs=disk.disk_name), 10)
    disk.is_full = True
    desk.submit_records(added(1, 11, b"y" * 3_000_000))
    with pytest.raises(StoreError, match="no space left"):
        desk.journal.close()
    again = opened(path)
    assert numbers(again.ask(everything(1))) == list(range(1, 11))
    again.journal.close()


# -- the ballast ----------------------------------------------------------------------------------------------------


def test_the_ballast_holds_real_space_and_gives_it_back(tmp_path: Path) -> None:
    ballast = Ballast(tmp_path / "ballast", 1 << 20)
    ballast.allocate(1 << 40)
    assert ballast.size_bytes == 1 << 20
    found = ballast.path.stat()
    assert found.st_blocks * 512 >= 1 << 20 and found.st_mode & 0o777 == 0o600
    assert Ballast(ballast.path, 1 << 20).size_bytes == 1 << 20  # of an earlier life
    assert ballast.release()
    assert not ballast.release()
    assert ballast.size_bytes == 0 and not ballast.path.exists()


def test_there_is_no_ballast_where_space_is_short_already(tmp_path: Path) -> None:
    ballast = Ballast(tmp_path / "ballast", 1 << 20)
    ballast.allocate(2 * limits.DISK_RESERVE_BYTES)
    assert not ballast.path.exists()


def test_the_ballast_of_a_link_is_not_followed(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_bytes(b"mine")
    ballast = Ballast(tmp_path / "ballast", 1 << 20)
    ballast.path.symlink_to(precious)
    ballast.allocate(1 << 40)
    assert precious.read_bytes() == b"mine"
    assert not ballast.path.is_symlink() and ballast.size_bytes == 1 << 20


def test_a_write_without_space_takes_the_ballast_first(
    tmp_path: Path, disk: BadDisk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Given up, there is space: nothing waits. It is made again when there is plenty."""
    directory = DataDirectory(tmp_path / "data")
    journal = SqliteJournal(directory.journal_path("ns"), directory=directory, vfs=disk.disk_name)
    journal.recover()
    ballast = tmp_path / "data" / "ns" / ballast_module.NAME
    assert ballast.stat().st_size == limits.DISK_BALLAST_BYTES
    desk = filled(Desk(journal).start(), 10)
    give_up = Ballast.release

    def give_up_space(self: Ballast) -> bool:
        disk.is_full = False
        return give_up(self)

    monkeypatch.setattr(Ballast, "release", give_up_space)
    disk.is_full = True
    desk.submit_records(added(1, 11, b"y" * 3_000_000))
    desk.settle()
    assert "the ballast is given up" in caplog.text and "there was space again" in caplog.text
    assert numbers(desk.ask(everything(1))) == list(range(1, 12))
    assert ballast.stat().st_size == limits.DISK_BALLAST_BYTES
    desk.journal.close()


def test_the_ballast_is_made_at_the_start_and_a_part_of_it_stays_at_the_end(tmp_path: Path) -> None:
    for _ in range(2):
        desk = Desk(open_sqlite_journal(DataDirectory(tmp_path), "ns"))
        desk.journal.recover()
        desk.start()
        assert (tmp_path / "ns" / "ballast").stat().st_size == limits.DISK_BALLAST_BYTES
        desk.journal.close()
        assert sorted(file.name for file in (tmp_path / "ns").iterdir()) == ["ballast", "journal.db"]
        assert (tmp_path / "ns" / "ballast").stat().st_size == ballast_module.KEPT_BYTES


# -- counting ---------------------------------------------------------------------------------------------------------


def test_what_is_on_its_way_to_the_disk_is_not_free_any_more(path: Path, disk: BadDisk) -> None:
    desk = filled(opened(path, vfs=disk.disk_name), 10)
    free = desk.journal.free_bytes
    disk.gate.clear()
    desk.submit_records(added(1, 11, b"y" * 50_000_000))
    assert desk.journal.free_bytes < free - 90_000_000  # once for the log, once for the file
    disk.gate.set()
    desk.journal.close()


def test_pages_that_only_the_log_has_are_space_that_the_file_will_take(path: Path) -> None:
    space = Space(path, None, 64 << 20)
    path.write_bytes(b"")
    free = space.free_bytes(0, 0)
    space.note(0, 30_000_000, 0)
    again = Space(path, None, 64 << 20)
    again.growth_bytes = 30_000_000
    assert again.free_bytes(0, 0) < free - 20_000_000


def test_the_log_is_kept_short_where_space_is_short(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space = Space(path, None, 64 << 20)
    for free_mb, longest_mb in ((70, 4), (64 + 80, 20), (10_000, 64)):
        monkeypatch.setattr("spillway.store.space.free_bytes_at", lambda _, free=free_mb << 20: free)
        space.note(0, 0, 0)
        assert space.log_bytes_max == longest_mb << 20
