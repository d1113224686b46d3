"""AMQP over WebSocket through the official SDKs, in clear and inside TLS, on the port that serves everything else."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import (
    NEXT_AVAILABLE_SESSION,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceiveMode,
    TransportType,
)

from spillway.server.connection import ClientConnection
from spillway.server.keys import DEVELOPMENT_KEY, connection_string
from tests.tools.js import JavaScript
from tests.wire.live import LiveBroker
from tests.wire.sdk import JsClient, PythonSdk, known, take, take_one, text_of

CLEAR = "ws"
TLS = "wss"


def options(live: LiveBroker, scheme: str) -> tuple[str, dict[str, Any]]:
    """What a user writes: where to go, and over what."""
    named: dict[str, Any] = {
        "transport_type": TransportType.AmqpOverWebsocket,
        "custom_endpoint_address": f"sb://localhost:{live.server.port}",
    }
    if scheme == TLS:
        named["connection_verify"] = str(live.certificates.ca)
    return connection_string("localhost", live.server.port, DEVELOPMENT_KEY, is_clear_text=scheme == CLEAR), named


@pytest.fixture(params=[CLEAR, TLS])
def client(request: pytest.FixtureRequest, sdk: PythonSdk, live: LiveBroker) -> ServiceBusClient:
    text, named = options(live, request.param)
    return sdk.connect(text, **named)


@pytest.fixture
def js_socket(javascript: JavaScript, live: LiveBroker) -> Iterator[JsClient]:
    made = JsClient(javascript, live.connection_string, websocket=True)
    yield made
    made.close_later()


def websockets(live: LiveBroker) -> list[ClientConnection]:
    found = [each for each in live.server.pump.connections if isinstance(each, ClientConnection)]
    return [each for each in found if each.where.endswith("(WebSocket)")]


def test_python_sends_receives_and_settles(
    live: LiveBroker, sdk: PythonSdk, client: ServiceBusClient, queue: str
) -> None:
    sender = sdk.sender(queue, client)
    sender.send_messages([ServiceBusMessage(word) for word in ("complete", "abandon", "defer", "dead-letter")])
    receiver = sdk.receiver(queue, client)
    assert len(websockets(live)) >= 2, "a connection each, and none of them another way"
    messages = {text_of(message): message for message in take(receiver, 4)}
    receiver.complete_message(messages["complete"])
    receiver.abandon_message(messages["abandon"])
    receiver.defer_message(messages["defer"])
    receiver.dead_letter_message(messages["dead-letter"], reason="bad")
    again = take_one(receiver)
    assert (text_of(again), again.delivery_count) == ("abandon", 1)
    receiver.complete_message(again)
    (deferred,) = receiver.receive_deferred_messages([known(messages["defer"].sequence_number)])
    receiver.complete_message(deferred)
    assert [message.body for message in live.dead_letters(queue)] == [b"dead-letter"]
    assert live.active_count(queue) == 0


def test_python_has_sessions_and_management(live: LiveBroker, sdk: PythonSdk) -> None:
    talks = live.queue(requires_session=True)
    text, named = options(live, TLS)
    client = sdk.connect(text, **named)
    sender = sdk.sender(talks, client)
    sender.send_messages([ServiceBusMessage(word, session_id="a") for word in ("one", "two")])
    (number,) = sender.schedule_messages(
        ServiceBusMessage("later", session_id="a"), datetime.now(UTC) + timedelta(days=30)
    )
    sender.cancel_scheduled_messages(number)
    receiver = sdk.receiver(talks, client, session_id=NEXT_AVAILABLE_SESSION)
    assert [text_of(message) for message in receiver.peek_messages(5)] == ["one", "two"]
    receiver.session.set_state("half way")
    assert receiver.session.get_state() == b"half way"
    receiver.session.renew_lock()
    for message in take(receiver, 2):
        receiver.complete_message(message)
    assert live.active_count(talks) == 0


def test_large_messages_and_long_streams_arrive_whole(live: LiveBroker, sdk: PythonSdk, queue: str) -> None:
    """More than one WebSocket message each way, cut wherever it happens."""
    text, named = options(live, TLS)
    client = sdk.connect(text, **named)
    sender = sdk.sender(queue, client)
    bodies = [bytes([number]) * 200_000 for number in range(40)]
    for body in bodies:
        sender.send_messages(ServiceBusMessage(body))
    receiver = sdk.receiver(queue, client, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE, prefetch_count=40)
    assert [b"".join(message.body) for message in take(receiver, 40)] == bodies


def test_javascript_sends_receives_and_settles(live: LiveBroker, js_socket: JsClient, queue: str) -> None:
    words = ("complete", "abandon", "defer", "deadLetter")
    js_socket("send", queue=queue, messages=[{"body": word} for word in words])
    assert len(websockets(live)) >= 1
    messages: dict[str, Any] = {}
    while len(messages) < 4:
        for message in js_socket("receive", queue=queue, count=4 - len(messages)):
            messages[message["body"]] = message
    for word in words:
        js_socket(word, lockToken=messages[word]["lockToken"])
    again = js_socket.receive_one(queue)
    assert (again["body"], again["deliveryCount"]) == ("abandon", 1)
    js_socket("complete", lockToken=again["lockToken"])
    (deferred,) = js_socket("receiveDeferred", queue=queue, sequenceNumbers=[messages["defer"]["sequenceNumber"]])
    js_socket("complete", lockToken=deferred["lockToken"])
    assert [message.body for message in live.dead_letters(queue)] == [b'"deadLetter"']
    assert live.active_count(queue) == 0


def test_javascript_has_sessions_and_management(live: LiveBroker, js_socket: JsClient) -> None:
    talks = live.queue(requires_session=True)
    js_socket("send", queue=talks, messages=[{"body": word, "sessionId": "a"} for word in ("one", "two")])
    js_socket("acceptSession", queue=talks, session="s")
    assert [message["body"] for message in js_socket("sessionPeek", session="s", count=5)] == ["one", "two"]
    js_socket("setSessionState", session="s", state="half way")
    assert js_socket("getSessionState", session="s") == {"state": "half way"}
    js_socket("renewSession", session="s")
    for word in ("one", "two"):
        (message,) = js_socket("sessionReceive", session="s")
        assert message["body"] == word
        js_socket("complete", lockToken=message["lockToken"])
    js_socket("closeSession", session="s")
    assert live.active_count(talks) == 0


def test_javascript_moves_large_messages(live: LiveBroker, js_socket: JsClient, queue: str) -> None:
    js_socket("send", queue=queue, message={"body": "x" * 200_000})
    message = js_socket.receive_one(queue)
    assert message["body"] == "x" * 200_000
    js_socket("complete", lockToken=message["lockToken"])


def test_the_sdks_come_back_after_their_sockets_were_cut(
    live: LiveBroker, sdk: PythonSdk, javascript: JavaScript, queue: str
) -> None:
    text, named = options(live, CLEAR)
    sender = sdk.sender(queue, sdk.connect(text, **named, retry_total=3, retry_backoff_factor=0.1))
    sender.send_messages(ServiceBusMessage("before"))
    js = JsClient(javascript, live.connection_string, {"retryOptions": {"retryDelayInMs": 100}}, websocket=True)
    js("send", queue=queue, message={"body": "js before"})
    live.cut()
    sender.send_messages(ServiceBusMessage("after"))
    js("send", queue=queue, message={"body": "js after"})
    assert live.bodies(queue) == ["before", '"js before"', "after", '"js after"']
    js.close_later()
