"""Thousands of message sessions: found page by page, read many at a time, none passed over and none given out empty."""

import random

import pytest

from spillway.broker.commands import (
    AttachReceiver,
    AttachSender,
    Command,
    CreateEntity,
    Credit,
    DetachLink,
    InjectFault,
    Send,
    SessionWish,
    Settle,
)
from spillway.broker.effects import Attached, Deliver, Effect, Load
from spillway.model.entity import QUEUE, EntitySettings
from spillway.model.faults import Fault
from spillway.model.limits import SESSIONS_PER_LOAD
from spillway.model.records import LoadActive, LoadActiveOfSessions, LoadSessions, Query
from spillway.model.settlement import ABANDON, COMPLETE, Settlement
from spillway.testing.core import CoreHarness, message

WAIT_MS = 3_600_000


class Hall(CoreHarness):
    """A queue `q` that requires sessions; sender link 1. The store answers when the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        settings = EntitySettings()
        settings.requires_session = True
        settings.max_delivery_count = 1_000_000
        self.asked: list[Query] = []
        self.held: list[Load] = []
        self.is_held = False
        self.now(CreateEntity(900, QUEUE, "q", settings), AttachSender(1, "q"))

    def now(self, *commands: Command) -> list[Effect]:
        """One turn; its loads are answered at once unless they are held."""
        said: list[Effect] = []
        todo = list(commands)
        while True:
            decided = self.namespace.apply(todo, self.now_ms)
            self.ticket += 1
            self.journal.submit(decided.turn, self.ticket)
            for effect in decided.effects:
                if isinstance(effect, Load):
                    self.asked.append(effect.query)
                    self.journal.load(effect.query, effect.to)  # it sees exactly the turns so far
                else:
                    said.append(effect)
            if self.is_held or not self.answers:
                return said
            todo, self.answers = self.answers, []

    def let_go(self) -> list[Effect]:
        answers, self.answers = self.answers, []
        return self.now(*answers)

    def send(self, session_id: str, count: int = 1) -> None:
        self.now(Send(1, 1, [message(session_id=session_id) for _ in range(count)], False, 10))

    def accept(self, link_id: int, session_id: str | None = None) -> list[Effect]:
        return self.now(AttachReceiver(link_id, "q", False, SessionWish(session_id, WAIT_MS)))


def given(said: list[Effect]) -> dict[int, str]:
    """By link, the session it got."""
    return {one.to: one.session_id or "" for one in said if isinstance(one, Attached)}


def delivered(said: list[Effect]) -> list[Deliver]:
    return [one for one in said if isinstance(one, Deliver)]


@pytest.fixture
def hall() -> Hall:
    return Hall()


def test_many_sessions_are_accepted_and_read_with_few_loads(hall: Hall) -> None:
    for number in range(1_000):
        hall.send(f"s{number}", 2)
    hall.asked.clear()
    wishes = [AttachReceiver(100 + number, "q", False, SessionWish(None, WAIT_MS)) for number in range(1_000)]
    got = given(hall.now(*wishes))
    assert [got[100 + number] for number in range(1_000)] == [f"s{number}" for number in range(1_000)]
    said = hall.now(*[Credit(link_id, 5, False) for link_id in got])
    assert len(delivered(said)) == 2_000
    for delivery in delivered(said):
        assert delivery.stored.session_id == got[delivery.to]
    assert len([query for query in hall.asked if isinstance(query, LoadSessions)]) == 1_000 // SESSIONS_PER_LOAD
    assert len([query for query in hall.asked if isinstance(query, LoadActiveOfSessions)]) <= 11
    assert not any(isinstance(query, LoadActive) for query in hall.asked)


def test_sessions_that_are_held_are_not_looked_at_again_and_again(hall: Hall) -> None:
    for number in range(SESSIONS_PER_LOAD * 3):
        hall.send(f"s{number}")
    for link_id in range(100, 100 + SESSIONS_PER_LOAD * 3):
        assert given(hall.accept(link_id)) == {link_id: f"s{link_id - 100}"}
    looks = [query for query in hall.asked if isinstance(query, LoadSessions)]
    assert len(looks) == SESSIONS_PER_LOAD * 3


def test_a_session_given_back_with_messages_is_the_next_although_later_ones_were_found(hall: Hall) -> None:
    for name in ("a", "b", "c"):
        hall.send(name, 3)
    assert given(hall.accept(10)) == {10: "a"}
    assert given(hall.accept(11)) == {11: "b"}
    (first, _, _) = delivered(hall.now(Credit(10, 3, False)))
    hall.now(Settle(10, 1, first.lock_token, Settlement(COMPLETE), True))
    hall.now(DetachLink(10))
    assert given(hall.accept(12)) == {12: "a"}
    assert given(hall.accept(13)) == {13: "c"}


def test_a_session_that_nobody_received_from_is_found_again(hall: Hall) -> None:
    hall.send("a")
    hall.send("b")
    assert given(hall.accept(10)) == {10: "a"}
    hall.now(DetachLink(10))
    assert given(hall.accept(11)) == {11: "a"}


def test_a_session_given_back_while_the_next_is_looked_for_is_not_lost(hall: Hall) -> None:
    """The answer is older than that it was given back."""
    hall.send("a", 2)
    assert given(hall.accept(10, "a")) == {10: "a"}
    hall.is_held = True
    assert given(hall.accept(11)) == {}
    hall.now(DetachLink(10))
    hall.is_held = False
    assert given(hall.let_go()) == {11: "a"}


def test_a_session_emptied_while_the_next_is_looked_for_is_not_given_out(hall: Hall) -> None:
    """The answer is older than that it was emptied: its receiver would wait in vain."""
    hall.send("a")
    assert given(hall.accept(10, "a")) == {10: "a"}
    (delivery,) = delivered(hall.now(Credit(10, 1, False)))
    hall.is_held = True
    assert given(hall.accept(11)) == {}
    hall.now(Settle(10, 1, delivery.lock_token, Settlement(COMPLETE), True))
    hall.now(DetachLink(10))
    hall.is_held = False
    assert given(hall.let_go()) == {}
    hall.send("b")
    assert hall.namespace.links.receivers.by_number[11].lane.session_id == "b"


def test_a_session_that_was_hidden_is_found_although_later_ones_were(hall: Hall) -> None:
    hall.now(InjectFault(901, Fault("hidden", "q", delay_ms=60_000, count=1)))
    hall.send("hidden")
    hall.send("later")
    assert given(hall.accept(10)) == {10: "later"}
    hall.now_ms += 60_000
    hall.now()
    assert given(hall.accept(11)) == {11: "hidden"}


def test_large_sessions_do_not_keep_others_waiting_for_the_whole_of_them(hall: Hall) -> None:
    hall.send("large", 2_000)
    for number in range(9):
        hall.send(f"small{number}")
    wishes = [AttachReceiver(100 + number, "q", False, SessionWish(None, WAIT_MS)) for number in range(10)]
    got = given(hall.now(*wishes))
    hall.asked.clear()
    hall.is_held = True
    hall.now(*[Credit(link_id, 2_000, False) for link_id in got])
    said = hall.let_go() + hall.let_go()
    links = {delivery.to for delivery in delivered(said)}
    assert links == set(got)


def test_a_message_abandoned_comes_first_again(hall: Hall) -> None:
    hall.send("a", 5)
    hall.send("b", 5)
    assert given(hall.accept(10)) == {10: "a"}
    assert given(hall.accept(11)) == {11: "b"}
    first, *_ = delivered(hall.now(Credit(10, 2, False), Credit(11, 2, False)))
    said = hall.now(
        Settle(10, 1, first.lock_token, Settlement(ABANDON), True), Credit(10, 4, False), Credit(11, 4, False)
    )
    numbers = [delivery.stored.sequence_number for delivery in delivered(said) if delivery.to == 10]
    assert numbers == [first.stored.sequence_number, 3]


@pytest.mark.parametrize("seed", range(6))
def test_whatever_comes_between_every_message_is_received_once(hall: Hall, seed: int) -> None:
    """Answers of the store come late; receivers give up sessions half read; senders go on."""
    chance = random.Random(seed)
    held: dict[int, dict[bytes, int]] = {}  # by link, the locks of its session
    handed: dict[int, int] = {}
    done: set[int] = set()
    sent = 0
    next_link = 100
    waiting = 0

    def hear(said: list[Effect]) -> None:
        nonlocal waiting
        for effect in said:
            if isinstance(effect, Attached):
                waiting -= 1
                held[effect.to] = {}
                handed[effect.to] = 0
            elif isinstance(effect, Deliver):
                handed[effect.to] += 1
                held[effect.to][effect.lock_token] = effect.stored.sequence_number

    def complete_all(link_id: int) -> None:
        for token, number in held[link_id].items():
            assert number not in done, "received twice"
            done.add(number)
            hear(hall.now(Settle(link_id, 1, token, Settlement(COMPLETE), True)))
        held[link_id] = {}

    for step in range(1_500):
        hall.is_held = step < 1_300 and chance.random() < 0.7
        roll = chance.random()
        if step < 1_000 and roll < 0.25:
            sent += 1
            hear(hall.now(Send(1, 1, [message(session_id=f"s{chance.randrange(40)}")], False, 10)))
        elif roll < 0.45 and waiting + len(held) < 8:
            next_link += 1
            waiting += 1
            hear(hall.accept(next_link))
        elif roll < 0.7 and held:
            link_id = chance.choice(list(held))
            hear(hall.now(Credit(link_id, handed[link_id] + chance.randrange(1, 4), False)))
        elif roll < 0.85 and held:
            complete_all(chance.choice(list(held)))
        elif held:
            link_id = chance.choice(list(held))
            del held[link_id]
            hear(hall.now(DetachLink(link_id)))
        hear(hall.let_go())
    hall.is_held = False
    for link_id in list(held):
        del held[link_id]
        hear(hall.now(DetachLink(link_id)))
    while True:  # whoever still waits gets what is left, and so do others
        if waiting == 0:
            next_link += 1
            waiting += 1
            hear(hall.accept(next_link))
        if not held:
            break
        for link_id in list(held):
            hear(hall.now(Credit(link_id, handed[link_id] + 1_000, False)))
            complete_all(link_id)
            del held[link_id]
            hear(hall.now(DetachLink(link_id)))
    assert len(done) == sent
