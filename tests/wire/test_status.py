"""Disabled entities as the users of the SDKs see them: at send, at attach, while receiving, when settling."""

from datetime import UTC, datetime

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import MessagingEntityDisabledError

from spillway.model.entity import (
    STATUS_ACTIVE,
    STATUS_DISABLED,
    STATUS_RECEIVE_DISABLED,
    STATUS_SEND_DISABLED,
    subscription_path,
)
from tests.tools.js import JavaScriptError
from tests.wire.live import LiveBroker
from tests.wire.sdk import JsClient, PythonSdk, take_one, text_of


def test_a_send_is_refused_and_the_sender_goes_on_when_sending_is_enabled_again(
    live: LiveBroker, sdk: PythonSdk, queue: str
) -> None:
    sender = sdk.sender(queue)
    live.change(queue, status=STATUS_SEND_DISABLED)
    with pytest.raises(MessagingEntityDisabledError, match=f"Messaging entity '{queue}' is currently disabled"):
        sender.send_messages(ServiceBusMessage("refused"))
    live.change(queue, status=STATUS_ACTIVE)
    sender.send_messages(ServiceBusMessage("taken"))
    assert live.bodies(queue) == ["taken"]


def test_no_link_is_attached_to_a_disabled_queue(live: LiveBroker, sdk: PythonSdk, queue: str) -> None:
    live.change(queue, status=STATUS_DISABLED)
    with pytest.raises(MessagingEntityDisabledError):
        sdk.sender(queue)
    with pytest.raises(MessagingEntityDisabledError):
        sdk.receiver(queue)


def test_a_receiver_learns_that_receiving_was_disabled_and_what_it_held_is_there_again(
    live: LiveBroker, sdk: PythonSdk, queue: str
) -> None:
    live.send(queue, "held")
    receiver = sdk.receiver(queue)
    message = take_one(receiver)
    live.change(queue, status=STATUS_RECEIVE_DISABLED)
    with pytest.raises(MessagingEntityDisabledError):
        receiver.complete_message(message)
    with pytest.raises(MessagingEntityDisabledError):
        receiver.receive_messages(max_message_count=1, max_wait_time=5)
    assert live.bodies(queue) == ["held"]
    live.change(queue, status=STATUS_ACTIVE)
    again = take_one(sdk.receiver(queue))
    assert (text_of(again), again.delivery_count) == ("held", 0)


def test_javascript_is_refused_at_send_attach_receive_and_management(
    live: LiveBroker, js: JsClient, queue: str
) -> None:
    js("open", queue=queue)
    receiving = js.javascript.start("receive", client=js.name, queue=queue, waitMs=20_000)
    live.until(queue, lambda found: found.lane.receivers.are_waiting())
    live.change(queue, status=STATUS_DISABLED)
    for call, arguments in (
        ("send", {"message": {"body": "x"}}),
        ("receive", {"link": "new"}),
        ("schedule", {"message": {"body": "x"}, "at": datetime(2100, 1, 1, tzinfo=UTC)}),
    ):
        with pytest.raises(JavaScriptError) as refused:
            js(call, queue=queue, **arguments)
        assert (refused.value.code, refused.value.retryable) == ("MessagingEntityDisabled", False), call
    with pytest.raises(JavaScriptError) as ended:
        receiving.result(20)
    assert ended.value.code == "MessagingEntityDisabled"


def test_a_disabled_subscription_gets_its_copies_and_gives_none(live: LiveBroker, js: JsClient) -> None:
    topic = live.topic()
    live.subscription(topic, "s")
    path = subscription_path(topic, "s")
    live.change(path, status=STATUS_DISABLED)
    js("send", queue=topic, message={"body": "news"})
    with pytest.raises(JavaScriptError) as refused:
        js("receive", topic=topic, subscription="s")
    assert refused.value.code == "MessagingEntityDisabled"
    with pytest.raises(JavaScriptError) as refused:
        js("rules", topic=topic, subscription="s")
    assert refused.value.code == "MessagingEntityDisabled"
    live.change(path, status=STATUS_ACTIVE)
    (message,) = js("receive", topic=topic, subscription="s", link="again", waitMs=20_000)
    assert message["body"] == "news"
