"""The sender that a program uses: the SDK sender's own methods, to the primary while that is well, else to the backlog.

On a healthy primary it does what the SDK does (contract D1). When the entity fails, the same call may be held until one
side takes the message, or diverted; what the caller hears is always the truth about its own message.
"""

import asyncio
import datetime
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, Self

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.aio import ServiceBusSender
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties

from spillway.paired import parameters
from spillway.paired.aliases import BATCH_BYTES_MAX, refuse_aliases
from spillway.paired.delivery import Delivery
from spillway.paired.errors import FactoryClosed, SchedulingError, wrapped
from spillway.paired.failover import Route
from spillway.paired.ledger import CANCEL
from spillway.paired.messages import Outgoing, body_bytes, raw_of
from spillway.paired.namespace import FactoryNamespace
from spillway.paired.pairing import PairingSlot
from spillway.paired.pool import SendFailed
from spillway.paired.requests import SendRequest


class MessageSender:
    """Made by `MessagingFactory.create_message_sender`."""

    def __init__(self, primary: FactoryNamespace, slot: PairingSlot, path: str) -> None:
        self.primary = primary
        self.path = path
        self.delivery = Delivery(primary, slot, path)
        self._is_closed = False
        primary.pools.open(path)

    @property
    def entity_name(self) -> str:
        return self.path

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """With the last sender of an entity its connections are closed."""
        if not self._is_closed:
            self._is_closed = True
            self.primary.pools.leave(self.path)

    # -- the SDK's methods ----------------------------------------------------------------------------------------

    async def send_messages(self, message: Any, *, timeout: float | None = None) -> None:
        """One message, an iterable of them (sent as one batch, all or nothing) or a batch."""
        self._check_open()
        if timeout is not None:
            parameters.check_send(timeout)
        request = request_of(message, self.delivery.slot.pairing is not None)
        if request.messages:
            await self.delivery.deliver(request, timeout)

    async def schedule_messages(
        self, messages: Any, schedule_time_utc: datetime.datetime, *, timeout: float | None = None
    ) -> list[int]:
        """The sequence numbers, for `cancel_scheduled_messages`; of what went to the backlog a
        `DivertedSequenceNumber`, which cannot be cancelled."""
        self._check_open()
        parameters.check_schedule(schedule_time_utc, timeout)
        request = request_of(messages, self.delivery.slot.pairing is not None, schedule_time_utc)
        if request.messages:
            await self.delivery.deliver(request, timeout)
        return request.numbers

    async def cancel_scheduled_messages(
        self, sequence_numbers: int | list[int], *, timeout: float | None = None
    ) -> None:
        self._check_open()
        numbers = parameters.check_cancel(sequence_numbers, timeout)
        if any(number < 0 for number in numbers):
            raise SchedulingError(
                f"'{self.path}' was unavailable when this was scheduled: the message is in the backlog and cannot be "
                "cancelled; it will be delivered when the entity is back"
            )
        if numbers:
            await self._call_primary(lambda sender, left_s: _cancel(sender, numbers, left_s), timeout)
            for _ in numbers:
                self.primary.ledger.count(self.path, CANCEL)

    async def create_message_batch(self, max_size_in_bytes: int | None = None) -> ServiceBusMessageBatch:
        self._check_open()
        parameters.check_batch(max_size_in_bytes)
        watch = self.delivery.watch
        if watch is not None and watch.machine.route() is not Route.PRIMARY:
            return ServiceBusMessageBatch(max_size_in_bytes=max_size_in_bytes or BATCH_BYTES_MAX)
        try:
            batch = await self._call_primary(lambda sender, _: sender.create_message_batch(max_size_in_bytes), None)
        except (ValueError, FactoryClosed):
            raise
        except Exception:
            if self.delivery.slot.pairing is None:
                raise
            # A batch is no send: whoever sends it will hear what is wrong with the entity.
            return ServiceBusMessageBatch(max_size_in_bytes=max_size_in_bytes or BATCH_BYTES_MAX)
        assert isinstance(batch, ServiceBusMessageBatch), "the SDK makes batches of its own"
        return batch

    # -- parts ----------------------------------------------------------------------------------------------------

    async def _call_primary(self, operation: Any, timeout: float | None) -> Any:
        deadline_s = asyncio.get_running_loop().time() + (timeout or self.primary.operation_timeout_s)
        try:
            return await self.delivery.pool.call(operation, deadline_s)
        except SendFailed as failed:
            self.primary.check_open()
            error = wrapped(failed.error, self.path, failed.failure)
            raise error from (None if error is failed.error else failed.error)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ValueError("The sender has been closed; create another one.")
        if self.primary.is_closed:
            self.primary.check_open()


async def _cancel(sender: ServiceBusSender, numbers: list[int], left_s: float) -> None:
    await sender.cancel_scheduled_messages(numbers, timeout=left_s)


def request_of(message: Any, is_paired: bool, due: datetime.datetime | None = None) -> SendRequest:
    """What to send, as the SDK takes it: one message, or several that belong together. Who has no id is given one, so
    that a send of unknown outcome that is diverted stays one message inside the primary's duplicate window."""
    messages: list[Outgoing]
    if isinstance(message, (ServiceBusMessage, AmqpAnnotatedMessage)):
        messages, is_whole = [message], False
    elif isinstance(message, ServiceBusMessageBatch):
        messages, is_whole = list(message._messages), True  # there is no other way to see what is inside
    elif isinstance(message, Iterable) and not isinstance(message, (Mapping, str, bytes)):
        messages, is_whole = [_one_of(each) for each in message], True
    else:
        messages, is_whole = [_one_of(message)], False
    body_sizes: list[int] = []
    for each in messages:
        raw = raw_of(each)
        if is_paired and raw.application_properties:
            refuse_aliases(raw)
        properties = raw.properties
        if properties is None:
            properties = raw.properties = AmqpMessageProperties()
        if properties.message_id is None:
            properties.message_id = str(uuid.uuid4())
        body_sizes.append(body_bytes(raw))
    return SendRequest(messages, is_whole, body_sizes, due=due)


def _one_of(message: Any) -> Outgoing:
    if isinstance(message, (ServiceBusMessage, AmqpAnnotatedMessage)):
        return message
    if isinstance(message, Mapping):
        return ServiceBusMessage(**message)
    raise TypeError(
        "message: only AmqpAnnotatedMessage, ServiceBusMessage instances or dictionaries representing messages are "
        f"supported. Received instead: {type(message).__name__}"
    )
