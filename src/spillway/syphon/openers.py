"""Connections to the two namespaces, from what a program has: a connection string, or a host and a credential."""

from pathlib import Path

from spillway.client import Connection, connect, connect_host, parse_connection_string
from spillway.client.connection_string import NO_CREDENTIAL, parse_host
from spillway.client.credentials import AnyCredential, credential_of
from spillway.syphon.destinations import Opener


def opener_of_string(
    connection_string: str,
    *,
    ca_file: str | Path | None = None,
    is_websocket: bool = False,
    operation_timeout_s: float = 60.0,
) -> Opener:
    """An opener of connections by a connection string: clear text if that is for development, as the SDK does, whatever
    `ca_file` says. `ValueError`, which repeats nothing of the string, if it cannot be used."""
    target = parse_connection_string(connection_string)
    if not target.has_credential:
        raise ValueError(NO_CREDENTIAL)
    is_clear = target.is_emulator and not target.demands_tls
    text = connection_string
    if is_websocket and not target.is_websocket:
        text = f"{text.strip().rstrip(';')};TransportType=AmqpWebSockets"
        parse_connection_string(text)

    async def open_connection() -> Connection:
        return await connect(text, ca_file=None if is_clear else ca_file, operation_timeout=operation_timeout_s)

    return open_connection


def opener_of_host(
    host: str,
    credential: AnyCredential,
    *,
    ca_file: str | Path | None = None,
    is_clear: bool = False,
    is_websocket: bool = False,
    operation_timeout_s: float = 60.0,
) -> Opener:
    """An opener of connections by a host and a credential of the SDK's or of ours. `ValueError` if they cannot be
    used."""
    parse_host(host)
    tokens = credential_of(credential)

    async def open_connection() -> Connection:
        return await connect_host(
            host,
            tokens,
            ca_file=None if is_clear else ca_file,
            tls=not is_clear,
            websocket=is_websocket,
            operation_timeout=operation_timeout_s,
        )

    return open_connection
