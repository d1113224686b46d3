"""`spillway clock`: what time it is for a running namespace, and later on purpose."""

import json
import re
from typing import Annotated, Any, Final

import typer

from spillway.cli.control import DATA, CaFile, Data, Namespace, find_broker
from spillway.cli.errors import CommandError, UsageError

group = typer.Typer(help="Show the time of a running namespace, or let time pass at once.", no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
FORM: Final = "like 90s, 5m, 1h, 10d or PT1H30M"
_SHORT: Final = re.compile(r"(\d{1,12})(ms|s|m|h|d)", re.ASCII)


@group.command()
def show(namespace: Namespace = None, data: Data = DATA, ca_file: CaFile = None, as_json: AsJson = False) -> None:
    """Show what time it is for a namespace, and how far it was moved ahead."""
    say(find_broker(namespace, data, ca_file).ask("GET", "clock"), as_json)


@group.command()
def advance(
    duration: Annotated[str, typer.Argument(metavar="DURATION", help=f"How much time passes, {FORM}.")],
    namespace: Namespace = None,
    data: Data = DATA,
    ca_file: CaFile = None,
    as_json: AsJson = False,
) -> None:
    """Let time pass at once: locks end, messages expire, scheduled ones are due.

    Returns when what is due by then has happened and is durable. The broker must run with --movable-clock or --dev.
    """
    by_ms = read_duration_ms(duration)
    answer = find_broker(namespace, data, ca_file).ask("POST", "clock", {"advance_s": by_ms / 1000})
    say(answer, as_json)
    if not answer["is_settled"]:
        raise CommandError("the time has passed, but the namespace was too busy to finish what is due")


def read_duration_ms(text: str) -> int:
    from spillway.model.entity import parse_setting_ms

    short = _SHORT.fullmatch(text)
    try:
        by_ms = int(short[1]) * UNITS_MS[short[2]] if short is not None else parse_setting_ms(text)
    except ValueError:
        by_ms = 0
    if by_ms <= 0:  # zero is for ever in the other form
        raise UsageError(f"{text}: must be a duration above zero, {FORM}")
    return by_ms


def say(answer: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(answer))
        return
    ahead_s = answer["ahead_s"]
    if ahead_s:
        where = f", {round(ahead_s, 3)} s ahead of real time"
    else:
        where = "" if answer["is_movable"] else ", and cannot be moved"
    print(f"{answer['time']}{where}")
