"""Values of properties: AMQP's types on the wire, the few kinds that rules know inside (`model/properties.py`)."""

import uuid
from typing import Final

from spillway.amqp.types import (
    Byte,
    Decimal32,
    Decimal64,
    Decimal128,
    Int,
    Short,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from spillway.model.properties import Duration, Moment
from spillway.model.rule_values import rule_value

LONG_MAX: Final = (1 << 63) - 1

# The integer types that say their width; a long is a plain int.
_NARROW: Final[list[tuple[type[int], int, int]]] = [
    (Int, -(1 << 31), (1 << 31) - 1),
    (UInt, 0, (1 << 32) - 1),
    (ULong, 0, (1 << 64) - 1),
    (Short, -(1 << 15), (1 << 15) - 1),
    (UShort, 0, (1 << 16) - 1),
    (Byte, -(1 << 7), (1 << 7) - 1),
    (UByte, 0, (1 << 8) - 1),
]


def known_value(value: object) -> object:
    """What rules make of a decoded value; None where they know no such kind: then its comparisons are unknown."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, Timestamp):
        return Moment(int(value))
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, uuid.UUID):
        return value
    if isinstance(value, bytes) and not isinstance(value, (Decimal32, Decimal64, Decimal128)):
        return bytes(value)
    return None


def wire_value(value: object, former: object) -> object:
    """A rule's value in the type it is sent as: the integer type of the `former` value if it fits there, else a long.

    AMQP has no durations, and a property may not be described; they go as text, in XML Schema's form.
    """
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        for kind, low, high in _NARROW:
            if isinstance(former, kind) and low <= value <= high:
                return kind(value)
        return ULong(value) if value > LONG_MAX else value
    if isinstance(value, Moment):
        return Timestamp(value.ms)
    if isinstance(value, Duration):
        return rule_value(value).text
    return value
