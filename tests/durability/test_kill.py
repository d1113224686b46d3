"""`kill -9` under load: nothing acknowledged is lost, nothing completed comes back. `make killtest` does it longer."""

import os
from pathlib import Path

import pytest

from tests.tools import killing
from tests.tools.syncshim import SyncShim

KILLS = 20
RESENDING_KILLS = 3


@pytest.fixture
def lingering(shim: SyncShim) -> SyncShim:
    """The disk has what was written some time before it says so: most kills come between storing and answering."""
    shim.set(delay_ms=30)
    return shim


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


@pytest.mark.timeout(300)
@pytest.mark.contract("H15")
def test_sends_of_unknown_outcome_are_sent_again_and_each_message_is_there_once(
    tmp_path: Path, lingering: SyncShim
) -> None:
    seed = int.from_bytes(os.urandom(4))
    report = killing.run(tmp_path, RESENDING_KILLS, seed=seed, resends=True, detects_duplicates=True, env=lingering.env)
    print(report.summary())
    assert report.verdict.is_clean, (seed, report.summary())
    assert report.verdict.unknown_sends == 0, "every sender heard in the end that its message is stored"
    assert report.verdict.sent_again > 10 * RESENDING_KILLS, "there was something to recognise"
    assert report.verdict.received == report.verdict.acknowledged


@pytest.mark.timeout(300)
def test_without_duplicate_detection_what_is_sent_again_is_there_twice(tmp_path: Path, lingering: SyncShim) -> None:
    """The negative control. A kill must fall between a sync and its answer, so a few are tried."""
    for seed in range(1, 6):
        directory = tmp_path / str(seed)
        directory.mkdir()
        report = killing.run(directory, 1, seed=seed, resends=True, env=lingering.env)
        if report.verdict.duplicated:
            return
    raise AssertionError("five kills, and nothing that was sent again was there twice")


def test_the_verdict_over_a_broker_that_forgets_is_not_clean(tmp_path: Path) -> None:
    report = killing.run(tmp_path, kills=2, seed=1, is_forgetful=True)
    assert report.verdict.lost
