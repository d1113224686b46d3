"""Whatever becomes of the lab, nothing of it stays behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spillway.lab.guard import Guard, clean_up, started_at

LAB = """
import subprocess, sys, time
from pathlib import Path
from spillway.lab.guard import Guard
guard = Guard()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
guard.watch_process(child.pid)
guard.watch_rule(["touch", sys.argv[1] + "/rule-taken-back"])
guard.watch_directory(Path(sys.argv[1]) / "data")
print(child.pid, flush=True)
time.sleep(600)
"""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(holds: "object", timeout_s: float = 20.0) -> None:
    assert callable(holds)
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline_s, "it did not come to be"
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_lab_that_is_killed_leaves_no_process_no_rule_and_no_directory(number: int, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    lab = subprocess.Popen(
        [sys.executable, "-c", LAB, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert lab.stdout is not None
    pid = int(lab.stdout.readline())
    assert is_running(pid)
    lab.send_signal(number)
    lab.wait(20)
    lab.stdout.close()
    until(lambda: not is_running(pid))
    until(lambda: (tmp_path / "rule-taken-back").exists())
    until(lambda: not (tmp_path / "data").exists())


def test_a_frozen_process_is_ended_too(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as child:
        os.kill(child.pid, signal.SIGSTOP)
        with Guard() as guard:
            guard.watch_process(child.pid)
        assert child.wait(20) == -signal.SIGKILL


def test_a_number_that_was_used_again_is_let_alone() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as child:
        clean_up([{"pid": child.pid, "since": "1"}])
        assert child.poll() is None
        clean_up([{"pid": child.pid, "since": started_at(child.pid)}])
        assert child.wait(20) == -signal.SIGKILL


def test_a_rule_that_was_lifted_is_not_lifted_again(tmp_path: Path) -> None:
    one, other = (["touch", str(tmp_path / name)] for name in ("one", "other"))
    with Guard() as guard:
        guard.watch_rule(one)
        guard.watch_rule(other)
        guard.unregister_rule(one)
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
