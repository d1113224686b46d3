"""Errors of a store: why it cannot be used. Each text names the file or directory and says what to do next."""

from pathlib import Path
from typing import Final

import apsw


class StoreError(Exception):
    """The store cannot be used, or can no longer be used. The process must end; nothing is retried."""


class StoreInUse(StoreError):
    """Another process has the data directory."""


class StoreTooOld(StoreError):
    """Written by an earlier version in a format that this one no longer reads."""


class StoreTooNew(StoreError):
    """A later version of Spillway wrote it."""


class StoreDamaged(StoreError):
    """The file's structure does not hold. A single damaged message is not this: it is reported in `Rows.corrupt`."""

    def __init__(self, path: Path, detail: str) -> None:
        super().__init__(
            f"{path} is damaged: {detail}. Restore a copy of {path.parent}, or save what can still be read with: "
            f"sqlite3 '{path}' .recover | sqlite3 '{path}.recovered'"
        )
        self.path = path


class LogDamaged(StoreError):
    """What was acknowledged last cannot be read back. A message with damaged bytes is not this: it is set apart."""

    def __init__(self, path: Path, detail: str) -> None:
        log = path.parent if path.is_file() else path
        super().__init__(
            f"{path} is damaged: {detail}. Restore a copy of {log.parent}. To go on without what only the log has, "
            f"which was acknowledged, move the files out of {log} and leave the directory empty"
        )
        self.path = path


class StoreWriteFailed(StoreError):
    """A write or sync failed. What was not yet acknowledged may be lost; a restart reads what the disk really has."""

    def __init__(self, path: Path, detail: str) -> None:
        super().__init__(
            f"writing {path} failed: {detail}. Nothing of that batch was acknowledged. "
            f"Check the disk and its free space, then start again"
        )
        self.path = path


class StoreReadFailed(StoreError):
    """The disk could not be read. That says nothing about what is on it: no message is called damaged for it."""

    def __init__(self, path: Path, detail: str) -> None:
        super().__init__(
            f"reading {path} failed: {detail}. The disk reports an error; what is on it may be whole. "
            f"Check the disk and its cables, then start again"
        )
        self.path = path


class StoreFull(StoreError):
    """There is no space left on the disk, not even for what a start or a deletion needs."""

    def __init__(self, path: Path, detail: str) -> None:
        super().__init__(f"there is no space left on the disk of {path} ({detail}). Free some, then start again")
        self.path = path


# SQLite says which call failed: these were reads. A read that came short is the end of a file, and damage if anything.
_READS: Final = frozenset(
    (
        apsw.SQLITE_IOERR_READ,
        apsw.SQLITE_IOERR_FSTAT,
        apsw.SQLITE_IOERR_ACCESS,
        apsw.SQLITE_IOERR_MMAP,
        apsw.SQLITE_IOERR_SHMMAP,
        apsw.SQLITE_IOERR_CORRUPTFS,
    )
)


def is_failed_read(error: BaseException) -> bool:
    return isinstance(error, apsw.IOError) and getattr(error, "extendedresult", 0) in _READS


def is_damage(error: BaseException) -> bool:
    """SQLite says so, or a flipped byte made text of what never was any."""
    return isinstance(error, apsw.CorruptError | apsw.NotADBError | UnicodeDecodeError)


def explain(error: BaseException, path: Path) -> BaseException:
    """An error of SQLite or the system at run time, in words for whoever runs the broker; another one as it is."""
    if is_damage(error):
        return StoreDamaged(path, str(error))
    if is_failed_read(error):
        return StoreReadFailed(path, f"{type(error).__name__}: {error}")
    if isinstance(error, apsw.FullError):
        return StoreFull(path, str(error))
    if isinstance(error, apsw.Error | OSError):
        return StoreWriteFailed(path, f"{type(error).__name__}: {error}")
    return error
