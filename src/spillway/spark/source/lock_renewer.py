"""Locks that outlive the task that took them: renewed until somebody settles them, or time is up.

A row is handed on, written and settled long after its task has ended. Locks of messages are renewed by a process beside
the executor (`lock_keeper`), because Spark ends the Python workers that took them. A message session's lock goes with
its link: the worker that has the link holds it, for as long as the worker lives (`session_holder`).

A batch that fails leaves locks that nobody will settle. A query settles a batch before the next one begins (the option
`holder`), so they are released when a later batch of the same holder begins, or when the query has ended.
"""

import asyncio
import uuid
from collections.abc import Sequence
from typing import NamedTuple
from weakref import WeakKeyDictionary

from spillway.client import ClientError, ReceivedMessage
from spillway.spark.platform.access import Access
from spillway.spark.platform.connection_pool import ConnectionPool
from spillway.spark.platform.patience import is_transient
from spillway.spark.platform.processes import ProcessId
from spillway.spark.source.renewal_pace import INTERVAL_S_MIN, RenewalPace, interval_until
from spillway.spark.source.session_holder import Holding
from spillway.spark.source.tokens import renew_tokens, settle_tokens


class LockBatch(NamedTuple):
    """Whose locks are taken. `order` grows from one batch of a holder to the next, over all starts of its query."""

    holder: str
    order: tuple[int, int]
    planner: ProcessId | None = None  # the process that plans the query's batches, and ends with the query

    def is_before(self, other: "LockBatch") -> bool:
        return self.holder == other.holder and self.order < other.order

    def is_orphaned(self) -> bool:
        """Whether its query has ended, as far as can be seen on this machine."""
        return self.planner is not None and self.planner.has_ended()


class Kept:
    """Locks that were taken together, until they are settled, time is up, or they are released."""

    def __init__(self, access: Access, entity: str, batch: LockBatch | None, interval_s: float, until_s: float) -> None:
        self.access = access
        self.entity = entity
        self.batch = batch
        self.interval_s = interval_s
        self.until_s = until_s
        self.tokens: list[uuid.UUID] = []
        self.holding: Holding | None = None  # of sessions, which are held as a whole
        self.released = asyncio.Event()


class LockRenewer:
    """The locks that one process keeps; everything happens on the pool's loop."""

    def __init__(self, pool: ConnectionPool, pace: RenewalPace | None = None) -> None:
        self._pool = pool
        self._pace = pace or RenewalPace()
        self._kept: dict[Kept, asyncio.Task[None]] = {}

    @property
    def count(self) -> int:
        """How many locks are kept now, a session as one."""
        return sum(len(kept.tokens) if kept.holding is None else max(1, kept.holding.count) for kept in self._kept)

    def renew(
        self,
        access: Access,
        entity: str,
        tokens: Sequence[uuid.UUID],
        interval_s: float,
        renew_s: float,
        batch: LockBatch | None = None,
    ) -> None:
        """Renew these locks every `interval_s` for `renew_s` seconds."""
        kept = Kept(access, entity, batch, interval_s, self._pace.now_s() + renew_s)
        kept.tokens = list(tokens)
        if renew_s > 0 and kept.tokens:
            self._start(kept, self._pool.loop.create_task(self._renew_until_released(kept)))

    def holding(self, access: Access, entity: str, renew_s: float, batch: LockBatch | None = None) -> Holding:
        """Where to put sessions that are to be held until their messages are settled, or for `renew_s` seconds."""
        kept = Kept(access, entity, batch, 0.0, 0.0)
        is_orphaned = (lambda: False) if batch is None else batch.is_orphaned
        kept.holding = Holding(self._pool, access, entity, renew_s, self._pace, is_orphaned)
        kept.released = kept.holding.released
        self._start(kept, self._pool.loop.create_task(kept.holding.run()))
        return kept.holding

    async def release_before(self, batch: LockBatch) -> int:
        """What earlier batches of the same holder have received and not settled can be received again, at once.

        The answer is how many messages.

        Nobody will settle it: the holder has said so. If it is settled all the same, it counts as lost, and comes
        again. What cannot be released is at least not renewed any more.
        """
        return await self._release([kept for kept in self._kept if kept.batch and kept.batch.is_before(batch)])

    async def release_orphans(self) -> None:
        """The same for batches whose query has ended."""
        ended = {kept.batch for kept in self._kept if kept.batch and kept.batch.is_orphaned()}
        await self._release([kept for kept in self._kept if kept.batch in ended])

    async def _release(self, released: Sequence[Kept]) -> int:
        tasks = [self._kept[kept] for kept in released]
        for kept in released:
            kept.released.set()
        ended = [
            self._abandon(kept) if kept.tokens else _ended(task) for kept, task in zip(released, tasks, strict=True)
        ]
        return sum(await asyncio.gather(*ended))

    async def _abandon(self, kept: Kept) -> int:
        tokens = kept.tokens
        try:
            management = self._pool.management(await self._pool.connection(kept.access), kept.entity)
            # Rows are settled together: usually all of them are, and the first one tells.
            if await settle_tokens(management, tokens[:1], "abandon"):
                return 0
            return len(tokens) - len(await settle_tokens(management, tokens[1:], "abandon"))
        except (ClientError, OSError):
            return 0  # the locks run out

    def _start(self, kept: Kept, task: asyncio.Task[None]) -> None:
        assert kept not in self._kept, "locks are kept by one task"
        self._kept[kept] = task
        task.add_done_callback(lambda _: self._kept.pop(kept, None))

    async def _renew_until_released(self, kept: Kept) -> None:
        wait_s = kept.interval_s
        while kept.tokens and self._pace.now_s() + wait_s < kept.until_s:
            if not await self._pace.wait(kept.released, wait_s):
                return
            try:
                connection = await self._pool.connection(kept.access)
                kept.tokens = await renew_tokens(self._pool.management(connection, kept.entity), kept.tokens)
                wait_s = kept.interval_s
            except (ClientError, OSError) as error:
                if isinstance(error, ClientError) and not is_transient(error):
                    return  # the entity is gone, or the right: the locks run out
                wait_s = INTERVAL_S_MIN  # a connection that broke: another one may be in time


async def _ended(task: asyncio.Task[None]) -> int:
    """Of sessions that are held: whether they had messages left is not known."""
    await task
    return 0


def interval(messages: Sequence[ReceivedMessage]) -> float:
    """How long to wait between renewals of these."""
    until_ms = messages[0].locked_until_ms or 0  # of those that came together the first has the shortest lock
    return interval_until(until_ms)


_renewers: WeakKeyDictionary[ConnectionPool, LockRenewer] = WeakKeyDictionary()


def lock_renewer_of(pool: ConnectionPool) -> LockRenewer:
    if pool not in _renewers:
        _renewers[pool] = LockRenewer(pool)
    return _renewers[pool]
