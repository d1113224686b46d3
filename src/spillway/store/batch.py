"""The net effect of many turns, so that one commit writes what is left of them.

A message that is added and removed by turns of the same commit is never written at all; one that is added, changed
and moved is written once, at its last place. Turns are taken in order, and the batch is all or nothing, so nobody can
see the difference. What is read back for a change comes from the same transaction.

A batch may stand on an `older` one that is not written either. A message that the older one was to write and that is
removed now is taken out of it, and neither is written. Only where that leaves no trace: a message of a session is
counted by its session's row, and a message that was changed is needed by whoever reads the turns of this batch alone.
"""

from collections.abc import Callable

from spillway.model.ledger import LedgerRow
from spillway.model.message import ACTIVE, Message, StoredMessage
from spillway.model.records import (
    ROW_BYTES,
    Counters,
    EntityPut,
    EntityRemoved,
    MessageAdded,
    MessageChanged,
    MessageIdSeen,
    MessageIdsForgotten,
    MessageIdsIndexed,
    MessageMoved,
    MessageRemoved,
    Record,
    RulePut,
    RuleRemoved,
    SessionStatePut,
    Turn,
)
from spillway.store.changes import changed, moved
from spillway.store.rows import SEQUENCE_BITS, DamagedAdded, DamagedRow, entity_id_of, row_key, sequence_number_of


def weight_of(row: StoredMessage | DamagedRow) -> int:
    """What the record weighs that brings this row alone, about: not if it was changed since."""
    return ROW_BYTES if isinstance(row, DamagedRow) else ROW_BYTES + len(row.message.raw)


class Batch:
    """`gone` is deleted first, then `fresh` is inserted: a changed row is in both."""

    def __init__(
        self,
        read: Callable[[int], StoredMessage | DamagedRow | None],
        held: dict[Message, int] | None = None,
        older: "Batch | None" = None,
    ) -> None:
        self._read = read
        self._older = older
        self.held = {} if held is None else held  # by message: the shared body of a row that was read back
        self.fresh: dict[int, StoredMessage | DamagedRow] = {}  # by key
        self.gone: set[int] = set()  # keys
        self.puts: dict[int, EntityPut] = {}
        self.rules: dict[tuple[int, int], RulePut | None] = {}  # by entity and number; None: removed
        self.removed: set[int] = set()  # entity ids
        self.counters: dict[int, Counters] = {}
        self.session_gone: dict[tuple[int, str], int] = {}  # active rows that leave a session, by entity and session
        self.states: dict[tuple[int, str], SessionStatePut] = {}
        self.ledger: list[LedgerRow] = []
        self.tallies: dict[int, bytes] = {}  # by entity id
        self.ids: dict[int, list[bytes]] = {}  # packed ids of accepted messages, by entity
        self.ids_indexed: list[MessageIdsIndexed] = []
        self.ids_forgotten: dict[int, int] = {}  # upto, by entity
        self.recounts: set[int] = set()  # entity ids
        self.clock_ms = 0
        self.last_entity_id = 0
        self.added_count = 0  # of rows at places that nobody had before
        self.is_empty = True
        self.brought_count = 0  # of bodies that its turns have in the log
        self.turns_bytes = 0  # what its turns weigh
        self.held_bytes = 0  # of that what is not gone again: about what it takes of memory, and writes
        self.light: set[int] = set()  # keys of copies whose body was weighed with another one

    def add(self, turn: Turn) -> None:
        if turn.is_empty():
            return
        self.is_empty = False
        self.turns_bytes += turn.size_bytes
        fresh = self.fresh
        for group in turn.groups:
            for record in group:
                self.held_bytes += record.size_bytes
                if isinstance(record, MessageAdded):
                    self.added_count += 1
                    stored = record.stored
                    key = record.entity_id << SEQUENCE_BITS | stored.sequence_number
                    fresh[key] = stored
                    if record.size_bytes < ROW_BYTES + len(stored.message.raw):
                        self.light.add(key)
                elif isinstance(record, MessageRemoved):
                    key = record.entity_id << SEQUENCE_BITS | record.sequence_number
                    row = fresh.pop(key, None)
                    if row is not None:
                        self.held_bytes -= record.size_bytes + self._weight_of(key, row)
                    elif self._cancel(key):
                        self.held_bytes -= record.size_bytes
                    else:
                        self.gone.add(key)
                        if record.session_id is not None:
                            self._leave_session(record.entity_id, record.session_id)
                elif isinstance(record, MessageIdSeen):
                    self.ids.setdefault(record.entity_id, []).append(record.packed)
                else:
                    self._add_rare(record)
        if turn.counters:
            self.counters.update(turn.counters)  # absolute values: the last ones stand
        if turn.recounts:
            self.recounts.update(turn.recounts)
        if turn.tallies:
            self.tallies.update(turn.tallies)
        if turn.ledger:
            self.ledger += turn.ledger
        if turn.now_ms > self.clock_ms:
            self.clock_ms = turn.now_ms

    def _cancel(self, key: int) -> bool:
        """Whether the older batch was to write this row, and now does not."""
        older = self._older
        if older is None:
            return False
        row = older.fresh.get(key)
        if row is None or row.session_id is not None or key in self.gone:
            return False
        del older.fresh[key]
        older.held_bytes -= older._weight_of(key, row)
        return True

    def _weight_of(self, key: int, row: StoredMessage | DamagedRow) -> int:
        """What the record weighed that brought a row: of copies that share a body only one has its weight."""
        if self.light and key in self.light:
            self.light.remove(key)
            return ROW_BYTES
        return weight_of(row)

    def stand_alone(self) -> None:
        """The older batch is written: nothing of it is held any more."""
        self._older = None

    def leave_counts_to(self, younger: "Batch") -> None:
        """Counters and tallies are absolute values: those that a younger batch has too are written with that one. Until
        then they are in its turns, which whoever reads the file reads as well."""
        for entity_id in younger.counters:
            self.counters.pop(entity_id, None)
        for entity_id in younger.tallies:
            self.tallies.pop(entity_id, None)

    def _add_rare(self, record: Record) -> None:
        if isinstance(record, MessageChanged):
            key = row_key(record.entity_id, record.sequence_number)
            row = self._pop(key)
            # A damaged row stays as it is: a new checksum over it would make it look sound.
            self.fresh[key] = row if isinstance(row, DamagedRow) else changed(row, record)
        elif isinstance(record, MessageMoved):
            row = self._pop(row_key(record.from_entity_id, record.from_sequence_number))
            key = row_key(record.to_entity_id, record.to_sequence_number)
            self.added_count += 1
            self.fresh[key] = DamagedRow(row.at(key)) if isinstance(row, DamagedRow) else moved(row, record)
        elif isinstance(record, EntityPut):
            self.puts[record.entity_id] = record
            self.last_entity_id = max(self.last_entity_id, record.entity_id)
        elif isinstance(record, RulePut):
            self.rules[(record.entity_id, record.number)] = record
        elif isinstance(record, RuleRemoved):
            self.rules[(record.entity_id, record.number)] = None
        elif isinstance(record, EntityRemoved):
            self._remove_entity(record.entity_id)
        elif isinstance(record, SessionStatePut):
            self.states[(record.entity_id, record.session_id)] = record
        elif isinstance(record, MessageIdsIndexed):
            self.ids_indexed.append(record)
        elif isinstance(record, MessageIdsForgotten):
            self.ids_forgotten[record.entity_id] = record.upto
        elif isinstance(record, DamagedAdded):
            self.fresh[record.key] = record.row
        else:
            raise AssertionError(f"a record the store does not know: {type(record).__name__}")

    def _pop(self, key: int) -> StoredMessage | DamagedRow:
        """The row as the turns so far left it; its old place is given up."""
        row = self.fresh.pop(key, None)
        if row is not None:
            self.held_bytes += weight_of(row) - self._weight_of(key, row)  # at its next place it has its whole weight
        if row is None:
            assert key not in self.gone, "a message that was removed cannot change"
            assert entity_id_of(key) not in self.removed, "a message of a removed entity cannot change"
            row = self._read_older(key)
            assert row is not None, f"no message {key & (1 << SEQUENCE_BITS) - 1} in entity {entity_id_of(key)}"
            self.gone.add(key)
            self.held_bytes += weight_of(row)
            if row.session_id is not None and row.state == ACTIVE:
                self._leave_session(entity_id_of(key), row.session_id)
        return row

    def _read_older(self, key: int) -> StoredMessage | DamagedRow | None:
        older = self._older
        if older is not None:
            row = older.fresh.get(key)
            if row is not None:
                return row
            if key in older.gone or entity_id_of(key) in older.removed:
                return None
        return self._read(key)

    def _leave_session(self, entity_id: int, session_id: str) -> None:
        place = (entity_id, session_id)
        self.session_gone[place] = self.session_gone.get(place, 0) + 1

    def session_changes(self) -> dict[tuple[int, str], tuple[int, int, int]]:
        """How many active messages went, how many came, and the first number that came, by entity and session."""
        changes: dict[tuple[int, str], tuple[int, int, int]] = {}
        for place, count in self.session_gone.items():
            changes[place] = (count, 0, 0)
        for key, row in self.fresh.items():
            if row.session_id is not None and row.state == ACTIVE:
                place = (entity_id_of(key), row.session_id)
                gone, come, first = changes.get(place, (0, 0, 0))
                changes[place] = (gone, come + 1, first or sequence_number_of(key))
        for place in self.states:
            changes.setdefault(place, (0, 0, 0))
        return changes

    def _remove_entity(self, entity_id: int) -> None:
        self.removed.add(entity_id)
        self.puts.pop(entity_id, None)
        self.counters.pop(entity_id, None)
        self.tallies.pop(entity_id, None)
        self.ids.pop(entity_id, None)
        for key in [key for key in self.fresh if entity_id_of(key) == entity_id]:
            del self.fresh[key]
        for place in [place for place in self.session_gone if place[0] == entity_id]:
            del self.session_gone[place]
        for place in [place for place in self.states if place[0] == entity_id]:
            del self.states[place]
        for rule_place in [place for place in self.rules if place[0] == entity_id]:
            del self.rules[rule_place]

    def runs_gone(self) -> list[tuple[int, int]]:
        """`gone` as ranges without gaps: a queue is mostly emptied in order, and one range is one statement."""
        if not self.gone:
            return []
        keys = sorted(self.gone)
        runs: list[tuple[int, int]] = []
        first = last = keys[0]
        for key in keys:
            if key > last + 1:
                runs.append((first, last))
                first = key
            last = key
        runs.append((first, last))
        return runs
