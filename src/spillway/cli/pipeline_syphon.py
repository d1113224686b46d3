"""`spillway pipeline syphon`: the backlog of a pairing comes home."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from spillway.cli.errors import CommandError, UsageError
from spillway.cli.pipeline_capture import Master


def syphon(
    primary: Annotated[
        str, typer.Option(metavar="WHERE", help="env:NAME, file:PATH, or the primary's connection string.")
    ],
    secondary: Annotated[
        str, typer.Option(metavar="WHERE", help="env:NAME, file:PATH, or the secondary's connection string.")
    ],
    namespace_name: Annotated[
        str, typer.Option(metavar="NAME", help="What senders call the primary, if not as its host says.")
    ] = "",
    backlog_queues: Annotated[
        int, typer.Option(metavar="N", help="How many to look for where the key has no right Manage.", min=1, max=1_000)
    ] = 10,
    watch: Annotated[bool, typer.Option("--watch", help="Go on until stopped by Ctrl-C or SIGTERM.")] = False,
    checkpoint: Annotated[
        str, typer.Option(metavar="DIR", help="Where the query keeps its place; a temporary directory if none.")
    ] = "",
    batch_messages: Annotated[
        int, typer.Option(metavar="N", help="Messages of a batch.", min=1, max=10_000_000)
    ] = 50_000,
    partitions: Annotated[
        int, typer.Option(metavar="N", help="Tasks of a batch; 0: as many as there are cores.", min=0, max=1_000)
    ] = 0,
    ttl: Annotated[
        str, typer.Option(metavar="HOW", help="Lives of messages: restart at the primary, or what is remaining.")
    ] = "restart",
    primary_ca_file: Annotated[str, typer.Option(metavar="FILE", help="Trust this authority at the primary.")] = "",
    secondary_ca_file: Annotated[str, typer.Option(metavar="FILE", help="Trust this authority at the secondary.")] = "",
    events: Annotated[
        str, typer.Option(metavar="DIR", help="Write what came home as lines of events, for the availability job.")
    ] = "",
    master: Master = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="The last line on stdout is the summary as JSON; the rest is on stderr.")
    ] = False,
) -> None:
    """Move all messages of the backlog queues to the queues and topics that they were sent to."""
    try:
        from spillway.spark.jobs.syphon import ERRORS, SyphonConfig, run_here, text_of
        from spillway.spark.platform.access import OptionError
    except ImportError as error:
        raise UsageError(f"pipeline: {error}: pip install 'spillway[spark]'") from None
    chosen = {
        "namespace_name": namespace_name,
        "backlog_queues": backlog_queues,
        "watch": watch,
        "checkpoint": checkpoint,
        "batch_messages": batch_messages,
        "partitions": partitions,
        "ttl": ttl,
        "primary_ca_file": primary_ca_file,
        "secondary_ca_file": secondary_ca_file,
        "events": events,
    }
    try:
        summary = run_here(SyphonConfig(primary, secondary, **chosen), master)  # type: ignore[arg-type]
    except OptionError as error:
        raise UsageError(f"pipeline syphon: {str(error).replace('secretName=', '')}") from None
    except ERRORS as error:
        raise CommandError(f"pipeline syphon: {error}") from None
    typer.echo(json.dumps(asdict(summary)) if as_json else text_of(summary))
