"""ISO 8601 durations as Service Bus writes them: days and smaller, no weeks, months or years."""

import re
from typing import Final

DURATION_FORM: Final = "like P1D, PT1H30M or PT5S"
DAY_MS: Final = 24 * 60 * 60 * 1_000
FOR_EVER_DAYS: Final = 10_675_199  # .NET's TimeSpan.MaxValue is P10675199DT2H48M5.4775807S

_FORM: Final = re.compile(
    r"P(?:(?P<days>\d{1,9})D)?"
    r"(?:T(?:(?P<hours>\d{1,9})H)?(?:(?P<minutes>\d{1,9})M)?(?:(?P<seconds>\d{1,9})(?:\.(?P<fraction>\d{1,9}))?S)?)?",
    re.ASCII,
)


def parse_duration_ms(text: str) -> int | None:
    """Milliseconds, 0 for "for ever"; None when the text is no duration or not longer than zero.

    Parts of a millisecond are dropped; a duration that is nothing but such a part is none.
    """
    found = _FORM.fullmatch(text)
    if found is None or text.endswith(("P", "T")):
        return None
    days, hours, minutes, seconds = (int(found[name] or 0) for name in ("days", "hours", "minutes", "seconds"))
    fraction_ms = int((found["fraction"] or "0").ljust(3, "0")[:3])
    total_ms = (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1_000 + fraction_ms
    if total_ms >= FOR_EVER_DAYS * DAY_MS:
        return 0
    return total_ms if total_ms > 0 else None
