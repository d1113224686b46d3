"""Sealing a day, killed at every step of it: no row is lost, none is counted twice. And what damage does."""

import gzip
import logging
import os
import shutil
import stat
from pathlib import Path

import pytest

from spillway.model.ledger import MINUTES_PER_DAY, RECEIVE, SEND, LedgerRow, Tally
from spillway.model.records import LoadLedger, Turn
from spillway.store.check import check
from spillway.store.database import Database
from spillway.store.ledger import STEP_ROWS, write_ledger
from spillway.store.sqlite import SqliteJournal
from spillway.store.statements import STATEMENTS
from tests.store.listening import queue_put

BEFORE_ALL = (-1, "", -1)
FOR_EVER = 1 << 40
DAY = 20_000
MINUTE = DAY * MINUTES_PER_DAY
END = MINUTE + 2 * MINUTES_PER_DAY
# Two days, the first in three pieces; and one row of the third, which is not over.
ROWS = [
    *[LedgerRow(MINUTE + at, "q", SEND, at + 1, 1, 1) for at in range(2 * STEP_ROWS + 10)],
    *[LedgerRow(MINUTE + MINUTES_PER_DAY + at, "q", RECEIVE, 7, 1, 1) for at in range(10)],
    LedgerRow(END, "q", SEND, 1_000_000, 1, 1),
]
Fields = tuple[int, str, int, int, int, int]


def fields(rows: list[LedgerRow]) -> list[Fields]:
    return [(*row.key(), row.operations, row.units, row.size_bytes) for row in rows]


def opened(path: Path) -> Database:
    database = Database(path / "namespace" / "journal.db")
    database.catalogue()
    return database


def filled(path: Path) -> Database:
    (path / "namespace").mkdir(parents=True)
    database = opened(path)
    database.begin()
    write_ledger(database.connection.cursor(), ROWS)
    database.commit()
    return database


def shown(database: Database, path: Path) -> list[Fields]:
    """All there is, as it is read: sealed days from their files, the rest from the table."""
    page = database.ledger.page(LoadLedger(0, FOR_EVER, BEFORE_ALL, 100_000))
    days = SqliteJournal(path / "namespace" / "journal.db").days
    rows = [row for day in range(DAY - 2, page.sealed_before // MINUTES_PER_DAY) for row in days.rows(day)]
    return fields(rows + page.ledger)


def seal(database: Database, steps: int = 1_000) -> int:
    """As far as so many steps go; how many there were."""
    database.ledger.seal(END)
    taken = 0
    while taken < steps and database.ledger.is_sealing:
        database.ledger.step()
        taken += 1
    return taken


def test_a_kill_at_any_step_of_sealing_loses_no_row_and_counts_none_twice(tmp_path: Path) -> None:
    steps = seal(filled(tmp_path / "whole"))
    assert steps > 10
    for killed_after in range(steps + 1):
        life = tmp_path / f"killed-after-{killed_after}"
        database = filled(life)
        assert seal(database, killed_after) == killed_after
        # What the disk has at this moment is what a killed process leaves: the file, its log, and the day files.
        image = tmp_path / f"image-{killed_after}"
        shutil.copytree(life, image)
        database.abandon()
        again = opened(image)
        assert shown(again, image) == fields(ROWS), f"after {killed_after} steps"
        seal(again)
        assert shown(again, image) == fields(ROWS)
        assert again.ledger.sealed_before == END
        assert again.connection.execute("SELECT count(*) FROM ledger").fetchall() == [(1,)]
        again.close()
        assert sorted(path.name for path in (image / "namespace" / "ledger").rglob("*.*")) == ["namespace.jsonl.gz"] * 2


def test_a_file_that_an_earlier_life_left_is_replaced_by_its_equal(tmp_path: Path) -> None:
    database = filled(tmp_path / "one")
    seal(database)
    first = SqliteJournal(tmp_path / "one" / "namespace" / "journal.db").days.path_of(DAY)
    database.close()
    other = filled(tmp_path / "two")
    second = SqliteJournal(tmp_path / "two" / "namespace" / "journal.db").days.path_of(DAY)
    second.parent.mkdir(parents=True)
    second.write_bytes(b"half of a file that was published without being whole cannot be; but if it were")
    seal(other)
    other.close()
    assert second.read_bytes() == first.read_bytes()


def test_a_day_file_is_named_by_its_day_and_readable_by_its_user_alone(tmp_path: Path) -> None:
    database = filled(tmp_path)
    seal(database)
    path = tmp_path / "namespace" / "ledger" / "day=2024-10-04" / "namespace.jsonl.gz"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(gzip.decompress(path.read_bytes()).splitlines()) == 2 * STEP_ROWS + 10
    database.close()


def test_a_file_that_cannot_be_written_is_tried_again_and_nothing_else_stops(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spillway.store.ledger.RETRY_S", 0.0)
    database = filled(tmp_path)
    blocked = tmp_path / "namespace" / "ledger"
    blocked.write_bytes(b"a file where the directory should be")
    with caplog.at_level(logging.ERROR):
        assert seal(database, 3) == 3
    assert "the ledger of namespace cannot be sealed, and is tried again" in caplog.text
    assert shown_table(database) == fields(ROWS)
    os.unlink(blocked)
    seal(database)
    assert shown(database, tmp_path) == fields(ROWS)
    database.close()


def shown_table(database: Database) -> list[Fields]:
    return fields(database.ledger.page(LoadLedger(0, FOR_EVER, BEFORE_ALL, 100_000)).ledger)


@pytest.mark.parametrize(
    "change",
    [
        "operations = operations + 1",
        "operations = operations | 4096",
        "units = 0",
        "bytes = bytes + 4096",
        "proof = proof + 1",
        "kind = 9",
        "kind = 77",
        "entity = 'p'",
        "minute = minute + 100000",
        "bytes = 'many'",
    ],
)
def test_a_damaged_row_is_reported_and_never_added_up(tmp_path: Path, change: str) -> None:
    database = filled(tmp_path)
    database.connection.execute(f"UPDATE ledger SET {change} WHERE minute = ?", (MINUTE + 4,))
    page = database.ledger.page(LoadLedger(0, FOR_EVER, BEFORE_ALL, 100_000))
    assert page.damaged_count == 1
    assert len(page.ledger) == len(ROWS) - 1
    database.close()
    (finding,) = check(tmp_path / "namespace" / "journal.db")
    assert "its checksum does not hold" in finding


def test_a_damaged_row_stays_damaged_when_it_is_added_to(tmp_path: Path) -> None:
    database = filled(tmp_path)
    database.connection.execute("UPDATE ledger SET bytes = bytes + 1 WHERE minute = ?", (MINUTE,))
    database.begin()
    write_ledger(database.connection.cursor(), [LedgerRow(MINUTE, "q", SEND, 5, 5, 5)])
    database.commit()
    assert database.ledger.page(LoadLedger(0, FOR_EVER, BEFORE_ALL, 100_000)).damaged_count == 1
    database.close()


def test_a_day_is_sealed_without_its_damaged_rows_which_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    database = filled(tmp_path)
    database.connection.execute("UPDATE ledger SET bytes = bytes + 1 WHERE minute = ?", (MINUTE + STEP_ROWS - 1,))
    with caplog.at_level(logging.ERROR):
        seal(database)
    assert "a row of the ledger is damaged and not in" in caplog.text
    assert str(MINUTE + STEP_ROWS - 1) in caplog.text
    assert shown(database, tmp_path) == fields([row for row in ROWS if row.minute != MINUTE + STEP_ROWS - 1])
    database.close()


def test_a_page_of_damaged_rows_only_ends_the_reading_of_it(tmp_path: Path) -> None:
    database = filled(tmp_path)
    database.connection.execute("UPDATE ledger SET bytes = bytes + 1 WHERE minute < ?", (MINUTE + 10,))
    page = database.ledger.page(LoadLedger(0, FOR_EVER, BEFORE_ALL, 5))
    assert page.is_cut and page.damaged_count == 5
    page = database.ledger.page(LoadLedger(0, FOR_EVER, page.ledger_end, 5))
    assert page.ledger_end[0] == MINUTE + 9
    database.close()


def test_a_mark_that_does_not_hold_is_read_from_the_files_of_sealed_days(tmp_path: Path) -> None:
    database = filled(tmp_path)
    seal(database)
    sealed_before = database.ledger.sealed_before
    database.connection.execute("UPDATE ledger_sealed SET before_minute = before_minute + 1440")
    database.close()
    again = opened(tmp_path)
    assert again.ledger.sealed_before == sealed_before > 0
    assert again.apart.count == 1
    again.close()


def test_a_damaged_tally_is_set_apart_and_named(tmp_path: Path) -> None:
    database = filled(tmp_path)
    tally = Tally("queue-1", 1)
    tally.send(5)
    turn = Turn(1)
    turn.add([queue_put(1)])
    turn.tallies = {1: tally.pack()}
    batch = database.new_batch()
    batch.add(turn)
    database.begin()
    database.write(batch)
    database.commit()
    assert database.catalogue().entities[0].tally == tally.pack()
    for damage in ("x'00'", "'text'", "7"):
        database.connection.execute(f"UPDATE entity SET tally = {damage}")
        path = tmp_path / "namespace" / "journal.db"
        assert any("queue-1: what was counted last" in finding for finding in check(path))
        assert database.catalogue().entities[0].tally == b""
        assert check(path) == []
    database.close()


def test_an_undamaged_ledger_has_no_findings(tmp_path: Path) -> None:
    database = filled(tmp_path)
    seal(database, 4)
    database.close()
    assert check(tmp_path / "namespace" / "journal.db") == []


def test_the_first_open_minute_is_found_by_its_key_not_by_a_scan(tmp_path: Path) -> None:
    database = filled(tmp_path)
    plan = database.connection.execute(f"EXPLAIN QUERY PLAN {STATEMENTS['first_of_ledger']}", (5,)).fetchall()
    assert "SEARCH ledger USING PRIMARY KEY" in str(plan)
    database.close()
