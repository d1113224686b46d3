"""`spillway connection-string`: what to put into an application's settings."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from spillway.cli.errors import CommandError, UsageError

if TYPE_CHECKING:
    from spillway.model.access import AccessRule


def command(
    namespace: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which namespace, if the directory has several.")
    ] = None,
    data: Annotated[Path, typer.Option(metavar="DIR", help="Data directory of the broker.")] = Path("spillway-data"),
    rule: Annotated[
        str | None, typer.Option(metavar="NAME", help="The shared access rule; by default the one with all rights.")
    ] = None,
    entity: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="For this queue or topic only; its own rules are looked at first."),
    ] = None,
    secondary: Annotated[bool, typer.Option("--secondary", help="With the rule's second key.")] = False,
) -> None:
    """Print the connection string of a namespace.

    It names the port on which the namespace was last served. The rule of an entity is asked of the running broker.
    """
    print(find(data, namespace, rule, entity, secondary))


@dataclass(frozen=True)
class Served:
    """Where a namespace was last served, and the rules of its data directory."""

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


def find(
    data: Path,
    namespace: str | None,
    rule: str | None = None,
    entity: str | None = None,
    is_secondary: bool = False,
) -> str:
    from spillway.server.keys import KEY_NAME

    served = find_served(data, namespace)
    root = served.find(KEY_NAME)
    if root is None:
        raise CommandError(f"{data}: the key file is missing; a start of the broker makes a new one")
    found = root if rule is None else served.find(rule)
    if entity is not None and rule is not None:
        found = find_entity_rule(data, served.text(root), entity, rule) or found
    if found is None:
        names = ", ".join(each.name for each in served.rules)
        where = "" if entity is None else f" and {entity} has none of this name"
        raise UsageError(f"--rule: there is no such rule; the namespace has {names}{where}")
    return served.text(found, entity or "", is_secondary)


def served_names(data: Path) -> list[str]:
    """The namespaces that were last served from this directory."""
    return list(read_facts(data)["ports"])


def read_facts(data: Path) -> dict[str, Any]:
    from spillway.store.own_files import NotOurFile, read_own

    try:
        facts = json.loads(read_own(data / "running.json"))
        return {name: facts[name] for name in ("host", "ports", "is_development", "is_clear_text")}
    except NotOurFile as error:
        raise CommandError(f"{error.filename}: {error.strerror}") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CommandError(f"{data}: no broker has served from here yet; start one with: spillway serve") from error


def find_served(data: Path, namespace: str | None) -> Served:
    from spillway.server.keys import BadKeyFile, served_rules

    facts = read_facts(data)
    ports: dict[str, int] = facts["ports"]
    host: str = facts["host"]
    is_clear_text = bool(facts["is_clear_text"])
    is_development = bool(facts["is_development"])
    try:
        rules = served_rules(data, is_development, is_made=False)
    except BadKeyFile as error:
        raise CommandError(str(error)) from error
    except OSError as error:
        raise CommandError(f"{error.filename or data}: {error.strerror}") from error
    if namespace is None and len(ports) > 1:
        raise UsageError(f"--namespace is missing: one of {', '.join(ports)}")
    name = namespace or next(iter(ports))
    if name not in ports:
        raise UsageError(f"--namespace {name}: this directory has {', '.join(ports)}")
    return Served(host, ports[name], is_clear_text, rules)


def find_entity_rule(data: Path, connection_string: str, entity: str, name: str) -> "AccessRule | None":
    """Entities and their rules are in the store, which a running broker has to itself: it is asked."""
    from spillway.admin.access import ELEMENT, read_access_rules
    from spillway.admin.atom import children_of, parse_description
    from spillway.admin.faults import Fault
    from spillway.cli.control import Broker

    ca_file = data / "tls" / "ca.pem"
    broker = Broker(connection_string, ca_file if ca_file.exists() else None)
    status, text = broker.send("GET", f"/{quote(entity.strip('/'))}?api-version=2021-05")
    if status != 200:
        raise CommandError(f"--entity {entity}: the broker answered with HTTP status {status}")
    try:
        fields = children_of(parse_description(text.encode()))
        rules = read_access_rules(fields[ELEMENT])
    except (Fault, KeyError):
        raise CommandError(f"--entity {entity}: there is no such queue or topic") from None
    return next((rule for rule in rules if rule.name.lower() == name.lower()), None)
