"""Disks for the log that fail, fill up, flip a bit, or lose what was never synced."""

import os
import random
from pathlib import Path

from spillway.store.segments import SystemFiles

SECTOR_BYTES = 512  # what a disk writes whole or not at all


class FlippedFiles(SystemFiles):
    """Reads every file with one bit changed."""

    def __init__(self, bit: int = -1) -> None:
        self.bit = bit

    def read(self, file: int, size: int) -> bytes:
        data = bytearray(super().read(file, size))
        if 0 <= self.bit < len(data) * 8:
            data[self.bit // 8] ^= 1 << self.bit % 8
        return bytes(data)


class ImageFiles(SystemFiles):
    """Reads these bytes, whatever is in the one file that there is."""

    def __init__(self, image: bytes) -> None:
        self.image = image

    def read(self, file: int, size: int) -> bytes:
        return self.image[:size]


class FailingFiles(SystemFiles):
    """The call with this number fails, counted over all but reading, and `times` of them in a row.

    Nothing is synced for real: what these tests look at is what a process finds after this one.
    """

    def __init__(self, at: int, error: int, times: int = 1, written: int = 0) -> None:
        self.at = at
        self.error = error
        self.times = times
        self.written = written  # bytes that a failing write has written nevertheless
        self.calls: list[str] = []

    def _call(self, name: str) -> bool:
        self.calls.append(name)
        return self.at <= len(self.calls) < self.at + self.times

    def open(self, path: Path) -> int:
        if self._call("open"):
            raise OSError(self.error, os.strerror(self.error))
        return super().open(path)

    def write(self, file: int, buffers: list[bytes], at: int) -> int:
        if self._call("write"):
            if self.written:
                return super().write(file, [b"".join(buffers)[: self.written]], at)
            raise OSError(self.error, os.strerror(self.error))
        return super().write(file, buffers, at)

    def sync(self, file: int) -> None:
        if self._call("sync"):
            raise OSError(self.error, os.strerror(self.error))

    def remove(self, path: Path) -> None:
        if self._call("remove"):
            raise OSError(self.error, os.strerror(self.error))
        super().remove(path)

    def sync_directory(self, path: Path) -> None:
        if self._call("sync directory"):
            raise OSError(self.error, os.strerror(self.error))


class TornFiles(SystemFiles):
    """Remembers what lay under every sector that was written and not synced: a power cut may bring it back."""

    def __init__(self) -> None:
        self.paths: dict[int, Path] = {}
        self.unsynced: dict[int, dict[int, bytes]] = {}  # by file and place: the sector as it was

    def open(self, path: Path) -> int:
        file = super().open(path)
        self.paths[file] = path
        self.unsynced[file] = {}
        return file

    def write(self, file: int, buffers: list[bytes], at: int) -> int:
        size = sum(map(len, buffers))
        before = self.unsynced[file]
        for place in range(at - at % SECTOR_BYTES, at + size, SECTOR_BYTES):
            if place not in before:
                before[place] = os.pread(file, SECTOR_BYTES, place).ljust(SECTOR_BYTES, b"\0")
        return super().write(file, buffers, at)

    def sync(self, file: int) -> None:
        super().sync(file)
        self.unsynced[file].clear()

    def cut(self, directory: Path, chance: random.Random) -> None:
        """`directory` is a copy of the log: of what was not synced some sectors are there, and some are not."""
        share = chance.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        for file, before in self.unsynced.items():
            with (directory / self.paths[file].name).open("r+b") as copy:
                for place, sector in before.items():
                    if chance.random() < share:
                        copy.seek(place)
                        copy.write(sector)
