"""Senders of the SDK, kept for the next message: a few for each entity, each used by one coroutine at a time.

The SDK's senders are not made for several coroutines, and each has a connection of its own. While all are busy, what
arrives waits here, and goes together in one batch when one is free; every caller hears the outcome of its own messages.
Every call of the SDK has a time-out: without one a send to a peer that has fallen silent waits for ever.

A connection may have died while nobody used it: the peer was restarted, or closed what was idle. A sender that was used
before and turns out to be dead is replaced, with all that are as old, and that counts as no failure.
"""

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Protocol

from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus.aio import ServiceBusSender
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    OperationTimeoutError,
    ServiceBusCommunicationError,
    ServiceBusConnectionError,
)

from spillway.model.failures import OF_CALLER, Blame, Failure
from spillway.paired.deadlines import Deadlines
from spillway.paired.requests import SendRequest
from spillway.paired.shutdown import CLOSE_S, HandlerWatch, end, release_locals

GRACE_S: Final = 0.3  # for the SDK to keep its own time-out before we end the call for it
TOGETHER_MAX: Final = 500  # messages that strangers send in one batch
BUSY_LOOK_S: Final = 0.02  # while closing: calls that were ended have let go of their senders
_UNCONNECTED: Final = (ServiceBusConnectionError, ServiceBusCommunicationError, OSError)

Operation = Callable[[ServiceBusSender, float], Awaitable[Any]]  # of the SDK, within so many seconds


class ErrorJudge(Protocol):
    """Says what an error means: a namespace, by the policy that it has now."""

    judge: Callable[[BaseException], Failure]


class SendFailed(Exception):
    """What the SDK raised, and what that means."""

    def __init__(self, error: Exception, failure: Failure) -> None:
        super().__init__(str(error))
        self.error = error
        self.failure = failure


class PooledSender:
    """One sender of the SDK. It connects with its first call."""

    __slots__ = ("idle_since_s", "is_connected", "sdk", "watch")

    def __init__(self, sdk: ServiceBusSender) -> None:
        self.sdk = sdk
        self.watch = HandlerWatch(sdk)
        self.is_connected = False  # it has answered a call
        self.idle_since_s = 0.0

    def on_answer(self, now_s: float) -> None:
        self.idle_since_s = now_s
        if not self.is_connected:
            self.is_connected = True
            self.watch.on_connected()

    async def close(self) -> None:
        await self.watch.close()


class _Waiting:
    """A request that waits for a sender."""

    def __init__(self, request: SendRequest, deadline_s: float, done: asyncio.Future[None]) -> None:
        self.request = request
        self.deadline_s = deadline_s
        self.done = done


class SenderPool:
    """The senders of one entity. `on_idle` is told when one has nothing to do."""

    def __init__(
        self,
        path: str,
        make_sender: Callable[[], ServiceBusSender],
        senders_max: int,
        namespace: ErrorJudge,
        on_idle: Callable[[], None] = lambda: None,
    ) -> None:
        self.path = path
        self.make_sender = make_sender
        self.senders_max = senders_max
        self.namespace = namespace
        self.on_idle = on_idle
        self.idle: list[PooledSender] = []  # the one that was used last at the end
        self.busy_count = 0
        self.waiting: deque[_Waiting] = deque()
        self.tasks: set[asyncio.Task[None]] = set()
        self.closing: set[asyncio.Task[None]] = set()
        self.deadlines = Deadlines()
        self.is_closed = False

    @property
    def is_unused(self) -> bool:
        return not (self.idle or self.busy_count or self.waiting or self.tasks or self.closing)

    async def send(self, request: SendRequest, deadline_s: float) -> None:
        """Returns when the service accepted it, else raises `SendFailed`."""
        sender = None if self.waiting else self._acquire()
        if sender is None:
            await self._wait_for_turn(request, deadline_s)
            return
        await self._use(sender, lambda sdk, left_s: sdk.send_messages(request.content, timeout=left_s), deadline_s)

    async def call(self, operation: Operation, deadline_s: float) -> Any:
        """Something else than sending: `operation` gets a sender of its own and the seconds it may take."""
        sender = self._acquire()
        if sender is None:  # it does not queue behind sends
            sender = self._make()
        return await self._use(sender, operation, deadline_s)

    async def close(self) -> None:
        self.is_closed = True
        for waiting in self.waiting:
            _refuse(waiting, SendFailed(_closed(), OF_CALLER))
        self.waiting.clear()
        self.deadlines.end_all()
        await end(*self.tasks)
        self.close_idle(math.inf)
        until_s = asyncio.get_running_loop().time() + CLOSE_S
        while (self.busy_count or self.closing) and asyncio.get_running_loop().time() < until_s:
            await asyncio.wait({*self.closing, asyncio.ensure_future(asyncio.sleep(BUSY_LOOK_S))})
        self.deadlines.close()

    def close_idle(self, before_s: float) -> int:
        """Close the senders that nobody has used since then; how many are left."""
        while self.idle and self.idle[0].idle_since_s <= before_s:
            self._discard(self.idle.pop(0))
        return len(self.idle)

    # -- senders --------------------------------------------------------------------------------------------------

    def _acquire(self) -> PooledSender | None:
        if self.is_closed:
            raise SendFailed(_closed(), OF_CALLER)
        if self.idle:
            self.busy_count += 1
            return self.idle.pop()
        return None if self.busy_count >= self.senders_max else self._make()

    def _make(self) -> PooledSender:
        sender = PooledSender(self.make_sender())  # may refuse: what was not made is not busy
        self.busy_count += 1
        return sender

    def _release(self, sender: PooledSender, is_spoilt: bool) -> None:
        assert self.busy_count > 0, "who is released was acquired"
        assert sender not in self.idle, "a sender is used by one coroutine at a time"
        self.busy_count -= 1
        if is_spoilt or self.is_closed or len(self.idle) >= self.senders_max:
            self._discard(sender)
        else:
            sender.on_answer(asyncio.get_running_loop().time())
            self.idle.append(sender)
            self.on_idle()
        if self.waiting:
            self._serve_waiting()

    def _discard(self, sender: PooledSender) -> None:
        self._start(sender.close(), self.closing)

    def _start(self, coroutine: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _use(self, sender: PooledSender, operation: Operation, deadline_s: float) -> Any:
        """What the operation returns. A sender that was dead before is replaced by a new one: that is no failure."""
        is_spoilt = True
        try:
            while True:
                left_s = deadline_s - asyncio.get_running_loop().time()
                try:
                    if left_s <= 0:
                        raise self._too_late()
                    with self.deadlines.limit(deadline_s + GRACE_S):
                        result = await operation(sender.sdk, left_s)
                except Exception as error:
                    release_locals(error)
                    if isinstance(error, TimeoutError):
                        error = self._silence(left_s)
                    failure = self.namespace.judge(error)
                    if sender.is_connected and failure.ends_link and not self.is_closed:
                        sender = self._replaced(sender)
                        continue
                    is_unconnected = not sender.is_connected and isinstance(error, _UNCONNECTED)
                    if is_unconnected and failure.blame is Blame.WAY and failure.ends_link:
                        failure = failure._replace(blame=Blame.NAMESPACE)
                    is_spoilt = failure.spoils_sender
                    raise SendFailed(error, failure) from error
                is_spoilt = False
                return result
        finally:
            self._release(sender, is_spoilt)

    def _replaced(self, dead: PooledSender) -> PooledSender:
        """A new sender for a dead one. Senders that nobody uses are as old as that one, or older."""
        sender = PooledSender(self.make_sender())
        self._discard(dead)
        self.close_idle(math.inf)
        return sender

    def _too_late(self) -> OperationTimeoutError:
        return OperationTimeoutError(message=f"'{self.path}' was not sent to within the time allowed.")

    def _silence(self, waited_s: float) -> OperationTimeoutError:
        return OperationTimeoutError(message=f"'{self.path}' did not answer within {waited_s:.1f} s.")

    # -- waiting, and going together ------------------------------------------------------------------------------

    async def _wait_for_turn(self, request: SendRequest, deadline_s: float) -> None:
        waiting = _Waiting(request, deadline_s, asyncio.get_running_loop().create_future())
        self.waiting.append(waiting)
        try:
            async with asyncio.timeout_at(deadline_s + GRACE_S):
                await waiting.done
        except TimeoutError:
            error = self._too_late()
            raise SendFailed(error, self.namespace.judge(error)) from None
        finally:
            if not waiting.done.done():
                waiting.done.cancel()

    def _serve_waiting(self) -> None:
        while self.waiting and not self.is_closed:
            if self.waiting[0].done.done():
                self.waiting.popleft()  # gave up meanwhile
                continue
            try:
                sender = self._acquire()
            except Exception as error:  # it cannot be made: whoever waits hears it
                _refuse(self.waiting.popleft(), error)
                continue
            if sender is None:
                return
            self._start(self._send_together(sender, self._next_group()), self.tasks)

    def _next_group(self) -> list[_Waiting]:
        """The first that waits, and those behind it that may share a batch with it."""
        first = self.waiting.popleft()
        group = [first]
        if first.request.is_whole:
            return group
        key = first.request.key
        now_s = asyncio.get_running_loop().time()
        while self.waiting and len(group) < TOGETHER_MAX:
            other = self.waiting[0]
            if other.done.done():
                self.waiting.popleft()
                continue
            if other.request.is_whole or other.request.key != key or not _is_as_patient(first, other, now_s):
                break
            group.append(self.waiting.popleft())
        return group

    async def _send_together(self, sender: PooledSender, group: list[_Waiting]) -> None:
        assert 0 < len(group) <= TOGETHER_MAX, "a sender is not taken for nobody, nor for more than a batch may have"
        deadline_s = min(waiting.deadline_s for waiting in group)
        try:
            await self._use(sender, lambda sdk, left_s: self._send_group(sdk, left_s, group), deadline_s)
        except SendFailed as failed:
            for waiting in group:
                _refuse(waiting, failed)
        except BaseException:
            for waiting in group:
                _refuse(waiting, SendFailed(_closed(), OF_CALLER))
            raise

    async def _send_group(self, sdk: ServiceBusSender, left_s: float, group: list[_Waiting]) -> None:
        """Send the requests of a group in one batch. What does not fit goes back to the front; what cannot be encoded
        is its own caller's error."""
        group[:] = [waiting for waiting in group if not waiting.done.done()]
        if len(group) == 1:
            await sdk.send_messages(group[0].request.content, timeout=left_s)
            _accept(group[0])
            return
        batch = await sdk.create_message_batch()
        inside = self._packed(batch, group)
        if not inside:
            return
        try:
            await sdk.send_messages(batch, timeout=left_s)
        except Exception as error:
            failure = self.namespace.judge(error)
            if failure.blame is not Blame.MESSAGE and failure.is_certain:
                raise
            for waiting in inside:  # one of them is to blame: each for itself
                if not waiting.done.done():  # who gave up meanwhile sends it elsewhere, or not at all
                    await self._send_alone(sdk, waiting)
            return
        for waiting in inside:
            _accept(waiting)

    def _packed(self, batch: ServiceBusMessageBatch, group: list[_Waiting]) -> list[_Waiting]:
        """The requests that are in the batch now."""
        inside: list[_Waiting] = []
        for at, waiting in enumerate(group):
            try:
                batch.add_message(waiting.request.messages[0])
            except MessageSizeExceededError as error:
                if inside:
                    self.waiting.extendleft(reversed(group[at:]))
                    del group[at:]
                    break
                _refuse(waiting, SendFailed(error, self.namespace.judge(error)))
            except Exception as error:
                _refuse(waiting, SendFailed(error, self.namespace.judge(error)))
            else:
                inside.append(waiting)
        return inside

    async def _send_alone(self, sdk: ServiceBusSender, waiting: _Waiting) -> None:
        left_s = waiting.deadline_s - asyncio.get_running_loop().time()
        try:
            await sdk.send_messages(waiting.request.content, timeout=max(left_s, GRACE_S))
        except Exception as error:
            failure = self.namespace.judge(error)
            if failure.blame is not Blame.MESSAGE and failure.is_certain:
                raise
            _refuse(waiting, SendFailed(error, failure))
        else:
            _accept(waiting)


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
        waiting.done.exception()  # who gave up meanwhile does not ask for it


def _closed() -> ServiceBusConnectionError:
    return ServiceBusConnectionError(message="The factory was closed.")
