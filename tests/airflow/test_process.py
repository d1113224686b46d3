"""The process of a task of Airflow: its summary, its failures, its end. The operator is run by `make airflow`."""

import sys
import threading
from pathlib import Path

import pytest

from spillway.airflow.process import JobFailed, JobProcess

PROGRAM = """
import json, os, signal, sys, time
assert sys.argv[1:3] == ["pipeline", "capture"] and sys.argv[-1] == "--json", sys.argv
print("capturing", file=sys.stderr, flush=True)
what = sys.argv[3]
if what == "--wait":
    signal.signal(signal.SIGTERM, lambda number, frame: (print(json.dumps({"stopped": True})), sys.exit(0)))
    print("waiting", file=sys.stderr, flush=True)
    time.sleep(60)
if what == "--deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("waiting", file=sys.stderr, flush=True)
    time.sleep(60)
if what == "--good":
    print("a line before it")
    print(json.dumps({"settled": 3, "bus": os.environ["BUS"]}))
    sys.exit(0)
print(f"spillway: {what} is wrong", file=sys.stderr)
sys.exit(int(what.removeprefix("--status=")))
"""


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    return [sys.executable, str(program)]


def test_the_last_line_is_the_summary_and_what_it_says_is_logged(command: list[str]) -> None:
    said: list[str] = []
    job = JobProcess("capture", ["--good"], {"BUS": "a connection string"}, command)
    assert job.run(said.append) == {"settled": 3, "bus": "a connection string"}
    assert said == ["capturing"]
    job.stop()  # it has ended: nothing happens


@pytest.mark.parametrize(("status", "is_to_mend"), [(2, True), (1, False)])
def test_a_failure_has_what_was_said_last_and_whether_a_user_has_to_mend_it(
    command: list[str], status: int, is_to_mend: bool
) -> None:
    with pytest.raises(JobFailed, match=f"pipeline capture: spillway: --status={status} is wrong") as raised:
        JobProcess("capture", [f"--status={status}"], {}, command).run(print)
    assert raised.value.is_to_mend is is_to_mend


def test_a_program_that_is_not_there_is_the_users_to_mend() -> None:
    with pytest.raises(JobFailed, match="/nowhere/spillway cannot be started: No such file") as raised:
        JobProcess("capture", [], {}, ["/nowhere/spillway"]).run(print)
    assert raised.value.is_to_mend


def test_a_job_that_is_stopped_ends_by_itself_and_one_that_does_not_hear_is_killed(command: list[str]) -> None:
    for what in ("--wait", "--deaf"):
        begun = threading.Event()
        job = JobProcess("capture", [what], {}, command)
        stopper = threading.Thread(target=lambda job=job, begun=begun: (begun.wait(30), job.stop(0.5)))
        stopper.start()
        said = lambda line, begun=begun: begun.set() if line == "waiting" else None  # noqa: E731
        if what == "--wait":
            assert job.run(said) == {"stopped": True}
        else:
            with pytest.raises(JobFailed) as raised:
                job.run(said)
            assert raised.value.status == -9
        stopper.join()
