"""A pass: takes messages out of backlog queues and sends them home, until nothing is left or its share is taken.

At least once: a message is completed in the backlog only after the primary accepted it, and it keeps its message id, so
that inside the primary's duplicate window it arrives once. A destination that refuses (missing, disabled, unauthorised,
full, busy, silent) holds nobody else up: its messages stay in the backlog and are counted with the reason. Only what no
paired sender can have written is dead-lettered.

A lane empties one backlog queue: it receives ahead, restores, and hands messages to the lines of their destinations
(`destinations.py`). What is received and not yet settled is bounded. Locks are renewed while a pass is long.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from spillway.client import ClientError, Connection, Management, ReceivedMessage
from spillway.model.aliases import Malformed
from spillway.syphon.crash import RECEIVED, crash_at
from spillway.syphon.destinations import Destination, Destinations, Item
from spillway.syphon.lane import BacklogLane, renew_locks
from spillway.syphon.outcomes import DEAD_LETTERED, KEPT, MOVED, REPEATED, OutcomeCount, OutcomeCounts, Told, reason_of
from spillway.syphon.restore import Ttl

RECEIVE_MAX: Final = 2_000
CREDIT: Final = 4_000
OUTSTANDING_MAX: Final = 8_000  # received and not yet settled, of one lane
OUTSTANDING_BYTES_MAX: Final = 32 * 1024 * 1024
HELD_MAX: Final = 50_000  # messages of a lane that are kept locked until its end, to see those behind them
IDLE_S: Final = 1.0
STOP_S: Final = 3.0  # so long a pass that is stopped waits for answers
SLICE_S: Final = 0.1  # to look again whether anything can go on


@dataclass(frozen=True)
class BacklogShare:
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

    outcomes: OutcomeCounts = field(default_factory=OutcomeCounts)
    received: int = 0
    kept: dict[tuple[str, str, str], list[int]] = field(
        default_factory=dict
    )  # numbers, by backlog, destination, reason
    error: ClientError | None = None
    seconds: float = 0.0


async def move(
    primary: Connection,
    secondary: Connection,
    shares: Sequence[BacklogShare],
    options: MoveOptions | None = None,
    told: Told | None = None,
    stopped: asyncio.Event | None = None,
) -> Moved:
    """One pass over these backlog queues, at the same time. `told` hears of every count as soon as it is true;
    `stopped` ends the pass in order when it is set."""
    options = options or MoveOptions()
    moved = Moved()

    async def connection() -> Connection:
        return primary

    destinations = Destinations(connection)
    quiet = Quiet(asyncio.get_running_loop().time())
    began_s = time.monotonic()
    lanes = [PassLane(secondary, share, destinations, options, moved, told, quiet, stopped) for share in shares]
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

    def __init__(
        self,
        message: ReceivedMessage,
        number: int,
        size_bytes: int,
        destination: str,
        reason: str,
        again_s: float = 0.0,
    ) -> None:
        self.message = message
        self.number = number
        self.size_bytes = size_bytes
        self.destination = destination
        self.reason = reason
        self.again_s = again_s  # when it may be tried again; 0 if it is the message that was refused


class PassLane(BacklogLane):
    """One backlog queue, through one receiver that receives ahead."""

    def __init__(
        self,
        connection: Connection,
        share: BacklogShare,
        destinations: Destinations,
        options: MoveOptions,
        moved: Moved,
        told: Told | None,
        quiet: Quiet,
        stopped: asyncio.Event | None = None,
    ) -> None:
        super().__init__(share.backlog, destinations, options.ttl)
        self.quiet = quiet
        self.connection = connection
        self.messages_max = share.messages_max
        self.options = options
        self.moved = moved
        self.told = told
        self.stopped = stopped
        self.began_s = self.loop.time()
        self.taken = 0
        self._stopped_s: float | None = None
        self.held: deque[Held] = deque()
        self._management: Management | None = None

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
            self._release_held(is_drained or self._is_stopped() or self.destinations.lost is not None)
            await self.receiver.close()
            if self._management is not None:
                await self._management.close()

    # -- receiving ------------------------------------------------------------------------------------------------

    async def _serve(self) -> bool:
        """Until the share is taken, nothing comes any more, or time is up. True: nothing was left to receive."""
        while self.destinations.lost is None:
            self.destinations.raise_if_broken()
            is_over = self._is_over()
            if is_over and (not self.outstanding or self._has_waited_enough()):
                return False
            if is_over or self._is_full():
                await self.wait_for_progress(SLICE_S)
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
        if self._is_stopped() or (self.messages_max is not None and self.taken >= self.messages_max):
            return True
        if len(self.held) >= HELD_MAX:
            return True
        deadline_s = self.options.deadline_s
        return deadline_s is not None and self.loop.time() - self.began_s >= deadline_s

    def _is_stopped(self) -> bool:
        return self.stopped is not None and self.stopped.is_set()

    def _has_waited_enough(self) -> bool:
        """Since it was told to stop: a destination that does not answer keeps nobody from leaving."""
        if not self._is_stopped():
            return False
        if self._stopped_s is None:
            self._stopped_s = self.loop.time()
        return self.loop.time() - self._stopped_s >= STOP_S

    def _is_full(self) -> bool:
        return self.outstanding >= OUTSTANDING_MAX or self.outstanding_bytes >= OUTSTANDING_BYTES_MAX

    async def _receive(self) -> list[ReceivedMessage]:
        messages = await self.receiver.receive(RECEIVE_MAX, min(SLICE_S, self.options.idle_s))
        self.taken += len(messages)
        self.moved.received += len(messages)
        if messages:
            crash_at(RECEIVED)
            self.sort(messages)
        return messages

    def route(self, destination: Destination, items: list[Item]) -> None:
        state = destination.state
        if state.is_blocked(self.loop.time()):
            self.retain(items, destination.path, destination.reason, state.blocked_until_s)
        else:
            self.destinations.put(destination, items)

    # -- what became of them ----------------------------------------------------------------------------------------

    def on_completed(self, items: Sequence[Item], destination: str, failed: dict[int, ClientError]) -> None:
        size_bytes = sum(len(item.raw) for item in items)
        self._count(destination, MOVED, "", len(items) - len(failed), size_bytes)
        for error in failed.values():
            # The primary has it; the backlog will hand it out again. The duplicate window makes one of the two.
            self._count(destination, REPEATED, reason_of(error), 1, 0)

    def retain(self, items: Sequence[Item], destination: str, error: ClientError, again_s: float = 0.0) -> None:
        """Keep messages locked to the end of the pass, so that those behind them are seen."""
        size_bytes = 0
        reason = reason_of(error)
        for item in items:
            self.waiting.pop(item.message.delivery_id, None)
            self.held.append(Held(item.message, item.number, len(item.raw), destination, reason, again_s))
            size_bytes += len(item.raw)
            item.raw = b""
        self._done(len(items), size_bytes)

    def set_aside(self, message: ReceivedMessage, error: ClientError, number: int = 0) -> None:
        self.held.append(Held(message, number, len(message.raw), "", reason_of(error)))
        message.raw = b""

    def on_dead_lettered(self, error: Malformed, size_bytes: int, failed: ClientError | None) -> None:
        if failed is None:
            self._count("", DEAD_LETTERED, error.reason, 1, size_bytes)
        else:
            self._count("", KEPT, reason_of(failed), 1, 0)

    def _count(self, destination: str, outcome: str, reason: str, messages: int, size_bytes: int) -> None:
        if messages > 0:
            count = OutcomeCount(self.backlog, destination, outcome, reason, messages, size_bytes)
            self.moved.outcomes.add(count)
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
        await self._rest(until_s - now_s)
        for held in again:
            self.receiver.release(held.message)
        self.taken -= len(again)
        self.receiver.allow(len(again))
        self.held = deque(held for held in self.held if not held.again_s)
        return True

    async def _rest(self, seconds: float) -> None:
        if self.stopped is None:
            await asyncio.sleep(seconds)
            return
        try:
            async with asyncio.timeout(seconds):
                await self.stopped.wait()
        except TimeoutError:
            return

    def _release_held(self, is_released: bool) -> None:
        """Count what is kept. Released, others get it at once; else its lock ends by itself, which keeps it out of the
        way of those behind it, whom the next pass is for."""
        for item in self.waiting.values():  # under way when the connection was lost: nobody knows
            why = "the pass ended before it was answered"
            self.held.append(Held(item.message, item.number, len(item.raw), "", why))
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
            if messages and self._management is None:
                self._management = self.connection.management(self.backlog, link_name=self.receiver.name)
            if self._management is not None:
                with contextlib.suppress(ClientError):  # the next time, if there is one
                    await renew_locks(self._management, messages)
