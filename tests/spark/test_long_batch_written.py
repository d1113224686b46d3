"""What `make long-batch` writes down counts as shown only when all of it is so."""

from typing import Any

import pytest

from tools.long_batch import problems_of

SHOWN: dict[str, Any] = {
    "sent": 500,
    "messages": 500,
    "seconds": 601.2,
    "settled": 500,
    "lost": 0,
    "deliveries": {"1": 500},
    "received_by_another": 0,
    "left": 0,
    "dead_letters": 0,
    "of_them_alive_when_settling": 0,
    "driver_status": 0,
    "keepers": 1,
    "jvm_ended": True,
    "keeper_ended": True,
}


def test_a_run_in_which_all_is_well_has_no_problems() -> None:
    assert problems_of(SHOWN, 600.0) == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"settled": 499, "lost": 1}, ["settled is 499, not 500", "lost is 1, not 0"]),
        ({"deliveries": {"1": 499, "2": 1}}, ["deliveries is {'1': 499, '2': 1}, not {'1': 500}"]),
        ({"received_by_another": 3}, ["received_by_another is 3, not 0"]),
        ({"of_them_alive_when_settling": 1}, ["of_them_alive_when_settling is 1, not 0"]),
        ({"keeper_ended": False}, ["keeper_ended is False, not True"]),
        ({"seconds": 170.0}, ["the batch took 170.0 s, not 600"]),
    ],
)
def test_what_was_not_shown_is_a_problem(wrong: dict[str, Any], said: list[str]) -> None:
    assert problems_of({**SHOWN, **wrong}, 600.0) == said
