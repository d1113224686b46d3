"""Locks that outlive the task that took them: renewed from this process until somebody settles them, or time is up.

A row is handed on, written and settled long after its task has ended, and the first batches of a query are slow. A
message session's lock goes with its link, so that the link is held as well.

A task that fails leaves locks that nobody will settle, and its process cannot know. Where a query says that it settles
a batch before the next one begins (the option `holder`), the next one that is received here lets go of what is left.
"""

import asyncio
import time
import uuid
from collections.abc import Sequence
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from spillway.client import ClientError, MessageNotFound, ReceivedMessage, Receiver
from spillway.spark.platform.access import Access
from spillway.spark.platform.connection_pool import ConnectionPool
from spillway.spark.source.tokens import renew_tokens, settle_tokens

# A lock is renewed when a third of it is over. When it ends the service says, by its own clock: one that differs from
# this machine's by more than two thirds of a lock makes that too late, or all the time.
PART: Final = 3
INTERVAL_S_MIN: Final = 1.0
INTERVAL_S_MAX: Final = 60.0
# How often it is looked whether all messages of a session are settled, so that the next batch can have it.
SESSION_LOOK_S: Final = 2.0


class Batch(NamedTuple):
    """Whose locks are taken. `order` grows from one batch of a holder to the next, over all starts of its query."""

    holder: str
    order: tuple[int, int]

    def is_before(self, other: "Batch") -> bool:
        return self.holder == other.holder and self.order < other.order


class Kept:
    """Locks that were taken together, until they are settled, time is up, or they are let go."""

    def __init__(self, access: Access, entity: str, batch: Batch | None, interval_s: float, renew_s: float) -> None:
        self.access = access
        self.entity = entity
        self.batch = batch
        self.interval_s = interval_s
        self.until_s = time.monotonic() + renew_s
        self.tokens: list[uuid.UUID] = []  # none of a session, which is held as a whole
        self.is_let_go = asyncio.Event()

    async def wait(self, seconds: float) -> bool:
        """Whether it is still to be kept after this time."""
        try:
            await asyncio.wait_for(self.is_let_go.wait(), seconds)
            return False
        except TimeoutError:
            return True


class LockRenewer:
    """Of one process; everything happens on the pool's loop."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._kept: dict[Kept, asyncio.Task[None]] = {}

    def keep(
        self,
        access: Access,
        entity: str,
        messages: Sequence[ReceivedMessage],
        renew_s: float,
        batch: Batch | None = None,
    ) -> None:
        """Renew the locks of these messages for `renew_s` seconds."""
        kept = Kept(access, entity, batch, interval(messages), renew_s)
        # Tokens only: the messages themselves are large, and are needed by nobody here.
        kept.tokens = [message.lock_token for message in messages if message.lock_token is not None]
        if renew_s > 0 and kept.tokens:
            self._start(kept, self._pool.loop.create_task(self._keep(kept)))

    def hold(
        self,
        access: Access,
        entity: str,
        receiver: Receiver,
        messages: Sequence[ReceivedMessage],
        renew_s: float,
        batch: Batch | None = None,
    ) -> None:
        """Hold a message session until its messages are settled, or for `renew_s` seconds; then close the receiver."""
        kept = Kept(access, entity, batch, interval(messages), renew_s)
        numbers = (messages[0].sequence_number or 0, messages[-1].sequence_number or 0)
        self._start(kept, self._pool.loop.create_task(self._hold(kept, receiver, numbers)))

    async def let_go_before(self, batch: Batch) -> None:
        """What earlier batches of the same holder have received here and not settled can be received again, at once.

        Nobody will settle it: the holder has said so. If it is settled all the same, it counts as lost, and comes
        again. What cannot be given back is at least not renewed any more.
        """
        earlier = [(kept, task) for kept, task in self._kept.items() if kept.batch and kept.batch.is_before(batch)]
        for kept, _ in earlier:
            kept.is_let_go.set()
        await asyncio.gather(*[self._give_back(kept) if kept.tokens else task for kept, task in earlier])

    async def _give_back(self, kept: Kept) -> None:
        tokens = kept.tokens
        try:
            management = self._pool.management(await self._pool.connection(kept.access), kept.entity)
            # Rows are settled together: usually all of them are, and the first one tells.
            if not await settle_tokens(management, tokens[:1], "abandon"):
                await settle_tokens(management, tokens[1:], "abandon")
        except ClientError:
            pass  # the locks run out

    def _start(self, kept: Kept, task: asyncio.Task[None]) -> None:
        self._kept[kept] = task
        task.add_done_callback(lambda _: self._kept.pop(kept, None))

    async def _keep(self, kept: Kept) -> None:
        wait_s = kept.interval_s
        while kept.tokens and time.monotonic() + wait_s < kept.until_s:
            if not await kept.wait(wait_s):
                return
            try:
                connection = await self._pool.connection(kept.access)
                kept.tokens = await renew_tokens(self._pool.management(connection, kept.entity), kept.tokens)
                wait_s = kept.interval_s
            except (ClientError, OSError) as error:
                if isinstance(error, ClientError) and not error.is_transient:
                    return  # the entity is gone, or the right: the locks run out
                wait_s = INTERVAL_S_MIN  # a connection that broke: another one may be in time

    async def _hold(self, kept: Kept, receiver: Receiver, numbers: tuple[int, int]) -> None:
        first, last = numbers
        renewed_s = time.monotonic()
        session_id = receiver.session_id or ""
        try:
            while receiver.error is None and time.monotonic() < kept.until_s:
                if not await kept.wait(min(SESSION_LOOK_S, kept.interval_s)):
                    break
                connection = await self._pool.connection(kept.access)
                management = self._pool.management(connection, kept.entity)
                try:
                    left = await management.peek(first, 1, session_id=session_id, omit_body=True)
                except MessageNotFound:
                    left = []
                if not left or (left[0].sequence_number or 0) > last:
                    break
                if time.monotonic() - renewed_s >= kept.interval_s:
                    await management.renew_session(session_id)
                    renewed_s = time.monotonic()
        except ClientError:
            pass
        finally:
            await receiver.close()


def interval(messages: Sequence[ReceivedMessage]) -> float:
    """How long to wait between renewals of these."""
    until_ms = messages[0].locked_until_ms or 0  # of those that came together the first has the shortest lock
    return min(INTERVAL_S_MAX, max(INTERVAL_S_MIN, (until_ms / 1000 - time.time()) / PART))


_renewers: WeakKeyDictionary[ConnectionPool, LockRenewer] = WeakKeyDictionary()


def lock_renewer_of(pool: ConnectionPool) -> LockRenewer:
    if pool not in _renewers:
        _renewers[pool] = LockRenewer(pool)
    return _renewers[pool]
