"""The verdict on a random play, from plan and histories alone: a process of its own.

    python -m spillway.lab.field.judge DIRECTORY

prints one line of JSON, and exits with 1 if an invariant was broken. `docs/lab.md` lists the invariants.
"""

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from spillway.lab.field import hearing
from spillway.lab.field.content import BAD, BAD_AT_HOME_ONLY, GOOD
from spillway.lab.field.health import Health, Spell, is_excuse
from spillway.lab.field.hearing import GRACE_S, PING_BACK_S, broken_promise
from spillway.lab.field.lines import (
    AFTER_CLOSE,
    BARE,
    BEGIN,
    CALL,
    CLOSED,
    END,
    HEALED,
    ILL,
    MENDING,
    PLAN_FILE,
    PULSE,
    STORED,
    VITALS,
)
from spillway.lab.field.plan import CUT, DELETE, SEQUENCE, PlayPlan, Program, read_plan
from spillway.lab.histories import EVENT, FAIL, LEFT, NS, OK, UNCLEAN, read_lines

LATE_S: Final = 0.5  # between a thing and the line that tells of it
TIMER_LATE_S: Final = 2.0  # between the end of an interval and the failover, on a machine with much to do
RECOVERY_S: Final = 3.0  # an answer that was on its way when the ailment began has come by then
STARVED: Final = 4.0  # times slower than a machine that has time; two plays on two cores are at 2 to 3
STARVED_SHARE: Final = 0.5  # of a call
CLOSE_S: Final = 5.0
CLOSE_LATE_S: Final = 0.5
SOCKETS_EACH: Final = 5  # for each entity and backlog queue: four of an outlet, one for pings
SOCKETS_MORE: Final = 10
SOCKETS_LEFT: Final = 4  # of the loop itself
TASKS_MORE: Final = 100
RSS_KB_MORE: Final = 100_000
TOLD_MAX: Final = 6  # of an invariant
NAMED: Final = 3  # examples in a text
# What says that nobody could take a message, and so nothing about the message itself.
OF_AN_OUTAGE: Final = frozenset(
    ("BacklogUnavailableError", "EntityFailed", "OperationTimeoutError", "ServiceBusConnectionError")
    + ("ServiceBusCommunicationError", "ServiceBusServerBusyError", "ConnectionRefusedError", "RuntimeError")
)


@dataclass(frozen=True)
class Problem:
    """One invariant that did not hold."""

    invariant: str
    text: str


@dataclass
class PlayVerdict:
    """Numbers, and what was broken; `problems` is empty if every invariant held."""

    seed: int
    calls: int = 0
    messages: int = 0
    acknowledged: int = 0
    delivered: int = 0
    bad_taken: int = 0  # calls with messages that their entity would refuse, and that was away: nobody could know
    diverted: int = 0
    refused: int = 0  # calls whose caller heard an error
    failed_over: int = 0
    ailments: list[str] = field(default_factory=list)
    starved_share: float = 0.0  # of the time, in which the machine had too much else to do
    sockets_most: int = 0
    close_most_s: float = 0.0
    problems: list[Problem] = field(default_factory=list)


@dataclass(frozen=True)
class CallResult:
    """One call, and what its caller was told."""

    program: str
    path: str
    kind: str
    how: str
    group: str
    ids: tuple[str, ...]
    digests: tuple[str | None, ...]
    begin_s: float
    end_s: float
    res: str
    error: str
    text: str

    def __str__(self) -> str:
        said = self.res if self.res == OK else f"{self.error}: {self.text}"
        who = f"{self.kind} {self.ids[0][:40]} of {self.program} to {self.path}"
        return f"{who} after {self.end_s - self.begin_s:.1f} s: {said}"


@dataclass(frozen=True)
class Happened:
    """An event of a program's pairing."""

    program: str
    name: str
    path: str
    at_s: float
    before: str
    error: str


class PlayJudge:
    """Takes the lines in any order, then judges."""

    def __init__(self, plan: PlayPlan) -> None:
        self.plan = plan
        self.programs: dict[str, Program] = {program.name: program for program in plan.programs}
        self.entities = {entity.name: entity for entity in plan.entities}
        self.results: list[CallResult] = []
        self.happened: list[Happened] = []
        self.bare: dict[tuple[str, str], str] = {}  # kind and path: the bare SDK's error, "" if it took it
        self.stored: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)  # path and id: number, digest
        self.left: dict[str, str] = {}
        self.vitals: dict[tuple[str, str], dict[str, int]] = {}
        self.closed: list[tuple[str, str, float]] = []
        self.unclean: list[str] = []
        self.spells: dict[int, dict[str, Any]] = {}
        self.pulses: list[tuple[float, float]] = []  # when, and how many times slower than it should be
        self.begun_s = 0.0
        self.problems: list[Problem] = []

    def accept(self, lines: Iterable[dict[str, Any]]) -> None:
        for line in lines:
            self._accept(line, line["op"], line["t"] / NS)

    def _accept(self, line: dict[str, Any], op: str, at_s: float) -> None:
        if op == CALL:
            self.results.append(_result_of(line))
        elif op == EVENT:
            error = line.get("error", "")
            self.happened.append(Happened(line["p"], line["name"], line["path"], at_s, line.get("before", ""), error))
        elif op == STORED:
            self.stored[line["path"], line["id"]].append((line["seq"], line["h"]))
        elif op == LEFT:
            self.left[line["id"]] = line["q"]
        elif op == BARE:
            self.bare[line["kind"], line["path"]] = line["error"]
        elif op == VITALS:
            self.vitals[line["p"], line["when"]] = line
        elif op == CLOSED:
            self.closed.append((line["p"], line["what"], line["took_s"]))
        elif op == UNCLEAN:
            self.unclean.append(line["text"])
        elif op == PULSE:
            self.pulses.append((at_s, line["slowdown"]))
        elif op in (ILL, MENDING, HEALED):
            self.spells.setdefault(line["n"], {}).update({op: at_s, **line})

    def health(self) -> Health:
        spells = [
            Spell(
                each["side"],
                each["what"],
                tuple(each["paths"]),
                each[ILL],
                each.get(MENDING, float("inf")),
                each.get(HEALED, float("inf")),
            )
            for each in self.spells.values()
        ]
        return Health(spells, self.plan.backlog_queues)

    def judge(self) -> PlayVerdict:
        health = self.health()
        self.begun_s = min((each.begin_s for each in self.results), default=0.0)
        self.problems = [Problem("ends in peace", text) for text in self.unclean]
        self._delivered(health)
        self._good_ones(health)
        self._bad_ones(health)
        self._blamed(health)
        self._recovered(health)
        self._in_order()
        self._vital()
        return self._verdict()

    # -- what I was told is safe will be delivered ----------------------------------------------------------------

    def _delivered(self, health: Health) -> None:
        for result in self.results:
            if result.res != OK:
                self._not_delivered(result)
                continue
            if self._is_bad(result):
                continue  # it should not have been taken at all
            for identity, sent in zip(result.ids, result.digests, strict=True):
                found = self.stored.get((result.path, identity), [])
                if not found:
                    where = f"is still in {self.left[identity]}" if identity in self.left else "is nowhere"
                    self._blame("told safe, delivered", f"{result}: {identity[:40]} {where}")
                elif any(digest != sent for _, digest in found):
                    self._blame("content unchanged", f"{result}: {identity[:40]} arrived changed")
                elif len(found) > 1 and self._is_once(result.path, health):
                    self._blame("exactly once", f"{result}: {identity[:40]} is there {len(found)} times")

    def _not_delivered(self, result: CallResult) -> None:
        """What a caller was told was not sent is not delivered."""
        if result.res == FAIL and any((result.path, identity) in self.stored for identity in result.ids):
            self._blame("told not sent, not delivered", str(result))

    def _is_once(self, path: str, health: Health) -> bool:
        """An entity that was made anew remembers nothing of what the one before it had taken."""
        made_anew = any(spell.what == DELETE and spell.affects(path) for spell in health.spells)
        return self.entities[path].dedup and not made_anew

    # -- one bad thing never takes the way around from everybody --------------------------------------------------

    def _good_ones(self, health: Health) -> None:
        for result in self.results:
            if result.res == OK or self._is_bad(result):
                continue
            if result.kind != GOOD and result.error not in OF_AN_OUTAGE:
                continue  # refused for what it is, which an odd one may be
            if self._is_starved(result.begin_s, result.end_s):
                continue
            program = self.programs[result.program]
            is_away = self._is_away(result)
            call = hearing.HeardCall(
                result.path, result.begin_s, result.end_s, program.interval_s, program.pending, is_away
            )  # fmt: skip
            if (promise := broken_promise(call, health)) is not None:
                self._blame("a way for every good message", f"{result}; {promise}; {self._setting(program)}")

    def _bad_ones(self, health: Health) -> None:
        for result in self.results:
            if not self._is_bad(result):
                continue
            expected = self.bare[result.kind, result.path]
            ill = health.of_primary(result.path, result.begin_s - PING_BACK_S, result.end_s)
            if result.res == OK:
                if not (ill and result.kind in BAD_AT_HOME_ONLY):
                    self._blame("a bad message is its caller's error", f"{result}, where the bare SDK says {expected}")
            elif not ill and result.error != expected:
                self._blame("a bad message is its caller's error", f"{result}, where the bare SDK says {expected}")
            elif result.error == "BacklogUnavailableError" and not self._is_starved(result.begin_s, result.end_s):
                if not health.of_secondary(result.begin_s - GRACE_S, result.end_s):
                    self._blame("a bad message is its caller's error", f"{result}; the secondary was well all the time")

    def _is_bad(self, result: CallResult) -> bool:
        """Whether a message is bad, by the word of the bare SDK on it."""
        return result.kind in BAD and bool(self.bare.get((result.kind, result.path)))

    def _blamed(self, health: Health) -> None:
        """Nobody is blamed for a bad message, for a connection that was dead before, or for nothing."""
        for event in self.happened:
            if event.program not in self.programs:
                continue
            if event.name == "failed-over":
                interval_s = self.programs[event.program].interval_s
                calls = self._under_way(event, interval_s, event.path)
                excuses = [spell for call in calls for spell in self._excuses(health, call, event)]
                if not excuses and not self._is_starved_in(calls, event):
                    self._blame("failed over for a reason", self._about(event, calls))
            elif event.name == "backlog-queue-removed":
                calls = self._under_way(event, 0.0, None)
                is_ill = any(health.of_any_backlog_queue(call.begin_s - GRACE_S, event.at_s) for call in calls)
                if not is_ill and not self._is_starved_in(calls, event):
                    self._blame("out of rotation for a reason", self._about(event, calls))

    def _under_way(self, event: Happened, interval_s: float, path: str | None) -> list[CallResult]:
        since_s = event.at_s - (interval_s + TIMER_LATE_S if interval_s else LATE_S)
        return [
            result
            for result in self.results
            if result.program == event.program
            and path in (None, result.path)
            and result.begin_s <= event.at_s + LATE_S
            and result.end_s >= since_s
        ]

    def _excuses(self, health: Health, call: CallResult, event: Happened) -> list[Spell]:
        return [
            spell
            for spell in health.of_primary(call.path, call.begin_s - GRACE_S, event.at_s)
            if is_excuse(spell)
        ]  # fmt: skip

    def _about(self, event: Happened, calls: list[CallResult]) -> str:
        during = "; ".join(str(call) for call in calls[:NAMED]) or "nobody sent"
        return (
            f"{event.program} at {self._at(event.at_s)}: {event.name} {event.path}, {event.error}; under way: {during}"
        )

    def _recovered(self, health: Health) -> None:
        for event in self.happened:
            if event.name != "recovered" or event.program not in self.programs:
                continue
            for spell in health.of_primary(event.path, event.at_s, event.at_s):
                is_inside = spell.begin_s + RECOVERY_S < event.at_s < spell.mend_s
                if is_inside and is_excuse(spell) and spell.what != CUT:
                    text = f"{event.program} at {self._at(event.at_s)}: {event.path} is back, while {spell.what} lasts"
                    self._blame("back when it is back", text)

    def _is_away(self, result: CallResult) -> bool:
        """Whether its entity was failed over from before the call until after it."""
        since_s: float | None = None
        for event in sorted(self.happened, key=lambda each: each.at_s):
            if event.program != result.program or event.path != result.path or event.at_s > result.end_s + LATE_S:
                continue
            if event.name == "failed-over":
                since_s = event.at_s
            elif event.name in ("recovered", "entity-failed"):
                since_s = None
        return since_s is not None and since_s <= result.begin_s

    # -- order, growth, the end -----------------------------------------------------------------------------------

    def _in_order(self) -> None:
        """Order inside one route: of one caller, one message after the other, all of them at the primary."""
        groups: dict[str, list[CallResult]] = defaultdict(list)
        for result in self.results:
            if result.how == SEQUENCE:
                groups[result.group].append(result)
        for calls in groups.values():
            calls.sort(key=lambda each: each.begin_s)
            if self._is_at_home(calls):
                numbers = [min(self.stored[call.path, call.ids[0]])[0] for call in calls]
                if numbers != sorted(numbers):
                    self._blame("order inside one route", f"{calls[0].group} to {calls[0].path} has numbers {numbers}")

    def _is_at_home(self, calls: list[CallResult]) -> bool:
        path = calls[0].path
        if any(spell["what"] == DELETE and path in spell["paths"] for spell in self.spells.values()):
            return False
        if any(call.res != OK or (call.path, call.ids[0]) not in self.stored for call in calls):
            return False
        begin_s, end_s = calls[0].begin_s - PING_BACK_S, calls[-1].end_s + LATE_S
        return not any(
            event.path == path and event.program == calls[0].program and event.name != "pinged"
            for event in self.happened
            if begin_s <= event.at_s <= end_s
        )

    def _vital(self) -> None:
        places = len(self.plan.entities) + self.plan.backlog_queues
        for name in sorted({program for program, _ in self.vitals}):
            begin, end, after = (self.vitals.get((name, when)) for when in (BEGIN, END, AFTER_CLOSE))
            if begin is None or end is None:
                continue
            bounds = {
                "sockets": SOCKETS_EACH * places + SOCKETS_MORE,
                "tasks": SOCKETS_EACH * places + TASKS_MORE,
                "rss_kb": begin["rss_kb"] + RSS_KB_MORE,
            }
            for what, most in bounds.items():
                if end[what] > most:
                    self._blame("no growth", f"{name} has {end[what]} {what} at the end; {most} are enough")
            if after is not None and after["sockets"] > begin["sockets"] + SOCKETS_LEFT:
                grown = f"{after['sockets']} sockets after it was closed, {begin['sockets']} before it began"
                self._blame("no growth", f"{name} has {grown}")
        for name, what, took_s in self.closed:
            if took_s > CLOSE_S + CLOSE_LATE_S:
                self._blame("closes within five seconds", f"{name}: {what} took {took_s:.1f} s, {self.plan.closing}")

    def _verdict(self) -> PlayVerdict:
        found = PlayVerdict(self.plan.seed, calls=len(self.results), problems=_shortened(self.problems))
        found.messages = sum(len(result.ids) for result in self.results)
        taken = [result for result in self.results if result.res == OK]
        acknowledged = {
            (result.path, identity) for result in taken if not self._is_bad(result) for identity in result.ids
        }
        found.acknowledged = len(acknowledged)
        found.bad_taken = sum(self._is_bad(result) for result in taken)
        found.delivered = len(acknowledged & set(self.stored))
        counts = Counter(event.name for event in self.happened if event.program in self.programs)
        found.diverted = counts["diverted"]
        found.failed_over = counts["failed-over"]
        found.refused = sum(result.res != OK for result in self.results)
        found.ailments = [f"{each['side']} {each['what']}" for each in self.spells.values()]
        slow = [slowdown for _, slowdown in self.pulses]
        found.starved_share = round(sum(each >= STARVED for each in slow) / max(len(slow), 1), 2)
        found.sockets_most = max((each["sockets"] for each in self.vitals.values()), default=0)
        found.close_most_s = max((took_s for _, _, took_s in self.closed), default=0.0)
        return found

    # -- small things ---------------------------------------------------------------------------------------------

    def _is_starved(self, begin_s: float, end_s: float) -> bool:
        """Whether the machine had so much else to do that nothing follows from what a call did in its time."""
        seen = [slowdown for at_s, slowdown in self.pulses if begin_s - 1.0 <= at_s <= end_s + 1.0]
        return bool(seen) and sum(each >= STARVED for each in seen) / len(seen) >= STARVED_SHARE

    def _is_starved_in(self, calls: list[CallResult], event: Happened) -> bool:
        """A time-out of a machine that had no time; what was refused, was refused in any case."""
        begin_s = min((call.begin_s for call in calls), default=event.at_s)
        return event.error.startswith("OperationTimeoutError") and self._is_starved(begin_s, event.at_s)

    def _blame(self, invariant: str, text: str) -> None:
        self.problems.append(Problem(invariant, " ".join(text.split())[:600]))

    def _at(self, at_s: float) -> str:
        return f"{at_s - self.begun_s:.1f} s"

    def _setting(self, program: Program) -> str:
        return f"interval {program.interval_s:g} s, pending {program.pending}, {program.front}"


def _shortened(problems: list[Problem]) -> list[Problem]:
    """The first of each invariant, and how many more there are: one cause breaks many promises."""
    kept = []
    counts = Counter(problem.invariant for problem in problems)
    seen: Counter[str] = Counter()
    for problem in problems:
        seen[problem.invariant] += 1
        if seen[problem.invariant] <= TOLD_MAX:
            kept.append(problem)
    more = {name: count - TOLD_MAX for name, count in counts.items() if count > TOLD_MAX}
    return kept + [Problem(name, f"and {count} more of this kind") for name, count in more.items()]


def _result_of(line: dict[str, Any]) -> CallResult:
    return CallResult(
        line["p"],
        line["path"],
        line["kind"],
        line["how"],
        line["group"],
        tuple(line["ids"]),
        tuple(line["h"]),
        line["t0"] / NS,
        line["t"] / NS,
        line["res"],
        line.get("error", ""),
        line.get("text", ""),
    )


def main() -> int:
    directory = Path(sys.argv[1])
    judge = PlayJudge(read_plan(directory / PLAN_FILE))
    judge.accept(read_lines(directory))
    found = judge.judge()
    print(json.dumps(asdict(found)))
    return 1 if found.problems else 0


if __name__ == "__main__":
    sys.exit(main())
