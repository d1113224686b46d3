"""Duplicate detection: what is dropped, what is not, and for how long (contract H15)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spillway.broker.commands import (
    AttachSender,
    CancelScheduled,
    Command,
    CreateEntity,
    DeleteEntity,
    Schedule,
    Send,
    UpdateEntity,
)
from spillway.broker.effects import Done, Effect, Failed, Load, Scheduled, SendSettled
from spillway.broker.namespace import Namespace
from spillway.model.entity import QUEUE, SUBSCRIPTION, TOPIC, EntitySettings
from spillway.model.errors import ArgumentError, EntityNotFound, QuotaExceeded
from spillway.model.message import BINARY_ID, NEVER, NUMBER_ID, TEXT_ID, UUID_ID, Message
from spillway.model.message_ids import digest_of
from spillway.model.settlement import COMPLETE, DEAD_LETTER, Settlement
from spillway.testing.core import message
from tests.broker.line import SENDER, Line, bodies, delivered

WINDOW_MS = 60_000


def detecting(window_ms: int = WINDOW_MS) -> EntitySettings:
    made = EntitySettings()
    made.requires_duplicate_detection = True
    made.duplicate_window_ms = window_ms
    return made


def named(message_id: str, body: bytes = b"", scheduled_ms: int = NEVER) -> Message:
    return message(body or message_id.encode(), message_id=message_id, scheduled_ms=scheduled_ms)


class Detecting(Line):
    """A line whose queue detects duplicates."""

    def __init__(self, count_max: int = 1_000_000, window_ms: int = WINDOW_MS) -> None:
        self.count_max = count_max
        super().__init__(detecting(window_ms))

    def make_namespace(self, seed: bytes) -> Namespace:
        made = super().make_namespace(seed)
        made.directory.id_budget.count_max = self.count_max
        return made

    def restart(self) -> None:
        super().restart()
        self.apply(AttachSender(SENDER, "q"))

    def schedule(self, *messages: Message) -> list[int]:
        (answer,) = self.apply(Schedule(500, "q", list(messages), 100))
        assert isinstance(answer, Scheduled)
        return answer.sequence_numbers

    def active(self, path: str = "q") -> int:
        return self.namespace.directory.queues[path].counters.active


@pytest.fixture(params=["in memory", "in the index"])
def line(request: pytest.FixtureRequest) -> Detecting:
    return Detecting(1_000_000 if request.param == "in memory" else 0)


def accepted(effects: list[Effect]) -> bool:
    (effect,) = [effect for effect in effects if isinstance(effect, SendSettled)]
    return effect.error is None


# -- what is dropped ------------------------------------------------------------------------------------------------


@pytest.mark.contract("H15")
def test_a_second_message_with_the_same_id_is_accepted_and_dropped(line: Detecting) -> None:
    assert accepted(line.send(named("a", b"first")))
    assert accepted(line.send(named("a", b"second")))
    assert accepted(line.send(named("b", b"third")))
    line.attach()
    assert bodies(line.receive(5)) == [b"first", b"third"]


def test_a_queue_that_does_not_detect_them_keeps_every_message() -> None:
    line = Line()
    line.send(named("a"))
    line.send(named("a"))
    line.attach()
    assert bodies(line.receive(5)) == [b"a", b"a"]


def test_the_window_begins_with_the_first_acceptance_and_ends_to_the_millisecond(line: Detecting) -> None:
    line.send(named("a"))
    line.step(WINDOW_MS // 2)
    line.send(named("a"))  # does not prolong it
    line.step(WINDOW_MS // 2 - 1)
    line.send(named("a"))
    assert line.active() == 1
    line.step(1)
    line.send(named("a"))
    assert line.active() == 2
    line.step(WINDOW_MS - 1)
    line.send(named("a"))
    assert line.active() == 2


def test_each_message_of_a_batch_counts_by_itself_and_against_the_others(line: Detecting) -> None:
    line.send(named("a"))
    assert accepted(line.send(named("b"), named("a"), named("b", b"again"), named("c")))
    line.attach()
    assert bodies(line.receive(9)) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("kind", [COMPLETE, DEAD_LETTER])
def test_an_id_is_not_freed_when_its_message_is_completed_or_dead_lettered(line: Detecting, kind: int) -> None:
    line.send(named("a"))
    line.attach()
    (delivery,) = line.receive()
    line.settle(delivery, Settlement(kind))
    line.send(named("a"))
    assert line.active() == 0


def test_a_ping_takes_no_part(line: Detecting) -> None:
    assert accepted(line.send(message(b"", message_id="p", is_ping=True)))
    assert accepted(line.send(named("p")))
    assert accepted(line.send(message(b"", message_id="p", is_ping=True)))
    assert line.active() == 1


def test_a_refused_send_is_not_remembered(line: Detecting) -> None:
    too_large = named("a", b"x" * 300_000)
    assert not accepted(line.send(named("b"), too_large))
    assert accepted(line.send(named("a")))
    assert accepted(line.send(named("b")))
    assert line.active() == 2


def test_a_duplicate_takes_no_room_and_is_accepted_by_a_full_queue() -> None:
    line = Detecting()
    small = detecting()
    small.max_size_mb = 1
    line.apply(UpdateEntity(901, "q", small))
    for name in "abcd":
        assert accepted(line.send(named(name, b"x" * 262_144)))
    (refused,) = line.send(named("e", b"x"))
    assert isinstance(refused, SendSettled) and isinstance(refused.error, QuotaExceeded)
    assert accepted(line.send(named("a", b"x" * 262_144), named("d", b"x")))
    assert line.active() == 4


def test_ids_of_different_types_are_different_ids() -> None:
    digests = set()
    for kind in (TEXT_ID, NUMBER_ID, UUID_ID, BINARY_ID):
        one = named("5")
        one.message_id_type = kind
        digests.add(digest_of(one, False))
    assert len(digests) == 4


def test_in_a_partitioned_entity_an_id_is_unique_in_its_partition() -> None:
    def digest(message_id: str, session_id: str | None, partition_key: str | None) -> bytes:
        one = named(message_id)
        one.session_id = session_id
        one.partition_key = partition_key
        return digest_of(one, True)

    different = {
        digest("a", None, None),
        digest("a", None, "p"),
        digest("a", None, "q"),
        digest("a", "s", None),
        digest("ak", None, "p"),
        digest("a", None, "kp"),
        digest("akp", None, None),
        digest("a", None, ""),
    }
    assert len(different) == 8
    assert digest("a", "s", "s") == digest("a", "s", None)
    plain = named("a")
    plain.partition_key = "p"
    assert digest_of(plain, False) == digest_of(named("a"), False)


# -- scheduled messages ---------------------------------------------------------------------------------------------


def test_a_scheduled_message_takes_part_from_when_it_is_scheduled(line: Detecting) -> None:
    line.schedule(named("a", scheduled_ms=line.now_ms + 10 * WINDOW_MS))
    line.send(named("a"))
    assert line.active() == 0
    line.step(WINDOW_MS)
    line.send(named("a"))
    assert line.active() == 1


def test_a_scheduled_duplicate_is_answered_with_the_number_of_the_first(line: Detecting) -> None:
    due_ms = line.now_ms + 1_000
    first = line.schedule(named("a", scheduled_ms=due_ms))
    again = line.schedule(named("b", scheduled_ms=due_ms), named("a", scheduled_ms=due_ms), named("b"))
    assert (first, again) == ([1], [2, 1, 2])
    assert isinstance(line.apply(CancelScheduled(501, "q", [1]))[0], Done)
    line.step(2_000)
    line.attach()
    assert bodies(line.receive(9)) == [b"b"]


def test_a_cancelled_message_leaves_its_id_behind(line: Detecting) -> None:
    due_ms = line.now_ms + 1_000
    numbers = line.schedule(named("a", scheduled_ms=due_ms))
    line.apply(CancelScheduled(501, "q", numbers))
    line.send(named("a"))
    assert line.active() == 0
    line.step(WINDOW_MS)
    line.send(named("a"))
    assert line.active() == 1


# -- the life of an entity ------------------------------------------------------------------------------------------


def test_the_window_works_on_after_a_restart(line: Detecting) -> None:
    line.send(named("a"))
    line.step(WINDOW_MS - 1)
    line.send(named("b"))
    line.restart()
    line.send(named("a"))
    line.restart()
    assert line.active() == 2
    line.step(1)
    line.send(named("a"), named("b"))
    assert line.active() == 3


def test_an_entity_made_again_knows_no_ids(line: Detecting) -> None:
    line.send(named("a"))
    line.apply(DeleteEntity(901, "q"))
    assert line.namespace.directory.id_budget.count == 0
    line.apply(CreateEntity(902, QUEUE, "q", detecting()), AttachSender(SENDER, "q"))
    line.send(named("a"))
    assert line.active() == 1
    line.restart()
    line.send(named("a"))
    assert line.active() == 1


def test_a_shorter_window_counts_from_the_next_send(line: Detecting) -> None:
    line.send(named("a"))
    line.step(30_000)
    line.apply(UpdateEntity(901, "q", detecting(20_000)))
    line.send(named("a"))
    assert line.active() == 2
    line.send(named("a"))
    assert line.active() == 2


def test_a_longer_window_counts_from_the_next_send_and_brings_nothing_back(line: Detecting) -> None:
    line.send(named("old"))
    line.step(WINDOW_MS - 1)
    line.send(named("new"))
    line.step(1)
    line.apply(UpdateEntity(901, "q", detecting(10 * WINDOW_MS)))
    line.restart()
    line.send(named("old"), named("new"))
    assert line.active() == 3
    line.step(5 * WINDOW_MS)
    line.send(named("old"), named("new"))
    assert line.active() == 3


def test_detection_cannot_be_turned_on_or_off(line: Detecting) -> None:
    (answer,) = line.apply(UpdateEntity(901, "q", EntitySettings()))
    assert isinstance(answer, Failed) and isinstance(answer.error, ArgumentError)
    assert "RequiresDuplicateDetection" in answer.error.description
    line.apply(CreateEntity(902, TOPIC, "t", EntitySettings()))
    (answer,) = line.apply(UpdateEntity(903, "t", detecting()))
    assert isinstance(answer, Failed) and isinstance(answer.error, ArgumentError)


def test_a_topic_detects_them_before_it_makes_copies(line: Detecting) -> None:
    line.apply(
        CreateEntity(902, TOPIC, "t", detecting()),
        CreateEntity(903, SUBSCRIPTION, "t/Subscriptions/one", EntitySettings()),
        CreateEntity(904, SUBSCRIPTION, "t/Subscriptions/two", EntitySettings()),
        AttachSender(7, "t"),
    )
    line.send(named("a"), named("a"), named("b"), link_id=7)
    line.send(named("a"), link_id=7)
    assert (line.active("t/subscriptions/one"), line.active("t/subscriptions/two")) == (2, 2)
    line.restart()
    line.apply(AttachSender(7, "t"))
    line.send(named("b"), link_id=7)
    assert line.active("t/subscriptions/one") == 2


# -- what it costs --------------------------------------------------------------------------------------------------


def test_ids_outside_the_window_are_forgotten_in_memory_and_in_the_store(line: Detecting) -> None:
    for number in range(100):
        line.send(*[named(f"{number}-{index}") for index in range(100)])
        line.step(100)
    entity = line.journal._entities[1]
    assert len(entity.ids._log) == 10_000
    line.step(WINDOW_MS * 2)
    assert entity.ids._log == [] and entity.ids._index == {}
    duplicates = line.namespace.directory.queues["q"].duplicates
    assert duplicates is not None
    assert (duplicates.count, duplicates.table.held_count, duplicates.due_ms()) == (0, 0, 0)
    assert line.namespace.directory.id_budget.count == 0
    line.send(named("0-0"))
    assert duplicates.due_ms() > line.now_ms


def test_ids_in_the_store_are_forgotten_after_a_restart_though_nobody_sends(line: Detecting) -> None:
    line.send(named("a"), named("b"))
    line.restart()
    line.step(WINDOW_MS * 2)
    assert line.journal._entities[1].ids._log == []


def test_a_start_reads_no_ids_and_the_first_send_reads_them() -> None:
    line = Detecting()
    for number in range(300):
        line.send(*[named(f"{number}-{index}") for index in range(100)])
    line.restart()
    budget = line.namespace.directory.id_budget
    assert budget.count == 0
    line.send(named("7-7"))
    assert budget.count == 30_000
    assert line.active() == 30_000


def test_memory_holds_no_more_ids_than_it_may_and_the_entity_with_the_most_gives_way() -> None:
    line = Detecting(count_max=5_000)
    line.apply(CreateEntity(902, QUEUE, "small", detecting()), AttachSender(7, "small"))
    line.send(*[named(f"s{index}") for index in range(1_000)], link_id=7)
    for number in range(60):
        line.send(*[named(f"{number}-{index}") for index in range(500)])
    directory = line.namespace.directory
    assert directory.id_budget.count <= 5_500
    small = directory.queues["small"].duplicates
    large = directory.queues["q"].duplicates
    assert small is not None and large is not None
    assert (small.count, small.indexed_upto) == (1_000, 0)
    assert large.table.held_count < 12_000
    for number in range(60):
        line.send(*[named(f"{number}-{index}") for index in range(500)])
    line.send(*[named(f"s{index}") for index in range(1_000)], link_id=7)
    assert line.active() == 30_000 and line.active("small") == 1_000


def test_once_what_was_indexed_is_outside_the_window_memory_decides_alone() -> None:
    line = Detecting(count_max=1_000)
    line.send(*[named(f"old{index}") for index in range(4_000)])
    loads = line.namespace.directory.load_numbers
    line.step(WINDOW_MS - 1)
    asked = loads.last
    line.send(named("old1"), named("new"))
    assert (line.active(), loads.last) == (4_001, asked + 1)
    line.step(1)
    asked = loads.last
    line.send(named("old1"), named("newer"), named("new"))
    assert (line.active(), loads.last) == (4_003, asked)


# -- waiting --------------------------------------------------------------------------------------------------------


class Slow(Detecting):
    """The store answers when the test says so."""

    def turn(self, *commands: Command) -> list[Effect]:
        decided = self.namespace.apply(list(commands), self.now_ms)
        self.ticket += 1
        self.journal.submit(decided.turn, self.ticket)
        for effect in decided.effects:
            if isinstance(effect, Load):
                self.journal.load(effect.query, effect.to)
        return [effect for effect in decided.effects if not isinstance(effect, Load)]

    def answer(self) -> list[Effect]:
        said: list[Effect] = []
        while self.answers:
            answers, self.answers = self.answers, []
            decided = self.namespace.apply(answers, self.now_ms)
            self.ticket += 1
            self.journal.submit(decided.turn, self.ticket)
            for effect in decided.effects:
                if isinstance(effect, Load):
                    self.journal.load(effect.query, effect.to)
                else:
                    said.append(effect)
        return said


def send(number: int, *messages: Message) -> Send:
    return Send(SENDER, number, list(messages), False, 10)


def settled(effects: list[Effect]) -> list[int]:
    return [effect.delivery_id for effect in effects if isinstance(effect, SendSettled)]


def test_sends_wait_for_the_ids_of_the_store_in_order_and_are_held_against_the_senders() -> None:
    line = Slow()
    line.send(named("a"))
    line.restart()
    assert line.turn(send(1, named("b", b"x" * 1_000)), send(2, named("a")), send(3, named("b"))) == []
    assert line.turn(send(4, named("c"))) == []
    assert line.namespace.held_bytes > 1_000
    said = line.answer()
    assert settled(said) == [1, 2, 3, 4]
    assert line.namespace.held_bytes == 0
    assert line.active() == 3
    assert settled(line.turn(send(5, named("c")))) == [5]


def test_who_waits_hears_that_the_entity_is_gone() -> None:
    line = Slow()
    line.send(named("a"))
    line.restart()
    line.turn(send(1, named("b")), Schedule(501, "q", [named("c")], 10))
    said = line.turn(DeleteEntity(901, "q"))
    assert [effect.error.__class__ for effect in said if isinstance(effect, Failed)] == [EntityNotFound]
    assert [effect.error.__class__ for effect in said if isinstance(effect, SendSettled)] == [EntityNotFound]
    assert line.namespace.held_bytes == 0
    assert line.answer() == []


def test_a_sweep_that_meets_the_first_read_waits_for_it() -> None:
    line = Slow(window_ms=20_000)
    for number in range(60):
        line.send(*[named(f"{number}-{index}") for index in range(500)])
        line.step(500)
    line.restart()
    line.now_ms += 5_000
    line.turn()  # asks for what is old
    assert line.turn(send(1, named("new"), named("59-0"))) == []
    assert settled(line.answer()) == [1]
    duplicates = line.namespace.directory.queues["q"].duplicates
    assert duplicates is not None
    line.step(60_000)
    assert (duplicates.count, line.journal._entities[1].ids._log) == (0, [])


def test_sends_answered_by_the_index_are_asked_for_together() -> None:
    line = Slow(count_max=0)
    line.send(named("a"), named("b"))
    loads = line.namespace.directory.load_numbers
    before = loads.last
    line.turn(send(1, named("a")))
    line.turn(send(2, named("c")), send(3, named("b")), send(4, named("d")))
    line.turn(send(5, named("e")))
    assert settled(line.answer()) == [1, 2, 3, 4, 5]
    assert line.active() == 5
    assert loads.last - before <= 6


# -- forwarding -----------------------------------------------------------------------------------------------------


def forwarding(target: str) -> EntitySettings:
    made = EntitySettings()
    made.forward_to = target
    return made


def source(line: Line, target: str) -> None:
    line.apply(CreateEntity(910, QUEUE, "source", forwarding(target)), AttachSender(9, "source"))


def test_a_forwarded_duplicate_is_gone_from_both(line: Detecting) -> None:
    source(line, "q")
    line.send(named("a"), named("b"), named("a"), link_id=9)
    line.send(named("b"))
    line.send(named("b"), named("c"), link_id=9)
    line.attach()
    assert bodies(line.receive(9)) == [b"a", b"b", b"c"]
    assert line.active("source") == 0
    assert line.namespace.directory.queues["source"].counters.size_bytes == 0


def test_a_topic_drops_what_is_forwarded_to_it_twice(line: Detecting) -> None:
    line.apply(
        CreateEntity(902, TOPIC, "t", detecting()),
        CreateEntity(903, SUBSCRIPTION, "t/Subscriptions/one", EntitySettings()),
    )
    source(line, "t")
    line.send(named("a"), named("a"), named("b"), link_id=9)
    line.restart()
    line.apply(AttachSender(9, "source"))
    line.send(named("b"), named("c"), link_id=9)
    assert (line.active("t/subscriptions/one"), line.active("source")) == (3, 0)


def test_what_waits_to_be_forwarded_is_forwarded_in_order_once_the_ids_are_known() -> None:
    line = Slow()
    source(line, "q")
    line.send(named("a"))
    line.restart()
    line.apply(AttachSender(9, "source"))
    line.turn(Send(9, 1, [named("b"), named("a"), named("c")], False, 10))
    line.turn(Send(9, 2, [named("d")], False, 10), send(3, named("e")))
    assert line.active("source") == 4
    line.answer()
    line.apply()
    line.attach()
    assert bodies(line.receive(9)) == [b"a", b"b", b"c", b"e", b"d"]
    assert line.active("source") == 0


@pytest.mark.parametrize("change", ["target deleted", "source deleted", "switched off", "off and on", "changed"])
def test_whatever_happens_while_they_wait_they_are_in_one_place(change: str) -> None:
    line = Slow()
    source(line, "q")
    line.apply(CreateEntity(911, QUEUE, "other", EntitySettings()))
    line.send(named("a"))
    line.restart()
    line.apply(AttachSender(9, "source"))
    line.turn(Send(9, 1, [named("b"), named("a"), named("c")], False, 10))
    if change == "target deleted":
        line.turn(DeleteEntity(901, "q"))
    elif change == "source deleted":
        line.turn(DeleteEntity(901, "source"))
    elif change == "switched off":
        line.turn(UpdateEntity(901, "source", EntitySettings()))
    elif change == "off and on":
        line.turn(UpdateEntity(901, "source", EntitySettings()), UpdateEntity(902, "source", forwarding("q")))
    else:
        line.turn(UpdateEntity(901, "source", forwarding("other")))
    line.answer()
    line.apply()
    queues = line.namespace.directory.queues
    counts = {path: queues[path].counters.active for path in queues}
    dead = "source/$deadletterqueue"
    expected = {
        "target deleted": {"source": 0, dead: 3, "other": 0},
        "source deleted": {"q": 1, "other": 0},
        "switched off": {"q": 1, "source": 3, dead: 0, "other": 0},
        "off and on": {"q": 3, "source": 0, dead: 0, "other": 0},
        "changed": {"q": 1, "source": 0, dead: 0, "other": 3},
    }[change]
    assert {path: counts[path] for path in expected} == expected
    if change == "switched off":
        line.attach(path="source")
        assert bodies(line.receive(9)) == [b"b", b"a", b"c"]


# -- against a plain model --------------------------------------------------------------------------------------------


class Model:
    """What the window means, without memory, store or index."""

    def __init__(self) -> None:
        self.window_ms = WINDOW_MS
        self.since_ms = -1
        self.accepted: dict[str, int] = {}
        self.bodies: list[bytes] = []

    def send(self, names: list[str], now_ms: int, number: int) -> None:
        for index, name in enumerate(names):
            at_ms = self.accepted.get(name)
            if at_ms is not None and at_ms > max(now_ms - self.window_ms, self.since_ms):
                continue
            self.accepted[name] = now_ms
            self.bodies.append(f"{number}/{index}/{name}".encode())


NAMES = st.lists(st.sampled_from("abcdefghijkl"), min_size=1, max_size=6)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), NAMES),
        st.tuples(st.just("send"), NAMES),
        st.tuples(st.just("schedule"), NAMES),
        st.tuples(st.just("step"), st.sampled_from([1, 999, 7_000, WINDOW_MS // 2, WINDOW_MS - 1, WINDOW_MS])),
        st.tuples(st.just("restart"), st.none()),
        st.tuples(st.just("window"), st.sampled_from([20_000, WINDOW_MS, 3 * WINDOW_MS])),
        st.tuples(st.just("again"), st.none()),
        st.tuples(st.just("index"), st.integers(0, 8)),
    ),
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_whatever_happens_it_does_what_a_plain_model_does(steps: list[tuple[str, object]]) -> None:
    line = Detecting()
    model = Model()
    for number, (kind, what) in enumerate(steps):
        if kind in ("send", "schedule"):
            assert isinstance(what, list)
            messages = [named(name, f"{number}/{index}/{name}".encode()) for index, name in enumerate(what)]
            if kind == "send":
                assert accepted(line.send(*messages))
            else:
                line.schedule(*messages)
            model.send(what, line.now_ms, number)
        elif kind == "step":
            assert isinstance(what, int)
            line.step(what)
        elif kind == "restart":
            line.restart()
        elif kind == "window":
            assert isinstance(what, int)
            line.apply(UpdateEntity(901, "q", detecting(what)))
            model.since_ms = max(model.since_ms, line.now_ms - model.window_ms)
            model.window_ms = what
        elif kind == "index":
            assert isinstance(what, int)
            line.count_max = line.namespace.directory.id_budget.count_max = what
        else:
            line.apply(DeleteEntity(901, "q"), CreateEntity(902, QUEUE, "q", detecting()), AttachSender(SENDER, "q"))
            model = Model()
    line.attach()
    assert bodies(delivered(line.credit(1_000))) == model.bodies
    line.step(10 * WINDOW_MS)
    assert all(not entity.ids._log and not entity.ids._index for entity in line.journal._entities.values())
    assert line.namespace.directory.id_budget.count == 0
