"""A turn is bounded in work: what one command asks for is done in as many turns as it takes, others go on between."""

import pytest

from spillway.broker.commands import (
    AttachReceiver,
    AttachSender,
    Command,
    CreateEntity,
    Credit,
    DeleteEntity,
    Send,
    SessionWish,
    Settle,
)
from spillway.broker.decided import Decided
from spillway.broker.effects import Attached, Deliver, Load, SendSettled, SettlementAnswered
from spillway.broker.namespace import Namespace
from spillway.dialect.properties import EncodedAccess
from spillway.model import limits
from spillway.model.entity import QUEUE, SUBSCRIPTION, TOPIC, EntitySettings
from spillway.model.errors import MessageLockLost
from spillway.model.records import MessageAdded, MessageChanged
from spillway.model.rule_values import rule_value
from spillway.model.rules import Rule, SqlFilter
from spillway.model.settlement import COMPLETE, Settlement
from spillway.testing.core import CoreHarness, message
from tests.broker.test_topics import made, text_of

SENDER, BESIDE, RECEIVER = 1, 2, 3


class Slow(CoreHarness):
    """One call of the core at a time, so that a test can look at each turn. A queue `beside` stands for all others."""

    def make_namespace(self, seed: bytes) -> Namespace:
        return Namespace("test", self.journal.recover(), seed, EncodedAccess())

    def __init__(self) -> None:
        super().__init__()
        self.make(QUEUE, "beside")
        self.apply(AttachSender(BESIDE, "beside"))
        self.turns: list[Decided] = []

    def make(self, kind: str, path: str, settings: EntitySettings | None = None) -> None:
        self.apply(CreateEntity(900, kind, path, settings or EntitySettings()))

    def turn(self, *commands: Command) -> Decided:
        todo = [*self.answers, *commands]
        self.answers = []
        decided = self.namespace.apply(todo, self.now_ms)
        self.ticket += 1
        if not decided.turn.is_empty():
            self.journal.submit(decided.turn, self.ticket)
        for effect in decided.effects:
            if isinstance(effect, Load):
                self.journal.load(effect.query, effect.to)
        self.turns.append(decided)
        return decided

    def is_busy(self) -> bool:
        return bool(self.answers) or self._is_due()

    def beside(self) -> Send:
        return Send(BESIDE, 99, [message(b"beside")], False, 6)

    def run(self) -> int:
        """Turn by turn until nothing is left to do; a neighbour sends in each of them and is answered in the same."""
        count = 0
        while self.is_busy():
            decided = self.turn(self.beside())
            assert [e.error for e in decided.effects if isinstance(e, SendSettled) and e.to == BESIDE] == [None]
            count += 1
            assert count < 10_000
        return count

    def answers_to(self, link_id: int) -> list[int]:
        return [
            e.delivery_id for each in self.turns for e in each.effects if isinstance(e, SendSettled) and e.to == link_id
        ]


def subscriptions(core: Slow, count: int, expression: str | None = None) -> None:
    core.make(TOPIC, "t")
    for number in range(count):
        settings = EntitySettings()
        if expression is not None:
            settings.rules = [Rule("r", SqlFilter(expression), None, 0)]
        core.make(SUBSCRIPTION, f"t/Subscriptions/s{number}", settings)
    core.apply(AttachSender(SENDER, "t"))


def copies_in(decided: Decided) -> int:
    return sum(type(record) is MessageAdded for group in decided.turn.groups for record in group)


def received(core: Slow, path: str, count: int) -> list[str]:
    said = core.apply(AttachReceiver(RECEIVER, path, True), Credit(RECEIVER, count, False))
    return [text_of(e.stored.message) for e in said if isinstance(e, Deliver)]


COPIES_AT_ONCE_MAX = limits.STEPS_PER_TURN_MAX // limits.COPY_STEPS
COPIES_MAX = limits.CHORE_STEPS_PER_TURN_MAX // limits.COPY_STEPS


def test_a_batch_to_many_subscriptions_is_published_in_turns_and_answered_when_the_last_copy_is_made() -> None:
    core = Slow()
    subscriptions(core, 50)
    batch = [made(f"n={number}") for number in range(300)]
    first = core.turn(Send(SENDER, 7, batch, False, 1_000), core.beside())
    assert copies_in(first) <= COPIES_AT_ONCE_MAX + 300 + 1  # what was published, and all others with the schedule
    assert core.answers_to(SENDER) == []
    assert core.answers_to(BESIDE) == [99]
    turns = core.run()
    assert turns >= (300 * 50 - COPIES_AT_ONCE_MAX) // (COPIES_MAX + 50)  # it was one
    assert max(copies_in(each) for each in core.turns[1:]) <= COPIES_MAX + 50 + 1
    assert core.answers_to(SENDER) == [7]
    assert isinstance([e for e in core.turns[-1].effects if isinstance(e, SendSettled)][0], SendSettled)
    for path in ("t/Subscriptions/s0", "t/Subscriptions/s49"):
        assert received(core, path, 400) == [f"n={number}" for number in range(300)]
    topic = core.namespace.directory.topics["t"]
    assert (topic.counters.scheduled, topic.put_off_upto, topic.owed, topic.usage.size_bytes > 0) == (0, 0, {}, True)


def test_what_is_sent_after_it_keeps_its_place() -> None:
    core = Slow()
    subscriptions(core, 50)
    core.turn(Send(SENDER, 1, [made(f"n={number}") for number in range(100)], False, 1_000))
    core.turn(Send(SENDER, 2, [made("n=100")], False, 10))
    assert core.answers_to(SENDER) == []
    core.run()
    assert core.answers_to(SENDER) == [1, 2]
    core.turns.clear()
    core.turn(Send(SENDER, 3, [made("n=101")], False, 10))
    assert core.answers_to(SENDER) == [3], "published at once again"
    assert received(core, "t/Subscriptions/s7", 200) == [f"n={number}" for number in range(102)]


@pytest.mark.parametrize("turns", [0, 1, 2, 5])
def test_a_crash_halfway_loses_no_message_and_no_copy_and_makes_none_twice(turns: int) -> None:
    core = Slow()
    subscriptions(core, 50)
    core.turn(Send(SENDER, 7, [made(f"n={number}") for number in range(100)], False, 1_000))
    for _ in range(turns):
        core.turn()
    core.restart()
    core.apply(AttachSender(SENDER, "t"))
    core.apply(Send(SENDER, 8, [made("n=100")], False, 10))
    for number in (0, 25, 49):
        assert received(core, f"t/Subscriptions/s{number}", 200) == [f"n={n}" for n in range(101)]


def test_filters_are_tried_as_far_as_a_turn_goes_and_nothing_is_written_before_the_last() -> None:
    core = Slow()
    core.make(TOPIC, "t")
    core.make(QUEUE, "beside")
    for number in range(40):  # no two of them ask the same
        settings = EntitySettings()
        start = "_" * (number % 10) + "a_" * (4 + number // 10)
        likes = " OR ".join(f"p LIKE '%{start}{char}%'" for char in "bcdefghijklmnopqrstu")
        settings.rules = [Rule("r", SqlFilter(f"{likes} OR n = 1"), None, 0)]
        core.make(SUBSCRIPTION, f"t/Subscriptions/s{number}", settings)
    core.apply(AttachSender(SENDER, "t"), AttachSender(BESIDE, "beside"))
    text = "bcdefghijklmnopqrstu" + "a" * 30_980  # each of them is there, and nowhere behind an a
    core.run()
    core.turns.clear()
    core.turn(Send(SENDER, 7, [made(f"n=1 p={text}")], False, 31_000), core.beside())
    assert core.answers_to(BESIDE) == [99]
    turns = core.run()
    one_rule = limits.RULE_STEPS + 1_024 + 5_000  # read at first, and one LIKE
    assert turns >= 3  # it was one: 40 rules through 31,000 characters, 20 times each
    for decided in core.turns:
        assert decided.filters_left >= -one_rule
        assert decided.steps_left >= limits.STEPS_PER_TURN_MAX - limits.FILTER_STEPS_PER_TURN_MAX - one_rule
        assert decided.chores_left >= -one_rule - 40 * limits.COPY_STEPS
    assert core.answers_to(SENDER) == [7]
    assert [copies_in(each) for each in core.turns if copies_in(each) > 1][-1] == 40 + 1  # and the neighbour's
    assert len(received(core, "t/Subscriptions/s39", 10)) == 1


def test_a_rule_that_takes_long_goes_on_where_the_turn_before_left_it() -> None:
    core = Slow()
    core.make(TOPIC, "t")
    likes = " OR ".join(f"p LIKE @p{number}" for number in range(30))
    values = {f"@p{number}": rule_value("%" + "a_" * (480 + number) + "_a%") for number in range(30)}
    for name, last in (("s0", "n = 1"), ("s1", "n = 2")):
        settings = EntitySettings()
        settings.rules = [Rule("r", SqlFilter(f"{likes} OR {last}", values), None, 0)]
        core.make(SUBSCRIPTION, f"t/Subscriptions/{name}", settings)
    core.apply(AttachSender(SENDER, "t"))
    core.run()
    core.turns.clear()
    core.turn(Send(SENDER, 7, [made("n=1 p=" + "ab" * 15_500)], False, 31_000), core.beside())
    turns = core.run()
    assert turns >= 8  # 30 LIKEs of some 1,100 steps each, and 30 answers that are known for the second rule
    for decided in core.turns:
        assert decided.filters_left >= -2_000 - limits.RULE_STEPS - 1_024
    assert core.answers_to(SENDER) == [7]
    assert len(received(core, "t/Subscriptions/s0", 10)) == 1
    assert received(core, "t/Subscriptions/s1", 10) == []


def test_a_rule_is_read_when_it_is_first_tried_and_only_so_many_of_them_in_a_turn() -> None:
    core = Slow()
    subscriptions(core, 200, "n = 1")
    core.restart()
    core.apply(AttachSender(SENDER, "t"), AttachSender(BESIDE, "beside"))
    core.turns.clear()
    core.turn(Send(SENDER, 7, [made("n=1")], False, 10))
    topic = core.namespace.directory.topics["t"]
    read = sum(one.rules.compiled[0] is not None for one in topic.subscriptions.values())
    assert read <= limits.FILTER_STEPS_PER_TURN_MAX // limits.RULE_STEPS + 1
    core.run()
    assert core.answers_to(SENDER) == [7]


def test_senders_hear_when_the_topic_goes_before_it_has_published() -> None:
    core = Slow()
    subscriptions(core, 50)
    core.turn(Send(SENDER, 7, [made(f"n={number}") for number in range(100)], False, 1_000))
    core.turn(DeleteEntity(901, "t"))
    errors = [e.error for e in core.turns[-1].effects if isinstance(e, SendSettled) and e.to == SENDER]
    assert len(errors) == 1
    assert errors[0] is not None
    core.run()


def test_no_more_happens_by_itself_while_the_store_is_behind() -> None:
    core = Slow()
    subscriptions(core, 50)
    core.turn(Send(SENDER, 7, [made(f"n={number}") for number in range(100)], False, 1_000))
    core.turn()
    core.turn()
    core.namespace.is_store_behind = True
    for _ in range(3):
        assert copies_in(core.turn(core.beside())) == 1
    assert not core._is_due(), "it waits for the store and does not spin"
    core.namespace.is_store_behind = False
    assert core._is_due()
    core.run()
    assert core.answers_to(SENDER) == [7]


# -- locks -------------------------------------------------------------------------------------------------------------

LOCKS_MAX = limits.CHORE_STEPS_PER_TURN_MAX // limits.LOCK_STEPS


def lock_all(core: Slow, count: int, session: SessionWish | None = None) -> list[Deliver]:
    core.apply(AttachSender(SENDER, "q"))
    for first in range(0, count, 500):
        batch = [message(b"%d" % n, session_id=None if session is None else "s") for n in range(first, first + 500)]
        core.apply(Send(SENDER, 1, batch, False, 10))
    said = core.apply(AttachReceiver(RECEIVER, "q", False, session), Credit(RECEIVER, count, False))
    locked = [effect for effect in said if isinstance(effect, Deliver)]
    assert len(locked) == count
    return locked


def lost_in(decided: Decided) -> int:
    return sum(type(record) is MessageChanged for group in decided.turn.groups for record in group)


def test_locks_that_end_together_are_lost_some_hundred_a_turn() -> None:
    core = Slow()
    core.make(QUEUE, "q")
    locked = lock_all(core, 3_000)
    core.now_ms += limits.LOCK_DURATION_MS_DEFAULT
    core.turns.clear()
    turns = core.run()
    assert turns >= 3_000 // LOCKS_MAX
    assert max(lost_in(decided) for decided in core.turns) <= LOCKS_MAX  # it was 3,000
    assert sum(lost_in(decided) for decided in core.turns) == 3_000
    again = core.apply(Credit(RECEIVER, 3_000 + len(locked), False))
    assert {e.stored.delivery_count for e in again if isinstance(e, Deliver)} == {1}


def test_a_lock_that_has_ended_is_no_lock_though_others_are_lost_before_it() -> None:
    core = Slow()
    core.make(QUEUE, "q")
    locked = lock_all(core, 2_000)
    core.now_ms += limits.LOCK_DURATION_MS_DEFAULT
    core.turns.clear()
    decided = core.turn(Settle(RECEIVER, 5, locked[-1].lock_token, Settlement(COMPLETE), False))
    (settled,) = [effect for effect in decided.effects if isinstance(effect, SettlementAnswered)]
    assert isinstance(settled.error, MessageLockLost)
    core.run()
    assert sum(lost_in(decided) for decided in core.turns) == 2_000


def test_the_locks_of_a_session_end_some_hundred_a_turn_and_it_is_nobodys_until_the_last() -> None:
    core = Slow()
    settings = EntitySettings()
    settings.requires_session = True
    core.make(QUEUE, "q", settings)
    locked = lock_all(core, 2_000, SessionWish("s", 0))
    core.now_ms += limits.LOCK_DURATION_MS_DEFAULT
    core.turns.clear()
    decided = core.turn(Settle(RECEIVER, 5, locked[-1].lock_token, Settlement(COMPLETE), False))
    (settled,) = [effect for effect in decided.effects if isinstance(effect, SettlementAnswered)]
    assert isinstance(settled.error, MessageLockLost)
    core.run()
    assert max(lost_in(decided) for decided in core.turns) <= LOCKS_MAX + 1
    assert sum(lost_in(decided) for decided in core.turns) == 2_000
    said = core.apply(AttachReceiver(4, "q", False, SessionWish("s", 0)), Credit(4, 10, False))
    assert isinstance(said[0], Attached)
    assert [e.stored.delivery_count for e in said if isinstance(e, Deliver)] == [1] * 10


def test_an_answer_is_not_lost_that_came_while_a_sweep_was_asked_about() -> None:
    """Scheduled while the store is asked what is due: it is not in the answer."""
    core = Slow()
    core.make(QUEUE, "q")
    core.apply(AttachSender(SENDER, "q"), Send(SENDER, 1, [message(b"1", scheduled_ms=core.now_ms + 1_000)], False, 1))
    core.now_ms += 1_000
    core.turn()  # asks
    held = core.answers
    core.answers = []
    core.turn(Send(SENDER, 2, [message(b"2", scheduled_ms=core.now_ms + 500)], False, 1))
    core.answers = held
    core.run()
    core.now_ms += 500
    core.run()
    said = core.apply(AttachReceiver(RECEIVER, "q", True), Credit(RECEIVER, 10, False))
    assert [e.stored.message.raw for e in said if isinstance(e, Deliver)] == [b"1", b"2"]
