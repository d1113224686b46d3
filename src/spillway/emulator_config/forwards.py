"""Where the entities of a configuration file forward to: queues and topics of the same namespace in the same file."""

from dataclasses import dataclass, field
from typing import Final

from spillway.emulator_config.values import Values
from spillway.model.entity import EntitySettings, entity_key, split_subscription

FORWARD_TO: Final = "ForwardTo"
FORWARD_DEAD_LETTERS_TO: Final = "ForwardDeadLetteredMessagesTo"


@dataclass(frozen=True)
class Forward:
    """A forward that was read, to be checked when all names are known."""

    at: str
    path: str  # of the entity that forwards
    target: str


@dataclass
class Forwards:
    """The forwards of one namespace."""

    values: Values
    read: list[Forward] = field(default_factory=list)

    def read_entity(self, settings: EntitySettings, properties: dict[str, object], at: str, path: str) -> None:
        settings.forward_to = self._text(properties, at, FORWARD_TO, path)
        settings.forward_dead_letters_to = self._text(properties, at, FORWARD_DEAD_LETTERS_TO, path)
        if settings.forward_to and settings.requires_session:
            allowed = '"", with RequiresSession: messages of sessions are not forwarded'
            self.values.problem(f"{at}.{FORWARD_TO}", settings.forward_to, allowed)

    def _text(self, properties: dict[str, object], at: str, key: str, path: str) -> str:
        target = self.values.text(properties, at, key) or ""
        if target:
            self.read.append(Forward(f"{at}.{key}", path, target))
        return target

    def check(self, names: set[str]) -> None:
        """`names` are the keys of all queues and topics."""
        for forward in self.read:
            key = entity_key(forward.target)
            topic = split_subscription(forward.path)[0]
            if key in (entity_key(forward.path), entity_key(topic)):
                self.values.problem(forward.at, forward.target, "a queue or topic other than itself")
            elif key not in names:
                self.values.problem(forward.at, forward.target, "a queue or topic of this namespace in this file")
