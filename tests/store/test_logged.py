"""The journal with a log: what it folds, what it keeps from SQLite, and what every kind of crash leaves."""

import errno
import random
import shutil
from pathlib import Path

import apsw
import pytest

from spillway.model.records import (
    Counters,
    LoadActive,
    LoadNumbers,
    MessageChanged,
    MessageRemoved,
    SessionStatePut,
    Turn,
)
from spillway.store.batch import Batch
from spillway.store.check import check
from spillway.store.errors import LogDamaged, StoreWriteFailed
from spillway.store.file import FORMAT
from spillway.store.logged import HANDED_TURNS, HELD_BYTES_SLACK, LoggedJournal
from spillway.store.replay import log_directory
from spillway.store.segments import Files, SegmentLog
from spillway.store.set_apart import read_set_apart
from spillway.store.sqlite import SqliteJournal
from tests.contract.kinds import as_after_a_kill
from tests.store.listening import ALL, Desk, added, counters, everything, numbers, queue_put, removed
from tests.store.log_files import FailingFiles, TornFiles

BATCH = 20_000


def logged(path: Path, files: Files | None = None, batch_bytes: int = BATCH) -> Desk:
    journal = LoggedJournal(path, files=files, segment_bytes=32 * 1024, batch_bytes=batch_bytes)
    journal.recover()
    return Desk(journal).start()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store" / "journal.db"


@pytest.fixture
def desk(path: Path) -> Desk:
    path.parent.mkdir()
    desk = logged(path)
    desk.submit_records(queue_put(1), queue_put(2))
    desk.settle()
    return desk


def rows_in_file(path: Path) -> int:
    """Without the log: what SQLite itself has, seen by another connection."""
    connection = apsw.Connection(str(path), apsw.SQLITE_OPEN_READONLY)
    ((count,),) = connection.execute("SELECT (SELECT count(*) FROM message) + (SELECT count(*) FROM parked)")
    connection.close()
    return int(str(count))


def found_after_a_kill(path: Path, to: Path) -> list[int]:
    copy = as_after_a_kill(path, to)
    assert check(copy) == [], "file and log together are whole"
    again = logged(copy)
    found = numbers(again.ask(everything(1)))
    again.journal.close()
    assert check(copy) == []
    return found


def counted(last: int, active: int, size_bytes: int) -> Counters:
    made = counters(active, last)
    made.size_bytes = size_bytes
    return made


def add_counted(desk: Desk, first: int, last: int, active: int, size: int = 100) -> None:
    """Messages with the counters that a broker would write."""
    for number in range(first, last + 1):
        turn = Turn(1)
        turn.add([added(1, number, b"x" * size)])
        turn.counters[1] = counted(number, active + number - first + 1, (active + number - first + 1) * size)
        desk.submit(turn)


def remove_counted(desk: Desk, first: int, last: int, last_number: int, left: int, size: int = 100) -> None:
    for number in range(first, last + 1):
        turn = Turn(1)
        turn.add([removed(1, number)])
        active = left + last - number
        turn.counters[1] = counted(last_number, active, active * size)
        desk.submit(turn)


# -- what is held in memory --------------------------------------------------------------------------------------------


def test_a_batch_that_was_written_is_not_held_by_the_next_ones(desk: Desk) -> None:
    journal = desk.journal
    assert isinstance(journal, LoggedJournal)
    for first in range(1, 1_000, 50):
        add_counted(desk, first, first + 49, first - 1)
        desk.settle()
    assert journal._folded_bytes > 0, "some were written"
    held = 0
    batch: Batch | None = journal._young
    while batch is not None:
        held += 1
        batch = batch._older
    assert held <= 2
    desk.journal.close()


def test_turns_that_weigh_nothing_reach_the_keeper_all_the_same(desk: Desk) -> None:
    """What is sent to a topic and fits no subscription changes counters and nothing else."""
    journal = desk.journal
    assert isinstance(journal, LoggedJournal)
    for number in range(2_000):
        turn = Turn(1)
        turn.counters[1] = counted(number, 0, 0)
        desk.submit(turn)
        desk.settle()
        assert len(journal._unhanded) <= HANDED_TURNS
    desk.journal.close()


def test_it_is_told_when_the_keeper_has_caught_up(path: Path) -> None:
    """Senders are held back by `pending_bytes`: when all is durable nothing else would wake them up."""
    path.parent.mkdir()
    desk = logged(path, batch_bytes=HELD_BYTES_SLACK)
    desk.submit_records(queue_put(1))
    copied_before = desk.copied_count
    for number in range(1, 60):
        desk.submit_records(added(1, number, b"x" * 100_000))
    desk.settle()
    desk.ask(everything(1))
    desk.wait(lambda: desk.copied_count > copied_before)
    desk.journal.close()


def test_what_is_held_is_known_right_after_a_batch_was_written(desk: Desk) -> None:
    journal = desk.journal
    assert isinstance(journal, LoggedJournal)
    for first in range(1, 600, 50):
        add_counted(desk, first, first + 49, first - 1)
        desk.settle()
    desk.ask(everything(1))
    desk.journal.close()
    assert (journal._held_bytes, journal._durable_bytes - journal._absorbed_bytes) == (0, 0)
    assert journal._durable_messages == journal._folded_messages == 600


# -- what reaches SQLite ----------------------------------------------------------------------------------------------


def test_messages_that_are_received_soon_never_reach_the_file(desk: Desk, path: Path) -> None:
    written = 0
    for first in range(1, 2_000, 20):
        add_counted(desk, first, first + 19, 0)
        remove_counted(desk, first, first + 19, first + 19, 0)
        desk.settle()
        written = max(written, rows_in_file(path))
    assert desk.journal._log.last_number > 10  # type: ignore[attr-defined]
    assert written <= 20, "what was alive when a batch became the old one"
    desk.journal.close()
    assert rows_in_file(path) == 0


def test_a_message_added_in_one_generation_and_removed_in_the_next_is_not_written(desk: Desk, path: Path) -> None:
    add_counted(desk, 1, 30, 0)
    desk.settle()
    journal = desk.journal
    assert isinstance(journal, LoggedJournal)
    for number in range(31, 70):  # enough for it to be the old batch, and not for it to be written
        add_counted(desk, number, number, 30)
        remove_counted(desk, number, number, number, 30)
        desk.settle()
        if not journal._old.is_empty:
            break
    remove_counted(desk, 1, 30, number, 0)
    desk.ask(LoadNumbers(1, [1], ALL))
    assert rows_in_file(path) == 0
    journal.close()
    assert check(path) == []


def test_everything_is_in_the_file_when_it_is_closed_and_the_log_is_gone(desk: Desk, path: Path) -> None:
    add_counted(desk, 1, 50, 0)
    desk.settle()
    desk.journal.close()
    assert rows_in_file(path) == 50
    assert list(log_directory(path).iterdir()) == []


def test_after_some_rest_the_file_has_everything(desk: Desk, path: Path) -> None:
    add_counted(desk, 1, 5, 0)
    desk.settle()
    journal = desk.journal
    assert isinstance(journal, LoggedJournal) and journal._database is not None
    for _ in range(100):
        if rows_in_file(path) == 5:
            break
        journal._closing.wait(0.1)
    assert rows_in_file(path) == 5
    journal.close()


def test_segments_on_the_disk_are_bounded_however_much_is_written(desk: Desk, path: Path) -> None:
    for first in range(1, 1_500, 30):
        add_counted(desk, first, first + 29, 0, size=1_000)
        remove_counted(desk, first, first + 29, first + 29, 0, size=1_000)
        desk.settle()
    segments = list(log_directory(path).iterdir())
    assert len(segments) <= 12, "of 1.5 MB in segments of 32 KB"
    desk.journal.close()


# -- queries ----------------------------------------------------------------------------------------------------------


def test_queries_are_answered_without_the_file_where_it_can_have_nothing_of_it(desk: Desk, path: Path) -> None:
    add_counted(desk, 1, 40, 0)
    remove_counted(desk, 1, 10, 40, 30)
    assert numbers(desk.ask(LoadActive(1, 0, 100, ALL))) == list(range(11, 41))
    assert numbers(desk.ask(LoadActive(1, 20, 5, ALL))) == [21, 22, 23, 24, 25]
    assert numbers(desk.ask(LoadNumbers(1, [33, 12], ALL))) == [12, 33]
    journal = desk.journal
    assert isinstance(journal, LoggedJournal) and not journal._uncommitted
    journal.close()


def test_a_row_that_was_handed_out_and_changed_by_who_asked_is_stored_as_it_was(desk: Desk, path: Path) -> None:
    add_counted(desk, 1, 1, 0)
    (row,) = desk.ask(LoadNumbers(1, [1], ALL)).messages
    row.delivery_count = 99
    assert desk.ask(LoadNumbers(1, [1], ALL)).messages[0].delivery_count == 0
    desk.journal.close()
    again = logged(path)
    assert again.ask(everything(1)).messages[0].delivery_count == 0
    again.journal.close()


# -- crashes ----------------------------------------------------------------------------------------------------------


def test_what_was_acknowledged_is_there_after_a_kill_at_every_stage_of_folding(
    desk: Desk, path: Path, tmp_path: Path
) -> None:
    for stage in range(12):
        add_counted(desk, stage * 30 + 1, stage * 30 + 30, 0, size=300)
        desk.settle()
        if stage % 3 == 1:
            desk.ask(everything(1))  # a transaction stays open
        whole = list(range(stage * 30 + 1, stage * 30 + 31))
        assert found_after_a_kill(path, tmp_path / f"crash-{stage}-a") == whole
        remove_counted(desk, stage * 30 + 1, stage * 30 + 30, stage * 30 + 30, 0, size=300)
        desk.settle()
        assert found_after_a_kill(path, tmp_path / f"crash-{stage}-b") == []
    desk.journal.close()


def test_changes_and_states_are_there_after_a_kill(desk: Desk, path: Path, tmp_path: Path) -> None:
    add_counted(desk, 1, 3, 0)
    desk.submit_records(MessageChanged(1, 2, 0, 5, None), SessionStatePut(2, "s", b"state", 1))
    desk.submit_records(MessageRemoved(1, 1))
    desk.settle()
    again = logged(as_after_a_kill(path, tmp_path / "crash-1"))
    found = again.ask(everything(1)).messages
    assert [(row.sequence_number, row.delivery_count) for row in found] == [(2, 5), (3, 0)]
    again.journal.close()
    desk.journal.close()


def test_time_that_has_passed_has_passed_after_a_kill(desk: Desk, path: Path, tmp_path: Path) -> None:
    turn = Turn(864_000_000)
    turn.add([])
    desk.submit(turn)
    desk.settle()
    journal = LoggedJournal(as_after_a_kill(path, tmp_path / "crash-1"))
    assert journal.recover().clock_ms == 864_000_000
    journal.close()
    desk.journal.close()


@pytest.mark.parametrize("seed", range(25))
def test_a_power_cut_loses_nothing_that_was_acknowledged_and_brings_nothing_back(seed: int, path: Path) -> None:
    chance = random.Random(seed)
    path.parent.mkdir()
    files = TornFiles()
    desk = logged(path, files, batch_bytes=4_000)
    desk.submit_records(queue_put(1), queue_put(2))
    alive: list[int] = []
    last = 0
    for _ in range(chance.randint(5, 40)):
        if alive and chance.random() < 0.4:
            gone = alive.pop(chance.randrange(len(alive)))
            desk.submit_records(removed(1, gone))
        else:
            last += 1
            desk.submit_records(added(1, last, b"x" * chance.randint(1, 900)))
            alive.append(last)
        if chance.random() < 0.3:
            desk.settle()
        if chance.random() < 0.1:
            desk.ask(everything(1))
    desk.settle()
    copy = as_after_a_kill(path, path.parent.parent / "cut")
    files.cut(log_directory(copy), chance)
    again = logged(copy)
    assert numbers(again.ask(everything(1))) == alive
    again.journal.close()
    desk.journal.close()


def test_a_second_crash_while_the_log_is_replayed_changes_nothing(desk: Desk, path: Path, tmp_path: Path) -> None:
    add_counted(desk, 1, 40, 0, size=500)
    remove_counted(desk, 1, 7, 40, 33, size=500)
    desk.settle()
    first = as_after_a_kill(path, tmp_path / "crash-1")
    journal = LoggedJournal(first, batch_bytes=BATCH)
    journal.recover()  # killed before it says anything
    second = as_after_a_kill(first, tmp_path / "crash-2")
    journal.close()
    assert found_after_a_kill(second, tmp_path / "crash-3") == list(range(8, 41))
    desk.journal.close()


def test_the_log_is_missing_after_a_kill_and_that_is_said(desk: Desk, path: Path, tmp_path: Path) -> None:
    add_counted(desk, 1, 3, 0)
    desk.settle()
    copy = as_after_a_kill(path, tmp_path / "crash-1")
    shutil.rmtree(log_directory(copy))
    with pytest.raises(LogDamaged, match=r"journal\.log is damaged: it is missing.*leave the directory empty"):
        LoggedJournal(copy).recover()
    log_directory(copy).mkdir()  # as the error says: go on without
    again = logged(copy)
    again.journal.close()
    desk.journal.close()


def test_a_log_that_cannot_be_read_is_left_as_it_is(desk: Desk, path: Path, tmp_path: Path) -> None:
    """Also where the file says that it needs none: somebody put another file beside it."""
    desk.journal.close()
    other = as_after_a_kill(path, tmp_path / "other")
    desk = logged(path)
    for number in range(1, 60):
        desk.submit_records(added(1, number, b"x" * 1_000))
        desk.settle()
    copy = as_after_a_kill(path, tmp_path / "crash-1")
    desk.journal.close()
    copy.with_name("journal.db-wal").unlink(missing_ok=True)
    shutil.copy(other, copy)  # the file of before, with a log that does not begin where it ends
    segments = SegmentLog(log_directory(copy))
    segments.open()
    left = [segments._used[-1].path]
    assert segments._used[-1].first > 20
    segments.close()
    for segment in log_directory(copy).iterdir():
        if segment not in left:
            segment.unlink()
    journal = LoggedJournal(copy)
    with pytest.raises(LogDamaged):
        journal.recover()
    journal.close()
    assert sorted(log_directory(copy).iterdir()) == left


# -- damage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("last_only", [True, False])
def test_a_flipped_bit_in_a_message_is_told_by_entity_and_number_also_in_the_last_commit(
    desk: Desk, path: Path, tmp_path: Path, last_only: bool
) -> None:
    for number in (1, 2, 3):
        desk.submit_records(added(1, number, b"body number %d" % number))
        desk.settle()
    desk.submit_records(queue_put(3))  # and something else
    if last_only:
        desk.submit_records(added(1, 4, b"body number 4"))
    desk.settle()
    desk.ask(LoadNumbers(1, [1], ALL))  # when this is answered, the last frame has its witness
    damaged = 4 if last_only else 2
    journal = desk.journal
    assert isinstance(journal, LoggedJournal)
    copy = as_after_a_kill(path, tmp_path / "crash-1")
    (segment,) = log_directory(copy).iterdir()
    data = segment.read_bytes()
    assert data.count(b"body number %d" % damaged) == 1
    segment.write_bytes(data.replace(b"body number %d" % damaged, b"bodx number %d" % damaged))
    again = logged(copy)
    rows = again.ask(everything(1))
    assert damaged in rows.corrupt and damaged not in numbers(rows)
    assert numbers(rows) == [number for number in (1, 2, 3, 4) if number != damaged and (number < 4 or last_only)]
    (apart,) = read_set_apart(copy.with_name("set-apart.jsonl"))
    assert (apart["entity"], apart["number"]) == ("queue-1", damaged)
    again.journal.close()
    desk.journal.close()


# -- failures ---------------------------------------------------------------------------------------------------------


def calls_of(path: Path) -> list[str]:
    files = FailingFiles(0, 0)
    path.parent.mkdir(parents=True)
    desk = logged(path, files)
    play(desk)
    desk.journal.close()
    return files.calls


def play(desk: Desk) -> None:
    desk.submit_records(queue_put(1), queue_put(2))
    for number in range(1, 12):
        desk.submit_records(added(1, number, b"x" * 500))
        desk.settle()


def test_a_failed_call_of_the_log_ends_the_journal_and_nothing_of_it_is_told(tmp_path: Path) -> None:
    calls = calls_of(tmp_path / "count" / "journal.db")
    assert {"open", "write", "sync", "sync directory"} <= set(calls)
    calls = calls[: max(at for at, name in enumerate(calls, 1) if name == "write")]  # then it is closed
    for at, name in enumerate(calls, 1):
        path = tmp_path / str(at) / "journal.db"
        path.parent.mkdir()
        try:
            desk = logged(path, FailingFiles(at, errno.EIO, times=1000))
        except StoreWriteFailed:
            assert name == "sync directory", "all that a start without a log does with it"
            continue
        desk.submit_records(queue_put(1), queue_put(2))
        told = 0
        for number in range(1, 12):
            if not desk.is_durable_or_failed(desk.submit_records(added(1, number, b"x" * 500))):
                break
            told = number
        if not desk.failures:  # a witness that could not be written, after the last was told
            desk.wait_for_failure()
        assert isinstance(desk.failures[0], StoreWriteFailed), (at, name)
        desk.journal.close()
        again = logged(path)
        found = numbers(again.ask(everything(1)))
        assert found[:told] == list(range(1, told + 1)), (at, name)
        again.journal.close()


def test_two_threads_that_fail_are_one_failure_and_the_first_is_told(path: Path) -> None:
    path.parent.mkdir()
    desk = logged(path)
    desk.journal._fail(OSError(errno.EIO, "the writer"))  # type: ignore[attr-defined]
    desk.journal._fail(OSError(errno.EIO, "the keeper"))  # type: ignore[attr-defined]
    desk.hear_all()
    (failure,) = desk.failures
    assert "the writer" in str(failure)
    desk.journal.close()


def test_no_space_for_the_log_is_waited_for(path: Path) -> None:
    path.parent.mkdir()
    desk = logged(path, FailingFiles(4, errno.ENOSPC, times=3))
    play(desk)
    assert numbers(desk.ask(everything(1))) == list(range(1, 12))
    desk.journal.close()


# -- the way there and back --------------------------------------------------------------------------------------------


def test_a_store_without_a_log_gets_one_and_can_do_without_it_again(path: Path, tmp_path: Path) -> None:
    path.parent.mkdir()
    plain = SqliteJournal(path)
    plain.recover()
    desk = Desk(plain).start()
    desk.submit_records(queue_put(1), queue_put(2), added(1, 1))
    desk.settle()
    plain.close()
    desk = logged(path)
    desk.submit_records(added(1, 2))
    desk.settle()
    copy = as_after_a_kill(path, tmp_path / "crash-1")
    desk.journal.close()
    for found in (path, copy):
        back = SqliteJournal(found)
        back.recover()
        assert numbers(Desk(back).start().ask(everything(1))) == [1, 2]
        back.close()
        assert list(log_directory(found).iterdir()) == []


def test_the_format_says_that_there_may_be_a_log(desk: Desk, path: Path) -> None:
    desk.journal.close()
    connection = apsw.Connection(str(path))
    assert int(connection.pragma("user_version")) == FORMAT == 6
    connection.close()
