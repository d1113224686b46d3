"""When locks are renewed, and the time that this goes by."""

import asyncio
import time
from typing import Final

from spillway.model.limits import LOCK_DURATION_MS_MAX, LOCK_DURATION_MS_MIN

# A lock is renewed when a third of it is over. When it ends the service says, by its own clock: one that differs from
# this machine's by more than two thirds of a lock makes that too late, or all the time. One that lasts longer than any
# lock does shows clocks that do not agree, and may be as short as any.
PART: Final = 3
INTERVAL_S_MIN: Final = 1.0
INTERVAL_S_MAX: Final = 60.0
LOCK_S_MIN: Final = LOCK_DURATION_MS_MIN / 1000
LOCK_S_MAX: Final = LOCK_DURATION_MS_MAX / 1000
APART_S: Final = 60.0  # as clocks may be where a lock of the longest kind is still taken for one


class RenewalPace:
    """The time that renewing goes by."""

    def now_s(self) -> float:
        return time.monotonic()

    async def wait(self, released: asyncio.Event, seconds: float) -> bool:
        """Whether the locks are still to be kept after this time."""
        try:
            await asyncio.wait_for(released.wait(), seconds)
            return False
        except TimeoutError:
            return True


def interval_until(until_ms: int) -> float:
    """How long to wait between renewals of a lock that ends then."""
    left_s = until_ms / 1000 - time.time()
    if left_s > LOCK_S_MAX + APART_S:
        left_s = LOCK_S_MIN
    found = min(INTERVAL_S_MAX, max(INTERVAL_S_MIN, left_s / PART))
    assert INTERVAL_S_MIN <= found <= INTERVAL_S_MAX, "locks are renewed neither all the time nor too late"
    return found
