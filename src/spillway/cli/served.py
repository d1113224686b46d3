"""Where the namespaces of a data directory were last served, and by which rules."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from spillway.cli.errors import CommandError, UsageError

if TYPE_CHECKING:
    from spillway.hosting.running_file import Running
    from spillway.model.access import AccessRule


@dataclass(frozen=True)
class Served:
    """Where a namespace was last served, and the rules of its data directory."""

    data: Path
    host: str
    port: int
    is_clear_text: bool
    rules: "list[AccessRule]"

    def text(self, rule: "AccessRule", entity: str = "", is_secondary: bool = False) -> str:
        from spillway.server.keys import connection_string

        key = rule.secondary_key if is_secondary else rule.primary_key
        if not key:
            raise CommandError(f"the rule {rule.name} has no second key; make one with: spillway key regenerate")
        return connection_string(self.host, self.port, key, self.is_clear_text, rule.name, entity)

    def find(self, name: str) -> "AccessRule | None":
        return next((rule for rule in self.rules if rule.name.lower() == name.lower()), None)

    def root(self) -> "AccessRule":
        """The rule with all rights."""
        from spillway.server.keys import KEY_NAME

        found = self.find(KEY_NAME)
        if found is None:
            raise CommandError(f"{self.data}: the key file is missing; a start of the broker makes a new one")
        return found


def served_names(data: Path) -> list[str]:
    """The namespaces that were last served from this directory."""
    return list(find_running(data).ports)


def find_running(data: Path) -> "Running":
    """How this directory is served, or was last."""
    from spillway.hosting.running_file import read_running
    from spillway.store.own_files import NotOurFile

    try:
        return read_running(data)
    except NotOurFile as error:
        raise CommandError(f"{error.filename}: {error.strerror}") from error
    except (OSError, ValueError) as error:
        raise CommandError(f"{data}: no broker has served from here yet; start one with: spillway serve") from error


def find_served(data: Path, namespace: str | None) -> Served:
    from spillway.server.keys import BadKeyFile, served_rules

    running = find_running(data)
    ports = running.ports
    try:
        rules = served_rules(data, running.is_development, is_made=False)
    except BadKeyFile as error:
        raise CommandError(str(error)) from error
    except OSError as error:
        raise CommandError(f"{error.filename or data}: {error.strerror}") from error
    if namespace is None and len(ports) > 1:
        raise UsageError(f"--namespace is missing: one of {', '.join(ports)}")
    name = namespace or next(iter(ports))
    if name not in ports:
        raise UsageError(f"--namespace {name}: this directory has {', '.join(ports)}")
    return Served(data, running.host, ports[name], running.is_clear_text, rules)


def root_connection_string(data: Path, namespace: str | None) -> str:
    """A connection string with all rights to the namespace."""
    served = find_served(data, namespace)
    return served.text(served.root())
