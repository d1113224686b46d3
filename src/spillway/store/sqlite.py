"""The journal on SQLite: one writer thread, group commit without a timer.

Whatever was submitted while a commit was under way is the next commit. A query is answered inside the transaction of
the turns before it, at its place among them, and told once they are durable. A failed write or sync ends it: the
listener is told once, and nothing more is written (the kernel may have dropped the pages; the next sync would lie).
"""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final, TypeAlias

from spillway.model.records import Catalogue, Query, Rows, Turn
from spillway.store.database import Database
from spillway.store.day_files import DIRECTORY_NAME, DayFiles
from spillway.store.directory import DataDirectory
from spillway.store.errors import explain
from spillway.store.journal import Listener
from spillway.store.wal import log_of

WAL_BYTES_MAX: Final = 64 * 1024 * 1024
IDLE_S: Final = 0.5  # without work for so long, the log is copied into the file
FREE_BYTES_EVERY_S: Final = 1.0
BURY_ROWS: Final = 500  # messages of a removed entity deleted along with a commit
BURY_ROWS_IDLE: Final = 5_000

Item: TypeAlias = tuple[Turn | Query | None, int, int]  # None: close; ticket; size in bytes
Told: TypeAlias = tuple[int, Rows | None]  # ticket, and the answer if it was a query


def room_bytes(free_bytes: int, wal_bytes: int, free_page_bytes: int, wal_bytes_max: int) -> int:
    """Pages inside the file are reached through the log, so they count only while the log has room to grow.

    Half as much again as its usual size: the commit that makes it too long is still written to it.
    """
    if free_bytes + wal_bytes < wal_bytes_max * 3 // 2:
        return free_bytes
    return free_bytes + free_page_bytes


class SqliteJournal:
    """`synchronous` other than FULL, `vfs` and `wal_bytes_max` are for tests."""

    def __init__(
        self,
        path: Path,
        *,
        directory: DataDirectory | None = None,
        synchronous: str = "FULL",
        vfs: str | None = None,
        wal_bytes_max: int = WAL_BYTES_MAX,
    ) -> None:
        self.path = path
        self._directory = directory
        if directory is not None:
            directory.hold()  # until close
        home = path.parent if directory is None else directory.path
        self.days = DayFiles(home / DIRECTORY_NAME, path.parent.name)
        self._synchronous = synchronous
        self._vfs = vfs
        self._wal_bytes_max = wal_bytes_max
        self._database: Database | None = None
        self._inbox: SimpleQueue[Item] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._listener: Listener | None = None
        self._post: Callable[[Callable[[], None]], None] | None = None
        self._failure: BaseException | None = None
        self._is_closing = False
        # Each is written by one thread only, so that their difference is exact without a mutex.
        self._submitted_bytes = 0
        self._durable_bytes = 0
        self._free_page_bytes = 0
        self._free_page_bytes_at = 0.0
        self._free_bytes = 0
        self._free_bytes_at = -FREE_BYTES_EVERY_S

    # -- the seam, on the caller's thread --------------------------------------------------------------------------

    def recover(self) -> Catalogue:
        assert self._database is None, "recover is called once"
        self._database = Database(self.path, self._synchronous, self._vfs, self.days)
        catalogue = self._database.catalogue()
        self._free_page_bytes = self._database.free_page_bytes()
        return catalogue

    def start(self, listener: Listener, post: Callable[[Callable[[], None]], None]) -> None:
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
    def free_bytes(self) -> int:
        now = time.monotonic()
        if now - self._free_bytes_at >= FREE_BYTES_EVERY_S:
            self._free_bytes_at = now
            self._free_bytes = self._read_free_bytes()
        return self._free_bytes

    def _read_free_bytes(self) -> int:
        found = os.statvfs(self.path.parent)
        try:
            wal_bytes = log_of(self.path).stat().st_size
        except FileNotFoundError:
            wal_bytes = 0
        return room_bytes(found.f_bavail * found.f_frsize, wal_bytes, self._free_page_bytes, self._wal_bytes_max)

    def close(self) -> None:
        """Raises if what was submitted could not be made durable; says nothing of a failure that was told before."""
        if self._is_closing:
            return
        failure_told = self._failure
        self._is_closing = True
        try:
            if self._thread is not None:
                self._inbox.put((None, 0, 0))
                self._thread.join()
            if self._failure is None and self._database is not None:
                try:
                    self._database.close()
                except Exception as error:
                    self._failure = explain(error, self.path)
            if self._failure is not None and self._database is not None:
                self._database.abandon()
        finally:
            if self._directory is not None:
                self._directory.release()
        if self._failure is not None and failure_told is None:
            raise self._failure

    # -- the writer thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        assert self._database is not None
        try:
            while self._step(self._database):
                pass
        except BaseException as error:
            self._fail(error)

    def _step(self, database: Database) -> bool:
        """One group commit, or some housekeeping while nobody waits. False: it was the last."""
        if self._inbox.empty():
            if database.graveyard:
                self._bury(database)
                return True
            if database.ledger.is_sealing:
                database.ledger.step()
                return True
        try:
            item = self._inbox.get(timeout=IDLE_S if database.wal_bytes or database.ledger.is_waiting else None)
        except Empty:
            database.checkpoint()
            self._free_page_bytes = database.free_page_bytes()
            return True
        items = [item]
        try:
            while item[0] is not None:
                item = self._inbox.get_nowait()
                items.append(item)
        except Empty:
            pass
        is_last = item[0] is None
        self._perform(database, items[:-1] if is_last else items)
        return not is_last

    def _perform(self, database: Database, items: list[Item]) -> None:
        """All of these turns in one transaction, then tell, in order."""
        told: list[Told] = []
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
                told.append((ticket, None))
            elif what is not None:
                if not batch.is_empty:
                    database.write(batch)
                    batch = database.new_batch()
                told.append((ticket, database.answer(what)))
        if is_open:
            if not batch.is_empty:
                database.write(batch)
            if database.graveyard:
                database.bury(BURY_ROWS)
            database.commit()
        self._durable_bytes += size_bytes
        if told:
            self._tell(told)
        self._keep_house(database)
        if seals_before:
            database.ledger.seal(seals_before)
        if database.ledger.is_sealing:
            database.ledger.step()

    def _keep_house(self, database: Database) -> None:
        if database.wal_bytes >= self._wal_bytes_max:
            database.checkpoint()
        now = time.monotonic()
        if now - self._free_page_bytes_at >= FREE_BYTES_EVERY_S:
            self._free_page_bytes_at = now
            self._free_page_bytes = database.free_page_bytes()

    def _bury(self, database: Database) -> None:
        database.begin()
        database.bury(BURY_ROWS_IDLE)
        database.commit()
        self._keep_house(database)

    # -- telling, on the listener's thread -------------------------------------------------------------------------

    def _tell(self, told: list[Told]) -> None:
        """One wake-up of the listener's thread for a whole commit."""
        self._post_safely(lambda: self._say(told))

    def _say(self, told: list[Told]) -> None:
        assert self._listener is not None
        last = len(told) - 1
        for index, (ticket, rows) in enumerate(told):
            if rows is not None:
                self._listener.on_loaded(ticket, rows)
            elif index == last or told[index + 1][1] is not None:  # a later turn's ticket speaks for it
                self._listener.on_durable(ticket)

    def _fail(self, error: BaseException) -> None:
        explained = explain(error, self.path)
        if explained is not error:
            explained.__cause__ = error
        self._failure = explained
        listener = self._listener
        assert listener is not None
        self._post_safely(lambda: listener.on_failed(explained))

    def _post_safely(self, say: Callable[[], None]) -> None:
        assert self._post is not None
        try:
            self._post(say)
        except RuntimeError:
            # The listener's loop is closed already: nobody is left to tell, and what was committed stays committed.
            if not self._is_closing:
                raise


def open_sqlite_journal(directory: DataDirectory, namespace: str) -> SqliteJournal:
    """The journal of a namespace. The directory is given up when the last of its journals is closed."""
    return SqliteJournal(directory.journal_path(namespace), directory=directory)
