"""The primary, as a mover sees it: one entity after the other is sent to, and none holds up another.

Every destination has a line, and a task while there is something in it: it attaches a sender, packs what waits into
batches and posts them one behind the other, without waiting for the answers in between. All of a destination goes over
one link in the order in which it came; a batch is of one session or partition, or of messages without either.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final

from spillway.client import (
    BATCH_FORMAT,
    ClientError,
    Connection,
    ConnectionLost,
    EntityDisabled,
    EntityNotFound,
    LinkClosed,
    OperationTimeout,
    OutgoingMessage,
    QuotaExceeded,
    ReceivedMessage,
    Sender,
    ServerBusy,
    Unauthorized,
    encode_batch_raw,
)
from spillway.spark.crash import SENT, crash_at
from spillway.spark.restore import Restored
from spillway.spark.tally import reason_of

if TYPE_CHECKING:
    from spillway.spark.move import Lane

BATCH_MESSAGES_MAX: Final = 1_000
BATCH_BYTES_MAX: Final = 262_144  # Azure Standard, where a link does not say
BATCH_BYTES_USEFUL: Final = 1_048_576  # a premium namespace takes more; nothing is gained by it
ENVELOPE_BYTES: Final = 1_024
DATA_BYTES: Final = 8  # around a message of a batch
WINDOW: Final = 64  # batches under way to one destination
SENDERS_MAX: Final = 200  # links that are kept open
ATTACH_S: Final = 20.0

PAUSE_S: Final = 0.5
PAUSE_MAX_S: Final = 10.0
BUSY_PAUSE_S: Final = 10.0  # contract I6

# What says something of the destination, not of one message.
OF_THE_DESTINATION: Final = (
    ConnectionLost,
    EntityDisabled,
    EntityNotFound,
    LinkClosed,
    OperationTimeout,
    QuotaExceeded,
    ServerBusy,
    Unauthorized,
)


class Item:
    """A message that goes home: as it was received, and as it is sent."""

    __slots__ = ("key", "lane", "message", "number", "raw", "session_id")

    def __init__(self, lane: "Lane", message: ReceivedMessage, home: Restored) -> None:
        self.lane = lane
        self.message = message
        self.raw = home.raw
        self.key = home.key
        self.session_id = home.session_id
        self.number = home.sequence_number


class Destination:
    """One entity of the primary. `reason` is why it takes nothing now."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.line: deque[Item] = deque()
        self.sender: Sender | None = None
        self.task: asyncio.Task[None] | None = None
        self.blocked_until_s = 0.0
        self.refused_until_s = 0.0  # the same, but not forgotten when something else is accepted
        self.pause_s = PAUSE_S
        self.reason = ""

    def block(self, error: ClientError, now_s: float) -> None:
        """Refused: those behind need not be tried for a while."""
        if now_s >= self.blocked_until_s:  # the first of several that were under way together
            pause_s = max(BUSY_PAUSE_S, self.pause_s) if isinstance(error, ServerBusy) else self.pause_s
            self.blocked_until_s = self.refused_until_s = now_s + pause_s
            self.pause_s = min(PAUSE_MAX_S, self.pause_s * 2)
        self.reason = reason_of(error)

    def accepted(self) -> None:
        self.blocked_until_s = 0.0
        self.pause_s = PAUSE_S


class Destinations:
    """All of them, over one connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.loop = asyncio.get_running_loop()
        self.by_path: dict[str, Destination] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self.lost: ClientError | None = None  # the connection, and with it all of them
        self.broken: BaseException | None = None  # a fault of ours: nobody may wait for an answer that never comes

    def at(self, path: str) -> Destination:
        key = path.strip("/").lower()
        found = self.by_path.get(key)
        if found is None:
            found = self.by_path[key] = Destination(path.strip("/"))
        return found

    def put(self, destination: Destination, items: Sequence[Item]) -> None:
        """Into the line; every item is answered through its lane."""
        destination.line.extend(items)
        if destination.task is None:
            destination.task = self._start(self._serve(destination))

    async def close(self) -> None:
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        senders = [each.sender for each in self.by_path.values() if each.sender is not None]
        self.by_path.clear()
        await asyncio.gather(*(sender.close(timeout=1.0) for sender in senders))

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.broken = self.broken or task.exception()

    def raise_if_broken(self) -> None:
        if self.broken is not None:
            raise self.broken

    # -- one destination ------------------------------------------------------------------------------------------

    async def _serve(self, destination: Destination) -> None:
        batches: deque[list[Item]] = deque()  # packed and not yet posted
        try:
            while destination.line and not self._is_blocked(destination):
                sender = await self._sender(destination)
                batches.extend(_batches(destination.line, sender.max_message_size or BATCH_BYTES_MAX))
                while batches:
                    await sender.ready()
                    if self._is_blocked(destination):
                        break
                    outcome = sender.post_raw(*_encoded(batches[0]))
                    self._start(self._finish(destination, batches.popleft(), outcome))
        except ClientError as error:
            self._refuse(destination, error, [])
        finally:
            destination.task = None
        self._keep(destination, [item for batch in batches for item in batch])
        self._keep_line(destination)

    def _is_blocked(self, destination: Destination) -> bool:
        return destination.blocked_until_s > self.loop.time()

    async def _sender(self, destination: Destination) -> Sender:
        if destination.sender is None or destination.sender.error is not None:
            self._make_room()
            destination.sender = await self.connection.sender(destination.path, window=WINDOW, timeout=ATTACH_S)
        return destination.sender

    def _make_room(self) -> None:
        """Links are not kept for thousands of destinations: one that has nothing to do makes room."""
        kept = [each for each in self.by_path.values() if each.sender is not None and each.sender.error is None]
        if len(kept) < SENDERS_MAX:
            return
        for each in kept:
            sender = each.sender
            if each.task is None and sender is not None and not sender.pending:
                each.sender = None
                sender.end(LinkClosed("the link makes room for another"))
                return

    async def _finish(self, destination: Destination, batch: list[Item], outcome: "asyncio.Future[None]") -> None:
        try:
            await outcome
        except OF_THE_DESTINATION as error:
            self._refuse(destination, error, batch)
        except ClientError as error:
            if len(batch) == 1:
                batch[0].lane.keep(batch, destination.path, reason_of(error))
            else:
                await self._finish_each(destination, batch)
        else:
            destination.accepted()
            crash_at(SENT)
            for lane, items in _by_lane(batch):
                await lane.complete(items, destination.path)

    async def _finish_each(self, destination: Destination, batch: list[Item]) -> None:
        """One of them is to blame for the refusal of all: each for itself."""
        sender = destination.sender
        for at, item in enumerate(batch):
            try:
                if sender is None:
                    raise LinkClosed("the link to the destination has ended")
                await sender.ready()
                outcome = sender.post_raw(item.raw)
            except ClientError as error:
                self._refuse(destination, error, batch[at:])
                return
            self._start(self._finish(destination, [item], outcome))

    def _refuse(self, destination: Destination, error: ClientError, items: list[Item]) -> None:
        if isinstance(error, ConnectionLost):
            self.lost = error
        destination.block(error, self.loop.time())
        self._keep(destination, items)

    def _keep_line(self, destination: Destination) -> None:
        items = list(destination.line)
        destination.line.clear()
        self._keep(destination, items)

    def _keep(self, destination: Destination, items: list[Item]) -> None:
        """For what the destination said, not for what they are: they may be tried again."""
        for lane, those in _by_lane(items):
            lane.keep(those, destination.path, destination.reason, destination.refused_until_s)


def _by_lane(items: Sequence[Item]) -> list[tuple["Lane", list[Item]]]:
    """Nearly always all of one."""
    by_lane: dict[Lane, list[Item]] = {}
    for item in items:
        by_lane.setdefault(item.lane, []).append(item)
    return list(by_lane.items())


def _batches(line: deque[Item], bytes_max: int) -> list[list[Item]]:
    """What is in the line now, in batches that fit. Those of one session or partition stay in their order."""
    room = min(bytes_max, BATCH_BYTES_USEFUL) - ENVELOPE_BYTES
    batches: list[list[Item]] = []
    open_batches: dict[str | None, tuple[list[Item], int]] = {}
    while line:
        item = line.popleft()
        size = len(item.raw) + DATA_BYTES
        batch, taken = open_batches.get(item.key, ([], 0))
        if not batch or taken + size > room or len(batch) >= BATCH_MESSAGES_MAX:
            batch, taken = [], 0
            batches.append(batch)
        batch.append(item)
        open_batches[item.key] = (batch, taken + size)
    return batches


def _encoded(batch: list[Item]) -> tuple[bytes, int]:
    """Alone a message needs no envelope; several have one that says for which session or partition they are."""
    if len(batch) == 1:
        return batch[0].raw, 0
    first = batch[0]
    envelope = None
    if first.key is not None:
        envelope = OutgoingMessage(session_id=first.session_id, partition_key=first.key)
    return encode_batch_raw([item.raw for item in batch], envelope), BATCH_FORMAT
