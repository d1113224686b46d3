"""How many tasks read an entity where `partitions` does not say: by what is in it, and by the cores of this machine.

Spark tells a source neither how many executors there are nor how many cores they have. On one machine, the driver's
are those; on a cluster `partitions` says more.
"""

import asyncio
import os
from typing import Final

from spillway.client import Management
from spillway.spark.source.sequence_bounds import NotInOneRow, first_from

MESSAGES_A_TASK: Final = 5_000  # so that its reading takes longer than its start
TASKS_MAX: Final = 32


def tasks_for(count: int, entities: int, cores: int | None = None) -> int:
    """Of each of so many entities that are read at the same time, if one has so many messages."""
    cores = min(TASKS_MAX, cores or core_count())
    found = max(1, min(-(-count // MESSAGES_A_TASK), -(-cores // max(1, entities))))
    assert found <= TASKS_MAX, "one entity has no more tasks than all may have"
    return found


def core_count() -> int:
    """Of those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


async def receivers_for(management: Management, count: int, entities: int, cores: int | None = None) -> int:
    """Side by side at one entity: no more than have something to do, by the sequence numbers that there are."""
    most = tasks_for(count, entities, cores)
    if most == 1:
        return 1
    try:
        first = await first_from(management, 0)
        if first is None:
            return 1
        places = [first + MESSAGES_A_TASK * index for index in range(1, most)]
        found = await asyncio.gather(*[first_from(management, place) for place in places])
    except NotInOneRow:
        return 1  # such numbers do not tell how many there are
    return 1 + sum(number is not None for number in found)
