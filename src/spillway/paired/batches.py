"""How large messages are, and which of them fit into one batch."""

from collections.abc import Sequence
from typing import Any, Final

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType
from azure.servicebus.exceptions import MessageSizeExceededError

Outgoing = ServiceBusMessage | AmqpAnnotatedMessage

BATCH_BYTES_MAX: Final = 262_144  # Azure Standard
MESSAGE_OVERHEAD_BYTES: Final = 512
SMALL_BYTES_MAX: Final = BATCH_BYTES_MAX // 2
_CHARACTER_BYTES: Final = 4  # UTF-8, at most
_VALUE_BYTES: Final = 32  # of a number, a time, an id; and what stands around a text


def weight(raw: AmqpAnnotatedMessage) -> int:
    """What a message costs in memory, roughly."""
    return MESSAGE_OVERHEAD_BYTES + body_bytes(raw)


def body_bytes(raw: AmqpAnnotatedMessage) -> int:
    """Of data; a structured body is not weighed."""
    size = 0
    if raw.body_type is AmqpMessageBodyType.DATA:
        for part in raw.body:
            size += len(part)
    return size


class Batch:
    """Messages that go together. `encoded` has them as the SDK sends them, if they are several."""

    def __init__(self, messages: list[Outgoing], encoded: ServiceBusMessageBatch | None, is_too_large: bool) -> None:
        self.messages = messages
        self.encoded = encoded
        self.is_too_large = is_too_large  # one message, larger than a batch may be


def split(messages: Sequence[AmqpAnnotatedMessage]) -> list[Batch]:
    """In batches that fit, in order. What is too large even alone is one that says so."""
    if len(messages) == 1 and is_surely_small(messages[0]):
        return [Batch([messages[0]], None, False)]
    batches: list[Batch] = []
    for message in messages:
        if not (batches and _added(batches[-1], message)):
            batches.append(Batch([], ServiceBusMessageBatch(max_size_in_bytes=BATCH_BYTES_MAX), False))
            if not _added(batches[-1], message):
                batches[-1] = Batch([message], None, True)
    for batch in batches:
        if len(batch.messages) == 1:
            batch.encoded = None  # alone it needs no envelope
    return batches


def _added(batch: Batch, message: AmqpAnnotatedMessage) -> bool:
    if batch.encoded is None:
        return False
    try:
        batch.encoded.add_message(message)
    except MessageSizeExceededError:
        return False
    batch.messages.append(message)
    return True


def is_surely_small(raw: AmqpAnnotatedMessage) -> bool:
    """Whether it need not be encoded to know that it is far below the limit. No means: perhaps."""
    if raw.body_type is not AmqpMessageBodyType.DATA or raw.annotations or raw.delivery_annotations or raw.footer:
        return False
    size = weight(raw)
    for key, value in (raw.application_properties or {}).items():
        size += _size_at_most(key) + _size_at_most(value)
    if raw.properties is not None:
        for value in raw.properties.values():
            size += _size_at_most(value)
    return size <= SMALL_BYTES_MAX


def _size_at_most(value: Any) -> int:
    if isinstance(value, str):
        return _CHARACTER_BYTES * len(value) + _VALUE_BYTES
    if isinstance(value, bytes):
        return len(value) + _VALUE_BYTES
    if isinstance(value, dict):  # a value with its type: the SDK's `{"TYPE": ..., "VALUE": ...}`, or a map
        return sum(_size_at_most(key) + _size_at_most(each) for key, each in value.items()) + _VALUE_BYTES
    if isinstance(value, (list, tuple)):
        return sum(map(_size_at_most, value)) + _VALUE_BYTES
    return _VALUE_BYTES
