"""One of a thing is not called by its plural."""

import pytest

from spillway.model.texts import count_text


@pytest.mark.parametrize(
    ("count", "noun", "plural", "text"),
    [
        (0, "outage", "", "0 outages"),
        (1, "outage", "", "1 outage"),
        (2, "outage", "", "2 outages"),
        (1_000, "process", "processes", "1,000 processes"),
        (1, "process", "processes", "1 process"),
    ],
)
def test_a_count_is_said_with_its_noun(count: int, noun: str, plural: str, text: str) -> None:
    assert count_text(count, noun, plural) == text
