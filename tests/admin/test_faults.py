"""`/$spillway/faults`, and what a fault does to the administration itself."""

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from spillway.client.control import ControlError
from spillway.client.faults import Fault, RemoteFaults
from spillway.model.errors import BrokerError
from spillway.server.faults import NamespaceFaults
from tests.admin.client import Answered, Client, entry
from tests.wire.live import LiveBroker


@pytest.fixture(autouse=True)
def well_again(broker: LiveBroker) -> Iterator[None]:
    yield
    broker.remove_faults()


def told(answered: Answered) -> Any:
    return json.loads(answered.body)


def plant(client: Client, **fault: object) -> Any:
    answered = client.ask("POST", "/$spillway/faults", json.dumps(fault))
    assert answered.status == 200, answered.body
    return told(answered)


# -- the resource -------------------------------------------------------------------------------------------------


def test_a_fault_is_planted_listed_and_removed(client: Client) -> None:
    client.ask("PUT", "/orders", entry("QueueDescription"))
    report = plant(client, kind="server-busy", path="orders", operations=["send"], count=3)
    number = report["number"]
    assert (report["state"], report["hit"], report["tried"], report["entity_exists"]) == ("planted", 0, 0, True)
    assert report["condition"] == "com.microsoft:server-busy"
    assert told(client.ask("GET", "/$spillway/faults")) == {"faults": [report]}
    assert told(client.ask("GET", f"/$spillway/faults/{number}")) == report
    assert told(client.ask("DELETE", f"/$spillway/faults/{number}")) == report
    assert told(client.ask("GET", "/$spillway/faults")) == {"faults": []}


def test_all_faults_are_removed_at_once(client: Client) -> None:
    plant(client, kind="drop", operations=["send"])
    plant(client, kind="slow", operations=["send"], delay_ms=5)
    assert told(client.ask("DELETE", "/$spillway/faults")) == {"removed": 2}


def test_a_fault_for_an_entity_that_is_not_there_is_planted_and_says_so(client: Client) -> None:
    assert plant(client, kind="drop", path="typo", operations=["send"])["entity_exists"] is False


@pytest.mark.parametrize(
    ("method", "rest", "body", "status", "said"),
    [
        ("POST", "", {}, 400, "'kind' is missing"),
        ("POST", "", {"kind": "nonsense"}, 400, "'nonsense' is no kind of fault"),
        ("POST", "", {"kind": "lock-lost", "operations": ["administration"]}, 400, "it is about locks on messages"),
        ("POST", "", {"kind": "drop", "colour": "red"}, 400, "A fault has no 'colour'"),
        ("POST", "/7", {"kind": "drop"}, 400, "A fault gets its number when it is planted"),
        ("GET", "/x", None, 400, "'x' is no number of a fault."),
        ("GET", "/0", None, 400, "'0' is no number of a fault."),
        ("GET", "/99999999999999999999", None, 400, "is no number of a fault."),
        ("GET", "/77", None, 404, "There is no fault 77."),
        ("DELETE", "/77", None, 404, "There is no fault 77."),
        ("DELETE", "", {"kind": "drop"}, 400, "DELETE takes no body."),
        ("PUT", "", None, 405, "'faults' takes GET, POST, DELETE, not PUT."),
    ],
)
def test_what_cannot_be_done_is_said(
    client: Client, method: str, rest: str, body: dict[str, object] | None, status: int, said: str
) -> None:
    answered = client.ask(method, f"/$spillway/faults{rest}", None if body is None else json.dumps(body))
    assert (answered.status, said in told(answered)["error"]) == (status, True), answered.body
    assert "TrackingId:" in told(answered)["error"]


def test_faults_from_python_over_the_wire(broker: LiveBroker, client: Client) -> None:
    faults = RemoteFaults(broker.connection_string)
    with faults.planted(Fault("server-busy", operations=["administration"])) as planted:
        assert client.ask("GET", "/orders").status == 503
        assert faults.get(planted.number).hit == 1
        assert [report.number for report in faults.all()] == [planted.number]
    assert client.ask("GET", "/orders").status == 200
    faults.add(Fault("drop", "x"))
    assert faults.clear() == 1
    with pytest.raises(ControlError, match="There is no fault 77") as caught:
        faults.remove(77)
    assert caught.value.status == 404
    with pytest.raises(ValueError, match="SharedAccessKey"):
        RemoteFaults("Endpoint=sb://localhost;UseDevelopmentEmulator=true;")


def test_faults_from_python_inside_the_process(broker: LiveBroker, client: Client) -> None:
    faults = NamespaceFaults(broker.server.pump)
    planted = broker.run(faults.add(Fault("quota", operations=["administration"])))
    assert client.ask("GET", "/orders").status == 403
    (report,) = broker.run(faults.all())
    assert (report.number, report.hit) == (planted.number, 1)
    assert broker.run(faults.remove(planted.number)).hit == 1
    broker.run(faults.add(Fault("drop", "x")))
    assert broker.run(faults.clear()) == 1
    with pytest.raises(BrokerError, match="There is no fault 77"):
        broker.run(faults.remove(77))


# -- struck -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "status", "said"),
    [
        ({"kind": "server-busy"}, 503, "SubCode=50004. The broker is too busy."),
        ({"kind": "timeout-refused"}, 408, "SubCode=40800. The operation did not complete within"),
        ({"kind": "refuse", "condition": "amqp:unauthorized-access"}, 401, "SubCode=40100. Refused."),
        ({"kind": "refuse", "condition": "amqp:internal-error", "text": "Oops."}, 500, "SubCode=50000. Oops."),
        ({"kind": "refuse", "condition": "vendor:x"}, 500, "SubCode=50000. Refused."),
        ({"kind": "quota"}, 403, "SubCode=40300. The maximum size"),
        ({"kind": "restart", "duration_ms": 60_000}, 500, "SubCode=50000. The broker restarts"),
    ],
)
@pytest.mark.contract("I1")
def test_administration_is_refused_with_the_status_that_fits(
    client: Client, fault: dict[str, object], status: int, said: str
) -> None:
    plant(client, operations=["administration"], **fault)
    answered = client.ask("PUT", "/orders", entry("QueueDescription"))
    assert (answered.status, answered.detail.startswith(said)) == (status, True), answered.body
    assert "TrackingId:" in answered.body
    assert told(client.ask("DELETE", "/$spillway/faults"))["removed"] == 1, "our own API is never struck"
    assert client.names() == [], "nothing was made"


def test_a_fault_of_one_entity_leaves_the_others_and_the_lists(client: Client) -> None:
    plant(client, kind="server-busy", path="orders", operations=["administration"])
    assert client.ask("PUT", "/orders", entry("QueueDescription")).status == 503
    assert client.ask("PUT", "/other", entry("QueueDescription")).status == 201
    assert client.ask("GET", "/$Resources/queues").status == 200


def test_a_dropped_request_gets_no_answer_at_all(client: Client) -> None:
    plant(client, kind="drop", operations=["administration"], count=1)
    with pytest.raises((ConnectionResetError, http.client.RemoteDisconnected)):
        client.ask("GET", "/orders")
    client.connection.close()
    assert client.ask("GET", "/orders").status == 200


def test_a_swallowed_request_is_never_answered(client: Client) -> None:
    plant(client, kind="timeout", operations=["administration"], count=1)
    client.connection.timeout = 0.3
    with pytest.raises(TimeoutError):
        client.ask("GET", "/orders")
    client.connection.close()
    client.connection.timeout = 20
    assert client.ask("GET", "/orders").status == 200


def test_a_slow_request_is_answered_late(broker: LiveBroker, client: Client) -> None:
    plant(client, kind="slow", operations=["administration"], delay_ms=60_000, count=1)
    answers: list[int] = []
    other = Client(broker.server.port)
    waiting = threading.Thread(target=lambda: answers.append(other.ask("GET", "/orders").status))
    waiting.start()
    broker.wait(lambda: broker.server.core.faulting.slow.is_busy())
    assert client.ask("GET", "/orders").status == 200, "others do not wait"
    assert answers == []
    broker.advance(60)
    waiting.join(20)
    assert answers == [200]
    other.close()


def test_a_client_that_gives_up_a_swallowed_request_leaves_nothing_behind(broker: LiveBroker, client: Client) -> None:
    plant(client, kind="timeout", operations=["administration"], count=1)
    with socket.create_connection(("localhost", broker.server.port)) as raw:
        raw.sendall(f"GET /orders HTTP/1.1\r\nHost: localhost\r\nAuthorization: {client.token}\r\n\r\n".encode())
        broker.wait(lambda: [planted.hit for planted in broker.server.core.faulting.faults.by_number.values()] == [1])
    assert client.ask("GET", "/orders").status == 200
    assert broker.server.pump.asked == {}
