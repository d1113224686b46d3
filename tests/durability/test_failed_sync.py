"""A sync that fails ends the broker: nothing of its batch was acknowledged, nothing acknowledged before is missing.

After a failed fsync the kernel may have dropped the pages, and the next fsync would report success about nothing. So
there is one honest answer: stop, say why, and read the disk again at the next start.
"""

import socket
import threading
from collections import Counter
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from tests.durability.conftest import QUEUE
from tests.tools.broker_process import BrokerProcess
from tests.tools.syncshim import SyncShim

SENDERS = 5


def all_message_ids(connection_string: str) -> "Counter[str]":
    """Browse everything: changes nothing, needs no locks."""
    found: Counter[str] = Counter()
    with (
        ServiceBusClient.from_connection_string(connection_string) as client,
        client.get_queue_receiver(QUEUE) as receiver,
    ):
        position = 0
        while messages := receiver.peek_messages(max_message_count=100, sequence_number=position):
            found.update(str(message.message_id) for message in messages)
            position = (messages[-1].sequence_number or 0) + 1
    return found


class DoomedSender(threading.Thread):
    """Attached while the disk is well; sends once, when told, and keeps what came of it."""

    def __init__(self, connection_string: str, message_id: str, go: threading.Event) -> None:
        super().__init__(daemon=True)
        self.connection_string = connection_string
        self.message_id = message_id
        self.go = go
        self.is_attached = threading.Event()
        self.is_acknowledged = False

    def run(self) -> None:
        with (
            ServiceBusClient.from_connection_string(self.connection_string, retry_total=0) as client,
            client.get_queue_sender(QUEUE) as sender,
        ):
            self.is_attached.set()
            self.go.wait(30)
            try:
                sender.send_messages(ServiceBusMessage("doomed", message_id=self.message_id), timeout=20)
                self.is_acknowledged = True
            except ServiceBusError:
                pass


@pytest.mark.contract("G1")
def test_a_failed_sync_ends_the_broker_and_nothing_of_its_batch_was_acknowledged(
    tmp_path: Path, shim: SyncShim, slow_disk_broker: BrokerProcess
) -> None:
    broker = slow_disk_broker
    with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_sender(QUEUE) as sender,
        client.get_queue_receiver(QUEUE) as receiver,
    ):
        sender.send_messages([ServiceBusMessage("kept", message_id=f"kept-{number}") for number in range(50)])
        completed = receiver.receive_messages(max_message_count=1, max_wait_time=5)
        receiver.complete_message(completed[0])

        go = threading.Event()
        doomed = [DoomedSender(broker.connection_string, f"doomed-{number}", go) for number in range(SENDERS)]
        for thread in doomed:
            thread.start()
        for thread in doomed:
            assert thread.is_attached.wait(20)
        shim.set(fail_from=1)
        go.set()
        status = broker.wait(20)
        for thread in doomed:
            thread.join(30)

    assert status != 0
    assert not [thread.message_id for thread in doomed if thread.is_acknowledged]
    assert [call for call in shim.calls() if call.result != 0], "the shim did fail a sync"
    error_lines = [line for line in broker.stderr.splitlines() if "sync" in line.lower() or "disk" in line.lower()]
    assert error_lines, f"one line that says what happened; stderr was:\n{broker.stderr}"

    shim.set()
    broker.start()
    found = all_message_ids(broker.connection_string)
    kept = {f"kept-{number}" for number in range(50)} - {str(completed[0].message_id)}
    assert kept <= found.keys(), f"missing: {sorted(kept - found.keys())}"
    assert str(completed[0].message_id) not in found
    assert set(found.values()) == {1}


def test_a_broker_whose_disk_still_fails_does_not_start(tmp_path: Path, shim: SyncShim) -> None:
    shim.set(fail_from=1)
    broker = BrokerProcess(tmp_path / "data", queues=[QUEUE], env=shim.env)
    with pytest.raises(AssertionError, match="not ready"):
        broker.start()
    assert "Traceback" not in broker.stderr


def test_a_failed_sync_of_one_namespace_ends_that_one_and_the_other_goes_on(tmp_path: Path, shim: SyncShim) -> None:
    """Each has a store of its own."""
    with BrokerProcess(tmp_path / "data", queues=[QUEUE], namespaces=["ill", "well"], env=shim.env) as broker:
        ill, well = (broker.namespaces[name].connection_string for name in ("ill", "well"))
        shim.set(fail_from=1, fail_path="/ill/")
        with (
            ServiceBusClient.from_connection_string(ill, retry_total=0) as client,
            pytest.raises(ServiceBusError),
            client.get_queue_sender(QUEUE) as sender,
        ):
            sender.send_messages(ServiceBusMessage("lost"), timeout=10)
        with ServiceBusClient.from_connection_string(well) as client, client.get_queue_sender(QUEUE) as sender:
            sender.send_messages(ServiceBusMessage("kept", message_id="kept"))
        assert all_message_ids(well) == {"kept": 1}
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("localhost", broker.namespaces["ill"].port), timeout=5)
        assert "namespace=ill stopped at once" in broker.stderr
        shim.set()
        assert broker.stop() == 1, "the end says that something had failed"
        broker.start()
        found = all_message_ids(broker.namespaces["ill"].connection_string)
        assert found.total() <= 1, "what was not acknowledged may be there or not"
