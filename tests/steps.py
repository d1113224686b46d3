"""Work counted instead of timed, so that a busy machine changes nothing: calls of functions, those in C included."""

import sys
from collections.abc import Callable
from types import FrameType


def steps_of(work: Callable[[], object]) -> int:
    """How many calls the work makes. Inside compiled parts nobody sees them: there it is fewer, never more."""
    count = 0

    def step(_: FrameType, event: str, __: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(step)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count
