"""LIKE: `%` any characters, `_` any one, an escape character before either. Case matters.

Linear in the text: a pattern is cut at its `%` into pieces, and each piece is looked for once, leftmost, behind the one
before. A piece without `_` is found by `str.find`; one with it by the longest text in it, and where that stands too
often by shift-and, a bit per character of the piece, which never looks at a character of the text twice. A pattern has
at most 1,024 characters, whoever wrote it.
"""

from typing import Final

from spillway.model.rules import EXPRESSION_CHARS_MAX, FilterError

PATTERN_CHARS_MAX: Final = EXPRESSION_CHARS_MAX
CANDIDATES_MAX: Final = 16  # places where the text of a piece stands and the piece does not, before shift-and
FOUND_CHARS_PER_STEP: Final = 1_024  # `str.find` is so quick; steps are those of model/limits.py
SHIFTED_CHARS_PER_STEP: Final = 32


class Piece:
    """What stands between two `%`: characters, some of them any."""

    def __init__(self, chars: list[str], is_any: list[bool]) -> None:
        self.length = len(chars)
        self.text = "".join(chars)
        self.is_any = is_any
        self.is_plain = True not in is_any
        self.is_all_any = False not in is_any
        self.work = 0  # of the last `find`, in steps
        self.runs: list[str] = []  # the texts in it
        self.anchor = ""  # the longest of them
        self.anchor_at = 0
        self._find_anchor()
        self.masks: dict[str, int] = {}
        self.mask_of_any = 0
        for index in range(self.length):
            if is_any[index]:
                self.mask_of_any |= 1 << index

    def _find_anchor(self) -> None:
        begun = 0
        for index in range(self.length + 1):
            if index == self.length or self.is_any[index]:
                if index > begun and self.text[begun:index] not in self.runs:
                    self.runs.append(self.text[begun:index])
                if index - begun > len(self.anchor):
                    self.anchor = self.text[begun:index]
                    self.anchor_at = begun
                begun = index + 1

    def _fill_masks(self) -> None:
        for index in range(self.length):
            if not self.is_any[index]:
                char = self.text[index]
                self.masks[char] = self.masks.get(char, self.mask_of_any) | (1 << index)

    def stands_at(self, text: str, at: int) -> bool:
        if self.is_plain:
            return text.startswith(self.text, at)
        if at + self.length > len(text):
            return False
        for index in range(self.length):
            if not self.is_any[index] and text[at + index] != self.text[index]:
                return False
        return True

    def find(self, text: str, start: int, end: int) -> int:
        """Where it first stands between the two, or -1."""
        self.work = (end - start) // FOUND_CHARS_PER_STEP
        if self.is_plain:
            return text.find(self.text, start, end)
        if self.is_all_any:
            return start if start + self.length <= end else -1
        for run in self.runs:  # one that is nowhere, as a whole, is quickly seen
            if text.find(run, start, end) < 0:
                return -1
        for _ in range(CANDIDATES_MAX):
            at = text.find(self.anchor, start + self.anchor_at, end)
            if at < 0:
                return -1
            start = at - self.anchor_at
            if start + self.length > end:
                return -1
            if self.stands_at(text, start):
                return start
            start += 1
        return self._shift_through(text, start, end)

    def _shift_through(self, text: str, start: int, end: int) -> int:
        self.work += (end - start) // SHIFTED_CHARS_PER_STEP
        if not self.masks:
            self._fill_masks()
        goal = 1 << (self.length - 1)
        state = 0
        for index in range(start, end):
            state = ((state << 1) | 1) & self.masks.get(text[index], self.mask_of_any)
            if state & goal:
                return index - self.length + 1
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

    def matches(self, text: str) -> bool:
        pieces = self.pieces
        end = len(text)
        self.steps = 0
        self.work = 0
        if not self.has_percent:
            self.steps = end
            if not pieces:
                return end == 0
            return pieces[0].length == end and pieces[0].stands_at(text, 0)
        first = 0
        last = len(pieces)
        at = 0
        if not self.is_open_at_start:
            at = pieces[0].length
            first = 1
            self.steps += at
            if not pieces[0].stands_at(text, 0):
                return False
        if not self.is_open_at_end:
            last -= 1
            end -= pieces[last].length
            self.steps += pieces[last].length
            if end < at or not pieces[last].stands_at(text, end):
                return False
        return self._finds_all(text, first, last, at, end)

    def _finds_all(self, text: str, first: int, last: int, at: int, end: int) -> bool:
        """The pieces `first` to `last`, one after the other, between two places of the text."""
        for index in range(first, last):
            piece = self.pieces[index]
            found = piece.find(text, at, end)
            self.work += piece.work
            if found < 0:
                self.steps += end - at
                return False
            self.steps += found + piece.length - at
            at = found + piece.length
        return True
