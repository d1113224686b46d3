"""How clients of the lab end, and that the lab knows."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from spillway.lab import run
from spillway.lab.guard import Guard
from spillway.lab.histories import UNCLEAN, read_lines
from spillway.lab.processes import Client
from spillway.lab.run import Lab, Settings
from spillway.lab.scenarios import scenario_of

READY = "import sys\nprint('ready', flush=True)\nsys.stdin.readline()\n"
IN_PEACE = READY
CRASHES = READY + "raise RuntimeError('the lock is gone')\n"
HANGS = READY + "import time\ntime.sleep(600)\n"


@pytest.fixture
def guard() -> Iterator[Guard]:
    with Guard() as guard:
        yield guard


def client_of(program: str, name: str, directory: Path, guard: Guard, monkeypatch: pytest.MonkeyPatch) -> Client:
    (directory / f"{name}_program.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(directory))
    client = Client("none", {"name": name}, directory, guard)
    client.arguments = [f"{name}_program"]
    client.spawn()
    client.wait_ready()
    return client


def test_a_client_that_crashes_or_hangs_at_its_end_is_written_down_with_the_reason(
    tmp_path: Path, guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "END_S", 1.0)
    lab = Lab(scenario_of("busy"), Settings(1, 0, 200), tmp_path, guard, lambda progress: None)
    programs = {"good": IN_PEACE, "bad": CRASHES, "stuck": HANGS}
    lab.clients = [client_of(text, name, tmp_path, guard, monkeypatch) for name, text in programs.items()]
    lab._stop_clients()
    for client in lab.clients:
        client.end()
    told = [line["text"] for line in read_lines(tmp_path) if line["op"] == UNCLEAN]
    assert told == [
        "bad ended with status 1: RuntimeError: the lock is gone",
        "stuck did not end within 1 s: it wrote nothing",
    ]
