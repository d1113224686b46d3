"""What happens by itself: scheduled messages become active, waiting messages expire. Bounded steps, store indexes."""

from typing import Final

from spillway.broker.decided import Decided
from spillway.broker.loads import LoadStep
from spillway.broker.queue import Queue
from spillway.broker.refill import report_corrupt
from spillway.model import limits
from spillway.model.message import ACTIVE, NEVER, StoredMessage
from spillway.model.records import LoadDue, LoadExpired, MessageMoved, Query, Record, Rows

RETRY_MS: Final = 5_000  # after a sweep that could do nothing: the shortest lock


class SweepDue(LoadStep):
    """Scheduled messages whose time has come join the tail, with a new number; their first one is kept."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue

    def query(self, decided: Decided) -> Query | None:
        return LoadDue(self.queue.entity_id, decided.now_ms, limits.SWEEP_MESSAGES, limits.LOAD_BYTES)

    def loaded(self, rows: Rows, decided: Decided) -> bool:
        queue = self.queue
        report_corrupt(queue, rows, decided)
        for stored in rows.messages:
            self._activate(stored, decided)
        if rows.is_cut and rows.messages:
            return True
        queue.is_sweeping_due = False
        queue.next_due_ms = rows.next_ms
        if rows.is_cut:  # all of them damaged: do not spin on them
            queue.next_due_ms = decided.now_ms + RETRY_MS
        return False

    def _activate(self, stored: StoredMessage, decided: Decided) -> None:
        queue = self.queue
        old_number = stored.sequence_number
        queue.is_changed = True
        counters = queue.counters
        counters.last_sequence_number += 1
        counters.scheduled -= 1
        counters.active += 1
        stored.sequence_number = counters.last_sequence_number
        stored.state = ACTIVE
        stored.due_ms = NEVER
        stored.enqueued_ms = decided.now_ms
        stored.expires_ms = queue.expiry_of(stored.message, decided.now_ms)  # its life starts now
        if stored.expires_ms != NEVER:
            queue.note_expiry(stored.expires_ms)
        record: Record = MessageMoved(
            queue.entity_id,
            old_number,
            queue.entity_id,
            stored.sequence_number,
            stored.enqueued_ms,
            stored.expires_ms,
            stored.delivery_count,
            stored.overlay,
        )
        decided.remember([record])
        queue.window.append(stored)


class SweepExpired(LoadStep):
    """Waiting messages whose time has run out. Locked ones are left until their lock ends."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue

    def query(self, decided: Decided) -> Query | None:
        return LoadExpired(self.queue.entity_id, decided.now_ms, limits.SWEEP_MESSAGES, limits.LOAD_BYTES)

    def loaded(self, rows: Rows, decided: Decided) -> bool:
        queue = self.queue
        report_corrupt(queue, rows, decided)
        expired_count = 0
        for stored in rows.messages:
            number = stored.sequence_number
            if not queue.window.holds(number):
                continue  # locked, or settled since
            expired_count += 1
            queue.window.remove(number)
            group: list[Record] = []
            queue.expire(stored, group, decided)
            decided.remember(group)
        if rows.is_cut and expired_count > 0:
            return True
        queue.is_sweeping_expired = False
        queue.next_expiry_ms = rows.next_ms
        if rows.is_cut:  # all of them locked or damaged: do not spin on them
            queue.next_expiry_ms = decided.now_ms + RETRY_MS
        return False
