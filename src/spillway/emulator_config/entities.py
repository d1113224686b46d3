"""What a `Config.json` is about: namespaces and their entities, as the reader gives and the writer takes them."""

from dataclasses import dataclass

from spillway.model.entity import EntitySettings


@dataclass(frozen=True)
class EntityConfig:
    """A queue, topic or subscription. Settings without rules: the file says nothing about a subscription's rules."""

    kind: str
    path: str
    settings: EntitySettings


@dataclass(frozen=True)
class NamespaceConfig:
    """A namespace by its name."""

    name: str
    entities: list[EntityConfig]  # a topic before its subscriptions
