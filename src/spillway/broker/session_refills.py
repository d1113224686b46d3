"""Reads the messages of many message sessions in one go.

An entity has one load under way at a time. A session each would be a wait for the disk each; with thousands of them
accepted and emptied it is the number of loads that counts, not the number of rows.

A session that wants messages is in `wanting`, then in `asked`, and then answered or in `wanting` again, if the answer
was full before its turn came. It is in there once: `Lane.is_refilling` is set with the first wish, and `Refill.loaded`
takes it back. However many sessions want something, this step is among the loads of the entity once (`is_in_line`).

What returned is asked for by number, which is another question: such a refill leaves this step and lines up by itself.
It is only put there (`Loads.put`) and not added: this is called while the loads decide what to ask next, and adding
would make them ask inside of that.
"""

from collections import deque

from spillway.broker.decided import Decided
from spillway.broker.loads import LoadStep
from spillway.broker.queue import Queue
from spillway.broker.refill import Refill
from spillway.model import limits
from spillway.model.records import LoadActive, LoadActiveOfSessions, Query, Rows


class SessionRefills(LoadStep):
    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.wanting: deque[Refill] = deque()
        self.asked: list[Refill] = []
        self.is_in_line = False  # among the loads of the entity, waiting or under way

    def add(self, refill: Refill, decided: Decided) -> None:
        self.wanting.append(refill)
        if not self.is_in_line:
            self.is_in_line = True
            self.queue.loads.add(self, decided)

    def query(self, decided: Decided) -> Query | None:
        afters: dict[str, int] = {}
        self.asked = []
        while self.wanting and len(self.asked) < limits.SESSIONS_PER_LOAD:
            refill = self.wanting.popleft()
            question = refill.query(decided)
            if isinstance(question, LoadActive):
                assert question.session_id is not None, "each of these is of a session"
                afters[question.session_id] = question.after
                self.asked.append(refill)
            elif question is not None:  # of messages that returned: by their numbers, and by itself
                self.queue.loads.put(refill)
        if not afters:
            self.is_in_line = False
            return None
        # A few of each rather than all of the first: all of these have somebody waiting.
        count = max(limits.LOAD_MESSAGES // len(afters), 1)
        return LoadActiveOfSessions(self.queue.entity_id, afters, count, limits.LOAD_BYTES)

    def loaded(self, rows: Rows, decided: Decided) -> bool:
        for refill in self.asked:
            session_id = refill.lane.session_id
            assert session_id is not None, "each of these is of a session"
            part = rows.by_session.get(session_id)
            if part is None:
                self.wanting.append(refill)
            else:
                refill.loaded(part, decided)
        self.asked = []
        self.is_in_line = len(self.wanting) > 0
        return self.is_in_line
