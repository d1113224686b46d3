"""Keeps the core told of what only the process knows, its memory, and the operator of what the core refuses."""

import logging
from collections.abc import Callable
from typing import Final

from spillway.broker.commands import Command, MemoryMeasured
from spillway.broker.throttle import Throttle
from spillway.model import limits
from spillway.model.quotas import NO_LIMIT
from spillway.server.memory import release_free, resident_bytes, trim_free

log = logging.getLogger(__name__)

# Before anybody is refused: what is free is given back, and who makes us hold most is ended.
NEAR_PERCENT: Final = 85
TRIM_EVERY_MS: Final = 2_000
GIVE_BACK_EVERY_MS: Final = 10_000  # it stops everything for some milliseconds


class ThrottleWatch:
    """Called once a second. One line when throttling begins, one when it has ended, whatever happens between."""

    def __init__(
        self,
        name: str,
        throttle: Throttle,
        tell: Callable[[Command], None],
        measure: Callable[[], int | None] = resident_bytes,
        release_memory: Callable[[], None] = release_free,
        relieve: Callable[[int], None] | None = None,
        trim: Callable[[], None] = trim_free,
    ) -> None:
        self.name = name
        self.throttle = throttle
        self.tell = tell
        self.measure = measure
        self.release_memory = release_memory
        self.relieve = relieve  # end clients that make us hold about so many bytes
        self.is_over = False
        self.released_ms = -GIVE_BACK_EVERY_MS
        self.trim = trim
        self.trimmed_ms = -TRIM_EVERY_MS
        self.seen: dict[str, int] = dict(throttle.refused)
        self.last_ms: dict[str, int] = {}  # by limit that throttles: when it was last seen to refuse

    def poll(self, now_ms: int) -> None:
        if self.throttle.memory.bytes_max != NO_LIMIT:
            self.check_memory(now_ms)
        for limit, count in self.throttle.refused.items():
            if count != self.seen[limit]:
                if limit not in self.last_ms:
                    log.warning("namespace=%s is throttled (%s): clients are asked to wait 10 s", self.name, limit)
                self.last_ms[limit] = now_ms
            elif limit in self.last_ms and now_ms - self.last_ms[limit] > limits.BUSY_MS:
                del self.last_ms[limit]
                log.info("namespace=%s is no longer throttled (%s): %d requests refused", self.name, limit, count)
            self.seen[limit] = count

    def check_memory(self, now_ms: int) -> None:
        used = self.measure()
        if used is None:
            return
        bytes_max = self.throttle.memory.bytes_max
        near = bytes_max * NEAR_PERCENT // 100
        if used >= near and now_ms - self.trimmed_ms >= TRIM_EVERY_MS:
            self.trimmed_ms = now_ms
            self.trim()
            used = self.measure() or used
            if used >= near and self.relieve is not None:
                self.relieve(used - near)
        if used >= bytes_max and now_ms - self.released_ms >= GIVE_BACK_EVERY_MS:
            self.released_ms = now_ms
            self.release_memory()
            used = self.measure() or used
        is_over = used >= bytes_max
        if is_over or self.is_over:
            self.is_over = is_over
            self.tell(MemoryMeasured(used))
