"""Outages of one entity, read from its events: who went away when, for how long, and what waited in the backlog.

Plain Python over the events of one entity in the order of their times; no Spark, no files. Events come from many
processes, each with a state of its own and a clock of its own, and some of them are missing: a process was killed, a
disk was full. What cannot be known is None and has a remark, never a guess.

A process's **absence** is the time in which it did not send to the primary. Absences that overlap are one **outage** of
the entity; so is one that ended with its process, and the next that another process began soon after.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

SUSPECTED: Final = "suspected"
FAILED_OVER: Final = "failed-over"
RECOVERED: Final = "recovered"
ENTITY_FAILED: Final = "entity-failed"
PINGED: Final = "pinged"
DIVERTED: Final = "diverted"
SYPHONED: Final = "syphoned"
TOLD: Final = (SUSPECTED, FAILED_OVER, RECOVERED, ENTITY_FAILED, PINGED, DIVERTED, SYPHONED)

SECOND_US: Final = 1_000_000
# How an absence ended.
BACK: Final = "recovered"
ENDED: Final = "process closed"  # in peace, while away
VANISHED: Final = "process vanished"  # killed, or its events are missing
OPEN: Final = "still away"  # as far as the events go
MISSING: Final = "end is missing"  # the same process began another one

SILENCE_MIN_US: Final = 300 * SECOND_US  # without a ping, of a process that is away: it is gone
SILENCE_PINGS: Final = 3  # or so many pings that did not come
REJOIN_US: Final = 600 * SECOND_US  # between a process that ended while away and one that finds the same outage
CLOCKS_US: Final = 2 * SECOND_US  # by which the clocks of two machines may differ


@dataclass(frozen=True, slots=True)
class Happening:
    """One event. `at_us` is the wall clock's, `clock_us` that of the process, which never jumps."""

    at_us: int
    process: str
    number: int
    event: str
    count: int = 1
    clock_us: int | None = None
    before: str = ""
    is_answered: bool | None = None
    error: str = ""
    is_process_closed: bool = False  # its last line says that it ended in peace


@dataclass
class Absence:
    """One process's view: from its first suspicion until it sent to the primary again."""

    process: str
    began_us: int
    suspected_us: int | None = None
    failed_over_us: int | None = None
    ended_us: int = 0
    end: str = OPEN
    to_fail_over_s: float | None = None  # from the suspicion
    away_s: float | None = None  # from the failover until it returned
    to_return_s: float | None = None  # at most: from the last ping in vain until it returned
    pings: int = 0
    pings_answered: int = 0
    diverted: int = 0
    is_refused: bool = False  # a ping was refused for good
    cause: str = ""
    remarks: list[str] = field(default_factory=list)


@dataclass
class Outage:
    """Of the entity, as all processes together saw it."""

    number: int
    began_us: int
    failed_over_us: int  # the first process
    ended_us: int  # the last process
    end: str
    to_fail_over_s: float | None  # the slowest process
    to_return_s: float | None  # the slowest process
    processes: int
    processes_back: int
    pings: int
    pings_answered: int
    diverted: int
    syphoned: int = 0
    backlog_max: int = 0
    emptied_us: int | None = None  # when the last of it had been brought home
    is_refused: bool = False
    cause: str = ""
    remarks: list[str] = field(default_factory=list)

    @property
    def length_s(self) -> float:
        return _seconds(self.ended_us - self.began_us)

    @property
    def to_empty_s(self) -> float | None:
        """From its end until the backlog was empty; zero, if it was before."""
        return None if self.emptied_us is None else _seconds(max(0, self.emptied_us - self.ended_us))


@dataclass(frozen=True)
class BacklogDepth:
    """One second in which messages came into the backlog or left it."""

    at_us: int
    diverted: int
    syphoned: int
    waiting: int  # at its end
    waiting_max: int


@dataclass
class Story:
    """All that is known of an entity."""

    absences: list[Absence]
    outages: list[Outage]
    first_us: int
    last_us: int
    suspicions: int  # that passed by themselves: nothing was diverted
    pings: int
    diverted: int
    syphoned: int
    waiting: int  # in the backlog, at the end
    away_s: float  # in which at least one process sent to the backlog
    remarks: list[str]


class _View:
    """What one process thinks of the entity."""

    def __init__(self) -> None:
        self.absence: Absence | None = None  # while it is suspect or away
        self.last_absence: Absence | None = None
        self.suspected: Happening | None = None
        self.failed_over: Happening | None = None
        self.last_refused: Happening | None = None  # ping, or the failover itself
        self.last: Happening | None = None
        self.pinged: Happening | None = None
        self.ping_gap_us = 0


class _Mark:
    """What happened in the backlog from one failover until the next."""

    def __init__(self) -> None:
        self.syphoned = 0
        self.backlog_max = 0
        self.emptied_us: int | None = None
        self.has_moved = False


class BacklogLevel:
    """Messages that wait: diverted and not yet brought home."""

    def __init__(self) -> None:
        self.waiting = 0  # below zero, while more is known to have left than to have come
        self.least = 0
        self.negative_us = 0
        self._negative_since_us: int | None = None
        self._second: BacklogDepth | None = None

    def add(self, at_us: int, diverted: int, syphoned: int) -> BacklogDepth | None:
        """Answers the second before, when a new one begins."""
        self.waiting += diverted - syphoned
        self.least = min(self.least, self.waiting)
        if self.waiting < 0 and self._negative_since_us is None:
            self._negative_since_us = at_us
        elif self.waiting >= 0 and self._negative_since_us is not None:
            self.negative_us += at_us - self._negative_since_us
            self._negative_since_us = None
        assert (self.waiting < 0) == (self._negative_since_us is not None), "it is known since when it is below zero"
        second_us = at_us - at_us % SECOND_US
        shown, last = max(0, self.waiting), self._second
        if last is None or last.at_us != second_us:
            self._second = BacklogDepth(second_us, diverted, syphoned, shown, shown)
            return last
        came, gone, most = last.diverted + diverted, last.syphoned + syphoned, max(last.waiting_max, shown)
        self._second = BacklogDepth(second_us, came, gone, shown, most)
        return None

    def finish(self) -> BacklogDepth | None:
        last, self._second = self._second, None
        return last

    def remarks(self) -> Iterator[str]:
        if self.waiting < 0:
            yield (
                f"{-self.waiting:,} messages came home that no event says were diverted: events are missing, "
                "or the backlog is older than they are"
            )
        elif self.negative_us > 0:
            apart = f"{self.negative_us / SECOND_US:.1f} s"
            yield f"for {apart} more had come home than was diverted: the clocks of two machines are apart"


class OutageReading:
    """`add` the events of one entity, earliest first; `drain_depths` now and then; `finish` once."""

    def __init__(self) -> None:
        self.views: dict[str, _View] = {}
        self.absences: list[Absence] = []
        self.marks: list[tuple[Absence, _Mark]] = []
        self.backlog = BacklogLevel()
        self.depths: list[BacklogDepth] = []
        self.unseen_suspicions = 0  # known by their end alone
        self.totals: Counter[str] = Counter()
        self.remarks: Counter[str] = Counter()
        self.first_us = 0
        self._last: Happening | None = None
        self._taken: set[tuple[str, int]] = set()  # lines of this very microsecond

    def add(self, happening: Happening) -> None:
        last = self._last
        if last is None or last.at_us != happening.at_us:
            assert last is None or happening.at_us > last.at_us, "events are taken in the order of their times"
            self._taken.clear()
        key = (happening.process, happening.number)
        if key in self._taken:
            return  # the same file was given twice
        self._taken.add(key)
        if last is None:
            self.first_us = happening.at_us
        self._last = happening
        view = self.views.setdefault(happening.process, _View())
        self._play(view, happening)
        view.last = happening

    def drain_depths(self) -> list[BacklogDepth]:
        taken, self.depths = self.depths, []
        return taken

    # -- one event ------------------------------------------------------------------------------------------------

    def _play(self, view: _View, now: Happening) -> None:
        if now.event == DIVERTED:
            self._diverted(view, now)
        elif now.event == SYPHONED:
            self._moved(now.at_us, 0, now.count)
        elif now.event == PINGED:
            self._pinged(view, now)
        elif now.event == SUSPECTED:
            self._begin(view, now).suspected_us = now.at_us
            view.suspected = now
        elif now.event in (FAILED_OVER, ENTITY_FAILED):
            self._failed_over(view, now)
        elif now.event == RECOVERED:
            self._recovered(view, now)

    def _begin(self, view: _View, now: Happening) -> Absence:
        if view.absence is not None:
            self._end(view, view.last or now, MISSING)
        view.absence = Absence(now.process, now.at_us, cause=now.error)
        self.absences.append(view.absence)
        view.suspected = view.failed_over = view.last_refused = view.pinged = None
        view.ping_gap_us = 0
        return view.absence

    def _failed_over(self, view: _View, now: Happening) -> None:
        absence = view.absence
        was_away = absence is not None and absence.failed_over_us is not None
        if absence is not None and was_away and now.before not in ("healthy", "suspect"):
            absence.is_refused |= now.event == ENTITY_FAILED  # a ping was refused for good, or no longer so
            return
        if absence is None or was_away or now.before == "healthy":
            absence = self._begin(view, now)
        absence.failed_over_us = now.at_us
        absence.is_refused |= now.event == ENTITY_FAILED
        absence.cause = now.error or absence.cause
        view.failed_over = view.last_refused = now
        if view.suspected is not None:
            absence.to_fail_over_s = _between(view.suspected, now)
        elif now.before == "healthy":  # an interval of zero: the first failure is enough
            absence.to_fail_over_s = 0.0
        else:
            absence.remarks.append("when it was first suspected is missing")
        self.marks.append((absence, _Mark()))

    def _recovered(self, view: _View, now: Happening) -> None:
        absence = view.absence
        if now.before == "suspect" and (absence is None or absence.failed_over_us is not None):
            if absence is not None:
                self._end(view, view.last or now, MISSING)
            self.unseen_suspicions += 1
            return
        if absence is None:
            absence = self._begin(view, now)
            absence.remarks.append("its beginning is missing")
        if absence.failed_over_us is None and now.before in ("failed over", "failed"):
            absence.failed_over_us = absence.began_us
            if absence.suspected_us is not None:
                absence.remarks.append("when it failed over is missing")
            self.marks.append((absence, _Mark()))
        if view.failed_over is not None:
            absence.away_s = _between(view.failed_over, now)
        if view.last_refused is not None:
            absence.to_return_s = _between(view.last_refused, now)
        self._end(view, now, BACK)

    def _pinged(self, view: _View, now: Happening) -> None:
        self.totals["pings"] += now.count
        absence = view.absence or view.last_absence
        if view.pinged is not None:
            view.ping_gap_us = max(view.ping_gap_us, now.at_us - view.pinged.at_us)
        view.pinged = now
        if not now.is_answered:
            view.last_refused = now
        if absence is not None:
            absence.pings += now.count
            absence.pings_answered += now.count if now.is_answered else 0

    def _diverted(self, view: _View, now: Happening) -> None:
        self.totals["diverted"] += now.count
        absence = view.absence or view.last_absence  # a send may be told of after the return
        if absence is None:
            self.remarks["messages were diverted by a process whose failover is missing"] += 1
        else:
            absence.diverted += now.count
        self._moved(now.at_us, now.count, 0)

    def _moved(self, at_us: int, diverted: int, syphoned: int) -> None:
        depth = self.backlog.add(at_us, diverted, syphoned)
        if depth is not None:
            self.depths.append(depth)
        self.totals["syphoned"] += syphoned
        if self.marks:
            mark = self.marks[-1][1]
            mark.syphoned += syphoned
            mark.backlog_max = max(mark.backlog_max, self.backlog.waiting)
            mark.has_moved = True
            if self.backlog.waiting > 0:
                mark.emptied_us = None
            elif mark.emptied_us is None:
                mark.emptied_us = at_us

    def _end(self, view: _View, now: Happening, end: str) -> None:
        absence = view.absence
        assert absence is not None, "only what has begun ends"
        assert now.at_us >= absence.began_us, "events are taken in the order of their times"
        absence.ended_us = now.at_us
        absence.end = end
        view.last_absence = absence
        view.absence = None

    # -- the end --------------------------------------------------------------------------------------------------

    def finish(self, until_us: int) -> Story:
        """`until_us`: the last event of all that were read, of whatever entity."""
        depth = self.backlog.finish()
        if depth is not None:
            self.depths.append(depth)
        for view in self.views.values():
            if view.absence is not None:
                self._leave(view, until_us)
        assert all(view.absence is None for view in self.views.values()), "every absence has an end, open ones too"
        outages = self._merge()
        remarks = [text if count == 1 else f"{text} ({count} times)" for text, count in self.remarks.items()]
        last_us = 0 if self._last is None else self._last.at_us
        passed = [each for each in self.absences if each.failed_over_us is None]
        return Story(
            absences=self.absences,
            outages=outages,
            first_us=self.first_us,
            last_us=last_us,
            suspicions=self.unseen_suspicions + len(passed),
            pings=self.totals["pings"],
            diverted=self.totals["diverted"],
            syphoned=self.totals["syphoned"],
            waiting=max(0, self.backlog.waiting),
            away_s=_seconds(sum(outage.ended_us - outage.failed_over_us for outage in outages)),
            remarks=[*remarks, *self.backlog.remarks()],
        )

    def _leave(self, view: _View, until_us: int) -> None:
        """Still away when the events end: is the process there and waits, or is it gone?"""
        last = view.last
        assert last is not None and view.absence is not None, "an absence began with an event"
        patience_us = max(SILENCE_MIN_US, SILENCE_PINGS * view.ping_gap_us)
        if last.is_process_closed:
            self._end(view, last, ENDED)
        elif until_us - last.at_us > patience_us:
            self._end(view, last, VANISHED)
        else:
            absence = view.absence
            self._end(view, last, OPEN)
            absence.ended_us = max(until_us, last.at_us)

    def _merge(self) -> list[Outage]:
        away = sorted((each for each in self.absences if each.failed_over_us is not None), key=_began)
        groups: list[list[Absence]] = []
        for absence in away:
            if groups and _is_same_outage(groups[-1], absence):
                groups[-1].append(absence)
            else:
                groups.append([absence])
        outages = [_outage(number, group) for number, group in enumerate(groups, 1)]
        number_of = {id(absence): at for at, group in enumerate(groups) for absence in group}
        for absence, mark in self.marks:
            outage = outages[number_of[id(absence)]]
            outage.syphoned += mark.syphoned
            outage.backlog_max = max(outage.backlog_max, mark.backlog_max)
            if mark.has_moved:
                outage.emptied_us = mark.emptied_us
        return outages


def _is_same_outage(group: list[Absence], absence: Absence) -> bool:
    last = max(group, key=_ended)
    if absence.began_us <= last.ended_us + CLOCKS_US:
        return True
    return last.end in (ENDED, VANISHED, MISSING) and absence.began_us - last.ended_us <= REJOIN_US


def _outage(number: int, group: list[Absence]) -> Outage:
    last = max(group, key=_ended)
    is_open = any(each.end == OPEN for each in group)
    failing_over = [each.to_fail_over_s for each in group if each.to_fail_over_s is not None]
    returning = [each.to_return_s for each in group if each.to_return_s is not None]
    remarks = [text for each in group for text in each.remarks]
    left = sum(each.end in (ENDED, VANISHED) for each in group)
    if any(each.end == MISSING for each in group):
        remarks.append("its end is missing: the same process began another one")
    if left:
        remarks.append(f"{left} of {len(group)} processes ended before they returned")
    began_us = min(each.began_us for each in group)
    failed_over_us = min(each.failed_over_us for each in group if each.failed_over_us is not None)
    assert began_us <= failed_over_us <= last.ended_us, "an outage begins, fails over and ends in this order"
    return Outage(
        number=number,
        began_us=began_us,
        failed_over_us=failed_over_us,
        ended_us=last.ended_us,
        end=OPEN if is_open else last.end,
        to_fail_over_s=max(failing_over, default=None),
        to_return_s=max(returning, default=None),
        processes=len({each.process for each in group}),
        processes_back=len({each.process for each in group if each.end == BACK}),
        pings=sum(each.pings for each in group),
        pings_answered=sum(each.pings_answered for each in group),
        diverted=sum(each.diverted for each in group),
        is_refused=any(each.is_refused for each in group),
        cause=next((each.cause for each in group if each.cause), ""),
        remarks=list(dict.fromkeys(remarks)),
    )


def _began(absence: Absence) -> int:
    return absence.began_us


def _ended(absence: Absence) -> int:
    return absence.ended_us


def _between(earlier: Happening, later: Happening) -> float:
    """By the process's own clock: the machine's may have been set meanwhile."""
    if earlier.clock_us is not None and later.clock_us is not None and later.clock_us >= earlier.clock_us:
        return _seconds(later.clock_us - earlier.clock_us)
    return _seconds(max(0, later.at_us - earlier.at_us))


def _seconds(us: int) -> float:
    return round(us / SECOND_US, 6)
