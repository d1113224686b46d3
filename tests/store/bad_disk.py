"""Real SQLite on real files, on a disk that a test can stop or break: a VFS around the system's own."""

import itertools
import threading

import apsw

_numbers = itertools.count()


class BadDisk(apsw.VFS):
    """Counts syncs and writes. A sync waits while `gate` is shut. `fail_..._at`: from that call on.

    While it `is_full`, what a file has already can be written over, and nothing else.
    """

    def __init__(self) -> None:
        self.disk_name = f"bad-disk-{next(_numbers)}"
        self.gate = threading.Event()
        self.gate.set()
        self.is_at_gate = threading.Event()
        self.syncs = 0
        self.writes = 0
        self.fail_sync_at = 0  # 0: never
        self.fail_write_at = 0
        self.is_full = False  # no write that makes a file longer finds space
        super().__init__(self.disk_name, "")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> "BadDiskFile":  # noqa: N802
        return BadDiskFile(self, name, flags)

    def on_sync(self) -> None:
        self.syncs += 1
        if 0 < self.fail_sync_at <= self.syncs:
            raise apsw.IOError("sync: Input/output error")
        if not self.gate.is_set():
            self.is_at_gate.set()
            self.gate.wait()
            self.is_at_gate.clear()

    def on_write(self) -> None:
        self.writes += 1
        if 0 < self.fail_write_at <= self.writes:
            raise apsw.IOError("write: Input/output error")


class BadDiskFile(apsw.VFSFile):
    def __init__(self, disk: BadDisk, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        self.disk = disk
        super().__init__("", name, flags)

    def xSync(self, flags: int) -> None:  # noqa: N802
        self.disk.on_sync()
        super().xSync(flags)

    def xWrite(self, data: object, offset: int) -> None:  # noqa: N802
        self.disk.on_write()
        if self.disk.is_full and offset + len(bytes(data)) > self.xFileSize():  # type: ignore[call-overload]
            raise apsw.FullError("write: No space left on device")
        super().xWrite(data, offset)

    def excepthook(self, *ignored: object) -> bool:
        """The errors are meant; they need no traceback on the console."""
        return True
