"""The mover: takes messages out of backlog queues and sends them home, without Spark.

At least once: a message is completed in the backlog only after the primary accepted it, and it keeps its message id, so
that inside the primary's duplicate window it arrives once. A destination that refuses (missing, disabled, unauthorised,
full, busy, silent) holds nobody else up: its messages stay in the backlog and are counted with the reason. Only what no
paired sender can have written is dead-lettered.

A lane empties one backlog queue: it receives ahead, restores, and hands messages to the lines of their destinations
(`destinations.py`). What is received and not yet settled is bounded. Locks are renewed while a pass is long.
"""

import asyncio
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from spillway.client import ClientError, Connection, Management, ReceivedMessage, Receiver
from spillway.model.aliases import Malformed
from spillway.spark.crash import COMPLETED, RECEIVED, crash_at
from spillway.spark.destinations import Destinations, Item
from spillway.spark.restore import Ttl, restore
from spillway.spark.tally import DEAD_LETTERED, KEPT, MOVED, REPEATED, Count, Tally, Told, reason_of

RECEIVE_MAX: Final = 2_000
CREDIT: Final = 4_000
OUTSTANDING_MAX: Final = 8_000  # received and not yet settled, of one lane
OUTSTANDING_BYTES_MAX: Final = 32 * 1024 * 1024
HELD_MAX: Final = 50_000  # messages of a lane that are kept locked until its end, to see those behind them
IDLE_S: Final = 1.0
SLICE_S: Final = 0.1  # to look again whether anything can go on
LOCK_S_MIN: Final = 5.0  # the shortest that the service allows
LOCK_S_MAX: Final = 310.0
RENEW_TOGETHER: Final = 500


@dataclass(frozen=True)
class Share:
    """How many messages of a backlog queue one pass may take; None is all."""

    backlog: str
    messages_max: int | None = None


@dataclass(frozen=True)
class MoveOptions:
    """`idle_s`: a pass that has had nothing to do for so long asks whether there is nothing, and ends if so.
    `patience_s`: so long messages that were refused are tried again before they are left to a later pass.
    `deadline_s`: no pass is longer."""

    idle_s: float = IDLE_S
    patience_s: float = 0.0
    deadline_s: float | None = None
    ttl: Ttl = "restart"
    credit: int = CREDIT


@dataclass
class Moved:
    """What a pass did. `error` is why it ended early; what is counted holds nevertheless."""

    tally: Tally = field(default_factory=Tally)
    received: int = 0
    kept: dict[tuple[str, str, str], list[int]] = field(
        default_factory=dict
    )  # numbers, by backlog, destination, reason
    error: ClientError | None = None
    seconds: float = 0.0


async def move(
    primary: Connection,
    secondary: Connection,
    shares: Sequence[Share],
    options: MoveOptions | None = None,
    told: Told | None = None,
) -> Moved:
    """One pass over these backlog queues, at the same time. `told` hears of every count as soon as it is true."""
    options = options or MoveOptions()
    moved = Moved()
    destinations = Destinations(primary)
    quiet = Quiet(asyncio.get_running_loop().time())
    began_s = time.monotonic()
    lanes = [Lane(secondary, share, destinations, options, moved, told, quiet) for share in shares]
    try:
        ends = await asyncio.gather(*(lane.run() for lane in lanes), return_exceptions=True)
    finally:
        await destinations.close()
    for end in ends:
        if isinstance(end, ClientError):
            moved.error = moved.error or end
        elif isinstance(end, BaseException):
            raise end
    moved.error = moved.error or destinations.lost
    moved.seconds = time.monotonic() - began_s
    return moved


class Quiet:
    """Since when no lane of a pass has had anything to do: one that waits for its turn is not idle."""

    def __init__(self, since_s: float) -> None:
        self.since_s = since_s


class Held:
    """A message that was refused: nothing is left of it but its lock."""

    __slots__ = ("again_s", "destination", "message", "number", "reason", "size_bytes")

    def __init__(self, item: Item, destination: str, reason: str, again_s: float = 0.0) -> None:
        self.again_s = again_s  # when it may be tried again; 0 if it is the message that was refused
        self.message = item.message
        self.number = item.number
        self.size_bytes = len(item.raw)
        self.destination = destination
        self.reason = reason


class Lane:
    """One backlog queue, through one receiver."""

    def __init__(
        self,
        connection: Connection,
        share: Share,
        destinations: Destinations,
        options: MoveOptions,
        moved: Moved,
        told: Told | None,
        quiet: Quiet,
    ) -> None:
        self.quiet = quiet
        self.connection = connection
        self.backlog = share.backlog
        self.messages_max = share.messages_max
        self.destinations = destinations
        self.options = options
        self.moved = moved
        self.told = told
        self.loop = asyncio.get_running_loop()
        self.began_s = self.loop.time()
        self.taken = 0
        self.outstanding = 0
        self.outstanding_bytes = 0
        self.waiting: dict[int, Item] = {}  # by delivery id: locked, and not being settled
        self.held: deque[Held] = deque()
        self.progress = asyncio.Event()
        self.lock_span_s = LOCK_S_MIN
        self._receiver: Receiver | None = None
        self._management: Management | None = None

    @property
    def receiver(self) -> Receiver:
        assert self._receiver is not None, "a lane that runs has one"
        return self._receiver

    async def run(self) -> None:
        self._receiver = await self.connection.receiver(
            self.backlog, credit=self.options.credit, limit=self.messages_max
        )
        renewing = self.loop.create_task(self._renew())
        is_drained = False
        try:
            is_drained = await self._serve()
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
            self._let_go(is_drained or self.destinations.lost is not None)
            await self.receiver.close()
            if self._management is not None:
                await self._management.close()

    # -- receiving ------------------------------------------------------------------------------------------------

    async def _serve(self) -> bool:
        """Until the share is taken, nothing comes any more, or time is up. True: nothing was left to receive."""
        while self.destinations.lost is None:
            self.destinations.raise_if_broken()
            is_over = self._is_over()
            if is_over and not self.outstanding:
                return False
            if is_over or self._is_full():
                await self._wait_for_progress()
                continue
            messages = await self._receive()
            now_s = self.loop.time()
            if messages or self.outstanding:
                self.quiet.since_s = now_s
            elif now_s - self.quiet.since_s >= self.options.idle_s and await self.receiver.is_empty():
                if not await self._try_again():
                    return True
                self.quiet.since_s = self.loop.time()
        return False

    def _is_over(self) -> bool:
        if self.messages_max is not None and self.taken >= self.messages_max:
            return True
        if len(self.held) >= HELD_MAX:
            return True
        deadline_s = self.options.deadline_s
        return deadline_s is not None and self.loop.time() - self.began_s >= deadline_s

    def _is_full(self) -> bool:
        return self.outstanding >= OUTSTANDING_MAX or self.outstanding_bytes >= OUTSTANDING_BYTES_MAX

    async def _wait_for_progress(self) -> None:
        self.progress.clear()
        try:
            async with asyncio.timeout(SLICE_S):
                await self.progress.wait()
        except TimeoutError:
            return

    async def _receive(self) -> list[ReceivedMessage]:
        messages = await self.receiver.receive(RECEIVE_MAX, min(SLICE_S, self.options.idle_s))
        self.taken += len(messages)
        self.moved.received += len(messages)
        if messages:
            crash_at(RECEIVED)
            self._note_lock_span(messages[-1])
            self._sort(messages)
        return messages

    def _sort(self, messages: Sequence[ReceivedMessage]) -> None:
        """Each to the line of its destination, or to the dead letters."""
        now_ms = time.time_ns() // 1_000_000
        now_s = self.loop.time()
        lines: dict[str, list[Item]] = {}
        for message in messages:
            try:
                home = restore(message.raw, now_ms, self.options.ttl)
            except Malformed as error:
                self._dead_letter(message, error)
                continue
            item = Item(self, message, home)
            message.raw = b""  # from now on it is only settled
            self.waiting[message.delivery_id] = item
            self.outstanding_bytes += len(item.raw)
            line = lines.get(home.path)
            if line is None:
                line = lines[home.path] = []
            line.append(item)
        self.outstanding += sum(map(len, lines.values()))
        for path, items in lines.items():
            destination = self.destinations.at(path)
            if destination.blocked_until_s > now_s:
                self.keep(items, destination.path, destination.reason, destination.blocked_until_s)
            else:
                self.destinations.put(destination, items)

    # -- told by the destinations -----------------------------------------------------------------------------------

    async def complete(self, items: Sequence[Item], destination: str) -> None:
        """The primary has them: the backlog need not keep them."""
        messages = [item.message for item in items]
        for message in messages:
            self.waiting.pop(message.delivery_id, None)
        size_bytes = sum(len(item.raw) for item in items)
        failed = await self.receiver.complete_all(messages)
        crash_at(COMPLETED)
        self._count(destination, MOVED, "", len(items) - len(failed), size_bytes)
        for error in failed.values():
            # The primary has it; the backlog will hand it out again. The duplicate window makes one of the two.
            self._count(destination, REPEATED, reason_of(error), 1, 0)
        self._done(len(items), size_bytes)

    def keep(self, items: Sequence[Item], destination: str, reason: str, again_s: float = 0.0) -> None:
        """Refused. They stay locked to the end of the pass, so that those behind them are seen."""
        size_bytes = 0
        for item in items:
            self.waiting.pop(item.message.delivery_id, None)
            self.held.append(Held(item, destination, reason, again_s))
            size_bytes += len(item.raw)
            item.raw = b""
        self._done(len(items), size_bytes)

    def _done(self, count: int, size_bytes: int) -> None:
        self.outstanding -= count
        self.outstanding_bytes -= size_bytes
        self.progress.set()

    def _dead_letter(self, message: ReceivedMessage, error: Malformed) -> None:
        self.outstanding += 1
        size_bytes = len(message.raw)
        settled = self.receiver.dead_letter(message, error.reason, error.description)

        def look(future: "asyncio.Future[None]") -> None:
            failed = future.exception()
            if failed is None:
                self._count("", DEAD_LETTERED, error.reason, 1, size_bytes)
            else:
                self._count("", KEPT, reason_of(failed) if isinstance(failed, ClientError) else str(failed), 1, 0)
            self._done(1, 0)

        settled.add_done_callback(look)

    def _count(self, destination: str, outcome: str, reason: str, messages: int, size_bytes: int) -> None:
        if messages > 0:
            count = Count(self.backlog, destination, outcome, reason, messages, size_bytes)
            self.moved.tally.add(count)
            if self.told is not None:
                self.told(count)

    # -- what was refused -------------------------------------------------------------------------------------------

    async def _try_again(self) -> bool:
        """Nothing else is left. What a destination refused comes once more after its pause, if there is patience."""
        again = [held for held in self.held if held.again_s]
        if not again:
            return False
        now_s = self.loop.time()
        until_s = max(now_s, min(held.again_s for held in again))
        if until_s > self.began_s + self.options.patience_s:
            return False
        await asyncio.sleep(until_s - now_s)
        for held in again:
            self.receiver.release(held.message)
        self.taken -= len(again)
        self.receiver.allow(len(again))
        self.held = deque(held for held in self.held if not held.again_s)
        return True

    def _let_go(self, is_released: bool) -> None:
        """Count what is kept. Released, others get it at once; else its lock ends by itself, which keeps it out of the
        way of those behind it, whom the next pass is for."""
        for item in self.waiting.values():  # under way when the connection was lost: nobody knows
            self.held.append(Held(item, "", "the pass ended before it was answered"))
        self.waiting.clear()
        together: dict[tuple[str, str], list[Held]] = {}
        for held in self.held:
            together.setdefault((held.destination, held.reason), []).append(held)
            if is_released and not held.message.is_settled:
                self.receiver.release(held.message)
        for (destination, reason), those in together.items():
            self._count(destination, KEPT, reason, len(those), sum(held.size_bytes for held in those))
            numbers = self.moved.kept.setdefault((self.backlog, destination, reason), [])
            numbers += [held.number for held in those]
        self.held.clear()

    # -- locks ------------------------------------------------------------------------------------------------------

    async def _renew(self) -> None:
        """Whatever is locked for us is renewed three times in the span of a lock, so that none ends with us."""
        renewed_s = self.loop.time()
        while True:
            await asyncio.sleep(min(1.0, self.lock_span_s / 4))
            if self.loop.time() - renewed_s < self.lock_span_s / 3:
                continue
            renewed_s = self.loop.time()
            messages = [item.message for item in self.waiting.values()] + [held.message for held in self.held]
            messages += self.receiver.prefetched
            for at in range(0, len(messages), RENEW_TOGETHER):
                await self._renew_these(messages[at : at + RENEW_TOGETHER])

    def _note_lock_span(self, message: ReceivedMessage) -> None:
        """From one that has just come. The shortest there is where the clocks do not agree: the safe side."""
        until_ms = message.locked_until_ms
        if until_ms is not None:
            span_s = until_ms / 1000 - time.time()
            self.lock_span_s = span_s if LOCK_S_MIN / 2 <= span_s <= LOCK_S_MAX else LOCK_S_MIN

    async def _renew_these(self, messages: Iterable[ReceivedMessage]) -> None:
        """One that was settled meanwhile spoils it for all: then in halves."""
        tokens = [each.lock_token for each in messages if not each.is_settled and each.lock_token is not None]
        if not tokens:
            return
        if self._management is None:
            self._management = self.connection.management(self.backlog, link_name=self.receiver.name)
        try:
            await self._management.renew_locks(tokens, timeout=LOCK_S_MIN)
        except ClientError:
            those = list(messages)
            if len(those) > 1:
                await self._renew_these(those[: len(those) // 2])
                await self._renew_these(those[len(those) // 2 :])
