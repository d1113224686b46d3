"""`spillway pipeline capture` and `replay`: messages into Parquet, and out of it again."""

import json
from dataclasses import asdict
from typing import Annotated, Final

import typer

from spillway.cli.control import VARIABLE
from spillway.cli.errors import CommandError, UsageError

INSTALL: Final = "pip install 'spillway[spark]'"

Secret = Annotated[
    str, typer.Option(metavar="WHERE", help=f"env:NAME or file:PATH, where the connection string is; env:{VARIABLE}.")
]
ConnectionString = Annotated[
    str, typer.Option(metavar="TEXT", help="Itself. Everyone on a machine can read the options of its processes.")
]
CaFile = Annotated[str, typer.Option(metavar="FILE", help="Trust this certificate authority alone.")]
Master = Annotated[str | None, typer.Option(metavar="URL", help="Spark master. By default this process: local[*,4].")]
AsJson = Annotated[bool, typer.Option("--json", help="The last line on stdout is the summary as JSON.")]


def in_options(error: Exception) -> str:
    """The names that programs use, as the options that people type."""
    text = str(error).replace("secretName=", "")
    return text.replace("secretName", "--secret").replace("connectionString", "--connection-string")


def spark_missing(error: ModuleNotFoundError) -> str:
    """The sentence that every job says."""
    from spillway.spark.platform.session import missing_text

    return missing_text(error)


def capture(
    entity: Annotated[
        str, typer.Option(metavar="NAMES", help="Queues, subscriptions or dead letters, with commas between them.")
    ],
    out: Annotated[str, typer.Option(metavar="DIR", help="Where to write; a path or URL that Spark knows.")],
    secret: Secret = "",
    connection_string: ConnectionString = "",
    ca_file: CaFile = "",
    sessions: Annotated[str, typer.Option(metavar="IDS", help="Of entities with message sessions: * or ids.")] = "",
    checkpoint: Annotated[
        str, typer.Option(metavar="DIR", help="Where the query keeps its place; inside of --out if not given.")
    ] = "",
    available_now: Annotated[
        bool,
        typer.Option("--available-now", help="Take what is there now, and end. That is so unless --watch is given."),
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Go on until stopped by Ctrl-C or SIGTERM.")] = False,
    interval: Annotated[
        float, typer.Option(metavar="SECONDS", help="Between two looks of a watch.", min=0, max=86_400)
    ] = 5.0,
    min_messages: Annotated[
        int,
        typer.Option(metavar="N", help="Messages that wait before a watch takes them; 0: a full batch.", min=0),
    ] = 0,
    max_wait: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long until a watch takes fewer.", min=0, max=86_400)
    ] = 300.0,
    max_messages: Annotated[
        int, typer.Option(metavar="N", help="Messages of a batch.", min=1, max=10_000_000)
    ] = 50_000,
    partitions: Annotated[
        int, typer.Option(metavar="N", help="Receivers of each entity; 0: one for every core.", min=0, max=1_000)
    ] = 0,
    patience: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="How long to wait for messages in somebody's lock.", min=0, max=86_400),
    ] = 65.0,
    renew_seconds: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="How long locks are renewed: longer than a batch.", min=0, max=86_400),
    ] = 300.0,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Write the messages of entities to Parquet, by day and entity; settle each when it is on the disk."""
    try:
        from spillway.spark.jobs.capture import ERRORS, CaptureConfig, run_here, text_of
        from spillway.spark.platform.access import OptionError
        from spillway.spark.source.options import entities_of
    except ImportError as error:
        raise UsageError(f"pipeline: {error}: {INSTALL}") from None
    if available_now and watch:
        raise UsageError("pipeline capture: --available-now and --watch: give one of them")
    try:
        config = CaptureConfig(
            entities_of(entity),
            out,
            secret=secret,
            connection_string=connection_string,
            ca_file=ca_file,
            sessions=sessions,
            checkpoint=checkpoint,
            watch=watch,
            max_messages=max_messages,
            partitions=partitions,
            patience_s=patience,
            renew_s=renew_seconds,
            interval_s=interval,
            min_messages=min_messages,
            max_wait_s=max_wait,
        )
        summary = run_here(config, master)
    except OptionError as error:
        raise UsageError(f"pipeline capture: {in_options(error)}") from None
    except ERRORS as error:
        raise CommandError(f"pipeline capture: {error}") from None
    except ModuleNotFoundError as error:
        raise UsageError(f"pipeline capture: {spark_missing(error)}") from None
    typer.echo(json.dumps(asdict(summary)) if as_json else text_of(summary))


def replay(
    captured: Annotated[str, typer.Option(metavar="DIR", help="What a capture has written.")],
    to: Annotated[str, typer.Option(metavar="NAME", help="Queue or topic to send to.")],
    secret: Secret = "",
    connection_string: ConnectionString = "",
    ca_file: CaFile = "",
    entity: Annotated[str, typer.Option(metavar="NAMES", help="Only messages of these, as they were captured.")] = "",
    day: Annotated[
        str, typer.Option(metavar="DAY", help="Enqueued on 2026-11-16, or from 2026-11-01..2026-11-16; UTC.")
    ] = "",
    since: Annotated[str, typer.Option(metavar="TIME", help="Enqueued at this time or later; ISO 8601.")] = "",
    until: Annotated[str, typer.Option(metavar="TIME", help="Enqueued before this time.")] = "",
    where: Annotated[str, typer.Option(metavar="SQL", help="Only rows of the view for which this is true.")] = "",
    checkpoint: Annotated[
        str,
        typer.Option(metavar="DIR", help="Where it is written down what was sent, so that it can be started again."),
    ] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count, look at the destination, send nothing.")] = False,
    stamp: Annotated[
        bool, typer.Option("--stamp", help="Add where and when each was enqueued, as application properties.")
    ] = False,
    partitions: Annotated[
        int, typer.Option(metavar="N", help="Senders side by side; 1 keeps the order.", min=1, max=1_000)
    ] = 1,
    step_messages: Annotated[
        int,
        typer.Option(metavar="N", help="About how many between two notes in the checkpoint.", min=1, max=10_000_000),
    ] = 50_000,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Send captured messages to a queue or topic again, with the ids they had."""
    try:
        from spillway.spark.jobs.replay import ERRORS, ReplayConfig, run_here, text_of
        from spillway.spark.platform.access import OptionError
        from spillway.spark.source.options import entities_of
    except ImportError as error:
        raise UsageError(f"pipeline: {error}: {INSTALL}") from None
    try:
        config = ReplayConfig(
            captured,
            to,
            secret=secret,
            connection_string=connection_string,
            ca_file=ca_file,
            entities=entities_of(entity) if entity else (),
            day=day,
            since=since,
            until=until,
            where=where,
            checkpoint=checkpoint,
            dry_run=dry_run,
            stamp=stamp,
            partitions=partitions,
            step_messages=step_messages,
        )
        summary = run_here(config, master)
    except OptionError as error:
        raise UsageError(f"pipeline replay: {in_options(error)}") from None
    except ERRORS as error:
        raise CommandError(f"pipeline replay: {error}") from None
    except ModuleNotFoundError as error:
        raise UsageError(f"pipeline replay: {spark_missing(error)}") from None
    typer.echo(json.dumps(asdict(summary)) if as_json else text_of(summary))
