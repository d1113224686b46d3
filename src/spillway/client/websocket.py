"""AMQP inside a WebSocket, for networks that let nothing else through: a transport for `Wire`.

Binary messages carry the stream in pieces of any size (docs/wire.md, "WebSocket"). wsproto speaks; this carries.
"""

import asyncio
from collections.abc import Iterable
from typing import Final, cast

from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Ping,
    RejectConnection,
    Request,
    TextMessage,
)
from wsproto.utilities import ProtocolError

from spillway.client.errors import ConnectionLost
from spillway.client.link import mark_retrieved

PATH: Final = "/$servicebus/websocket"
SUBPROTOCOL: Final = "AMQPWSB10"
MESSAGE_BYTES: Final = 64 * 1024


class WebSocket(asyncio.Protocol, asyncio.Transport):
    """A WebSocket: to the socket a protocol, to `above` a transport; `accepted` is done when the peer has agreed to
    speak it."""

    def __init__(self, above: asyncio.Protocol, authority: str, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.accepted: asyncio.Future[None] = loop.create_future()
        self.accepted.add_done_callback(mark_retrieved)
        self._above = above
        self._authority = authority
        self._speech = WSConnection(ConnectionType.CLIENT)
        self._below: asyncio.Transport | None = None
        self._is_closing = False

    # -- what the socket says ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert self._below is None, "a WebSocket has one socket in its life"
        self._below = cast(asyncio.Transport, transport)
        self._below.write(self._speech.send(Request(self._authority, PATH, subprotocols=[SUBPROTOCOL])))

    def data_received(self, data: bytes) -> None:
        try:
            self._speech.receive_data(data)
            for event in self._speech.events():
                self._on_event(event)
        except ProtocolError as error:
            self._fail(f"the peer broke the rules of WebSockets: {error}", is_transient=False)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.accepted.done():
            self._above.connection_lost(exc)
        else:
            self._fail("the peer hung up instead of opening a WebSocket", is_transient=True)

    def pause_writing(self) -> None:
        self._above.pause_writing()

    def resume_writing(self) -> None:
        self._above.resume_writing()

    def _on_event(self, event: Event) -> None:
        if isinstance(event, BytesMessage):
            self._above.data_received(bytes(event.data))
        elif isinstance(event, AcceptConnection):
            self._on_accepted(event.subprotocol)
        elif isinstance(event, RejectConnection):
            text = f"the peer opens no WebSocket: it answered {event.status_code}"
            self._fail(text, is_transient=event.status_code >= 500)
        elif isinstance(event, Ping):
            if not self._is_closing:
                self._send(event.response())
        elif isinstance(event, CloseConnection):
            if not self._is_closing:
                self._is_closing = True
                self._send(event.response())
            self._socket().close()
        elif isinstance(event, TextMessage):
            self._fail("the peer sent text instead of AMQP", is_transient=False)

    def _on_accepted(self, subprotocol: str | None) -> None:
        if subprotocol != SUBPROTOCOL:
            self._fail(f"the peer does not speak {SUBPROTOCOL}", is_transient=False)
            return
        self.accepted.set_result(None)
        self._above.connection_made(self)

    def _fail(self, text: str, is_transient: bool) -> None:
        self._is_closing = True
        if not self.accepted.done():
            self.accepted.set_exception(ConnectionLost(text, is_transient=is_transient))
        self._socket().abort()

    def _send(self, event: Event) -> None:
        self._socket().write(self._speech.send(event))

    def _socket(self) -> asyncio.Transport:
        assert self._below is not None, "nothing is said before there is a socket"
        return self._below

    # -- what the one above says ---------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_closing:
            return
        assert self.accepted.done(), "AMQP begins when the peer has agreed to WebSockets"
        pieces = [bytes(data[at : at + MESSAGE_BYTES]) for at in range(0, len(data), MESSAGE_BYTES)]
        self._socket().writelines([self._speech.send(BytesMessage(piece)) for piece in pieces])

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        """Say so; the peer closes the socket when it has heard it."""
        if not self._is_closing:
            self._is_closing = True
            self._send(CloseConnection(code=1000))

    def abort(self) -> None:
        self._socket().abort()

    def is_closing(self) -> bool:
        return self._is_closing or self._socket().is_closing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._socket().set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._socket().get_write_buffer_size()
