"""Durations: the form Service Bus writes, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway.cli.durations import DAY_MS, FOR_EVER_DAYS, parse_duration_ms


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("PT1M", 60_000),
        ("PT5S", 5_000),
        ("PT1H30M", 5_400_000),
        ("P1D", 86_400_000),
        ("P7DT0H", 604_800_000),
        ("P1DT2H3M4S", 93_784_000),
        ("PT0.5S", 500),
        ("PT1.0019S", 1_001),
        ("PT90S", 90_000),
    ],
)
def test_a_duration_is_read_to_the_millisecond(text: str, duration_ms: int) -> None:
    assert parse_duration_ms(text) == duration_ms


@pytest.mark.parametrize(
    "text", ["P10675199DT2H48M5.4775807S", "P10675199D", "P10675200D", "PT256204799H", "P999999999DT999999999H"]
)
def test_the_longest_durations_mean_for_ever(text: str) -> None:
    assert parse_duration_ms(text) == 0


@pytest.mark.parametrize(
    "text",
    ["", "P", "PT", "P1DT", "5", "PT5X", "pt5s", "PT5", "P1W", "P1Y", "P1M", "PT-5S", "-PT5S", "PT1.S", "PT.5S"]
    + ["PT1M ", " PT1M", "PT1M\n", "PT1S1M", "PT1,5S", "1:00:00", "PT٣S", "PT0S", "PT0.0001S", "P1234567890D"],
)
def test_anything_else_is_no_duration(text: str) -> None:
    assert parse_duration_ms(text) is None


@given(st.integers(min_value=1, max_value=FOR_EVER_DAYS * DAY_MS - 1))
def test_every_number_of_milliseconds_survives_being_written_out(total_ms: int) -> None:
    days, rest_ms = divmod(total_ms, DAY_MS)
    seconds, fraction_ms = divmod(rest_ms, 1_000)
    assert parse_duration_ms(f"P{days}DT{seconds}.{fraction_ms:03}S") == total_ms
