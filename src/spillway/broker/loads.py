"""Work that needs rows from the store: one step at a time per entity, so that no answer is stale.

Between the question and the answer of one load no other load of the same entity is under way. Hence what a load finds
in the store can have been changed meanwhile only by settling messages that were locked when it was asked: a step makes
sure that it touches none of those.
"""

from collections import deque

from spillway.broker.decided import Decided, Servable
from spillway.broker.effects import Load
from spillway.model.errors import BrokerError
from spillway.model.records import Query, Rows


class LoadStep:
    """One piece of work: what to ask, and what to do with the answer."""

    keeps_place: bool = False  # asked again, it comes before all others of its entity

    def query(self, decided: Decided) -> Query | None:
        """What to ask now; None if there is nothing to do any more."""
        return None

    def loaded(self, rows: Rows, decided: Decided) -> bool:
        """The answer. True: ask again, there is more to do."""
        return False

    def abort(self, error: BrokerError, decided: Decided) -> None:
        """The entity is gone; whoever waits must hear of it."""

    def resume(self, decided: Decided) -> None:
        """What it had answered and could not be worked off in one turn is worked off, see `Loads.suspend`."""


class LoadNumberSource:
    """Numbers for loads, unique in a namespace."""

    def __init__(self) -> None:
        self.last = 0

    def next(self) -> int:
        self.last += 1
        return self.last


class Loads:
    """The steps of one entity, in order."""

    def __init__(self, numbers: LoadNumberSource, by_id: "dict[int, Loads]") -> None:
        self.numbers = numbers
        self.by_id = by_id  # of the namespace: who waits for which load
        self.waiting: deque[LoadStep] = deque()
        self.under_way: LoadStep | None = None
        self.suspended: LoadStep | None = None  # whose answer takes several turns to work off
        self.answered: LoadStep | None = None  # whose answer is being worked on
        self.load_id = 0
        self.owner: Servable | None = None  # served after each answer

    def is_idle(self) -> bool:
        return self.under_way is None and self.suspended is None and not self.waiting

    def add(self, step: LoadStep, decided: Decided) -> None:
        self.waiting.append(step)
        self._ask_next(decided)

    def put(self, step: LoadStep) -> None:
        """Behind the others; for a step that finds out, asked what to load, that this is to be loaded first."""
        self.waiting.append(step)

    def suspend(self, step: LoadStep) -> None:
        """A step suspends the loads while its answer is worked off over several turns, until `resume`."""
        self.suspended = step

    def resume(self, asks_again: bool, decided: Decided) -> None:
        step = self.suspended
        assert step is not None, "nothing is held"
        self.suspended = None
        if asks_again:
            self.waiting.append(step)
        self._ask_next(decided)

    def on_loaded(self, rows: Rows, decided: Decided) -> None:
        step = self.under_way
        assert step is not None, "an answer without a question"
        self.under_way = None
        self.answered = step
        if step.loaded(rows, decided):
            if step.keeps_place:
                self.waiting.appendleft(step)
            else:
                self.waiting.append(step)
        self.answered = None
        self._ask_next(decided)

    def _ask_next(self, decided: Decided) -> None:
        while self.under_way is None and self.suspended is None and self.waiting:
            step = self.waiting.popleft()
            query = step.query(decided)
            if query is None:
                continue
            self.under_way = step
            self.load_id = self.numbers.next()
            self.by_id[self.load_id] = self
            decided.emit(Load(self.load_id, query))

    def length(self) -> int:
        """How many steps are under way or wait."""
        return len(self.waiting) + (0 if self.under_way is None else 1)

    def abort_first(self, error: BrokerError, decided: Decided) -> None:
        """What is worked on; those that wait behind it go on."""
        if self.answered is not None:
            self.answered.abort(error, decided)
            self.answered = None
        if self.suspended is not None:
            self.suspended.abort(error, decided)
            self.suspended = None
        if self.under_way is not None:
            self.by_id.pop(self.load_id, None)
            self.under_way.abort(error, decided)
            self.under_way = None
        self._ask_next(decided)

    def abort(self, error: BrokerError, decided: Decided) -> None:
        waiting = list(self.waiting)
        self.waiting.clear()
        self.abort_first(error, decided)
        for step in waiting:
            step.abort(error, decided)
