"""A real broker whose store has one row that cannot be read: it starts, serves the others, and says what is wrong.

Every column of every table is damaged by tests/store/test_set_apart.py. Here are the process, its log and its status.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError
from azure.servicebus.management import ServiceBusAdministrationClient

from tests.tools.broker_process import BrokerProcess

CONFIG = """{"UserConfig": {"Namespaces": [{"Name": "sbemulatorns",
"Queues": [{"Name": "orders"}, {"Name": "carts", "Properties": {"RequiresSession": true}}],
"Topics": [{"Name": "news", "Subscriptions": [{"Name": "all"}]}]}], "Logging": {"Type": "Console"}}}
"""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """Stopped, with a message in a queue and one in a session that has a state. What it says of a fault is wanted."""
    (tmp_path / "config.json").write_text(CONFIG)
    broker = BrokerProcess(tmp_path / "data", config=tmp_path / "config.json", log_dir=tmp_path)
    with broker, client_of(broker) as client:
        send(client, "orders", ServiceBusMessage("order"))
        send(client, "carts", ServiceBusMessage("cart", session_id="s"))
        with client.get_queue_receiver("carts", session_id="s") as receiver:
            receiver.session.set_state(b"half way")
    yield broker
    broker.close(allow_traceback=True)


def client_of(broker: BrokerProcess) -> ServiceBusClient:
    return ServiceBusClient.from_connection_string(broker.connection_string, retry_total=0)


def send(client: ServiceBusClient, queue: str, message: ServiceBusMessage) -> None:
    with client.get_queue_sender(queue) as sender:
        sender.send_messages(message)


def received(client: ServiceBusClient, queue: str, **options: Any) -> list[str]:
    found: list[str] = []
    with client.get_queue_receiver(queue, **options) as receiver:
        for message in receiver.receive_messages(10, max_wait_time=3):
            found.append(str(message))
            receiver.complete_message(message)
    return found


def damage(broker: BrokerProcess, statement: str) -> None:
    assert broker.data is not None
    connection = apsw.Connection(str(broker.data / "sbemulatorns" / "journal.db"))
    connection.execute(statement)
    assert connection.changes() > 0
    connection.close()


def status(broker: BrokerProcess, *options: str) -> str:
    env = {**os.environ, "SPILLWAY_CONNECTION_STRING": broker.connection_string}
    line = [sys.executable, "-m", "spillway", "status", *options]
    done = subprocess.run(line, capture_output=True, text=True, check=True, timeout=60, env=env)
    return str(done.stdout)


def facts(broker: BrokerProcess) -> dict[str, Any]:
    found = json.loads(status(broker, "--json"))
    assert isinstance(found, dict)
    return found


def test_a_damaged_message_is_not_delivered_and_everything_else_is(broker: BrokerProcess) -> None:
    damage(broker, "UPDATE message SET raw = x'00ff' WHERE instr(raw, CAST('order' AS BLOB)) > 0")
    broker.start()
    with client_of(broker) as client:
        send(client, "orders", ServiceBusMessage("behind it"))
        assert received(client, "orders") == ["behind it"]
        assert received(client, "carts", session_id="s") == ["cart"]
    assert facts(broker)["rows_set_apart"] == 1
    assert "message 1 of orders: its checksum does not hold" in broker.stderr


def test_counters_that_were_damaged_are_counted_anew(broker: BrokerProcess) -> None:
    damage(broker, "UPDATE entity SET active = active + 1 WHERE path = 'orders'")
    broker.start()
    with client_of(broker) as client:
        assert received(client, "orders") == ["order"]
    (orders,) = [each for each in facts(broker)["entities"] if each["path"] == "orders"]
    assert orders["active"] == 0


@pytest.mark.parametrize("column", ["state = x'00ff'", "active = 77", "checksum = 5"])
def test_a_session_whose_row_is_damaged_keeps_its_messages_and_can_be_used_again(
    broker: BrokerProcess, column: str
) -> None:
    damage(broker, f"UPDATE session SET {column}")
    broker.start()
    with client_of(broker) as client:
        assert received(client, "orders") == ["order"]
        assert received(client, "carts", session_id="s") == ["cart"]
        with client.get_queue_receiver("carts", session_id="s") as receiver:
            with pytest.raises(ServiceBusError, match="damaged in the store"):
                receiver.session.get_state()
            receiver.session.set_state(b"anew")
            assert receiver.session.get_state() == b"anew"
    assert facts(broker)["rows_set_apart"] == 1


def test_a_topic_whose_row_is_damaged_is_out_of_service_until_it_is_made_anew(broker: BrokerProcess) -> None:
    damage(broker, "UPDATE entity SET settings = '{' WHERE path = 'news'")
    broker.start()
    with client_of(broker) as client:
        assert received(client, "orders") == ["order"]
        with pytest.raises(ServiceBusError, match="out of service"), client.get_topic_sender("news") as sender:
            sender.send_messages(ServiceBusMessage("no"))
    found = facts(broker)
    assert found["incidents"] >= 1
    assert [apart["path"] for apart in found["set_apart"]] == ["news"]
    (line,) = [line for line in status(broker).splitlines() if line.startswith("set apart: ")]
    assert "path news, since 2" in line and "_ms" not in line and " ms " not in line
    assert "incident sbemulatorns-1: reading 'news' from the store" in broker.stderr
    with ServiceBusAdministrationClient.from_connection_string(
        broker.connection_string, connection_verify=broker.ca_file
    ) as administration:
        administration.delete_topic("news")
        administration.create_topic("news")
        administration.create_subscription("news", "all")
    with client_of(broker) as client, client.get_topic_sender("news") as sender:
        sender.send_messages(ServiceBusMessage("yes"))
    assert facts(broker)["set_apart"] == []
