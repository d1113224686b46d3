"""The file of a journal: how it is made, opened and checked before anybody trusts it."""

import logging
import os
import time
from functools import partial
from pathlib import Path
from typing import Final

import apsw

from spillway.store.bodies import read_body
from spillway.store.carry_over import CARRIED_OVER, carry_over, former_schema
from spillway.store.catalogue import meta_checksum
from spillway.store.directory import sync_directory
from spillway.store.errors import (
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreReadFailed,
    StoreTooNew,
    StoreTooOld,
    is_damage,
    is_failed_read,
)
from spillway.store.own_files import NotOurFile, tighten_own
from spillway.store.rows import DamagedRow, stored_of
from spillway.store.statements import SCHEMA, STATEMENTS
from spillway.store.wal import damage_in_log, log_of

log = logging.getLogger(__name__)

# 1 knew no message sessions, 2 no shared bodies, 3 no hidden messages, forwarding, ledger and ids; 4 had the rules of a
# subscription in its settings, and 5 no log: these two are carried over
FORMAT: Final = 6
APPLICATION_ID: Final = 0x5370_5779  # "SpWy"
# 7 rows of 1 KB fill a page of 8 KB with little left over: a fifth less CPU than 4 KB pages at large batches, and no
# difference at one row a commit, where the sync decides.
PAGE_BYTES: Final = 8192
CACHE_KIB: Final = 16_384
PRIVATE: Final = 0o600
FULL_BYTES: Final = 1024 * 1024
CHECK_MS_MAX: Final = 100  # of the structural check at start: about 100 MB that the page cache holds


def open_file(path: Path, synchronous: str, vfs: str | None, has_index_in_memory: bool = False) -> apsw.Connection:
    """The file, made if it is not there, found sound as far as can be told in bounded time, its log folded in.

    `has_index_in_memory`: on a full disk SQLite has no space for the file it keeps the index of its log in. Without
    that file no other process can open the journal meanwhile.
    """
    assert synchronous in ("FULL", "NORMAL", "OFF"), synchronous  # all but FULL are negative controls
    connection: apsw.Connection | None = None
    try:
        if not path.exists():
            _create(path, vfs)
        else:
            _tighten(path)
        # SQLite counts a link anywhere in the name: those above the file itself are the operator's.
        name = str(path.parent.resolve() / path.name)
        connection = apsw.Connection(name, apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOFOLLOW, vfs=vfs)
        if has_index_in_memory:
            connection.pragma("locking_mode", "exclusive")
        connection.pragma("synchronous", synchronous)
        connection.pragma("wal_autocheckpoint", 0)
        connection.pragma("cache_size", -CACHE_KIB)
        # Else SQLite compiles a query again whenever another value is bound that a better plan could follow from; the
        # queries of the store say by themselves which index they are for.
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        _check(path, connection)
        # What a crash left in the log is put into the file and synced, and the log begins anew: frames that only the
        # page cache has (after a failed sync) must not lie between the file and what is committed from now on.
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        _check_size(path, connection)
        return connection
    except (apsw.Error, OSError, UnicodeDecodeError, StoreError) as error:
        if connection is not None:
            close_untouched(connection)
        if isinstance(error, StoreError):
            raise
        if isinstance(error, NotOurFile):
            raise StoreError(f"{error.filename} {error.strerror}") from error
        if is_damage(error) or isinstance(error, apsw.SQLError):  # "unsupported file format" is an SQLError
            raise StoreDamaged(path, str(error)) from error
        if isinstance(error, apsw.FullError) or is_disk_full(path):
            raise StoreFull(path, str(error)) from error
        if is_failed_read(error):
            raise StoreReadFailed(path, str(error)) from error
        raise StoreError(f"{path} cannot be opened: {error}") from error


def open_beside(path: Path, synchronous: str) -> apsw.Connection:
    """Another connection to a file that this process has open already."""
    name = str(path.parent.resolve() / path.name)
    connection = apsw.Connection(name, apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_NOFOLLOW)
    connection.pragma("synchronous", synchronous)
    connection.pragma("wal_autocheckpoint", 0)
    return connection


def is_disk_full(path: Path) -> bool:
    """Whether the disk is full to the last byte, or nearly: what SQLite then says is not always that."""
    try:
        found = os.statvfs(path.parent)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize < FULL_BYTES


def _tighten(path: Path) -> None:
    """Messages and keys are in it. Copied or restored by hand it may be readable by others: no longer."""
    for each in (path, log_of(path), path.with_name(path.name + "-shm")):
        tighten_own(each, PRIVATE)


def close_untouched(connection: apsw.Connection) -> None:
    """Closes without the copying of the log that SQLite does at the last close."""
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    connection.close(True)


def _create(path: Path, vfs: str | None) -> None:
    """Under another name first: so a file of this name is always whole, and an empty one is damage, not a new store."""
    if log_of(path).exists():
        raise StoreDamaged(path, "the file is missing, but its log is there")
    new = path.with_name(path.name + ".new")
    for name in (new.name, new.name + "-wal", new.name + "-shm", new.name + "-journal"):
        new.with_name(name).unlink(missing_ok=True)
    os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, PRIVATE))  # the log inherits the mode
    connection = apsw.Connection(str(new), vfs=vfs)
    try:
        connection.pragma("page_size", PAGE_BYTES)
        connection.pragma("journal_mode", "wal")
        connection.pragma("synchronous", "FULL")
        with connection:
            connection.execute(SCHEMA)
            meta = (FORMAT, 0, 0, 0, int(time.time() * 1000))
            connection.execute(STATEMENTS["put_meta"], (*meta, meta_checksum(*meta)))
            connection.pragma("application_id", APPLICATION_ID)
            connection.pragma("user_version", FORMAT)
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    finally:
        connection.close()
    os.rename(new, path)
    sync_directory(path.parent)


def _check(path: Path, connection: apsw.Connection) -> None:
    """Header, version, schema and log in full, trees and indexes for `CHECK_MS_MAX`: no time that grows with the depth.

    What lies further in is found when it is met, and stops the broker then.
    """
    damage = damage_in_log(path, connection)
    if damage:
        raise StoreDamaged(log_of(path), damage)
    if int(connection.pragma("application_id")) != APPLICATION_ID:
        raise StoreDamaged(path, "its header does not say that Spillway wrote it")
    version = int(connection.pragma("user_version"))
    if version > FORMAT:
        raise StoreTooNew(
            f"{path} has format {version}, this version of Spillway reads up to {FORMAT}: "
            f"use the version that wrote it, or a later one"
        )
    if 0 < version < CARRIED_OVER:
        raise StoreTooOld(
            f"{path} has format {version}, this version of Spillway reads {CARRIED_OVER} to {FORMAT} only: "
            f"receive its messages with the version that wrote it, or give another data directory"
        )
    if version < CARRIED_OVER or str(connection.pragma("journal_mode")) != "wal":
        raise StoreDamaged(path, "its header does not hold")
    if _schema(connection) != (_expected_schema() if version == FORMAT else former_schema(version)):
        raise StoreDamaged(path, "its tables are not those of this format")
    _check_in_time(path, connection)
    if version < FORMAT:
        carry_over(connection, version, FORMAT)
        log.info("%s: format %d was carried over to format %d", path, version, FORMAT)


def _schema(connection: apsw.Connection) -> list[tuple[object, ...]]:
    return list(connection.execute(STATEMENTS["select_schema"]))


def _expected_schema() -> list[tuple[object, ...]]:
    connection = apsw.Connection(":memory:")
    connection.execute(SCHEMA)
    expected = _schema(connection)
    connection.close()
    return expected


def _check_in_time(path: Path, connection: apsw.Connection) -> None:
    until = time.monotonic() + CHECK_MS_MAX / 1000

    def is_time_up() -> bool:
        return time.monotonic() > until

    connection.set_progress_handler(is_time_up, 20)
    try:
        for (finding,) in connection.execute("PRAGMA quick_check(1)"):
            if finding != "ok":
                raise StoreDamaged(path, " ".join(str(finding).split()))
        check_indexes(path, connection)
    except apsw.InterruptError:
        pass  # as far as it came, it holds
    finally:
        connection.set_progress_handler(None)


def check_indexes(path: Path, connection: apsw.Connection) -> None:
    """Does each index say what the rows say? SQLite's own check of that would refuse the file for one damaged row.

    A row that is damaged itself is reported when it is read. A sound one that its index has elsewhere would expire or
    fall due at the wrong time, and nobody would know.
    """
    read = partial(read_body, connection.cursor())
    for index, statement in (("message_expiry", "disagreeing_expiry"), ("parked_due", "disagreeing_due")):
        for (key,) in connection.execute(STATEMENTS[statement]).fetchall():
            found = connection.execute(STATEMENTS["select_row"], (key,)).fetchall()
            if not found or not all(isinstance(stored_of(row, read), DamagedRow) for row in found):
                raise StoreDamaged(
                    path,
                    f"its index {index} does not agree with its messages, and can be made anew from them with: "
                    f"sqlite3 '{path}' 'REINDEX {index}'",
                )


def _check_size(path: Path, connection: apsw.Connection) -> None:
    pages = int(connection.pragma("page_count"))
    size_bytes = path.stat().st_size
    if size_bytes != pages * PAGE_BYTES:
        raise StoreDamaged(path, f"it has {size_bytes} bytes, but its header says {pages} pages of {PAGE_BYTES}")
