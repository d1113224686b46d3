"""Connecting, rights, heartbeats and the end of a connection."""

import asyncio
import ssl
import time
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from spillway.amqp.errors import AmqpError
from spillway.client import (
    Connection,
    ConnectionLost,
    EntityNotFound,
    OperationTimeout,
    OutgoingMessage,
    SasCredential,
    Unauthorized,
    connect,
)
from tests.client.certificates import self_signed
from tests.client.scripted import KEY, ScriptedServer, until
from tests.client.test_credentials import Blocking


async def test_a_token_is_put_once_per_entity_and_before_its_first_link(
    server: ScriptedServer, connection: Connection
) -> None:
    await asyncio.gather(connection.sender("q"), connection.sender("q"), connection.receiver("q"))
    await connection.sender("other/Subscriptions/s")
    names = []
    while not server.tokens.empty():
        properties, body = server.tokens.get_nowait()
        names.append(properties["name"])
        assert properties["operation"] == "put-token"
        assert properties["type"] == "servicebus.windows.net:sastoken"
        assert isinstance(body, str)
        assert body.startswith("SharedAccessSignature sr=sb%3A%2F%2Flocalhost")
    assert names == [f"sb://localhost:{server.port}/q", f"sb://localhost:{server.port}/other/Subscriptions/s"]


async def test_a_token_credential_puts_its_own_tokens(server: ScriptedServer) -> None:
    text = f"Endpoint=sb://localhost:{server.port};UseDevelopmentEmulator=true"
    with pytest.raises(ValueError):
        await connect(text)
    async with await connect(text, credential=Blocking()) as connection:
        await connection.sender("q")
    properties, body = server.tokens.get_nowait()
    assert (properties["type"], body) == ("jwt", "eyJ")


async def test_a_token_is_renewed_before_it_expires(server: ScriptedServer) -> None:
    credential = SasCredential("Root", KEY, lifetime_s=3)
    async with await connect(server.connection_string, credential=credential) as connection:
        await connection.sender("q")
        first, _ = await server.tokens.get()
        second, _ = await asyncio.wait_for(server.tokens.get(), 10)
    assert second["name"] == first["name"]
    first_expiry, second_expiry = first["expiration"], second["expiration"]
    assert isinstance(first_expiry, int)
    assert isinstance(second_expiry, int)
    assert second_expiry > first_expiry > time.time() * 1000, "renewed while the first was good"


async def test_a_renewal_that_fails_is_tried_again(server: ScriptedServer, caplog: pytest.LogCaptureFixture) -> None:
    credential = SasCredential("Root", KEY, lifetime_s=4)
    async with await connect(server.connection_string, credential=credential) as connection:
        await connection.sender("q")
        await server.tokens.get()
        server.token_status = 500
        await server.tokens.get()
        server.token_status = 202
        await asyncio.wait_for(server.tokens.get(), 10)
        await (await connection.sender("q")).send(OutgoingMessage(b"still welcome"))
    assert "could not be renewed, trying again" in caplog.text
    assert KEY not in caplog.text


@pytest.mark.parametrize(("status", "kind"), [(401, Unauthorized), (404, EntityNotFound)])
async def test_a_refused_token_is_raised_with_its_tracking_id(
    server: ScriptedServer, connection: Connection, status: int, kind: type[Exception]
) -> None:
    server.token_status = status
    with pytest.raises(kind) as caught:
        await connection.sender("q")
    assert getattr(caught.value, "tracking_id") == "abc_1"  # noqa: B009 - the type is a parameter
    server.token_status = 202
    await connection.sender("q")


async def test_a_refused_sasl_exchange_is_unauthorized(server: ScriptedServer) -> None:
    server.sasl_code = 1
    with pytest.raises(Unauthorized):
        await connect(server.connection_string)


async def test_nobody_listening_is_a_lost_connection() -> None:
    async with ScriptedServer() as server:
        text = server.connection_string
    with pytest.raises(ConnectionLost) as caught:
        await connect(text, operation_timeout=5)
    assert caught.value.is_transient
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("greeting", "kind"), [(b"", OperationTimeout), (b"HTTP/1.1 400 Bad Request\r\n\r\n", ConnectionLost)]
)
async def test_a_listener_that_speaks_no_amqp_is_given_up(greeting: bytes, kind: type[Exception]) -> None:
    hung_up = asyncio.Event()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        await reader.read()  # until the client hangs up
        writer.close()
        hung_up.set()

    listener = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with listener:
        port = listener.sockets[0].getsockname()[1]
        text = f"Endpoint=sb://localhost:{port};SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true"
        with pytest.raises(kind):
            await connect(text, operation_timeout=0.2)
        await hung_up.wait()


async def test_the_peers_close_says_why(server: ScriptedServer, connection: Connection) -> None:
    sender = await connection.sender("q")
    server.peers[0].engine.close(AmqpError("amqp:connection:forced", "Going down. TrackingId:7_7", None))
    server.peers[0].flush()
    await until(lambda: connection.error is not None)
    with pytest.raises(ConnectionLost) as caught:
        await sender.send(OutgoingMessage(b"x"))
    assert (caught.value.condition, caught.value.tracking_id) == ("amqp:connection:forced", "7_7")


async def test_closing_says_goodbye_and_fails_what_waits(server: ScriptedServer) -> None:
    connection = await connect(server.connection_string)
    receiver = await connection.receiver("q")
    waiting = asyncio.create_task(receiver.receive(max_wait=30))
    await until(lambda: server.link_to("q").credit > 0)
    await connection.close()
    with pytest.raises(ConnectionLost):
        await waiting
    assert server.peers[0].engine.is_closed
    await connection.close()
    with pytest.raises(ConnectionLost):
        await connection.sender("q")


async def test_no_task_is_left_behind(server: ScriptedServer) -> None:
    before = asyncio.all_tasks()
    async with await connect(server.connection_string) as connection:
        await connection.sender("q")
        await connection.receiver("q", credit=5)
        await connection.management("q").close()
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


async def test_a_heartbeat_is_sent_within_the_peers_patience(server: ScriptedServer) -> None:
    server.idle_timeout_ms = 400
    async with await connect(server.connection_string):
        (peer,) = server.peers
        before = peer.bytes_received
        await until(lambda: peer.bytes_received > before)
        assert peer.bytes_received - before == 8, "an empty frame"


async def test_a_cancelled_attach_leaves_the_connection_usable(server: ScriptedServer, connection: Connection) -> None:
    server.silent_paths.add("q")
    attaching = asyncio.create_task(connection.sender("q"))
    await until(lambda: any(link.attach is not None and not link.is_sender for link in server.attached[2:]))
    attaching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attaching
    server.silent_paths.clear()
    await (await connection.sender("q")).send(OutgoingMessage(b"fine"))


# -- TLS ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A self-signed certificate for localhost, with its key in the same file."""
    key, certificate = self_signed("localhost")
    path = tmp_path / "localhost.pem"
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    return path


async def test_tls_with_a_ca_file_and_no_other_way_in(certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server = ScriptedServer()
    server.tls = context
    async with server:
        string = f"Endpoint=sb://localhost:{server.port};SharedAccessKeyName=Root;SharedAccessKey={KEY}"
        async with await connect(string, ca_file=certificate) as connection:
            await (await connection.sender("q")).send(OutgoingMessage(b"sealed"))
        with pytest.raises(ConnectionLost) as caught:  # the system's authorities do not know it
            await connect(string)
        assert not caught.value.is_transient
        # A ca_file asks for TLS even of an emulator's string, and an amqps:// endpoint never goes without.
        async with await connect(server.connection_string, ca_file=certificate):
            pass
        with pytest.raises(ValueError):
            await connect(string.replace("sb://", "amqps://"), tls=False)
        with pytest.raises(ValueError):
            await connect(string, tls=False, ca_file=certificate)


async def test_a_clear_text_listener_is_never_fallen_back_to(server: ScriptedServer) -> None:
    string = server.connection_string.replace("UseDevelopmentEmulator=true;", "")
    with pytest.raises((ConnectionLost, OperationTimeout)):
        await connect(string, operation_timeout=2)
    assert server.tokens.empty()
