"""The primary, as a syphon sees it: one entity after the other is sent to, and none holds up another.

Every destination has a line, and a task while there is something in it: it attaches a sender, packs what waits into
batches and posts them one behind the other, without waiting for the answers in between. All of a destination goes over
one link in the order in which it came; a batch is of one session or partition, or of messages without either. What an
answer means is for the policy; what becomes of the messages is for the lane that they came from.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final, Protocol

from spillway.client import (
    BATCH_FORMAT,
    ClientError,
    Connection,
    ConnectionLost,
    LinkClosed,
    OutgoingMessage,
    ReceivedMessage,
    Sender,
    encode_batch_raw,
)
from spillway.syphon.crash import SENT, crash_at
from spillway.syphon.policy import DestinationState, EachAlone, Keep, as_client_error
from spillway.syphon.restore import Restored

BATCH_MESSAGES_MAX: Final = 1_000
BATCH_BYTES_MAX: Final = 262_144  # Azure Standard, where a link does not say
BATCH_BYTES_USEFUL: Final = 1_048_576  # a premium namespace takes more; nothing is gained by it
ENVELOPE_BYTES: Final = 1_024
DATA_BYTES: Final = 8  # around a message of a batch
WINDOW: Final = 64  # batches under way to one destination
SENDERS_MAX: Final = 200  # links that are kept open
ATTACH_S: Final = 20.0
CLOSE_S: Final = 1.0

Opener = Callable[[], Awaitable[Connection]]


class MessageSource(Protocol):
    """The lane that messages came from: it settles them."""

    @property
    def is_open(self) -> bool:
        """Whether it can still settle; what it had is not sent any more when it cannot."""
        ...

    async def complete(self, items: "Sequence[Item]", destination: str) -> None:
        """The primary has these."""
        ...

    def retain(self, items: "Sequence[Item]", destination: str, error: ClientError, again_s: float = 0.0) -> None:
        """Refused. `again_s` is when they may be tried again; 0 if it is the message itself that was refused."""
        ...


class Item:
    """A message that goes home: as it was received, and as it is sent."""

    __slots__ = (
        "body_bytes",
        "is_posted",
        "key",
        "lane",
        "locked_s",
        "message",
        "number",
        "raw",
        "session_id",
        "since_s",
    )

    def __init__(self, lane: MessageSource, message: ReceivedMessage, home: Restored, now_s: float = 0.0) -> None:
        self.lane = lane
        self.message = message
        self.raw = home.raw
        self.key = home.key
        self.session_id = home.session_id
        self.number = home.sequence_number
        self.body_bytes = home.body_bytes
        self.since_s = now_s
        self.locked_s = now_s  # received, or its lock renewed
        self.is_posted = False  # on its way, and not answered yet


class Destination:
    """One entity of the primary. `error` is why it takes nothing now."""

    def __init__(self, path: str, refused_max: int | None) -> None:
        self.path = path
        self.state = DestinationState(refused_max)
        self.line: deque[Item] = deque()
        self.sender: Sender | None = None
        self.attaching = asyncio.Lock()  # one link, whoever needs it first
        self.task: asyncio.Task[None] | None = None
        self.error: ClientError | None = None
        self.held_count = 0  # messages that lanes keep for it
        self.used_s = 0.0

    @property
    def reason(self) -> ClientError:
        return self.error or LinkClosed("the destination was not sent to")


class Destinations:
    """All destinations. `open_connection` gives the connection to the primary, also a new one after it was lost."""

    def __init__(self, open_connection: Opener, refused_max: int | None = None, attach_s: float = ATTACH_S) -> None:
        self.open_connection = open_connection
        self.refused_max = refused_max
        self.attach_s = attach_s
        self.loop = asyncio.get_running_loop()
        self.by_path: dict[str, Destination] = {}
        self.tasks: set[asyncio.Task[None]] = set()
        self.lost: ClientError | None = None  # the connection, and with it all of them
        self.broken: BaseException | None = None  # a fault of ours: nobody may wait for an answer that never comes
        self.fault_count = 0

    def at(self, path: str) -> Destination:
        key = path.strip("/").lower()
        found = self.by_path.get(key)
        if found is None:
            found = self.by_path[key] = Destination(path.strip("/"), self.refused_max)
        return found

    def put(self, destination: Destination, items: Sequence[Item]) -> None:
        """Put items into the line of a destination; every item is answered through its lane."""
        destination.line.extend(items)
        if destination.task is None:
            destination.task = self._start(self._serve(destination))

    def tidy(self, now_s: float, idle_s: float) -> None:
        """Forget destinations that nothing is known or kept of, and close links that were not used for so long: the
        paths are what messages say, and there may be any number of them."""
        for key, each in list(self.by_path.items()):
            if each.line or each.task is not None or each.held_count or each.state.is_blocked(now_s):
                continue
            if each.sender is not None and each.sender.error is None:
                if each.sender.pending or now_s - each.used_s < idle_s:
                    continue
                each.sender.end(LinkClosed("the link was not used any more"))
            del self.by_path[key]

    async def close(self, timeout_s: float = CLOSE_S) -> None:
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        senders = [each.sender for each in self.by_path.values() if each.sender is not None]
        self.by_path.clear()
        await asyncio.gather(*(sender.close(timeout=timeout_s) for sender in senders))

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.broken = task.exception()
            self.fault_count += 1

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
                await self._post(destination, sender, batches)
        except Exception as error:  # also what opening a connection may raise: those behind wait, and are told why
            self._unreachable(destination, as_client_error(error))
        finally:
            destination.task = None
        self._retain(destination, [item for batch in batches for item in batch])
        self._retain_line(destination)

    async def _post(self, destination: Destination, sender: Sender, batches: deque[list[Item]]) -> None:
        """One behind the other; or, where the last answer was a refusal, one at a time until something is taken."""
        while batches:
            await sender.ready()
            if self._is_blocked(destination):
                return
            batches[0] = _of_open_lanes(batches[0])
            if not batches[0]:
                batches.popleft()
                continue
            outcome = sender.post_raw(*_encoded(batches[0]))
            destination.used_s = self.loop.time()
            finishing = self._await(destination, sender, batches.popleft(), outcome)
            if not destination.state.is_proven:
                await asyncio.wait([finishing])

    def _is_blocked(self, destination: Destination) -> bool:
        return destination.state.is_blocked(self.loop.time())

    async def _sender(self, destination: Destination) -> Sender:
        async with destination.attaching:
            if destination.sender is None or destination.sender.error is not None:
                self._make_room()
                connection = await self.open_connection()
                destination.sender = await connection.sender(destination.path, window=WINDOW, timeout=self.attach_s)
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

    def _await(
        self, destination: Destination, sender: Sender, batch: list[Item], outcome: "asyncio.Future[None]"
    ) -> asyncio.Task[None]:
        for item in batch:
            item.is_posted = True
        return self._start(self._finish(destination, sender, batch, outcome))

    async def _finish(
        self, destination: Destination, sender: Sender, batch: list[Item], outcome: "asyncio.Future[None]"
    ) -> None:
        try:
            await outcome
        except ClientError as error:
            await self._refused(destination, batch, error, is_link_over=sender.error is error)
            return
        finally:
            for item in batch:
                item.is_posted = False
        destination.state.on_accepted()
        crash_at(SENT)
        for lane, items in _by_lane(batch):
            await lane.complete(items, destination.path)

    async def _refused(
        self, destination: Destination, batch: list[Item], error: ClientError, is_link_over: bool
    ) -> None:
        self._note(destination, error)
        decision = destination.state.on_refused(error, len(batch), self.loop.time(), is_link_over)
        if isinstance(decision, EachAlone):
            await self._finish_each(destination, batch)
        elif isinstance(decision, Keep):
            batch[0].lane.retain(batch, destination.path, error)
        else:
            self._retain(destination, batch)

    async def _finish_each(self, destination: Destination, batch: list[Item]) -> None:
        """One of them is to blame for the refusal of all: each for itself; on a new link, where it has ended that."""
        for at, item in enumerate(batch):
            try:
                if self._is_blocked(destination):
                    raise destination.reason.with_traceback(None)
                sender = await self._sender(destination)
                await sender.ready()
                outcome = sender.post_raw(item.raw)
            except Exception as error:  # also what opening a connection may raise
                if not self._is_blocked(destination):
                    self._unreachable(destination, as_client_error(error))
                self._retain(destination, batch[at:])
                return
            self._await(destination, sender, [item], outcome)

    def _unreachable(self, destination: Destination, error: ClientError) -> None:
        self._note(destination, error)
        destination.state.on_unreachable(error, self.loop.time())

    def _note(self, destination: Destination, error: ClientError) -> None:
        if isinstance(error, ConnectionLost):
            self.lost = error
        destination.error = error

    def _retain_line(self, destination: Destination) -> None:
        items = list(destination.line)
        destination.line.clear()
        self._retain(destination, items)

    def _retain(self, destination: Destination, items: list[Item]) -> None:
        """Keep messages for what the destination said, not for what they are: they may be tried again."""
        for lane, those in _by_lane(items):
            lane.retain(those, destination.path, destination.reason, max(destination.state.retry_at_s, 0.001))


def _by_lane(items: Sequence[Item]) -> list[tuple[MessageSource, list[Item]]]:
    """Nearly always all of one."""
    by_lane: dict[MessageSource, list[Item]] = {}
    lane: MessageSource | None = None
    those: list[Item] = []
    for item in items:
        if item.lane is not lane:
            lane = item.lane
            those = by_lane.setdefault(lane, [])
        those.append(item)
    return list(by_lane.items())


def _of_open_lanes(items: list[Item]) -> list[Item]:
    """Without those that their lane cannot settle any more."""
    if all(lane.is_open for lane in {item.lane for item in items}):
        return items
    return [item for item in items if item.lane.is_open]


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
