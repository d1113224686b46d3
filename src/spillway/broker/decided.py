"""What one call of `Namespace.apply` decided: a turn to remember, and effects to speak once it is remembered."""

from spillway.broker.effects import Effect
from spillway.broker.ledger import Ledger
from spillway.model.records import Record, Turn


class Touchable:
    """An entity that a turn can touch: it is served, and its timer set, once at the end of the turn."""

    def __init__(self) -> None:
        self.is_touched = False
        self.is_served = False  # in this turn


class Decided:
    def __init__(self, now_ms: int, ledger: Ledger) -> None:
        self.now_ms = now_ms
        self.turn = Turn(now_ms)
        self.effects: list[Effect] = []
        self.touched: list[Touchable] = []
        self.unfinished: list[Touchable] = []  # served as far as one turn goes: there is more to hand out
        self.ledger = ledger
        self.saves_ledger = False  # also if there is nothing else to remember

    def say(self, effect: Effect) -> None:
        self.effects.append(effect)

    def remember(self, group: list[Record]) -> None:
        """One group: all or nothing."""
        if group:
            self.turn.add(group)

    def touch(self, entity: Touchable) -> None:
        if not entity.is_touched:
            entity.is_touched = True
            self.touched.append(entity)
        elif entity.is_served:  # it has got something since
            entity.is_served = False
            self.unfinished.append(entity)
