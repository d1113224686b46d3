"""A namespace whose clock was moved by weeks: its clients go on as if nothing had happened to them."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue
from azure.servicebus.exceptions import MessageLockLostError

from tests.tools.js import JavaScript
from tests.wire.live import LiveBroker
from tests.wire.sdk import ASYNCIO, SYNC, Closing, JsClient, PythonSdk, known, take_one, text_of

MONTH_S = 30 * 86_400


@pytest.fixture(scope="module")
def moving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    """A broker of its own: the others' tests look at their watches."""
    broker = LiveBroker(tmp_path_factory.mktemp("tls"))
    yield broker
    broker.close()


@pytest.mark.parametrize("kind", [SYNC, ASYNCIO])
def test_tokens_and_connections_outlive_a_month_that_passes_at_once(
    moving: LiveBroker, closing: Closing, kind: str
) -> None:
    sdk = PythonSdk(kind, moving.connection_string, closing)
    queue = moving.queue(lock_s=60)
    sender, receiver = sdk.sender(queue), sdk.receiver(queue)
    sender.send_messages(ServiceBusMessage("before"))
    message = take_one(receiver)
    with moving.tap() as tap:
        moving.advance(MONTH_S)
        with pytest.raises(MessageLockLostError):
            receiver.complete_message(message)
        again = take_one(receiver)
        assert (text_of(again), again.delivery_count) == ("before", 1)
        assert known(again.locked_until_utc) - known(message.locked_until_utc) >= timedelta(seconds=MONTH_S)
        receiver.complete_message(again)
        sender.send_messages(ServiceBusMessage("after"))
        assert tap.connections == [], "nobody had to connect again"
    late = sdk.connect().get_queue_receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    with late:  # and who comes now signs with the time of his own clock
        assert late.peek_messages() == []
    sdk.close()


def test_javascript_goes_on_too(moving: LiveBroker, javascript: JavaScript) -> None:
    js = JsClient(javascript, moving.connection_string)
    queue = moving.queue(lock_s=60)
    js("send", queue=queue, message={"body": "x"})
    js.receive_one(queue)
    moving.advance(MONTH_S)
    again = js.receive_one(queue)
    assert again["deliveryCount"] == 1
    js("complete", lockToken=again["lockToken"])
    assert moving.active_count(queue) == 0
    js.close_later()


def test_thousands_of_messages_that_are_due_have_all_happened_when_the_move_returns(moving: LiveBroker) -> None:
    """More than one turn sweeps, and more than are kept in memory."""
    queue = moving.queue(default_ttl_s=3_600, dead_letter_on_expiry=True)
    count = 6_000
    moving.send(queue, *(f"{number}" for number in range(count)))
    moving.advance(3_601)
    assert moving.active_count(queue) == 0
    assert moving.active_count(f"{queue}/$DeadLetterQueue") == count
