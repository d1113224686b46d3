"""Where the characters of a text stand, as the bits of integers: bit i is about character i.

A plane has one bit of each character's number. From the planes it takes seven to twenty-one operations on whole
integers to see where any one character stands, however many different ones there are; Python does these a word at a
time, and goes through 31,000 characters in less than a microsecond.
"""

from typing import Final

PLACES_MAX: Final = 64  # characters of a text whose places are kept; those of others are worked out again
TEXT_CHARS_KEPT_MAX: Final = 256 * 1_024  # of all texts with planes; then all are forgotten
ANSWERS_MAX: Final = 64

# Work is counted in grains; a step of model/limits.py, about a microsecond, has so many. Measured, compiled.
GRAINS_PER_STEP: Final = 32_768
PLANE_GRAINS: Final = 72  # a character of a text, made into one bit
AND_GRAINS: Final = 4_096  # a shift and an operation on integers, beside a grain a bit

_THIRD_BYTE_BITS: Final = 5  # of a character's number, which has 21


def _digits_of(bit: int) -> bytes:
    """A table for `bytes.translate`: whether the bit is set in a byte, as a binary digit."""
    return bytes([ord("1") if value >> bit & 1 else ord("0") for value in range(256)])


_DIGITS: Final = [_digits_of(bit) for bit in range(8)]


class TextPlanes:
    """The planes of one text, which is not empty."""

    def __init__(self, text: str) -> None:
        self.length = len(text)
        self.all: int = (1 << self.length) - 1
        self.set: list[int] = []  # by bit of a character's number: the places where it is set
        self.clear: list[int] = []  # and where it is not
        self.places: dict[str, int] = {}
        self.grains = 0  # of work since they were last taken
        if text.isascii():
            self._add(text.encode("ascii")[::-1], 7)
            return
        encoded = text.encode("utf-32-le", "surrogatepass")
        self._add(encoded[-4::-4], 8)  # the first byte of the last character comes first: its digit is the highest
        second = encoded[-3::-4]
        third = encoded[-2::-4]
        if third.strip(b"\0"):
            self._add(second, 8)
            self._add(third, _THIRD_BYTE_BITS)
        elif second.strip(b"\0"):
            self._add(second, 8)

    def _add(self, reversed_bytes: bytes, bits: int) -> None:
        for bit in range(bits):
            plane = int(reversed_bytes.translate(_DIGITS[bit]), 2)
            self.set.append(plane)
            self.clear.append(self.all ^ plane)
        self.grains += bits * (self.length * PLANE_GRAINS + AND_GRAINS)

    def places_of(self, char: str) -> int:
        """Bit i is set if the text has this character at i."""
        known = self.places.get(char)
        if known is not None:
            return known
        number = ord(char)
        bits = len(self.set)
        places = 0
        if number >> bits == 0:
            places = self.all
            for bit in range(bits):
                places &= self.set[bit] if number >> bit & 1 else self.clear[bit]
            self.grains += bits * (self.length + 2 * AND_GRAINS) // 4
        if len(self.places) < PLACES_MAX:
            self.places[char] = places
        return places

    def drain_grains(self) -> int:
        grains = self.grains
        self.grains = 0
        return grains


class TextMemory:
    """What was found out about the texts of one message, while the rules of a topic are tried on it."""

    def __init__(self) -> None:
        self.planes: dict[str, TextPlanes] = {}
        self.chars = 0
        self.last_text = ""
        self.last: TextPlanes | None = None
        self.answers: dict[tuple[str, str, str], bool] = {}  # by text, pattern, escape character: whether LIKE

    def planes_of(self, text: str) -> TextPlanes:
        """The planes that were asked for last are there at once, also of a text that takes long to look up."""
        last = self.last
        if last is not None and text is self.last_text:
            return last
        planes = self.planes.get(text)
        if planes is None:
            if self.chars + len(text) > TEXT_CHARS_KEPT_MAX:
                self.planes.clear()
                self.chars = 0
            planes = TextPlanes(text)
            self.planes[text] = planes
            self.chars += len(text)
        self.last_text = text
        self.last = planes
        return planes

    def store_answer(self, text: str, pattern: str, escape: str, is_like: bool) -> None:
        if len(self.answers) >= ANSWERS_MAX:
            self.answers.clear()
        self.answers[(text, pattern, escape)] = is_like
