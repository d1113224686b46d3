"""A broker that is stopped while it has requests to answer: they are answered, and its log has no traceback."""

import threading
import time
from pathlib import Path

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus.management import ServiceBusAdministrationClient

from spillway.client.faults import Fault, RemoteFaults
from tests.tools.broker_process import BrokerProcess


def until_counted(broker: BrokerProcess, count: int) -> None:
    """The fault has befallen so many."""
    faults = RemoteFaults(broker.connection_string)
    deadline = time.monotonic() + 30.0
    while sum(report.hit for report in faults.all()) < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(
    "fault", [Fault("slow", "*", ["administration"], delay_ms=60_000), Fault("timeout", "*", ["administration"])]
)
def test_who_waits_for_an_answer_when_the_broker_stops_is_told_so(tmp_path: Path, fault: Fault) -> None:
    heard: list[HttpResponseError] = []
    with BrokerProcess(tmp_path / "data", queues=["orders"]) as broker:
        RemoteFaults(broker.connection_string).add(fault)

        def ask() -> None:
            with ServiceBusAdministrationClient.from_connection_string(
                broker.connection_string, connection_verify=broker.ca_file, retry_total=0
            ) as client:
                try:
                    client.get_queue("orders")
                except HttpResponseError as error:
                    heard.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        until_counted(broker, 1)
        assert broker.stop(30) == 0
        asking.join(30)
        assert "Traceback" not in broker.stderr
    (error,) = heard
    assert error.status_code == 503
    assert "The broker is stopping" in str(error)
