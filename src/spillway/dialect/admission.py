"""A message from a client, checked and taken apart as far as the broker needs (docs/wire.md, "Message sections").

What is stored is what is delivered, so only what can be read again gets in. The sender's bytes stay as they are but for
four repairs: annotations that only the broker may write are cut out, a message without a message-id gets one
(docs/wire.md, "Every message has an id"), section descriptors are written in the one form that Python can
read, and sections that came in another order are put into AMQP's: both SDKs send on what they received in one of their
own.
"""

import uuid
from typing import Final

from spillway.amqp.codec import MESSAGE_ELEMENTS_MAX, DecodeBudget, decode_value, skip_value
from spillway.amqp.errors import DecodeError
from spillway.amqp.message import (
    AMQP_VALUE,
    DATA,
    Section,
    Sections,
    decode_body_value,
    decode_data_bodies,
    decode_properties,
    encode_properties,
    in_plain_form,
    split_sections,
)
from spillway.dialect.annotations import (
    BATCH_FORMAT,
    BROKER_OWNED,
    PARTITION_KEY,
    PING_CONTENT_TYPE,
    PREFIX,
    SCHEDULED_ENQUEUE_TIME,
    VIA_PARTITION_KEY,
)
from spillway.dialect.encoded_maps import map_of
from spillway.dialect.errors import MessageMalformed, Tracker
from spillway.dialect.usual import admit_usual
from spillway.model import limits
from spillway.model.errors import ArgumentError, ArgumentOutOfRange, BrokerError, MessageTooLarge, NotImplementedHere
from spillway.model.message import BINARY_ID, NUMBER_ID, SAID_FALSE, SAID_TRUE, UNSAID, UUID_ID, Message

UINT_MAX: Final = 0xFFFFFFFF

# Fields of the header and of the properties, by position [3.2.1, 3.2.4]; masks say which ones are looked at.
_DURABLE: Final = 0
_PRIORITY: Final = 1
_TTL: Final = 2
_FIRST_ACQUIRER: Final = 3
_HEADER_MASK: Final = 0b1111
_MESSAGE_ID: Final = 0
_CONTENT_TYPE: Final = 6
_EXPIRY_TIME: Final = 8
_CREATION_TIME: Final = 9
_GROUP_ID: Final = 10
_PROPERTIES_MASK: Final = 1 << 0 | 1 << 6 | 1 << 8 | 1 << 9 | 1 << 10
_FIELDS_MAX: Final = 13
_SCALARS: Final = DecodeBudget()  # the fields of these sections are, as was checked: they cost nothing of it


def admit_transfer(payload: bytes, message_format: int, tracker: Tracker) -> list[Message]:
    """The message of a transfer, or those of a batch; `BrokerError` says what is wrong with it."""
    if message_format == 0:
        return [admit(payload, tracker)]
    if message_format != BATCH_FORMAT:
        raise NotImplementedHere(f"The message-format 0x{message_format:08x} is not known here.")
    messages: list[Message] = []
    spans = _batch_spans(payload)
    for at, end in spans:
        try:
            messages.append(admit(payload[at:end], tracker))
        except BrokerError as error:
            raise type(error)(f"Message {len(messages) + 1} of the batch: {error.description}") from None
    return messages


def _batch_spans(payload: bytes) -> list[tuple[int, int]]:
    """Where the messages of a batch lie: one in each data section. The other sections are an envelope."""
    sections = _split(payload)
    if sections.body_kind != DATA:
        raise ArgumentError("The body of a batch must be data sections, each with one encoded message.")
    spans = decode_data_bodies(payload, sections)
    if len(spans) > limits.BATCH_MESSAGES_MAX:
        raise ArgumentOutOfRange(
            f"The batch has {len(spans)} messages; at most {limits.BATCH_MESSAGES_MAX} are allowed."
        )
    return spans


def admit(raw: bytes, tracker: Tracker) -> Message:
    """One encoded message."""
    return admit_usual(raw) or admit_any(raw, tracker)


def admit_any(raw: bytes, tracker: Tracker) -> Message:
    """One that may be unusual or wrong: the general way, which decides."""
    _check_size(raw)
    sections = _split(raw)
    if not sections.is_plain:
        raw = in_plain_form(raw, DecodeBudget(MESSAGE_ELEMENTS_MAX))
        sections = _split(raw)
    if _holds_ours(raw, sections.message_annotations) or _holds_ours(raw, sections.delivery_annotations):
        raw = _without_ours(raw, sections)
        sections = _split(raw)
    fields = _read_properties_of(raw, sections)
    message_id = fields[_MESSAGE_ID]
    if message_id is None or message_id == "" or message_id == b"":
        fields[_MESSAGE_ID] = tracker.new_message_id()
        raw = _with_message_id(raw, sections, fields[_MESSAGE_ID])
        sections = _split(raw)
    return _taken_apart(raw, sections, fields)


def admit_again(raw: bytes) -> Message:
    """A message that was admitted once and then changed by us: the same checks, and nothing to repair."""
    _check_size(raw)
    sections = _split(raw)
    message = _taken_apart(raw, sections, _read_properties_of(raw, sections))
    message.is_ping = False  # it was stored as a message, and stays one
    return message


def _check_size(raw: bytes) -> None:
    if len(raw) > limits.MESSAGE_BYTES_MAX:
        raise MessageTooLarge(f"The message has {len(raw)} bytes; at most {limits.MESSAGE_BYTES_MAX} are allowed.")


def _taken_apart(raw: bytes, sections: Sections, fields: list[object]) -> Message:
    message = Message(raw)
    message_id = fields[_MESSAGE_ID]
    message.message_id = id_text(message_id)
    if not isinstance(message_id, str):
        message.message_id_type = id_type(message_id)
    _place(message, sections)
    if sections.header.start >= 0:
        _read_header(message, sections.header)
    _read_properties(message, sections, fields)
    if message.annotations_count > 0:
        _read_annotations(message)
    _check_application_properties(raw, sections.application_properties)
    return message


def _split(raw: bytes) -> Sections:
    try:
        return split_sections(raw, DecodeBudget(MESSAGE_ELEMENTS_MAX))
    except DecodeError as error:
        raise MessageMalformed(f"The payload is no AMQP message: {error.description}.") from None


def _place(message: Message, sections: Sections) -> None:
    """Where the parts lie that deliveries are put together from."""
    bare_at = _bare_at(message.raw, sections)
    message.bare_at = bare_at
    message.properties_end = sections.properties.end if sections.properties.start >= 0 else bare_at
    application = sections.application_properties
    message.application_end = application.end if application.start >= 0 else message.properties_end
    annotations = sections.message_annotations
    message.annotations_at = annotations.pairs_at
    message.annotations_end = annotations.pairs_end
    message.annotations_count = annotations.pairs_count
    annotations = sections.delivery_annotations
    message.delivery_annotations_at = annotations.pairs_at
    message.delivery_annotations_end = annotations.pairs_end
    message.delivery_annotations_count = annotations.pairs_count


def _bare_at(raw: bytes, sections: Sections) -> int:
    """Where the first section lies that is passed on untouched."""
    if sections.properties.start >= 0:
        return sections.properties.start
    if sections.application_properties.start >= 0:
        return sections.application_properties.start
    if sections.body.start >= 0:
        return sections.body.start
    return sections.footer.start if sections.footer.start >= 0 else len(raw)


# -- fields ---------------------------------------------------------------------------------------------------------


def read_fields(raw: bytes, at: int, end: int, mask: int) -> list[object]:
    """The fields of a list section whose bit is in `mask`, by position; the others are None."""
    fields: list[object] = [None] * _FIELDS_MAX
    if at >= end:
        return fields  # there is no such section
    at += 3
    if raw[at] == 0xC0:
        count = raw[at + 2]
        at += 3
    elif raw[at] == 0xD0:
        count = raw[at + 8]  # there are fewer than 256, as was checked
        at += 9
    else:
        return fields  # list0
    for index in range(count):
        if raw[at] == 0x40:
            at += 1
        elif mask >> index & 1:
            fields[index], at = decode_value(raw, at, end, _SCALARS)
        else:
            at = skip_value(raw, at, end, _SCALARS)
    return fields


def _read_properties_of(raw: bytes, sections: Sections) -> list[object]:
    return read_fields(raw, sections.properties.start, sections.properties.end, _PROPERTIES_MASK)


def _read_header(message: Message, section: Section) -> None:
    fields = read_fields(message.raw, section.start, section.end, _HEADER_MASK)
    flag = fields[_DURABLE]
    message.durable = SAID_TRUE if flag is True else SAID_FALSE if flag is False else UNSAID
    flag = fields[_FIRST_ACQUIRER]
    message.first_acquirer = SAID_TRUE if flag is True else SAID_FALSE if flag is False else UNSAID
    priority = fields[_PRIORITY]
    if isinstance(priority, int):
        message.priority = min(int(priority), 127)  # kept in one signed byte; AMQP knows ten priorities
    ttl = fields[_TTL]
    if isinstance(ttl, int):
        message.ttl_ms = int(ttl)


def _read_properties(message: Message, sections: Sections, fields: list[object]) -> None:
    group_id = fields[_GROUP_ID]
    if isinstance(group_id, str):
        message.session_id = _checked_text(group_id, "session id (group-id)", limits.SESSION_ID_CHARS_MAX)
    if message.ttl_ms == UINT_MAX:
        # The header's field ends at 49 days; both SDKs then say the true span by these two.
        expiry = fields[_EXPIRY_TIME]
        creation = fields[_CREATION_TIME]
        if isinstance(expiry, int) and isinstance(creation, int) and expiry - creation > UINT_MAX:
            message.ttl_ms = min(int(expiry) - int(creation), limits.TTL_MS_MAX)
    if fields[_CONTENT_TYPE] == PING_CONTENT_TYPE:
        message.is_ping = _has_empty_body(message.raw, sections)


def id_text(message_id: object) -> str:
    """The text of a message-id of any of its four types; bytes in hexadecimal."""
    if isinstance(message_id, str):
        return _checked_text(message_id, "message-id", limits.MESSAGE_ID_CHARS_MAX)
    if isinstance(message_id, bytes):
        if len(message_id) > limits.MESSAGE_ID_CHARS_MAX:
            raise ArgumentOutOfRange(
                f"The message-id has {len(message_id)} bytes; at most {limits.MESSAGE_ID_CHARS_MAX} are allowed."
            )
        return message_id.hex()
    if isinstance(message_id, uuid.UUID):
        return str(message_id)
    assert isinstance(message_id, int), "a message-id is a string, a binary, a uuid or a ulong"
    return str(int(message_id))


def id_type(message_id: object) -> int:
    if isinstance(message_id, bytes):
        return BINARY_ID
    return UUID_ID if isinstance(message_id, uuid.UUID) else NUMBER_ID


def _checked_text(text: str, what: str, chars_max: int) -> str:
    if len(text) > chars_max:
        raise ArgumentOutOfRange(f"The {what} has {len(text)} characters; at most {chars_max} are allowed.")
    return text


def _has_empty_body(raw: bytes, sections: Sections) -> bool:
    if sections.body_kind == DATA:
        size = 0
        for at, end in decode_data_bodies(raw, sections):
            size += end - at
        return size == 0
    if sections.body_kind == AMQP_VALUE:
        value = decode_body_value(raw, sections)
        return value is None or value == "" or value == b""
    return sections.body_kind == 0


# -- annotations ------------------------------------------------------------------------------------------------------


def _read_annotations(message: Message) -> None:
    raw = message.raw
    at = message.annotations_at
    end = message.annotations_end
    if raw.find(PREFIX, at, end) < 0:
        return
    budget = DecodeBudget(MESSAGE_ELEMENTS_MAX)
    while at < end:
        key, at = decode_value(raw, at, end, budget)
        if key == SCHEDULED_ENQUEUE_TIME:
            value, at = decode_value(raw, at, end, budget)
            if value is not None:
                # The Python SDK sends on as numbers what it received as times, and as bytes what was text.
                if not isinstance(value, int) or isinstance(value, bool):
                    raise ArgumentError(f"The annotation '{SCHEDULED_ENQUEUE_TIME}' must be a timestamp.")
                if value > limits.SCHEDULED_MS_MAX:
                    raise ArgumentOutOfRange(f"The annotation '{SCHEDULED_ENQUEUE_TIME}' is later than the year 9999.")
                message.scheduled_ms = max(int(value), 0)
        elif key == PARTITION_KEY:
            value, at = decode_value(raw, at, end, budget)
            message.partition_key = _partition_key(value, PARTITION_KEY)
        elif key == VIA_PARTITION_KEY:
            value, at = decode_value(raw, at, end, budget)
            _partition_key(value, VIA_PARTITION_KEY)
        else:
            at = skip_value(raw, at, end, budget)


def _partition_key(value: object, name: str) -> str | None:
    if value is None:
        return None
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if not isinstance(value, str):
        raise ArgumentError(f"The annotation '{name}' must be a string.")
    return _checked_text(str(value), f"annotation '{name}'", limits.PARTITION_KEY_CHARS_MAX)


def _holds_ours(raw: bytes, section: Section) -> bool:
    """Whether annotations are among them that only the broker may write."""
    at = section.pairs_at
    end = section.pairs_end
    if at == end or raw.find(PREFIX, at, end) < 0:
        return False
    budget = DecodeBudget(MESSAGE_ELEMENTS_MAX)
    while at < end:
        key, at = decode_value(raw, at, end, budget)
        if key in BROKER_OWNED:
            return True
        at = skip_value(raw, at, end, budget)
    return False


def _without_ours(raw: bytes, sections: Sections) -> bytes:
    """The message with such annotations cut out; all others are copied as they are."""
    header = sections.header
    head = raw[header.start : header.end] if header.start >= 0 else b""
    return (
        head
        + _kept(raw, sections.delivery_annotations)
        + _kept(raw, sections.message_annotations)
        + raw[_bare_at(raw, sections) :]
    )


def _kept(raw: bytes, section: Section) -> bytes:
    if section.start < 0:
        return b""
    pairs: list[bytes] = []
    at = section.pairs_at
    end = section.pairs_end
    budget = DecodeBudget(MESSAGE_ELEMENTS_MAX)
    while at < end:
        key, value_at = decode_value(raw, at, end, budget)
        after = skip_value(raw, value_at, end, budget)
        if key not in BROKER_OWNED:
            pairs.append(raw[at:after])
        at = after
    if not pairs:
        return b""
    return raw[section.start : section.start + 3] + map_of(b"".join(pairs), len(pairs))


# -- the rest -------------------------------------------------------------------------------------------------------


def _with_message_id(raw: bytes, sections: Sections, message_id: object) -> bytes:
    properties = decode_properties(raw, sections)
    properties.message_id = message_id
    at = _bare_at(raw, sections)
    end = sections.properties.end if sections.properties.start >= 0 else at
    return raw[:at] + encode_properties(properties) + raw[end:]


def _check_application_properties(raw: bytes, section: Section) -> None:
    """Azure's bounds: 64 KB for all of them, 32 KB for one."""
    size = section.pairs_end - section.pairs_at
    if size <= limits.PROPERTY_BYTES_MAX:
        return
    if size > limits.PROPERTIES_BYTES_MAX:
        raise ArgumentOutOfRange(
            f"The application properties have {size} bytes; at most {limits.PROPERTIES_BYTES_MAX} are allowed."
        )
    at = section.pairs_at
    budget = DecodeBudget(MESSAGE_ELEMENTS_MAX)
    while at < section.pairs_end:
        after = skip_value(raw, skip_value(raw, at, section.pairs_end, budget), section.pairs_end, budget)
        if after - at > limits.PROPERTY_BYTES_MAX:
            raise ArgumentOutOfRange(
                f"An application property has {after - at} bytes; at most {limits.PROPERTY_BYTES_MAX} are allowed."
            )
        at = after
