"""`spillway syphon`: the backlog of a pairing comes home, without Spark."""

import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import typer

from spillway.cli.errors import CommandError, UsageError
from spillway.cli.parts.syphon_screen import Lines, SyphonScreen

if TYPE_CHECKING:
    from spillway.client import Connection
    from spillway.syphon.depths import Backlogs
    from spillway.syphon.destinations import Opener
    from spillway.syphon.drain import Drain, DrainSummary
    from spillway.syphon.watching import SyphonWatch, Watched


class CannotSyphon(CommandError):
    """A namespace cannot be reached, or does not let us. Status 1 is for messages that were kept."""

    exit_code: ClassVar[int] = 2


def command(
    primary: Annotated[
        str, typer.Option(metavar="WHERE", help="env:NAME, file:PATH, or the primary's connection string.")
    ],
    secondary: Annotated[
        str, typer.Option(metavar="WHERE", help="env:NAME, file:PATH, or the secondary's connection string.")
    ],
    once: Annotated[
        bool, typer.Option("--once", help="Until the backlog is empty, then end. That is so unless --watch is given.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Go on until stopped by Ctrl-C or SIGTERM.")] = False,
    namespace_name: Annotated[
        str, typer.Option(metavar="NAME", help="What senders call the primary, if not as its host says.")
    ] = "",
    backlog_queues: Annotated[
        int, typer.Option(metavar="N", help="How many to look for where the key has no right Manage.", min=1, max=1_000)
    ] = 10,
    ttl: Annotated[
        str, typer.Option(metavar="HOW", help="Lives of messages: restart at the primary, or what is remaining.")
    ] = "restart",
    patience: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="Try refused messages again for so long (--once).", min=0, max=3_600),
    ] = 15.0,
    long_poll: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="Wait so long in one receive of an idle queue (--watch).", min=1, max=900),
    ] = 900.0,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="Wait so long for an answer of a namespace.", min=1, max=600)
    ] = 60.0,
    primary_ca_file: Annotated[str, typer.Option(metavar="FILE", help="Trust this authority at the primary.")] = "",
    secondary_ca_file: Annotated[str, typer.Option(metavar="FILE", help="Trust this authority at the secondary.")] = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="A line of JSON for every change on stdout, the summary is the last one.")
    ] = False,
) -> None:
    """Move all messages of the backlog queues to the queues and topics that they were sent to.

    Exit status: 0 all is home; 1 messages are left in the backlog; 2 an option is wrong, or a namespace cannot be
    reached or does not allow it.
    """
    if once and watch:
        raise UsageError("syphon: --once and --watch: one of them")
    if ttl not in ("restart", "remaining"):
        raise UsageError("syphon: --ttl: restart or remaining")
    home = _text(primary, "--primary")
    away = _text(secondary, "--secondary")
    _check_pair(home, away)
    openers = (
        _opener(home, primary_ca_file, "--primary", timeout),
        _opener(away, secondary_ca_file, "--secondary", timeout),
    )
    backlogs = _backlogs(home, away, secondary_ca_file, namespace_name, backlog_queues, openers[1])
    with Lines() if as_json else SyphonScreen(watch) as shown:
        if watch:
            done: DrainSummary | Watched = asyncio.run(_watch(openers, backlogs, ttl, long_poll, timeout, shown))
            is_all_home = done.kept == 0
        else:
            drained = done = asyncio.run(_drain(openers, backlogs, ttl, patience, shown))
            is_all_home = drained.is_all_home
    shown.summary(done)
    if not is_all_home:
        raise typer.Exit(1)


def _text(where: str, option: str) -> str:
    from spillway.client.secrets import connection_string_at

    try:
        return connection_string_at(where)
    except ValueError as error:
        raise UsageError(f"syphon: {option}: {error}") from None


def _check_pair(home: str, away: str) -> None:
    from spillway.client import parse_connection_string

    primary, secondary = parse_connection_string(home), parse_connection_string(away)
    if primary.authority.lower() == secondary.authority.lower():
        raise UsageError(f"syphon: --primary and --secondary: both lead to {primary.authority}")


def _opener(text: str, ca_file: str, option: str, timeout_s: float) -> "Opener":
    from spillway.client import ClientError, ConnectionLost, connect

    if ca_file and not Path(ca_file).is_file():
        raise UsageError(f"syphon: {option}-ca-file: there is no file {ca_file}")

    async def open_connection() -> "Connection":
        try:
            return await connect(text, ca_file=ca_file or None, operation_timeout=timeout_s)
        except ClientError as error:
            raise ConnectionLost(f"{option}: {error.description}", error.condition, error.is_transient) from error

    return open_connection


def _backlogs(home: str, away: str, ca_file: str, name: str, probes: int, opener: "Opener") -> "Backlogs":
    from spillway.syphon.depths import Backlogs, name_of

    return Backlogs(away, ca_file, name or name_of(home), probes, opener)


async def _drain(
    openers: "tuple[Opener, Opener]", backlogs: "Backlogs", ttl: str, patience_s: float, shown: SyphonScreen | Lines
) -> "DrainSummary":
    from spillway.client import ClientError
    from spillway.syphon.depths import SecondaryError
    from spillway.syphon.drain import Drain, DrainOptions

    options = DrainOptions("remaining" if ttl == "remaining" else "restart", patience_s)
    run = Drain(*openers, backlogs, options, shown.count, shown.note, shown.begin)
    try:
        with _Stopped(run):
            done = await run.run()
    except (SecondaryError, ClientError) as error:
        if run.done.moved or run.done.dead_lettered:
            shown.summary(run.done)
        raise CannotSyphon(f"syphon: {_with_way_out(error)}") from None
    if not done.queues:
        shown.note(
            f"there is no backlog queue of '{backlogs.name}' in the secondary namespace; if its senders were given a "
            "namespace_name, say so with --namespace-name"
        )
    return done


async def _watch(
    openers: "tuple[Opener, Opener]",
    backlogs: "Backlogs",
    ttl: str,
    long_poll_s: float,
    timeout_s: float,
    shown: SyphonScreen | Lines,
) -> "Watched":
    from spillway.client import Unauthorized
    from spillway.syphon.watching import SyphonWatch, WatchOptions

    options = WatchOptions("remaining" if ttl == "remaining" else "restart", long_poll_s, timeout_s)
    run = SyphonWatch(*openers, backlogs, options, shown.count, shown.note)
    try:
        with _Stopped(run):
            return await run.run()
    except Unauthorized as error:
        raise CannotSyphon(f"syphon: {_with_way_out(error)}") from None


def _with_way_out(error: Exception) -> str:
    """What the namespace said, and what can be done about it."""
    from spillway.client import ConnectionLost, Unauthorized

    text = str(error).partition(" TrackingId:")[0]
    if isinstance(error, Unauthorized) or isinstance(error.__cause__, Unauthorized):
        return f"{text} (the key of --secondary needs the right Listen, the one of --primary the right Send)"
    if isinstance(error, ConnectionLost) or "no broker answers" in text:
        return f"{text} (is it running, and reachable from here?)"
    if "certificate" in text or "TLS" in text:
        return f"{text} (name its authority with --primary-ca-file or --secondary-ca-file)"
    return text


class _Stopped:
    """Ctrl-C and SIGTERM end a run in order; a second one ends it at once."""

    def __init__(self, run: "Drain | SyphonWatch") -> None:
        self.run = run
        self.loop = asyncio.get_running_loop()

    def __enter__(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            self.loop.add_signal_handler(number, self._stop)

    def __exit__(self, *exception: object) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            self.loop.remove_signal_handler(number)

    def _stop(self) -> None:
        self.run.stop()
        for number in (signal.SIGINT, signal.SIGTERM):
            self.loop.remove_signal_handler(number)
