"""Big-endian bytes of numbers that rise by little from one to the next: ids, sequence numbers, times, sizes.

Writing a number costs more than copying bytes that are there. Of numbers that rise, all but the last byte stays the
same for a while: it is kept, and the last byte comes out of a table. Both go as they are into one join of a frame's
pieces.
"""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mypy_extensions import i64  # an int where it is not compiled

LAST_BYTES: Final[list[bytes]] = [bytes([value]) for value in range(256)]


class Rising:
    """Numbers of `size_bytes` bytes, none below zero: `upper(number)`, then `LAST_BYTES[number & 0xFF]`."""

    def __init__(self, size_bytes: int) -> None:
        self.upper_size = size_bytes - 1
        self.kept: i64 = -1
        self.kept_bytes = b""

    def upper(self, number: "i64") -> bytes:
        """All but the last byte of the number."""
        upper: i64 = number >> 8
        if upper != self.kept:
            self.kept_bytes = int(upper).to_bytes(self.upper_size, "big")
            self.kept = upper
        return self.kept_bytes
