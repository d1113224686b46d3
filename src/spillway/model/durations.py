"""Durations as ISO 8601 and .NET write them: the one parser, whoever asks."""

from typing import Final

DAY_MS: Final = 86_400_000
# .NET's longest time span. Python sends a little less back on update (docs/wire.md, "Descriptions and feeds").
FOR_EVER: Final = "P10675199DT2H48M5.4775807S"
FOR_EVER_DAYS: Final = 10_675_199
# Letters of the parts before and behind the T, in order. A year and a month are as long as .NET takes them for.
_DATE_PARTS_MS: Final[dict[str, int]] = {"Y": 365 * DAY_MS, "M": 30 * DAY_MS, "W": 7 * DAY_MS, "D": DAY_MS}
_TIME_PARTS_MS: Final[dict[str, int]] = {"H": 3_600_000, "M": 60_000, "S": 1_000}
_DIGITS_MAX: Final = 15


def parse_duration_ms(text: str) -> int:
    """Milliseconds, parts of one dropped; negative with a minus in front. ValueError where it is no duration."""
    sign = -1 if text.startswith("-") else 1
    rest = text[1:] if sign < 0 else text
    if not rest.startswith("P") or rest == "P" or rest.endswith("T"):
        raise ValueError(text)
    days, _, time = rest[1:].partition("T")
    return sign * (_parts_ms(days, _DATE_PARTS_MS, "YMWD") + _parts_ms(time, _TIME_PARTS_MS, "HMS"))


def _parts_ms(text: str, lengths_ms: dict[str, int], order: str) -> int:
    """`1H30M`: digits and a letter each, in this order; the seconds may have a fraction."""
    total = 0
    begin = 0
    allowed = order
    for index, char in enumerate(text):
        if char not in lengths_ms:
            continue
        whole, dot, part = text[begin:index].partition(".")
        if char not in allowed or not _is_digits(whole):
            raise ValueError(text)
        if dot and (char != "S" or not part.isascii() or not part.isdigit()):
            raise ValueError(text)
        total += int(whole) * lengths_ms[char] + (int((part + "000")[:3]) if dot else 0)
        allowed = allowed[allowed.index(char) + 1 :]
        begin = index + 1
    if begin != len(text):
        raise ValueError(text)
    return total


def _is_digits(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX
