"""A message's properties as rules see them, and the changes that a rule's action makes to them.

The dialect reads them out of the encoded message on demand; the rules know names and values only. A value is a `str`,
`int`, `float`, `bool`, `bytes`, `uuid.UUID`, `Moment` or `Duration`; `None` means absent or null, which rules treat
alike but for EXISTS.
"""

import hashlib
import uuid
from typing import Final

from spillway.model.text_planes import TextMemory

CONTENT_TYPE: Final = "ContentType"
CORRELATION_ID: Final = "CorrelationId"
DEAD_LETTER_SOURCE: Final = "DeadLetterSource"
DELIVERY_COUNT: Final = "DeliveryCount"
ENQUEUED_SEQUENCE_NUMBER: Final = "EnqueuedSequenceNumber"
ENQUEUED_TIME: Final = "EnqueuedTimeUtc"
EXPIRES_AT: Final = "ExpiresAtUtc"
LABEL: Final = "Label"
MESSAGE_ID: Final = "MessageId"
PARTITION_KEY: Final = "PartitionKey"
REPLY_TO: Final = "ReplyTo"
REPLY_TO_SESSION_ID: Final = "ReplyToSessionId"
SCHEDULED_ENQUEUE_TIME: Final = "ScheduledEnqueueTimeUtc"
SEQUENCE_NUMBER: Final = "SequenceNumber"
SESSION_ID: Final = "SessionId"
SIZE: Final = "Size"
TIME_TO_LIVE: Final = "TimeToLive"
TO: Final = "To"
VIA_PARTITION_KEY: Final = "ViaPartitionKey"

# What an action may set, and the longest text it may put there (0: not a text).
SETTABLE: Final[dict[str, int]] = {
    CONTENT_TYPE: 32_768,
    CORRELATION_ID: 32_768,
    LABEL: 32_768,
    MESSAGE_ID: 128,
    PARTITION_KEY: 128,
    REPLY_TO: 32_768,
    REPLY_TO_SESSION_ID: 128,
    SCHEDULED_ENQUEUE_TIME: 0,
    SESSION_ID: 128,
    TIME_TO_LIVE: 0,
    TO: 32_768,
    VIA_PARTITION_KEY: 128,
}
READ_ONLY: Final = (
    DEAD_LETTER_SOURCE,
    DELIVERY_COUNT,
    ENQUEUED_SEQUENCE_NUMBER,
    ENQUEUED_TIME,
    EXPIRES_AT,
    SEQUENCE_NUMBER,
    SIZE,
)
# The names of today's SDKs beside those of the first one, which Azure's rules go by.
ALIASES: Final[dict[str, str]] = {
    "Subject": LABEL,
    "EnqueuedTime": ENQUEUED_TIME,
    "ExpiresAt": EXPIRES_AT,
    "ScheduledEnqueueTime": SCHEDULED_ENQUEUE_TIME,
    "TransactionPartitionKey": VIA_PARTITION_KEY,
}


def fold(name: str) -> str:
    """Property names are compared without regard to case."""
    return name.lower()


def _known_names() -> dict[str, str]:
    known = {fold(alias): name for alias, name in ALIASES.items()}
    for name in [*SETTABLE, *READ_ONLY]:
        known[fold(name)] = name
    return known


_KNOWN: Final = _known_names()
NO_BOUND: Final = 1 << 60


def system_name(name: str) -> str | None:
    """The one spelling of a system property's name (a constant of this module), or None if there is no such one."""
    return _KNOWN.get(fold(name))


class Moment:
    """A point in time, in milliseconds since 1970 UTC."""

    def __init__(self, ms: int) -> None:
        self.ms = ms

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Moment) and other.ms == self.ms

    def __hash__(self) -> int:
        return hash(("moment", self.ms))

    def __repr__(self) -> str:
        return f"Moment({self.ms})"


class Duration:
    """A length of time in milliseconds; may be negative."""

    def __init__(self, ms: int) -> None:
        self.ms = ms

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Duration) and other.ms == self.ms

    def __hash__(self) -> int:
        return hash(("duration", self.ms))

    def __repr__(self) -> str:
        return f"Duration({self.ms})"


class RuleUnfinished(Exception):
    """The turn ends in the middle of a rule. Trying it changes nothing, so it is tried from the start in the next."""


class MessageProperties:
    """What rules may ask of a message. This one has no properties; the dialect's knows an encoded message's.

    `work` is what rules have done with it beyond being tried, in steps of about a microsecond (model/limits.py); where
    it reaches `work_max`, the rule that is being tried is left unfinished, and tried again in the next turn. What it
    had worked out at length is in `settled`, by the node of the rule, so that it gets further each time.
    """

    work: int = 0
    work_max: int = NO_BOUND
    settled: dict[object, object] | None = None
    memory: TextMemory | None = None

    def system(self, name: str) -> object:
        """`name` is one of this module's constants."""
        return None

    def user(self, name: str) -> object:
        """`name` is folded (`fold`); so must the names be that it is looked up among."""
        return None

    def has_user(self, name: str) -> bool:
        """Whether the property is there, be it null. `name` is folded."""
        return False

    def text_memory(self) -> TextMemory:
        memory = self.memory
        if memory is None:
            memory = TextMemory()
            self.memory = memory
        return memory

    def settle(self, node: object, outcome: object, work: int) -> None:
        """So much work it was to find out. Raises `RuleUnfinished` if that was the last of this turn."""
        self.work += work
        settled = self.settled
        if settled is None:
            settled = {}
            self.settled = settled
        settled[node] = outcome
        if self.work >= self.work_max:
            raise RuleUnfinished

    def end_rule(self) -> None:
        self.settled = None


class ChangedProperties(MessageProperties):
    """A message's properties with what an action has made of them so far, so that the next statement sees it.

    `user_set` and `user_removed` go by the folded name; `user_names` has the spelling to use where the message had no
    such property (one that it had keeps its own). In `system_set`, None clears the property.
    """

    def __init__(self, base: MessageProperties, seed: bytes = b"") -> None:
        self.base = base
        self.seed = seed
        self.ids_made = 0
        self.user_set: dict[str, object] = {}
        self.user_names: dict[str, str] = {}
        self.user_removed: set[str] = set()
        self.system_set: dict[str, object] = {}

    def system(self, name: str) -> object:
        if name in self.system_set:
            return self.system_set[name]
        return self.base.system(name)

    def user(self, name: str) -> object:
        if name in self.user_set:
            return self.user_set[name]
        if name in self.user_removed:
            return None
        return self.base.user(name)

    def has_user(self, name: str) -> bool:
        if name in self.user_set:
            return True
        return name not in self.user_removed and self.base.has_user(name)

    def set_user(self, name: str, value: object) -> None:
        key = fold(name)
        self.user_removed.discard(key)
        self.user_set[key] = value
        self.user_names.setdefault(key, name)

    def remove_user(self, name: str) -> None:
        key = fold(name)
        self.user_set.pop(key, None)
        self.user_names.pop(key, None)
        if self.base.has_user(key):
            self.user_removed.add(key)

    def set_system(self, name: str, value: object) -> None:
        self.system_set[name] = value

    def is_changed(self) -> bool:
        return bool(self.user_set or self.user_removed or self.system_set)

    def new_id(self) -> uuid.UUID:
        """The next id that the seed gives: the core has no randomness of its own, and replays alike."""
        assert self.seed, "an action with newid() is applied with a seed of its own"
        self.ids_made += 1
        digest = hashlib.blake2b(self.seed, digest_size=16, salt=self.ids_made.to_bytes(8, "big")).digest()
        return uuid.UUID(bytes=digest, version=4)
