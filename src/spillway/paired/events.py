"""Events of a pairing, for people and programs: a log line each, counters, and callbacks."""

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

log = logging.getLogger("spillway.paired")

SUSPECTED: Final = "suspected"
FAILED_OVER: Final = "failed-over"
RECOVERED: Final = "recovered"
ENTITY_FAILED: Final = "entity-failed"
PINGED: Final = "pinged"
DIVERTED: Final = "diverted"
BACKLOG_QUEUE_REMOVED: Final = "backlog-queue-removed"
BACKLOG_QUEUE_READMITTED: Final = "backlog-queue-readmitted"
BACKLOG_QUEUE_CREATED: Final = "backlog-queue-created"
BACKLOG_QUEUE_DIFFERS: Final = "backlog-queue-differs"
PAIRED: Final = "paired"
PAIRING_FAILED: Final = "pairing-failed"
SYPHONED: Final = "syphoned"
SYPHON_KEPT: Final = "syphon-kept"
SYPHON_DEAD_LETTERED: Final = "syphon-dead-lettered"
SYPHON_POLLED: Final = "syphon-polled"
SYPHON_REPEATED: Final = "syphon-repeated"  # sent home, but its lock was gone: it will be sent once more
SYPHON_INTERRUPTED: Final = "syphon-interrupted"
FAULTED: Final = "faulted"

# Too many of these to be worth a line each at the usual level.
_QUIET: Final = frozenset({DIVERTED, PINGED, SYPHONED, SYPHON_POLLED})
_WARNED: Final = frozenset(
    (SUSPECTED, FAILED_OVER, ENTITY_FAILED, BACKLOG_QUEUE_REMOVED, BACKLOG_QUEUE_DIFFERS, PAIRING_FAILED, FAULTED)
    + (SYPHON_KEPT, SYPHON_DEAD_LETTERED, SYPHON_REPEATED, SYPHON_INTERRUPTED)
)


@dataclass(frozen=True)
class Event:
    name: str
    path: str = ""
    count: int = 1
    error: BaseException | None = None
    details: dict[str, Any] = field(default_factory=dict)


class Events:
    """`counters` has how often each happened, messages where an event is about messages."""

    def __init__(self) -> None:
        self.counters: Counter[str] = Counter()
        self.callbacks: list[Callable[[Event], None]] = []

    def tell(
        self, name: str, path: str = "", count: int = 1, error: BaseException | None = None, **details: Any
    ) -> None:
        self.counters[name] += count
        if self.callbacks:  # before the log, which may be slow: the event file has the moment it happened
            event = Event(name, path, count, error, details)
            for callback in list(self.callbacks):
                try:
                    callback(event)
                except Exception:
                    log.exception("a callback for events failed")
        level = logging.WARNING if name in _WARNED else logging.DEBUG if name in _QUIET else logging.INFO
        if log.isEnabledFor(level):
            parts = [f"event={name}"]
            if path:
                parts.append(f"path={path}")
            if count != 1:
                parts.append(f"count={count}")
            parts += [f"{key}={value}" for key, value in details.items()]
            if error is not None:
                parts.append(f"error={type(error).__name__}: {' '.join(str(error).split())[:300]}")
            log.log(level, " ".join(parts))
