"""Operations of a query: looked for less and less often while nothing comes, counted, and spread over time by a budget.

A service charges for each and throttles those who make many. Spark asks a source for its latest offset up to a hundred
times a second, so that it is the source that has to be slow.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Final

from spillway.client import Connection, Management
from spillway.spark.platform.access import Access
from spillway.spark.platform.connection_pool import ConnectionPool

IDLE_LOOK_S: Final = 15.0  # between two looks at what has been empty for a while
REPORT_S: Final = 5.0  # between two looks for the progress alone
COUNT: Final = "$operations"  # in a reported offset; no entity can be called so

Clock = Callable[[], float]

pause = asyncio.sleep  # until the next operation is within the budget


class PollPace:
    """When to look again: at once after something was found, and ever later while there is nothing."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._pause_s = 0.0
        self._again_s = 0.0

    @property
    def is_due(self) -> bool:
        return self._clock() >= self._again_s

    def on_looked(self, is_idle: bool) -> None:
        self._pause_s = min(IDLE_LOOK_S, self._pause_s * 1.1 + 0.1) if is_idle else 0.0
        assert 0.0 <= self._pause_s <= IDLE_LOOK_S, "looks are never rarer than that"
        self._again_s = self._clock() + self._pause_s


class Operations:
    """The operations of one process for one query; `per_second` of None is no limit."""

    def __init__(self, per_second: float | None = None, clock: Clock = time.monotonic) -> None:
        assert per_second is None or per_second > 0, "with a budget of nothing no operation would ever begin"
        self.per_second = per_second
        self.count = 0
        self._clock = clock
        self._free_s = 0.0  # when the next one may begin

    async def begin(self) -> None:
        """Wait for one operation's turn. Turns are given in the order they are asked for."""
        self.count += 1
        if self.per_second is None:
            return
        now_s = self._clock()
        at_s = max(now_s, self._free_s)
        self._free_s = at_s + 1 / self.per_second
        if at_s > now_s:
            await pause(at_s - now_s)

    def add(self, count: int) -> None:
        """What was done already: those that follow wait for it."""
        self.count += count
        if self.per_second is not None:
            self._free_s = max(self._clock(), self._free_s) + count / self.per_second

    def most_at_a_time(self, count: int) -> int:
        """As many as one second allows, of so many."""
        return count if self.per_second is None else max(1, min(count, int(self.per_second)))


class CountedPool:
    """The pool as it is seen by one query: requests are counted."""

    def __init__(self, pool: ConnectionPool, operations: Operations) -> None:
        self._pool = pool
        self.operations = operations

    async def connection(self, access: Access) -> Connection:
        return await self._pool.connection(access)

    def management(self, connection: Connection, entity: str) -> "CountedManagement":
        return CountedManagement(self._pool.management(connection, entity), self.operations)


class CountedManagement(Management):
    """Requests to one entity, each of them an operation."""

    def __init__(self, inner: Management, operations: Operations) -> None:
        self.path = inner.path
        self._inner = inner
        self._operations = operations

    async def call(
        self, operation: str, body: Mapping[str, object], timeout: float | None = None
    ) -> dict[object, object]:
        await self._operations.begin()
        return await self._inner.call(operation, body, timeout)
