"""`spillway lab`: rehearse an outage with two real namespaces, and see that nothing is lost."""

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spillway.cli.errors import CommandError, UsageError

if TYPE_CHECKING:
    from spillway.lab.scenarios import Scenario

BREAKS = ("ack-before-send",)
TABLE_WIDTH = 120  # readable in a log file too


def command(
    scenario: Annotated[
        str, typer.Option(metavar="NAME", help="What goes wrong: one of those in the guide, or all of them.")
    ] = "kill",
    messages: Annotated[int, typer.Option(metavar="N", help="How many to send.", min=1_000, max=10_000_000)] = 20_000,
    rate: Annotated[
        float, typer.Option(metavar="R", help="How many a second, of all producers; 0: as fast as they can.", min=0)
    ] = 1_000.0,
    size: Annotated[int, typer.Option(metavar="BYTES", help="Size of a body.", min=1, max=100_000)] = 200,
    as_json: Annotated[bool, typer.Option("--json", help="The last line on stdout is the verdict as JSON.")] = False,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write an HTML page with the timeline as a picture.")
    ] = None,
    keep: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep histories, logs and data in this directory.")
    ] = None,
    break_with: Annotated[
        str | None,
        typer.Option("--break", metavar="LIE", help="Plant a lie that the verdict must find: ack-before-send."),
    ] = None,
) -> None:
    """Start two namespaces, send, break one, mend it, and judge from what every client wrote down.

    Exits with status 1 if any acknowledged message was lost.
    """
    from spillway.lab.processes import LabError
    from spillway.lab.run import Settings
    from spillway.lab.scenarios import SCENARIOS, scenario_of

    if break_with is not None and break_with not in BREAKS:
        raise UsageError(f"--break {break_with}: must be {', '.join(BREAKS)}")
    if scenario != "all" and scenario not in SCENARIOS:
        raise UsageError(f"--scenario {scenario}: must be all or one of {', '.join(SCENARIOS)}")
    if keep is not None and keep.exists():
        raise UsageError(f"--keep {keep}: exists already; name a directory that does not")
    names = list(SCENARIOS) if scenario == "all" else [scenario]
    settings = Settings(messages, rate, size, break_with)
    results: list[dict[str, Any]] = []
    directories: list[Path] = []
    root = keep or Path(tempfile.mkdtemp(prefix="spillway-lab-"))
    try:
        for name in names:
            directory = root / name
            directory.mkdir(parents=True)
            directories.append(directory)
            results.append(rehearse(scenario_of(name), settings, directory, is_quiet=as_json))
        if report is not None:
            from spillway.lab.report import write_report

            write_report(report, results, directories)
    except LabError as error:
        raise CommandError(str(error)) from error
    finally:
        if keep is None:
            shutil.rmtree(root, ignore_errors=True)
    if as_json:
        print(json.dumps(results[0] if len(results) == 1 else {"scenarios": results}))
    else:
        show(results)
    if any(result["problems"] for result in results):
        raise typer.Exit(1)


def rehearse(scenario: "Scenario", settings: Any, directory: Path, *, is_quiet: bool) -> dict[str, Any]:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from spillway.lab.run import Lab

    console = Console(stderr=True)
    console.print(f"[bold]{scenario.name}[/bold]: {scenario.about}")
    with Live(Text(""), console=console, refresh_per_second=8, transient=True) as live:

        def progress(phase: str, counts: dict[str, int]) -> None:
            shown = "  ".join(f"{name} {count:,}" for name, count in counts.items() if name != "sent")
            live.update(Text(f"  {phase}\n  {shown}"))

        lab = Lab(scenario, settings, directory, progress, lambda line: console.print(f"  {line}"))
        _, found = lab.run()
    verdict = "nothing was lost" if not found["problems"] else "; ".join(found["problems"])
    console.print(f"  {found['acknowledged']:,} acknowledged, {found['diverted']:,} diverted, {verdict}")
    return found


def show(results: list[dict[str, Any]]) -> None:
    """A table, one row a scenario."""
    from rich.console import Console
    from rich.table import Table

    columns = ["scenario", "acknowledged", "diverted", "syphoned", "delivered", "duplicated", "lost", "out_of_order"]
    columns += ["failover_s", "return_s", "pings"]
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column.replace("_", " "), justify="left" if column == "scenario" else "right")
    for result in results:
        cells = [result[column] for column in columns]
        table.add_row(*(f"{cell:,}" if isinstance(cell, int) else "-" if cell is None else str(cell) for cell in cells))
    console = Console(file=sys.stdout)
    console.print(table, width=max(console.width, TABLE_WIDTH))
    for result in results:
        for problem in result["problems"]:
            print(f"{result['scenario']}: {problem}")
