"""How a command speaks to a running broker: JSON over HTTP, to `/$spillway/` on the namespace's own port.

Which broker: the one whose connection string is in `SPILLWAY_CONNECTION_STRING`, else the one that serves the data
directory. There is no option for a connection string: everyone on a machine can read the options of its processes.
"""

import http.client
import json
import os
import ssl
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import urlencode

import typer

from spillway.cli.errors import CommandError, UsageError

VARIABLE: Final = "SPILLWAY_CONNECTION_STRING"
TIMEOUT_S: Final = 60.0
TOKEN_S: Final = 300

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
class Broker:
    """A running broker's namespace."""

    connection_string: str
    ca_file: Path | None

    def ask(
        self, method: str, resource: str, body: dict[str, Any] | None = None, query: dict[str, str] | None = None
    ) -> Any:
        """The answer to a request, read from JSON. `CommandError` with the broker's own words if it refuses."""
        path = f"/$spillway/{resource}" + (f"?{urlencode(query)}" if query else "")
        return read_answer(*self.send(method, path, None if body is None else json.dumps(body)))

    def send(self, method: str, path: str, body: str | None = None) -> tuple[int, str]:
        """Status and text of the answer to any request."""
        from spillway.client.connection_string import parse_connection_string
        from spillway.client.credentials import sign_sas

        try:
            parts = parse_connection_string(self.connection_string)
        except ValueError as error:
            raise UsageError(f"{VARIABLE}: {error}") from None
        if parts.key_name is None or parts.key is None:
            raise UsageError(f"{VARIABLE}: a SharedAccessKeyName and a SharedAccessKey are needed")
        port = parts.port_for(tls=not parts.is_emulator)
        token = sign_sas(f"https://{parts.authority}", parts.key_name, parts.key, int(time.time()) + TOKEN_S)
        connection = self._connect(parts.address, port, parts.is_emulator)
        try:
            connection.request(method, path, body, {"Authorization": token})
            response = connection.getresponse()
            return response.status, response.read().decode("utf-8", "replace")
        except ssl.SSLCertVerificationError as error:
            raise CommandError(
                f"{parts.host}:{port} has a certificate that is not trusted; name its authority with --ca-file"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
            raise CommandError(f"no broker answers on {parts.host}:{port}: {why}") from error
        finally:
            connection.close()

    def _connect(self, host: str, port: int, is_clear_text: bool) -> http.client.HTTPConnection:
        if is_clear_text:
            return http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
        context = ssl.create_default_context(cafile=None if self.ca_file is None else str(self.ca_file))
        return http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=context)


def read_answer(status: int, text: str) -> Any:
    try:
        answer = json.loads(text)
    except ValueError:
        raise CommandError(f"what answers is no Spillway broker of this version: HTTP status {status}") from None
    if status >= 300:
        said = answer.get("error") if isinstance(answer, dict) else None
        raise CommandError(str(said or f"the broker answered with HTTP status {status}").partition(" TrackingId:")[0])
    return answer


def find_broker(namespace: str | None, data: Path, ca_file: Path | None) -> Broker:
    from spillway.cli.connection_string import find

    given = os.environ.get(VARIABLE)
    if given:
        if namespace is not None:
            raise UsageError(f"--namespace: {VARIABLE} is set, and a connection string leads to one namespace")
        return Broker(given, ca_file)
    own_ca = data / "tls" / "ca.pem"
    return Broker(find(data, namespace), ca_file or (own_ca if own_ca.exists() else None))
