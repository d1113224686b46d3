"""The client inside a WebSocket: `TransportType=AmqpWebSockets`."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, Request, TextMessage

from spillway.client import RECEIVE_AND_DELETE, ConnectionLost, OutgoingMessage, ReceivedMessage, connect
from tests.tools.broker_process import BrokerProcess

WAIT_S = 20.0
QUEUE = "q39"  # of the broker that all tests of this room share


@pytest.mark.parametrize("is_tls", [False, True], ids=["ws", "wss"])
async def test_messages_of_every_size_go_through_and_are_settled(broker: BrokerProcess, is_tls: bool) -> None:
    text = f"{broker.connection_string};TransportType=AmqpWebSockets"
    ca_file = broker.ca_file if is_tls else None
    async with await connect(text, ca_file=ca_file, operation_timeout=WAIT_S) as connection:
        sender = await connection.sender(QUEUE)
        bodies = [bytes([number]) * (number * 5_000) for number in range(50)]
        await asyncio.gather(*[sender.send(OutgoingMessage(body)) for body in bodies])
        receiver = await connection.receiver(QUEUE, credit=50)
        received: list[ReceivedMessage] = []
        while len(received) < 50:
            received += await receiver.receive(max_count=50, max_wait=WAIT_S)
        assert sorted(message.body for message in received) == sorted(bodies)
        await asyncio.gather(*[receiver.complete(message) for message in received])
        assert await connection.management(QUEUE).peek() == []


async def test_a_cancelled_or_closed_connection_leaves_in_order(broker: BrokerProcess) -> None:
    text = f"{broker.connection_string};TransportType=AmqpWebSockets"
    connection = await connect(text, operation_timeout=WAIT_S)
    receiver = await connection.receiver(QUEUE, mode=RECEIVE_AND_DELETE)
    waiting = asyncio.ensure_future(receiver.receive(max_wait=WAIT_S))
    await asyncio.sleep(0)
    begun = asyncio.get_running_loop().time()
    await connection.close()
    assert asyncio.get_running_loop().time() - begun < 2, "both sides said goodbye"
    with contextlib.suppress(ConnectionLost):
        assert await waiting == []
    assert isinstance(connection.error, ConnectionLost)


class Stranger:
    """Answers as it is told, once."""

    def __init__(self) -> None:
        self.says = b""
        self.subprotocol: str | None = "AMQPWSB10"
        self.server: asyncio.Server | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.readuntil(b"\r\n\r\n")
        if self.says:
            writer.write(self.says)
        else:
            speech = WSConnection(ConnectionType.SERVER)
            speech.receive_data(asked)
            (request,) = speech.events()
            assert isinstance(request, Request)
            assert (request.target, request.subprotocols) == ("/$servicebus/websocket", ["AMQPWSB10"])
            writer.write(speech.send(AcceptConnection(subprotocol=self.subprotocol)))
            writer.write(speech.send(TextMessage("hello")))
        writer.close()

    @property
    def connection_string(self) -> str:
        assert self.server is not None
        port = self.server.sockets[0].getsockname()[1]
        return (
            f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=a;SharedAccessKey=a2V5;"
            "UseDevelopmentEmulator=true;TransportType=AmqpWebSockets"
        )


@pytest.fixture
async def stranger() -> AsyncIterator[Stranger]:
    made = Stranger()
    made.server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    yield made
    made.server.close()


@pytest.mark.parametrize(
    ("says", "text", "is_transient"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "it answered 404", False),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", "it answered 503", True),
        (b"AMQP\x03\x01\x00\x00\r\n\r\n", "broke the rules of WebSockets", False),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n", "broke the rules of WebSockets", False),
        (b"HTTP", "hung up instead of opening a WebSocket", True),
    ],
    ids=["404", "503", "no HTTP", "half an answer", "nothing"],
)
async def test_who_opens_no_websocket_is_named_as_the_reason(
    stranger: Stranger, says: bytes, text: str, is_transient: bool
) -> None:
    stranger.says = says
    with pytest.raises(ConnectionLost, match=text) as caught:
        await connect(stranger.connection_string, operation_timeout=WAIT_S)
    assert caught.value.is_transient is is_transient


async def test_who_speaks_another_protocol_inside_is_left(stranger: Stranger) -> None:
    stranger.subprotocol = None
    with pytest.raises(ConnectionLost, match="does not speak AMQPWSB10"):
        await connect(stranger.connection_string, operation_timeout=WAIT_S)
    stranger.subprotocol = "AMQPWSB10"
    with pytest.raises(ConnectionLost):
        await connect(stranger.connection_string, operation_timeout=WAIT_S)
