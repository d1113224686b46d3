"""Sections of an encoded message with some of their entries changed; all others are copied byte for byte.

For whoever passes messages on: what is not meant to change keeps its bytes, its types and its order. The sections were
found and checked by `split_sections`. Knows nothing of what the entries mean.
"""

import struct
from typing import Final

from spillway.amqp.codec import (
    MESSAGE_ELEMENTS_MAX,
    DecodeBudget,
    decode_value,
    encode,
    encode_value,
    read_u32,
    skip_value,
)
from spillway.amqp.message import Section

_NULL: Final = 0x40
_LIST8: Final = 0xC0
_LIST32: Final = 0xD0
_COMPOUND32: Final = struct.Struct(">BII")


class Cut:
    """Pairs that stay, as they were encoded, and the values of those that were cut out."""

    def __init__(self) -> None:
        self.pairs = b""
        self.count = 0
        self.values: dict[str, object] = {}

    def add(self, key: object, value: object) -> None:
        """One more pair behind those that stay."""
        self.pairs += encode(key) + encode(value)
        self.count += 1

    def section(self, code: int) -> bytes:
        """The map section of what there is now; nothing at all for no pairs."""
        if self.count == 0:
            return b""
        if len(self.pairs) < 255 and self.count < 128:
            return bytes((0x00, 0x53, code, 0xC1, len(self.pairs) + 1, 2 * self.count)) + self.pairs
        head = bytes((0x00, 0x53, code))
        return head + _COMPOUND32.pack(0xD1, len(self.pairs) + 4, 2 * self.count) + self.pairs


def cut_pairs(raw: bytes, section: Section, names: frozenset[str]) -> Cut:
    """A map section without the pairs of these names. Keys are compared as text, be they strings or symbols."""
    cut = Cut()
    if section.start < 0:
        return cut
    at = section.pairs_at
    end = section.pairs_end
    kept_from = at  # of a run of pairs that stay
    budget = DecodeBudget(MESSAGE_ELEMENTS_MAX)
    while at < end:
        value_at = skip_value(raw, at, end, budget)
        after = skip_value(raw, value_at, end, budget)
        code = raw[at]
        if code >= 0xA0:  # annotations may have numbers for keys
            key = raw[at + 2 if code < 0xB0 else at + 5 : value_at].decode()
            if key in names:
                cut.pairs += raw[kept_from:at]
                kept_from = after
                cut.count -= 1
                value, _ = decode_value(raw, value_at, after, budget)
                cut.values[key] = value
        at = after
    cut.pairs += raw[kept_from:end]
    cut.count += section.pairs_count
    return cut


def fields_of(raw: bytes, section: Section) -> list[bytes]:
    """The encoded fields of a list section whose descriptor is a smallulong; empty if there is no section."""
    fields: list[bytes] = []
    if section.start < 0:
        return fields
    at = section.start + 3
    if raw[at] == _LIST8:
        count = raw[at + 2]
        at += 3
    elif raw[at] == _LIST32:
        count = read_u32(raw, at + 5)
        at += 9
    else:
        return fields  # list0
    budget = DecodeBudget(MESSAGE_ELEMENTS_MAX)
    for _ in range(count):
        after = skip_value(raw, at, section.end, budget)
        fields.append(raw[at:after])
        at = after
    return fields


def has_field(fields: list[bytes], index: int) -> bool:
    """Whether a field is there and not null."""
    return index < len(fields) and fields[index][0] != _NULL


def set_field(fields: list[bytes], index: int, value: object) -> None:
    """Replace a field, or add it behind as many nulls as it takes."""
    while len(fields) <= index:
        fields.append(b"\x40")
    encoded = bytearray()
    encode_value(encoded, value)
    fields[index] = bytes(encoded)


def list_section(code: int, fields: list[bytes]) -> bytes:
    """A list section; nothing at all if every field is null. Nulls at the end are left out, as everyone may [1.4]."""
    count = len(fields)
    while count > 0 and fields[count - 1][0] == _NULL:
        count -= 1
    if count == 0:
        return b""
    body = b"".join(fields[:count])
    if len(body) < 255:
        return bytes((0x00, 0x53, code, _LIST8, len(body) + 1, count)) + body
    return bytes((0x00, 0x53, code)) + _COMPOUND32.pack(_LIST32, len(body) + 4, count) + body
