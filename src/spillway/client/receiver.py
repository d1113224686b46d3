"""Receiving and settling over one link.

Without prefetch (`credit=0`) a `receive` grants what it was asked for and takes the rest of the credit back by a drain
before it returns, so no message is locked for a receiver that is not waiting. With `credit=n` up to n messages are
kept coming; the buffer is bounded by that credit and, when messages are large, by bytes.

Settlements are pipelined: each method returns a future at once, the engine joins neighbours into one disposition, and
the future is done when the service has confirmed (contract H8, H12).
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final

from spillway.amqp.errors import AmqpError
from spillway.amqp.events import IncomingSettled, TransferReceived
from spillway.amqp.link import Link
from spillway.amqp.performatives import ACCEPTED, RELEASED, DeliveryState, Modified, Rejected
from spillway.amqp.types import Symbol
from spillway.client.errors import ClientError, LinkClosed, OperationTimeout, SettlementFailed, error_for
from spillway.client.link import Carrier, LinkEnd
from spillway.client.message import ReceivedMessage
from spillway.dialect.annotations import SESSION_FILTER

PEEK_LOCK: Final = "peeklock"
RECEIVE_AND_DELETE: Final = "receiveanddelete"

# Prefetched bytes above which no further credit is granted.
BUFFER_BYTES_MAX: Final = 16 * 1024 * 1024
# A service answers a drain at once; one that does not is no reason to keep messages from the caller.
DRAIN_S_MAX: Final = 5.0

DEAD_LETTER_CONDITION: Final = "com.microsoft:dead-letter"
_ABANDONED: Final = Modified(delivery_failed=True, undeliverable_here=False)
_DEFERRED: Final = Modified(delivery_failed=True, undeliverable_here=True)


class PendingSettlement:
    """A settlement between the asking and the service's answer."""

    __slots__ = ("deadline_s", "future", "state")

    def __init__(self, future: "asyncio.Future[None]", state: DeliveryState, deadline_s: float) -> None:
        self.future = future
        self.state = state
        self.deadline_s = deadline_s


class SettlingTogether:
    """Many settlements that one future stands for. It is done with those that failed, and why."""

    __slots__ = ("deadline_s", "failed", "future", "left", "state")

    def __init__(
        self, future: "asyncio.Future[dict[int, ClientError]]", state: DeliveryState, deadline_s: float, left: int
    ) -> None:
        self.future = future
        self.state = state
        self.deadline_s = deadline_s
        self.left = left
        self.failed: dict[int, ClientError] = {}

    def answer(self, delivery_id: int, error: ClientError | None) -> None:
        if error is not None:
            self.failed[delivery_id] = error
        self.left -= 1
        if self.left == 0 and not self.future.done():
            self.future.set_result(self.failed)


class Receiver(LinkEnd):
    """A link to receive on. One `receive` at a time; settlements from any coroutine of the loop."""

    def __init__(
        self,
        carrier: Carrier,
        link: Link,
        label: str,
        timeout_s: float,
        mode: str = PEEK_LOCK,
        credit: int = 0,
        limit: int | None = None,
    ) -> None:
        super().__init__(carrier, link, label, timeout_s)
        link.session.user = self  # confirmations of settlements name the session only
        self.mode = mode
        self.credit = credit
        self._left = limit  # how many may still be taken; None is any number
        self._buffer: deque[ReceivedMessage] = deque()
        self._buffer_bytes = 0
        self._is_receiving = False
        self._arrival: asyncio.Future[None] | None = None
        self._drain: asyncio.Future[None] | None = None
        self._settling: dict[int, PendingSettlement | SettlingTogether] = {}
        self._asked_early = 0  # messages that are asked for as soon as the link is there
        self._answer_due_s = 0.0  # when that is given up
        self.is_drained = False  # the service has said that it sends no more for what it was asked for

    async def __aenter__(self) -> "Receiver":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def session_id(self) -> str | None:
        """The message session that this receiver holds; None if it was not asked for one."""
        attach = self.link.attach
        if attach is None or attach.source is None or attach.source.filter is None:
            return None
        held = attach.source.filter.get(SESSION_FILTER)
        return held if isinstance(held, str) else None

    # -- receiving -------------------------------------------------------------------------------------------------

    def ask_early(self, count: int, attach_wait_s: float) -> None:
        """Ask for `count` messages, all that there are now, as soon as the link is there: `receive` has the answer.

        It also waits for the link, for `attach_wait_s`, and raises what the service refuses it with.
        """
        self._asked_early = count
        self._answer_due_s = self.carrier.loop.time() + attach_wait_s
        self._drain = self.carrier.loop.create_future()

    async def receive(self, max_count: int = 1, max_wait: float | None = None) -> list[ReceivedMessage]:
        """Up to `max_count` messages: those that are there, or else the next to come within `max_wait` seconds.

        An empty list means that none came. What has arrived is handed out before a broken link is reported.
        """
        if max_count < 1:
            raise ValueError("max_count must be at least 1")
        if self._is_receiving:
            raise RuntimeError("a receive is already under way on this receiver")
        self._is_receiving = True
        try:
            if not self._buffer:
                max_wait_s = self.timeout_s if max_wait is None else max_wait
                if self.credit:
                    await self._wait_for_arrival(max_wait_s)
                else:
                    await self._ask(max_count, max_wait_s)
            return self._pop(max_count)
        finally:
            self._is_receiving = False

    async def _ask(self, count: int, max_wait_s: float) -> None:
        """Grant credit for one call, wait for the first message, take back what is left."""
        deadline_s = self.carrier.loop.time() + max_wait_s
        if self._drain is not None:  # asked early, or a call before this one was cancelled while it drained
            if self._asked_early:
                await self._wait_for_early(self._drain)
                deadline_s = self.carrier.loop.time() + max_wait_s
            else:
                await asyncio.wait([self._drain], timeout=min(max_wait_s, DRAIN_S_MAX))
                self._drain = None
        if self._buffer or self.error is not None:
            self._raise_if_broken()
            return
        self.is_drained = False
        self.link.grant(count)
        self.carrier.flush_soon()
        try:
            await self._wait_for_arrival(deadline_s - self.carrier.loop.time())
        finally:
            self._start_drain()
        if self._drain is not None:
            await asyncio.wait([self._drain], timeout=DRAIN_S_MAX)
            self._drain = None

    async def _wait_for_early(self, drain: "asyncio.Future[None]") -> None:
        """Until the answer is there, the link has failed, or `sweep` has given it up."""
        try:
            await drain
        except asyncio.CancelledError:
            if drain.cancelled():  # whoever asks next waits on
                self._drain = self.carrier.loop.create_future()
            raise
        self._asked_early = 0
        self._drain = None

    async def _wait_for_arrival(self, max_wait_s: float) -> None:
        if not self._buffer:
            self._raise_if_broken()
            self._arrival = self.carrier.loop.create_future()
            try:
                await asyncio.wait([self._arrival], timeout=max(0.0, max_wait_s))
            finally:
                self._arrival = None
        self._raise_if_broken()

    def _raise_if_broken(self) -> None:
        if self.error is not None and not self._buffer:
            raise self.error.with_traceback(None)

    def _start_drain(self) -> None:
        if self.error is None and self._drain is None and self.link.credit_left > 0:
            self._drain = self.carrier.loop.create_future()
            self.is_drained = False
            self.link.grant(self.link.credit_left, drain=True)
            self.carrier.flush_soon()

    def _pop(self, max_count: int) -> list[ReceivedMessage]:
        buffer = self._buffer
        taken = [buffer.popleft() for _ in range(min(max_count, len(buffer)))]
        for message in taken:
            self._buffer_bytes -= len(message.raw)
        if self._left is not None:
            self._left = max(0, self._left - len(taken))
        if self.credit:
            self._top_up()
        return taken

    def allow(self, count: int) -> None:
        """So many more than the limit that the receiver was made with."""
        if self._left is not None:
            self._left += count
        if self.credit:
            self._top_up()

    def _top_up(self) -> None:
        """Keep the credit between a half and the whole of what was asked for, and within the limit."""
        goal = self.credit if self._left is None else min(self.credit, self._left)
        wanted = goal - len(self._buffer)
        is_low = self.link.credit_left <= wanted - (goal + 1) // 2
        if goal < self.credit:  # towards the end: all that is still to come, once
            is_low = self.link.credit_left < wanted
        if self.error is None and self._drain is None and is_low and self._buffer_bytes < BUFFER_BYTES_MAX:
            self.link.grant(wanted)
            self.carrier.flush_soon()

    async def is_empty(self) -> bool:
        """Whether the service has nothing to hand out now: it is asked, so that slowness is not taken for it.

        For a receiver with credit. What comes instead is there for the next `receive`.
        """
        if not self._buffer:
            self._raise_if_broken()
            self._start_drain()
            if self._drain is not None:
                await asyncio.wait([self._drain], timeout=DRAIN_S_MAX)
                self._drain = None
        self._raise_if_broken()
        self._top_up()
        return not self._buffer

    @property
    def prefetched(self) -> Iterable[ReceivedMessage]:
        """Messages that have come and were not taken yet: whoever holds them long renews their locks too."""
        return tuple(self._buffer)

    # -- settling ----------------------------------------------------------------------------------------------------

    def complete(self, message: ReceivedMessage) -> "asyncio.Future[None]":
        """Done with it: the message is removed."""
        return self._settle(message, ACCEPTED)

    def complete_all(self, messages: Sequence[ReceivedMessage]) -> "asyncio.Future[dict[int, ClientError]]":
        """Done with all of these, for the price of one future. Its result is what failed, by delivery id."""
        loop = self.carrier.loop
        future: asyncio.Future[dict[int, ClientError]] = loop.create_future()
        for message in messages:
            self._claim(message)
        if self.error is not None:
            future.set_result({message.delivery_id: self.error for message in messages})
            return future
        if not messages:
            future.set_result({})
            return future
        together = SettlingTogether(future, ACCEPTED, loop.time() + self.timeout_s, len(messages))
        settling = self._settling
        session = self.link.session
        for message in messages:
            settling[message.delivery_id] = together
            session.dispose(message.delivery_id, ACCEPTED)
        self.carrier.flush_soon()
        return future

    def abandon(
        self, message: ReceivedMessage, properties: Mapping[str, object] | None = None
    ) -> "asyncio.Future[None]":
        """Unlock it at once; the delivery counts as failed. `properties` change its application properties."""
        return self._settle(message, _modified(False, properties) if properties else _ABANDONED)

    def defer(self, message: ReceivedMessage, properties: Mapping[str, object] | None = None) -> "asyncio.Future[None]":
        """Set it aside: from now on it is received by its sequence number only."""
        return self._settle(message, _modified(True, properties) if properties else _DEFERRED)

    def dead_letter(
        self,
        message: ReceivedMessage,
        reason: str | None = None,
        description: str | None = None,
        properties: Mapping[str, object] | None = None,
    ) -> "asyncio.Future[None]":
        """Move it to the dead-letter queue, where reason and description are application properties."""
        info: dict[object, object] = {
            Symbol("DeadLetterReason"): reason,
            Symbol("DeadLetterErrorDescription"): description,
        }
        for name, value in (properties or {}).items():
            info[Symbol(name)] = value
        return self._settle(message, Rejected(AmqpError(DEAD_LETTER_CONDITION, description, info)))

    def release(self, message: ReceivedMessage) -> None:
        """Unlock it without counting the delivery. The service does not answer this one."""
        self._claim(message)
        if self.error is None:
            self.link.session.settle(message.delivery_id, RELEASED)
            self.carrier.flush_soon()

    def _settle(self, message: ReceivedMessage, state: DeliveryState) -> "asyncio.Future[None]":
        self._claim(message)
        loop = self.carrier.loop
        future: asyncio.Future[None] = loop.create_future()
        if self.error is not None:
            future.set_exception(self.error)
            return future
        self._settling[message.delivery_id] = PendingSettlement(future, state, loop.time() + self.timeout_s)
        self.link.session.dispose(message.delivery_id, state)
        self.carrier.flush_soon()
        return future

    def _claim(self, message: ReceivedMessage) -> None:
        if message.link is not self.link:
            raise ValueError("the message was not received on this link; settle it by its lock token")
        if message.is_settled:
            raise ValueError("the message is settled already")
        message.is_settled = True

    # -- ending --------------------------------------------------------------------------------------------------------

    async def close(self, timeout: float | None = None) -> list[ReceivedMessage]:
        """Take credit back, give back what was prefetched and detach.

        Locks of messages that were handed out live on until they expire; they can still be settled by lock token.
        In receive-and-delete mode nothing can be given back: the answer is what has come and was never taken
        (contract H2).
        """
        left: list[ReceivedMessage] = []
        try:
            self._start_drain()
            waiting: list[asyncio.Future[Any]] = [settling.future for settling in self._settling.values()]
            self._asked_early = 0
            if self._drain is not None and self.attached.done():
                waiting.append(self._drain)
            if waiting and self.error is None:
                await asyncio.wait(waiting, timeout=DRAIN_S_MAX if timeout is None else timeout)
            left = self.rescue()
            for message in self._buffer:
                if not message.is_settled:
                    self.release(message)
        finally:
            self._buffer.clear()
            self.end(LinkClosed(f"the receiver of {self.label} was closed", is_transient=False))
        return left

    def rescue(self) -> list[ReceivedMessage]:
        """What has come and was not taken yet, where receiving deletes: nobody else will ever have it."""
        return self._pop(len(self._buffer)) if self.mode == RECEIVE_AND_DELETE else []

    # -- told by the wire ----------------------------------------------------------------------------------------------

    def on_open(self) -> None:
        if self.credit:
            self._top_up()
        elif self._asked_early:
            self._answer_due_s = self.carrier.loop.time() + DRAIN_S_MAX
            self.link.grant(self._asked_early, drain=True)
            self.carrier.flush_soon()

    def on_transfer(self, event: TransferReceived) -> None:
        message = ReceivedMessage(event.payload, event.tag, event.delivery_id, self.link, event.settled)
        self._buffer.append(message)
        self._buffer_bytes += len(event.payload)
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def on_flow(self, is_drained: bool) -> None:
        self.is_drained = is_drained
        if self._drain is not None and not self._drain.done():
            self._drain.set_result(None)

    def on_incoming_settled(self, event: IncomingSettled) -> None:
        settling = self._settling
        count = ((event.last - event.first) & 0xFFFFFFFF) + 1
        if count <= len(settling):
            for offset in range(count):
                self._confirm((event.first + offset) & 0xFFFFFFFF, event.state)
            return
        for delivery_id in list(settling):  # a range far wider than what waits: walk what waits
            if (delivery_id - event.first) & 0xFFFFFFFF < count:
                self._confirm(delivery_id, event.state)

    def _confirm(self, delivery_id: int, echo: DeliveryState | None) -> None:
        asked = self._settling.pop(delivery_id, None)
        if asked is None or asked.future.done():
            return
        error = _settlement_error(asked.state, echo)
        if isinstance(asked, SettlingTogether):
            asked.answer(delivery_id, error)
        elif error is None:
            asked.future.set_result(None)
        else:
            asked.future.set_exception(error)

    def on_failed(self, error: ClientError) -> None:
        failed = list(self._settling.items())
        self._settling.clear()
        for delivery_id, settling in failed:
            _fail(settling, delivery_id, error)
        for waiter in (self._arrival, self._drain):
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

    def sweep(self, now_s: float) -> None:
        if self._asked_early and now_s >= self._answer_due_s:
            self._abandon_early()
        while self._settling:
            delivery_id, settling = next(iter(self._settling.items()))  # oldest first
            if settling.deadline_s > now_s:
                return
            del self._settling[delivery_id]
            overdue = OperationTimeout(f"settling on {self.label}: no answer within {self.timeout_s:g} s")
            _fail(settling, delivery_id, overdue)

    def _abandon_early(self) -> None:
        if not self.attached.done():
            self.end(OperationTimeout(f"the service does not answer the attach to {self.label}"))
        elif self._drain is not None and not self._drain.done():
            self._drain.set_result(None)  # the link is there, but the drain was not answered: asked once more


def _fail(settling: PendingSettlement | SettlingTogether, delivery_id: int, error: ClientError) -> None:
    if isinstance(settling, SettlingTogether):
        settling.answer(delivery_id, error)
    elif not settling.future.done():
        settling.future.set_exception(error)


def _modified(undeliverable_here: bool, properties: Mapping[str, object]) -> Modified:
    annotations: dict[object, object] = {Symbol(name): value for name, value in properties.items()}
    return Modified(delivery_failed=True, undeliverable_here=undeliverable_here, message_annotations=annotations)


def _settlement_error(asked: DeliveryState, echo: DeliveryState | None) -> ClientError | None:
    """The service echoes the outcome that it carried out; a rejection with an error says that it could not."""
    if isinstance(echo, Rejected) and echo.error is not None:
        return error_for(echo.error.condition, echo.error.description)
    if echo is None or echo.code != asked.code:
        said = "no outcome" if echo is None else type(echo).__name__.lower()
        return SettlementFailed(f"asked for {type(asked).__name__.lower()}, the service answered {said}")
    return None
