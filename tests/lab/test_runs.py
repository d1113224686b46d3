"""The lab itself: two brokers, five clients, an outage, and what the verdict says about it. All of it real."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

MESSAGES = 20_000
KEYS = [
    "scenario", "sent", "acknowledged", "diverted", "syphoned", "delivered", "duplicated", "lost", "out_of_order",
    "failover_s", "return_s", "pings", "operations",
]  # fmt: skip


def spillway_lab(*arguments: str) -> "subprocess.CompletedProcess[str]":
    line = [sys.executable, "-m", "spillway", "lab", *arguments]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=280)


def last_line(done: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def left_behind(directory: Path) -> list[str]:
    """Processes that have to do with this directory."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(directory) in line and path.parent.name != str(os.getpid()):
            found.append(line)
    return found


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("scenario", "size"), [("kill", 200), ("freeze", 6_000), ("disabled-entity", 200)])
def test_an_outage_in_the_middle_loses_nothing_and_no_caller_hears_of_it(
    scenario: str, size: int, tmp_path: Path
) -> None:
    report, kept = tmp_path / "report.html", tmp_path / "kept"
    files = ("--report", str(report), "--keep", str(kept))
    options = ("--syphon", "process", "--messages", str(MESSAGES), "--json", *files)
    done = spillway_lab("--scenario", scenario, "--size", str(size), *options)
    assert done.returncode == 0, done.stderr
    found = last_line(done)
    assert list(found) == KEYS
    assert found["scenario"] == scenario
    assert found["sent"] == found["acknowledged"] == found["delivered"] == MESSAGES
    assert (found["lost"], found["duplicated"]) == (0, 0)
    judged = json.loads((kept / scenario / "verdict.json").read_text())
    assert (judged["problems"], judged["failed_attempts"], judged["false_acknowledgements"]) == ([], 0, 0)
    assert found["diverted"] >= 0.3 * MESSAGES
    assert found["syphoned"] >= found["diverted"]
    assert found["failover_s"] > 0
    assert found["return_s"] is not None
    assert found["pings"] >= 2
    assert found["operations"]["send"] >= MESSAGES + found["diverted"]
    assert "Nothing was lost." in report.read_text(encoding="utf-8")
    assert left_behind(kept) == []


@pytest.mark.timeout(300)
def test_a_planted_lie_ends_with_status_1(tmp_path: Path) -> None:
    done = spillway_lab("--syphon", "process", "--messages", "1000", "--break", "ack-before-send", "--json")
    assert done.returncode == 1, done.stderr
    found = last_line(done)
    assert (found["acknowledged"], found["lost"], found["delivered"]) == (1_000, 10, 990)
    problem = "kill: 10 acknowledged messages are nowhere, such as producer0-107, producer0-207, producer0-307"
    assert problem in done.stderr.splitlines()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_lab_that_is_interrupted_leaves_nothing_running(number: int, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    line = [sys.executable, "-m", "spillway", "lab", "--syphon", "process", "--messages", "100000"]
    line += ["--keep", str(kept)]
    with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as lab:
        assert lab.stderr is not None
        for said in lab.stderr:
            if "all is well" in said:
                break
        assert len(left_behind(kept)) >= 7
        lab.send_signal(number)
        assert lab.wait(30) == (130 if number == signal.SIGINT else -signal.SIGKILL)
    deadline_s = time.monotonic() + 20
    while left_behind(kept):
        assert time.monotonic() < deadline_s, left_behind(kept)
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--scenario", "earthquake"), "--scenario earthquake: must be all, random or one of kill, freeze, refuse"),
        (("--break", "promises"), "--break promises: must be ack-before-send"),
        (("--syphon", "hose"), "--syphon hose: must be spark or process"),
        (("--messages", "999"), "'--messages'"),
        (("--messages", "many"), "'--messages'"),
        (("--rate", "-1"), "'--rate'"),
        (("--rate", "nan"), "--rate"),
        (("--size", "0"), "'--size'"),
        (("--report", "/no/such/directory/report.html"), "its directory is not there, or cannot be written to"),
        (("--report", "/"), "--report /: is a directory; name a file"),
        (("--keep", "/"), "--keep /: exists already; name a directory that does not"),
    ],
)
def test_a_wrong_option_is_one_line_and_status_2_and_nothing_is_started(arguments: tuple[str, ...], words: str) -> None:
    done = spillway_lab(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("spillway: ") and words in line
