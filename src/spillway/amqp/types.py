"""Python values that remember their AMQP type.

Left uncompiled: mypyc cannot compile subclasses of int, str and bytes. What has one obvious Python type needs no
wrapper: None, bool, `int` for long, `float` for double, `str` for string, `bytes` for binary, `list`, `dict`,
`uuid.UUID`. The wrappers compare equal to plain values, so `Symbol("a") == "a"`.
"""

from collections.abc import Iterable
from typing import Final


class UByte(int):
    """ubyte: 0 to 2**8 - 1."""


class UShort(int):
    """ushort: 0 to 2**16 - 1."""


class UInt(int):
    """uint: 0 to 2**32 - 1."""


class ULong(int):
    """ulong: 0 to 2**64 - 1."""


class Byte(int):
    """byte: -2**7 to 2**7 - 1."""


class Short(int):
    """short: -2**15 to 2**15 - 1."""


class Int(int):
    """int: -2**31 to 2**31 - 1."""


class Timestamp(int):
    """timestamp: milliseconds since the Unix epoch, may be negative."""


class Float(float):
    """float: IEEE 754 binary32."""


class Char(str):
    """char: one Unicode character."""


class Symbol(str):
    """symbol: ASCII text from a constrained domain."""


class Decimal32(bytes):
    """decimal32, four bytes as on the wire."""


class Decimal64(bytes):
    """decimal64, eight bytes as on the wire."""


class Decimal128(bytes):
    """decimal128, sixteen bytes as on the wire."""


class Array(list[object]):
    """An array: elements of one type. `code` is their constructor, `descriptor` the one they share if described.

    The encoder widens a code that is too narrow for an element (sym8 to sym32), it never changes the type.
    """

    def __init__(self, code: int, items: Iterable[object] = (), descriptor: object = None) -> None:
        super().__init__(items)
        self.code = code
        self.descriptor = descriptor

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Array) and (self.code, self.descriptor) != (other.code, other.descriptor):
            return False
        return super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __repr__(self) -> str:
        return f"Array(0x{self.code:02x}, {super().__repr__()}, {self.descriptor!r})"


class Described:
    """A value with a descriptor that no room of ours claims, such as a source filter."""

    def __init__(self, descriptor: object, value: object) -> None:
        self.descriptor = descriptor
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Described) and self.descriptor == other.descriptor and self.value == other.value

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Described({self.descriptor!r}, {self.value!r})"


SYMBOLS: Final = 0xA3  # constructors for the arrays we make ourselves
STRINGS: Final = 0xA1
LONGS: Final = 0x81
UUIDS: Final = 0x98


def symbols(names: Iterable[str]) -> Array:
    """An array of symbols: how a field that may hold several is written."""
    return Array(SYMBOLS, [Symbol(name) for name in names])
