"""The ledger in SQLite: rows that are added to with every commit, and days that are sealed when they are over.

Sealing goes in small steps between commits: a day's rows are written to a file under another name, the file is synced
and given its own name, the store remembers that the day is sealed, and only then the rows go. A crash before the store
remembers leaves all rows, and the file is made again; after it, rows that are still there count no more.
"""

import logging
import time
from pathlib import Path
from typing import Final
from zlib import crc32

import apsw

from spillway.model.ledger import KIND_NAMES, MINUTES_PER_DAY, LedgerRow, day_of
from spillway.model.records import LoadLedger, Rows
from spillway.store.day_files import DayFile, DayFiles
from spillway.store.rows import text_of
from spillway.store.set_apart import SetApart
from spillway.store.statements import STATEMENTS, fetch

log = logging.getLogger(__name__)

STEP_ROWS: Final = 250  # 2 ms of the writer's time
RETRY_S: Final = 60.0  # after a file could not be written
BEFORE_ALL: Final = (-1, "", -1)


def write_ledger(cursor: apsw.Cursor, rows: list[LedgerRow]) -> None:
    """Add these to what is there, inside a transaction."""
    sums: dict[tuple[int, str, int], LedgerRow] = {}
    for row in rows:
        key = row.key()
        found = sums.get(key)
        if found is None:
            sums[key] = row
        else:
            operations = found.operations + row.operations
            sums[key] = LedgerRow(*key, operations, found.units + row.units, found.size_bytes + row.size_bytes)
    columns: list[tuple[int | str, ...]] = []
    for key, row in sums.items():
        own = key_checksum(*key)
        proof = _proof(row.operations, row.units, row.size_bytes) + own
        columns.append((*key, row.operations, row.units, row.size_bytes, proof, own))
    cursor.executemany(STATEMENTS["add_to_ledger"], columns)


def key_checksum(minute: int, entity: str, kind: int) -> int:
    return crc32(f"{minute} {kind} {entity}".encode("utf-8", "surrogatepass"))


def _proof(operations: int, units: int, size_bytes: int) -> int:
    return 3 * operations + 5 * units + 7 * size_bytes


def row_of_columns(columns: tuple[object, ...]) -> LedgerRow | None:
    """The row of the ledger; None: it is damaged."""
    minute, name, kind, operations, units, size_bytes, proof = columns
    entity = text_of(name)
    if not (
        isinstance(minute, int)
        and entity is not None
        and isinstance(kind, int)
        and isinstance(operations, int)
        and isinstance(units, int)
        and isinstance(size_bytes, int)
        and 0 <= kind < len(KIND_NAMES)
        and proof == _proof(operations, units, size_bytes) + key_checksum(minute, entity, kind)
    ):
        return None
    return LedgerRow(minute, entity, kind, operations, units, size_bytes)


def key_of(columns: tuple[object, ...]) -> tuple[int, str, int] | None:
    """The place of a row among the others, if that can be told."""
    minute, entity, kind = columns[0], text_of(columns[1]), columns[2]
    if isinstance(minute, int) and entity is not None and isinstance(kind, int):
        return minute, entity, kind
    return None


class LedgerTable:
    """The ledger of one open file: what is in it, up to when it is sealed, and the day that is being sealed."""

    def __init__(self, connection: apsw.Connection, path: Path, files: DayFiles, apart: SetApart) -> None:
        self._apart = apart
        self._connection = connection
        self._path = path
        self._files = files
        self.sealed_before = 0  # a minute
        self._seals_before = 0
        self._has_sealed_rows = False
        self._retry_at = 0.0
        self._day = 0
        self._file: DayFile | None = None
        self._after: tuple[int, str, int] = BEFORE_ALL
        self._is_synced = False

    def recover(self) -> int:
        """The earliest minute that is in no sealed day, 0 if there is none."""
        for before, mirror in fetch(self._connection.cursor(), "select_ledger_sealed"):
            if not isinstance(before, int) or not isinstance(mirror, int) or before != -mirror:
                reason = "the minute up to which its ledger is sealed does not hold; the files of sealed days say it"
                self._apart.note("ledger_sealed", 1, (before, mirror), reason)
                before = self._files.sealed_before()
            self.sealed_before = max(self.sealed_before, before)
        self._has_sealed_rows = 0 < self._first(0) < self.sealed_before
        return self._first(self.sealed_before)

    def _first(self, minute: int) -> int:
        for (found,) in fetch(self._connection.cursor(), "first_of_ledger", (minute,)):
            return found if isinstance(found, int) else 0
        return 0

    def page(self, query: LoadLedger) -> Rows:
        since = max(query.since, self.sealed_before)
        found = self._read(since, query.until, query.after, query.count + 1)
        rows = Rows([])
        rows.sealed_before = self.sealed_before
        rows.is_cut = len(found) > query.count
        for columns in found[: query.count]:
            rows.ledger_end = key_of(columns) or rows.ledger_end
            row = row_of_columns(columns)
            if row is None:
                rows.damaged_count += 1
                self._note(columns)
            else:
                rows.ledger.append(row)
        if rows.ledger_end <= query.after:
            rows.is_cut = False  # a whole page without a key that holds: there is no going on behind it
        return rows

    def _read(self, since: int, until: int, after: tuple[object, ...], count: int) -> list[tuple[object, ...]]:
        assert len(after) == 3, "a row's key"
        return fetch(self._connection.cursor(), "select_ledger", (since, until, *after, count))

    # -- sealing, between two transactions -----------------------------------------------------------------------

    def seal(self, before: int) -> None:
        """Days before this minute are over: what is counted from now on is counted later than that."""
        self._seals_before = max(self._seals_before, before)

    @property
    def is_sealing(self) -> bool:
        """Whether there is a step to take now."""
        if self._has_sealed_rows:
            return True
        return self._seals_before > self.sealed_before and time.monotonic() >= self._retry_at

    @property
    def is_waiting(self) -> bool:
        """Whether there is one to take sooner or later."""
        return self._has_sealed_rows or self._seals_before > self.sealed_before

    def step(self) -> None:
        if self._has_sealed_rows:
            self._delete_some()
            return
        try:
            if self._file is None:
                self._begin()
            elif not self._is_synced:
                self._copy_some(self._file)
            else:
                self._file.publish()
                self._file = None
                self._mark((self._day + 1) * MINUTES_PER_DAY)
        except OSError as error:
            self._abandon_sealing(error)

    def _begin(self) -> None:
        first = self._first(self.sealed_before)
        if first == 0 or first >= self._seals_before:
            self._mark(self._seals_before)
            return
        self._day = day_of(first)
        self._after = BEFORE_ALL
        self._is_synced = False
        self._file = DayFile(self._files, self._day)

    def _copy_some(self, file: DayFile) -> None:
        start = self._day * MINUTES_PER_DAY
        found = self._read(start, start + MINUTES_PER_DAY, self._after, STEP_ROWS)
        rows: list[LedgerRow] = []
        for columns in found:
            row = row_of_columns(columns)
            if row is None:
                self._note(columns)
                log.error("%s: a row of the ledger is damaged and not in %s: %r", self._path, file.path, columns)
            else:
                rows.append(row)
        file.add(rows)
        if len(found) < STEP_ROWS:
            file.sync()
            self._is_synced = True
        else:
            keys = [key for key in map(key_of, found) if key is not None and key > self._after]
            if not keys:  # a whole step without a key that holds: there is no going on behind it
                file.sync()
                self._is_synced = True
                return
            self._after = max(keys)

    def _note(self, columns: tuple[object, ...]) -> None:
        name = text_of(columns[1])
        shown = repr(columns[1]) if name is None else name
        place = f"{columns[0]!r} {shown} {columns[2]!r}"
        reason = f"the ledger's row of {shown} in minute {columns[0]!r} does not match its checksum"
        self._apart.note("ledger", place, columns, reason)

    def _mark(self, before: int) -> None:
        """The day is sealed: from here on the files say what happened before, and the rows no more."""
        with self._connection:
            self._connection.execute(STATEMENTS["put_ledger_sealed"], (before,))
        self.sealed_before = before
        self._has_sealed_rows = 0 < self._first(0) < before

    def _delete_some(self) -> None:
        with self._connection:
            self._connection.execute(STATEMENTS["delete_some_of_ledger"], (self.sealed_before, STEP_ROWS))
        self._has_sealed_rows = 0 < self._first(0) < self.sealed_before

    def _abandon_sealing(self, error: OSError) -> None:
        """All rows are still here. It is tried again with a new file: one whose sync failed is not to be trusted."""
        log.error("the ledger of %s cannot be sealed, and is tried again: %s", self._files.namespace, error)
        self.abandon()
        self._retry_at = time.monotonic() + RETRY_S

    def abandon(self) -> None:
        """Leave no half-written file behind."""
        if self._file is not None:
            try:
                self._file.abandon()
            except OSError as error:
                log.warning("%s", error)
            self._file = None
