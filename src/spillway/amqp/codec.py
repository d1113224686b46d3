"""Bytes to AMQP values [part 1]; the way back is in `encoder`.

Everything the wire counts or sizes is checked against what is really there before anything is made of it, and charged
to one `DecodeBudget` that all values of a frame share: a limit per array would not stop a thousand arrays. Whatever
`decode_value` takes `skip_value` takes, and the other way round: a test holds them together.
"""

import struct
import uuid
from typing import Final

from spillway.amqp.encoder import COMPOUND, UNKNOWN, VARIABLE, WIDTHS
from spillway.amqp.encoder import Composite as Composite
from spillway.amqp.encoder import encode as encode
from spillway.amqp.encoder import encode_value as encode_value
from spillway.amqp.errors import DecodeError
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

# A frame of 64 KiB cannot hold more elements than bytes, except by zero-width ones: those are what this stops.
FRAME_ELEMENTS_MAX: Final = 65_536
# A message of the standard tier: 256 KiB, one byte an element.
MESSAGE_ELEMENTS_MAX: Final = 262_144
# Before login a peer needs an open and a SASL response.
LOGIN_ELEMENTS_MAX: Final = 1_024
# Nothing the SDKs send is deeper than ten; Python's own stack allows some hundreds.
DEPTH_MAX: Final = 32
# An array of null, true, false, uint0, ulong0 or list0 costs no bytes per element (CVE-2012-4458 and its descendants).
ZERO_WIDTH_COUNT_MAX: Final = 256

SHORT_TEXT: Final = 0xA1  # of at most 255 bytes: most values of a message are that
NO_TEXT: Final = "text that is not UTF-8, or a symbol that is not ASCII"

_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")
_I64: Final = struct.Struct(">q")
_U64: Final = struct.Struct(">Q")
_F32: Final = struct.Struct(">f")
_F64: Final = struct.Struct(">d")


class DecodeBudget:
    """What one frame, or one message, may cost to decode. After a DecodeError it is spent: make a new one."""

    def __init__(self, elements_max: int = FRAME_ELEMENTS_MAX, depth_max: int = DEPTH_MAX) -> None:
        self.elements_left = elements_max
        self.depth_left = depth_max

    def charge(self, count: int) -> None:
        """Charge the elements of one list, map or array before any of them is read."""
        if count > self.elements_left:
            raise DecodeError("more elements than one frame may have")
        self.elements_left -= count

    def enter(self) -> None:
        if self.depth_left <= 0:
            raise DecodeError("values nested too deeply")
        self.depth_left -= 1

    def leave(self) -> None:
        self.depth_left += 1


# --- reading ---------------------------------------------------------------------------------------------------------


def read_u32(data: bytes, at: int) -> int:
    """The caller has checked that four bytes are there."""
    return (data[at] << 24) | (data[at + 1] << 16) | (data[at + 2] << 8) | data[at + 3]


def decode_value(data: bytes, at: int, end: int, budget: DecodeBudget) -> tuple[object, int]:
    """The value that begins at `at`, and where it ends; nothing at or beyond `end` is read."""
    if at >= end:
        raise DecodeError("a value is missing")
    code = data[at]
    if code == SHORT_TEXT and at + 1 < end and at + 2 + data[at + 1] <= end:
        after = at + 2 + data[at + 1]
        return _text(data, at + 2, after), after
    if code != 0:
        return _decode_body(data, code, at + 1, end, budget)
    budget.enter()
    descriptor, at = decode_value(data, at + 1, end, budget)
    value, at = decode_value(data, at, end, budget)
    budget.leave()
    return Described(descriptor, value), at


def _decode_body(data: bytes, code: int, at: int, end: int, budget: DecodeBudget) -> tuple[object, int]:
    """A value without its constructor: how it stands in an array."""
    if code < 0xA0:
        width = WIDTHS[code]
        if width == UNKNOWN:
            raise DecodeError(f"unknown constructor 0x{code:02x}")
        after = at + width
        if after > end:
            raise DecodeError("a value is cut short")
        if code < 0x60:
            return _decode_small(data, code, at), after
        return _decode_fixed(data, code, at, after), after
    if code < 0xC0:
        at, after = _variable_span(data, code, at, end)
        return _decode_variable(data, code, at, after), after
    at, after, count = _compound_span(data, code, at, end)
    budget.enter()
    value: object
    if code == 0xC0 or code == 0xD0:
        value = _decode_list(data, at, after, count, budget)
    elif code == 0xC1 or code == 0xD1:
        value = _decode_map(data, at, after, count, budget)
    else:
        value = _decode_array(data, at, after, count, budget)
    budget.leave()
    return value, after


def _decode_small(data: bytes, code: int, at: int) -> object:
    """Widths of zero and one [1.6]."""
    if code == 0x40:
        return None
    if code == 0x41:
        return True
    if code == 0x42:
        return False
    if code == 0x43:
        return UInt(0)
    if code == 0x44:
        return ULong(0)
    if code == 0x45:
        return []
    byte = data[at]
    if code == 0x52:
        return UInt(byte)
    if code == 0x53:
        return ULong(byte)
    if code == 0x50:
        return UByte(byte)
    if code == 0x56:
        if byte > 1:
            raise DecodeError("a boolean is neither 0 nor 1")
        return byte == 1
    signed = byte - 256 if byte > 127 else byte
    if code == 0x55:
        return signed
    if code == 0x54:
        return Int(signed)
    return Byte(signed)


def _decode_fixed(data: bytes, code: int, at: int, after: int) -> object:
    """Widths of two and more [1.6]."""
    if code == 0x70:
        return UInt(read_u32(data, at))
    if code == 0x83:
        return Timestamp(_I64.unpack_from(data, at)[0])
    if code == 0x81:
        number: int = _I64.unpack_from(data, at)[0]
        return number
    if code == 0x71:
        return Int(_I32.unpack_from(data, at)[0])
    if code == 0x82:
        double: float = _F64.unpack_from(data, at)[0]
        return double
    if code == 0x98:
        return uuid.UUID(bytes=data[at:after])
    if code == 0x80:
        return ULong(_U64.unpack_from(data, at)[0])
    if code == 0x60:
        return UShort((data[at] << 8) | data[at + 1])
    if code == 0x61:
        return Short(_I16.unpack_from(data, at)[0])
    if code == 0x72:
        return Float(_F32.unpack_from(data, at)[0])
    if code == 0x73:
        return Char(chr(_checked_char(data, at)))
    if code == 0x74:
        return Decimal32(data[at:after])
    if code == 0x84:
        return Decimal64(data[at:after])
    return Decimal128(data[at:after])


def _checked_char(data: bytes, at: int) -> int:
    point = read_u32(data, at)
    if point > 0x10FFFF or 0xD800 <= point <= 0xDFFF:
        raise DecodeError("a char is no Unicode character")
    return point


def _variable_span(data: bytes, code: int, at: int, end: int) -> tuple[int, int]:
    """Where the octets of a binary, string or symbol begin and end."""
    if WIDTHS[code] != VARIABLE:
        raise DecodeError(f"unknown constructor 0x{code:02x}")
    if code < 0xB0:
        if at >= end:
            raise DecodeError("a size is missing")
        after = at + 1 + data[at]
        at += 1
    else:
        if at + 4 > end:
            raise DecodeError("a size is missing")
        after = at + 4 + read_u32(data, at)
        at += 4
    if after > end:
        raise DecodeError("a size reaches past the end")
    return at, after


def _decode_variable(data: bytes, code: int, at: int, after: int) -> object:
    if code == 0xA0 or code == 0xB0:
        return data[at:after]
    if code != 0xA3 and code != 0xB3:
        return _text(data, at, after)
    try:
        return Symbol(data[at:after].decode("ascii"))
    except UnicodeDecodeError:
        raise DecodeError(NO_TEXT) from None


def _text(data: bytes, at: int, after: int) -> str:
    try:
        return data[at:after].decode("utf-8")
    except UnicodeDecodeError:
        raise DecodeError(NO_TEXT) from None


def _compound_span(data: bytes, code: int, at: int, end: int) -> tuple[int, int, int]:
    """Where the elements of a list, map or array begin and end, and how many there are said to be."""
    if WIDTHS[code] != COMPOUND:
        raise DecodeError(f"unknown constructor 0x{code:02x}")
    if code == 0xC0 or code == 0xC1 or code == 0xE0:
        if at + 2 > end:
            raise DecodeError("a size is missing")
        after = at + 1 + data[at]
        count = data[at + 1]
        at += 2
    else:
        if at + 8 > end:
            raise DecodeError("a size is missing")
        after = at + 4 + read_u32(data, at)
        count = read_u32(data, at + 4)
        at += 8
    if after > end or at > after:
        raise DecodeError("a size reaches past the end, or is too small for its count")
    return at, after, count


def _decode_list(data: bytes, at: int, after: int, count: int, budget: DecodeBudget) -> list[object]:
    if count > after - at:
        raise DecodeError("a list is shorter than its count")
    budget.charge(count)
    items: list[object] = []
    for _ in range(count):
        item, at = decode_value(data, at, after, budget)
        items.append(item)
    if at != after:
        raise DecodeError("a list is longer than its elements")
    return items


def _decode_map(data: bytes, at: int, after: int, count: int, budget: DecodeBudget) -> dict[object, object]:
    if count > after - at or count & 1:
        raise DecodeError("a map has an odd count, or is shorter than its count")
    budget.charge(count)
    pairs: dict[object, object] = {}
    for _ in range(count >> 1):
        _check_key(data, at, after)
        key, at = decode_value(data, at, after, budget)
        if key in pairs:
            raise DecodeError("a map has the same key twice")
        pairs[key], at = decode_value(data, at, after, budget)
    if at != after:
        raise DecodeError("a map is longer than its pairs")
    return pairs


def _check_key(data: bytes, at: int, end: int) -> None:
    """Keys are values that cannot change: no list, map, array or described value, which no SDK can read either."""
    if at >= end or data[at] == 0 or data[at] == 0x45 or data[at] >= 0xC0:
        raise DecodeError("a map key is missing, or of a compound type")


def _array_constructor(data: bytes, at: int, after: int, count: int, budget: DecodeBudget) -> tuple[object, int, int]:
    """Descriptor (None if there is none), element constructor, and where the elements begin."""
    descriptor: object = None
    if at < after and data[at] == 0:
        descriptor, at = decode_value(data, at + 1, after, budget)
        if descriptor is None:
            raise DecodeError("an array described by null")
    if at >= after:
        raise DecodeError("an array without a constructor")
    code = data[at]
    at += 1
    if WIDTHS[code] == UNKNOWN:
        raise DecodeError("an array of an unknown or twice described type")
    if code & 0xF0 == 0x40:
        if count > ZERO_WIDTH_COUNT_MAX:
            raise DecodeError("an array with too many elements of no width")
    elif count > after - at:
        raise DecodeError("an array is shorter than its count")
    budget.charge(count)
    return descriptor, code, at


def _decode_array(data: bytes, at: int, after: int, count: int, budget: DecodeBudget) -> Array:
    descriptor, code, at = _array_constructor(data, at, after, count, budget)
    items: list[object] = []
    for _ in range(count):
        item, at = _decode_body(data, code, at, after, budget)
        items.append(item)
    if at != after:
        raise DecodeError("an array is longer than its elements")
    return Array(code, items, descriptor)


# --- skipping: the same rules without making values ------------------------------------------------------------------


def skip_value(data: bytes, at: int, end: int, budget: DecodeBudget) -> int:
    """Check the value that begins at `at` in full and say where it ends."""
    if at >= end:
        raise DecodeError("a value is missing")
    code = data[at]
    if code == SHORT_TEXT and at + 1 < end and at + 2 + data[at + 1] <= end:
        after = at + 2 + data[at + 1]
        _text(data, at + 2, after)
        return after
    if code != 0:
        return _skip_body(data, code, at + 1, end, budget)
    budget.enter()
    at = skip_value(data, at + 1, end, budget)
    at = skip_value(data, at, end, budget)
    budget.leave()
    return at


def _skip_body(data: bytes, code: int, at: int, end: int, budget: DecodeBudget) -> int:
    if code < 0xA0:
        width = WIDTHS[code]
        if width == UNKNOWN:
            raise DecodeError(f"unknown constructor 0x{code:02x}")
        after = at + width
        if after > end:
            raise DecodeError("a value is cut short")
        if code == 0x56 and data[at] > 1:
            raise DecodeError("a boolean is neither 0 nor 1")
        if code == 0x73:
            _checked_char(data, at)
        return after
    if code < 0xC0:
        at, after = _variable_span(data, code, at, end)
        if code != 0xA0 and code != 0xB0:
            _decode_variable(data, code, at, after)
        return after
    at, after, count = _compound_span(data, code, at, end)
    budget.enter()
    if code == 0xC0 or code == 0xD0:
        _skip_list(data, at, after, count, budget)
    elif code == 0xC1 or code == 0xD1:
        _decode_map(data, at, after, count, budget)  # keys must be compared
    else:
        _skip_array(data, at, after, count, budget)
    budget.leave()
    return after


def _skip_list(data: bytes, at: int, after: int, count: int, budget: DecodeBudget) -> None:
    if count > after - at:
        raise DecodeError("a list is shorter than its count")
    budget.charge(count)
    for _ in range(count):
        at = skip_value(data, at, after, budget)
    if at != after:
        raise DecodeError("a list is longer than its elements")


def _skip_array(data: bytes, at: int, after: int, count: int, budget: DecodeBudget) -> None:
    _, code, at = _array_constructor(data, at, after, count, budget)
    for _ in range(count):
        at = _skip_body(data, code, at, after, budget)
    if at != after:
        raise DecodeError("an array is longer than its elements")
