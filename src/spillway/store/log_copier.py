"""Copies SQLite's log into the file while the writer goes on: a copy of 64 MB takes as long as ten commits.

A copy on a thread and a connection of its own takes in what was committed when it began. The little that came since is
copied by the writer, which is then alone, so that the log is written from its beginning again.
"""

import threading
from collections.abc import Callable
from pathlib import Path

import apsw

from spillway.store.file import close_untouched, open_beside


class LogCopier:
    """Used by one thread, the writer's; `is_begun` by any."""

    def __init__(self, path: Path, synchronous: str, on_done: Callable[[], None]) -> None:
        """`on_done` is called on the copier's own thread."""
        self.path = path
        self._on_done = on_done
        self._synchronous = synchronous
        self._connection: apsw.Connection | None = None
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def is_begun(self) -> bool:
        """A copy was begun, and `finish` was not called since."""
        return self._thread is not None

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def begin(self) -> None:
        assert self._thread is None, "one copy at a time"
        self._thread = threading.Thread(target=self._copy, name=f"log {self.path.parent.name}", daemon=True)
        self._thread.start()

    def _copy(self) -> None:
        try:
            if self._connection is None:
                self._connection = open_beside(self.path, self._synchronous)
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except BaseException as error:
            self._error = error
        self._on_done()

    def finish(self) -> None:
        """Wait for it. What went wrong is the writer's to judge: raised here, once."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error = self._error
        self._error = None
        if error is not None:
            raise error

    def close(self) -> None:
        """Whatever became of the copy: who closes has the log, and copies it or leaves it."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._connection is not None:
            close_untouched(self._connection)
            self._connection = None
