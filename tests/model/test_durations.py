"""Durations: the form that ISO 8601 and .NET have, and nothing else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway.model.durations import DAY_MS, FOR_EVER, FOR_EVER_DAYS, parse_duration_ms
from spillway.model.entity import FOR_EVER_MS, duration_text, parse_setting_ms


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("PT1M", 60_000),
        ("PT5S", 5_000),
        ("PT1H30M", 5_400_000),
        ("P1D", DAY_MS),
        ("P7DT0H", 7 * DAY_MS),
        ("P1DT2H3M4.5S", DAY_MS + 7_384_500),
        ("PT0.5S", 500),
        ("PT1.0019S", 1_001),
        ("PT90S", 90_000),
        ("PT0.001S", 1),
        ("P1W", 7 * DAY_MS),
        ("P1Y2M", 425 * DAY_MS),
    ],
)
def test_a_duration_is_read_to_the_millisecond(text: str, duration_ms: int) -> None:
    assert parse_setting_ms(text) == parse_duration_ms(text) == duration_ms
    assert parse_duration_ms(f"-{text}") == -duration_ms


@pytest.mark.parametrize(
    "text",
    [FOR_EVER, "P10675199DT2H48M5.477539S", "P10675199D", "P10675200D", "PT256204799H", "P999999999DT999999999H"],
)
def test_the_longest_durations_mean_for_ever_where_they_are_a_setting(text: str) -> None:
    assert parse_setting_ms(text) == FOR_EVER_MS


@pytest.mark.parametrize(
    "text",
    ["", "P", "PT", "P1DT", "5", "PT5X", "pt5s", "PT5", "P1", "PTM", "PT1M1H", "P1H", "PT1.5M", "PT-5S", "PT1.S"]
    + ["PT.5S", "PT1M ", " PT1M", "PT1M\n", "PT1S1M", "PT1,5S", "1:00:00", "PT٣S", "PT1MPT1M", "PT1M1M", "--PT1M"]
    + ["1M", "PT1", f"PT{'9' * 16}S", f"PT1.{'x'}S"],
)
def test_anything_else_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError):
        parse_duration_ms(text)
    with pytest.raises(ValueError):
        parse_setting_ms(text)


@pytest.mark.parametrize("text", ["PT0S", "P0D", "PT0.0001S", "-PT5S"])
def test_a_setting_is_above_zero(text: str) -> None:
    with pytest.raises(ValueError):
        parse_setting_ms(text)


def test_how_a_setting_is_written() -> None:
    assert duration_text(FOR_EVER_MS) == FOR_EVER
    assert duration_text(DAY_MS) == "P1D"
    assert duration_text(61_500) == "PT1M1.5S"


@given(st.integers(1, FOR_EVER_DAYS * DAY_MS - 1))
def test_what_is_written_is_read_as_it_was(duration_ms: int) -> None:
    assert parse_setting_ms(duration_text(duration_ms)) == duration_ms
    days, rest_ms = divmod(duration_ms, DAY_MS)
    assert parse_setting_ms(f"P{days}DT{rest_ms // 1_000}.{rest_ms % 1_000:03}S") == duration_ms
