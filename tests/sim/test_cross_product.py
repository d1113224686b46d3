"""Settings drawn over their whole cross product, commands of every kind, faults and crashes, from a seed.

One that fails prints its seed and the fewest steps that fail; `make sim SEEDS=1 FIRST=<seed>` plays it again.
"""

import pytest

from tests.sim.dice import ACTIONS, FILTERS
from tests.sim.running import SQLITE_EVERY, Outcome, explain, play
from tests.sim.shrinking import shrunk

SEEDS = 60
STEPS = 500


@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_the_settings_what_was_said_holds(seed: int) -> None:
    outcome = play(seed, STEPS)
    if outcome.failure:
        pytest.fail(explain(outcome), pytrace=False)
    assert outcome.sent > 50 and outcome.lives > 1


def test_a_share_of_the_seeds_plays_on_the_real_store() -> None:
    assert SEEDS >= 5 * SQLITE_EVERY


def test_settings_meet() -> None:
    """A few seeds are enough for every setting to have had messages, with every other one beside it."""
    seen: set[str] = set()
    for seed in range(1_000, 1_012):
        outcome = play(seed, 120)
        assert not outcome.failure, outcome.trace
        seen.update(outcome.seen)
    words = ("session", "forward", "dead-letter-forward", "duplicates", "ttl", "partition", "action")
    flags = [key[key.index("[") + 1 : -1].split() for key in seen if key.startswith("added to ")]
    missing = [
        (one, other)
        for one in words
        for other in words
        if one < other and not any(one in found and other in found for found in flags)
    ]
    assert missing in ([], [("action", "duplicates")]), missing  # subscriptions have rules, duplicates have topics


def test_the_same_seed_plays_the_same() -> None:
    def facts(outcome: Outcome) -> tuple[object, ...]:
        return (outcome.failure, outcome.lives, outcome.sent, outcome.seen)

    assert facts(play(7, 150)) == facts(play(7, 150))


def test_rules_are_drawn_from_all_there_are() -> None:
    assert len(FILTERS) >= 9 and any("REMOVE sys.SessionId" in action for action in ACTIONS)


def test_shrinking_leaves_what_is_needed() -> None:
    needed = {0, 17, 60}

    def run(left_out: frozenset[int]) -> str:
        return "" if needed & left_out else "it fails"

    left_out = shrunk(100, "it fails", run)
    assert needed == set(range(100)) - left_out
