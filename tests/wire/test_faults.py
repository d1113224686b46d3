"""Every fault on purpose, seen by both SDKs: the table of docs/faults.md, cell by cell, and what the contract says.

The Python SDK takes half a second to open a link, and silence is only known by waiting: so all cells are provoked side
by side, once, each on a queue of its own, and each test looks at its own.
"""

import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import AzureError, HttpResponseError
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus import exceptions as sdk_errors
from azure.servicebus.management import ServiceBusAdministrationClient

from spillway.model.faults import (
    ADMINISTRATION,
    ATTACH,
    KINDS,
    LOCK_LOST,
    OPERATIONS,
    QUOTA,
    RECEIVE,
    RESTART,
    SEND,
    SETTLE,
    TIMEOUT,
    reason_against,
)
from spillway.store.sqlite import SqliteJournal
from tests.tools.js import JavaScript, JavaScriptError
from tests.wire.fault_table import CELLS, DONE, EMPTY, LATE, NONE, PYTHON, TABLES, Cell
from tests.wire.live import LiveBroker
from tests.wire.sdk import NO_RETRY, SYNC, WAIT_S, Closing, JsClient, PythonSdk, take, take_one, text_of

SIDE_BY_SIDE = 24
RESULT_S = 120.0
LATE_MS = 300
SHORT_S = 1.0  # for a call that nobody answers
OPENING_S = 5.0  # for one that must open its link first, on a busy machine
OPTIONS: dict[str, dict[str, Any]] = {
    "refuse": {"condition": "amqp:not-allowed"},
    "slow": {"delay_ms": LATE_MS},
    "hidden": {"delay_ms": 60_000},
    "restart": {"duration_ms": 60_000},
}
TRACKED = re.compile(r"TrackingId:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}_wire, SystemTracker:\S+, Timestamp:\d{4}-")
SOON = datetime.now(UTC) + timedelta(hours=2)


class Seen:
    """What one operation of one SDK came to."""

    def __init__(self, answer: Any, error: BaseException | None, took_s: float) -> None:
        self.answer = answer
        self.error = error
        self.took_s = took_s
        self.is_retried: bool | None = None  # by an SDK that does not say it: whether it did
        self.is_struck = False

    def name(self) -> str:
        error = self.error
        if error is None:
            return LATE if self.took_s >= LATE_MS / 1000 else EMPTY if self.answer == [] else DONE
        if isinstance(error, JavaScriptError):
            return error.code or error.name or ""
        return type(error).__name__

    def cell(self) -> Cell:
        name = self.name()
        if self.error is None:
            return Cell(EMPTY if self.answer == [] else name)
        retried = getattr(self.error, "_retryable", None)
        if isinstance(self.error, JavaScriptError):
            retried = self.error.retryable
        if self.is_retried is not None:
            retried = self.is_retried
        return Cell(name, bool(retried), TRACKED.search(str(self.error)) is not None)


def seen(call: Callable[[], Any]) -> Seen:
    begun = time.monotonic()
    answer: Any = None
    error: BaseException | None = None
    try:
        answer = call()
    except Exception as raised:
        error = raised
    return Seen(answer, error, time.monotonic() - begun)


class Provoked:
    """All cells of the table."""

    def __init__(self, live: LiveBroker, javascript: JavaScript) -> None:
        self.live = live
        self.javascript = javascript
        self.ca_file = str(live.certificates.ca)
        self.cells: dict[tuple[str, str, str], Future[Seen]] = {}

    def provoke(self) -> None:
        with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            # Those that wait for silence begin first.
            for sdk, kind, operation in sorted(CELLS, key=lambda cell: cell[1] != TIMEOUT):
                ask = self.ask_python if sdk == PYTHON else self.ask_js
                self.cells[sdk, kind, operation] = pool.submit(ask, kind, operation)

    def plant(self, kind: str, operation: str, queue: str, count: int = 0) -> None:
        operations = [] if kind == RESTART else [operation]  # a restart befalls everything
        self.live.fault(kind, queue, operations, **OPTIONS.get(kind, {}), **({"count": count} if count else {}))

    # -- Python -----------------------------------------------------------------------------------------------------

    def ask_python(self, kind: str, operation: str) -> Seen:
        queue = self.live.queue()
        self.live.send(queue, "first")
        if operation == ADMINISTRATION:
            return self.administer_python(kind, queue)
        is_silent = kind == TIMEOUT
        options = {**NO_RETRY, **({"try_timeout": OPENING_S} if is_silent else {})}
        with ServiceBusClient.from_connection_string(self.live.connection_string, **options) as client:
            call = self.prepare_python(client, kind, operation, queue, is_silent)
            self.plant(kind, operation, queue)
            found = seen(call)
            found.is_struck = self.well_again(queue)  # or closing would wait for the same silence
        return found

    def prepare_python(
        self, client: ServiceBusClient, kind: str, operation: str, queue: str, is_silent: bool
    ) -> Callable[[], Any]:
        wait: dict[str, Any] = {"timeout": SHORT_S} if is_silent else {}
        if operation == ATTACH:
            return client.get_queue_sender(queue).__enter__
        if operation == SEND or kind == QUOTA:
            sender = client.get_queue_sender(queue).__enter__()
            if operation == SEND:
                return lambda: sender.send_messages(ServiceBusMessage("x"), **wait)
            return lambda: sender.schedule_messages(ServiceBusMessage("x"), SOON, **wait)
        receiver = client.get_queue_receiver(queue, **wait).__enter__()
        if operation == RECEIVE:
            return lambda: receiver.receive_messages(max_wait_time=SHORT_S if is_silent else WAIT_S)
        if operation == SETTLE:
            message = take_one(receiver)
            return lambda: receiver.complete_message(message)
        if kind == LOCK_LOST:
            held = take_one(receiver)
            return lambda: receiver.renew_message_lock(held)
        return lambda: receiver.peek_messages(**wait)

    def administer_python(self, kind: str, queue: str) -> Seen:
        text = self.live.connection_string
        options: dict[str, Any] = {"connection_verify": self.ca_file, "read_timeout": SHORT_S}
        self.plant(kind, ADMINISTRATION, queue)
        with ServiceBusAdministrationClient.from_connection_string(text, **NO_RETRY, **options) as client:
            found = seen(lambda: client.get_queue(queue))
        found.is_struck = self.well_again(queue)
        if found.error is not None:
            self.strike_once(kind, queue)
            with ServiceBusAdministrationClient.from_connection_string(
                text, retry_total=1, retry_backoff_factor=0, **options
            ) as client:
                found.is_retried = seen(lambda: client.get_queue(queue)).error is None
        return found

    # -- JavaScript -------------------------------------------------------------------------------------------------

    def ask_js(self, kind: str, operation: str) -> Seen:
        queue = self.live.queue()
        self.live.send(queue, "first")
        if operation == ADMINISTRATION:
            return self.administer_js(kind, queue)
        options = {"retryOptions": {"maxRetries": 0, "timeoutInMs": int(OPENING_S * 1000)}}
        js = JsClient(self.javascript, self.live.connection_string, options)
        call = self.prepare_js(js, kind, operation, queue)
        self.plant(kind, operation, queue)
        if kind == RESTART:
            self.live.until_detached(queue)
        found = seen(call)
        found.is_struck = self.well_again(queue)
        js.close_later()
        return found

    def prepare_js(self, js: JsClient, kind: str, operation: str, queue: str) -> Callable[[], Any]:
        if operation == ATTACH:
            return lambda: js("send", queue=queue, message={"body": "x"})
        if operation == SEND or kind == QUOTA:
            js("open", queue=queue)
            if operation == SEND:
                return lambda: js("send", queue=queue, message={"body": "x"})
            return lambda: js("schedule", queue=queue, message={"body": "x"}, at=SOON)
        if operation == RECEIVE:
            js("receive", queue=queue, count=1, waitMs=1_000)
            self.live.send(queue, "second")
            return lambda: js("receive", queue=queue, waitMs=int((SHORT_S if kind == TIMEOUT else WAIT_S) * 1000))
        if operation == SETTLE or kind == LOCK_LOST:
            token = js.receive_one(queue)["lockToken"]
            return lambda: js("complete" if operation == SETTLE else "renew", lockToken=token)
        js("receiveDeferred", queue=queue, sequenceNumbers=[])
        return lambda: js("peek", queue=queue)

    def administer_js(self, kind: str, queue: str) -> Seen:
        self.plant(kind, ADMINISTRATION, queue)

        def get(retries: int) -> Any:
            return self.javascript.call(
                "adminQueue",
                connectionString=self.live.connection_string,
                queue=queue,
                options={"retryOptions": {"maxRetries": retries, "retryDelayInMs": 1}},
                timeoutMs=int(SHORT_S * 1000),
            )

        found = seen(lambda: get(0))
        found.is_struck = self.well_again(queue)
        if found.error is not None:
            self.strike_once(kind, queue)
            found.is_retried = seen(lambda: get(1)).error is None
        return found

    def strike_once(self, kind: str, queue: str) -> None:
        """Then all is well: a client that tries again succeeds."""
        if kind == RESTART:
            self.live.fault("refuse", queue, [ADMINISTRATION], "amqp:internal-error", count=1)
        else:
            self.plant(kind, ADMINISTRATION, queue, count=1)

    def well_again(self, queue: str) -> bool:
        """Whether the fault has struck."""
        (report,) = [report for report in self.live.faults_planted() if report.fault.path == queue]
        self.live.remove_faults(report.number)
        return report.hit > 0

    def of(self, sdk: str, kind: str, operation: str) -> Seen:
        return self.cells[sdk, kind, operation].result(RESULT_S)


@pytest.fixture(scope="module")
def provoked(live_broker: LiveBroker, javascript: JavaScript) -> Provoked:
    made = Provoked(live_broker, javascript)
    made.provoke()
    return made


@pytest.mark.parametrize(("sdk", "kind", "operation"), CELLS)
def test_every_cell_of_the_table(provoked: Provoked, sdk: str, kind: str, operation: str) -> None:
    found = provoked.of(sdk, kind, operation)
    assert found.cell() == TABLES[sdk][kind][operation], (found.error, found.answer)
    assert found.is_struck


def test_the_table_has_every_fault_and_operation_and_leaves_out_what_cannot_be_planted() -> None:
    for table in TABLES.values():
        assert list(table) == list(KINDS)
        for kind, cells in table.items():
            assert list(cells) == list(OPERATIONS)
            for operation, cell in cells.items():
                assert (cell.what == NONE) == bool(reason_against(kind, operation)), (kind, operation)


def test_the_guide_shows_the_same_tables() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "faults.md").read_text(encoding="utf-8")
    for sdk, table in TABLES.items():
        (shown,) = re.findall(rf"^\| {sdk} \|(.*?)\n\n", guide, flags=re.MULTILINE | re.DOTALL)
        head, _, *rows = shown.splitlines()
        assert cells_of(head) == list(OPERATIONS)
        expected = [
            [f"`{kind}`", *(str(cells[operation]) for operation in OPERATIONS)] for kind, cells in table.items()
        ]
        assert [cells_of(line) for line in rows] == expected


def cells_of(line: str) -> list[str]:
    return [text.strip() for text in line.strip("|").split("|")]


def test_the_guide_says_why_some_faults_cannot_be_planted() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "faults.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"^\| kind \| operations \| reason \|\n(.*?)\n\n", guide, flags=re.MULTILINE | re.DOTALL)
    said = {
        (kind.strip("`"), operation): reason
        for kind, operations, reason in map(cells_of, shown.splitlines()[1:])
        for operation in operations.split(", ")
    }
    reasons = {(kind, operation): reason_against(kind, operation) for kind in KINDS for operation in OPERATIONS}
    assert said == {place: reason for place, reason in reasons.items() if reason}


# -- what the contract says of availability -----------------------------------------------------------------------


def admin_of(live: LiveBroker) -> ServiceBusAdministrationClient:
    return ServiceBusAdministrationClient.from_connection_string(
        live.connection_string, connection_verify=str(live.certificates.ca), **NO_RETRY
    )


@pytest.fixture
def sdk(live: LiveBroker, closing: Closing) -> Iterator[PythonSdk]:
    """The blocking one: what both kinds of the SDK make of every condition is in test_errors."""
    made = PythonSdk(SYNC, live.connection_string, closing)
    yield made
    made.close()


@pytest.mark.contract("I1")
def test_a_namespace_that_cannot_be_sent_to_is_still_received_from_and_managed(
    live: LiveBroker, sdk: PythonSdk, queue: str
) -> None:
    live.send(queue, "before")
    sender = sdk.sender(queue)
    live.fault("server-busy", "*", [SEND])
    with pytest.raises(sdk_errors.ServiceBusServerBusyError, match="TrackingId:"):
        sender.send_messages(ServiceBusMessage("x"))
    assert text_of(take_one(sdk.receiver(queue))) == "before"
    with admin_of(live) as admin:
        assert admin.get_queue(queue).name == queue
    live.remove_faults()
    sender.send_messages(ServiceBusMessage("after"))


@pytest.mark.contract("I1")
def test_a_namespace_that_cannot_be_received_from_is_still_sent_to(
    live: LiveBroker, sdk: PythonSdk, queue: str
) -> None:
    receiver = sdk.receiver(queue)
    live.fault("refuse", "*", [RECEIVE], "amqp:internal-error")
    sdk.sender(queue).send_messages(ServiceBusMessage("kept"))
    with pytest.raises(sdk_errors.ServiceBusError, match="TrackingId:") as caught:
        receiver.receive_messages(max_wait_time=WAIT_S)
    assert caught.value._retryable is True
    live.remove_faults()
    assert text_of(take_one(sdk.receiver(queue))) == "kept"


@pytest.mark.contract("I1")
def test_a_namespace_whose_entities_cannot_be_managed_is_still_sent_to_and_received_from(
    live: LiveBroker, sdk: PythonSdk, queue: str
) -> None:
    live.fault("server-busy", "*", [ADMINISTRATION])
    with admin_of(live) as admin, pytest.raises(HttpResponseError, match="TrackingId:") as caught:
        admin.create_queue("another")
    assert caught.value.status_code == 503
    sdk.sender(queue).send_messages(ServiceBusMessage("x"))
    take_one(sdk.receiver(queue))


@pytest.mark.contract("I1")
def test_a_namespace_that_cannot_be_reached_answers_nobody_until_it_can(
    live: LiveBroker, sdk: PythonSdk, queue: str
) -> None:
    live.fault("drop", "*")
    with pytest.raises(sdk_errors.ServiceBusConnectionError):
        sdk.sender(queue)
    with admin_of(live) as admin, pytest.raises(AzureError):
        admin.get_queue(queue)
    live.remove_faults()
    sdk.sender(queue).send_messages(ServiceBusMessage("x"))


@pytest.fixture
def own(tmp_path: Path) -> Iterator[LiveBroker]:
    """A namespace that restarts without disturbing the others."""
    broker = LiveBroker(tmp_path)
    yield broker
    broker.close()


@pytest.mark.contract("I3")
def test_a_node_that_restarts_is_slow_for_a_while_and_clients_that_retry_notice_no_more_than_that(
    own: LiveBroker, closing: Closing
) -> None:
    queue = own.queue()
    own.send(queue, "before")
    sdk = PythonSdk(SYNC, own.connection_string, closing)
    client = sdk.connect(retry_total=3, retry_backoff_factor=0.01)
    sender, receiver = sdk.sender(queue, client), sdk.receiver(queue, client)
    held = take_one(receiver)
    own.fault("restart", duration_ms=30_000, delay_ms=200)
    own.wait(lambda: len(own.server.pump.connections) == 0)
    begun = time.monotonic()
    sender.send_messages(ServiceBusMessage("after"))
    assert time.monotonic() - begun >= 0.4, "attached late, answered late"
    assert [text_of(message) for message in take(receiver, 2)] == ["before", "after"], "its lock was volatile"
    with pytest.raises(sdk_errors.MessageLockLostError):
        receiver.complete_message(held)
    own.advance(30)
    (over,) = own.faults_planted()
    sender.send_messages(ServiceBusMessage("well"))
    assert (over.state, own.faults_planted()[0].tried) == ("ended", over.tried), "nothing is slow any more"
    sdk.close()


@pytest.mark.contract("I9")
def test_an_entity_whose_component_restarts_looks_unavailable_for_minutes_and_loses_nothing(
    live: LiveBroker, sdk: PythonSdk, js: JsClient, queue: str
) -> None:
    other = live.queue()
    js("send", queue=queue, message={"body": "before"})
    sender = sdk.sender(other)
    live.fault("restart", queue, duration_ms=3 * 60_000)
    live.until_detached(queue)
    with pytest.raises(sdk_errors.ServiceBusError, match="The broker restarts") as caught:
        sdk.sender(queue)
    assert caught.value._retryable is True
    with pytest.raises(JavaScriptError) as refused:
        js("send", queue=queue, message={"body": "x"})
    assert (refused.value.code, refused.value.retryable) == ("GeneralError", True)
    sender.send_messages(ServiceBusMessage("the others go on"))
    live.advance(3 * 60)
    js("send", queue=queue, message={"body": "after"})
    assert live.bodies(queue) == ['"before"', '"after"']


@pytest.mark.contract("I8")
def test_a_message_sent_during_a_storage_trouble_appears_minutes_later_even_after_a_restart(
    tmp_path: Path, closing: Closing, javascript: JavaScript
) -> None:
    path = tmp_path / "journal.db"
    first = LiveBroker(tmp_path, SqliteJournal(path))
    queue = first.queue()
    first.fault("hidden", queue, delay_ms=15 * 60_000)
    sdk = PythonSdk(SYNC, first.connection_string, closing)
    sdk.sender(queue).send_messages(ServiceBusMessage("from Python"))
    js = JsClient(javascript, first.connection_string)
    js("send", queue=queue, message={"body": "from JavaScript"})
    assert js("peek", queue=queue) == []
    assert sdk.receiver(queue).receive_messages(max_wait_time=0.2) == []
    sdk.close()
    js.close_later()
    first.close()
    second = LiveBroker(tmp_path, SqliteJournal(path))
    sdk = PythonSdk(SYNC, second.connection_string, closing)
    receiver = sdk.receiver(queue)
    second.advance(14 * 60)
    assert receiver.peek_messages() == []
    second.advance(60)
    assert [text_of(message) for message in take(receiver, 2)] == ["from Python", '"from JavaScript"']
    sdk.close()
    second.close()


# -- and nobody else ----------------------------------------------------------------------------------------------


def test_a_slow_answer_holds_nobody_up_but_its_own_link(live: LiveBroker, js: JsClient, queue: str) -> None:
    other = live.queue()
    js("open", queue=queue)
    js("open", queue=other)
    live.fault("slow", queue, [SEND], delay_ms=600_000, count=1)
    slow = js.javascript.start("send", client=js.name, queue=queue, message={"body": "slow"})
    live.wait(lambda: live.server.core.faulting.slow.is_busy())
    behind = js.javascript.start("send", client=js.name, queue=queue, message={"body": "behind"})
    js("send", queue=other, message={"body": "at once"})
    live.wait(lambda: len(live.server.core.faulting.slow.held) == 2)
    assert live.bodies(queue) == ['"slow"', '"behind"'], "stored, though nobody was told yet"
    assert not slow.done()
    live.remove_faults()
    live.advance(600)
    slow.result(WAIT_S)
    behind.result(WAIT_S)


def test_a_swallowed_request_does_not_take_a_place_among_the_others(live: LiveBroker, js: JsClient, queue: str) -> None:
    """Only four requests with large answers are under way at once on a connection."""
    live.send(queue, "x")
    live.fault("timeout", queue, ["management"], count=6)
    swallowed = [js.javascript.start("peek", client=js.name, queue=queue) for _ in range(6)]
    planted = live.server.core.faulting.faults.by_number
    live.wait(lambda: [fault.hit for fault in planted.values()] == [6])
    (message,) = js("peek", queue=queue)
    assert message["sequenceNumber"] == 1
    assert not any(one.done() for one in swallowed)
