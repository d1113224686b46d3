"""A data directory: owned by one process at a time, readable by its user alone.

DIR/lock holds the process id of the owner; DIR/NAMESPACE/journal.db is what a namespace remembers. The lock itself is
the kernel's (flock), so that a killed process leaves none behind.
"""

import contextlib
import fcntl
import logging
import os
from pathlib import Path
from typing import Final

from spillway.store.errors import StoreError, StoreInUse
from spillway.store.own_files import NotOurFile, open_own, open_to_others

log = logging.getLogger(__name__)

LOCK_NAME: Final = "lock"
JOURNAL_NAME: Final = "journal.db"


def sync_directory(path: Path) -> None:
    """A new or renamed file survives a power cut only when its directory was synced too."""
    file = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def make_directory(path: Path) -> None:
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)
        sync_directory(path.parent)


class DataDirectory:
    """Locked from construction to `close`. Raises `StoreInUse` if another process has it."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        try:
            make_directory(self.path)
            warning = open_to_others(self.path)
            self._lock = open_own(self.path / LOCK_NAME, os.O_CREAT | os.O_RDWR)
        except OSError as error:
            where = f"{error.filename} " if isinstance(error, NotOurFile) else ""
            raise StoreError(f"the data directory {self.path} cannot be used: {where}{error.strerror}") from error
        if warning:
            log.warning("%s", warning)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.pread(self._lock, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._lock)
            raise StoreInUse(
                f"the data directory {self.path} is in use by process {owner}: stop it first, or use another directory"
            ) from error
        self._holders = 0
        os.ftruncate(self._lock, 0)
        with contextlib.suppress(OSError):  # on a full disk others do not learn who has it: it is locked all the same
            os.pwrite(self._lock, f"{os.getpid()}\n".encode("ascii"), 0)

    def journal_path(self, namespace: str) -> Path:
        """Where the journal of a namespace is; its directory is made if need be."""
        assert namespace not in ("", ".", "..", LOCK_NAME), namespace
        assert "/" not in namespace, namespace
        directory = self.path / namespace
        try:
            make_directory(directory)
        except OSError as error:
            raise StoreError(f"the directory {directory} cannot be made: {error.strerror}") from error
        return directory / JOURNAL_NAME

    def acquire(self) -> None:
        """One more journal is open here."""
        self._holders += 1

    def release(self) -> None:
        """The last journal that is closed gives the directory up."""
        self._holders -= 1
        if self._holders == 0:
            self.close()

    def close(self) -> None:
        """The file stays: removing it would let two processes lock two files of one name."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
