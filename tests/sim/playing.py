"""What clients, administrators and the world do to a house, drawn from its seed step by step."""

import time
from pathlib import Path
from typing import Final

from spillway.broker.commands import (
    ASKS_AGAIN,
    ASKS_MORE,
    ASKS_NOTHING,
    NOT_ASKED,
    AddRule,
    AttachReceiver,
    BatchDelete,
    CancelScheduled,
    Command,
    CreateEntity,
    Credit,
    DeleteEntity,
    Describe,
    DetachLink,
    DiskMeasured,
    GetSessionState,
    InjectFault,
    ListEntities,
    ListFaults,
    ListRules,
    ListSessions,
    Peek,
    ReadLedger,
    ReceiveDeferred,
    RemoveFaults,
    RemoveRule,
    RenewLocks,
    RenewSession,
    SaveLedger,
    Schedule,
    Send,
    SessionWish,
    SetSessionState,
    Settle,
    UpdateDisposition,
    UpdateEntity,
)
from spillway.model.entity import QUEUE, SUBSCRIPTION, TOPIC, EntitySettings, settings_from_json
from spillway.model.message import ACTIVE, DEFERRED, NEVER, SCHEDULED, Message
from spillway.model.settlement import ABANDON, COMPLETE, DEAD_LETTER, DEFER, RELEASE, Settlement
from tests.sim.dice import QUEUES, SESSIONS, SUBSCRIPTIONS, TOPICS, Dice, Sent
from tests.sim.house import LOCKS_END_MS, Held, House, has_sessions, is_open
from tests.sim.reckoning import Place, Violation

FREE_BYTES: Final = 1 << 40
TIMES_MS: Final = (1, 100, 1_000, 5_000, 5_000, 20_000, 61_000, 400_000)


class Play:
    """One step is one call of `step`; which steps are left out is for who looks for the fewest that fail."""

    def __init__(self, seed: int, directory: Path | None = None) -> None:
        self.seed = seed
        self.house = House(seed, directory)
        self.dice = Dice(seed, 0)
        self.told: list[str] = []

    def run(self, steps: int, left_out: frozenset[int] = frozenset(), until: float = 0.0) -> int:
        """How many steps were made. Raises what the broker or the judge raises."""
        try:
            for step in range(steps):
                if step in left_out:
                    continue
                if until and time.monotonic() > until:
                    return step
                self.step(step)
            self.end()
            return steps
        finally:
            self.house.close()

    def step(self, step: int) -> None:
        self.dice = Dice(self.seed, step)
        house = self.house
        self.told.append(f"step {step}, {house.now_ms}:")
        if step == 0:
            self._furnish()
        roll = self.dice.chance.random()
        for most, act in _ACTS:
            if roll < most:
                act(self)
                break
        for _ in range(self.dice.chance.choice((0, 1, 2, 5))):
            if house.unsynced:
                house.sync()
        if self.dice.hit(0.3):
            house.rest()
        if step % 5 == 0:
            house.check()

    def say(self, *commands: Command) -> None:
        """In one turn, or in one turn each: a crash may come between any two."""
        self.told += [f"  {_words(command)}" for command in commands]
        if self.dice.hit(0.5):
            self.house.apply(*commands)
        else:
            for command in commands:
                self.house.apply(command)

    # -- what there is ---------------------------------------------------------------------------------------------

    def _paths(self) -> list[str]:
        return [place.path for place in self.house.reckoned.places.values()]

    def _place(self) -> Place | None:
        places = list(self.house.reckoned.places.values())
        return self.dice.chance.choice(places) if places else None

    def _queue_path(self) -> str:
        """Of something to receive from, mostly."""
        paths = [path for path in self._paths() if is_open(self.house.namespace, path)]
        if not paths or self.dice.hit(0.1):
            return self.dice.chance.choice((*self._paths(), "q0", "nowhere"))
        return self.dice.chance.choice(paths)

    def _any_path(self) -> tuple[str, str]:
        chance = self.dice.chance
        kind = chance.choices((QUEUE, TOPIC, SUBSCRIPTION), (4, 2, 4))[0]
        if kind == QUEUE:
            return kind, chance.choice(QUEUES)
        if kind == TOPIC:
            return kind, chance.choice(TOPICS)
        return kind, f"{chance.choice(TOPICS)}/Subscriptions/{chance.choice(SUBSCRIPTIONS)}"

    # -- administrators ---------------------------------------------------------------------------------------------

    def _furnish(self) -> None:
        """All there can be, without destinations, for those must be there first; then with them."""
        commands: list[Command] = []
        forwarding: list[Command] = []
        kinds = [(QUEUE, name) for name in QUEUES] + [(TOPIC, name) for name in TOPICS]
        kinds += [(SUBSCRIPTION, f"{topic}/Subscriptions/{name}") for topic in TOPICS for name in SUBSCRIPTIONS]
        for kind, path in kinds:
            if self.dice.hit(0.1):
                continue
            settings = self.dice.settings(kind)
            if settings.forward_to or settings.forward_dead_letters_to:
                forwarding.append(UpdateEntity(self.house.number(), path, _twin(settings)))
                settings.forward_to = settings.forward_dead_letters_to = ""
            commands.append(CreateEntity(self.house.number(), kind, path, settings))
        self.say(*commands)
        self.say(*forwarding)

    def _create(self, kind: str, path: str) -> CreateEntity:
        return CreateEntity(self.house.number(), kind, path, self.dice.settings(kind))

    def create(self) -> None:
        kind, path = self._any_path()
        self.say(self._create(kind, path))

    def delete(self) -> None:
        place = self._place()
        if place is not None:
            self.say(DeleteEntity(self.house.number(), place.path))

    def update(self) -> None:
        place = self._place()
        if place is not None:
            settings = self.dice.changed(place.settings, place.kind if place.kind in (QUEUE, TOPIC) else SUBSCRIPTION)
            self.say(UpdateEntity(self.house.number(), place.path, settings))

    def rules(self) -> None:
        place = self._place()
        if place is None:
            return
        name = self.dice.chance.choice(("r0", "r1", "r2", "new", "$Default"))
        if self.dice.hit(0.6):
            self.say(AddRule(self.house.number(), place.path, self.dice.rule(name)))
        else:
            self.say(RemoveRule(self.house.number(), place.path, name))

    def look(self) -> None:
        number = self.house.number()
        path = self._queue_path()
        chance = self.dice.chance
        look: Command = chance.choice(
            (
                Describe(number, path),
                ListRules(number, path, 0, 10),
                ListEntities(number, QUEUE, "", 0, 10),
                ListSessions(number, path, chance.choice((NEVER, 1)), 0, 10),
                ListFaults(number, ""),
                ReadLedger(number, 0, 1 << 40, (-1, "", -1), 100),
                SaveLedger(),
                Peek(number, path, 0, 10, chance.choice((None, "a"))),
                DiskMeasured(0 if self.dice.hit(0.3) else FREE_BYTES),
            )
        )
        self.say(look)

    def fault(self) -> None:
        if self.dice.hit(0.3):
            self.say(RemoveFaults(self.house.number(), 0))
            return
        fault = self.dice.fault(self._paths())
        if fault is not None:
            self.say(InjectFault(self.house.number(), fault))

    # -- senders -----------------------------------------------------------------------------------------------------

    def _messages(self, path: str, are_scheduled: bool = False) -> tuple[list[Sent], list[Message]]:
        sends: list[Sent] = []
        messages: list[Message] = []
        name = f"m{self.house.number()}"
        for n in range(self.dice.chance.choice((1, 1, 1, 2, 6))):
            ids = self.house.ids[-30:]
            sent, message = self.dice.message(f"{name}-{n}", path, self.house.now_ms, ids, are_scheduled)
            sends.append(sent)
            messages.append(message)
            self.house.sent[sent.name] = sent
            self.house.ids.append(sent.message_id)
        return sends, messages

    def _target(self) -> str:
        return self.dice.chance.choice((*QUEUES, *TOPICS, *TOPICS))

    def send(self) -> None:
        house = self.house
        link_ids = list(house.senders)
        if not link_ids or (len(link_ids) < 8 and self.dice.hit(0.3)):
            self.say(house.attach_sender(self.dice.chance.choice((self._target(), self._queue_path()))))
            link_ids = list(house.senders)
        if not link_ids:
            return
        link_id = self.dice.chance.choice(link_ids)
        sends, messages = self._messages(house.senders[link_id])
        delivery_id = house.number()
        is_settled = self.dice.hit(0.1)
        if not is_settled:
            house.sends[delivery_id] = sends
        size = sum(len(message.raw) for message in messages)
        self.told.append(f"  to {house.senders[link_id]}: " + ", ".join(sent.says() for sent in sends))
        self.say(Send(link_id, delivery_id, messages, is_settled, size))

    def schedule(self) -> None:
        path = self._target()
        sends, messages = self._messages(path, are_scheduled=True)
        self.told.append(f"  to {path}: " + ", ".join(sent.says() for sent in sends))
        self.say(Schedule(self.house.number(), path, messages, 100))

    def cancel(self) -> None:
        place = self._place()
        if place is None:
            return
        numbers = [number for number, row in place.rows.items() if row.state == SCHEDULED]
        asked = self.dice.chance.sample(numbers, min(len(numbers), 2)) or [1]
        self.say(CancelScheduled(self.house.number(), place.path, asked))

    # -- receivers ---------------------------------------------------------------------------------------------------

    def attach(self) -> None:
        path = self._queue_path()
        wish: SessionWish | None = None
        if has_sessions(self.house.namespace, path) != self.dice.hit(0.05):
            session_id = None if self.dice.hit(0.5) else self.dice.chance.choice(SESSIONS)
            wish = SessionWish(session_id, self.dice.chance.choice((0, 2_000, 60_000)))
        link_id = self.house.number()
        command = AttachReceiver(link_id, path, self.dice.hit(0.25), wish)
        commands: list[Command] = [self.house.attach_receiver(command)]
        if self.dice.hit(0.7):
            self.house.receivers[link_id].limit = 5
            commands.append(Credit(link_id, 5, False, ASKS_MORE))
        self.say(*commands)

    def credit(self) -> None:
        if not self.house.receivers:
            self.attach()
            return
        link_id = self.dice.chance.choice(list(self.house.receivers))
        link = self.house.receivers[link_id]
        known = self.house.namespace.links.receivers.by_number.get(link_id)
        link.limit = (0 if known is None else known.handed_count) + self.dice.chance.choice((0, 1, 5, 40))
        asks = self.dice.chance.choice((NOT_ASKED, ASKS_MORE, ASKS_AGAIN, ASKS_NOTHING))
        self.say(Credit(link_id, link.limit, self.dice.hit(0.2), asks))

    def detach(self) -> None:
        links = [*self.house.receivers, *self.house.senders]
        if links:
            link_id = self.dice.chance.choice(links)
            self.house.receivers.pop(link_id, None)
            self.house.senders.pop(link_id, None)
            self.say(DetachLink(link_id))

    def let_go(self) -> None:
        commands = self.house.let_go()
        if commands:
            self.say(*commands)

    def _settlement(self) -> Settlement:
        chance = self.dice.chance
        kind = chance.choices((COMPLETE, ABANDON, DEFER, DEAD_LETTER, RELEASE), (6, 3, 2, 2, 1))[0]
        properties = {"color": b"\xa1\x03red", "note": b"\xa1\x01x"} if self.dice.hit(0.3) else None
        reason = chance.choice((None, "mine")) if kind == DEAD_LETTER else None
        return Settlement(kind, reason, None, properties)

    def _some_held(self) -> list[Held]:
        held = list(self.house.held.values())
        chosen = self.dice.chance.sample(held, min(len(held), self.dice.chance.randint(1, 5)))
        if self.house.spent and self.dice.hit(0.1):
            chosen.append(self.dice.chance.choice(self.house.spent))  # a second time
        return chosen

    def settle(self) -> None:
        house = self.house
        commands: list[Command] = []
        for held in self._some_held():
            settlement = self._settlement()
            house.spent.append(held)
            if held.link_id in house.receivers and self.dice.hit(0.7):
                delivery_id = house.number()
                is_settled = self.dice.hit(0.1)
                if not is_settled:
                    house.settles[delivery_id] = held
                commands.append(Settle(held.link_id, delivery_id, held.token, settlement, is_settled))
            else:
                session_id = held.session_id if self.dice.hit(0.9) else self.dice.chance.choice(SESSIONS)
                request = UpdateDisposition(house.number(), held.path, [held.token], settlement, session_id)
                commands.append(request)
        self.say(*commands)
        for held in list(house.spent):
            house.held.pop(held.token, None)

    def renew(self) -> None:
        some = self._some_held()
        if some:
            held = some[0]
            self.say(RenewLocks(self.house.number(), held.path, [held.token], held.session_id))

    def deferred(self) -> None:
        place = self._place()
        if place is None:
            return
        numbers = [number for number, row in place.rows.items() if row.state == DEFERRED]
        asked = self.dice.chance.sample(numbers, min(len(numbers), 2)) or [1]
        session_id = place.rows[asked[0]].own_session_id if asked[0] in place.rows else None
        if not place.settings.requires_session or self.dice.hit(0.1):
            session_id = None if self.dice.hit(0.9) else "a"
        self.say(ReceiveDeferred(self.house.number(), place.path, asked, self.dice.hit(0.3), session_id))

    def batch_delete(self) -> None:
        chance = self.dice.chance
        before_ms = self.house.now_ms + chance.choice((-60_000, -1_000, 1))
        self.say(BatchDelete(self.house.number(), self._queue_path(), chance.choice((1, 3, 100)), before_ms))

    def session(self) -> None:
        links = [link for link in self.house.receivers.values() if link.session_id is not None]
        number = self.house.number()
        chance = self.dice.chance
        if links and self.dice.hit(0.9):
            link = chance.choice(links)
            path, session_id = link.path, link.session_id or ""
        else:
            path, session_id = self._queue_path(), "a"
        state = chance.choice((None, b"", b"one", b"two" * 50))
        asked: Command = chance.choice(
            (
                GetSessionState(number, path, session_id),
                SetSessionState(number, path, session_id, state),
                RenewSession(number, path, session_id),
            )
        )
        self.say(asked)

    # -- the world -------------------------------------------------------------------------------------------------

    def time(self) -> None:
        self.house.now_ms += self.dice.chance.choice(TIMES_MS)
        self.say()
        self.house.apply()

    def crash(self) -> None:
        for _ in range(3 if self.house.delivers_early else 0):  # some may be seen, and none is synced
            self.send()
        self.told.append(f"  crash, {len(self.house.unsynced)} turns not synced")
        self.house.crash()

    # -- the end ---------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """All quiet: what is in the store is what was said, and whatever is active can be received."""
        house = self.house
        self.dice = Dice(self.seed, -2)
        self.told.append("the end:")
        house.rest()
        self.say(RemoveFaults(house.number(), 0), DiskMeasured(FREE_BYTES))
        self.say(*house.let_go())
        self.say(*[DetachLink(link_id) for link_id in [*house.senders, *house.receivers]])
        house.senders.clear()
        house.receivers.clear()
        house.rest()
        for place in list(house.reckoned.places.values()):
            if place.kind in (QUEUE, TOPIC, SUBSCRIPTION) and place.settings.status != "Active":
                settings = _twin(place.settings)
                settings.status = "Active"
                self.say(UpdateEntity(house.number(), place.path, settings))
        house.now_ms += LOCKS_END_MS
        self.say()
        house.rest()
        house.check()
        house.compare()
        if house.requests:
            raise Violation(f"never answered: {[_words(request) for request in house.requests.values()][:3]}")
        for place in list(house.reckoned.places.values()):
            self._drain(place)
        house.rest()
        house.check()
        house.crash()
        house.rest()

    def _drain(self, place: Place) -> None:
        """Everything that is active can be received, in order, and then it is empty."""
        house = self.house
        if place.entity_id not in house.reckoned.places or not is_open(house.namespace, place.path):
            return
        for _ in range(1_000):
            link_id = house.number()
            wish = SessionWish(None, 1_000) if has_sessions(house.namespace, place.path) else None
            self.say(
                house.attach_receiver(AttachReceiver(link_id, place.path, True, wish)), Credit(link_id, 100_000, True)
            )
            house.rest()
            if place.entity_id not in house.reckoned.places:
                return  # idle for too long
            left = [row for row in place.rows.values() if row.state == ACTIVE]
            if wish is not None:
                house.now_ms += 1_000
                self.say()
                house.rest()
            is_refused = link_id not in house.receivers
            house.receivers.pop(link_id, None)
            self.say(DetachLink(link_id))
            house.rest()
            if house.namespace.quotas.entity_operations_per_second:
                house.now_ms += 20_000
                if is_refused:
                    return
            if not left:
                return
            if is_refused and wish is not None:
                raise Violation(f"{place.path}: {left[0].name} is in a session that nobody gets")
            if wish is None and not house.namespace.quotas.entity_operations_per_second:
                raise Violation(f"{place.path}: {left[0].name} is active and is not received")


def _twin(settings: EntitySettings) -> EntitySettings:
    return settings_from_json(settings.to_json())


def _words(command: Command) -> str:
    """A command in short."""
    parts: list[str] = []
    for name, value in vars(command).items() if hasattr(command, "__dict__") else []:
        if name in ("size_bytes", "is_administrative"):
            continue
        if isinstance(value, EntitySettings):
            plain = EntitySettings()
            for own, said in vars(value).items():
                if own not in ("created_ms", "updated_ms") and said != getattr(plain, own):
                    parts.append(f"{own}={[rule.to_json() for rule in value.rules] if own == 'rules' else said!r}")
        elif isinstance(value, Settlement):
            parts.append(f"settlement={value.kind} {value.reason!r} {value.properties!r}")
        elif isinstance(value, SessionWish):
            parts.append(f"session={value.session_id!r} for {value.timeout_ms} ms")
        elif name == "fault":
            parts.append(str(value.to_plain()))
        elif name == "rule":
            parts.append(value.to_json())
        elif name == "messages":
            parts.append(f"{len(value)} messages")
        else:
            parts.append(f"{name}={value!r}")
    return f"{type(command).__name__}({', '.join(parts)})"


_ACTS: Final = (
    (0.24, Play.send),
    (0.29, Play.schedule),
    (0.31, Play.cancel),
    (0.37, Play.attach),
    (0.46, Play.credit),
    (0.50, Play.detach),
    (0.54, Play.let_go),
    (0.65, Play.settle),
    (0.67, Play.renew),
    (0.69, Play.deferred),
    (0.70, Play.batch_delete),
    (0.74, Play.session),
    (0.84, Play.time),
    (0.86, Play.create),
    (0.875, Play.delete),
    (0.90, Play.update),
    (0.92, Play.rules),
    (0.94, Play.look),
    (0.975, Play.fault),
    (0.995, Play.crash),
)
