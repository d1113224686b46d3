"""`startingTime` and `endingTime`: between which times messages were enqueued that a browsing read is to have."""

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from spillway.spark.platform.access import OptionError, shown

STARTING: Final = "startingTime"
ENDING: Final = "endingTime"
MS_MAX: Final = 253_402_300_800_000  # the year 10000
CLOCKS_S: Final = 60.0  # that this machine's clock may be behind
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def times_of(
    values: Mapping[str, str], is_streaming: bool | None, now: Callable[[], float] = time.time
) -> tuple[int | None, int | None]:
    """Both in milliseconds since 1970, where they are given."""
    start_ms, end_ms = _moment_ms(values, STARTING), _moment_ms(values, ENDING)
    if start_ms is not None and "startat" in values:
        raise OptionError("startAt says a sequence number and startingTime a time to begin at: give one of them")
    if end_ms is not None and "endat" in values:
        raise OptionError("endAt says a sequence number and endingTime a time to end at: give one of them")
    if end_ms is not None and is_streaming:
        raise OptionError("endingTime is for batch reads: a stream goes on")
    if start_ms is not None and end_ms is not None and end_ms < start_ms:
        raise OptionError("endingTime lies before startingTime")
    if start_ms is not None and start_ms > (now() + CLOCKS_S) * 1000:
        raise OptionError("startingTime lies in the future: say startAt=latest for what comes from now on")
    return start_ms, end_ms


def _moment_ms(values: Mapping[str, str], name: str) -> int | None:
    text = values.get(name.lower())
    if text is None:
        return None
    text = text.strip()
    wrong = OptionError(
        f"{name}={shown(text)}: a time such as 2026-11-17T08:00:00Z, in UTC unless it has an offset, or milliseconds "
        "since 1970"
    )
    if text.isascii() and text.isdigit():
        if len(text) > 15 or int(text) >= MS_MAX:
            raise wrong
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
        return (moment.replace(tzinfo=moment.tzinfo or UTC) - _EPOCH) // timedelta(milliseconds=1)
    except (ValueError, OverflowError):
        raise wrong from None
