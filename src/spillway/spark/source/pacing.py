"""When a batch of a receiving stream is worth its while: enough messages wait, or the first has waited long enough.

Messages that wait stay in their entity, unlocked. How many there are is told by one look, without receiving: whether
there is one whose sequence number is so far behind the first. Numbers that are missing in between count, too; a message
that stays where it is, in somebody's lock, does not make all those that have gone behind it count again.
"""

import time
from collections.abc import Callable, Mapping

from spillway.client import ClientError, Management
from spillway.spark.platform.connection_pool import plain
from spillway.spark.source.sequence_bounds import NotInOneRow, first_from


class Pacing:
    """The waiting between two batches of one stream."""

    def __init__(self, min_messages: int, max_delay_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._min_messages = min_messages
        self._max_delay_s = max_delay_s
        self._clock = clock
        self._since_s: float | None = None  # when something was first seen to wait
        self._firsts: dict[str, int] = {}
        self._bases: dict[str, int] = {}  # the number from which messages of an entity count
        self._is_full: set[str] = set()  # entities that have enough

    async def is_due(self, managements: Mapping[str, Management], firsts: Mapping[str, int]) -> bool:
        """Whether a batch is to begin; `firsts` has the first message of each entity that has any."""
        if not firsts:
            self._since_s = None
            return False
        now_s = self._clock()
        if self._since_s is None:
            self._since_s = now_s
        assert self._since_s <= now_s, "waiting began before now"
        if self._min_messages <= 1:
            return True
        self._is_full.clear()
        for entity, first in firsts.items():
            if await self._has_enough(entity, managements[entity], first):
                self._is_full.add(entity)
        return bool(self._is_full) or now_s - self._since_s >= self._max_delay_s

    def began(self) -> None:
        """A batch takes what waits."""
        self._since_s = None
        assert self._is_full <= self._bases.keys(), "an entity that has enough was counted"
        for entity in self._is_full:
            self._bases[entity] += self._min_messages

    async def _has_enough(self, entity: str, management: Management, first: int) -> bool:
        if first < self._firsts.get(entity, first):
            self._bases.pop(entity, None)  # the entity was made anew: it counts from 1 again
        self._firsts[entity] = first
        base = self._bases[entity] = max(first, self._bases.get(entity, first))
        try:
            return await first_from(management, base + self._min_messages - 1) is not None
        except NotInOneRow:
            return False  # such numbers tell nothing: the delay decides
        except ClientError as error:
            raise plain(error, entity, "Listen") from None
