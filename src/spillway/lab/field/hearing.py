"""What a caller may hear when: the promise of the guide as a pure function over the health of both sides.

A good message may be refused only if, in the time of its call, nobody could take it:

1. *Well*: its entity is well all the time. Only if it was ill shortly before (a ping has not come back yet) and the
   secondary is ill too may the caller hear an error.
2. *Diverted*: the secondary is well all the time. With an interval of zero, with `pending="hold"`, and with any setting
   once the entity is failed over, the call succeeds. Excepted are entities that are busy (they are waited for, ten
   seconds, which may be more than the call has) and entities that are gone (`EntityFailed`: their backlog could never
   go home).
3. *Held*: with `pending="hold"` one side, whichever, is well for `HELD_WELL_S` in a row within the call; the secondary,
   where the entity was not failed over from the start, for two intervals more: a primary that comes and goes is failed
   over when it has failed for one, and may have been well in the first of them. Not asked for while one side is busy or
   keeps silent: a try that nobody answers takes its share of the call's time.

All times are generous: a machine with two cores and much to do must not break a promise that holds.
"""

from dataclasses import dataclass
from typing import Final

from spillway.lab.field.health import HUSHED, Health, Spell
from spillway.lab.field.plan import BUSY, DELETE

GRACE_S: Final = 1.0  # after a side is well again
PING_BACK_S: Final = 9.0  # until a ping has found it out: one a second, and one may be under way that nobody answers
HELD_WELL_S: Final = 6.0


@dataclass(frozen=True)
class HeardCall:
    """One call of a caller, as it was; `is_away` says that its entity was failed over all the time."""

    path: str
    begin_s: float
    end_s: float
    interval_s: float
    pending: str
    is_away: bool = False


def broken_promise(call: HeardCall, health: Health) -> str | None:
    """Which promise was broken if this call of a good message failed; None if it may fail."""
    begin_s = call.begin_s - GRACE_S
    home = health.of_primary(call.path, begin_s, call.end_s)
    before = health.of_primary(call.path, call.begin_s - PING_BACK_S, call.end_s)
    away = health.of_secondary(begin_s, call.end_s)
    if _is_any(before, DELETE):
        return None
    if not home and (not before or not away):
        return "its entity was well all the time"
    if _is_any(before, BUSY):
        return None
    if not away and (call.interval_s == 0 or call.pending == "hold" or call.is_away):
        return "the secondary was well all the time"
    around = [*before, *health.of_secondary(call.begin_s - PING_BACK_S, call.end_s)]
    if call.pending == "hold" and not _is_any(around, BUSY, *HUSHED):
        home_s = health.primary_well_s(call.path, call.begin_s, call.end_s)
        if home_s >= HELD_WELL_S:
            return f"it was held, and its entity was well for {home_s:.1f} s of its time"
        away_s = health.secondary_well_s(call.begin_s, call.end_s)
        if away_s >= HELD_WELL_S + (0.0 if call.is_away else 2 * call.interval_s):
            return f"it was held, and the secondary was well for {away_s:.1f} s of its time"
    return None


def _is_any(spells: list[Spell], *whats: str) -> bool:
    return any(spell.what in whats for spell in spells)
