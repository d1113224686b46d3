"""The broker's time against a wall clock that is set by hand."""

import logging

import pytest

from spillway.server.clock import SLEW_PERCENT, BrokerClock, MovableClock

HOUR_MS = 3_600_000


class Hands:
    """A wall clock and a steady clock that the test moves."""

    def __init__(self) -> None:
        self.wall_ms = 1_700_000_000_000.0
        self.steady_ms = 5_000.0

    def wall(self) -> float:
        return self.wall_ms

    def steady(self) -> float:
        return self.steady_ms

    def clock(self, floor_ms: int = 0) -> BrokerClock:
        return BrokerClock(floor_ms, self.wall, self.steady)

    def pass_ms(self, ms: float) -> None:
        self.wall_ms += ms
        self.steady_ms += ms


def run(hands: Hands, clock: BrokerClock, seconds: int) -> list[int]:
    said = []
    for _ in range(seconds):
        hands.pass_ms(1_000)
        said.append(clock.now_ms())
    return said


def test_it_starts_at_the_wall_clock_and_goes_with_it() -> None:
    hands = Hands()
    clock = hands.clock()
    assert clock.now_ms() == 1_700_000_000_000
    assert run(hands, clock, 100)[-1] == 1_700_000_100_000


def test_after_a_restart_with_the_clock_behind_it_goes_on_from_the_last_time_stored() -> None:
    hands = Hands()
    stored_ms = 1_700_000_000_000 + HOUR_MS
    clock = hands.clock(floor_ms=stored_ms)
    assert clock.now_ms() == stored_ms
    said = run(hands, clock, 10)
    assert said == sorted(said)
    assert said[-1] >= stored_ms + 9_900


@pytest.mark.parametrize("jump_ms", [-HOUR_MS, HOUR_MS])
def test_a_wall_clock_that_jumps_an_hour_bends_a_minute_by_one_percent_at_most(jump_ms: int) -> None:
    hands = Hands()
    clock = hands.clock()
    begun_ms = run(hands, clock, 1)[-1]
    hands.wall_ms += jump_ms
    said = run(hands, clock, 60)
    assert said == sorted(said)
    assert abs(said[-1] - begun_ms - 60_000) <= 60_000 * SLEW_PERCENT // 100 + 1


def test_a_jump_of_more_than_five_minutes_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    hands = Hands()
    clock = hands.clock()
    run(hands, clock, 2)
    with caplog.at_level(logging.WARNING):
        hands.wall_ms += HOUR_MS
        run(hands, clock, 30)
    assert [record.getMessage() for record in caplog.records] == [
        "the wall clock jumped by 3600 s; broker time follows at 1%"
    ]


def test_a_small_error_of_the_wall_clock_is_met_and_then_kept() -> None:
    hands = Hands()
    clock = hands.clock()
    hands.wall_ms += 250
    run(hands, clock, 40)
    assert abs(clock.now_ms() - hands.wall_ms) <= 1
    run(hands, clock, 100)
    assert abs(clock.now_ms() - hands.wall_ms) <= 1


def test_a_process_that_was_stopped_for_ninety_seconds_sees_them_all_at_once() -> None:
    hands = Hands()
    clock = hands.clock()
    before_ms = clock.now_ms()
    hands.pass_ms(90_000)
    assert clock.now_ms() == before_ms + 90_000


# -- real time, for sockets and tokens -----------------------------------------------------------------------------


def test_real_time_is_the_brokers_time_as_long_as_nothing_is_ahead_of_the_wall() -> None:
    hands = Hands()
    clock = hands.clock(floor_ms=1_600_000_000_000)
    run(hands, clock, 3)
    hands.wall_ms += 300
    run(hands, clock, 3)
    assert clock.real_ms() == clock.now_ms()


def test_real_time_does_not_go_on_from_the_last_time_stored() -> None:
    hands = Hands()
    clock = hands.clock(floor_ms=1_700_000_000_000 + 240 * HOUR_MS)
    run(hands, clock, 10)
    assert clock.real_ms() == 1_700_000_010_000
    assert clock.now_ms() >= 1_700_000_000_000 + 240 * HOUR_MS


@pytest.mark.parametrize("jump_ms", [-2 * HOUR_MS, 2 * HOUR_MS])
def test_tokens_are_judged_by_the_wall_clock_as_it_is_now(jump_ms: int) -> None:
    hands = Hands()
    clocks: list[BrokerClock | MovableClock] = [
        hands.clock(),
        hands.clock(floor_ms=1_700_000_000_000 + 240 * HOUR_MS),
        movable(hands),
    ]
    hands.wall_ms += jump_ms
    assert [clock.wall_ms() for clock in clocks] == [1_700_000_000_000 + jump_ms] * 3
    for clock in clocks:
        assert abs(clock.real_ms() - 1_700_000_000_000) <= 100, "sockets do not notice"


# -- a clock that can be moved -------------------------------------------------------------------------------------


def movable(hands: Hands, floor_ms: int = 0) -> MovableClock:
    return MovableClock(floor_ms, hands.wall, hands.steady)


def test_a_clock_is_moved_ahead_of_real_time_and_goes_on_at_the_same_pace() -> None:
    hands = Hands()
    clock = movable(hands)
    clock.advance(10 * HOUR_MS)
    assert (clock.now_ms(), clock.real_ms()) == (1_700_000_000_000 + 10 * HOUR_MS, 1_700_000_000_000)
    hands.pass_ms(90_000)
    clock.advance(1)
    assert clock.now_ms() == 1_700_000_000_000 + 10 * HOUR_MS + 90_001
    assert clock.real_ms() == 1_700_000_090_000


def test_a_clock_is_never_moved_back() -> None:
    with pytest.raises(AssertionError, match="time does not go back"):
        movable(Hands()).advance(-1)


def test_a_moved_clock_goes_on_from_where_it_was_after_a_restart(caplog: pytest.LogCaptureFixture) -> None:
    hands = Hands()
    with caplog.at_level(logging.INFO):
        clock = movable(hands, floor_ms=1_700_000_000_000 + 240 * HOUR_MS)
    assert clock.now_ms() == 1_700_000_000_000 + 240 * HOUR_MS
    hands.pass_ms(1_000_000)
    assert clock.now_ms() == 1_700_000_000_000 + 240 * HOUR_MS + 1_000_000, "at full pace: it need not meet the wall"
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "time goes on from the last time stored, 864000 s ahead of the wall clock")
    ]


def test_a_clock_that_nobody_has_moved_follows_the_wall_like_any_other() -> None:
    hands = Hands()
    clock = movable(hands, floor_ms=1_600_000_000_000)
    hands.wall_ms += 250
    for _ in range(40):
        hands.pass_ms(1_000)
        clock.now_ms()
    assert abs(clock.now_ms() - hands.wall_ms) <= 1
