"""How each side was, second by second: from what was done to the brokers and when. Pure.

Times are seconds of the histories' clock. An ailment begins before anything is done to a broker and ends when the
broker is known to be well, so what a caller meets outside of it has no excuse on that side.
"""

import math
from dataclasses import dataclass
from typing import Final

from spillway.lab.field.plan import BUSY, EVERYTHING, FREEZE, PRIMARY, SECONDARY, SILENT, SLOW

HARMLESS: Final = (SLOW,)  # answered late, and far inside every time-out
HUSHED: Final = (FREEZE, SILENT)  # not answered: each try takes its share of the call's time


@dataclass(frozen=True)
class Spell:
    """An ailment as it really was."""

    side: str
    what: str
    paths: tuple[str, ...]
    begin_s: float
    mend_s: float = math.inf  # when somebody began to mend it
    end_s: float = math.inf

    def affects(self, path: str) -> bool:
        return EVERYTHING in self.paths or path in self.paths


class Health:
    """How both namespaces fare, for the rules to ask. `backlog_queues` is how many the secondary has: while one of them
    is well, so is it."""

    def __init__(self, spells: list[Spell], backlog_queues: int) -> None:
        self.spells = [spell for spell in spells if spell.what not in HARMLESS]
        self.backlog_queues = backlog_queues

    def of_primary(self, path: str, begin_s: float, end_s: float) -> list[Spell]:
        """What was wrong with an entity of the primary at any time between these."""
        return [
            spell
            for spell in self.spells
            if spell.side == PRIMARY and spell.affects(path) and _overlaps(spell, begin_s, end_s)
        ]

    def of_secondary(self, begin_s: float, end_s: float) -> list[Spell]:
        """What was wrong with all backlog queues at once; a secondary with one queue that is well takes messages."""
        return [
            spell
            for spell in self.spells
            if spell.side == SECONDARY and EVERYTHING in spell.paths and _overlaps(spell, begin_s, end_s)
        ]

    def of_any_backlog_queue(self, begin_s: float, end_s: float) -> list[Spell]:
        return [spell for spell in self.spells if spell.side == SECONDARY and _overlaps(spell, begin_s, end_s)]

    def primary_well_s(self, path: str, begin_s: float, end_s: float) -> float:
        """The longest time in a row in which this entity of the primary was well."""
        return _longest_gap_s(self.of_primary(path, begin_s, end_s), begin_s, end_s)

    def secondary_well_s(self, begin_s: float, end_s: float) -> float:
        return _longest_gap_s(self.of_secondary(begin_s, end_s), begin_s, end_s)


def _overlaps(spell: Spell, begin_s: float, end_s: float) -> bool:
    return spell.begin_s <= end_s and spell.end_s >= begin_s


def _longest_gap_s(spells: list[Spell], begin_s: float, end_s: float) -> float:
    longest_s, well_since_s = 0.0, begin_s
    for spell in sorted(spells, key=lambda each: each.begin_s):
        longest_s = max(longest_s, spell.begin_s - well_since_s)
        well_since_s = max(well_since_s, spell.end_s)
    return max(longest_s, end_s - well_since_s)


def is_excuse(spell: Spell) -> bool:
    """Whether an entity may be failed over for it. One that is busy is waited for and never failed over."""
    return spell.what not in (BUSY, *HARMLESS)
