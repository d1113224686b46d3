"""The programs of docs/testing.md, run as they stand there."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.pytest_plugin.conftest import ROOT, RunPytest
from tests.tools import js
from tests.tools.broker_process import PACKAGE_PARENT

pytest_plugins = ["pytester"]

GUIDE = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")


def programs(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, flags=re.DOTALL)


def test_the_python_of_the_guide_passes(run_pytest: RunPytest) -> None:
    files = {f"test_{number}": program for number, program in enumerate(programs("python"))}
    tests = sum(len(re.findall(r"def test_", program)) for program in files.values())
    assert (len(files), tests) == (4, 5)
    run_pytest("-W", "error::pytest.PytestUnhandledThreadExceptionWarning", **files).assert_outcomes(passed=tests)


def test_the_javascript_of_the_guide_passes(tmp_path: Path) -> None:
    (program,) = programs("javascript")
    js.install()
    (tmp_path / "orders.test.mjs").write_text(program)
    (tmp_path / "node_modules").symlink_to(js.DIRECTORY / "node_modules")
    command = tmp_path / "bin" / "spillway"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m spillway "$@"\n')
    command.chmod(0o755)
    done = subprocess.run(
        [*js.node_command(), "--test", "orders.test.mjs"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(PACKAGE_PARENT),
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\S* ?pass 1$", done.stdout, flags=re.MULTILINE), done.stdout
