"""`spillway connection-string`: what to put into an application's settings."""

import json
from pathlib import Path
from typing import Annotated

import typer

from spillway.cli.errors import CommandError, UsageError


def command(
    namespace: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which namespace, if the directory has several.")
    ] = None,
    data: Annotated[Path, typer.Option(metavar="DIR", help="Data directory of the broker.")] = Path("spillway-data"),
) -> None:
    """Print the connection string of a namespace.

    It names the port on which the namespace was last served.
    """
    print(find(data, namespace))


def find(data: Path, namespace: str | None) -> str:
    from spillway.server.keys import DEVELOPMENT_KEY, BadKeyFile, connection_string, read_key

    try:
        facts = json.loads((data / "running.json").read_text())
        ports: dict[str, int] = facts["ports"]
        host: str = facts["host"]
        key = DEVELOPMENT_KEY if facts["is_development"] else read_key(data)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CommandError(f"{data}: no broker has served from here yet; start one with: spillway serve") from error
    except BadKeyFile as error:
        raise CommandError(str(error)) from error
    if key is None:
        raise CommandError(f"{data}: the key file is missing; a start of the broker makes a new one")
    if namespace is None and len(ports) > 1:
        raise UsageError(f"--namespace is missing: one of {', '.join(ports)}")
    name = namespace or next(iter(ports))
    if name not in ports:
        raise UsageError(f"--namespace {name}: this directory has {', '.join(ports)}")
    return connection_string(host, ports[name], key, bool(facts["is_clear_text"]))
