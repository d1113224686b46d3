"""A clock that stands still until a test moves it."""

from collections.abc import Callable


class FakeTimer:
    def __init__(self, due_ms: int, callback: Callable[[], None]) -> None:
        self.due_ms = due_ms
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class FakeClock:
    """Stands in for the broker's clock. `advance` runs the timers it passes, in order, each at its own time."""

    def __init__(self, now_ms: int = 1_000_000) -> None:
        self.time_ms = now_ms
        self.ahead_ms = 0  # moved on purpose by `leap`
        self.wall_ahead_ms = 0  # of real time: somebody has set the machine's clock
        self.timers: list[FakeTimer] = []

    def now_ms(self) -> int:
        return self.time_ms + self.ahead_ms

    def real_ms(self) -> int:
        return self.time_ms

    def wall_ms(self) -> int:
        return self.time_ms + self.wall_ahead_ms

    def call_at(self, due_ms: int, callback: Callable[[], None]) -> FakeTimer:
        timer = FakeTimer(due_ms - self.ahead_ms, callback)
        self.timers.append(timer)
        return timer

    def leap(self, by_ms: int) -> None:
        """As a movable clock is moved: no real time passes, no timer runs."""
        self.ahead_ms += by_ms

    def advance(self, by_ms: int) -> None:
        assert by_ms >= 0, "time does not go back"
        end_ms = self.time_ms + by_ms
        while True:
            self.timers = [timer for timer in self.timers if not timer.is_cancelled]
            due = [timer for timer in self.timers if timer.due_ms <= end_ms]
            if not due:
                break
            timer = min(due, key=_due_ms)
            self.timers.remove(timer)
            self.time_ms = max(self.time_ms, timer.due_ms)
            timer.callback()
        self.time_ms = end_ms


def _due_ms(timer: FakeTimer) -> int:
    return timer.due_ms
