"""Random commands, clock steps and crashes from a seed; then every promise is checked against what clients were told.

The disk here syncs when the dice say so. A crash loses the turns that were not synced, and with them their effects:
nobody was told of them. What clients were told must hold for ever.
"""

import random
from collections import deque

import pytest

from spillway.broker.commands import (
    AttachReceiver,
    AttachSender,
    BatchDelete,
    CancelScheduled,
    Command,
    CreateEntity,
    Credit,
    DetachLink,
    InjectFault,
    Loaded,
    ReceiveDeferred,
    RemoveFaults,
    RenewLocks,
    Send,
    Settle,
    Undelivered,
    UpdateDisposition,
    UpdateEntity,
)
from spillway.broker.decided import Decided
from spillway.broker.effects import (
    Deliver,
    Done,
    Effect,
    Failed,
    Load,
    Messages,
    Renewed,
    SendSettled,
    SettlementAnswered,
)
from spillway.broker.namespace import Namespace
from spillway.model import limits
from spillway.model.entity import QUEUE, STATUS_ACTIVE, EntitySettings, statuses_of
from spillway.model.errors import MessageLockLost, ServerBusy
from spillway.model.faults import Fault
from spillway.model.message import DEFERRED, HIDDEN, SCHEDULED, StoredMessage
from spillway.model.records import LoadDue, LoadFrom, Rows
from spillway.model.settlement import ABANDON, COMPLETE, DEAD_LETTER, DEFER, RELEASE, Settlement
from spillway.store.memory import MemoryJournal
from spillway.testing.core import message

LOCK_MS = 5_000
STEPS = 700
FRONT = "front"  # passes on what it gets to the queue that is received from
DEAD = "dead"  # gets its dead letters, when it forwards them
PLACES = ("q", "q/$deadletterqueue", FRONT, FRONT + "/$deadletterqueue", DEAD)


class Held:
    """A delivery that a client holds: what it may still say about it."""

    def __init__(self, name: str, token: bytes, until_ms: int, link_id: int) -> None:
        self.name = name
        self.token = token
        self.until_ms = until_ms
        self.link_id = link_id


class World:
    """A namespace, a disk that syncs late, a few clients, and what they were told."""

    def __init__(self, seed: int, detects_duplicates: bool = False) -> None:
        """Where duplicates are detected, clients send messages again, whatever they know of them."""
        self.chance = random.Random(seed)
        self.detects_duplicates = detects_duplicates
        self.sent_directly: list[str] = []  # to the queue that detects duplicates
        self.journal = MemoryJournal()
        self.rows: dict[int, Rows] = {}
        self.now_ms = 1_000_000
        self.ticket = 0
        self.turn_ms = 0
        self.lives = 0
        self.unsynced: deque[Decided] = deque()
        self.commands: list[Command] = []
        self.namespace = self.live()
        self.next_id = 100
        self.senders: list[int] = []  # to the queue and to the front of it
        self.forwards_dead_letters = False
        self.receivers: dict[int, int] = {}  # link -> limit
        self.held: dict[bytes, Held] = {}
        self.sends: dict[int, tuple[list[str], bool]] = {}  # delivery id -> names, whether sending was allowed
        self.settling: dict[int, tuple[str, int]] = {}  # delivery id -> (name, kind)
        self.requests: dict[int, tuple[str, list[str]]] = {}
        self.acked: set[str] = set()
        self.tried: set[str] = set()
        self.done: set[str] = set()  # told: completed, deleted or cancelled
        self.maybe_done: set[str] = set()  # asked for, never answered
        front = EntitySettings()
        front.forward_to = "q"
        self.apply(
            [
                CreateEntity(1, QUEUE, DEAD, EntitySettings()),
                CreateEntity(2, QUEUE, "q", self.settings()),
                CreateEntity(3, QUEUE, FRONT, front),
            ]
        )
        self.sync_all()
        self.attach()

    # -- the machinery ------------------------------------------------------------------------------------------

    def live(self) -> Namespace:
        self.lives += 1
        catalogue = self.journal.recover()
        if self.lives == 1:
            self.journal.start(self, lambda run: run())
        namespace = Namespace("sim", catalogue, self.lives.to_bytes(8, "big"))
        if self.detects_duplicates:
            namespace.directory.id_budget.count_max = self.chance.choice([0, 30, 1_000_000])
        return namespace

    def apply(self, commands: list[Command]) -> None:
        self.unsynced.append(self.namespace.apply(commands, self.now_ms))

    def sync(self) -> None:
        """One turn becomes durable: its loads are answered and its effects are spoken."""
        decided = self.unsynced.popleft()
        self.turn_ms = decided.now_ms
        self.ticket += 1
        self.journal.submit(decided.turn, self.ticket)
        for effect in decided.effects:
            if isinstance(effect, Load):
                self.journal.load(effect.query, effect.to)
                self.commands.append(Loaded(effect.to, self.rows.pop(effect.to)))
            elif not self.hear(effect) and isinstance(effect, Deliver) and effect.lock_token:
                self.commands.append(Undelivered(effect.path, effect.lock_token))
        if self.commands:
            commands, self.commands = self.commands, []
            self.apply(commands)

    def sync_all(self) -> None:
        while self.unsynced:
            self.sync()
        while 0 < self.namespace.next_due_ms() <= self.now_ms:
            self.apply([])
            while self.unsynced:
                self.sync()

    def crash(self) -> None:
        self.unsynced.clear()
        self.commands.clear()
        self.held.clear()
        self.doubt_unanswered()
        self.sends.clear()
        self.namespace = self.live()
        self.receivers.clear()
        self.attach()

    def doubt_unanswered(self) -> None:
        """What was asked for may have been done."""
        for name, kind in self.settling.values():
            if kind == COMPLETE:
                self.maybe_done.add(name)
        for kind_text, names in self.requests.values():
            if kind_text != "renew":
                self.maybe_done.update(names)
        self.settling.clear()
        self.requests.clear()

    def on_durable(self, ticket: int) -> None:
        pass

    def on_loaded(self, ticket: int, rows: Rows) -> None:
        self.rows[ticket] = rows

    def on_copied(self) -> None:
        pass

    def on_failed(self, error: BaseException) -> None:
        raise error

    def number(self) -> int:
        self.next_id += 1
        return self.next_id

    # -- the clients -------------------------------------------------------------------------------------------

    def settings(self, status: str = STATUS_ACTIVE) -> EntitySettings:
        settings = EntitySettings()
        settings.lock_duration_ms = LOCK_MS
        settings.max_delivery_count = 4
        settings.status = status
        settings.requires_duplicate_detection = self.detects_duplicates
        settings.duplicate_window_ms = limits.DUPLICATE_WINDOW_MS_MAX
        settings.forward_dead_letters_to = DEAD if self.forwards_dead_letters else ""
        return settings

    def attach(self) -> None:
        """Once everything is allowed again: a sender that is there stays, disabled or not."""
        self.set_status(STATUS_ACTIVE)
        self.senders = [self.number(), self.number()]
        commands: list[Command] = [AttachSender(self.senders[0], "q"), AttachSender(self.senders[1], FRONT)]
        for _ in range(2):
            link_id = self.number()
            self.receivers[link_id] = 0
            commands.append(AttachReceiver(link_id, "q", False))
        self.apply(commands)
        self.sync_all()

    def hear(self, effect: Effect) -> bool:
        if isinstance(effect, Deliver):
            return self.hear_delivery(effect)
        if isinstance(effect, SendSettled) and effect.delivery_id in self.sends:
            names, was_allowed = self.sends.pop(effect.delivery_id)
            assert (effect.error is None) == was_allowed or isinstance(effect.error, ServerBusy)  # a fault
            if effect.error is None:
                self.acked.update(names)
        elif isinstance(effect, SettlementAnswered) and effect.delivery_id in self.settling:
            name, kind = self.settling.pop(effect.delivery_id)
            if effect.error is None and kind == COMPLETE:
                self.done.add(name)
        elif effect.to in self.requests:
            self.hear_answer(effect)
        return True

    def hear_delivery(self, effect: Deliver) -> bool:
        if effect.to not in self.receivers:
            return False
        self.take(effect.stored, effect.lock_token, effect.locked_until_ms, effect.to)
        return True

    def take(self, stored: StoredMessage, token: bytes, until_ms: int, link_id: int) -> None:
        is_late = until_ms - LOCK_MS < self.turn_ms
        if is_late and token not in self.namespace.directory.queues["q"].lane.locks.by_token:
            return  # locks were dropped while it was held back: to settle it would fail
        name = stored.message.raw.decode()
        assert name in self.tried, f"{name} came from nowhere"
        assert name not in self.done, f"{name} was completed and came back"
        for other in self.held.values():
            assert other.name != name or other.until_ms <= self.now_ms, f"{name} is locked twice"
        # Deferring counts as a delivery and is never the last: only abandoning and time move a message.
        assert stored.delivery_count < 4 or stored.state == DEFERRED
        self.held[token] = Held(name, token, until_ms, link_id)

    def hear_answer(self, effect: Effect) -> None:
        kind, names = self.requests.pop(effect.to)
        if kind == "renew" and isinstance(effect, Failed) and isinstance(effect.error, MessageLockLost):
            self.held = {token: held for token, held in self.held.items() if held.name not in names}
        if isinstance(effect, Done) and kind in ("complete", "cancel"):
            self.done.update(names)
        elif isinstance(effect, Messages):
            for stored, token in zip(effect.messages, effect.lock_tokens, strict=True):
                self.take(stored, token, effect.locked_until_ms, 0)
        elif isinstance(effect, Renewed):
            for held in self.held.values():
                if held.name in names:
                    held.until_ms = effect.locked_until_ms[0]

    # -- the dice ----------------------------------------------------------------------------------------------

    def play(self) -> None:
        roll = self.chance.random()
        if roll < 0.25:
            self.play_send()
        elif roll < 0.45 and self.receivers:
            link_id = self.chance.choice(list(self.receivers))
            self.receivers[link_id] = self.namespace.links.receivers.by_number[
                link_id
            ].handed_count + self.chance.randint(0, 40)
            self.apply([Credit(link_id, self.receivers[link_id], self.chance.random() < 0.2)])
        elif roll < 0.75 and self.held:
            self.play_settle()
        elif roll < 0.80:
            self.play_request()
        elif roll < 0.85:
            self.now_ms += self.chance.choice([1, 100, 1_000, LOCK_MS])
            self.apply([])
        elif roll < 0.87 and self.receivers:
            link_id = self.chance.choice(list(self.receivers))
            del self.receivers[link_id]
            new_id = self.number()
            self.receivers[new_id] = 0
            self.apply([DetachLink(link_id), AttachReceiver(new_id, "q", False)])
            self.sync_all()
        elif roll < 0.885:
            self.crash()
        elif roll < 0.91:
            self.forwards_dead_letters = self.chance.random() < 0.5
            self.set_status(self.chance.choice(statuses_of(QUEUE)))
        elif roll < 0.93 and not self.receivers:
            self.attach()
        elif roll < 0.955:
            self.play_fault()
        for _ in range(self.chance.randint(0, 3)):
            if self.unsynced:
                self.sync()

    def set_status(self, status: str) -> None:
        """Changing an entity drops its locks; who may not receive any more is detached."""
        settings = self.settings(status)
        self.sync_all()
        self.held.clear()
        self.apply([UpdateEntity(self.number(), "q", settings)])
        self.sync_all()
        if not settings.may_receive():
            assert self.namespace.links.receivers.by_number == {}
            self.receivers.clear()

    def play_fault(self) -> None:
        """Half of the messages hidden, answers late, locks lost, connections that end in effects that nobody hears."""
        fault = self.chance.choice(
            [
                Fault(
                    "hidden", "q", delay_ms=self.chance.choice([500, 3_000, 20_000]), probability=0.5, seed=self.next_id
                ),
                Fault("slow", "q", delay_ms=700, probability=0.3, seed=self.next_id),
                Fault("server-busy", "q", ["send", "settle", "management"], probability=0.2, seed=self.next_id),
                Fault("lock-lost", "q", probability=0.2, seed=self.next_id),
                Fault("timeout", "q", ["receive", "settle"], count=2, duration_ms=4_000),
            ]
        )
        self.apply([RemoveFaults(0, 0), InjectFault(0, fault)])

    def play_send(self) -> None:
        delivery_id = self.number()
        names = [f"m{delivery_id}-{n}" for n in range(self.chance.choice([1, 1, 1, 5, 40]))]
        due_ms = self.now_ms + 2_000 if self.chance.random() < 0.1 else 0
        self.tried.update(names)
        is_to_front = self.chance.random() < 0.3
        is_allowed = is_to_front or self.namespace.directory.queues["q"].settings.may_send()
        if self.detects_duplicates and not is_to_front:
            self.sent_directly += names
            if self.chance.random() < 0.5:
                names += self.chance.choices(self.sent_directly, k=self.chance.randint(1, 10))
        self.sends[delivery_id] = (names, is_allowed)
        messages = [message(name.encode(), scheduled_ms=due_ms, message_id=name) for name in names]
        self.apply([Send(self.senders[is_to_front], delivery_id, messages, False, 100)])

    def play_settle(self) -> None:
        commands: list[Command] = []
        for held in self.chance.sample(list(self.held.values()), min(len(self.held), self.chance.randint(1, 8))):
            del self.held[held.token]
            kind = self.chance.choices([COMPLETE, ABANDON, DEFER, DEAD_LETTER, RELEASE], [12, 2, 1, 1, 1])[0]
            if held.until_ms <= self.now_ms:
                continue
            if held.link_id in self.receivers:
                delivery_id = self.number()
                self.settling[delivery_id] = (held.name, kind)
                commands.append(Settle(held.link_id, delivery_id, held.token, Settlement(kind), False))
            elif kind == COMPLETE:
                request_id = self.number()
                self.requests[request_id] = ("complete", [held.name])
                commands.append(UpdateDisposition(request_id, "q", [held.token], Settlement(kind)))
        self.apply(commands)

    def play_request(self) -> None:
        request_id = self.number()
        parked = [row for row in self.all_rows("q") if row.state in (DEFERRED, SCHEDULED)]
        if parked and self.chance.random() < 0.7:
            row = self.chance.choice(parked)
            name = row.message.raw.decode()
            if row.state == SCHEDULED:
                self.requests[request_id] = ("cancel", [name])
                self.apply([CancelScheduled(request_id, "q", [row.sequence_number])])
            else:
                self.requests[request_id] = ("renew", [])
                self.apply([ReceiveDeferred(request_id, "q", [row.sequence_number], False)])
        elif self.held:
            held = self.chance.choice(list(self.held.values()))
            self.requests[request_id] = ("renew", [held.name])
            self.apply([RenewLocks(request_id, "q", [held.token])])
        else:
            waiting = [row.message.raw.decode() for row in self.all_rows("q")]
            self.maybe_done.update(waiting)  # which ones it takes, the answer does not say
            self.apply([BatchDelete(request_id, "q", 3, self.now_ms - 60_000)])

    # -- the verdict -------------------------------------------------------------------------------------------

    def all_rows(self, path: str) -> list[StoredMessage]:
        """What the store really holds, read page by page; hidden ones last."""
        rows: list[StoredMessage] = []
        entity_id = self.namespace.directory.queues[path].entity_id
        first = 0
        while True:
            self.journal.load(LoadFrom(entity_id, first, 500, 1 << 30), -1)
            page = self.rows.pop(-1)
            rows += page.messages
            if not page.is_cut:
                break
            first = rows[-1].sequence_number + 1
        assert HIDDEN not in [row.state for row in rows], "hidden messages are not browsed"
        self.journal.load(LoadDue(entity_id, 1 << 60, 1 << 30, 1 << 40), -1)
        return rows + [row for row in self.rows.pop(-1).messages if row.state == HIDDEN]

    def judge(self) -> None:
        self.sync_all()
        self.doubt_unanswered()  # a fault may hold an answer back for longer than we listen
        held = {path: self.all_rows(path) for path in PLACES}
        names = [row.message.raw.decode() for rows in held.values() for row in rows]
        assert len(names) == len(set(names)), "a message stands twice"
        assert set(names) <= self.tried
        assert not (set(names) & self.done), "completed messages came back"
        lost = self.acked - set(names) - self.done - self.maybe_done
        assert not lost, f"acknowledged and gone: {sorted(lost)[:5]}"
        assert all(row.state == SCHEDULED for row in held[FRONT]), "what waits in front was passed on"
        if self.forwards_dead_letters and self.namespace.directory.queues["q"].settings.may_receive():
            assert held["q/$deadletterqueue"] == [], "and so were dead letters"
        for path, rows in held.items():
            counters = self.namespace.directory.queues[path].counters
            states = [row.state for row in rows]
            counted = (counters.active, counters.deferred, counters.scheduled, counters.hidden)
            assert counted == (states.count(0), states.count(1), states.count(2), states.count(3))
            assert counters.size_bytes == sum(len(row.message.raw) for row in rows)
            numbers = [row.sequence_number for row in rows]
            assert not numbers or counters.last_sequence_number >= max(numbers)

    def drain(self) -> None:
        """Everything that is active can be received, once, and the queue is then empty; what was hidden is too."""
        if not self.receivers:
            self.attach()
        self.apply([RemoveFaults(0, 0)])
        self.sync_all()
        self.apply(
            [
                Credit(link_id, self.namespace.links.receivers.by_number[link_id].handed_count, False)
                for link_id in self.receivers
            ]
        )
        self.sync_all()
        self.now_ms += 20_000 + LOCK_MS
        self.apply([])
        self.sync_all()
        assert not [row for row in self.all_rows("q") if row.state == HIDDEN], "all that was hidden has appeared"
        waiting = {row.message.raw.decode() for row in self.all_rows("q") if row.state == 0}
        self.held.clear()
        link_id = next(iter(self.receivers))
        for other in self.receivers:
            handed = self.namespace.links.receivers.by_number[other].handed_count
            self.apply([Credit(other, handed + (100_000 if other == link_id else 0), False)])
        self.sync_all()
        got = [held.name for held in self.held.values()]
        assert sorted(got) == sorted(waiting), "what waits can be received"


@pytest.mark.parametrize("seed", range(30))
def test_what_clients_were_told_holds_through_crashes(seed: int) -> None:
    play(World(seed))


@pytest.mark.contract("H15")
@pytest.mark.parametrize("seed", range(100, 110))
def test_it_holds_where_clients_send_again_and_duplicates_are_detected(seed: int) -> None:
    play(World(seed, detects_duplicates=True))


def play(world: World) -> None:
    for _ in range(STEPS):
        world.play()
    world.judge()
    world.drain()
    assert world.acked, "the run did something"
