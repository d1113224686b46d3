"""What happened when, out of the histories: rates, states and moments, small enough to be drawn."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from spillway.lab.histories import BEGINS, DELIVERED, EVENT, FAULT, LEDGER, MENDED, NOTE, NS, OK, SEND

SLOT_NS: Final = NS // 4
SLOTS_MAX: Final = 240  # of a picture; longer runs get wider ones

ACKNOWLEDGED: Final = "acknowledged"
DIVERTED: Final = "diverted"
SYPHONED: Final = "syphoned"
ANSWERED: Final = "delivered"
FAILED: Final = "failed"

HEALTHY: Final = "healthy"
SUSPECT: Final = "suspect"
AWAY: Final = "failed over"
STATE_OF: Final = {"suspected": SUSPECT, "failed-over": AWAY, "recovered": HEALTHY, "entity-failed": AWAY}


@dataclass
class Span:
    from_s: float
    to_s: float
    state: str


@dataclass
class Timeline:
    """Times are seconds since the first message was sent."""

    length_s: float
    slot_s: float
    rates: dict[str, list[float]]  # a second, in each slot
    backlog: list[int]  # messages waiting there, at the end of each slot
    outages: list[Span]
    states: dict[str, list[Span]]  # by producer
    first_s: dict[str, float]  # when a thing first happened
    last_s: dict[str, float]
    causes: dict[str, str]  # by producer: the error it failed over for
    removed_s: list[float] = field(default_factory=list)  # when a sender took a backlog queue out of rotation
    ledgers: dict[str, dict[str, int]] = field(default_factory=dict)
    notes: list[tuple[float, str]] = field(default_factory=list)


class _TimelineReading:
    def __init__(self) -> None:
        self.slots: dict[str, Counter[int]] = defaultdict(Counter)  # series: slot of the clock: count
        self.changes: dict[str, list[tuple[int, str]]] = defaultdict(list)
        self.faults: list[tuple[int, str]] = []
        self.first: dict[str, int] = {}
        self.last: dict[str, int] = {}
        self.causes: dict[str, str] = {}
        self.removed: list[int] = []
        self.ledgers: dict[str, dict[str, int]] = {}
        self.notes: list[tuple[int, str]] = []

    def count(self, series: str, at: int, count: int = 1) -> None:
        self.slots[series][at // SLOT_NS] += count
        self.first[series] = min(self.first.get(series, at), at)
        self.last[series] = max(self.last.get(series, at), at)

    def accept(self, line: dict[str, Any]) -> None:
        op = line["op"]
        if op == SEND:
            self.count(ACKNOWLEDGED if line["res"] == OK else FAILED, line["t"])
            self.first["begun"] = min(self.first.get("begun", line["t0"]), line["t0"])
        elif op == DELIVERED:
            self.count(ANSWERED, line["t"])
        elif op == EVENT:
            self._event(line)
        elif op == FAULT:
            self.faults.append((line["t"], line["what"]))
        elif op == LEDGER:
            self.ledgers[line["namespace"]] = line["operations"]
        elif op == NOTE:
            self.notes.append((line["t"], line["text"]))

    def _event(self, line: dict[str, Any]) -> None:
        name = line["name"]
        if name in (DIVERTED, SYPHONED):
            self.count(name, line["t"], line["count"])
        elif name in STATE_OF:
            self.changes[line["p"]].append((line["t"], STATE_OF[name]))
            if name == "failed-over" and "error" in line:
                self.causes.setdefault(line["p"], line["error"])
        elif name == "backlog-queue-removed":
            self.removed.append(line["t"])


def read_timeline(lines: Iterable[dict[str, Any]]) -> Timeline:
    reading = _TimelineReading()
    for line in lines:
        reading.accept(line)
    begun = reading.first.get("begun", min(reading.first.values(), default=0))
    end = max([begun + NS, *reading.last.values(), *(at for at, _ in reading.faults)])
    length_s = (end - begun) / NS
    width = -(-((end - begun) // SLOT_NS + 1) // SLOTS_MAX)  # slots of the clock in one of the picture
    count = ((end - begun) // SLOT_NS) // width + 1
    sums = {name: _slots(reading.slots[name], begun, width, count) for name in (*reading.slots, DIVERTED, SYPHONED)}
    slot_s = width * SLOT_NS / NS
    return Timeline(
        length_s=length_s,
        slot_s=slot_s,
        rates={name: [value / slot_s for value in values] for name, values in sums.items()},
        backlog=_depths(sums[DIVERTED], sums[SYPHONED]),
        outages=_outages(reading.faults, begun, length_s),
        states={name: _spans(reading.changes[name], begun, length_s) for name in sorted(reading.changes)},
        first_s={name: (at - begun) / NS for name, at in reading.first.items()},
        last_s={name: (at - begun) / NS for name, at in reading.last.items()},
        causes=reading.causes,
        removed_s=sorted((at - begun) / NS for at in reading.removed),
        ledgers=reading.ledgers,
        notes=[((at - begun) / NS, text) for at, text in reading.notes],
    )


def _slots(found: Counter[int], begun: int, width: int, count: int) -> list[int]:
    values = [0] * count
    for slot, number in found.items():
        values[min(max(0, slot - begun // SLOT_NS) // width, count - 1)] += number
    return values


def _depths(diverted: list[int], syphoned: list[int]) -> list[int]:
    depth = 0
    depths = []
    for come, gone in zip(diverted, syphoned, strict=True):
        depth += come - gone
        depths.append(max(0, depth))  # a message that is syphoned twice is counted twice
    return depths


def _outages(faults: list[tuple[int, str]], begun: int, length_s: float) -> list[Span]:
    spans: list[Span] = []
    for at, what in sorted(faults):
        at_s = (at - begun) / NS
        if what == BEGINS:
            spans.append(Span(at_s, length_s, "outage"))
        elif what == MENDED and spans and spans[-1].to_s == length_s:
            spans[-1].to_s = at_s
    return spans


def _spans(changes: list[tuple[int, str]], begun: int, length_s: float) -> list[Span]:
    spans = [Span(0.0, length_s, HEALTHY)]
    for at, state in sorted(changes):
        at_s = max(0.0, (at - begun) / NS)
        spans[-1].to_s = at_s
        spans.append(Span(at_s, length_s, state))
    return spans
