"""How often locks are renewed, by what the service says about their end."""

import time

import pytest

from spillway.spark.source.renewal_pace import INTERVAL_S_MAX, INTERVAL_S_MIN, LOCK_S_MIN, interval_until

DAY_S = 86_400.0


def interval_of(lock_s: float, ahead_s: float = 0.0) -> float:
    """Of a lock that was just taken, by a service whose clock is so far ahead."""
    return interval_until(int((time.time() + lock_s + ahead_s) * 1000))


@pytest.mark.parametrize(("lock_s", "interval_s"), [(5, 1.67), (30, 10.0), (60, 20.0), (300, INTERVAL_S_MAX)])
def test_a_lock_is_renewed_when_a_third_of_it_is_over(lock_s: float, interval_s: float) -> None:
    assert interval_of(lock_s) == pytest.approx(interval_s, abs=0.1)


@pytest.mark.parametrize("ahead_s", [600.0, DAY_S, 30 * DAY_S])
@pytest.mark.parametrize("lock_s", [5, 30, 300])
def test_by_a_clock_that_is_far_ahead_every_lock_is_renewed_in_time(lock_s: float, ahead_s: float) -> None:
    assert interval_of(lock_s, ahead_s) <= LOCK_S_MIN / 2


def test_by_a_clock_that_is_behind_locks_are_renewed_all_the_time() -> None:
    assert interval_of(30, -DAY_S) == INTERVAL_S_MIN


def test_the_longest_lock_is_not_taken_for_a_short_one_because_clocks_differ_a_little() -> None:
    assert interval_of(300, 30.0) == INTERVAL_S_MAX
