"""Topics and subscriptions through a peer with the real core behind it: copies, rules, and who may change them."""

import uuid

import pytest

from spillway.amqp.codec import DecodeBudget
from spillway.amqp.events import DispositionReceived, LinkAttached, TransferReceived
from spillway.amqp.link import Link
from spillway.amqp.message import (
    Properties,
    decode_data_bodies,
    decode_map,
    encode_data,
    encode_message,
    split_sections,
)
from spillway.amqp.performatives import ACCEPTED, Attach, Modified, Rejected
from spillway.amqp.types import Described, Int, Symbol, Timestamp
from spillway.broker.commands import AddRule, Command, CreateEntity, ListRules, RemoveRule
from spillway.broker.effects import Failed, Rules
from spillway.broker.namespace import Namespace
from spillway.dialect.nodes import BROWSING_MAX
from spillway.dialect.outbox import Outbox
from spillway.dialect.properties import EncodedAccess
from spillway.dialect.rights import LISTEN, SEND
from spillway.model import limits
from spillway.model.entity import SUBSCRIPTION, TOPIC, EntitySettings
from spillway.model.errors import NotAllowed
from spillway.model.rule_values import RuleValue
from spillway.model.rules import CorrelationFilter, Rule, SqlAction, SqlFilter, TrueFilter
from spillway.testing.core import CoreHarness
from tests.dialect.visit import NOW_MS, Answer, Visit, Whole, sas_token

ADD = "com.microsoft:add-rule"
LIST = "com.microsoft:enumerate-rules"
REMOVE = "com.microsoft:remove-rule"
SCHEDULE = "com.microsoft:schedule-message"
NODE = "t/Subscriptions/s/$management"
SQL: dict[object, object] = {"sql-filter": {"expression": "color = 'red'"}}


class SeeingCore(CoreHarness):
    def make_namespace(self, seed: bytes) -> Namespace:
        return Namespace("test", self.journal.recover(), seed, EncodedAccess())


class News(Whole):
    """A topic `t`; subscriptions are made as they are needed."""

    def __init__(self) -> None:
        super().__init__()
        self.core = SeeingCore(NOW_MS)
        self.peer.missing.directory = self.core.namespace
        self.core.apply(CreateEntity(1_000_000, TOPIC, "t", EntitySettings()))
        assert self.put_token(name="sb://localhost:5672/t").properties["status-code"] == 202

    def subscription(self, name: str, *rules: Rule) -> str:
        settings = EntitySettings()
        settings.rules = list(rules)
        path = f"t/Subscriptions/{name}"
        self.core.apply(CreateEntity(1_000_001, SUBSCRIPTION, path, settings))
        return path

    def publish(self, values: dict[object, object], body: bytes = b"body", **properties: object) -> None:
        made = Properties(message_id="m1")
        for name, value in properties.items():
            setattr(made, name, value)
        raw = encode_message(properties=made, application_properties=values, body=encode_data(body))
        self.open_sender("t").send(b"\x01", raw, False)
        self.run()
        assert self.take(DispositionReceived).state == ACCEPTED

    def received(self, path: str) -> list[dict[object, object]]:
        """The application properties of what comes from a subscription."""
        self.open_receiver(path, deletes=True, credit=10)
        return [values_of(event.payload) for event in self.deliveries()]

    def manage(self, operation: str, body: object, node: str = NODE) -> Answer:
        out, back = self.pair(node)
        self.ask(out, {"operation": operation}, body, reply_to=node)
        self.run()
        answer = self.answer()
        out.detach()
        back.detach()
        self.run()
        return answer


def values_of(payload: bytes) -> dict[object, object]:
    return decode_map(payload, split_sections(payload, DecodeBudget()).application_properties)


def annotations_of(payload: bytes) -> dict[object, object]:
    return decode_map(payload, split_sections(payload, DecodeBudget()).message_annotations)


def body_of(payload: bytes) -> bytes:
    ((at, end),) = decode_data_bodies(payload, split_sections(payload, DecodeBudget()))
    return payload[at:end]


def rule(expression: str, action: str | None = None, name: str = "r") -> Rule:
    return Rule(name, SqlFilter(expression), None if action is None else SqlAction(action), NOW_MS)


# -- messages ---------------------------------------------------------------------------------------------------------


def test_each_subscription_gets_what_its_rules_want() -> None:
    news = News()
    everything = news.subscription("all")
    red = news.subscription("red", rule("Color = 'red' AND Size > 2"))
    late = news.subscription("labelled", Rule("c", CorrelationFilter(label="late"), None, NOW_MS))
    news.publish({"color": "red", "size": Int(3)})
    news.publish({"color": "blue", "size": Int(3)}, subject="late")
    assert len(news.received(everything)) == 2
    assert news.received(red) == [{"color": "red", "size": 3}]
    assert news.received(late) == [{"color": "blue", "size": 3}]


def test_a_correlation_filter_compares_numbers_by_value() -> None:
    news = News()
    wanted = CorrelationFilter(properties={"n": RuleValue("int", "5")})
    path = news.subscription("s", Rule("c", wanted, None, NOW_MS))
    news.publish({"n": 5.0})
    news.publish({"n": "5"})
    assert news.received(path) == [{"n": 5.0}]


def test_an_action_changes_the_copy_of_its_own_subscription() -> None:
    news = News()
    plain = news.subscription("plain")
    changed = news.subscription("changed", rule("1=1", "SET color = 'blue'; SET sys.Label = sys.MessageId"))
    news.publish({"color": "red"})
    assert news.received(plain) == [{"color": "red"}]
    assert news.received(changed) == [{"color": "blue", "RuleName": "r"}]


def test_a_message_without_a_subscription_that_wants_it_is_accepted_and_dropped() -> None:
    news = News()
    path = news.subscription("s", rule("1=0"))
    news.publish({})
    assert news.received(path) == []


def test_a_copy_has_its_own_number_and_the_topics_beside_it() -> None:
    news = News()
    path = news.subscription("s", rule("b = 1"))
    news.publish({"b": 2})
    news.publish({"b": 1})
    news.open_receiver(path, credit=1)
    (event,) = news.deliveries()
    annotations = annotations_of(event.payload)
    assert annotations["x-opt-sequence-number"] == 1
    assert annotations["x-opt-enqueue-sequence-number"] == 2
    assert body_of(event.payload) == b"body"


def test_a_dead_letter_of_a_subscription_is_received_from_its_own_queue() -> None:
    news = News()
    path = news.subscription("s")
    news.publish({"a": 1})
    receiver = news.open_receiver(path, credit=1)
    (event,) = news.deliveries()
    error = Rejected(None)
    receiver.session.dispose(event.delivery_id, error)
    news.run()
    news.open_receiver("T/subscriptions/S/$deadletterqueue", credit=1)
    (dead,) = news.deliveries()
    assert annotations_of(dead.payload)["x-opt-deadletter-source"] == path


def test_a_filter_that_cannot_be_evaluated_dead_letters_the_message() -> None:
    news = News()
    path = news.subscription("s", rule("a / b > 1"))
    news.publish({"a": 1, "b": 0})
    assert news.received(path) == []
    (values,) = news.received(path + "/$DeadLetterQueue")
    assert values["DeadLetterReason"] == "FilterEvaluationException"
    assert "divided by zero" in str(values["DeadLetterErrorDescription"])


def test_a_message_scheduled_to_a_topic_is_published_when_it_is_due() -> None:
    news = News()
    path = news.subscription("s", rule("color = 'red' AND sys.ScheduledEnqueueTimeUtc IS NOT NULL"))
    raw = encode_message(
        message_annotations={Symbol("x-opt-scheduled-enqueue-time"): Timestamp(NOW_MS + 60_000)},
        properties=Properties(message_id="m"),
        application_properties={"color": "red"},
        body=encode_data(b"later"),
    )
    answer = news.manage(SCHEDULE, {"messages": [{"message-id": "m", "message": raw}]}, "t/$management")
    assert answer.properties["statusCode"] == 200
    assert news.received(path) == []
    news.pass_time(60_000)
    assert [values_of(event.payload) for event in news.deliveries()] == [{"color": "red"}]


def test_abandoned_with_changes_the_copy_alone_has_them() -> None:
    news = News()
    first, second = news.subscription("s1"), news.subscription("s2")
    news.publish({"a": 1})
    receiver = news.open_receiver(first, credit=1)
    (event,) = news.deliveries()
    receiver.session.dispose(event.delivery_id, Modified(True, False, {Symbol("a"): Int(2)}))
    news.run()
    receiver.grant(1)
    (again,) = news.deliveries()
    assert values_of(again.payload) == {"a": 2}
    assert news.received(second) == [{"a": 1}]


# -- links ------------------------------------------------------------------------------------------------------------


def refusal(news: News, link: Link) -> tuple[str, str]:
    news.run()
    return news.refusal(link)


def test_nobody_receives_from_a_topic_or_sends_to_a_subscription() -> None:
    news = News()
    path = news.subscription("s")
    condition, text = refusal(news, news.receiver("t"))
    assert condition == "amqp:not-allowed"
    assert "receive from one of its subscriptions" in text
    condition, text = refusal(news, news.sender(path))
    assert condition == "amqp:not-allowed"
    assert "send to its topic, 't'" in text


def test_a_subscription_that_is_missing_is_named() -> None:
    news = News()
    condition, text = refusal(news, news.receiver("t/subscriptions/nobody"))
    assert condition == "amqp:not-found"
    assert "The messaging entity 'sb://localhost/t/Subscriptions/nobody' could not be found" in text
    condition, text = refusal(news, news.receiver("t/subscriptions/nobody/$management", target="x"))
    assert condition == "amqp:not-found"


def said_type(news: News, link: Link) -> object:
    """What the broker called the entity when it answered the attach."""
    news.run()
    event = news.take(LinkAttached)
    assert event.link is link
    attach = link.attach
    assert isinstance(attach, Attach)
    assert attach.properties is not None
    return attach.properties[Symbol("com.microsoft:entity-type")]


def test_an_attach_is_told_what_kind_of_entity_it_is() -> None:
    news = News()
    news.core.apply(CreateEntity(1_000_000, "queue", "q", EntitySettings()))
    path = news.subscription("s")
    news.put_token()
    news.events.clear()
    assert [said_type(news, news.sender(address)) for address in ("q", "t", "q/$management", "t/$management")] == [
        0,
        1,
        0,
        1,
    ]
    receivers = ["q", "q/$DeadLetterQueue", path, path + "/$DeadLetterQueue"]
    assert [said_type(news, news.receiver(address)) for address in receivers] == [0, 0, 2, 2]
    assert said_type(news, news.sender(path + "/$management")) == 2


def test_a_token_for_a_topic_covers_its_subscriptions_and_not_the_other_way_round() -> None:
    news = News()
    news.subscription("s")
    assert news.receiver("t/Subscriptions/s") is not None
    other = Visit(names=news.directory)
    other.directory.keys |= {"t", "t/subscriptions/s"}
    assert other.put_token(name="sb://localhost:5672/t/Subscriptions/s").properties["status-code"] == 202
    other.events.clear()
    link = other.sender("t")
    condition, _ = other.refusal(link)
    assert condition == "amqp:unauthorized-access"


# -- rules ------------------------------------------------------------------------------------------------------------


def test_8_11_a_rule_is_added_with_the_time_it_was() -> None:
    news = News()
    path = news.subscription("s")
    answer = news.manage(ADD, {"rule-name": "red", "rule-description": SQL})
    assert (answer.properties["statusCode"], answer.body) == (200, {})
    news.manage(REMOVE, {"rule-name": "$Default"})
    news.publish({"color": "red"})
    news.publish({"color": "blue"})
    assert news.received(path) == [{"color": "red"}]
    (made,) = rules_of(news.manage(LIST, {"top": Int(100), "skip": Int(0)}))
    assert made[2:] == ["red", NOW_MS]


def rules_of(answer: Answer) -> list[list[object]]:
    assert answer.properties["statusCode"] == 200
    assert isinstance(answer.body, dict)
    items = answer.body["rules"]
    assert isinstance(items, list)
    found = []
    for item in items:
        description = item["rule-description"]
        assert isinstance(description, Described)
        assert isinstance(description.value, list)
        found.append(description.value)
    return found


def names_of(answer: Answer) -> list[object]:
    return [fields[2] for fields in rules_of(answer)]


def test_8_12_rules_are_listed_page_by_page_and_204_says_the_end() -> None:
    news = News()
    news.subscription("s", *[rule("1=1", name=f"r{number}") for number in range(5)])
    assert names_of(news.manage(LIST, {"top": Int(2), "skip": Int(0)})) == ["r0", "r1"]
    assert names_of(news.manage(LIST, {"top": Int(2), "skip": Int(4)})) == ["r4"]
    assert names_of(news.manage(LIST, {"top": Int(2**31 - 1), "skip": Int(0)})) == [f"r{n}" for n in range(5)]
    past = news.manage(LIST, {"top": Int(2), "skip": Int(5)})
    assert (past.properties["statusCode"], past.body) == (204, {})
    assert news.manage(LIST, {"top": Int(2), "skip": 2**62}).properties["statusCode"] == 204


def test_8_13_a_rule_is_removed_by_its_name_in_any_case() -> None:
    news = News()
    news.subscription("s")
    answer = news.manage(REMOVE, {"rule-name": "$default"})
    assert (answer.properties["statusCode"], answer.body) == (200, {})
    assert news.manage(LIST, {"top": Int(1), "skip": Int(0)}).properties["statusCode"] == 204


@pytest.mark.parametrize(
    ("operation", "body", "status", "condition", "text"),
    [
        (ADD, {"rule-name": "$Default", "rule-description": SQL}, 409, "com.microsoft:entity-already-exists", "$Def"),
        (ADD, {"rule-name": "a/b", "rule-description": SQL}, 400, "com.microsoft:argument-error", "'a/b'"),
        (
            ADD,
            {"rule-name": "x", "rule-description": {"sql-filter": {"expression": "a ="}}},
            400,
            "com.microsoft:argument-error",
            "column=4",
        ),
        (
            ADD,
            {"rule-name": "x", "rule-description": {"correlation-filter": {}}},
            400,
            "com.microsoft:argument-error",
            "at least one property",
        ),
        (
            ADD,
            {
                "rule-name": "x",
                "rule-description": {
                    "sql-filter": {"expression": "1=1"},
                    "sql-rule-action": {"expression": "SET sys.SequenceNumber = 1"},
                },
            },
            400,
            "com.microsoft:argument-error",
            "SequenceNumber",
        ),
        (ADD, {"rule-name": "x"}, 400, "com.microsoft:argument-error", "'rule-description'"),
        (ADD, "x", 400, "com.microsoft:argument-error", "'body'"),
        (ADD, None, 400, "com.microsoft:argument-error", "'body'"),
        (REMOVE, {"rule-name": "nobody"}, 404, "amqp:not-found", "could not be found"),
        (REMOVE, {}, 400, "com.microsoft:argument-error", "'rule-name'"),
        (LIST, {}, 400, "com.microsoft:argument-error", "'skip'"),
        (LIST, {"skip": Int(0)}, 400, "com.microsoft:argument-error", "'top'"),
        (LIST, {"skip": Int(-1), "top": Int(1)}, 400, "com.microsoft:argument-out-of-range", "'skip'"),
        (LIST, {"skip": Int(0), "top": Int(0)}, 400, "com.microsoft:argument-out-of-range", "'top'"),
        (LIST, {"skip": True, "top": Int(1)}, 400, "com.microsoft:argument-error", "'skip'"),
        (LIST, {"skip": "0", "top": Int(1)}, 400, "com.microsoft:argument-error", "'skip'"),
    ],
)
def test_a_refusal_says_what_is_wrong(operation: str, body: object, status: int, condition: str, text: str) -> None:
    news = News()
    news.subscription("s")
    answer = news.manage(operation, body)
    assert (answer.properties["statusCode"], answer.properties["errorCondition"]) == (status, condition)
    assert text in str(answer.properties["statusDescription"])
    assert "TrackingId:" in str(answer.properties["statusDescription"])


@pytest.mark.parametrize("node", ["t/$management", "t/Subscriptions/s/$DeadLetterQueue/$management"])
@pytest.mark.parametrize(
    ("operation", "body"),
    [
        (ADD, {"rule-name": "r", "rule-description": SQL}),
        (LIST, {"top": Int(1), "skip": Int(0)}),
        (REMOVE, {"rule-name": "r"}),
    ],
)
def test_only_a_subscription_has_rules(node: str, operation: str, body: object) -> None:
    news = News()
    news.subscription("s")
    answer = news.manage(operation, body, node)
    assert (answer.properties["statusCode"], answer.properties["errorCondition"]) == (400, "amqp:not-allowed")


@pytest.mark.parametrize(
    ("rule_name", "key", "right"), [("sender", "send-key", SEND), ("listener", "listen-key", LISTEN)]
)
@pytest.mark.parametrize(
    ("operation", "body", "kind"),
    [
        (ADD, {"rule-name": "r", "rule-description": SQL}, AddRule),
        (LIST, {"top": Int(1), "skip": Int(0)}, ListRules),
        (REMOVE, {"rule-name": "r"}, RemoveRule),
    ],
)
def test_whoever_may_listen_may_change_the_rules_and_who_only_sends_may_not(
    operation: str, body: object, kind: type[Command], rule_name: str, key: str, right: int
) -> None:
    audience = "sb://localhost:5672/t/Subscriptions/s"
    visit = Visit()
    visit.directory.keys |= {"t", "t/subscriptions/s"}
    assert visit.put_token(sas_token(audience, rule_name, key), audience).properties["status-code"] == 202
    visit.events.clear()
    out, _ = visit.pair(NODE)
    visit.ask(out, {"operation": operation}, body, reply_to=NODE)
    if right == LISTEN:
        assert visit.has_command(kind)
    else:
        answer = visit.answer()
        assert answer.properties["statusCode"] == 401
        assert "'Listen'" in str(answer.properties["statusDescription"])
        assert not visit.has_command(kind)


class Asking(Visit):
    """A visit at the rules of a subscription, with the test for a core."""

    def __init__(self) -> None:
        super().__init__()
        self.directory.keys |= {"t", "t/subscriptions/s"}
        self.put_token(name="sb://localhost:5672/t")
        self.events.clear()
        self.out, self.back = self.pair(NODE)

    def ask_for_rules(self) -> object:
        return self.ask(self.out, {"operation": LIST}, {"top": Int(100), "skip": Int(0)}, uuid.uuid4(), NODE)


def test_a_page_of_large_rules_is_cut_by_size_and_is_never_empty() -> None:
    visit = Asking()
    properties = {f"p{number}": RuleValue("string", "x" * 1_000) for number in range(30)}
    large = [Rule(f"r{number}", CorrelationFilter(properties=properties), None, 0) for number in range(100)]
    visit.ask_for_rules()
    visit.dispatch(Rules(visit.command(ListRules).request_id, large))
    names = names_of(visit.answer())
    assert names == [f"r{number}" for number in range(len(names))]
    assert 5 < len(names) < 100
    huge = {f"p{number}": RuleValue("string", "x" * limits.RULES_LISTED_BYTES_MAX) for number in range(2)}
    visit.ask_for_rules()
    giants = [Rule(f"r{number}", CorrelationFilter(properties=huge), None, 0) for number in range(2)]
    visit.dispatch(Rules(visit.command(ListRules).request_id, giants))
    assert names_of(visit.answer()) == ["r0"]


def test_rules_are_taken_some_at_a_time() -> None:
    """However many of them a client has asked for at once: to compile them takes time."""
    outbox = Outbox()
    small = Rule("s", CorrelationFilter(label="x"), None, 0)
    long = Rule("l", SqlFilter("a=" + "+".join(["a"] * 511)), None, 0)
    rules = [small] * 100 + [long] * 3
    outbox.commands = [AddRule(number, "t", rule) for number, rule in enumerate(rules)]
    outbox.commands += [RemoveRule(number, "t", "s") for number in range(200, 240)]
    taken: list[int] = []
    while outbox.commands:
        taken.append(len(outbox.pop_commands(limits.COMMANDS_PER_TURN_MAX, limits.COMMAND_BYTES_PER_TURN_MAX)))
    assert taken == [20] * 5 + [1, 1, 9, 20, 12]


def test_few_lists_of_rules_are_with_the_core_at_a_time() -> None:
    """Each answer may have hundreds of kilobytes."""
    visit = Asking()
    for _ in range(BROWSING_MAX + 3):
        visit.ask_for_rules()
    first = [command for command in visit.commands if isinstance(command, ListRules)]
    assert len(first) == BROWSING_MAX
    visit.commands.clear()
    visit.dispatch(Rules(first[0].request_id, [Rule("r", TrueFilter(), None, 0)]))
    assert visit.has_command(ListRules)
    second = visit.command(ListRules)
    visit.dispatch(Failed(first[1].request_id, NotAllowed("no")))
    third = visit.command(ListRules)
    assert len({second.request_id, third.request_id, *(command.request_id for command in first)}) == BROWSING_MAX + 2
    assert visit.has(TransferReceived)
