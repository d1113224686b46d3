"""A message without a session id and a subscription that requires sessions: the copy becomes a dead letter.

However it gets there: published, scheduled, by an action that takes the session id away, forwarded, or found in a store
that an earlier version wrote.
"""

from spillway.amqp.message import Properties, encode_data, encode_message
from spillway.broker.commands import AttachReceiver, AttachSender, CreateEntity, Credit, Schedule, Send, SessionWish
from spillway.broker.effects import Deliver, Effect, SendSettled
from spillway.broker.namespace import Namespace
from spillway.dialect.admission import admit
from spillway.dialect.properties import EncodedAccess
from spillway.model.entity import QUEUE, SUBSCRIPTION, TOPIC, EntitySettings, dead_letter_path
from spillway.model.message import NEVER, SCHEDULED, Message, StoredMessage
from spillway.model.records import Counters, MessageAdded, Turn
from spillway.model.rules import Rule, SqlAction, SqlFilter, TrueFilter
from spillway.testing.core import CoreHarness
from tests.broker.test_topics import Ids

SENDER = 1
SESSIONS = "news/Subscriptions/sessions"
PLAIN = "news/Subscriptions/plain"
LATER_MS = 60_000


def made(session_id: str | None = None, scheduled_ms: int = NEVER) -> Message:
    raw = encode_message(
        properties=Properties(message_id="m", group_id=session_id),
        application_properties={"color": "red"},
        body=encode_data(b"hello"),
    )
    message = admit(raw, Ids())
    message.scheduled_ms = scheduled_ms
    return message


class News(CoreHarness):
    """A topic with two subscriptions, of which one requires sessions."""

    def make_namespace(self, seed: bytes) -> Namespace:
        return Namespace("test", self.journal.recover(), seed, EncodedAccess())

    def __init__(self, *rules: Rule) -> None:
        super().__init__()
        self.link_id = 10
        self.create(TOPIC, "news")
        sessions = EntitySettings()
        sessions.requires_session = True
        sessions.rules = list(rules) or [Rule("all", TrueFilter(), None, 0)]
        self.create(SUBSCRIPTION, SESSIONS, sessions)
        self.create(SUBSCRIPTION, PLAIN)
        self.apply(AttachSender(SENDER, "news"))

    def create(self, kind: str, path: str, settings: EntitySettings | None = None) -> None:
        self.apply(CreateEntity(900, kind, path, settings or EntitySettings()))

    def send(self, *messages: Message, link_id: int = SENDER) -> SendSettled:
        said = self.apply(Send(link_id, 5, list(messages), False, 100))
        (settled,) = [effect for effect in said if isinstance(effect, SendSettled)]
        return settled

    def deliveries(self, path: str) -> list[Deliver]:
        self.link_id += 1
        wish = SessionWish(None, 1_000) if path == SESSIONS else None
        self.apply(AttachReceiver(self.link_id, path, True, wish))
        return delivered(self.apply(Credit(self.link_id, 100, False)))

    def dead_letters(self) -> list[Deliver]:
        return self.deliveries(dead_letter_path(SESSIONS))


def delivered(said: list[Effect]) -> list[Deliver]:
    return [effect for effect in said if isinstance(effect, Deliver)]


def assert_one_dead_letter(news: News) -> None:
    (dead,) = news.dead_letters()
    overlay = dead.stored.overlay
    assert overlay is not None
    assert overlay.dead_letter_reason == "Session ID is null."
    assert overlay.dead_letter_description is not None and SESSIONS in overlay.dead_letter_description
    assert overlay.dead_letter_source == SESSIONS


def test_published_the_copy_is_a_dead_letter_and_the_other_subscription_has_its_own() -> None:
    news = News()
    assert news.send(made()).error is None
    assert_one_dead_letter(news)
    assert len(news.deliveries(PLAIN)) == 1


def test_of_a_batch_only_those_without_a_session_id_are_dead_letters() -> None:
    news = News()
    assert news.send(made("s"), made(), made("s")).error is None
    assert_one_dead_letter(news)
    assert len(news.deliveries(SESSIONS)) == 2
    assert len(news.deliveries(PLAIN)) == 3


def test_scheduled_it_becomes_a_dead_letter_when_its_time_has_come() -> None:
    news = News()
    news.apply(Schedule(901, "news", [made(scheduled_ms=news.now_ms + LATER_MS)], 100))
    news.step(LATER_MS)
    assert_one_dead_letter(news)
    assert len(news.deliveries(PLAIN)) == 1


def test_scheduled_and_on_disk_it_does_so_after_a_restart() -> None:
    news = News()
    news.apply(Schedule(901, "news", [made(scheduled_ms=news.now_ms + LATER_MS)], 100))
    news.restart()
    news.step(LATER_MS)
    assert_one_dead_letter(news)


def test_an_action_that_takes_the_session_id_away_makes_a_dead_letter() -> None:
    news = News(Rule("bare", SqlFilter("1 = 1"), SqlAction("REMOVE sys.SessionId"), 0))
    assert news.send(made("s")).error is None
    assert_one_dead_letter(news)
    assert len(news.deliveries(PLAIN)) == 1


def test_an_action_that_gives_a_session_id_makes_it_a_message_of_that_session() -> None:
    news = News(Rule("named", SqlFilter("1 = 1"), SqlAction("SET sys.SessionId = 'given'"), 0))
    assert news.send(made()).error is None
    assert news.dead_letters() == []
    (delivery,) = news.deliveries(SESSIONS)
    assert delivery.stored.session_id == "given"


def test_forwarded_by_a_queue_it_is_a_dead_letter_of_the_subscription() -> None:
    news = News()
    settings = EntitySettings()
    settings.forward_to = "news"
    news.create(QUEUE, "in", settings)
    news.apply(AttachSender(2, "in"))
    assert news.send(made(), link_id=2).error is None
    assert_one_dead_letter(news)
    assert len(news.deliveries(PLAIN)) == 1


def test_one_that_an_earlier_version_left_in_the_schedule_of_the_subscription_becomes_a_dead_letter() -> None:
    news = News()
    entity_id = news.namespace.directory.queues[SESSIONS.lower()].entity_id
    stored = StoredMessage(made(scheduled_ms=news.now_ms + LATER_MS), 1, news.now_ms)
    stored.state = SCHEDULED
    stored.due_ms = news.now_ms + LATER_MS
    turn = Turn(news.now_ms)
    turn.add([MessageAdded(entity_id, stored)])
    counters = Counters()
    counters.last_sequence_number = 1
    counters.add(len(stored.message.raw), SCHEDULED, 1)
    turn.counters[entity_id] = counters
    news.journal.submit(turn, 99)
    news.restart()
    news.step(LATER_MS)
    assert_one_dead_letter(news)


def test_the_dead_letter_counts_in_the_dead_letter_queue_alone() -> None:
    news = News()
    news.send(made())
    queues = news.namespace.directory.queues
    assert queues[SESSIONS.lower()].counters.total == 0
    assert queues[dead_letter_path(SESSIONS).lower()].counters.active == 1
