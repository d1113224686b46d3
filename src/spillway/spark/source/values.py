"""AMQP values as text, and back: what a column of strings can hold without losing what they were.

Application properties are a map of texts in a DataFrame; a second map has their AMQP types. Together they say exactly
what was sent, so that a row can be sent again as it was.
"""

import base64
import binascii
import json
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from spillway.amqp.types import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# What a datetime can hold; AMQP's timestamps go further in both directions.
MS_MIN: Final = -62_135_596_800_000
MS_MAX: Final = 253_402_300_799_999

# Exactly these classes: Python's bool is an int, and a Symbol is a str.
_NAMES: Final[dict[type, str]] = {
    str: "string",
    int: "long",
    bool: "boolean",
    float: "double",
    bytes: "binary",
    uuid.UUID: "uuid",
    type(None): "null",
    Symbol: "symbol",
    Char: "char",
    UByte: "ubyte",
    UShort: "ushort",
    UInt: "uint",
    ULong: "ulong",
    Byte: "byte",
    Short: "short",
    Int: "int",
    Float: "float",
    Timestamp: "timestamp",
    Decimal32: "decimal32",
    Decimal64: "decimal64",
    Decimal128: "decimal128",
}

_RANGES: Final[dict[str, tuple[Callable[[int], int], int, int]]] = {
    "ubyte": (UByte, 0, 2**8 - 1),
    "ushort": (UShort, 0, 2**16 - 1),
    "uint": (UInt, 0, 2**32 - 1),
    "ulong": (ULong, 0, 2**64 - 1),
    "byte": (Byte, -(2**7), 2**7 - 1),
    "short": (Short, -(2**15), 2**15 - 1),
    "int": (Int, -(2**31), 2**31 - 1),
    "long": (int, -(2**63), 2**63 - 1),
}
_DECIMALS: Final[dict[str, tuple[Callable[[bytes], bytes], int]]] = {
    "decimal32": (Decimal32, 4),
    "decimal64": (Decimal64, 8),
    "decimal128": (Decimal128, 16),
}
TYPE_NAMES: Final = frozenset(_NAMES.values())


def type_name(value: object) -> str:
    """AMQP's name of its type; `other` for what no property may be."""
    return _NAMES.get(type(value), "other")


def text_of(value: object) -> str | None:
    """As text; None for null."""
    if type(value) is str:
        return value
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Timestamp):
        return timestamp_text(value)
    if isinstance(value, (Decimal32, Decimal64, Decimal128)):
        return bytes(value).hex()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, float):
        return float.__repr__(value)
    if isinstance(value, (str, int, uuid.UUID)):
        return str(value)
    return json.dumps(plain_value(value))


def timestamp_text(ms: int) -> str:
    """ISO 8601 in UTC with milliseconds; the number of ms where no calendar goes."""
    if not MS_MIN <= ms <= MS_MAX:
        return str(int(ms))
    return (EPOCH + timedelta(milliseconds=ms)).strftime("%Y-%m-%dT%H:%M:%S.") + f"{ms % 1000:03d}Z"


def value_of(text: str | None, name: str) -> object:
    """The value that `text_of` and `type_name` said; ValueError tells what the text is not."""
    if name not in TYPE_NAMES:
        raise ValueError(f"there is no AMQP type '{name}'; there are {', '.join(sorted(TYPE_NAMES))}")
    if text is None or name == "null":
        return None
    if name == "string":
        return text
    try:
        return _parsed(text, name)
    except (ValueError, binascii.Error, OverflowError, UnicodeError):
        raise ValueError(f"a text of {len(text)} characters is no {name}") from None


def _parsed(text: str, name: str) -> object:
    if name in _RANGES:
        make, least, most = _RANGES[name]
        number = int(text)
        if not least <= number <= most:
            raise ValueError
        return make(number)
    if name == "boolean":
        return {"true": True, "false": False}[text.lower()] if text.lower() in ("true", "false") else int("")
    if name in ("double", "float"):
        return float(text) if name == "double" else Float(text)
    if name == "timestamp":
        return Timestamp(timestamp_ms(text))
    if name == "uuid":
        return uuid.UUID(text)
    if name == "binary":
        return base64.b64decode(text, validate=True)
    if name == "symbol":
        text.encode("ascii")
        return Symbol(text)
    if name == "char":
        if len(text) != 1:
            raise ValueError
        return Char(text)
    make_decimal, size = _DECIMALS[name]
    data = bytes.fromhex(text)
    if len(data) != size:
        raise ValueError
    return make_decimal(data)


def timestamp_ms(text: str) -> int:
    """Of what `timestamp_text` wrote, or another ISO 8601 time, which is in UTC unless it says otherwise."""
    try:
        return int(text)
    except ValueError:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return (moment - EPOCH) // timedelta(milliseconds=1)


def plain_value(value: object) -> object:
    """For JSON: compound values as lists and objects, what JSON has not as text."""
    if isinstance(value, Described):
        return plain_value(value.value)
    if isinstance(value, dict):
        return {str(text_of(key)): plain_value(each) for key, each in value.items()}
    if isinstance(value, (list, Array)):
        return [plain_value(each) for each in value]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Timestamp):
        return timestamp_text(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if value == value and abs(value) != float("inf") else repr(float(value))
    return text_of(value)
