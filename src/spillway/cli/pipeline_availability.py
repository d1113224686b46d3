"""`spillway pipeline availability`: outages out of the events of a pairing."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from spillway.cli.errors import CommandError, UsageError
from spillway.cli.pipeline_capture import Master

if TYPE_CHECKING:
    from spillway.spark.outages.availability_summary import AvailabilitySummary

WIDTH_PIPED: Final = 160  # where there is no terminal to ask


def availability(
    events: Annotated[
        list[Path], typer.Option(metavar="DIR", help="Directory or file of events that processes wrote. Repeat.")
    ],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the tables and the quarantine go.")],
    ledger: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]DIR", help="Data directory, or its ledger; NAME: what the pairing calls it. Repeat."
        ),
    ] = None,
    captured: Annotated[
        str | None, typer.Option(metavar="PATH", help="Parquet with entity, sequence_number and message_id.")
    ] = None,
    sender: Annotated[
        str | None, typer.Option(metavar="SQL", help="Who sent a captured message, out of its columns.")
    ] = None,
    position: Annotated[
        str | None, typer.Option(metavar="SQL", help="The number that a captured message has among its sender's.")
    ] = None,
    histories: Annotated[
        Path | None, typer.Option(metavar="DIR", help="What the clients of `spillway lab --keep` wrote down.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write an HTML page with the timeline as a picture.")
    ] = None,
    master: Master = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON.")] = False,
) -> None:
    """Tell outages from the events of a pairing: how long, how many messages, in which order they came home."""
    from spillway.spark.jobs.availability import AvailabilityConfig, AvailabilityError, parse_ledger, run_here
    from spillway.spark.platform.access import OptionError
    from spillway.spark.platform.java import SparkMissing

    config = AvailabilityConfig(
        out=out,
        events=tuple(events),
        ledgers=tuple(parse_ledger(text) for text in ledger or []),
        captured=captured,
        sender=sender,
        position=position,
        histories=histories,
        report=report,
    )
    try:
        summary = run_here(config, master)
    except (OptionError, AvailabilityError) as error:
        raise UsageError(str(error)) from None
    except SparkMissing as error:
        raise CommandError(str(error)) from None
    if as_json:
        print(json.dumps(asdict(summary)))
    else:
        say(summary)


def say(summary: "AvailabilitySummary") -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from spillway.spark.jobs.availability import table_of, words_of

    titles, *rows = table_of(summary)
    if rows:
        table = Table(box=SIMPLE_HEAD)
        for title in titles:
            is_text = title in ("entity", "began (UTC)", "end")
            table.add_column(title, justify="left" if is_text else "right", no_wrap=title != "entity", overflow="fold")
        for row in rows:
            table.add_row(*row)
        Console(width=None if sys.stdout.isatty() else WIDTH_PIPED, markup=False, highlight=False).print(table)
    print("\n".join(words_of(summary)))
