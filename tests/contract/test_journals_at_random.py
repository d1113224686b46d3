"""Random turns against a plain dictionary: every journal answers every query as the dictionary does."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spillway.model.message import ACTIVE, DEFERRED, HIDDEN, NEVER, SCHEDULED, Overlay, StoredMessage
from spillway.model.records import (
    Counters,
    EntityPut,
    EntityRemoved,
    LoadActive,
    LoadDue,
    LoadExpired,
    LoadFrom,
    LoadNumbers,
    MessageAdded,
    MessageChanged,
    MessageMoved,
    MessageRemoved,
    Query,
    Record,
    RulePut,
    RuleRemoved,
    Turn,
)
from spillway.model.rules import Rule, TrueFilter
from spillway.store.bodies import SHARED_BYTES_MIN
from spillway.store.check import check
from spillway.store.journal import Journal
from tests.contract.kinds import KINDS, as_after_a_kill, open_kind
from tests.store.listening import Desk, fields, stored

STEPS = ["add"] * 10 + ["remove"] * 5 + ["change"] * 3 + ["move"] * 3 + ["turn"] * 2 + ["ask"] * 2
STEPS += ["publish"] * 3 + ["rule"] * 3 + ["put", "drop", "settle", "reopen", "crash"]
TIMES = [NEVER, 1_000, 1_001, 2_000, 3_000]
PARKED = (SCHEDULED, HIDDEN)
Choices = tuple[str, int, int, int]
Fields = tuple[object, ...]


class Life:
    """A journal and the dictionary beside it."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.directory = directory
        self.path = directory / "journal.db"
        self.lives = 0
        self.kind = kind
        self.rows: dict[int, dict[int, StoredMessage]] = {}
        self.settings: dict[int, str] = {}
        self.rules: dict[int, dict[int, str]] = {}  # by entity and number
        self.counters: dict[int, Counters] = {}
        self.last: dict[int, int] = {}  # sequence numbers, never reused
        self.last_entity_id = 0
        self.clock_ms = 0
        self.turn = Turn(1)
        self.expected: list[tuple[Query, int, list[Fields], bool, int]] = []
        self.desk = self._open(None)

    def _open(self, old: Journal | None) -> Desk:
        journal = old if old is not None and self.kind == "memory" else open_kind(self.kind, self.path)
        catalogue = journal.recover()
        assert [row.put.entity_id for row in catalogue.entities] == sorted(self.rows)
        assert (catalogue.last_entity_id, catalogue.clock_ms) == (self.last_entity_id, self.clock_ms)
        for row in catalogue.entities:
            entity_id = row.put.entity_id
            held = self.rows[entity_id].values()
            assert row.put.settings == self.settings[entity_id]
            assert [(rule.number, rule.text) for rule in row.rules] == sorted(self.rules[entity_id].items())
            assert counted(row.counters) == counted(self.counters.get(entity_id, Counters()))
            assert row.next_due_ms == min((r.due_ms for r in held if r.state in PARKED), default=NEVER)
            expiring = (r.expires_ms for r in held if r.state == ACTIVE and r.expires_ms != NEVER)
            assert row.next_expiry_ms == min(expiring, default=NEVER)
        return Desk(journal).start()

    def step(self, name: str, a: int, b: int, c: int) -> None:
        if name == "turn":
            self.end_turn()
        elif name == "settle":
            self.settle()
        elif name == "reopen":
            self.settle()
            if self.kind != "memory":
                self.desk.journal.close()
                assert check(self.path) == []
            self.desk = self._open(self.desk.journal)
        elif name == "crash":
            self.settle()
            if self.kind != "memory":
                self._crash()
        elif name == "put" or not self.rows:
            self._put(a)
        elif name == "ask":
            self._ask(sorted(self.rows)[a % len(self.rows)], b, c)
        else:
            self._record(name, sorted(self.rows)[a % len(self.rows)], b, c)

    def _crash(self) -> None:
        """The process is killed: what it had acknowledged is found by the next."""
        journal = self.desk.journal
        self.lives += 1
        self.path = as_after_a_kill(self.path, self.directory / f"crash-{self.lives}")
        assert check(self.path) == []
        self.desk = self._open(None)
        journal.close()

    def end_turn(self) -> None:
        if not self.turn.is_empty():
            for entity_id in self.rows:
                counted = Counters()
                counted.last_sequence_number = self.last[entity_id]
                states = [row.state for row in self.rows[entity_id].values()]
                counted.active = states.count(ACTIVE)
                counted.deferred = states.count(DEFERRED)
                counted.scheduled = states.count(SCHEDULED)
                counted.hidden = states.count(HIDDEN)
                counted.size_bytes = sum(len(row.message.raw) for row in self.rows[entity_id].values())
                self.turn.counters[entity_id] = self.counters[entity_id] = counted
            self.clock_ms = max(self.clock_ms, self.turn.now_ms)
        self.desk.submit(self.turn)
        self.turn = Turn(self.turn.now_ms + 1)

    def settle(self) -> None:
        self.end_turn()
        self.desk.settle()
        assert self.desk.journal.pending_bytes == 0
        for query, ticket, messages, is_cut, next_ms in self.expected:
            rows = self.desk.rows[ticket]
            assert [fields(row) for row in rows.messages] == messages, type(query).__name__
            assert (rows.is_cut, rows.next_ms, rows.corrupt) == (is_cut, next_ms, []), type(query).__name__
        self.expected.clear()

    def _put(self, a: int) -> None:
        if self.rows and (a % 3 == 0 or len(self.rows) > 3):
            entity_id = sorted(self.rows)[a % len(self.rows)]
        else:
            self.last_entity_id += 1
            entity_id = self.last_entity_id
            self.rows[entity_id] = {}
            self.rules[entity_id] = {}
            self.last[entity_id] = 0
        self.settings[entity_id] = f'{{"a": {a}}}'
        self._remember(EntityPut(entity_id, "queue", f"queue-{entity_id}", self.settings[entity_id], 0))

    def _remember(self, record: Record) -> None:
        self.turn.add([record])

    def _new_number(self, entity_id: int, skip: int) -> int:
        self.last[entity_id] += 1 + skip % 2
        return self.last[entity_id]

    def _record(self, name: str, entity_id: int, b: int, c: int) -> None:
        rows = self.rows[entity_id]
        if name == "add":
            number = self._new_number(entity_id, b)
            state = (SCHEDULED, HIDDEN, ACTIVE, ACTIVE)[c % 4]
            time_ms = TIMES[b % 5] if state == ACTIVE else TIMES[1 + b % 4]
            row = stored(number, b"%d" % number * (c % 40), state, time_ms)
            rows[number] = row
            self._remember(MessageAdded(entity_id, _twin(row)))
        elif name == "publish":
            self._publish(b, c)
        elif name == "rule":
            if self.rules[entity_id].pop(b % 5, None) is not None:
                self._remember(RuleRemoved(entity_id, b % 5))
            else:
                rule = Rule(f"r{b % 5}", TrueFilter(), None, c)
                self.rules[entity_id][b % 5] = rule.to_json()
                self._remember(RulePut(entity_id, b % 5, rule.name, rule.to_json()))
        elif name == "drop":
            del self.rows[entity_id]
            del self.rules[entity_id]
            self.counters.pop(entity_id, None)
            self._remember(EntityRemoved(entity_id))
        elif rows:
            self._change(name, entity_id, sorted(rows)[b % len(rows)], b, c)

    def _publish(self, b: int, c: int) -> None:
        """A copy for every entity, two for the first: long ones share their bytes, short ones do not."""
        message = stored(0, b"%d" % c * (SHARED_BYTES_MIN if c % 4 else 1)).message
        group: list[Record] = []
        for entity_id in [min(self.rows), *self.rows]:
            row = StoredMessage(message, self._new_number(entity_id, b), 7_000 + c)
            row.expires_ms = TIMES[b % 5]
            self.rows[entity_id][row.sequence_number] = row
            group.append(MessageAdded(entity_id, _twin(row)))
        self.turn.add(group)

    def _change(self, name: str, entity_id: int, number: int, b: int, c: int) -> None:
        rows = self.rows[entity_id]
        overlay = _overlay(c)
        if name == "remove":
            del rows[number]
            self._remember(MessageRemoved(entity_id, number))
        elif name == "change":
            row = rows[number]
            if row.state == HIDDEN:
                row.state = ACTIVE  # it appears
                row.due_ms = NEVER
            elif row.state != SCHEDULED:
                row.state = DEFERRED if c % 3 == 0 else ACTIVE
            row.delivery_count = c
            row.overlay = overlay
            self._remember(MessageChanged(entity_id, number, row.state, c, _overlay(c)))
        elif name == "move":
            old = rows.pop(number)
            to_id = sorted(self.rows)[c % len(self.rows)]
            to_number = self._new_number(to_id, b)
            row = StoredMessage(old.message, to_number, 7_000 + c)
            row.enqueue_sequence_number = old.enqueue_sequence_number
            row.expires_ms = TIMES[c % 5]
            row.delivery_count = c
            row.overlay = overlay
            self.rows[to_id][to_number] = row
            self._remember(MessageMoved(entity_id, number, to_id, to_number, 7_000 + c, row.expires_ms, c, _overlay(c)))

    def _ask(self, entity_id: int, b: int, c: int) -> None:
        self.end_turn()
        rows = self.rows[entity_id].values()
        count, bytes_max = 1 + b % 7, 20 * (c % 5)
        now_ms = TIMES[1 + c % 4]
        by_number = sorted(rows, key=lambda row: row.sequence_number)
        asked: list[tuple[Query, list[StoredMessage], list[int]]] = []
        active = [row for row in by_number if row.state == ACTIVE and row.sequence_number > c % 9]
        asked.append((LoadActive(entity_id, c % 9, count, bytes_max), active, []))
        browsed = [row for row in by_number if row.sequence_number >= c % 9 and row.state != HIDDEN]
        asked.append((LoadFrom(entity_id, c % 9, count, bytes_max), browsed, []))
        wanted = [b % 13, c % 11, b % 5, 3, 4, 5]
        found = [row for row in by_number if row.sequence_number in wanted]
        asked.append((LoadNumbers(entity_id, wanted, bytes_max), found, []))
        waiting = [row for row in rows if row.state in PARKED]
        due = sorted(waiting, key=lambda row: (row.due_ms, row.sequence_number))
        asked.append((LoadDue(entity_id, now_ms, count, bytes_max), due, [row.due_ms for row in due]))
        mortal = [row for row in rows if row.state == ACTIVE and row.expires_ms != NEVER]
        dying = sorted(mortal, key=lambda row: (row.expires_ms, row.sequence_number))
        asked.append((LoadExpired(entity_id, now_ms, count, bytes_max), dying, [row.expires_ms for row in dying]))
        for query, matching, times in asked:
            self._expect(query, matching, times, now_ms)

    def _expect(self, query: Query, matching: list[StoredMessage], times: list[int], now_ms: int) -> None:
        ready = [row for row, at in zip(matching, times, strict=True) if at <= now_ms] if times else matching
        taken: list[Fields] = []
        size_bytes = 0
        for row in ready[: query.count]:
            if taken and size_bytes > query.bytes_max:
                break
            taken.append(fields(row))
            size_bytes += len(row.message.raw)
        next_ms = times[len(taken)] if len(taken) < len(times) else NEVER
        self.expected.append((query, self.desk.load(query), taken, len(taken) < len(ready), next_ms))


def _overlay(c: int) -> Overlay | None:
    if c % 2:
        return None
    overlay = Overlay()
    overlay.dead_letter_reason = f"reason {c}"
    overlay.hops = c
    return overlay


def counted(counters: Counters) -> tuple[int, ...]:
    states = (counters.active, counters.deferred, counters.scheduled, counters.hidden)
    return (counters.last_sequence_number, *states, counters.size_bytes, counters.used_ms)


def _twin(row: StoredMessage) -> StoredMessage:
    twin = stored(row.sequence_number, b"", row.state, row.due_ms if row.state in PARKED else row.expires_ms)
    twin.message = row.message
    twin.enqueued_ms = row.enqueued_ms
    return twin


small = st.integers(0, 200)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(steps=st.lists(st.tuples(st.sampled_from(STEPS), small, small, small), min_size=40, max_size=150))
def test_every_query_answers_as_a_dictionary_would(kind: str, steps: list[Choices]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        life = Life(kind, Path(directory))
        try:
            for step in steps:
                life.step(*step)
            life.step("reopen", 0, 0, 0)
            for entity_id in sorted(life.rows):
                life._ask(entity_id, 6, 4)
            life.settle()
        finally:
            life.desk.journal.close()
