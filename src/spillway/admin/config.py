"""`/$spillway/config`: a namespace as a `Config.json` of Microsoft's emulator, and what such a file has no words for.

The order is always the same, every property is said (the emulator's defaults are others than Azure's), and the file can
be read by `spillway serve --config`. `cli/config_file.py` reads what is written here.
"""

import json
from functools import partial
from typing import Any, Final

from spillway.admin import faults
from spillway.admin.config_rules import write_rules
from spillway.admin.durations import duration_text
from spillway.admin.namespace import AdministeredNamespace
from spillway.admin.resource import ControlCall
from spillway.broker.commands import ListEntities, Request
from spillway.broker.effects import Answer, Description, Descriptions, Failed
from spillway.model.entity import (
    FOR_EVER_MS,
    QUEUE,
    SUBSCRIPTION,
    TOPIC,
    EntitySettings,
    entity_key,
    split_subscription,
)

ALL: Final = 10_000_000
TTL_MS_MIN: Final = 1_000  # the least that the file can say
OF_QUEUES_AND_TOPICS: Final = (
    "DuplicateDetectionHistoryTimeWindow",
    "MaxSizeInMegabytes",
    "RequiresDuplicateDetection",
)
OURS: Final = ("MaxSizeInMegabytes",)  # unknown to the emulator: left out where it is as by default
# Each with its name in `EntitySettings`; a duration's name ends with its unit.
PROPERTIES: Final = {
    "DeadLetteringOnMessageExpiration": "dead_letter_on_expiry",
    "DefaultMessageTimeToLive": "default_ttl_ms",
    "DuplicateDetectionHistoryTimeWindow": "duplicate_window_ms",
    "ForwardDeadLetteredMessagesTo": "forward_dead_letters_to",
    "ForwardTo": "forward_to",
    "LockDuration": "lock_duration_ms",
    "MaxDeliveryCount": "max_delivery_count",
    "MaxSizeInMegabytes": "max_size_mb",
    "RequiresDuplicateDetection": "requires_duplicate_detection",
    "RequiresSession": "requires_session",
}
PROPERTIES_OF: Final = {
    QUEUE: tuple(PROPERTIES),
    TOPIC: ("DefaultMessageTimeToLive", *OF_QUEUES_AND_TOPICS),
    SUBSCRIPTION: tuple(name for name in PROPERTIES if name not in OF_QUEUES_AND_TOPICS),
}
# What is not among them, as the administration calls it.
UNSAID: Final = {
    "access_rules": "AuthorizationRules",
    "auto_delete_ms": "AutoDeleteOnIdle",
    "dead_letter_on_filter_error": "DeadLetteringOnFilterEvaluationExceptions",
    "is_batched": "EnableBatchedOperations",
    "is_express": "EnableExpress",
    "is_partitioned": "EnablePartitioning",
    "status": "Status",
    "supports_ordering": "SupportOrdering",
    "user_metadata": "UserMetadata",
}
KEPT_BY_THE_BROKER: Final = (
    *("created_ms", "updated_ms", "duplicates_since_ms", "rules"),
    *("forward_to_address", "forward_dead_letters_address"),  # another spelling of what the file says
)


class ConfigResource:
    methods = ("GET",)

    def __init__(self, namespace: AdministeredNamespace) -> None:
        self.namespace = namespace

    async def answer(self, call: ControlCall) -> object:
        """The file, and one line for everything that is not in it."""
        ask = self.namespace.pump.ask_together
        queues, topics = [
            listed(answer) for answer in await ask([partial(_list, QUEUE, ""), partial(_list, TOPIC, "")])
        ]
        subscriptions = await ask([partial(_list, SUBSCRIPTION, topic.path) for topic in topics])
        warnings: list[str] = []
        namespace = {
            "Name": self.namespace.name,
            "Queues": [entity_of(queue, queue.path, warnings) for queue in queues],
            "Topics": [
                topic_of(topic, listed(found), warnings) for topic, found in zip(topics, subscriptions, strict=True)
            ],
        }
        config = {"UserConfig": {"Namespaces": [namespace], "Logging": {"Type": "Console"}}}
        return {"config": config, "warnings": warnings}


def _list(kind: str, path: str, number: int) -> Request:
    return ListEntities(number, kind, path, 0, ALL)


def listed(answer: Answer) -> list[Description]:
    """By name."""
    if isinstance(answer, Failed):
        raise faults.of_broker(answer.error)
    assert isinstance(answer, Descriptions), "descriptions were asked for"
    return sorted(answer.descriptions, key=lambda shown: entity_key(shown.path))


def topic_of(topic: Description, subscriptions: list[Description], warnings: list[str]) -> dict[str, Any]:
    written = entity_of(topic, topic.path, warnings)
    written["Subscriptions"] = []
    for subscription in subscriptions:
        made = entity_of(subscription, split_subscription(subscription.path)[1], warnings)
        made["Rules"] = write_rules(subscription.path, subscription.settings.rules, warnings)
        written["Subscriptions"].append(made)
    return written


def entity_of(shown: Description, name: str, warnings: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(shown.settings.to_json_without_rules())
    properties = {key: property_of(PROPERTIES[key], values) for key in PROPERTIES_OF[shown.kind]}
    for key in OURS:
        if values[PROPERTIES[key]] == DEFAULTS[PROPERTIES[key]]:
            properties.pop(key, None)
    if 0 < values["default_ttl_ms"] < TTL_MS_MIN:
        ttl = duration_text(values["default_ttl_ms"])
        warnings.append(
            f"{shown.kind} {shown.path}: DefaultMessageTimeToLive is {ttl}; PT1S is the least in Config.json"
        )
    missing = unsaid(values, {PROPERTIES[key] for key in PROPERTIES_OF[shown.kind]})
    if missing:
        warnings.append(f"{shown.kind} {shown.path}: Config.json has no words for {', '.join(missing)}")
    return {"Name": name, "Properties": properties}


def property_of(name: str, values: dict[str, Any]) -> object:
    value = values[name]
    if name == "default_ttl_ms" and value != FOR_EVER_MS:
        value = max(value, TTL_MS_MIN)
    return duration_text(value) if name.endswith("_ms") else value


def unsaid(values: dict[str, Any], said: set[str]) -> list[str]:
    """What is set up otherwise than by default, and is not in the file."""
    names = [name for name in values if name not in said and name not in KEPT_BY_THE_BROKER]
    return sorted(UNSAID.get(name, name) for name in names if values[name] != DEFAULTS[name])


DEFAULTS: Final[dict[str, Any]] = json.loads(EntitySettings().to_json_without_rules())
