"""`startingTime` and `endingTime`: between which times messages were enqueued that a browsing read is to have."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from spillway.spark.platform.access import OptionError, shown
from spillway.spark.source.declaration import BATCHES, BROWSED, GOES_ON, READ, Asked, Only, SourceOption

MS_MAX: Final = 253_402_300_800_000  # the year 10000
CLOCKS_S: Final = 60.0  # that this machine's clock may be behind
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class TimeOption:
    """A time, in milliseconds since 1970."""

    def read(self, name: str, text: str) -> int:
        text = text.strip()
        wrong = OptionError(
            f"{name}={shown(text)}: a time such as 2026-11-17T08:00:00Z, in UTC unless it has an offset, or "
            "milliseconds since 1970"
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

    def allowed(self, default: str) -> str:
        return ""


STARTING: Final = SourceOption(
    "startingTime",
    READ,
    TimeOption(),
    "Instead of `startAt`, the [time](#times) from which on messages were enqueued.",
    only=(BROWSED,),
)
ENDING: Final = SourceOption(
    "endingTime",
    READ,
    TimeOption(),
    "Instead of `endAt`, the [time](#times) before which they were.",
    only=(BROWSED, Only(reads=BATCHES, why=GOES_ON)),
)


def times_of(
    values: Mapping[str, str], is_streaming: bool | None, mode: str = "", now: Callable[[], float] = time.time
) -> tuple[int | None, int | None]:
    """Both in milliseconds since 1970, where they are given."""
    asked = Asked(values, mode, is_streaming)
    start_ms, end_ms = STARTING.given(asked), ENDING.given(asked)
    if start_ms is not None and "startat" in values:
        raise OptionError("startAt says a sequence number and startingTime a time to begin at: give one of them")
    if end_ms is not None and "endat" in values:
        raise OptionError("endAt says a sequence number and endingTime a time to end at: give one of them")
    if start_ms is not None and end_ms is not None and end_ms < start_ms:
        raise OptionError("endingTime lies before startingTime")
    if start_ms is not None and start_ms > (now() + CLOCKS_S) * 1000:
        raise OptionError("startingTime lies in the future: say startAt=latest for what comes from now on")
    return start_ms, end_ms
