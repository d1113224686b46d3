"""One open SQLite file: what is written to it and read from it.

Used by one thread at a time. Nothing is ever retried: after a failed sync the kernel may have dropped the pages, and
the next sync would lie.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import apsw

from spillway.model.message import StoredMessage
from spillway.model.records import (
    Catalogue,
    LoadActive,
    LoadActiveOfSessions,
    LoadDue,
    LoadExpired,
    LoadFrom,
    LoadIds,
    LoadIndexedIds,
    LoadLedger,
    LoadNumbers,
    LoadOldIds,
    LoadSession,
    LoadSessionNames,
    LoadSessions,
    Query,
    Rows,
)
from spillway.store.answers import fill, fill_each
from spillway.store.batch import Batch
from spillway.store.bodies import Bodies
from spillway.store.catalogue import NO_COUNTERS, counters_checksum, meta_checksum, put_checksum, read_catalogue
from spillway.store.day_files import DIRECTORY_NAME, DayFiles
from spillway.store.errors import explain
from spillway.store.file import FORMAT, PAGE_BYTES, close_untouched, open_file
from spillway.store.ids import answer_ids, write_ids
from spillway.store.ledger import LedgerTable, write_ledger
from spillway.store.rows import (
    BODY_ID_AT,
    SEQUENCE_MASK,
    DamagedRow,
    columns_of,
    entity_id_of,
    row_key,
    sequence_number_of,
    stored_of,
)
from spillway.store.sessions import answer_sessions, write_sessions
from spillway.store.statements import STATEMENTS


class Database:
    """The open file. After an error of SQLite, only `abandon` is called."""

    def __init__(
        self, path: Path, synchronous: str = "FULL", vfs: str | None = None, days: DayFiles | None = None
    ) -> None:
        self.path = path
        self.wal_bytes = 0  # written to the log since it was last copied into the file
        self.clock_ms = 0
        self.created_ms = 0
        self.last_entity_id = 0
        self.last_body_number = 0
        self.graveyard: list[int] = []  # removed entities whose messages are still being deleted
        self.connection = open_file(path, synchronous, vfs)
        self.connection.set_wal_hook(self._on_wal)
        self._cursor = self.connection.cursor()
        self.bodies = Bodies(self.connection)
        days = days or DayFiles(path.parent / DIRECTORY_NAME, path.parent.name)
        self.ledger = LedgerTable(self.connection, path, days)

    def _on_wal(self, connection: apsw.Connection, name: str, frames: int) -> int:
        self.wal_bytes = frames * PAGE_BYTES
        return apsw.SQLITE_OK

    def catalogue(self) -> Catalogue:
        try:
            catalogue, self.graveyard, self.last_body_number = read_catalogue(self.connection, self.path)
            self.bodies.look()
            catalogue.ledger_minute = self.ledger.recover()
        except (apsw.Error, UnicodeDecodeError) as error:
            raise explain(error, self.path) from error
        self.clock_ms = catalogue.clock_ms
        self.created_ms = catalogue.created_ms
        self.last_entity_id = catalogue.last_entity_id
        self.bodies.last_number = self.last_body_number
        return catalogue

    # -- writing ---------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self._cursor.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        self._cursor.execute("COMMIT")

    def new_batch(self) -> Batch:
        return Batch(self._take)

    def _take(self, key: int) -> StoredMessage | DamagedRow | None:
        """For a batch, which gives up this place and may put the message to another."""
        columns = self._columns(key)
        if columns is None:
            return None
        row = stored_of(columns, self.bodies.read)
        if isinstance(row, StoredMessage):
            body_id = columns[BODY_ID_AT]
            if isinstance(body_id, int):
                self.bodies.hold(row.message, body_id)
        return row

    def _columns(self, key: int) -> tuple[object, ...] | None:
        if self.graveyard and entity_id_of(key) in self.graveyard:
            return None
        found = self._cursor.execute(STATEMENTS["select_row"], (key,)).fetchall()
        return found[0] if found else None

    def write(self, batch: Batch) -> None:
        """Inside `begin` and `commit`."""
        cursor = self._cursor
        self._write_entities(batch)
        if batch.gone:
            runs = batch.runs_gone()
            self.bodies.release("select_body_ids", runs)
            before = self.connection.total_changes()
            cursor.executemany(STATEMENTS["delete_messages"], runs)
            if self.connection.total_changes() - before < len(batch.gone):
                cursor.executemany(STATEMENTS["delete_parked"], runs)
        active: list[tuple[object, ...]] = []
        parked: list[tuple[object, ...]] = []
        placed = self.bodies.place(batch)
        for key, row in batch.fresh.items():
            if isinstance(row, DamagedRow):
                columns = row.columns
            else:
                columns = columns_of(key, row, placed.get(row.message) if placed else None)
            if columns[1] == 0:
                active.append((key, *columns[3:]))
            else:
                parked.append(columns)
        if active:
            cursor.executemany(STATEMENTS["insert_message"], active)
        if parked:
            cursor.executemany(STATEMENTS["insert_parked"], parked)
        write_sessions(self.path, cursor, batch)
        if batch.ledger:
            write_ledger(cursor, batch.ledger)
        write_ids(self.path, cursor, batch)
        self.bodies.settle()
        self._write_counters(batch)

    def _write_entities(self, batch: Batch) -> None:
        for put in batch.puts.values():
            assert put.entity_id not in self.graveyard, "entity ids are never used again"
            new = (put.entity_id, put.kind, put.path, put.settings, put.parent_id, put_checksum(put))
            zeros = counters_checksum(put.entity_id, NO_COUNTERS)
            self._cursor.execute(STATEMENTS["put_entity"], (*new, zeros))
        for entity_id in batch.removed:
            self._cursor.execute(STATEMENTS["remove_entity"], (entity_id,))
            self._cursor.execute(STATEMENTS["delete_sessions"], (entity_id,))
            self._cursor.execute(STATEMENTS["delete_indexed"], (entity_id,))
            self._cursor.execute(STATEMENTS["put_removed"], (entity_id,))
            self.graveyard.append(entity_id)

    def _write_counters(self, batch: Batch) -> None:
        rows: list[tuple[object, ...]] = []
        with_tallies: list[tuple[object, ...]] = []
        tallies = batch.tallies
        for entity_id, counters in batch.counters.items():
            if entity_id in batch.removed:
                continue
            numbers = (
                counters.last_sequence_number,
                counters.active,
                counters.deferred,
                counters.scheduled,
                counters.hidden,
                counters.size_bytes,
                counters.used_ms,
                counters_checksum(entity_id, counters),
            )
            tally = tallies.pop(entity_id, None)
            if tally is None:
                rows.append((*numbers, entity_id))
            else:
                with_tallies.append((*numbers, tally, entity_id))
        if rows:
            self._cursor.executemany(STATEMENTS["put_counters"], rows)
        if with_tallies:
            self._cursor.executemany(STATEMENTS["put_counters_and_tally"], with_tallies)
        if tallies:
            self._cursor.executemany(STATEMENTS["put_tally"], [(tally, key) for key, tally in tallies.items()])
        clock_ms = max(self.clock_ms, batch.clock_ms)
        last_entity_id = max(self.last_entity_id, batch.last_entity_id)
        now = (clock_ms, last_entity_id, self.bodies.last_number)
        if now != (self.clock_ms, self.last_entity_id, self.last_body_number):
            meta = (FORMAT, *now, self.created_ms)
            self._cursor.execute(STATEMENTS["put_meta"], (*meta, meta_checksum(*meta)))
            self.clock_ms, self.last_entity_id, self.last_body_number = now

    def bury(self, count_max: int) -> None:
        """Delete some messages of a removed entity, inside `begin` and `commit`; all at once would stop the line."""
        entity_id = self.graveyard[0]
        bounds = (row_key(entity_id, 0), row_key(entity_id, SEQUENCE_MASK), count_max)
        self.bodies.release("select_some_body_ids", [bounds])
        before = self.connection.total_changes()
        self._cursor.execute(STATEMENTS["delete_some_messages"], bounds)
        self._cursor.execute(STATEMENTS["delete_some_parked"], bounds)
        self._cursor.execute(STATEMENTS["delete_some_ids"], bounds)
        self._cursor.execute(STATEMENTS["delete_some_index"], (entity_id, count_max))
        if self.connection.total_changes() == before:
            self._cursor.execute(STATEMENTS["forget_removed"], (entity_id,))
            del self.graveyard[0]
        self.bodies.settle()

    # -- reading ---------------------------------------------------------------------------------------------------

    def answer(self, query: Query) -> Rows:
        if self.graveyard and query.entity_id in self.graveyard:
            return Rows([])
        if isinstance(query, (LoadSession, LoadSessions, LoadSessionNames)):
            return answer_sessions(self.path, self._cursor, query)
        if isinstance(query, LoadLedger):
            return self.ledger.page(query)
        if isinstance(query, (LoadIds, LoadIndexedIds, LoadOldIds)):
            return answer_ids(self.path, self.connection, query)
        if isinstance(query, LoadNumbers):
            return fill(query, self._numbered(query.entity_id, query.sequence_numbers))
        if isinstance(query, LoadActiveOfSessions):
            return fill_each(query, self._filled)
        return self._filled(query)

    def _filled(self, query: Query) -> Rows:
        cursor = self.connection.cursor()
        try:
            return fill(query, _of_session(query, _decoded(cursor.execute(*_question(query)), self.bodies.read)))
        finally:
            cursor.close()

    def _numbered(self, entity_id: int, sequence_numbers: list[int]) -> Iterator[StoredMessage | int]:
        for sequence_number in sorted(set(sequence_numbers)):
            if 0 <= sequence_number <= SEQUENCE_MASK:
                columns = self._columns(row_key(entity_id, sequence_number))
                if columns is not None:
                    row = stored_of(columns, self.bodies.read)
                    yield sequence_number if isinstance(row, DamagedRow) else row

    # -- keeping house ---------------------------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Copy the log into the file; the log is then written from its beginning again."""
        self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        self.wal_bytes = 0

    def free_page_bytes(self) -> int:
        return int(self.connection.pragma("freelist_count")) * PAGE_BYTES

    def close(self) -> None:
        """After this the file alone holds everything."""
        self.ledger.abandon()
        self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        self.connection.close()

    def abandon(self) -> None:
        """After a failure: let go of the file and write nothing more to it."""
        self.ledger.abandon()
        close_untouched(self.connection)


def _question(query: Query) -> tuple[str, tuple[int | str, ...]]:
    last = row_key(query.entity_id, SEQUENCE_MASK)
    if isinstance(query, LoadActive):
        first = row_key(query.entity_id, max(query.after, -1) + 1)
        if query.session_id is not None:
            return STATEMENTS["select_active_of_session"], (query.entity_id, query.session_id, first, last)
        return STATEMENTS["select_active"], (first, last)
    if isinstance(query, LoadFrom):
        return STATEMENTS["select_any"], (row_key(query.entity_id, max(query.sequence_number, 0)), last)
    if isinstance(query, LoadDue):
        return STATEMENTS["select_due"], (query.entity_id,)
    if isinstance(query, LoadExpired):
        return STATEMENTS["select_expiring"], (query.entity_id,)
    raise AssertionError(f"a query the store does not know: {type(query).__name__}")


def _of_session(query: Query, found: Iterator[StoredMessage | int]) -> Iterator[StoredMessage | int]:
    """Browsing one session passes over the others' messages."""
    if not isinstance(query, LoadFrom) or query.session_id is None:
        return found
    return (row for row in found if isinstance(row, int) or row.message.session_id == query.session_id)


def _decoded(found: Iterator[tuple[object, ...]], read_body: Callable[[int], object]) -> Iterator[StoredMessage | int]:
    for columns in found:
        row = stored_of(columns, read_body)
        if isinstance(row, DamagedRow):
            key = columns[0]
            assert isinstance(key, int), "a rowid is an integer"
            yield sequence_number_of(key)
        else:
            yield row
