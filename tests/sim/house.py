"""A namespace on a disk that syncs late, clients that do whatever they like, and a judge who misses nothing.

A crash loses the turns that were not synced, and with them their effects: nobody was told of them. Everything that was
said must hold, whatever the settings. Steps are drawn one by one from seed and number, so a run can be repeated without
some of them: see shrinking.py.
"""

import contextlib
import shutil
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final

from spillway.broker.commands import (
    AttachReceiver,
    AttachSender,
    BatchDelete,
    CancelScheduled,
    Command,
    DetachLink,
    DiskMeasured,
    GetSessionState,
    Loaded,
    ReceiveDeferred,
    Request,
    Send,
    Settle,
    Undelivered,
    UpdateDisposition,
)
from spillway.broker.decided import Decided
from spillway.broker.effects import (
    Answer,
    Attached,
    Deliver,
    Detached,
    Dropped,
    Effect,
    Failed,
    Load,
    Messages,
    Refused,
    Report,
    Restarted,
    SendSettled,
    SessionState,
    SettlementAnswered,
)
from spillway.broker.message_sessions import MessageSessions
from spillway.broker.namespace import Namespace
from spillway.broker.queue import Queue
from spillway.dialect.properties import EncodedAccess
from spillway.model import limits
from spillway.model.entity import entity_key, split_subscription
from spillway.model.errors import BrokerError, InternalError
from spillway.model.message import ACTIVE, HIDDEN, NEVER, SCHEDULED, StoredMessage
from spillway.model.quotas import Quotas
from spillway.model.records import LoadDue, LoadFrom, LoadSession, LoadSessions, Query, Rows, Turn
from spillway.model.settlement import COMPLETE, DEAD_LETTER
from spillway.store.journal import Journal
from spillway.store.logged import LoggedJournal
from spillway.store.memory import MemoryJournal
from spillway.store.sqlite import SqliteJournal
from tests.sim.dice import Dice, Sent, copies_of
from tests.sim.places import check_places, check_rest
from tests.sim.reckoning import Group, Place, Reckoning, Row, Violation, is_topic

LOGGED_EVERY: Final = 10  # of those on a disk every other one
LOG_SEGMENT_BYTES: Final = 64 * 1024
LOG_BATCH_BYTES: Final = 20_000
ANSWER_S: Final = 30.0  # the SQLite journal has a thread of its own


class Disk:
    """A journal that answers at once: in memory, or in a directory SQLite, or the log in front of it.

    SQLite is closed at the end of a life, the log is left as a kill leaves it.
    """

    def __init__(self, directory: Path | None, is_logged: bool = False) -> None:
        if directory is not None and is_logged:
            directory = directory / "life.0"
            directory.mkdir()
        self.directory = directory
        self.is_logged = is_logged
        self.lives = 0
        self.durable = 0
        self.ticket = 0
        self.turn_ticket = 0
        self.rows: dict[int, Rows] = {}
        self.posted: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.journal: Journal = MemoryJournal() if directory is None else self._open(directory)
        self.is_started = False

    def _open(self, directory: Path) -> Journal:
        path = directory / "journal.db"
        if not self.is_logged:
            return SqliteJournal(path, synchronous="OFF")
        return LoggedJournal(path, synchronous="OFF", segment_bytes=LOG_SEGMENT_BYTES, batch_bytes=LOG_BATCH_BYTES)

    def live(self, quotas: Quotas, life: int) -> Namespace:
        if self.is_started and self.directory is not None:
            if self.is_logged:
                self._kill(self.directory)
            else:
                self.journal.close()
            self.journal = self._open(self.directory)
            self.is_started = False
        catalogue = self.journal.recover()
        if not self.is_started:
            self.is_started = True
            self.journal.start(self, self.posted.put)
        return Namespace("sim", catalogue, life.to_bytes(8, "big"), EncodedAccess(), quotas)

    def _kill(self, directory: Path) -> None:
        """The files as they are when the last turn is durable, in another directory."""
        while self.durable < self.turn_ticket:
            self._hear("a turn")
        self.lives += 1
        self.directory = directory.with_name(f"life.{self.lives}")
        shutil.copytree(directory, self.directory, ignore=shutil.ignore_patterns("*-shm"))
        self.journal.close()
        shutil.rmtree(directory)

    def _hear(self, what: str) -> None:
        try:
            self.posted.get(timeout=ANSWER_S)()
        except Empty:
            raise Violation(f"the store did not answer {what}") from None

    def submit(self, turn: Turn) -> None:
        self.ticket += 1
        self.turn_ticket = self.ticket
        self.journal.submit(turn, self.ticket)

    def ask(self, query: Query) -> Rows:
        self.ticket += 1
        self.journal.load(query, self.ticket)
        while self.ticket not in self.rows:
            self._hear(type(query).__name__)
        return self.rows.pop(self.ticket)

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.journal.close()

    def on_durable(self, ticket: int) -> None:
        self.durable = ticket

    def on_loaded(self, ticket: int, rows: Rows) -> None:
        self.rows[ticket] = rows

    def on_copied(self) -> None:
        pass

    def on_failed(self, error: BaseException) -> None:
        raise Violation(f"the store failed: {error}") from error


class Link:
    """A receiver as its client sees it."""

    def __init__(self, path: str, deletes: bool) -> None:
        self.path = path
        self.deletes = deletes
        self.is_attached = False
        self.session_id: str | None = None
        self.limit = 0


class Held:
    """A delivery that a client has, or had: tokens are kept, to be used again when they are good for nothing."""

    def __init__(self, path: str, token: bytes, number: int, link_id: int, session_id: str | None) -> None:
        self.path = path
        self.token = token
        self.number = number
        self.link_id = link_id
        self.session_id = session_id


class House:
    def __init__(self, seed: int, directory: Path | None = None) -> None:
        self.seed = seed
        dice = Dice(seed, -1)
        self.quotas = Quotas()
        if dice.hit(0.15):
            self.quotas.entity_operations_per_second = dice.chance.choice((3, 50))
        self.resident_bytes = dice.chance.choice((3_000, 30_000, 1 << 28))
        self.id_count = dice.chance.choice((0, 5, 1_000_000))
        self.disk = Disk(directory, is_logged=seed % LOGGED_EVERY == 0)
        self.now_ms = 1_000_000
        self.lives = 0
        self.is_faulty = False
        self.is_disk_full = False  # at some time: what was put off is tried again later
        self.unsynced: deque[Decided] = deque()
        self.answers: list[Command] = []
        self.reckoned = Reckoning()  # with every turn that was decided
        self.kept = Reckoning()  # with every turn that was synced
        self.seen: Counter[str] = Counter()  # what was met: commands, answers, settings that met
        self.reports: list[str] = []
        self.story: list[str] = []
        self.next_id = 100
        self.senders: dict[int, str] = {}
        self.receivers: dict[int, Link] = {}
        self.gone: list[int] = []  # links that were ended by the broker and are to be detached
        self.held: dict[bytes, Held] = {}
        self.spent: deque[Held] = deque(maxlen=20)
        self.known: dict[bytes, Held] = {}  # all that were ever handed out
        self.sent: dict[str, Sent] = {}
        self.ids: list[str] = []
        self.sends: dict[int, list[Sent]] = {}  # not answered yet
        self.settles: dict[int, Held] = {}
        self.requests: dict[int, Request] = {}
        self.states_asked: dict[int, bytes | None] = {}  # by request: the state of its session when it was asked for
        self.may_go: set[tuple[int, int]] = set()  # entity and number: a client has asked for its end
        self.reasonless: set[str] = set()  # names that were dead-lettered by a client without a reason
        self.delivers_early = seed % 3 != 0
        self.shown: dict[tuple[int, int], str] = {}  # entity and number: the name of the message that was seen there
        self.namespace = self._live()

    def _live(self) -> Namespace:
        self.lives += 1
        namespace = self.disk.live(self.quotas, self.lives)
        namespace.directory.budget.bytes_max = self.resident_bytes
        namespace.directory.id_budget.count_max = self.id_count
        skipped = namespace.skipped_numbers(self.now_ms)
        if not skipped.is_empty():
            self.kept.check_counters(skipped)
            self.disk.submit(skipped)
        return namespace

    def close(self) -> None:
        self.disk.close()

    def number(self) -> int:
        self.next_id += 1
        return self.next_id

    # -- turns ------------------------------------------------------------------------------------------------

    def apply(self, *commands: Command) -> None:
        for command in commands:
            self._note(command)
        self.is_faulty = self.namespace.faulting.is_on  # then answers may be late, and lies by then
        decided = self.namespace.apply(list(commands), self.now_ms)
        if self.namespace.incidents.count:
            texts = [effect.text for effect in decided.effects if isinstance(effect, Report)]
            raise Violation(f"a fault of the broker was contained: {texts}")
        self.is_faulty = self.is_faulty or self.namespace.faulting.is_on
        self._judge(decided, list(commands))
        if self.delivers_early:
            self._hear_early(decided)
        self.unsynced.append(decided)

    def _hear_early(self, decided: Decided) -> None:
        """Locked messages are seen before their turn is durable, and behind those that wait for the same link."""
        behind = {effect.to for turn in self.unsynced for effect in turn.effects if isinstance(effect, Deliver)}
        waiting: list[Effect] = []
        for effect in decided.effects:
            link = self.receivers.get(effect.to)
            is_early = isinstance(effect, Deliver) and effect.lock_token != b"" and effect.to not in behind
            if is_early and link is not None and link.is_attached:
                self.seen["delivered early"] += 1
                self._hear(effect)
            else:
                waiting.append(effect)
        decided.effects = waiting

    def sync(self) -> None:
        """One turn becomes durable: its loads are answered and its effects are spoken."""
        decided = self.unsynced.popleft()
        self.disk.submit(decided.turn)
        for records in decided.turn.groups:
            self.kept.apply_group(records)
        for effect in decided.effects:
            if isinstance(effect, Load):
                self.answers.append(Loaded(effect.to, self.disk.ask(effect.query)))
            else:
                self._hear(effect)
        if self.answers:
            commands, self.answers = self.answers, []
            self.apply(*commands)

    def rest(self) -> None:
        """Until nobody has anything to do at this moment."""
        for _ in range(10_000):
            while self.unsynced:
                self.sync()
            if not 0 < self.namespace.next_due_ms() <= self.now_ms:
                check_rest(self.namespace, self.now_ms)
                self._check_ready()
                self._check_due()
                return
            self.apply()
        raise Violation("the broker never comes to rest")

    def _check_ready(self) -> None:
        """A session with messages that nobody holds is found by who looks on from where the last look ended."""
        for queue in self.namespace.directory.queues.values():
            sessions = queue.sessions
            if isinstance(sessions, MessageSessions) and sessions.found_upto > 0:
                place = self.kept.places[queue.entity_id]
                for row in self.disk.ask(LoadSessions(queue.entity_id, 1_000)).sessions:
                    is_free = row.session_id not in sessions.locked and place.has_living(row.session_id, self.now_ms)
                    if is_free and row.ready_since <= sessions.found_upto:
                        raise Violation(f"{queue.path}: nobody will find the session {row.session_id!r}")

    def _check_due(self) -> None:
        """What is due has come, what has expired has gone; but on a full disk, and what somebody has locked."""
        if self.is_disk_full:
            return
        for place in self.kept.places.values():
            queue = self.namespace.directory.by_id[place.entity_id]
            for number, row in place.rows.items():
                if row.due_ms != NEVER and row.due_ms < self.now_ms and row.state in (SCHEDULED, HIDDEN):
                    raise Violation(f"{place.path}: {row.name} was due at {row.due_ms} and is forgotten")
                is_over = row.state == ACTIVE and row.expires_ms != NEVER and row.expires_ms < self.now_ms
                if is_over and isinstance(queue, Queue) and not is_locked(queue, number):
                    raise Violation(f"{place.path}: {row.name} expired at {row.expires_ms} and is still there")

    def crash(self) -> None:
        self.unsynced.clear()
        self.answers.clear()
        self.reckoned = self.kept.copy()
        self.senders.clear()
        self.receivers.clear()
        self.gone.clear()
        self.spent.extend(self.held.values())
        self.held.clear()
        self.sends.clear()
        self.settles.clear()
        self.requests.clear()
        for sent in self.sent.values():
            sent.is_admitted = True  # what was not synced is gone for good
        self.namespace = self._live()
        self._check_shown()
        self.compare()
        for place in self.kept.places.values():
            if place.rows:
                self.seen[f"restart with messages in {flags_of(place)}"] += 1

    def _check_shown(self) -> None:
        """No number that somebody has seen is given to another message, whether its own is still there or not."""
        for entity_id, number in self.shown:
            entity = self.namespace.directory.by_id.get(entity_id)
            if entity is not None and entity.counters.last_sequence_number < number:
                raise Violation(f"{entity.path} will give the number {number} again, which was seen by somebody")

    def _note(self, command: Command) -> None:
        self.seen[f"command {type(command).__name__}"] += 1
        if isinstance(command, DiskMeasured):
            self.is_disk_full = command.free_bytes < limits.DISK_RESERVE_BYTES or self.is_disk_full
        if isinstance(command, Request):
            self.requests[command.request_id] = command
            place = self.reckoned.find(command.path)
            if place is not None and isinstance(command, GetSessionState):
                self.states_asked[command.request_id] = place.states.get(command.session_id)
            if place is not None and isinstance(command, (CancelScheduled, ReceiveDeferred)):
                if isinstance(command, CancelScheduled) or command.deletes:
                    self.may_go.update((place.entity_id, number) for number in command.sequence_numbers)
            if isinstance(command, UpdateDisposition):
                for token in command.lock_tokens:
                    self._note_settlement(token, command.settlement.kind, command.settlement.reason)
        elif isinstance(command, Settle):
            self._note_settlement(command.lock_token, command.settlement.kind, command.settlement.reason)

    def _note_settlement(self, token: bytes, kind: int, reason: str | None) -> None:
        held = self.known.get(token)
        place = None if held is None else self.reckoned.find(held.path)
        if held is None or place is None:
            return
        if kind == COMPLETE:
            self.may_go.add((place.entity_id, held.number))
        row = place.rows.get(held.number)
        if kind == DEAD_LETTER and reason is None and row is not None:
            self.reasonless.add(row.name)

    # -- what was decided -----------------------------------------------------------------------------------------

    def _judge(self, decided: Decided, commands: list[Command]) -> None:
        is_settled = True
        for records in decided.turn.groups:
            known = len(self.reckoned.places)
            group = self.reckoned.apply_group(records)
            is_settled = is_settled and known == len(self.reckoned.places)
            self._judge_group(group)
        self.reckoned.check_counters(decided.turn)
        for effect in decided.effects:
            if isinstance(effect, SendSettled):
                self._judge_send(effect, commands, is_settled)
            elif isinstance(effect, Report):
                self.reports.append(effect.text)
                if effect.is_alarm:
                    raise Violation(f"an alarm: {effect.text}")
            elif isinstance(effect, (Failed, Refused, Detached, SettlementAnswered)):
                self._judge_error(effect.error)
            elif isinstance(effect, Deliver) and not self.is_faulty:
                self._judge_delivery(effect)
            elif isinstance(effect, SessionState):
                self._judge_state(effect)

    def _judge_error(self, error: BrokerError | None) -> None:
        if error is not None:
            self.seen[f"refused by {type(error).__name__}"] += 1
            if isinstance(error, InternalError) and "planted on purpose" not in error.description:
                raise Violation(f"a fault of the broker was contained: {error.description}")

    def _judge_group(self, group: Group) -> None:
        names_gone = {row.name for _, _, row in group.removed}
        names_come = {row.name for _, _, row in group.added}
        published: Counter[tuple[str, str]] = Counter()
        for place, _, row in group.added:
            self._judge_row(place, row)
            root = split_subscription(place.path)[0] or place.path
            sent = self.sent.get(row.name)
            if sent is None:
                raise Violation(f"{row.name} came to {place.path} from nowhere")
            if row.name not in names_gone and sent.is_admitted:
                raise Violation(f"{row.name} came to {place.path} a second time")
            if row.name not in names_gone and entity_key(sent.path) != entity_key(root):
                raise Violation(f"{row.name} was sent to {sent.path} and came to {place.path}")
            if place.key != entity_key(root):
                published[(row.name, entity_key(place.path.removesuffix("/$DeadLetterQueue")))] += 1
            self.seen[f"added to {flags_of(place)}"] += 1
        for place, number, row in group.removed:
            self._judge_removal(place, number, row, names_come)
        for source, _, target, _, row in group.moved:
            self._judge_row(target, row)
            if source is target and row.state == ACTIVE:
                self.seen[f"activated in {flags_of(target)}"] += 1
            elif not target.is_dead_letters:
                raise Violation(f"{row.name} moved from {source.path} to {target.path}")
            else:
                self.seen[f"dead-lettered from {flags_of(source)}"] += 1
        for place, _, _, after in group.changed:
            self._judge_row(place, after)
        self._judge_publishing(group, published, names_gone)
        for name in names_come:
            self.sent[name].is_admitted = True

    def _judge_publishing(self, group: Group, published: Counter[tuple[str, str]], names_gone: set[str]) -> None:
        """A message that was sent to a topic has as many copies as the rules of its subscriptions say."""
        names = {name for name, _ in published}
        for place, number, row in group.removed:
            if is_topic(place) and row.state == SCHEDULED and (place.entity_id, number) not in self.may_go:
                names.add(row.name)
        for name in names:
            sent = self.sent[name]
            topic = self.reckoned.find(sent.path)
            is_from_schedule = any(
                place is topic and row.name == name and row.hops == 0 for place, _, row in group.removed
            )
            if topic is None or not is_topic(topic) or (name in names_gone and not is_from_schedule):
                continue  # passed on: it may have been changed on its way
            for subscription in self.reckoned.subscriptions_of(topic):
                self._judge_copies(sent, subscription, published[(name, subscription.key)])

    def _judge_copies(self, sent: Sent, subscription: Place, count: int) -> None:
        made, failed = copies_of(subscription.settings.rules, sent)
        if subscription.settings.dead_letter_on_filter_error:
            made += failed
        if count != made:
            raise Violation(f"{subscription.path} has {count} copies of {sent.says()}, its rules make {made}")

    def _judge_row(self, place: Place, row: Row) -> None:
        if place.is_dead_letters:
            if row.reason is None and row.name not in self.reasonless:
                raise Violation(f"{place.path}: {row.name} has no reason to be there")
            if row.source is None:
                raise Violation(f"{place.path}: {row.name} does not say where it comes from")
            return
        if row.state == ACTIVE and place.settings.requires_session and row.session_id is None:
            raise Violation(f"{place.path} requires sessions: {row.name} has none")
        if row.state == ACTIVE and not place.settings.requires_session and row.session_id is not None:
            raise Violation(f"{place.path} does not have sessions: {row.name} lies in one")

    def _judge_removal(self, place: Place, number: int, row: Row, names_come: set[str]) -> None:
        self.seen[f"removed from {flags_of(place)}"] += 1
        if row.name in names_come or (place.entity_id, number) in self.may_go or is_topic(place):
            return
        if row.expires_ms != NEVER and row.expires_ms <= self.now_ms:
            if not (place.settings.dead_letter_on_expiry and not place.is_dead_letters and row.state == ACTIVE):
                return
        for link_id, queue in self.namespace.links.received_from.items():
            link = self.namespace.links.receivers.by_number.get(link_id)
            if queue.entity_id == place.entity_id and link is not None and link.deletes:
                return  # received and deleted
        for request in self.requests.values():
            if isinstance(request, BatchDelete) and entity_key(request.path) == place.key and row.state == ACTIVE:
                return
        target = self.reckoned.find(place.forwards_to) if place.forwards_to else None
        if target is not None and (is_topic(target) or target.settings.requires_duplicate_detection):
            return
        raise Violation(f"{row.name} ({row.state}) is gone from {place.path}, and nobody has asked for it")

    def _judge_send(self, effect: SendSettled, commands: list[Command], is_settled: bool) -> None:
        sends = self.sends.pop(effect.delivery_id, None)
        if sends is None:
            raise Violation(f"the send {effect.delivery_id} is answered, and is none or was answered before")
        if effect.error is not None:
            self._judge_error(effect.error)
            for sent in sends:
                if sent.is_admitted:
                    raise Violation(f"{sent.says()} was refused and is there: {effect.error}")
            return
        place = self.reckoned.find(sends[0].path)
        is_now = any(isinstance(command, Send) and command.delivery_id == effect.delivery_id for command in commands)
        for sent in sends:
            if sent.is_admitted or place is None or not is_now:
                continue
            if place.settings.requires_duplicate_detection:
                continue
            if not is_topic(place):
                raise Violation(f"{sent.says()} was accepted by {place.path} and is not there")
            if is_settled:
                for subscription in self.reckoned.subscriptions_of(place):
                    self._judge_copies(sent, subscription, 0)

    def _judge_delivery(self, effect: Deliver) -> None:
        place = self.reckoned.find(effect.path)
        if place is None:
            raise Violation(f"{effect.path} is not there and delivers")
        number = effect.stored.sequence_number
        link = self.receivers.get(effect.to)
        self.seen[f"delivered from {flags_of(place)}"] += 1
        if effect.lock_token and number not in place.rows:
            raise Violation(f"{effect.path} delivers message {number}, which is not there")
        if link is not None and link.session_id is not None and effect.stored.session_id != link.session_id:
            raise Violation(f"{effect.path}: the holder of {link.session_id!r} got {effect.stored.session_id!r}")
        if not place.is_dead_letters and effect.stored.delivery_count >= max(1, place.settings.max_delivery_count):
            self.seen["delivered more often than a changed limit"] += 1

    def _judge_state(self, effect: SessionState) -> None:
        request = self.requests.get(effect.to)
        session_id = getattr(request, "session_id", None)
        place = None if request is None else self.reckoned.find(request.path)
        if place is not None and isinstance(session_id, str):
            known = place.states.get(session_id)
            asked = self.states_asked.pop(effect.to, None)  # the store may have answered before another was set
            if not self.is_faulty and (effect.state or None) not in (known or None, asked or None):
                raise Violation(f"{place.path}: the state of {session_id!r} is {effect.state!r}, not {known!r}")

    # -- what was said --------------------------------------------------------------------------------------------

    def _hear(self, effect: Effect) -> None:
        if isinstance(effect, Deliver):
            self._hear_delivery(effect)
        elif isinstance(effect, SettlementAnswered):
            self.settles.pop(effect.delivery_id, None)
        elif isinstance(effect, Attached):
            link = self.receivers.get(effect.to)
            if link is not None:
                link.is_attached = True
                link.session_id = effect.session_id
        elif isinstance(effect, (Refused, Detached, Dropped)):
            self._end_link(effect.to)
            self.requests.pop(effect.to, None)
        elif isinstance(effect, Restarted):
            for link_id in [*self.senders, *self.receivers]:
                self._end_link(link_id)
        elif isinstance(effect, Answer):
            request = self.requests.pop(effect.to, None)
            if request is None and effect.to != 0:
                raise Violation(f"{type(effect).__name__} answers a request that was answered before")
            if request is not None and isinstance(effect, Messages):
                self._hear_messages(effect, request)

    def _hear_delivery(self, effect: Deliver) -> None:
        place = self.reckoned.find(effect.path)
        if place is not None:
            name = Row(effect.stored).name
            key = (place.entity_id, effect.stored.sequence_number)
            if self.shown.setdefault(key, name) != name:
                raise Violation(f"{effect.path}: number {key[1]} was seen as {self.shown[key]}, and is {name} now")
        if effect.to not in self.receivers:
            if effect.lock_token:
                self.answers.append(Undelivered(effect.path, effect.lock_token))
            return
        if effect.lock_token:
            stored = effect.stored
            session_id = self.receivers[effect.to].session_id
            self._hold(Held(effect.path, effect.lock_token, stored.sequence_number, effect.to, session_id))

    def _hear_messages(self, effect: Messages, request: Request) -> None:
        session_id = getattr(request, "session_id", None)
        for stored, token in zip(effect.messages, effect.lock_tokens, strict=False):
            self._hold(Held(request.path, token, stored.sequence_number, 0, session_id))

    def _hold(self, held: Held) -> None:
        self.held[held.token] = self.known[held.token] = held

    def _end_link(self, link_id: int) -> None:
        if link_id in self.senders or link_id in self.receivers:
            self.senders.pop(link_id, None)
            self.receivers.pop(link_id, None)
            self.gone.append(link_id)

    # -- the clients' words ---------------------------------------------------------------------------------------

    def attach_sender(self, path: str) -> AttachSender:
        link_id = self.number()
        self.senders[link_id] = path
        return AttachSender(link_id, path)

    def attach_receiver(self, command: AttachReceiver) -> AttachReceiver:
        self.receivers[command.link_id] = Link(command.path, command.deletes)
        return command

    def let_go(self) -> list[Command]:
        commands: list[Command] = [DetachLink(link_id) for link_id in self.gone]
        self.gone.clear()
        return commands

    # -- what the store has ---------------------------------------------------------------------------------------

    def rows_of(self, entity_id: int) -> list[StoredMessage]:
        rows: list[StoredMessage] = []
        first = 0
        while True:
            page = self.disk.ask(LoadFrom(entity_id, first, 500, 1 << 30))
            rows += page.messages
            if not page.is_cut:
                break
            first = rows[-1].sequence_number + 1
        due = self.disk.ask(LoadDue(entity_id, 1 << 60, 1 << 30, 1 << 40))
        return rows + [stored for stored in due.messages if stored.state == HIDDEN]

    def compare(self) -> None:
        """The store, the reckoning and what the core believes are one."""
        entities = self.namespace.directory.by_id
        if set(entities) != set(self.kept.places):
            raise Violation(f"entities {sorted(entities)}, there are {sorted(self.kept.places)}")
        for place in self.kept.places.values():
            stored = {found.sequence_number: Row(found).facts() for found in self.rows_of(place.entity_id)}
            reckoned = {number: row.facts() for number, row in place.rows.items()}
            if stored != reckoned:
                wrong = [n for n in {**stored, **reckoned} if stored.get(n) != reckoned.get(n)][:3]
                raise Violation(
                    f"{place.path}: the store has {[stored.get(n) for n in wrong]} where "
                    f"{[reckoned.get(n) for n in wrong]} was remembered"
                )
            place.check(entities[place.entity_id].counters)
            for session_id in {**place.active_of, **place.states}:
                found = self.disk.ask(LoadSession(place.entity_id, session_id)).sessions
                active = found[0].active if found else 0
                state = found[0].state if found else None
                if active != place.active_of.get(session_id, 0) or state != place.states.get(session_id):
                    raise Violation(f"{place.path}: the store has lost count of the session {session_id!r}")

    def check(self) -> None:
        check_places(self.namespace, self.reckoned, self.now_ms)


def flags_of(place: Place) -> str:
    """Its settings in short: what met what."""
    settings = place.settings
    kind = "dead letters" if place.is_dead_letters else place.kind
    flags = [
        word
        for word, is_set in (
            ("session", settings.requires_session),
            ("forward", bool(settings.forward_to)),
            ("dead-letter-forward", bool(settings.forward_dead_letters_to)),
            ("duplicates", settings.requires_duplicate_detection),
            ("ttl", settings.default_ttl_ms != 0),
            ("partition", settings.is_partitioned),
            ("not-active", settings.status != "Active"),
            ("action", any(rule.action is not None for rule in settings.rules)),
        )
        if is_set
    ]
    return f"{kind} [{' '.join(flags)}]"


def is_locked(queue: Queue, number: int) -> bool:
    lanes = [queue.lane] if queue.sessions is None else list(queue.sessions.locked.values())
    return any(lock.sequence_number == number for lane in lanes for lock in lane.locks.by_token.values())


def is_open(namespace: Namespace, path: str) -> bool:
    """Whether somebody may receive there."""
    queue = namespace.directory.queues.get(entity_key(path))
    return queue is not None and queue.settings.may_receive() and queue.forwarder is None


def has_sessions(namespace: Namespace, path: str) -> bool:
    queue = namespace.directory.queues.get(entity_key(path))
    return queue is not None and isinstance(queue.sessions, MessageSessions)


LOCKS_END_MS: Final = limits.LOCK_DURATION_MS_MAX
