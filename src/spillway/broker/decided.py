"""What one call of `Namespace.apply` decided: a turn to remember, and effects to speak once it is remembered.

How an entity goes through a turn:

    untouched ──touch──▶ in `touched` ──served──▶ `is_handled` ──touched once more──▶ in `unfinished`, for the next turn

Beside that, `changing` has those that the piece of work under way has touched: they are what a fault of ours costs. An
entity is in there once a piece, which is told by `step`: each piece has a number that none before it had, in this turn
or an earlier one, so that no flag has to be taken back when a piece ends.
"""

from spillway.broker.disk_room import DiskRoom
from spillway.broker.effects import Effect, Load
from spillway.broker.ledger import Ledger
from spillway.model import limits
from spillway.model.records import Record, Turn


class Servable:
    """An entity that a turn can touch: it is served, and its timer set, once at the end of the turn."""

    def __init__(self) -> None:
        self.is_ready = False
        self.is_handled = False  # in this turn
        self.step = 0  # the last piece of work that touched it, see `Decided.begin`
        self.is_apart = False  # set apart after a fault of ours: nothing of it is looked at any more


class Decided:
    """`step`: a number that no piece of work before this turn had."""

    def __init__(self, now_ms: int, ledger: Ledger, disk: DiskRoom, step: int = 0) -> None:
        self.now_ms = now_ms
        self.turn = Turn(now_ms)
        self.effects: list[Effect] = []
        self.ready: list[Servable] = []
        self.unfinished: list[Servable] = []  # served as far as one turn goes: there is more to hand out
        self.chores: list[Servable] = []  # have more to do by themselves than a turn's worth
        self.steps_left: int = limits.STEPS_PER_TURN_MAX  # for publishing what is sent in this turn
        self.chores_left: int = limits.CHORE_STEPS_PER_TURN_MAX  # for what happens by itself
        self.chores_begun: int = limits.CHORE_STEPS_PER_TURN_MAX
        self.filters_left: int = limits.FILTER_STEPS_PER_TURN_MAX  # of both
        self.ledger = ledger
        self.disk = disk
        self.saves_ledger = False  # also if there is nothing else to remember
        self.step = step
        self.changing: list[Servable] = []  # touched by the piece of work under way
        self.groups_begun = 0
        self.effects_begun = 0

    def begin(self) -> None:
        """A piece of work: one command, or one entity served. If it fails, what it did is undone."""
        self.step += 1
        self.groups_begun = len(self.turn.groups)
        self.effects_begun = len(self.effects)
        if self.changing:
            self.changing = []

    def undone_loads(self) -> list[Load]:
        return [effect for effect in self.effects[self.effects_begun :] if isinstance(effect, Load)]

    def undo(self) -> None:
        """The piece of work is undone in this turn; what it changed in memory of its entities stays as it was left."""
        self.turn.cut(self.groups_begun)
        del self.effects[self.effects_begun :]

    def emit(self, effect: Effect) -> None:
        self.effects.append(effect)

    def remember(self, group: list[Record]) -> None:
        """One group: all or nothing."""
        if group:
            self.turn.add(group)

    @property
    def has_done_chores(self) -> bool:
        """Whether something was written down by itself: no more of it until this is on disk."""
        return self.chores_left != self.chores_begun

    def continue_later(self, entity: Servable, has_served: bool) -> None:
        """An entity has more chores than this turn allows. One that had nothing of this turn is first in the next."""
        if has_served:
            self.chores.append(entity)
        else:
            self.chores.insert(0, entity)

    def may_write(self, size_bytes: int) -> bool:
        """Whether the disk has room for so much that is written by itself. If not, it waits or is left undone."""
        return self.turn.size_bytes + size_bytes < self.disk.upkeep_left

    def mark_ready(self, entity: Servable) -> None:
        if entity.step != self.step:
            entity.step = self.step
            self.changing.append(entity)
        if not entity.is_ready:
            entity.is_ready = True
            self.ready.append(entity)
        elif entity.is_handled:  # it has got something since
            entity.is_handled = False
            self.unfinished.append(entity)
