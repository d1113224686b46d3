"""A message of a backlog queue, byte for byte as it was sent, for the entity that it was sent to.

What a paired sender took out of it and wrote down as aliases (contract E1 to E7) goes back where it was, and what the
broker of the backlog added is cut out. Only the sections concerned are written anew, and in them only the entries
concerned: properties, values and bodies keep their bytes and with them their AMQP types. The message id is kept, so
that a message that is sent twice is one inside the primary's duplicate window.
"""

from typing import Final, Literal

from spillway.client.sections import (
    APPLICATION_PROPERTIES,
    DELIVERY_ANNOTATIONS,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    DecodeError,
    Section,
    Sections,
    Symbol,
    Timestamp,
    UInt,
    cut_pairs,
    fields_of,
    has_field,
    list_section,
    plain_sections,
    set_field,
)
from spillway.model.aliases import ALIASES, EXPIRY_MS_MAX, TTL_UINT_MAX, Malformed, read_aliases

Ttl = Literal["restart", "remaining"]
NOT_A_MESSAGE: Final = "NotAMessage"

_ALIASES: Final = frozenset(ALIASES)
_NUMBER: Final = "x-opt-sequence-number"
_ENQUEUED: Final = "x-opt-enqueued-time"
_LOCKED_UNTIL: Final = "x-opt-locked-until"
_SCHEDULED: Final = "x-opt-scheduled-enqueue-time"
_PARTITION_KEY: Final = "x-opt-partition-key"
# What the backlog's broker adds; none of it was the sender's. The partition key is, and is only looked at.
_OF_THE_BROKER: Final = frozenset(
    {
        _ENQUEUED,
        _SCHEDULED,
        _NUMBER,
        "x-opt-enqueue-sequence-number",
        _LOCKED_UNTIL,
        "x-opt-message-state",
        "x-opt-deadletter-source",
    }
)
_LOCK_TOKEN: Final = frozenset({"x-opt-lock-token"})
_LOCK_TOKEN_KEY: Final = b"\xa3\x10x-opt-lock-token"  # a symbol

# Fields by position [3.2.1, 3.2.4].
_DURABLE: Final = 0
_TTL: Final = 2
_DELIVERY_COUNT: Final = 4
_MESSAGE_ID: Final = 0
_EXPIRY: Final = 8
_CREATION: Final = 9
_GROUP_ID: Final = 10
_FALSE: Final = b"\x42"
_NULL: Final = b"\x40"
# A list of five fields: not durable, and nothing else but the delivery count.
_USUAL_HEADER: Final = b"\xc0\x0a\x05\x42\x40\x40\x40"


class Restored:
    """Where a message belongs, and its bytes. Only messages of one `key` may share a batch: session or partition."""

    __slots__ = ("body_bytes", "key", "locked_until_ms", "path", "raw", "sequence_number", "session_id")

    def __init__(
        self,
        path: str,
        raw: bytes,
        session_id: str | None,
        key: str | None,
        sequence_number: object = None,
        body_bytes: int = 0,
        locked_until_ms: object = None,
    ) -> None:
        self.path = path
        self.locked_until_ms = locked_until_ms if isinstance(locked_until_ms, int) else None
        self.body_bytes = body_bytes  # and the footer's, of its sections
        self.sequence_number = sequence_number if isinstance(sequence_number, int) else 0  # in the backlog
        self.raw = raw
        self.session_id = session_id
        self.key = key


def restore(raw: bytes, now_ms: int, ttl: Ttl = "restart") -> Restored:
    """The message as it was sent. `now_ms` is when a life begins anew, or what is left of it is reckoned.

    `Malformed` if nobody can know where it belongs.
    """
    try:
        return _restored(raw, now_ms, ttl)
    except DecodeError as error:
        raise Malformed(NOT_A_MESSAGE, f"The message cannot be read: {error.description}.") from None


def _restored(raw: bytes, now_ms: int, ttl: Ttl) -> Restored:
    raw, sections = plain_sections(raw)
    properties = cut_pairs(raw, sections.application_properties, _ALIASES)
    aliases = read_aliases(properties.values)
    annotations = cut_pairs(raw, sections.message_annotations, _OF_THE_BROKER)
    if aliases.due_ms is not None:
        annotations.add(Symbol(_SCHEDULED), Timestamp(aliases.due_ms))
    ttl_ms = aliases.ttl_ms
    if ttl_ms is not None and ttl == "remaining":
        ttl_ms = _remaining_ms(ttl_ms, annotations.values.get(_ENQUEUED), now_ms)
    session_id = aliases.session_id
    body = raw[_body_at(sections, len(raw)) :]
    home = (
        _header(raw, sections.header, ttl_ms)
        + _delivery_annotations(raw, sections.delivery_annotations)
        + annotations.section(MESSAGE_ANNOTATIONS)
        + _properties(raw, sections.properties, session_id, ttl_ms, now_ms)
        + properties.section(APPLICATION_PROPERTIES)
        + body
    )
    key = session_id if session_id is not None else _partition_key(raw, sections.message_annotations)
    of_broker = annotations.values
    return Restored(
        aliases.path, home, session_id, key, of_broker.get(_NUMBER), len(body), of_broker.get(_LOCKED_UNTIL)
    )


def _remaining_ms(ttl_ms: int, enqueued: object, now_ms: int) -> int:
    """The life that is left, one millisecond at least: what is overdue is the primary's to expire, so that it is
    counted and dead-lettered there."""
    return ttl_ms if not isinstance(enqueued, int) else max(1, ttl_ms - max(0, now_ms - enqueued))


def _header(raw: bytes, section: Section, ttl_ms: int | None) -> bytes:
    """Durable and priority are the sender's; the delivery count, and a time to live here, are the backlog's."""
    if ttl_ms is None and raw[section.start + 3 : section.start + 10] == _USUAL_HEADER:
        return b""
    fields = fields_of(raw, section)
    if fields and fields[_DURABLE] == _FALSE:
        fields[_DURABLE] = _NULL  # the default, and what a broker writes for it
    if len(fields) > _DELIVERY_COUNT:
        fields[_DELIVERY_COUNT] = _NULL
    if ttl_ms is not None:
        set_field(fields, _TTL, UInt(min(ttl_ms, TTL_UINT_MAX)))
    elif len(fields) > _TTL:
        fields[_TTL] = _NULL
    return list_section(HEADER, fields)


def _delivery_annotations(raw: bytes, section: Section) -> bytes:
    if section.pairs_count == 1 and raw.startswith(_LOCK_TOKEN_KEY, section.pairs_at):
        return b""  # as nearly always
    return cut_pairs(raw, section, _LOCK_TOKEN).section(DELIVERY_ANNOTATIONS)


def _properties(raw: bytes, section: Section, session_id: str | None, ttl_ms: int | None, now_ms: int) -> bytes:
    """Properties with the session again, and with the two times that the SDK writes beside a time to live: some clients
    read the life of a message from them, and they alone hold one of more than 49 days. Its clock starts at the
    primary."""
    if section.start < 0 and session_id is None and ttl_ms is None:
        return b""
    fields = fields_of(raw, section)
    if session_id is None and ttl_ms is None and not has_field(fields, _GROUP_ID):
        return raw[section.start : section.end]
    set_field(fields, _GROUP_ID, session_id)
    if ttl_ms is not None:
        set_field(fields, _CREATION, Timestamp(now_ms))
        set_field(fields, _EXPIRY, Timestamp(min(EXPIRY_MS_MAX, now_ms + ttl_ms)))
    return list_section(PROPERTIES, fields)


def _partition_key(raw: bytes, section: Section) -> str | None:
    if raw.find(b"x-opt-partition-key", max(section.start, 0), max(section.end, 0)) < 0:
        return None
    value = cut_pairs(raw, section, frozenset({_PARTITION_KEY})).values.get(_PARTITION_KEY)
    return value if isinstance(value, str) else None


def _body_at(sections: Sections, end: int) -> int:
    """Where the sections begin that nobody touches."""
    if sections.body.start >= 0:
        return sections.body.start
    return sections.footer.start if sections.footer.start >= 0 else end
