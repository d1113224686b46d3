"""setup.py on a package of one small room: when it compiles, when it does not, and what it leaves behind.

The whole of spillway takes minutes to compile (test_install.py); what is decided is the same for one module.
"""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
NO_COMPILER = {"CC": "/no/such/cc", "PATH": "/no/such/directory"}
BROKEN_COMPILER = {"CC": "false"}


@dataclass
class Build:
    status: int
    said: str
    wheels: list[Path]

    def names(self) -> list[str]:
        (wheel,) = self.wheels
        return zipfile.ZipFile(wheel).namelist()

    def problem(self) -> str:
        (wheel,) = self.wheels
        problem = json.loads(zipfile.ZipFile(wheel).read("spillway/build.json"))["not_compiled_because"]
        assert isinstance(problem, str)
        return problem

    def is_compiled(self) -> bool:
        return any(name.startswith("spillway/model/words.") and name.endswith(".so") for name in self.names())


@pytest.fixture
def package(tmp_path: Path) -> Path:
    made = tmp_path / "package"
    room = made / "src" / "spillway" / "model"
    room.mkdir(parents=True)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, made / name)
    shutil.copy(ROOT / "src" / "spillway" / "__init__.py", made / "src" / "spillway" / "__init__.py")
    (room / "__init__.py").touch()
    (room / "words.py").write_text("def louder(word: str) -> str:\n    return word.upper()\n", encoding="utf-8")
    return made


def build(package: Path, hook: str = "build_wheel", **env: str) -> Build:
    """As pip builds: by the hook of the build backend, in the package's directory."""
    made = package.parent / "made"
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    code = f"import setuptools.build_meta as backend; backend.{hook}({str(made)!r})"
    clean = {name: value for name, value in os.environ.items() if name not in ("SPILLWAY_COMPILE", "CC", "PYTHONPATH")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=package,
        env={**clean, **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return Build(done.returncode, done.stdout + done.stderr, sorted(made.glob("*.whl")))


def test_where_it_can_be_compiled_it_is(package: Path) -> None:
    built = build(package)
    assert built.status == 0, built.said
    assert built.is_compiled()
    assert built.problem() == ""


@pytest.mark.parametrize("value", ["", "0", "yes"])
def test_without_a_compiler_the_package_says_why_it_is_plain_python(package: Path, value: str) -> None:
    built = build(package, **NO_COMPILER, SPILLWAY_COMPILE=value)
    assert built.status == 0, built.said
    assert not built.is_compiled()
    assert built.problem() == ("SPILLWAY_COMPILE=0" if value == "0" else "no C compiler (/no/such/cc)")


def test_a_type_that_does_not_check_is_named(package: Path) -> None:
    (package / "src" / "spillway" / "model" / "words.py").write_text("import no_such_library\n", encoding="utf-8")
    built = build(package)
    assert built.status == 0, built.said
    assert not built.is_compiled()
    assert built.problem().startswith("mypyc: src/spillway/model/words.py:1: error: Cannot find implementation")


def test_a_compiler_that_fails_leaves_plain_python_with_the_reason(package: Path) -> None:
    built = build(package, **BROKEN_COMPILER)
    assert built.status == 0, built.said
    assert not any(name.endswith(".so") for name in built.names())
    assert built.problem() == "the C compiler: false ended with status 1"


def test_what_an_earlier_build_left_is_not_packed(package: Path) -> None:
    (package / "src" / "spillway" / "model" / "old.py").write_text("", encoding="utf-8")
    assert "spillway/model/old.py" in build(package).names()
    (package / "src" / "spillway" / "model" / "old.py").unlink()
    assert [name for name in build(package).names() if name.startswith("spillway/model/old.")] == []


@pytest.mark.parametrize(
    ("env", "said"),
    [
        (NO_COMPILER, "no C compiler (/no/such/cc)"),
        (BROKEN_COMPILER, "the C compiler: false ended with status 1"),
    ],
)
def test_a_compiled_build_that_was_asked_for_is_not_replaced(package: Path, env: dict[str, str], said: str) -> None:
    built = build(package, **env, SPILLWAY_COMPILE="1")
    assert built.status != 0
    assert built.wheels == []
    assert f"spillway: SPILLWAY_COMPILE=1, but: {said}" in built.said


def test_nor_when_mypyc_refuses(package: Path) -> None:
    (package / "src" / "spillway" / "model" / "words.py").write_text("import no_such_library\n", encoding="utf-8")
    built = build(package, SPILLWAY_COMPILE="1")
    assert built.status != 0
    assert built.wheels == []
    assert "spillway: SPILLWAY_COMPILE=1, but: mypyc: src/spillway/model/words.py:1: error:" in built.said


def test_an_editable_install_says_that_it_is_never_compiled(package: Path) -> None:
    built = build(package, "build_editable", SPILLWAY_COMPILE="1")
    assert built.status != 0
    assert "SPILLWAY_COMPILE=1, but: an editable install is never compiled" in built.said
    assert build(package, "build_editable").status == 0


def test_what_builds_is_what_checks() -> None:
    """The mypy that compiles is of the versions that the hot rooms are checked with; mypyc reads what they import."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    needed = set(project["build-system"]["requires"])
    assert {each for each in project["project"]["optional-dependencies"]["dev"] if each.startswith("mypy")} <= needed
    assert {each for each in project["project"]["dependencies"] if each.startswith("lark")} <= needed
