"""A sender that outruns the receivers of its queue is held for a moment, and never for longer."""

import random
from collections import deque

import pytest

from spillway.broker.commands import (
    AttachReceiver,
    AttachSender,
    Command,
    CreateEntity,
    Credit,
    DetachLink,
    Send,
    Settle,
)
from spillway.broker.effects import Deliver, Effect, Paced, SendSettled
from spillway.broker.pace import PAUSE_MS, SENDERS_MAX, SLOT_MS, Pace, may_pause
from spillway.model import limits
from spillway.model.entity import QUEUE, EntitySettings
from spillway.model.settlement import COMPLETE, Settlement
from spillway.testing.core import CoreHarness, message
from tests.broker.line import SENDER, Line

HALF = limits.RESIDENT_MESSAGES_MAX // 2
DONE = Settlement(COMPLETE)


def paced(effects: list[Effect]) -> list[tuple[int, bool]]:
    return [(effect.to, effect.is_held) for effect in effects if isinstance(effect, Paced)]


def test_deliveries_are_expected_to_go_on_as_in_the_last_tenth_of_a_second() -> None:
    pace = Pace()
    assert pace.soon(10_000) == 0
    pace.count(30, 10_000)
    pace.count(20, 10_000 + SLOT_MS - 1)
    assert pace.soon(10_000 + SLOT_MS - 1) == 50
    pace.count(5, 10_000 + SLOT_MS)
    assert pace.soon(10_000 + SLOT_MS) == 50  # the slot has only begun
    assert pace.soon(10_000 + 3 * SLOT_MS) == 0  # nobody takes any more
    pace.count(1, 10_000 + 9 * SLOT_MS)
    assert pace.soon(10_000 + 9 * SLOT_MS) == 1


def held_line() -> Line:
    """Half a window waits, and a receiver has just taken a quarter of one."""
    line = Line()
    line.attach()
    line.send_many(HALF)
    assert paced(line.credit(HALF // 2)) == []
    assert paced(line.send(*[message() for _ in range(HALF // 2)])) == [(SENDER, True)]
    return line


def test_a_sender_that_fills_half_the_window_beside_a_quick_receiver_is_held_once() -> None:
    line = held_line()
    assert paced(line.send()) == []


def test_it_is_released_when_little_waits() -> None:
    line = held_line()
    line.step(10)
    assert paced(line.credit(HALF // 2)) == []
    assert paced(line.credit(HALF // 2)) == [(SENDER, False)]


def test_it_is_released_after_a_moment_whatever_waits() -> None:
    line = held_line()
    assert paced(line.step(PAUSE_MS - 1)) == []
    assert paced(line.step(1)) == [(SENDER, False)]
    assert paced(line.step(10_000)) == []


def test_it_is_held_again_while_the_receiver_goes_on() -> None:
    line = held_line()
    line.step(PAUSE_MS - 1)
    line.credit(300)
    assert paced(line.step(1)) == [(SENDER, False)]
    assert paced(line.send(*[message() for _ in range(300)])) == [(SENDER, True)]


def test_nobody_waits_for_a_receiver_that_does_not_exist() -> None:
    line = Line()
    line.send_many(2 * limits.RESIDENT_MESSAGES_MAX)
    assert paced(line.send()) == []


def test_nobody_waits_for_a_receiver_that_takes_nothing() -> None:
    line = Line()
    line.attach()
    line.send_many(HALF)
    line.credit(HALF // 2)
    line.step(2 * SLOT_MS)
    assert paced(line.send(*[message() for _ in range(HALF)])) == []


def test_nobody_waits_for_a_receiver_that_is_much_too_slow() -> None:
    line = Line()
    line.attach()
    line.send_many(HALF)
    line.credit(HALF // 100)
    assert paced(line.send()) == []


def test_what_the_store_has_is_waited_for_too() -> None:
    """Else every message goes by the store for as long as the sender is as quick as the receiver."""
    line = Line()
    line.send_many(limits.RESIDENT_MESSAGES_MAX + 1_000)
    line.attach()
    window = line.namespace.directory.queues["q"].lane.window
    assert paced(line.credit(HALF)) == [(SENDER, True)]
    assert window.cold_upto > window.upto
    assert paced(line.credit(HALF - 1)) == []
    assert window.cold_upto > window.upto
    assert paced(line.credit(601)) == [(SENDER, False)]
    assert window.cold_upto <= window.upto


def test_large_messages_fill_a_window_sooner() -> None:
    line = Line()
    line.attach()
    large = bytes(64 * 1024)
    count = limits.RESIDENT_BYTES_MAX // len(large) // 2
    line.send_many(count, large)
    line.credit(8)
    assert paced(line.send(*[message(large) for _ in range(8)])) == [(SENDER, True)]
    assert paced(line.credit(count)) == [(SENDER, False)]


def test_all_senders_are_held_and_who_came_later_is_not() -> None:
    line = Line()
    line.apply(AttachSender(7, "q"))
    line.attach()
    line.send_many(HALF)
    line.credit(HALF // 2)
    assert paced(line.send(*[message() for _ in range(HALF // 2)])) == [(SENDER, True), (7, True)]
    line.apply(AttachSender(8, "q"))
    assert paced(line.send(link_id=8)) == []
    line.apply(DetachLink(7))
    assert paced(line.step(PAUSE_MS)) == [(SENDER, False), (7, False)]


def test_many_senders_are_not_held() -> None:
    assert [may_pause(count) for count in (0, 1, SENDERS_MAX, SENDERS_MAX + 1)] == [False, True, True, False]


@pytest.mark.parametrize("is_forwarding", [False, True])
def test_where_there_are_sessions_or_messages_are_passed_on_nobody_is_held(is_forwarding: bool) -> None:
    core = CoreHarness()
    settings = EntitySettings()
    if is_forwarding:
        settings.forward_to = "other"
    else:
        settings.requires_session = True
    core.apply(CreateEntity(1, QUEUE, "other", EntitySettings()))
    core.apply(CreateEntity(2, QUEUE, "q", settings), AttachSender(SENDER, "q"))
    said: list[Effect] = []
    for _ in range(12):
        batch = []
        for _ in range(500):
            each = message()
            each.session_id = "s"
            batch.append(each)
        said += core.apply(Send(SENDER, 1, batch, False, 1))
    assert paced(said) == []
    assert not core.namespace.directory.queues["q"].pace.paused


# -- a world of senders that keep to their credit ---------------------------------------------------------------------


class World:
    """Two queues, senders that send whenever they have credit, receivers that take at their own pace and come and go.

    Everything takes 5 ms. What is checked at every step: nobody is held for longer than `PAUSE_MS`, and nobody is begun
    to be held while nothing is taken.
    """

    STEP_MS = 5

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.core = CoreHarness()
        self.credit: dict[int, int] = {}
        self.held_since: dict[int, int] = {}
        self.holds = 0
        self.queue_of: dict[int, str] = {}
        self.sent = dict.fromkeys(("one", "two"), 0)
        self.accepted = dict.fromkeys(("one", "two"), 0)
        self.taken: dict[str, list[bytes]] = {"one": [], "two": []}
        self.limits: dict[int, int] = {}
        self.to_settle: dict[int, deque[bytes]] = {}
        self.taken_at_ms = dict.fromkeys(("one", "two"), 0)
        for name in ("one", "two"):
            self.tell(CreateEntity(900, QUEUE, name, EntitySettings()))

    def tell(self, *commands: Command) -> None:
        for effect in self.core.apply(*commands):
            if isinstance(effect, Paced):
                self.on_paced(effect)
            elif isinstance(effect, Deliver):
                name = self.queue_of[effect.to]
                self.taken[name].append(effect.stored.message.raw)
                self.taken_at_ms[name] = self.core.now_ms
                self.to_settle[effect.to].append(effect.lock_token)
            elif isinstance(effect, SendSettled):
                assert effect.error is None
                self.accepted[self.queue_of[effect.to]] += 1

    def on_paced(self, effect: Paced) -> None:
        now_ms = self.core.now_ms
        if effect.is_held:
            assert effect.to not in self.held_since, "held twice"
            assert now_ms - self.taken_at_ms[self.queue_of[effect.to]] < 2 * SLOT_MS, "held though nothing is taken"
            self.held_since[effect.to] = now_ms
            self.holds += 1
        else:
            del self.held_since[effect.to]
            self.top_up(effect.to)

    def top_up(self, link_id: int) -> None:
        """As the peer does."""
        if (
            link_id in self.credit
            and link_id not in self.held_since
            and self.credit[link_id] <= limits.LINK_CREDIT // 2
        ):
            self.credit[link_id] = limits.LINK_CREDIT

    def add_sender(self, link_id: int, name: str) -> None:
        self.queue_of[link_id] = name
        self.credit[link_id] = limits.LINK_CREDIT
        self.tell(AttachSender(link_id, name))

    def add_receiver(self, link_id: int, name: str) -> None:
        self.queue_of[link_id] = name
        self.limits[link_id] = 0
        self.to_settle[link_id] = deque()
        self.tell(AttachReceiver(link_id, name, False))

    def remove_receiver(self, link_id: int) -> None:
        del self.limits[link_id]
        self.tell(DetachLink(link_id))

    def send(self, link_id: int, count: int) -> int:
        """As many of them as there is credit for."""
        name = self.queue_of[link_id]
        commands: list[Command] = []
        for _ in range(min(count, self.credit[link_id])):
            self.credit[link_id] -= 1
            self.sent[name] += 1
            commands.append(Send(link_id, self.sent[name], [message(b"%d" % self.sent[name])], False, 1))
            self.top_up(link_id)
        self.tell(*commands)
        return len(commands)

    def take(self, link_id: int, count: int) -> None:
        self.limits[link_id] += count
        commands: list[Command] = [Credit(link_id, self.limits[link_id], False)]
        waiting = self.to_settle[link_id]
        commands += [Settle(link_id, 1, waiting.popleft(), DONE, False) for _ in range(len(waiting))]
        self.tell(*commands)

    def step(self) -> None:
        self.core.now_ms += self.STEP_MS
        self.tell()
        for since_ms in self.held_since.values():
            assert self.core.now_ms - since_ms < PAUSE_MS + self.STEP_MS, "held for too long"


@pytest.mark.parametrize("seed", range(6))
def test_whatever_receivers_do_senders_go_on_and_nothing_is_lost(seed: int) -> None:
    world = World(seed)
    dice = world.dice
    for link_id, name in ((1, "one"), (2, "one"), (3, "two")):
        world.add_sender(link_id, name)
    next_link = 10
    speeds: dict[int, int] = {}
    for _ in range(200):
        if dice.random() < 0.03 and len(speeds) < 4:
            next_link += 1
            world.add_receiver(next_link, dice.choice(("one", "two")))
            speeds[next_link] = dice.choice((1, 20, 100, 400))
        if dice.random() < 0.02 and speeds:
            gone = dice.choice(list(speeds))
            del speeds[gone]
            world.remove_receiver(gone)
        for link_id in (1, 2, 3):
            world.send(link_id, dice.choice((0, 5, 100, 300)))
        for link_id, speed in speeds.items():
            if dice.random() < 0.9:
                world.take(link_id, dice.randint(0, speed))
        world.step()
    assert world.accepted == world.sent
    before = dict(world.sent)
    for _ in range(2 * PAUSE_MS // world.STEP_MS):
        for link_id in (1, 2, 3):
            world.send(link_id, 50)
        world.step()
    assert all(world.sent[name] > before[name] for name in before)


def test_the_world_above_knows_holds() -> None:
    world = World(1)
    world.add_sender(1, "one")
    world.add_receiver(10, "one")
    for _ in range(200):
        world.send(1, 400)
        world.take(10, 300)
        world.step()
    assert world.holds > 5
    waiting = world.sent["one"] - len(world.taken["one"])
    assert waiting <= limits.RESIDENT_MESSAGES_MAX, "it was to be kept out of the store"
    assert world.taken["one"] == sorted(world.taken["one"], key=lambda raw: int(raw.decode("ascii")))


@pytest.mark.parametrize("seed", range(2))
def test_two_workers_in_a_ring_never_stop_each_other(seed: int) -> None:
    """Each sends two for one that it takes, and takes nothing while it cannot send: the worst that clients can do."""
    world = World(seed)
    for name, sender, receiver in (("one", 1, 11), ("two", 2, 12)):
        world.add_sender(sender, name)
        world.add_receiver(receiver, name)
        world.send(sender, 900)
    owed = {"one": 0, "two": 0}
    counted = {"one": 0, "two": 0}
    partner = {"one": ("two", 2), "two": ("one", 1)}
    for _ in range(200):
        for name, receiver in (("one", 11), ("two", 12)):
            other, sender = partner[name]
            owed[other] += 2 * (len(world.taken[name]) - counted[name])
            counted[name] = len(world.taken[name])
            owed[other] -= world.send(sender, owed[other])
            if owed[other] == 0:
                world.take(receiver, world.dice.randint(1, 200))
        world.step()
    assert world.holds > 0
    assert min(map(len, world.taken.values())) > 2_000
