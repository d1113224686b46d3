"""The socket's side: a full one holds messages back, a silent one is given up."""

import asyncio

import pytest

from spillway.amqp.connection import Connection as Engine
from spillway.amqp.connection import ConnectionOptions
from spillway.amqp.performatives import Source, Target
from spillway.client import Connection, ConnectionLost, OutgoingMessage
from spillway.client.wire import WRITE_BUFFER_HIGH, Wire
from tests.client.scripted import ScriptedServer, until


async def test_a_peer_that_does_not_read_leaves_messages_in_line(
    server: ScriptedServer, connection: Connection
) -> None:
    sender = await connection.sender("q", window_bytes=64 * 1024 * 1024)
    transport = server.peers[0].transport
    assert transport is not None
    transport.pause_reading()
    message = OutgoingMessage(b"x" * 200_000).encode()
    outcomes = [sender.post_raw(message) for _ in range(100)]
    wire = sender.carrier
    assert isinstance(wire, Wire)
    assert not wire.is_writable
    assert wire._transport is not None
    unwritten_bytes = wire._transport.get_write_buffer_size()
    assert unwritten_bytes < WRITE_BUFFER_HIGH + 1024 * 1024, "the rest waits in line, where it can be given up"
    outcomes[-1].cancel()
    transport.resume_reading()
    await asyncio.gather(*outcomes[:-1])
    assert len(server.received) == 99


async def test_a_peer_that_falls_silent_is_given_up(server: ScriptedServer) -> None:
    loop = asyncio.get_running_loop()
    options = ConnectionOptions(container_id="impatient", sasl_mechanisms=["ANONYMOUS"], idle_timeout_ms=100)
    wire = Wire(Engine(options, False, int(loop.time() * 1000)), loop)
    await loop.create_connection(lambda: wire, "localhost", server.port)
    await wire.opened
    await until(lambda: wire.error is not None)
    assert isinstance(wire.error, ConnectionLost)
    assert wire.error.condition == "amqp:resource-limit-exceeded"
    await wire.closed


async def test_a_link_that_the_peer_wants_is_refused(server: ScriptedServer, connection: Connection) -> None:
    await connection.sender("q")
    (peer,) = server.peers
    link = peer.engine.begin().attach_sender("intruder", Source("a"), Target("b"))
    peer.flush()
    await until(lambda: link.is_detached)
    await (await connection.sender("q")).send(OutgoingMessage(b"nothing happened"))


@pytest.mark.parametrize(
    "garbage", [b"\xff" * 64, b"\x00\x00\x00\x07\x02\x00\x00\x00", b"\x7f\xff\xff\xff\x02\x00\x00\x00"]
)
async def test_bytes_that_are_no_frames_end_the_connection_with_an_error(
    server: ScriptedServer, connection: Connection, garbage: bytes
) -> None:
    sender = await connection.sender("q")
    transport = server.peers[0].transport
    assert transport is not None
    transport.write(garbage)
    await until(lambda: connection.error is not None)
    with pytest.raises(ConnectionLost):
        await sender.send(OutgoingMessage(b"x"))
