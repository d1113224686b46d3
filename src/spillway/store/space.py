"""How much may still be written, and how long the log may get: measured often, and counted in between.

A file system says what is free, but not what is on its way: turns that were submitted and are not yet durable, and
pages that are in the log and for which the file must still grow. A fast client writes more than the reserve between two
looks a second, so every megabyte that is submitted is a reason to look again.
"""

import os
import time
from pathlib import Path
from typing import Final

from spillway.model import limits
from spillway.store.ballast import Ballast
from spillway.store.wal import log_of

MEASURE_EVERY_S: Final = 1.0
MEASURE_EVERY_BYTES: Final = 1024 * 1024
NOTE_EVERY_BYTES: Final = 8 * 1024 * 1024  # by the writer, while there is plenty
LOG_BYTES_MIN: Final = 4 * 1024 * 1024  # how long the log gets where space is short
GROWTH_BYTES_MAX: Final = 16 * 1024 * 1024  # half of the ballast: what the file may have to grow by at a start
WRITTEN_TWICE: Final = 2  # to the log, and to the file


def room_bytes(free_bytes: int, wal_bytes: int, free_page_bytes: int, log_bytes_needed: int) -> int:
    """Pages inside the file are reached through the log: they count only while that has room for a long commit."""
    if free_bytes + wal_bytes < log_bytes_needed:
        return free_bytes
    return free_bytes + free_page_bytes


class Space:
    """The space of one journal. Each number is written by one thread only, so that nothing is locked."""

    def __init__(self, path: Path, ballast: Ballast | None, log_bytes_max: int) -> None:
        self.path = path
        self.ballast = ballast
        self._log_bytes_most = log_bytes_max
        # On the caller's thread.
        self._room = 0
        self._checked_at = -MEASURE_EVERY_S
        self._checked_submitted_bytes = 0
        self._checked_durable_bytes = 0
        # On the writer's.
        self.log_bytes_max = min(log_bytes_max, LOG_BYTES_MIN)
        self.growth_bytes = 0
        self._free_page_bytes = 0
        self._noted_at = -MEASURE_EVERY_S
        self._noted_bytes = 0
        self._note_every_bytes: int = MEASURE_EVERY_BYTES

    def free_bytes(self, submitted_bytes: int, durable_bytes: int) -> int:
        """What may still be written by who has submitted so much, of which so much is durable."""
        now = time.monotonic()
        if (
            now - self._checked_at >= MEASURE_EVERY_S
            or submitted_bytes - self._checked_submitted_bytes >= MEASURE_EVERY_BYTES
        ):
            self._checked_at = now
            self._checked_submitted_bytes = submitted_bytes
            self._checked_durable_bytes = durable_bytes
            self._room = self._read()
        return max(0, self._room - WRITTEN_TWICE * (submitted_bytes - self._checked_durable_bytes))

    def _read(self) -> int:
        free = free_bytes_at(self.path.parent)
        if self.ballast is not None:
            free += self.ballast.size_bytes
        try:
            wal_bytes = log_of(self.path).stat().st_size
        except OSError:
            wal_bytes = 0
        room = room_bytes(free, wal_bytes, self._free_page_bytes, limits.DISK_RESERVE_BYTES)
        return max(0, room - self.growth_bytes)

    # -- on the writer's thread --------------------------------------------------------------------------------------

    def is_time_to_note(self, written_bytes: int) -> bool:
        return (
            written_bytes - self._noted_bytes >= self._note_every_bytes
            or time.monotonic() - self._noted_at >= MEASURE_EVERY_S
        )

    def note(self, free_page_bytes: int, growth_bytes: int, written_bytes: int) -> None:
        """As the writer has left it. Where there is little space the log is kept short, where there is much, long."""
        self._free_page_bytes = free_page_bytes
        self.growth_bytes = growth_bytes
        self._noted_at = time.monotonic()
        self._noted_bytes = written_bytes
        quarter = (self._read() - limits.DISK_RESERVE_BYTES) // 4
        self.log_bytes_max = min(self._log_bytes_most, max(LOG_BYTES_MIN, quarter))
        is_plenty = quarter >= self._log_bytes_most
        self._note_every_bytes = NOTE_EVERY_BYTES if is_plenty else MEASURE_EVERY_BYTES
        if self.ballast is not None:
            self.ballast.allocate(free_bytes_at(self.path.parent))


def free_bytes_at(directory: Path) -> int:
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize
