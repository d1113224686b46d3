"""Sweeps: scheduled messages become active, waiting ones expire, by themselves. Bounded steps, store indexes."""

from typing import Final

from spillway.broker.decided import Decided
from spillway.broker.entity import Entity, earlier
from spillway.broker.loads import LoadStep
from spillway.broker.queue import Queue
from spillway.broker.refill import report_corrupt
from spillway.broker.topic import Topic
from spillway.model import limits
from spillway.model.errors import BrokerError
from spillway.model.message import NEVER
from spillway.model.records import LoadDue, LoadExpired, Query, Record, Rows

RETRY_MS: Final = 5_000  # after a sweep that could do nothing: the shortest lock


class SweepDue(LoadStep):
    """Scheduled messages whose time has come become active, in bounded steps.

    What is scheduled while the store is asked is not in its answer: it is noted with the entity meanwhile.
    """

    def __init__(self, entity: Entity) -> None:
        self.entity = entity
        self.next_ms: int = NEVER
        self.asks_again = False

    def query(self, decided: Decided) -> Query | None:
        self.entity.next_due_ms = NEVER
        return LoadDue(self.entity.entity_id, decided.now_ms, limits.SWEEP_MESSAGES, limits.LOAD_BYTES)

    def loaded(self, rows: Rows, decided: Decided) -> bool:
        entity = self.entity
        report_corrupt(entity, rows, decided)
        if isinstance(entity, Topic) and rows.messages:
            self.next_ms = rows.next_ms
            self.asks_again = rows.is_cut
            for stored in rows.messages:
                entity.activate(stored, decided)
            entity.loads.suspend(self)  # published in as many turns as it takes
            return False
        for stored in rows.messages:
            if not decided.may_write(len(stored.message.raw)):
                self._end(decided.now_ms + RETRY_MS)  # the disk is full: they are due until it is not
                return False
            entity.activate(stored, decided)
        if rows.is_cut and rows.messages:
            return True
        # All of them damaged: do not spin on them.
        self._end(decided.now_ms + RETRY_MS if rows.is_cut else rows.next_ms)
        return False

    def resume(self, decided: Decided) -> None:
        """All that was read is published, or the disk is full."""
        entity = self.entity
        if not decided.may_write(1):
            self.asks_again = True
            self._end(decided.now_ms + RETRY_MS)
            entity.loads.resume(False, decided)
        elif self.asks_again:
            entity.loads.resume(True, decided)
        else:
            self._end(self.next_ms)
            entity.loads.resume(False, decided)

    def _end(self, next_ms: int) -> None:
        entity = self.entity
        entity.is_sweeping_due = False
        if isinstance(entity, Topic) and not self.asks_again and entity.next_due_ms == NEVER:
            entity.put_off_upto = 0  # nothing was since the store was asked
        entity.next_due_ms = earlier(entity.next_due_ms, next_ms)

    def abort(self, error: BrokerError, decided: Decided) -> None:
        if isinstance(self.entity, Topic):
            self.entity.evict_backlog()


class SweepExpired(LoadStep):
    """Waiting messages whose time has run out. Locked ones are left until their lock ends."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue

    def query(self, decided: Decided) -> Query | None:
        self.queue.next_expiry_ms = NEVER  # what is noted from now on is not in the answer
        return LoadExpired(self.queue.entity_id, decided.now_ms, limits.SWEEP_MESSAGES, limits.LOAD_BYTES)

    def loaded(self, rows: Rows, decided: Decided) -> bool:
        queue = self.queue
        report_corrupt(queue, rows, decided)
        expired_count = 0
        for stored in rows.messages:
            if not queue.is_waiting(stored):
                continue  # locked, or settled since
            if not queue.may_expire(stored, decided):
                self._end(decided.now_ms + RETRY_MS)
                return False
            expired_count += 1
            queue.discard(stored)
            group: list[Record] = []
            queue.expire(stored, group, decided)
            decided.remember(group)
        if rows.is_cut and expired_count > 0:
            return True
        # All of them locked or damaged: do not spin on them.
        self._end(decided.now_ms + RETRY_MS if rows.is_cut else rows.next_ms)
        return False

    def _end(self, next_ms: int) -> None:
        self.queue.is_sweeping_expired = False
        self.queue.next_expiry_ms = earlier(self.queue.next_expiry_ms, next_ms)
