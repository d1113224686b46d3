"""LIKE: `%` any characters, `_` any one, an escape character before either. Case matters.

A pattern is cut at its `%` into pieces, and each piece is looked for once, leftmost, behind the one before. A piece
without `_` is found by `str.find`; one with it by the longest text in it, and where that stands too often by the
places of its characters in the text (model/text_planes.py): one operation on integers for each of them. A pattern has
at most 1,024 characters, whoever wrote it, and keeps nothing of a text.
"""

from typing import Final

from spillway.model.rules import EXPRESSION_CHARS_MAX, FilterError
from spillway.model.text_planes import AND_GRAINS, GRAINS_PER_STEP, TextMemory

PATTERN_CHARS_MAX: Final = EXPRESSION_CHARS_MAX
CANDIDATES_MAX: Final = 16  # places where the text of a piece stands and the piece does not, before all are looked at
LOOKS_PER_COUNT: Final = 32  # characters of a piece, between two counts of the places that are left for it
PLACES_LEFT_MAX: Final = 32  # so few are looked at one by one: or the places of a thousand characters were to be found
# What it is to be matched, in the grains of model/text_planes.py, at worst.
FIND_CHAR_GRAINS: Final = 32  # a character that `str.find` passes, looking for one
FIND_GRAINS: Final = 128  # looking for several
PIECE_GRAINS: Final = 4_096  # a piece, wherever it is
COMPARE_GRAINS: Final = 1_400  # a character of a piece, compared by itself
# `str.find` compares up to the whole of what it looks for at each place, unless both are long.
SHORT_TEXT: Final = 2_500
SHORT_FOUND: Final = 100
MIDDLE_TEXT: Final = 30_000
FIND_AGAIN_GRAINS: Final = 8


def find_grains(found: int, passed: int, length: int) -> int:
    """What `str.find` may have done to look for `found` characters in `length` when it passed `passed`."""
    if found == 1:
        return passed * FIND_CHAR_GRAINS
    if length < SHORT_TEXT or (found < SHORT_FOUND and length < MIDDLE_TEXT):
        return passed * (FIND_GRAINS + found * FIND_AGAIN_GRAINS)
    return passed * FIND_GRAINS


class Piece:
    """What stands between two `%`: characters, some of them any."""

    def __init__(self, chars: list[str], is_any: list[bool]) -> None:
        self.length = len(chars)
        self.text = "".join(chars)
        self.is_any = is_any
        self.is_plain = True not in is_any
        self.is_all_any = False not in is_any
        self.grains = 0  # of work since it was last zero
        self.anchor = ""  # the longest text in it
        self.anchor_at = 0
        self._find_anchor()
        self.fixed: list[int] = []  # where its characters are, different ones first; when they are needed

    def _find_anchor(self) -> None:
        begun = 0
        for index in range(self.length + 1):
            if index == self.length or self.is_any[index]:
                if index - begun > len(self.anchor):
                    self.anchor = self.text[begun:index]
                    self.anchor_at = begun
                begun = index + 1

    def _find_fixed(self) -> None:
        seen: set[str] = set()
        again: list[int] = []
        for index in range(self.length):
            if not self.is_any[index]:
                char = self.text[index]
                if char in seen:
                    again.append(index)
                else:
                    seen.add(char)
                    self.fixed.append(index)
        self.fixed.extend(again)

    def stands_at(self, text: str, at: int) -> bool:
        if self.is_plain:
            return text.startswith(self.text, at)
        if at + self.length > len(text):
            return False
        for index in range(self.length):
            if not self.is_any[index] and text[at + index] != self.text[index]:
                self.grains += index * COMPARE_GRAINS
                return False
        self.grains += self.length * COMPARE_GRAINS
        return True

    def find(self, text: str, start: int, end: int, memory: TextMemory) -> int:
        """Where it first stands between the two, or -1."""
        if self.is_plain:
            return self._find_text(self.text, text, start, end)
        if self.is_all_any:
            return start if start + self.length <= end else -1
        for _ in range(CANDIDATES_MAX):
            at = self._find_text(self.anchor, text, start + self.anchor_at, end)
            if at < 0:
                return -1
            start = at - self.anchor_at
            if start + self.length > end:
                return -1
            if self.stands_at(text, start):
                return start
            start += 1
        return self._find_by_places(text, start, end, memory)

    def _find_text(self, wanted: str, text: str, start: int, end: int) -> int:
        found = text.find(wanted, start, end)
        self.grains += find_grains(len(wanted), (end if found < 0 else found) - start, end - start)
        return found

    def _find_by_places(self, text: str, start: int, end: int, memory: TextMemory) -> int:
        """Where each of its characters has its own at the right distance: all at once, a bit for each start."""
        if not self.fixed:
            self._find_fixed()
        planes = memory.planes_of(text)
        places = planes.all
        checked = 0
        for index in self.fixed:
            places &= planes.places_of(self.text[index]) >> (start + index)
            checked += 1
            if not places or (checked % LOOKS_PER_COUNT == 0 and places.bit_count() <= PLACES_LEFT_MAX):
                break
        self.grains += planes.drain_grains() + checked * (len(text) - start + AND_GRAINS)
        while places:
            found = start + (places & -places).bit_length() - 1
            if found + self.length > end:
                return -1
            if checked == len(self.fixed) or self.stands_at(text, found):
                return found
            self.grains += 4 * (len(text) - start + AND_GRAINS)
            places &= places - 1
        return -1


class LikePattern:
    """A pattern ready to be matched. Raises FilterError if it is none."""

    def __init__(self, pattern: str, escape: str) -> None:
        """`escape` is empty where there is none."""
        if len(pattern) > PATTERN_CHARS_MAX:
            raise FilterError(
                f"A LIKE pattern has at most {PATTERN_CHARS_MAX} characters, this one has {len(pattern)}."
            )
        if len(escape) > 1:
            raise FilterError("The ESCAPE character of LIKE is a string of one character.")
        self.pattern = pattern
        self.escape = escape
        self.pieces: list[Piece] = []
        self.is_open_at_start = False  # begins with %
        self.is_open_at_end = False
        self.has_percent = False
        self.work = 0  # of the last match, in steps of model/limits.py
        self.steps = 0  # characters that the last match looked at, for the test that it is linear
        self._cut()

    def _cut(self) -> None:
        chars: list[str] = []
        is_any: list[bool] = []
        index = 0
        while index < len(self.pattern):
            char = self.pattern[index]
            if char == self.escape:
                index += 1
                if index == len(self.pattern):
                    raise FilterError(f"A LIKE pattern must not end with its ESCAPE character '{char}'.")
                chars.append(self.pattern[index])
                is_any.append(False)
            elif char == "%":
                if not chars and not self.pieces:
                    self.is_open_at_start = True
                if chars:
                    self.pieces.append(Piece(chars, is_any))
                    chars = []
                    is_any = []
                self.has_percent = True
            else:
                chars.append(char)
                is_any.append(char == "_")
            index += 1
        self.is_open_at_end = self.has_percent and not chars
        if chars:
            self.pieces.append(Piece(chars, is_any))

    def matches(self, text: str, memory: TextMemory) -> bool:
        pieces = self.pieces
        end = len(text)
        self.steps = 0
        self.work = 0
        if not self.has_percent:
            self.steps = end
            if not pieces:
                return end == 0
            return pieces[0].length == end and self._stands(pieces[0], text, 0)
        first = 0
        last = len(pieces)
        at = 0
        if not self.is_open_at_start:
            at = pieces[0].length
            first = 1
            self.steps += at
            if not self._stands(pieces[0], text, 0):
                return False
        if not self.is_open_at_end:
            last -= 1
            end -= pieces[last].length
            self.steps += pieces[last].length
            if end < at or not self._stands(pieces[last], text, end):
                return False
        return first == last or self._finds_all(text, first, last, at, end, memory)

    def _stands(self, piece: Piece, text: str, at: int) -> bool:
        piece.grains = 0
        is_there = piece.stands_at(text, at)
        self.work += piece.grains // GRAINS_PER_STEP
        return is_there

    def _finds_all(self, text: str, first: int, last: int, at: int, end: int, memory: TextMemory) -> bool:
        """The pieces `first` to `last`, one after the other, between two places of the text."""
        grains = 0
        is_there = True
        for index in range(first, last):
            piece = self.pieces[index]
            piece.grains = PIECE_GRAINS
            found = piece.find(text, at, end, memory)
            grains += piece.grains
            if found < 0:
                self.steps += end - at
                is_there = False
                break
            self.steps += found + piece.length - at
            at = found + piece.length
        self.work += grains // GRAINS_PER_STEP
        return is_there
