"""Topics: copies for the subscriptions whose rules want them, and nothing for the others."""

import pytest

from spillway.amqp.codec import DecodeBudget
from spillway.amqp.message import Properties, decode_map, encode_data, encode_message, split_sections
from spillway.amqp.types import Symbol, Timestamp
from spillway.broker.commands import (
    AddRule,
    AttachReceiver,
    AttachSender,
    CancelScheduled,
    Command,
    CreateEntity,
    Credit,
    DeleteEntity,
    ListRules,
    Peek,
    RemoveRule,
    Schedule,
    Send,
    Settle,
    UpdateEntity,
)
from spillway.broker.effects import (
    Deliver,
    Detached,
    Done,
    Effect,
    Failed,
    Load,
    Refused,
    Rules,
    Scheduled,
    SendSettled,
)
from spillway.broker.namespace import Namespace
from spillway.broker.topic import Subscription
from spillway.dialect.admission import admit
from spillway.dialect.properties import EncodedAccess
from spillway.model.entity import QUEUE, SUBSCRIPTION, TOPIC, EntitySettings
from spillway.model.errors import (
    ArgumentError,
    BrokerError,
    EntityAlreadyExists,
    EntityNotFound,
    NotAllowed,
    QuotaExceeded,
)
from spillway.model.message import NEVER, Message
from spillway.model.quotas import Quotas
from spillway.model.records import ROW_BYTES, EntityPut, RulePut, RuleRemoved, Turn
from spillway.model.rules import FalseFilter, Rule, SqlAction, SqlFilter, TrueFilter
from spillway.model.settlement import DEAD_LETTER, Settlement
from spillway.testing.core import CoreHarness


class Ids:
    """For messages without an id, of which there are none here."""

    def tracking_text(self, entity: str, now_ms: int) -> str:
        return ""

    def new_message_id(self) -> str:
        raise AssertionError("every message here has an id")


def made(text: str, scheduled_ms: int = NEVER, padding: int = 0) -> Message:
    """A message with the properties `color=red size=3`, encoded as a client would."""
    properties: dict[object, object] = {}
    for part in text.split():
        name, _, value = part.partition("=")
        properties[name] = int(value) if value.isdigit() else value
    annotations: dict[object, object] | None = None
    if scheduled_ms:
        annotations = {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(scheduled_ms)}
    raw = encode_message(
        message_annotations=annotations,
        properties=Properties(message_id="m"),
        application_properties=properties,
        body=encode_data(b"x" * padding),
    )
    return admit(raw, Ids())


def text_of(message: Message) -> str:
    sections = split_sections(message.raw, DecodeBudget())
    properties = decode_map(message.raw, sections.application_properties)
    return " ".join(f"{name}={value}" for name, value in properties.items())


class News(CoreHarness):
    """A topic `news` with subscriptions; sender link 1."""

    def make_namespace(self, seed: bytes) -> Namespace:
        return Namespace("test", self.journal.recover(), seed, EncodedAccess())

    def __init__(self) -> None:
        super().__init__()
        self.next_link = 10
        self.ok(CreateEntity(900, TOPIC, "news", EntitySettings()))
        self.apply(AttachSender(1, "news"))

    def ok(self, command: CreateEntity | AddRule | RemoveRule | UpdateEntity | DeleteEntity) -> None:
        said = self.apply(command)
        assert any(isinstance(effect, Done) for effect in said), said

    def error(self, command: CreateEntity | AddRule | RemoveRule | DeleteEntity) -> BrokerError:
        (failed,) = self.apply(command)
        assert isinstance(failed, Failed)
        return failed.error

    def subscribe(self, name: str, *rules: Rule, settings: EntitySettings | None = None) -> None:
        settings = settings or EntitySettings()
        settings.rules = list(rules)
        self.ok(CreateEntity(901, SUBSCRIPTION, f"news/Subscriptions/{name}", settings))

    def send(self, text: str, padding: int = 0) -> list[Effect]:
        return self.apply(Send(1, 5, [made(text, padding=padding)], False, len(text)))

    def received(self, path: str) -> list[str]:
        return [text_of(delivery.stored.message) for delivery in self.deliveries(path)]

    def deliveries(self, path: str) -> list[Deliver]:
        self.next_link += 1
        said = self.apply(
            AttachReceiver(self.next_link, f"news/Subscriptions/{path}", True), Credit(self.next_link, 500, False)
        )
        return [effect for effect in said if isinstance(effect, Deliver)]


def sql(name: str, expression: str, action: str | None = None) -> Rule:
    return Rule(name, SqlFilter(expression), None if action is None else SqlAction(action), 0)


@pytest.fixture
def news() -> News:
    return News()


def test_every_subscription_gets_its_own_copy(news: News) -> None:
    news.subscribe("a")
    news.subscribe("b")
    news.send("color=red")
    assert news.received("a") == ["color=red"]
    assert news.received("b") == ["color=red"]


def test_a_message_that_nobody_wants_is_accepted_and_dropped(news: News) -> None:
    (settled,) = news.send("color=red")
    assert isinstance(settled, SendSettled)
    assert settled.error is None
    news.subscribe("late")
    assert news.received("late") == []


def test_rules_choose_what_a_subscription_gets(news: News) -> None:
    news.subscribe("red", sql("r", "color = 'red'"))
    news.subscribe("large", sql("l", "size > 5"))
    news.subscribe("none", Rule("n", FalseFilter(), None, 0))
    for text in ("color=red size=1", "color=blue size=9", "color=red size=9", "color=green"):
        news.send(text)
    assert news.received("red") == ["color=red size=1", "color=red size=9"]
    assert news.received("large") == ["color=blue size=9", "color=red size=9"]
    assert news.received("none") == []


def test_several_matching_rules_without_action_give_one_copy(news: News) -> None:
    news.subscribe("a", sql("one", "size > 1"), sql("two", "size > 2"), Rule("all", TrueFilter(), None, 0))
    news.send("size=3")
    assert news.received("a") == ["size=3"]


def test_every_matching_rule_with_an_action_adds_a_changed_copy(news: News) -> None:
    one = sql("one", "size > 1", "SET seen = 1")
    two = sql("two", "size > 2", "REMOVE size")
    news.subscribe("a", one, two, sql("plain", "size = 3"))
    news.send("size=3")
    assert sorted(news.received("a")) == ["RuleName=two", "size=3", "size=3 seen=1 RuleName=one"]


def test_copies_have_numbers_of_their_own_and_keep_the_topics(news: News) -> None:
    news.subscribe("red", sql("r", "color = 'red'"))
    news.send("color=blue")
    news.send("color=red")
    (delivery,) = news.deliveries("red")
    assert delivery.stored.sequence_number == 1
    assert delivery.stored.enqueue_sequence_number == 2


def test_a_filter_that_cannot_be_evaluated_dead_letters_the_copy_with_the_reason(news: News) -> None:
    news.subscribe("a", sql("zero", "10 / size > 1"))
    news.send("size=0")
    (dead,) = news.deliveries("a/$DeadLetterQueue")
    assert dead.stored.overlay is not None
    assert dead.stored.overlay.dead_letter_reason == "FilterEvaluationException"
    assert dead.stored.overlay.dead_letter_source == "news/Subscriptions/a"
    assert news.received("a") == []


def test_an_action_that_makes_no_message_dead_letters_the_copy_with_the_reason(news: News) -> None:
    news.subscribe("b", sql("long", "size = 1", f"SET note = '{'x' * 900}'"))
    news.send("size=1", padding=261_800)
    (dead,) = news.deliveries("b/$DeadLetterQueue")
    assert dead.stored.overlay is not None
    assert dead.stored.overlay.dead_letter_reason == "FilterEvaluationException"
    assert news.received("b") == []


def test_a_subscription_that_does_not_want_filter_errors_drops_them(news: News) -> None:
    settings = EntitySettings()
    settings.dead_letter_on_filter_error = False
    news.subscribe("a", sql("zero", "10 / size > 1"), settings=settings)
    news.send("size=0")
    assert news.deliveries("a/$DeadLetterQueue") == []


def test_a_scheduled_message_is_published_when_its_time_comes_by_the_rules_of_then(news: News) -> None:
    news.subscribe("a")
    due = made("size=1", news.now_ms + 5_000)
    (scheduled,) = news.apply(Schedule(500, "news", [due], 6))
    assert isinstance(scheduled, Scheduled)
    news.subscribe("b")
    news.restart()
    news.step(4_999)
    assert news.namespace.directory.queues["news/subscriptions/a"].counters.active == 0
    news.step(1)
    assert news.received("a") == ["size=1"]
    assert news.received("b") == ["size=1"]
    topic = news.namespace.directory.topics["news"]
    assert (topic.counters.scheduled, topic.counters.size_bytes) == (0, 0)


def test_a_scheduled_message_of_a_topic_can_be_cancelled(news: News) -> None:
    news.subscribe("a")
    due = made("size=1", news.now_ms + 5_000)
    (scheduled,) = news.apply(Schedule(500, "news", [due], 6))
    assert isinstance(scheduled, Scheduled)
    (done,) = news.apply(CancelScheduled(501, "news", scheduled.sequence_numbers))
    assert isinstance(done, Done)
    news.step(9_000)
    assert news.received("a") == []


def test_topics_subscriptions_and_rules_survive_a_restart(news: News) -> None:
    news.subscribe("red", sql("r", "color = 'red'"))
    news.send("color=red")
    news.restart()
    news.apply(AttachSender(1, "news"))
    news.send("color=blue")
    news.send("color=red size=2")
    assert news.received("red") == ["color=red", "color=red size=2"]


def test_rules_are_added_listed_and_removed(news: News) -> None:
    news.subscribe("a")
    path = "news/Subscriptions/a"
    news.ok(AddRule(500, path, sql("red", "color = 'red'")))
    news.ok(RemoveRule(501, path, "$default"))
    (listed,) = news.apply(ListRules(502, path, 0, 100))
    assert isinstance(listed, Rules)
    assert [rule.name for rule in listed.rules] == ["red"]
    news.send("color=blue")
    news.send("color=red")
    assert news.received("a") == ["color=red"]
    again = news.error(AddRule(503, path, sql("RED", "1=1")))
    assert isinstance(again, EntityAlreadyExists)
    assert (
        again.description
        == f"The messaging entity '{news.namespace.directory.namespace}:Topic:news|a|RED' already exists."
    )
    assert isinstance(news.error(RemoveRule(504, path, "gone")), EntityNotFound)
    assert isinstance(news.error(AddRule(505, path, sql("bad", "color ="))), ArgumentError)
    assert isinstance(news.error(AddRule(506, "news", sql("x", "1=1"))), NotAllowed)


def test_rules_are_listed_by_name_whatever_came_first(news: News) -> None:
    news.subscribe("a")
    path = "news/Subscriptions/a"

    def listed(skip: int, top: int) -> list[str]:
        (answer,) = news.apply(ListRules(500, path, skip, top))
        assert isinstance(answer, Rules)
        return [rule.name for rule in answer.rules]

    for name in ("sql", "Middle", "a"):
        news.ok(AddRule(501, path, sql(name, "1=1")))
    assert listed(0, 100) == ["$Default", "a", "Middle", "sql"]
    assert [listed(skip, 1) for skip in range(5)] == [["$Default"], ["a"], ["Middle"], ["sql"], []]
    news.ok(RemoveRule(502, path, "$Default"))
    news.ok(AddRule(503, path, sql("b", "1=1")))
    assert listed(0, 100) == ["a", "b", "Middle", "sql"], "as it is now, not as it was when last listed"
    news.restart()
    assert listed(1, 2) == ["b", "Middle"]


def test_a_changed_subscription_keeps_its_rules(news: News) -> None:
    news.subscribe("red", sql("r", "color = 'red'"))
    news.ok(UpdateEntity(500, "news/Subscriptions/red", EntitySettings()))
    news.send("color=blue")
    assert news.received("red") == []


def test_what_is_wrong_with_a_subscription_is_said(news: News) -> None:
    bad = EntitySettings()
    bad.rules = [sql("r", "color LIKE")]
    create = CreateEntity(500, SUBSCRIPTION, "news/Subscriptions/a", bad)
    assert isinstance(news.error(create), ArgumentError)
    assert not news.namespace.exists("news/Subscriptions/a")
    missing = CreateEntity(501, SUBSCRIPTION, "nowhere/Subscriptions/a", EntitySettings())
    assert isinstance(news.error(missing), EntityNotFound)
    for path in ("news/a", "news/Subscriptions/", "news/Subscriptions/a/b", "news/Subscriptions/" + "x" * 51):
        assert isinstance(news.error(CreateEntity(502, SUBSCRIPTION, path, EntitySettings())), ArgumentError)
    assert isinstance(news.error(CreateEntity(503, TOPIC, "NEWS", EntitySettings())), EntityAlreadyExists)


def test_a_topic_is_sent_to_and_a_subscription_is_received_from(news: News) -> None:
    news.subscribe("a")
    for command in (AttachReceiver(70, "news", False), AttachSender(71, "news/Subscriptions/a")):
        (refused,) = news.apply(command)
        assert isinstance(refused, Refused)
        assert isinstance(refused.error, NotAllowed)
    (failed,) = news.apply(Peek(72, "news", 1, 1))
    assert isinstance(failed, Failed)


def test_deleting_a_topic_takes_its_subscriptions_along(news: News) -> None:
    news.subscribe("a")
    news.send("size=1")
    news.apply(AttachReceiver(70, "news/Subscriptions/a", False))
    said = news.apply(DeleteEntity(500, "news"))
    assert {effect.to for effect in said if isinstance(effect, Detached)} == {1, 70}
    news.restart()
    assert not news.namespace.exists("news")
    assert not news.namespace.exists("news/Subscriptions/a")
    assert not news.namespace.exists("news/Subscriptions/a/$DeadLetterQueue")


def test_deleting_a_subscription_leaves_the_others_and_frees_the_topics_quota(news: News) -> None:
    news.subscribe("a")
    news.subscribe("b")
    news.send("size=1")
    size = len(made("size=1").raw)
    assert news.namespace.directory.topics["news"].usage.size_bytes == 2 * size
    news.ok(DeleteEntity(500, "news/Subscriptions/a"))
    assert news.namespace.directory.topics["news"].usage.size_bytes == size
    news.send("size=2")
    assert news.received("b") == ["size=1", "size=2"]
    assert news.namespace.directory.topics["news"].usage.size_bytes == 0


def test_the_quota_of_a_topic_counts_all_its_copies() -> None:
    news = News()
    settings = EntitySettings()
    settings.max_size_mb = 1
    news.ok(UpdateEntity(500, "news", settings))
    news.subscribe("a")
    news.subscribe("b")
    for _ in range(3):
        news.send("x=1", padding=200_000)
    (refused,) = news.send("x=1", padding=200_000)
    assert isinstance(refused, SendSettled)
    assert isinstance(refused.error, QuotaExceeded)


def test_a_message_lives_as_long_as_the_shortest_of_its_own_the_topics_and_the_subscriptions_time() -> None:
    news = News()
    topic = EntitySettings()
    topic.default_ttl_ms = 10_000
    news.ok(UpdateEntity(500, "news", topic))
    short = EntitySettings()
    short.default_ttl_ms = 2_000
    short.dead_letter_on_expiry = True
    news.subscribe("short", settings=short)
    news.subscribe("long")
    news.send("size=1")
    news.step(2_000)
    assert news.received("short") == []
    assert len(news.deliveries("short/$DeadLetterQueue")) == 1
    news.send("size=2")
    news.step(10_000)
    assert news.received("long") == []


def test_an_action_that_sets_a_time_delays_its_copy_and_no_other(news: News) -> None:
    news.subscribe("s", sql("plain", "1=1"), sql("later", "EXISTS(at)", "SET sys.ScheduledEnqueueTimeUtc = at"))
    at_ms = news.now_ms + 5_000
    message = admit(
        encode_message(
            properties=Properties(message_id="m"),
            application_properties={"at": Timestamp(at_ms)},
            body=encode_data(b"x"),
        ),
        Ids(),
    )
    news.apply(Send(1, 5, [made("n=1"), message], False, 10))
    counters = news.namespace.directory.queues["news/subscriptions/s"].counters
    assert (counters.active, counters.scheduled) == (2, 1)
    assert [delivery.stored.enqueue_sequence_number for delivery in news.deliveries("s")] == [1, 2]
    news.restart()
    assert news.deliveries("s") == []
    (delivery,) = [effect for effect in news.step(5_000) if isinstance(effect, Deliver)]
    assert text_of(delivery.stored.message).endswith("RuleName=later")
    assert (delivery.stored.enqueue_sequence_number, delivery.stored.enqueued_ms) == (2, at_ms)


def test_rules_see_why_and_where_a_forwarded_message_was_dead_lettered(news: News) -> None:
    news.subscribe("spoilt", sql("r", "DeadLetterReason = 'spoilt' AND sys.DeadLetterSource = 'q' AND n = 1"))
    news.subscribe("other", sql("r", "DeadLetterReason = 'other'"))
    settings = EntitySettings()
    settings.forward_dead_letters_to = "news"
    news.ok(CreateEntity(902, QUEUE, "q", settings))
    news.apply(AttachSender(2, "q"), AttachReceiver(3, "q", False), Credit(3, 1, False))
    (settled, delivery) = news.apply(Send(2, 5, [made("n=1")], False, 10))
    assert isinstance(settled, SendSettled) and isinstance(delivery, Deliver)
    news.apply(Settle(3, 6, delivery.lock_token, Settlement(DEAD_LETTER, "spoilt", "by the sun"), False))
    (delivery,) = news.deliveries("spoilt")
    assert text_of(delivery.stored.message) == "n=1 DeadLetterReason=spoilt DeadLetterErrorDescription=by the sun"
    overlay = delivery.stored.overlay
    assert overlay is not None and (overlay.dead_letter_source, overlay.dead_letter_reason) == ("q", None)
    assert news.received("other") == []


def test_the_copies_of_a_message_weigh_its_bytes_once_for_back_pressure(news: News) -> None:
    for number in range(50):
        news.subscribe(f"s{number}")
    news.subscribe("changed", sql("r", "1=1", "SET a = 1"))
    message = made("a=0", padding=10_000)
    decided = news.namespace.apply([Send(1, 5, [message], False, len(message.raw))], news.now_ms)
    assert len(decided.turn.groups[0]) == 51
    bodies = decided.turn.size_bytes - 51 * ROW_BYTES
    assert len(message.raw) * 2 <= bodies < len(message.raw) * 2 + 200, "one for all, and the one that was changed"


def test_the_rules_of_a_subscription_count_when_it_is_made() -> None:
    quotas = Quotas()
    quotas.set("sql-filters-per-topic", 3)
    core = CoreHarness(quotas=quotas)
    core.apply(CreateEntity(1, TOPIC, "news", EntitySettings()))

    def made(name: str, rule_count: int) -> list[Effect]:
        settings = EntitySettings()
        settings.rules = [sql(f"r{number}", "1=1") for number in range(rule_count)]
        return core.apply(CreateEntity(2, SUBSCRIPTION, f"news/Subscriptions/{name}", settings))

    for name, rule_count, is_made in (
        ("a", 4, False),
        ("a", 2, True),
        ("b", 2, False),
        ("b", 0, True),
        ("c", 0, False),
    ):
        (answer,) = made(name, rule_count)
        assert isinstance(answer, Done if is_made else Failed), (name, rule_count)
        assert not isinstance(answer, Failed) or isinstance(answer.error, QuotaExceeded)


def test_a_rule_in_the_store_that_cannot_be_understood_dead_letters_and_the_others_stand(news: News) -> None:
    news.subscribe("a", sql("good", "size = 1"), sql("bad", "size = 2"))
    directory = news.namespace.directory
    subscription = directory.queues["news/subscriptions/a"]
    turn = Turn(1)
    turn.add([RulePut(subscription.entity_id, 2, "bad", sql("bad", "size ~~ 2").to_json())])
    news.journal.submit(turn, 9)
    news.restart()
    news.apply(AttachSender(1, "news"))
    news.send("size=1")
    assert news.received("a") == ["size=1"]
    (dead,) = news.deliveries("a/$DeadLetterQueue")
    assert dead.stored.overlay is not None
    assert "'bad' cannot be understood" in str(dead.stored.overlay.dead_letter_description)


def test_a_rule_that_is_added_or_removed_leaves_the_others_compiled_and_is_written_once(news: News) -> None:
    news.subscribe("s", *[sql(f"r{number}", f"n = {number}") for number in range(50)])
    news.send("n=7")
    subscription = news.namespace.directory.queues["news/subscriptions/s"]
    assert isinstance(subscription, Subscription)
    compiled = subscription.rules.compiled
    before = list(compiled)
    assert None not in before
    decided = news.namespace.apply([AddRule(700, subscription.path, sql("more", "n = 50"))], news.now_ms)
    more = compiled[-1]
    assert more is not None and compiled == [*before, more], "it is compiled when it is added, and once"
    ((put,),) = decided.turn.groups
    assert isinstance(put, RulePut) and (put.name, put.number) == ("more", 51)
    assert decided.turn.size_bytes < 500
    news.journal.submit(decided.turn, 1_000)
    gone = news.namespace.apply([RemoveRule(701, subscription.path, "R3")], news.now_ms)
    ((removed,),) = gone.turn.groups
    assert isinstance(removed, RuleRemoved) and removed.number == 4
    assert gone.turn.size_bytes < 500
    news.journal.submit(gone.turn, 1_001)
    assert compiled == [*before[:3], *before[4:], more]
    news.send("n=3")
    news.send("n=50")
    assert news.received("s") == ["n=7", "n=50"]
    news.restart()
    news.apply(AttachSender(1, "news"))
    news.send("n=50")
    news.send("n=3")
    assert news.received("s") == ["n=50"]


def test_settings_that_change_leave_the_rules_where_they_are(news: News) -> None:
    news.subscribe("s", *[sql(f"r{number}", f"n = {number}") for number in range(50)])
    decided = news.namespace.apply(
        [UpdateEntity(700, "news/Subscriptions/s", news.namespace.directory.queues["news/subscriptions/s"].settings)],
        news.now_ms,
    )
    (group,) = decided.turn.groups
    assert [type(record) for record in group] == [EntityPut, EntityPut]
    assert all('"rules"' not in record.settings for record in group if isinstance(record, EntityPut))
    news.journal.submit(decided.turn, 1_000)
    news.restart()
    news.apply(AttachSender(1, "news"))
    news.send("n=7")
    assert news.received("s") == ["n=7"]


def test_rules_keep_their_order_over_a_restart_and_come_back_by_name(news: News) -> None:
    news.subscribe("s", sql("b", "n = 1"), sql("a", "n = 1"))
    path = "news/Subscriptions/s"
    news.ok(AddRule(1, path, sql("C", "n = 1")))
    news.ok(RemoveRule(2, path, "b"))
    news.ok(AddRule(3, path, sql("B", "n = 2")))

    def listed(skip: int, top: int) -> list[str]:
        (rules,) = news.apply(ListRules(4, path, skip, top))
        assert isinstance(rules, Rules)
        return [rule.name for rule in rules.rules]

    for _ in range(2):
        assert listed(0, 10) == ["a", "B", "C"] and listed(1, 1) == ["B"] and listed(3, 5) == []
        subscription = news.namespace.directory.queues[path.lower()]
        assert [rule.name for rule in subscription.settings.rules] == ["a", "C", "B"]
        news.restart()
    news.ok(AddRule(5, path, sql("aa", "n = 1")))
    news.ok(RemoveRule(6, path, "c"))
    assert listed(0, 10) == ["a", "aa", "B"]
    assert news.namespace.directory.topics["news"].sql_count == 3


def test_a_rule_that_the_store_has_lost_dead_letters_what_it_might_have_wanted_even_where_filter_errors_are_dropped(
    news: News,
) -> None:
    settings = EntitySettings()
    settings.dead_letter_on_filter_error = False
    news.subscribe("a", sql("good", "size = 1"), sql("lost", "size = 2"), settings=settings)
    catalogue = news.journal.recover()
    (row,) = [row for row in catalogue.entities if row.put.kind == SUBSCRIPTION]
    row.rules[1].problem = "it could not be read"
    news.namespace = Namespace("test", catalogue, b"87654321", EncodedAccess())
    news.apply(AttachSender(1, "news"))
    news.send("size=2")
    assert news.received("a") == []
    (dead,) = news.deliveries("a/$DeadLetterQueue")
    assert dead.stored.overlay is not None
    assert "'lost' cannot be understood: it could not be read" in str(dead.stored.overlay.dead_letter_description)
    news.ok(RemoveRule(1, "news/Subscriptions/a", "lost"))
    news.ok(AddRule(2, "news/Subscriptions/a", sql("lost", "size = 2")))
    (copy,) = [effect for effect in news.send("size=2") if isinstance(effect, Deliver)]
    assert copy.path == "news/Subscriptions/a"


def half_published(number: int) -> tuple[News, int]:
    """A message `n=number` on its way through 250 rules that are read for the first time, and which one is next."""
    news = News()
    news.subscribe("s", *[sql(f"r{each}", f"n = {each}") for each in range(250)])
    news.restart()
    news.apply(AttachSender(1, "news"))
    topic = news.namespace.directory.topics["news"]
    commands: list[Command] = [Send(1, 5, [made(f"n={number}")], False, 3)]
    while topic.publication is None:
        decided = news.namespace.apply(commands, news.now_ms)
        news.journal.submit(decided.turn, 1)
        for effect in decided.effects:
            if isinstance(effect, Load):
                news.journal.load(effect.query, effect.to)
        commands, news.answers = news.answers, []
    return news, topic.publication.rule_index


def test_a_rule_removed_while_a_message_is_on_its_way_through_the_others_lets_it_pass_none_of_them() -> None:
    _, index = half_published(0)
    assert 10 < index < 250
    news, again = half_published(index)
    assert again == index
    news.ok(RemoveRule(1, "news/Subscriptions/s", "r1"))
    news.ok(RemoveRule(1, "news/Subscriptions/s", "r249"))
    assert news.received("s") == [f"n={index}"]
