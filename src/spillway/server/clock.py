"""The broker's time: one number in ms that never goes back and never leaps.

It starts at the wall clock, or at the latest time the store remembers if that is later; it advances with a clock that
nobody can set, and leans towards the wall clock by at most `SLEW_PERCENT`. So an operator who sets the wall clock
back an hour neither lengthens a lock nor reopens a duplicate window, and one who sets it ahead expires nothing at
once: the broker's time follows slowly.

What happens to messages goes by `now_ms`. Sockets go by `real_ms`: a client that was silent for a second has not been
silent for the day that a `MovableClock` let pass. Tokens go by `wall_ms`, whatever that says now: who signs one for an
hour means an hour of the clock that people set, and by none that follows it for days.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final, Protocol

log = logging.getLogger(__name__)

# A lock of 60 s ends at most 0.6 s off while the clock leans; a wall clock that is 5 s off is met after 8 minutes.
SLEW_PERCENT: Final = 1
JUMP_MS: Final = 5 * 60 * 1000  # more than this between two looks at the wall clock: somebody has set it
REFRESH_EVERY_MS: Final = 1_000


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    """What the pump needs of time."""

    def now_ms(self) -> int:
        """Never less than what it said before."""

    def real_ms(self) -> int:
        """The same, but neither moved by anybody nor bound to what the store remembers: for sockets."""

    def wall_ms(self) -> int:
        """The machine's own clock, as it is now: it goes back and leaps when somebody sets it. For tokens."""

    def call_at(self, due_ms: int, callback: Callable[[], None]) -> Timer:
        """Call back once `now_ms()` has reached `due_ms`, give or take what the clock leans meanwhile."""


def wall_ms() -> float:
    return time.time() * 1000.0


def steady_ms() -> float:
    """Advances while the machine sleeps too, where it has such a clock: locks end over a closed lid."""
    return time.clock_gettime(STEADY_CLOCK) * 1000.0


STEADY_CLOCK: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class BrokerClock:
    """`floor_ms` is the latest time the store remembers. `slew_percent` 0 never follows the wall clock."""

    def __init__(
        self,
        floor_ms: int,
        wall: Callable[[], float] = wall_ms,
        steady: Callable[[], float] = steady_ms,
        slew_percent: int = SLEW_PERCENT,
    ) -> None:
        self.wall = wall
        self.steady = steady
        self.slew = slew_percent / 100.0
        self.refreshed_ms = steady()  # steady time of the last look at the wall
        self.base_ms = max(wall(), float(floor_ms))  # our time at that look
        self.ahead_ms = self.base_ms - wall()  # how far we were ahead of the wall then
        self.rate = 1.0  # our ms per steady ms until the next look
        self.lean()
        # One and the same, unless time goes on from a floor that the wall has not reached yet.
        self.real = self if self.ahead_ms <= 0 else BrokerClock(0, wall, steady, slew_percent)
        if self.ahead_ms > JUMP_MS:
            log.warning(
                "the wall clock is %.0f s behind the last time stored; time goes on from there", self.ahead_ms / 1000
            )

    def now_ms(self) -> int:
        passed_ms = self.steady() - self.refreshed_ms
        if passed_ms >= REFRESH_EVERY_MS:
            self.refresh(passed_ms)
            passed_ms = 0.0
        return int(self.base_ms + passed_ms * self.rate)

    def real_ms(self) -> int:
        return self.real.now_ms()

    def wall_ms(self) -> int:
        return int(self.wall())

    def refresh(self, passed_ms: float) -> None:
        """Compare with the wall clock and decide how to lean until the next look."""
        leant_ms = REFRESH_EVERY_MS * (self.rate - 1.0)  # for no longer: nobody asked for the time meanwhile
        self.base_ms += passed_ms + leant_ms
        self.refreshed_ms += passed_ms
        was_ahead_ms = self.ahead_ms + leant_ms
        self.ahead_ms = self.base_ms - self.wall()
        jump_ms = was_ahead_ms - self.ahead_ms
        if abs(jump_ms) > JUMP_MS:
            log.warning(
                "the wall clock jumped by %.0f s; broker time follows at %.0f%%", jump_ms / 1000, self.slew * 100
            )
        self.lean()

    def lean(self) -> None:
        """Meet the wall by the next look if that is near enough, else as fast as allowed."""
        wanted = -self.ahead_ms / REFRESH_EVERY_MS
        self.rate = 1.0 + max(-self.slew, min(self.slew, wanted))

    def call_at(self, due_ms: int, callback: Callable[[], None]) -> Timer:
        delay_ms = max(1, due_ms - self.now_ms())
        return asyncio.get_running_loop().call_later(delay_ms / 1000.0, callback)


class MovableClock:
    """A broker's clock that can be moved ahead on purpose, and never back: for tests and development.

    A namespace that was moved and restarted goes on from where it was: time does not go back for what it stores.
    """

    def __init__(
        self, floor_ms: int, wall: Callable[[], float] = wall_ms, steady: Callable[[], float] = steady_ms
    ) -> None:
        self.real = BrokerClock(0, wall, steady)
        self.ahead_ms = max(0, floor_ms - self.real.now_ms())  # of real time
        if self.ahead_ms > JUMP_MS:
            log.info("time goes on from the last time stored, %d s ahead of the wall clock", self.ahead_ms // 1000)

    def now_ms(self) -> int:
        return self.real.now_ms() + self.ahead_ms

    def real_ms(self) -> int:
        return self.real.now_ms()

    def wall_ms(self) -> int:
        return self.real.wall_ms()

    def advance(self, by_ms: int) -> None:
        """The clock is later by this much from now on. Whoever waits for a time must be told (`Pump.pass_time`)."""
        assert by_ms >= 0, "time does not go back"
        self.ahead_ms += by_ms

    def call_at(self, due_ms: int, callback: Callable[[], None]) -> Timer:
        return self.real.call_at(due_ms - self.ahead_ms, callback)
