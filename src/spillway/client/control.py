"""A broker's own API from Python: JSON over HTTP to `/$spillway/`, on the namespace's port. Blocking."""

import http.client
import json
import os
import re
import ssl
import time
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from spillway.client.connection_string import parse_connection_string
from spillway.client.credentials import sign_sas

TIMEOUT_S: Final = 60.0
TOKEN_S: Final = 300
_SUB_CODE: Final = re.compile(r"^SubCode=\d+[.:] ")  # for programs, which read the status


class ControlError(Exception):
    """The broker refused, and says why; or none answered, and `status` is 0."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.text = text
        self.status = status


class NotTrusted(ControlError):
    """The broker's certificate is of an authority that is not known here."""


class ControlClient:
    """`connection_string` needs a key with the right Manage. Raises ValueError, which repeats nothing of it.

    `https_port` is for TLS where the string names no port; without it the one of AMQP, where a broker of ours answers.
    """

    def __init__(
        self,
        connection_string: str,
        ca_file: Path | None = None,
        *,
        https_port: int | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._parts = parse_connection_string(connection_string)
        if self._parts.key_name is None or self._parts.key is None:
            raise ValueError("a SharedAccessKeyName and a SharedAccessKey are needed")
        self._ca_file = ca_file
        self._https_port = https_port
        self._timeout_s = timeout_s

    def ask(
        self, method: str, resource: str, body: dict[str, Any] | None = None, query: dict[str, str] | None = None
    ) -> Any:
        """The answer to a request, read from JSON. Raises `ControlError`."""
        path = f"/$spillway/{resource}" + (f"?{urlencode(query)}" if query else "")
        return read_answer(*self.send(method, path, None if body is None else json.dumps(body)))

    def send(self, method: str, path: str, body: str | None = None) -> tuple[int, str]:
        """Status and text of the answer to any request. Raises `ControlError` if there is none."""
        parts = self._parts
        assert parts.key_name is not None and parts.key is not None, "checked when it was made"
        port = parts.port_for(tls=not parts.is_emulator)
        if parts.port is None and not parts.is_emulator:
            port = self._https_port or port
        token = sign_sas(f"https://{parts.authority}", parts.key_name, parts.key, int(time.time()) + TOKEN_S)
        connection = self._connect(parts.address, port, parts.is_emulator)
        try:
            connection.request(method, path, body, {"Authorization": token})
            response = connection.getresponse()
            return response.status, response.read().decode("utf-8", "replace")
        except ssl.SSLCertVerificationError as error:
            raise NotTrusted(f"{parts.host}:{port} has a certificate that is not trusted") from error
        except (OSError, http.client.HTTPException) as error:
            why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
            raise ControlError(f"no broker answers on {parts.host}:{port}: {why}") from error
        finally:
            connection.close()

    def _connect(self, host: str, port: int, is_clear_text: bool) -> http.client.HTTPConnection:
        if is_clear_text:
            return http.client.HTTPConnection(host, port, timeout=self._timeout_s)
        context = ssl.create_default_context(cafile=None if self._ca_file is None else str(self._ca_file))
        return http.client.HTTPSConnection(host, port, timeout=self._timeout_s, context=context)


def read_answer(status: int, text: str) -> Any:
    try:
        answer = json.loads(text)
    except ValueError:
        raise ControlError(
            f"what answers is no Spillway broker of this version: HTTP status {status}", status
        ) from None
    if status >= 300:
        said = answer.get("error") if isinstance(answer, dict) else None
        told = str(said or f"the broker answered with HTTP status {status}").partition(" TrackingId:")[0]
        raise ControlError(_SUB_CODE.sub("", told), status)
    return answer
