"""A copy of a message with the changes that a rule's action made to its properties.

Only what was changed is written anew: every other annotation, property and section goes over byte for byte. The result
is checked like a message from a client, for that is what it must be to those who receive it.
"""

from typing import Final

from spillway.amqp.codec import MESSAGE_ELEMENTS_MAX, DecodeBudget, decode_value, encode
from spillway.amqp.message import (
    APPLICATION_PROPERTIES,
    MESSAGE_ANNOTATIONS,
    Properties,
    Section,
    Sections,
    decode_header,
    decode_properties,
    encode_header,
    encode_properties,
    split_sections,
)
from spillway.amqp.types import Timestamp
from spillway.dialect.admission import UINT_MAX, admit_again
from spillway.dialect.annotations import PARTITION_KEY, SCHEDULED_ENQUEUE_TIME, VIA_PARTITION_KEY, encoded_symbol
from spillway.dialect.encoded_maps import key_text, map_of, pairs_of
from spillway.dialect.property_values import wire_value
from spillway.model import limits
from spillway.model import properties as names
from spillway.model.errors import BrokerError
from spillway.model.message import Message
from spillway.model.properties import ChangedProperties, Duration, Moment, fold
from spillway.model.rules import FilterError

_ANNOTATIONS: Final[dict[str, str]] = {
    names.PARTITION_KEY: PARTITION_KEY,
    names.VIA_PARTITION_KEY: VIA_PARTITION_KEY,
    names.SCHEDULED_ENQUEUE_TIME: SCHEDULED_ENQUEUE_TIME,
}


def rewritten(message: Message, changes: ChangedProperties) -> Message:
    """A new message. `FilterError` if it would be none that can be sent: too large, for one."""
    if not changes.is_changed():
        return message
    raw = message.raw
    sections = split_sections(raw, DecodeBudget(MESSAGE_ELEMENTS_MAX))
    rest_at = sections.application_properties.end
    if rest_at < 0:
        rest_at = message.application_end
    try:
        changed = admit_again(
            _header(raw, sections, changes)
            + _bytes_of(raw, sections.delivery_annotations)
            + _annotations(raw, sections, changes)
            + _properties(raw, sections, changes)
            + _application_properties(raw, sections.application_properties, changes)
            + raw[rest_at:]
        )
    except BrokerError as error:
        raise FilterError(f"The rule's action makes of it what is no message: {error.description}") from None
    except ValueError:  # a time beyond 64 bits, a text that is no Unicode
        raise FilterError("The rule's action gives a property a value that cannot be sent.") from None
    changed.was_scheduled = message.was_scheduled
    return changed


def _bytes_of(raw: bytes, section: Section) -> bytes:
    return raw[section.start : section.end] if section.start >= 0 else b""


def _header(raw: bytes, sections: Sections, changes: ChangedProperties) -> bytes:
    if names.TIME_TO_LIVE not in changes.system_set:
        return _bytes_of(raw, sections.header)
    header = decode_header(raw, sections)
    ttl_ms = _ttl_ms(changes)
    # The field ends at 49 days; beyond it the times among the properties say how long (wire: both SDKs).
    header.ttl_ms = None if ttl_ms is None else min(ttl_ms, UINT_MAX)
    return encode_header(header.durable, header.priority, header.ttl_ms, header.delivery_count)


def _ttl_ms(changes: ChangedProperties) -> int | None:
    value = changes.system_set[names.TIME_TO_LIVE]
    return min(value.ms, limits.TTL_MS_MAX) if isinstance(value, Duration) else None


# -- annotations ------------------------------------------------------------------------------------------------------


def _annotations(raw: bytes, sections: Sections, changes: ChangedProperties) -> bytes:
    section = sections.message_annotations
    wanted: dict[str, object] = {}
    for name, key in _ANNOTATIONS.items():
        if name in changes.system_set:
            value = changes.system_set[name]
            wanted[key] = Timestamp(value.ms) if isinstance(value, Moment) else value
    if not wanted:
        return _bytes_of(raw, section)
    kept: list[bytes] = []
    for pair in pairs_of(raw, section.pairs_at, section.pairs_end):
        if key_text(raw, pair) not in wanted:
            kept.append(raw[pair.at : pair.end])
    for key, value in wanted.items():
        if value is not None:
            kept.append(encoded_symbol(key) + encode(value))
    return _map_section(MESSAGE_ANNOTATIONS, kept)


def _map_section(code: int, pairs: list[bytes]) -> bytes:
    """Nothing at all for no pairs."""
    return bytes((0x00, 0x53, code)) + map_of(b"".join(pairs), len(pairs)) if pairs else b""


# -- properties -------------------------------------------------------------------------------------------------------


def _properties(raw: bytes, sections: Sections, changes: ChangedProperties) -> bytes:
    properties = decode_properties(raw, sections)
    is_changed = False
    for name, value in changes.system_set.items():
        if name == names.TIME_TO_LIVE:
            is_changed = _set_life(properties, changes) or is_changed
        elif name not in _ANNOTATIONS:
            assert value is None or isinstance(value, str), "actions make texts of all others"
            _set_text(properties, name, value)
            is_changed = True
    return encode_properties(properties) if is_changed else _bytes_of(raw, sections.properties)


def _set_text(properties: Properties, name: str, text: str | None) -> None:
    if name == names.LABEL:
        properties.subject = text
    elif name == names.CORRELATION_ID:
        properties.correlation_id = text
    elif name == names.MESSAGE_ID:
        properties.message_id = text
    elif name == names.TO:
        properties.to = text
    elif name == names.REPLY_TO:
        properties.reply_to = text
    elif name == names.CONTENT_TYPE:
        properties.content_type = text
    elif name == names.SESSION_ID:
        properties.group_id = text
    else:
        assert name == names.REPLY_TO_SESSION_ID, name
        properties.reply_to_group_id = text


def _set_life(properties: Properties, changes: ChangedProperties) -> bool:
    """Times that say how long a message lives say what its header says. True if they had to be changed.

    JavaScript takes the time to live from them where both are given.
    """
    ttl_ms = _ttl_ms(changes)
    if ttl_ms is None:
        is_changed = properties.absolute_expiry_time is not None
        properties.absolute_expiry_time = None
        return is_changed
    if properties.absolute_expiry_time is None and ttl_ms <= UINT_MAX:
        return False
    if properties.creation_time is None:
        now = changes.base.system(names.ENQUEUED_TIME)
        assert isinstance(now, Moment), "a message in a topic was enqueued"
        properties.creation_time = now.ms
    properties.absolute_expiry_time = properties.creation_time + ttl_ms
    return True


# -- application properties -------------------------------------------------------------------------------------------


def _application_properties(raw: bytes, section: Section, changes: ChangedProperties) -> bytes:
    """Changed ones stay in their place and keep their spelling; new ones follow."""
    if not changes.user_set and not changes.user_removed:
        return _bytes_of(raw, section)
    pairs: list[bytes] = []
    seen: set[str] = set()
    for pair in pairs_of(raw, section.pairs_at, section.pairs_end):
        key = fold(key_text(raw, pair))
        if key in changes.user_removed:
            continue
        if key not in changes.user_set:
            pairs.append(raw[pair.at : pair.end])
        elif key not in seen:
            former, _ = decode_value(raw, pair.value_at, pair.end, DecodeBudget(MESSAGE_ELEMENTS_MAX))
            pairs.append(raw[pair.at : pair.value_at] + encode(wire_value(changes.user_set[key], former)))
        seen.add(key)
    for key, value in changes.user_set.items():
        if key not in seen:
            pairs.append(encode(changes.user_names[key]) + encode(wire_value(value, None)))
    return _map_section(APPLICATION_PROPERTIES, pairs)
