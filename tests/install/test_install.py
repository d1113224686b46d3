"""What a user gets by `pip install`: an empty environment, pip's own isolated build, packages from the index by name.

One build, which takes a minute or two, shows both ways: an sdist is made of the checkout as it is, unpacked, and
installed by a plain `pip install .` in it, which is also what pip does with an sdist.
"""

import json
import os
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import pytest

from tests.pytest_plugin.samples import CAPLOG_SAMPLE

ROOT = Path(__file__).resolve().parent.parent.parent
LEFT_BY_TOOLS = {"__pycache__", "node_modules", "spillway-data"}
BUILD_TIMEOUT_S = 600


def environment() -> dict[str, str]:
    """Of a user who has set nothing, but for where packages come from."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "SPILLWAY_COMPILE", "VIRTUAL_ENV")
    }


def run(line: list[str | Path], cwd: Path, timeout_s: int = 60) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        line, cwd=cwd, env=environment(), capture_output=True, text=True, check=False, timeout=timeout_s
    )
    assert done.returncode == 0, f"{line}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done


def make_sdist(into: Path) -> Path:
    code = f"import setuptools.build_meta as backend; backend.build_sdist({str(into)!r})"
    run([sys.executable, "-c", code], ROOT)
    (archive,) = into.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        files.extractall(into, filter="data")
    return into / archive.name.removesuffix(".tar.gz")


def files_of(*under: str) -> set[str]:
    """What belongs to the project, by its path in the checkout, without what tools leave there."""
    found = (path for top in under for path in (ROOT / top).rglob("*") if path.is_file())
    names = (path.relative_to(ROOT) for path in found)
    return {
        str(name)
        for name in names
        if not LEFT_BY_TOOLS.intersection(name.parts) and not name.match("*.egg-info/*") and name.suffix != ".so"
    }


def test_an_sdist_is_the_whole_project(tmp_path: Path) -> None:
    unpacked = make_sdist(tmp_path)
    packed = {str(path.relative_to(unpacked)) for path in unpacked.rglob("*") if path.is_file()}
    assert files_of(".ci", "bench", "docs", "examples", "src", "tests", "tools") - packed == set()
    assert {"CHANGELOG.md", "LICENSE", "Makefile", "README.md", "pyproject.toml", "setup.py"} - packed == set()
    assert [name for name in packed if "node_modules" in name or name.endswith((".pyc", ".so"))] == []


@pytest.mark.timeout(BUILD_TIMEOUT_S + 120)
def test_pip_install_in_an_empty_environment_gives_a_compiled_broker_that_serves(tmp_path: Path) -> None:
    unpacked = make_sdist(tmp_path)
    venv.create(tmp_path / "venv", with_pip=True)
    binaries = tmp_path / "venv" / "bin"
    run([binaries / "pip", "install", "--disable-pip-version-check", "."], unpacked, BUILD_TIMEOUT_S)

    facts = json.loads(run([binaries / "spillway", "version", "--json"], tmp_path).stdout)
    assert facts["not_compiled_because"] == ""
    assert facts["hot_rooms"] == "compiled"
    assert "build: compiled" in run([binaries / "spillway", "version"], tmp_path).stdout.splitlines()
    assert facts["event_loop"].startswith("uvloop "), "where it has a wheel, as here, it comes along"

    code = "import spillway, pathlib; print(pathlib.Path(spillway.__file__).parent.parent)"
    installed = Path(run([binaries / "python", "-c", code], tmp_path).stdout.strip())
    assert installed.is_relative_to(tmp_path)
    for name in files_of("src"):
        assert (installed / name.removeprefix("src/")).read_bytes() == (ROOT / name).read_bytes()

    audit = run([binaries / "spillway", "demo", "--messages", "100"], tmp_path, timeout_s=120)
    assert audit.stdout.endswith("nothing acknowledged was lost, nothing completed came back\n")
    serve_and_stop(binaries / "spillway", tmp_path)
    for wanted in ("pytest>=8.3,<9", "pytest>=9,<10"):
        run([binaries / "pip", "install", "--disable-pip-version-check", wanted], tmp_path, timeout_s=120)
        (tmp_path / "test_sample.py").write_text(CAPLOG_SAMPLE, encoding="utf-8")
        sample = run([binaries / "python", "-m", "pytest", "-p", "no:cacheprovider", "test_sample.py"], tmp_path)
        assert " 2 passed in " in sample.stdout


def serve_and_stop(program: Path, cwd: Path) -> None:
    process = subprocess.Popen(
        [program, "serve", "--dev", "--memory", "--json", "--namespace", "ns=0", "--queue", "orders"],
        cwd=cwd,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert (ready["ready"], ready["not_compiled_because"]) == (True, "")
    finally:
        process.terminate()
        _, said = process.communicate(timeout=30)
    assert process.returncode == 0, said
    assert f"ready: ns={ready['namespaces'][0]['port']}; compiled" in said
