"""Server busy as the SDKs see it: which limit it was, what it refuses, and that it is over when ten seconds are.

Each queue of the first broker may have one operation a second, and ten seconds' worth of them at once: what one test
uses up leaves the others theirs. The clock is moved, so nobody waits.
"""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusServerBusyError
from azure.servicebus.management import ServiceBusAdministrationClient

from spillway.broker.queue import Queue
from spillway.broker.throttle import ENTITY_OPERATIONS, OPERATIONS
from spillway.model.quotas import Quotas
from tests.tools.js import JavaScript, JavaScriptError
from tests.wire.live import LiveBroker
from tests.wire.sdk import JS_NO_RETRY, JsClient, PythonSdk, take

ROOM = 10  # operations at once
MARKED = "limit entity-operations-per-second"
JS_ONE_TRY = {"retryOptions": {"maxRetries": 0}}


@pytest.fixture(scope="module")
def throttled(live_broker: LiveBroker) -> Iterator[LiveBroker]:
    quotas = Quotas()
    quotas.set("entity-operations-per-second", ROOM // 10)
    broker = LiveBroker(live_broker.directory, quotas=quotas)
    yield broker
    broker.close()


@pytest.fixture
def js_client(javascript: JavaScript, throttled: LiveBroker) -> Iterator[JsClient]:
    made = JsClient(javascript, throttled.connection_string, JS_NO_RETRY)
    yield made
    made.close_later()


def use_up(throttled: LiveBroker, queue: str) -> None:
    """As a batch that is larger than what is left does; the next request is refused."""

    def take_all(found: Queue) -> None:
        assert found.share is not None
        found.share.charge(ROOM + 1)

    throttled.see(queue, take_all)


@pytest.mark.contract("I5")
def test_python_raises_server_busy_and_says_which_limit_it_was(throttled: LiveBroker, sdk: PythonSdk) -> None:
    queue = throttled.queue()
    sender = sdk.sender(queue, sdk.connect(throttled.connection_string))
    use_up(throttled, queue)
    with pytest.raises(ServiceBusServerBusyError) as caught:
        sender.send_messages(ServiceBusMessage("x"))
    for part in (f"the entity '{queue}'", "1 operations a second", MARKED, "wait 10 seconds", "TrackingId:"):
        assert part in str(caught.value)


@pytest.mark.contract("I5", "I6")
def test_a_retry_within_ten_seconds_is_refused_and_one_after_them_succeeds(
    throttled: LiveBroker, sdk: PythonSdk
) -> None:
    queue = throttled.queue()
    sender = sdk.sender(queue, sdk.connect(throttled.connection_string))
    use_up(throttled, queue)
    for _ in range(2):
        with pytest.raises(ServiceBusServerBusyError):
            sender.send_messages(ServiceBusMessage("late"))
        throttled.advance(4)
    throttled.advance(2)
    sender.send_messages(ServiceBusMessage("late"))
    assert throttled.bodies(queue)[-1] == "late"


@pytest.mark.contract("I5")
def test_the_retries_of_the_python_sdk_bridge_it(throttled: LiveBroker, sdk: PythonSdk) -> None:
    queue = throttled.queue()
    client = sdk.connect(throttled.connection_string, retry_total=5, retry_backoff_factor=0.05, retry_mode="fixed")
    sender = sdk.sender(queue, client)
    use_up(throttled, queue)
    refused = throttled.server.core.throttle.refused
    before = refused[ENTITY_OPERATIONS]

    def let_ten_seconds_pass() -> None:
        throttled.wait(lambda: refused[ENTITY_OPERATIONS] > before)
        throttled.advance(10)

    mover = threading.Thread(target=let_ten_seconds_pass)
    mover.start()
    sender.send_messages(ServiceBusMessage("bridged"))
    mover.join()
    assert refused[ENTITY_OPERATIONS] > before
    assert throttled.bodies(queue)[-1] == "bridged"


@pytest.mark.contract("I5", "I6")
def test_javascript_raises_service_busy_and_may_send_ten_seconds_later(
    throttled: LiveBroker, js_client: JsClient
) -> None:
    queue = throttled.queue()
    js_client("open", queue=queue)
    use_up(throttled, queue)
    for _ in range(2):
        with pytest.raises(JavaScriptError) as caught:
            js_client("send", queue=queue, message={"body": "late"})
        assert caught.value.code == "ServiceBusy"
        assert caught.value.retryable is True
        assert MARKED in caught.value.message
        throttled.advance(4)
    throttled.advance(2)
    js_client("send", queue=queue, message={"body": "late"})


@pytest.mark.contract("I5")
def test_links_and_requests_are_refused_while_it_is_busy(throttled: LiveBroker, sdk: PythonSdk) -> None:
    queue = throttled.queue()
    receiver = sdk.receiver(queue, sdk.connect(throttled.connection_string))
    use_up(throttled, queue)
    with pytest.raises(ServiceBusServerBusyError, match=MARKED):
        sdk.sender(queue, sdk.connect(throttled.connection_string))
    with pytest.raises(ServiceBusServerBusyError, match=MARKED):
        receiver.peek_messages()


def test_what_was_received_is_settled_however_busy_it_is(throttled: LiveBroker, sdk: PythonSdk) -> None:
    queue = throttled.queue()
    throttled.send(queue, "one", "two")
    receiver = sdk.receiver(queue, sdk.connect(throttled.connection_string), prefetch_count=2)
    first, second = take(receiver, 2)
    use_up(throttled, queue)
    with pytest.raises(ServiceBusServerBusyError):
        receiver.peek_messages()
    receiver.renew_message_lock(first)
    receiver.complete_message(first)
    receiver.abandon_message(second)
    assert throttled.locked_count(queue) == 0


def test_deliveries_wait_and_come_when_time_has_passed(throttled: LiveBroker, sdk: PythonSdk) -> None:
    queue = throttled.queue()
    throttled.send(queue, *["x"] * (ROOM - 1))
    throttled.advance(10)
    receiver = sdk.receiver(queue, sdk.connect(throttled.connection_string))
    first = receiver.receive_messages(max_message_count=ROOM - 1, max_wait_time=5)
    assert ROOM // 2 - 1 <= len(first) < ROOM - 1
    throttled.advance(10)
    rest = take(receiver, ROOM - 1 - len(first))
    assert [message.sequence_number for message in (*first, *rest)] == list(range(1, ROOM))


@pytest.mark.contract("I7")
def test_a_partitioned_queue_takes_what_throttles_a_plain_one(throttled: LiveBroker, sdk: PythonSdk) -> None:
    options: dict[str, Any] = {"connection_verify": str(throttled.certificates.ca), "retry_total": 0}
    with ServiceBusAdministrationClient.from_connection_string(throttled.connection_string, **options) as client:
        plain = client.create_queue(f"plain-{sdk.kind}").name
        partitioned = client.create_queue(f"partitioned-{sdk.kind}", enable_partitioning=True).name
    connection = sdk.connect(throttled.connection_string)
    burst = [ServiceBusMessage("x") for _ in range(ROOM * 2)]
    outcomes = {}
    for queue in (plain, partitioned):
        sender = sdk.sender(queue, connection)
        sender.send_messages(burst)
        try:
            sender.send_messages(burst)
            outcomes[queue] = "taken"
        except ServiceBusServerBusyError:
            outcomes[queue] = "busy"
    assert outcomes == {plain: "busy", partitioned: "taken"}


# -- a whole namespace ----------------------------------------------------------------------------------------------


@pytest.fixture
def small(live_broker: LiveBroker) -> Iterator[LiveBroker]:
    """Ten operations at once for everything in it."""
    quotas = Quotas()
    quotas.set("operations-per-second", ROOM // 10)
    broker = LiveBroker(live_broker.directory, quotas=quotas)
    yield broker
    broker.close()


def test_administrators_are_told_503_and_served_ten_seconds_later(small: LiveBroker, javascript: JavaScript) -> None:
    queue = small.queue()
    options: dict[str, Any] = {"connection_verify": str(small.certificates.ca), "retry_total": 0}
    with ServiceBusAdministrationClient.from_connection_string(small.connection_string, **options) as client:
        client.get_queue(queue)  # counts ten
        with pytest.raises(HttpResponseError) as refused:
            client.get_queue(queue)
        assert refused.value.status_code == 503
        assert "limit operations-per-second" in str(refused.value)
        asked: dict[str, Any] = {"connectionString": small.connection_string, "queue": queue, "options": JS_ONE_TRY}
        with pytest.raises(JavaScriptError) as busy:
            javascript.call("adminQueue", **asked)
        assert busy.value.code == "ServerBusyError"
        assert small.server.core.throttle.refused[OPERATIONS] == 2
        small.advance(10)
        client.get_queue(queue)
        small.advance(10)
        assert javascript.call("adminQueue", **asked)["name"] == queue
