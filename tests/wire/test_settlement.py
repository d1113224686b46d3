"""Settlement over the link (docs/wire.md, "Settlement"), with both Python SDKs and JavaScript."""

from typing import Any

import pytest
from azure.servicebus import ServiceBusReceivedMessage, ServiceBusSubQueue
from azure.servicebus.exceptions import MessageLockLostError, ServiceBusError

from spillway.amqp.errors import AmqpError
from spillway.amqp.events import IncomingSettled
from spillway.amqp.frames import encode_frame
from spillway.amqp.performatives import (
    ACCEPTED,
    RELEASED,
    ROLE_RECEIVER,
    ROLE_SENDER,
    Accepted,
    DeliveryState,
    Disposition,
    Modified,
    Rejected,
    Released,
)
from spillway.client import OutgoingMessage
from spillway.model.entity import dead_letter_path
from spillway.model.message import DEFERRED
from tests.tools.js import JavaScriptError
from tests.wire.live import LiveBroker
from tests.wire.raw import RawClient
from tests.wire.sdk import JsClient, PythonSdk, take, take_one, text_of
from tests.wire.tap import Tap


def asked(tap: Tap) -> list[DeliveryState | None]:
    """The outcomes that the client has asked for, all of them unsettled."""
    said = [disposition for disposition in tap.of(Disposition, True) if disposition.role == ROLE_RECEIVER]
    assert not any(disposition.settled for disposition in said)
    return [disposition.state for disposition in said]


def echoed(tap: Tap) -> list[Disposition]:
    return [said for said in tap.of(Disposition, False) if said.role == ROLE_SENDER]


# -- complete ----------------------------------------------------------------------------------------------------------


@pytest.mark.contract("H8")
def test_complete_removes_the_message(live: LiveBroker, sdk: PythonSdk, queue: str) -> None:
    live.send(queue, "x")
    with live.tap() as tap:
        receiver = sdk.receiver(queue)
        receiver.complete_message(take_one(receiver))
    assert [type(state) for state in asked(tap)] == [Accepted]
    assert [(type(said.state), said.settled) for said in echoed(tap)] == [(Accepted, True)]
    assert live.bodies(queue) == []


def test_complete_with_javascript(live: LiveBroker, js: JsClient, queue: str) -> None:
    live.send(queue, "x")
    with live.tap() as tap:
        js("complete", lockToken=js.receive_one(queue)["lockToken"])
    assert [type(state) for state in asked(tap)] == [Accepted]
    assert [(type(said.state), said.settled) for said in echoed(tap)] == [(Accepted, True)]
    assert live.bodies(queue) == []


# -- abandon -----------------------------------------------------------------------------------------------------------


@pytest.mark.contract("H6", "H9")
def test_abandon_puts_the_message_back_in_its_place_and_counts(live: LiveBroker, sdk: PythonSdk, queue: str) -> None:
    live.send(queue, "first", "second")
    with live.tap() as tap:
        receiver = sdk.receiver(queue)
        message = take_one(receiver)
        assert (text_of(message), message.delivery_count) == ("first", 0)
        receiver.abandon_message(message)
        again = take_one(receiver)
    (state,) = asked(tap)
    assert isinstance(state, Modified)
    assert (state.delivery_failed, bool(state.undeliverable_here)) == (True, False)
    assert [(type(said.state), said.settled) for said in echoed(tap)] == [(Modified, True)]
    assert (text_of(again), again.delivery_count, again.sequence_number) == ("first", 1, message.sequence_number)


def test_abandon_with_javascript_counts_too_and_changes_properties(live: LiveBroker, js: JsClient, queue: str) -> None:
    live.send(queue, OutgoingMessage("first", application_properties={"kept": "k", "changed": "old"}), "second")
    with live.tap() as tap:
        token = js.receive_one(queue)["lockToken"]
        js("abandon", lockToken=token, options={"changed": "new", "added": 7})
        again = js.receive_one(queue)
    (state,) = asked(tap)
    assert isinstance(state, Modified)
    assert not state.delivery_failed, "JavaScript leaves it out, and it is a failed delivery all the same"
    assert [type(said.state) for said in echoed(tap)] == [Modified]
    assert (again["deliveryCount"], again["sequenceNumber"]) == (1, 1)
    assert again["applicationProperties"] == {"kept": "k", "changed": "new", "added": 7}


# -- defer -------------------------------------------------------------------------------------------------------------


@pytest.mark.contract("H11")
def test_defer_sets_the_message_aside(live: LiveBroker, sdk: PythonSdk, queue: str) -> None:
    live.send(queue, "first", "second")
    with live.tap() as tap:
        receiver = sdk.receiver(queue)
        receiver.defer_message(take_one(receiver))
        assert text_of(take_one(receiver)) == "second"
    (state,) = asked(tap)
    assert isinstance(state, Modified)
    assert state.undeliverable_here is True
    assert [type(said.state) for said in echoed(tap)] == [Modified]
    assert [message.state for message in live.peek(queue)] == [DEFERRED, 0]


def test_defer_with_javascript_by_undeliverable_here_alone(live: LiveBroker, js: JsClient, queue: str) -> None:
    live.send(queue, "first")
    with live.tap() as tap:
        js("defer", lockToken=js.receive_one(queue)["lockToken"], options={"why": "later"})
    (state,) = asked(tap)
    assert isinstance(state, Modified)
    assert (bool(state.delivery_failed), state.undeliverable_here) == (False, True)
    (message,) = live.peek(queue)
    assert (message.state, message.application_properties) == (DEFERRED, {"why": "later"})


# -- dead-letter -------------------------------------------------------------------------------------------------------


@pytest.mark.contract("H10")
def test_dead_letter_moves_the_message_with_its_reason(live: LiveBroker, sdk: PythonSdk, queue: str) -> None:
    live.send(queue, OutgoingMessage("x", application_properties={"kept": "k"}))
    with live.tap() as tap:
        receiver = sdk.receiver(queue)
        receiver.dead_letter_message(take_one(receiver), reason="why", error_description="in words")
    (state,) = asked(tap)
    assert isinstance(state, Rejected)
    assert state.error is not None
    assert (state.error.condition, state.error.info) == (
        "com.microsoft:dead-letter",
        {"DeadLetterReason": "why", "DeadLetterErrorDescription": "in words"},
    )
    assert live.bodies(queue) == []
    dead = take_one(sdk.receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER))
    assert (dead.dead_letter_reason, dead.dead_letter_error_description) == ("why", "in words")
    assert (dead.dead_letter_source, text_of(dead)) == (queue, "x")
    assert dead.application_properties == {
        b"kept": b"k",
        b"DeadLetterReason": b"why",
        b"DeadLetterErrorDescription": b"in words",
    }


def test_dead_letter_without_a_reason_leaves_the_properties_out(live: LiveBroker, sdk: PythonSdk, queue: str) -> None:
    live.send(queue, "x")
    receiver = sdk.receiver(queue)
    receiver.dead_letter_message(take_one(receiver))
    (dead,) = live.dead_letters(queue)
    assert dead.application_properties == {}


def test_dead_letter_with_javascript_takes_further_keys_as_properties(
    live: LiveBroker, js: JsClient, queue: str
) -> None:
    live.send(queue, "x")
    options = {"deadLetterReason": "why", "deadLetterErrorDescription": "in words", "more": "too"}
    with live.tap() as tap:
        js("deadLetter", lockToken=js.receive_one(queue)["lockToken"], options=options)
    (state,) = asked(tap)
    assert isinstance(state, Rejected)
    assert state.error is not None
    assert (state.error.condition, state.error.description) == ("com.microsoft:dead-letter", None)
    dead = js.receive_one(queue, subQueue="deadLetter")
    assert (dead["deadLetterReason"], dead["deadLetterErrorDescription"]) == ("why", "in words")
    assert dead["deadLetterSource"] == queue
    assert dead["applicationProperties"]["more"] == "too"
    js("complete", lockToken=dead["lockToken"])


# -- give back ---------------------------------------------------------------------------------------------------------


def test_give_back_is_not_counted_and_not_answered(live: LiveBroker, sdk: PythonSdk, queue: str) -> None:
    """Python closes a prefetching receiver: what it has not handed over is released, settled already."""
    live.send(queue, *(f"{number}" for number in range(3)))
    with live.tap() as tap:
        receiver = sdk.receiver(queue, prefetch_count=5)
        receiver.complete_message(take_one(receiver))
        live.until(queue, lambda found: len(found.lane.locks.by_token) == 2)
        receiver.close()
    released = [said for said in tap.of(Disposition, True) if isinstance(said.state, Released)]
    assert released
    assert all(said.settled for said in released)
    assert [type(said.state) for said in echoed(tap)] == [Accepted], "the complete alone was answered"
    live.until(queue, lambda found: not found.lane.locks.by_token)
    assert [(message.body, message.delivery_count) for message in live.peek(queue)] == [(b"1", 0), (b"2", 0)]


@pytest.mark.parametrize("is_settled", [False, True], ids=["unsettled", "settled"])
def test_give_back_by_a_raw_client(live: LiveBroker, queue: str, is_settled: bool) -> None:
    live.send(queue, "x")
    raw = RawClient(live.server.port)
    link = raw.receiver(queue)
    (first,) = raw.receive(link, 1)
    if is_settled:
        raw.session.settle(first.delivery_id, RELEASED)
    else:
        raw.session.dispose(first.delivery_id, RELEASED)
        assert isinstance(raw.wait(IncomingSettled).state, Released)
    (again,) = raw.receive(link, 1)
    assert again.tag != first.tag
    assert [message.delivery_count for message in live.peek(queue)] == [0]
    raw.close()


# -- besides the table ------------------------------------------------------------------------------------------------


def test_a_range_of_deliveries_is_settled_by_one_disposition(live: LiveBroker, queue: str) -> None:
    live.send(queue, *(f"{number}" for number in range(10)))
    with live.tap() as tap:
        raw = RawClient(live.server.port)
        deliveries = raw.receive(raw.receiver(queue), 10)
        first, last = deliveries[0].delivery_id, deliveries[-1].delivery_id
        channel = raw.session.local_channel
        raw.socket.sendall(encode_frame(channel, Disposition(ROLE_RECEIVER, first, last, False, ACCEPTED)))
        live.until(queue, lambda found: found.counters.active == 0)
        raw.wait(IncomingSettled)
        raw.close()
    assert [(said.first, said.last) for said in echoed(tap)] == [(first, last)]


@pytest.mark.parametrize(
    "error", [None, AmqpError("amqp:internal-error", "mine")], ids=["no error", "a condition of its own"]
)
def test_rejected_with_another_condition_is_a_dead_letter_without_a_reason(
    live: LiveBroker, queue: str, error: AmqpError | None
) -> None:
    live.send(queue, "x")
    raw = RawClient(live.server.port)
    (delivery,) = raw.receive(raw.receiver(queue), 1)
    raw.session.dispose(delivery.delivery_id, Rejected(error))
    assert raw.wait(IncomingSettled).state == Rejected(None)
    (dead,) = live.dead_letters(queue)
    assert (dead.dead_letter_reason, dead.dead_letter_description) == (None, None)
    raw.close()


@pytest.mark.contract("H12")
def test_a_lock_that_is_gone_is_said_to_be_lost(live: LiveBroker, sdk: PythonSdk) -> None:
    queue = live.queue(lock_s=5)
    live.send(queue, "x")
    with live.tap() as tap:
        receiver = sdk.receiver(queue)
        message = take_one(receiver)
        live.advance(6)
        # By the SDK's own clock the lock still holds, so it is the broker that is asked.
        with pytest.raises(MessageLockLostError, match=r"The lock supplied is invalid.*TrackingId:"):
            receiver.complete_message(message)
    (echo,) = echoed(tap)
    assert isinstance(echo.state, Rejected)
    assert echo.state.error is not None
    assert (echo.settled, echo.state.error.condition) == (True, "com.microsoft:message-lock-lost")
    assert [message.delivery_count for message in live.peek(queue)] == [1]


def test_a_lock_that_is_gone_with_javascript(live: LiveBroker, js: JsClient) -> None:
    queue = live.queue(lock_s=5)
    live.send(queue, "x")
    token = js.receive_one(queue)["lockToken"]
    live.advance(6)
    with pytest.raises(JavaScriptError, match="The lock supplied is invalid") as caught:
        js("complete", lockToken=token)
    assert (caught.value.code, caught.value.retryable) == ("MessageLockLost", False)


@pytest.mark.contract("H7")
@pytest.mark.parametrize("way", ["abandon", "expire"])
def test_the_last_allowed_failure_is_a_dead_letter_with_its_reason(live: LiveBroker, sdk: PythonSdk, way: str) -> None:
    queue = live.queue(lock_s=5, max_delivery_count=3)
    live.send(queue, "x")
    receiver = sdk.receiver(queue)
    counts: list[int | None] = []
    for _ in range(3):
        message = take_one(receiver)
        counts.append(message.delivery_count)
        if way == "abandon":
            receiver.abandon_message(message)
        else:
            live.advance(6)
    assert counts == [0, 1, 2]
    assert live.bodies(queue) == []
    (dead,) = live.dead_letters(queue)
    assert (dead.dead_letter_reason, dead.delivery_count) == ("MaxDeliveryCountExceeded", 3)
    assert dead.dead_letter_description == "Message could not be consumed after 3 delivery attempts."


def test_an_expired_message_is_a_dead_letter_with_its_reason_and_stays_there(live: LiveBroker, sdk: PythonSdk) -> None:
    queue = live.queue(lock_s=5, max_delivery_count=1, dead_letter_on_expiry=True)
    live.send(queue, OutgoingMessage("x", time_to_live_ms=1_000))
    live.advance(2)
    live.until(dead_letter_path(queue), lambda found: found.counters.active == 1)
    receiver = sdk.receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    dead = take_one(receiver)
    assert (dead.dead_letter_reason, text_of(dead)) == ("TTLExpiredException", "x")
    for _ in range(3):  # more often than the queue allows, and longer than the message was to live
        receiver.abandon_message(dead)
        live.advance(2)
        dead = take_one(receiver)
    assert dead.delivery_count == 0  # abandoning does not count here
    with pytest.raises(ServiceBusError, match="cannot be dead-lettered again"):
        receiver.dead_letter_message(dead)
    assert len(live.dead_letters(queue)) == 1


def test_every_verb_settles_many_messages_side_by_side(live: LiveBroker, sdk: PythonSdk, queue: str) -> None:
    """One disposition each and an answer each, whatever the order."""
    live.send(queue, *(f"{number}" for number in range(40)))
    receiver = sdk.receiver(queue)
    messages: list[ServiceBusReceivedMessage] = take(receiver, 40)
    verbs: dict[int, Any] = {
        0: receiver.complete_message,
        1: receiver.abandon_message,
        2: receiver.defer_message,
        3: receiver.dead_letter_message,
    }
    for message in reversed(messages):
        verbs[int(text_of(message)) % 4](message)
    assert [message.state for message in live.peek(queue)] == [0, DEFERRED] * 10
    assert [int(message.body) % 4 for message in live.dead_letters(queue)] == [3] * 10
