"""AMQP values to bytes: each in the smallest encoding of its type.

What cannot be said raises ValueError or TypeError: that is our own mistake or our caller's, never a peer's.
"""

import struct
import uuid
from typing import ClassVar, Final

from spillway.amqp.errors import AmqpError
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

_U32: Final = struct.Struct(">I")
_U32_U32: Final = struct.Struct(">II")
_F32: Final = struct.Struct(">f")
_F64: Final = struct.Struct(">d")

# What a constructor says about the bytes behind it [1.2, 1.6]: a fixed width, or one of these.
UNKNOWN: Final = 255
VARIABLE: Final = 254
COMPOUND: Final = 253


def _make_widths() -> bytes:
    """Width by constructor: those of 0x40 to 0x9F have it in their upper half."""
    widths = [UNKNOWN] * 256
    by_half = [0, 1, 2, 4, 8, 16]
    for code in (
        b"\x40\x41\x42\x43\x44\x45\x50\x51\x52\x53\x54\x55\x56\x60\x61\x70\x71\x72\x73\x74\x80\x81\x82\x83\x84\x94\x98"
    ):
        widths[code] = by_half[(code >> 4) - 4]
    for code in b"\xa0\xa1\xa3\xb0\xb1\xb3":
        widths[code] = VARIABLE
    for code in b"\xc0\xc1\xd0\xd1\xe0\xf0":
        widths[code] = COMPOUND
    return bytes(widths)


WIDTHS: Final[bytes] = _make_widths()


class Composite:
    """A described list whose descriptor we know: a performative, a terminus, a delivery state."""

    code: ClassVar[int] = 0

    def fields(self) -> list[object]:
        """Every field in the order of the specification, in its AMQP type."""
        return []

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Composite) and self.code == other.code and self.fields() == other.fields()

    def __hash__(self) -> int:
        return hash(self.code)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join([repr(field) for field in self.fields()])})"


# --- writing ---------------------------------------------------------------------------------------------------------


def encode(value: object) -> bytes:
    """One value by itself."""
    out = bytearray()
    encode_value(out, value)
    return bytes(out)


def encode_value(out: bytearray, value: object) -> None:
    """Append `value` in the smallest encoding of its AMQP type. What AMQP cannot say raises ValueError or TypeError."""
    if value is None:
        out.append(0x40)
    elif value is True:
        out.append(0x41)
    elif value is False:
        out.append(0x42)
    elif isinstance(value, str):
        _encode_text(out, value)
    elif isinstance(value, (int, Float)):
        _encode_number_of_type(out, value)
    elif isinstance(value, Composite):
        encode_composite(out, value.code, value.fields())
    elif isinstance(value, dict):
        _encode_compound(out, 0xC1, _map_payload(value), 2 * len(value))
    elif isinstance(value, Array):
        _encode_compound(out, 0xE0, _array_payload(value), len(value))
    elif isinstance(value, list):
        if value:
            _encode_compound(out, 0xC0, _list_payload(value), len(value))
        else:
            out.append(0x45)
    elif isinstance(value, bytes):
        _encode_bytes(out, value)
    elif isinstance(value, float):
        out.append(0x82)
        out += _F64.pack(value)
    elif isinstance(value, uuid.UUID):
        out.append(0x98)
        out += value.bytes
    elif isinstance(value, Described):
        out.append(0x00)
        encode_value(out, value.descriptor)
        encode_value(out, value.value)
    elif isinstance(value, AmqpError):
        encode_composite(out, AmqpError.code, [Symbol(value.condition), value.description, value.info])
    else:
        raise TypeError(f"no AMQP type for {type(value).__name__}")


def encode_composite(out: bytearray, code: int, fields: list[object]) -> None:
    """A described list; the descriptor always as smallulong, which is all that the Python SDK can read."""
    out.append(0x00)
    out.append(0x53)
    out.append(code)
    encode_value(out, fields)


def _encode_text(out: bytearray, value: str) -> None:
    if isinstance(value, Symbol):
        _encode_variable(out, 0xA3, value.encode("ascii"))
    elif isinstance(value, Char):
        out.append(0x73)
        out += _char_octets(value)
    else:
        _encode_variable(out, 0xA1, value.encode("utf-8"))


def _char_octets(value: str) -> bytes:
    if len(value) != 1:
        raise ValueError("a char is one character")
    return value.encode("utf-32-be")  # refuses surrogates


def _encode_bytes(out: bytearray, value: bytes) -> None:
    if isinstance(value, Decimal32):
        out.append(0x74)
        out += _sized(value, 4)
    elif isinstance(value, Decimal64):
        out.append(0x84)
        out += _sized(value, 8)
    elif isinstance(value, Decimal128):
        out.append(0x94)
        out += _sized(value, 16)
    else:
        _encode_variable(out, 0xA0, value)


def _sized(value: bytes, width: int) -> bytes:
    if len(value) != width:
        raise ValueError(f"expected {width} bytes, not {len(value)}")
    return value


def _encode_variable(out: bytearray, code: int, octets: bytes) -> None:
    size = len(octets)
    if size < 256:
        out.append(code)
        out.append(size)
    else:
        out.append(code + 0x10)
        out += _U32.pack(size)
    out += octets


def _encode_number_of_type(out: bytearray, value: object) -> None:
    """`int` itself is long; its subclasses say which other type they are.

    `value` is declared as an object because compiled code would unbox an int, and its class with it.
    """
    if isinstance(value, UInt):
        _encode_unsigned(out, 0x43, 0x52, 0x70, int(value))
    elif isinstance(value, ULong):
        _encode_unsigned(out, 0x44, 0x53, 0x80, int(value))
    elif isinstance(value, Timestamp):
        _encode_number(out, 0x83, int(value))
    elif isinstance(value, Int):
        _encode_number(out, 0x54 if -128 <= value < 128 else 0x71, int(value))
    elif isinstance(value, UByte):
        _encode_number(out, 0x50, int(value))
    elif isinstance(value, UShort):
        _encode_number(out, 0x60, int(value))
    elif isinstance(value, Byte):
        _encode_number(out, 0x51, int(value))
    elif isinstance(value, Short):
        _encode_number(out, 0x61, int(value))
    elif isinstance(value, Float):
        out.append(0x72)
        out += _F32.pack(value)
    elif isinstance(value, int):
        _encode_number(out, 0x55 if -128 <= value < 128 else 0x81, value)


def _encode_unsigned(out: bytearray, zero: int, small: int, wide: int, value: int) -> None:
    if value == 0:
        out.append(zero)
    elif 0 < value < 256:
        out.append(small)
        out.append(value)
    else:
        _encode_number(out, wide, value)


def _encode_number(out: bytearray, code: int, value: int) -> None:
    out.append(code)
    if not _put_number(out, code, value):
        raise ValueError(f"{value} is out of range for constructor 0x{code:02x}")


_SIGNED: Final[frozenset[int]] = frozenset(b"\x51\x54\x55\x61\x71\x81\x83")
_NUMBERS: Final[frozenset[int]] = frozenset(b"\x50\x51\x52\x53\x54\x55\x60\x61\x70\x71\x80\x81\x83")


def _put_number(out: bytearray, code: int, value: int) -> bool:
    """False, and nothing written, when the width of `code` is too small for `value`."""
    width = WIDTHS[code]
    signed = code in _SIGNED
    limit = 1 << (8 * width - 1 if signed else 8 * width)
    if value >= limit or value < (-limit if signed else 0):
        return False
    out += value.to_bytes(width, "big", signed=signed)
    return True


def _encode_compound(out: bytearray, code: int, payload: bytearray, count: int) -> None:
    """`code` is the narrow constructor; the wide one is taken when size or count does not fit a byte."""
    narrow = len(payload) < 255 and count < 256
    out.append(code if narrow else code + 0x10)
    _put_compound(out, narrow, payload, count)


def _put_compound(out: bytearray, narrow: bool, payload: bytearray, count: int) -> None:
    if narrow:
        out.append(len(payload) + 1)
        out.append(count)
    else:
        out += _U32_U32.pack(len(payload) + 4, count)
    out += payload


def _list_payload(items: list[object]) -> bytearray:
    payload = bytearray()
    for item in items:
        encode_value(payload, item)
    return payload


def _map_payload(pairs: dict[object, object]) -> bytearray:
    payload = bytearray()
    for key, value in pairs.items():
        encode_value(payload, key)
        encode_value(payload, value)
    return payload


# --- writing arrays: elements stand without constructors, so one code must fit all -----------------------------------

_WIDER: Final[dict[int, int]] = {
    0x41: 0x56,
    0x42: 0x56,
    0x43: 0x70,
    0x44: 0x80,
    0x45: 0xD0,
    0x52: 0x70,
    0x53: 0x80,
    0x54: 0x71,
    0x55: 0x81,
    0xA0: 0xB0,
    0xA1: 0xB1,
    0xA3: 0xB3,
    0xC0: 0xD0,
    0xC1: 0xD1,
    0xE0: 0xF0,
}


def _array_payload(array: Array) -> bytearray:
    code: int = array.code
    elements = bytearray()
    if not _put_elements(elements, code, array):
        elements = bytearray()
        code = _WIDER.get(code, code)
        if not _put_elements(elements, code, array):
            raise ValueError(f"an element does not fit the array's constructor 0x{array.code:02x}")
    payload = bytearray()
    if array.descriptor is not None:
        payload.append(0x00)
        encode_value(payload, array.descriptor)
    payload.append(code)
    payload += elements
    return payload


def _put_elements(out: bytearray, code: int, items: list[object]) -> bool:
    fits = True
    for item in items:
        fits = fits and _put_element(out, code, item)
    return fits


def _put_element(out: bytearray, code: int, value: object) -> bool:
    """Append `value` without constructor. False when it does not fit `code`."""
    if code < 0x46:
        return _is_zero_width(code, value)
    if code == 0x56:
        out.append(1 if value else 0)
        return isinstance(value, bool)
    if isinstance(value, int):
        return code in _NUMBERS and _put_number(out, code, value)
    if isinstance(value, str):
        if code == 0x73:
            out += _char_octets(value)
            return True
        if code == 0xA3 or code == 0xB3:
            return _put_octets(out, code, value.encode("ascii"))
        return (code == 0xA1 or code == 0xB1) and _put_octets(out, code, value.encode("utf-8"))
    if isinstance(value, bytes):
        if code == 0x74 or code == 0x84 or code == 0x94:
            out += _sized(value, WIDTHS[code])
            return True
        return (code == 0xA0 or code == 0xB0) and _put_octets(out, code, value)
    if isinstance(value, float):
        out += _F32.pack(value) if code == 0x72 else _F64.pack(value)
        return code == 0x72 or code == 0x82
    if isinstance(value, uuid.UUID):
        out += value.bytes
        return code == 0x98
    return _put_compound_element(out, code, value)


def _is_zero_width(code: int, value: object) -> bool:
    if code == 0x40:
        return value is None
    if code == 0x41:
        return value is True
    if code == 0x42:
        return value is False
    if code == 0x45:
        return isinstance(value, list) and not value
    return isinstance(value, int) and value == 0


def _put_octets(out: bytearray, code: int, octets: bytes) -> bool:
    size = len(octets)
    if code < 0xB0:
        if size > 255:
            return False
        out.append(size)
    else:
        out += _U32.pack(size)
    out += octets
    return True


def _put_compound_element(out: bytearray, code: int, value: object) -> bool:
    if isinstance(value, dict) and code & 0x0F == 1:
        payload, count = _map_payload(value), 2 * len(value)
    elif isinstance(value, Array) and code >= 0xE0:
        payload, count = _array_payload(value), len(value)
    elif isinstance(value, list) and (code == 0xC0 or code == 0xD0):
        payload, count = _list_payload(value), len(value)
    else:
        return False
    narrow = code in (0xC0, 0xC1, 0xE0)
    if narrow and (len(payload) >= 255 or count > 255):
        return False
    _put_compound(out, narrow, payload, count)
    return True
