"""A file that holds space for the day the disk is full: given up, it lets a store start, and messages be deleted.

It holds real blocks, not a hole. Whoever deletes it by hand does no harm.
"""

import errno
import os
from pathlib import Path
from typing import Final

from spillway.model import limits
from spillway.store.own_files import open_own

NAME: Final = "ballast"
KEPT_BYTES: Final = 8 * limits.MIB  # of it while nobody serves
FREE_BYTES_MIN: Final = 2 * limits.DISK_RESERVE_BYTES  # it is not made where there is less


class Ballast:
    """The ballast beside a journal. `size_bytes` is what it holds now."""

    def __init__(self, path: Path, wanted_bytes: int = limits.DISK_BALLAST_BYTES) -> None:
        self.path = path
        self.wanted_bytes = wanted_bytes
        self.size_bytes = _held_bytes(path)

    def allocate(self, free_bytes: int) -> None:
        """Allocate the ballast, if there is space enough for it."""
        if self.size_bytes >= self.wanted_bytes or free_bytes < FREE_BYTES_MIN + self.wanted_bytes:
            return
        try:
            if self.path.is_symlink():
                self.path.unlink()  # nothing is lost with it
            file = open_own(self.path, os.O_CREAT | os.O_WRONLY)
            try:
                os.posix_fallocate(file, 0, self.wanted_bytes)
            finally:
                os.close(file)
        except OSError as error:
            self.release()  # the reserve is all there is
            if error.errno != errno.ENOSPC:
                self.wanted_bytes = 0  # a file system that cannot hold any
            return
        self.size_bytes = _held_bytes(self.path)

    def shrink(self) -> None:
        """Shrinks the ballast for when nobody serves: the log is empty then, and the next start needs little."""
        if self.size_bytes > KEPT_BYTES:
            try:
                file = open_own(self.path, os.O_WRONLY)
                try:
                    os.ftruncate(file, KEPT_BYTES)
                finally:
                    os.close(file)
            except OSError:
                return
            self.size_bytes = _held_bytes(self.path)

    def release(self) -> bool:
        """Release the ballast; whether there was any."""
        held = _held_bytes(self.path) > 0
        self.size_bytes = 0
        try:
            self.path.unlink(missing_ok=True)
        except OSError:
            return False
        return held


def _held_bytes(path: Path) -> int:
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return 0
    return min(found.st_size, found.st_blocks * 512)
