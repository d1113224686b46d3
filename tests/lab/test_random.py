"""Random plays of the lab: five of them for real, each from its seed.

Shown to the client library of e146c30 they found a bad message that took the backlog from everybody, one that was
acknowledged and never delivered, a restarted primary that looked like an outage, a second outage without a backlog, and
held calls that did not wait (docs/evidence/field-before.json).
"""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

SEEDS = (6, 61, 212, 231, 2682)
AT_A_TIME = 2  # two cores


def play(seed: int, directory: Path) -> dict[str, Any]:
    line = [sys.executable, "-m", "spillway", "lab", "--scenario", "random", "--seed", str(seed), "--json"]
    done = subprocess.run(
        [*line, "--keep", str(directory / str(seed))], capture_output=True, text=True, check=False, timeout=200
    )
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    directory = tmp_path_factory.mktemp("plays")
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        return dict(zip(SEEDS, pool.map(lambda seed: play(seed, directory), SEEDS), strict=True))


@pytest.mark.plays
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
def test_every_invariant_holds_in_a_random_play(played: dict[int, dict[str, Any]], seed: int) -> None:
    found = played[seed]
    assert found["problems"] == []
    assert found["ailments"] != []
    assert found["delivered"] == found["acknowledged"] > 0
