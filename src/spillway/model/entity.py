"""Entities: what a queue, topic or subscription is called and how it is set up."""

import json
from typing import Final

from spillway.model import limits
from spillway.model.access import AccessRule, access_rule_from_plain
from spillway.model.durations import DAY_MS, FOR_EVER, FOR_EVER_DAYS, parse_duration_ms
from spillway.model.rules import Rule, rule_from_plain

QUEUE: Final = "queue"
TOPIC: Final = "topic"
SUBSCRIPTION: Final = "subscription"
DEAD_LETTER_QUEUE: Final = "dead-letter-queue"
DEAD_LETTER_SUFFIX: Final = "/$DeadLetterQueue"
SUBSCRIPTIONS: Final = "/Subscriptions/"

FOR_EVER_MS: Final = 0  # of a duration: no end

# What an administrator lets clients do with an entity; the words are the service's.
STATUS_ACTIVE: Final = "Active"
STATUS_DISABLED: Final = "Disabled"
STATUS_SEND_DISABLED: Final = "SendDisabled"
STATUS_RECEIVE_DISABLED: Final = "ReceiveDisabled"

_NAME_CHARS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./")
_NAME_ENDS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")


def entity_key(path: str) -> str:
    """Paths are compared without regard to case and to slashes at their ends."""
    return path.strip("/").lower()


def dead_letter_path(path: str) -> str:
    return path + DEAD_LETTER_SUFFIX


def subscription_path(topic: str, name: str) -> str:
    return topic + SUBSCRIPTIONS + name


def split_subscription(path: str) -> tuple[str, str]:
    """Topic and name of a subscription's path; ("", "") if it is none."""
    at = path.lower().find(SUBSCRIPTIONS.lower())
    if at < 0:
        return "", ""
    return path[:at], path[at + len(SUBSCRIPTIONS) :]


def root_key(path: str) -> str:
    """The key of the queue or topic that a path belongs to: itself, a subscription, a rule, a node of it.

    Empty for what belongs to the namespace (`$cbs`, `$Resources/queues`). No part of an entity's name is
    `Subscriptions` or begins with `$`, so the name ends before the first part that is.
    """
    key = entity_key(path)
    if key.startswith("$"):
        return ""
    end = len(key)
    for mark in ("/$", SUBSCRIPTIONS.lower()):
        at = key.find(mark, 0, end)
        if at >= 0:
            end = at
    return key[:end].rstrip("/").removesuffix("/subscriptions").rstrip("/")


def subscription_name_problem(path: str) -> str | None:
    """What is wrong with the path of a subscription, or None."""
    topic, name = split_subscription(path)
    if not topic:
        return "a subscription is named TOPIC/Subscriptions/NAME"
    if len(name) > limits.SUBSCRIPTION_NAME_CHARS_MAX:
        return f"its name has at most {limits.SUBSCRIPTION_NAME_CHARS_MAX} characters, this one has {len(name)}"
    if "/" in name:
        return "the name of a subscription has no '/'"
    return name_problem(name)


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
        if part.lower() == "subscriptions":
            return "no part of an entity name between slashes is 'Subscriptions': that is where subscriptions are"
    return None


def entity_name_problem(name: str) -> str | None:
    """What is wrong with the name of a queue or topic, or None."""
    if split_subscription(name)[0]:
        return "a name without '/Subscriptions/', which leads to the subscriptions of a topic"
    return name_problem(name)


def statuses_of(kind: str) -> tuple[str, ...]:
    """What the status of such an entity can be. Nobody receives from a topic."""
    if kind == TOPIC:
        return STATUS_ACTIVE, STATUS_DISABLED, STATUS_SEND_DISABLED
    return STATUS_ACTIVE, STATUS_DISABLED, STATUS_SEND_DISABLED, STATUS_RECEIVE_DISABLED


def parse_setting_ms(text: str) -> int:
    """The duration of an entity's setting: above zero, `FOR_EVER_MS` for the longest. ValueError where it is none."""
    total_ms = parse_duration_ms(text)
    if total_ms <= 0:  # zero would be taken for for ever
        raise ValueError(text)
    return FOR_EVER_MS if total_ms >= FOR_EVER_DAYS * DAY_MS else total_ms


def duration_text(duration_ms: int) -> str:
    """The setting as .NET's XmlConvert writes a time span: days, hours, minutes, seconds, but none that is zero."""
    if duration_ms == FOR_EVER_MS:
        return FOR_EVER
    days, rest = divmod(duration_ms, DAY_MS)
    hours, rest = divmod(rest, 3_600_000)
    minutes, rest = divmod(rest, 60_000)
    seconds, ms = divmod(rest, 1_000)
    time = (f"{hours}H" if hours else "") + (f"{minutes}M" if minutes else "")
    if seconds or ms:
        time += f"{seconds}" + (f".{ms:03d}".rstrip("0") if ms else "") + "S"
    return "P" + (f"{days}D" if days else "") + (f"T{time}" if time else "")


class EntitySettings:
    """How a queue, topic or subscription is set up; a dead-letter queue has the settings of what it belongs to.

    One class for all of them: what a kind of entity does not have keeps its default.
    """

    def __init__(self) -> None:
        self.lock_duration_ms: int = limits.LOCK_DURATION_MS_DEFAULT
        self.max_delivery_count: int = limits.DELIVERY_COUNT_MAX_DEFAULT
        self.default_ttl_ms: int = FOR_EVER_MS
        self.dead_letter_on_expiry = False
        self.dead_letter_on_filter_error = True  # of a subscription
        self.max_size_mb: int = limits.ENTITY_SIZE_MB_DEFAULT
        self.requires_session = False
        self.is_partitioned = False  # of a queue or topic; never changes
        self.requires_duplicate_detection = False  # of a queue or topic; never changes
        self.duplicate_window_ms: int = limits.DUPLICATE_WINDOW_MS_DEFAULT
        self.rules: list[Rule] = []  # of a subscription
        self.status: str = STATUS_ACTIVE
        self.forward_to = ""  # of a queue or subscription: the queue or topic that gets its messages
        self.forward_dead_letters_to = ""  # and its dead letters
        self.forward_to_address = ""  # the same as an address, where it was given as one: shown so again
        self.forward_dead_letters_address = ""
        self.access_rules: list[AccessRule] = []  # of a queue or topic; what is below it takes them from it
        self.auto_delete_ms: int = FOR_EVER_MS  # how long it must be idle to be deleted
        # What the broker keeps for its administrators and does not act upon.
        self.user_metadata = ""
        self.is_batched = True
        self.is_express = False
        self.supports_ordering = True  # of a topic
        # Set by the broker, never by who asks.
        self.created_ms = 0
        self.updated_ms = 0
        self.duplicates_since_ms = 0  # ids of messages accepted up to then are forgotten for good

    def may_send(self) -> bool:
        return self.status == STATUS_ACTIVE or self.status == STATUS_RECEIVE_DISABLED

    def may_receive(self) -> bool:
        return self.status == STATUS_ACTIVE or self.status == STATUS_SEND_DISABLED

    def retain_unconfigured_of(self, other: "EntitySettings") -> None:
        """What a Config.json cannot express stays as it is, whoever set it."""
        self.dead_letter_on_filter_error = other.dead_letter_on_filter_error
        self.is_partitioned = other.is_partitioned
        self.status = other.status
        self.access_rules = other.access_rules
        self.auto_delete_ms = other.auto_delete_ms
        self.user_metadata = other.user_metadata
        self.is_batched = other.is_batched
        self.is_express = other.is_express
        self.supports_ordering = other.supports_ordering
        if self.forward_to == other.forward_to:
            self.forward_to_address = other.forward_to_address
        if self.forward_dead_letters_to == other.forward_dead_letters_to:
            self.forward_dead_letters_address = other.forward_dead_letters_address
        self.created_ms = other.created_ms
        self.updated_ms = other.updated_ms
        self.duplicates_since_ms = other.duplicates_since_ms

    def to_json(self) -> str:
        """The settings with the rules, for a copy of all of them."""
        return (
            self.to_json_without_rules()[:-1] + ', "rules": [' + ", ".join([one.to_json() for one in self.rules]) + "]}"
        )

    def to_json_without_rules(self) -> str:
        """As they are stored: rules have rows of their own."""
        values: dict[str, object] = {name: getattr(self, name) for name in _PLAIN}
        values["access_rules"] = [rule.to_plain() for rule in self.access_rules]
        return json.dumps(values)


_PLAIN: Final = (
    "lock_duration_ms",
    "max_delivery_count",
    "default_ttl_ms",
    "dead_letter_on_expiry",
    "dead_letter_on_filter_error",
    "max_size_mb",
    "requires_session",
    "is_partitioned",
    "requires_duplicate_detection",
    "status",
    "forward_to",
    "forward_dead_letters_to",
    "forward_to_address",
    "forward_dead_letters_address",
    "auto_delete_ms",
    "user_metadata",
    "is_batched",
    "is_express",
    "supports_ordering",
    "duplicate_window_ms",
    "created_ms",
    "updated_ms",
    "duplicates_since_ms",
)


def settings_from_json(text: str) -> EntitySettings:
    """What was not known when it was written has its default."""
    values = json.loads(text)
    settings = EntitySettings()
    for name in _PLAIN:
        if name in values:
            setattr(settings, name, values[name])
    settings.rules = [rule_from_plain(plain) for plain in values.get("rules", [])]
    settings.access_rules = [access_rule_from_plain(plain) for plain in values.get("access_rules", [])]
    return settings
