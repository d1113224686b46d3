"""The traps of docs/wire.md, "Traps": where a broker that follows AMQP alone fails with the official SDKs."""

import http.client
import re
import socket
import ssl
import time
import uuid
from typing import Any

import pytest
from azure.core.exceptions import ResourceNotFoundError
from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage, ServiceBusReceiver
from azure.servicebus.aio.management import ServiceBusAdministrationClient as AsyncAdministrationClient
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import (
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusServerBusyError,
)
from azure.servicebus.management import ServiceBusAdministrationClient

from spillway.amqp.codec import DecodeBudget
from spillway.amqp.events import ConnectionClosed, DispositionReceived, LinkDetached
from spillway.amqp.frames import encode_frame
from spillway.amqp.message import decode_properties, split_sections
from spillway.amqp.performatives import (
    ACCEPTED,
    ROLE_SENDER,
    Accepted,
    Attach,
    Begin,
    Close,
    DeliveryState,
    Detach,
    Disposition,
    End,
    Flow,
    Modified,
    Rejected,
    Source,
    Target,
    Transfer,
)
from spillway.client import OutgoingMessage
from spillway.model import faults, limits
from spillway.model.errors import EntityNotFound, ServerBusy
from spillway.model.rules import FalseFilter, Rule, SqlAction, SqlFilter
from tests.tools.js import JavaScriptError
from tests.tools.missing import assert_missing
from tests.wire.live import LiveBroker
from tests.wire.raw import RawClient
from tests.wire.sdk import SYNC, JsClient, PythonSdk, take, take_one, text_of
from tests.wire.tap import Spoken, Tap

PROMPT_S = 5.0  # far below every time-out of the SDKs, far above what an answer takes on a busy machine
ERROR_LIST = re.compile(rb"\x00\x53\x1d(\xc0..|\xd0........|\x45)", re.DOTALL)


def echoes(tap: Tap) -> list[DeliveryState | None]:
    """The outcomes that the broker has settled deliveries with."""
    return [said.state for said in tap.of(Disposition, False) if said.role == ROLE_SENDER]


def error_field_counts(spoken: Spoken) -> list[int]:
    """How many fields each `error` had that the broker wrote on this connection."""
    return [int.from_bytes(found.group(1)[-4:]) & 0xFF for found in ERROR_LIST.finditer(spoken.broker_bytes)]


# -- Three fields in every error


def test_a_rejected_send_carries_three_error_fields_and_python_raises(
    live: LiveBroker, sdk: PythonSdk, queue: str
) -> None:
    live.plant(queue, faults.SEND, ServerBusy("Busy."))
    with live.tap() as tap:
        sender = sdk.sender(queue)
        begun = time.monotonic()
        with pytest.raises(ServiceBusServerBusyError):
            sender.send_messages(ServiceBusMessage("x"))
        assert time.monotonic() - begun < PROMPT_S, "with two fields it would wait for ever"
    assert [type(said.state) for said in tap.of(Disposition, False)][-1] is Rejected
    assert error_field_counts(tap.connections[0]) == [3]


def test_detach_end_and_close_carry_three_error_fields_too(live: LiveBroker) -> None:
    queue = live.queue()
    with live.tap() as tap:
        raw = RawClient(live.server.port)
        raw.sender(queue)
        live.delete(queue)
        raw.wait(LinkDetached)
        raw.session.attach_sender("refused", Source("raw"), Target("no-such-queue"))
        raw.wait(LinkDetached)
        raw.socket.sendall(encode_frame(7, End()))  # of a session that was never begun
        raw.wait(ConnectionClosed)
        raw.close()
    assert len(tap.connections[0].errors()) == 3
    assert error_field_counts(tap.connections[0]) == [3, 3, 3]


# -- Dead letters are echoed without an error


def test_a_dead_lettering_is_echoed_as_rejected_without_an_error(live: LiveBroker, sdk: PythonSdk, queue: str) -> None:
    live.send(queue, "x")
    with live.tap() as tap:
        receiver = sdk.receiver(queue)
        receiver.dead_letter_message(take_one(receiver), reason="reason", error_description="text")
    (echo,) = echoes(tap)
    assert isinstance(echo, Rejected)
    assert echo.error is None
    assert [message.dead_letter_reason for message in live.dead_letters(queue)] == ["reason"]


def test_a_dead_lettering_of_javascript_is_echoed_without_an_error(live: LiveBroker, js: JsClient, queue: str) -> None:
    live.send(queue, "x")
    with live.tap() as tap:
        token = js.receive_one(queue)["lockToken"]
        js("deadLetter", lockToken=token, options={"deadLetterReason": "reason"})
    (echo,) = echoes(tap)
    assert isinstance(echo, Rejected)
    assert echo.error is None
    assert [message.dead_letter_reason for message in live.dead_letters(queue)] == ["reason"]


# -- The same outcome back


def test_the_echo_is_the_outcome_that_was_asked_for(live: LiveBroker, sdk: PythonSdk, queue: str) -> None:
    live.send(queue, "complete", "abandon", "defer")
    with live.tap() as tap:
        receiver = sdk.receiver(queue)
        for message in take(receiver, 3):
            settle_as_it_says(receiver, message)
    assert [type(echo) for echo in echoes(tap)] == [Accepted, Modified, Modified]
    assert all(said.settled for said in tap.of(Disposition, False) if said.role == ROLE_SENDER)
    assert live.bodies(queue) == ["abandon", "defer"]


def settle_as_it_says(receiver: ServiceBusReceiver, message: ServiceBusReceivedMessage) -> None:
    getattr(receiver, f"{text_of(message)}_message")(message)


def test_javascript_hears_the_outcome_that_it_asked_for(live: LiveBroker, js: JsClient, queue: str) -> None:
    live.send(queue, *(OutgoingMessage(f'"{verb}"') for verb in ("complete", "abandon", "defer")))
    with live.tap() as tap:
        messages = js("receive", queue=queue, count=3)
        for message in messages:
            js(message["body"], lockToken=message["lockToken"])
    assert [type(echo) for echo in echoes(tap)] == [Accepted, Modified, Modified]


# -- Never detach for a refused send


def test_a_refused_send_is_rejected_and_the_link_lives_on(live: LiveBroker, sdk: PythonSdk, queue: str) -> None:
    with live.tap() as tap:
        sender = sdk.sender(queue)
        live.plant(queue, faults.SEND, ServerBusy("Busy."))
        with pytest.raises(ServiceBusServerBusyError):
            sender.send_messages(ServiceBusMessage("refused"))
        live.plant(queue, faults.SEND, None)
        sender.send_messages(ServiceBusMessage("taken"))
    assert tap.of(Detach, False) == []
    assert live.bodies(queue) == ["taken"]


def test_javascript_hears_at_once_and_not_at_its_time_out(live: LiveBroker, js: JsClient, queue: str) -> None:
    with live.tap() as tap:
        js("open", queue=queue)
        live.plant(queue, faults.SEND, ServerBusy("Busy."))
        begun = time.monotonic()
        with pytest.raises(JavaScriptError) as caught:
            js("send", queue=queue, message={"body": "refused"})
        assert time.monotonic() - begun < PROMPT_S
        assert caught.value.code == "ServiceBusy"
        live.plant(queue, faults.SEND, None)
        js("send", queue=queue, message={"body": b"taken"})
    assert tap.of(Detach, False) == []
    assert live.bodies(queue) == ["taken"]


# -- Administration is HTTPS


def test_the_port_answers_https(live: LiveBroker) -> None:
    context = ssl.create_default_context(cafile=str(live.certificates.ca))
    connection = http.client.HTTPSConnection("localhost", live.server.port, context=context, timeout=20)
    connection.request("GET", "/some-queue?api-version=2024-05")
    answer = connection.getresponse()
    assert answer.status == 401
    assert b"claim is empty or token is invalid." in answer.read()
    connection.close()


async def test_both_python_admin_clients_get_an_http_answer_over_tls(live: LiveBroker) -> None:
    options: dict[str, Any] = {"connection_verify": str(live.certificates.ca), "retry_total": 0}
    with (
        ServiceBusAdministrationClient.from_connection_string(live.connection_string, **options) as administration,
        pytest.raises(ResourceNotFoundError, match="Queue 'some-queue' does not exist"),
    ):
        administration.get_queue("some-queue")
    async with AsyncAdministrationClient.from_connection_string(live.connection_string, **options) as other:
        with pytest.raises(ResourceNotFoundError, match="Queue 'some-queue' does not exist"):
            await other.get_queue("some-queue")


def test_the_admin_client_of_javascript_gets_an_http_answer_over_tls(live: LiveBroker, js: JsClient) -> None:
    """Its tokens last for minutes, and other tests have moved the clock of the shared broker: this one's is right."""
    on_time = LiveBroker(live.directory)
    try:
        with pytest.raises(JavaScriptError) as caught:
            js("adminQueue", connectionString=on_time.connection_string, queue="some-queue")
    finally:
        on_time.close()
    assert caught.value.code == "MessageEntityNotFoundError"


# -- The type of a token lies


def test_a_token_is_known_by_its_text_whatever_its_type_says(live: LiveBroker, sdk: PythonSdk, queue: str) -> None:
    with live.tap() as tap:
        sdk.sender(queue).send_messages(ServiceBusMessage("x"))
    (put,) = tap.connections[0].requests(True, "$cbs")
    assert put.named["type"] == "jwt"
    assert str(put.body).startswith("SharedAccessSignature ")
    (answer,) = tap.connections[0].requests(False, "$cbs")
    assert answer.named["status-code"] == 202


# -- Every message has an id


def test_a_message_without_an_id_gets_one_and_javascript_can_settle_it(
    live: LiveBroker, sdk: PythonSdk, js: JsClient, queue: str
) -> None:
    with live.tap() as tap:
        sdk.sender(queue).send_messages(AmqpAnnotatedMessage(data_body=b"x"))
    (sent,) = tap.connections[0].payloads(True, f"/{queue}")
    assert decode_properties(sent, split_sections(sent, DecodeBudget())).message_id is None
    message = js.receive_one(queue)
    assert len(message["messageId"]) == 32
    js("complete", lockToken=message["lockToken"])
    assert live.bodies(queue) == []


# -- The sentence for a missing entity


def test_a_missing_entity_is_named_in_the_words_that_javascript_looks_for(js: JsClient) -> None:
    for command, arguments in (("send", {"message": {"body": "x"}}), ("receive", {}), ("peek", {})):
        with pytest.raises(JavaScriptError) as caught:
            js(command, queue="no-such-queue", **arguments)
        assert caught.value.code == "MessagingEntityNotFound", caught.value
        assert "The messaging entity 'sb://localhost/no-such-queue' could not be found." in caught.value.message


def test_an_entity_that_goes_away_is_missed_in_the_same_words(live: LiveBroker, js: JsClient, queue: str) -> None:
    with live.tap() as tap:
        js("open", queue=queue)
        live.delete(queue)
        live.wait(lambda: len(tap.of(Detach, True)) == 1)  # it has heard of it, and answers
        with pytest.raises(JavaScriptError) as caught:
            js("send", queue=queue, message={"body": "x"})
    assert caught.value.code == "MessagingEntityNotFound", caught.value


def test_the_condition_alone_is_something_else_to_javascript(live: LiveBroker, js: JsClient, queue: str) -> None:
    """What the sentence is needed for."""
    live.plant(queue, faults.SEND, EntityNotFound("Gone."))
    with pytest.raises(JavaScriptError) as caught:
        js("send", queue=queue, message={"body": "x"})
    assert caught.value.code == "ServiceCommunicationProblem"


def test_python_hears_of_a_missing_entity_too(live: LiveBroker, sdk: PythonSdk, queue: str) -> None:
    """By its token, which gets 404: the SDK calls that a failed authentication and keeps the text (docs/adr/0005)."""
    with pytest.raises(ServiceBusAuthenticationError) as caught:
        sdk.sender("no-such-queue")
    assert_missing(caught.value, "no-such-queue")
    # Its link is detached while it is idle: Python connects again before it says what is wrong.
    sender = sdk.sender(queue, sdk.connect(retry_total=1, retry_backoff_factor=0.01))
    live.delete(queue)
    with pytest.raises((ServiceBusAuthenticationError, MessagingEntityNotFoundError)):
        sender.send_messages(ServiceBusMessage("x"))


# -- Filters are a digit shorter than actions


def test_filters_have_ten_digits_and_rules_and_actions_eleven(live: LiveBroker, js: JsClient) -> None:
    """JavaScript throws on any other filter, and takes a rule or an action with a wrong one for none."""
    topic = live.topic()
    rules = [Rule("a", SqlFilter("x = 1"), SqlAction("SET a = 1"), 0), Rule("b", FalseFilter(), None, 0)]
    live.subscription(topic, "s", *rules)
    with live.tap() as tap:
        assert js("rules", topic=topic, subscription="s") == [
            {"name": "a", "filter": {"sqlExpression": "x = 1"}, "action": {"sqlExpression": "SET a = 1"}},
            {"name": "b", "filter": {"sqlExpression": "1=0"}, "action": {}},
        ]
    said = b"".join(spoken.broker_bytes for spoken in tap.connections)
    for code in (0x13700000004, 0x13700000005, 0x13700000006, 0x1370000006, 0x1370000008):
        assert b"\x00\x80" + code.to_bytes(8, "big") in said, hex(code)


# -- Lock tokens have two byte orders


def test_the_tag_is_the_lock_token_in_guid_order_and_management_has_it_in_network_order(
    live: LiveBroker, sdk: PythonSdk, queue: str
) -> None:
    live.send(queue, "x")
    with live.tap() as tap:
        receiver = sdk.receiver(queue)
        message = take_one(receiver)
        receiver.renew_message_lock(message)
    tag = delivery_tag(tap)
    assert message.lock_token == uuid.UUID(bytes_le=tag)
    assert asked_tokens(tap, queue) == [uuid.UUID(bytes_le=tag)]
    assert uuid.UUID(bytes=tag) != message.lock_token, "the order makes a difference"
    receiver.complete_message(message)


def test_javascript_has_the_same_token_in_both_orders(live: LiveBroker, js: JsClient, queue: str) -> None:
    live.send(queue, "x")
    with live.tap() as tap:
        token = js.receive_one(queue)["lockToken"]
        js("renew", lockToken=token)
        js("complete", lockToken=token)
    assert uuid.UUID(token) == uuid.UUID(bytes_le=delivery_tag(tap))
    assert asked_tokens(tap, queue) == [uuid.UUID(token)]
    assert live.bodies(queue) == []


def delivery_tag(tap: Tap) -> bytes:
    (tag,) = [said.delivery_tag for said in tap.of(Transfer, False) if not said.settled]
    assert tag is not None
    assert len(tag) == 16
    return tag


def asked_tokens(tap: Tap, queue: str) -> list[uuid.UUID]:
    asked = [request for spoken in tap.connections for request in spoken.requests(True, f"{queue}/$management")]
    (body,) = [request.body for request in asked]
    assert isinstance(body, dict)
    return list(body["lock-tokens"])


# -- Python ignores credit


def test_python_sends_a_flow_of_its_own_on_its_sender_and_goes_past_the_first_credit(
    live: LiveBroker, sdk: PythonSdk, queue: str
) -> None:
    count = limits.LINK_CREDIT + 50 if sdk.kind == SYNC else 5  # the asyncio sender takes its time for each
    with live.tap() as tap:
        sender = sdk.sender(queue)
        for _ in range(count):
            sender.send_messages(ServiceBusMessage("x"))
    (handle,) = [attach.handle for attach in tap.of(Attach, True) if attach.rcv_settle_mode == 1]
    assert [flow.link_credit for flow in tap.of(Flow, True) if flow.handle == handle] == [10_000]
    assert tap.of(Detach, False) == []
    assert live.active_count(queue) == count


def test_whoever_ignores_its_credit_keeps_its_link(live: LiveBroker, queue: str) -> None:
    count = limits.LINK_CREDIT * 3 // 2
    raw = RawClient(live.server.port)
    link = raw.sender(queue)
    payload = OutgoingMessage("x").encode()
    link.credit = count  # by its own reckoning
    for number in range(count):
        link.send(number.to_bytes(4, "big"), payload, False)
    settled = 0
    while settled < count:
        event = raw.wait(DispositionReceived)
        assert isinstance(event.state, Accepted)
        settled += len(event.deliveries)
    assert link.is_open
    assert live.active_count(queue) == count
    raw.close()


def test_javascript_obeys_its_credit_and_is_given_enough(live: LiveBroker, js: JsClient, queue: str) -> None:
    count = limits.LINK_CREDIT * 2
    answer = js("sendMany", queue=queue, messages=[{"body": b"x"}] * count)
    assert answer["outcomes"] == [None] * count
    assert live.active_count(queue) == count


# -- Every drain is answered


def test_a_drain_is_answered_at_once_and_javascript_keeps_its_link(live: LiveBroker, js: JsClient, queue: str) -> None:
    with live.tap() as tap:
        for number in range(2):
            js("send", queue=queue, message={"body": number})
            (message,) = js("receive", queue=queue, count=5, waitMs=2000)
            assert message["body"] == number
            js("complete", lockToken=message["lockToken"])
    connection = tap.connections[0]
    asked = [flow for flow in connection.of(Flow, True) if flow.drain]
    answers = [flow for flow in connection.of(Flow, False) if flow.drain]
    assert len(asked) == len(answers) == 2
    assert [flow.link_credit for flow in answers] == [0, 0]
    sources = [attach.source.address for attach in connection.of(Attach, True) if attach.source is not None]
    assert sources.count(queue) == 1, "unanswered, it would have closed the link and attached another"


# -- Correlation in the same type


def test_answers_carry_the_very_id_of_the_request_python_uuid(live: LiveBroker, sdk: PythonSdk, queue: str) -> None:
    with live.tap() as tap:
        assert sdk.receiver(queue).peek_messages() == []
    for node in ("$cbs", f"{queue}/$management"):
        assert_correlated(tap.connections[0], node, uuid.UUID)


def test_answers_carry_the_very_id_of_the_request_javascript_str(live: LiveBroker, js: JsClient, queue: str) -> None:
    with live.tap() as tap:
        assert js("peek", queue=queue) == []
    for node in ("$cbs", f"{queue}/$management"):
        assert_correlated(tap.connections[0], node, str)


def assert_correlated(spoken: Spoken, node: str, kind: type) -> None:
    asked = [request.properties.message_id for request in spoken.requests(True, node)]
    answered = [request.properties.correlation_id for request in spoken.requests(False, node)]
    assert asked == answered
    assert {type(identity) for identity in asked + answered} == {kind}


# -- Frames come after the end


def test_frames_on_a_session_that_python_has_just_ended_are_ignored(
    live: LiveBroker, sdk: PythonSdk, queue: str
) -> None:
    with live.tap() as tap:
        receiver = sdk.receiver(queue)
        receiver.peek_messages()
        receiver.close()
    connection = tap.connections[0]
    said = [type(frame.body) for frame in connection.frames if frame.is_from_client]
    assert said[said.index(End) :] == [End, Detach, Detach, Close], "the frames of the trap"
    assert connection.errors() == []
    assert [type(frame.body) for frame in connection.frames if not frame.is_from_client][-2:] == [End, Close]


@pytest.mark.parametrize("is_reset", [False, True], ids=["half closed", "closed with our answers unread"])
def test_the_last_dispositions_of_a_client_that_goes_are_heard(live: LiveBroker, queue: str, is_reset: bool) -> None:
    live.send(queue, *(f"{number}" for number in range(50)))
    raw = RawClient(live.server.port)
    link = raw.receiver(queue)
    for event in raw.receive(link, 50):
        raw.session.dispose(event.delivery_id, ACCEPTED)
    raw.flush()
    if is_reset:
        raw.close()
    else:
        raw.socket.shutdown(socket.SHUT_WR)
    live.until(queue, lambda found: found.counters.active == 0)
    raw.close()


# -- A full batch is over the limit


def test_a_full_python_batch_is_larger_than_the_advertised_size_and_is_taken(
    live: LiveBroker, sdk: PythonSdk, queue: str
) -> None:
    with live.tap() as tap:
        sender = sdk.sender(queue)
        batch = sender.create_message_batch()
        assert batch.max_size_in_bytes == limits.MESSAGE_BYTES_MAX
        count = 0
        size = 1000
        while size:
            try:
                batch.add_message(ServiceBusMessage(b"x" * size, message_id=f"{count}", session_id="s" * 128))
                count += 1
            except ValueError:
                size //= 2
        sender.send_messages(batch)
    (payload,) = tap.connections[0].payloads(True, f"/{queue}")
    assert len(payload) > limits.MESSAGE_BYTES_MAX
    assert live.active_count(queue) == count


# -- Channels begin at zero


def test_javascript_begins_on_channel_0_and_uses_channels_again(live: LiveBroker, js: JsClient, queue: str) -> None:
    with live.tap() as tap:
        for number in range(3):
            js("send", queue=queue, message={"body": number})
            assert js.receive_one(queue, receiveMode="receiveAndDelete")["body"] == number
            js("close", queue=queue, receiver=True)
            js("close", queue=queue, sender=True)
    begun = [
        frame.channel for frame in tap.connections[0].frames if frame.is_from_client and isinstance(frame.body, Begin)
    ]
    assert begun[0] == 0
    assert len(begun) > len(set(begun)), "a channel was used again after its end"
    assert tap.connections[0].errors() == []


def test_python_begins_on_channel_1(live: LiveBroker, sdk: PythonSdk, queue: str) -> None:
    with live.tap() as tap:
        sdk.sender(queue).send_messages(ServiceBusMessage("x"))
    said = [(frame, frame.body) for frame in tap.connections[0].frames if isinstance(frame.body, Begin)]
    assert [(frame.is_from_client, frame.channel) for frame, _ in said] == [(True, 1), (False, 1)]
    assert [begin.remote_channel for _, begin in said] == [None, 1]
