"""Auto-forwarding as the users of the SDKs see it, and over a restart with the store on disk."""

from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from spillway.model.entity import STATUS_ACTIVE, STATUS_RECEIVE_DISABLED
from spillway.store.sqlite import SqliteJournal
from tests.tools.js import JavaScriptError
from tests.wire.live import LiveBroker
from tests.wire.sdk import WAIT_S, JsClient, PythonSdk, take_one, text_of


def test_what_is_sent_to_one_queue_is_received_from_the_other(live: LiveBroker, sdk: PythonSdk, queue: str) -> None:
    front = live.queue()
    live.send(front, "before")
    live.change(front, forward_to=queue)
    sdk.sender(front).send_messages(ServiceBusMessage("news", subject="s", application_properties={"n": 5}))
    receiver = sdk.receiver(queue)
    for number, body in ((1, "before"), (2, "news")):
        message = take_one(receiver)
        assert text_of(message) == body
        assert (message.sequence_number, message.enqueued_sequence_number) == (number, number)
        receiver.complete_message(message)
    assert (message.subject, message.application_properties, message.delivery_count) == ("s", {b"n": 5}, 0)
    assert (live.bodies(front), live.bodies(queue)) == ([], [])


def test_nobody_receives_from_a_queue_that_forwards(live: LiveBroker, sdk: PythonSdk, queue: str) -> None:
    front = live.queue()
    live.change(front, forward_to=queue)
    with pytest.raises(ServiceBusError, match="Cannot create a message receiver on an entity with auto-forwarding"):
        sdk.receiver(front)


def test_a_dead_letter_says_where_it_was_dead_lettered_and_why(live: LiveBroker, sdk: PythonSdk, queue: str) -> None:
    errors = live.queue()
    live.change(queue, forward_dead_letters_to=errors)
    live.send(queue, "bad")
    receiver = sdk.receiver(queue)
    receiver.dead_letter_message(take_one(receiver), reason="spoilt", error_description="it smells")
    message = take_one(sdk.receiver(errors))
    assert (text_of(message), message.dead_letter_source, message.delivery_count) == ("bad", queue, 0)
    assert (message.dead_letter_reason, message.dead_letter_error_description) == ("spoilt", "it smells")


def test_javascript_publishes_to_a_topic_whose_subscription_forwards(
    live: LiveBroker, js: JsClient, queue: str
) -> None:
    topic = live.topic()
    path = live.subscription(topic, "s")
    live.change(path, forward_to=queue)
    js("send", queue=topic, message={"body": "news", "applicationProperties": {"n": 5}})
    message = js.receive_one(queue)
    assert (message["body"], message["applicationProperties"], message["enqueuedSequenceNumber"]) == (
        "news",
        {"n": 5},
        1,
    )
    with pytest.raises(JavaScriptError) as refused:
        js("receive", topic=topic, subscription="s")
    assert (refused.value.code, refused.value.retryable) == ("GeneralError", False)
    assert "auto-forwarding enabled" in refused.value.message


def test_javascript_sees_the_source_of_a_dead_letter(live: LiveBroker, js: JsClient, queue: str) -> None:
    errors = live.queue()
    live.change(queue, forward_dead_letters_to=errors)
    js("send", queue=queue, message={"body": "bad"})
    held = js.receive_one(queue)
    js("deadLetter", lockToken=held["lockToken"], options={"deadLetterReason": "spoilt"})
    (message,) = js("receive", queue=errors, waitMs=WAIT_S * 1000)
    assert (message["deadLetterSource"], message["deadLetterReason"]) == (queue, "spoilt")


def test_hops_and_what_waits_to_be_forwarded_outlive_a_restart(tmp_path: Path) -> None:
    """hop4 → hop3 → hop2 → hop1 → hop0 → end: one hop too many, and a stop in the middle of it."""
    broker = LiveBroker(tmp_path, SqliteJournal(tmp_path / "journal.db"))
    names = [broker.queue() for _ in range(6)]
    for source, target in zip(names[1:], names, strict=False):
        broker.change(source, forward_to=target)
    end, *_, fourth = names
    middle = names[3]
    broker.change(middle, status=STATUS_RECEIVE_DISABLED)
    broker.send(fourth, "too far")
    broker.send(middle, "near")
    broker.close()
    broker = LiveBroker(tmp_path, SqliteJournal(tmp_path / "journal.db"))
    try:
        assert broker.bodies(middle) == ["too far", "near"]
        broker.change(middle, status=STATUS_ACTIVE)
        broker.until(end, lambda queue: queue.counters.active == 1)
        assert broker.bodies(end) == ["near"]
        (dead,) = broker.dead_letters(names[1])
        assert dead.body == b"too far"
        assert dead.application_properties["DeadLetterReason"] == "MaxTransferHopCountExceeded"
    finally:
        broker.close()
