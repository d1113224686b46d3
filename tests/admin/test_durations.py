"""Durations and times as .NET reads and writes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway.admin.durations import (
    DAY_MS,
    FOR_EVER,
    FOR_EVER_DAYS,
    duration_text,
    moment_text,
    parse_duration_ms,
    second_text,
    time_span_text,
)
from spillway.model.entity import FOR_EVER_MS


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("PT1M", 60_000),
        ("PT1H30M", 5_400_000),
        ("P1DT2H3M4.5S", DAY_MS + 7_384_500),
        ("PT0.001S", 1),
        ("P1W", 7 * DAY_MS),
        ("P1Y2M", 425 * DAY_MS),
        (FOR_EVER, FOR_EVER_MS),
        ("P10675199DT2H48M5.477539S", FOR_EVER_MS),
        ("P99999999D", FOR_EVER_MS),
    ],
)
def test_what_clients_write_is_read(text: str, expected_ms: int) -> None:
    assert parse_duration_ms(text) == expected_ms


@pytest.mark.parametrize(
    "text",
    ["", "P", "PT", "1M", "P1", "PT1", "PT1X", "PTM", "PT1M1H", "P1H", "PT1.5M", "PT1.S", "-PT1M", "PT-1M", "PT0S"]
    + ["PT\u0661M", "P1DT", " PT1M", "PT1MPT1M", "PT1M1M", f"PT{'9' * 16}S"],
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_duration_ms(text)


@given(st.integers(1, FOR_EVER_DAYS * DAY_MS - 1))
def test_what_is_written_is_read_as_it_was(duration_ms: int) -> None:
    assert parse_duration_ms(duration_text(duration_ms)) == duration_ms


def test_how_they_are_shown() -> None:
    assert duration_text(FOR_EVER_MS) == FOR_EVER
    assert duration_text(DAY_MS) == "P1D"
    assert duration_text(61_500) == "PT1M1.5S"
    assert time_span_text(25 * DAY_MS) == "25.00:00:00"
    assert time_span_text(20_000) == "00:00:20"
    assert moment_text(1_700_000_000_120) == "2023-11-14T22:13:20.12Z"
    assert moment_text(1_700_000_000_000) == "2023-11-14T22:13:20Z"
    assert second_text(1_700_000_000_999) == "2023-11-14T22:13:20Z"
