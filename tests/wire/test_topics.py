"""Topics, subscriptions and their rules, with both Python SDKs and JavaScript.

The Python SDK has no rule manager: its rules go through the administration API. JavaScript's speaks `$management`.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import (
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiveMode,
    ServiceBusReceiver,
    ServiceBusSender,
    ServiceBusSubQueue,
)
from azure.servicebus.exceptions import ServiceBusAuthenticationError, ServiceBusError

from spillway.amqp.types import Int, Timestamp
from spillway.client import OutgoingMessage
from spillway.model.rule_values import rule_value
from spillway.model.rules import CorrelationFilter, FalseFilter, Rule, RuleFilter, SqlAction, SqlFilter
from tests.tools.js import JavaScriptError
from tests.tools.missing import assert_missing
from tests.wire.live import LiveBroker
from tests.wire.sdk import ASYNCIO, SYNC, WAIT_S, Closing, JsClient, PythonSdk, known, take, take_one, text_of

DELETE = ServiceBusReceiveMode.RECEIVE_AND_DELETE
MINUTE = timedelta(minutes=1)


class TopicSdk(PythonSdk):
    """The Python SDK with its handlers for topics."""

    def topic_sender(self, topic: str) -> ServiceBusSender:
        sender = self.client.get_topic_sender(topic)
        self._made.insert(0, sender)
        return sender.__enter__()

    def subscription_receiver(self, topic: str, name: str, **options: Any) -> ServiceBusReceiver:
        receiver = self.client.get_subscription_receiver(topic, name, **options)
        self._made.insert(0, receiver)
        return receiver.__enter__()


@pytest.fixture(params=[SYNC, ASYNCIO])
def sdk(request: pytest.FixtureRequest, live: LiveBroker, closing: Closing) -> Iterator[TopicSdk]:
    made = TopicSdk(request.param, live.connection_string, closing)
    yield made
    made.close()


@pytest.fixture
def topic(live: LiveBroker) -> str:
    return live.topic()


def rule(wanted: RuleFilter | str, action: str | None = None, name: str = "r") -> Rule:
    made = SqlFilter(wanted) if isinstance(wanted, str) else wanted
    return Rule(name, made, None if action is None else SqlAction(action), 0)


def values_of(message: ServiceBusReceivedMessage) -> dict[Any, Any]:
    """Application properties as texts where they are."""
    found: dict[Any, Any] = {}
    for name, value in (message.application_properties or {}).items():
        key = name.decode() if isinstance(name, bytes) else name
        found[key] = value.decode() if isinstance(value, bytes) else value
    return found


# -- messages ---------------------------------------------------------------------------------------------------------


def test_a_message_to_a_topic_comes_from_every_subscription(live: LiveBroker, sdk: TopicSdk, topic: str) -> None:
    paths = [live.subscription(topic, name) for name in ("one", "two")]
    sdk.topic_sender(topic).send_messages(ServiceBusMessage("news", subject="s", application_properties={"n": 5}))
    for name in ("one", "two"):
        receiver = sdk.subscription_receiver(topic, name)
        message = take_one(receiver)
        assert (text_of(message), message.subject, message.application_properties) == ("news", "s", {b"n": 5})
        assert (message.sequence_number, message.enqueued_sequence_number) == (1, 1)
        receiver.complete_message(message)
    assert [live.bodies(path) for path in paths] == [[], []]


def test_a_batch_to_a_topic_is_copied_message_by_message(live: LiveBroker, sdk: TopicSdk, topic: str) -> None:
    live.subscription(topic, "even", rule("n % 2 = 0"))
    sender = sdk.topic_sender(topic)
    batch = sender.create_message_batch()
    for number in range(6):
        batch.add_message(ServiceBusMessage(str(number), application_properties={"n": number}))
    sender.send_messages(batch)
    receiver = sdk.subscription_receiver(topic, "even", receive_mode=DELETE)
    found = take(receiver, 3)
    assert [text_of(message) for message in found] == ["0", "2", "4"]
    assert [message.sequence_number for message in found] == [1, 2, 3]
    assert [message.enqueued_sequence_number for message in found] == [1, 3, 5]


def test_what_no_subscription_wants_is_accepted_and_dropped(live: LiveBroker, sdk: TopicSdk, topic: str) -> None:
    sdk.topic_sender(topic).send_messages(ServiceBusMessage("nobody is there"))
    path = live.subscription(topic, "s", rule(FalseFilter()))
    sdk.topic_sender(topic).send_messages(ServiceBusMessage("nobody wants it"))
    assert live.bodies(path) == []


def test_javascript_publishes_and_subscribes(live: LiveBroker, js: JsClient, topic: str) -> None:
    path = live.subscription(topic, "s")
    js("send", queue=topic, message={"body": "news", "subject": "s", "applicationProperties": {"n": 5}})
    (message,) = js("receive", topic=topic, subscription="s", waitMs=WAIT_S * 1000)
    assert (message["body"], message["subject"], message["applicationProperties"]) == ("news", "s", {"n": 5})
    assert (message["sequenceNumber"], message["enqueuedSequenceNumber"]) == (1, 1)
    js("complete", lockToken=message["lockToken"])
    assert live.bodies(path) == []


# -- filters ----------------------------------------------------------------------------------------------------------

COLOURS = [
    ServiceBusMessage("red", subject="paint", application_properties={"Color": "red", "Size": 3, "hot": True}),
    ServiceBusMessage("blue", correlation_id="c-1", application_properties={"Color": "blue", "Size": 2.5}),
    ServiceBusMessage("none", to="home", message_id="id-3", session_id="x", content_type="text/plain"),
]

FILTERS: list[tuple[RuleFilter | str, list[str]]] = [
    ("color = 'red'", ["red"]),
    ("color <> 'red'", ["blue"]),
    ("NOT (color = 'red')", ["blue"]),
    ("color IS NULL", ["none"]),
    ("NOT EXISTS(color)", ["none"]),
    ("size > 2 AND size < 3", ["blue"]),
    ("size * 2 = 6 OR sys.To = 'home'", ["red", "none"]),
    ("color LIKE '%e%'", ["red", "blue"]),
    ("color IN ('red', 'green')", ["red"]),
    ("hot = TRUE", ["red"]),
    ("sys.Label = 'paint'", ["red"]),
    ("sys.CorrelationId = 'c-1'", ["blue"]),
    ("sys.MessageId LIKE 'id-%' AND sys.SessionId = 'x' AND sys.ContentType = 'text/plain'", ["none"]),
    ("sys.EnqueuedTimeUtc IS NOT NULL AND sys.SequenceNumber >= 2", ["blue", "none"]),
    ("property('Color') = 'blue'", ["blue"]),
    (CorrelationFilter(label="paint"), ["red"]),
    (CorrelationFilter(correlation_id="c-1"), ["blue"]),
    (CorrelationFilter(to="home", message_id="id-3", session_id="x", content_type="text/plain"), ["none"]),
    (CorrelationFilter(properties={"color": rule_value("red"), "size": rule_value(3)}), ["red"]),
    (CorrelationFilter(label="paint", properties={"color": rule_value("blue")}), []),
]


def test_filters_choose_by_the_properties_that_python_sends(live: LiveBroker, sdk: TopicSdk, topic: str) -> None:
    paths = [
        live.subscription(topic, f"s{number}", rule(wanted, name="r")) for number, (wanted, _) in enumerate(FILTERS)
    ]
    sender = sdk.topic_sender(topic)
    for message in COLOURS:
        sender.send_messages(message)
    assert [live.bodies(path) for path in paths] == [expected for _, expected in FILTERS]


def test_filters_choose_by_the_properties_that_javascript_sends(live: LiveBroker, js: JsClient, topic: str) -> None:
    filters: list[tuple[RuleFilter | str, int]] = [
        ("text = 'a' AND whole = 5 AND part > 0.4 AND yes = TRUE", 1),
        ("at < sys.EnqueuedTimeUtc", 1),
        ("sys.Label = 'l' AND sys.ReplyTo = 'r' AND sys.PartitionKey = 'p'", 1),
        ("sys.TimeToLive IS NULL", 0),
        (CorrelationFilter(label="l", reply_to="r", properties={"whole": rule_value(5), "part": rule_value(0.5)}), 1),
        (CorrelationFilter(properties={"text": rule_value("b")}), 0),
    ]
    paths = [
        live.subscription(topic, f"s{number}", rule(wanted, name="r")) for number, (wanted, _) in enumerate(filters)
    ]
    at = datetime(2020, 1, 1, tzinfo=UTC)
    properties = {"text": "a", "whole": 5, "part": 0.5, "yes": True, "at": at}
    message = {"body": "x", "subject": "l", "replyTo": "r", "partitionKey": "p", "timeToLive": 3_600_000}
    js("send", queue=topic, message={**message, "applicationProperties": properties})
    assert [len(live.bodies(path)) for path in paths] == [count for _, count in filters]


def test_a_filter_that_cannot_be_evaluated_dead_letters_the_message(
    live: LiveBroker, sdk: TopicSdk, topic: str
) -> None:
    live.subscription(topic, "s", rule("a / b > 1"))
    sdk.topic_sender(topic).send_messages(ServiceBusMessage("x", application_properties={"a": 1, "b": 0}))
    message = take_one(sdk.subscription_receiver(topic, "s", sub_queue=ServiceBusSubQueue.DEAD_LETTER))
    assert message.dead_letter_reason == "FilterEvaluationException"
    assert "divided by zero" in str(message.dead_letter_error_description)


# -- actions ----------------------------------------------------------------------------------------------------------

ACTION = (
    "SET color = 'blue'; SET size = size + 1; SET made = 'here'; REMOVE gone;"
    " SET sys.Label = 'new'; SET sys.ReplyTo = 'me'; SET sys.CorrelationId = sys.MessageId; REMOVE sys.To"
)


def test_an_action_changes_the_copy_that_python_receives(live: LiveBroker, sdk: TopicSdk, topic: str) -> None:
    live.subscription(topic, "plain")
    live.subscription(topic, "changed", rule("1=1", ACTION, "repaint"))
    properties: dict[str | bytes, Any] = {"Color": "red", "size": 4, "gone": "x", "kept": 1.5}
    sent = ServiceBusMessage("x", message_id="m", subject="old", to="there", application_properties=properties)
    sdk.topic_sender(topic).send_messages(sent)
    plain = take_one(sdk.subscription_receiver(topic, "plain"))
    assert values_of(plain) == properties
    receiver = sdk.subscription_receiver(topic, "changed")
    changed = take_one(receiver)
    assert values_of(changed) == {
        "Color": "blue",
        "size": 5,
        "kept": 1.5,
        "made": "here",
        "RuleName": "repaint",
    }
    assert (changed.subject, changed.reply_to, changed.correlation_id, changed.to) == ("new", "me", "m", None)
    assert (changed.message_id, text_of(changed)) == ("m", "x")
    receiver.complete_message(changed)


def test_an_action_changes_the_copy_that_javascript_receives(live: LiveBroker, js: JsClient, topic: str) -> None:
    live.subscription(topic, "s", rule("1=1", ACTION + "; SET id = newid(); SET sys.MessageId = 'other'", "repaint"))
    properties = {"Color": "red", "size": 4, "gone": "x"}
    js("send", queue=topic, message={"body": {"a": [1]}, "messageId": "m", "applicationProperties": properties})
    (message,) = js("receive", topic=topic, subscription="s", waitMs=WAIT_S * 1000)
    found = message["applicationProperties"]
    assert len(found.pop("id")) > 0
    assert found == {"Color": "blue", "size": 5, "made": "here", "RuleName": "repaint"}
    assert (message["body"], message["messageId"], message["subject"]) == ({"a": [1]}, "other", "new")
    js("complete", lockToken=message["lockToken"])


def test_each_rule_with_an_action_adds_a_copy_and_those_without_share_one(
    live: LiveBroker, sdk: TopicSdk, topic: str
) -> None:
    rules = [
        rule("1=1", name="a"),
        rule("1=1", name="b"),
        rule("1=1", "SET x = 1", "c"),
        rule("1=1", "SET x = 2", "d"),
    ]
    live.subscription(topic, "s", *rules)
    sdk.topic_sender(topic).send_messages(ServiceBusMessage("x"))
    found = take(sdk.subscription_receiver(topic, "s", receive_mode=DELETE), 3)
    assert sorted(str(values_of(message).get("RuleName")) for message in found) == ["None", "c", "d"]
    assert [message.sequence_number for message in found] == [1, 2, 3]


# -- the life of a copy -----------------------------------------------------------------------------------------------


def test_a_dead_letter_of_a_subscription_comes_from_its_own_queue(live: LiveBroker, sdk: TopicSdk, topic: str) -> None:
    path = live.subscription(topic, "s")
    other = live.subscription(topic, "other")
    sdk.topic_sender(topic).send_messages(ServiceBusMessage("x"))
    receiver = sdk.subscription_receiver(topic, "s")
    receiver.dead_letter_message(take_one(receiver), reason="bad", error_description="very")
    dead = sdk.subscription_receiver(topic, "s", sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    message = take_one(dead)
    assert (message.dead_letter_reason, message.dead_letter_error_description) == ("bad", "very")
    assert (message.dead_letter_source, text_of(message)) == (path, "x")
    dead.complete_message(message)
    assert live.bodies(other) == ["x"]


def test_too_many_deliveries_of_a_copy_dead_letter_it_with_javascript(
    live: LiveBroker, js: JsClient, topic: str
) -> None:
    path = live.subscription(topic, "s", max_delivery_count=1)
    js("send", queue=topic, message={"body": "x"})
    (message,) = js("receive", topic=topic, subscription="s", waitMs=WAIT_S * 1000)
    js("abandon", lockToken=message["lockToken"])
    (dead,) = js("receive", topic=topic, subscription="s", subQueue="deadLetter", waitMs=WAIT_S * 1000)
    assert (dead["deadLetterReason"], dead["deadLetterSource"]) == ("MaxDeliveryCountExceeded", path)
    js("complete", lockToken=dead["lockToken"])
    assert live.dead_letters(path) == []


def test_copies_are_peeked_deferred_and_renewed_by_themselves(live: LiveBroker, sdk: TopicSdk, topic: str) -> None:
    live.subscription(topic, "s")
    sdk.topic_sender(topic).send_messages(ServiceBusMessage("x"))
    receiver = sdk.subscription_receiver(topic, "s")
    (seen,) = receiver.peek_messages()
    assert text_of(seen) == "x"
    message = take_one(receiver)
    before = known(message.locked_until_utc)
    live.advance(10)
    assert known(receiver.renew_message_lock(message)) > before
    receiver.defer_message(message)
    (deferred,) = receiver.receive_deferred_messages([known(message.sequence_number)])
    receiver.complete_message(deferred)
    assert receiver.peek_messages() == []


def test_a_message_scheduled_to_a_topic_is_published_when_it_is_due(
    live: LiveBroker, sdk: TopicSdk, topic: str
) -> None:
    path = live.subscription(topic, "s", rule("color = 'red'"))
    sender = sdk.topic_sender(topic)
    due = datetime.fromtimestamp(live.server.clock.now_ms() / 1000, UTC) + MINUTE
    messages = [ServiceBusMessage(color, application_properties={"color": color}) for color in ("red", "blue")]
    assert sender.schedule_messages(messages, due) == [1, 2]
    cancelled = sender.schedule_messages(ServiceBusMessage("no", application_properties={"color": "red"}), due)
    sender.cancel_scheduled_messages(cancelled)
    assert live.bodies(path) == []
    live.advance(61)
    receiver = sdk.subscription_receiver(topic, "s")
    message = take_one(receiver)
    assert (text_of(message), message.enqueued_sequence_number) == ("red", 1)
    receiver.complete_message(message)
    assert live.bodies(path) == []


def test_a_message_scheduled_to_a_topic_with_javascript(live: LiveBroker, js: JsClient, topic: str) -> None:
    path = live.subscription(topic, "s")
    due = datetime.fromtimestamp(live.server.clock.now_ms() / 1000, UTC) + MINUTE
    assert js("schedule", queue=topic, messages=[{"body": "later"}], at=due) == [1]
    assert live.bodies(path) == []
    live.advance(61)
    (message,) = js("receive", topic=topic, subscription="s", waitMs=WAIT_S * 1000)
    assert message["body"] == "later"
    js("complete", lockToken=message["lockToken"])


# -- what is refused --------------------------------------------------------------------------------------------------


def test_a_missing_subscription_is_named(live: LiveBroker, sdk: TopicSdk, topic: str) -> None:
    with pytest.raises(ServiceBusAuthenticationError) as caught:
        sdk.subscription_receiver(topic, "no").receive_messages(max_wait_time=5)
    assert_missing(caught.value, f"{topic}/Subscriptions/no")


def test_a_missing_subscription_with_javascript(js: JsClient, topic: str) -> None:
    with pytest.raises(JavaScriptError) as caught:
        js("receive", topic=topic, subscription="no")
    assert caught.value.code == "MessagingEntityNotFound"


def test_nobody_receives_from_a_topic(sdk: TopicSdk, topic: str) -> None:
    with pytest.raises(ServiceBusError, match="receive from one of its subscriptions"):
        sdk.receiver(topic).receive_messages(max_wait_time=5)


def test_nobody_sends_to_a_subscription(live: LiveBroker, sdk: TopicSdk, topic: str) -> None:
    path = live.subscription(topic, "s")
    with pytest.raises(ServiceBusError, match=f"send to its topic, '{topic}'"):
        sdk.sender(path).send_messages(ServiceBusMessage("x"))


# -- rules over $management -------------------------------------------------------------------------------------------


def test_the_rule_manager_reads_every_kind_of_filter(live: LiveBroker, js: JsClient, topic: str) -> None:
    correlation = CorrelationFilter("c", "m", "t", "r", "l", "s", "rs", "ct")
    correlation.properties = {"text": rule_value("x"), "n": rule_value(5), "part": rule_value(0.5)}
    rules = [
        rule("a = 1", "SET b = 2", "sql"),
        rule(FalseFilter(), name="never"),
        rule(correlation, name="correlation"),
        rule(CorrelationFilter(label="only"), name="label"),
    ]
    live.subscription(topic, "all")
    live.subscription(topic, "s", *rules)
    assert js("rules", topic=topic, subscription="all") == [
        {"name": "$Default", "filter": {"sqlExpression": "1=1"}, "action": {}}
    ]
    found = {one["name"]: one for one in js("rules", topic=topic, subscription="s")}
    assert list(found) == ["correlation", "label", "never", "sql"]
    assert found["sql"]["filter"] == {"sqlExpression": "a = 1"}
    assert found["sql"]["action"] == {"sqlExpression": "SET b = 2"}
    assert found["never"]["filter"] == {"sqlExpression": "1=0"}
    assert found["correlation"]["filter"] == {
        "correlationId": "c",
        "messageId": "m",
        "to": "t",
        "replyTo": "r",
        "subject": "l",
        "sessionId": "s",
        "replyToSessionId": "rs",
        "contentType": "ct",
        "applicationProperties": {"text": "x", "n": 5, "part": 0.5},
    }
    label = {name: value for name, value in found["label"]["filter"].items() if value is not None}
    assert label == {"subject": "only", "applicationProperties": {}}


def test_the_rule_manager_pages_until_204(live: LiveBroker, js: JsClient, topic: str) -> None:
    path = live.subscription(topic, "s", *[rule("1=1", name=f"r{number}") for number in range(5)])
    with live.tap() as tap:
        listener = JsClient(js.javascript, live.connection_string)
        found = listener("rules", topic=topic, subscription="s", pageSize=2)
        listener.close_later()
    assert [one["name"] for one in found] == [f"r{number}" for number in range(5)]
    answers = [answer for spoken in tap.connections for answer in spoken.requests(False, f"{path}/$management")]
    assert [answer.named["statusCode"] for answer in answers] == [200, 200, 200, 204]
    asked = [request for spoken in tap.connections for request in spoken.requests(True, f"{path}/$management")]
    assert [request.body for request in asked] == [{"top": Int(2), "skip": Int(skip)} for skip in (0, 2, 4, 5)]


def test_the_rule_manager_adds_rules_that_count_at_once(live: LiveBroker, js: JsClient, topic: str) -> None:
    path = live.subscription(topic, "s")
    js("deleteRule", topic=topic, subscription="s", name="$Default")
    js("createRule", topic=topic, subscription="s", name="sql", filter={"sqlExpression": "color = 'red'"})
    properties = {"n": 5, "yes": True, "at": datetime(2020, 1, 1, tzinfo=UTC)}
    wanted = {"subject": "late", "applicationProperties": properties}
    js("createRule", topic=topic, subscription="s", name="correlation", filter=wanted)
    action = {"sqlExpression": "SET was = color"}
    js("createRule", topic=topic, subscription="s", name="action", filter={"sqlExpression": "n = 1"}, action=action)
    found = js("rules", topic=topic, subscription="s")
    assert [one["name"] for one in found] == ["action", "correlation", "sql"]
    assert found[1]["filter"]["applicationProperties"] == properties
    assert [one["action"] for one in found] == [action, {}, {}]
    at = Timestamp(1_577_836_800_000)
    live.send(
        topic,
        OutgoingMessage("red", application_properties={"color": "red"}),
        OutgoingMessage("late", subject="late", application_properties={"n": 5, "yes": True, "at": at}),
        OutgoingMessage("early", application_properties={"n": 5, "yes": True, "at": at}),
        OutgoingMessage("one", application_properties={"n": 1, "color": "green"}),
    )
    assert live.bodies(path) == ["red", "late", "one"]
    assert live.peek(path)[2].application_properties == {
        "n": 1,
        "color": "green",
        "was": "green",
        "RuleName": "action",
    }


def test_a_removed_rule_counts_no_more(live: LiveBroker, js: JsClient, topic: str) -> None:
    path = live.subscription(topic, "s", rule("1=1", name="a"), rule("1=0", name="b"))
    js("deleteRule", topic=topic, subscription="s", name="a")
    live.send(topic, "x")
    assert live.bodies(path) == []
    assert [one["name"] for one in js("rules", topic=topic, subscription="s")] == ["b"]


def test_what_the_rule_manager_does_wrong_it_is_told(live: LiveBroker, js: JsClient, topic: str) -> None:
    live.subscription(topic, "s")
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("createRule", {"name": "$Default", "filter": {"sqlExpression": "1=1"}}, "MessagingEntityAlreadyExists"),
        ("createRule", {"name": "x", "filter": {"sqlExpression": "a = = 1"}}, "GeneralError"),
        ("createRule", {"name": "x/y", "filter": {"sqlExpression": "1=1"}}, "GeneralError"),
        ("deleteRule", {"name": "nobody"}, "MessagingEntityNotFound"),
    ]
    for command, arguments, code in cases:
        with pytest.raises(JavaScriptError) as caught:
            js(command, topic=topic, subscription="s", **arguments)
        assert caught.value.code == code, caught.value
        assert "TrackingId:" in caught.value.message
    with pytest.raises(JavaScriptError) as caught:
        js("createRule", topic=topic, subscription="no", name="x", filter={"sqlExpression": "1=1"})
    assert caught.value.code == "MessagingEntityNotFound"
    assert [one["name"] for one in js("rules", topic=topic, subscription="s")] == ["$Default"]


def test_a_message_without_a_session_id_is_a_dead_letter_of_the_subscription_with_sessions(
    sdk: TopicSdk, topic: str, live: LiveBroker
) -> None:
    """Once it ended the process, and scheduled it did so at every start."""
    live.subscription(topic, "sessions", requires_session=True)
    live.subscription(topic, "plain")
    sender = sdk.topic_sender(topic)
    sender.send_messages(ServiceBusMessage("now"))
    sender.schedule_messages(ServiceBusMessage("later"), datetime.now(UTC) + MINUTE)
    live.advance(61)
    receiver = sdk.subscription_receiver(topic, "plain", receive_mode=DELETE)
    assert [text_of(take_one(receiver)) for _ in range(2)] == ["now", "later"]
    dead = sdk.subscription_receiver(topic, "sessions", sub_queue=ServiceBusSubQueue.DEAD_LETTER, receive_mode=DELETE)
    for text in ("now", "later"):
        message = take_one(dead)
        assert (text_of(message), message.dead_letter_reason) == (text, "Session ID is null.")
