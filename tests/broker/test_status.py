"""Entities that an administrator disabled: what they refuse, what goes on, and that nothing is lost."""

import pytest

from spillway.broker.commands import (
    AddRule,
    AttachReceiver,
    AttachSender,
    BatchDelete,
    CancelScheduled,
    Command,
    CreateEntity,
    Describe,
    ListRules,
    Peek,
    ReceiveDeferred,
    RenewLocks,
    Request,
    Schedule,
    SessionWish,
    UpdateDisposition,
    UpdateEntity,
)
from spillway.broker.effects import (
    Attached,
    Deliver,
    Descriptions,
    Detached,
    Done,
    Effect,
    Failed,
    Messages,
    Refused,
    Rules,
    SendSettled,
)
from spillway.model.entity import (
    QUEUE,
    STATUS_ACTIVE,
    STATUS_DISABLED,
    STATUS_RECEIVE_DISABLED,
    STATUS_SEND_DISABLED,
    SUBSCRIPTION,
    TOPIC,
    EntitySettings,
)
from spillway.model.errors import ArgumentError, BrokerError, EntityDisabled
from spillway.model.rules import Rule, TrueFilter
from spillway.model.settlement import COMPLETE, Settlement
from spillway.testing.core import message
from tests.broker.line import DLQ_RECEIVER, OTHER_RECEIVER, RECEIVER, SENDER, Line, bodies, delivered

NO_SENDS = (STATUS_DISABLED, STATUS_SEND_DISABLED)
NO_RECEIVES = (STATUS_DISABLED, STATUS_RECEIVE_DISABLED)
ALL = (STATUS_ACTIVE, *NO_SENDS, STATUS_RECEIVE_DISABLED)


def with_status(status: str, requires_session: bool = False) -> EntitySettings:
    settings = EntitySettings()
    settings.status = status
    settings.requires_session = requires_session
    return settings


def set_status(line: Line, status: str, path: str = "q") -> list[Effect]:
    return line.apply(UpdateEntity(800, path, with_status(status)))


def errors_of(effects: list[Effect]) -> list[BrokerError | None]:
    return [effect.error for effect in effects if isinstance(effect, (SendSettled, Refused, Failed, Detached))]


def is_disabled(effects: list[Effect]) -> bool:
    (error,) = errors_of(effects)
    return isinstance(error, EntityDisabled)


@pytest.mark.parametrize("status", ALL)
def test_sends_and_senders_are_refused_while_sending_is_disabled(line: Line, status: str) -> None:
    set_status(line, status)
    sent = line.send(message(b"one"))
    attached = line.apply(AttachSender(50, "q"))
    if status in NO_SENDS:
        assert is_disabled(sent) and is_disabled(attached)
        assert line.namespace.directory.queues["q"].counters.total == 0
    else:
        assert errors_of(sent) == [None]
        assert isinstance(attached[0], Attached)


def test_the_refusal_says_which_entity_and_what_its_status_is(line: Line) -> None:
    set_status(line, STATUS_SEND_DISABLED)
    (error,) = errors_of(line.send(message()))
    assert error is not None
    assert error.description.startswith("Messaging entity 'q' is currently disabled. ")
    assert "SendDisabled" in error.description


@pytest.mark.parametrize("status", NO_RECEIVES)
@pytest.mark.parametrize("path", ["q", "q/$DeadLetterQueue"])
def test_receivers_are_detached_and_refused_while_receiving_is_disabled(line: Line, status: str, path: str) -> None:
    line.attach(RECEIVER, path)
    effects = set_status(line, status)
    (detached,) = [effect for effect in effects if isinstance(effect, Detached)]
    assert (detached.to, type(detached.error)) == (RECEIVER, EntityDisabled)
    assert is_disabled(line.attach(OTHER_RECEIVER, path))
    assert line.namespace.links.received_from == {} and line.namespace.links.receivers.by_number == {}


def test_receivers_stay_while_only_sending_is_disabled(line: Line) -> None:
    line.send(message(b"before"))
    line.attach()
    set_status(line, STATUS_SEND_DISABLED)
    (delivery,) = line.receive()
    assert line.settle(delivery, Settlement(COMPLETE))
    assert line.namespace.directory.queues["q"].counters.total == 0


@pytest.mark.parametrize("status", NO_RECEIVES)
def test_what_was_locked_returns_uncounted_when_receiving_is_enabled_again(line: Line, status: str) -> None:
    line.send(message(b"held"))
    line.attach()
    (delivery,) = line.receive()
    set_status(line, status)
    refused = line.apply(UpdateDisposition(801, "q", [delivery.lock_token], Settlement(COMPLETE)))
    assert is_disabled(refused)
    assert is_disabled(line.apply(RenewLocks(802, "q", [delivery.lock_token])))
    set_status(line, STATUS_ACTIVE)
    line.attach(OTHER_RECEIVER)
    (again,) = line.receive(1, OTHER_RECEIVER)
    assert (again.stored.message.raw, again.stored.delivery_count) == (b"held", 0)


def test_messages_stay_over_a_disabled_time_and_a_restart(line: Line) -> None:
    line.send(message(b"a"), message(b"b"))
    set_status(line, STATUS_DISABLED)
    line.restart()
    assert is_disabled(line.attach())
    assert is_disabled(line.apply(AttachSender(SENDER, "q")))
    set_status(line, STATUS_ACTIVE)
    line.attach()
    assert bodies(line.receive(5)) == [b"a", b"b"]


REQUESTS: dict[str, Request] = {
    "schedule": Schedule(801, "q", [message(b"later", scheduled_ms=9_000_000)], 5),
    "cancel": CancelScheduled(801, "q", [1]),
    "peek": Peek(801, "q", 0, 5),
    "deferred": ReceiveDeferred(801, "q", [1], True),
    "delete": BatchDelete(801, "q", 5, 9_000_000),
}
REFUSED: dict[str, set[str]] = {
    STATUS_DISABLED: set(REQUESTS),
    STATUS_SEND_DISABLED: {"schedule"},
    STATUS_RECEIVE_DISABLED: {"deferred", "delete"},
}


@pytest.mark.parametrize("name", REQUESTS)
@pytest.mark.parametrize("status", REFUSED)
def test_management_is_refused_as_far_as_the_status_goes(line: Line, status: str, name: str) -> None:
    set_status(line, status)
    (answer,) = line.apply(REQUESTS[name])
    is_refused = isinstance(answer, Failed) and isinstance(answer.error, EntityDisabled)
    assert is_refused == (name in REFUSED[status])


def test_browsing_shows_what_a_receive_disabled_queue_holds(line: Line) -> None:
    line.send(message(b"seen"))
    set_status(line, STATUS_RECEIVE_DISABLED)
    (shown,) = line.apply(Peek(801, "q", 0, 5))
    assert isinstance(shown, Messages)
    assert [stored.message.raw for stored in shown.messages] == [b"seen"]


def test_administration_goes_on(line: Line) -> None:
    set_status(line, STATUS_DISABLED)
    (shown,) = line.apply(Describe(801, "q"))
    assert isinstance(shown, Descriptions)
    assert shown.descriptions[0].settings.status == STATUS_DISABLED
    (done,) = set_status(line, STATUS_ACTIVE)
    assert isinstance(done, Done)


def test_a_scheduled_message_becomes_active_in_a_disabled_queue(line: Line) -> None:
    line.send(message(b"later", scheduled_ms=line.now_ms + 1_000))
    set_status(line, STATUS_DISABLED)
    line.step(1_000)
    counters = line.namespace.directory.queues["q"].counters
    assert (counters.active, counters.scheduled) == (1, 0)


def test_messages_expire_in_a_disabled_queue(line: Line) -> None:
    line.send(message(b"short", ttl_ms=1_000))
    set_status(line, STATUS_DISABLED)
    line.step(1_000)
    assert line.namespace.directory.queues["q"].counters.total == 0


def test_a_queue_can_be_made_disabled(line: Line) -> None:
    line.apply(CreateEntity(801, QUEUE, "off", with_status(STATUS_DISABLED)))
    assert is_disabled(line.apply(AttachSender(51, "off")))


@pytest.mark.parametrize(("kind", "path", "status"), [(QUEUE, "x", "Broken"), (TOPIC, "x", STATUS_RECEIVE_DISABLED)])
def test_a_status_that_its_kind_does_not_have_is_refused(line: Line, kind: str, path: str, status: str) -> None:
    (failed,) = line.apply(CreateEntity(801, kind, path, with_status(status)))
    assert isinstance(failed, Failed) and isinstance(failed.error, ArgumentError)
    assert "Active, Disabled, SendDisabled" in failed.error.description
    line.apply(CreateEntity(802, kind, path, EntitySettings()))
    (failed,) = line.apply(UpdateEntity(803, path, with_status(status)))
    assert isinstance(failed, Failed) and isinstance(failed.error, ArgumentError)


# -- topics -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def news(line: Line) -> Line:
    """A topic `t` with a subscription `s`; sender link 60."""
    line.apply(
        CreateEntity(810, TOPIC, "t", EntitySettings()),
        CreateEntity(811, SUBSCRIPTION, "t/Subscriptions/s", EntitySettings()),
        AttachSender(60, "t"),
    )
    return line


@pytest.mark.parametrize("status", NO_SENDS)
def test_a_disabled_topic_takes_nothing_and_its_subscriptions_are_received_from(news: Line, status: str) -> None:
    news.send(message(b"before"), link_id=60)
    set_status(news, status, "t")
    assert is_disabled(news.send(message(b"after"), link_id=60))
    news.attach(RECEIVER, "t/Subscriptions/s")
    assert bodies(news.receive(5)) == [b"before"]


def test_a_scheduled_message_is_published_by_a_disabled_topic(news: Line) -> None:
    news.send(message(b"later", scheduled_ms=news.now_ms + 1_000), link_id=60)
    set_status(news, STATUS_DISABLED, "t")
    news.attach(RECEIVER, "t/Subscriptions/s")
    news.credit(5)
    assert bodies(delivered(news.step(1_000))) == [b"later"]


@pytest.mark.parametrize("status", ALL)
def test_a_subscription_gets_its_copies_whatever_its_status(news: Line, status: str) -> None:
    set_status(news, status, "t/Subscriptions/s")
    assert errors_of(news.send(message(b"copied"), link_id=60)) == [None]
    refused = news.attach(RECEIVER, "t/Subscriptions/s")
    if status in NO_RECEIVES:
        assert is_disabled(refused)
        set_status(news, STATUS_ACTIVE, "t/Subscriptions/s")
        news.attach(RECEIVER, "t/Subscriptions/s")
    assert bodies(news.receive(5)) == [b"copied"]


def test_the_rules_of_a_disabled_subscription_are_changed_by_administrators_only(news: Line) -> None:
    path = "t/Subscriptions/s"
    set_status(news, STATUS_DISABLED, path)
    assert is_disabled(news.apply(AddRule(801, path, Rule("r", TrueFilter(), None, 0))))
    assert is_disabled(news.apply(ListRules(802, path, 0, 10)))
    inside = AddRule(803, path, Rule("r", TrueFilter(), None, 0))
    inside.is_administrative = True
    (done,) = news.apply(inside)
    assert isinstance(done, Done)
    set_status(news, STATUS_ACTIVE, path)
    (rules,) = news.apply(ListRules(804, path, 0, 10))
    assert isinstance(rules, Rules) and [rule.name for rule in rules.rules] == ["$Default", "r"]


# -- sessions ---------------------------------------------------------------------------------------------------------


def test_who_holds_a_session_is_detached_and_who_waits_for_one_is_refused() -> None:
    line = Line(with_status(STATUS_ACTIVE, requires_session=True))
    line.send(message(b"one", session_id="s"))
    wishes: list[Command] = [
        AttachReceiver(RECEIVER, "q", False, SessionWish("s", 0)),
        AttachReceiver(OTHER_RECEIVER, "q", False, SessionWish(None, 60_000)),
        AttachReceiver(DLQ_RECEIVER, "q/$DeadLetterQueue", False),
    ]
    line.apply(*wishes)
    effects = line.apply(UpdateEntity(801, "q", with_status(STATUS_RECEIVE_DISABLED, requires_session=True)))
    ended = {effect.to: type(effect) for effect in effects if isinstance(effect, (Detached, Refused))}
    assert ended == {RECEIVER: Detached, OTHER_RECEIVER: Refused, DLQ_RECEIVER: Detached}
    assert all(isinstance(error, EntityDisabled) for error in errors_of(effects))
    line.apply(UpdateEntity(802, "q", with_status(STATUS_ACTIVE, requires_session=True)))
    effects = line.apply(AttachReceiver(70, "q", False, SessionWish(None, 60_000)))
    assert [effect.session_id for effect in effects if isinstance(effect, Attached)] == ["s"]
    assert [type(effect) for effect in line.step(60_000) if not isinstance(effect, Deliver)] == [Detached]
