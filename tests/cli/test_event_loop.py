"""The loop that `spillway serve` runs on: uvloop where it is there, asyncio where not, and what is said of it."""

import asyncio
import json
import os
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
import uvloop
from packaging.requirements import Requirement

from spillway.cli.errors import UsageError
from spillway.cli.serve import check_loop
from spillway.server.event_loop import LoopMissing, choose_loop
from tests.cli.test_serve import assert_one_line, receive, send
from tests.tools.broker_process import PACKAGE_PARENT, BrokerProcess

ROOT = Path(__file__).resolve().parents[2]
MISSING = "raise ModuleNotFoundError(\"No module named 'uvloop'\", name='uvloop')\n"
BROKEN = "raise ImportError('uvloop/loop.so: undefined symbol:\\n  PyWhatever')\n"


def test_uvloop_is_the_loop_where_it_can_be_imported() -> None:
    for wanted in ("auto", "uvloop"):
        chosen = choose_loop(wanted)
        assert (chosen.name, chosen.because) == ("uvloop", "")
        assert chosen.text == f"uvloop {version('uvloop')}"
        loop = chosen.new()
        assert isinstance(loop, uvloop.Loop)
        loop.close()


def test_asyncio_is_the_loop_when_it_is_asked_for() -> None:
    chosen = choose_loop("asyncio")
    assert (chosen.name, chosen.text) == ("asyncio", "asyncio, as --loop asyncio asks for")
    loop = chosen.new()
    assert isinstance(loop, asyncio.SelectorEventLoop)
    loop.close()


def test_without_uvloop_auto_is_asyncio_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert choose_loop().text == "asyncio, uvloop is not installed"
    with pytest.raises(LoopMissing, match="^uvloop is not installed$"):
        choose_loop("uvloop")
    with pytest.raises(UsageError, match="--loop uvloop: uvloop is not installed; install it"):
        check_loop("uvloop")


def without_uvloop(directory: Path, text: str) -> dict[str, str]:
    """The environment of a process whose `import uvloop` ends like this."""
    directory.mkdir()
    (directory / "uvloop.py").write_text(text)
    return {"PYTHONPATH": os.pathsep.join((str(PACKAGE_PARENT), str(directory)))}


def test_a_broken_uvloop_stops_nobody(tmp_path: Path) -> None:
    environment = {**os.environ, **without_uvloop(tmp_path / "broken", BROKEN)}
    command = [sys.executable, "-m", "spillway", "version", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    said = json.loads(done.stdout)["event_loop"]
    assert said == "asyncio, uvloop cannot be imported (uvloop/loop.so: undefined symbol: PyWhatever)"
    assert done.stderr == ""


def test_a_broker_without_uvloop_serves_and_says_so_in_one_line(tmp_path: Path) -> None:
    environment = without_uvloop(tmp_path / "missing", MISSING)
    with BrokerProcess(tmp_path / "data", queues=["q"], options=["--loop", "auto"], env=environment) as broker:
        send(broker.connection_string, "q", "hello")
        assert receive(broker.connection_string, "q") == ["hello"]
        assert broker.stop() == 0
    (line,) = [line for line in broker.stderr.splitlines() if "uvloop" in line]
    assert line.endswith("; event loop: asyncio, uvloop is not installed")
    assert " INFO " in line, "nothing is wrong, so it is no warning"


@pytest.mark.parametrize(
    ("option", "said"),
    [("auto", f"uvloop {version('uvloop')}"), ("asyncio", "asyncio, as --loop asyncio asks for")],
)
def test_the_ready_line_says_which_loop_it_runs_on(tmp_path: Path, option: str, said: str) -> None:
    with BrokerProcess(tmp_path / "data", queues=["q"], options=["--loop", option]) as broker:
        send(broker.connection_string, "q", "hello")
        assert receive(broker.connection_string, "q") == ["hello"]
        assert broker.event_loop == said.split()[0].rstrip(",")
        assert broker.stop() == 0
    (ready,) = [line for line in broker.stderr.splitlines() if " ready: " in line]
    assert ready.endswith(f"; event loop: {said}")


def test_uvloop_asked_for_by_name_and_missing_is_one_line_and_status_2(tmp_path: Path) -> None:
    environment = {**os.environ, **without_uvloop(tmp_path / "missing", MISSING)}
    command = [sys.executable, "-m", "spillway", "serve", "--memory", "--namespace", "one=0", "--loop", "uvloop"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert_one_line(done, 2, "--loop uvloop: uvloop is not installed; install it .pip install uvloop., or leave the")


# -- the wheel brings it ----------------------------------------------------------------------------------------------


def requirement() -> Requirement:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (found,) = [Requirement(each) for each in project["dependencies"] if each.startswith("uvloop")]
    return found


@pytest.mark.parametrize(
    ("platform", "machine", "python", "implementation", "is_brought"),
    [
        ("linux", "x86_64", "3.11", "CPython", True),
        ("linux", "aarch64", "3.14", "CPython", True),
        ("darwin", "arm64", "3.13", "CPython", True),
        ("darwin", "x86_64", "3.12", "CPython", True),
        ("win32", "AMD64", "3.12", "CPython", False),
        ("linux", "x86_64", "3.11", "PyPy", False),
        ("linux", "ppc64le", "3.12", "CPython", False),
        ("linux", "x86_64", "3.15", "CPython", False),
    ],
)
def test_the_wheel_asks_for_uvloop_where_there_is_a_wheel_of_it(
    platform: str, machine: str, python: str, implementation: str, is_brought: bool
) -> None:
    """Elsewhere pip would compile it, and an installation would fail for a dependency that nobody needs."""
    marker = requirement().marker
    assert marker is not None
    environment = {
        "sys_platform": platform,
        "platform_machine": machine,
        "python_version": python,
        "platform_python_implementation": implementation,
    }
    assert marker.evaluate(environment) is is_brought
