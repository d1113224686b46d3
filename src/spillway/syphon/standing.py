"""The standing syphon: waits at the backlog queues of a pairing, for as long as its program runs.

At least once, as a pass (`move.py`). An idle queue costs one receive in `long_poll_s`. Messages whose destination takes
nothing are held, with their locks, and tried again after pauses; when as many are held as memory allows, those behind
them are still reached: what is found there for a blocked destination is set aside, which is to keep its lock and forget
its bytes. Both connections are made anew when they end. Nothing that a message contains is looked at but the few
entries that say where it belongs.

    QueueSyphon   one backlog queue, for ever: a receiver after the other
      StandingLane  one receiver: a task that receives, one that looks after held messages and locks
"""

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Final

from spillway.client import (
    ClientError,
    EntityNotFound,
    Management,
    MessageLockLost,
    ReceivedMessage,
    Receiver,
    ServerBusy,
)
from spillway.model.aliases import Malformed
from spillway.syphon.destinations import ATTACH_S, Destination, Destinations, Item, Opener
from spillway.syphon.lane import BacklogLane, Receiving, renew_locks
from spillway.syphon.observer import Observer
from spillway.syphon.policy import (
    BUSY_PAUSE_S,
    FURTHER_MAX_S,
    FURTHER_S,
    HOLD_S,
    REFUSED_MAX,
    RENEW_SHARE,
    BackOff,
    Polls,
    ReceiveSize,
    as_client_error,
    failure_of,
)
from spillway.syphon.reconnecting import Reconnecting
from spillway.syphon.restore import Ttl

LONG_POLL_S: Final = 900.0  # contract F9
SHORT_POLL_S: Final = 0.2  # behind held messages: what is there now
OPERATION_TIMEOUT_S: Final = 60.0
ACTIVE_MAX: Final = 1_000  # messages of one queue that are being sent or settled
ACTIVE_BYTES_MAX: Final = 16 * 1024 * 1024
HELD_MAX: Final = 1_000  # messages of one queue that wait for their destination
HELD_BYTES_MAX: Final = 16 * 1024 * 1024
ASIDE_MAX: Final = 5_000  # locks of one queue that are remembered, to give them back in time
SCAN_MAX: Final = 50_000  # messages that are looked at in one go behind those that are held
REPORTED_MAX: Final = 10_000
TEND_S: Final = 1.0  # at most between two looks at what is held and locked
TIDY_S: Final = 5.0
LINK_IDLE_S: Final = 60.0  # a link to a destination that was not used for so long is closed
GRACE_S: Final = 1.5  # of a close: what is on its way is waited for
RECEIVER_CLOSE_S: Final = 0.3
LANES_CLOSE_S: Final = 2.5
CONNECTIONS_CLOSE_S: Final = 1.0


class StandingSyphon:
    """All backlog queues of a pairing, over one connection to each namespace."""

    def __init__(
        self,
        open_primary: Opener,
        open_secondary: Opener,
        queues: Sequence[str],
        observer: Observer,
        *,
        ttl: Ttl = "restart",
        long_poll_s: float = LONG_POLL_S,
        operation_timeout_s: float = OPERATION_TIMEOUT_S,
    ) -> None:
        assert queues, "a pairing has a backlog queue at least"
        self.primary = Reconnecting(open_primary, operation_timeout_s)
        self.secondary = Reconnecting(open_secondary, operation_timeout_s)
        self.destinations = Destinations(self.primary.connection, REFUSED_MAX, min(ATTACH_S, operation_timeout_s))
        self.observer = observer
        self.ttl: Ttl = ttl
        self.long_poll_s = long_poll_s
        self.queues = [self._queue(path) for path in queues]
        self._closing: asyncio.Task[None] | None = None
        self.tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self.tasks = [loop.create_task(queue.run()) for queue in self.queues]
        self.tasks.append(loop.create_task(self._tidy()))

    def add(self, path: str) -> None:
        """Add a backlog queue while the syphon runs."""
        assert not self.is_closed, "a syphon that is closed stays so"
        queue = self._queue(path)
        self.queues.append(queue)
        self.tasks.append(asyncio.get_running_loop().create_task(queue.run()))

    def _queue(self, path: str) -> "QueueSyphon":
        return QueueSyphon(path, self.secondary, self.destinations, self.observer, self.ttl, self.long_poll_s)

    async def tried(self) -> Exception | None:
        """Wait until the first queue's receiver is attached; or why it is not."""
        await self.queues[0].tried.wait()
        return self.queues[0].refusal

    @property
    def outstanding_count(self) -> int:
        """Messages that are received and not yet settled."""
        return sum(queue.lane.outstanding for queue in self.queues if queue.lane is not None)

    def held_counts(self) -> dict[tuple[str, str], int]:
        """Messages that wait for their destination, by backlog queue and the destination's path in small letters."""
        lanes = [queue.lane for queue in self.queues if queue.lane is not None]
        return {(lane.backlog, key): count for lane in lanes for key, count in lane.kept_counts().items()}

    async def close(self) -> None:
        """What is on its way is waited for, for a moment; everything else is given back. Whoever calls it again, or
        gives up waiting, changes nothing."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        await asyncio.shield(self._closing)

    @property
    def is_closed(self) -> bool:
        return self._closing is not None

    async def _close(self) -> None:
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=LANES_CLOSE_S)
        await self.destinations.close(timeout_s=0.0)
        await asyncio.gather(
            self.primary.close(CONNECTIONS_CLOSE_S), self.secondary.close(CONNECTIONS_CLOSE_S), return_exceptions=True
        )
        left = [task for task in self.tasks if not task.done()]
        for task in left:
            task.cancel()  # it did not hear of the first
        if left:
            await asyncio.wait(left, timeout=RECEIVER_CLOSE_S)

    async def _tidy(self) -> None:
        while True:
            await asyncio.sleep(TIDY_S)
            self.destinations.tidy(asyncio.get_running_loop().time(), LINK_IDLE_S)


class QueueSyphon:
    """One backlog queue. What ends its receiver is reported once, and another one is attached after a pause."""

    def __init__(
        self,
        path: str,
        secondary: Reconnecting,
        destinations: Destinations,
        observer: Observer,
        ttl: Ttl,
        long_poll_s: float,
    ) -> None:
        self.path = path
        self.secondary = secondary
        self.destinations = destinations
        self.observer = observer
        self.ttl: Ttl = ttl
        self.long_poll_s = long_poll_s
        self.lane: StandingLane | None = None
        self.tried = asyncio.Event()  # to attach, for the first time
        self.refusal: ClientError | None = None  # what became of that
        self.reported = Reported()
        self._back_off = BackOff()
        self._last_problem = ""  # since it was last attached

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began_s = loop.time()
            least_s = 0.0
            try:
                await self._live()
            except Exception as error:
                failed = as_client_error(error)
                least_s = BUSY_PAUSE_S if failure_of(failed).is_busy else 0.0
                self._on_failed(failed)
            await asyncio.sleep(max(least_s, self._back_off.after(loop.time() - began_s)))

    async def _live(self) -> None:
        """Live as long as one receiver does."""
        connection = await self.secondary.connection()
        receiver = await connection.receiver(self.path)
        management = connection.management(self.path, link_name=receiver.name)
        self._last_problem = ""
        self.tried.set()
        self.lane = StandingLane(
            self.path, self.destinations, self.observer, receiver, management, self.ttl, self.long_poll_s, self.reported
        )
        try:
            await self.lane.serve()
        finally:
            lane, self.lane = self.lane, None
            await lane.close()

    def _on_failed(self, error: ClientError) -> None:
        if not self.tried.is_set():
            self.refusal = error
            self.tried.set()
        problem = "missing" if isinstance(error, EntityNotFound) else error.condition
        if problem != self._last_problem:  # a queue that nobody has made, or a namespace that is away: once
            self._last_problem = problem
            self.observer.interrupted(self.path, error)


class Reported:
    """Numbers of messages that are kept for what they are: each is reported once."""

    def __init__(self) -> None:
        self._numbers: dict[int, None] = {}

    def is_new(self, number: int) -> bool:
        if number in self._numbers:
            return False
        self._numbers[number] = None
        if len(self._numbers) > REPORTED_MAX:
            del self._numbers[next(iter(self._numbers))]
        return True


class Aside:
    """A message whose lock is kept, and nothing else. `key` is of the destination that it waits for, if it is that."""

    __slots__ = ("key", "message", "until_s")

    def __init__(self, message: ReceivedMessage, key: str, until_s: float) -> None:
        self.message = message
        self.key = key
        self.until_s = until_s


class StandingLane(BacklogLane):
    """One receiver of one backlog queue, until it fails."""

    def __init__(
        self,
        backlog: str,
        destinations: Destinations,
        observer: Observer,
        receiver: Receiver,
        management: Management,
        ttl: Ttl,
        long_poll_s: float,
        reported: Reported,
    ) -> None:
        super().__init__(backlog, destinations, ttl)
        self._receiver = receiver
        self.observer = observer
        self.management = management
        self.long_poll_s = long_poll_s
        self.reported = reported
        self.broken: ClientError | None = None  # the backlog did not answer a settlement
        self.held: dict[str, deque[Item]] = {}  # by destination
        self.held_count = 0
        self.held_bytes = 0
        self.aside: deque[Aside] = deque()
        self._aside_counts: Counter[str] = Counter()
        self._kept_destinations: set[str] = set()  # of which it was said that they take nothing
        self._changed = asyncio.Event()
        self._fault_count = destinations.fault_count

    async def serve(self) -> None:
        """Until the receiver, or whatever it needs, fails."""
        tasks = [self.loop.create_task(self.receive_for_ever(self.receiver)), self.loop.create_task(self._tend())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def close(self) -> None:
        """Wait a moment for what is on its way, give everything else back, and detach."""
        receiver = self.receiver
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GRACE_S):
                while receiver.error is None and self._is_anything_posted():
                    await self.wait_for_progress(0.05)
        self._is_open = False
        for message in [*(item.message for item in self.waiting.values()), *(each.message for each in self.aside)]:
            if not message.is_settled:
                receiver.release(message)
        for key in list(self.held):
            self._unhold(key)
        self.waiting.clear()
        self.aside.clear()
        await receiver.close(timeout=RECEIVER_CLOSE_S)
        await self.management.close()

    def _is_anything_posted(self) -> bool:
        return self.outstanding > len(self.waiting) or any(item.is_posted for item in self.waiting.values())

    # -- receiving ------------------------------------------------------------------------------------------------

    async def receive_for_ever(self, receiving: Receiving, clock: Callable[[], float] | None = None) -> None:
        """One receive after the other, as long as there is room."""
        now = clock or self.loop.time
        polls, size, further = Polls(), ReceiveSize(), BackOff(FURTHER_S, FURTHER_MAX_S)
        scanned = 0
        while True:
            await asyncio.sleep(0)  # a receive that has something at hand does not wait
            while self._is_full():
                await self.wait_for_progress(TEND_S)
            is_idle, is_scan = self.outstanding == 0, self._is_held_full()
            wait_s = SHORT_POLL_S if is_scan else self.long_poll_s
            began_s = now()
            messages = await receiving.receive(min(size.count, ACTIVE_MAX - self.active), wait_s)
            pause_s = polls.on_returned(len(messages), wait_s, now() - began_s)
            size.on_received(len(messages), sum(len(message.raw) for message in messages))
            self._tell_receive(len(messages), is_idle)
            self.sort(messages)
            if messages:
                self._changed.set()
            scanned = scanned + len(messages) if is_scan else 0
            if is_scan and (not messages or scanned >= SCAN_MAX):
                await self._rest(further.after())
                scanned = 0
            elif pause_s:
                await asyncio.sleep(pause_s)
            elif not is_scan:
                further.reset()

    def _tell_receive(self, count: int, is_idle: bool) -> None:
        if not count:
            self.observer.count_empty_receive(self.backlog)
        if is_idle:
            self.observer.polled(self.backlog, count)

    async def _rest(self, seconds: float) -> None:
        """So long, or until there is room for those that wait for their destinations."""
        until_s = self.loop.time() + seconds
        while self._is_held_full() and self.loop.time() < until_s:
            await self.wait_for_progress(min(TEND_S, until_s - self.loop.time()))

    @property
    def active(self) -> int:
        """Messages that are being sent or settled."""
        return self.outstanding - self.held_count

    def _is_full(self) -> bool:
        return self.active >= ACTIVE_MAX or self.outstanding_bytes - self.held_bytes >= ACTIVE_BYTES_MAX

    def _is_held_full(self) -> bool:
        return self.held_count >= HELD_MAX or self.held_bytes >= HELD_BYTES_MAX

    # -- what comes in --------------------------------------------------------------------------------------------

    def on_received(self, body_bytes: int) -> None:
        self.observer.count_receive(self.backlog, body_bytes)

    def route(self, destination: Destination, items: list[Item]) -> None:
        key = destination.path.lower()
        if not destination.state.is_blocked(self.loop.time()) and key not in self.held:
            self.destinations.put(destination, items)
            return
        for item in items:  # behind those that wait already
            if self._is_held_full():
                self._discard(item, key)
            else:
                self._hold_back(destination, key, item)
        self._tell_kept(destination, key, destination.reason)
        self._changed.set()

    def _tell_kept(self, destination: Destination, key: str, error: ClientError) -> None:
        """Report a destination that refuses once, until it takes something again."""
        if key in self._kept_destinations:
            return
        if len(self._kept_destinations) >= REPORTED_MAX:  # paths are what messages say
            self._kept_destinations.clear()
        self._kept_destinations.add(key)
        self.observer.kept(destination.path, error, self.backlog, self.kept_counts()[key])

    def kept_counts(self) -> Counter[str]:
        """Messages that wait for their destination, by its key: held, or set aside."""
        found = Counter({key: len(items) for key, items in self.held.items()})
        found.update({key: count for key, count in self._aside_counts.items() if key})
        return found

    def retain(self, items: Sequence[Item], destination: str, error: ClientError, again_s: float = 0.0) -> None:
        if not self.is_open:
            return
        if not again_s:
            for item in items:
                self._discard(item, "")
                self._report(error, item.number)
            return
        found = self.destinations.at(destination)
        key = found.path.lower()
        for item in items:
            self._hold_back(found, key, item)
        self._tell_kept(found, key, error)
        self._changed.set()
        self.progress.set()

    def set_aside(self, message: ReceivedMessage, error: ClientError, number: int = 0) -> None:
        message.raw = b""
        self._put_aside(message, "", self.loop.time())
        self._report(error, number or message.delivery_id)

    def _report(self, error: ClientError, number: int) -> None:
        if self.reported.is_new(number):
            self.observer.message_kept(self.backlog, error, number)

    def _hold_back(self, destination: Destination, key: str, item: Item) -> None:
        self.held.setdefault(key, deque()).append(item)
        destination.held_count += 1
        self.held_count += 1
        self.held_bytes += len(item.raw)

    def _unhold(self, key: str) -> list[Item]:
        items = list(self.held.pop(key))
        self.destinations.at(key).held_count -= len(items)
        self.held_count -= len(items)
        self.held_bytes -= sum(len(item.raw) for item in items)
        return items

    def _discard(self, item: Item, key: str) -> None:
        """Forget all of an item but its lock."""
        self.waiting.pop(item.message.delivery_id, None)
        self._put_aside(item.message, key, item.locked_s)
        size_bytes, item.raw = len(item.raw), b""
        self._done(1, size_bytes)

    def _put_aside(self, message: ReceivedMessage, key: str, locked_s: float) -> None:
        if len(self.aside) < ASIDE_MAX:  # else its lock ends without us
            self.aside.append(Aside(message, key, locked_s + self.lock_span_s))
            self._aside_counts[key] += 1

    # -- what became of them ----------------------------------------------------------------------------------------

    def on_completed(self, items: Sequence[Item], destination: str, failed: dict[int, ClientError]) -> None:
        for item in items:
            self.observer.count_send(destination, item.body_bytes)
        self.observer.syphoned(destination, len(items), self.backlog)
        for _ in range(len(items) - len(failed)):
            self.observer.count_settle(self.backlog)
        for error in failed.values():
            # The primary has it; the backlog will hand it out again. The duplicate window makes one of the two.
            self.observer.repeated(self.backlog, error)
            if not isinstance(error, MessageLockLost):
                self._break(error)
        key = destination.lower()
        self._kept_destinations.discard(key)
        if self._aside_counts[key]:
            self._release(lambda each: each.key == key)
        if key in self.held:
            self._changed.set()

    def on_dead_lettered(self, error: Malformed, size_bytes: int, failed: ClientError | None) -> None:
        if failed is None:
            self.observer.count_settle(self.backlog)
            self.observer.dead_lettered(self.backlog, error)
        elif not isinstance(failed, MessageLockLost):
            self._break(failed)

    def _break(self, error: ClientError) -> None:
        """A secondary that does not answer is left: the next receiver is handed the message again."""
        self.broken = self.broken or error
        self._changed.set()

    # -- looking after what waits -------------------------------------------------------------------------------------

    async def _tend(self) -> None:
        while True:
            await self._until_changed()
            if self.broken is not None:
                raise self.broken.with_traceback(None)
            if self.destinations.fault_count != self._fault_count:  # of ours: messages of it may never be answered
                self.destinations.raise_if_broken()
            now_s = self.loop.time()
            self._try_held(now_s)
            await self._renew(now_s)
            self._release_ended(now_s)

    async def _until_changed(self) -> None:
        """Or so long as nothing is due. An idle lane sleeps until something comes."""
        wait_s: float | None = None
        if self.outstanding or self.aside:
            wait_s = min(TEND_S, self.lock_span_s / 10, self._next_try_s())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._changed.wait()
        self._changed.clear()

    def _next_try_s(self) -> float:
        now_s = self.loop.time()
        waits = [self.destinations.at(key).state.blocked_until_s - now_s for key in self.held]
        return max(0.02, min(waits, default=TEND_S))

    def _try_held(self, now_s: float) -> None:
        """Try held messages whose destination's pause is over, in their order."""
        for key in list(self.held):
            destination = self.destinations.at(key)
            if not destination.state.is_blocked(now_s):
                self.destinations.put(destination, self._unhold(key))

    async def _renew(self, now_s: float) -> None:
        """Locks of what takes long, for a while; what cannot be renewed is somebody else's now."""
        after_s = self.lock_span_s * RENEW_SHARE
        due = [item for item in self.waiting.values() if now_s - item.locked_s >= after_s]
        if not due:
            return
        kept = {item.message.delivery_id: item for item in due if now_s - item.since_s <= HOLD_S}
        try:
            lost = await renew_locks(self.management, [item.message for item in kept.values()])
        except ServerBusy:
            return  # a lock that ends meanwhile comes back by itself
        for message in lost:
            kept.pop(message.delivery_id, None)
        for item in kept.values():
            item.locked_s = now_s
            self.observer.count_renew(self.backlog)
        self._release_held({item.message.delivery_id for item in due} - set(kept))

    def _release_held(self, delivery_ids: set[int]) -> None:
        """Let go of messages that are held; a send under way goes on."""
        for key in list(self.held) if delivery_ids else ():
            destination = self.destinations.at(key)
            items = self._unhold(key)
            for item in items:
                if item.message.delivery_id in delivery_ids:
                    self._discard(item, key)
                else:
                    self._hold_back(destination, key, item)

    def _release_ended(self, now_s: float) -> None:
        self._release(lambda each: each.until_s <= now_s)

    def _release(self, is_meant: Callable[[Aside], bool]) -> None:
        """Give locks back: those that have ended by themselves are settled on the link so, and count no delivery."""
        kept: deque[Aside] = deque()
        for each in self.aside:
            if not is_meant(each):
                kept.append(each)
                continue
            self._aside_counts[each.key] -= 1
            if not self._aside_counts[each.key]:
                del self._aside_counts[each.key]
            if not each.message.is_settled:
                self.receiver.release(each.message)
        self.aside = kept
