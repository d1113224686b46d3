"""The verdict on one run, from the histories alone: a process of its own, so that no client can talk itself out of it.

    python -m spillway.lab.verdict DIRECTORY

prints one line of JSON, and exits with 1 if anything was lost, came from nowhere, or came back after it was completed.
"""

import json
import sys
from collections import Counter, defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from spillway.lab.histories import COMPLETED, DELIVERED, EVENT, LEDGER, LEFT, NEMESIS, OK, SEND, read_all

NS = 1_000_000_000


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
    out_of_order: int = 0
    failed_attempts: int = 0  # sends whose caller heard an error
    failover_s: float | None = None  # from the fault to the first message that the backlog took
    return_s: float | None = None  # from its end to the first state of health
    pings: int = 0
    operations: dict[str, int] = field(default_factory=dict)  # of both brokers' ledgers, by kind
    problems: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        return not self.problems


def judge(lines: list[dict[str, Any]], scenario: str) -> Verdict:
    verdict = Verdict(scenario)
    sent = {line["id"] for line in lines if line["op"] == SEND}
    acknowledged = {line["id"] for line in lines if line["op"] == SEND and line["res"] == OK}
    copies: dict[str, set[int]] = defaultdict(set)
    for line in lines:
        if line["op"] == DELIVERED:
            copies[line["id"]].add(line["seq"])
    left = {line["id"] for line in lines if line["op"] == LEFT}
    verdict.sent = len(sent)
    verdict.acknowledged = len(acknowledged)
    verdict.failed_attempts = sum(1 for line in lines if line["op"] == SEND and line["res"] != OK)
    verdict.delivered = len(copies)
    verdict.duplicated = sum(1 for numbers in copies.values() if len(numbers) > 1)
    gone = acknowledged - set(copies) - left
    verdict.lost = len(gone)
    events = Counter[str]()
    for line in lines:
        if line["op"] == EVENT:
            events[line["name"]] += line["count"]
        elif line["op"] == LEDGER:
            for kind, count in line["operations"].items():
                verdict.operations[kind] = verdict.operations.get(kind, 0) + count
    verdict.diverted = events["diverted"]
    verdict.syphoned = events["syphoned"]
    verdict.pings = events["pinged"]
    verdict.out_of_order = count_out_of_order(lines)
    verdict.failover_s, verdict.return_s = times(lines)
    if gone:
        verdict.problems.append(f"{len(gone)} acknowledged messages are nowhere, such as {_some(gone)}")
    if unknown := (set(copies) | left) - sent:
        verdict.problems.append(f"{len(unknown)} messages came from nowhere, such as {_some(unknown)}")
    if back := came_back(lines):
        verdict.problems.append(f"{len(back)} messages came back after they were completed, such as {_some(back)}")
    return verdict


def count_out_of_order(lines: list[dict[str, Any]]) -> int:
    """Deliveries of a message behind a later one of the same producer; each message is looked at once."""
    highest: dict[str, int] = {}
    seen: set[str] = set()
    count = 0
    for line in lines:
        if line["op"] != DELIVERED or line["id"] in seen:
            continue
        seen.add(line["id"])
        producer, _, number = line["id"].rpartition("-")
        if int(number) < highest.get(producer, -1):
            count += 1
        highest[producer] = max(highest.get(producer, -1), int(number))
    return count


def came_back(lines: list[dict[str, Any]]) -> set[str]:
    """Of the same stored copy: a duplicate that was sent twice has a number of its own."""
    completed: dict[tuple[str, int], int] = {}
    back = set()
    for line in lines:
        if line["op"] == COMPLETED and line["res"] == OK:
            completed[line["id"], line["seq"]] = line["t"]
        elif line["op"] == DELIVERED and (line["id"], line["seq"]) in completed:
            back.add(line["id"])
    return back


def times(lines: list[dict[str, Any]]) -> tuple[float | None, float | None]:
    begun = [line["t"] for line in lines if line["op"] == NEMESIS and line["what"] == "begins"]
    ended = [line["t"] for line in lines if line["op"] == NEMESIS and line["what"] == "ends"]
    diverted = [line["t"] for line in lines if line["op"] == EVENT and line["name"] == "diverted"]
    recovered = [line["t"] for line in lines if line["op"] == EVENT and line["name"] == "recovered"]
    failover_s = next(((at - begun[0]) / NS for at in diverted if begun and at >= begun[0]), None)
    return_s = next(((at - ended[-1]) / NS for at in recovered if ended and at >= ended[-1]), None)
    return (
        None if failover_s is None else round(failover_s, 3),
        None if return_s is None else round(return_s, 3),
    )


def _some(ids: set[str]) -> str:
    return ", ".join(sorted(ids)[:3])


def main() -> int:
    directory = Path(sys.argv[1])
    spec = json.loads((directory / "run.json").read_text())
    verdict = judge(read_all(directory), spec["scenario"])
    wanted = spec.get("diverted_min")
    if wanted is not None and verdict.diverted < wanted:
        verdict.problems.append(f"only {verdict.diverted} messages were diverted; the run was to divert {wanted}")
    if spec.get("diverted_max") is not None and verdict.diverted > spec["diverted_max"]:
        verdict.problems.append(f"{verdict.diverted} messages were diverted; at most {spec['diverted_max']} were to be")
    if verdict.acknowledged < spec["messages"]:
        verdict.problems.append(f"{verdict.acknowledged} of {spec['messages']} messages were acknowledged at the end")
    print(json.dumps(asdict(verdict)))
    return 0 if verdict.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
