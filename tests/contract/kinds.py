"""The journals that the contract is for. Tiny batches and segments are passed all the time; large ones never."""

import shutil
from pathlib import Path

from spillway.store.journal import Journal
from spillway.store.logged import LoggedJournal
from spillway.store.memory import MemoryJournal
from spillway.store.sqlite import SqliteJournal

KINDS = ["memory", "sqlite", "logged", "logged-tiny"]
TINY_SEGMENT_BYTES = 16 * 1024
TINY_BATCH_BYTES = 1500


def open_kind(kind: str, path: Path) -> Journal:
    if kind == "memory":
        return MemoryJournal()
    if kind == "sqlite":
        return SqliteJournal(path)
    if kind == "logged":
        return LoggedJournal(path)
    assert kind == "logged-tiny", kind
    return LoggedJournal(path, segment_bytes=TINY_SEGMENT_BYTES, batch_bytes=TINY_BATCH_BYTES)


def as_after_a_kill(path: Path, to: Path) -> Path:
    """What another process would find if this one were killed now: the files, as they are, in another directory."""
    shutil.copytree(path.parent, to, ignore=shutil.ignore_patterns("*-shm", "crash-*"))
    return to / path.name
