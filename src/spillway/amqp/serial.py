"""32-bit serial numbers [2.8.10, RFC 1982]: delivery ids, transfer ids and delivery counts wrap around."""

from typing import Final

MODULUS: Final = 1 << 32
MASK: Final = MODULUS - 1
HALF: Final = 1 << 31


def serial_add(serial: int, count: int) -> int:
    """The serial `count` steps on; `count` may be negative."""
    return (serial + count) & MASK


def serial_difference(left: int, right: int) -> int:
    """Steps from `right` to `left`, between -2**31 and 2**31 - 1: positive when `left` is the later one."""
    steps = (left - right) & MASK
    return steps - MODULUS if steps >= HALF else steps
