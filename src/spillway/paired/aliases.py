"""Aliases: a message as it goes to the backlog, and what its properties are called there.

Session, time to live and due time would make the backlog treat messages differently from one another, and its own path
would be lost. So they are cleared, and kept as application properties under names of their own (contract E1 to E7); the
syphon, which copies bytes, puts them back. What is hidden from the backlog so is checked here, or a message that its
own entity would refuse were told to be safe; and what the aliases need of the room is counted in (contract E8).
"""

import datetime
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType, AmqpMessageHeader, AmqpMessageProperties
from azure.servicebus.exceptions import MessageSizeExceededError

from spillway.model.aliases import ALIASES, PATH, SCHEDULED, SESSION_ID, TIME_TO_LIVE
from spillway.model.limits import (
    PARTITION_KEY_CHARS_MAX,
    PROPERTIES_BYTES_MAX,
    SCHEDULED_MS_MAX,
    SESSION_ID_CHARS_MAX,
)
from spillway.paired.messages import (
    MESSAGE_OVERHEAD_BYTES,
    Outgoing,
    body_bytes,
    due_ms_of,
    is_scheduled,
    partition_key_of,
    raw_of,
    session_id_of,
    to_ms,
    ttl_ms_of,
    typed,
)

BATCH_BYTES_MAX: Final = 262_144  # Azure Standard
SMALL_BYTES_MAX: Final = BATCH_BYTES_MAX // 2
_CHARACTER_BYTES: Final = 4  # UTF-8, at most
_VALUE_BYTES: Final = 32  # of a number, a time, an id; and what stands around a text
_SECTION_BYTES: Final = 12  # around the application properties: descriptor, map, size and count
_SMALL_INTEGERS: Final = range(-128, 128)


def refuse_aliases(raw: AmqpAnnotatedMessage) -> None:
    """A property of the user's that has such a name would be lost: `ValueError`."""
    properties = raw.application_properties
    if not properties:
        return
    for name in ALIASES:
        if name in properties or name.encode() in properties:
            raise ValueError(f"application_properties: '{name}' is the name of a property that pairing uses; rename it")


class OutgoingBatch:
    """Messages that go together. `encoded` has them as the SDK sends them, if they are several."""

    def __init__(self, messages: list[Outgoing], encoded: ServiceBusMessageBatch | None, is_too_large: bool) -> None:
        self.messages = messages
        self.encoded = encoded
        self.is_too_large = is_too_large  # one message, larger than a batch may be


def for_backlog(messages: Sequence[Outgoing], path: str, due: datetime.datetime | None) -> list[OutgoingBatch]:
    """Copies in batches that a backlog queue takes, in order; the messages are left as they are.

    `ValueError` for what its own entity would refuse, `MessageSizeExceededError` for what its aliases make too large.
    """
    batches = _split([to_backlog(message, path, due) for message in messages])
    assert sum(len(batch.messages) for batch in batches) == len(messages), "every message is in one batch"
    if any(batch.is_too_large for batch in batches):
        raise MessageSizeExceededError(
            message=f"message: with what the backlog must remember of it, it is larger than {BATCH_BYTES_MAX} bytes"
        )
    return batches


def to_backlog(message: Outgoing, path: str, due: datetime.datetime | None = None) -> AmqpAnnotatedMessage:
    """A copy for the backlog. `due`: scheduled for then, whatever it says."""
    raw = raw_of(message)
    _refuse_hidden(raw)
    aliases: dict[str | bytes, Any] = {PATH: path}
    session_id = session_id_of(raw)
    if session_id is not None:
        aliases[SESSION_ID] = session_id
    ttl_ms = ttl_ms_of(raw)
    if ttl_ms is not None:
        aliases[TIME_TO_LIVE] = typed("LONG", ttl_ms)
    due_ms = due_ms_of(raw) if due is None else to_ms(due)
    if due_ms is not None:
        if not 0 <= due_ms <= SCHEDULED_MS_MAX:
            raise ValueError(f"scheduled_enqueue_time_utc: {due_ms} ms is no time between 1970 and 9999")
        aliases[SCHEDULED] = typed("TIMESTAMP", due_ms)
    copy = _with_body(raw)
    copy.header = _header(raw)
    copy.properties = _properties(raw, clears_times=ttl_ms is not None)
    copy.application_properties = {**(raw.application_properties or {}), **aliases}
    copy.annotations = {key: value for key, value in (raw.annotations or {}).items() if not is_scheduled(key)} or None
    copy.delivery_annotations = dict(raw.delivery_annotations) if raw.delivery_annotations else None
    copy.footer = dict(raw.footer) if raw.footer else None
    _refuse_properties_too_large(copy.application_properties)
    return copy


# -- what would be refused at home ------------------------------------------------------------------------------------


def _refuse_hidden(raw: AmqpAnnotatedMessage) -> None:
    """The backlog sees no session id: what is wrong with it would be found out at home, when it is too late."""
    session_id, partition_key = session_id_of(raw), partition_key_of(raw)
    if session_id is not None and len(session_id) > SESSION_ID_CHARS_MAX:
        raise ValueError(f"session_id: at most {SESSION_ID_CHARS_MAX} characters are allowed, not {len(session_id)}")
    if partition_key is not None and len(partition_key) > PARTITION_KEY_CHARS_MAX:
        raise ValueError(
            f"partition_key: at most {PARTITION_KEY_CHARS_MAX} characters are allowed, not {len(partition_key)}"
        )
    if session_id is not None and partition_key is not None and session_id != partition_key:
        raise ValueError("partition_key: it must be the session_id, if the message has both")


def _refuse_properties_too_large(properties: Mapping[Any, Any]) -> None:
    size = _SECTION_BYTES
    for key, value in properties.items():
        size += _encoded_bytes(key) + _encoded_bytes(value)
    if size > PROPERTIES_BYTES_MAX:
        raise MessageSizeExceededError(
            message="message: with what the backlog must remember of it, its application properties have "
            f"{size} bytes; at most {PROPERTIES_BYTES_MAX} are allowed"
        )


def _encoded_bytes(value: Any) -> int:
    """The bytes of a value as the SDK encodes a property; a few more at most."""
    if value is None:
        return 1
    if isinstance(value, bool):
        return 2
    if isinstance(value, int):
        return 2 if value in _SMALL_INTEGERS else 5
    if isinstance(value, (str, bytes, bytearray)):
        size = len(value.encode(errors="replace")) if isinstance(value, str) else len(value)
        return size + (2 if size < 256 else 5)
    if isinstance(value, (uuid.UUID, float, datetime.datetime)):
        return 17 if isinstance(value, uuid.UUID) else 9
    if isinstance(value, dict) and set(value) == {"TYPE", "VALUE"}:
        return max(9, _encoded_bytes(value["VALUE"]))
    if isinstance(value, dict):
        return 9 + sum(_encoded_bytes(key) + _encoded_bytes(each) for key, each in value.items())
    if isinstance(value, (list, tuple)):
        return 9 + sum(map(_encoded_bytes, value))
    return 17


# -- parts ------------------------------------------------------------------------------------------------------------


def _with_body(raw: AmqpAnnotatedMessage) -> AmqpAnnotatedMessage:
    if raw.body_type is AmqpMessageBodyType.DATA:
        return AmqpAnnotatedMessage(data_body=list(raw.body))
    if raw.body_type is AmqpMessageBodyType.SEQUENCE:
        return AmqpAnnotatedMessage(sequence_body=list(raw.body))
    return AmqpAnnotatedMessage(value_body=raw.body)


def _header(raw: AmqpAnnotatedMessage) -> AmqpMessageHeader:
    found = raw.header or AmqpMessageHeader()
    return AmqpMessageHeader(durable=found.durable, first_acquirer=found.first_acquirer, priority=found.priority)


def _properties(raw: AmqpAnnotatedMessage, *, clears_times: bool) -> AmqpMessageProperties:
    found = raw.properties or AmqpMessageProperties()
    return AmqpMessageProperties(
        message_id=found.message_id,
        correlation_id=found.correlation_id,
        user_id=found.user_id,
        to=found.to,
        subject=found.subject,
        reply_to=found.reply_to,
        content_type=found.content_type,
        content_encoding=found.content_encoding,
        creation_time=None if clears_times else found.creation_time,
        absolute_expiry_time=None if clears_times else found.absolute_expiry_time,
        group_id=None,
        group_sequence=found.group_sequence,
        reply_to_group_id=found.reply_to_group_id,
    )


# -- batches ----------------------------------------------------------------------------------------------------------


def _split(messages: Sequence[AmqpAnnotatedMessage]) -> list[OutgoingBatch]:
    """The messages in batches that fit, in order. What is too large even alone is a batch that says so."""
    if len(messages) == 1 and is_surely_small(messages[0]):
        return [OutgoingBatch([messages[0]], None, False)]
    batches: list[OutgoingBatch] = []
    for message in messages:
        if not (batches and _added(batches[-1], message)):
            batches.append(OutgoingBatch([], ServiceBusMessageBatch(max_size_in_bytes=BATCH_BYTES_MAX), False))
            if not _added(batches[-1], message):
                batches[-1] = OutgoingBatch([message], None, True)
    for batch in batches:
        if len(batch.messages) == 1:
            batch.encoded = None  # alone it needs no envelope
    return batches


def _added(batch: OutgoingBatch, message: AmqpAnnotatedMessage) -> bool:
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
    size = MESSAGE_OVERHEAD_BYTES + body_bytes(raw)
    for key, value in (raw.application_properties or {}).items():
        size += _size_at_most(key) + _size_at_most(value)
    if raw.properties is not None:
        for value in raw.properties.values():
            size += _size_at_most(value)
    return size <= SMALL_BYTES_MAX


def _size_at_most(value: Any) -> int:
    if isinstance(value, str):
        return _CHARACTER_BYTES * len(value) + _VALUE_BYTES
    if isinstance(value, (bytes, bytearray)):
        return len(value) + _VALUE_BYTES
    if isinstance(value, dict):  # a value with its type: the SDK's `{"TYPE": ..., "VALUE": ...}`, or a map
        return sum(_size_at_most(key) + _size_at_most(each) for key, each in value.items()) + _VALUE_BYTES
    if isinstance(value, (list, tuple)):
        return sum(map(_size_at_most, value)) + _VALUE_BYTES
    return _VALUE_BYTES
