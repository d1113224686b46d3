"""A host and a credential instead of a connection string, against a real broker and a scripted one."""

import time
from typing import Any

import pytest
from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential

from spillway.client import OutgoingMessage, SasCredential, Unauthorized, connect_host, parse_connection_string
from spillway.client.connection_string import parse_host
from spillway.client.credentials import (
    BearerCredential,
    NamedKeyCredential,
    ReplaceableSignature,
    credential_of,
    sign_sas,
)
from tests.client.scripted import ScriptedServer
from tests.client.test_credentials import Blocking
from tests.tools.broker_process import BrokerProcess


def key_of(broker: BrokerProcess) -> tuple[str, str]:
    parts = parse_connection_string(broker.connection_string)
    assert parts.key_name is not None and parts.key is not None
    return parts.key_name, parts.key


@pytest.mark.parametrize("is_tls", [True, False])
@pytest.mark.parametrize("kind", ["named key", "signature", "ours"])
async def test_a_message_is_sent_and_received_with_each_kind_of_key(
    broker: BrokerProcess, kind: str, is_tls: bool
) -> None:
    name, key = key_of(broker)
    host = f"localhost:{broker.port}"
    signature = sign_sas(f"sb://{host}/", name, key, int(time.time()) + 600)
    credential: Any = {
        "named key": AzureNamedKeyCredential(name, key),
        "signature": AzureSasCredential(signature),
        "ours": SasCredential(name, key),
    }[kind]
    ca_file = broker.ca_file if is_tls else None
    async with await connect_host(host, credential, ca_file=ca_file, tls=is_tls) as connection:
        await (await connection.sender("q42")).send(OutgoingMessage(kind))
        receiver = await connection.receiver("q42")
        (message,) = await receiver.receive(1, 5.0)
        assert message.body.decode() == kind
        await receiver.complete(message)


async def test_inside_a_websocket(broker: BrokerProcess) -> None:
    credential = AzureNamedKeyCredential(*key_of(broker))
    host = f"localhost:{broker.port}"
    async with await connect_host(host, credential, ca_file=broker.ca_file, websocket=True) as connection:
        await (await connection.sender("q40")).send(OutgoingMessage("through"))


async def test_a_key_that_is_replaced_is_used_from_then_on(broker: BrokerProcess) -> None:
    name, key = key_of(broker)
    credential = AzureNamedKeyCredential(name, "d3Jvbmc=")
    host = f"localhost:{broker.port}"
    async with await connect_host(host, credential, tls=False) as connection:
        with pytest.raises(Unauthorized):
            await connection.sender("q41")
        credential.update(name, key)
        await connection.sender("q41")


class Async:
    async def get_token(self, *scopes: str) -> Any:
        return Blocking().get_token(*scopes)


class Wrapped:
    """An object whose method is no coroutine function, and returns a coroutine."""

    def get_token(self, *scopes: str) -> Any:
        return Async().get_token(*scopes)


@pytest.mark.parametrize("credential", [Blocking(), Async(), Wrapped()], ids=["blocking", "asyncio", "wrapped"])
async def test_token_credentials_are_asked_in_whichever_way_they_answer(
    server: ScriptedServer, credential: Any
) -> None:
    async with await connect_host(f"localhost:{server.port}", credential, tls=False) as connection:
        await connection.sender("q")
    properties, body = server.tokens.get_nowait()
    assert (properties["type"], properties["name"], body) == ("jwt", f"sb://localhost:{server.port}/q", "eyJ")


class Signing:
    """As the SDK's own shared key credential: it signs what it is asked for."""

    token_type = b"servicebus.windows.net:sastoken"

    async def get_token(self, *scopes: str) -> Any:
        return type("AccessToken", (), {"token": f"signed {scopes[0]}", "expires_on": int(time.time()) + 600})()


async def test_a_credential_that_signs_is_asked_for_the_audience(server: ScriptedServer) -> None:
    async with await connect_host(f"localhost:{server.port}", Signing(), tls=False) as connection:
        await connection.sender("q")
    properties, body = server.tokens.get_nowait()
    assert properties["type"] == "servicebus.windows.net:sastoken"
    assert body == f"signed sb://localhost:{server.port}/q"


def test_each_kind_of_credential_is_known_and_anything_else_refused() -> None:
    assert isinstance(credential_of(AzureNamedKeyCredential("k", "s")), NamedKeyCredential)
    assert isinstance(credential_of(AzureSasCredential("s")), ReplaceableSignature)
    assert isinstance(credential_of(Blocking()), BearerCredential)
    ours = SasCredential("k", "s")
    assert credential_of(ours) is ours
    with pytest.raises(ValueError, match="a str is none that is known here"):
        credential_of("topsecret")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("contoso.servicebus.windows.net", "contoso.servicebus.windows.net", None),
        (" sb://contoso.servicebus.windows.net/ ", "contoso.servicebus.windows.net", None),
        ("localhost:5672", "localhost", 5672),
        ("[::1]:5671", "[::1]", 5671),
    ],
)
def test_hosts_as_programs_give_them(text: str, host: str, port: int | None) -> None:
    assert parse_host(text) == (host, port)


@pytest.mark.parametrize("text", ["", "http://contoso", "a b", "host:0", "host:port", "user@host"])
def test_what_is_no_host_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_host(text)


async def test_tls_that_is_ruled_out_takes_no_ca_file() -> None:
    with pytest.raises(ValueError, match="ca_file is for TLS"):
        await connect_host("localhost:1", SasCredential("k", "s"), tls=False, ca_file="ca.pem")
