"""One disk under the log and SQLite: every call is counted, any one can fail, and the power can go before any one.

Files are real ones. What was written, made or removed and not synced is remembered as it was before: a cut brings back
any part of that, sector by sector and name by name. Nothing is synced for real.
"""

import errno
import itertools
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import apsw

from spillway.store.segments import SystemFiles

SECTOR_BYTES = 512  # what a disk writes whole or not at all
SHARES = (0.0, 0.1, 0.5, 0.9, 1.0)  # of what was not synced is lost
IGNORED = ("*-shm",)

_numbers = itertools.count()


class Unsynced:
    """A file as the disk is sure to have it: sectors that were written since, its size, or all of it if it was cut."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.sectors: dict[int, bytes] = {}
        self.whole: bytes | None = None


class CrashDisk:
    """`calls` has the names of all calls so far. The one with the number `fail_at` raises `error`, an errno.

    `before_call` is told before each, and may take a `cut`. A `read` fails too, but the power does not go before one.
    """

    def __init__(self, root: Path, fail_at: int = 0, error: int = 0) -> None:
        self.root = root
        self.fail_at = fail_at
        self.error = error
        self.calls: list[str] = []
        self.before_call: Callable[[], None] = lambda: None
        self.files = CrashFiles(self)
        self.vfs = CrashVfs(self)
        self._unsynced: dict[Path, Unsynced] = {}
        self._made: set[Path] = set()  # names that the disk may not have
        self._removed: dict[Path, bytes] = {}  # and those that it may still have

    def fails(self, name: str) -> bool:
        """Count a call. Whether it fails."""
        self.calls.append(name)
        return len(self.calls) == self.fail_at

    def about_to_write(self, path: Path, at: int, size: int) -> None:
        state = self._state(path)
        with path.open("rb") as file:
            for place in range(at - at % SECTOR_BYTES, at + size, SECTOR_BYTES):
                if place not in state.sectors:
                    file.seek(place)
                    state.sectors[place] = file.read(SECTOR_BYTES).ljust(SECTOR_BYTES, b"\0")

    def about_to_cut_short(self, path: Path) -> None:
        state = self._state(path)
        if state.whole is None:
            state.whole = path.read_bytes()

    def about_to_remove(self, path: Path) -> None:
        if path.exists() and path not in self._made:
            self._removed[path] = path.read_bytes()
        self._made.discard(path)
        self._unsynced.pop(path, None)

    def made(self, path: Path) -> None:
        if path not in self._removed:
            self._made.add(path)

    def synced(self, path: Path) -> None:
        self._unsynced.pop(path, None)

    def name_synced(self, path: Path) -> None:
        """Every name in a directory, or of a file."""
        self._made = {each for each in self._made if path not in (each, each.parent)}
        self._removed = {each: data for each, data in self._removed.items() if path not in (each, each.parent)}

    def _state(self, path: Path) -> Unsynced:
        if path not in self._unsynced:
            self._unsynced[path] = Unsynced(path.stat().st_size)
        return self._unsynced[path]

    def cut(self, to: Path, chance: random.Random) -> None:
        """What the disk may have if the power goes now, in another directory."""
        shutil.copytree(self.root, to, ignore=shutil.ignore_patterns(*IGNORED))
        share = chance.choice(SHARES)
        for path, state in self._unsynced.items():
            copy = to / path.relative_to(self.root)
            if copy.exists():
                _bring_back(copy, state, share, chance)
        for path, data in self._removed.items():
            copy = to / path.relative_to(self.root)
            if chance.random() < share and copy.parent.is_dir() and not copy.exists():
                copy.write_bytes(data)
        for path in sorted(self._made, reverse=True):
            copy = to / path.relative_to(self.root)
            if chance.random() < share:
                shutil.rmtree(copy) if copy.is_dir() else copy.unlink(missing_ok=True)


def _bring_back(copy: Path, state: Unsynced, share: float, chance: random.Random) -> None:
    if state.whole is not None and chance.random() < share:
        copy.write_bytes(state.whole)
        return
    with copy.open("r+b") as file:
        lost = [place for place in state.sectors if chance.random() < share]
        for place in lost:
            file.seek(place)
            file.write(state.sectors[place])
        if len(lost) == len(state.sectors) and state.whole is None and chance.random() < 0.5:
            file.truncate(state.size)


class CrashFiles(SystemFiles):
    """The log's calls."""

    def __init__(self, disk: CrashDisk) -> None:
        self.disk = disk
        self.paths: dict[int, Path] = {}

    def _call(self, name: str) -> None:
        self.disk.before_call()
        self._count(name)

    def _count(self, name: str) -> None:
        if self.disk.fails(name):
            raise OSError(self.disk.error, os.strerror(self.disk.error))

    def open(self, path: Path) -> int:
        self._call("open")
        is_new = not path.exists()
        file = super().open(path)
        if is_new:
            self.disk.made(path)
        self.paths[file] = path
        return file

    def read(self, file: int, size: int) -> bytes:
        self._count("read")
        return super().read(file, size)

    def write(self, file: int, buffers: list[bytes], at: int) -> int:
        self._call("write")
        self.disk.about_to_write(self.paths[file], at, sum(map(len, buffers)))
        return super().write(file, buffers, at)

    def sync(self, file: int) -> None:
        self._call("sync")
        self.disk.synced(self.paths[file])

    def remove(self, path: Path) -> None:
        self._call("remove")
        self.disk.about_to_remove(path)
        super().remove(path)

    def make_directory(self, path: Path) -> None:
        if not path.is_dir():
            self._call("make directory")
            path.mkdir()
            self.disk.made(path)
            self.sync_directory(path.parent)

    def sync_directory(self, path: Path) -> None:
        self._call("sync directory")
        self.disk.name_synced(path)


class CrashVfs(apsw.VFS):
    """SQLite's calls."""

    def __init__(self, disk: CrashDisk) -> None:
        self.disk = disk
        self.vfs_name = f"crash-disk-{next(_numbers)}"
        super().__init__(self.vfs_name, "")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> "CrashVfsFile":  # noqa: N802
        return CrashVfsFile(self.disk, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:  # noqa: N802
        self.disk.before_call()
        self.disk.about_to_remove(Path(filename))
        super().xDelete(filename, syncdir)
        if syncdir:
            self.disk.name_synced(Path(filename))


class CrashVfsFile(apsw.VFSFile):
    def __init__(self, disk: CrashDisk, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self.disk = disk
        self.path = Path(name.filename() if isinstance(name, apsw.URIFilename) else str(name))
        is_new = not self.path.exists()
        super().__init__("", name, flags)
        if is_new:
            disk.made(self.path)

    def _call(self, name: str) -> None:
        self.disk.before_call()
        if self.disk.fails(f"fold: {name}"):
            if name == "write" and self.disk.error == errno.ENOSPC:
                raise apsw.FullError("write: No space left on device")
            raise apsw.IOError(f"{name}: Input/output error")

    def xWrite(self, data: object, offset: int) -> None:  # noqa: N802
        self._call("write")
        self.disk.about_to_write(self.path, offset, len(bytes(data)))  # type: ignore[call-overload]
        super().xWrite(data, offset)

    def xTruncate(self, newsize: int) -> None:  # noqa: N802
        self._call("truncate")
        self.disk.about_to_cut_short(self.path)
        super().xTruncate(newsize)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self._call("sync")
        self.disk.synced(self.path)
        self.disk.name_synced(self.path)  # SQLite's own VFS syncs the directory with the first sync of a new file

    def excepthook(self, *ignored: object) -> bool:
        """The errors are meant; they need no traceback on the console."""
        return True
