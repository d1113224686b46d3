"""`spillway pipeline compact`: days of a lake in few files."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from spillway.cli.errors import CommandError, UsageError
from spillway.cli.pipeline_capture import INSTALL, AsJson, Master, spark_missing

SECONDS_MAX = 366 * 86_400


def compact(
    captured: Annotated[str, typer.Option(metavar="DIR", help="What a capture has written, or is writing.")],
    day: Annotated[
        str, typer.Option(metavar="DAY", help="2026-11-16, or 2026-11-01..2026-11-16; all that are over; UTC.")
    ] = "",
    closed_after: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="How long after its end a day is over.", min=0, max=SECONDS_MAX),
    ] = 3_600.0,
    grace: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="How long replaced files are kept for readers.", min=0, max=SECONDS_MAX),
    ] = 21_600.0,
    file_mb: Annotated[int, typer.Option(metavar="N", help="Size of a file, about.", min=1, max=10_000)] = 256,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be compacted; write nothing.")] = False,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Rewrite days that are over, sorted and each message once, while captures and readers go on."""
    try:
        from spillway.spark.jobs.compact import ERRORS, CompactConfig, run_here, text_of
        from spillway.spark.platform.access import OptionError
    except ImportError as error:
        raise UsageError(f"pipeline: {error}: {INSTALL}") from None
    try:
        config = CompactConfig(captured, day, closed_after, grace, file_mb, dry_run)
        summary = run_here(config, master)
    except OptionError as error:
        raise UsageError(f"pipeline compact: {error}") from None
    except ERRORS as error:
        raise CommandError(f"pipeline compact: {error}") from None
    except ModuleNotFoundError as error:
        raise UsageError(f"pipeline compact: {spark_missing(error)}") from None
    typer.echo(json.dumps(asdict(summary)) if as_json else text_of(summary))
