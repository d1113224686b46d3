"""What happens by itself: scheduled messages become active, waiting messages expire. Bounded steps, store indexes."""

from typing import Final

from spillway.broker.decided import Decided
from spillway.broker.entity import Entity
from spillway.broker.loads import LoadStep
from spillway.broker.queue import Queue
from spillway.broker.refill import report_corrupt
from spillway.model import limits
from spillway.model.records import LoadDue, LoadExpired, Query, Record, Rows

RETRY_MS: Final = 5_000  # after a sweep that could do nothing: the shortest lock


class SweepDue(LoadStep):
    """Scheduled messages whose time has come become active, in bounded steps."""

    def __init__(self, entity: Entity) -> None:
        self.entity = entity

    def query(self, decided: Decided) -> Query | None:
        return LoadDue(self.entity.entity_id, decided.now_ms, limits.SWEEP_MESSAGES, limits.LOAD_BYTES)

    def loaded(self, rows: Rows, decided: Decided) -> bool:
        entity = self.entity
        report_corrupt(entity, rows, decided)
        for stored in rows.messages:
            entity.activate(stored, decided)
        if rows.is_cut and rows.messages:
            return True
        entity.is_sweeping_due = False
        entity.next_due_ms = rows.next_ms
        if rows.is_cut:  # all of them damaged: do not spin on them
            entity.next_due_ms = decided.now_ms + RETRY_MS
        return False


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
            if not queue.holds(stored):
                continue  # locked, or settled since
            expired_count += 1
            queue.drop(stored)
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
