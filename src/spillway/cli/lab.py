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
SYPHONS = ("spark", "process")


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
    syphon: Annotated[
        str | None,
        typer.Option(metavar="HOW", help="What brings the backlog home: spark, if it is installed, or process."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Of the scenario random: which play. Default: any.", min=0)
    ] = None,
    plan: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Of the scenario random: play this plan instead of a seed's.")
    ] = None,
    show_plan: Annotated[
        bool, typer.Option("--show-plan", help="Of the scenario random: print the plan, and start nothing.")
    ] = False,
    library: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Of the scenario random: play to the client library of this source tree."),
    ] = None,
) -> None:
    """Start two namespaces, send, break one, mend it, and judge from what every client wrote down.

    Exits with status 1 if any acknowledged message was lost. With Spark it ends with reports of cost and availability.
    """
    from spillway.cli.parts.lab_random import RANDOM, PlayOptions, play_random, refuse_options
    from spillway.lab.run import Settings

    chosen = PlayOptions(seed, plan, show_plan, library)
    if scenario == RANDOM:
        check_files(report=None, keep=keep)
        play_random(chosen, keep, as_json)
        return
    refuse_options(chosen)
    names = check(scenario, rate, report, keep, break_with)
    settings = Settings(messages, rate, size, break_with)
    results = rehearse(names, settings, report, keep, as_json, with_spark=is_spark(syphon))
    if any(found["problems"] for found in results):
        raise typer.Exit(1)


def check(scenario: str, rate: float, report: Path | None, keep: Path | None, break_with: str | None) -> list[str]:
    """The scenarios to run. Nothing is started if an option is wrong."""
    from spillway.lab.scenarios import SCENARIOS

    if scenario != "all" and scenario not in SCENARIOS:
        raise UsageError(f"--scenario {scenario}: must be all, random or one of {', '.join(SCENARIOS)}")
    if not math.isfinite(rate):
        raise UsageError(f"--rate {rate}: must be a number of messages a second, or 0")
    if break_with is not None and break_with not in BREAKS:
        raise UsageError(f"--break {break_with}: must be {', '.join(BREAKS)}")
    check_files(report, keep)
    return list(SCENARIOS) if scenario == "all" else [scenario]


def check_files(report: Path | None, keep: Path | None) -> None:
    if keep is not None and keep.exists():
        raise UsageError(f"--keep {keep}: exists already; name a directory that does not")
    if report is not None:
        if report.is_dir():
            raise UsageError(f"--report {report}: is a directory; name a file")
        if not report.absolute().parent.is_dir() or not os.access(report.absolute().parent, os.W_OK):
            raise UsageError(f"--report {report}: its directory is not there, or cannot be written to")


def is_spark(syphon: str | None) -> bool:
    """Whether Spark brings the backlog home. Asked for, it has to be there; by default the lab does without if it is
    not, and says so."""
    from spillway.lab.spark import what_is_missing

    if syphon is not None and syphon not in SYPHONS:
        raise UsageError(f"--syphon {syphon}: must be {' or '.join(SYPHONS)}")
    if syphon == "process":
        return False
    missing = what_is_missing()
    if missing and syphon == "spark":
        raise UsageError(f"--syphon spark: {missing}")
    if missing:
        sys.stderr.write(
            f"spillway: {missing}; the syphon is a process without Spark, and there are no reports of it\n"
        )
    return not missing


def rehearse(
    names: list[str], settings: "Settings", report: Path | None, keep: Path | None, as_json: bool, with_spark: bool
) -> list[dict[str, Any]]:
    from rich.console import Console

    from spillway.client.control import ControlError
    from spillway.lab.guard import Guard
    from spillway.lab.pages import Pages
    from spillway.lab.processes import LabError
    from spillway.lab.report import ScenarioPart, write_report
    from spillway.lab.run import Lab
    from spillway.lab.scenarios import scenario_of
    from spillway.lab.screen import Screen, show_pages, show_results, verdict_text
    from spillway.lab.spark import SparkHost
    from spillway.lab.verdict import FIELDS

    console = Console(stderr=True)
    results: list[dict[str, Any]] = []
    parts: list[ScenarioPart] = []
    pages: list[Pages] = []
    not_made = ""
    root = keep or Path(tempfile.mkdtemp(prefix="spillway-lab-"))
    with Guard() as guard:
        if keep is None:
            guard.watch_directory(root)
        root.mkdir(parents=True, exist_ok=True)
        spark = SparkHost(root, guard) if with_spark else None
        try:
            if spark is not None:
                spark.spawn()
            for name in names:
                scenario = scenario_of(name)
                (root / name).mkdir()
                made = None
                with Screen(console, scenario, settings.messages) as screen:
                    lab = Lab(scenario, settings, root / name, guard, screen.show, spark)
                    found = lab.run()
                    if spark is not None:
                        try:
                            told = lab.report()
                        except LabError as error:  # the verdict stands, and is told first
                            not_made = str(error)
                        else:
                            end = name if len(names) > 1 else ""
                            made = Pages.of(told, root / name, report, end, is_kept=keep is not None)
                            pages.append(made)
                results.append(found)
                if len(names) > 1:
                    console.print(verdict_text(found), soft_wrap=True)
                if as_json:
                    print(json.dumps({name: found[name] for name in FIELDS}), flush=True)
                if report is not None:
                    parts.append(ScenarioPart.of(found, scenario, root / name, made))
                    write_report(report, parts, in_words(settings))
        except (LabError, ControlError, OSError) as error:
            raise CommandError(f"the lab itself failed, which says nothing about any message: {error}") from error
        finally:
            if spark is not None:
                spark.end()
    shown = console if as_json else Console(file=sys.stdout)
    show_results(shown, results)
    show_pages(shown, pages)
    if report is not None:
        shown.print(f"The report with the timeline is {report}", soft_wrap=True, highlight=False)
    if keep is not None:
        shown.print(f"Histories, logs and data are kept in {keep}", soft_wrap=True, highlight=False)
    if not_made:
        raise CommandError(f"the reports of cost and availability were not made, the verdict stands: {not_made}")
    return results


def in_words(settings: "Settings") -> str:
    from spillway.model.texts import count_text

    pace = f"{count_text(round(settings.rate), 'message')} a second" if settings.rate else "as fast as they could"
    sent = f"{count_text(settings.messages, 'message')} of {count_text(settings.size, 'byte')}"
    return f"In each scenario the producers sent {sent}, {pace}."
