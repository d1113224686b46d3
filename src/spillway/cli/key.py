"""`spillway key`: the shared access rules of a data directory, for all its namespaces.

They change the key file. A broker that runs on the directory follows within a second: links of a key that is gone end.
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from spillway.cli.errors import CommandError, UsageError

if TYPE_CHECKING:
    from spillway.model.access import AccessRule

group = typer.Typer(help="Shared access rules of the namespaces: who may send, listen, manage.", no_args_is_help=True)

Data = Annotated[Path, typer.Option("--data", metavar="DIR", help="Data directory of the broker.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
DATA: Final = Path("spillway-data")
PRIMARY: Final = "primary"
SECONDARY: Final = "secondary"
BOTH: Final = "both"


@group.command("list")
def list_rules(
    data: Data = DATA,
    show_keys: Annotated[bool, typer.Option("--show-keys", help="Show the keys too: they are passwords.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the rules that are in force with their rights."""
    from spillway.model.access import rights_text

    is_development = was_development(data)
    rules = in_force(data, is_development)
    if as_json:
        listed = [shown(rule, show_keys) for rule in rules]
        print(json.dumps({"rules": listed, "is_development": is_development}))
        return
    width = max((len(rule.name) for rule in rules), default=0)
    for rule in rules:
        keys = f"  {rule.primary_key}  {rule.secondary_key}" if show_keys else ""
        print(f"{rule.name:{width}}  {rights_text(rule.rights)}{keys}".rstrip())
    if is_development:
        print("Last served with --dev: the first one has the development key, which everybody knows, and no other.")


@group.command("add")
def add(
    name: Annotated[str, typer.Argument(help="Name of the new rule.")],
    rights: Annotated[
        str, typer.Option(metavar="RIGHTS", help="Send, Listen, or both with a comma; or Manage, which has all three.")
    ],
    data: Data = DATA,
    as_json: AsJson = False,
) -> None:
    """Add a rule with two random keys."""
    from spillway.model import limits
    from spillway.model.access import access_name_problem, rights_text
    from spillway.server.keys import new_rule

    wanted = parse_rights(rights)
    problem = access_name_problem(name)
    if problem is not None:
        raise UsageError(f"NAME: {problem}")
    with changing(data) as rules:
        if find(rules, name) is not None:
            raise CommandError(f"there is a rule {name} already")
        if len(rules) >= limits.ACCESS_RULES_MAX:
            raise CommandError(f"there are {limits.ACCESS_RULES_MAX} rules, the most there may be; remove one first")
        made = new_rule(name, wanted)
        rules.append(made)
    how = f"Its connection string: spillway connection-string --rule {name}"
    say(as_json, shown(made, False), f"Added {name} with {rights_text(made.rights)}. {how}")


@group.command("remove")
def remove(
    name: Annotated[str, typer.Argument(help="Name of the rule.")], data: Data = DATA, as_json: AsJson = False
) -> None:
    """Remove a rule, and close what its keys have opened."""
    from spillway.server.keys import KEY_NAME

    if name.lower() == KEY_NAME.lower():
        raise UsageError(
            f"{KEY_NAME} is what the commands themselves use; give it new keys with: spillway key regenerate"
        )
    with changing(data) as rules:
        rules.remove(find_or_refuse(rules, name))
    say(as_json, {"removed": name}, f"Removed {name}.")


@group.command("regenerate")
def regenerate(
    name: Annotated[str, typer.Argument(help="Name of the rule.")],
    key: Annotated[
        str, typer.Option("--key", metavar="WHICH", help="Which key: primary, secondary or both.")
    ] = PRIMARY,
    data: Data = DATA,
    as_json: AsJson = False,
) -> None:
    """Give a rule a new key in place of one of its two, or of both."""
    from spillway.model.access import AccessRule
    from spillway.server.keys import new_key

    if key not in (PRIMARY, SECONDARY, BOTH):
        raise UsageError(f"--key must be {PRIMARY}, {SECONDARY} or {BOTH}")
    with changing(data) as rules:
        old = find_or_refuse(rules, name)
        primary = old.primary_key if key == SECONDARY else new_key()
        secondary = old.secondary_key if key == PRIMARY else new_key()
        made = AccessRule(old.name, old.rights, primary, secondary)
        rules[rules.index(old)] = made
    say(as_json, {"name": made.name, "regenerated": key}, f"{made.name} has a new key ({key}).")


# -- the file ---------------------------------------------------------------------------------------------------------


def read(data: Path) -> "list[AccessRule]":
    from spillway.server.keys import BadKeyFile, read_rules

    with explained(data):
        try:
            rules = read_rules(data)
        except BadKeyFile as error:
            raise CommandError(str(error)) from error
    if rules is None and not data.is_dir():
        raise CommandError(f"{data}: there is no data directory here; the first start of a broker makes it")
    return rules or []


def was_development(data: Path) -> bool:
    """Whether the directory is served, or was last served, with --dev."""
    from spillway.cli.served import find_running

    try:
        return find_running(data).is_development
    except CommandError:
        return False


def in_force(data: Path, is_development: bool) -> "list[AccessRule]":
    from spillway.server.keys import development_rules

    rules = read(data)
    return development_rules(rules) if is_development else rules


@contextlib.contextmanager
def changing(data: Path) -> "Iterator[list[AccessRule]]":
    """The rules, to be changed in place; written when the block ends well."""
    from spillway.server.keys import locked, with_root, write_rules

    read(data)
    with explained(data), locked(data):
        rules = with_root(read(data))
        yield rules
        write_rules(data, rules)


@contextlib.contextmanager
def explained(data: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CommandError(f"{error.filename or data}: {error.strerror or error}") from error


# -- small things -----------------------------------------------------------------------------------------------------


def parse_rights(text: str) -> int:
    from spillway.model.access import rights_of, rights_problem

    names = [name.strip().capitalize() for name in text.split(",")]
    if names == ["Manage"]:
        names = ["Manage", "Send", "Listen"]
    problem = rights_problem(names)
    if problem is not None:
        raise UsageError(f"--rights {text[:100]}: {problem}")
    return rights_of(names)


def find(rules: "list[AccessRule]", name: str) -> "AccessRule | None":
    return next((rule for rule in rules if rule.name.lower() == name.lower()), None)


def find_or_refuse(rules: "list[AccessRule]", name: str) -> "AccessRule":
    found = find(rules, name)
    if found is None:
        # Not repeated: it may be a key.
        raise CommandError(f"there is no such rule; there is: {', '.join(rule.name for rule in rules)}")
    return found


def shown(rule: "AccessRule", has_keys: bool) -> dict[str, object]:
    from spillway.model.access import rights_names

    plain: dict[str, object] = {"name": rule.name, "rights": rights_names(rule.rights)}
    if has_keys:
        plain |= {"primary_key": rule.primary_key, "secondary_key": rule.secondary_key}
    return plain


def say(as_json: bool, value: dict[str, object], text: str) -> None:
    print(json.dumps(value) if as_json else text)
