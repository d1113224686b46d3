"""One open SQLite file: what is written to it and read from it.

Used by one thread at a time. Nothing is ever retried: after a failed sync the kernel may have dropped the pages, and
the next sync would lie.
"""

import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from zlib import crc32

import apsw

from spillway.model import limits
from spillway.model.message import Message, StoredMessage
from spillway.model.records import (
    Catalogue,
    Counters,
    EntityPut,
    LoadActive,
    LoadActiveOfSessions,
    LoadDue,
    LoadEntity,
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
from spillway.store.answers import Found, PassedOver, fill, fill_each
from spillway.store.batch import Batch
from spillway.store.bodies import Bodies
from spillway.store.catalogue import (
    NO_COUNTERS,
    CatalogueReading,
    counters_checksum,
    meta_checksum,
    put_checksum,
    read_catalogue,
    read_entity,
)
from spillway.store.day_files import DIRECTORY_NAME, DayFiles
from spillway.store.errors import StoreDamaged, explain
from spillway.store.file import FORMAT, PAGE_BYTES, close_untouched, open_file
from spillway.store.ids import answer_ids, mend_indexed, write_ids
from spillway.store.ledger import LedgerTable, write_ledger
from spillway.store.rows import (
    BODY_ID_AT,
    SEQUENCE_MASK,
    SESSION_ID_AT,
    DamagedRow,
    RowDecoder,
    columns_of,
    entity_id_of,
    row_key,
    sequence_number_of,
    stored_of,
    text_of,
)
from spillway.store.rules import mend_rules, write_rules
from spillway.store.sessions import answer_sessions, write_sessions
from spillway.store.set_apart import NAME as SET_APART_NAME
from spillway.store.set_apart import SetApart
from spillway.store.statements import STATEMENTS, each, fetch

log = logging.getLogger(__name__)


class Database:
    """The open file. After an error of SQLite, only `abandon` is called."""

    def __init__(
        self,
        path: Path,
        synchronous: str = "FULL",
        vfs: str | None = None,
        days: DayFiles | None = None,
        has_index_in_memory: bool = False,
        apart: SetApart | None = None,
    ) -> None:
        self.path = path
        self.wal_bytes = 0  # written to the log since it was last copied into the file
        self.clock_ms = 0
        self.created_ms = 0
        self.last_entity_id = 0
        self.last_body_number = 0
        self.folded_upto = 0  # the number of the last frame of the log that is in the file
        self.is_logged = False  # whether the log may have more
        self.tombstones: list[int] = []  # removed entities whose messages are still being deleted
        self.apart = apart or SetApart(path.with_name(SET_APART_NAME))
        self.paths: dict[int, str] = {}  # by entity id, for who reads what is said of it
        self._before: tuple[int, int, int, list[int], int, bool] = (0, 0, 0, [], 0, False)  # where `roll_back` goes
        self.connection = open_file(path, synchronous, vfs, has_index_in_memory)
        self.connection.set_wal_hook(self._on_wal)
        self._cursor = self.connection.cursor()
        self.bodies = Bodies(self.connection)
        self._decoder = RowDecoder(self.bodies.read, self.note_damage)
        days = days or DayFiles(path.parent / DIRECTORY_NAME, path.parent.name)
        self.ledger = LedgerTable(self.connection, path, days, self.apart)

    def _on_wal(self, connection: apsw.Connection, name: str, frames: int) -> int:
        self.wal_bytes = frames * PAGE_BYTES
        return apsw.SQLITE_OK

    def catalogue(self, mends: bool = True) -> Catalogue:
        """What a start reads. `mends`: what is damaged and can be made anew is written anew."""
        try:
            found = read_catalogue(self.connection, self.apart)
            catalogue = found.catalogue
            self.tombstones, self.last_body_number = found.tombstones, found.last_body_number
            self.bodies.refresh()
            catalogue.ledger_minute = self.ledger.recover()
            self.clock_ms = catalogue.clock_ms
            self.created_ms = catalogue.created_ms
            self.last_entity_id = catalogue.last_entity_id
            self.bodies.last_number = self.last_body_number
            self.paths = {row.put.entity_id: row.put.path for row in catalogue.entities}
            self._read_folded()
            if mends:
                self._mend(found)
        except (apsw.Error, UnicodeDecodeError) as error:
            raise explain(error, self.path) from error
        return catalogue

    def skip_numbers(self, catalogue: Catalogue) -> None:
        """Numbers that an interrupted life may have shown, of messages that it had not stored, are not given again."""
        for row in catalogue.entities:
            row.counters.last_sequence_number += limits.NUMBERS_SKIPPED
            numbers = _numbers_of(row.put.entity_id, row.counters)
            self._cursor.execute(STATEMENTS["put_counters"], (*numbers, row.put.entity_id))

    def _mend(self, found: CatalogueReading) -> None:
        """Write what was made anew. Without space it is made anew at every start, until there is some."""
        try:
            self.begin()
            if found.is_meta_new:
                self._put_meta(self.clock_ms, self.last_entity_id, self.last_body_number)
            for put in found.puts:
                self._put_entity(put)
            for entity_id, counters in found.counters.items():
                self._cursor.execute(STATEMENTS["put_counters"], (*_numbers_of(entity_id, counters), entity_id))
            for entity_id in found.no_tallies:
                self._cursor.execute(STATEMENTS["put_tally"], (None, entity_id))
            mend_rules(self._cursor, found.rules)
            for entity_id in found.not_removed:
                self._cursor.execute(STATEMENTS["forget_removed"], (entity_id,))
            is_mended = mend_indexed(self.connection, self.apart, self.paths)
            if found.is_sound and not is_mended:
                self.connection.execute("ROLLBACK")
            else:
                self.commit()
        except apsw.FullError as error:
            self.roll_back()
            log.warning("%s: no space to write what was made anew: %s", self.path, error)

    def _read_folded(self) -> None:
        rows = fetch(self._cursor, "select_folded")
        sound = [(upto, is_logged) for place, upto, is_logged, proof in rows if proof == _folded_proof(upto, is_logged)]
        if rows and not sound:
            raise StoreDamaged(self.path, "it does not say up to which frame of its log it has everything")
        if sound:
            self.folded_upto, is_logged = sound[0]
            self.is_logged = bool(is_logged)

    def put_folded(self, upto: int, is_logged: bool) -> None:
        """Inside `begin` and `commit`: the file has every frame of the log up to this one."""
        for place in (1, 2):
            self._cursor.execute(STATEMENTS["put_folded"], (place, upto, is_logged, _folded_proof(upto, is_logged)))
        self.folded_upto, self.is_logged = upto, is_logged

    def _put_meta(self, clock_ms: int, last_entity_id: int, last_body_number: int) -> None:
        meta = (FORMAT, clock_ms, last_entity_id, last_body_number, self.created_ms)
        self._cursor.execute(STATEMENTS["put_meta"], (*meta, meta_checksum(*meta)))

    def _put_entity(self, put: EntityPut) -> None:
        new = (put.entity_id, put.kind, put.path, put.settings, put.parent_id, put_checksum(put))
        zeros = counters_checksum(put.entity_id, NO_COUNTERS)
        self._cursor.execute(STATEMENTS["put_entity"], (*new, zeros))

    def note_damage(self, row: DamagedRow) -> None:
        """A message that cannot be read: never served, kept where it is, set apart once."""
        key = row.columns[0]
        assert isinstance(key, int), "a rowid is an integer"
        path = self.paths.get(entity_id_of(key), f"entity {entity_id_of(key)}")
        self.apart.note("message", key, row.columns, "its checksum does not hold", path, sequence_number_of(key))

    # -- writing ---------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self._snapshot()
        self._cursor.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        self._cursor.execute("COMMIT")
        self._snapshot()

    def _snapshot(self) -> None:
        numbers = (self.clock_ms, self.last_entity_id, self.last_body_number)
        self._before = (*numbers, list(self.tombstones), self.folded_upto, self.is_logged)

    def roll_back(self) -> None:
        """Nothing since `begin` has happened. Only after an error that says so: the disk had no space for it."""
        if self.connection.in_transaction:
            self._cursor.execute("ROLLBACK")
        self.clock_ms, self.last_entity_id, self.last_body_number, tombstones, *folded = self._before
        self.tombstones = list(tombstones)
        self.folded_upto, self.is_logged = folded[0], bool(folded[1])
        self.bodies.roll_back(self.last_body_number)

    def new_batch(self, older: Batch | None = None) -> Batch:
        held: dict[Message, int] = {}
        return Batch(partial(self._pop, held), held, older)

    def _pop(self, held: dict[Message, int], key: int) -> StoredMessage | DamagedRow | None:
        """A message for a batch, which gives up this place and may put the message to another."""
        columns = self._columns(key)
        if columns is None:
            return None
        row = stored_of(columns, self.bodies.read)
        if isinstance(row, DamagedRow):
            self.note_damage(row)
        else:
            body_id = columns[BODY_ID_AT]
            if isinstance(body_id, int):
                held[row.message] = body_id
        return row

    def _columns(self, key: int) -> tuple[object, ...] | None:
        if self.tombstones and entity_id_of(key) in self.tombstones:
            return None
        found = fetch(self._cursor, "select_row", (key,))
        return found[0] if found else None

    def write(self, batch: Batch) -> None:
        """Inside `begin` and `commit`."""
        cursor = self._cursor
        self._write_entities(batch)
        if batch.rules:
            write_rules(cursor, batch)
        if batch.gone:
            runs = batch.runs_gone()
            self.bodies.release("select_body_ids", runs)
            before = self.connection.total_changes()
            cursor.executemany(STATEMENTS["delete_messages"], runs)
            if self.connection.total_changes() - before < len(batch.gone):
                cursor.executemany(STATEMENTS["delete_parked"], runs)
        active: list[tuple[object, ...]] = []
        inactive: list[tuple[object, ...]] = []
        placed = self.bodies.place(batch)
        for key, row in batch.fresh.items():
            if isinstance(row, DamagedRow):
                columns = row.columns
            else:
                columns = columns_of(key, row, placed.get(row.message) if placed else None)
            if columns[1] == 0:
                active.append((key, *columns[3:]))
            else:
                inactive.append(columns)
        if active:
            cursor.executemany(STATEMENTS["insert_message"], active)
        if inactive:
            cursor.executemany(STATEMENTS["insert_parked"], inactive)
        write_sessions(cursor, batch, self.apart, self.paths)
        if batch.ledger:
            write_ledger(cursor, batch.ledger)
        write_ids(cursor, batch)
        self.bodies.settle()
        self._write_counters(batch)
        for entity_id in batch.recounts - batch.removed:
            self._recount(entity_id)

    def _write_entities(self, batch: Batch) -> None:
        for put in batch.puts.values():
            assert put.entity_id not in self.tombstones, "entity ids are never used again"
            self._put_entity(put)
            self.paths[put.entity_id] = put.path
        for entity_id in batch.removed:
            self._cursor.execute(STATEMENTS["remove_entity"], (entity_id,))
            self._cursor.execute(STATEMENTS["delete_sessions"], (entity_id,))
            self._cursor.execute(STATEMENTS["delete_indexed"], (entity_id,))
            self._cursor.execute(STATEMENTS["put_removed"], (entity_id,))
            self.tombstones.append(entity_id)

    def _write_counters(self, batch: Batch) -> None:
        rows: list[tuple[object, ...]] = []
        with_tallies: list[tuple[object, ...]] = []
        tallies = batch.tallies
        for entity_id, counters in batch.counters.items():
            if entity_id in batch.removed:
                continue
            numbers = _numbers_of(entity_id, counters)
            tally = tallies.get(entity_id)
            if tally is None:
                rows.append((*numbers, entity_id))
            else:
                with_tallies.append((*numbers, tally, entity_id))
        if rows:
            self._cursor.executemany(STATEMENTS["put_counters"], rows)
        if with_tallies:
            self._cursor.executemany(STATEMENTS["put_counters_and_tally"], with_tallies)
        alone = [(tally, key) for key, tally in tallies.items() if key not in batch.counters]
        if alone:
            self._cursor.executemany(STATEMENTS["put_tally"], alone)
        clock_ms = max(self.clock_ms, batch.clock_ms)
        last_entity_id = max(self.last_entity_id, batch.last_entity_id)
        now = (clock_ms, last_entity_id, self.bodies.last_number)
        if now != (self.clock_ms, self.last_entity_id, self.last_body_number):
            self._put_meta(*now)
            self.clock_ms, self.last_entity_id, self.last_body_number = now

    def _recount(self, entity_id: int) -> None:
        """Counters of an entity are made of its rows; the broker has lost count of them (broker.incidents)."""
        row = read_entity(self.connection, entity_id)
        if row is None:
            return
        counters = row.counters
        bounds = (row_key(entity_id, 0), row_key(entity_id, SEQUENCE_MASK))
        active, active_bytes = self._sums("weigh_messages", bounds)
        deferred, scheduled, hidden, parked_bytes = self._sums("weigh_parked", bounds)
        counters.active, counters.deferred, counters.scheduled, counters.hidden = active, deferred, scheduled, hidden
        counters.size_bytes = active_bytes + parked_bytes
        self._cursor.execute(STATEMENTS["put_counters"], (*_numbers_of(entity_id, counters), entity_id))

    def _sums(self, statement: str, bounds: tuple[int, int]) -> list[int]:
        ((*sums,),) = fetch(self._cursor, statement, bounds)
        return [value if isinstance(value, int) else 0 for value in sums]

    def purge(self, count_max: int) -> None:
        """Delete some of what a removed entity had, inside `begin` and `commit`; all at once would stop the line."""
        entity_id = self.tombstones[0]
        bounds = (row_key(entity_id, 0), row_key(entity_id, SEQUENCE_MASK), count_max)
        self.bodies.release("select_some_body_ids", [bounds])
        before = self.connection.total_changes()
        self._cursor.execute(STATEMENTS["delete_some_messages"], bounds)
        self._cursor.execute(STATEMENTS["delete_some_parked"], bounds)
        self._cursor.execute(STATEMENTS["delete_some_ids"], bounds)
        self._cursor.execute(STATEMENTS["delete_some_index"], (entity_id, count_max))
        self._cursor.execute(STATEMENTS["delete_some_rules"], (entity_id, count_max))
        if self.connection.total_changes() == before:
            self._cursor.execute(STATEMENTS["forget_removed"], (entity_id,))
            del self.tombstones[0]
        self.bodies.settle()

    # -- reading ---------------------------------------------------------------------------------------------------

    def answer(self, query: Query) -> Rows:
        if self.tombstones and query.entity_id in self.tombstones:
            return Rows([])
        if isinstance(query, (LoadSession, LoadSessions, LoadSessionNames)):
            return answer_sessions(self._cursor, query, self.apart, self.paths)
        if isinstance(query, LoadEntity):
            return self._entity(query.entity_id)
        if isinstance(query, LoadLedger):
            return self.ledger.page(query)
        if isinstance(query, (LoadIds, LoadIndexedIds, LoadOldIds)):
            return answer_ids(self.connection, query, self.apart, self.paths)
        if isinstance(query, LoadNumbers):
            return fill(query, self._numbered(query.entity_id, query.sequence_numbers))
        if isinstance(query, LoadActiveOfSessions):
            return fill_each(query, self._filled)
        return self._filled(query)

    def last_number(self, entity_id: int) -> int:
        """The highest number of an active message of the entity; 0: there is none."""
        ((key,),) = fetch(self._cursor, "last_message", (row_key(entity_id, 0), row_key(entity_id, SEQUENCE_MASK)))
        return sequence_number_of(key) if isinstance(key, int) else 0

    def _entity(self, entity_id: int) -> Rows:
        rows = Rows([])
        rows.entity = read_entity(self.connection, entity_id)
        return rows

    def _filled(self, query: Query) -> Rows:
        name, bindings = _question(query)
        cursor = self.connection.cursor()
        try:
            if isinstance(query, LoadFrom) and query.session_id is not None:
                return fill(query, self._of_session(query.session_id, each(cursor, name, bindings)))
            try:
                return fill(query, map(self._decoder.decode, cursor.execute(STATEMENTS[name], bindings)))
            except UnicodeDecodeError:  # in the midst of it: once more, with text as bytes from there on
                return fill(query, map(self._decoder.decode, each(cursor, name, bindings)))
        finally:
            cursor.close(True)

    def _numbered(self, entity_id: int, sequence_numbers: list[int]) -> Iterator[StoredMessage | int]:
        for sequence_number in sorted(set(sequence_numbers)):
            if 0 <= sequence_number <= SEQUENCE_MASK:
                columns = self._columns(row_key(entity_id, sequence_number))
                if columns is not None:
                    row = stored_of(columns, self.bodies.read)
                    if isinstance(row, DamagedRow):
                        self.note_damage(row)
                        yield sequence_number
                    else:
                        yield row

    def _of_session(self, session_id: str, found: Iterator[tuple[object, ...]]) -> Iterator[Found]:
        """Browsing one session passes over what is parked of others; by the column, where it has one."""
        for columns in found:
            key = columns[0]
            assert isinstance(key, int), "a rowid is an integer"
            name = text_of(columns[SESSION_ID_AT])
            if name is not None and name != session_id:
                yield PassedOver(sequence_number_of(key))
                continue
            row = self._decoder.decode(columns)
            if isinstance(row, StoredMessage) and row.message.session_id != session_id:
                yield PassedOver(row.sequence_number)
            else:
                yield row

    # -- keeping house ---------------------------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Copy the log into the file; the log is then written from its beginning again."""
        self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        self.wal_bytes = 0

    def growth_bytes(self) -> int:
        """What the file must still grow by when the log is copied into it."""
        pages = int(self.connection.pragma("page_count"))
        return max(0, pages * PAGE_BYTES - self.path.stat().st_size)

    def free_page_bytes(self) -> int:
        return int(self.connection.pragma("freelist_count")) * PAGE_BYTES

    def close(self) -> None:
        """After this the file alone holds everything."""
        self.ledger.abandon()
        self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        self.connection.close()

    def close_with_log(self) -> None:
        """There is no space to copy the log into the file: the next start does it. Nothing is lost."""
        self.abandon()

    def abandon(self) -> None:
        """After a failure: let go of the file and write nothing more to it."""
        self.ledger.abandon()
        close_untouched(self.connection)


def _folded_proof(upto: object, is_logged: object) -> int:
    return crc32(f"{upto} {int(bool(is_logged))}".encode())


def _numbers_of(entity_id: int, counters: Counters) -> tuple[int, ...]:
    return (
        counters.last_sequence_number,
        counters.active,
        counters.deferred,
        counters.scheduled,
        counters.hidden,
        counters.size_bytes,
        counters.used_ms,
        counters_checksum(entity_id, counters),
    )


def _question(query: Query) -> tuple[str, tuple[int | str, ...]]:
    last = row_key(query.entity_id, SEQUENCE_MASK)
    if isinstance(query, LoadActive):
        first = row_key(query.entity_id, max(query.after, -1) + 1)
        if query.session_id is not None:
            return "select_active_of_session", (query.entity_id, query.session_id, first, last)
        return "select_active", (first, last)
    if isinstance(query, LoadFrom):
        first = row_key(query.entity_id, max(query.sequence_number, 0))
        if query.session_id is not None:
            return "select_any_of_session", (first, last, query.entity_id, query.session_id)
        return "select_any", (first, last)
    if isinstance(query, LoadDue):
        return "select_due", (query.entity_id,)
    if isinstance(query, LoadExpired):
        return "select_expiring", (query.entity_id,)
    raise AssertionError(f"a query the store does not know: {type(query).__name__}")
