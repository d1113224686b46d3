"""`spillway fault`: have something go wrong on purpose in a running namespace, and well again."""

import json
import re
from typing import Annotated, Any, Final

import typer

from spillway.cli.clock import FORM, UNITS_MS, read_duration_ms
from spillway.cli.control import DATA, CaFile, Data, Namespace, find_broker
from spillway.cli.errors import UsageError

group = typer.Typer(help="Have something go wrong on purpose in a running namespace.", no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
_FIELD: Final = re.compile(r"'(delay_ms|duration_ms|probability|condition|text|count|after|seed|operations)'")


@group.command()
def add(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="What goes wrong, such as server-busy, drop or slow.")],
    entity: Annotated[
        str, typer.Option(metavar="PATH", help="Where: an entity and what is below it; * is the whole namespace.")
    ] = "*",
    operation: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="To what: send, receive, settle, attach, management or administration; may be given several times. "
            "All that the kind can befall by default.",
        ),
    ] = None,
    condition: Annotated[
        str, typer.Option(metavar="NAME", help="The AMQP condition that refuse, detach and restart say.")
    ] = "",
    text: Annotated[str, typer.Option(metavar="TEXT", help="The text of a refusal.")] = "",
    delay: Annotated[
        str,
        typer.Option(metavar="DURATION", help=f"How late (slow, restart), or how long out of sight (hidden), {FORM}."),
    ] = "",
    duration: Annotated[
        str,
        typer.Option(metavar="DURATION", help="When the fault ends by itself; it stays until it is removed if not."),
    ] = "",
    count: Annotated[int, typer.Option(metavar="N", help="How many operations it befalls before it is spent.")] = 0,
    after: Annotated[int, typer.Option(metavar="N", help="How many operations it lets pass first.")] = 0,
    probability: Annotated[
        float, typer.Option(metavar="P", help="Which part of the operations it befalls: above 0, at most 1.")
    ] = 1.0,
    seed: Annotated[
        int, typer.Option(metavar="N", help="Chance follows from it: the same seed, the same choices.")
    ] = 0,
    namespace: Namespace = None,
    data: Data = DATA,
    ca_file: CaFile = None,
    as_json: AsJson = False,
) -> None:
    """Plant a fault, and print its number.

    It is gone when it is removed or spent, when its duration ends, and when the broker stops.
    """
    from spillway.model import limits
    from spillway.model.errors import ArgumentError
    from spillway.model.faults import Fault

    try:
        fault = Fault(
            kind,
            entity,
            operation or [],
            condition,
            text,
            bounded_ms("--delay", delay, limits.FAULT_DELAY_MS_MAX),
            probability,
            seed,
            after,
            count,
            bounded_ms("--duration", duration, limits.FAULT_DURATION_MS_MAX),
        )
    except ArgumentError as error:
        raise UsageError(in_options(error.description)) from None
    report = find_broker(namespace, data, ca_file).ask("POST", "faults", fault.to_plain())
    if as_json:
        print(json.dumps(report))
        return
    print(describe(report))
    if not report["entity_exists"]:
        print(f"There is no entity '{report['path']}' yet: the fault waits for one.")


@group.command("list")
def list_faults(
    namespace: Namespace = None, data: Data = DATA, ca_file: CaFile = None, as_json: AsJson = False
) -> None:
    """Show the faults of a namespace and how often each has struck."""
    answer = find_broker(namespace, data, ca_file).ask("GET", "faults")
    if as_json:
        print(json.dumps(answer))
        return
    for report in answer["faults"]:
        print(describe(report))
    if not answer["faults"]:
        print("No faults are planted.")


@group.command()
def remove(
    number: Annotated[int, typer.Argument(metavar="NUMBER", help="The number that add and list show.", min=1)],
    namespace: Namespace = None,
    data: Data = DATA,
    ca_file: CaFile = None,
    as_json: AsJson = False,
) -> None:
    """Remove one fault. Messages that it has hidden stay hidden until their time."""
    report = find_broker(namespace, data, ca_file).ask("DELETE", f"faults/{number}")
    print(json.dumps(report) if as_json else f"Removed: {describe(report)}")


@group.command()
def clear(namespace: Namespace = None, data: Data = DATA, ca_file: CaFile = None, as_json: AsJson = False) -> None:
    """Remove all faults. Messages that they have hidden stay hidden until their time."""
    from spillway.model.texts import count_text

    answer = find_broker(namespace, data, ca_file).ask("DELETE", "faults")
    print(json.dumps(answer) if as_json else f"Removed {count_text(answer['removed'], 'fault')}.")


def bounded_ms(option: str, text: str, most_ms: int) -> int:
    if not text:
        return 0
    by_ms = read_duration_ms(text)
    if by_ms > most_ms:
        raise UsageError(f"{option} {text}: at most {duration_text(most_ms)}")
    return by_ms


def duration_text(ms: int) -> str:
    """A duration as it would be typed."""
    for unit, size_ms in reversed(UNITS_MS.items()):
        if ms % size_ms == 0:
            return f"{ms // size_ms}{unit}"
    return f"{ms}ms"


def in_options(text: str) -> str:
    """The names that programs use, as the options that people type."""
    return _FIELD.sub(lambda found: f"--{found[1].removesuffix('_ms').removesuffix('s')}", text)


def describe(report: dict[str, Any]) -> str:
    """A fault in one line."""
    where = "the whole namespace" if report["path"] == "*" else report["path"]
    how = [
        f"{name.removesuffix('_ms')} {report[name] / 1000:g} s" for name in ("delay_ms", "duration_ms") if report[name]
    ]
    how += [f"{name} {report[name]}" for name in ("after", "count") if report[name]]
    if report["probability"] < 1:
        how.append(f"probability {report['probability']:g}, seed {report['seed']}")
    details = f" ({', '.join(how)})" if how else ""
    operations = ", ".join(report["operations"])
    state = "" if report["state"] == "planted" else f", {report['state']}"
    struck = f"struck {report['hit']} of {report['tried']}"
    return f"Fault {report['number']}: {report['kind']} on {operations} of {where}{details}: {struck}{state}"
