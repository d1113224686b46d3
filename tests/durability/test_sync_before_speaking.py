"""No acknowledgement leaves before the sync that covers it has returned.

A preload library makes every fdatasync and fsync of the broker take 300 ms and writes down when each began and
ended. What the official SDK reports as done must come after a sync that began after the request: earlier would be a
promise that a power cut breaks. Killing the process could not show this.
"""

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiver, ServiceBusSender

from tests.durability.conftest import QUEUE
from tests.tools.broker_process import BrokerProcess
from tests.tools.syncshim import SyncShim

DELAY_MS = 300


class Links:
    """One sender and one peek-lock receiver of the SDK, attached, with messages already in hand."""

    def __init__(self, client: ServiceBusClient) -> None:
        self.client = client
        self.sender: ServiceBusSender = client.get_queue_sender(QUEUE)
        self.receiver: ServiceBusReceiver = client.get_queue_receiver(QUEUE)
        self.sender.send_messages([ServiceBusMessage(f"number {number}") for number in range(4)])
        self.messages = self.receiver.receive_messages(max_message_count=3, max_wait_time=5)
        assert self.messages, "the broker has what was sent"


def send(links: Links) -> None:
    links.sender.send_messages(ServiceBusMessage("new"))


def send_batch(links: Links) -> None:
    links.sender.send_messages([ServiceBusMessage("new") for _ in range(10)])


def schedule(links: Links) -> None:
    links.sender.schedule_messages(ServiceBusMessage("later"), datetime.now(UTC) + timedelta(hours=1))


def complete(links: Links) -> None:
    links.receiver.complete_message(links.messages[0])


def dead_letter(links: Links) -> None:
    links.receiver.dead_letter_message(links.messages[0], reason="test")


def defer(links: Links) -> None:
    links.receiver.defer_message(links.messages[0])


def receive_and_delete(links: Links) -> None:
    """Deleted as it is handed over: handing it over is the promise."""
    with links.client.get_queue_receiver(QUEUE, receive_mode="receiveanddelete") as receiver:
        assert receiver.receive_messages(max_message_count=1, max_wait_time=10)


PROMISES = [send, send_batch, schedule, complete, dead_letter, defer, receive_and_delete]


@pytest.fixture
def links(slow_disk_broker: BrokerProcess) -> Iterator[Links]:
    with ServiceBusClient.from_connection_string(slow_disk_broker.connection_string) as client:
        yield Links(client)


@pytest.fixture
def careless_links(careless_broker: BrokerProcess) -> Iterator[Links]:
    with ServiceBusClient.from_connection_string(careless_broker.connection_string) as client:
        yield Links(client)


def assert_promised_after_the_sync(shim: SyncShim, links: Links, promise: Callable[[Links], None]) -> None:
    """The check itself, the same for the broker and for the negative control."""
    shim.set(delay_ms=DELAY_MS)
    begun_ns = time.monotonic_ns()
    promise(links)
    ended_ns = time.monotonic_ns()
    shim.set()
    covering = shim.good_calls_between(begun_ns, ended_ns)
    assert covering, "acknowledged although no sync that began after the request has returned"
    assert ended_ns - begun_ns >= DELAY_MS * 1_000_000


@pytest.mark.contract("G1")
@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_a_promise_comes_after_the_sync_that_covers_it(
    shim: SyncShim, links: Links, promise: Callable[[Links], None]
) -> None:
    assert_promised_after_the_sync(shim, links, promise)


@pytest.mark.parametrize("promise", [send, complete], ids=lambda promise: promise.__name__)
def test_the_check_fails_for_a_broker_that_does_not_sync(
    shim: SyncShim, careless_links: Links, promise: Callable[[Links], None]
) -> None:
    with pytest.raises(AssertionError, match="acknowledged although no sync"):
        assert_promised_after_the_sync(shim, careless_links, promise)
