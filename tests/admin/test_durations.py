"""Times, and time spans in error texts, as .NET writes them."""

from spillway.admin.durations import moment_text, second_text, time_span_text
from spillway.model.durations import DAY_MS


def test_how_they_are_shown() -> None:
    assert time_span_text(25 * DAY_MS) == "25.00:00:00"
    assert time_span_text(20_000) == "00:00:20"
    assert moment_text(1_700_000_000_120) == "2023-11-14T22:13:20.12Z"
    assert moment_text(1_700_000_000_000) == "2023-11-14T22:13:20Z"
    assert second_text(1_700_000_000_999) == "2023-11-14T22:13:20Z"
