"""Power cuts under load: nothing acknowledged is lost, nothing completed comes back. `make powercut` does it longer."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
TOOL = ROOT / "tools" / "powercut.py"
CUTS = 2  # the first into the first start, the second under load


def command(out: Path, *more: str) -> list[str]:
    return [sys.executable, str(TOOL), "--file-systems", "ext4", "--out", str(out), *more]


def skip_where_power_cannot_be_cut(said: str) -> None:
    if "power cannot be cut here" in said:
        pytest.skip(said.strip().splitlines()[-1])


@pytest.fixture(scope="module")
def evidence(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One run for all tests here; it tries the cut itself out first."""
    out = tmp_path_factory.mktemp("powercut") / "powercut.json"
    done = subprocess.run(
        command(out, "--cuts", str(CUTS)), capture_output=True, text=True, timeout=120, check=False, cwd=ROOT
    )
    skip_where_power_cannot_be_cut(done.stdout)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    facts: dict[str, Any] = json.loads(out.read_text())
    return facts


def test_power_cuts_under_load_lose_nothing_and_bring_nothing_back(evidence: dict[str, Any]) -> None:
    assert evidence["cuts"] == CUTS
    assert evidence["acknowledged"] > 100, "the cut came under load"
    assert evidence["completed"] > 100, "on both sides"
    forbidden = ("lost", "resurrected", "invented", "damaged", "sequence_numbers_reused", "store_errors")
    for report in evidence["file_systems"]:
        assert {name: report[name] for name in forbidden} == dict.fromkeys(forbidden, 0), report


def test_a_broker_that_does_not_wait_for_its_disk_is_found_out(evidence: dict[str, Any]) -> None:
    (control,) = evidence["negative_control"]["file_systems"]
    assert control["lost"] > 0
    assert control["store_errors"] > 0, "a sequence number that a client has seen is forgotten"


def test_a_tool_that_is_killed_leaves_no_process_mount_or_loop_device(tmp_path: Path) -> None:
    process = subprocess.Popen(
        command(tmp_path / "out.json"),
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if "seed" not in line:
        process.wait(30)
        skip_where_power_cannot_be_cut(line + process.stdout.read())
    deadline = time.monotonic() + 30
    while not traces_of(tmp_path):
        assert time.monotonic() < deadline, "it never mounted its disk"
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    process.stdout.close()
    while found := traces_of(tmp_path):
        assert time.monotonic() < deadline, found
        time.sleep(0.02)


def traces_of(directory: Path) -> list[str]:
    """Loop devices on files of this directory, and processes that name it."""
    devices = [path for path in Path("/sys/block").glob("loop*/loop/backing_file") if str(directory) in _text(path)]
    lines = [path for path in Path("/proc").glob("[0-9]*/cmdline") if f"{directory}/spillway-" in _text(path)]
    return [str(path) for path in (*devices, *lines)]


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
