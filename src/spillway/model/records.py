"""Records and turns, what is remembered: the broker decides it, the store keeps it.

A `Turn` is what one step of the broker decided. Its groups are each all or nothing. Counters are absolute values at
the end of the turn: a store that commits whole turns writes them as they are.
"""

from typing import Final

from spillway.model.ledger import LedgerRow
from spillway.model.message import ACTIVE, DEFERRED, SCHEDULED, Overlay, StoredMessage

ROW_BYTES: Final = 200  # what a message weighs besides its bytes


class Record:
    """One change. `size_bytes` is what it weighs for back-pressure."""

    def __init__(self) -> None:
        self.size_bytes = 64


class EntityPut(Record):
    """An entity is created or its settings are changed. A dead-letter queue names its parent."""

    def __init__(self, entity_id: int, kind: str, path: str, settings: str, parent_id: int) -> None:
        super().__init__()
        self.entity_id = entity_id
        self.kind = kind
        self.path = path
        self.settings = settings  # JSON
        self.size_bytes += len(settings)
        self.parent_id = parent_id  # 0: none


class RulePut(Record):
    """A rule is added to a subscription; behind those with a lower number."""

    def __init__(self, entity_id: int, number: int, name: str, text: str) -> None:
        super().__init__()
        self.entity_id = entity_id
        self.number = number
        self.name = name
        self.text = text  # JSON
        self.size_bytes += len(name) + len(text)


class RuleRemoved(Record):
    def __init__(self, entity_id: int, number: int) -> None:
        super().__init__()
        self.entity_id = entity_id
        self.number = number


class EntityRemoved(Record):
    """The entity, its rules and every message in it."""

    def __init__(self, entity_id: int) -> None:
        super().__init__()
        self.entity_id = entity_id


class MessageAdded(Record):
    def __init__(self, entity_id: int, stored: StoredMessage) -> None:
        super().__init__()
        self.entity_id = entity_id
        self.stored = stored
        self.size_bytes = ROW_BYTES + len(stored.message.raw)
        if stored.overlay is not None:
            self.size_bytes += stored.overlay.size_bytes


class MessageRemoved(Record):
    """`session_id` of an active message in an entity that requires sessions: its session has one less."""

    def __init__(self, entity_id: int, sequence_number: int, session_id: str | None = None) -> None:
        super().__init__()
        self.entity_id = entity_id
        self.sequence_number = sequence_number
        self.session_id = session_id


class MessageChanged(Record):
    """The row stays where it is; these fields get new values (abandoned, deferred)."""

    def __init__(
        self, entity_id: int, sequence_number: int, state: int, delivery_count: int, overlay: Overlay | None
    ) -> None:
        super().__init__()
        self.entity_id = entity_id
        self.sequence_number = sequence_number
        self.state = state
        self.delivery_count = delivery_count
        self.overlay = overlay
        if overlay is not None:
            self.size_bytes += overlay.size_bytes


class MessageMoved(Record):
    """The row goes to another place: dead-lettered, or a scheduled message that becomes active.

    It arrives as an active row with a new sequence number, and keeps its body and its enqueue sequence number.
    """

    def __init__(
        self,
        from_entity_id: int,
        from_sequence_number: int,
        to_entity_id: int,
        to_sequence_number: int,
        enqueued_ms: int,
        expires_ms: int,
        delivery_count: int,
        overlay: Overlay | None,
        session_id: str | None = None,
    ) -> None:
        super().__init__()
        self.from_entity_id = from_entity_id
        self.from_sequence_number = from_sequence_number
        self.to_entity_id = to_entity_id
        self.to_sequence_number = to_sequence_number
        self.enqueued_ms = enqueued_ms
        self.expires_ms = expires_ms
        self.delivery_count = delivery_count
        self.overlay = overlay
        if overlay is not None:
            self.size_bytes += overlay.size_bytes
        self.session_id = session_id  # where it goes to, if sessions are required there


class SessionStatePut(Record):
    """The state of a message session; None clears it."""

    def __init__(self, entity_id: int, session_id: str, state: bytes | None, now_ms: int) -> None:
        super().__init__()
        self.entity_id = entity_id
        self.session_id = session_id
        self.state = state
        self.now_ms = now_ms
        self.size_bytes = 100 + (0 if state is None else len(state))


class MessageIdSeen(Record):
    """The id of an accepted message, in the group that stores the message. `packed` is as model.message_ids says."""

    def __init__(self, entity_id: int, sequence_number: int, packed: bytes) -> None:
        super().__init__()
        self.entity_id = entity_id
        self.sequence_number = sequence_number
        self.packed = packed


class MessageIdsIndexed(Record):
    """Ids up to this number are looked up by their digest from now on; the last of them was accepted then."""

    def __init__(self, entity_id: int, upto: int, accepted_ms: int) -> None:
        super().__init__()
        self.entity_id = entity_id
        self.upto = upto
        self.accepted_ms = accepted_ms


class MessageIdsForgotten(Record):
    """Ids up to this number are outside the window."""

    def __init__(self, entity_id: int, upto: int) -> None:
        super().__init__()
        self.entity_id = entity_id
        self.upto = upto


class Counters:
    """What an entity holds, kept up to date by the broker, never counted."""

    def __init__(self) -> None:
        self.last_sequence_number = 0
        self.active = 0
        self.deferred = 0
        self.scheduled = 0
        self.hidden = 0
        self.size_bytes = 0
        self.used_ms = 0  # when somebody last sent to the entity, or received or browsed there

    def add(self, size_bytes: int, state: int, count: int) -> None:
        self.size_bytes += size_bytes
        if state == ACTIVE:
            self.active += count
        elif state == DEFERRED:
            self.deferred += count
        elif state == SCHEDULED:
            self.scheduled += count
        else:
            self.hidden += count

    @property
    def total(self) -> int:
        """Messages in any state."""
        return self.active + self.deferred + self.scheduled + self.hidden

    def is_sound(self) -> bool:
        return (
            self.active >= 0
            and self.deferred >= 0
            and self.scheduled >= 0
            and self.hidden >= 0
            and self.size_bytes >= 0
        )

    def copy(self) -> "Counters":
        twin = Counters()
        twin.last_sequence_number = self.last_sequence_number
        twin.active = self.active
        twin.deferred = self.deferred
        twin.scheduled = self.scheduled
        twin.hidden = self.hidden
        twin.size_bytes = self.size_bytes
        twin.used_ms = self.used_ms
        return twin


class Turn:
    """What one step of the broker decided: groups of records, each all or nothing, and the counters after them.

    `ledger` is added to what the ledger has; `tallies` are what was counted of entities and is in no row yet, and
    replace the ones before. Days that end at `seals_before` (a minute) or earlier are over for good.
    """

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.groups: list[list[Record]] = []
        self.counters: dict[int, Counters] = {}  # by entity id
        self.ledger: list[LedgerRow] = []
        self.tallies: dict[int, bytes] = {}  # by entity id; see `model.ledger.Tally.pack`
        self.seals_before = 0  # 0: nothing new is over
        self.recounts: list[int] = []  # entity ids whose counters the store makes of the rows it has, see `incidents`
        self.size_bytes = 0

    def cut(self, count: int) -> None:
        """Only the first so many groups stand."""
        for group in self.groups[count:]:
            for record in group:
                self.size_bytes -= record.size_bytes
        del self.groups[count:]

    def add(self, group: list[Record]) -> None:
        for record in group:
            self.size_bytes += record.size_bytes
        self.groups.append(group)

    def is_empty(self) -> bool:
        return not self.needs_ack() and not self.ledger and not self.tallies and self.seals_before == 0

    def needs_ack(self) -> bool:
        """Whether what was decided may be said only when this is durable. Nobody waits for the ledger."""
        return bool(self.groups) or bool(self.counters)


class RuleRow:
    """A rule as the store remembers it."""

    def __init__(self, number: int, name: str, text: str) -> None:
        self.number = number
        self.name = name
        self.text = text  # JSON
        self.problem = ""  # why it cannot be read; empty if it can


class EntityRow:
    """An entity as the store remembers it, with what the broker must know of it at start."""

    def __init__(
        self, put: EntityPut, counters: Counters, next_due_ms: int, next_expiry_ms: int, oldest_id_ms: int
    ) -> None:
        self.put = put
        self.counters = counters
        self.next_due_ms = next_due_ms  # earliest scheduled or hidden message, NEVER if none
        self.next_expiry_ms = next_expiry_ms  # earliest expiry of an active message, NEVER if none
        self.tally = b""  # what was counted last and is in no row of the ledger
        self.oldest_id_ms = oldest_id_ms  # when the last of the oldest row of ids was accepted, NEVER if there are none
        self.problem = ""  # why it cannot be served; empty if it can
        self.rules: list[RuleRow] = []  # of a subscription, by their numbers


class Catalogue:
    """All that is read at start. Its size depends on the number of entities and rules, never on messages."""

    def __init__(self, entities: list[EntityRow], last_entity_id: int, clock_ms: int, created_ms: int = 0) -> None:
        self.entities = entities
        self.last_entity_id = last_entity_id
        self.clock_ms = clock_ms  # the latest time any turn was stamped with
        self.ledger_minute = 0  # the earliest one that is counted and in no sealed day, 0 if none
        self.created_ms = created_ms  # when the store was made; 0: it is not known
        self.was_interrupted = False  # the life before did not end in order: it may have shown what is not in the store


class Query:
    """What the broker asks of the store; always answered by rows in the order said."""

    def __init__(self, entity_id: int, count: int, bytes_max: int) -> None:
        self.entity_id = entity_id
        self.count = count
        self.bytes_max = bytes_max  # stop after the row that passes it; at least one row is answered


class LoadActive(Query):
    """Active messages with a sequence number above `after`, by sequence number; of one session if it is given."""

    def __init__(self, entity_id: int, after: int, count: int, bytes_max: int, session_id: str | None = None) -> None:
        super().__init__(entity_id, count, bytes_max)
        self.after = after
        self.session_id = session_id
        self.before_ms = 0  # up to the first that was enqueued at this time or later; 0: all


class LoadFrom(Query):
    """Messages from `sequence_number` on, by sequence number: browsing; of one session if it is given.

    In any state but hidden. If many of other sessions lie between, the answer is cut before it is full, or before it
    has any: ask again behind `Rows.read_upto`.
    """

    def __init__(
        self, entity_id: int, sequence_number: int, count: int, bytes_max: int, session_id: str | None = None
    ) -> None:
        super().__init__(entity_id, count, bytes_max)
        self.sequence_number = sequence_number
        self.session_id = session_id


class LoadActiveOfSessions(Query):
    """`LoadActive` of several sessions in one go: `count` messages each, `bytes_max` over all of them.

    Answered in `Rows.by_session`, in the order asked. A session that is not there was not come to: ask again.
    """

    def __init__(self, entity_id: int, afters: dict[str, int], count: int, bytes_max: int) -> None:
        super().__init__(entity_id, count, bytes_max)
        self.afters = afters  # by session id


class LoadSessions(Query):
    """Sessions that have active messages, those first that have had some for longest. Answered in `Rows.sessions`.

    Only those that became ready after `after`, a `SessionRow.ready_since` of an earlier answer.
    """

    def __init__(self, entity_id: int, count: int, after: int = 0) -> None:
        super().__init__(entity_id, count, 0)
        self.after = after


class LoadSession(Query):
    """The state of one session. Answered in `Rows.sessions`: empty if it has neither messages nor state."""

    def __init__(self, entity_id: int, session_id: str) -> None:
        super().__init__(entity_id, 1, 0)
        self.session_id = session_id


class LoadSessionNames(Query):
    """Sessions by name: those whose state changed at or after `since_ms`, or (NEVER) those with messages or a state."""

    def __init__(self, entity_id: int, since_ms: int, skip: int, count: int) -> None:
        super().__init__(entity_id, count, 0)
        self.since_ms = since_ms
        self.skip = skip


class LoadNumbers(Query):
    """Asks for messages by sequence number, in any state; missing ones are left out."""

    def __init__(self, entity_id: int, sequence_numbers: list[int], bytes_max: int) -> None:
        super().__init__(entity_id, len(sequence_numbers), bytes_max)
        self.sequence_numbers = sequence_numbers


class LoadDue(Query):
    """Scheduled and hidden messages due at or before `now_ms`, earliest first, and when the next one is due."""

    def __init__(self, entity_id: int, now_ms: int, count: int, bytes_max: int) -> None:
        super().__init__(entity_id, count, bytes_max)
        self.now_ms = now_ms


class LoadExpired(Query):
    """Active messages that expired at or before `now_ms`, earliest first, and when the next one will."""

    def __init__(self, entity_id: int, now_ms: int, count: int, bytes_max: int) -> None:
        super().__init__(entity_id, count, bytes_max)
        self.now_ms = now_ms


class LoadEntity(Query):
    """An entity as `Catalogue` has it. Answered in `Rows.entity`: None if it is not there, or its row is damaged."""

    def __init__(self, entity_id: int) -> None:
        super().__init__(entity_id, 1, 0)


class LoadLedger(Query):
    """Rows of the ledger from `since` to before `until` (minutes), by their key, those behind `after` only.

    Answered in `Rows.ledger`; minutes before `Rows.sealed_before` are in sealed days and not answered.
    """

    def __init__(self, since: int, until: int, after: tuple[int, str, int], count: int) -> None:
        super().__init__(0, count, 0)
        self.since = since
        self.until = until
        self.after = after


class LoadIds(Query):
    """Ids of messages with a number above `after`, in the order they were accepted, that are not in the index.

    Whole rows, until they have `count` ids. Answered in `Rows.ids`, without the ids themselves if not `wants_records`.
    """

    def __init__(self, entity_id: int, after: int, count: int, wants_records: bool) -> None:
        super().__init__(entity_id, count, 0)
        self.after = after
        self.wants_records = wants_records


class LoadOldIds(Query):
    """Rows of ids of which the last was accepted at or before `before_ms`, oldest first, until they have `count` ids.

    To delete a row costs little unless its ids are in the index: such a row counts as a sixteenth of its ids.
    Answered in `Rows.ids`, and in `Rows.next_ms` when the last of the next row was accepted.
    """

    def __init__(self, entity_id: int, before_ms: int, count: int) -> None:
        super().__init__(entity_id, count, 0)
        self.before_ms = before_ms


class LoadIndexedIds(Query):
    """Asks which of these digests are in the index. Answered in `Rows.ids`."""

    def __init__(self, entity_id: int, digests: list[bytes]) -> None:
        super().__init__(entity_id, len(digests), 0)
        self.digests = digests


class IdRows:
    """Ids of accepted messages. In a damaged row they are unknown: `Rows.corrupt` has the number of its last one."""

    def __init__(self) -> None:
        self.records = b""  # packed, one behind the other
        self.count = 0  # how many the rows answered have that are not in the index
        self.upto = 0  # the number of the last of them
        self.accepted_ms = 0  # and when it was accepted
        self.indexed_upto = 0  # LoadIds: those up to this number are in the index
        self.indexed_ms = 0  # and were accepted up to then


class SessionRow:
    def __init__(self, session_id: str, active: int, ready_since: int, state: bytes | None) -> None:
        self.session_id = session_id
        self.active = active
        self.ready_since = ready_since  # the number of the message with which it had some again
        self.state = state
        self.is_state_known = True  # False: it is damaged in the store


class Rows:
    """The answer to a query. It reflects exactly the turns submitted before the query."""

    def __init__(self, messages: list[StoredMessage]) -> None:
        self.messages = messages
        self.is_cut = False  # more rows would have matched, or may: stopped by count, bytes, or rows looked at
        self.read_upto = 0  # the number of the last row that was looked at, answered or not
        self.next_ms = 0  # LoadDue, LoadExpired, LoadOldIds: the earliest time of what was not answered, NEVER if none
        self.sessions: list[SessionRow] = []
        self.ledger: list[LedgerRow] = []
        self.ledger_end = (-1, "", -1)  # the key of the last row that was looked at: where the next page goes on
        self.sealed_before = 0  # a minute
        self.damaged_count = 0  # rows of the ledger whose checksum did not hold: they are left out
        self.ids: IdRows | None = None
        self.by_session: dict[str, Rows] = {}
        self.entity: EntityRow | None = None
        self.corrupt: list[int] = []  # sequence numbers whose checksum did not hold: reported, never served
