"""Sets of sequence numbers that lie close together, as runs of them: small in a checkpoint, quick to ask."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

Run = tuple[int, int]  # from the first number up to and without the second


class Runs:
    """A set of numbers that does not change. Its runs are in order and do not touch."""

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self.runs: tuple[Run, ...] = tuple(_joined(runs))
        assert all(one[1] < other[0] for one, other in pairwise(self.runs)), "runs are in order and do not touch"
        self._starts = [start for start, _ in self.runs]

    @classmethod
    def of(cls, numbers: Iterable[int]) -> "Runs":
        return cls((number, number + 1) for number in numbers)

    @classmethod
    def from_plain(cls, plain: Sequence[int]) -> "Runs":
        """What `to_plain` made; ValueError for anything else."""
        if len(plain) % 2 or any(step < 0 for step in plain):
            raise ValueError("not runs of numbers")
        at, runs = 0, []
        for gap, length in zip(plain[::2], plain[1::2], strict=True):
            runs.append((at + gap, at + gap + length))
            at += gap + length
        return cls(runs)

    def to_plain(self) -> list[int]:
        """How far each run is from the one before it, and how long it is: these are small numbers."""
        edges = [0, *[edge for run in self.runs for edge in run]]
        return [after - before for before, after in pairwise(edges)]

    def __contains__(self, number: int) -> bool:
        return self.end_of(number) > number

    def __iter__(self) -> Iterator[int]:
        return (number for start, end in self.runs for number in range(start, end))

    def __len__(self) -> int:
        return sum(end - start for start, end in self.runs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Runs) and self.runs == other.runs

    def __hash__(self) -> int:
        return hash(self.runs)

    def __repr__(self) -> str:
        return f"Runs({list(self.runs)})"

    def __or__(self, other: "Runs") -> "Runs":
        return Runs((*self.runs, *other.runs))

    def __and__(self, other: "Runs") -> "Runs":
        return Runs(run for start, end in other.runs for run in self.within(start, end).runs)

    def end_of(self, number: int) -> int:
        """Where the run ends that this number is in; the number itself if it is in none."""
        index = bisect_right(self._starts, number) - 1
        return max(number, self.runs[index][1]) if index >= 0 else number

    def within(self, start: int, end: int) -> "Runs":
        """Those from `start` up to and without `end`."""
        return Runs((max(start, first), min(end, last)) for first, last in self.runs if first < end and last > start)


def _joined(runs: Iterable[Run]) -> list[Run]:
    found: list[Run] = []
    for start, end in sorted(run for run in runs if run[0] < run[1]):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found
