"""Entities that are deleted when nobody uses them: what counts as use, and what a restart makes of it."""

import pytest

from spillway.broker.commands import (
    AddRule,
    AttachReceiver,
    AttachSender,
    CancelScheduled,
    Command,
    CreateEntity,
    Credit,
    Describe,
    DetachLink,
    ListRules,
    Peek,
    Schedule,
    Send,
    SessionWish,
    UpdateEntity,
)
from spillway.broker.effects import Descriptions, Detached, Report, Scheduled
from spillway.model import limits
from spillway.model.entity import QUEUE, SUBSCRIPTION, TOPIC, EntitySettings
from spillway.model.rules import Rule, TrueFilter
from spillway.testing.core import CoreHarness, message

TEN_MINUTES_MS = 600_000
SUB = "t/Subscriptions/s"


def temporary(idle_ms: int = TEN_MINUTES_MS) -> EntitySettings:
    settings = EntitySettings()
    settings.auto_delete_ms = idle_ms
    return settings


class Idle(CoreHarness):
    """A temporary queue `q` (sender 1), and a topic `t` (sender 2) with a temporary subscription `s`."""

    def __init__(self) -> None:
        super().__init__()
        self.apply(
            CreateEntity(900, QUEUE, "q", temporary()),
            CreateEntity(901, TOPIC, "t", EntitySettings()),
            CreateEntity(902, SUBSCRIPTION, SUB, temporary()),
            AttachSender(1, "q"),
            AttachSender(2, "t"),
        )

    def used_ms(self, path: str) -> int:
        (shown,) = self.apply(Describe(990, path))
        assert isinstance(shown, Descriptions)
        return shown.descriptions[0].counters.used_ms

    def outlives(self, command: Command, path: str) -> bool:
        """Whether this, after nine minutes, keeps it for ten more."""
        self.step(9 * 60_000)
        self.apply(command)
        self.step(9 * 60_000)
        is_there = self.namespace.exists(path)
        self.step(60_000)
        assert not self.namespace.exists(path)
        return is_there


@pytest.fixture
def idle() -> Idle:
    return Idle()


def send(link_id: int = 1) -> Send:
    return Send(link_id, 7, [message(b"x")], False, 1)


def test_an_idle_queue_is_deleted_with_its_messages_and_its_links_are_told(idle: Idle) -> None:
    idle.step(1)  # the subscription goes a little before it
    idle.apply(send())
    idle.step(TEN_MINUTES_MS - 1)
    assert idle.namespace.exists("q")
    effects = idle.step(1)
    assert not idle.namespace.exists("q") and not idle.namespace.exists("q/$DeadLetterQueue")
    assert [effect.to for effect in effects if isinstance(effect, Detached)] == [1]
    reports = [effect for effect in effects if isinstance(effect, Report)]
    assert {report.text.partition(" ")[0]: report.is_alarm for report in reports} == {"'q'": False}
    idle.restart()
    assert not idle.namespace.exists("q")


def test_a_queue_for_ever_stays(idle: Idle) -> None:
    idle.step(100 * TEN_MINUTES_MS)
    assert idle.namespace.exists("t") and not idle.namespace.exists(SUB)


@pytest.mark.parametrize(
    "command",
    [
        send(),
        Peek(5, "q", 0, 1),
        Peek(5, "q/$DeadLetterQueue", 0, 1),
        CancelScheduled(5, "q", [99]),
        UpdateEntity(5, "q", temporary()),
    ],
    ids=lambda command: type(command).__name__,
)
def test_this_is_use_of_a_queue(idle: Idle, command: Command) -> None:
    assert idle.outlives(command, "q")


def test_reading_its_settings_is_no_use(idle: Idle) -> None:
    assert not idle.outlives(Describe(5, "q"), "q")


def test_an_attached_receiver_keeps_a_queue_and_its_end_begins_the_time(idle: Idle) -> None:
    idle.apply(AttachReceiver(3, "q", False), Credit(3, 10, False))
    idle.step(5 * TEN_MINUTES_MS + 1_234)
    assert idle.namespace.exists("q")
    idle.apply(DetachLink(3))
    idle.step(TEN_MINUTES_MS - 1)
    assert idle.namespace.exists("q")
    idle.step(1)
    assert not idle.namespace.exists("q")


def test_a_receiver_of_its_dead_letters_keeps_a_queue(idle: Idle) -> None:
    idle.apply(AttachReceiver(3, "q/$DeadLetterQueue", False))
    idle.step(5 * TEN_MINUTES_MS)
    assert idle.namespace.exists("q")


def test_who_waits_for_a_session_keeps_a_queue(idle: Idle) -> None:
    settings = temporary()
    settings.requires_session = True
    idle.apply(CreateEntity(5, QUEUE, "sessions", settings))
    idle.apply(AttachReceiver(3, "sessions", False, SessionWish(None, 50 * TEN_MINUTES_MS)))
    idle.step(5 * TEN_MINUTES_MS)
    assert idle.namespace.exists("sessions")


def test_a_scheduled_message_keeps_a_queue(idle: Idle) -> None:
    (answer,) = idle.apply(Schedule(5, "q", [message(b"later", scheduled_ms=idle.now_ms + 3 * TEN_MINUTES_MS)], 5))
    assert isinstance(answer, Scheduled)
    idle.step(2 * TEN_MINUTES_MS)
    assert idle.namespace.exists("q")
    idle.step(TEN_MINUTES_MS)
    idle.step(TEN_MINUTES_MS)
    assert not idle.namespace.exists("q")


def test_what_forwards_is_never_idle_and_where_it_forwards_to_may_be(idle: Idle) -> None:
    settings = temporary()
    settings.forward_to = "q"
    idle.apply(CreateEntity(5, QUEUE, "front", settings))
    idle.step(2 * TEN_MINUTES_MS)
    assert idle.namespace.exists("front") and not idle.namespace.exists("q")


def test_copies_of_its_topic_are_no_use_of_a_subscription(idle: Idle) -> None:
    assert not idle.outlives(send(2), SUB)


@pytest.mark.parametrize(
    "command",
    [Peek(5, SUB, 0, 1), AddRule(5, SUB, Rule("r", TrueFilter(), None, 0)), UpdateEntity(5, SUB, temporary())],
    ids=lambda command: type(command).__name__,
)
def test_this_is_use_of_a_subscription(idle: Idle, command: Command) -> None:
    assert idle.outlives(command, SUB)


def test_a_rule_that_an_administrator_adds_is_use_and_one_that_he_reads_is_none(idle: Idle) -> None:
    idle.step(9 * 60_000)
    for command, is_use in (
        (ListRules(5, SUB, 0, 1), False),
        (AddRule(5, SUB, Rule("r", TrueFilter(), None, 0)), True),
    ):
        command.is_administrative = True
        idle.apply(command)
        assert (idle.used_ms(SUB) == idle.now_ms) is is_use


def test_a_topic_goes_with_all_below_it_and_use_of_a_subscription_is_use_of_its_topic(idle: Idle) -> None:
    idle.apply(UpdateEntity(5, "t", temporary()), UpdateEntity(6, SUB, EntitySettings()))
    idle.step(9 * 60_000)
    idle.apply(Peek(7, SUB, 0, 1))
    idle.step(9 * 60_000)
    assert idle.namespace.exists("t")
    idle.step(60_000)
    assert not idle.namespace.exists("t") and not idle.namespace.exists(SUB)


# -- remembering ------------------------------------------------------------------------------------------------------


def test_the_time_of_the_last_use_outlives_a_restart(idle: Idle) -> None:
    idle.step(8 * 60_000)
    idle.apply(send())
    last_ms = idle.now_ms
    idle.step(1)
    idle.restart()
    assert idle.used_ms("q") == last_ms
    idle.step(TEN_MINUTES_MS - 2)
    assert idle.namespace.exists("q")
    idle.step(1)
    assert not idle.namespace.exists("q")


def test_use_that_changes_nothing_is_remembered_once_a_minute(idle: Idle) -> None:
    written = 0
    for _ in range(120):
        idle.now_ms += 1_000
        decided = idle.namespace.apply([Peek(5, "q", 0, 1)], idle.now_ms)
        written += len(decided.turn.counters)
    assert written == 120_000 // limits.USED_STEP_MS


def test_after_a_start_clients_have_five_minutes_to_come_back(idle: Idle) -> None:
    """A receiver had been attached for long: what it waited for was in use until the broker stopped."""
    idle.apply(AttachReceiver(3, "q", False), Credit(3, 10, False))
    idle.step(TEN_MINUTES_MS + 1)
    idle.now_ms += 100 * TEN_MINUTES_MS
    idle.restart()
    idle.apply()
    assert idle.namespace.exists("q")
    idle.step(limits.AUTO_DELETE_MS_MIN - 1)
    assert idle.namespace.exists("q")
    idle.step(1)
    assert not idle.namespace.exists("q")


def test_who_comes_back_in_time_keeps_it(idle: Idle) -> None:
    idle.now_ms += 100 * TEN_MINUTES_MS
    idle.restart()
    idle.apply()
    idle.apply(AttachReceiver(3, "q", False))
    idle.step(5 * TEN_MINUTES_MS)
    assert idle.namespace.exists("q")
