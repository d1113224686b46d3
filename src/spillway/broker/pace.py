"""Senders that outrun the receivers of their queue get no new credit for a moment.

A message that does not fit the resident window is written to the store and read back before it is delivered, which
costs more than all the rest of its way. So where receivers will have taken what waits in the next moment anyway, the
senders wait for them. The rule, looked at once a turn:

- hold: the window is half full or the store has more, and at the rate of the last tenth of a second the receivers will
  have taken all that waits within the next `SLOTS` of them;
- release: little waits and the store has no more, or `PAUSE_MS` have passed, whatever waits.

So a sender never waits for receivers that do not exist or do not take: without deliveries there is no hold. And no hold
is longer than `PAUSE_MS`, after which a sender has its whole credit again before it can be held once more: two workers
that each send to the queue which the other receives from are slowed, and never stop.

Only credit is withheld. What a client sends without it is taken like everything else.
"""

from typing import Final

from spillway.broker.window import Window

PAUSE_MS: Final = 200
SLOT_MS: Final = 100
SLOTS: Final = 8
# Each of many senders has its credit: what they send before they would notice fills the window anyway.
SENDERS_MAX: Final = 64


class Pace:
    """The pace of the senders to one queue without sessions."""

    def __init__(self) -> None:
        self.paused: list[int] = []  # numbers of the links that get no new credit
        self.paused_until_ms = 0
        self.slot_ms = 0  # when the slot began in which deliveries are counted
        self.slot_count = 0
        self.last_count = 0  # of the slot before

    def count(self, delivered: int, now_ms: int) -> None:
        """Counts messages that were handed to receivers."""
        passed_ms = now_ms - self.slot_ms
        if passed_ms >= SLOT_MS:
            self.last_count = self.slot_count if passed_ms < 2 * SLOT_MS else 0
            self.slot_count = 0
            self.slot_ms = now_ms
        self.slot_count += delivered

    def soon(self, now_ms: int) -> int:
        """How many will be handed out in the next slot, if it goes on as in the last."""
        if now_ms - self.slot_ms >= 2 * SLOT_MS:
            return 0
        return self.slot_count if self.slot_count > self.last_count else self.last_count

    def should_pause(self, window: Window, waiting: int, now_ms: int) -> bool:
        """Whether senders are to be held, who are not."""
        return window.is_long(waiting) and self.soon(now_ms) * SLOTS >= waiting

    def should_resume(self, window: Window, waiting: int, now_ms: int) -> bool:
        """Whether senders that are held need not be any longer."""
        return now_ms >= self.paused_until_ms or window.is_short(waiting)

    def pause(self, link_ids: list[int], now_ms: int) -> None:
        assert not self.paused, "senders are held once"
        self.paused = link_ids
        self.paused_until_ms = now_ms + PAUSE_MS

    def resume(self) -> list[int]:
        """The links that were held."""
        held = self.paused
        self.paused = []
        self.paused_until_ms = 0
        return held


def may_pause(senders_count: int) -> bool:
    return 0 < senders_count <= SENDERS_MAX
