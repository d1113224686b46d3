"""`spillway connection-string`: what to put into an application's settings."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from spillway.cli.control import RunningBroker
from spillway.cli.errors import CommandError, UsageError
from spillway.cli.served import find_served

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


def find(
    data: Path,
    namespace: str | None,
    rule: str | None = None,
    entity: str | None = None,
    is_secondary: bool = False,
) -> str:
    served = find_served(data, namespace)
    root = served.root()
    found = root if rule is None else served.find(rule)
    if entity is not None and rule is not None:
        found = find_entity_rule(data, served.text(root), entity, rule) or found
    if found is None:
        names = ", ".join(each.name for each in served.rules)
        where = "" if entity is None else f" and {entity} has none of this name"
        raise UsageError(f"--rule: there is no such rule; the namespace has {names}{where}")
    return served.text(found, entity or "", is_secondary)


def find_entity_rule(data: Path, connection_string: str, entity: str, name: str) -> "AccessRule | None":
    """Entities and their rules are in the store, which a running broker has to itself: it is asked."""
    from spillway.admin.access import ELEMENT, read_access_rules
    from spillway.admin.atom import children_of, parse_description
    from spillway.admin.http_refusals import HttpRefusal

    ca_file = data / "tls" / "ca.pem"
    broker = RunningBroker(connection_string, ca_file if ca_file.exists() else None)
    status, text = broker.send("GET", f"/{quote(entity.strip('/'))}?api-version=2021-05")
    if status != 200:
        raise CommandError(f"--entity {entity}: the broker answered with HTTP status {status}")
    try:
        fields = children_of(parse_description(text.encode()))
        rules = read_access_rules(fields[ELEMENT])
    except (HttpRefusal, KeyError):
        raise CommandError(f"--entity {entity}: there is no such queue or topic") from None
    return next((rule for rule in rules if rule.name.lower() == name.lower()), None)
