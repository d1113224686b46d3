"""Sealed days of the ledger: DIR/ledger/day=YYYY-MM-DD/NAMESPACE.jsonl.gz, written once, whole or not at all.

They belong to the operator: nothing here is read again but to show it, so they may be moved away.
"""

import datetime
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

from spillway.model.ledger import MINUTES_PER_DAY, DayPacker, DayUnpacker, LedgerRow, day_name
from spillway.store.directory import make_directory, sync_directory
from spillway.store.own_files import open_own

_EPOCH: Final = datetime.date(1970, 1, 1).toordinal()
DIRECTORY_NAME: Final = "ledger"
PIECE_BYTES: Final = 64 * 1024
MEMORY_DAYS_MAX: Final = 31


class SealedDays(Protocol):
    """How sealed days are read, wherever they are. May be called from any thread."""

    def rows(self, day: int) -> Iterator[LedgerRow]:
        """Nothing if there is no such day. ValueError: what is there cannot be read."""


class DayFiles:
    """The files of one namespace."""

    def __init__(self, directory: Path, namespace: str) -> None:
        self.directory = directory
        self.namespace = namespace

    def path_of(self, day: int) -> Path:
        return self.directory / f"day={day_name(day)}" / f"{self.namespace}.jsonl.gz"

    def sealed_before(self) -> int:
        """The minute up to which there are files; 0 if there are none, or they were moved away."""
        minutes = [0]
        for path in self.directory.glob(f"day=*/{self.namespace}.jsonl.gz"):
            day = path.parent.name.removeprefix("day=")
            try:
                minutes.append((datetime.date.fromisoformat(day).toordinal() - _EPOCH + 1) * MINUTES_PER_DAY)
            except ValueError:
                continue
        return max(minutes)

    def rows(self, day: int) -> Iterator[LedgerRow]:
        path = self.path_of(day)
        try:
            file = os.fdopen(open_own(path, os.O_RDONLY), "rb")
        except FileNotFoundError:
            return
        unpacker = DayUnpacker()
        with file:
            try:
                while piece := file.read(PIECE_BYTES):
                    yield from unpacker.unpack(piece)
                unpacker.finish()
            except ValueError as error:
                raise ValueError(f"{path} cannot be read: {error}") from error


class DayFile:
    """One day's file while it is written, under another name; `publish` gives it its own."""

    def __init__(self, files: DayFiles, day: int) -> None:
        self.path = files.path_of(day)
        make_directory(self.path.parent)
        self._new = self.path.with_name(f".{self.path.name}.new")
        self._packer = DayPacker(files.namespace)
        self._file = open_own(self._new, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)

    def add(self, rows: list[LedgerRow]) -> None:
        self._write(self._packer.pack(rows))

    def sync(self) -> None:
        """The whole file is on the disk."""
        self._write(self._packer.finish())
        os.fsync(self._file)
        self._close()

    def publish(self) -> None:
        """A file of this name is always whole: one that an earlier life has left is replaced by its equal."""
        os.rename(self._new, self.path)
        sync_directory(self.path.parent)

    def abandon(self) -> None:
        self._close()
        self._new.unlink(missing_ok=True)

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._file, rest) :]

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class DaysInMemory:
    """Sealed days of the journal in memory: packed as on disk, and the last month of them only."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self._days: dict[int, bytes] = {}

    def put(self, day: int, rows: list[LedgerRow]) -> None:
        packer = DayPacker(self.namespace)
        self._days[day] = packer.pack(rows) + packer.finish()
        while len(self._days) > MEMORY_DAYS_MAX:
            del self._days[min(self._days)]

    def rows(self, day: int) -> Iterator[LedgerRow]:
        packed = self._days.get(day)
        if packed is not None:
            yield from DayUnpacker().unpack(packed)
