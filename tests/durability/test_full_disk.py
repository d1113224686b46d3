"""A real broker on a real small disk that is filled, by its clients and by others: it stays up, and it starts again.

The table of docs/disk.md is walked in the core by tests/broker/test_disk_table.py. Here are the process and its files.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from spillway.model import limits
from tests.tools.broker_process import BrokerProcess
from tests.tools.loop_disk import LOOP_CONTROL, CannotCut, LoopDisk

QUEUE = "orders"
SESSIONS = "carts"
DISK_BYTES = 400 * 1024 * 1024
BODY = os.urandom(200_000)
ROOM = limits.DISK_RESERVE_BYTES
ROOM_LEFT = 40 * 1024 * 1024  # beside the reserve


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0 or not LOOP_CONTROL.exists():
        pytest.skip("a small disk of its own needs root and loop devices")
    try:
        small = LoopDisk(tmp_path, "ext4", DISK_BYTES)
        small.__enter__()
    except CannotCut as error:
        pytest.skip(f"a small disk of its own cannot be made: {error}")
    try:
        yield small.root
    finally:
        small.__exit__(None, None, None)


@pytest.fixture
def broker(disk: Path, tmp_path: Path) -> Iterator[BrokerProcess]:
    (tmp_path / "config.json").write_text(CONFIG)
    broker = BrokerProcess(disk / "data", config=tmp_path / "config.json", log_dir=tmp_path)
    with broker:
        yield broker


CONFIG = """{"UserConfig": {"Namespaces": [{"Name": "sbemulatorns",
"Queues": [{"Name": "orders", "Properties": {"LockDuration": "PT5S", "MaxDeliveryCount": 1000}},
           {"Name": "carts", "Properties": {"RequiresSession": true}}],
"Topics": []}], "Logging": {"Type": "Console"}}}
"""


def free_bytes(place: Path) -> int:
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize


def client_of(broker: BrokerProcess) -> ServiceBusClient:
    return ServiceBusClient.from_connection_string(broker.connection_string, retry_total=0)


def fill(disk: Path, left_bytes: int = 0) -> Path:
    """Somebody else's file, until so much is left; 0: to the last byte."""
    other = disk / f"other-{time.monotonic_ns()}"
    with other.open("wb", buffering=0) as file:
        chunk = b"\xff" * (1 << 20)
        while free_bytes(disk) > left_bytes:
            try:
                if file.write(chunk[: max(4_096, min(len(chunk), free_bytes(disk) - left_bytes))]) == 0:
                    break
            except OSError:
                break
        os.fsync(file.fileno())
    return other


def send_until_refused(broker: BrokerProcess) -> int:
    count = 0
    with client_of(broker) as client, client.get_queue_sender(QUEUE) as sender:
        while True:
            try:
                sender.send_messages(ServiceBusMessage(BODY, message_id=str(count)))
            except ServiceBusError as error:
                assert "disk" in str(error), error
                return count
            count += 1
            assert count < DISK_BYTES // len(BODY), "it was never refused"


def receive_all(broker: BrokerProcess) -> list[str]:
    found: list[str] = []
    with client_of(broker) as client, client.get_queue_receiver(QUEUE, max_wait_time=3) as receiver:
        for message in receiver:
            found.append(str(message.message_id))
            receiver.complete_message(message)
    return found


def in_threads(count: int, work: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_clients_cannot_touch_the_reserve_and_receiving_makes_room_again(broker: BrokerProcess, disk: Path) -> None:
    fill(disk, ROOM - limits.DISK_BALLAST_BYTES + ROOM_LEFT)
    sent = send_until_refused(broker)
    assert sent * len(BODY) > ROOM_LEFT // 4
    ballast = (disk / "data" / "sbemulatorns" / "ballast").stat().st_size
    assert ballast == limits.DISK_BALLAST_BYTES
    assert free_bytes(disk) + ballast >= ROOM - (2 << 20)
    assert receive_all(broker) == [str(number) for number in range(sent)]
    deadline = time.monotonic() + 15
    with client_of(broker) as client, client.get_queue_sender(QUEUE) as sender:
        while True:
            try:
                sender.send_messages(ServiceBusMessage(BODY))
                break
            except ServiceBusError:
                assert time.monotonic() < deadline, "sends never resumed"
                time.sleep(0.2)


def test_session_states_stop_at_the_reserve_and_the_broker_starts_again(broker: BrokerProcess, disk: Path) -> None:
    """A key that may only listen filled a disk by states in five seconds, and the broker could not start again."""
    refused: list[str] = []
    fill(disk, ROOM - limits.DISK_BALLAST_BYTES + ROOM_LEFT // 4)

    def set_states(number: int) -> None:
        with client_of(broker) as client:
            for count in range(100):
                name = f"{number}-{count}"
                with client.get_queue_receiver(SESSIONS, session_id=name) as receiver:
                    try:
                        receiver.session.set_state(BODY)
                    except ServiceBusError as error:
                        refused.append(str(error))
                        return

    in_threads(4, set_states)
    assert len(refused) == 4 and all("disk" in text for text in refused), refused[:1]
    assert free_bytes(disk) + limits.DISK_BALLAST_BYTES >= ROOM - (4 << 20)
    broker.kill()
    broker.start()
    with client_of(broker) as client, client.get_queue_receiver(SESSIONS, session_id="0-0") as receiver:
        assert receiver.session.get_state() == BODY
        receiver.session.set_state(None)


def test_others_fill_the_disk_to_the_last_byte_and_messages_are_received_and_deleted(
    broker: BrokerProcess, disk: Path
) -> None:
    """While it runs, after a kill, and again: locks run out meanwhile. When there is space, sends go on."""
    with client_of(broker) as client, client.get_queue_sender(QUEUE) as sender:
        for number in range(300):
            sender.send_messages(ServiceBusMessage(BODY[:50_000], message_id=str(number)))
    others = [fill(disk)]
    assert free_bytes(disk) == 0
    with client_of(broker) as client:
        with client.get_queue_receiver(QUEUE) as receiver:
            locked = receiver.receive_messages(100, max_wait_time=5)
            assert len(locked) > 10
            time.sleep(5.5)  # locks of five seconds, all at once
        with client.get_queue_receiver(QUEUE) as receiver:
            (first, *_) = receiver.receive_messages(1, max_wait_time=10)
            assert first.message_id == "0"
            receiver.complete_message(first)
        with client.get_queue_sender(QUEUE) as sender, pytest.raises(ServiceBusError, match="disk"):
            sender.send_messages(ServiceBusMessage("no"))
    assert broker.is_running
    others.append(fill(disk))  # what the ballast gave back
    broker.kill()
    others.append(fill(disk))
    broker.start()
    others.append(fill(disk))
    assert free_bytes(disk) == 0
    found = receive_all(broker)
    assert sorted(found, key=int) == [str(number) for number in range(1, 300)]
    assert broker.stop() == 0
    broker.start()
    assert receive_all(broker) == []
    for other in others:
        other.unlink()
    deadline = time.monotonic() + 15
    with client_of(broker) as client, client.get_queue_sender(QUEUE) as sender:
        while True:
            try:
                sender.send_messages(ServiceBusMessage("again"))
                break
            except ServiceBusError:
                assert time.monotonic() < deadline, "sends never resumed"
                time.sleep(0.2)
    assert broker.stderr.count("stopped at once") == 0


def test_a_config_that_wants_more_entities_does_not_keep_a_full_disk_from_starting(
    broker: BrokerProcess, disk: Path, tmp_path: Path
) -> None:
    assert broker.stop() == 0
    config = CONFIG.replace('"Topics"', '"Ignored": 0, "Topics"').replace('"Ignored": 0, ', "")
    (tmp_path / "config.json").write_text(config.replace('{"Name": "carts"', '{"Name": "more"}, {"Name": "carts"'))
    other = fill(disk)
    broker.start()
    assert "queue more in sbemulatorns is left as it is" in broker.stderr
    with client_of(broker) as client, client.get_queue_receiver(QUEUE) as receiver:
        assert receiver.peek_messages() == []
    assert broker.stop() == 0
    other.unlink()
    broker.start()
    with client_of(broker) as client, client.get_queue_receiver("more") as receiver:
        assert receiver.peek_messages() == []
