"""A request and its answer between h11 and an application: parts of a body, `100 Continue`, and who waits for whom."""

import asyncio
import logging
import socket
from collections.abc import Iterator
from typing import Any

import h11
import pytest
from starlette.types import Message, Receive, Scope, Send

from spillway.admin import protocol
from spillway.admin.exchange import BODY_HELD_BYTES_MAX, Exchange, FlowControl
from spillway.admin.protocol import HttpConnection, address
from tests.admin.client import Client
from tests.admin.conftest import connections
from tests.wire.live import LiveBroker

HEAD: Message = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
BODY: Message = {"type": "http.response.body", "body": b"ok"}


class Transport(asyncio.Transport):
    """Remembers what is done to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_paused = False
        self.is_closed = False

    def write(self, data: Any) -> None:
        self.written += data

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True


class Asked:
    """One request that has come whole but for its body, and what was said to it."""

    def __init__(self, method: str = "PUT", *lines: str) -> None:
        self.transport = Transport()
        self.flow = FlowControl(self.transport)
        self.conn = h11.Connection(h11.SERVER)
        self.completed = 0
        head = "\r\n".join([f"{method} /q HTTP/1.1", "Host: localhost", *lines, "", ""])
        self.conn.receive_data(head.encode())
        assert isinstance(self.conn.next_event(), h11.Request)
        self.exchange = Exchange({"method": method}, self.conn, self.flow, self.complete)

    def complete(self) -> None:
        self.completed += 1

    async def answer(self) -> None:
        await self.exchange.send(HEAD)
        await self.exchange.send(BODY)


async def test_a_body_comes_in_parts_and_reading_pauses_while_nobody_asks() -> None:
    asked = Asked("PUT", "Content-Length: 100000")
    asked.exchange.accept_body(b"x" * BODY_HELD_BYTES_MAX)
    assert not asked.transport.is_paused
    asked.exchange.accept_body(b"y")
    assert asked.transport.is_paused
    first = await asked.exchange.receive()
    assert (len(first["body"]), first["more_body"]) == (BODY_HELD_BYTES_MAX + 1, True)
    assert not asked.transport.is_paused
    asked.exchange.accept_body(b"z")
    asked.exchange.end_body()
    assert await asked.exchange.receive() == {"type": "http.request", "body": b"z", "more_body": False}


async def test_a_client_that_waits_to_be_asked_is_asked_once_and_when_the_body_is_wanted() -> None:
    asked = Asked("PUT", "Content-Length: 2", "Expect: 100-continue")
    assert asked.transport.written == b""
    asked.exchange.accept_body(b"a")
    await asked.exchange.receive()
    asked.exchange.accept_body(b"b")
    await asked.exchange.receive()
    assert asked.transport.written == b"HTTP/1.1 100 Continue\r\n\r\n"


async def test_a_client_that_waits_to_be_asked_and_is_refused_is_not_asked() -> None:
    asked = Asked("PUT", "Content-Length: 2", "Expect: 100-continue")
    await asked.answer()
    assert asked.transport.written.startswith(b"HTTP/1.1 200 OK\r\n")
    assert await asked.exchange.receive() == {"type": "http.disconnect"}
    assert b"100 Continue" not in asked.transport.written


async def test_every_answer_has_the_headers_that_keep_browsers_from_guessing() -> None:
    asked = Asked("GET")
    await asked.answer()
    head, _, body = asked.transport.written.partition(b"\r\n\r\n")
    assert body == b"ok"
    assert b"\r\nx-content-type-options: nosniff\r\n" in head.lower()
    assert (asked.completed, asked.transport.is_closed) == (1, False)


async def test_an_answer_to_head_has_no_body() -> None:
    asked = Asked("HEAD")
    await asked.answer()
    assert asked.transport.written.endswith(b"content-length: 2\r\n\r\n")


async def test_an_answer_in_parts_is_complete_with_its_last() -> None:
    asked = Asked("GET")
    await asked.exchange.send(HEAD)
    await asked.exchange.send({**BODY, "body": b"o", "more_body": True})
    assert not asked.exchange.is_complete and asked.completed == 0
    await asked.exchange.send({**BODY, "body": b"k"})
    assert asked.exchange.is_complete and asked.completed == 1
    assert asked.transport.written.endswith(b"\r\n\r\nok")


async def test_an_application_that_says_more_than_an_answer_fails() -> None:
    asked = Asked("GET")
    with pytest.raises(AssertionError, match="begins with its head"):
        await asked.exchange.send(BODY)
    await asked.answer()
    with pytest.raises(AssertionError, match="and no more"):
        await asked.exchange.send(BODY)


@pytest.mark.parametrize("lines", [("Connection: close",), ()])
async def test_the_last_answer_closes_the_connection(lines: tuple[str, ...]) -> None:
    asked = Asked("GET", *lines)
    asked.exchange.keeps_alive = bool(lines)  # the broker stops, or the client has said so
    await asked.answer()
    assert asked.transport.is_closed and asked.completed == 1


async def test_an_answer_waits_for_a_client_that_reads_slowly() -> None:
    asked = Asked("GET")
    asked.flow.writable.clear()
    answering = asyncio.create_task(asked.answer())
    await asyncio.sleep(0.01)
    assert asked.transport.written == b""
    asked.flow.writable.set()
    await answering
    assert asked.transport.written.endswith(b"ok")


async def test_a_client_that_has_gone_is_answered_no_more_and_nobody_waits_for_it() -> None:
    asked = Asked("PUT", "Content-Length: 2")
    receiving = asyncio.create_task(asked.exchange.receive())
    await asyncio.sleep(0)
    asked.exchange.end()
    assert await receiving == {"type": "http.disconnect"}
    await asked.answer()
    assert (asked.transport.written, asked.completed) == (b"", 0)


def test_an_address_is_host_and_port_in_every_family() -> None:
    assert address(("127.0.0.1", 5672)) == ("127.0.0.1", 5672)
    assert address(("::1", 5672, 0, 0)) == ("::1", 5672)
    assert address("/run/socket") is None
    assert address(None) is None


# -- the connection around it -----------------------------------------------------------------------------------------


def head(client: Client, method: str, *lines: str) -> bytes:
    assert client.token is not None
    first = [f"{method} /q HTTP/1.1", f"Host: localhost:{client.port}", f"Authorization: {client.token}"]
    return "\r\n".join([*first, *lines, "", ""]).encode()


@pytest.fixture
def sock(client: Client) -> Iterator[socket.socket]:
    with socket.create_connection(("localhost", client.port), timeout=20) as made:
        yield made


def heard(sock: socket.socket) -> bytes:
    """Everything up to the end."""
    parts = []
    while part := sock.recv(65_536):
        parts.append(part)
    return b"".join(parts)


def test_what_comes_behind_the_last_request_is_not_looked_at(client: Client, sock: socket.socket) -> None:
    sock.sendall(head(client, "GET", "Connection: close") + b"no request at all\r\n\r\n")
    answers = heard(sock)
    assert answers.startswith(b"HTTP/1.1 200 ")
    assert answers.count(b"HTTP/1.1 ") == 1


def test_what_comes_of_a_body_after_its_answer_is_passed_over(client: Client, sock: socket.socket) -> None:
    good, client.token = client.token, "SharedAccessSignature none"
    sock.sendall(head(client, "PUT", "Content-Length: 4") + b"ab")
    first = sock.recv(65_536)
    assert first.startswith(b"HTTP/1.1 401 "), "who has no good token is refused before the body"
    client.token = good
    sock.sendall(b"cd" + head(client, "GET", "Connection: close"))
    answers = first + heard(sock)
    assert answers.count(b"HTTP/1.1 200 ") == 1, answers


def test_a_client_that_says_nothing_more_is_let_go(
    broker: LiveBroker, client: Client, sock: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "KEEP_ALIVE_S", 0.2)
    sock.sendall(head(client, "GET"))
    assert heard(sock).count(b"HTTP/1.1 200 ") == 1


class FailingApp:
    """In the place of the administration: says so much of an answer, and fails."""

    def __init__(self, app: Any, is_started: bool) -> None:
        self.app = app
        self.is_started = is_started
        self.namespace = app.namespace

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.is_started:
            await send({**HEAD, "headers": [(b"content-length", b"100")]})
        raise LookupError("of the test")


@pytest.mark.parametrize("is_started", [False, True])
def test_an_application_that_fails_is_a_500_or_the_end_of_the_connection(
    broker: LiveBroker, client: Client, sock: socket.socket, caplog: pytest.LogCaptureFixture, is_started: bool
) -> None:
    together = connections(broker)
    app = together.app
    together.app = FailingApp(app, is_started)  # type: ignore[assignment]
    try:
        with caplog.at_level(logging.ERROR):
            sock.sendall(head(client, "GET"))
            answer = heard(sock)
    finally:
        together.app = app
    assert answer.startswith(b"HTTP/1.1 200 " if is_started else b"HTTP/1.1 500 ")
    assert (b"The broker failed to answer; its log says why" in answer) is not is_started
    assert "of the test" in caplog.text


def test_a_connection_is_forgotten_when_it_ends(broker: LiveBroker, client: Client, sock: socket.socket) -> None:
    together = connections(broker)
    client.ask("GET", "/q")
    sock.sendall(b"GET /q")
    broker.wait(lambda: len(together.connections) == 2)
    assert all(isinstance(each, HttpConnection) for each in together.connections)
    sock.close()
    client.close()
    broker.wait(lambda: not together.connections and not together.waiting and not together.tasks)
