"""The scenarios: which there are, and what each asks of the senders."""

import re
from pathlib import Path

import pytest

from spillway.lab.processes import LabError
from spillway.lab.scenarios import SCENARIOS, scenario_of
from spillway.lab.verdict import FIELDS

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "lab.md"


def test_there_are_nine() -> None:
    assert list(SCENARIOS) == [
        "kill", "freeze", "refuse", "blackhole", "busy", "disabled-entity", "backlog-queue-fails", "flapping",
        "both-down",
    ]  # fmt: skip


def first_column(heading: str) -> list[str]:
    """Of the first table of the guide below it."""
    below = GUIDE.read_text(encoding="utf-8").partition(f"\n{heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `([a-z_-]+)` \|", below, flags=re.MULTILINE)


def test_the_guide_has_each_of_them() -> None:
    assert first_column("## Scenarios") == list(SCENARIOS)


def test_the_guide_has_each_field_of_the_verdict() -> None:
    assert first_column("## The verdict") == list(FIELDS)


@pytest.mark.parametrize("name", list(SCENARIOS))
def test_each_says_what_happens_in_words_without_a_full_stop(name: str) -> None:
    about = scenario_of(name).about
    assert about and about[0].islower() and not about.endswith(".")


def test_all_but_a_busy_primary_divert_and_all_but_two_dead_sides_keep_errors_from_the_caller() -> None:
    assert [name for name in SCENARIOS if not scenario_of(name).diverts] == ["busy"]
    assert [name for name in SCENARIOS if scenario_of(name).pending == "raise"] == ["both-down"]


def test_a_name_that_does_not_exist_is_answered_with_those_that_do() -> None:
    with pytest.raises(LabError, match="no scenario 'earthquake'; there are kill, freeze"):
        scenario_of("earthquake")
