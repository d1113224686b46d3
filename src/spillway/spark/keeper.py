"""Locks that outlive the task that took them: renewed from this process until somebody settles them, or time is up.

A row is handed on, written and settled long after its task has ended, and the first batches of a query are slow. A
message session's lock goes with its link, so that the link is held as well.
"""

import asyncio
import time
import uuid
from collections.abc import Coroutine, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

from spillway.client import ClientError, MessageNotFound, ReceivedMessage, Receiver
from spillway.spark.link import Hub
from spillway.spark.options import Access
from spillway.spark.tokens import renew_tokens

# A lock is renewed when a third of it is over; clocks that differ do not make that never, or all the time.
PART: Final = 3
INTERVAL_S_MIN: Final = 1.0
INTERVAL_S_MAX: Final = 60.0
# How often it is looked whether all messages of a session are settled, so that the next batch can have it.
SESSION_LOOK_S: Final = 2.0


class Keeper:
    """Of one process; everything happens on the hub's loop."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._tasks: set[asyncio.Task[None]] = set()

    def keep(self, access: Access, entity: str, messages: Sequence[ReceivedMessage], renew_s: float) -> None:
        """Renew the locks of these messages for `renew_s` seconds."""
        # Tokens only: the messages themselves are large, and are needed by nobody here.
        tokens = [message.lock_token for message in messages if message.lock_token is not None]
        if renew_s > 0 and tokens:
            self._start(self._keep(access, entity, tokens, interval(messages), time.monotonic() + renew_s))

    def hold(
        self, access: Access, entity: str, receiver: Receiver, messages: Sequence[ReceivedMessage], renew_s: float
    ) -> None:
        """Hold a message session until its messages are settled, or for `renew_s` seconds; then close the receiver."""
        numbers = (messages[0].sequence_number or 0, messages[-1].sequence_number or 0)
        self._start(self._hold(access, entity, receiver, numbers, interval(messages), time.monotonic() + renew_s))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._hub.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _keep(
        self, access: Access, entity: str, tokens: Sequence[uuid.UUID], interval_s: float, until_s: float
    ) -> None:
        try:
            while tokens and time.monotonic() + interval_s < until_s:
                await asyncio.sleep(interval_s)
                connection = await self._hub.connection(access)
                tokens = await renew_tokens(self._hub.management(connection, entity), tokens)
        except ClientError:
            pass  # the connection, or the entity: the locks run out, and the messages are received again

    async def _hold(
        self,
        access: Access,
        entity: str,
        receiver: Receiver,
        numbers: tuple[int, int],
        interval_s: float,
        until_s: float,
    ) -> None:
        first, last = numbers
        renewed_s = time.monotonic()
        session_id = receiver.session_id or ""
        try:
            while receiver.error is None and time.monotonic() < until_s:
                await asyncio.sleep(min(SESSION_LOOK_S, interval_s))
                connection = await self._hub.connection(access)
                management = self._hub.management(connection, entity)
                try:
                    left = await management.peek(first, 1, session_id=session_id, omit_body=True)
                except MessageNotFound:
                    left = []
                if not left or (left[0].sequence_number or 0) > last:
                    break
                if time.monotonic() - renewed_s >= interval_s:
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


_keepers: WeakKeyDictionary[Hub, Keeper] = WeakKeyDictionary()


def keeper_of(hub: Hub) -> Keeper:
    if hub not in _keepers:
        _keepers[hub] = Keeper(hub)
    return _keepers[hub]
