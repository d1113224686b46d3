"""Reads the `Config.json` of Microsoft's Service Bus emulator.

Keys and defaults are the emulator's; the ranges are Azure's where those are wider. Every mistake becomes exactly one
line: file, JSON path, value, what is allowed. All of them are found in one go, so that mending a file takes one round.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spillway.emulator_config.entities import EntityConfig, NamespaceConfig
from spillway.emulator_config.forwards import Forwards
from spillway.emulator_config.properties import (
    LOGGING_KEYS,
    LOGGING_TYPES,
    NAMESPACE_KEYS,
    PROPERTIES_OF,
    QUEUE_KEYS,
    ROOT_KEYS,
    SUBSCRIPTION_KEYS,
    TOPIC_KEYS,
    USER_CONFIG_KEYS,
)
from spillway.emulator_config.rule_reader import read_rules
from spillway.emulator_config.values import ConfigError, JsonObject, Values, parse_json, read_text, shown
from spillway.model import limits
from spillway.model.entity import (
    QUEUE,
    SUBSCRIPTION,
    SUBSCRIPTIONS,
    TOPIC,
    EntitySettings,
    entity_key,
    entity_name_problem,
    subscription_name_problem,
    subscription_path,
)
from spillway.model.namespaces import namespace_name_problem
from spillway.model.rules import default_rule

PROBLEMS_SHOWN_MAX: Final = 20

SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60 * SECOND_MS
DAY_MS: Final = 24 * 60 * MINUTE_MS

# What the emulator takes where a file says nothing.
DEFAULT_TIME_TO_LIVE_MS: Final = 60 * MINUTE_MS
DEFAULT_LOCK_DURATION_MS: Final = MINUTE_MS
DEFAULT_MAX_DELIVERY_COUNT: Final = 3


@dataclass(frozen=True)
class EmulatorConfig:
    """What a file asks for, and what about it Azure would refuse although it is served here."""

    namespaces: list[NamespaceConfig]
    warnings: list[str]


def read_config(path: Path) -> EmulatorConfig:
    """The namespaces of a file, or a `ConfigError` with every mistake in it."""
    values = Values(path)
    namespaces = _Reader(values).root(parse_json(path, read_text(path)))
    if values.problems:
        lines = values.problems[:PROBLEMS_SHOWN_MAX]
        if len(values.problems) > len(lines):
            lines.append(f"{path}: and {len(values.problems) - len(lines)} more mistakes")
        raise ConfigError(*lines)
    return EmulatorConfig(namespaces, values.warnings)


class _Reader:
    """The shape of the file."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self.forwards = Forwards(values)  # of the namespace that is being read

    def root(self, value: object) -> list[NamespaceConfig]:
        values = self.values
        root = values.members(value, "$", ROOT_KEYS, required=ROOT_KEYS)
        if "UserConfig" not in root:
            return []
        user = values.members(root["UserConfig"], "$.UserConfig", USER_CONFIG_KEYS, required=("Namespaces",))
        if "Logging" in user:
            self.logging(user["Logging"], "$.UserConfig.Logging")
        if "Namespaces" not in user:
            return []
        at = "$.UserConfig.Namespaces"
        items = values.array(user["Namespaces"], at)
        if not items and isinstance(user["Namespaces"], list):
            values.problem(at, [], "at least one namespace")
        names: dict[str, str] = {}
        return [self.namespace(item, f"{at}[{index}]", names) for index, item in enumerate(items)]

    def logging(self, value: object, at: str) -> None:
        """Checked so that a slip is seen; spillway's log goes to stderr whatever it says."""
        logging = self.values.members(value, at, LOGGING_KEYS)
        if "Type" in logging and logging["Type"] not in LOGGING_TYPES:
            self.values.problem(f"{at}.Type", logging["Type"], " or ".join(LOGGING_TYPES))

    def namespace(self, value: object, at: str, names: dict[str, str]) -> NamespaceConfig:
        values = self.values
        self.forwards = Forwards(values)
        namespace = values.members(value, at, NAMESPACE_KEYS, required=("Name",))
        name = values.name(namespace, at, names, namespace_name_problem)
        paths: dict[str, str] = {}  # of all entities: a topic and a queue cannot have one name
        entities: list[EntityConfig] = []
        for index, item in enumerate(values.array(namespace.get("Queues", []), f"{at}.Queues")):
            entities.append(self.queue(item, f"{at}.Queues[{index}]", paths))
        for index, item in enumerate(values.array(namespace.get("Topics", []), f"{at}.Topics")):
            entities += self.topic(item, f"{at}.Topics[{index}]", paths)
        self.forwards.check({entity_key(each.path) for each in entities if each.kind != SUBSCRIPTION})
        return NamespaceConfig(name, entities)

    def queue(self, value: object, at: str, paths: dict[str, str]) -> EntityConfig:
        queue = self.values.members(value, at, QUEUE_KEYS, required=("Name",))
        path = self.values.name(queue, at, paths, entity_name_problem)
        return EntityConfig(QUEUE, path, self.settings(queue, at, PROPERTIES_OF[QUEUE], path))

    def topic(self, value: object, at: str, paths: dict[str, str]) -> list[EntityConfig]:
        """The topic, then its subscriptions."""
        values = self.values
        topic = values.members(value, at, TOPIC_KEYS, required=("Name",))
        path = values.name(topic, at, paths, entity_name_problem)
        entities = [EntityConfig(TOPIC, path, self.settings(topic, at, PROPERTIES_OF[TOPIC], path))]
        at = f"{at}.Subscriptions"
        items = values.array(topic.get("Subscriptions", []), at)
        for index, item in enumerate(items):
            entities.append(self.subscription(item, f"{at}[{index}]", path, paths))
        return entities

    def subscription(self, value: object, at: str, topic: str, paths: dict[str, str]) -> EntityConfig:
        def problem(name: str) -> str | None:
            return subscription_name_problem(subscription_path("topic", name))

        values = self.values
        subscription = values.members(value, at, SUBSCRIPTION_KEYS, required=("Name",))
        name = values.name(subscription, at, paths, problem, prefix=topic + SUBSCRIPTIONS)
        path = subscription_path(topic, name)
        settings = self.settings(subscription, at, PROPERTIES_OF[SUBSCRIPTION], path)
        if "Rules" in subscription:
            items = values.array(subscription["Rules"], f"{at}.Rules")
            settings.rules = read_rules(values, items, f"{at}.Rules") or [default_rule(0)]
        return EntityConfig(SUBSCRIPTION, path, settings)

    def settings(self, entity: dict[str, object], at: str, keys: tuple[str, ...], path: str) -> EntitySettings:
        """What a kind of entity has no key for keeps its default."""
        values = self.values
        at = f"{at}.Properties"
        properties = values.members(entity.get("Properties", JsonObject([])), at, keys)
        settings = EntitySettings()
        settings.default_ttl_ms = values.duration(
            properties, at, "DefaultMessageTimeToLive", DEFAULT_TIME_TO_LIVE_MS, SECOND_MS, None, "PT1S to for ever"
        )
        if "MaxSizeInMegabytes" in keys:
            settings.max_size_mb = values.integer(
                properties, at, "MaxSizeInMegabytes", limits.ENTITY_SIZE_MB_DEFAULT, 1, limits.ENTITY_SIZE_MB_MAX
            )
        if "LockDuration" in keys:
            settings.requires_session = values.boolean(properties, at, "RequiresSession")
            settings.dead_letter_on_expiry = values.boolean(properties, at, "DeadLetteringOnMessageExpiration")
            settings.lock_duration_ms = values.duration(
                properties,
                at,
                "LockDuration",
                DEFAULT_LOCK_DURATION_MS,
                limits.LOCK_DURATION_MS_MIN,
                limits.LOCK_DURATION_MS_MAX,
                "PT5S to PT5M",
            )
            settings.max_delivery_count = values.integer(
                properties, at, "MaxDeliveryCount", DEFAULT_MAX_DELIVERY_COUNT, 1, limits.DELIVERY_COUNT_MAX_MAX
            )
            self.forwards.read_entity(settings, properties, at, path)
        if "RequiresDuplicateDetection" in keys:
            settings.requires_duplicate_detection = values.boolean(properties, at, "RequiresDuplicateDetection")
            settings.duplicate_window_ms = self.duplicate_window(properties, at)
        return settings

    def duplicate_window(self, properties: dict[str, object], at: str) -> int:
        """The emulator allows less than Azure does."""
        key = "DuplicateDetectionHistoryTimeWindow"
        window_ms = self.values.duration(properties, at, key, 20 * SECOND_MS, 5 * SECOND_MS, 7 * DAY_MS, "PT5S to P7D")
        if 0 < window_ms < 20 * SECOND_MS:
            given = shown(key, properties[key])
            self.values.warnings.append(f"{self.values.path}: {at}.{key}: {given}: Azure allows PT20S to P7D")
        return window_ms
