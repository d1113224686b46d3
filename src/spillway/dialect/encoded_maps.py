"""Maps of messages as they are encoded: pairs are kept, cut out or added without touching the others' bytes."""

import struct
from typing import Final

from spillway.amqp.codec import MESSAGE_ELEMENTS_MAX, DecodeBudget, skip_value

_MAP32: Final = struct.Struct(">BII")


class Pair:
    """Where one pair lies in `raw`."""

    def __init__(self, at: int, value_at: int, end: int) -> None:
        self.at = at
        self.value_at = value_at
        self.end = end


def map_of(pairs: bytes, count: int) -> bytes:
    """A map from its encoded pairs; sizes count the bytes after themselves."""
    if len(pairs) < 255 and count < 128:
        return bytes([0xC1, len(pairs) + 1, 2 * count]) + pairs
    return _MAP32.pack(0xD1, len(pairs) + 4, 2 * count) + pairs


def pairs_at(raw: bytes, section_at: int) -> int:
    """Where the pairs of a map section begin; its structure was checked when the message was admitted."""
    at = section_at + 3  # the descriptor, a smallulong since it was admitted
    if raw[at] == 0xC1:
        return at + 3
    assert raw[at] == 0xD1, "a map section holds a map"
    return at + 9


def pairs_of(raw: bytes, at: int, end: int) -> list[Pair]:
    """The pairs from the first one on."""
    found: list[Pair] = []
    budget = DecodeBudget(MESSAGE_ELEMENTS_MAX)
    while at < end:
        value_at = skip_value(raw, at, end, budget)
        after = skip_value(raw, value_at, end, budget)
        found.append(Pair(at, value_at, after))
        at = after
    return found


def key_text(raw: bytes, pair: Pair) -> str:
    """A key that is a string or a symbol: its constructor, one byte or four of size, its text. Others are ""."""
    at = pair.at
    if raw[at] < 0xA0:
        return ""  # annotations may have numbers for keys
    return raw[at + 2 if raw[at] < 0xB0 else at + 5 : pair.value_at].decode()
