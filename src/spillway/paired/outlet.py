"""The way to one entity: a few senders of the SDK, each used by one coroutine at a time.

The SDK's senders are not made for several coroutines, and each has a connection of its own. While all are busy, what
arrives waits here, and goes together in one batch when one is free; every caller hears the outcome of its own messages.
Every call of the SDK has a time-out: without one a send to a peer that has fallen silent waits for ever.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus.aio import ServiceBusSender
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusCommunicationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusServerBusyError,
)

from spillway.paired.aliases import partition_key_of, raw_of, session_id_of
from spillway.paired.batches import Outgoing
from spillway.paired.ending import close_quietly, end
from spillway.paired.overdue import Overdue

GRACE_S: Final = 0.3  # for the SDK to keep its own time-out before we end the call for it
TOGETHER_MAX: Final = 500  # messages that strangers send in one batch
# After these the same messages one by one would fare no better.
_OF_THE_WAY: Final = (
    OperationTimeoutError,
    ServiceBusConnectionError,
    ServiceBusCommunicationError,
    ServiceBusServerBusyError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    OSError,
)
# After these a sender may be in any state.
_SPOILS: Final = (OperationTimeoutError, ServiceBusConnectionError, ServiceBusCommunicationError, OSError)


class Parcel:
    """What one caller sends: one message, or several that belong together (`is_whole`: all or nothing)."""

    def __init__(
        self,
        messages: list[Outgoing],
        is_whole: bool,
        is_keyed: bool = True,
        body_sizes: Sequence[int] = (),
        encoded: ServiceBusMessageBatch | None = None,
    ) -> None:
        self.messages = messages
        self.is_whole = is_whole
        self.is_keyed = is_keyed
        self.body_sizes = body_sizes  # bytes of each message's body, for whoever counts them
        self.encoded = encoded  # the same messages, if they have been encoded as a batch already

    @property
    def content(self) -> Any:
        """As the SDK takes it."""
        if self.encoded is not None:
            return self.encoded
        return list(self.messages) if self.is_whole else self.messages[0]

    @property
    def key(self) -> str | None:
        """Session or partition: only messages of one go into a batch together."""
        return coalescing_key(self.messages[0]) if self.is_keyed else None


def coalescing_key(message: Outgoing) -> str | None:
    raw = raw_of(message)
    return session_id_of(raw) or partition_key_of(raw)


class _Waiting:
    def __init__(self, parcel: Parcel, deadline_s: float, done: asyncio.Future[None]) -> None:
        self.parcel = parcel
        self.deadline_s = deadline_s
        self.done = done


class Outlet:
    def __init__(self, path: str, make_sender: Callable[[], ServiceBusSender], senders_max: int) -> None:
        self.path = path
        self.make_sender = make_sender
        self.senders_max = senders_max
        self.idle: list[ServiceBusSender] = []
        self.busy_count = 0
        self.waiting: deque[_Waiting] = deque()
        self.tasks: set[asyncio.Task[None]] = set()
        self.closing: set[asyncio.Task[None]] = set()
        self.overdue = Overdue()
        self.is_closed = False

    async def send(self, parcel: Parcel, deadline_s: float, now_s: float | None = None) -> None:
        """Returns when the service accepted it, else raises what the SDK raised. `now_s` saves asking what time it is:
        every send passes here."""
        sender = None if self.waiting else self._take_sender()
        if sender is None:
            await self._wait_for_turn(parcel, deadline_s)
            return
        try:
            await self._send(sender, parcel.content, deadline_s, now_s)
        except BaseException as error:
            self._give_back(sender, _is_spoilt(error))
            raise
        self._give_back(sender, False)

    async def call(self, operation: Callable[[ServiceBusSender, float], Any], deadline_s: float) -> Any:
        """Something else than sending: `operation` gets a sender of its own and the seconds it may take."""
        sender = self._take_sender()
        if sender is None:  # it does not queue behind sends
            sender = self.make_sender()
            self.busy_count += 1
        try:
            result = await self._timed(operation, sender, deadline_s)
        except BaseException as error:
            self._give_back(sender, _is_spoilt(error))
            raise
        self._give_back(sender, False)
        return result

    async def close(self) -> None:
        self.is_closed = True
        for waiting in self.waiting:
            if not waiting.done.done():
                waiting.done.set_exception(ServiceBusConnectionError(message="The factory was closed."))
        self.waiting.clear()
        await end(*self.tasks)
        self.overdue.close()
        idle, self.idle = self.idle, []
        await asyncio.gather(*self.closing, *(close_quietly(sender) for sender in idle))

    # -- senders --------------------------------------------------------------------------------------------------

    def _take_sender(self) -> ServiceBusSender | None:
        if self.is_closed:
            raise ServiceBusConnectionError(message="The factory was closed.")
        if self.idle:
            self.busy_count += 1
            return self.idle.pop()
        if self.busy_count >= self.senders_max:
            return None
        sender = self.make_sender()  # may refuse: what was not made is not busy
        self.busy_count += 1
        return sender

    def _give_back(self, sender: ServiceBusSender, is_spoilt: bool) -> None:
        self.busy_count -= 1
        if is_spoilt or self.is_closed or len(self.idle) >= self.senders_max:
            self._start(close_quietly(sender), self.closing)
        else:
            self.idle.append(sender)
        if self.waiting:
            self._serve_waiting()

    def _start(self, coroutine: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    # -- waiting, and going together ------------------------------------------------------------------------------

    async def _wait_for_turn(self, parcel: Parcel, deadline_s: float) -> None:
        loop = asyncio.get_running_loop()
        waiting = _Waiting(parcel, deadline_s, loop.create_future())
        self.waiting.append(waiting)
        try:
            async with asyncio.timeout_at(deadline_s + GRACE_S):
                await waiting.done
        except TimeoutError:
            raise OperationTimeoutError(message=f"'{self.path}' was not sent to within the time allowed.") from None
        finally:
            if not waiting.done.done():
                waiting.done.cancel()

    def _serve_waiting(self) -> None:
        while self.waiting and not self.is_closed:
            if self.waiting[0].done.done():
                self.waiting.popleft()  # gave up meanwhile
                continue
            sender = self._take_sender()
            if sender is None:
                return
            self._start(self._send_together(sender, self._next_group()), self.tasks)

    def _next_group(self) -> list[_Waiting]:
        """The first that waits, and those behind it that may share a batch with it."""
        first = self.waiting.popleft()
        group = [first]
        count = len(first.parcel.messages)
        if first.parcel.is_whole:
            return group
        key = first.parcel.key
        now_s = asyncio.get_running_loop().time()
        while self.waiting and count < TOGETHER_MAX:
            other = self.waiting[0]
            if other.done.done():
                self.waiting.popleft()
                continue
            if other.parcel.is_whole or other.parcel.key != key or not _is_as_patient(first, other, now_s):
                break
            group.append(self.waiting.popleft())
            count += 1
        return group

    async def _send_together(self, sender: ServiceBusSender, group: list[_Waiting]) -> None:
        is_spoilt = False
        try:
            if len(group) == 1:
                await self._send_one(sender, group[0])
            else:
                await self._send_batch(sender, group)
        except BaseException as error:
            is_spoilt = _is_spoilt(error)
            for waiting in group:
                if not waiting.done.done():
                    waiting.done.set_exception(_without_cancellation(error))
                    waiting.done.exception()  # who gave up meanwhile does not ask for it
            if not isinstance(error, Exception):
                raise
        finally:
            self._give_back(sender, is_spoilt)

    async def _send_one(self, sender: ServiceBusSender, waiting: _Waiting) -> None:
        await self._send(sender, waiting.parcel.content, waiting.deadline_s)
        _accept(waiting)

    async def _send_batch(self, sender: ServiceBusSender, group: list[_Waiting]) -> None:
        """What does not fit goes back to the front; what cannot be encoded is its own caller's error alone."""
        deadline_s = min(waiting.deadline_s for waiting in group)
        batch = await self._timed(make_batch, sender, deadline_s)
        inside: list[_Waiting] = []
        for at, waiting in enumerate(group):
            try:
                batch.add_message(waiting.parcel.messages[0])
            except MessageSizeExceededError:
                if not inside:
                    await self._send_alone(sender, waiting)
                    continue
                self.waiting.extendleft(reversed(group[at:]))
                del group[at:]
                break
            except Exception as error:
                _refuse(waiting, error)
            else:
                inside.append(waiting)
        if not inside:
            return
        try:
            await self._send(sender, batch, deadline_s)
        except _OF_THE_WAY:
            raise
        except Exception:
            for waiting in inside:  # one of them is to blame: each for itself
                await self._send_alone(sender, waiting)
            return
        for waiting in inside:
            _accept(waiting)

    async def _send_alone(self, sender: ServiceBusSender, waiting: _Waiting) -> None:
        try:
            await self._send_one(sender, waiting)
        except _OF_THE_WAY:
            raise
        except Exception as error:
            _refuse(waiting, error)

    # -- the SDK's calls ------------------------------------------------------------------------------------------

    async def _send(self, sender: ServiceBusSender, what: Any, deadline_s: float, now_s: float | None = None) -> None:
        left_s = self._left_s(deadline_s) if now_s is None or now_s >= deadline_s else deadline_s - now_s
        try:
            await self.overdue.limit(sender.send_messages(what, timeout=left_s), deadline_s + GRACE_S)
        except TimeoutError:
            raise self._too_late(left_s) from None

    async def _timed(
        self, operation: Callable[[ServiceBusSender, float], Any], sender: ServiceBusSender, deadline_s: float
    ) -> Any:
        left_s = self._left_s(deadline_s)
        try:
            return await self.overdue.limit(operation(sender, left_s), deadline_s + GRACE_S)
        except TimeoutError:
            raise self._too_late(left_s) from None

    def _left_s(self, deadline_s: float) -> float:
        left_s = deadline_s - asyncio.get_running_loop().time()
        if left_s <= 0:
            raise OperationTimeoutError(message=f"'{self.path}' was not sent to within the time allowed.")
        return left_s

    def _too_late(self, left_s: float) -> OperationTimeoutError:
        return OperationTimeoutError(message=f"'{self.path}' did not answer within {left_s:.1f} s.")


async def make_batch(sender: ServiceBusSender, left_s: float) -> ServiceBusMessageBatch:
    return await sender.create_message_batch()


def _is_as_patient(one: _Waiting, other: _Waiting, now_s: float) -> bool:
    """A batch has the time of its least patient caller: who has much more is not to hear of a time-out for it."""
    some_s, more_s = sorted((one.deadline_s - now_s, other.deadline_s - now_s))
    return more_s <= 2 * max(some_s, 0.0)


def _accept(waiting: _Waiting) -> None:
    if not waiting.done.done():
        waiting.done.set_result(None)


def _refuse(waiting: _Waiting, error: BaseException) -> None:
    if not waiting.done.done():
        waiting.done.set_exception(error)
        waiting.done.exception()


def _is_spoilt(error: BaseException) -> bool:
    """Whether a sender must not be used again: it may still wait for an answer that is no longer asked for."""
    return isinstance(error, _SPOILS) or not isinstance(error, (ServiceBusError, ValueError, TypeError))


def _without_cancellation(error: BaseException) -> BaseException:
    if isinstance(error, Exception):
        return error
    return ServiceBusConnectionError(message="The factory was closed.")
