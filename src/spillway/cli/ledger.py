"""`spillway ledger`: what was done at a namespace and what it is charged as."""

import json
import re
import sys
from typing import Annotated, Any, Final

import typer

from spillway.cli.control import DATA, CaFile, Data, Namespace, find_broker
from spillway.cli.errors import CommandError, UsageError

WIDTH_PIPED: Final = 160  # where there is no terminal to ask
_FIELD: Final = re.compile(r"'(since|until|entity)'")
FORM: Final = "a day or a time in UTC, like 2027-01-31 or 2027-01-31T12:30"


def command(
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help=f"From when on: {FORM}. 30 days ago by default.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Until when, this day included. Now by default.")
    ] = None,
    entity: Annotated[
        str | None, typer.Option(metavar="PATH", help="One queue, topic, subscription or dead-letter queue.")
    ] = None,
    minutes: Annotated[bool, typer.Option("--minutes", help="Every minute by itself instead of sums.")] = False,
    namespace: Namespace = None,
    data: Data = DATA,
    ca_file: CaFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object a line.")] = False,
) -> None:
    """Show how many operations of each kind there were, by entity: 64 KB units and bytes too.

    From sealed days and up to this moment. What each kind counts: docs/ledger.md.
    """
    from spillway.model.texts import count_text

    query = {"since": since, "until": until, "entity": entity, "by": "minute" if minutes else None}
    asked = {name: value for name, value in query.items() if value is not None}
    try:
        answer = find_broker(namespace, data, ca_file).ask("GET", "ledger", query=asked)
    except CommandError as error:
        if getattr(error.__cause__, "status", 0) != 400:
            raise
        # What was typed is wrong. The names that programs use are the options that people type.
        raise UsageError(*(_FIELD.sub(r"--\1", line) for line in error.lines)) from None
    say_lines(answer) if as_json else say_table(answer, minutes)
    if answer["damaged_rows"]:
        say_missing(f"left out because of damage: {count_text(answer['damaged_rows'], 'row')}")
    for day in answer["unreadable_days"]:
        say_missing(f"left out: {day}")


def say_missing(text: str) -> None:
    print(f"spillway: {text}", file=sys.stderr)


def say_lines(answer: dict[str, Any]) -> None:
    about = {name: answer[name] for name in ("namespace", "since", "until")}
    for row in answer["rows"]:
        print(json.dumps({**about, **row}))


def say_table(answer: dict[str, Any], has_minutes: bool) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    print(f"{answer['namespace']}, {answer['since']} to {answer['until']}")
    table = Table(box=SIMPLE_HEAD)
    if has_minutes:
        table.add_column("minute", no_wrap=True)
    table.add_column("entity", overflow="fold")
    table.add_column("kind", no_wrap=True)
    for name in ("operations", "units", "bytes"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in answer["rows"]:
        table.add_row(*([row["minute"]] if has_minutes else []), row["entity"], row["kind"], *numbers_of(row))
    table.add_section()
    total = {name: sum(row[name] for row in answer["rows"]) for name in ("operations", "units", "bytes")}
    table.add_row(*([""] if has_minutes else []), "all", "", *numbers_of(total))
    Console(width=None if sys.stdout.isatty() else WIDTH_PIPED, markup=False, highlight=False).print(table)


def numbers_of(row: dict[str, Any]) -> list[str]:
    return [f"{row[name]:,}" for name in ("operations", "units", "bytes")]
