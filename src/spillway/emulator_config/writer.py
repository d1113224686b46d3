"""Writes a namespace as a `Config.json` of Microsoft's emulator, and a line for everything that such a file cannot say.

The order is always the same, and every property is said: the emulator's defaults are others than Azure's. What is
written here `reader.py` reads back to the same entities.
"""

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from spillway.emulator_config.entities import EntityConfig, NamespaceConfig
from spillway.emulator_config.properties import KEPT_BY_THE_BROKER, OURS, PROPERTIES, PROPERTIES_OF, UNSAID
from spillway.emulator_config.rule_writer import write_rules
from spillway.model.entity import (
    FOR_EVER_MS,
    QUEUE,
    SUBSCRIPTION,
    TOPIC,
    EntitySettings,
    duration_text,
    entity_key,
    split_subscription,
)

TTL_MS_MIN: Final = 1_000  # the least that the file can say
DEFAULTS: Final[dict[str, Any]] = json.loads(EntitySettings().to_json_without_rules())


@dataclass(frozen=True)
class WrittenConfig:
    """The content of a file, and one line for everything that is not in it."""

    content: dict[str, Any]
    warnings: list[str] = field(default_factory=list)


def write_config(namespace: NamespaceConfig) -> WrittenConfig:
    """The entities may be in any order: the file has them by name."""
    warnings: list[str] = []
    subscriptions: dict[str, list[EntityConfig]] = defaultdict(list)  # by the key of their topic
    for each in by_name(namespace.entities, SUBSCRIPTION):
        subscriptions[entity_key(split_subscription(each.path)[0])].append(each)
    written = {
        "Name": namespace.name,
        "Queues": [entity_of(each, each.path, warnings) for each in by_name(namespace.entities, QUEUE)],
        "Topics": [
            topic_of(each, subscriptions.pop(entity_key(each.path), []), warnings)
            for each in by_name(namespace.entities, TOPIC)
        ],
    }
    assert not subscriptions, "a subscription comes with its topic"
    content = {"UserConfig": {"Namespaces": [written], "Logging": {"Type": "Console"}}}
    return WrittenConfig(content, warnings)


def by_name(entities: Iterable[EntityConfig], kind: str) -> list[EntityConfig]:
    """The entities of one kind, in the order of the file."""
    return sorted((each for each in entities if each.kind == kind), key=lambda each: entity_key(each.path))


def topic_of(topic: EntityConfig, subscriptions: list[EntityConfig], warnings: list[str]) -> dict[str, Any]:
    written = entity_of(topic, topic.path, warnings)
    written["Subscriptions"] = []
    for subscription in subscriptions:
        made = entity_of(subscription, split_subscription(subscription.path)[1], warnings)
        made["Rules"] = write_rules(subscription.path, subscription.settings.rules, warnings)
        written["Subscriptions"].append(made)
    return written


def entity_of(entity: EntityConfig, name: str, warnings: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(entity.settings.to_json_without_rules())
    properties = {key: property_of(PROPERTIES[key], values) for key in PROPERTIES_OF[entity.kind]}
    for key in OURS:
        if values[PROPERTIES[key]] == DEFAULTS[PROPERTIES[key]]:
            properties.pop(key, None)
    if 0 < values["default_ttl_ms"] < TTL_MS_MIN:
        ttl = duration_text(values["default_ttl_ms"])
        warnings.append(
            f"{entity.kind} {entity.path}: DefaultMessageTimeToLive is {ttl}; PT1S is the least in Config.json"
        )
    missing = unsaid(values, {PROPERTIES[key] for key in PROPERTIES_OF[entity.kind]})
    if missing:
        warnings.append(f"{entity.kind} {entity.path}: Config.json cannot express {', '.join(missing)}")
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
