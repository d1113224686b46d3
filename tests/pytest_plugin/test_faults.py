"""Faults in the hands of a test."""

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusServerBusyError

from spillway.model.errors import BrokerError
from spillway.pytest_plugin import Fault, LocalNamespace


def test_a_test_has_something_go_wrong_and_sees_how_often_it_did() -> None:
    with LocalNamespace() as namespace:
        queue = namespace.queue()
        with (
            ServiceBusClient.from_connection_string(namespace.connection_string, retry_total=0) as client,
            client.get_queue_sender(queue) as sender,
            namespace.faults.planted(Fault("server-busy", queue, ["send"], after=1, count=1)) as fault,
        ):
            sender.send_messages(ServiceBusMessage("one"))
            with pytest.raises(ServiceBusServerBusyError):
                sender.send_messages(ServiceBusMessage("two"))
            sender.send_messages(ServiceBusMessage("three"))
            report = namespace.faults.get(fault.number)
            assert (report.state, report.tried, report.hit) == ("spent", 2, 1)
        assert namespace.faults.all() == []
        assert [message.body for message in namespace.peek(queue)] == [b"one", b"three"]


def test_faults_are_added_listed_removed_and_cleared() -> None:
    with LocalNamespace() as namespace:
        first = namespace.faults.add(Fault("drop", "nobody"))
        namespace.faults.add(Fault("slow", delay_ms=100))
        assert [report.fault.kind for report in namespace.faults.all()] == ["drop", "slow"]
        assert namespace.faults.remove(first.number).number == first.number
        with pytest.raises(BrokerError, match="There is no fault 77"):
            namespace.faults.get(77)
        assert namespace.faults.clear() == 1
    with pytest.raises(RuntimeError, match="is not open"):
        namespace.faults.all()
