"""What `spillway serve` is asked for: namespaces, what they must hold, and how they are served."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spillway.model.entity import EntitySettings
    from spillway.model.quotas import Quotas


@dataclass(frozen=True)
class EntityPlan:
    """An entity that must be there. Without settings it is made if missing, else left as it is."""

    kind: str
    path: str
    settings: "EntitySettings | None" = None

    @property
    def is_forwarding(self) -> bool:
        settings = self.settings
        return settings is not None and bool(settings.forward_to or settings.forward_dead_letters_to)

    def without_forwarding(self) -> "EntityPlan":
        """The entity as it can be made before what it forwards to is there."""
        from spillway.model.entity import settings_from_json

        assert self.settings is not None
        settings = settings_from_json(self.settings.to_json())
        settings.forward_to = settings.forward_dead_letters_to = ""
        return EntityPlan(self.kind, self.path, settings)


@dataclass(frozen=True)
class NamespacePlan:
    """A namespace to serve and what it must hold, a topic before its subscriptions."""

    name: str
    port: int
    entities: list[EntityPlan] = field(default_factory=list)


@dataclass(frozen=True)
class ServePlan:
    """What the command line and the configuration file ask for, checked."""

    namespaces: list[NamespacePlan]
    host: str
    data: Path | None  # None: in memory, nothing kept
    is_memory: bool
    is_development: bool
    is_clear_text_allowed: bool
    is_clock_movable: bool
    also_ports: tuple[int, ...]
    allowed_hosts: frozenset[str]
    quotas: "Quotas"
    loop: str  # auto, uvloop or asyncio
    delivers_early: bool
    is_json: bool
    log_level: str
    warnings: list[str]
