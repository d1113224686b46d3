"""`spillway lab`: rehearse an outage with two real namespaces, and see that nothing is lost."""

import json
import math
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spillway.cli.errors import CommandError, UsageError

if TYPE_CHECKING:
    from spillway.lab.run import Settings

BREAKS = ("ack-before-send",)


def command(
    scenario: Annotated[
        str, typer.Option(metavar="NAME", help="What goes wrong: one of those in the guide, or all of them.")
    ] = "kill",
    messages: Annotated[int, typer.Option(metavar="N", help="How many to send.", min=1_000, max=10_000_000)] = 20_000,
    rate: Annotated[
        float, typer.Option(metavar="R", help="How many a second, of all producers; 0: as fast as they can.", min=0)
    ] = 1_000.0,
    size: Annotated[int, typer.Option(metavar="BYTES", help="Size of a body.", min=1, max=100_000)] = 200,
    as_json: Annotated[
        bool, typer.Option("--json", help="The last line on stdout is the verdict as JSON; the rest is on stderr.")
    ] = False,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write an HTML page with the timeline as a picture.")
    ] = None,
    keep: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep histories, logs and data in this new directory.")
    ] = None,
    break_with: Annotated[
        str | None,
        typer.Option("--break", metavar="LIE", help="Plant a lie that the verdict must find: ack-before-send."),
    ] = None,
) -> None:
    """Start two namespaces, send, break one, mend it, and judge from what every client wrote down.

    Exits with status 1 if any acknowledged message was lost.
    """
    from spillway.lab.run import Settings

    names = check(scenario, rate, report, keep, break_with)
    results = rehearse(names, Settings(messages, rate, size, break_with), report, keep, as_json)
    if any(found["problems"] for found in results):
        raise typer.Exit(1)


def check(scenario: str, rate: float, report: Path | None, keep: Path | None, break_with: str | None) -> list[str]:
    """The scenarios to run. Nothing is started if an option is wrong."""
    from spillway.lab.scenarios import SCENARIOS

    if scenario != "all" and scenario not in SCENARIOS:
        raise UsageError(f"--scenario {scenario}: must be all or one of {', '.join(SCENARIOS)}")
    if not math.isfinite(rate):
        raise UsageError(f"--rate {rate}: must be a number of messages a second, or 0")
    if break_with is not None and break_with not in BREAKS:
        raise UsageError(f"--break {break_with}: must be {', '.join(BREAKS)}")
    if keep is not None and keep.exists():
        raise UsageError(f"--keep {keep}: exists already; name a directory that does not")
    if report is not None:
        if report.is_dir():
            raise UsageError(f"--report {report}: is a directory; name a file")
        if not report.absolute().parent.is_dir() or not os.access(report.absolute().parent, os.W_OK):
            raise UsageError(f"--report {report}: its directory is not there, or cannot be written to")
    return list(SCENARIOS) if scenario == "all" else [scenario]


def rehearse(
    names: list[str], settings: "Settings", report: Path | None, keep: Path | None, as_json: bool
) -> list[dict[str, Any]]:
    from rich.console import Console

    from spillway.client.control import ControlError
    from spillway.lab.guard import Guard
    from spillway.lab.processes import LabError
    from spillway.lab.report import Part, write_report
    from spillway.lab.run import Lab
    from spillway.lab.scenarios import scenario_of
    from spillway.lab.screen import Screen, show_results, verdict_text
    from spillway.lab.verdict import FIELDS

    console = Console(stderr=True)
    results: list[dict[str, Any]] = []
    parts: list[Part] = []
    root = keep or Path(tempfile.mkdtemp(prefix="spillway-lab-"))
    with Guard() as guard:
        if keep is None:
            guard.watch_directory(root)
        try:
            for name in names:
                scenario = scenario_of(name)
                (root / name).mkdir(parents=True)
                with Screen(console, scenario, settings.messages) as screen:
                    found = Lab(scenario, settings, root / name, guard, screen.show).run()
                results.append(found)
                if len(names) > 1:
                    console.print(verdict_text(found), soft_wrap=True)
                if as_json:
                    print(json.dumps({name: found[name] for name in FIELDS}), flush=True)
                if report is not None:
                    parts.append(Part.of(found, scenario, root / name))
                    write_report(report, parts, in_words(settings))
        except (LabError, ControlError, OSError) as error:
            raise CommandError(f"the lab itself failed, which says nothing about any message: {error}") from error
    shown = console if as_json else Console(file=sys.stdout)
    show_results(shown, results)
    if report is not None:
        shown.print(f"The report with the timeline is {report}", soft_wrap=True, highlight=False)
    if keep is not None:
        shown.print(f"Histories, logs and data are kept in {keep}", soft_wrap=True, highlight=False)
    return results


def in_words(settings: "Settings") -> str:
    pace = f"{settings.rate:,.0f} messages a second" if settings.rate else "as fast as they could"
    sent = f"{settings.messages:,} messages of {settings.size:,} bytes"
    return f"In each scenario the producers sent {sent}, {pace}."
