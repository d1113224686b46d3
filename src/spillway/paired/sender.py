"""The sender that a program uses: the SDK sender's own methods, to the primary while that is well, else to the backlog.

On a healthy primary it does what the SDK does (contract D1). When the entity fails, the same call may be held until one
side takes the message, or diverted; what the caller hears is always the truth about its own message.
"""

import asyncio
import datetime
import uuid
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Self

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.aio import ServiceBusSender
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties
from azure.servicebus.exceptions import MessageSizeExceededError, OperationTimeoutError

from spillway.paired.aliases import raw_of, refuse_aliases, to_backlog
from spillway.paired.backlog import BacklogQueue, BacklogUnavailable
from spillway.paired.batches import BATCH_BYTES_MAX, MESSAGE_OVERHEAD_BYTES, Batch, Outgoing, body_bytes, split
from spillway.paired.call import PRIMARY_SHARE, Call
from spillway.paired.errors import BacklogUnavailableError, EntityFailed, FactoryClosed, SchedulingError, wrapped
from spillway.paired.failover import Route, State
from spillway.paired.ledger import CANCEL, SCHEDULE, SEND
from spillway.paired.outlet import Outlet, Parcel
from spillway.paired.policy import FailoverPolicy, Verdict

if TYPE_CHECKING:
    from spillway.paired.factory import MessagingFactory
    from spillway.paired.pairing import Pairing, Watch

RETRIES_MAX: Final = 3
BACKOFF_S: Final = 0.1
BUSY_WAIT_S: Final = 10.0  # contract D7, I6
BACKLOG_TRY_SHARE: Final = 0.5  # of what is left, so that another backlog queue can still be tried
FAIR_TRY_S: Final = 2.0  # less says nothing about a backlog queue
PROBE_S: Final = 1.0  # between two tries of a call that is held


class DivertedSequenceNumber(int):
    """Stands for a schedule that went to the backlog: negative, like no sequence number, and known to `cancel`."""


class MessageSender:
    def __init__(self, factory: "MessagingFactory", path: str) -> None:
        self.factory = factory
        self.path = path
        self._backlog: BacklogQueue | None = None  # its own, chosen at random (contract D14)
        self._is_closed = False
        self._outlet: Outlet | None = None
        self._watched: Watch | None = None  # once the factory is paired
        if factory.pairing is not None:
            self._backlog = self._choose(factory.pairing)

    @property
    def entity_name(self) -> str:
        return self.path

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """The connections belong to the factory, and stay."""
        self._is_closed = True

    # -- the SDK's methods ----------------------------------------------------------------------------------------

    async def send_messages(self, message: Any, *, timeout: float | None = None) -> None:
        """One message, an iterable of them (sent as one batch, all or nothing) or a batch."""
        self._check_open()
        messages, is_whole = unpack(message)
        if messages:
            await self._enter_and_deliver(messages, is_whole, None, timeout)

    async def schedule_messages(
        self, messages: Any, schedule_time_utc: datetime.datetime, *, timeout: float | None = None
    ) -> list[int]:
        """The sequence numbers, for `cancel_scheduled_messages`; of what went to the backlog a
        `DivertedSequenceNumber`, which cannot be cancelled."""
        self._check_open()
        if not isinstance(schedule_time_utc, datetime.datetime):
            raise TypeError("schedule_time_utc must be a datetime")
        unpacked, _ = unpack(messages)
        if not unpacked:
            return []
        numbers = await self._enter_and_deliver(unpacked, True, schedule_time_utc, timeout)
        return numbers or []

    async def cancel_scheduled_messages(
        self, sequence_numbers: int | list[int], *, timeout: float | None = None
    ) -> None:
        self._check_open()
        numbers = [sequence_numbers] if isinstance(sequence_numbers, int) else list(sequence_numbers)
        if any(number < 0 for number in numbers):
            raise SchedulingError(
                f"'{self.path}' was away when this was scheduled: the message is in the backlog and cannot be "
                "cancelled; it will be delivered when the entity is back"
            )
        if numbers:
            await self._call_primary(lambda sender, left_s: _cancel(sender, numbers, left_s), timeout)
            for _ in numbers:
                self.factory.ledger.count(self.path, CANCEL)

    async def create_message_batch(self, max_size_in_bytes: int | None = None) -> ServiceBusMessageBatch:
        self._check_open()
        watch = self._watch()
        if watch is not None and watch.machine.route() is not Route.PRIMARY:
            return ServiceBusMessageBatch(max_size_in_bytes=max_size_in_bytes or BATCH_BYTES_MAX)
        try:
            batch = await self._call_primary(lambda sender, _: sender.create_message_batch(max_size_in_bytes), None)
        except (ValueError, FactoryClosed):
            raise
        except Exception:
            if watch is None:
                raise
            # A batch is no send: whoever sends it will hear what is wrong with the entity.
            return ServiceBusMessageBatch(max_size_in_bytes=max_size_in_bytes or BATCH_BYTES_MAX)
        assert isinstance(batch, ServiceBusMessageBatch)
        return batch

    # -- the way of a message -------------------------------------------------------------------------------------

    async def _enter_and_deliver(
        self, messages: list[Outgoing], is_whole: bool, due: datetime.datetime | None, timeout: float | None
    ) -> list[int] | None:
        """Prepare, wait for room among what is in flight, then send."""
        if timeout is not None and timeout <= 0:
            raise ValueError("timeout must be greater than 0")
        pairing = self.factory.pairing
        body_sizes = []
        size_bytes = 0
        for message in messages:
            body_size = prepare(message, pairing is not None)
            body_sizes.append(body_size)
            size_bytes += body_size + MESSAGE_OVERHEAD_BYTES
        parcel = Parcel(messages, is_whole, True, body_sizes)
        now_s = asyncio.get_running_loop().time()
        call = Call(parcel, due, now_s, now_s + (timeout or self._default_timeout_s(pairing)))
        count = len(messages)
        bound = self.factory.in_flight
        if not bound.enter_now(count, size_bytes):
            await self._wait_for_room(count, size_bytes, call.deadline_s)
            now_s = asyncio.get_running_loop().time()
        try:
            return await self._deliver(call, now_s)
        finally:
            bound.leave(count, size_bytes)

    async def _wait_for_room(self, count: int, size_bytes: int, deadline_s: float) -> None:
        bound = self.factory.in_flight
        try:
            async with asyncio.timeout_at(deadline_s):
                await bound.enter(count, size_bytes)
        except TimeoutError:
            raise wrapped(
                OperationTimeoutError(
                    message=f"{bound.count} messages of this factory are in flight, the most it may have "
                    f"(max_in_flight, max_in_flight_bytes): '{self.path}' was not sent to within the time allowed."
                ),
                self.path,
            ) from None
        if self.factory.is_closed:
            bound.leave(count, size_bytes)
            self.factory.check_open()

    def _default_timeout_s(self, pairing: "Pairing | None") -> float:
        """A call that is held must be able to see the end of the interval."""
        if pairing is None or pairing.options.pending == "raise":
            return self.factory.operation_timeout_s
        return self.factory.operation_timeout_s + pairing.options.failover_interval.total_seconds()

    async def _deliver(self, call: Call, now_s: float) -> list[int] | None:
        watch = self._watched or self._watch()
        outlet = self._outlet or self._make_outlet()
        tries = 0
        share_s, primary_until_s = self._primary_share(watch, call, now_s)
        while True:
            epoch = 0
            if watch is not None:
                machine = watch.machine
                epoch = machine.epoch
                if machine.state is not State.HEALTHY and machine.route() is not Route.PRIMARY:
                    return await self._deliver_away(watch, call)
            try:
                numbers = None
                if call.due is None:
                    await outlet.send(call.parcel, primary_until_s, now_s)
                else:
                    numbers = [*call.numbers, *await self._schedule(outlet, call.parcel, call.due, primary_until_s)]
            except Exception as error:
                self.factory.check_open()  # that it was closed says nothing about the entity
                loop = asyncio.get_running_loop()
                call.note(error)
                is_fair = call.is_fair(share_s, self.factory.operation_timeout_s)
                until_s = self._after_failure(error, watch, epoch, tries, primary_until_s, call.deadline_s, is_fair)
                if until_s is None:
                    raise wrapped(error, self.path) from error
                tries += 1
                if until_s > loop.time():
                    await self._wait(watch, until_s, error)
                now_s = loop.time()
                if now_s >= primary_until_s:  # held until now: it has its share of the time that is left
                    share_s, primary_until_s = self._primary_share(watch, call, now_s)
            else:
                if watch is not None and watch.machine.state is not State.HEALTHY:
                    watch.on_success()
                kind = SEND if call.due is None else SCHEDULE
                for size_bytes in call.parcel.body_sizes:
                    self.factory.ledger.count(self.path, kind, size_bytes)
                return numbers

    def _after_failure(
        self,
        error: Exception,
        watch: "Watch | None",
        epoch: int,
        tries: int,
        primary_until_s: float,
        deadline_s: float,
        is_fair: bool,
    ) -> float | None:
        """When to go on with the same messages, on whichever side takes them then; None: the caller gets the error."""
        now_s = asyncio.get_running_loop().time()
        policy = self._policy(watch)
        verdict = policy.judge(error)
        if verdict is Verdict.BUSY:
            return now_s + BUSY_WAIT_S if now_s + BUSY_WAIT_S < deadline_s else None
        if verdict is not Verdict.QUALIFIES:
            return None
        is_tried_again = policy.is_retried(error) and tries < RETRIES_MAX
        again_s = now_s + BACKOFF_S * (1 << tries)
        if is_tried_again and again_s < primary_until_s:
            return again_s
        if watch is None:
            return None
        if is_fair or not isinstance(error, OperationTimeoutError):
            watch.on_failure(error, epoch)
        if watch.machine.route() is not Route.PRIMARY:
            return now_s  # it is away: the backlog takes this very message
        if watch.pairing.options.pending == "raise" or now_s >= deadline_s:
            return None
        return min(deadline_s, now_s + PROBE_S)

    async def _wait(self, watch: "Watch | None", until_s: float, error: Exception) -> None:
        """Until then, or until something has changed. Who is throttled waits all that time (contract D7, I6), unless
        the backlog would take it, or the factory is closed."""
        if watch is None:
            await self.factory.rest(until_s)
            return
        await watch.changed(until_s)
        if self._policy(watch).judge(error) is Verdict.BUSY:
            loop = asyncio.get_running_loop()
            while loop.time() < until_s and watch.machine.route() is Route.PRIMARY and not self.factory.is_closed:
                await watch.changed(until_s)

    def _primary_share(self, watch: "Watch | None", call: Call, now_s: float) -> tuple[float, float]:
        """How long the primary may take, if the backlog may have to take the message afterwards, and until when."""
        left_s = call.deadline_s - now_s
        if watch is None or (watch.machine.interval_s > 0 and watch.pairing.options.pending == "raise"):
            return left_s, call.deadline_s
        share_s = min(self.factory.operation_timeout_s, left_s) * PRIMARY_SHARE
        return share_s, now_s + share_s

    async def _schedule(self, outlet: Outlet, parcel: Parcel, due: datetime.datetime, deadline_s: float) -> list[int]:
        numbers: list[int] = await outlet.call(
            lambda sender, left_s: sender.schedule_messages(list(parcel.messages), due, timeout=left_s),  # type: ignore[arg-type]
            deadline_s,
        )
        return numbers

    def _make_outlet(self) -> Outlet:
        self._outlet = self.factory.outlet(self.path)
        return self._outlet

    async def _call_primary(self, operation: Any, timeout: float | None) -> Any:
        deadline_s = asyncio.get_running_loop().time() + (timeout or self.factory.operation_timeout_s)
        try:
            return await self.factory.outlet(self.path).call(operation, deadline_s)
        except Exception as error:
            self.factory.check_open()
            raise wrapped(error, self.path) from error

    # -- the backlog ----------------------------------------------------------------------------------------------

    async def _deliver_away(self, watch: "Watch", call: Call) -> list[int] | None:
        """Into the backlog; with `pending="hold"` to whichever side can take it first."""
        pairing = watch.pairing
        loop = asyncio.get_running_loop()
        while True:
            self.factory.check_open()
            route = watch.machine.route()
            if route is Route.PRIMARY:  # it came back meanwhile
                return await self._deliver(call, loop.time())
            if route is Route.NOWHERE:
                raise EntityFailed(
                    f"'{self.path}' is away and waiting does not bring it back: {watch.machine.cause}. "
                    f"{call.fate().capitalize()}. Mend the cause, then call mark_path_healthy if the next ping is too "
                    "far off."
                ) from watch.machine.cause
            try:
                return await self._divert(pairing, call)
            except BacklogUnavailable as error:
                now_s = loop.time()
                if pairing.options.pending == "raise" or now_s + PROBE_S >= call.deadline_s:
                    refusal = BacklogUnavailableError(
                        f"'{self.path}' is away ({watch.machine.cause}), and {call.fate()}. {error}"
                    )
                    refusal.is_outcome_unknown = call.is_outcome_unknown
                    raise refusal from watch.machine.cause
                await watch.changed(now_s + PROBE_S)

    async def _divert(self, pairing: "Pairing", call: Call) -> list[int] | None:
        batches = split([to_backlog(message, self.path, call.due) for message in call.parcel.messages])
        if any(batch.is_too_large for batch in batches):  # contract E8
            raise MessageSizeExceededError(
                message=f"message: '{self.path}' is away, and with what the backlog must remember of it the message is "
                f"larger than {BATCH_BYTES_MAX} bytes. {call.fate().capitalize()}."
            )
        for batch in batches:
            await self._to_backlog_queue(pairing, batch, call)
            call.stored(len(batch.messages))
            if call.due is not None:
                call.numbers += tuple(self.factory.next_diverted_number() for _ in batch.messages)
        return None if call.due is None else list(call.numbers)

    async def _to_backlog_queue(self, pairing: "Pairing", batch: Batch, call: Call) -> None:
        loop = asyncio.get_running_loop()
        parcel = Parcel(batch.messages, len(batch.messages) > 1, is_keyed=False, encoded=batch.encoded)
        tried: set[str] = set()
        while True:
            queue = self._own_queue(pairing, tried)
            began_s = loop.time()
            left_s = call.deadline_s - began_s
            try_until_s = began_s + max(left_s * BACKLOG_TRY_SHARE, min(FAIR_TRY_S, left_s))
            try:
                await pairing.secondary.outlet(queue.path).send(parcel, try_until_s)
            except Exception as error:
                self.factory.check_open()
                call.note(error)
                verdict = pairing.options.policy.judge(error)
                now_s = loop.time()
                if verdict is Verdict.CALLERS:
                    raise wrapped(error, self.path) from error
                if verdict is Verdict.BUSY and now_s + BUSY_WAIT_S < call.deadline_s:
                    await self.factory.rest(now_s + BUSY_WAIT_S)
                    self.factory.check_open()
                    continue
                if now_s >= call.deadline_s and try_until_s - began_s < FAIR_TRY_S:
                    raise wrapped(error, self.path) from error  # the queue had no time to show what it can do
                pairing.backlog_failed(queue, error)
                tried.add(queue.path)
            else:
                for message in batch.messages:
                    pairing.secondary.ledger.count(queue.path, SEND, body_bytes(raw_of(message)))
                pairing.backlog_took(queue, len(batch.messages), self.path)
                return

    def _own_queue(self, pairing: "Pairing", tried: set[str]) -> BacklogQueue:
        queue = self._backlog
        now_s = asyncio.get_running_loop().time()
        if queue is None or queue.path in tried or not pairing.rotation.is_in(queue, now_s):
            queue = self._backlog = pairing.rotation.choose(now_s, tried)
        return queue

    def _choose(self, pairing: "Pairing") -> BacklogQueue | None:
        try:
            return pairing.rotation.choose(asyncio.get_running_loop().time(), set())
        except BacklogUnavailable:
            return None

    # -- small things ---------------------------------------------------------------------------------------------

    def _watch(self) -> "Watch | None":
        if self._watched is None and self.factory.pairing is not None:
            self._watched = self.factory.pairing.watch(self.path)
        return self._watched

    def _policy(self, watch: "Watch | None") -> FailoverPolicy:
        return self.factory.policy if watch is None else watch.pairing.options.policy

    def _check_open(self) -> None:
        if self._is_closed:
            raise ValueError("The sender has been closed; create another one.")
        if self.factory.is_closed or self.factory.fault is not None:
            self.factory.check_open()


async def _cancel(sender: ServiceBusSender, numbers: list[int], left_s: float) -> None:
    await sender.cancel_scheduled_messages(numbers, timeout=left_s)


def unpack(message: Any) -> tuple[list[Outgoing], bool]:
    """Single messages, and whether they belong together. As the SDK takes them."""
    if isinstance(message, (ServiceBusMessage, AmqpAnnotatedMessage)):
        return [message], False
    if isinstance(message, ServiceBusMessageBatch):
        return list(message._messages), True  # there is no other way to see what is inside
    if isinstance(message, Mapping):
        return [ServiceBusMessage(**message)], False
    if isinstance(message, Iterable) and not isinstance(message, (str, bytes)):
        return [unpack(each)[0][0] for each in message], True
    raise TypeError(
        "Only AmqpAnnotatedMessage, ServiceBusMessage instances or dictionaries representing messages are supported. "
        f"Received instead: {type(message).__name__}"
    )


def prepare(message: Outgoing, is_paired: bool) -> int:
    """Give it an id if it has none, so that a send of unknown outcome that is diverted stays one message inside the
    primary's duplicate window. The bytes of its body."""
    raw = raw_of(message)
    if is_paired and raw.application_properties:
        refuse_aliases(raw)
    properties = raw.properties
    if properties is None:
        properties = raw.properties = AmqpMessageProperties()
    if properties.message_id is None:
        properties.message_id = str(uuid.uuid4())
    return body_bytes(raw)
