"""Entra ID: real azure-identity, a real authority on this machine, tokens put as `jwt` and renewed, none shown."""

import asyncio
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spillway.client import ConnectionLost, NoToken, OutgoingMessage, connect, parse_connection_string
from spillway.client.credentials import TOKEN_SCOPE, sign_sas
from spillway.client.secrets import connection_string_at
from tests.client.scripted import ScriptedServer
from tests.tools.broker_process import BrokerProcess
from tests.tools.token_authority import TokenAuthority

SECRET = "s3cr3t~of-the.application"
TOKEN = "eyJ0eXAiOiJKV1QifQ.eyJhdWQiOiJzYiJ9.c2ln"
APPLICATION = "TenantId=contoso.example;ClientId=11111111-2222-3333-4444-555555555555"
LOCAL = "UseDevelopmentEmulator=true"


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TokenAuthority]:
    """Entra ID's part, over TLS as azure-identity demands."""
    with TokenAuthority(lambda: TOKEN, tmp_path) as found:
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(found.ca_file))
        yield found


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[TokenAuthority]:
    """The endpoint of managed identities."""
    with TokenAuthority(lambda: TOKEN) as found:
        monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", found.url)
        yield found


def string(port: int, *parts: str) -> str:
    return ";".join((f"Endpoint=sb://localhost:{port}", LOCAL, *parts))


def with_secret(port: int, authority: TokenAuthority, secret: str = f"ClientSecret={SECRET}") -> str:
    return string(port, "Authentication=ClientSecret", APPLICATION, secret, f"AuthorityHost={authority.url}")


async def put_token(server: ScriptedServer, text: str) -> tuple[Any, Any, Any]:
    """What a connection puts to `$cbs` for its first link."""
    async with await connect(text, operation_timeout=20) as connection:
        await connection.sender("orders")
    properties, body = server.tokens.get_nowait()
    return properties["type"], properties["name"], body


async def test_a_client_secret_becomes_a_jwt_for_the_entity(server: ScriptedServer, authority: TokenAuthority) -> None:
    said = await put_token(server, with_secret(server.port, authority))
    assert said == ("jwt", f"sb://localhost:{server.port}/orders", TOKEN)
    (asked,) = authority.asked
    assert asked["path"] == "/contoso.example/oauth2/v2.0/token"
    assert (asked["grant_type"], asked["client_secret"]) == ("client_credentials", SECRET)
    assert asked["scope"].startswith(TOKEN_SCOPE)


@pytest.mark.parametrize("kind", ["env", "file"])
async def test_a_client_secret_is_found_by_its_name_and_read_anew_for_each_token(
    server: ScriptedServer, authority: TokenAuthority, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = {"env": "env:APP_SECRET", "file": f"file:{tmp_path / 'app'}"}[kind]
    for secret in ("first~secret", "second~secret"):
        monkeypatch.setenv("APP_SECRET", secret)
        (tmp_path / "app").write_text(secret)
        await put_token(server, with_secret(server.port, authority, f"ClientSecretName={name}"))
    assert [asked["client_secret"] for asked in authority.asked] == ["first~secret", "second~secret"]


async def test_a_workload_exchanges_the_token_that_kubernetes_mounts(
    server: ScriptedServer, authority: TokenAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mounted").write_text("token of the service account")
    monkeypatch.setenv("AZURE_FEDERATED_TOKEN_FILE", str(tmp_path / "mounted"))
    monkeypatch.setenv("AZURE_TENANT_ID", "contoso.example")
    monkeypatch.setenv("AZURE_CLIENT_ID", "11111111-2222-3333-4444-555555555555")
    text = string(server.port, "Authentication=Workload Identity", f"AuthorityHost={authority.url}")
    assert (await put_token(server, text))[::2] == ("jwt", TOKEN)
    (asked,) = authority.asked
    assert asked["client_assertion"] == "token of the service account"
    assert asked["client_id"] == "11111111-2222-3333-4444-555555555555"


async def test_a_machine_asks_with_its_managed_identity_or_the_one_that_is_named(
    server: ScriptedServer, machine: TokenAuthority
) -> None:
    assert (await put_token(server, string(server.port, "Authentication=ManagedIdentity")))[::2] == ("jwt", TOKEN)
    named = string(server.port, "Authentication=Managed Identity", "ClientId=1234")
    assert (await put_token(server, named))[::2] == ("jwt", TOKEN)
    assert machine.asked[0]["resource"].rstrip("/") == "https://servicebus.azure.net"
    assert [asked.get("client_id") for asked in machine.asked] == [None, "1234"]


async def test_tokens_are_kept_by_the_process_however_often_it_connects(
    server: ScriptedServer, authority: TokenAuthority
) -> None:
    for _ in range(3):
        await put_token(server, with_secret(server.port, authority))
    assert len(authority.asked) == 1


async def test_a_token_is_renewed_before_it_expires(server: ScriptedServer, authority: TokenAuthority) -> None:
    authority.lifetime_s = 2
    tokens = iter([TOKEN + "1", TOKEN + "2", TOKEN + "3", TOKEN + "4"])
    authority.make_token = lambda: next(tokens)
    async with await connect(with_secret(server.port, authority), operation_timeout=20) as connection:
        await connection.sender("orders")
        first, again = [await asyncio.wait_for(server.tokens.get(), 10) for _ in range(2)]
    assert [first[1], again[1]] == [TOKEN + "1", TOKEN + "2"]
    assert again[0]["name"] == f"sb://localhost:{server.port}/orders"


async def test_messages_go_through_a_real_broker_with_what_the_authority_gives(
    broker: BrokerProcess, authority: TokenAuthority
) -> None:
    target = parse_connection_string(broker.connection_string)
    assert target.key_name is not None and target.key is not None
    audience = f"sb://localhost:{broker.port}/"
    signed = sign_sas(audience, target.key_name, target.key, 4_000_000_000)
    authority.make_token = lambda: signed
    async with await connect(with_secret(broker.port, authority)) as connection:
        await (await connection.sender("q43")).send(OutgoingMessage("by Entra ID"))
        receiver = await connection.receiver("q43")
        (message,) = await receiver.receive(1, 5.0)
        assert message.body == b"by Entra ID"
        await receiver.complete(message)


async def test_a_refusal_of_the_authority_is_told_without_the_secret_and_is_no_outage(
    server: ScriptedServer, authority: TokenAuthority, caplog: pytest.LogCaptureFixture
) -> None:
    text = f"AADSTS7000215: Invalid client secret provided: {SECRET}, token {TOKEN}"
    authority.refusal = (401, {"error": "invalid_client", "error_description": text})
    async with await connect(with_secret(server.port, authority), operation_timeout=20) as connection:
        with pytest.raises(NoToken, match="Entra ID gave no token: .*AADSTS7000215") as raised:
            await connection.sender("orders")
    assert not raised.value.is_transient
    said = str(raised.value) + repr(raised.value) + caplog.text
    assert SECRET not in said and TOKEN not in said


@pytest.mark.parametrize("trouble", ["busy", "away"])
async def test_an_authority_that_is_away_or_busy_passes_by_itself(
    server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    with TokenAuthority(lambda: TOKEN, tmp_path) as found:
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(found.ca_file))
        found.refusal = (503, {"error": "temporarily_unavailable"})
        text = with_secret(server.port, found)
        if trouble == "busy":
            await refused(text)
    if trouble == "away":
        await refused(text)


async def refused(text: str) -> None:
    async with await connect(text, operation_timeout=20) as connection:
        with pytest.raises(ConnectionLost, match="Entra ID cannot be asked for a token now") as raised:
            await connection.sender("orders")
        assert raised.value.is_transient


def test_nothing_that_is_parsed_shows_a_secret() -> None:
    text = f"Endpoint=sb://h;Authentication=ClientSecret;{APPLICATION};ClientSecret={SECRET}"
    parsed = parse_connection_string(text)
    assert parsed.identity is not None and parsed.identity.client_secret == SECRET
    assert SECRET not in repr(parsed) + str(parsed)


async def test_a_token_is_not_sent_in_clear_to_another_machine() -> None:
    with pytest.raises(ValueError, match="not sent in clear to another machine"):
        await connect(f"Endpoint=sb://contoso.example;{LOCAL};Authentication=ManagedIdentity")


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ("Authentication=Password", "must be ClientSecret, WorkloadIdentity or ManagedIdentity"),
        (f"ClientSecret={SECRET}", "ClientSecret .* is for Entra ID: Authentication is missing"),
        (f"Authentication=ManagedIdentity;ClientSecret={SECRET}", "not for Authentication=ManagedIdentity"),
        (f"Authentication=ClientSecret;ClientSecret={SECRET}", "needs TenantId and ClientId"),
        (f"Authentication=ClientSecret;{APPLICATION}", "needs one of ClientSecretName .* and ClientSecret"),
        (f"Authentication=ClientSecret;{APPLICATION};ClientSecretName={SECRET}", "must be env:NAME or file:PATH"),
        (f"Authentication=ManagedIdentity;ClientId={SECRET}", "ClientId of the connection string must be an id"),
        ("Authentication=WorkloadIdentity;AuthorityHost=http://h", "AuthorityHost .* must be https://host"),
        (f"Authentication=ManagedIdentity;SharedAccessKeyName=a;SharedAccessKey={SECRET}", "and a shared access key"),
    ],
)
def test_a_string_that_contradicts_itself_is_refused_without_a_value(parts: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as raised:
        parse_connection_string(f"Endpoint=sb://h;{parts}")
    assert SECRET not in str(raised.value)


def test_what_to_install_is_said_where_azure_identity_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'spillway-servicebus\[entra\]'"):
        connection_string_at("Endpoint=sb://h;Authentication=ManagedIdentity")


async def test_nobody_else_needs_azure_identity() -> None:
    """It takes half a second to import, and is an extra."""
    code = "import sys, spillway.client, spillway.spark.platform.access; print('azure.identity' in sys.modules)"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    assert json.loads(out.decode().strip().lower()) is False
