"""A message on its way to the backlog and home again.

Session, time to live and due time would make the backlog treat messages differently from one another, and its own path
would be lost. So they are cleared, and kept as application properties under names of their own (contract E1 to E7); the
syphon puts them back. Nothing here sends or receives: the syphon on Spark restores by the same rules.
"""

import datetime
from typing import Any, Final

from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType, AmqpMessageHeader, AmqpMessageProperties

from spillway.model.aliases import (
    ALIASES,
    EXPIRY_MS_MAX,
    PATH,
    PROPERTY_NAME_NOT_TEXT,
    SCHEDULED,
    SESSION_ID,
    TIME_TO_LIVE,
    TTL_UINT_MAX,
    TYPES,
    Malformed,
    read_aliases,
)
from spillway.paired.types import (
    EPOCH,
    Inexpressible,
    is_typed,
    note_of,
    note_of_body,
    notes_of,
    restored_body,
    restored_map,
    text,
    typed,
    write_notes,
)

_SCHEDULED_ANNOTATION: Final = "x-opt-scheduled-enqueue-time"
# What a broker adds to a message that it hands out; none of it was the sender's.
BROKER_ANNOTATIONS: Final = frozenset(
    {
        "x-opt-enqueued-time",
        "x-opt-sequence-number",
        "x-opt-enqueue-sequence-number",
        "x-opt-locked-until",
        "x-opt-message-state",
        "x-opt-deadletter-source",
        _SCHEDULED_ANNOTATION,
    }
)
_LOCK_TOKEN: Final = "x-opt-lock-token"


def raw_of(message: ServiceBusMessage | AmqpAnnotatedMessage) -> AmqpAnnotatedMessage:
    return message.raw_amqp_message if isinstance(message, ServiceBusMessage) else message


def refuse_aliases(message: ServiceBusMessage | AmqpAnnotatedMessage) -> None:
    """A property of the user's that is named like an alias could not be told from it: `ValueError`."""
    properties = raw_of(message).application_properties
    if not properties:
        return
    for name in ALIASES:
        if name in properties or name.encode() in properties:
            raise ValueError(f"application_properties: '{name}' is the name of a property that pairing uses; rename it")


# -- there --------------------------------------------------------------------------------------------------------


def to_backlog(
    message: ServiceBusMessage | AmqpAnnotatedMessage, path: str, due: datetime.datetime | None = None
) -> AmqpAnnotatedMessage:
    """A copy for the backlog; the message itself is left as it is. `due`: scheduled for then, whatever it says."""
    raw = raw_of(message)
    copy = _with_body(raw.body_type, _body(raw))
    aliases: dict[str, Any] = {PATH: path}
    session_id = session_id_of(raw)
    if session_id is not None:
        aliases[SESSION_ID] = session_id
    ttl_ms = ttl_ms_of(raw)
    if ttl_ms is not None:
        aliases[TIME_TO_LIVE] = typed("LONG", ttl_ms)
    due_ms = due_ms_of(raw) if due is None else to_ms(due)
    if due_ms is not None:
        aliases[SCHEDULED] = typed("TIMESTAMP", due_ms)
    notes = write_notes(_notes(raw))
    if notes is not None:
        aliases[TYPES] = notes
    copy.header = _header(raw, None)
    copy.properties = _properties(raw, None, clears_times=ttl_ms is not None)
    copy.application_properties = dict(raw.application_properties or {})
    copy.application_properties.update(aliases)
    copy.annotations = {key: value for key, value in (raw.annotations or {}).items() if not _is_scheduled(key)} or None
    copy.delivery_annotations = dict(raw.delivery_annotations) if raw.delivery_annotations else None
    copy.footer = dict(raw.footer) if raw.footer else None
    return copy


def session_id_of(raw: AmqpAnnotatedMessage) -> str | None:
    group_id = None if raw.properties is None else raw.properties.group_id
    return None if group_id is None else text(group_id)


def partition_key_of(raw: AmqpAnnotatedMessage) -> str | None:
    for key in (b"x-opt-partition-key", "x-opt-partition-key"):
        value = (raw.annotations or {}).get(key)
        if isinstance(value, (str, bytes)):
            return text(value)
    return None


def due_ms_of(raw: AmqpAnnotatedMessage) -> int | None:
    """When it is scheduled for, in whichever way that was written."""
    for key, value in (raw.annotations or {}).items():
        if not _is_scheduled(key) or value is None:
            continue
        if is_typed(value):
            value = value["VALUE"]
        if isinstance(value, datetime.datetime):
            return to_ms(value)
        if isinstance(value, int):
            return value
        raise TypeError(f"{_SCHEDULED_ANNOTATION}: a time is needed, not {type(value).__name__}")
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


def to_ms(moment: datetime.datetime) -> int:
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)
    return (aware - EPOCH) // datetime.timedelta(milliseconds=1)


def from_ms(moment_ms: int) -> datetime.datetime:
    return EPOCH + datetime.timedelta(milliseconds=moment_ms)


def _notes(raw: AmqpAnnotatedMessage) -> dict[str, Any]:
    properties = raw.properties
    annotations = {key: value for key, value in (raw.annotations or {}).items() if not _is_scheduled(key)}
    return {
        "p": notes_of(raw.application_properties, bytes_are_text=True),
        "a": notes_of(annotations),
        "d": notes_of(raw.delivery_annotations),
        "f": notes_of(raw.footer),
        "b": None if raw.body_type is AmqpMessageBodyType.DATA else note_of_body(_body(raw)),
        "m": None if properties is None else note_of(properties.message_id),
        "c": None if properties is None else note_of(properties.correlation_id),
    }


# -- and back -----------------------------------------------------------------------------------------------------


def restore(message: ServiceBusReceivedMessage, age_ms: int | None = None) -> tuple[str, AmqpAnnotatedMessage]:
    """Where it belongs, and the message as it was. `age_ms`: what the backlog took of its life, if that counts.

    `Malformed` if nobody can know where it belongs, `Inexpressible` if the SDK cannot send it as it was.
    """
    raw = message.raw_amqp_message
    given = raw.application_properties or {}
    try:
        properties = {text(key): value for key, value in given.items()}
    except Inexpressible as error:
        raise Malformed(PROPERTY_NAME_NOT_TEXT, f"The message has a property whose name is no text: {error}.") from None
    aliases = read_aliases(properties)
    notes: dict[str, Any] = aliases.notes
    is_data = raw.body_type is AmqpMessageBodyType.DATA
    home = _with_body(raw.body_type, _body(raw) if is_data else restored_body(_body(raw), notes.get("b")))
    ttl_ms = aliases.ttl_ms if aliases.ttl_ms is None or age_ms is None else max(1, aliases.ttl_ms - age_ms)
    home.header = _header(raw, ttl_ms)
    standard = _properties(raw, notes, clears_times=False)
    standard.group_id = aliases.session_id
    _set_long_life(standard, ttl_ms)
    home.properties = standard
    own = {name: value for name, value in properties.items() if name not in ALIASES}
    home.application_properties = restored_map(own, notes.get("p", {})) or None
    annotations = {key: value for key, value in (raw.annotations or {}).items() if text(key) not in BROKER_ANNOTATIONS}
    own_annotations = restored_map(annotations, notes.get("a", {}))
    if aliases.due_ms is not None:
        own_annotations[_SCHEDULED_ANNOTATION] = typed("TIMESTAMP", aliases.due_ms)
    home.annotations = own_annotations or None
    delivery = {key: value for key, value in (raw.delivery_annotations or {}).items() if text(key) != _LOCK_TOKEN}
    home.delivery_annotations = restored_map(delivery, notes.get("d", {})) or None
    home.footer = restored_map(raw.footer, notes.get("f", {})) or None
    return aliases.path, home


# -- parts --------------------------------------------------------------------------------------------------------


def _body(raw: AmqpAnnotatedMessage) -> Any:
    """Data sections, sequence sections, or one value."""
    return raw.body if raw.body_type is AmqpMessageBodyType.VALUE else list(raw.body)


def _with_body(kind: AmqpMessageBodyType, body: Any) -> AmqpAnnotatedMessage:
    if kind is AmqpMessageBodyType.DATA:
        return AmqpAnnotatedMessage(data_body=body)
    if kind is AmqpMessageBodyType.SEQUENCE:
        return AmqpAnnotatedMessage(sequence_body=body)
    return AmqpAnnotatedMessage(value_body=body)


def _header(raw: AmqpAnnotatedMessage, ttl_ms: int | None) -> AmqpMessageHeader:
    found = raw.header or AmqpMessageHeader()
    header = AmqpMessageHeader(durable=found.durable, first_acquirer=found.first_acquirer, priority=found.priority)
    header.time_to_live = None if ttl_ms is None else min(ttl_ms, TTL_UINT_MAX)
    return header


def _properties(
    raw: AmqpAnnotatedMessage, notes: dict[str, Any] | None, *, clears_times: bool
) -> AmqpMessageProperties:
    """`notes` None: as they are to be sent; else as they were read, ids turned back into what they were."""
    found = raw.properties or AmqpMessageProperties()
    is_read = notes is not None
    notes = notes or {}
    return AmqpMessageProperties(
        message_id=_identity(found.message_id, notes.get("m")) if is_read else found.message_id,
        correlation_id=_identity(found.correlation_id, notes.get("c")) if is_read else found.correlation_id,
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


def _identity(value: Any, note: Any) -> Any:
    """The SDK tells a text from a binary id by the Python type alone."""
    if isinstance(value, bytes) and note != "BINARY":
        return text(value)
    return value


def _set_long_life(properties: AmqpMessageProperties, ttl_ms: int | None) -> None:
    """A life that the header cannot hold, as the SDK writes it. Its clock starts again at the primary."""
    if ttl_ms is not None and ttl_ms > TTL_UINT_MAX:
        now_ms = to_ms(datetime.datetime.now(datetime.UTC))
        properties.creation_time = now_ms
        properties.absolute_expiry_time = min(EXPIRY_MS_MAX, now_ms + ttl_ms)


def _is_scheduled(key: object) -> bool:
    return key in (_SCHEDULED_ANNOTATION, _SCHEDULED_ANNOTATION.encode())
