"""`spillway pipeline metering`, `cost` and `what-if`: what was done, what it costs, what an outage would."""

import json
import os
from dataclasses import asdict
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from spillway.cli.control import VARIABLE, Broker, CaFile
from spillway.cli.errors import CommandError, UsageError
from spillway.cli.pipeline_capture import Master

if TYPE_CHECKING:
    from spillway.spark.billing.what_if import Answer

AsJson = Annotated[bool, typer.Option("--json", help="Print one line of JSON.")]
Prices = Annotated[
    list[str] | None,
    typer.Option(
        "--prices",
        metavar="[NAMESPACE=]LIST",
        help="Price list: standard, basic, premium or a file; for one namespace with its name. Repeat.",
    ),
]
Alias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=NAMESPACE", help="A name in backlog paths or clients' ledgers, and whose it is. Repeat."
    ),
]
SECONDS: Final = 1_000


def metering(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the table, its checkpoint and the quarantine go.")],
    ledger: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]DIR", help="Data directory, or its ledger; NAME: what to call its namespace. Repeat."
        ),
    ] = None,
    open_day: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]DIR",
            help=f"Ask the broker that serves DIR for days that are not sealed; - for that of {VARIABLE}. Repeat.",
        ),
    ] = None,
    client_ledger: Annotated[
        list[Path] | None, typer.Option(metavar="PATH", help="File or directory of ledgers that clients kept. Repeat.")
    ] = None,
    alias: Alias = None,
    strict: Annotated[bool, typer.Option("--strict", help="Fail if any line or file had to be set aside.")] = False,
    ca_file: CaFile = None,
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Make a table in Parquet of ledgers: one row for each day, namespace, entity and kind.

    Only days that are new or have changed are read.
    """
    from spillway.spark.billing.metering_inputs import LedgerDirectory, MeteringError
    from spillway.spark.jobs.metering import MeteringConfig, parse_named, run_here, words_of
    from spillway.spark.platform.access import OptionError
    from spillway.spark.platform.java import SparkMissing

    named = [parse_named(text) for text in ledger or []]
    config = MeteringConfig(
        out=out,
        ledgers=tuple(LedgerDirectory(Path(path), name) for name, path in named),
        client_ledgers=tuple(client_ledger or []),
        brokers=tuple(found for text in open_day or [] for found in brokers_of(*parse_named(text), ca_file)),
        aliases=read_aliases(alias),
        is_strict=strict,
    )
    try:
        summary = run_here(config, master)
    except (OptionError, MeteringError) as error:
        raise UsageError(str(error)) from None
    except SparkMissing as error:
        raise CommandError(str(error)) from None
    except CommandError as error:  # a broker's that is asked, before Spark is started
        raise UsageError(*error.lines) from None
    print(json.dumps(asdict(summary)) if as_json else words_of(summary))


def brokers_of(name: str, place: str, ca_file: Path | None) -> list[tuple[str, Broker]]:
    from spillway.cli.connection_string import find, served_names

    if place == "-":
        given = os.environ.get(VARIABLE)
        if not given:
            raise UsageError(f"--open-day -: {VARIABLE} is not set")
        return [(name, Broker(given, ca_file))]
    data = Path(place)
    names = served_names(data)
    if name and len(names) > 1:
        raise UsageError(f"--open-day {name}={place}: one name for several namespaces: {', '.join(names)}")
    own_ca = data / "tls" / "ca.pem"
    trusted = ca_file or (own_ca if own_ca.exists() else None)
    return [(name, Broker(find(data, served), trusted)) for served in names]


def read_aliases(texts: list[str] | None) -> dict[str, str]:
    aliases = {}
    for text in texts or []:
        name, equals, namespace = text.partition("=")
        if not (name and equals and namespace):
            raise UsageError(f"--alias must be NAME=NAMESPACE, not '{text}'")
        aliases[name.lower()] = namespace.lower()
    return aliases


def cost(
    metered: Annotated[Path, typer.Option(metavar="DIR", help="What `spillway pipeline metering --out` made.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the charges and the report go.")],
    prices: Prices = None,
    messaging_units: Annotated[int, typer.Option(metavar="COUNT", help="Messaging units of a Premium namespace.")] = 1,
    alias: Alias = None,
    month: Annotated[str, typer.Option(metavar="YYYY-MM", help="This month alone.")] = "",
    master: Master = None,
    as_json: AsJson = False,
) -> None:
    """Show what metered operations cost: a table, charges in Parquet and a page of HTML.

    Prices are those of a dated list that has to be checked against your own: docs/cost.md.
    """
    from spillway.spark.billing.prices import PriceListError
    from spillway.spark.jobs.cost import CostConfig, CostError, make_tariff, run_here, words_of
    from spillway.spark.platform.access import OptionError
    from spillway.spark.platform.java import SparkMissing

    try:
        tariff = make_tariff(prices or [], messaging_units, read_aliases(alias))
        config = CostConfig(metered, out, tariff, month)
        summary = run_here(config, master)
    except (OptionError, CostError, PriceListError) as error:
        raise UsageError(str(error)) from None
    except SparkMissing as error:
        raise CommandError(str(error)) from None
    print(json.dumps(asdict(summary)) if as_json else words_of(summary))


def what_if(
    rate: Annotated[str, typer.Option(metavar="RATE", help="Messages a second, of all senders together.")],
    outage: Annotated[str, typer.Option(metavar="TIME", help="How long the primary is away: 90s, 30m, 4h, 2d.")],
    size: Annotated[str, typer.Option(metavar="SIZE", help="Of a message: 1024, 1KB, 256KB.")] = "1KB",
    backlog_queues: Annotated[int, typer.Option(metavar="COUNT", help="Backlog queues on the secondary.")] = 10,
    drain_rate: Annotated[
        str, typer.Option(metavar="RATE", help="Messages a second that the syphon brings home.")
    ] = "10000",
    failover_interval: Annotated[
        str, typer.Option(metavar="TIME", help="Of failing sends, until they are diverted.")
    ] = "1m",
    ping_interval: Annotated[str, typer.Option(metavar="TIME", help="Between two pings.")] = "1m",
    entities: Annotated[int, typer.Option(metavar="COUNT", help="Queues and topics that are sent to.")] = 1,
    senders: Annotated[int, typer.Option(metavar="COUNT", help="Processes that send: each pings.")] = 1,
    syphons: Annotated[int, typer.Option(metavar="COUNT", help="Programs that syphon.")] = 1,
    idle_days: Annotated[int, typer.Option(metavar="COUNT", help="Days of idle receives to count.")] = 30,
    month_operations: Annotated[
        int | None,
        typer.Option(
            metavar="COUNT", help="Operations of each namespace this month. By default the included are used up."
        ),
    ] = None,
    prices: Annotated[str, typer.Option(metavar="LIST", help="Price list, by name or file.")] = "standard",
    as_json: AsJson = False,
) -> None:
    """Tell what an outage would come to: messages diverted, room for them, time to bring them home, cost."""
    from spillway.spark.billing.prices import PriceListError, find_list
    from spillway.spark.billing.what_if import Question, answer, parse_rate, parse_size

    try:
        question = Question(
            rate=parse_rate("rate", rate),
            size_bytes=parse_size(size),
            outage_s=read_seconds("outage", outage),
            backlog_queues=backlog_queues,
            drain_rate=parse_rate("drain-rate", drain_rate),
            failover_s=read_seconds("failover-interval", failover_interval),
            ping_s=read_seconds("ping-interval", ping_interval),
            entities=entities,
            senders=senders,
            syphons=syphons,
            idle_days=idle_days,
            month_operations=month_operations,
        )
        found = answer(question, find_list(prices))
    except (PriceListError, ValueError) as error:
        raise UsageError(str(error)) from None
    print(json.dumps(found.as_json())) if as_json else say_answer(found, backlog_queues)


def read_seconds(option: str, text: str) -> int:
    from spillway.cli.clock import FORM, read_duration_ms

    if text.strip() in ("0", "0s"):
        return 0
    try:
        milliseconds = read_duration_ms(text)
    except CommandError:
        raise UsageError(f"--{option} must be a time {FORM}, not '{text}'") from None
    if milliseconds % SECONDS:
        raise UsageError(f"--{option} must be whole seconds, not '{text}'")
    return milliseconds // SECONDS


def say_answer(found: "Answer", queues: int) -> None:
    from spillway.model.texts import count_text

    print(f"diverted           {count_text(found.diverted, 'message')}, {gigabytes(found.diverted_bytes)}")
    print(
        f"in a backlog queue {gigabytes(found.queue_bytes)} of {gigabytes(found.queue_bytes_max)}, "
        f"if {'one takes' if queues == 1 else f'{queues} queues take'} them alike"
    )
    if not found.fits:
        print(f"NO ROOM            for {count_text(found.refused, 'message')}: senders get an error")
    if found.full_after_s is not None:
        print(f"full after         {shown_time(found.full_after_s)} of diverting")
    print(f"brought home in    {shown_time(found.drain_s)}")
    print("")
    width = max(len(line.line) for line in found.lines)
    for line in found.lines:
        print(f"{line.line:<{width}}  {line.operations:>15,}  {line.units:>15,} units  {Decimal(line.cost):>16,.6f}")
    print(f"{'all':<{width}}  {'':>15}  {'':>15}        {Decimal(found.cost):>16,.6f} {found.currency}")
    print("")
    print(f"of this the outage costs {Decimal(found.cost_of_outage):,.6f} {found.currency};")
    print(f"the same messages would have cost {Decimal(found.cost_anyway):,.6f} {found.currency} anyway")


def gigabytes(size_bytes: int) -> str:
    for unit, size in (("GB", 1024**3), ("MB", 1024**2), ("KB", 1024)):
        if size_bytes >= size:
            return f"{size_bytes / size:,.2f} {unit}"
    return f"{size_bytes} bytes"


def shown_time(seconds: int) -> str:
    days, rest = divmod(seconds, 86_400)
    hours, rest = divmod(rest, 3600)
    minutes, left = divmod(rest, 60)
    parts = [(days, "d"), (hours, "h"), (minutes, "m"), (left, "s")]
    shown = [f"{count} {unit}" for count, unit in parts if count]
    return " ".join(shown[:2]) or "0 s"
