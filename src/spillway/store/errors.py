"""Why a store cannot be used. Each text names the file or directory and says what to do next."""

from pathlib import Path

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


class StoreWriteFailed(StoreError):
    """A write or sync failed. What was not yet acknowledged may be lost; a restart reads what the disk really has."""

    def __init__(self, path: Path, detail: str) -> None:
        super().__init__(
            f"writing {path} failed: {detail}. Nothing of that batch was acknowledged. "
            f"Check the disk and its free space, then start again"
        )
        self.path = path


def is_damage(error: BaseException) -> bool:
    """SQLite says so, or a flipped byte made text of what never was any."""
    return isinstance(error, apsw.CorruptError | apsw.NotADBError | UnicodeDecodeError)


def explain(error: BaseException, path: Path) -> BaseException:
    """An error of SQLite or the system at run time, in words for whoever runs the broker; another one as it is."""
    if is_damage(error):
        return StoreDamaged(path, str(error))
    if isinstance(error, apsw.Error | OSError):
        return StoreWriteFailed(path, f"{type(error).__name__}: {error}")
    return error
