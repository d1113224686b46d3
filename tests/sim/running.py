"""Runs of the simulation, each from its seed; of one that fails, the fewest steps that do."""

import shutil
import tempfile
import traceback
from collections import Counter
from pathlib import Path

from tests.sim.playing import Play
from tests.sim.shrinking import shrunk

SQLITE_EVERY = 5  # of the seeds: the real store


class Outcome:
    """How one seed went."""

    def __init__(self, seed: int, steps: int) -> None:
        self.seed = seed
        self.steps = steps
        self.lives = 0
        self.sent = 0
        self.seen: Counter[str] = Counter()
        self.failure = ""  # what was raised, and where
        self.trace = ""
        self.story: list[str] = []


def play(seed: int, steps: int, left_out: frozenset[int] = frozenset(), until: float = 0.0) -> Outcome:
    directory = Path(tempfile.mkdtemp(prefix="spillway-sim-")) if seed % SQLITE_EVERY == 0 else None
    outcome = Outcome(seed, steps)
    game = Play(seed, directory)
    try:
        outcome.steps = game.run(steps, left_out, until)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        outcome.failure = f"{type(error).__name__} in {last.name}"
        outcome.trace = traceback.format_exc()
        outcome.story = game.told
    finally:
        if directory is not None:
            shutil.rmtree(directory, ignore_errors=True)
    outcome.lives = game.house.lives
    outcome.sent = len(game.house.sent)
    outcome.seen = game.house.seen
    return outcome


def explain(outcome: Outcome, tries: int = 300) -> str:
    """What a person needs to mend it: the seed, the fewest steps, what was raised."""
    last = sum(1 for line in outcome.story if line.startswith("step ")) + 1
    shortest = [outcome]

    def run(left_out: frozenset[int]) -> str:
        again = play(outcome.seed, last, left_out)
        if again.failure == outcome.failure:
            shortest.append(again)
        return again.failure

    left_out = shrunk(last, outcome.failure, run, tries)
    best = shortest[-1]
    return "\n".join(
        [
            f"seed {outcome.seed}: {outcome.failure}",
            f"{last - len(left_out)} of {last} steps are enough:",
            *best.story,
            best.trace,
        ]
    )
