"""What the store must hold, reckoned from the records alone: a third keeper beside the memory and the SQLite journal.

Every record is judged when it is decided: what is added was sent or leaves another place in the same group, what goes
has a reason, and the counters that the core remembers are those of the rows.
"""

import re
from typing import Final

from spillway.model.entity import DEAD_LETTER_QUEUE, QUEUE, TOPIC, EntitySettings, entity_key, settings_from_json
from spillway.model.message import ACTIVE, DEFERRED, HIDDEN, NEVER, SCHEDULED, StoredMessage
from spillway.model.message_ids import digest_of
from spillway.model.records import (
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
from spillway.model.rules import Rule, rule_from_json

STATES: Final = (ACTIVE, DEFERRED, SCHEDULED, HIDDEN)
_NAME: Final = re.compile(rb"<(m[0-9]+(?:-[0-9]+)?)>")


class Violation(AssertionError):
    """The broker did what it must not do."""


def name_of(raw: bytes) -> str:
    """Every body has the name of its message in it, which no copy and no change takes away."""
    found = _NAME.search(raw)
    if found is None:
        raise Violation(f"a message without its body: {raw[:60]!r}")
    return found.group(1).decode()


class Row:
    """One message in one place."""

    def __init__(self, stored: StoredMessage) -> None:
        self.name = name_of(stored.message.raw)
        self.size = len(stored.message.raw)
        self.message_id = stored.message.message_id
        self.state = stored.state
        self.session_id = stored.session_id
        self.own_session_id = stored.message.session_id
        self.expires_ms = stored.expires_ms
        self.due_ms = stored.due_ms
        self.delivery_count = stored.delivery_count
        overlay = stored.overlay
        self.hops = 0 if overlay is None else overlay.hops
        self.reason = None if overlay is None else overlay.dead_letter_reason
        self.source = None if overlay is None else overlay.dead_letter_source

    def copy(self) -> "Row":
        twin = Row.__new__(Row)
        twin.__dict__.update(self.__dict__)
        return twin

    def facts(self) -> tuple[object, ...]:
        """What two keepers must agree on."""
        return (
            self.name,
            self.size,
            self.message_id,
            self.state,
            self.session_id if self.state == ACTIVE else None,
            self.expires_ms,
            self.due_ms,
            self.delivery_count,
            self.hops,
            self.reason,
            self.source,
        )


class Place:
    """One entity: its rows by number, and what they add up to."""

    def __init__(self, put: EntityPut) -> None:
        self.entity_id = put.entity_id
        self.kind = put.kind
        self.path = put.path
        self.parent_id = put.parent_id
        self.settings: EntitySettings = settings_from_json(put.settings)
        self.rules: dict[int, Rule] = {}  # by number
        self.rows: dict[int, Row] = {}
        self.states: dict[str, bytes | None] = {}  # of sessions
        self.active_of: dict[str, int] = {}  # of sessions with active messages
        self.accepted: dict[bytes, int] = {}  # ids of messages, and when
        self.last_number = 0
        self.counts = [0, 0, 0, 0]
        self.size_bytes = 0

    def line_up_rules(self) -> None:
        self.settings = settings_from_json(self.settings.to_json())  # a copy of this place has the former
        self.settings.rules = [self.rules[number] for number in sorted(self.rules)]

    @property
    def key(self) -> str:
        return entity_key(self.path)

    @property
    def is_dead_letters(self) -> bool:
        return self.kind == DEAD_LETTER_QUEUE

    @property
    def forwards_to(self) -> str:
        return self.settings.forward_dead_letters_to if self.is_dead_letters else self.settings.forward_to

    def put(self, number: int, row: Row) -> None:
        if number in self.rows:
            raise Violation(f"{self.path}: the number {number} is used twice")
        self.rows[number] = row
        self.counts[row.state] += 1
        self.size_bytes += row.size
        self.last_number = max(self.last_number, number)
        if row.state == ACTIVE and row.session_id is not None:
            self.active_of[row.session_id] = self.active_of.get(row.session_id, 0) + 1

    def take(self, number: int, why: str) -> Row:
        row = self.rows.pop(number, None)
        if row is None:
            raise Violation(f"{self.path}: {why} message {number}, which is not there")
        self.counts[row.state] -= 1
        self.size_bytes -= row.size
        if row.state == ACTIVE and row.session_id is not None:
            self.active_of[row.session_id] -= 1
            if self.active_of[row.session_id] == 0:
                del self.active_of[row.session_id]
        return row

    def accept(self, stored: StoredMessage) -> None:
        """Where duplicates are looked for, an id is accepted once in a window."""
        if not self.settings.requires_duplicate_detection or self.kind != QUEUE:
            return
        digest = digest_of(stored.message, self.settings.is_partitioned)
        accepted_ms = self.accepted.get(digest)
        if accepted_ms is not None and stored.enqueued_ms - accepted_ms < self.settings.duplicate_window_ms:
            raise Violation(f"{self.path}: the id {stored.message.message_id!r} is accepted twice")
        self.accepted[digest] = stored.enqueued_ms

    def has_living(self, session_id: str, now_ms: int) -> bool:
        """What has expired, and waits for space to be dead-lettered, is nothing that a receiver gets."""
        for row in self.rows.values():
            is_living = row.expires_ms == NEVER or row.expires_ms > now_ms
            if row.state == ACTIVE and row.session_id == session_id and is_living:
                return True
        return False

    def copy(self) -> "Place":
        twin = Place.__new__(Place)
        twin.__dict__.update(self.__dict__)
        twin.rows = {number: row.copy() for number, row in self.rows.items()}
        twin.rules = dict(self.rules)
        twin.states = dict(self.states)
        twin.active_of = dict(self.active_of)
        twin.accepted = dict(self.accepted)
        twin.counts = list(self.counts)
        return twin

    def check(self, counters: Counters) -> None:
        said = [counters.active, counters.deferred, counters.scheduled, counters.hidden]
        if said != self.counts or counters.size_bytes != self.size_bytes:
            raise Violation(
                f"{self.path}: counted {said} and {counters.size_bytes} bytes, "
                f"there are {self.counts} and {self.size_bytes}"
            )
        if counters.last_sequence_number < self.last_number:
            raise Violation(f"{self.path}: its last number is said to be lower than one that it gave")


class Group:
    """What one group did: who came where, who left."""

    def __init__(self) -> None:
        self.added: list[tuple[Place, int, Row]] = []
        self.removed: list[tuple[Place, int, Row]] = []
        self.moved: list[tuple[Place, int, Place, int, Row]] = []
        self.changed: list[tuple[Place, int, Row, Row]] = []  # before, after


class Reckoning:
    """All entities. `apply` takes one turn and says what each of its groups did."""

    def __init__(self) -> None:
        self.places: dict[int, Place] = {}
        self.is_settled = True  # no entity was made, changed or deleted in the turn that was applied last

    def copy(self) -> "Reckoning":
        twin = Reckoning()
        twin.places = {number: place.copy() for number, place in self.places.items()}
        return twin

    def find(self, path: str) -> Place | None:
        key = entity_key(path)
        for place in self.places.values():
            if place.key == key:
                return place
        return None

    def subscriptions_of(self, topic: Place) -> list[Place]:
        return [
            place for place in self.places.values() if place.parent_id == topic.entity_id and not place.is_dead_letters
        ]

    def dead_letters_of(self, place: Place) -> Place:
        for other in self.places.values():
            if other.is_dead_letters and other.parent_id == place.entity_id:
                return other
        raise Violation(f"{place.path} has no dead-letter queue")

    def apply_group(self, records: list[Record]) -> Group:
        group = Group()
        for record in records:
            self._apply(record, group)
        return group

    def check_counters(self, turn: Turn) -> None:
        for entity_id, counters in turn.counters.items():
            self._place(entity_id).check(counters)

    def _place(self, entity_id: int) -> Place:
        place = self.places.get(entity_id)
        if place is None:
            raise Violation(f"a record about the entity {entity_id}, which is not there")
        return place

    def _apply(self, record: Record, group: Group) -> None:
        if isinstance(record, MessageAdded):
            place, row = self._place(record.entity_id), Row(record.stored)
            place.accept(record.stored)
            place.put(record.stored.sequence_number, row)
            group.added.append((place, record.stored.sequence_number, row))
        elif isinstance(record, MessageRemoved):
            place = self._place(record.entity_id)
            row = place.take(record.sequence_number, "removes")
            if row.state == ACTIVE and record.session_id != row.session_id:
                raise Violation(
                    f"{place.path}: {row.name} of session {row.session_id!r} leaves session {record.session_id!r}"
                )
            group.removed.append((place, record.sequence_number, row))
        elif isinstance(record, MessageChanged):
            place = self._place(record.entity_id)
            before = place.take(record.sequence_number, "changes")
            after = before.copy()
            after.state = record.state
            after.delivery_count = record.delivery_count
            after.reason = None if record.overlay is None else record.overlay.dead_letter_reason
            after.source = None if record.overlay is None else record.overlay.dead_letter_source
            after.hops = 0 if record.overlay is None else record.overlay.hops
            if record.state in (ACTIVE, DEFERRED):
                after.due_ms = NEVER
            place.put(record.sequence_number, after)
            group.changed.append((place, record.sequence_number, before, after))
        elif isinstance(record, MessageMoved):
            self._move(record, group)
        elif isinstance(record, EntityPut):
            self._put_entity(record)
        elif isinstance(record, RulePut):
            place = self._place(record.entity_id)
            if record.number in place.rules:
                raise Violation(f"{place.path}: two rules have the number {record.number}")
            place.rules[record.number] = rule_from_json(record.text)
            place.line_up_rules()
        elif isinstance(record, RuleRemoved):
            place = self._place(record.entity_id)
            if place.rules.pop(record.number, None) is None:
                raise Violation(f"{place.path}: a rule is removed that is not there")
            place.line_up_rules()
        elif isinstance(record, EntityRemoved):
            if self.places.pop(record.entity_id, None) is None:
                raise Violation(f"the entity {record.entity_id} is removed, which is not there")
        elif isinstance(record, SessionStatePut):
            self._place(record.entity_id).states[record.session_id] = record.state
        elif not isinstance(record, (MessageIdSeen, MessageIdsIndexed, MessageIdsForgotten)):
            raise Violation(f"a record of no known kind: {type(record).__name__}")

    def _move(self, record: MessageMoved, group: Group) -> None:
        source, target = self._place(record.from_entity_id), self._place(record.to_entity_id)
        row = source.take(record.from_sequence_number, "moves").copy()
        row.state = ACTIVE
        row.due_ms = NEVER
        row.session_id = record.session_id
        row.expires_ms = record.expires_ms
        row.delivery_count = record.delivery_count
        row.reason = None if record.overlay is None else record.overlay.dead_letter_reason
        row.source = None if record.overlay is None else record.overlay.dead_letter_source
        row.hops = 0 if record.overlay is None else record.overlay.hops
        if record.to_sequence_number <= target.last_number:
            raise Violation(f"{target.path}: {row.name} came with a number that was given before")
        target.put(record.to_sequence_number, row)
        group.moved.append((source, record.from_sequence_number, target, record.to_sequence_number, row))

    def _put_entity(self, put: EntityPut) -> None:
        place = self.places.get(put.entity_id)
        if place is None:
            if self.find(put.path) is not None:
                raise Violation(f"there are two of {put.path}")
            self.places[put.entity_id] = Place(put)
        else:
            former_ms = place.settings.duplicate_window_ms
            place.settings = settings_from_json(put.settings)
            place.line_up_rules()
            if place.settings.duplicate_window_ms != former_ms:
                place.accepted.clear()  # what was outside of it once may not be known any more


def is_topic(place: Place) -> bool:
    return place.kind == TOPIC
