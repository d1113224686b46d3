"""A disk of its own for a test, in a file, whose power can be cut.

The cut is the file system's own emergency stop (the shutdown ioctl of ext4 and xfs, without flushing its log): whatever
was not on the disk at that moment is gone, and the next mount replays the journal, as after a power failure. The disk
below is not cut: what reached it stays, whole and in order. Torn sectors and a drive that lies about its cache are
outside this tool.

Every mount is of the kind that gives its loop device back when it is unmounted.
"""

import fcntl
import os
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Final, Self

# XFS_IOC_GOINGDOWN, which ext4 took over as EXT4_IOC_SHUTDOWN: _IOR('X', 125, __u32).
IOC_SHUTDOWN: Final = 0x8004587D
NO_LOG_FLUSH: Final = 2
SIZE_BYTES: Final = 1024 * 1024 * 1024  # sparse; xfs wants 300 MB or more
# The tables are written while the disk is made, not by the kernel behind the test's back.
MAKE: Final = {
    "ext4": ("mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0"),
    "xfs": ("mkfs.xfs", "-q", "-f"),
}
PACKAGES: Final = {"ext4": "e2fsprogs", "xfs": "xfsprogs"}
LOOP_CONTROL: Final = Path("/dev/loop-control")
COMMAND_TIMEOUT_S: Final = 60.0
TRIAL_BYTES: Final = 1024 * 1024


class CannotCut(Exception):
    """This machine cannot do it; the text says what is missing."""


def system(*command: str) -> None:
    """Run a tool of the system; those of the administrator may not be on the path."""
    path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
    env = {**os.environ, "PATH": path, "LC_ALL": "C"}
    program = shutil.which(command[0], path=path)
    if program is None:
        raise CannotCut(f"there is no {command[0]} here")
    done = subprocess.run(
        [program, *command[1:]], env=env, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
    )
    if done.returncode != 0:
        raise CannotCut(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()}")


class LoopDisk:
    """One file system in a file in `directory`, mounted on `root` from `with` to its end."""

    def __init__(self, directory: Path, kind: str, size_bytes: int = SIZE_BYTES) -> None:
        self.kind = kind
        self.size_bytes = size_bytes
        self.image = directory / f"{kind}.img"
        self.root = directory / kind
        self.is_mounted = False

    def __enter__(self) -> Self:
        self.root.mkdir()
        with self.image.open("xb") as file:
            file.truncate(self.size_bytes)
        try:
            system(*MAKE[self.kind], str(self.image))
            self.mount()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self.is_mounted:
                self.unmount()
        except CannotCut:
            # A process still has a file open there. Lazily, the mount and its device go when that process does.
            system("umount", "--lazy", str(self.root))
            if kind is None:
                raise
        finally:
            self._remove()

    def mount(self) -> None:
        """Replays the journal if the power was cut before."""
        system("mount", "-t", self.kind, "-o", "loop", str(self.image), str(self.root))
        self.is_mounted = True

    def cut(self) -> None:
        """From here on nothing reaches the disk. Unmount and mount to have it back."""
        root = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(root, IOC_SHUTDOWN, struct.pack("=I", NO_LOG_FLUSH))
        except OSError as error:
            raise CannotCut(f"{self.kind} cannot be shut down: {error.strerror}") from error
        finally:
            os.close(root)

    def unmount(self) -> None:
        system("umount", str(self.root))
        self.is_mounted = False

    def _remove(self) -> None:
        self.image.unlink(missing_ok=True)
        if self.root.is_dir() and not self.root.is_mount():
            self.root.rmdir()


def try_out(kind: str) -> None:
    """Make a disk and cut it: what was synced stays and what was not is gone, or `CannotCut`."""
    if os.geteuid() != 0:
        raise CannotCut("it needs root")
    if not LOOP_CONTROL.exists():
        raise CannotCut(f"there are no loop devices here ({LOOP_CONTROL} is missing)")
    if shutil.which(MAKE[kind][0], path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))) is None:
        raise CannotCut(f"there is no {MAKE[kind][0]} here: apt-get install {PACKAGES[kind]}")
    with tempfile.TemporaryDirectory(prefix="spillway-trial-") as name, LoopDisk(Path(name), kind) as disk:
        synced, unsynced = disk.root / "synced", disk.root / "unsynced"
        with synced.open("wb") as file:
            file.write(bytes(range(256)))
            file.flush()
            os.fsync(file.fileno())
        unsynced.write_bytes(b"\xff" * TRIAL_BYTES)
        disk.cut()
        disk.unmount()
        disk.mount()
        if not synced.exists() or synced.read_bytes() != bytes(range(256)):
            raise CannotCut(f"{kind} lost a file that was synced before the cut")
        if unsynced.exists() and b"\xff" in unsynced.read_bytes():
            raise CannotCut(f"{kind} kept what was never synced: the cut does not cut")
