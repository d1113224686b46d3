"""Counting what was done, for the ledger (docs/ledger.md).

Each entity has a tally. It is saved with every turn that remembers anything, so a send or a settlement is counted as
durably as it is stored; what leaves nothing to remember is saved when the pump says that a second has passed. Rows are
made of a tally once its minute is over, or when somebody asks. No effect ever waits for a count.
"""

from typing import Final

from spillway.model.ledger import MINUTES_PER_DAY, MS_PER_MINUTE, PING, LedgerRow, Tally, day_of, minute_of
from spillway.model.message import Message
from spillway.model.records import Turn

# Of a minute that is over, written down a second: a namespace with thousands of busy entities does not stop for it.
WRITTEN_A_SECOND_MAX: Final = 500


def count_sends(tally: Tally, messages: list[Message]) -> None:
    """Each message of a batch is an operation. A ping is charged like a message, under its own name (contract F5)."""
    for message in messages:
        if message.is_ping:
            tally.count(PING, len(message.raw))
        else:
            tally.send(len(message.raw))


class Ledger:
    """The ledger of a namespace: tallies that hold something, the minute we are in, and when a day is to be sealed.

    `first_minute`: the earliest one that the store has rows of, in no sealed day; 0 if there is none.
    """

    def __init__(self, first_minute: int) -> None:
        self.open: list[Tally] = []  # of this minute
        self.past: list[Tally] = []  # of a minute that is over, and some that were counted in again since
        self.unsaved: list[Tally] = []
        self.loose: list[LedgerRow] = []  # of what is no entity
        self.minute = 0
        self.minute_ends_ms = 0
        self.seal_due_ms = 0  # 0: nothing to seal
        self.note(first_minute)

    def recover(self, tally: Tally) -> None:
        """What an earlier life had counted and not written down."""
        tally.is_open = True
        self.past.append(tally)
        self.note(tally.minute)
        if tally.minute > self.minute:
            self.minute = tally.minute

    def note(self, minute: int) -> None:
        """Something was counted in this minute (0: nothing was): its day must be sealed some time."""
        due_ms = (day_of(minute) + 1) * MINUTES_PER_DAY * MS_PER_MINUTE
        if minute != 0 and (self.seal_due_ms == 0 or due_ms < self.seal_due_ms):
            self.seal_due_ms = due_ms

    def enter(self, tally: Tally, turn: Turn) -> None:
        """A tally is about to be counted in."""
        if not tally.is_open:
            tally.is_open = True
            tally.minute = self.minute
            self.open.append(tally)
            self.note(self.minute)
        elif tally.minute != self.minute:
            tally.drain(turn.ledger)
            tally.minute = self.minute
            self.open.append(tally)
            self.note(self.minute)
        if not tally.is_unsaved:
            tally.is_unsaved = True
            self.unsaved.append(tally)

    def count_loose(self, path: str, kind: int) -> None:
        """Counts an operation of the namespace as a whole, or of an entity that is gone."""
        self.loose.append(LedgerRow(self.minute, path, kind, 1, 1, 0))
        self.note(self.minute)

    def has_counted(self) -> bool:
        return bool(self.unsaved) or bool(self.past) or bool(self.loose)

    # -- turns --------------------------------------------------------------------------------------------------

    def begin_minute(self, turn: Turn) -> None:
        """Once that was the last minute of a day, all that was counted in it is written down and the day is sealed."""
        minute = minute_of(turn.now_ms)
        if minute > self.minute:  # never back, whatever the clock does: a sealed day stays as it is
            self.minute = minute
        self.minute_ends_ms = (self.minute + 1) * MS_PER_MINUTE
        tallies = self.past + self.open
        self.past = [tally for tally in tallies if tally.minute != self.minute]
        self.open = [tally for tally in tallies if tally.minute == self.minute]  # the life before had begun with it
        if self.seal_due_ms != 0 and self.seal_due_ms <= self.minute * MS_PER_MINUTE:
            self.write_down(turn, len(self.past))
            self.seal_due_ms = 0
            turn.seals_before = day_of(self.minute) * MINUTES_PER_DAY
            for tally in self.open:
                self.note(tally.minute)

    def end_turn(self, turn: Turn, may_write_down: bool, must_save: bool) -> None:
        """Rows and the tally they were made of change in one turn, or something would count twice or not at all."""
        if may_write_down and self.past:
            self.write_down(turn, WRITTEN_A_SECOND_MAX)
        if not must_save and turn.is_empty():
            return
        if self.loose:
            turn.ledger += self.loose
            self.loose = []
        for tally in self.unsaved:
            tally.is_unsaved = False
            if tally.is_open:
                turn.tallies[tally.entity_id] = tally.pack()
        self.unsaved = []

    def write_down(self, turn: Turn, count_max: int) -> None:
        """Make rows of tallies whose minute is over."""
        written = self.past[:count_max]
        self.past = self.past[count_max:]
        for tally in written:
            if tally.is_open and tally.minute != self.minute:
                self.close(tally, turn)

    def write_all(self, turn: Turn) -> None:
        """Rows are written down, also of this minute: somebody wants to see them."""
        tallies = self.past + self.open
        self.past = []
        self.open = []
        for tally in tallies:
            if tally.is_open:
                self.close(tally, turn)

    def close(self, tally: Tally, turn: Turn) -> None:
        tally.drain(turn.ledger)
        tally.is_open = False
        turn.tallies[tally.entity_id] = b""

    def unregister(self, tally: Tally, turn: Turn) -> None:
        """The entity of a tally is gone: what was counted stays, under its name."""
        if tally.is_open:
            self.close(tally, turn)
        turn.tallies.pop(tally.entity_id, None)
