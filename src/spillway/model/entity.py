"""Entities: what a queue is called and how it is set up."""

import json
from typing import Final

from spillway.model import limits

QUEUE: Final = "queue"
DEAD_LETTER_QUEUE: Final = "dead-letter-queue"
DEAD_LETTER_SUFFIX: Final = "/$DeadLetterQueue"

FOR_EVER_MS: Final = 0  # of a duration: no end

_NAME_CHARS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./")
_NAME_ENDS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")


def entity_key(path: str) -> str:
    """Paths are compared without regard to case and to slashes at their ends."""
    return path.strip("/").lower()


def dead_letter_path(path: str) -> str:
    return path + DEAD_LETTER_SUFFIX


def name_problem(name: str) -> str | None:
    """What is wrong with an entity name, or None."""
    if not name:
        return "an entity name must not be empty"
    if len(name) > limits.ENTITY_NAME_CHARS_MAX:
        return f"an entity name has at most {limits.ENTITY_NAME_CHARS_MAX} characters, this one has {len(name)}"
    if name[0] not in _NAME_ENDS or name[-1] not in _NAME_ENDS:
        return "an entity name begins and ends with a letter or a digit"
    for char in name:
        if char not in _NAME_CHARS:
            return f"an entity name has letters, digits, '_', '-', '.' and '/' only, not {char!r}"
    for part in name.split("/"):
        if part == "" or part == "." or part == "..":
            return "the parts of an entity name between slashes must not be empty, '.' or '..'"
    return None


class QueueSettings:
    """The properties of a queue (or of a dead-letter queue, which has its parent's lock duration)."""

    def __init__(self) -> None:
        self.lock_duration_ms: int = limits.LOCK_DURATION_MS_DEFAULT
        self.max_delivery_count: int = limits.DELIVERY_COUNT_MAX_DEFAULT
        self.default_ttl_ms: int = FOR_EVER_MS
        self.dead_letter_on_expiry = False
        self.max_size_mb: int = limits.ENTITY_SIZE_MB_DEFAULT

    def to_json(self) -> str:
        return json.dumps(
            {
                "lock_duration_ms": self.lock_duration_ms,
                "max_delivery_count": self.max_delivery_count,
                "default_ttl_ms": self.default_ttl_ms,
                "dead_letter_on_expiry": self.dead_letter_on_expiry,
                "max_size_mb": self.max_size_mb,
            }
        )


def settings_from_json(text: str) -> QueueSettings:
    values = json.loads(text)
    settings = QueueSettings()
    settings.lock_duration_ms = int(values["lock_duration_ms"])
    settings.max_delivery_count = int(values["max_delivery_count"])
    settings.default_ttl_ms = int(values["default_ttl_ms"])
    settings.dead_letter_on_expiry = bool(values["dead_letter_on_expiry"])
    settings.max_size_mb = int(values["max_size_mb"])
    return settings
