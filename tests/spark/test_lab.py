"""The outage lab with Spark in it: the backlog comes home through it, and its jobs report on the run."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.lab.test_runs import KEYS, last_line, left_behind, spillway_lab

pytestmark = pytest.mark.spark_processes

MESSAGES = 2_000
ENDING_S = 90  # a Java that is just starting notices when it has started


def test_spark_brings_the_backlog_home_and_its_jobs_report_on_the_outage(tmp_path: Path) -> None:
    report, kept = tmp_path / "outage.html", tmp_path / "kept"
    options = ("--messages", str(MESSAGES), "--rate", "400", "--report", str(report), "--keep", str(kept))
    done = spillway_lab("--syphon", "spark", "--json", *options)
    assert done.returncode == 0, done.stderr
    found = last_line(done)
    assert list(found) == KEYS
    assert found["acknowledged"] == found["delivered"] == MESSAGES
    assert (found["lost"], found["duplicated"]) == (0, 0)
    assert found["syphoned"] >= found["diverted"] >= 0.3 * MESSAGES

    # The bill is of what both brokers counted, the four charges of a diverted message among it.
    cost = json.loads((tmp_path / "outage-cost.json").read_text())
    lines = {line["name"]: line["operations"] for line in cost["by_line"]}
    assert sum(lines.values()) == sum(found["operations"].values())
    assert lines["send_to_backlog"] >= found["diverted"]
    assert lines["receive_from_backlog"] >= found["syphoned"]
    assert lines["send_to_primary"] >= found["diverted"]
    assert lines["ping"] == found["operations"]["ping"]

    # The availability report tells of the same outage, from events alone.
    told = json.loads((tmp_path / "outage-availability.json").read_text())
    assert (told["diverted"], told["syphoned"], told["waiting"]) == (found["diverted"], found["syphoned"], 0)
    assert [outage["end"] for outage in told["outages"]] == ["recovered"] * len(told["outages"])
    assert [row["out_of_order"] for row in told["delivered"]] == [found["out_of_order"]]

    page = report.read_text(encoding="utf-8")
    for job in ("cost", "availability"):
        path = tmp_path / f"outage-{job}.html"
        assert f'href="{path.name}"' in page
        assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
        assert str(path) in done.stderr
    assert left_behind(kept) == []
    assert not (kept / "spark").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_lab_that_is_interrupted_takes_spark_with_it(number: int, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    line = [sys.executable, "-m", "spillway", "lab", "--syphon", "spark", "--messages", "100000", "--keep", str(kept)]
    with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as lab:
        assert lab.stderr is not None
        for said in lab.stderr:
            if "all is well" in said:
                break
        assert any("spark_host" in each for each in left_behind(kept))
        os.kill(lab.pid, number)
        assert lab.wait(30) == (130 if number == signal.SIGINT else -signal.SIGKILL)
    deadline_s = time.monotonic() + ENDING_S
    while left_behind(kept):
        assert time.monotonic() < deadline_s, left_behind(kept)
        time.sleep(0.1)
