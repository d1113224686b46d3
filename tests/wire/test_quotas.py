"""Azure Standard's quotas, set to numbers that a test can reach: each ends in the SDK's own quota exception."""

from collections.abc import Iterator
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import MessageSizeExceededError, ServiceBusQuotaExceededError
from azure.servicebus.management import CorrelationRuleFilter, ServiceBusAdministrationClient, SqlRuleFilter

from spillway.client import OutgoingMessage
from spillway.model.quotas import Quotas
from spillway.server.listener import TOLD_FULL_MS
from tests.tools.js import JavaScript, JavaScriptError
from tests.wire.live import LiveBroker
from tests.wire.sdk import JS_NO_RETRY, JsClient, PythonSdk

LIMITS = {
    "entities": 12,
    "subscriptions": 3,
    "subscriptions-per-topic": 2,
    "sql-filters-per-topic": 3,
    "correlation-filters-per-topic": 1,
    "receivers-per-entity": 1,
    "links-per-connection": 6,
}
JS_ONE_TRY = {"retryOptions": {"maxRetries": 0}}


def broker_with(live_broker: LiveBroker, **values: int) -> LiveBroker:
    quotas = Quotas()
    for name, value in values.items():
        quotas.set(name.replace("_", "-"), value)
    return LiveBroker(live_broker.directory, quotas=quotas)


@pytest.fixture(scope="module")
def small(live_broker: LiveBroker) -> Iterator[LiveBroker]:
    broker = broker_with(live_broker, **{name.replace("-", "_"): value for name, value in LIMITS.items()})
    yield broker
    broker.close()


@pytest.fixture
def admin(small: LiveBroker) -> Iterator[ServiceBusAdministrationClient]:
    options: dict[str, Any] = {"connection_verify": str(small.certificates.ca), "retry_total": 0}
    with ServiceBusAdministrationClient.from_connection_string(small.connection_string, **options) as client:
        yield client
        for topic in list(client.list_topics()):
            client.delete_topic(topic.name)


@pytest.fixture
def js_small(javascript: JavaScript, small: LiveBroker) -> Iterator[JsClient]:
    made = JsClient(javascript, small.connection_string, JS_NO_RETRY)
    yield made
    made.close_later()


class Refused:
    """Both administration clients are refused with 403 and the name of the limit."""

    def __init__(self, small: LiveBroker, javascript: JavaScript) -> None:
        self.small = small
        self.javascript = javascript

    def python(self, limit: str, call: Any, *arguments: Any, **named: Any) -> None:
        with pytest.raises(HttpResponseError) as refused:
            call(*arguments, **named)
        assert refused.value.status_code == 403
        assert f"limit {limit}" in str(refused.value)

    def js(self, limit: str, method: str, *arguments: Any) -> None:
        with pytest.raises(JavaScriptError) as refused:
            self.javascript.call(
                "admin",
                connectionString=self.small.connection_string,
                method=method,
                args=arguments,
                options=JS_ONE_TRY,
            )
        assert refused.value.code == "QuotaExceededError"
        assert f"limit {limit}" in refused.value.message


@pytest.fixture
def refused(small: LiveBroker, javascript: JavaScript) -> Refused:
    return Refused(small, javascript)


# -- entities -------------------------------------------------------------------------------------------------------


def test_so_many_queues_and_topics(admin: ServiceBusAdministrationClient, refused: Refused) -> None:
    have = refused.small.server.core.directory.entity_count
    for number in range(have, LIMITS["entities"]):
        admin.create_topic(f"filler{number}")
    refused.python("entities", admin.create_queue, "one-more")
    refused.js("entities", "createTopic", "one-more")
    admin.delete_topic(f"filler{have}")
    admin.create_topic("in-its-place")


def test_so_many_subscriptions_of_a_topic_and_of_all_topics(
    admin: ServiceBusAdministrationClient, refused: Refused
) -> None:
    admin.create_topic("one")
    admin.create_topic("two")
    for name in ("a", "b"):
        admin.create_subscription("one", name)
    refused.python("subscriptions-per-topic", admin.create_subscription, "one", "c")
    refused.js("subscriptions-per-topic", "createSubscription", "one", "c")
    admin.create_subscription("two", "a")
    refused.python("subscriptions", admin.create_subscription, "two", "b")
    admin.delete_subscription("one", "b")
    admin.create_subscription("two", "b")


def test_so_many_filters_of_each_kind(
    admin: ServiceBusAdministrationClient, refused: Refused, js_small: JsClient
) -> None:
    admin.create_topic("filters")
    admin.create_subscription("filters", "a")  # with the filter that takes everything
    for number in range(2):
        admin.create_rule("filters", "a", f"sql{number}", filter=SqlRuleFilter("1=1"))
    refused.python("sql-filters-per-topic", admin.create_rule, "filters", "a", "sql2", filter=SqlRuleFilter("1=1"))
    refused.js("sql-filters-per-topic", "createRule", "filters", "a", "sql2", {"sqlExpression": "1=1"})
    refused.python("sql-filters-per-topic", admin.create_subscription, "filters", "b")
    admin.create_rule("filters", "a", "label", filter=CorrelationRuleFilter(label="x"))
    refused.python(
        "correlation-filters-per-topic",
        admin.create_rule,
        "filters",
        "a",
        "another",
        filter=CorrelationRuleFilter(label="y"),
    )
    with pytest.raises(JavaScriptError, match="limit correlation-filters-per-topic") as over_amqp:
        js_small("createRule", topic="filters", subscription="a", name="another", filter={"subject": "y"})
    assert over_amqp.value.code == "QuotaExceeded"
    assert over_amqp.value.retryable is False


# -- messages -------------------------------------------------------------------------------------------------------


def test_an_entity_that_is_full_and_a_message_that_is_too_large(small: LiveBroker, js_small: JsClient) -> None:
    queue = small.queue(max_size_mb=1)
    half = "x" * 200_000
    small.send(queue, *[half] * 5)
    with pytest.raises(JavaScriptError, match="MaxSizeInMegabytes") as full:
        js_small("send", queue=queue, message={"body": half})
    assert (full.value.code, full.value.retryable) == ("QuotaExceeded", False)
    with pytest.raises(JavaScriptError) as large:
        js_small("send", queue=queue, message={"body": "x" * 300_000})
    assert large.value.code == "MessageSizeExceeded"
    small.delete(queue)


def test_python_hears_the_same(small: LiveBroker, sdk: PythonSdk) -> None:
    queue = small.queue(max_size_mb=1)
    sender = sdk.sender(queue, sdk.connect(small.connection_string))
    small.send(queue, *[OutgoingMessage("x" * 200_000)] * 5)
    with pytest.raises(ServiceBusQuotaExceededError, match="MaxSizeInMegabytes"):
        sender.send_messages(ServiceBusMessage("x" * 200_000))
    with pytest.raises(MessageSizeExceededError):
        sender.send_messages(ServiceBusMessage("x" * 300_000))
    small.delete(queue)


# -- links and connections --------------------------------------------------------------------------------------------


def test_so_many_receivers_of_an_entity(small: LiveBroker, sdk: PythonSdk, js_small: JsClient) -> None:
    queue = small.queue()
    sdk.receiver(queue, sdk.connect(small.connection_string))
    with pytest.raises(ServiceBusQuotaExceededError, match="limit receivers-per-entity"):
        sdk.receiver(queue, sdk.connect(small.connection_string))
    with pytest.raises(JavaScriptError, match="limit receivers-per-entity") as refused:
        js_small("receive", queue=queue)
    assert refused.value.code == "QuotaExceeded"
    small.delete(queue)


def test_so_many_links_of_a_connection(small: LiveBroker, js_small: JsClient) -> None:
    """JavaScript has one connection for all links of a client, two of them to `$cbs`."""
    queue = small.queue()
    for number in range(4):
        js_small("send", queue=queue, link=str(number), message={"body": "x"})
    with pytest.raises(JavaScriptError, match="has 6 links, the most it may have") as refused:
        js_small("send", queue=queue, link="one more", message={"body": "x"})
    assert (refused.value.code, refused.value.retryable) == ("QuotaExceeded", False)
    js_small("send", queue=queue, link="0", message={"body": "x"})
    small.delete(queue)


def test_so_many_connections_of_a_namespace(live_broker: LiveBroker, sdk: PythonSdk, javascript: JavaScript) -> None:
    broker = broker_with(live_broker, connections=1)
    try:
        queue = broker.queue()
        first = JsClient(javascript, broker.connection_string)
        first("send", queue=queue, message={"body": "x"})
        with pytest.raises(ServiceBusQuotaExceededError, match="limit connections"):
            sdk.sender(queue, sdk.connect(broker.connection_string))
        second = JsClient(javascript, broker.connection_string)
        with pytest.raises(JavaScriptError, match="limit connections") as refused:
            second("send", queue=queue, message={"body": "x"})
        assert (refused.value.code, refused.value.retryable) == ("QuotaExceeded", False)
        first("send", queue=queue, message={"body": "x"})
        first("close")
        broker.wait(lambda: len(broker.server.pump.connections) == len(broker.server.acceptor.told_full))
        broker.run(sweep(broker))
        broker.wait(lambda: not broker.server.pump.connections)
        second("send", queue=queue, message={"body": "now there is room"})
        second("close")
    finally:
        broker.close()


async def sweep(broker: LiveBroker) -> None:
    """As if those who were refused had had their time to hear it."""
    broker.server.acceptor.sweep(broker.server.clock.real_ms() + TOLD_FULL_MS)
