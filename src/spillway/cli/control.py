"""How a command speaks to a running broker: JSON over HTTP, to `/$spillway/` on the namespace's own port.

Which broker: the one whose connection string is in `SPILLWAY_CONNECTION_STRING`, else the one that serves the data
directory. There is no option for a connection string: everyone on a machine can read the options of its processes.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from spillway.cli.errors import CommandError, UsageError
from spillway.cli.served import root_connection_string

if TYPE_CHECKING:
    from spillway.client.control import ControlClient

T = TypeVar("T")
VARIABLE: Final = "SPILLWAY_CONNECTION_STRING"

Namespace = Annotated[
    str | None, typer.Option("--namespace", metavar="NAME", help="Which namespace, if the directory has several.")
]
Data = Annotated[
    Path,
    typer.Option(
        "--data", metavar="DIR", help=f"Data directory of the broker, unless {VARIABLE} says where the broker is."
    ),
]
CaFile = Annotated[
    Path | None,
    typer.Option("--ca-file", metavar="FILE", help="Certificate authority to trust; the data directory's by default."),
]
DATA: Final = Path("spillway-data")


@dataclass(frozen=True)
class RunningBroker:
    """A running broker's namespace."""

    connection_string: str
    ca_file: Path | None

    def ask(
        self, method: str, resource: str, body: dict[str, Any] | None = None, query: dict[str, str] | None = None
    ) -> Any:
        """The answer to a request, read from JSON. `CommandError` with the broker's own words if it refuses."""
        return self._asked(lambda client: client.ask(method, resource, body, query))

    def send(self, method: str, path: str, body: str | None = None) -> tuple[int, str]:
        """Status and text of the answer to any request."""
        return self._asked(lambda client: client.send(method, path, body))

    def _asked(self, ask: "Callable[[ControlClient], T]") -> T:
        from spillway.client.control import ControlClient, ControlError, NotTrusted

        try:
            client = ControlClient(self.connection_string, self.ca_file)
        except ValueError as error:
            raise UsageError(f"{VARIABLE}: {error}") from None
        try:
            return ask(client)
        except NotTrusted as error:
            raise CommandError(f"{error.text}; name its authority with --ca-file") from error
        except ControlError as error:
            raise CommandError(error.text) from error


def find_broker(namespace: str | None, data: Path, ca_file: Path | None) -> RunningBroker:
    given = os.environ.get(VARIABLE)
    if given:
        if namespace is not None:
            raise UsageError(f"--namespace: {VARIABLE} is set, and a connection string leads to one namespace")
        return RunningBroker(given, ca_file)
    own_ca = data / "tls" / "ca.pem"
    return RunningBroker(root_connection_string(data, namespace), ca_file or (own_ca if own_ca.exists() else None))
