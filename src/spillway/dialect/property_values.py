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


def known_value(value: object) -> object:
    """What rules make of a decoded value; None where they know no such kind: then its comparisons are unknown."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, Timestamp):
        return Moment(int(value))
    if isinstance(value, int):
        return value + 0  # compiled, `int(value)` keeps the class of large ones
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
        return _integer(value, former)
    if isinstance(value, Moment):
        return Timestamp(value.ms)
    if isinstance(value, Duration):
        return rule_value(value).text
    return value


def _integer(value: int, former: object) -> object:
    """One by one, and not from a table: compiled code makes a plain int of what a `type[int]` makes."""
    if isinstance(former, Int) and -(1 << 31) <= value < 1 << 31:
        return Int(value)
    if isinstance(former, UInt) and 0 <= value < 1 << 32:
        return UInt(value)
    if isinstance(former, ULong) and value >= 0:
        return ULong(value)
    if isinstance(former, Short) and -(1 << 15) <= value < 1 << 15:
        return Short(value)
    if isinstance(former, UShort) and 0 <= value < 1 << 16:
        return UShort(value)
    if isinstance(former, Byte) and -(1 << 7) <= value < 1 << 7:
        return Byte(value)
    if isinstance(former, UByte) and 0 <= value < 1 << 8:
        return UByte(value)
    return ULong(value) if value > LONG_MAX else value
