"""A dead letter as it is sent again: byte for byte as it was sent, but for what is to change.

What the service has added is cut out: its annotations, the reason and the error of the dead letter. A life begins anew.
Two properties are added: a mark that is always the same for one dead letter, by which it can be found in a destination,
and how often the message was sent again.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from spillway.amqp.message import decode_header, decode_properties, encode_data
from spillway.amqp.types import Int
from spillway.client.sections import (
    APPLICATION_PROPERTIES,
    DELIVERY_ANNOTATIONS,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    DecodeError,
    Sections,
    Symbol,
    Timestamp,
    UInt,
    cut_pairs,
    fields_of,
    list_section,
    plain_sections,
    set_field,
)
from spillway.dialect.annotations import (
    BROKER_OWNED,
    DEAD_LETTER_DESCRIPTION,
    DEAD_LETTER_REASON,
    LOCK_TOKEN,
    PARTITION_KEY,
    SCHEDULED_ENQUEUE_TIME,
)
from spillway.model.limits import MESSAGE_ID_CHARS_MAX
from spillway.spark.source.values import MS_MAX, text_of
from spillway.spark.triage.planned import APPLICATION, BODY, SCHEDULED, TIME_TO_LIVE, Edit

STAMP: Final = "x-spillway-resubmitted-"
MARK: Final = f"{STAMP}mark"
COUNT: Final = f"{STAMP}count"
TTL_MS_MAX: Final = 2**32 - 1
_OLD: Final = frozenset({DEAD_LETTER_REASON, DEAD_LETTER_DESCRIPTION, MARK, COUNT})
_SUFFIX: Final = re.compile(r"~[0-9a-f]{16}$")
# Fields by position [3.2.1, 3.2.4].
_TTL, _DELIVERY_COUNT = 2, 4
_MESSAGE_ID, _EXPIRY, _CREATION, _GROUP_ID = 0, 8, 9, 10
_POSITIONS: Final = {
    "to": 2,
    "subject": 3,
    "reply_to": 4,
    "correlation_id": 5,
    "content_type": 6,
    "session_id": _GROUP_ID,
    "reply_to_session_id": 12,
}


class CannotEdit(ValueError):
    """A message that cannot be what it was to become. The text says why."""


def resubmitted(raw: bytes, mark: str, edits: Sequence[Edit], now_ms: int, *, has_new_id: bool) -> bytes:
    """The bytes to send. `has_new_id`: with an id of this dead letter's own, where the old one may be remembered."""
    try:
        raw, sections = plain_sections(raw)
        changes = {edit.name: edit.value() for edit in edits}
        return (
            _header(raw, sections, changes)
            + cut_pairs(raw, sections.delivery_annotations, frozenset({LOCK_TOKEN})).section(DELIVERY_ANNOTATIONS)
            + _annotations(raw, sections, changes)
            + _properties(raw, sections, changes, now_ms, mark if has_new_id else None)
            + _application(raw, sections, changes, mark)
            + _body(raw, sections, changes)
        )
    except DecodeError as error:
        raise CannotEdit(f"the message cannot be read: {error.description}") from None
    except ValueError as error:
        raise CannotEdit(str(error)) from None


def new_id(old: object, mark: str) -> str:
    """The id that a message had, and what tells this dead letter from it; an earlier one of these is replaced."""
    text = _SUFFIX.sub("", text_of(old) or "") or "resubmitted"
    return f"{text[: MESSAGE_ID_CHARS_MAX - 17]}~{mark[:16]}"


def mark_in(properties: Mapping[object, object]) -> str | None:
    found = properties.get(MARK)
    return found if isinstance(found, str) else None


def _ttl(raw: bytes, sections: Sections, changes: Mapping[str, Any]) -> int | None:
    if TIME_TO_LIVE not in changes:
        return decode_header(raw, sections).ttl_ms
    ttl_ms: int | None = changes[TIME_TO_LIVE]
    if ttl_ms is not None and not 0 < ttl_ms <= TTL_MS_MAX:
        raise CannotEdit(f"{TIME_TO_LIVE} is {ttl_ms}: it has to be from 1 to {TTL_MS_MAX:,}")
    return ttl_ms


def _header(raw: bytes, sections: Sections, changes: Mapping[str, Any]) -> bytes:
    fields = fields_of(raw, sections.header)
    if len(fields) > _DELIVERY_COUNT:
        set_field(fields, _DELIVERY_COUNT, None)
    ttl_ms = _ttl(raw, sections, changes)
    if ttl_ms is not None or len(fields) > _TTL:
        set_field(fields, _TTL, None if ttl_ms is None else UInt(ttl_ms))
    return list_section(HEADER, fields)


def _annotations(raw: bytes, sections: Sections, changes: Mapping[str, Any]) -> bytes:
    cut = {*BROKER_OWNED, SCHEDULED_ENQUEUE_TIME}
    # A message with a session has that for a partition key, or none.
    if "session_id" in changes or "partition_key" in changes:
        cut.add(PARTITION_KEY)
    found = cut_pairs(raw, sections.message_annotations, frozenset(cut))
    if changes.get("partition_key") is not None:
        found.add(Symbol(PARTITION_KEY), changes["partition_key"])
    if changes.get(SCHEDULED) is not None:
        found.add(Symbol(SCHEDULED_ENQUEUE_TIME), changes[SCHEDULED])
    return found.section(MESSAGE_ANNOTATIONS)


def _properties(raw: bytes, sections: Sections, changes: Mapping[str, Any], now_ms: int, mark: str | None) -> bytes:
    fields, before = fields_of(raw, sections.properties), decode_properties(raw, sections)
    if mark is not None:
        set_field(fields, _MESSAGE_ID, new_id(before.message_id, mark))
    for name, position in _POSITIONS.items():
        if name in changes:
            value = changes[name]
            set_field(fields, position, Symbol(value) if name == "content_type" and value is not None else value)
    # Beside a time to live clients write when it began and when it ends; the service shows the end.
    life_ms = _ttl(raw, sections, changes)
    if life_ms is None and TIME_TO_LIVE not in changes:
        began_ms, ends_ms = before.creation_time, before.absolute_expiry_time
        if began_ms is not None and ends_ms is not None and ends_ms > began_ms:
            life_ms = ends_ms - began_ms
    if before.absolute_expiry_time is not None or TIME_TO_LIVE in changes:
        set_field(fields, _EXPIRY, None if life_ms is None else Timestamp(min(MS_MAX, now_ms + life_ms)))
        set_field(fields, _CREATION, None if life_ms is None else Timestamp(now_ms))
    return list_section(PROPERTIES, fields)


def _application(raw: bytes, sections: Sections, changes: Mapping[str, Any], mark: str) -> bytes:
    named = {name.removeprefix(APPLICATION): value for name, value in changes.items() if name.startswith(APPLICATION)}
    found = cut_pairs(raw, sections.application_properties, _OLD | frozenset(named))
    for name, value in named.items():
        if value is not None:
            found.add(name, value)
    before = found.values.get(COUNT)
    found.add(MARK, mark)
    found.add(COUNT, Int(before + 1 if isinstance(before, int) else 1))
    return found.section(APPLICATION_PROPERTIES)


def _body(raw: bytes, sections: Sections, changes: Mapping[str, Any]) -> bytes:
    if BODY not in changes:
        start = sections.body.start if sections.body.start >= 0 else sections.footer.start
        return raw[start:] if start >= 0 else b""
    body = changes[BODY]
    footer = raw[sections.footer.start :] if sections.footer.start >= 0 else b""
    return encode_data(body.encode() if isinstance(body, str) else body) + footer
