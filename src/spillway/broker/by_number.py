"""Requests that name messages by number or by place: cancel, receive deferred, delete, browse."""

from spillway.broker.commands import BatchDelete, CancelScheduled, Peek, ReceiveDeferred
from spillway.broker.decided import Decided
from spillway.broker.effects import Deleted, Done, Failed, Messages
from spillway.broker.entity import Entity
from spillway.broker.lane import Lane
from spillway.broker.loads import LoadStep
from spillway.broker.queue import Queue
from spillway.broker.refill import report_corrupt
from spillway.model import limits
from spillway.model.errors import ArgumentError, BrokerError, MessageNotFound, SessionLockLost
from spillway.model.ledger import CANCEL, EMPTY_RECEIVE, MANAGEMENT, PEEK
from spillway.model.message import DEFERRED, NEVER, SCHEDULED, StoredMessage
from spillway.model.records import LoadActive, LoadFrom, LoadNumbers, MessageRemoved, Query, Record, Rows


class BrowseStep(LoadStep):
    """Shows messages in any state; changes nothing. As many questions as it takes: none holds up the store for long."""

    def __init__(self, queue: Queue, request: Peek) -> None:
        self.queue = queue
        self.request = request
        self.first = request.from_sequence_number
        self.count = min(request.count, limits.PEEK_MESSAGES_MAX)
        self.bytes_left: int = limits.PEEK_BYTES_MAX
        self.found: list[StoredMessage] = []
        self.keeps_place = True  # one that has begun has messages in memory: those behind it have none yet

    def query(self, decided: Decided) -> Query | None:
        count = min(self.count - len(self.found), limits.QUERY_ROWS_MAX)
        return LoadFrom(self.queue.entity_id, self.first, count, self.bytes_left, self.request.session_id)

    def loaded(self, rows: Rows, decided: Decided) -> bool:
        report_corrupt(self.queue, rows, decided)
        tally = self.queue.metered(decided)
        for stored in rows.messages:
            tally.count(PEEK, len(stored.message.raw))
            self.bytes_left -= len(stored.message.raw) + limits.RESIDENT_MESSAGE_BYTES
        self.found += rows.messages
        if rows.is_cut and len(self.found) < self.count and self.bytes_left > 0 and rows.read_upto >= self.first:
            self.first = rows.read_upto + 1
            return True
        if not self.found:
            tally.count(PEEK)
        decided.emit(Messages(self.request.request_id, self.found, [], 0))
        return False

    def abort(self, error: BrokerError, decided: Decided) -> None:
        decided.emit(Failed(self.request.request_id, error))


class NumbersStep(LoadStep):
    """Reads messages by their numbers, some hundred at a time; nothing else of the entity is read between.

    So what was read first can have changed by the end no more than if all had been read at once (`loads`).
    """

    def __init__(self, entity: Entity, numbers: list[int]) -> None:
        self.entity = entity
        self.numbers = sorted(set(numbers))
        self.asked_count = 0
        self.bytes_left: int = limits.BY_NUMBER_BYTES_MAX
        self.rows = Rows([])
        self.keeps_place = True

    def query(self, decided: Decided) -> Query | None:
        asked = self.numbers[self.asked_count : self.asked_count + limits.NUMBERS_PER_LOAD]
        return LoadNumbers(self.entity.entity_id, asked, self.bytes_left)

    def loaded(self, rows: Rows, decided: Decided) -> bool:
        report_corrupt(self.entity, rows, decided)
        self.rows.messages += rows.messages
        for stored in rows.messages:
            self.bytes_left -= len(stored.message.raw)
        self.asked_count += limits.NUMBERS_PER_LOAD
        is_more = self.asked_count < len(self.numbers)
        self.rows.is_cut = rows.is_cut or (is_more and self.bytes_left <= 0)
        if is_more and not self.rows.is_cut:
            return True
        self.read(self.rows, decided)
        return False

    def read(self, rows: Rows, decided: Decided) -> None:
        """All of them are there, or there are too many."""


class CancelStep(NumbersStep):
    """Removes scheduled messages, all or none."""

    def __init__(self, entity: Entity, request: CancelScheduled) -> None:
        super().__init__(entity, request.sequence_numbers)
        self.request = request

    def read(self, rows: Rows, decided: Decided) -> None:
        error = _missing(self.entity, self.request.sequence_numbers, rows, SCHEDULED, "scheduled")
        if error is not None:
            decided.emit(Failed(self.request.request_id, error))
            return
        group: list[Record] = []
        for stored in rows.messages:
            group.append(MessageRemoved(self.entity.entity_id, stored.sequence_number))
            self.entity.uncount(len(stored.message.raw), SCHEDULED)
        decided.remember(group)
        self.entity.metered(decided).count_many(CANCEL, len(group), len(group), 0)
        decided.emit(Done(self.request.request_id))

    def abort(self, error: BrokerError, decided: Decided) -> None:
        decided.emit(Failed(self.request.request_id, error))


class ReceiveDeferredStep(NumbersStep):
    """Hands out deferred messages by number, all or none: locked, or deleted at once."""

    def __init__(self, queue: Queue, request: ReceiveDeferred) -> None:
        super().__init__(queue, request.sequence_numbers)
        self.queue = queue
        self.request = request

    def query(self, decided: Decided) -> Query | None:
        """What is locked now may be settled before the answer comes: it is refused before asking."""
        lane = self.queue.lane_of(self.request.session_id)
        error = self._lock_missing() if lane is None else self._locked_already(lane)
        if error is not None:
            self._refuse(error, decided)
            return None
        return super().query(decided)

    def read(self, rows: Rows, decided: Decided) -> None:
        queue = self.queue
        error = _missing(queue, self.request.sequence_numbers, rows, DEFERRED, "deferred")
        if error is None:
            error = self._expired(rows.messages, decided)
        if error is not None:
            self._refuse(error, decided)
            return
        if self.request.deletes:
            group: list[Record] = []
            for stored in rows.messages:
                group.append(MessageRemoved(queue.entity_id, stored.sequence_number))
                queue.uncount(len(stored.message.raw), DEFERRED)
            decided.remember(group)
            self._hand_out(rows.messages, [], 0, decided)
            return
        lane = queue.lane_of(self.request.session_id)
        if lane is None:
            decided.emit(Failed(self.request.request_id, self._lock_missing()))
            return
        locks = [queue.lock(stored, lane, None, decided.now_ms) for stored in rows.messages]
        until_ms = locks[0].locked_until_ms if locks else 0
        self._hand_out(rows.messages, [lock.token for lock in locks], until_ms, decided)

    def _hand_out(self, messages: list[StoredMessage], tokens: list[bytes], until_ms: int, decided: Decided) -> None:
        tally = self.queue.metered(decided)
        for stored in messages:
            tally.receive(len(stored.message.raw))
        decided.emit(Messages(self.request.request_id, messages, tokens, until_ms))

    def _refuse(self, error: BrokerError, decided: Decided) -> None:
        if isinstance(error, MessageNotFound):
            self.queue.metered(decided).count(EMPTY_RECEIVE)
        decided.emit(Failed(self.request.request_id, error))

    def _expired(self, messages: list[StoredMessage], decided: Decided) -> BrokerError | None:
        """A deferred message that outlived its time expires when somebody asks for it, not before."""
        error: BrokerError | None = None
        for stored in messages:
            if stored.expires_ms != NEVER and stored.expires_ms <= decided.now_ms:
                if self.queue.may_expire(stored, decided):
                    group: list[Record] = []
                    self.queue.expire(stored, group, decided)
                    decided.remember(group)
                error = MessageNotFound(f"Message {stored.sequence_number} of '{self.queue.path}' has expired.")
        return error

    def _lock_missing(self) -> BrokerError:
        return SessionLockLost(
            f"'{self.queue.path}' requires sessions: only the receiver that holds a session can receive its deferred "
            "messages."
        )

    def _locked_already(self, lane: Lane) -> BrokerError | None:
        for number in self.numbers:
            if number in lane.locks.deferred_numbers:
                return MessageNotFound(
                    f"Message {number} of '{self.queue.path}' is deferred and locked by another receiver."
                )
        return None

    def abort(self, error: BrokerError, decided: Decided) -> None:
        decided.emit(Failed(self.request.request_id, error))


class BatchDeleteStep(LoadStep):
    """Deletes waiting messages from the front, as many as asked; locked ones are passed over."""

    def __init__(self, queue: Queue, request: BatchDelete) -> None:
        self.queue = queue
        self.request = request
        self.after = 0
        self.deleted_count = 0

    def query(self, decided: Decided) -> Query | None:
        count = min(self.request.count - self.deleted_count, limits.SWEEP_MESSAGES)
        query = LoadActive(self.queue.entity_id, self.after, count, limits.LOAD_BYTES)
        query.before_ms = self.request.before_ms  # numbers rise with the time: what is behind is younger still
        return query

    def loaded(self, rows: Rows, decided: Decided) -> bool:
        queue = self.queue
        report_corrupt(queue, rows, decided)
        group: list[Record] = []
        for stored in rows.messages:
            number = stored.sequence_number
            self.after = number
            if not queue.is_waiting(stored):
                continue
            queue.discard(stored)
            queue.uncount(len(stored.message.raw), stored.state)
            group.append(MessageRemoved(queue.entity_id, number, stored.session_id))
            self.deleted_count += 1
        decided.remember(group)
        if rows.corrupt:
            self.after = max(self.after, max(rows.corrupt))
        if rows.is_cut and self.deleted_count < self.request.count:
            return True
        self.queue.metered(decided).count(MANAGEMENT)
        decided.emit(Deleted(self.request.request_id, self.deleted_count))
        return False

    def abort(self, error: BrokerError, decided: Decided) -> None:
        decided.emit(Failed(self.request.request_id, error))


def _missing(entity: Entity, numbers: list[int], rows: Rows, state: int, word: str) -> BrokerError | None:
    if rows.is_cut:
        return ArgumentError(
            f"The {len(numbers)} messages asked for have more than {limits.BY_NUMBER_BYTES_MAX} bytes together: "
            "ask for fewer at a time."
        )
    found = {stored.sequence_number for stored in rows.messages if stored.state == state}
    for number in numbers:
        if number not in found:
            return MessageNotFound(f"'{entity.path}' has no {word} message with the sequence number {number}.")
    return None
