"""How the administration API writes times: ISO 8601, and .NET's time spans in error texts."""

from datetime import UTC, datetime, timedelta
from typing import Final

from spillway.model.durations import DAY_MS

NEVER: Final = "0001-01-01T00:00:00"  # .NET's earliest time
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def time_span_text(duration_ms: int) -> str:
    """A duration as .NET shows a time span in an error text: 25.00:00:00."""
    days, rest = divmod(duration_ms, DAY_MS)
    clock = f"{rest // 3_600_000:02d}:{rest // 60_000 % 60:02d}:{rest // 1_000 % 60:02d}"
    return f"{days}.{clock}" if days else clock


def moment_text(at_ms: int) -> str:
    """A moment to the millisecond, without zeros at the end."""
    at = _EPOCH + timedelta(milliseconds=at_ms)
    fraction = f".{at.microsecond // 1000:03d}".rstrip("0").rstrip(".")
    return f"{at:%Y-%m-%dT%H:%M:%S}{fraction}Z"


def second_text(at_ms: int) -> str:
    """A moment to the second, as Atom's own elements have it."""
    return f"{_EPOCH + timedelta(milliseconds=at_ms):%Y-%m-%dT%H:%M:%S}Z"
