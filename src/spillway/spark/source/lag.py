"""How far a stream is behind, for its progress: how many messages wait in each entity, and for how long the first has.

Spark shows of a Python source what `reportLatestOffset` returns, and nothing else. Who may only listen sees no counts:
messages are counted by their sequence numbers, so that numbers which are missing in between count, too.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from spillway.client import ClientError, EntityNotFound, Management
from spillway.spark.platform.connection_pool import plain
from spillway.spark.platform.operations import REPORT_S, Clock, CountedPool
from spillway.spark.source.options import ReadOptions
from spillway.spark.source.sequence_bounds import NotInOneRow, checked_number, first_from, last_of

# In a reported offset, beside the entities; none of these can be called so.
LAG: Final = "$lag"
LAG_MESSAGES: Final = "$lagMessages"
LAG_S: Final = "$lagSeconds"


class EntityLag(NamedTuple):
    """What waits in one entity: its first message, when that was enqueued, its last one if the numbers tell."""

    first: int
    enqueued_ms: int | None
    last: int | None


class Lag:
    """What is known of all entities of a stream, and when to look again."""

    def __init__(self, clock: Clock = time.monotonic, now: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._now = now
        self._again_s = 0.0
        self.waiting: dict[str, EntityLag] = {}

    @property
    def is_due(self) -> bool:
        """Not more often than it is worth: Spark asks for the progress up to a hundred times a second."""
        return self._clock() >= self._again_s

    async def refresh(self, managements: Mapping[str, Management], begins: Mapping[str, int]) -> None:
        """At each entity, from this number on. Those that are not named have nothing that waits."""
        self._again_s = self._clock() + REPORT_S
        found = await asyncio.gather(*[self._measure(managements[entity], at) for entity, at in begins.items()])
        self.waiting = {entity: each for entity, each in zip(begins, found, strict=True) if each is not None}

    async def _measure(self, management: Management, begin: int) -> EntityLag | None:
        try:
            found = await management.peek(begin, 1, omit_body=True)
            if not found:
                return None
            first = found[0].sequence_number or 0
            last = await self._last(management, first)
        except EntityNotFound:
            return None  # whoever looks for new messages says so
        except ClientError as error:
            raise plain(error, management.path, "Listen") from None
        return EntityLag(first, found[0].enqueued_time_ms, last)

    async def _last(self, management: Management, first: int) -> int | None:
        """From the last one that was known on, if that is still there."""
        before = self.waiting.get(management.path)
        known = None if before is None else before.last
        try:
            checked_number(management, first)
            if known is not None and known > first:
                known = await first_from(management, known)
            return await last_of(management, max(first, known or 0))
        except NotInOneRow:
            return None

    def clear(self) -> None:
        """Nothing waits anywhere."""
        self.waiting = {}

    def report(self, entities: Iterable[str], begins: Mapping[str, int]) -> dict[str, Any]:
        """For the progress: of each and of all together, from these numbers on. None where the numbers do not tell."""
        each = {entity: self._of(self.waiting.get(entity), begins.get(entity, 0)) for entity in entities}
        counts = [one["messages"] for one in each.values()]
        return {
            LAG: each,
            LAG_MESSAGES: None if None in counts else sum(counts),
            LAG_S: max((one["seconds"] for one in each.values()), default=0.0),
        }

    def _of(self, waiting: EntityLag | None, begin: int) -> dict[str, Any]:
        if waiting is None or (waiting.last is not None and waiting.last < begin):
            return {"messages": 0, "seconds": 0.0}
        count = None if waiting.last is None else waiting.last - max(waiting.first, begin) + 1
        age_s = 0.0 if waiting.enqueued_ms is None else self._now() - waiting.enqueued_ms / 1000
        return {"messages": count, "seconds": round(max(0.0, age_s), 1)}


async def refresh_lag(pool: CountedPool, options: ReadOptions, lag: Lag, begins: Mapping[str, int]) -> None:
    """Look at these entities over the connection of the driver."""
    connection = await pool.connection(options.access)
    await lag.refresh({entity: pool.management(connection, entity) for entity in begins}, begins)
