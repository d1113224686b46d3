"""The journal with a log in front of SQLite: what is acknowledged is in the log, what stays is folded into the file.

Three threads, each with one thing to do:

    submit ─▶ writer: one frame, one sync, then `on_durable` ─▶ keeper: nets turns, folds what is left of them, answers

- **The writer** appends whatever came while the last sync was under way as one frame, and tells. It never waits for
  SQLite, unless the keeper is so far behind that the log would grow without bound.
- **The keeper** keeps the net effect of turns that are in the log and not in the file, in two batches. Turns go to the
  `young` one. When that is full, the `old` one is written and synced, and the young one is the old one from there on: a
  message that is removed while it is in either of them never reaches SQLite (`store/batch.py`).
- **Queries** are answered from the two batches where that is possible; else both are written first, into a transaction
  that stays open: it is committed with the next batch. Nobody waits for a commit of SQLite, and no query sees less than
  the turns submitted before it.
- **At a start** the file has everything up to one frame, and the log is read from there on (`store/replay.py`).

A failed write or sync of either ends the journal. No space is another thing: nobody was told, and it is tried again.
"""

import errno
import logging
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final, TypeAlias, TypeVar

import apsw

from spillway.model import limits
from spillway.model.message import ACTIVE, StoredMessage
from spillway.model.records import Catalogue, LoadActive, LoadNumbers, Query, Rows, Turn
from spillway.store.answers import Found, fill
from spillway.store.batch import Batch
from spillway.store.database import Database
from spillway.store.directory import DataDirectory
from spillway.store.errors import StoreFull, explain
from spillway.store.journal import JournalListener
from spillway.store.replay import LogReplay, log_directory
from spillway.store.rows import DamagedRow, copy_of, entity_id_of, row_key, sequence_number_of
from spillway.store.segments import SEGMENT_BYTES, Files, SegmentLog, SyncFailed, SystemFiles
from spillway.store.sqlite import (
    FULL_CLOSING_RETRIES,
    FULL_RETRY_S,
    IDLE_S,
    PURGE_ROWS,
    ROWS_FEW,
    WAL_BYTES_MAX,
    Copied,
    SqliteJournal,
)
from spillway.store.turn_codec import EncodedTurn, encode_turn

log = logging.getLogger(__name__)

BATCH_TURNS: Final = 2  # times as much may its turns weigh: what they bring and take away again is not held
BATCH_MESSAGES: Final = 25_000  # that its turns have brought, held or not: a start reads them all
HELD_BATCHES_SLACK: Final = 2  # as much as so many batches may be held; what is more holds senders back
HELD_BYTES_SLACK: Final = limits.MIB
BATCHES_MAX: Final = 4  # then the writer waits for the keeper
FRAME_BYTES_MAX: Final = 4 * 1024 * 1024  # of turns in one frame, so that nobody waits long for its sync
FOLD_EVERY_S: Final = 5.0  # what is in the log for so long is folded, however little it is
LAZY_S: Final = 0.05  # turns that nobody waits for are written with the next one, or after this time
SHARE_S_MAX: Final = (
    0.0005  # what only settles waits for a send to share its sync, as long as the last one took at most
)
REST_S: Final = 0.005  # nothing has come for so long: the last frame gets its witness, and the keeper all there is
HANDED_BYTES: Final = 256 * 1024  # of turns that the keeper is woken up for
HANDED_TURNS: Final = 256
BEHIND_WAIT_S: Final = 0.005

T = TypeVar("T")


class Submitted:
    """One thing submitted: a turn with its bytes, or a query."""

    def __init__(self, what: Turn | Query, ticket: int, encoded: EncodedTurn | None, size_bytes: int) -> None:
        self.what = what
        self.ticket = ticket
        self.encoded = encoded
        self.size_bytes = size_bytes

    @property
    def is_lazy(self) -> bool:
        return isinstance(self.what, Turn) and not self.what.needs_ack()

    @property
    def has_messages(self) -> bool:
        return self.encoded is not None and bool(self.encoded.bodies)


class Appended:
    """What the writer hands to the keeper: entries in order, and the last frame that they are in; 0: they need none."""

    def __init__(self, entries: list[Submitted], number: int) -> None:
        self.entries = entries
        self.number = number


Handed: TypeAlias = tuple[Appended | Copied | None, int, int]


class UnsyncedFiles(SystemFiles):
    """The negative control of the durability tests."""

    def sync(self, file: int) -> None:
        pass


class LoggedJournal(SqliteJournal):
    """`files` and `segment_bytes` are for tests, as the parameters of `SqliteJournal` are."""

    def __init__(
        self,
        path: Path,
        *,
        directory: DataDirectory | None = None,
        on_write: Callable[[bool], None] = lambda are_few: None,
        synchronous: str = "FULL",
        vfs: str | None = None,
        wal_bytes_max: int = WAL_BYTES_MAX,
        files: Files | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        batch_bytes: int = limits.LOG_BATCH_BYTES,
    ) -> None:
        super().__init__(
            path,
            directory=directory,
            on_write=on_write,
            synchronous=synchronous,
            vfs=vfs,
            wal_bytes_max=wal_bytes_max,
        )
        if files is None and synchronous != "FULL":
            files = UnsyncedFiles()
        self._log = SegmentLog(log_directory(path), files, segment_bytes)
        self._batch_bytes = batch_bytes
        self._is_recovered = False  # until then nothing of the log is touched
        self._entries: SimpleQueue[Submitted | None] = SimpleQueue()
        self._handed: SimpleQueue[Handed] = SimpleQueue()
        self._writer: threading.Thread | None = None
        # The writer's own.
        self._unhanded: list[Submitted] = []  # in the log, and not handed to the keeper
        self._unhanded_bytes = 0
        self._unhanded_upto = 0
        self._sync_s = 0.0  # how long the last append took
        self._has_brought_messages = False  # the last frame
        self._durable_messages = 0  # brought by turns in the log
        # What the keeper has done of that: absorbed by its batches, held by them, folded into the file.
        self._absorbed_bytes = self._held_bytes = self._folded_bytes = self._folded_messages = 0
        # The keeper's own.
        self._old: Batch
        self._young: Batch
        self._old_upto = self._young_upto = 0  # the last frame in it
        self._uncommitted: list[Batch] = []  # those of the open transaction
        self._written_count = 0  # how many of them are in it; after a rollback none
        self._in_file_upto: dict[int, int] = {}  # by entity that was asked for: the file has no higher number
        self._keys: dict[int, tuple[int, list[int]]] = {}  # by entity: where the batches had messages, when asked
        self._seals_before = 0
        self._folded_at = 0.0

    # -- the seam, on the caller's thread ------------------------------------------------------------------------------

    def recover(self) -> Catalogue:
        assert self._database is None, "recover is called once"
        try:
            return self._recover()
        except (apsw.Error, OSError) as error:
            raise explain(error, self.path) from error

    def _recover(self) -> Catalogue:
        self._database = database = self._open()
        catalogue = database.catalogue()
        self._log.open()
        was_interrupted = database.is_logged or not self._log.is_empty  # in order, a life ends without a log
        upto = database.folded_upto
        replay = self._replayed(database)
        if database.folded_upto != upto:
            log.info("%s: %d frames of the log were put into the file", self.path, replay.frames_count)
            catalogue = database.catalogue()
        if replay.seals_before:
            database.ledger.seal(replay.seals_before)
        self._log.make_directory()
        self._mark_logged(database)
        self._log.begin(database.folded_upto)
        self._is_recovered = True
        self._young_upto = self._old_upto = database.folded_upto
        self._old = database.new_batch()
        self._young = database.new_batch(self._old)
        self._note_space(database)
        catalogue.was_interrupted = was_interrupted
        return catalogue

    def _mark_logged(self, database: Database) -> None:
        """The file says that the log belongs to it. On a full disk it does not, and all else goes on."""
        try:
            database.begin()
            database.put_folded(database.folded_upto, True)
            database.commit()
        except apsw.FullError as error:
            database.roll_back()
            database.is_logged = True
            log.warning("%s: no space to note that there is a log: %s", self.path, error)

    def _replayed(self, database: Database) -> LogReplay:
        """Replays the log; with the space of the ballast, if there is no other."""
        while True:
            replay = LogReplay(database, self._log)
            try:
                replay.run()
                return replay
            except apsw.FullError as error:
                database.roll_back()
                ballast = self._space.ballast
                if ballast is None or not ballast.release():
                    raise StoreFull(self.path, str(error)) from error
                log.warning("%s: the ballast is given up for the start", self.path)

    def start(self, listener: JournalListener, post: Callable[[Callable[[], None]], None]) -> None:
        super().start(listener, post)
        self._writer = threading.Thread(target=self._append_all, name=f"log {self.path.parent.name}", daemon=True)
        self._writer.start()

    def submit(self, turn: Turn, ticket: int) -> None:
        assert not self._is_closing, "nothing is submitted after close"
        encoded = None if turn.is_empty() else encode_turn(turn)
        self._submitted_bytes += turn.size_bytes
        if self._failure is None:
            self._entries.put(Submitted(turn, ticket, encoded, turn.size_bytes))

    def load(self, query: Query, ticket: int) -> None:
        assert not self._is_closing, "nothing is asked after close"
        if self._failure is None:
            self._entries.put(Submitted(query, ticket, None, 0))

    @property
    def pending_bytes(self) -> int:
        """And what the keeper is behind, beyond some slack: senders wait for that too."""
        return self._submitted_bytes - self._durable_bytes + self._behind_bytes()

    def _behind_bytes(self) -> int:
        return max(0, self._unfolded_bytes() - max(HELD_BYTES_SLACK, HELD_BATCHES_SLACK * self._batch_bytes))

    @property
    def free_bytes(self) -> int:
        return self._space.free_bytes(self._submitted_bytes, self._durable_bytes - self._unfolded_bytes())

    def _unfolded_bytes(self) -> int:
        """In memory until it is in the file: what the keeper has not seen yet, and what it holds of the rest."""
        return max(0, self._durable_bytes - self._absorbed_bytes + self._held_bytes)

    def _stop_threads(self) -> None:
        if self._writer is not None:
            self._entries.put(None)
            self._writer.join()
        if self._thread is not None:
            self._handed.put((None, 0, 0))
            self._thread.join()

    def _close_database(self, database: Database) -> None:
        super()._close_database(database)
        if self._is_recovered and self._failure is None and not database.is_logged:
            try:
                self._log.remove()
            except OSError as error:  # the file has everything: what is left of the log says nothing new
                log.warning("%s: the log could not be removed: %s", self._log.directory, error)

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._log.close()

    # -- the writer ----------------------------------------------------------------------------------------------------

    def _append_all(self) -> None:
        """A frame of what is there, and the next of what came meanwhile."""
        try:
            is_last = False
            while not is_last:
                entries = self._waiting_entries()
                written = [entry for entry in entries if entry is not None]
                is_last = not self._append_entries(written) or entries[-1] is None
            self._hand_over()
        except BaseException as error:
            self._fail(error)

    def _append_entries(self, written: list[Submitted]) -> bool:
        """Append, sync, tell. False: the journal has failed meanwhile."""
        parts: list[bytes] = []
        bodies: list[bytes] = []
        size_bytes = 0
        last_ticket = 0
        has_queries = False
        for entry in written:
            size_bytes += entry.size_bytes
            if entry.encoded is not None:
                parts += entry.encoded.parts
                bodies += entry.encoded.bodies
            if isinstance(entry.what, Turn):
                last_ticket = entry.ticket
            else:
                has_queries = True
        number = 0
        if parts:
            self._wait_for_keeper()
            if self._failure is not None:
                return False
            self._on_write(len(parts) <= ROWS_FEW)
            begun_s = time.monotonic()
            number = self._append(b"".join(parts), bodies)
            self._sync_s = time.monotonic() - begun_s
            self._has_brought_messages = bool(bodies)
        self._durable_bytes += size_bytes
        self._durable_messages += len(bodies)
        self._unhanded += written
        self._unhanded_bytes += size_bytes
        self._unhanded_upto = number or self._unhanded_upto
        if last_ticket:
            listener = self._listener
            assert listener is not None
            self._post_safely(lambda: listener.on_durable(last_ticket))
        is_much = self._unhanded_bytes >= min(HANDED_BYTES, self._batch_bytes // 4)
        if has_queries or is_much or len(self._unhanded) >= HANDED_TURNS:  # counters and ledger weigh nothing
            self._hand_over()
        return True

    def _hand_over(self) -> None:
        """What is in the log goes to the keeper: not frame by frame, for it would be woken up by each."""
        if self._entries.empty():
            self._log.witness()
        if self._unhanded:
            self._handed.put((Appended(self._unhanded, self._unhanded_upto), 0, 0))
            self._unhanded = []
            self._unhanded_bytes = self._unhanded_upto = 0

    def _waiting_entries(self) -> list[Submitted | None]:
        """At least one. Those that nobody waits for do not make a frame of their own, unless nothing else comes.

        What only settles, right behind a frame with messages, waits a moment for the next of those: who sends one after
        the other has been answered just now, and would wait for a sync without his message in it.
        """
        entry = self._first_entry()
        entries = [entry]
        size_bytes = 0
        share_until_s = 0.0
        if self._has_brought_messages:
            share_until_s = time.monotonic() + min(self._sync_s, SHARE_S_MAX)
        try:
            while entry is not None and size_bytes < FRAME_BYTES_MAX:
                if entry.has_messages or not isinstance(entry.what, Turn):
                    share_until_s = 0.0
                wait_s = (
                    LAZY_S
                    if entry.is_lazy and len(entries) == 1
                    else share_until_s and share_until_s - time.monotonic()
                )
                entry = self._entries.get(timeout=wait_s) if wait_s > 0 else self._entries.get_nowait()
                entries.append(entry)
                size_bytes += 0 if entry is None else entry.size_bytes
        except Empty:
            pass
        return entries

    def _first_entry(self) -> Submitted | None:
        try:
            return self._entries.get(timeout=REST_S if self._unhanded else None)
        except Empty:
            self._hand_over()
            return self._entries.get()

    def _wait_for_keeper(self) -> None:
        """The log, what is held of it, and the time to read it have bounds."""
        batch_bytes = self._batch_bytes
        while self._failure is None and (
            self._unfolded_bytes() > BATCHES_MAX * batch_bytes
            or self._durable_bytes - self._folded_bytes > BATCHES_MAX * BATCH_TURNS * batch_bytes
            or self._durable_messages - self._folded_messages > BATCHES_MAX * BATCH_MESSAGES
        ):
            self._hand_over()
            time.sleep(BEHIND_WAIT_S)

    def _append(self, meta: bytes, bodies: list[bytes]) -> int:
        bodies_bytes = sum(map(len, bodies))
        tries = 0
        while True:
            try:
                number = self._log.append(meta, bodies, bodies_bytes)
                break
            except OSError as error:
                if error.errno != errno.ENOSPC or isinstance(error, SyncFailed):
                    raise
                tries += 1
                self._make_room_for_log(error, tries)
        if tries:
            log.warning("%s: there was space again, nothing is lost", self._log.directory)
        return number

    def _make_room_for_log(self, error: OSError, tries: int) -> None:
        """Nothing of the frame is synced, and nobody was told: it is written when there is space."""
        if tries == 1:
            log.error("%s: no space left on the disk, what is to be written waits: %s", self._log.directory, error)
            ballast = self._space.ballast
            if ballast is not None and ballast.release():
                log.warning("%s: the ballast is given up", self.path)
                return
        if self._is_closing and tries > FULL_CLOSING_RETRIES:
            raise error
        self._closing.wait(FULL_RETRY_S)
        if self._is_closing:
            time.sleep(FULL_RETRY_S)

    # -- the keeper ----------------------------------------------------------------------------------------------------

    def _step(self, database: Database) -> bool:
        if self._handed.empty() and (database.tombstones or database.ledger.is_sealing) and self._may_maintain():
            self._fold_everything(database)
            self._at_leisure(database, self._purge if database.tombstones else self._seal)
            return True
        is_waiting = self._has_unfolded() or database.wal_bytes or database.ledger.is_waiting or database.tombstones
        try:
            what, _, _ = self._handed.get(timeout=IDLE_S if is_waiting else None)
        except Empty:
            self._at_rest(database)
            return True
        if isinstance(what, Appended):
            self._absorb(database, what)
        elif isinstance(what, Copied):
            self._fold_everything(database)
            self._maintain(database)
        else:
            self._end(database)
        return what is not None

    def _on_copied(self) -> None:
        self._handed.put((Copied(), 0, 0))

    def _has_unfolded(self) -> bool:
        return bool(self._uncommitted) or not self._old.is_empty or not self._young.is_empty

    def _at_rest(self, database: Database) -> None:
        """Nothing has come for a while: the file gets everything, and its own log is copied into it."""
        if self._has_unfolded():
            self._fold_everything(database)
        elif self.is_copying:
            self._finish_copying(database)
        elif database.wal_bytes and self._may_maintain():
            self._at_leisure(database, self._copy_log)

    def _end(self, database: Database) -> None:
        """The file gets everything, so that it can do without the log. Without space the next start does that."""
        if self._failure is not None:
            return
        try:
            self._fold_everything(database, is_last=True)
        except apsw.FullError as error:
            log.warning("%s: no space to fold the log into the file, the next start does it: %s", self.path, error)
            database.roll_back()

    def _absorb(self, database: Database, appended: Appended) -> None:
        for entry in appended.entries:
            what = entry.what
            if isinstance(what, Turn):
                if not what.is_empty():
                    self._young.add(what)
                    if entry.encoded is not None:
                        self._young.brought_count += len(entry.encoded.bodies)
                    self._seals_before = max(self._seals_before, what.seals_before)
                    if what.recounts:  # of rows that must be in the file, all of them and no others
                        self._fold(database)
                else:
                    self._folded_bytes += entry.size_bytes
                self._absorbed_bytes += entry.size_bytes
            else:
                self._tell(entry.ticket, self._answer(database, what))
        if appended.number:
            self._young_upto = appended.number
        self._note_held()
        if self._is_full_of_turns(self._young) or time.monotonic() - self._folded_at >= FOLD_EVERY_S:
            self._rotate(database)
        elif self._seals_before or self._uncommitted_bytes() >= self._batch_bytes:
            self._fold_everything(database)

    def _is_full_of_turns(self, batch: Batch) -> bool:
        return (
            batch.held_bytes >= self._batch_bytes
            or batch.turns_bytes >= BATCH_TURNS * self._batch_bytes
            or batch.brought_count >= BATCH_MESSAGES
        )

    def _uncommitted_bytes(self) -> int:
        return sum(max(batch.turns_bytes, batch.held_bytes) for batch in self._uncommitted)

    def _note_held(self) -> None:
        uncommitted = sum(batch.held_bytes for batch in self._uncommitted)
        self._held_bytes = self._old.held_bytes + self._young.held_bytes + uncommitted

    def _tell(self, ticket: int, rows: Rows) -> None:
        listener = self._listener
        assert listener is not None
        self._post_safely(lambda: listener.on_loaded(ticket, rows))

    def _answer(self, database: Database, query: Query) -> Rows:
        rows: Rows | None = None
        if isinstance(query, LoadNumbers):
            rows = self._numbered(query)
        elif isinstance(query, LoadActive) and query.session_id is None:
            rows = self._active(database, query)
        if rows is None:
            self._fold(database)
            rows = self._with_room(database, lambda: self._answered(database, query))
        return rows

    def _answered(self, database: Database, query: Query) -> Rows:
        self._catch_up(database)
        return database.answer(query)

    def _numbered(self, query: LoadNumbers) -> Rows | None:
        """From the batches alone, if they have all of these; else None."""
        found: list[Found] = []
        for number in sorted(set(query.sequence_numbers)):
            key = row_key(query.entity_id, number)
            row = self._young.fresh.get(key)
            if row is None and key not in self._young.gone:
                row = self._old.fresh.get(key)
            if not isinstance(row, StoredMessage):
                return None
            found.append(copy_of(row))
        return None if self._is_removed(query.entity_id) else fill(query, found)

    def _active(self, database: Database, query: LoadActive) -> Rows | None:
        """From the batches alone, if the file cannot have any of these; else None."""
        entity_id = query.entity_id
        if self._is_removed(entity_id):
            return None
        upto = self._in_file_upto.get(entity_id)
        if upto is None:
            upto = self._in_file_upto[entity_id] = database.last_number(entity_id)
        if query.after < upto:
            return None
        keys = self._keys_of(entity_id)
        return fill(query, self._rows_of(keys, bisect_left(keys, row_key(entity_id, query.after + 1))))

    def _keys_of(self, entity_id: int) -> list[int]:
        """Where the batches have messages of the entity, in order; some of them may be gone again."""
        known = self._keys.get(entity_id)
        if known is not None and known[0] == self._young.added_count:
            return known[1]
        first, last = row_key(entity_id, 0), row_key(entity_id + 1, 0)
        keys = sorted({key for batch in (self._old, self._young) for key in batch.fresh if first <= key < last})
        self._keys[entity_id] = (self._young.added_count, keys)
        return keys

    def _rows_of(self, keys: list[int], at: int) -> Iterator[Found]:
        """Rows as they are: nobody changes an active row that was handed out; the resident window has the same ones."""
        young, old, gone = self._young.fresh, self._old.fresh, self._young.gone
        for index in range(at, len(keys)):
            key = keys[index]
            row = young.get(key)
            if row is None:
                row = None if key in gone else old.get(key)
            if isinstance(row, DamagedRow):
                yield sequence_number_of(key)
            elif row is not None and row.state == ACTIVE:
                yield row

    def _is_removed(self, entity_id: int) -> bool:
        return entity_id in self._young.removed or entity_id in self._old.removed

    # -- folding -------------------------------------------------------------------------------------------------------

    def _rotate(self, database: Database) -> None:
        """The old batch is written and synced; the young one is the old one now."""
        was_behind = self._behind_bytes() > 0
        if self._uncommitted:  # which has a part of a frame: the rest of it has to go along
            self._fold_everything(database)
            return
        old = self._old
        if not old.is_empty:
            old.leave_counts_to(self._young)
            self._retain(old)
            self._commit_folded(database, self._old_upto)
        self._old, self._old_upto = self._young, self._young_upto
        self._old.stand_alone()
        self._young = database.new_batch(self._old)
        self._keys.clear()
        self._folded_at = time.monotonic()
        self._note_held()
        if was_behind:
            self._tell_of_room()

    def _tell_of_room(self) -> None:
        """Senders may be held back for what is in the file now: nothing else would wake them up."""
        listener = self._listener
        if listener is not None:
            self._post_safely(listener.on_copied)

    def _fold(self, database: Database) -> None:
        """Both batches go into the open transaction."""
        for batch in (self._old, self._young):
            if not batch.is_empty:
                self._retain(batch)
        self._old = database.new_batch()
        self._young = database.new_batch(self._old)
        self._keys.clear()
        self._with_room(database, lambda: self._catch_up(database))

    def _retain(self, batch: Batch) -> None:
        self._uncommitted.append(batch)
        upto = self._in_file_upto
        for key in batch.fresh:
            entity_id = entity_id_of(key)
            if entity_id in upto and sequence_number_of(key) > upto[entity_id]:
                upto[entity_id] = sequence_number_of(key)

    def _fold_everything(self, database: Database, is_last: bool = False) -> None:
        """And commits it. Only between two frames."""
        was_behind = self._behind_bytes() > 0
        self._fold(database)
        if self._uncommitted or is_last:
            self._old_upto = self._young_upto
            self._commit_folded(database, self._young_upto, is_last)
        if was_behind and not is_last:
            self._tell_of_room()

    def _commit_folded(self, database: Database, upto: int, is_last: bool = False) -> None:
        self._with_room(database, lambda: self._commit_once(database, upto, is_last))
        for batch in self._uncommitted:
            self._folded_bytes += batch.turns_bytes
            self._folded_messages += batch.brought_count
        self._uncommitted.clear()
        self._written_count = 0
        self._note_held()
        self._folded_at = time.monotonic()
        self._log.release(upto)
        self._begin_copying(database)
        self._maintain(database)
        if self._seals_before and upto == self._young_upto:
            database.ledger.seal(self._seals_before)
            self._seals_before = 0
        if database.ledger.is_sealing and self._may_maintain():
            self._at_leisure(database, self._seal)

    def _commit_once(self, database: Database, upto: int, is_last: bool) -> None:
        self._catch_up(database)
        if not database.connection.in_transaction:
            database.begin()
        if database.tombstones:
            database.purge(PURGE_ROWS)
        database.put_folded(upto, not is_last)
        database.commit()

    def _catch_up(self, database: Database) -> None:
        """What belongs into the open transaction is in it."""
        if not database.connection.in_transaction:
            self._written_count = 0
        while self._written_count < len(self._uncommitted):
            if not database.connection.in_transaction:
                database.begin()
            database.write(self._uncommitted[self._written_count])
            self._written_count += 1

    def _with_room(self, database: Database, work: Callable[[], T]) -> T:
        """Work that finds no space is rolled back, and done again when there is some."""
        tries = 0
        while True:
            try:
                done = work()
                break
            except apsw.FullError as error:
                database.roll_back()
                tries += 1
                self._make_room(database, error, tries)
        if self._is_full:
            self._is_full = False
            log.warning("%s: there was space again, nothing is lost", self.path)
        return done
