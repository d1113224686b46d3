"""Which process is which on this machine: to know that one has ended, although its number may be another's by now."""

import os
import socket
import sys
from pathlib import Path
from typing import Final, NamedTuple

PROC: Final = Path("/proc")
# In the environment of every Python process that a JVM of Spark has started.
_OF_SPARK: Final = ("PYTHON_WORKER_FACTORY_SECRET", "PYTHON_UNIX_DOMAIN_ENABLED")


class ProcessId(NamedTuple):
    """One process, told from a later one with the same number where the system says when it began."""

    machine: str
    pid: int
    began: str

    def has_ended(self) -> bool:
        """False also of a process on another machine: nothing is known about it here."""
        if self.machine != machine():
            return False
        if _has_proc():
            return _began(self.pid) != self.began
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return False


def process_id(pid: int | None = None) -> ProcessId:
    """The identity of this process, or of another one on this machine."""
    number = os.getpid() if pid is None else pid
    return ProcessId(machine(), number, _began(number))


def machine() -> str:
    """Where process numbers mean the same: a host, or one container of it."""
    try:
        return f"{socket.gethostname()} {os.readlink(PROC / 'self' / 'ns' / 'pid')}"
    except OSError:
        return socket.gethostname()


def owner() -> ProcessId:
    """The JVM that this Python process works for; without one, this process itself.

    A worker is forked by a daemon that the JVM has started, or started by the JVM itself.
    """
    if not any(name in os.environ for name in _OF_SPARK):
        return process_id()
    parent = os.getppid()
    found = _parent_of(parent) if _is_forked_by_daemon() else parent
    return process_id(found if found > 1 else parent)


def _is_forked_by_daemon() -> bool:
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    return "daemon" in (spec.name if spec is not None else str(getattr(main, "__file__", "")))


def _has_proc() -> bool:
    return (PROC / "self" / "stat").exists()


def _began(pid: int) -> str:
    """When a process began, by the system's own count; empty if it has ended, or nobody can say."""
    fields = _stat(pid)
    # A process that has ended and was not waited for by its parent is still listed, as a zombie.
    return fields[19] if len(fields) > 19 and fields[0] not in ("Z", "X") else ""


def _parent_of(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[1]) if len(fields) > 1 else 0


def _stat(pid: int) -> list[str]:
    """What proc(5) says of a process, from its state on: the name before it may contain anything."""
    try:
        return (PROC / str(pid) / "stat").read_text("ascii", "replace").rpartition(")")[2].split()
    except OSError:
        return []
