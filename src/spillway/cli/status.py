"""`spillway status`: what a running namespace is and holds."""

import json
from typing import Annotated

import typer

from spillway.cli.control import DATA, CaFile, Data, Namespace, find_broker


def command(
    namespace: Namespace = None,
    data: Data = DATA,
    ca_file: CaFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show a running namespace in numbers: entities, messages, connections.

    Exits with status 1 if no broker answers.
    """
    facts = find_broker(namespace, data, ca_file).ask("GET", "status")
    if as_json:
        print(json.dumps(facts))
        return
    width = max(len(name) for name in facts)
    for name, value in facts.items():
        shown = ("yes" if value else "no") if isinstance(value, bool) else value
        print(f"{name.removeprefix('is_').replace('_', ' ') + ':':{width + 1}} {shown}")
