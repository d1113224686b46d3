"""What Azure takes and says where AMQP has it otherwise or leaves it open, with programs as people write them."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import azure.servicebus.aio
import pytest
from azure.servicebus import (
    AutoLockRenewer,
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusMessageState,
    ServiceBusReceivedMessage,
    ServiceBusReceiveMode,
    ServiceBusReceiver,
    ServiceBusSubQueue,
)
from azure.servicebus.aio import AutoLockRenewer as AsyncAutoLockRenewer
from azure.servicebus.exceptions import MessageNotFoundError

from spillway.amqp.performatives import ROLE_RECEIVER, Disposition, Transfer
from tests.tools.js import Long
from tests.wire.live import LiveBroker
from tests.wire.sdk import NO_RETRY, JsClient, PythonSdk, known, take, take_one, text_of

AT_ONCE = 20

# -- sections in any order ------------------------------------------------------------------------------------------


def resend(sdk: PythonSdk, queue: str, send: Callable[[Any, ServiceBusReceivedMessage], object]) -> None:
    """Received, sent again in some way, received again."""
    sender = sdk.sender(queue)
    sender.send_messages(ServiceBusMessage(b"again", message_id="m", application_properties={"n": 1}, subject="s"))
    receiver = sdk.receiver(queue)
    received = take_one(receiver)
    send(sender, received)
    receiver.complete_message(received)
    (back,) = take(receiver)
    assert text_of(back) == "again"
    assert back.message_id == "m" and back.subject == "s"
    assert back.application_properties == {b"n": 1}
    receiver.complete_message(back)


def test_a_received_message_can_be_sent_again(sdk: PythonSdk, queue: str) -> None:
    """The Python SDK writes the delivery annotations that it got behind the body."""
    resend(sdk, queue, lambda sender, received: sender.send_messages(received))


def test_a_list_of_received_messages_can_be_sent_again(sdk: PythonSdk, queue: str) -> None:
    resend(sdk, queue, lambda sender, received: sender.send_messages([received]))


def test_a_received_message_can_be_sent_again_in_a_batch(sdk: PythonSdk, queue: str) -> None:
    def in_a_batch(sender: Any, received: ServiceBusReceivedMessage) -> None:
        batch = sender.create_message_batch()
        batch.add_message(received)
        sender.send_messages(batch)

    resend(sdk, queue, in_a_batch)


def test_a_received_message_can_be_scheduled_again(live: LiveBroker, sdk: PythonSdk, queue: str) -> None:
    due = datetime.now(UTC) - timedelta(seconds=1)
    resend(sdk, queue, lambda sender, received: sender.schedule_messages(received, due))


def test_dead_letters_can_be_sent_again(sdk: PythonSdk, queue: str) -> None:
    """The common way to resubmit them."""
    sender = sdk.sender(queue)
    sender.send_messages(ServiceBusMessage(b"dead"))
    receiver = sdk.receiver(queue)
    receiver.dead_letter_message(take_one(receiver), reason="why", error_description="because")
    dead = sdk.receiver(queue, sub_queue="deadletter")
    received = take_one(dead)
    sender.send_messages(received)
    dead.complete_message(received)
    assert text_of(take_one(receiver)) == "dead"


# -- where it comes from and what became of it ------------------------------------------------------------------------


def test_a_message_that_was_scheduled_is_called_so_when_it_is_received(
    live: LiveBroker, sdk: PythonSdk, queue: str
) -> None:
    sender = sdk.sender(queue)
    due = datetime.fromtimestamp(live.server.clock.now_ms() / 1000 + 60, UTC)  # others look at their watches
    (number,) = sender.schedule_messages(ServiceBusMessage("later"), due)
    receiver = sdk.receiver(queue)
    (peeked,) = receiver.peek_messages(sequence_number=1)
    assert peeked.state == ServiceBusMessageState.SCHEDULED
    live.advance(61)
    received = take_one(receiver)
    assert received.state == ServiceBusMessageState.SCHEDULED
    assert received.enqueued_sequence_number == number
    receiver.defer_message(received)
    (deferred,) = receiver.receive_deferred_messages(known(received.sequence_number))
    assert deferred.state == ServiceBusMessageState.DEFERRED and deferred.delivery_count == 1


def test_an_active_message_of_a_queue_has_no_state_and_no_first_number(sdk: PythonSdk, queue: str) -> None:
    sdk.sender(queue).send_messages(ServiceBusMessage("x"))
    received = take_one(sdk.receiver(queue))
    annotations = received.raw_amqp_message.annotations
    assert annotations is not None
    assert set(annotations) == {b"x-opt-sequence-number", b"x-opt-enqueued-time", b"x-opt-locked-until"}
    assert received.state == ServiceBusMessageState.ACTIVE and received.enqueued_sequence_number is None


def test_a_received_message_with_a_partition_key_can_be_sent_again(sdk: PythonSdk, queue: str) -> None:
    """The SDK sends the key on as bytes."""
    sender = sdk.sender(queue)
    sender.send_messages(ServiceBusMessage("x", partition_key="p"))
    receiver = sdk.receiver(queue)
    sender.send_messages(take_one(receiver))
    assert take_one(receiver).partition_key == "p"


def test_transfer_dead_letters_can_be_received_and_there_are_none(live: LiveBroker, sdk: PythonSdk, queue: str) -> None:
    topic = live.topic()
    live.subscription(topic, "s")
    client = sdk.client
    receivers = [
        client.get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.TRANSFER_DEAD_LETTER),
        client.get_subscription_receiver(topic, "s", sub_queue=ServiceBusSubQueue.TRANSFER_DEAD_LETTER),
    ]
    for receiver in receivers:
        with receiver:
            assert receiver.receive_messages(max_wait_time=1) == []
            assert receiver.peek_messages() == []
            with pytest.raises(MessageNotFoundError):
                receiver.receive_deferred_messages(5)


def test_javascript_receives_transfer_dead_letters_and_drains(js: JsClient, queue: str) -> None:
    assert js("receive", queue=queue, waitMs=500, receiver={"subQueueType": "transferDeadLetter"}) == []


# -- what is deleted as it is delivered -------------------------------------------------------------------------------


def test_what_is_deleted_on_delivery_has_an_empty_tag_and_empty_delivery_annotations(
    live: LiveBroker, sdk: PythonSdk, queue: str
) -> None:
    """The section is there, and has nothing in it."""
    live.send(queue, "x")
    with live.tap() as tap:
        receiver = sdk.receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
        assert take_one(receiver).lock_token is None
    spoken = [said for each in tap.connections for said in each.frames if b"x-opt-sequence-number" in said.payload]
    (delivery,) = [said for said in spoken if not said.is_from_client]
    assert isinstance(delivery.body, Transfer)
    assert (delivery.body.delivery_tag, delivery.body.settled) == (b"", True)
    assert b"\x00\x53\x71\xc1\x01\x00" in delivery.payload


def test_a_session_that_is_received_and_deleted_stays_when_its_lock_runs_out_while_nothing_comes(
    live: LiveBroker, sdk: PythonSdk
) -> None:
    queue = live.queue(requires_session=True)
    sender = sdk.sender(queue)
    sender.send_messages(ServiceBusMessage("first", session_id="s"))
    receiver = sdk.receiver(queue, session_id="s", receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    assert text_of(take_one(receiver)) == "first"
    live.advance(10 * 60)
    sender.send_messages(ServiceBusMessage("second", session_id="s"))
    assert text_of(take_one(receiver)) == "second"


def test_javascript_completes_a_deferred_message_that_has_a_session_id_where_there_are_no_sessions(
    live: LiveBroker, js: JsClient, queue: str
) -> None:
    """It sends the id along with the request; here it means nothing."""
    js("send", queue=queue, message={"body": "x", "sessionId": "some session"})
    message = js.receive_one(queue)
    js("defer", lockToken=message["lockToken"])
    numbers = [Long(int(message["sequenceNumber"]))]
    (deferred,) = js("receiveDeferred", queue=queue, sequenceNumbers=numbers)
    js("complete", lockToken=deferred["lockToken"])
    assert live.peek(queue) == []


# -- requests -------------------------------------------------------------------------------------------------------


def test_a_request_is_settled_before_its_answer_is_written(live: LiveBroker, sdk: PythonSdk, queue: str) -> None:
    """uamqp logs an error for each one where it is the other way round."""
    with live.tap() as tap:
        sender = sdk.sender(queue)
        sender.send_messages(ServiceBusMessage("x"))
        receiver = sdk.receiver(queue)
        receiver.renew_message_lock(take_one(receiver))
    for spoken in tap.connections:
        settled = answered = 0
        for said in spoken.frames:
            if not said.is_from_client and isinstance(said.body, Disposition) and said.body.role == ROLE_RECEIVER:
                settled += 1
            elif not said.is_from_client and isinstance(said.body, Transfer) and said.body.settled:
                answered += 1
                assert settled >= answered
        assert answered > 0


# -- delivery ids that repeat ---------------------------------------------------------------------------------------


def test_the_lock_renewer_of_the_blocking_sdk_renews_several_messages(live: LiveBroker, queue: str) -> None:
    """pyamqp gives several requests under way the same delivery id."""
    with ServiceBusClient.from_connection_string(live.connection_string, **NO_RETRY) as client:
        with client.get_queue_sender(queue) as sender:
            sender.send_messages([ServiceBusMessage(str(number)) for number in range(10)])
        failed: list[object] = []
        lock = threading.Lock()

        def on_failure(message: object, error: object) -> None:
            with lock:
                failed.append(error)

        with client.get_queue_receiver(queue) as receiver, AutoLockRenewer(max_workers=10) as renewer:
            messages = take(receiver, 10)
            renew_at_once(renewer, receiver, messages, on_failure)
            for message in messages:
                receiver.complete_message(message)
        assert failed == []
    assert live.active_count(queue) == 0


def renew_at_once(
    renewer: AutoLockRenewer,
    receiver: ServiceBusReceiver,
    messages: list[ServiceBusReceivedMessage],
    on_failure: Callable[[Any, Any], None],
) -> None:
    """All are registered, and each is renewed by a thread of its own, all at the same moment."""
    for message in messages:
        renewer.register(receiver, message, max_lock_renewal_duration=60, on_lock_renew_failure=on_failure)
    together = threading.Barrier(len(messages))
    errors: list[BaseException] = []

    def renew(message: ServiceBusReceivedMessage) -> None:
        together.wait(20)
        try:
            receiver.renew_message_lock(message)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=renew, args=(message,)) for message in messages]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []


@pytest.fixture
def in_time(tmp_path: Path) -> Iterator[LiveBroker]:
    """A broker whose clock nobody has moved: renewers compare it with their own."""
    broker = LiveBroker(tmp_path)
    yield broker
    broker.close()


async def test_the_lock_renewer_of_the_asyncio_sdk_renews_several_messages(in_time: LiveBroker) -> None:
    live = in_time
    queue = live.queue(lock_s=5)
    failed: list[object] = []

    async def on_failure(message: object, error: object) -> None:
        failed.append(error)

    async with azure.servicebus.aio.ServiceBusClient.from_connection_string(
        live.connection_string, **NO_RETRY
    ) as client:
        async with client.get_queue_sender(queue) as sender:
            await sender.send_messages([ServiceBusMessage(str(number)) for number in range(10)])
        async with client.get_queue_receiver(queue) as receiver, AsyncAutoLockRenewer() as renewer:
            messages: list[ServiceBusReceivedMessage] = []
            while len(messages) < 10:
                messages += await receiver.receive_messages(max_message_count=10, max_wait_time=20)
            untils = [message.locked_until_utc for message in messages]
            for message in messages:
                renewer.register(receiver, message, max_lock_renewal_duration=60, on_lock_renew_failure=on_failure)
            for _ in range(600):
                if all(message.locked_until_utc != until for message, until in zip(messages, untils, strict=True)):
                    break
                await asyncio.sleep(0.05)
            assert failed == []
            for message in messages:
                await receiver.complete_message(message)
    assert live.active_count(queue) == 0


@pytest.mark.parametrize("what", ["renew", "schedule", "peek"])
async def test_twenty_requests_at_once_are_all_answered(live: LiveBroker, queue: str, what: str) -> None:
    due = datetime.now(UTC) + timedelta(days=30)
    async with (
        azure.servicebus.aio.ServiceBusClient.from_connection_string(live.connection_string, **NO_RETRY) as client,
        client.get_queue_sender(queue) as sender,
        client.get_queue_receiver(queue) as receiver,
    ):
        await sender.send_messages([ServiceBusMessage(str(number)) for number in range(AT_ONCE)])
        messages: list[ServiceBusReceivedMessage] = []
        while len(messages) < AT_ONCE:
            messages += await receiver.receive_messages(max_message_count=AT_ONCE, max_wait_time=20)
        calls: list[Any] = []
        for message in messages:
            if what == "renew":
                calls.append(receiver.renew_message_lock(message))
            elif what == "schedule":
                calls.append(sender.schedule_messages(ServiceBusMessage(b"later"), due))
            else:
                calls.append(receiver.peek_messages(sequence_number=1))
        answers = await asyncio.gather(*calls)
    assert len(answers) == AT_ONCE and all(answers)
