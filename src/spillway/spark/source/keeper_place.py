"""Where the lock keeper of a JVM is found: a socket in a directory that only this user may enter.

Whoever can open the socket can read locks and keys on their way, so the directory is the guard. One that is not this
user's own, or that others may enter, is not used.
"""

import contextlib
import fcntl
import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from spillway.spark.platform.processes import ProcessId, process_id

PATH_BYTES_MAX: Final = 100  # of a socket, on every system; tmp directories may be longer
SUFFIX: Final = ".sock"
REQUEST_BYTES_MAX: Final = 1024 * 1024  # a line over the socket


class KeeperUnavailable(RuntimeError):
    """No lock keeper can be reached or started. The text says why."""


class KeeperPlace:
    """The socket of the lock keeper beside one JVM."""

    def __init__(self, owner: ProcessId, under: str | None = None) -> None:
        self.owner = owner
        name = f"{owner.pid}-{owner.began}{SUFFIX}"
        directory = f"spillway-locks-{os.getuid()}"
        base = under or tempfile.gettempdir()
        if len(os.fsencode(f"{base}/{directory}/{name}")) > PATH_BYTES_MAX:
            base = "/tmp"
        self.directory = Path(base) / directory
        self.socket = self.directory / name

    def make(self) -> None:
        """The directory, if it is not there; refused if it is not private."""
        try:
            with contextlib.suppress(FileExistsError):
                self.directory.mkdir(mode=0o700)
            found = self.directory.lstat()
        except OSError as error:
            raise KeeperUnavailable(f"{self.directory}: {error.strerror}") from None
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise KeeperUnavailable(f"{self.directory} is not a directory that this user alone may enter")

    @contextlib.contextmanager
    def mutex(self) -> Iterator[None]:
        """One process at a time makes or removes sockets here."""
        handle = os.open(self.directory, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
            fcntl.flock(handle, fcntl.LOCK_UN)
        finally:
            os.close(handle)

    def listen(self) -> socket.socket | None:
        """The socket of a new keeper; None if there is one that answers. To be called with the mutex."""
        self._sweep()
        if self._is_answering():
            return None
        self.socket.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listening.bind(str(self.socket))
        listening.listen(128)
        return listening

    def _is_answering(self) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as tried:
            try:
                tried.connect(str(self.socket))
            except OSError:
                return False
            return True

    def _sweep(self) -> None:
        """Sockets of keepers that were killed together with their JVM."""
        for path in self.directory.glob(f"*{SUFFIX}"):
            pid, _, began = path.name.removesuffix(SUFFIX).partition("-")
            if pid.isdigit() and ProcessId(process_id().machine, int(pid), began).has_ended():
                path.unlink(missing_ok=True)
