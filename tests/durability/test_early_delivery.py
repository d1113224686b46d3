"""A waiting receiver has a message before the disk has it, and what that means when the power goes in between.

The disk takes three seconds for a sync, so there is time to look, also on a busy machine.
"""

import threading
import time

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceivedMessage, ServiceBusReceiver
from azure.servicebus.exceptions import ServiceBusError

from tests.durability.conftest import QUEUE
from tests.tools.broker_process import BrokerProcess
from tests.tools.syncshim import SyncShim

DELAY_MS = 3_000


class Sender(threading.Thread):
    """Sends one message beside the test, and knows when it was acknowledged."""

    def __init__(self, connection_string: str, body: str) -> None:
        super().__init__(daemon=True)
        self.connection_string = connection_string
        self.body = body
        self.is_attached = threading.Event()
        self.go = threading.Event()
        self.acknowledged_ns = 0

    def run(self) -> None:
        with (
            ServiceBusClient.from_connection_string(self.connection_string, retry_total=0) as client,
            client.get_queue_sender(QUEUE) as sender,
        ):
            self.is_attached.set()
            assert self.go.wait(30)
            try:
                sender.send_messages(ServiceBusMessage(self.body), timeout=20)
                self.acknowledged_ns = time.monotonic_ns()
            except ServiceBusError:
                pass


def received(receiver: ServiceBusReceiver, shim: SyncShim, sender: Sender) -> tuple[ServiceBusReceivedMessage, int]:
    """The message that is sent on a slow disk, and when the receiver, which waits for it, had it."""
    sender.start()
    assert sender.is_attached.wait(20)
    receiver.receive_messages(max_message_count=1, max_wait_time=1)  # its link is there, with credit
    threading.Timer(0.5, sender.go.set).start()
    shim.set(delay_ms=DELAY_MS)
    (message,) = receiver.receive_messages(max_message_count=1, max_wait_time=10)
    return message, time.monotonic_ns()


@pytest.mark.contract("G1")
def test_the_receiver_has_it_before_the_sync_and_the_sender_is_answered_after_it(
    shim: SyncShim, slow_disk_broker: BrokerProcess
) -> None:
    sender = Sender(slow_disk_broker.connection_string, "early")
    with (
        ServiceBusClient.from_connection_string(slow_disk_broker.connection_string) as client,
        client.get_queue_receiver(QUEUE) as receiver,
    ):
        message, received_ns = received(receiver, shim, sender)
        receiver.complete_message(message)
        completed_ns = time.monotonic_ns()
        sender.join(20)
        shim.set()
    assert received_ns < sender.acknowledged_ns < completed_ns
    assert len(shim.good_calls_between(received_ns - DELAY_MS * 1_000_000, completed_ns)) >= 2


def test_a_message_that_was_seen_and_never_stored_is_gone_and_its_number_is_not_used_again(
    shim: SyncShim, slow_disk_broker: BrokerProcess
) -> None:
    """The kernel would keep what a killed process has written: the disk fails here, which ends the broker as well."""
    broker = slow_disk_broker
    sender = Sender(broker.connection_string, "seen")
    with ServiceBusClient.from_connection_string(broker.connection_string) as client:
        with client.get_queue_sender(QUEUE) as other:
            other.send_messages(ServiceBusMessage("kept"))
        receiver = client.get_queue_receiver(QUEUE)
        (kept,) = receiver.receive_messages(max_message_count=1, max_wait_time=10)
        seen, _ = received(receiver, shim, sender)
        broker.kill()
        sender.join(20)
    shim.set()
    assert sender.acknowledged_ns == 0
    broker.start()
    with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_receiver(QUEUE) as receiver,
    ):
        with client.get_queue_sender(QUEUE) as other:
            other.send_messages(ServiceBusMessage("new"))
        found = {str(message): message.sequence_number or 0 for message in receiver.peek_messages(10)}
    assert found["kept"] == kept.sequence_number
    assert found["new"] > (seen.sequence_number or 0)
    assert found.get("seen", seen.sequence_number) == seen.sequence_number
