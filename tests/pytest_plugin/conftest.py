"""Runs of pytest in processes of their own, where the plugin is found as it is when Spillway is installed."""

import importlib.metadata
import os
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from spillway.pytest_plugin import LocalNamespace
from tests.tools.broker_process import PACKAGE_PARENT

ROOT = Path(__file__).resolve().parent.parent.parent
RunPytest = Callable[..., pytest.RunResult]
PLUGIN = "spillway.pytest_plugin.plugin"
# Hypothesis is imported for its summary whether it is used or not, which takes longer than all else.
PLAIN = (
    *("-p", "no:cacheprovider", "-p", "no:hypothesispytest"),
    *("-o", "asyncio_mode=strict", "-o", "asyncio_default_fixture_loop_scope=function"),
)
IS_INSTALLED = any(found.name == "spillway" for found in importlib.metadata.entry_points(group="pytest11"))


def install_entry_points(site: Path) -> None:
    """What an installation writes of pyproject.toml, unless this environment has it."""
    if IS_INSTALLED:
        return
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    about = site / "spillway_entry_points-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: spillway-entry-points\nVersion: 1\n")
    lines = [f"{name} = {target}" for name, target in project["entry-points"]["pytest11"].items()]
    (about / "entry_points.txt").write_text("\n".join(["[pytest11]", *lines, ""]))


@pytest.fixture
def run_here(pytester: pytest.Pytester) -> RunPytest:
    """Write these files and run pytest on them, in this process: that is quicker.

    What such a run imports first is forgotten behind it, and cryptography cannot be imported twice.
    """
    with LocalNamespace() as namespace, namespace.administration():
        pass

    def run(*arguments: str, **files: str) -> pytest.RunResult:
        pytester.makepyfile(**files)
        given = [] if IS_INSTALLED else ["-p", PLUGIN]
        return pytester.runpytest_inprocess(*given, *PLAIN, *arguments)

    return run


@pytest.fixture
def run_pytest(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> RunPytest:
    """Write these files and run pytest on them, in another process."""
    site = pytester.mkdir("site")
    install_entry_points(site)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(PACKAGE_PARENT), str(site)]))

    def run(*arguments: str, **files: str) -> pytest.RunResult:
        pytester.makepyfile(**files)
        return pytester.runpytest_subprocess(*PLAIN, *arguments)

    return run
