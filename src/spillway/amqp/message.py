"""The sections of an encoded message [3.2]: where they lie, whether they are sound, and single ones in and out.

A message is passed on as it came, so it is checked in full when it comes: what an SDK could not read again is refused
at the door. Knows nothing of what the annotations mean.
"""

from typing import Final

from spillway.amqp.codec import (
    MESSAGE_ELEMENTS_MAX,
    DecodeBudget,
    decode_value,
    encode_value,
    read_u32,
    skip_value,
)
from spillway.amqp.composites import Fields, code_of
from spillway.amqp.errors import DecodeError
from spillway.amqp.types import Symbol, Timestamp, UByte, UInt

HEADER: Final = 0x70
DELIVERY_ANNOTATIONS: Final = 0x71
MESSAGE_ANNOTATIONS: Final = 0x72
PROPERTIES: Final = 0x73
APPLICATION_PROPERTIES: Final = 0x74
DATA: Final = 0x75
AMQP_SEQUENCE: Final = 0x76
AMQP_VALUE: Final = 0x77
FOOTER: Final = 0x78

_HEADER_FIELDS_COUNT: Final = 5
_PROPERTIES_FIELDS_COUNT: Final = 13

# Types as bits, so that a field may have one of several.
_BOOLEAN: Final = 1
_UBYTE: Final = 2
_UINT: Final = 4
_ULONG: Final = 8
_TIMESTAMP: Final = 16
_UUID: Final = 32
_BINARY: Final = 64
_STRING: Final = 128
_SYMBOL: Final = 256
_OTHER: Final = 512  # the remaining simple types
_COMPOUND: Final = 1024

_ANY_SIMPLE: Final = 1023
_MESSAGE_ID: Final = _ULONG | _UUID | _BINARY | _STRING  # [3.2.11 to 3.2.14]
_TEXT: Final = _SYMBOL | _STRING  # content-type is a symbol, annotation keys are; clients are known to send strings
_ANNOTATION_KEY: Final = _TEXT | _ULONG


def _make_types() -> list[int]:
    types = [0] * 256
    for code in b"\x40\x51\x54\x55\x60\x61\x71\x72\x73\x74\x81\x82\x84\x94":
        types[code] = _OTHER
    for code in b"\x00\x45\xc0\xc1\xd0\xd1\xe0\xf0":
        types[code] = _COMPOUND
    for code in b"\x41\x42\x56":
        types[code] = _BOOLEAN
    for code in b"\x43\x52\x70":
        types[code] = _UINT
    for code in b"\x44\x53\x80":
        types[code] = _ULONG
    types[0x50] = _UBYTE
    types[0x83] = _TIMESTAMP
    types[0x98] = _UUID
    types[0xA0] = types[0xB0] = _BINARY
    types[0xA1] = types[0xB1] = _STRING
    types[0xA3] = types[0xB3] = _SYMBOL
    return types


_TYPES: Final[list[int]] = _make_types()
_HEADER_TYPES: Final[list[int]] = [_BOOLEAN, _UBYTE, _UINT, _BOOLEAN, _UINT]
_PROPERTIES_TYPES: Final[list[int]] = [
    _MESSAGE_ID,
    _BINARY,
    _STRING,
    _STRING,
    _STRING,
    _MESSAGE_ID,
    _TEXT,
    _TEXT,
    _TIMESTAMP,
    _TIMESTAMP,
    _STRING,
    _UINT,
    _STRING,
]


class Section:
    """Where a section lies, descriptor included; `start` is -1 when there is none.

    For maps `pairs_at` and `pairs_end` span the encoded pairs without the map's own header, and `pairs_count` counts
    pairs: ours can be appended to them without decoding.
    """

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end
        self.pairs_at = 0
        self.pairs_end = 0
        self.pairs_count = 0


ABSENT: Final = Section(-1, -1)


class Sections:
    """The parts of one encoded message. `body` spans all its sections; `body_kind` is their descriptor code or 0.

    `is_plain` says that the sections are in order and that every descriptor is a smallulong, as all SDKs write them and
    one can only read them.
    """

    def __init__(self) -> None:
        self.header = ABSENT
        self.delivery_annotations = ABSENT
        self.message_annotations = ABSENT
        self.properties = ABSENT
        self.application_properties = ABSENT
        self.body = ABSENT
        self.footer = ABSENT
        self.body_kind = 0
        self.is_plain = True


class Header:
    """[3.2.1]. A priority or ttl of None was not given."""

    def __init__(
        self,
        durable: bool = False,
        priority: int | None = None,
        ttl_ms: int | None = None,
        first_acquirer: bool = False,
        delivery_count: int = 0,
    ) -> None:
        self.durable = durable
        self.priority = priority
        self.ttl_ms = ttl_ms
        self.first_acquirer = first_acquirer
        self.delivery_count = delivery_count


class Properties:
    """[3.2.4]. Message and correlation ids keep their AMQP type: str, bytes, UUID or ULong."""

    def __init__(
        self,
        message_id: object = None,
        user_id: bytes | None = None,
        to: str | None = None,
        subject: str | None = None,
        reply_to: str | None = None,
        correlation_id: object = None,
        content_type: str | None = None,
        content_encoding: str | None = None,
        absolute_expiry_time: int | None = None,
        creation_time: int | None = None,
        group_id: str | None = None,
        group_sequence: int | None = None,
        reply_to_group_id: str | None = None,
    ) -> None:
        self.message_id = message_id
        self.user_id = user_id
        self.to = to
        self.subject = subject
        self.reply_to = reply_to
        self.correlation_id = correlation_id
        self.content_type = content_type
        self.content_encoding = content_encoding
        self.absolute_expiry_time = absolute_expiry_time
        self.creation_time = creation_time
        self.group_id = group_id
        self.group_sequence = group_sequence
        self.reply_to_group_id = reply_to_group_id


# --- splitting -------------------------------------------------------------------------------------------------------


def split_sections(raw: bytes, budget: DecodeBudget) -> Sections:
    """Find and check every section: kinds, field types and every nested value, or DecodeError.

    The order is not the sender's fault: the Python SDK writes delivery annotations behind the body, rhea the footer
    before it, and Azure takes both. Such a message is not `is_plain`: `in_plain_form` puts it in order.
    """
    sections = Sections()
    at = 0
    end = len(raw)
    highest = 0  # code so far
    while at < end:
        start = at
        if at + 3 <= end and raw[at] == 0x00 and raw[at + 1] == 0x53 and HEADER <= raw[at + 2] <= FOOTER:
            code = raw[at + 2]
            at += 3
        else:
            code, at = _section_code(raw, at, end, budget)
            sections.is_plain = False
        if code > highest:
            if sections.body_kind != 0 and code <= AMQP_VALUE:
                raise DecodeError("a message with two kinds of body")
            highest = code
        else:
            if code < highest:
                sections.is_plain = False
            _check_again(sections, code)
        if code == DATA:
            at = _skip_data(raw, at, end)
            _extend_body(sections, code, start, at)
        elif code == AMQP_VALUE or code == AMQP_SEQUENCE:
            if code == AMQP_SEQUENCE and (at >= end or raw[at] not in (0x45, 0xC0, 0xD0)):
                raise DecodeError("an amqp-sequence that is no list")
            at = skip_value(raw, at, end, budget)
            _extend_body(sections, code, start, at)
        elif code == HEADER:
            at = _check_list(raw, at, end, _HEADER_TYPES, budget)
            sections.header = Section(start, at)
        elif code == PROPERTIES:
            at = _check_list(raw, at, end, _PROPERTIES_TYPES, budget)
            sections.properties = Section(start, at)
        else:
            section = Section(start, at)
            at = check_map(raw, at, end, section, code == APPLICATION_PROPERTIES, budget)
            section.end = at
            _place_map(sections, code, section)
    return sections


def _section_code(raw: bytes, at: int, end: int, budget: DecodeBudget) -> tuple[int, int]:
    """The code of a descriptor that is no smallulong, as few write it, and where the section's value begins."""
    if at >= end or raw[at] != 0x00:
        raise DecodeError("a message section without a descriptor")
    descriptor, at = decode_value(raw, at + 1, end, budget)
    code = code_of(descriptor)
    if code < HEADER or code > FOOTER:
        raise DecodeError("an unknown message section")
    return code, at


def _check_again(sections: Sections, code: int) -> None:
    """A section that is not behind all others: only data and amqp-sequence repeat, and bodies do not mix [3.2]."""
    if code < DATA or code == FOOTER:
        if _place_of(sections, code).start >= 0:
            raise DecodeError("a message section comes twice")
    elif sections.body_kind != 0 and sections.body_kind != code:
        raise DecodeError("a message with two kinds of body")
    elif code == AMQP_VALUE and sections.body_kind == code:
        raise DecodeError("a message section comes twice")


def _place_of(sections: Sections, code: int) -> Section:
    """One of the sections that do not repeat, wherever it is."""
    if code == HEADER:
        return sections.header
    if code == DELIVERY_ANNOTATIONS:
        return sections.delivery_annotations
    if code == MESSAGE_ANNOTATIONS:
        return sections.message_annotations
    if code == PROPERTIES:
        return sections.properties
    return sections.application_properties if code == APPLICATION_PROPERTIES else sections.footer


def _extend_body(sections: Sections, code: int, start: int, end: int) -> None:
    if sections.body_kind == 0:
        sections.body = Section(start, end)
        sections.body_kind = code
    else:
        sections.body.end = end


def _place_map(sections: Sections, code: int, section: Section) -> None:
    if code == MESSAGE_ANNOTATIONS:
        sections.message_annotations = section
    elif code == APPLICATION_PROPERTIES:
        sections.application_properties = section
    elif code == DELIVERY_ANNOTATIONS:
        sections.delivery_annotations = section
    else:
        sections.footer = section


def _skip_data(raw: bytes, at: int, end: int) -> int:
    """A binary, not looked into."""
    if at + 2 <= end and raw[at] == 0xA0:
        after = at + 2 + raw[at + 1]
    elif at + 5 <= end and raw[at] == 0xB0:
        after = at + 5 + read_u32(raw, at + 1)
    else:
        raise DecodeError("a data section that is no binary")
    if after > end:
        raise DecodeError("a data section reaches past the end")
    return after


def _compound_header(raw: bytes, at: int, end: int, narrow: int) -> tuple[int, int, int]:
    """Where the elements of a list or map begin and end, and their count. `narrow` is its eight-bit constructor."""
    if at + 3 <= end and raw[at] == narrow:
        after = at + 2 + raw[at + 1]
        count = raw[at + 2]
        at += 3
    elif at + 9 <= end and raw[at] == narrow + 0x10:
        # Twice `read_u32`, for every section of a message.
        after = at + 5 + (raw[at + 1] << 24 | raw[at + 2] << 16 | raw[at + 3] << 8 | raw[at + 4])
        count = raw[at + 5] << 24 | raw[at + 6] << 16 | raw[at + 7] << 8 | raw[at + 8]
        at += 9
    else:
        raise DecodeError("a message section of a wrong type, or cut short")
    if after > end or at > after or count > after - at:
        raise DecodeError("a message section reaches past the end, or is shorter than its count")
    return at, after, count


def _check_list(raw: bytes, at: int, end: int, types: list[int], budget: DecodeBudget) -> int:
    if at < end and raw[at] == 0x45:
        return at + 1
    at, after, count = _compound_header(raw, at, end, 0xC0)
    if count > len(types):
        raise DecodeError("a message section with more fields than it has")
    budget.charge(count)
    for index in range(count):
        if at < after:
            code = raw[at]
            if code == 0x40:  # null, as most fields are
                at += 1
                continue
            if not _TYPES[code] & types[index]:
                raise DecodeError(f"field {index} of a message section is of a wrong type")
        at = skip_value(raw, at, after, budget)
    if at != after:
        raise DecodeError("a message section is longer than its fields")
    return after


def check_map(raw: bytes, at: int, end: int, section: Section, is_application: bool, budget: DecodeBudget) -> int:
    at, after, count = _compound_header(raw, at, end, 0xC1)
    if count & 1:
        raise DecodeError("a map with an odd count")
    budget.charge(count)
    budget.enter()
    section.pairs_at = at
    section.pairs_end = after
    section.pairs_count = count >> 1
    key_types = _STRING if is_application else _ANNOTATION_KEY
    value_types = _ANY_SIMPLE if is_application else _ANY_SIMPLE | _COMPOUND
    keys: set[object] = set()
    for _ in range(count >> 1):
        if at >= after or not _TYPES[raw[at]] & key_types:
            raise DecodeError("a key of a message section is of a wrong type")
        code = raw[at]
        key_end = skip_value(raw, at, after, budget)
        # Text is compared by its octets, whichever width its size has; a ulong by its value.
        key: object
        if code >= 0xA0:
            key = raw[at + (2 if code < 0xB0 else 5) : key_end]
        else:
            key, _ = decode_value(raw, at, key_end, budget)
        at = key_end
        if key in keys:
            raise DecodeError("a message section has the same key twice")
        keys.add(key)
        if at >= after or not _TYPES[raw[at]] & value_types:
            raise DecodeError("a value of a message section is of a wrong type")
        at = skip_value(raw, at, after, budget)
    if at != after:
        raise DecodeError("a message section is longer than its pairs")
    budget.leave()
    return after


def in_plain_form(raw: bytes, budget: DecodeBudget) -> bytes:
    """The same message with its sections in order [3.2], every descriptor as smallulong: one that is not `is_plain`."""
    found: list[list[bytes]] = [[] for _ in range(FOOTER - HEADER + 1)]
    at = 0
    end = len(raw)
    while at < end:
        code, at = _section_code(raw, at, end, budget)
        after = skip_value(raw, at, end, budget)
        found[code - HEADER].append(bytes((0x00, 0x53, code)) + raw[at:after])
        at = after
    return b"".join([b"".join(sections) for sections in found])


# --- reading single sections of a message that was split -------------------------------------------------------------


def _section_value(raw: bytes, section: Section) -> object:
    budget = DecodeBudget(MESSAGE_ELEMENTS_MAX)
    _, at = _section_code(raw, section.start, section.end, budget)
    value, _ = decode_value(raw, at, section.end, budget)
    return value


def _section_fields(raw: bytes, section: Section, name: str, count_max: int) -> Fields:
    value = _section_value(raw, section) if section.start >= 0 else []
    assert isinstance(value, list), "sections were checked"
    return Fields(name, value, count_max)


def decode_header(raw: bytes, sections: Sections) -> Header:
    """The header of a message; its defaults when there is none."""
    fields = _section_fields(raw, sections.header, "header", _HEADER_FIELDS_COUNT)
    return Header(fields.flag(0), fields.ubyte(1, 255), fields.uint(2), fields.flag(3), fields.uint_or(4, 0))


def decode_properties(raw: bytes, sections: Sections) -> Properties:
    """The properties of a message; all of them None when there are none."""
    fields = _section_fields(raw, sections.properties, "properties", _PROPERTIES_FIELDS_COUNT)
    return Properties(
        fields.at(0),
        fields.binary(1),
        fields.text(2),
        fields.text(3),
        fields.text(4),
        fields.at(5),
        fields.text(6),
        fields.text(7),
        _timestamp(fields, 8),
        _timestamp(fields, 9),
        fields.text(10),
        fields.uint(11),
        fields.text(12),
    )


def _timestamp(fields: Fields, index: int) -> int | None:
    value = fields.at(index)
    if value is None:
        return None
    assert isinstance(value, Timestamp), "sections were checked"
    return int(value)


def decode_map(raw: bytes, section: Section) -> dict[object, object]:
    """Annotations, application properties or footer; empty when there are none."""
    if section.start < 0:
        return {}
    value = _section_value(raw, section)
    assert isinstance(value, dict), "sections were checked"
    return value


def decode_data_bodies(raw: bytes, sections: Sections) -> list[tuple[int, int]]:
    """Where the octets of each data section lie; empty for another kind of body."""
    spans: list[tuple[int, int]] = []
    if sections.body_kind != DATA:
        return spans
    at = sections.body.start
    end = sections.body.end
    budget = DecodeBudget()
    while at < end:
        code, at = _section_code(raw, at, end, budget)
        if code != DATA:  # of a message that is not in order
            at = skip_value(raw, at, end, budget)
            continue
        after = _skip_data(raw, at, end)
        spans.append((at + 2 if raw[at] == 0xA0 else at + 5, after))
        at = after
    return spans


def decode_sequences(raw: bytes, sections: Sections) -> list[object]:
    """The items of all amqp-sequences, one after the other; empty for another kind of body."""
    items: list[object] = []
    if sections.body_kind != AMQP_SEQUENCE:
        return items
    at = sections.body.start
    end = sections.body.end
    budget = DecodeBudget(MESSAGE_ELEMENTS_MAX)
    while at < end:
        code, at = _section_code(raw, at, end, budget)
        if code != AMQP_SEQUENCE:  # of a message that is not in order
            at = skip_value(raw, at, end, budget)
            continue
        value, at = decode_value(raw, at, end, budget)
        assert isinstance(value, list), "sections were checked"
        items += value
    return items


def decode_body_value(raw: bytes, sections: Sections) -> object:
    """What an amqp-value body holds; None for another kind of body or none."""
    return _section_value(raw, sections.body) if sections.body_kind == AMQP_VALUE else None


# --- writing sections ------------------------------------------------------------------------------------------------


def _encode_section(code: int, value: object) -> bytes:
    out = bytearray((0x00, 0x53, code))
    encode_value(out, value)
    return bytes(out)


def encode_header(durable: bool, priority: int | None, ttl_ms: int | None, delivery_count: int) -> bytes:
    """Five fields always; a priority or ttl of None or below zero is absent."""
    fields: list[object] = [
        durable,
        None if priority is None or priority < 0 else UByte(priority),
        None if ttl_ms is None or ttl_ms < 0 else UInt(ttl_ms),
        None,
        UInt(delivery_count),
    ]
    return _encode_section(HEADER, fields)


def encode_properties(properties: Properties) -> bytes:
    p = properties
    fields: list[object] = [
        p.message_id,
        p.user_id,
        p.to,
        p.subject,
        p.reply_to,
        p.correlation_id,
        None if p.content_type is None else Symbol(p.content_type),
        None if p.content_encoding is None else Symbol(p.content_encoding),
        None if p.absolute_expiry_time is None else Timestamp(p.absolute_expiry_time),
        None if p.creation_time is None else Timestamp(p.creation_time),
        p.group_id,
        None if p.group_sequence is None else UInt(p.group_sequence),
        p.reply_to_group_id,
    ]
    return _encode_section(PROPERTIES, fields)


def encode_map_section(code: int, mapping: dict[object, object]) -> bytes:
    """Annotation keys must be Symbols, application property keys plain strings."""
    return _encode_section(code, mapping)


def encode_data(data: bytes) -> bytes:
    return _encode_section(DATA, data)


def encode_amqp_value(value: object) -> bytes:
    return _encode_section(AMQP_VALUE, value)


def encode_amqp_sequence(items: list[object]) -> bytes:
    return _encode_section(AMQP_SEQUENCE, items)


def encode_message(
    header: Header | None = None,
    delivery_annotations: dict[object, object] | None = None,
    message_annotations: dict[object, object] | None = None,
    properties: Properties | None = None,
    application_properties: dict[object, object] | None = None,
    body: bytes = b"",
    footer: dict[object, object] | None = None,
) -> bytes:
    """A whole message; `body` is one or more encoded body sections."""
    out = bytearray()
    if header is not None:
        out += encode_header(header.durable, header.priority, header.ttl_ms, header.delivery_count)
    if delivery_annotations is not None:
        out += encode_map_section(DELIVERY_ANNOTATIONS, delivery_annotations)
    if message_annotations is not None:
        out += encode_map_section(MESSAGE_ANNOTATIONS, message_annotations)
    if properties is not None:
        out += encode_properties(properties)
    if application_properties is not None:
        out += encode_map_section(APPLICATION_PROPERTIES, application_properties)
    out += body
    if footer is not None:
        out += encode_map_section(FOOTER, footer)
    return bytes(out)
