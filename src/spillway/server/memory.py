"""What this process has in memory, and what it may have. Where the system does not say, there is no limit."""

import ctypes
import gc
import os
from pathlib import Path
from typing import Final

from spillway.model.limits import MIB

SHARE_PERCENT: Final = 75  # of what there is: the rest is for the page cache, and for what nobody foresaw
CGROUP_FILES: Final = (
    "/sys/fs/cgroup/memory.max",  # version 2, as a container sees its own
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",  # version 1
)


def resident_bytes() -> int | None:
    """Now, not at its peak. None where there is no /proc."""
    try:
        pages = Path("/proc/self/statm").read_bytes().split()[1]
    except OSError:
        return None
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def release_free() -> None:
    """Python frees what it no longer needs; the C library keeps it, unless it is asked to give it back."""
    gc.collect()
    trim_free()


def trim_free() -> None:
    """The same without looking for garbage: a few milliseconds."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it
    if trim is not None:
        trim(0)


def memory_mb_default() -> int:
    """Most of what this process may have: of its container, its resource limit or the machine. 0: nobody knows."""
    if resident_bytes() is None:
        return 0
    known = [limit for limit in (machine_bytes(), resource_bytes(), *map(cgroup_bytes, CGROUP_FILES)) if limit > 0]
    return min(known) * SHARE_PERCENT // 100 // MIB if known else 0


def machine_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        return 0


def resource_bytes() -> int:
    """What `ulimit -d` allows: beyond it every allocation fails."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_DATA)
    return 0 if soft == resource.RLIM_INFINITY else soft


def cgroup_bytes(name: str) -> int:
    """`max` or a number near 2**63 is none."""
    try:
        text = Path(name).read_text().strip()
    except OSError:
        return 0
    limit = int(text) if text.isdigit() else 0
    return limit if limit < 1 << 60 else 0
