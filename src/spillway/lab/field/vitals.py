"""What a process holds: sockets, tasks or threads, memory. From /proc; zeros where there is none."""

import asyncio
import contextlib
import gc
import os
import threading
import time
from pathlib import Path
from typing import Final

WORK_S: Final = 0.02  # several turns of the scheduler


def count_sockets(pid: int | str = "self") -> int:
    directory = Path(f"/proc/{pid}/fd")
    count = 0
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            with contextlib.suppress(OSError):  # the one that lists them is gone by now
                count += os.readlink(directory / name).startswith("socket:")
    return count


def resident_kb(pid: int | str = "self") -> int:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
    return 0


def count_tasks() -> int:
    """Tasks of the loop that runs here, or the threads of a blocking program."""
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:
        return threading.active_count()


def slowdown() -> float:
    """How many times longer than its own CPU time a little work takes now: 1 on a machine that has time for it."""
    begun_s, begun_cpu_s = time.perf_counter(), time.thread_time()
    while time.thread_time() - begun_cpu_s < WORK_S:
        pass
    return (time.perf_counter() - begun_s) / (time.thread_time() - begun_cpu_s)


def vitals() -> dict[str, int]:
    """Counts without what only waits to be collected: the SDK's connections are in cycles."""
    gc.collect()
    return {"sockets": count_sockets(), "tasks": count_tasks(), "rss_kb": resident_kb()}
