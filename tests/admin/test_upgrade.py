"""Who gets a WebSocket, and what those hear who do not (RFC 6455 section 4.2)."""

import re
import socket
from typing import Any

import pytest

from spillway.admin.protocol import REQUEST_TIMEOUT_S
from spillway.model.access import MANAGE, NAMESPACE_SCOPE, AccessRule
from spillway.model.limits import CONNECTIONS_MAX
from spillway.server.keys import KEY_NAME
from spillway.server.listener import TOLD_FULL_MAX
from tests.admin.client import Client
from tests.admin.conftest import connections
from tests.hostile.attacker import sender
from tests.hostile.websocket import CLOSE, PING, RawWebSocket, WebSocketAttacker, frame, head
from tests.wire.live import LiveBroker

REFUSED: dict[str, tuple[int, dict[str, Any], str]] = {
    "another path": (404, {"path": "/orders"}, "There is no WebSocket here"),
    "a path below": (404, {"path": "/$servicebus/websocket/x"}, "There is no WebSocket here"),
    "another method": (400, {"method": "POST"}, "with GET and HTTP/1.1"),
    "HTTP/1.0": (400, {"http": "1.0"}, "with GET and HTTP/1.1"),
    "no upgrade": (426, {"Connection": "keep-alive"}, "Upgrade: websocket"),
    "another upgrade": (426, {"Upgrade": "h2c"}, "Upgrade: websocket"),
    "an old version": (426, {"Sec_WebSocket_Version": "8"}, "'Sec-WebSocket-Version' must be 13"),
    "no version": (426, {"without": ["Sec-WebSocket-Version"]}, "must be 13"),
    "two versions": (426, {"more": ["Sec-WebSocket-Version: 8"]}, "must be 13"),
    "no key": (400, {"without": ["Sec-WebSocket-Key"]}, "16 bytes in Base64"),
    "a short key": (400, {"Sec_WebSocket_Key": "c2hvcnQ="}, "16 bytes in Base64"),
    "no key at all": (400, {"Sec_WebSocket_Key": "\xfc\xfc"}, "16 bytes in Base64"),
    "two keys": (400, {"more": ["Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="]}, "once"),
    "no sub-protocol": (400, {"without": ["Sec-WebSocket-Protocol"]}, "must offer AMQPWSB10"),
    "another sub-protocol": (400, {"Sec_WebSocket_Protocol": "amqps, mqtt"}, "must offer AMQPWSB10"),
    "a body": (400, {"Content_Length": "5"}, "has no body"),
    "a body in chunks": (400, {"Transfer_Encoding": "chunked"}, "has no body"),
    "two tokens": (400, {"more": ["Authorization: x", "Authorization: y"]}, "'authorization' is there more than once"),
    "many lines": (431, {"more": [f"X-{number}: x" for number in range(200)]}, "at most 100 header lines"),
    "a strange page": (403, {"Origin": "https://example.com"}, "may be the name of a web site"),
    "a page that hides": (403, {"Origin": "null"}, "may not connect"),
    "a name that leads here": (403, {"Origin": "http://localhost.example.com:5672"}, "of a web site"),
}  # fmt: skip


@pytest.mark.parametrize(("status", "changed", "text"), REFUSED.values(), ids=REFUSED.keys())
def test_a_bad_request_for_a_websocket_is_refused_with_the_reason(
    client: Client, status: int, changed: dict[str, Any], text: str
) -> None:
    with RawWebSocket(client.port, **changed) as refused:
        assert refused.answer.startswith(f"HTTP/1.1 {status} ".encode()), refused.answer
        assert text in refused.answer.decode()
        assert b"Connection: close" in refused.answer
        assert (b"\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n" in refused.answer) == (status == 426)
        assert refused.is_hung_up()


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"path": "/$servicebus/websocket/"},
        {"path": "/%24ServiceBus/WebSocket?x=y"},
        {"Sec_WebSocket_Protocol": "mqtt, AMQPWSB10"},
        {"Connection": "UPGRADE", "Upgrade": "WebSocket"},
        {"Origin": "http://localhost:3000"},
        {"Origin": "http://[::1]:8080"},
        {"Origin": "http://broker:5672"},
    ],
    ids=str,
)
def test_a_good_request_is_answered_with_the_sub_protocol(client: Client, changed: dict[str, Any]) -> None:
    with RawWebSocket(client.port, **changed) as accepted:
        assert accepted.answer.startswith(b"HTTP/1.1 101 Switching Protocols\r\n"), accepted.answer
        assert re.search(rb"(?i)\r\nSec-WebSocket-Protocol: AMQPWSB10(\r|$)", accepted.answer)
        accepted.say(frame(CLOSE))


@pytest.mark.parametrize(
    ("offered", "chosen"), [("amqp", b"amqp"), ("AMQP, mqtt", b"amqp"), ("amqp, AMQPWSB10", b"AMQPWSB10")]
)
def test_the_registered_name_of_the_sub_protocol_is_taken_too(client: Client, offered: str, chosen: bytes) -> None:
    with RawWebSocket(client.port, Sec_WebSocket_Protocol=offered) as accepted:
        assert re.search(rb"\r\nSec-WebSocket-Protocol: " + chosen + rb"(\r|$)", accepted.answer), accepted.answer
        accepted.say(frame(CLOSE))


def test_the_key_is_answered_as_the_standard_says_and_no_extension_is_taken(client: Client) -> None:
    asked = head(
        Sec_WebSocket_Key="dGhlIHNhbXBsZSBub25jZQ==",  # the example of RFC 6455 section 1.3
        Sec_WebSocket_Extensions="permessage-deflate; client_max_window_bits",
    )
    with RawWebSocket(client.port, asked) as accepted:
        assert b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in accepted.answer
        assert b"extensions" not in accepted.answer.lower()


def test_a_page_may_come_from_anywhere_where_the_key_is_a_secret(broker: LiveBroker, client: Client) -> None:
    book = broker.server.rights.book
    known = book.of(NAMESPACE_SCOPE)
    book.put(NAMESPACE_SCOPE, [AccessRule(KEY_NAME, MANAGE, "a secret")])
    try:
        with RawWebSocket(client.port, Origin="https://example.com") as accepted:
            assert accepted.answer.startswith(b"HTTP/1.1 101 ")
    finally:
        book.put(NAMESPACE_SCOPE, known)


def test_a_full_namespace_says_so_inside_and_then_outside(broker: LiveBroker, client: Client) -> None:
    door = broker.server.acceptor
    door.connections_max = 0
    try:
        told = WebSocketAttacker(client.port)
        told.open().begin().tell(sender(0, "anywhere"))
        error = told.detaches_with("amqp:resource-limit-exceeded")
        assert error.description is not None
        assert "has 0 connections, the most it may have" in error.description
        others = [RawWebSocket(client.port) for _ in range(TOLD_FULL_MAX - 1)]
        with RawWebSocket(client.port) as refused:
            assert refused.answer.startswith(b"HTTP/1.1 503 ")
            assert b"as many connections as it can serve" in refused.answer
    finally:
        door.connections_max = CONNECTIONS_MAX
    told.close()
    for each in others:
        each.close()


def test_a_ping_is_answered_also_right_before_a_close(client: Client) -> None:
    with RawWebSocket(client.port) as accepted:
        accepted.say(frame(PING, b"still here?"), frame(CLOSE))
        assert accepted.hear_close() == (1005, "")
        assert accepted.pongs == [b"still here?"]


def test_another_protocol_is_not_changed_to_and_http_goes_on(client: Client) -> None:
    answer = client.ask("GET", "/$namespaceinfo", headers={"Connection": "Upgrade", "Upgrade": "h2c"})
    assert answer.status == 200
    assert client.ask("GET", "/$namespaceinfo").status == 200


def test_a_websocket_gives_its_place_among_the_administrators_back(broker: LiveBroker, client: Client) -> None:
    with RawWebSocket(client.port) as accepted:
        broker.wait(lambda: len(broker.server.pump.connections) == 1)
        assert not connections(broker).connections
        assert len(broker.server.preauth.unauthenticated) == 1, "as any client without a token"
        accepted.say(frame(CLOSE))
    broker.wait(lambda: not broker.server.pump.connections and not len(broker.server.preauth))


def test_a_websocket_may_be_asked_for_on_a_connection_that_was_used_before(client: Client) -> None:
    asked = f"GET /$namespaceinfo HTTP/1.1\r\nHost: localhost\r\nAuthorization: {client.token}\r\n\r\n"
    with socket.create_connection(("localhost", client.port), timeout=20) as sock:
        sock.sendall(asked.encode() + head())
        heard = b""
        while heard.count(b"HTTP/1.1 ") < 2:
            heard += sock.recv(65_536)
        assert heard.startswith(b"HTTP/1.1 200 ")
        assert b"HTTP/1.1 101 " in heard


def test_a_request_that_comes_too_slowly_is_given_up(broker: LiveBroker, client: Client) -> None:
    together = connections(broker)
    together.request_timeout_s = 0.2
    try:
        with RawWebSocket(client.port, head()[:-2]) as slow:
            assert slow.answer.startswith(b"HTTP/1.1 408 ")
    finally:
        together.request_timeout_s = REQUEST_TIMEOUT_S
