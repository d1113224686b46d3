"""The message that nearly everybody sends, admitted in one pass over its bytes.

A header, properties with a text for a message-id, application properties, data: whatever has these and nothing odd in
them is taken apart here, without a value made of what nobody asks for. `admit_usual` gives exactly what
`admission.admit` gives, or None for anything else: annotations, other ids, text beyond ASCII, a ping, a footer, an
error. It never raises and never decides.
"""

from typing import TYPE_CHECKING, Final

from spillway.amqp.codec import MESSAGE_ELEMENTS_MAX, DecodeBudget
from spillway.amqp.errors import DecodeError
from spillway.amqp.fast import uint_at
from spillway.amqp.message import Section, check_map
from spillway.dialect.annotations import PING_CONTENT_TYPE
from spillway.model import limits
from spillway.model.message import SAID_FALSE, SAID_TRUE, Message

if TYPE_CHECKING:
    from mypy_extensions import i64  # an int where it is not compiled

ODD: Final = -1  # the general way shall look at it

_PING: Final = PING_CONTENT_TYPE.encode("ascii")
_UINT_MAX: Final = 0xFFFFFFFF
_HEADER: Final = 0x70
_PROPERTIES: Final = 0x73
_APPLICATION_PROPERTIES: Final = 0x74
_DATA: Final = 0x75
# Kinds of the thirteen properties [3.2.4], as far as they are usual.
_ID: Final = 0
_BINARY: Final = 1
_STRING: Final = 2
_TEXT: Final = 3  # a symbol by the book, a string by some
_TIME: Final = 4
_NUMBER: Final = 5
_GROUP: Final = 6
_CONTENT_TYPE: Final = 7
_KINDS: Final[list[int]] = [
    _ID, _BINARY, _STRING, _STRING, _STRING, _STRING, _CONTENT_TYPE, _TEXT, _TIME, _TIME, _GROUP, _NUMBER, _STRING,
]  # fmt: skip
_KINDS_COUNT: Final = 13
_NULLS: Final[list[bytes]] = [b"\x40" * count for count in range(_KINDS_COUNT + 1)]


def admit_usual(raw: bytes) -> Message | None:
    end: i64 = len(raw)
    if end > limits.MESSAGE_BYTES_MAX or end < 8 or raw[0] != 0 or raw[1] != 0x53:
        return None
    message = Message(raw)
    at: i64 = 0
    if raw[2] == _HEADER:
        at = _header(raw, 3, end, message)
        if at < 0 or end - at < 8 or raw[at] != 0 or raw[at + 1] != 0x53:
            return None
    if raw[at + 2] != _PROPERTIES:
        return None
    message.bare_at = at
    at = _properties(raw, at + 3, end, message)
    if at < 0 or message.message_id == "":
        return None
    message.properties_end = at
    if end - at >= 6 and raw[at] == 0 and raw[at + 1] == 0x53 and raw[at + 2] == _APPLICATION_PROPERTIES:
        at = _application_properties(raw, at, end)
        if at < 0:
            return None
    message.application_end = at
    while at < end:
        if end - at < 5 or raw[at] != 0 or raw[at + 1] != 0x53 or raw[at + 2] != _DATA:
            return None
        code: i64 = raw[at + 3]
        if code == 0xA0:
            at += 5 + raw[at + 4]
        elif code == 0xB0 and end - at >= 8:
            at += 8 + uint_at(raw, at + 4)
        else:
            return None
    return message if at == end else None


def _header(raw: bytes, at: "i64", end: "i64", message: Message) -> "i64":
    """Where it ends, or ODD. Read into the message: durable, priority, ttl, first-acquirer [3.2.1]."""
    after: i64
    count: i64
    code: i64 = raw[at]
    if code == 0xC0:
        after = at + 2 + raw[at + 1]
        count = raw[at + 2]
        at += 3
    elif code == 0xD0 and end - at >= 9:
        after = at + 5 + uint_at(raw, at + 1)
        count = uint_at(raw, at + 5)
        at += 9
    else:
        return ODD
    if after > end or count > 5:
        return ODD
    index: i64 = 0
    while index < count:
        if at >= after:
            return ODD
        code = raw[at]
        at += 1
        if code == 0x40:
            index += 1
            continue
        if index == 0 or index == 3:
            if code != 0x41 and code != 0x42:
                return ODD
            said = SAID_TRUE if code == 0x41 else SAID_FALSE
            if index == 0:
                message.durable = said
            else:
                message.first_acquirer = said
        elif index == 1:
            if code != 0x50 or at >= after:
                return ODD
            priority: i64 = raw[at]
            message.priority = priority if priority < 127 else 127  # as `admission` keeps it
            at += 1
        else:
            value: i64 = 0
            if code == 0x52 and at < after:
                value = raw[at]
                at += 1
            elif code == 0x70 and at + 4 <= after:
                value = uint_at(raw, at)
                at += 4
            elif code != 0x43:
                return ODD
            if index == 2:
                if value == _UINT_MAX:
                    return ODD  # the properties may say more
                message.ttl_ms = value
        index += 1
    return after if at == after else ODD


def _properties(raw: bytes, at: "i64", end: "i64", message: Message) -> "i64":
    """Where they end, or ODD. Read into the message: its id and its session."""
    after: i64
    count: i64
    code: i64 = raw[at]
    if code == 0xC0:
        after = at + 2 + raw[at + 1]
        count = raw[at + 2]
        at += 3
    elif code == 0xD0 and end - at >= 9:
        after = at + 5 + uint_at(raw, at + 1)
        count = uint_at(raw, at + 5)
        at += 9
    else:
        return ODD
    if after > end or count > _KINDS_COUNT:
        return ODD
    index: i64 = 0
    while index < count:
        if at >= after:
            return ODD
        code = raw[at]
        if code == 0x40:
            if after - at == count - index and raw[at:after] == _NULLS[count - index]:
                return after  # nothing else is said, as mostly
            at += 1
            index += 1
            continue
        kind: i64 = _KINDS[index]
        if code == 0xA1 or code == 0xA3 or code == 0xA0:
            if at + 2 > after:
                return ODD
            text_at: i64 = at + 2
            at = text_at + raw[at + 1]
            if at > after or not _is_usual(raw, text_at, at, code, kind, message):
                return ODD
        elif kind == _TIME and code == 0x83:
            at += 9
        elif kind == _NUMBER and (code == 0x43 or code == 0x52 or code == 0x70):
            at += 1 if code == 0x43 else 2 if code == 0x52 else 5
        else:
            return ODD
        index += 1
    return after if at == after else ODD


def _is_usual(raw: bytes, at: "i64", end: "i64", code: "i64", kind: "i64", message: Message) -> bool:
    """A short text or binary among the properties; what the broker needs of it is read into the message."""
    if code == 0xA0:
        return kind == _BINARY
    text = raw[at:end]
    if not text.isascii():
        return False
    if code == 0xA3:
        return kind == _TEXT or (kind == _CONTENT_TYPE and text != _PING)
    if kind == _ID:
        message.message_id = text.decode("ascii")
        return end - at <= limits.MESSAGE_ID_CHARS_MAX
    if kind == _GROUP:
        message.session_id = text.decode("ascii")
        return end - at <= limits.SESSION_ID_CHARS_MAX
    return kind == _STRING or kind == _TEXT or (kind == _CONTENT_TYPE and text != _PING)


def _application_properties(raw: bytes, at: "i64", end: "i64") -> "i64":
    """Where they end, or ODD. Nothing of them is needed, but that they are well and few."""
    try:
        after = check_map(raw, at + 3, end, Section(at, at), True, DecodeBudget(MESSAGE_ELEMENTS_MAX))
    except DecodeError:
        return ODD
    return after if after - at <= limits.PROPERTY_BYTES_MAX else ODD
