"""The log is copied into the file beside the writer: commits go on meanwhile, and what goes wrong there is not lost."""

import threading
from pathlib import Path

import apsw
import pytest

from spillway.model.records import LoadFrom
from spillway.store.log_copier import LogCopier
from tests.store.listening import Desk, added, opened, queue_put

BODY = b"x" * 50_000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


def begun(path: Path) -> Desk:
    desk = opened(path, wal_bytes_max=300_000)
    desk.submit_records(queue_put(1), added(1, 1))
    desk.settle()
    return desk


class Held:
    """A copier that begins when it is told to."""

    def __init__(self, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_copy = threading.Event()
        self.begun = threading.Event()
        held = self
        copy = LogCopier._copy

        def wait_and_copy(copier: LogCopier) -> None:
            held.begun.set()
            assert held.may_copy.wait(30)
            copy(copier)

        monkeypatch.setattr(LogCopier, "_copy", wait_and_copy)
        self.desk = desk

    def until_begun(self) -> int:
        for number in range(2, 60):
            self.desk.submit_records(added(1, number, BODY))
            self.desk.settle()
            if self.begun.is_set():
                return number
        raise AssertionError("a long log is copied")


def test_commits_go_on_while_the_log_is_copied_and_who_waits_is_told_when_it_is_over(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = begun(path)
    held = Held(desk, monkeypatch)
    number = held.until_begun()
    assert (desk.journal.is_copying, desk.copied_count) == (True, 0)
    size = path.stat().st_size
    desk.submit_records(added(1, number + 1, BODY))
    desk.settle()
    assert (desk.journal.is_copying, path.stat().st_size) == (True, size)
    held.may_copy.set()
    desk.wait(lambda: desk.copied_count == 1)
    assert not desk.journal.is_copying
    assert path.stat().st_size > size
    desk.journal.close()


def test_a_log_that_grows_twice_as_long_meanwhile_waits_for_its_copy(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = begun(path)
    held = Held(desk, monkeypatch)
    number = held.until_begun()
    threading.Timer(0.2, held.may_copy.set).start()
    for each in range(number + 1, number + 30):
        desk.submit_records(added(1, each, BODY))
        desk.settle()
    desk.wait(lambda: desk.copied_count >= 1)
    assert path.with_name("journal.db-wal").stat().st_size < 1_500_000
    desk.journal.close()


def test_a_copy_that_fails_ends_the_store_and_is_not_tried_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(copier: LogCopier) -> None:
        copier._error = apsw.IOError("disk I/O error")
        copier._on_done()

    monkeypatch.setattr(LogCopier, "_copy", fail)
    desk = begun(path)
    for number in range(2, 40):
        if not desk.is_durable_or_failed(desk.submit_records(added(1, number, BODY))):
            break
    assert "I/O" in str(desk.wait_for_failure())
    desk.journal.close()


def test_a_copy_that_finds_no_space_is_left_for_later_and_nothing_ends(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(copier: LogCopier) -> None:
        copier._error = apsw.FullError("database or disk is full")
        copier._on_done()

    monkeypatch.setattr(LogCopier, "_copy", fail)
    desk = begun(path)
    for number in range(2, 20):
        desk.submit_records(added(1, number, BODY))
        desk.settle()
    desk.wait(lambda: desk.copied_count >= 1)
    assert not desk.failures
    desk.journal.close()


def test_closing_waits_for_a_copy_under_way(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = begun(path)
    held = Held(desk, monkeypatch)
    number = held.until_begun()
    threading.Timer(0.2, held.may_copy.set).start()
    desk.journal.close()
    again = opened(path)
    rows = again.ask(LoadFrom(1, 0, 1_000, 1 << 40))
    assert len(rows.messages) == number
    again.journal.close()
