"""Fewer steps that fail in the same way: what is left out of a run changes nothing in the dice of the others."""

from collections.abc import Callable

Runs = Callable[[frozenset[int]], str]  # "": nothing failed without these steps; else how it failed


def shrunk(steps: int, failure: str, run: Runs, tries: int = 300) -> frozenset[int]:
    """The steps that can be left out: halves first, then quarters, and at last one by one."""
    left_out: frozenset[int] = frozenset()
    size = steps // 2
    while size >= 1 and tries > 0:
        for first in range(1, steps, size):  # the first one furnishes the house
            some = frozenset(range(first, min(first + size, steps))) - left_out
            if not some or tries <= 0:
                continue
            tries -= 1
            if run(left_out | some) == failure:
                left_out |= some
        size //= 2
    return left_out
