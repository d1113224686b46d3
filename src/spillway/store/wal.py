"""The check of SQLite's log: a damaged one looks to SQLite like one that ends there, and this tells the two apart.

SQLite reads its write-ahead log up to the first frame whose checksum fails and takes that for the torn end of a crash.
But every commit is synced before the next is written, so at most one commit, the last, can follow a torn frame. More
of them mean that a frame in the middle was damaged, and that acknowledged commits would be dropped without a word.
The layout is that of https://sqlite.org/fileformat2.html section 4.
"""

import os
import struct
from pathlib import Path
from typing import Final

import apsw

from spillway.store.own_files import open_own

_HEADER: Final = struct.Struct(">8I")  # magic, version, page size, round, salt 1, salt 2, checksum 1, checksum 2
_FRAME: Final = struct.Struct(">4I")  # page number, pages after a commit (else 0), salt 1, salt 2
_FRAME_HEADER_BYTES: Final = 24


def log_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def damage_in_log(path: Path, connection: apsw.Connection) -> str:
    """What is wrong with the log of the database just opened; empty if nothing is."""
    try:
        file = open_own(log_of(path), os.O_RDONLY)
    except FileNotFoundError:
        return ""
    try:
        header = os.pread(file, _HEADER.size, 0)
        if not any(header) or os.fstat(file).st_size <= _HEADER.size:
            return ""  # nothing was ever synced into it
        _, _, page_bytes, _, salt_1, salt_2, checksum_1, checksum_2 = _HEADER.unpack(header)
        if _checksum(header) != (checksum_1, checksum_2):
            return "its header does not hold, but commits follow"
        connection.pragma("schema_version")  # a first read makes SQLite recover the log
        frames_read, _ = connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)
        return _damage_after(file, max(frames_read, 0), page_bytes, (salt_1, salt_2))
    finally:
        os.close(file)


def _checksum(header: bytes) -> tuple[int, int]:
    """Over the first 24 bytes, in the byte order that the last bit of the magic number says."""
    words = struct.unpack_from(">6I" if header[3] & 1 else "<6I", header)
    sum_1 = sum_2 = 0
    for index in range(0, 6, 2):
        sum_1 = (sum_1 + words[index] + sum_2) & 0xFFFF_FFFF
        sum_2 = (sum_2 + words[index + 1] + sum_1) & 0xFFFF_FFFF
    return sum_1, sum_2


def _damage_after(file: int, frames_read: int, page_bytes: int, salts: tuple[int, int]) -> str:
    step = _FRAME_HEADER_BYTES + page_bytes
    at = _HEADER.size + frames_read * step
    commits = 0
    is_followed = False
    while len(frame := os.pread(file, _FRAME.size, at)) == _FRAME.size:
        _, pages_after_commit, salt_1, salt_2 = _FRAME.unpack(frame)
        if (salt_1, salt_2) == salts:  # else: of an earlier round, or the damaged frame itself
            is_followed = is_followed or commits > 0
            commits += pages_after_commit > 0
        at += step
    if is_followed:
        return f"only its first {frames_read} frames can be read, but {commits} or more commits follow"
    return ""
