"""The judge of tools/spark_month.py: from what was acknowledged, what arrived, and what lay on disk and in memory."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

# Checkpoints: Spark keeps the offsets and commits of the last batches, with a checksum file beside each.
BATCHES_KEPT: Final = 20
CHECKPOINT_FILES: Final = 4 * (BATCHES_KEPT + 20)
GROWTH: Final = 1.25  # of the last quarter beside the second one
GROWTH_MB: Final = 64
GROWTH_FILES: Final = 20
DAYS_JUDGED: Final = 12  # fewer say nothing about growth
# In MB, of one process: what a machine has to have, however short the month.
MEMORY_MAX: Final = {
    "driver": 400,
    "java": 2_000,
    "heap": 700,
    "worker": 400,
    "planner": 400,
    "keeper": 200,
    "primary": 400,
    "secondary": 400,
}


@dataclass(frozen=True)
class Arrival:
    """A message that came out of a stream. `key` tells copies of a message, as the guide does."""

    number: int
    key: str = ""
    session: str = ""


@dataclass
class Line:
    """One stream, from its producer to its end. `arrived` is in the order in which it came out."""

    name: str
    is_once: bool
    sent: int = 0
    acknowledged: set[int] = field(default_factory=set)
    arrived: list[Arrival] = field(default_factory=list)
    dead: int = 0  # dead-lettered
    left: int = 0  # still in the entity that the stream is to empty

    def counts(self) -> dict[str, Any]:
        numbers = Counter(arrival.number for arrival in self.arrived)
        return {
            "sent": self.sent,
            "acknowledged": len(self.acknowledged),
            "arrived": len(numbers),
            "lost": len(self.acknowledged - set(numbers)),
            "doubled" if self.is_once else "copies": len(self.arrived) - len(numbers),
            "dead_lettered": self.dead,
            "left": self.left,
        }

    def problems(self) -> list[str]:
        found = []
        numbers = Counter(arrival.number for arrival in self.arrived)
        lost = self.acknowledged - set(numbers)
        if lost:
            found.append(f"{self.name}: {len(lost)} acknowledged messages never came out, such as {min(lost)}")
        twice = [number for number, count in numbers.items() if count > 1]
        if self.is_once and twice:
            found.append(f"{self.name}: {len(twice)} messages came out more than once, such as {min(twice)}")
        unlike = _unlike(self.arrived)
        if unlike:
            found.append(f"{self.name}: copies of {len(unlike)} messages cannot be told, such as {min(unlike)}")
        strange = [number for number in numbers if not 0 <= number < self.sent]
        if strange:
            found.append(f"{self.name}: {len(strange)} came out that were never sent, such as {min(strange)}")
        if self.dead:
            found.append(f"{self.name}: {self.dead} messages were dead-lettered")
        if self.left:
            found.append(f"{self.name}: {self.left} messages are left in the entity")
        if not self.acknowledged:
            found.append(f"{self.name}: nothing was acknowledged, so nothing was shown")
        return found + order_problems(self.name, self.arrived)


def _unlike(arrived: Iterable[Arrival]) -> list[int]:
    """Messages whose copies do not have the same key: nobody could tell that they are copies."""
    keys: dict[int, set[str]] = defaultdict(set)
    for arrival in arrived:
        keys[arrival.number].add(arrival.key)
    return [number for number, different in keys.items() if len(different) > 1]


def order_problems(name: str, arrived: Iterable[Arrival]) -> list[str]:
    """Inside a session messages come out for the first time in the order in which they were sent."""
    last: dict[str, int] = {}
    seen: set[int] = set()
    wrong: Counter[str] = Counter()
    for arrival in arrived:
        if not arrival.session or arrival.number in seen:
            continue
        seen.add(arrival.number)
        if arrival.number < last.get(arrival.session, -1):
            wrong[arrival.session] += 1
        last[arrival.session] = max(arrival.number, last.get(arrival.session, -1))
    return [f"{name}: session {session}: {count} out of order" for session, count in sorted(wrong.items())]


def file_problems(lake: Mapping[str, int], checkpoints: Mapping[str, int], pieces: Sequence[int] = ()) -> list[str]:
    """Files of each day of the lake and of each stream's checkpoint, at the end, when two nights have passed without
    messages: one that compacted the last day, one that deleted what it replaced. `pieces`: how many files the lake had
    each night beyond one a day."""
    found = [f"the lake has {count} files of {day}" for day, count in sorted(lake.items()) if count > 1]
    if grew := growth(pieces, GROWTH_FILES):
        found.append(f"the lake: {grew[0]:.0f} files beyond one a day in the second week, {grew[1]:.0f} in the last")
    for name, count in sorted(checkpoints.items()):
        if count > CHECKPOINT_FILES:
            found.append(f"the checkpoint of {name} has {count} files, where {CHECKPOINT_FILES} are enough")
    return found


def memory_problems(days: Sequence[Mapping[str, int]]) -> list[str]:
    """Of each role the most that one of its processes had on each day, in MB."""
    found = []
    for role in sorted({role for day in days for role in day}):
        had = [day[role] for day in days if role in day]
        if max(had) > MEMORY_MAX[role]:
            found.append(f"{role}: {max(had)} MB, where {MEMORY_MAX[role]} are enough")
        if grew := growth(had, GROWTH_MB):
            found.append(f"{role}: {grew[0]:.0f} MB in the second week, {grew[1]:.0f} in the last")
    return found


def growth(had: Sequence[int], least: int) -> tuple[float, float] | None:
    """Medians of the second quarter and the last one, if the last is larger by more than chance."""
    quarter = len(had) // 4
    if len(had) < DAYS_JUDGED:
        return None
    early, late = statistics.median(had[quarter : 2 * quarter]), statistics.median(had[-quarter:])
    return (early, late) if late > early * GROWTH and late > early + least else None
