"""`spillway export`: a running broker's entities as a Config.json."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from spillway.cli.control import DATA, VARIABLE, CaFile, Data, RunningBroker, find_broker
from spillway.cli.errors import CommandError


def command(
    namespace: Annotated[
        str | None, typer.Option(metavar="NAME", help="This namespace only, if the directory has several.")
    ] = None,
    data: Data = DATA,
    ca_file: CaFile = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write to this file; to stdout if it is left out.")
    ] = None,
) -> None:
    """Write the queues, topics, subscriptions and rules of a running broker as a Config.json of Microsoft's emulator.

    What such a file cannot express is listed on stderr.
    """
    answers = [broker.ask("GET", "config") for broker in brokers(namespace, data, ca_file)]
    text = json.dumps(joined([answer["config"] for answer in answers]), indent=2, ensure_ascii=False) + "\n"
    for answer in answers:
        for warning in answer["warnings"]:
            print(f"spillway: warning: {warning}", file=sys.stderr)
    if output is None:
        print(text, end="")
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"--output {output}: {os.strerror(error.errno or 0)}") from error


def brokers(namespace: str | None, data: Path, ca_file: Path | None) -> list[RunningBroker]:
    """The one that is named, or all namespaces of the directory."""
    from spillway.cli.served import served_names

    if namespace is not None or os.environ.get(VARIABLE):
        return [find_broker(namespace, data, ca_file)]
    return [find_broker(name, data, ca_file) for name in served_names(data)]


def joined(configs: list[dict[str, Any]]) -> dict[str, Any]:
    """One file with the namespaces of all of them."""
    whole = configs[0]
    for other in configs[1:]:
        whole["UserConfig"]["Namespaces"] += other["UserConfig"]["Namespaces"]
    return whole
