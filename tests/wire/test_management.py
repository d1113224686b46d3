"""`$management` of a queue (docs/wire.md, "Management requests"), with both Python SDKs and JavaScript."""

import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode, ServiceBusReceiver
from azure.servicebus.exceptions import MessageLockLostError, MessageNotFoundError

from spillway.amqp.performatives import Transfer
from spillway.amqp.types import Array, Int, Timestamp
from spillway.client import (
    Connection,
    EntityNotFound,
    MessageLockLost,
    MessageNotFound,
    MessageTooLarge,
    OutgoingMessage,
    connect,
)
from spillway.client.errors import ClientError
from spillway.model import errors, faults
from spillway.model.message import ACTIVE, DEFERRED, SCHEDULED
from tests.tools.js import JavaScriptError, Long
from tests.wire.live import LiveBroker
from tests.wire.sdk import JsClient, PythonSdk, known, ms_of, take, take_one, text_of
from tests.wire.tap import Request, Tap

MINUTE = timedelta(minutes=1)
CLOCK_SLACK_MS = 30_000  # how long a busy machine may take between a call and its check


@pytest.fixture
async def ours(live: LiveBroker) -> AsyncIterator[Connection]:
    """Our own client, for what the SDKs have no call for."""
    async with await connect(live.connection_string) as connection:
        yield connection


def broker_now_ms(live: LiveBroker) -> int:
    return live.server.clock.now_ms()


def answers(tap: Tap, queue: str) -> list[Request]:
    return [request for spoken in tap.connections for request in spoken.requests(False, f"{queue}/$management")]


def statuses(tap: Tap, queue: str) -> list[object]:
    found = [answer.named["statusCode"] for answer in answers(tap, queue)]
    assert all(type(status) is Int for status in found)
    return found


# -- 8.1 renew-lock ----------------------------------------------------------------------------------------------------


@pytest.mark.contract("H4")
def test_renew_lock_extends_by_the_lock_duration_of_the_queue(live: LiveBroker, sdk: PythonSdk) -> None:
    queue = live.queue(lock_s=30)
    live.send(queue, "x")
    with live.tap() as tap:
        receiver = sdk.receiver(queue)
        message = take_one(receiver)
        before = known(message.locked_until_utc)
        live.advance(20)
        renewed = known(receiver.renew_message_lock(message))
    assert message.locked_until_utc == renewed
    assert timedelta(seconds=20) <= renewed - before < timedelta(milliseconds=20_000 + CLOCK_SLACK_MS)
    (answer,) = answers(tap, queue)
    assert isinstance(answer.body, dict)
    assert isinstance(answer.body["expirations"], Array)
    assert [type(value) for value in answer.body["expirations"]] == [Timestamp]
    live.advance(20)  # past the first end, before the new one
    receiver.complete_message(message)


def test_renew_lock_with_javascript(live: LiveBroker, js: JsClient) -> None:
    queue = live.queue(lock_s=30)
    live.send(queue, "x")
    message = js.receive_one(queue)
    live.advance(20)
    renewed = js("renew", lockToken=message["lockToken"])["lockedUntilUtc"]
    assert renewed - message["lockedUntilUtc"] >= timedelta(seconds=20)
    live.advance(20)
    js("complete", lockToken=message["lockToken"])
    assert live.bodies(queue) == []


@pytest.mark.contract("H12")
def test_renew_lock_of_a_lost_lock_is_refused_with_410(live: LiveBroker, sdk: PythonSdk) -> None:
    queue = live.queue(lock_s=5)
    live.send(queue, "x")
    with live.tap() as tap:
        receiver = sdk.receiver(queue)
        message = take_one(receiver)
        live.advance(6)
        with pytest.raises(MessageLockLostError, match="TrackingId:"):
            receiver.renew_message_lock(message)
    assert statuses(tap, queue) == [410]


def test_renew_lock_of_a_lost_lock_with_javascript(live: LiveBroker, js: JsClient) -> None:
    queue = live.queue(lock_s=5)
    live.send(queue, "x")
    token = js.receive_one(queue)["lockToken"]
    live.advance(6)
    with pytest.raises(JavaScriptError) as caught:
        js("renew", lockToken=token)
    assert caught.value.code == "MessageLockLost"


async def test_renew_lock_of_several_is_all_or_none(live: LiveBroker, ours: Connection, queue: str) -> None:
    live.send(queue, "a", "b")
    receiver = await ours.receiver(queue)
    messages = await receiver.receive(max_count=2, max_wait=20)
    tokens = [known(message.lock_token) for message in messages]
    management = ours.management(queue)
    ends = await management.renew_locks(tokens)
    assert len(ends) == 2
    await management.settle(tokens[:1])
    with pytest.raises(MessageLockLost):
        await management.renew_locks(tokens)


# -- 8.2 peek-message --------------------------------------------------------------------------------------------------


def fill_with_every_state(live: LiveBroker, queue: str, receiver: ServiceBusReceiver) -> None:
    """Numbers 1 locked, 2 deferred, 3 active and abandoned once, 4 scheduled."""
    due_ms = broker_now_ms(live) + 3_600_000
    live.send(queue, "locked", "deferred", "active", OutgoingMessage("scheduled", scheduled_enqueue_time_ms=due_ms))
    locked, deferred, active = take(receiver, 3)
    assert text_of(locked) == "locked"
    receiver.defer_message(deferred)
    receiver.abandon_message(active)


def test_peek_shows_messages_of_every_state_in_order_and_changes_nothing(
    live: LiveBroker, sdk: PythonSdk, queue: str
) -> None:
    receiver = sdk.receiver(queue)
    fill_with_every_state(live, queue, receiver)
    messages = receiver.peek_messages(10, sequence_number=1)
    assert [text_of(message) for message in messages] == ["locked", "deferred", "active", "scheduled"]
    assert [message.sequence_number for message in messages] == [1, 2, 3, 4]
    assert [known(message.state).value for message in messages] == [ACTIVE, DEFERRED, ACTIVE, SCHEDULED]
    assert [message.delivery_count for message in messages] == [0, 1, 1, 0]  # deferring counts
    assert all(message.locked_until_utc is None for message in messages)
    assert all(message.enqueued_time_utc is not None for message in messages)
    assert [message.sequence_number for message in receiver.peek_messages(10, sequence_number=3)] == [3, 4]
    assert live.locked_count(queue) == 1


def test_peek_of_nothing_is_204(live: LiveBroker, sdk: PythonSdk, queue: str) -> None:
    live.send(queue, "x")
    with live.tap() as tap:
        receiver = sdk.receiver(queue)
        assert receiver.peek_messages(sequence_number=2) == []
    assert statuses(tap, queue) == [204]
    assert [answer.body for answer in answers(tap, queue)] == [{}]


def test_peek_with_javascript(live: LiveBroker, js: JsClient, sdk: PythonSdk, queue: str) -> None:
    fill_with_every_state(live, queue, sdk.receiver(queue))
    messages = js("peek", queue=queue, count=10)
    assert [message["sequenceNumber"] for message in messages] == [1, 2, 3, 4]
    assert [message["state"] for message in messages] == ["active", "deferred", "active", "scheduled"]
    assert [message["deliveryCount"] for message in messages] == [0, 1, 1, 0]
    assert [message["sequenceNumber"] for message in js("peek", queue=queue, count=1, **{"from": Long(3)})] == [3]
    assert js("peek", queue=queue, count=1, link="other", **{"from": Long(5)}) == []


def test_peek_with_javascript_can_leave_the_bodies_out(live: LiveBroker, js: JsClient, queue: str) -> None:
    live.send(queue, OutgoingMessage(b"x" * 1000, message_id="m", application_properties={"a": "b"}))
    with live.tap() as tap:
        (message,) = js("peek", queue=queue, omitBody=True)
    assert (message["messageId"], message["applicationProperties"]) == ("m", {"a": "b"})
    assert not message.get("body")
    assert b"x" * 1000 not in tap.connections[0].broker_bytes


# -- 8.3 schedule-message ----------------------------------------------------------------------------------------------


def test_schedule_returns_numbers_and_the_messages_appear_when_due(
    live: LiveBroker, sdk: PythonSdk, queue: str
) -> None:
    sender = sdk.sender(queue)
    due = datetime.fromtimestamp(broker_now_ms(live) / 1000, UTC) + MINUTE
    numbers = sender.schedule_messages([ServiceBusMessage("a"), ServiceBusMessage("b")], due)
    assert numbers == [1, 2]
    assert [message.state for message in live.peek(queue)] == [SCHEDULED, SCHEDULED]
    receiver = sdk.receiver(queue)
    live.advance(61)
    messages = take(receiver, 2)
    assert [text_of(message) for message in messages] == ["a", "b"]
    assert [message.enqueued_sequence_number for message in messages] == numbers
    for message in messages:
        scheduled = known(message.scheduled_enqueue_time_utc)
        assert abs(ms_of(scheduled) - ms_of(due)) <= 1
        assert ms_of(known(message.enqueued_time_utc)) >= ms_of(due)


def test_schedule_by_the_annotation_of_an_ordinary_send(live: LiveBroker, sdk: PythonSdk, queue: str) -> None:
    due = datetime.fromtimestamp(broker_now_ms(live) / 1000, UTC) + MINUTE
    sdk.sender(queue).send_messages(ServiceBusMessage("later", scheduled_enqueue_time_utc=due))
    assert [message.state for message in live.peek(queue)] == [SCHEDULED]
    live.advance(61)
    live.until(queue, lambda found: found.counters.active == 1)


def test_schedule_with_javascript(live: LiveBroker, js: JsClient, queue: str) -> None:
    due = datetime.fromtimestamp(broker_now_ms(live) / 1000, UTC) + MINUTE
    numbers = js("schedule", queue=queue, messages=[{"body": "a"}, {"body": "b"}], at=due)
    assert numbers == [1, 2]
    waiting = js.javascript.start("receive", client=js.name, queue=queue, count=2, waitMs=20_000)
    live.until(queue, lambda found: found.lane.receivers.are_waiting())
    live.advance(61)
    messages = waiting.result(60)
    while len(messages) < 2:
        messages += js("receive", queue=queue, count=1)
    assert [message["body"] for message in messages] == ["a", "b"]
    assert [message["enqueuedSequenceNumber"] for message in messages] == numbers


async def test_schedule_refuses_what_a_send_would_refuse(ours: Connection, queue: str) -> None:
    management = ours.management(queue)
    due_ms = int(time.time() * 1000) + 3_600_000
    with pytest.raises(MessageTooLarge):
        await management.schedule([OutgoingMessage(b"small"), OutgoingMessage(b"x" * 300_000)], due_ms)
    assert await management.peek(0, 10) == [], "all or none"


# -- 8.4 cancel-scheduled-message --------------------------------------------------------------------------------------


def test_cancel_takes_scheduled_messages_back_once(live: LiveBroker, sdk: PythonSdk, queue: str) -> None:
    sender = sdk.sender(queue)
    due = datetime.now(UTC) + 60 * MINUTE
    numbers = sender.schedule_messages([ServiceBusMessage(text) for text in "abc"], due)
    sender.cancel_scheduled_messages(numbers[:2])
    assert live.bodies(queue) == ["c"]
    with pytest.raises(MessageNotFoundError, match="404"):
        sender.cancel_scheduled_messages([numbers[2], numbers[0]])
    assert live.bodies(queue) == ["c"], "all or none"


def test_cancel_with_javascript(live: LiveBroker, js: JsClient, queue: str) -> None:
    numbers = js("schedule", queue=queue, messages=[{"body": b"a"}, {"body": b"b"}], at=datetime.now(UTC) + 60 * MINUTE)
    js("cancel", queue=queue, sequenceNumbers=numbers[:1])
    assert live.bodies(queue) == ["b"]
    with pytest.raises(JavaScriptError) as caught:
        js("cancel", queue=queue, sequenceNumbers=numbers[:1])
    assert caught.value.code == "MessageNotFound"


# -- 8.5 receive-by-sequence-number ------------------------------------------------------------------------------------


def defer_all(live: LiveBroker, queue: str, receiver: ServiceBusReceiver, count: int) -> list[int]:
    live.send(queue, *(f"{number}" for number in range(count)))
    messages = take(receiver, count)
    for message in messages:
        receiver.defer_message(message)
    return [known(message.sequence_number) for message in messages]


def test_deferred_messages_are_received_by_number_and_locked(live: LiveBroker, sdk: PythonSdk) -> None:
    queue = live.queue(lock_s=30)
    receiver = sdk.receiver(queue)
    numbers = defer_all(live, queue, receiver, 3)
    received = receiver.receive_deferred_messages([numbers[0], numbers[2]])
    assert [text_of(message) for message in received] == ["0", "2"]
    assert all(message.lock_token is not None and message.locked_until_utc is not None for message in received)
    live.advance(20)
    receiver.renew_message_lock(received[0])  # the token is good for 8.1
    live.advance(20)
    receiver.complete_message(received[0])  # and for 8.6
    with pytest.raises(MessageLockLostError):
        receiver.complete_message(received[1])
    assert live.bodies(queue) == ["1", "2"]


def test_deferred_messages_can_be_received_and_deleted(live: LiveBroker, sdk: PythonSdk, queue: str) -> None:
    numbers = defer_all(live, queue, sdk.receiver(queue), 2)
    deleting = sdk.receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    (message,) = deleting.receive_deferred_messages(numbers[:1])
    assert text_of(message) == "0"
    assert live.bodies(queue) == ["1"]


def test_what_is_missing_or_not_deferred_is_not_found_and_nothing_is_locked(
    live: LiveBroker, sdk: PythonSdk, queue: str
) -> None:
    receiver = sdk.receiver(queue)
    (number,) = defer_all(live, queue, receiver, 1)
    live.send(queue, "active")
    for others in ([number + 1], [99], [number, 99]):
        with pytest.raises(MessageNotFoundError, match="404"):
            receiver.receive_deferred_messages(others)
    assert live.locked_count(queue) == 0


def test_deferred_messages_are_received_by_javascript(live: LiveBroker, js: JsClient, queue: str) -> None:
    live.send(queue, "a", "b")
    messages = js("receive", queue=queue, count=2)
    for message in messages:
        js("defer", lockToken=message["lockToken"])
    (received,) = js("receiveDeferred", queue=queue, sequenceNumbers=[Long(2)])
    assert received["sequenceNumber"] == 2
    js("renew", lockToken=received["lockToken"])
    js("complete", lockToken=received["lockToken"])
    (deleted,) = js("receiveDeferred", queue=queue, sequenceNumbers=[Long(1)], receiveMode="receiveAndDelete")
    assert deleted["sequenceNumber"] == 1
    assert live.bodies(queue) == []
    with pytest.raises(JavaScriptError) as caught:
        js("receiveDeferred", queue=queue, sequenceNumbers=[Long(1)])
    assert caught.value.code == "MessageNotFound"


# -- 8.6 update-disposition --------------------------------------------------------------------------------------------


def test_update_disposition_settles_deferred_messages(live: LiveBroker, sdk: PythonSdk, queue: str) -> None:
    with live.tap() as tap:
        receiver = sdk.receiver(queue)
        numbers = defer_all(live, queue, receiver, 4)
        complete, abandon, defer, dead_letter = receiver.receive_deferred_messages(numbers)
        receiver.complete_message(complete)
        receiver.abandon_message(abandon)
        receiver.defer_message(defer)
        receiver.dead_letter_message(dead_letter, reason="why", error_description="in words")
    asked = [
        request.body["disposition-status"]
        for spoken in tap.connections
        for request in spoken.requests(True, f"{queue}/$management")
        if isinstance(request.body, dict) and "disposition-status" in request.body
    ]
    assert asked == ["completed", "abandoned", "defered", "suspended"]
    left = [(message.body, message.state, message.delivery_count) for message in live.peek(queue)]
    assert left == [(b"1", DEFERRED, 2), (b"2", DEFERRED, 2)], "abandoned, it stays deferred"
    (dead,) = live.dead_letters(queue)
    assert (dead.body, dead.dead_letter_reason, dead.dead_letter_description) == (b"3", "why", "in words")


def test_update_disposition_takes_empty_texts_for_none(live: LiveBroker, sdk: PythonSdk, queue: str) -> None:
    receiver = sdk.receiver(queue)
    numbers = defer_all(live, queue, receiver, 1)
    receiver.dead_letter_message(receiver.receive_deferred_messages(numbers)[0])  # Python sends "" for both
    assert [message.application_properties for message in live.dead_letters(queue)] == [{}]


def test_update_disposition_with_javascript(live: LiveBroker, js: JsClient, queue: str) -> None:
    live.send(queue, *(f'"{verb}"' for verb in ("complete", "abandon", "defer", "deadLetter")))
    for message in js("receive", queue=queue, count=4):
        js("defer", lockToken=message["lockToken"])
    numbers = [Long(number) for number in (1, 2, 3, 4)]
    options: dict[str, Any] = {"deadLetter": {"deadLetterReason": "why"}, "abandon": {"tried": "yes"}}
    for message in js("receiveDeferred", queue=queue, sequenceNumbers=numbers):
        js(message["body"], lockToken=message["lockToken"], options=options.get(message["body"]))
    left = [(message.body, message.state, message.application_properties) for message in live.peek(queue)]
    assert left == [(b'"abandon"', DEFERRED, {"tried": "yes"}), (b'"defer"', DEFERRED, {})]
    assert [message.dead_letter_reason for message in live.dead_letters(queue)] == ["why"]


def test_both_sdks_use_update_disposition_when_the_link_of_the_message_is_gone(
    live: LiveBroker, sdk: PythonSdk, js: JsClient, queue: str
) -> None:
    live.send(queue, "javascript", "python")
    message = js.receive_one(queue)
    receiver = sdk.receiver(queue, sdk.connect(retry_total=2, retry_backoff_factor=0.01))
    other = take_one(receiver)
    with live.tap() as tap:
        live.cut()
        js("complete", lockToken=message["lockToken"])
        receiver.complete_message(other)
    asked = [
        request.named["operation"]
        for spoken in tap.connections
        for request in spoken.requests(True, f"{queue}/$management")
    ]
    assert asked == ["com.microsoft:update-disposition"] * 2
    assert live.bodies(queue) == []


async def test_update_disposition_of_several_is_all_or_none(live: LiveBroker, ours: Connection, queue: str) -> None:
    live.send(queue, "a", "b")
    messages = await (await ours.receiver(queue)).receive(max_count=2, max_wait=20)
    tokens = [known(message.lock_token) for message in messages]
    management = ours.management(queue)
    await management.settle(tokens[:1])
    with pytest.raises(MessageLockLost):
        await management.settle(tokens)
    await management.settle(tokens[1:])
    assert await management.peek(0, 10) == []


# -- 8.14 batch-delete-messages, which newer SDKs have a call for --


async def test_batch_delete_removes_the_oldest_and_says_how_many(
    live: LiveBroker, ours: Connection, queue: str
) -> None:
    live.send(queue, *(f"{number}" for number in range(5)))
    management = ours.management(queue)
    answer = await management.call("com.microsoft:batch-delete-messages", {"message-count": Int(2)})
    assert answer == {"message-count": 2}
    assert type(answer["message-count"]) is Int
    assert [message.body for message in await management.peek(0, 10)] == [b"2", b"3", b"4"]


async def test_batch_delete_takes_only_what_is_older_than_asked(live: LiveBroker, ours: Connection, queue: str) -> None:
    live.send(queue, "old")
    (old,) = live.peek(queue)
    live.advance(5)
    live.send(queue, "new")
    management = ours.management(queue)
    fixed_ms = known(old.enqueued_time_ms) + 1_000
    assert await management.batch_delete(100, fixed_ms) == 1
    assert await management.batch_delete(100, fixed_ms) == 0, "purge repeats until it gets zero"
    assert [message.body for message in await management.peek(0, 10)] == [b"new"]


async def test_batch_delete_leaves_locked_deferred_and_scheduled_messages(
    live: LiveBroker, ours: Connection, queue: str
) -> None:
    due_ms = broker_now_ms(live) + 3_600_000
    live.send(queue, "locked", "deferred", OutgoingMessage("scheduled", scheduled_enqueue_time_ms=due_ms), "active")
    receiver = await ours.receiver(queue)
    _, deferred = await receiver.receive(max_count=2, max_wait=20)
    await receiver.defer(deferred)
    management = ours.management(queue)
    assert await management.batch_delete(100) == 1
    assert [message.body for message in await management.peek(0, 10)] == [b"locked", b"deferred", b"scheduled"]


async def test_batch_delete_says_a_count_even_when_it_fails(live: LiveBroker, ours: Connection, queue: str) -> None:
    management = ours.management(queue)
    await management.peek()
    live.plant(queue, faults.MANAGEMENT, errors.MessageNotFound("Nothing there."))
    with live.tap() as tap:
        async with await connect(live.connection_string) as other:
            with pytest.raises(MessageNotFound):
                await other.management(queue).batch_delete(1)
    (answer,) = answers(tap, queue)
    assert (answer.named["statusCode"], answer.body) == (404, {"message-count": 0})


# -- of all requests --


async def test_an_unknown_operation_is_not_implemented(live: LiveBroker, queue: str) -> None:
    with live.tap() as tap:
        async with await connect(live.connection_string) as connection:
            with pytest.raises(ClientError, match="'com.microsoft:make-tea' is not known here") as caught:
                await connection.management(queue).call("com.microsoft:make-tea", {"cups": Int(1)})
    assert caught.value.condition == "amqp:not-implemented"
    assert statuses(tap, queue) == [501]


async def test_the_node_of_a_missing_queue_is_not_found(ours: Connection) -> None:
    with pytest.raises(EntityNotFound):
        await ours.management("no-such-queue").peek()


def test_answers_are_settled_as_they_are_sent(live: LiveBroker, sdk: PythonSdk, queue: str) -> None:
    """Python never settles what comes on these links: unsettled answers would pile up."""
    with live.tap() as tap:
        sdk.receiver(queue).peek_messages()
    said = tap.of(Transfer, False)
    assert len(said) == 2  # $cbs and $management
    assert all(transfer.settled for transfer in said)
