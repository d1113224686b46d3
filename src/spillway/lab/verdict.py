"""The verdict on one run, from the histories alone: a process of its own, so that no client can talk itself out of it.

    python -m spillway.lab.verdict DIRECTORY

prints one line of JSON, and exits with 1 if a promise was broken. What the run was to show is in `run.json` beside the
histories (`Expected`).
"""

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from spillway.lab.histories import (
    BEGINS,
    COMPLETED,
    DELIVERED,
    EVENT,
    FAIL,
    FAULT,
    LEDGER,
    LEFT,
    MENDED,
    NS,
    OK,
    SEND,
    UNCLEAN,
    read_lines,
)
from spillway.model.texts import count_text

EXPECTED_FILE: Final = "run.json"
VERDICT_FILE: Final = "verdict.json"
# What `spillway lab --json` says of a verdict, in this order.
FIELDS: Final = (
    "scenario", "sent", "acknowledged", "diverted", "syphoned", "delivered", "duplicated", "lost", "out_of_order",
    "failover_s", "return_s", "pings", "operations",
)  # fmt: skip
SECONDARY: Final = "secondary"


@dataclass(frozen=True)
class Expected:
    """What a run must show besides that nothing is lost; None: it does not matter."""

    scenario: str
    messages: int
    diverted_min: int | None = None
    diverted_max: int | None = None
    duplicated_max: int | None = None
    failed_max: int | None = None  # attempts whose caller heard an error
    returns: bool = True  # every producer that was failed over is back at the end


@dataclass
class Verdict:
    """Numbers of messages, and seconds. `problems` is empty if every promise held."""

    scenario: str
    sent: int = 0  # distinct messages that a producer tried to send
    acknowledged: int = 0  # distinct ones that a producer was told are safe
    diverted: int = 0
    syphoned: int = 0
    delivered: int = 0  # distinct ones that a consumer received
    duplicated: int = 0  # delivered as more than one stored copy
    lost: int = 0  # acknowledged, and nowhere
    out_of_order: int = 0  # stored behind a later one of the same producer
    failover_s: float | None = None  # from the fault until every producer's messages were taken by the backlog
    return_s: float | None = None  # from its end until every producer sends to the primary again
    pings: int = 0
    operations: dict[str, int] = field(default_factory=dict)  # that both brokers counted, by kind
    failed_attempts: int = 0  # sends whose caller heard an error, and sent again
    false_acknowledgements: int = 0  # callers that were told a thing that is not so
    problems: list[str] = field(default_factory=list)


class Judge:
    """Takes the lines in any order, keeps of each no more than the rules need, then judges."""

    def __init__(self) -> None:
        self.attempts: dict[tuple[str, int], tuple[str, str]] = {}  # id and attempt: digest, and how it ended
        self.acknowledged: set[str] = set()
        self.deliveries: list[tuple[int, str, int, str, int, int]] = []  # t, id, attempt, digest, number, locked at
        self.completed: dict[tuple[str, int], int] = {}  # id and sequence number: when it was known to be completed
        self.left: dict[str, str] = {}  # id: where
        self.events: Counter[str] = Counter()
        self.moments: list[tuple[int, str, str]] = []  # t, process, event
        self.faults: list[tuple[int, str]] = []
        self.ledgers: dict[str, Counter[str]] = {}
        self.unclean: list[str] = []  # how processes ended that did not end as they should

    def accept(self, lines: Iterable[dict[str, Any]]) -> None:
        for line in lines:
            op = line["op"]
            if op == DELIVERED:
                delivery = (line["t"], line["id"], line["a"], line["h"], line["seq"], line["g"])
                self.deliveries.append(delivery)
            elif op == COMPLETED:
                if line["res"] == OK:
                    self.completed.setdefault((line["id"], line["seq"]), line["t"])
            elif op == SEND:
                self.attempts[line["id"], line["a"]] = (line["h"], line["res"])
                if line["res"] == OK:
                    self.acknowledged.add(line["id"])
            elif op == EVENT:
                self.events[line["name"]] += line["count"]
                if line["name"] in ("diverted", "failed-over", "recovered"):
                    self.moments.append((line["t"], line["p"], line["name"]))
            elif op == LEFT:
                self.left[line["id"]] = line["q"]
            elif op == FAULT:
                self.faults.append((line["t"], line["what"]))
            elif op == LEDGER:
                self.ledgers.setdefault(line["namespace"], Counter()).update(line["operations"])
            elif op == UNCLEAN:
                self.unclean.append(line["text"])

    def judge(self, expected: Expected) -> Verdict:
        self.deliveries.sort()
        self.moments.sort()
        self.faults.sort()
        sent = {identity for identity, _ in self.attempts}
        copies: dict[str, set[int]] = defaultdict(set)
        for _, identity, _, _, number, _ in self.deliveries:
            copies[identity].add(number)
        seen = copies.keys() | self.left.keys()
        gone = self.acknowledged - seen
        changed, denied = self._changed(), self._denied()
        found = Verdict(
            expected.scenario,
            sent=len(sent),
            acknowledged=len(self.acknowledged),
            diverted=self.events["diverted"],
            syphoned=self.events["syphoned"],
            delivered=len(copies),
            duplicated=sum(1 for numbers in copies.values() if len(numbers) > 1),
            lost=len(gone),
            out_of_order=self._count_out_of_order(),
            failover_s=self._failover_s(),
            return_s=self._return_s(),
            pings=self.events["pinged"],
            operations=dict(sum(self.ledgers.values(), Counter())),
            failed_attempts=sum(1 for _, res in self.attempts.values() if res != OK),
            false_acknowledgements=len(gone | (changed & self.acknowledged) | denied),
        )
        _blame(found, gone, "acknowledged messages are nowhere")
        _blame(found, seen - sent, "messages came from nowhere")
        _blame(found, self._came_back(), "messages came back after they were completed")
        _blame(found, changed, "messages were not delivered as they were sent")
        _blame(found, denied, "messages were delivered although the sender got the answer that they were not sent")
        _blame(found, set(self.left), "messages did not come home", where=self.left)
        self._compare(found, expected)
        return found

    # -- rules ----------------------------------------------------------------------------------------------------

    def _came_back(self) -> set[str]:
        """Messages of which the same stored copy came back: a duplicate that was sent twice has a number of its own."""
        back = set()
        for _, identity, _, _, number, locked_ns in self.deliveries:
            completed_ns = self.completed.get((identity, number))
            if completed_ns is not None and locked_ns > completed_ns:
                back.add(identity)
        return back

    def _changed(self) -> set[str]:
        changed = set()
        for _, identity, attempt, digest, _, _ in self.deliveries:
            said = self.attempts.get((identity, attempt))
            if said is not None and said[0] != digest:
                changed.add(identity)
        return changed

    def _denied(self) -> set[str]:
        denied = set()
        for _, identity, attempt, _, _, _ in self.deliveries:
            said = self.attempts.get((identity, attempt))
            if said is not None and said[1] == FAIL:
                denied.add(identity)
        return denied

    def _count_out_of_order(self) -> int:
        """Order is that in which the primary hands out what it has stored: how its receivers take turns is not the
        matter. Each message is looked at once."""
        stored: dict[str, int] = {}
        for _, identity, _, _, sequence_number, _ in self.deliveries:
            stored[identity] = min(sequence_number, stored.get(identity, sequence_number))
        highest: dict[str, int] = {}
        count = 0
        for identity in sorted(stored, key=stored.__getitem__):
            producer, _, number = identity.rpartition("-")
            if not number.isdecimal():
                continue
            if int(number) < highest.get(producer, -1):
                count += 1
            else:
                highest[producer] = int(number)
        return count

    def _compare(self, found: Verdict, expected: Expected) -> None:
        """Compare with what the run was to show, and with what the brokers counted."""
        problems = found.problems
        if found.acknowledged < expected.messages:
            problems.append(f"{found.acknowledged} of {expected.messages} messages were acknowledged at the end")
        if expected.diverted_min is not None and found.diverted < expected.diverted_min:
            wanted = f"at least {expected.diverted_min} were to be: send more of them, or slower"
            problems.append(f"only {count_text(found.diverted, 'message')} diverted; {wanted}")
        problems += self.unclean
        # The secondary has backlog queues alone: whatever was sent to it was diverted, also if nobody says so.
        stored = self.ledgers.get(SECONDARY, Counter())["send"]
        if expected.diverted_max is not None and found.diverted > expected.diverted_max:
            problems.append(f"{found.diverted} messages were diverted; at most {expected.diverted_max} were to be")
        elif expected.diverted_max is not None and stored > expected.diverted_max:
            said = f"{found.diverted} are said to be diverted, and at most {expected.diverted_max} were to be"
            problems.append(f"the secondary took {count_text(stored, 'message')}; {said}")
        if expected.duplicated_max is not None and found.duplicated > expected.duplicated_max:
            allowed = f"at most {expected.duplicated_max} were to be"
            problems.append(f"{count_text(found.duplicated, 'message')} delivered twice; {allowed}")
        if expected.failed_max is not None and found.failed_attempts > expected.failed_max:
            problems.append(f"callers heard {found.failed_attempts} errors; at most {expected.failed_max} were to be")
        if SECONDARY in self.ledgers and found.diverted > stored:
            problems.append(f"{count_text(found.diverted, 'message')} said to be diverted; the secondary took {stored}")
        if expected.returns and (away := self._away_at_end()):
            problems.append(f"{', '.join(away)} did not return to the primary")

    # -- times ----------------------------------------------------------------------------------------------------

    def _failover_s(self) -> float | None:
        begun_ns = next((at for at, what in self.faults if what == BEGINS), None)
        if begun_ns is None:
            return None
        first: dict[str, int] = {}
        for at, process, name in self.moments:
            if name == "diverted" and at >= begun_ns:
                first.setdefault(process, at)
        return _seconds(max(first.values()) - begun_ns) if first else None

    def _return_s(self) -> float | None:
        """Zero, if all were back by the time that the fault was known to be mended."""
        mended_ns = next((at for at, what in reversed(self.faults) if what == MENDED), None)
        away: set[str] = set()
        last_ns = None
        for at, process, name in self.moments:
            if name == "failed-over":
                away.add(process)
            elif name == "recovered" and process in away:
                away.remove(process)
                last_ns = at
        if mended_ns is None or last_ns is None or away:
            return None
        return _seconds(max(0, last_ns - mended_ns))

    def _away_at_end(self) -> list[str]:
        last = {process: name for _, process, name in self.moments if name != "diverted"}
        return sorted(process for process, name in last.items() if name == "failed-over")


def _seconds(ns: int) -> float:
    return round(ns / NS, 3)


def _blame(found: Verdict, ids: set[str], what: str, where: dict[str, str] | None = None) -> None:
    if ids:
        some = [f"{each} in {where[each]}" if where else each for each in sorted(ids)[:3]]
        found.problems.append(f"{len(ids)} {what}, such as {', '.join(some)}")


def main() -> int:
    directory = Path(sys.argv[1])
    expected = Expected(**json.loads((directory / EXPECTED_FILE).read_text()))
    judge = Judge()
    judge.accept(read_lines(directory))
    found = judge.judge(expected)
    print(json.dumps(asdict(found)))
    return 1 if found.problems else 0


if __name__ == "__main__":
    sys.exit(main())
