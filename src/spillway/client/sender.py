"""Sending: pipelined on one link, with an outcome for every message.

`post` puts a message in line and returns a future for its outcome; `send` awaits that outcome (contract G1). What is
posted and not yet settled is bounded by the window, in messages and bytes: beyond it `post` raises and `ready` waits
(contract G10, G11). Messages leave the line only while the peer grants credit and the socket takes bytes.
"""

import asyncio
import struct
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Final

from spillway.amqp.events import DispositionReceived
from spillway.amqp.link import Link
from spillway.amqp.performatives import Accepted, DeliveryState, Rejected
from spillway.client.errors import ClientError, LinkClosed, MessageTooLarge, OperationTimeout, WindowFull, error_for
from spillway.client.link import Carrier, LinkEnd, within
from spillway.client.message import BATCH_FORMAT, OutgoingMessage, encode_batch

WINDOW: Final = 1_000
WINDOW_BYTES: Final = 16 * 1024 * 1024

_TAG: Final = struct.Struct(">I")


class Posted:
    """A message between `post` and its outcome."""

    __slots__ = ("deadline_s", "future", "message_format", "payload", "size")

    def __init__(self, future: "asyncio.Future[None]", payload: bytes, message_format: int, deadline_s: float) -> None:
        self.future = future
        self.payload = payload
        self.size = len(payload)
        self.message_format = message_format
        self.deadline_s = deadline_s


class Sender(LinkEnd):
    """A link to send on. Safe for many coroutines of one event loop."""

    def __init__(
        self,
        carrier: Carrier,
        link: Link,
        label: str,
        timeout_s: float,
        window: int = WINDOW,
        window_bytes: int = WINDOW_BYTES,
        presettled: bool = False,
    ) -> None:
        super().__init__(carrier, link, label, timeout_s)
        assert not (window < 1 or window_bytes < 1), "a window that holds nothing was refused before"
        self.window = window
        self.window_bytes = window_bytes
        self.presettled = presettled
        self.max_message_size = 0  # what the peer takes; 0: it does not say
        self._line: deque[Posted] = deque()  # not on the wire yet
        self._unsettled: dict[bytes, Posted] = {}  # on the wire, by delivery tag, oldest first
        self._bytes = 0  # of both
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._tag = 0

    async def __aenter__(self) -> "Sender":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
        else:
            self.end(LinkClosed(f"the sender to {self.label} was closed", is_transient=False))

    @property
    def pending(self) -> int:
        """Messages posted whose outcome is not known yet."""
        return len(self._line) + len(self._unsettled)

    # -- one at a time -------------------------------------------------------------------------------------------

    async def send(self, message: OutgoingMessage, timeout: float | None = None) -> None:
        """Send and wait until the peer has accepted; a refusal is raised (contract G1, G4)."""
        await self.send_raw(message.encode(), 0, timeout)

    async def send_batch(self, messages: Sequence[OutgoingMessage], timeout: float | None = None) -> None:
        """Several as one transfer, accepted or refused as a whole (docs/wire.md, "Transfers from clients")."""
        await self.send_raw(encode_batch(messages), BATCH_FORMAT, timeout)

    async def send_raw(self, encoded: bytes, message_format: int = 0, timeout: float | None = None) -> None:
        """Send a message that is encoded already and wait for its outcome."""
        timeout_s = self.timeout_s if timeout is None else timeout
        await within(self._send_raw(encoded, message_format), timeout_s, f"sending to {self.label}")

    async def _send_raw(self, encoded: bytes, message_format: int) -> None:
        await self._wait_for_room()
        await self.post_raw(encoded, message_format)

    # -- many in flight --------------------------------------------------------------------------------------------

    async def ready(self, timeout: float | None = None) -> None:
        """Wait until the window has room for another `post`; does not give way to the loop when it has."""
        if self.error is not None or not self._has_room():
            timeout_s = self.timeout_s if timeout is None else timeout
            await within(self._wait_for_room(), timeout_s, f"waiting for the window of {self.label}")

    def post(self, message: OutgoingMessage) -> "asyncio.Future[None]":
        """Put a message in line; the future is its outcome. Raises `WindowFull` when `ready` was not awaited."""
        return self.post_raw(message.encode())

    def post_raw(self, encoded: bytes, message_format: int = 0) -> "asyncio.Future[None]":
        """`post` for a message that is encoded already: its bytes are sent as they are."""
        loop = self.carrier.loop
        future: asyncio.Future[None] = loop.create_future()
        if self.error is not None:
            future.set_exception(self.error)
            return future
        if self.max_message_size and len(encoded) > self.max_message_size:
            future.set_exception(
                MessageTooLarge(f"{len(encoded)} bytes; {self.label} takes messages up to {self.max_message_size}")
            )
            return future
        if not self._has_room():
            raise WindowFull(f"{self.pending} messages to {self.label} are without an outcome: await ready() first")
        self._bytes += len(encoded)
        self._line.append(Posted(future, encoded, message_format, loop.time() + self.timeout_s))
        self._pump()
        return future

    async def close(self, timeout: float | None = None) -> None:
        """Wait for the outcome of what was posted, then detach. Never raises for what a future reports anyway."""
        try:
            futures = [posted.future for posted in (*self._unsettled.values(), *self._line)]
            if futures and self.error is None:
                await asyncio.wait(futures, timeout=self.timeout_s if timeout is None else timeout)
        finally:
            self.end(LinkClosed(f"the sender to {self.label} was closed", is_transient=False))

    # -- the line ----------------------------------------------------------------------------------------------------

    def _has_room(self) -> bool:
        return len(self._line) + len(self._unsettled) < self.window and self._bytes < self.window_bytes

    async def _wait_for_room(self) -> None:
        while self.error is None and not self._has_room():
            waiter: asyncio.Future[None] = self.carrier.loop.create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            finally:
                # Whoever is told of room may be cancelled, or post nothing: then it is for the next.
                self.carrier.loop.call_soon(self._wake)
        if self.error is not None:
            raise self.error.with_traceback(None)

    def _wake(self) -> None:
        """Tell as many waiters as there is room for."""
        room = self.window - len(self._line) - len(self._unsettled)
        assert not room < 0, "no more is pending than the window holds"
        while room > 0 and self._waiters and self._bytes < self.window_bytes:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                room -= 1

    def _pump(self) -> None:
        """Put on the wire what credit and socket allow."""
        line = self._line
        link = self.link
        while line and link.credit > 0 and self.carrier.is_writable:
            posted = line.popleft()
            if posted.future.done():  # given up while it waited: it was never sent
                self._bytes -= posted.size
                continue
            tag = self._next_tag()
            while tag in self._unsettled:  # tags have begun again, and this one has no outcome yet
                tag = self._next_tag()
            link.send(tag, posted.payload, self.presettled, posted.message_format)
            self.carrier.flush_soon(posted.size)
            posted.payload = b""  # the engine has it now
            if self.presettled:  # settled when sent: nobody will ever say more about it (contract G13)
                self._bytes -= posted.size
                posted.future.set_result(None)
            else:
                self._unsettled[tag] = posted
        if self._waiters:
            self._wake()

    def _next_tag(self) -> bytes:
        self._tag = (self._tag + 1) & 0xFFFFFFFF
        return _TAG.pack(self._tag)

    # -- told by the wire ------------------------------------------------------------------------------------------

    def on_open(self) -> None:
        remote = self.link.attach
        self.max_message_size = 0 if remote is None or remote.max_message_size is None else remote.max_message_size
        self._pump()

    def on_flow(self, is_drained: bool) -> None:
        self._pump()
        if is_drained and (not self._line or self.link.credit <= 0):
            self.link.drained()
            self.carrier.flush_soon()

    def on_writable(self) -> None:
        self._pump()

    def on_disposition(self, event: DispositionReceived) -> None:
        state = event.state
        if not event.settled:
            if state is None or not _is_outcome(state):
                return  # progress of a large delivery, not its outcome
            for delivery in event.deliveries:
                self.link.session.settle_sent(delivery.delivery_id, state)
            self.carrier.flush_soon()
        is_accepted = isinstance(state, Accepted)
        for delivery in event.deliveries:
            posted = self._unsettled.pop(delivery.tag, None)
            if posted is None:
                continue
            self._bytes -= posted.size
            if posted.future.done():
                continue
            if is_accepted:
                posted.future.set_result(None)
            else:
                posted.future.set_exception(_refusal(state, self.label))
        assert self._bytes >= 0, "a message leaves the window once"
        if self._waiters:
            self._wake()

    def on_failed(self, error: ClientError) -> None:
        everything = [*self._unsettled.values(), *self._line]
        self._unsettled.clear()
        self._line.clear()
        self._bytes = 0
        for posted in everything:
            if not posted.future.done():
                posted.future.set_exception(error)
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)  # they look at `error` themselves

    def sweep(self, now_s: float) -> None:
        """Fail what is overdue, oldest first. What is on the wire keeps its place in the window: it may yet arrive."""
        for posted in self._unsettled.values():
            if posted.deadline_s > now_s:
                return
            self._time_out(posted)
        while self._line and (self._line[0].deadline_s <= now_s or self._line[0].future.done()):
            posted = self._line.popleft()
            self._bytes -= posted.size
            self._time_out(posted)
        if self._waiters:
            self._wake()

    def _time_out(self, posted: Posted) -> None:
        if not posted.future.done():
            posted.future.set_exception(
                OperationTimeout(f"sending to {self.label}: no answer within {self.timeout_s:g} s")
            )


def _is_outcome(state: DeliveryState) -> bool:
    return state.code in (0x24, 0x25, 0x26, 0x27)  # accepted, rejected, released, modified [3.4]


def _refusal(state: DeliveryState | None, label: str) -> ClientError:
    """What a send was answered with when it was not accepted."""
    if isinstance(state, Rejected) and state.error is not None:
        return error_for(state.error.condition, state.error.description)
    if state is None:
        return ClientError(f"{label} settled the message without an outcome", "amqp:illegal-state")
    # released and modified: not processed, may be sent again [3.4.4, 3.4.5]
    word = type(state).__name__.lower()
    return ClientError(f"{label} answered {word}", "amqp:illegal-state", is_transient=not isinstance(state, Rejected))
