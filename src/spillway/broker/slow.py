"""Effects that are held back because a fault makes them late: each link and request hears its own in order.

Nobody else waits: what is held back for one link passes no other link's by. The core releases them when their time has
come, in a turn of its own, so they are still said behind everything that was decided before them.
"""

import heapq

from spillway.broker.effects import Effect, Load, Report
from spillway.model import limits


class Slow:
    def __init__(self) -> None:
        self.held: list[tuple[int, int, Effect]] = []  # a heap of (when, in which order, what)
        self.count = 0  # of all that were ever held
        self.not_before: dict[int, int] = {}  # by link or request: nothing is said to it before this

    def is_busy(self) -> bool:
        return len(self.not_before) > 0 or len(self.held) > 0

    def delay(self, to: int, until_ms: int) -> None:
        """Effects for this link or request are not emitted before then."""
        if until_ms > self.not_before.get(to, 0):
            self.not_before[to] = until_ms

    def due_ms(self) -> int:
        return self.held[0][0] if self.held else 0

    def pop_due(self, now_ms: int) -> list[Effect]:
        due: list[Effect] = []
        while self.held and self.held[0][0] <= now_ms:
            due.append(heapq.heappop(self.held)[2])
        if not self.held:
            for to in [to for to, until_ms in self.not_before.items() if until_ms <= now_ms]:
                del self.not_before[to]
        return due

    def is_late(self, effect: Effect, now_ms: int) -> bool:
        """Whether an effect must wait. What the store or the operator hears never does."""
        if isinstance(effect, (Load, Report)):
            return False
        return self.not_before.get(effect.to, 0) > now_ms

    def retain(self, effect: Effect) -> Effect | None:
        """Retain an effect until its time. What comes back is emitted early, for there are too many."""
        self.count += 1
        heapq.heappush(self.held, (self.not_before[effect.to], self.count, effect))
        if len(self.held) > limits.DELAYED_EFFECTS_MAX:
            return heapq.heappop(self.held)[2]
        return None
