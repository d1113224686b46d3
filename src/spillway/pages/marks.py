"""Marks of an axis of time, at the steps that people count in: times of day, or seconds since a beginning."""

import datetime
from typing import Final

from spillway.pages.chart import Axis, Mark

DAY_S: Final = 86_400
STEPS_S: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, DAY_S)
PIXELS: Final = 88  # from one time of day to the next, at least
ELAPSED_PIXELS: Final = 60
SECOND_US: Final = 1_000_000


def step_of(length_s: float, fit: int) -> int:
    """The smallest step of which no more than `fit` are in the length: one of ours, or whole days."""
    days = -(-int(length_s) // (DAY_S * fit))
    return next((step for step in STEPS_S if length_s / step <= fit), DAY_S * max(1, days))


def clock_marks(axis: Axis) -> list[Mark]:
    """Times of day in UTC, of an axis in microseconds since 1970; with the day where one begins, and at the left."""
    step_s = step_of((axis.last - axis.first) / SECOND_US, max(2, int(axis.width) // PIXELS))
    first_s = -(-int(axis.first) // (step_s * SECOND_US)) * step_s
    marks: list[Mark] = []
    for at_s in range(first_s, int(axis.last) // SECOND_US + 1, step_s):
        at = datetime.datetime.fromtimestamp(at_s, datetime.UTC)
        is_midnight = at_s % DAY_S == 0
        text = f"{at:%d %b}" if is_midnight else f"{at:%H:%M:%S}" if step_s < 60 else f"{at:%H:%M}"
        is_dated = not marks and not is_midnight and step_s < DAY_S
        marks.append(Mark(at_s * SECOND_US, (text, f"{at:%d %b %Y}") if is_dated else (text,)))
    return marks


def elapsed_marks(axis: Axis) -> list[Mark]:
    """Seconds since the beginning, of an axis in seconds."""
    step_s = step_of(axis.last - axis.first, int(axis.width) // ELAPSED_PIXELS)
    return [Mark(at_s, (f"{at_s} s",)) for at_s in range(int(axis.first), int(axis.last) + 1, step_s)]
