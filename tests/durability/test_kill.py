"""`kill -9` under load: nothing acknowledged is lost, nothing completed comes back. `make killtest` does it longer."""

import os
from pathlib import Path

import pytest

from tests.tools import killing

KILLS = 20


@pytest.mark.timeout(300)
@pytest.mark.contract("H8")
def test_twenty_kills_under_load_lose_nothing_and_bring_nothing_back(tmp_path: Path) -> None:
    seed = int.from_bytes(os.urandom(4))
    report = killing.run(tmp_path, KILLS, seed=seed)
    print(report.summary())
    assert report.kills >= KILLS
    assert report.verdict.is_clean, (seed, report.summary())
    assert report.verdict.acknowledged > 10 * KILLS, "the kills came under load"
    assert report.verdict.completed > 10 * KILLS, "on both sides"


def test_the_verdict_over_a_broker_that_forgets_is_not_clean(tmp_path: Path) -> None:
    report = killing.run(tmp_path, kills=2, seed=1, is_forgetful=True)
    assert report.verdict.lost
