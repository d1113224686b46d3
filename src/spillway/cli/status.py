"""`spillway status`: what a running namespace is and holds."""

import json
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer

from spillway.cli.control import DATA, CaFile, Data, Namespace, find_broker

COUNTS: Final = ("active", "scheduled", "deferred", "dead_letters")


def command(
    namespace: Namespace = None,
    data: Data = DATA,
    ca_file: CaFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show a running namespace in numbers: entities, messages, connections.

    Exits with status 1 if no broker answers.
    """
    broker = find_broker(namespace, data, ca_file)
    facts = broker.ask("GET", "status")
    counts = broker.ask("GET", "counts")
    if as_json:
        print(json.dumps({**facts, **counts}))
        return
    width = max(len(name) for name in facts)
    for name, value in facts.items():
        print(f"{in_words(name.removeprefix('is_')) + ':':{width + 1}} {shown(value)}")
    say_counts(counts)


def in_words(name: str) -> str:
    return name.replace("_", " ")


def shown(value: object) -> str:
    """A value for people: no brackets, no quotes."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, dict):
        return ", ".join(pair_shown(str(name), each) for name, each in value.items()) or "none"
    if isinstance(value, list):
        return "; ".join(shown(each) for each in value) or "none"
    return str(value)


def pair_shown(name: str, value: object) -> str:
    """A moment, which programs have in milliseconds, as a time."""
    if name == "since_ms" and isinstance(value, int):
        return f"since {datetime.fromtimestamp(value / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
    return f"{in_words(name)} {shown(value)}"


def say_counts(counts: dict[str, Any]) -> None:
    """A table, a line an entity."""
    entities = counts["entities"]
    if not entities:
        return
    print()
    print("  ".join([*(in_words(name) for name in COUNTS), "queue, topic or subscription"]))
    for each in entities:
        numbers = [f"{each[name]:>{len(name)},}" for name in COUNTS]
        print("  ".join([*numbers, each["path"]]))
    if counts["left_out"]:
        print(f"and {counts['left_out']:,} more")
