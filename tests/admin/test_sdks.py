"""The official SDKs' administration clients, as they are, against a real `spillway serve`."""

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
)
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.aio.management import ServiceBusAdministrationClient as AsyncAdministrationClient
from azure.servicebus.exceptions import MessageLockLostError, ServiceBusAuthorizationError
from azure.servicebus.management import (
    AccessRights,
    AuthorizationRule,
    CorrelationRuleFilter,
    FalseRuleFilter,
    ServiceBusAdministrationClient,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)

from tests.tools.broker_process import NAMESPACE, BrokerProcess
from tests.tools.js import DIRECTORY, install, node_command

FIVE_MINUTES = timedelta(minutes=5)
FOR_EVER_DAYS = 10_675_199
KEY = "cNSRzKKm2vfdbCuTXMa9gOMHD66NwCTxJi4KWJXsTDc="
WHEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class Blocking:
    """The asyncio client with the manners of its blocking twin."""

    def __init__(self, connection_string: str, **options: Any) -> None:
        self.loop = asyncio.new_event_loop()
        self.inner = AsyncAdministrationClient.from_connection_string(connection_string, **options)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.inner, name)

        def call(*arguments: Any, **named: Any) -> Any:
            made = method(*arguments, **named)
            return self.loop.run_until_complete(_all(made) if hasattr(made, "__aiter__") else made)

        return call

    def close(self) -> None:
        self.loop.run_until_complete(self.inner.close())
        self.loop.close()


async def _all(pages: Any) -> list[Any]:
    return [item async for item in pages]


class Node:
    """The JavaScript SDK: one command a line to a Node process."""

    def __init__(self, broker: BrokerProcess) -> None:
        install()
        self.connection_string = broker.connection_string
        self.process = subprocess.Popen(
            [*node_command(), str(DIRECTORY / "administration.mjs")],
            cwd=DIRECTORY,
            env={**os.environ, "NODE_EXTRA_CA_CERTS": str(broker.ca_file)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, method: str, *arguments: Any) -> Any:
        told = self.tell(method, *arguments)
        assert "ok" in told, told
        return told["ok"]

    def error(self, method: str, *arguments: Any) -> dict[str, Any]:
        told = self.tell(method, *arguments)
        assert "error" in told, told
        return dict(told["error"])

    def tell(self, method: str, *arguments: Any) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        command = {"connectionString": self.connection_string, "method": method, "args": arguments}
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return dict(json.loads(self.process.stdout.readline()))

    def address(self, path: str) -> str:
        """As the service writes where messages are forwarded to."""
        return self.connection_string.partition("Endpoint=")[2].partition(";")[0].rstrip("/") + "/" + path

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(10)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    made = BrokerProcess(tmp_path_factory.mktemp("admin") / "data")
    made.start()
    yield made
    made.close()


@pytest.fixture(params=["sync", "asyncio"])
def client(request: pytest.FixtureRequest, broker: BrokerProcess) -> Iterator[Any]:
    options: dict[str, Any] = {"connection_verify": broker.ca_file, "retry_total": 0}
    if request.param == "sync":
        with ServiceBusAdministrationClient.from_connection_string(broker.connection_string, **options) as made:
            yield made
    else:
        blocking = Blocking(broker.connection_string, **options)
        yield blocking
        blocking.close()
    with ServiceBusAdministrationClient.from_connection_string(broker.connection_string, **options) as sweeper:
        for queue in list(sweeper.list_queues()):
            sweeper.delete_queue(queue.name)
        for topic in list(sweeper.list_topics()):
            sweeper.delete_topic(topic.name)


@pytest.fixture(scope="module")
def node(broker: BrokerProcess) -> Iterator[Node]:
    made = Node(broker)
    yield made
    made.close()


def test_a_queue_is_made_read_listed_changed_and_deleted(client: Any) -> None:
    made = client.create_queue(
        "orders/new",
        lock_duration=timedelta(seconds=30),
        max_delivery_count=3,
        default_message_time_to_live=timedelta(hours=2),
        dead_lettering_on_message_expiration=True,
        user_metadata="a <note> & more",
    )
    assert made.name == "orders/new"
    read = client.get_queue("Orders/New")
    assert read.lock_duration == timedelta(seconds=30)
    assert read.max_delivery_count == 3
    assert read.default_message_time_to_live == timedelta(hours=2)
    assert read.dead_lettering_on_message_expiration is True
    assert read.user_metadata == "a <note> & more"
    assert read.auto_delete_on_idle.days == FOR_EVER_DAYS
    assert [queue.name for queue in client.list_queues()] == ["orders/new"]
    read.lock_duration = FIVE_MINUTES
    client.update_queue(read)
    again = client.get_queue("orders/new")
    assert again.lock_duration == FIVE_MINUTES
    assert again.user_metadata == "a <note> & more"
    client.delete_queue("orders/new")
    with pytest.raises(ResourceNotFoundError):
        client.get_queue("orders/new")
    assert list(client.list_queues()) == []


def test_counts_of_a_queue_are_those_of_its_messages(client: Any, broker: BrokerProcess) -> None:
    client.create_queue("counted")
    with ServiceBusClient.from_connection_string(broker.connection_string) as messaging:
        with messaging.get_queue_sender("counted") as sender:
            sender.send_messages([ServiceBusMessage(str(number)) for number in range(5)])
            sender.schedule_messages(ServiceBusMessage("later"), datetime.now(UTC) + timedelta(days=30))
        with messaging.get_queue_receiver("counted") as receiver:
            first, second = receiver.receive_messages(max_message_count=2, max_wait_time=10)
            receiver.dead_letter_message(first, reason="spoilt")
            receiver.complete_message(second)
    counts = client.get_queue_runtime_properties("counted")
    assert counts.active_message_count == 3
    assert counts.dead_letter_message_count == 1
    assert counts.scheduled_message_count == 1
    assert counts.total_message_count == 5
    assert counts.size_in_bytes > 0
    assert abs(counts.created_at_utc - datetime.now(UTC)) < FIVE_MINUTES
    assert [each.name for each in client.list_queues_runtime_properties()] == ["counted"]


def test_the_status_of_an_entity_is_set_and_shown(client: Any) -> None:
    queue = client.create_queue("off", status="SendDisabled")
    assert queue.status == client.get_queue("off").status == "SendDisabled"
    queue.status = "Disabled"
    client.update_queue(queue)
    assert client.get_queue("off").status == "Disabled"
    topic = client.create_topic("news", status="Disabled")
    subscription = client.create_subscription("news", "all", status="ReceiveDisabled")
    assert (topic.status, subscription.status) == ("Disabled", "ReceiveDisabled")
    topic.status = "ReceiveDisabled"
    with pytest.raises(HttpResponseError, match="must be Active or Disabled or SendDisabled") as refused:
        client.update_topic(topic)
    assert refused.value.status_code == 400
    assert client.get_topic("news").status == "Disabled"


def test_how_long_an_entity_may_be_idle_is_set_and_shown(client: Any) -> None:
    ten_minutes = timedelta(minutes=10)
    assert client.create_queue("passing", auto_delete_on_idle=ten_minutes).auto_delete_on_idle == ten_minutes
    topic = client.create_topic("passing-news", auto_delete_on_idle=FIVE_MINUTES)
    subscription = client.create_subscription("passing-news", "all", auto_delete_on_idle=ten_minutes)
    assert (topic.auto_delete_on_idle, subscription.auto_delete_on_idle) == (FIVE_MINUTES, ten_minutes)
    topic.auto_delete_on_idle = FIVE_MINUTES - timedelta(seconds=1)
    with pytest.raises(HttpResponseError, match="must be at least 00:05:00") as refused:
        client.update_topic(topic)
    assert refused.value.status_code == 400
    assert client.get_topic("passing-news").auto_delete_on_idle == FIVE_MINUTES


def test_a_partitioned_queue_is_sixteen_times_as_large_and_stays_partitioned(client: Any) -> None:
    made = client.create_queue("parts", enable_partitioning=True, max_size_in_megabytes=2048)
    assert (made.enable_partitioning, made.max_size_in_megabytes) == (True, 16 * 2048)
    topic = client.create_topic("part-news", enable_partitioning=True)
    assert (topic.enable_partitioning, topic.max_size_in_megabytes, topic.support_ordering) == (True, 16_384, False)
    client.update_queue(made, lock_duration=timedelta(seconds=30))  # says the size as it was shown
    again = client.get_queue("parts")
    assert (again.enable_partitioning, again.max_size_in_megabytes) == (True, 16 * 2048)
    again.enable_partitioning = False
    with pytest.raises(HttpResponseError, match="EnablePartitioning property of an existing Queue cannot be changed"):
        client.update_queue(again)


def test_forwarding_is_set_shown_and_taken_away(client: Any, broker: BrokerProcess) -> None:
    for name in ("errors", "orders"):
        client.create_queue(name)
    client.create_topic("news")
    made = client.create_queue("front", forward_to="orders", forward_dead_lettered_messages_to="errors")
    host = broker.connection_string.partition("sb://")[2].partition(";")[0].rstrip("/")
    assert made.forward_to == client.get_queue("front").forward_to == f"sb://{host}/orders"
    assert made.forward_dead_lettered_messages_to == f"sb://{host}/errors"
    client.create_subscription("news", "all", forward_to="orders")
    made.forward_dead_lettered_messages_to = None
    client.update_queue(made)  # says where it forwards to as it was shown
    again = client.get_queue("front")
    assert (again.forward_to, again.forward_dead_lettered_messages_to) == (f"sb://{host}/orders", None)
    with ServiceBusClient.from_connection_string(broker.connection_string) as messaging:
        with messaging.get_topic_sender("news") as topic, messaging.get_queue_sender("front") as queue:
            topic.send_messages(ServiceBusMessage("by the topic"))
            queue.send_messages(ServiceBusMessage("by the queue"))
        with messaging.get_queue_receiver("orders", receive_mode="receiveanddelete") as receiver:
            got = [str(each) for _ in range(2) for each in receiver.receive_messages(1, 10)]
            assert got == ["by the topic", "by the queue"]
    for wrong in ({"forward_to": "nowhere"}, {"forward_to": "news/Subscriptions/all"}):
        with pytest.raises(HttpResponseError, match="ForwardTo") as refused:
            client.update_queue(client.get_queue("front"), **wrong)
        assert refused.value.status_code == 400


@pytest.mark.contract("H16")
def test_shared_access_rules_are_set_shown_and_changed(client: Any, broker: BrokerProcess) -> None:
    given = AuthorizationRule(
        type="SharedAccessAuthorizationRule",
        claim_type="SharedAccessKey",
        claim_value="None",
        rights=[AccessRights.MANAGE, AccessRights.SEND, AccessRights.LISTEN],
        key_name="all",
        primary_key=KEY,
        secondary_key=KEY[::-1].lstrip("=") + "=",
    )
    client.create_queue("ruled", authorization_rules=[given, AuthorizationRule(rights=["Listen"], key_name="listen")])
    whole, listen = client.get_queue("ruled").authorization_rules
    for name in ("type", "claim_type", "claim_value", "key_name", "primary_key", "secondary_key"):
        assert getattr(whole, name) == getattr(given, name)
    assert whole.rights == ["Manage", "Send", "Listen"]
    assert (listen.key_name, listen.rights) == ("listen", ["Listen"])
    assert abs((whole.created_at_utc - datetime.now(UTC)).total_seconds()) < 60
    read = client.get_queue("ruled")
    read.authorization_rules = read.authorization_rules[1:]
    client.update_queue(read)
    (kept,) = client.get_queue("ruled").authorization_rules
    assert (kept.key_name, kept.primary_key, kept.secondary_key) == ("listen", listen.primary_key, listen.secondary_key)
    client.update_queue(read, max_delivery_count=3)
    own = broker.connection_string.replace("RootManageSharedAccessKey", "listen").replace(
        "SAS_KEY_VALUE", kept.primary_key
    )
    with ServiceBusClient.from_connection_string(own, retry_total=0) as messaging:
        with messaging.get_queue_receiver("ruled") as receiver:
            assert receiver.peek_messages() == []
        with pytest.raises(ServiceBusAuthorizationError, match="'Send'"), messaging.get_queue_sender("ruled") as sender:
            sender.send_messages(ServiceBusMessage("no"))
    client.create_topic("ruled-topic", authorization_rules=[given])
    assert [rule.key_name for rule in client.get_topic("ruled-topic").authorization_rules] == ["all"]


def test_locks_are_lost_when_the_queue_is_changed(client: Any, broker: BrokerProcess) -> None:
    client.create_queue("changed")
    with ServiceBusClient.from_connection_string(broker.connection_string) as messaging:
        with messaging.get_queue_sender("changed") as sender:
            sender.send_messages(ServiceBusMessage("again"))
        with messaging.get_queue_receiver("changed") as receiver:
            (message,) = receiver.receive_messages(max_message_count=1, max_wait_time=10)
            client.update_queue(client.get_queue("changed"), max_delivery_count=3)
            with pytest.raises(MessageLockLostError):
                receiver.complete_message(message)
            (again,) = receiver.receive_messages(max_message_count=1, max_wait_time=10)
            assert str(again) == "again"
            receiver.complete_message(again)
    assert client.get_queue("changed").max_delivery_count == 3


def test_a_queue_with_sessions(client: Any, broker: BrokerProcess) -> None:
    client.create_queue("in-sessions", requires_session=True)
    queue = client.get_queue("in-sessions")
    assert queue.requires_session is True
    with ServiceBusClient.from_connection_string(broker.connection_string) as messaging:
        with messaging.get_queue_sender("in-sessions") as sender:
            sender.send_messages(ServiceBusMessage("hello", session_id="s"))
        with messaging.get_queue_receiver("in-sessions", session_id="s") as receiver:
            (message,) = receiver.receive_messages(max_message_count=1, max_wait_time=10)
            receiver.complete_message(message)
    queue.requires_session = False
    with pytest.raises(HttpResponseError, match="RequiresSession property of an existing Queue cannot be changed"):
        client.update_queue(queue)


def test_topics_and_subscriptions(client: Any, broker: BrokerProcess) -> None:
    client.create_topic("news", default_message_time_to_live=timedelta(days=1))
    client.create_subscription("news", "all", max_delivery_count=2)
    client.create_subscription("news", "none")
    assert client.get_topic("news").default_message_time_to_live == timedelta(days=1)
    assert client.get_topic_runtime_properties("news").subscription_count == 2
    assert [each.name for each in client.list_subscriptions("news")] == ["all", "none"]
    subscription = client.get_subscription("news", "all")
    assert (subscription.name, subscription.max_delivery_count) == ("all", 2)
    subscription.max_delivery_count = 7
    client.update_subscription("news", subscription)
    assert client.get_subscription("news", "all").max_delivery_count == 7
    client.delete_subscription("news", "none")
    assert [each.name for each in client.list_subscriptions("news")] == ["all"]
    with pytest.raises(ResourceNotFoundError):
        client.get_subscription("news", "none")
    with pytest.raises(ResourceExistsError):
        client.create_subscription("news", "ALL")
    client.delete_topic("news")
    with pytest.raises(ResourceNotFoundError):
        client.get_topic("news")


def test_counts_of_a_subscription(client: Any, broker: BrokerProcess) -> None:
    client.create_topic("feed")
    client.create_subscription("feed", "reader")
    with (
        ServiceBusClient.from_connection_string(broker.connection_string) as messaging,
        messaging.get_topic_sender("feed") as sender,
    ):
        sender.send_messages([ServiceBusMessage("one"), ServiceBusMessage("two")])
    assert client.get_subscription_runtime_properties("feed", "reader").active_message_count == 2
    (listed,) = client.list_subscriptions_runtime_properties("feed")
    assert listed.total_message_count == 2


def test_rules(client: Any) -> None:
    client.create_topic("ruled")
    client.create_subscription("ruled", "sub")
    assert [rule.name for rule in client.list_rules("ruled", "sub")] == ["$Default"]
    filters = {
        "sql": SqlRuleFilter("amount > @least AND kind = 'x'", parameters={"@least": 5}),
        "correlation": CorrelationRuleFilter(
            correlation_id="c", label="l", properties={"text": "t", "number": 3, "when": WHEN}
        ),
        "yes": TrueRuleFilter(),
        "no": FalseRuleFilter(),
    }
    for name, wanted in filters.items():
        client.create_rule("ruled", "sub", name, filter=wanted)
    client.create_rule("ruled", "sub", "acting", filter=TrueRuleFilter(), action=SqlRuleAction("SET seen = 1"))
    rules = {rule.name: rule for rule in client.list_rules("ruled", "sub")}
    assert list(rules) == ["$Default", "acting", "correlation", "no", "sql", "yes"]
    assert rules["sql"].filter.sql_expression == "amount > @least AND kind = 'x'"
    assert rules["sql"].filter.parameters == {"@least": 5}
    assert rules["correlation"].filter.properties == {"text": "t", "number": 3, "when": WHEN}
    assert isinstance(rules["no"].filter, FalseRuleFilter)
    assert rules["acting"].action.sql_expression == "SET seen = 1"
    changed = client.get_rule("ruled", "sub", "sql")
    changed.filter = CorrelationRuleFilter(correlation_id="other")
    client.update_rule("ruled", "sub", changed)
    assert client.get_rule("ruled", "sub", "SQL").filter.correlation_id == "other"
    client.delete_rule("ruled", "sub", "$Default")
    with pytest.raises(ResourceNotFoundError):
        client.get_rule("ruled", "sub", "$Default")
    with pytest.raises(HttpResponseError, match="SubCode=40000"):
        client.create_rule("ruled", "sub", "broken", filter=SqlRuleFilter("amount >"))


def test_a_changed_rule_that_cannot_be_read_leaves_the_old_one(client: Any) -> None:
    client.create_topic("kept")
    client.create_subscription("kept", "sub")
    rule = client.get_rule("kept", "sub", "$Default")
    rule.filter = SqlRuleFilter("this is ((no filter")
    with pytest.raises(HttpResponseError, match="SubCode=40000"):
        client.update_rule("kept", "sub", rule)
    assert isinstance(client.get_rule("kept", "sub", "$Default").filter, TrueRuleFilter)


def test_lists_of_many_come_page_by_page(client: Any) -> None:
    names = [f"many-{number:03d}" for number in range(120)]
    for name in names:
        client.create_queue(name)
    assert [queue.name for queue in client.list_queues()] == names


def test_what_is_refused_and_how(client: Any) -> None:
    client.create_queue("there")
    with pytest.raises(ResourceExistsError, match="SubCode=40900"):
        client.create_queue("There")
    with pytest.raises(ResourceNotFoundError):
        client.delete_queue("not-there")
    with pytest.raises(HttpResponseError, match="lock time exceeds the allowed maximum"):
        client.create_queue("long", lock_duration=timedelta(minutes=6))
    assert [queue.name for queue in client.list_queues()] == ["there"]


def test_a_queue_and_a_topic_may_require_duplicate_detection_for_good(client: Any) -> None:
    window = timedelta(minutes=3)
    client.create_queue("once", requires_duplicate_detection=True, duplicate_detection_history_time_window=window)
    client.create_topic("once-too", requires_duplicate_detection=True)
    topic = client.get_topic("once-too")
    assert (topic.requires_duplicate_detection, topic.duplicate_detection_history_time_window) == (
        True,
        timedelta(minutes=10),
    )
    queue = client.get_queue("once")
    assert (queue.requires_duplicate_detection, queue.duplicate_detection_history_time_window) == (True, window)
    queue.duplicate_detection_history_time_window = timedelta(days=7)
    client.update_queue(queue)
    assert client.get_queue("once").duplicate_detection_history_time_window == timedelta(days=7)
    queue.requires_duplicate_detection = False
    with pytest.raises(HttpResponseError, match="RequiresDuplicateDetection property of an existing Queue cannot be"):
        client.update_queue(queue)
    topic.requires_duplicate_detection = False
    with pytest.raises(HttpResponseError, match="RequiresDuplicateDetection property of an existing Topic cannot be"):
        client.update_topic(topic)
    for seconds in (19, 7 * 86_400 + 1):
        queue.requires_duplicate_detection = True
        queue.duplicate_detection_history_time_window = timedelta(seconds=seconds)
        with pytest.raises(HttpResponseError, match=r"between 00:00:20 and 7\.00:00:00"):
            client.update_queue(queue)


def test_the_namespace_calls_itself_standard(client: Any) -> None:
    properties = client.get_namespace_properties()
    assert (properties.name, properties.messaging_sku) == (NAMESPACE, "Standard")


def test_a_wrong_key_is_not_let_in(broker: BrokerProcess) -> None:
    connection_string = broker.connection_string.replace("SharedAccessKey=", "SharedAccessKey=x")
    with (
        ServiceBusAdministrationClient.from_connection_string(
            connection_string, connection_verify=broker.ca_file
        ) as stranger,
        pytest.raises(ClientAuthenticationError, match="claim is empty or token is invalid"),
    ):
        stranger.create_queue("secret")


def test_what_was_made_is_there_after_a_restart(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        options: dict[str, Any] = {"connection_verify": broker.ca_file}
        with ServiceBusAdministrationClient.from_connection_string(broker.connection_string, **options) as client:
            rules = [AuthorizationRule(rights=["Send"], key_name="kept")]
            client.create_queue("lasting", user_metadata="kept", authorization_rules=rules)
            kept = [rule.primary_key for rule in client.get_queue("lasting").authorization_rules or []]
            created = client.get_queue_runtime_properties("lasting").created_at_utc
            client.create_topic("t")
            client.create_subscription("t", "s")
            client.create_rule("t", "s", "r", filter=SqlRuleFilter("a = 1"))
        broker.stop()
        broker.start()
        with ServiceBusAdministrationClient.from_connection_string(broker.connection_string, **options) as client:
            assert client.get_queue("lasting").user_metadata == "kept"
            assert [rule.primary_key for rule in client.get_queue("lasting").authorization_rules or []] == kept != []
            assert client.get_queue_runtime_properties("lasting").created_at_utc == created
            assert [rule.name for rule in client.list_rules("t", "s")] == ["$Default", "r"]


def test_javascript_makes_reads_changes_and_deletes(node: Node) -> None:
    made = node("createQueue", "js/queue", {"lockDuration": "PT30S", "userMetadata": "noted"})
    assert (made["name"], made["lockDuration"]) == ("js/queue", "PT30S")
    read = node("getQueue", "js/queue")
    assert (read["name"], read["userMetadata"]) == ("js/queue", "noted")
    read["maxDeliveryCount"] = 4
    assert node("updateQueue", read)["maxDeliveryCount"] == 4
    assert node("getQueueRuntimeProperties", "js/queue")["totalMessageCount"] == 0
    for name in ("js/b", "js/c"):
        node("createQueue", name)
    assert [queue["name"] for queue in node("listQueues")] == ["js/b", "js/c", "js/queue"]
    for name in ("js/b", "js/c", "js/queue"):
        node("deleteQueue", name)
    assert node("queueExists", "js/queue") is False
    assert node("getNamespaceProperties")["messagingSku"] == "Standard"


def test_javascript_with_shared_access_rules(node: Node) -> None:
    rule = {"claimType": "SharedAccessKey", "accessRights": ["Manage", "Send", "Listen"], "keyName": "all"}
    rules = [{**rule, "primaryKey": KEY, "secondaryKey": KEY}, {**rule, "keyName": "s", "accessRights": ["Send"]}]
    node("createQueue", "js-ruled", {"authorizationRules": rules})
    whole, send = node("getQueue", "js-ruled")["authorizationRules"]
    assert whole == rules[0]
    assert (send["keyName"], send["accessRights"], len(send["primaryKey"])) == ("s", ["Send"], 44)
    queue = node("getQueue", "js-ruled")
    queue["authorizationRules"] = [send]
    assert node("updateQueue", queue)["authorizationRules"] == [send]
    del queue["authorizationRules"]
    assert node("updateQueue", queue)["authorizationRules"] == [send]
    node("deleteQueue", "js-ruled")


def test_javascript_with_topics_and_rules(node: Node) -> None:
    node("createTopic", "js-topic")
    node("createSubscription", "js-topic", "sub")
    subscription = node("getSubscription", "js-topic", "sub")
    assert (subscription["topicName"], subscription["subscriptionName"]) == ("js-topic", "sub")
    subscription["maxDeliveryCount"] = 5
    assert node("updateSubscription", subscription)["maxDeliveryCount"] == 5
    node("createRule", "js-topic", "sub", "sql", {"sqlExpression": "n > @p", "sqlParameters": {"@p": 2}})
    node("createRule", "js-topic", "sub", "same", {"correlationId": "c", "applicationProperties": {"a": "b"}})
    rules = {rule["name"]: rule for rule in node("listRules", "js-topic", "sub")}
    assert list(rules) == ["$Default", "same", "sql"]
    assert rules["sql"]["filter"]["sqlParameters"] == {"@p": 2}
    assert rules["same"]["filter"]["applicationProperties"] == {"a": "b"}
    changed = rules["same"]
    changed["filter"] = {"sqlExpression": "1=0"}
    assert node("updateRule", "js-topic", "sub", changed)["filter"]["sqlExpression"] == "1=0"
    assert node("getTopicRuntimeProperties", "js-topic")["subscriptionCount"] == 1
    assert [each["subscriptionName"] for each in node("listSubscriptionsRuntimeProperties", "js-topic")] == ["sub"]
    target = node("createQueue", "js-target", {"autoDeleteOnIdle": "PT10M", "enablePartitioning": True})
    assert (target["autoDeleteOnIdle"], target["enablePartitioning"]) == ("PT10M", True)
    subscription = {**node("getSubscription", "js-topic", "sub"), "status": "ReceiveDisabled", "forwardTo": "js-target"}
    changed = node("updateSubscription", subscription)
    assert (changed["status"], changed["forwardTo"]) == ("ReceiveDisabled", node.address("js-target"))
    node("deleteRule", "js-topic", "sub", "sql")
    node("deleteSubscription", "js-topic", "sub")
    node("deleteTopic", "js-topic")


def test_javascript_knows_our_refusals(node: Node) -> None:
    assert node.error("getQueue", "js-missing")["code"] == "MessageEntityNotFoundError"
    node("createQueue", "js-twice")
    assert node.error("createQueue", "js-twice")["code"] == "MessageEntityAlreadyExistsError"
    refused = node.error("createQueue", "js-forwards", {"forwardTo": "js-nowhere"})
    assert "auto forwarding destination entity does not exist" in refused["message"]
    node("deleteQueue", "js-twice")
