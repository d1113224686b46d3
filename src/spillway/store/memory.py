"""The journal that forgets at the end of the process: the same promises, kept by dictionaries.

No thread: a turn is remembered when `submit` returns, and the listener is told through `post` in the same order. It
keeps twins of what it is handed and hands out twins, as a store on disk would.
"""

import time
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

from spillway.model.message import ACTIVE, HIDDEN, NEVER, SCHEDULED, StoredMessage
from spillway.model.records import (
    Catalogue,
    Counters,
    EntityPut,
    EntityRemoved,
    EntityRow,
    LoadActive,
    LoadActiveOfSessions,
    LoadDue,
    LoadEntity,
    LoadExpired,
    LoadFrom,
    LoadIds,
    LoadIndexedIds,
    LoadLedger,
    LoadNumbers,
    LoadOldIds,
    LoadSession,
    LoadSessionNames,
    LoadSessions,
    MessageAdded,
    MessageChanged,
    MessageIdSeen,
    MessageIdsForgotten,
    MessageIdsIndexed,
    MessageMoved,
    MessageRemoved,
    Query,
    Record,
    Rows,
    RulePut,
    RuleRemoved,
    RuleRow,
    SessionRow,
    SessionStatePut,
    Turn,
)
from spillway.store.answers import Found, PassedOver, fill, fill_each
from spillway.store.changes import changed, moved
from spillway.store.day_files import DaysInMemory
from spillway.store.journal import JournalListener
from spillway.store.ledger_memory import LedgerMemory
from spillway.store.memory_ids import IdMemory
from spillway.store.rows import copy_of

FREE_BYTES: Final = 1 << 62  # nothing here watches memory
_DEAD_MIN: Final = 64

Item = TypeVar("Item", int, tuple[int, int])


class Ordered(Generic[Item]):
    """A sorted set. What is removed stays in the list until half of it is dead."""

    def __init__(self) -> None:
        self._items: list[Item] = []
        self._live: set[Item] = set()

    def add(self, item: Item) -> None:
        if item in self._live:
            return
        if not self._items or item > self._items[-1]:
            self._items.append(item)  # the usual case: numbers rise
        else:
            index = bisect_left(self._items, item)
            if index == len(self._items) or self._items[index] != item:
                insort(self._items, item)
        self._live.add(item)

    def remove(self, item: Item) -> None:
        self._live.discard(item)
        if len(self._items) - len(self._live) > len(self._live) + _DEAD_MIN:
            self._items = [item for item in self._items if item in self._live]

    def starting(self, item: Item) -> Iterator[Item]:
        """Items from this one on, in order."""
        for index in range(bisect_left(self._items, item), len(self._items)):
            if self._items[index] in self._live:
                yield self._items[index]

    def first(self, item: Item) -> Item | None:
        return next(self.starting(item), None)


class SessionMemory:
    """One message session: its active rows, and the state that was set."""

    def __init__(self) -> None:
        self.numbers: Ordered[int] = Ordered()
        self.active = 0
        self.ready_since = 0  # the number that made it have messages
        self.state: bytes | None = None
        self.state_ms = NEVER


class EntityMemory:
    """One entity: its rows, three orders over them, and its message sessions."""

    def __init__(self, put: EntityPut) -> None:
        self.put = put
        self.counters = Counters()
        self.tally = b""
        self.rows: dict[int, StoredMessage] = {}
        self.numbers: Ordered[int] = Ordered()
        self.due: Ordered[tuple[int, int]] = Ordered()  # (due_ms, sequence number) of scheduled and hidden rows
        self.expiry: Ordered[tuple[int, int]] = Ordered()  # (expires_ms, sequence number) of active rows
        self.sessions: dict[str, SessionMemory] = {}
        self.ids = IdMemory()
        self.rules: dict[int, RulePut] = {}  # by number

    def insert(self, stored: StoredMessage) -> None:
        number = stored.sequence_number
        assert number not in self.rows, f"sequence number {number} of {self.put.path} is used twice"
        self.rows[number] = stored
        self.numbers.add(number)
        if stored.state in (SCHEDULED, HIDDEN):
            self.due.add((stored.due_ms, number))
        if stored.state == ACTIVE and stored.expires_ms != NEVER:
            self.expiry.add((stored.expires_ms, number))
        if stored.state == ACTIVE and stored.session_id is not None:
            session = self.sessions.setdefault(stored.session_id, SessionMemory())
            session.numbers.add(number)
            session.active += 1
            if session.active == 1:
                session.ready_since = number

    def discard(self, number: int) -> StoredMessage | None:
        stored = self.rows.pop(number, None)
        if stored is not None:
            self.numbers.remove(number)
            self.due.remove((stored.due_ms, number))
            self.expiry.remove((stored.expires_ms, number))
            if stored.state == ACTIVE and stored.session_id is not None:
                session = self.sessions[stored.session_id]
                session.numbers.remove(number)
                session.active -= 1
                self._tidy(stored.session_id, session)
        return stored

    def set_state(self, record: SessionStatePut) -> None:
        session = self.sessions.setdefault(record.session_id, SessionMemory())
        session.state = record.state
        session.state_ms = record.now_ms
        self._tidy(record.session_id, session)

    def _tidy(self, session_id: str, session: SessionMemory) -> None:
        """A session without messages and state is no session."""
        if session.active == 0 and session.state is None:
            del self.sessions[session_id]

    def answer_sessions(self, query: Query) -> Rows:
        found: list[tuple[str, SessionMemory]] = []
        if isinstance(query, LoadSession):
            if query.session_id in self.sessions:
                found = [(query.session_id, self.sessions[query.session_id])]
        elif isinstance(query, LoadSessions):
            ready = [
                (name, session)
                for name, session in self.sessions.items()
                if session.active > 0 and session.ready_since > query.after
            ]
            found = sorted(ready, key=lambda pair: pair[1].ready_since)[: query.count]
        elif isinstance(query, LoadSessionNames):
            for name in sorted(self.sessions):
                session = self.sessions[name]
                has_state = session.state is not None
                if query.since_ms == NEVER:
                    is_asked = session.active > 0 or has_state
                else:
                    is_asked = has_state and session.state_ms >= query.since_ms
                if is_asked:
                    found.append((name, session))
            found = found[query.skip : query.skip + query.count]
        rows = Rows([])
        rows.sessions = [
            SessionRow(name, session.active, session.ready_since, session.state) for name, session in found
        ]
        return rows

    def pop(self, number: int) -> StoredMessage:
        stored = self.discard(number)
        assert stored is not None, f"no message {number} in {self.put.path}"
        return stored

    def found(self, query: Query) -> Iterator[Found]:
        if isinstance(query, LoadActive):
            numbers = self.numbers
            if query.session_id is not None:
                if query.session_id not in self.sessions:
                    return
                numbers = self.sessions[query.session_id].numbers
            for number in numbers.starting(query.after + 1):
                if self.rows[number].state == ACTIVE:
                    yield copy_of(self.rows[number])
            return
        if isinstance(query, LoadFrom):
            for number in self.numbers.starting(query.sequence_number):
                row = self.rows[number]
                if row.state == HIDDEN:
                    continue
                if query.session_id is None or row.message.session_id == query.session_id:
                    yield copy_of(row)
                elif row.state != ACTIVE:  # active ones are found by their session
                    yield PassedOver(number)
            return
        for number in self._numbers(query):
            if number in self.rows:
                yield copy_of(self.rows[number])

    def _numbers(self, query: Query) -> Iterator[int]:
        if isinstance(query, LoadNumbers):
            yield from sorted(set(query.sequence_numbers))
        elif isinstance(query, LoadDue):
            yield from (number for _, number in self.due.starting((NEVER, 0)))
        elif isinstance(query, LoadExpired):
            yield from (number for _, number in self.expiry.starting((NEVER, 0)))
        else:
            raise AssertionError(f"a query the store does not know: {type(query).__name__}")

    def recount(self) -> None:
        counters = self.counters.copy()
        counters.active = counters.deferred = counters.scheduled = counters.hidden = counters.size_bytes = 0
        for stored in self.rows.values():
            counters.add(len(stored.message.raw), stored.state, 1)
        self.counters = counters

    def row(self) -> EntityRow:
        due = self.due.first((NEVER, 0))
        expiry = self.expiry.first((NEVER, 0))
        next_due_ms = NEVER if due is None else due[0]
        next_expiry_ms = NEVER if expiry is None else expiry[0]
        row = EntityRow(self.put, self.counters.copy(), next_due_ms, next_expiry_ms, self.ids.oldest_ms)
        row.tally = self.tally
        row.rules = [RuleRow(number, self.rules[number].name, self.rules[number].text) for number in sorted(self.rules)]
        return row


class MemoryJournal:
    """`recover` may be called again, and `start` with it: what a crash leaves is what was submitted."""

    def __init__(self, namespace: str = "memory") -> None:
        self.days = DaysInMemory(namespace)
        self._entities: dict[int, EntityMemory] = {}
        self._last_entity_id = 0
        self._clock_ms = 0
        self._ledger = LedgerMemory(self.days)
        self._created_ms = int(time.time() * 1000)
        self._listener: JournalListener | None = None
        self._post: Callable[[Callable[[], None]], None] | None = None

    def recover(self) -> Catalogue:
        rows = [self._entities[entity_id].row() for entity_id in sorted(self._entities)]
        catalogue = Catalogue(rows, self._last_entity_id, self._clock_ms, self._created_ms)
        catalogue.ledger_minute = self._ledger.first_minute()
        catalogue.was_interrupted = self._listener is not None
        return catalogue

    def start(self, listener: JournalListener, post: Callable[[Callable[[], None]], None]) -> None:
        self._listener = listener
        self._post = post

    def submit(self, turn: Turn, ticket: int) -> None:
        listener, post = self._started()
        for group in turn.groups:
            for record in group:
                self._remember(record)
        for entity_id, counters in turn.counters.items():
            if entity_id in self._entities:
                self._entities[entity_id].counters = counters.copy()
        for entity_id in turn.recounts:
            if entity_id in self._entities:
                self._entities[entity_id].recount()
        for entity_id, tally in turn.tallies.items():
            if entity_id in self._entities:
                self._entities[entity_id].tally = tally
        self._ledger.add(turn)
        if not turn.is_empty():
            self._clock_ms = max(self._clock_ms, turn.now_ms)
        post(lambda: listener.on_durable(ticket))

    def load(self, query: Query, ticket: int) -> None:
        listener, post = self._started()
        entity = self._entities.get(query.entity_id)
        if isinstance(query, LoadLedger):
            rows = self._ledger.page(query)
        elif entity is None:
            rows = Rows([])
        elif isinstance(query, LoadEntity):
            rows = Rows([])
            rows.entity = entity.row()
        elif isinstance(query, (LoadSession, LoadSessions, LoadSessionNames)):
            rows = entity.answer_sessions(query)
        elif isinstance(query, (LoadIds, LoadIndexedIds, LoadOldIds)):
            rows = entity.ids.answer(query)
        elif isinstance(query, LoadActiveOfSessions):
            rows = fill_each(query, lambda part: fill(part, entity.found(part)))
        else:
            rows = fill(query, entity.found(query))
        post(lambda: listener.on_loaded(ticket, rows))

    def _started(self) -> tuple[JournalListener, Callable[[Callable[[], None]], None]]:
        assert self._listener is not None and self._post is not None, "start comes first"
        return self._listener, self._post

    @property
    def is_copying(self) -> bool:
        return False

    @property
    def pending_bytes(self) -> int:
        return 0

    @property
    def set_apart_count(self) -> int:
        return 0  # nothing is damaged here

    @property
    def free_bytes(self) -> int:
        return FREE_BYTES

    def close(self) -> None:
        """Nothing to keep; nothing more is told."""
        self._listener = None
        self._post = None

    def _remember(self, record: Record) -> None:
        if isinstance(record, MessageAdded):
            self._entities[record.entity_id].insert(copy_of(record.stored))
        elif isinstance(record, MessageRemoved):
            if record.entity_id in self._entities:
                self._entities[record.entity_id].discard(record.sequence_number)
        elif isinstance(record, MessageChanged):
            entity = self._entities[record.entity_id]
            entity.insert(changed(entity.pop(record.sequence_number), record))
        elif isinstance(record, MessageMoved):
            stored = self._entities[record.from_entity_id].pop(record.from_sequence_number)
            self._entities[record.to_entity_id].insert(moved(stored, record))
        elif isinstance(record, EntityPut):
            self._put_entity(record)
        elif isinstance(record, RulePut):
            self._entities[record.entity_id].rules[record.number] = record
        elif isinstance(record, RuleRemoved):
            self._entities[record.entity_id].rules.pop(record.number, None)
        elif isinstance(record, EntityRemoved):
            self._entities.pop(record.entity_id, None)
        elif isinstance(record, SessionStatePut):
            self._entities[record.entity_id].set_state(record)
        elif isinstance(record, MessageIdSeen):
            self._entities[record.entity_id].ids.add(record)
        elif isinstance(record, MessageIdsIndexed):
            self._entities[record.entity_id].ids.index(record)
        elif isinstance(record, MessageIdsForgotten):
            self._entities[record.entity_id].ids.evict(record)
        else:
            raise AssertionError(f"a record the store does not know: {type(record).__name__}")

    def _put_entity(self, put: EntityPut) -> None:
        if put.entity_id in self._entities:
            self._entities[put.entity_id].put = put
        else:
            self._entities[put.entity_id] = EntityMemory(put)
        self._last_entity_id = max(self._last_entity_id, put.entity_id)
