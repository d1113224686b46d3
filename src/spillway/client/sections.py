"""Editing messages that are passed on: for callers who keep bytes as they came but for a few entries."""

from spillway.amqp.codec import MESSAGE_ELEMENTS_MAX, DecodeBudget
from spillway.amqp.editing import Cut, cut_pairs, fields_of, has_field, list_section, set_field
from spillway.amqp.errors import DecodeError
from spillway.amqp.message import (
    APPLICATION_PROPERTIES,
    DELIVERY_ANNOTATIONS,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    Section,
    Sections,
    in_plain_form,
    split_sections,
)
from spillway.amqp.types import Symbol, Timestamp, UInt

__all__ = [
    "APPLICATION_PROPERTIES",
    "DELIVERY_ANNOTATIONS",
    "HEADER",
    "MESSAGE_ANNOTATIONS",
    "PROPERTIES",
    "Cut",
    "DecodeError",
    "Section",
    "Sections",
    "Symbol",
    "Timestamp",
    "UInt",
    "cut_pairs",
    "fields_of",
    "has_field",
    "list_section",
    "plain_sections",
    "set_field",
]


def plain_sections(raw: bytes) -> tuple[bytes, Sections]:
    """A message in order whose descriptors are all smallulongs, mostly the one given, and where its sections lie.

    `DecodeError` if it is no message.
    """
    sections = split_sections(raw, DecodeBudget(MESSAGE_ELEMENTS_MAX))
    if sections.is_plain:
        return raw, sections
    raw = in_plain_form(raw, DecodeBudget(MESSAGE_ELEMENTS_MAX))
    return raw, split_sections(raw, DecodeBudget(MESSAGE_ELEMENTS_MAX))
