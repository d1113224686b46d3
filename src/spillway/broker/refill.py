"""Keeps the line going: reads the next messages of a queue, and those that returned, from the store."""

from spillway.broker.decided import Decided
from spillway.broker.effects import Report
from spillway.broker.entity import Entity
from spillway.broker.lane import Lane
from spillway.broker.loads import LoadStep
from spillway.broker.queue import Queue
from spillway.model import limits
from spillway.model.records import LoadActive, LoadNumbers, Query, Rows


class Refill(LoadStep):
    """Reads the bodies of returned messages first: they stand at the front (contract H6)."""

    def __init__(self, queue: Queue, lane: Lane) -> None:
        self.queue = queue
        self.lane = lane
        self.asked_upto = 0
        self.asked_numbers: list[int] = []

    def query(self, decided: Decided) -> Query | None:
        if self.lane.is_closed:
            return None
        window = self.lane.window
        self.asked_numbers = window.unread_returned(limits.LOAD_MESSAGES)
        if self.asked_numbers:
            return LoadNumbers(self.queue.entity_id, self.asked_numbers, limits.LOAD_BYTES)
        if window.wants_more():
            self.asked_upto = self.queue.counters.last_sequence_number
            return LoadActive(
                self.queue.entity_id, window.upto, limits.LOAD_MESSAGES, limits.LOAD_BYTES, self.lane.session_id
            )
        self.lane.is_refilling = False
        return None

    def loaded(self, rows: Rows, decided: Decided) -> bool:
        self.lane.is_refilling = False  # serving the lane asks again if it needs more
        report_corrupt(self.queue, rows, decided)
        if self.lane.is_closed:
            return False
        self.queue.mark_lane_ready(self.lane, decided)
        if self.asked_numbers:
            self._returned_read(rows, decided)
        else:
            self._line_read(rows)
        return False

    def _line_read(self, rows: Rows) -> None:
        """Numbers up to the one that was last when we asked, or up to the last answered if there are more."""
        upto = 0 if rows.is_cut else self.asked_upto
        if rows.messages:
            upto = max(upto, rows.messages[-1].sequence_number)
        if rows.corrupt:
            upto = max(upto, max(rows.corrupt))
        self.lane.window.refill(rows.messages, upto)

    def _returned_read(self, rows: Rows, decided: Decided) -> None:
        window = self.lane.window
        for stored in rows.messages:
            if stored.sequence_number in window.returned_numbers:
                window.retain(stored)
        for number in rows.corrupt:
            window.remove(number)
        if rows.is_cut:
            return
        for number in self.asked_numbers:
            if number in window.returned_numbers and number not in window.resident:
                window.remove(number)
                decided.emit(Report(f"'{self.queue.path}': message {number} is not in the store where it should be."))


def report_corrupt(entity: Entity, rows: Rows, decided: Decided) -> None:
    """A row whose checksum does not hold is never served, and said once: the store sets it apart."""
    for number in rows.corrupt:
        if number in entity.damaged_numbers:
            continue
        entity.damaged_numbers.add(number)
        decided.emit(
            Report(
                f"'{entity.path}': message {number} is damaged in the store (its checksum does not hold). "
                "It is kept and not delivered; restore it from a copy of the data directory."
            )
        )
