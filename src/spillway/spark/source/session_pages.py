"""Browsing named message sessions: many at a time, each of them in its order."""

from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from spillway.client import ReceivedMessage
from spillway.spark.platform.connection_pool import ConnectionPool
from spillway.spark.platform.operations import CountedPool
from spillway.spark.platform.patience import Patience, patiently
from spillway.spark.source.options import ReadOptions
from spillway.spark.source.side_by_side import SideBySide

PEEKED_AT_A_TIME: Final = 500
SESSIONS_BROWSED_AT_A_TIME: Final = 8  # requests under way: a service answers a few of one namespace at a time
SESSION_TASKS: Final = 4  # of an entity, where `partitions` does not say
# That one receives: to start another task takes longer than a thousand short sessions.
SESSIONS_A_TASK: Final = 1_000


def session_ranges(names: Sequence[str], tasks: int) -> list[tuple[str, ...]]:
    """Sessions in so many ranges of equal size, one for a task; fewer where there are not so many sessions."""
    tasks = min(len(names), tasks)
    edges = [len(names) * index // tasks for index in range(tasks + 1)] if tasks else []
    assert not edges or (edges[0], edges[-1]) == (0, len(names)), "every session is in a range"
    return [tuple(names[at:end]) for at, end in zip(edges, edges[1:], strict=False)]


def session_tasks(partitions: int) -> int:
    """How many tasks share the sessions of an entity."""
    return SESSION_TASKS if partitions == 1 else partitions


def tasks_by_sessions(sessions: int) -> int:
    """How many tasks so many sessions are enough work for, if each has few messages."""
    tasks = max(1, min(SESSION_TASKS, -(-sessions // SESSIONS_A_TASK)))
    assert tasks <= max(1, sessions), "no task is without a session"
    return tasks


class SessionPages:
    """The messages of some sessions with numbers from `start` up to and without `end`, at most `count_max` of them."""

    def __init__(
        self,
        pool: ConnectionPool,
        counted: CountedPool,
        options: ReadOptions,
        entity: str,
        sessions: Sequence[str],
        numbers: tuple[int, int],
        count_max: int,
        omits_body: bool,
    ) -> None:
        self._pool = pool
        self._counted = counted
        self._options = options
        self._entity = entity
        self._waiting = deque(sessions)
        self._start, self._end = numbers
        self._left = count_max or None
        self._omits_body = omits_body
        self._side = SideBySide(self._work, min(SESSIONS_BROWSED_AT_A_TIME, len(sessions)))

    def pages(self) -> Iterator[list[ReceivedMessage]]:
        """The next page is asked for while the last one is made into rows."""
        coming = self._pool.start(self._side.next())
        try:
            while messages := coming.result():
                if self._left is not None:
                    messages = messages[: self._left]
                    self._left -= len(messages)
                    assert self._left >= 0, "no more is read than was asked for"
                if self._left != 0:
                    coming = self._pool.start(self._side.next())
                yield messages
                if self._left == 0:
                    return
        finally:
            coming.cancel()
            self._pool.run(self._side.stop())

    async def _work(self) -> None:
        # One for each worker: an outage that some of them meet is told once by each, and each has the whole patience.
        patience = Patience(self._options.access, self._entity)
        while self._waiting and self._left != 0:
            await self._browse(self._waiting.popleft(), patience)

    async def _browse(self, session_id: str, patience: Patience) -> None:
        at = self._start
        while at < self._end:
            found = await patiently(patience, partial(self._peek, session_id, at))
            messages = [message for message in found if (message.sequence_number or 0) < self._end]
            if messages:
                await self._side.put(messages)
            if len(messages) < len(found) or not found:
                return
            at = (found[-1].sequence_number or 0) + 1

    async def _peek(self, session_id: str, start: int) -> list[ReceivedMessage]:
        """The same messages, however often it takes to ask."""
        management = self._counted.management(await self._counted.connection(self._options.access), self._entity)
        count = min(PEEKED_AT_A_TIME, self._end - start)
        if self._left is not None:
            count = max(1, min(count, self._left))
        return await management.peek(start, count, session_id=session_id, omit_body=self._omits_body)
