"""Which messages were sent before: an entity that requires duplicate detection knows the ids it accepted in its window.

The store has all of them, in the order they were accepted. Memory has the same as long as there is room: then every
send is decided at once. When a namespace has more, the oldest of the entity with the most go into an index of the
store, by digest; from then on, until those are outside the window, sends to that entity wait for an answer of the
index. After a start the ids are read when the entity is first sent to. Sends that wait keep their order, and count as
held bytes.

Where an id is known, by the number that its message got:

    forgotten │ in the index of the store │ in memory, and in the log of the store
    ──────────┴───────────────────────────┴────────────────────────────────────────▶ sequence numbers
          the last sweep            `indexed_upto`

Once the log has been read (`is_read`), every id above `indexed_upto` is in memory, and every one below it that may
still count is in the index. From this follows what can be said without asking the store: an id that memory knows inside
the window is a duplicate, whatever else there is; one that memory does not know is new only if nothing in the index is
inside the window any more (`indexed_ms`). Everything else waits for the index.

- **Who comes while others wait, waits too**, even if its own ids are known. Else it would be stored before what was
  sent before it; and of two messages with one id, the later would be accepted and the earlier dropped.
- **The answer of the index cannot be stale.** Ids get from memory into the index only by `IndexIds`, which is a load,
  and an entity has one load under way: none gets there between the question of `AskIds` and its answer. What is
  accepted meanwhile is in memory, and memory is asked first (`first_number`). The answer is for those at the front of
  the line who were asked about, and for nobody behind them.
- **When ids are forgotten decides nothing.** Whether one counts is a matter of its time (`floor_ms`), so a sweep may be
  late, and is, several at a time. A window that is made longer must not bring back what had left the shorter one,
  because some of that is forgotten and some is not: `since_ms` is the floor below which nothing comes back.
- **`count` is what the log has above `indexed_upto`**, and the store says by how much it shrinks. A sweep that is
  answered while the log is still being read would take away what was not counted yet: it gives way, and comes again.
"""

from collections import deque
from typing import Final

from spillway.broker.decided import Decided
from spillway.broker.effects import Report
from spillway.broker.id_table import IdTable
from spillway.broker.loads import Loads, LoadStep
from spillway.model import limits
from spillway.model.entity import EntitySettings
from spillway.model.errors import BrokerError
from spillway.model.message import NEVER, Message
from spillway.model.message_ids import (
    DIGEST_BYTES,
    ID_BYTES,
    accepted_ms_of,
    digest_of,
    number_of,
    pack_id,
    place_at,
    place_of,
)
from spillway.model.records import (
    IdRows,
    LoadIds,
    LoadIndexedIds,
    LoadOldIds,
    MessageIdSeen,
    MessageIdsForgotten,
    MessageIdsIndexed,
    Query,
    Rows,
)

SWEEPS_PER_WINDOW: Final = 16  # ids are kept so much longer than they count
SWEEP_EVERY_MS_MIN: Final = 1_000
TRIM_PAGES: Final = 1_000  # of the table, along with every step that makes some of it dead
INDEXED_BYTES: Final = 100  # what an id takes in the index of the store
COMMAND_BYTES: Final = 200  # of a waiting command beside its messages, roughly


class Waiting:
    """Messages on their way into an entity that looks for duplicates."""

    def __init__(self, messages: list[Message]) -> None:
        self.messages = messages

    def resume(self, decided: Decided) -> None:
        """The ids of these messages are known: let them in, or refuse them."""

    def abort(self, error: BrokerError, decided: Decided) -> None:
        """The entity is gone; whoever waits must hear of it."""


class IdBudget:
    """Ids in memory over all entities of a namespace, and the bytes of the sends that wait for ids."""

    def __init__(self, count_max: int) -> None:
        self.count_max = count_max
        self.count = 0
        self.held_bytes = 0
        self.is_indexing = False
        self.by_entity: dict[int, Duplicates] = {}

    def make_room(self, decided: Decided) -> None:
        """The entity with the most ids in memory gives up its oldest."""
        if self.is_indexing:
            return
        largest: Duplicates | None = None
        for one in self.by_entity.values():
            if one.is_read and (largest is None or one.count > largest.count):
                largest = one
        if largest is not None:
            self.is_indexing = True
            largest.loads.add(IndexIds(largest), decided)


class Duplicates:
    """Duplicate detection of one queue or topic."""

    def __init__(self, entity_id: int, path: str, settings: EntitySettings, loads: Loads, budget: IdBudget) -> None:
        self.entity_id = entity_id
        self.path = path
        self.loads = loads
        self.budget = budget
        self.window_ms = settings.duplicate_window_ms
        self.since_ms = settings.duplicates_since_ms
        self.is_partitioned = False
        self.table = IdTable()
        self.count = 0  # ids in the table that are not dead
        self.line: deque[Waiting] = deque()
        self.is_asking = False  # a step that serves the line is under way
        self.is_read = True  # what the store has and its index has not is in memory
        self.indexed_upto = 0
        self.indexed_ms = 0  # when the last of them was accepted
        self.answers: dict[bytes, int] = {}  # of the index, for those who go now
        self.oldest_ms: int = NEVER  # no id in the store was accepted before this
        self.newest_ms: int = NEVER
        self.swept_ms = 0
        self.is_sweeping = False
        budget.by_entity[entity_id] = self

    def recover(self, oldest_ms: int) -> None:
        """Begins as the store remembers the entity: no id is read before the first send."""
        self.oldest_ms = oldest_ms
        self.is_read = oldest_ms == NEVER

    def close(self) -> None:
        """The entity is deleted."""
        self._uncount(self.count)
        self.table.clear()
        del self.budget.by_entity[self.entity_id]

    def change(self, settings: EntitySettings, now_ms: int) -> None:
        """A new window, from the next send on. What has left the old one does not come back into a longer one."""
        settings.duplicates_since_ms = max(self.since_ms, self.floor_ms(now_ms))
        self.since_ms = settings.duplicates_since_ms
        self.window_ms = settings.duplicate_window_ms

    def floor_ms(self, now_ms: int) -> int:
        """Ids accepted at or before this are outside the window."""
        return max(now_ms - self.window_ms, self.since_ms)

    # -- asking -----------------------------------------------------------------------------------------------

    def knows(self, messages: list[Message], now_ms: int) -> bool:
        """Whether memory alone tells which messages are duplicates: mostly. Else they must be enqueued."""
        for message in messages:
            message.digest = digest_of(message, self.is_partitioned)
        return self.is_read and not self.line and self._needs_no_index(messages, now_ms)

    def enqueue(self, waiting: Waiting, decided: Decided) -> None:
        """Messages that were asked about: they go when their ids are known, after all before them."""
        self.line.append(waiting)
        self.budget.held_bytes += _held_bytes(waiting)
        if not self.is_asking:
            self.is_asking = True
            self.loads.add(AskIds(self) if self.is_read else ReadIds(self), decided)

    def _needs_no_index(self, messages: list[Message], now_ms: int) -> bool:
        if self.indexed_upto == 0 or self.indexed_ms <= self.floor_ms(now_ms):
            return True
        for message in messages:  # noqa: SIM110  (a plain loop is the faster one, compiled)
            if not message.is_ping and self._in_memory(message.digest, now_ms) == 0:
                return False
        return True

    def _in_memory(self, digest: bytes, now_ms: int) -> int:
        place = self.table.find(digest)
        return place if place != 0 and accepted_ms_of(place) > self.floor_ms(now_ms) else 0

    def first_number(self, message: Message, now_ms: int) -> int:
        """The number of the message that was accepted with this id inside the window; 0 if it is new."""
        place = self.table.find(message.digest)
        if place == 0 and self.answers:
            place = self.answers.get(message.digest, 0)
        if place == 0 or accepted_ms_of(place) <= self.floor_ms(now_ms):
            return 0
        return number_of(place)

    def only_new(self, messages: list[Message], now_ms: int) -> list[Message]:
        """The messages that were not accepted before, and pings, which take no part."""
        return [message for message in messages if message.is_ping or self.first_number(message, now_ms) == 0]

    def remember(self, message: Message, number: int, decided: Decided) -> MessageIdSeen:
        """The message is accepted; the record goes into its group."""
        now_ms = decided.now_ms
        packed = pack_id(message.digest, place_of(number, now_ms))
        self.table.add(message.digest, packed)
        self.count += 1
        self.newest_ms = now_ms
        if self.oldest_ms == NEVER:
            self.oldest_ms = now_ms
        budget = self.budget
        budget.count += 1
        if budget.count > budget.count_max:
            budget.make_room(decided)
        return MessageIdSeen(self.entity_id, number, packed)

    def _uncount(self, count: int) -> None:
        self.count -= count
        self.budget.count -= count
        assert self.count >= 0, "forgot more ids than there were"

    def evict(self, count: int, upto: int) -> None:
        """Ids up to this number, so many, are not in memory any more."""
        self._uncount(count)
        self.table.raise_floor(upto, TRIM_PAGES)
        if self.count == 0:
            self.table.clear()

    def is_reading(self) -> bool:
        return self.is_asking and not self.is_read

    # -- the line ---------------------------------------------------------------------------------------------

    def read_in(self, records: bytes) -> None:
        for at in range(0, len(records), ID_BYTES):
            self.table.add(records[at : at + DIGEST_BYTES], records[at : at + ID_BYTES])
        self.count += len(records) // ID_BYTES
        self.budget.count += len(records) // ID_BYTES

    def serve_known(self, decided: Decided) -> None:
        """Serves waiting messages from the front of the line, until one must wait for the index."""
        while self.line and self._needs_no_index(self.line[0].messages, decided.now_ms):
            self._resume_first(decided)

    def unknown_digests(self, now_ms: int) -> tuple[int, list[bytes]]:
        """The digests that the index must be asked about, for so many messages at the front of the line."""
        digests: list[bytes] = []
        waiting_count = 0
        for waiting in self.line:
            for message in waiting.messages:
                if not message.is_ping and self._in_memory(message.digest, now_ms) == 0:
                    digests.append(message.digest)
            waiting_count += 1
            if len(digests) >= limits.ASK_IDS:
                break
        return waiting_count, digests

    def serve_answered(self, waiting_count: int, answers: dict[bytes, int], decided: Decided) -> None:
        self.answers = answers
        for _ in range(waiting_count):
            self._resume_first(decided)
        self.answers = {}

    def _resume_first(self, decided: Decided) -> None:
        waiting = self.line.popleft()
        self.budget.held_bytes -= _held_bytes(waiting)
        waiting.resume(decided)

    def abort(self, error: BrokerError, decided: Decided) -> None:
        while self.line:
            waiting = self.line.popleft()
            self.budget.held_bytes -= _held_bytes(waiting)
            waiting.abort(error, decided)

    # -- time -------------------------------------------------------------------------------------------------

    def due_ms(self) -> int:
        """When ids are to be forgotten; 0 if there are none. Several at a time: nobody waits for it."""
        if self.oldest_ms == NEVER or self.is_sweeping or self.is_reading():
            return 0
        pause_ms = max(self.window_ms // SWEEPS_PER_WINDOW, SWEEP_EVERY_MS_MIN)
        return max(self.oldest_ms + self.window_ms, self.swept_ms) + pause_ms

    def on_time(self, decided: Decided) -> None:
        if 0 < self.due_ms() <= decided.now_ms:
            self.is_sweeping = True
            self.loads.add(SweepIds(self), decided)

    def report_damage(self, rows: Rows, decided: Decided) -> None:
        for number in rows.corrupt:
            decided.emit(
                Report(
                    f"'{self.path}': ids of messages accepted up to number {number} are damaged in the store (their "
                    "checksum does not hold): duplicates of those messages are not recognised."
                )
            )


class ReadIds(LoadStep):
    """After a start, at the first send: what the store has, in bounded steps; then the line is served."""

    def __init__(self, duplicates: Duplicates) -> None:
        self.duplicates = duplicates
        self.after = 0

    def query(self, decided: Decided) -> Query | None:
        return LoadIds(self.duplicates.entity_id, self.after, limits.READ_IDS, True)

    def loaded(self, rows: Rows, decided: Decided) -> bool:
        duplicates = self.duplicates
        ids = _ids_of(rows)
        duplicates.report_damage(rows, decided)
        duplicates.indexed_upto = ids.indexed_upto
        duplicates.indexed_ms = ids.indexed_ms
        duplicates.read_in(ids.records)
        if rows.is_cut:
            self.after = ids.upto
            return True
        duplicates.is_read = True
        duplicates.is_asking = False
        duplicates.serve_known(decided)
        if duplicates.line:
            duplicates.is_asking = True
            duplicates.loads.add(AskIds(duplicates), decided)
        return False

    def abort(self, error: BrokerError, decided: Decided) -> None:
        self.duplicates.abort(error, decided)


class AskIds(LoadStep):
    """Looks up in the index what memory does not know, for all who wait by now."""

    def __init__(self, duplicates: Duplicates) -> None:
        self.duplicates = duplicates
        self.waiting_count = 0

    def query(self, decided: Decided) -> Query | None:
        self.duplicates.serve_known(decided)
        self.waiting_count, digests = self.duplicates.unknown_digests(decided.now_ms)
        if self.waiting_count == 0:
            self.duplicates.is_asking = False
            return None
        return LoadIndexedIds(self.duplicates.entity_id, digests)

    def loaded(self, rows: Rows, decided: Decided) -> bool:
        self.duplicates.report_damage(rows, decided)
        records = _ids_of(rows).records
        answers: dict[bytes, int] = {}
        for at in range(0, len(records), ID_BYTES):
            answers[records[at : at + DIGEST_BYTES]] = place_at(records, at)
        self.duplicates.serve_answered(self.waiting_count, answers, decided)
        return True

    def abort(self, error: BrokerError, decided: Decided) -> None:
        self.duplicates.abort(error, decided)


class IndexIds(LoadStep):
    """Memory is full: the oldest ids of this entity are from now on in the index of the store only."""

    def __init__(self, duplicates: Duplicates) -> None:
        self.duplicates = duplicates

    def query(self, decided: Decided) -> Query | None:
        return LoadIds(self.duplicates.entity_id, self.duplicates.indexed_upto, limits.INDEX_IDS, False)

    def loaded(self, rows: Rows, decided: Decided) -> bool:
        duplicates = self.duplicates
        budget = duplicates.budget
        ids = _ids_of(rows)
        duplicates.report_damage(rows, decided)
        if not decided.may_write(limits.INDEX_IDS * INDEXED_BYTES):
            budget.is_indexing = False  # the disk is full; nothing is sent either, so there will not be more of them
            return False
        if ids.upto > 0:
            decided.remember([MessageIdsIndexed(duplicates.entity_id, ids.upto, ids.accepted_ms)])
            duplicates.indexed_upto = ids.upto
            duplicates.indexed_ms = ids.accepted_ms
            duplicates.evict(ids.count, ids.upto)
        # An eighth more than is needed now, or the next send would begin it again.
        if rows.is_cut and budget.count > budget.count_max - budget.count_max // 8:
            return True
        budget.is_indexing = False
        return False

    def abort(self, error: BrokerError, decided: Decided) -> None:
        self.duplicates.budget.is_indexing = False


class SweepIds(LoadStep):
    """Ids outside the window are forgotten, in bounded steps."""

    def __init__(self, duplicates: Duplicates) -> None:
        self.duplicates = duplicates
        self.floor_ms = 0

    def query(self, decided: Decided) -> Query | None:
        self.floor_ms = self.duplicates.floor_ms(decided.now_ms)
        return LoadOldIds(self.duplicates.entity_id, self.floor_ms, limits.SWEEP_IDS)

    def loaded(self, rows: Rows, decided: Decided) -> bool:
        duplicates = self.duplicates
        if duplicates.is_reading():
            duplicates.is_sweeping = False  # what is read is counted as it was: the sweep comes after it
            return False
        ids = _ids_of(rows)
        if ids.upto > 0:
            decided.remember([MessageIdsForgotten(duplicates.entity_id, ids.upto)])
            if duplicates.is_read:
                duplicates.evict(ids.count, ids.upto)
            if ids.upto >= duplicates.indexed_upto:
                duplicates.indexed_upto = 0  # nothing is left in the index: memory decides alone
        if rows.is_cut:
            return True
        duplicates.is_sweeping = False
        duplicates.swept_ms = decided.now_ms
        duplicates.oldest_ms = rows.next_ms
        if rows.next_ms == NEVER and duplicates.newest_ms > self.floor_ms:
            duplicates.oldest_ms = duplicates.newest_ms  # accepted since we asked
        return False


def _held_bytes(waiting: Waiting) -> int:
    size = COMMAND_BYTES
    for message in waiting.messages:
        size += len(message.raw)
    return size


def _ids_of(rows: Rows) -> IdRows:
    ids = rows.ids
    return IdRows() if ids is None else ids
