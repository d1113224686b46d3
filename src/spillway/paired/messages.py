"""What can be read of a message of the SDK: its session, its times, its size."""

import datetime
from collections.abc import Sequence
from typing import Any, Final

from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType

from spillway.model.aliases import TTL_UINT_MAX

Outgoing = ServiceBusMessage | AmqpAnnotatedMessage

EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
SCHEDULED_ANNOTATION: Final = "x-opt-scheduled-enqueue-time"
PARTITION_KEY_ANNOTATION: Final = "x-opt-partition-key"
MESSAGE_OVERHEAD_BYTES: Final = 512


def raw_of(message: Outgoing) -> AmqpAnnotatedMessage:
    return message.raw_amqp_message if isinstance(message, ServiceBusMessage) else message


def body_bytes(raw: AmqpAnnotatedMessage) -> int:
    """Bytes of a body of data; a structured body is not weighed."""
    size = 0
    if raw.body_type is AmqpMessageBodyType.DATA:
        for part in raw.body:
            size += len(part)
    return size


def coalescing_key(message: Outgoing) -> str | None:
    raw = raw_of(message)
    return session_id_of(raw) or partition_key_of(raw)


def session_id_of(raw: AmqpAnnotatedMessage) -> str | None:
    group_id = None if raw.properties is None else raw.properties.group_id
    return None if group_id is None else text(group_id)


def any_without_session(messages: Sequence[Outgoing]) -> bool:
    return any(session_id_of(raw_of(message)) is None for message in messages)


def partition_key_of(raw: AmqpAnnotatedMessage) -> str | None:
    for key in (PARTITION_KEY_ANNOTATION.encode(), PARTITION_KEY_ANNOTATION):
        value = (raw.annotations or {}).get(key)
        if isinstance(value, (str, bytes)):
            return text(value)
    return None


def due_ms_of(raw: AmqpAnnotatedMessage) -> int | None:
    """When it is scheduled for, in whichever way that was written."""
    for key, value in (raw.annotations or {}).items():
        if not is_scheduled(key) or value is None:
            continue
        if is_typed(value):
            value = value["VALUE"]
        if isinstance(value, datetime.datetime):
            return to_ms(value)
        if isinstance(value, int):
            return value
        raise TypeError(f"{SCHEDULED_ANNOTATION}: a time is needed, not {type(value).__name__}")
    return None


def ttl_ms_of(raw: AmqpAnnotatedMessage) -> int | None:
    """The time to live as it was asked for: a long one is two times in the properties, its header the most it holds."""
    if raw.header is None or raw.header.time_to_live is None:
        return None
    ttl_ms = int(raw.header.time_to_live)
    properties = raw.properties
    if ttl_ms >= TTL_UINT_MAX and properties is not None and properties.absolute_expiry_time is not None:
        created = properties.creation_time
        if created is not None:
            return int(properties.absolute_expiry_time) - int(created)
    return ttl_ms


def is_scheduled(key: object) -> bool:
    return key in (SCHEDULED_ANNOTATION, SCHEDULED_ANNOTATION.encode())


def to_ms(moment: datetime.datetime) -> int:
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)
    return (aware - EPOCH) // datetime.timedelta(milliseconds=1)


def typed(name: str, value: object) -> dict[str, object]:
    """A value with an explicit AMQP type, as the SDK takes it."""
    return {"TYPE": name, "VALUE": value}


def is_typed(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"TYPE", "VALUE"}


def text(value: str | bytes) -> str:
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else str(value)
