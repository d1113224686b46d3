"""The journal on SQLite: one writer thread, group commit without a timer.

Whatever was submitted while a commit was under way is the next commit. A query is answered inside the transaction of
the turns before it, at its place among them, and told once they are durable. A failed write or sync ends it: the
listener is told once, and nothing more is written (the kernel may have dropped the pages; the next sync would lie).

One failure is another thing: a write for which the disk has no space. SQLite undoes the transaction, nothing was
synced and nobody was told, so the same turns are written again as soon as there is space; see docs/disk.md.
"""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final, TypeAlias

import apsw

from spillway.model.records import Catalogue, Query, Rows, Turn
from spillway.store.ballast import NAME as BALLAST_NAME
from spillway.store.ballast import Ballast
from spillway.store.database import Database
from spillway.store.day_files import DIRECTORY_NAME, DayFiles
from spillway.store.directory import DataDirectory
from spillway.store.errors import StoreFull, explain
from spillway.store.journal import JournalListener
from spillway.store.log_copier import LogCopier
from spillway.store.replay import LogReplay, log_directory
from spillway.store.segments import SegmentLog
from spillway.store.space import GROWTH_BYTES_MAX, Space

log = logging.getLogger(__name__)

WAL_BYTES_MAX: Final = 64 * 1024 * 1024
WAL_TIMES_MAX: Final = 2  # so many times as long while it is copied; then the copy is waited for
IDLE_S: Final = 0.5  # without work for so long, the log is copied into the file
FULL_RETRY_S: Final = 0.25  # until a write for which there was no space is tried again
MAINTENANCE_PAUSE_S: Final = 2.0
FULL_CLOSING_RETRIES: Final = 4  # then a journal that is being closed gives up
PURGE_ROWS: Final = 500  # messages of a removed entity deleted along with a commit
PURGE_ROWS_IDLE: Final = 5_000
ROWS_FEW: Final = 32  # of a commit: somebody waits for it, and nobody gains by more coming along


class Copied:
    """The copier has done: the writer copies the rest."""


Item: TypeAlias = tuple[Turn | Query | Copied | None, int, int]  # None: close; ticket; size in bytes
Ack: TypeAlias = tuple[int, Rows | None]  # ticket, and the answer if it was a query


class SqliteJournal:
    """`on_write` is told before a commit is written whether it has few rows, on the writer's thread. `synchronous`
    other than FULL, `vfs` and `wal_bytes_max` are for tests."""

    def __init__(
        self,
        path: Path,
        *,
        directory: DataDirectory | None = None,
        on_write: Callable[[bool], None] = lambda are_few: None,
        synchronous: str = "FULL",
        vfs: str | None = None,
        wal_bytes_max: int = WAL_BYTES_MAX,
    ) -> None:
        self.path = path
        self._directory = directory
        if directory is not None:
            directory.acquire()  # until close
        home = path.parent if directory is None else directory.path
        self.days = DayFiles(home / DIRECTORY_NAME, path.parent.name)
        self._on_write = on_write
        self._synchronous = synchronous
        self._vfs = vfs
        ballast = None if directory is None else Ballast(path.with_name(BALLAST_NAME))
        self._space = Space(path, ballast, wal_bytes_max)
        self._is_full = False  # the last write found no space
        self._maintenance_paused_until = 0.0  # what nobody waits for is left while there is no space
        self._database: Database | None = None
        self._copier: LogCopier | None = None  # where there is none, the writer copies the log by itself
        self._inbox: SimpleQueue[Item] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._listener: JournalListener | None = None
        self._post: Callable[[Callable[[], None]], None] | None = None
        self._failure: BaseException | None = None
        self._failing = threading.Lock()
        self._is_closing = False
        self._closing = threading.Event()
        # Each is written by one thread only, so that their difference is exact without a mutex.
        self._submitted_bytes = 0
        self._durable_bytes = 0

    # -- the seam, on the caller's thread --------------------------------------------------------------------------

    def recover(self) -> Catalogue:
        assert self._database is None, "recover is called once"
        self._database = self._open()
        catalogue = self._database.catalogue()
        if self._fold_log(self._database):
            catalogue = self._database.catalogue()
        self._note_space(self._database)
        catalogue.was_interrupted = True  # it may have been: nothing in the file says how the last life ended
        return catalogue

    def _fold_log(self, database: Database) -> bool:
        """What a journal with a log has left. Whether there was any."""
        segments = SegmentLog(log_directory(self.path))
        segments.open()
        if segments.is_empty and not database.is_logged:
            return False
        replay = LogReplay(database, segments)
        replay.run()
        if replay.seals_before:
            database.ledger.seal(replay.seals_before)
        database.begin()
        database.put_folded(database.folded_upto, False)
        database.commit()
        segments.remove()
        return True

    def _open(self) -> Database:
        """Opens the file, on a full disk too: with the space of the ballast, or with the index of the log in memory."""
        ballast = self._space.ballast
        try:
            database = Database(self.path, self._synchronous, self._vfs, self.days)
            if self._vfs is None:
                self._copier = LogCopier(self.path, self._synchronous, self._on_copied)
            return database
        except StoreFull as error:
            log.warning("%s", error)
        if ballast is not None and ballast.release():
            log.warning("%s: the ballast is given up for the start", self.path)
            try:
                return Database(self.path, self._synchronous, self._vfs, self.days)
            except StoreFull as error:
                log.warning("%s", error)
        return Database(self.path, self._synchronous, self._vfs, self.days, has_index_in_memory=True)

    def start(self, listener: JournalListener, post: Callable[[Callable[[], None]], None]) -> None:
        assert self._database is not None, "recover comes before start"
        assert self._thread is None, "start is called once"
        self._listener = listener
        self._post = post
        self._thread = threading.Thread(target=self._run, name=f"journal {self.path.parent.name}", daemon=True)
        self._thread.start()

    def submit(self, turn: Turn, ticket: int) -> None:
        self._submitted_bytes += turn.size_bytes
        self._put((turn, ticket, turn.size_bytes))

    def load(self, query: Query, ticket: int) -> None:
        self._put((query, ticket, 0))

    def _put(self, item: Item) -> None:
        assert not self._is_closing, "nothing is submitted after close"
        if self._failure is None:
            self._inbox.put(item)

    @property
    def pending_bytes(self) -> int:
        return self._submitted_bytes - self._durable_bytes

    @property
    def is_copying(self) -> bool:
        return self._copier is not None and self._copier.is_begun

    @property
    def set_apart_count(self) -> int:
        return 0 if self._database is None else self._database.apart.count

    @property
    def free_bytes(self) -> int:
        return self._space.free_bytes(self._submitted_bytes, self._durable_bytes)

    def close(self) -> None:
        """Raises if what was submitted could not be made durable; says nothing of a failure that was told before."""
        if self._is_closing:
            return
        failure_told = self._failure
        self._is_closing = True
        self._closing.set()
        try:
            self._stop_threads()
            if self._copier is not None:
                self._copier.close()
            if self._failure is None and self._database is not None:
                self._close_database(self._database)
            if self._failure is not None and self._database is not None:
                self._database.abandon()
        finally:
            if self._directory is not None:
                self._directory.release()
        if self._failure is not None and failure_told is None:
            raise self._failure

    def _stop_threads(self) -> None:
        if self._thread is not None:
            self._inbox.put((None, 0, 0))
            self._thread.join()

    def _close_database(self, database: Database) -> None:
        ballast = self._space.ballast
        try:
            try:
                database.close()
            except apsw.FullError:
                if ballast is None or not ballast.release():
                    raise
                database.close()
            if ballast is not None:
                ballast.shrink()
        except apsw.FullError as error:
            log.warning("%s: no space to copy the log into the file, the next start does it: %s", self.path, error)
            database.close_with_log()
        except Exception as error:
            self._failure = explain(error, self.path)

    # -- the writer thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        assert self._database is not None
        try:
            while self._step(self._database):
                pass
        except BaseException as error:
            self._fail(error)

    def _step(self, database: Database) -> bool:
        """One group commit, or some maintenance while nobody waits. False: it was the last."""
        if self._inbox.empty() and self._may_maintain():
            if database.tombstones:
                self._at_leisure(database, self._purge)
                return True
            if database.ledger.is_sealing:
                self._at_leisure(database, self._seal)
                return True
        is_waiting = database.wal_bytes or database.ledger.is_waiting or database.tombstones
        try:
            item = self._inbox.get(timeout=IDLE_S if is_waiting else None)
        except Empty:
            if self.is_copying:
                self._finish_copying(database)
            elif database.wal_bytes and self._may_maintain():
                self._at_leisure(database, self._copy_log)
            return True
        items = [item]
        try:
            while item[0] is not None:
                item = self._inbox.get_nowait()
                items.append(item)
        except Empty:
            pass
        is_last = item[0] is None
        items = [each for each in items if isinstance(each[0], (Turn, Query))]
        if items:
            self._commit(database, items)
        else:
            self._maintain(database)
        return not is_last

    def _commit(self, database: Database, items: list[Item]) -> None:
        """All of these turns in one transaction, then tell, in order."""
        tries = 0
        while True:
            try:
                acks, size_bytes, seals_before = self._write(database, items)
                break
            except apsw.FullError as error:
                database.roll_back()
                tries += 1
                self._make_room(database, error, tries)
        if self._is_full:
            self._is_full = False
            log.warning("%s: there was space again, nothing is lost", self.path)
            self._note_space(database)
        self._durable_bytes += size_bytes
        self._begin_copying(database)  # who hears that this is durable knows of it
        if acks:
            self._post_acks(acks)
        self._maintain(database)
        if seals_before:
            database.ledger.seal(seals_before)
        if database.ledger.is_sealing and self._may_maintain():
            self._at_leisure(database, self._seal)

    def _make_room(self, database: Database, error: apsw.FullError, tries: int) -> None:
        """Nothing of the turns is on the disk, and nobody was told. Give up what there is to give up, or wait."""
        if not self._is_full:
            self._is_full = True
            log.error("%s: no space left on the disk, what is to be written waits: %s", self.path, error)
        ballast = self._space.ballast
        if ballast is not None and ballast.release():
            log.warning("%s: the ballast is given up", self.path)
            return
        try:
            if self._copier is not None:
                self._copier.finish()
            database.checkpoint()  # the log is written from its beginning again, where it has its space already
        except apsw.FullError:
            log.debug("%s: the log cannot be copied into the file either", self.path)
        if tries == 1:
            return
        if self._is_closing and tries > FULL_CLOSING_RETRIES:
            raise error
        self._closing.wait(FULL_RETRY_S)
        if self._is_closing:
            time.sleep(FULL_RETRY_S)

    def _write(self, database: Database, items: list[Item]) -> tuple[list[Ack], int, int]:
        acks: list[Ack] = []
        size_bytes = 0
        seals_before = 0
        is_open = False
        batch = database.new_batch()
        for what, ticket, item_bytes in items:
            if isinstance(what, Turn):
                if not is_open and not what.is_empty():
                    database.begin()
                    is_open = True
                batch.add(what)
                size_bytes += item_bytes
                seals_before = max(seals_before, what.seals_before)
                acks.append((ticket, None))
            elif isinstance(what, Query):
                if not batch.is_empty:
                    database.write(batch)
                    batch = database.new_batch()
                acks.append((ticket, database.answer(what)))
        if is_open:
            if not batch.is_empty:
                self._on_write(len(batch.fresh) + len(batch.gone) <= ROWS_FEW)
                database.write(batch)
            if database.tombstones:
                database.purge(PURGE_ROWS)
            database.commit()
        return acks, size_bytes, seals_before

    # -- maintenance -------------------------------------------------------------------------------------------------

    def _may_maintain(self) -> bool:
        return time.monotonic() >= self._maintenance_paused_until

    def _at_leisure(self, database: Database, work: Callable[[Database], None]) -> None:
        """Work that nobody waits for: without space it is left for a while."""
        try:
            work(database)
        except apsw.FullError as error:
            database.roll_back()
            self._maintenance_paused_until = time.monotonic() + MAINTENANCE_PAUSE_S
            log.debug("%s: left for later: %s", self.path, error)

    def _maintain(self, database: Database) -> None:
        copier = self._copier
        if copier is None:
            if self._is_log_long(database) and self._may_maintain():
                self._at_leisure(database, self._copy_log)
        elif copier.is_begun:
            is_too_long = database.wal_bytes >= WAL_TIMES_MAX * self._space.log_bytes_max
            if is_too_long or not copier.is_running:
                self._finish_copying(database)

    def _finish_copying(self, database: Database) -> None:
        listener = self._listener
        assert listener is not None
        self._at_leisure(database, self._copy_log)
        self._post_safely(listener.on_copied)

    def _begin_copying(self, database: Database) -> None:
        space = self._space
        if space.is_time_to_note(self._durable_bytes):
            self._note_space(database)
        copier = self._copier
        if copier is not None and not copier.is_begun and self._is_log_long(database) and self._may_maintain():
            copier.begin()

    def _is_log_long(self, database: Database) -> bool:
        return database.wal_bytes >= self._space.log_bytes_max or self._space.growth_bytes >= GROWTH_BYTES_MAX

    def _on_copied(self) -> None:
        """Called on the copier's thread."""
        self._inbox.put((Copied(), 0, 0))

    def _note_space(self, database: Database) -> None:
        self._space.note(database.free_page_bytes(), database.growth_bytes(), self._durable_bytes)

    def _copy_log(self, database: Database) -> None:
        """Copies the whole log, or what the copier has left of it."""
        if self._copier is not None:
            self._copier.finish()
        database.checkpoint()
        self._note_space(database)

    def _seal(self, database: Database) -> None:
        database.ledger.step()

    def _purge(self, database: Database) -> None:
        database.begin()
        database.purge(PURGE_ROWS_IDLE)
        database.commit()
        self._begin_copying(database)
        self._maintain(database)

    # -- telling, on the listener's thread -------------------------------------------------------------------------

    def _post_acks(self, acks: list[Ack]) -> None:
        """One wake-up of the listener's thread for a whole commit."""
        self._post_safely(lambda: self._acknowledge(acks))

    def _acknowledge(self, acks: list[Ack]) -> None:
        assert self._listener is not None
        last = len(acks) - 1
        for index, (ticket, rows) in enumerate(acks):
            if rows is not None:
                self._listener.on_loaded(ticket, rows)
            elif index == last or acks[index + 1][1] is not None:  # a later turn's ticket speaks for it
                self._listener.on_durable(ticket)

    def _fail(self, error: BaseException) -> None:
        """The first failure is told, once: where there are two threads, the second one's is of the same disk."""
        explained = explain(error, self.path)
        if explained is not error:
            explained.__cause__ = error
        with self._failing:
            if self._failure is not None:
                return
            self._failure = explained
        listener = self._listener
        assert listener is not None
        self._post_safely(lambda: listener.on_failed(explained))

    def _post_safely(self, callback: Callable[[], None]) -> None:
        assert self._post is not None
        try:
            self._post(callback)
        except RuntimeError:
            # The listener's loop is closed already: nobody is left to tell, and what was committed stays committed.
            if not self._is_closing:
                raise


def open_sqlite_journal(directory: DataDirectory, namespace: str) -> SqliteJournal:
    """The journal of a namespace. The directory is given up when the last of its journals is closed."""
    return SqliteJournal(directory.journal_path(namespace), directory=directory)
