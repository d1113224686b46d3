"""A lane: one receiver of one backlog queue, and the messages that it has locked.

What both drivers have in common: messages are restored and handed to the lines of their destinations, or to the dead
letters; what the primary took is completed in the backlog; locks are renewed. What becomes of refused messages, and who
hears of it all, differs: see `move.py` and `standing.py`.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Final, Protocol

from spillway.client import ClientError, LinkClosed, Management, ReceivedMessage, Receiver
from spillway.model.aliases import Malformed
from spillway.syphon.crash import COMPLETED, crash_at
from spillway.syphon.destinations import Destination, Destinations, Item
from spillway.syphon.policy import path_problem
from spillway.syphon.restore import Restored, Ttl, restore

LOCK_S_MIN: Final = 5.0  # the shortest that the service allows
LOCK_S_MAX: Final = 310.0
LOCK_S_USUAL: Final = (
    60.0  # contract C7: one that looks longer may be the other's clock, and is renewed as if it were not
)
RENEW_TOGETHER: Final = 500


class Receiving(Protocol):
    """The part of a receiver that polls: a seam for tests that step time."""

    async def receive(self, max_count: int = 1, max_wait: float | None = None) -> list[ReceivedMessage]: ...


class NotAddressable(ClientError):
    """No message is ever sent to the path that this one names."""

    default_condition = "amqp:not-allowed"


class BacklogLane:
    """The base of both drivers' lanes."""

    def __init__(self, backlog: str, destinations: Destinations, ttl: Ttl) -> None:
        self.backlog = backlog
        self.destinations = destinations
        self.ttl: Ttl = ttl
        self.loop = asyncio.get_running_loop()
        self.outstanding = 0  # received and not yet settled, or let go
        self.outstanding_bytes = 0
        self.waiting: dict[int, Item] = {}  # by delivery id: locked, and not being settled
        self.progress = asyncio.Event()
        self.lock_span_s = LOCK_S_MIN
        self._receiver: Receiver | None = None
        self._is_open = True

    @property
    def is_open(self) -> bool:
        return self._is_open

    @property
    def receiver(self) -> Receiver:
        assert self._receiver is not None, "a lane that runs has one"
        return self._receiver

    # -- what comes in --------------------------------------------------------------------------------------------

    def sort(self, messages: Sequence[ReceivedMessage]) -> None:
        """Put each message into the line of its destination, to the dead letters, or aside. Nothing in it may raise."""
        now_ms = time.time_ns() // 1_000_000
        now_s = self.loop.time()
        locked_until_ms: int | None = None
        lines: dict[str, list[Item]] = {}
        for message in messages:
            size_bytes = len(message.raw)
            home = self._home_of(message, now_ms)
            # A path is looked at once for all that name it: nearly all messages are of a few.
            line = None if home is None else lines.get(home.path) or self._line_for(lines, message, home)
            self.on_received(size_bytes if home is None or line is None else home.body_bytes)
            if home is None or line is None:
                continue
            locked_until_ms = home.locked_until_ms
            item = Item(self, message, home, now_s)
            message.raw = b""  # from now on it is only settled
            self.waiting[message.delivery_id] = item
            self.outstanding += 1
            self.outstanding_bytes += len(item.raw)
            line.append(item)
        self._note_lock_span(locked_until_ms, now_ms)
        for path, items in lines.items():
            self.route(self.destinations.at(path), items)

    def _home_of(self, message: ReceivedMessage, now_ms: int) -> Restored | None:
        """The message as it goes home; None for one that can go nowhere: it is dealt with."""
        try:
            return restore(message.raw, now_ms, self.ttl)
        except Malformed as error:
            self._dead_letter(message, error)
        except Exception as error:  # what nobody thought of: its own, and nobody else's
            self.set_aside(message, ClientError(f"{type(error).__name__}: {error}", "amqp:decode-error"))
        return None

    def _line_for(self, lines: dict[str, list[Item]], message: ReceivedMessage, home: Restored) -> list[Item] | None:
        """A new line for a path; None if nothing may be sent there: the message is dealt with."""
        problem = path_problem(home.path)
        if problem is not None:
            self.set_aside(message, NotAddressable(f"the message is sent nowhere: {problem}"), home.sequence_number)
            return None
        line: list[Item] = []
        lines[home.path] = line
        return line

    def _dead_letter(self, message: ReceivedMessage, error: Malformed) -> None:
        self.outstanding += 1
        size_bytes = len(message.raw)
        message.raw = b""
        settled = self.receiver.dead_letter(message, error.reason, error.description)

        def check(future: "asyncio.Future[None]") -> None:
            failed = None if future.cancelled() else future.exception()
            self.on_dead_lettered(error, size_bytes, failed if isinstance(failed, ClientError) else None)
            self._done(1, 0)

        settled.add_done_callback(check)

    # -- told by the destinations -----------------------------------------------------------------------------------

    async def complete(self, items: Sequence[Item], destination: str) -> None:
        """The primary has them: the backlog need not keep them."""
        for item in items:
            self.waiting.pop(item.message.delivery_id, None)
        size_bytes = sum(len(item.raw) for item in items)
        if self.is_open:
            failed = await self.receiver.complete_all([item.message for item in items])
        else:  # the answer came too late: their locks are given back
            ended = LinkClosed(f"the receiver of {self.backlog} has ended", is_transient=False)
            failed = {item.message.delivery_id: ended for item in items}
        crash_at(COMPLETED)
        self.on_completed(items, destination, failed)
        self._done(len(items), size_bytes)

    def _done(self, count: int, size_bytes: int) -> None:
        self.outstanding -= count
        self.outstanding_bytes -= size_bytes
        self.progress.set()

    async def wait_for_progress(self, timeout_s: float) -> None:
        """Until a message is settled or let go, or so long."""
        self.progress.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self.progress.wait()
        except TimeoutError:
            return

    # -- for the drivers to fill in -----------------------------------------------------------------------------------

    def route(self, destination: Destination, items: list[Item]) -> None:
        """Messages for a destination: into its line, or kept if it takes nothing now."""
        raise NotImplementedError

    def retain(self, items: Sequence[Item], destination: str, error: ClientError, again_s: float = 0.0) -> None:
        """Refused: `Source.keep`."""
        raise NotImplementedError

    def set_aside(self, message: ReceivedMessage, error: ClientError, number: int = 0) -> None:
        """A message that is not sent anywhere, and that nobody may be kept waiting by."""
        raise NotImplementedError

    def on_received(self, body_bytes: int) -> None:
        """One message came."""

    def on_completed(self, items: Sequence[Item], destination: str, failed: dict[int, ClientError]) -> None:
        """The backlog was told that these are home; `failed` by delivery id, where it did not take note."""
        raise NotImplementedError

    def on_dead_lettered(self, error: Malformed, size_bytes: int, failed: ClientError | None) -> None:
        """A malformed message is in the dead letters, or could not be put there."""
        raise NotImplementedError

    # -- locks ------------------------------------------------------------------------------------------------------

    def _note_lock_span(self, until_ms: int | None, now_ms: int) -> None:
        """Note how long locks are, from one that has just come. Where clocks do not agree, the shortest there is."""
        if until_ms is not None:
            span_s = (until_ms - now_ms) / 1000
            is_likely = LOCK_S_MIN / 2 <= span_s <= LOCK_S_MAX
            self.lock_span_s = min(LOCK_S_USUAL, span_s) if is_likely else LOCK_S_MIN


async def renew_locks(management: Management, messages: Sequence[ReceivedMessage]) -> list[ReceivedMessage]:
    """Renew the locks of those that are not settled; the answer is those that have none any more.

    One that was settled meanwhile spoils it for all: then in halves. `ClientError` if the namespace does not answer, or
    not now.
    """
    lost: list[ReceivedMessage] = []
    for at in range(0, len(messages), RENEW_TOGETHER):
        lost += await _renew_these(management, messages[at : at + RENEW_TOGETHER])
    return lost


async def _renew_these(management: Management, messages: Sequence[ReceivedMessage]) -> list[ReceivedMessage]:
    those = [each for each in messages if not each.is_settled and each.lock_token is not None]
    if not those:
        return []
    try:
        await management.renew_locks([each.lock_token for each in those if each.lock_token], timeout=LOCK_S_MIN)
    except ClientError as error:
        if error.is_transient:
            raise
        if len(those) == 1:
            return those
        middle = len(those) // 2
        return await _renew_these(management, those[:middle]) + await _renew_these(management, those[middle:])
    return []
