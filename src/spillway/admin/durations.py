"""Times and durations as the administration API writes them: ISO 8601, with .NET's idea of "for ever"."""

from datetime import UTC, datetime, timedelta
from typing import Final

from spillway.model.entity import FOR_EVER_MS

FOR_EVER: Final = "P10675199DT2H48M5.4775807S"  # .NET's longest time span
NEVER: Final = "0001-01-01T00:00:00"  # .NET's earliest time
DAY_MS: Final = 86_400_000
# The Python SDK sends a little less than for ever back on update (wire-contract 11.3).
FOR_EVER_DAYS: Final = 10_675_199
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DATE_PARTS_MS: Final = {"Y": 365 * DAY_MS, "M": 30 * DAY_MS, "W": 7 * DAY_MS, "D": DAY_MS}  # as .NET reads them
_TIME_PARTS_MS: Final = {"H": 3_600_000, "M": 60_000, "S": 1_000}
_DIGITS_MAX: Final = 15


def parse_duration_ms(text: str) -> int:
    """Milliseconds, `FOR_EVER_MS` for the longest. Raises ValueError."""
    if not text.startswith("P") or text == "P" or text.endswith("T"):
        raise ValueError(text)
    days, _, time = text[1:].partition("T")
    total_ms = _parts_ms(days, _DATE_PARTS_MS) + _parts_ms(time, _TIME_PARTS_MS)
    if total_ms >= FOR_EVER_DAYS * DAY_MS:
        return FOR_EVER_MS
    if total_ms == 0:  # would be taken for for ever
        raise ValueError(text)
    return total_ms


def _parts_ms(text: str, lengths_ms: dict[str, int]) -> int:
    """`1H30M`: digits and a letter each, in order; the last part alone may have a fraction, of seconds."""
    total = 0
    letters = list(lengths_ms)
    digits = ""
    for char in text:
        if char not in lengths_ms:
            digits += char
            continue
        if char not in letters:
            raise ValueError(text)
        del letters[: letters.index(char) + 1]
        whole, dot, fraction = digits.partition(".")
        if not _is_digits(whole) or (dot and (char != "S" or not _is_digits(fraction))):
            raise ValueError(text)
        total += int(whole) * lengths_ms[char] + (int((fraction + "000")[:3]) if dot else 0)
        digits = ""
    if digits:
        raise ValueError(text)
    return total


def _is_digits(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX


def duration_text(duration_ms: int) -> str:
    """As .NET's XmlConvert writes a time span: days, hours, minutes, seconds, without those that are zero."""
    if duration_ms == FOR_EVER_MS:
        return FOR_EVER
    days, rest = divmod(duration_ms, DAY_MS)
    hours, rest = divmod(rest, 3_600_000)
    minutes, rest = divmod(rest, 60_000)
    seconds, ms = divmod(rest, 1_000)
    time = (f"{hours}H" if hours else "") + (f"{minutes}M" if minutes else "")
    if seconds or ms:
        time += f"{seconds}" + (f".{ms:03d}".rstrip("0") if ms else "") + "S"
    return "P" + (f"{days}D" if days else "") + (f"T{time}" if time else "")


def time_span_text(duration_ms: int) -> str:
    """As .NET shows a time span in an error text: 25.00:00:00."""
    days, rest = divmod(duration_ms, DAY_MS)
    clock = f"{rest // 3_600_000:02d}:{rest // 60_000 % 60:02d}:{rest // 1_000 % 60:02d}"
    return f"{days}.{clock}" if days else clock


def moment_text(at_ms: int) -> str:
    """To the millisecond, without zeros at the end."""
    at = _EPOCH + timedelta(milliseconds=at_ms)
    fraction = f".{at.microsecond // 1000:03d}".rstrip("0").rstrip(".")
    return f"{at:%Y-%m-%dT%H:%M:%S}{fraction}Z"


def second_text(at_ms: int) -> str:
    """To the second, as Atom's own elements have it."""
    return f"{_EPOCH + timedelta(milliseconds=at_ms):%Y-%m-%dT%H:%M:%S}Z"
