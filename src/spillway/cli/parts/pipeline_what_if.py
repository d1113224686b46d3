"""`spillway pipeline what-if`: what an outage would come to, in messages, time and money."""

import json
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Final

import typer

from spillway.cli.errors import CommandError, UsageError

if TYPE_CHECKING:
    from spillway.spark.billing.what_if import WhatIfAnswer

AsJson = Annotated[bool, typer.Option("--json", help="Print one line of JSON.")]
SECONDS: Final = 1_000


def what_if(
    rate: Annotated[str, typer.Option(metavar="RATE", help="Messages a second, of all senders together.")],
    outage: Annotated[str, typer.Option(metavar="TIME", help="How long the primary is unavailable: 90s, 30m, 4h, 2d.")],
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
    """Calculate what an outage would come to: messages diverted, space for them, time to bring them home, cost."""
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


def say_answer(found: "WhatIfAnswer", queues: int) -> None:
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
