"""Builds spillway, with its hot rooms compiled by mypyc where that is possible.

`SPILLWAY_COMPILE` decides: `0` never, `1` or the build fails, anything else (also unset) if a C compiler and Python's
headers are there. Everything runs as plain Python too, only slower, so no failure to compile may stop an install that
did not ask for it. pip shows nothing of a build that succeeds, so the reason goes into the package (`build.json`) for
`spillway version` and `spillway serve`. With `1` no failure is passed over, whatever it is.

Editable installs are never compiled: a stale binary beside an edited source would win.
"""

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
HOT_ROOMS = ("model", "amqp", "dialect", "broker")
# Of the store, what is done for every message: encoding turns, netting them, and rows into messages.
HOT_MODULES = ("store/answers.py", "store/batch.py", "store/changes.py", "store/rows.py", "store/turn_codec.py")
# int, str and list subclasses with fields of their own: slower compiled than not. The grammar is lark's.
UNCOMPILED = {"src/spillway/amqp/types.py", "src/spillway/broker/rules/grammar.py"}
BUILDS = {"build", "build_ext", "bdist_wheel", "install"}
EDITABLE = {"editable_wheel", "develop"}
BUILD_FILE = Path("spillway", "build.json")  # read by spillway.cli.version

WANTED = os.environ.get("SPILLWAY_COMPILE", "")
IS_REQUIRED = WANTED == "1"


class Build(build):  # type: ignore[misc,unused-ignore]
    """A build starts from nothing, for what a former one left would be packed too, and ends with a word on itself."""

    problem = ""  # why this build is not compiled

    def run(self) -> None:
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()
        path = Path(self.build_lib) / BUILD_FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"not_compiled_because": Build.problem}) + "\n", encoding="utf-8")


def fall_back(problem: str) -> None:
    """Plain Python, and why; or no build at all, if a compiled one was asked for."""
    problem = " ".join(problem.split())
    if IS_REQUIRED:
        raise SystemExit(f"spillway: SPILLWAY_COMPILE=1, but: {problem}")
    print(f"spillway: plain Python, not compiled: {problem}", file=sys.stderr)
    Build.problem = problem


def hot_sources() -> list[str]:
    found = [
        path.relative_to(ROOT).as_posix()
        for room in HOT_ROOMS
        for path in sorted((ROOT / "src" / "spillway" / room).rglob("*.py"))
        if path.name != "__init__.py"
    ]
    found += [f"src/spillway/{name}" for name in HOT_MODULES if (ROOT / "src" / "spillway" / name).is_file()]
    return [path for path in found if path not in UNCOMPILED]


def reason_not_to_compile() -> str | None:
    if WANTED == "0":
        return "SPILLWAY_COMPILE=0"
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None and shutil.which("cc") is None:
        return f"no C compiler ({compiler})"
    if not Path(sysconfig.get_paths()["include"], "Python.h").is_file():
        return "Python's headers are not installed"
    return None


def compiled_modules() -> list[Any]:
    """The extension modules to build: all hot rooms as one unit, or none, with the reason said in one line."""
    if EDITABLE.intersection(sys.argv) and IS_REQUIRED:
        fall_back("an editable install is never compiled")
    if not BUILDS.intersection(sys.argv):
        return []
    reason = reason_not_to_compile()
    if reason is not None:
        fall_back(reason)
        return []
    os.chdir(ROOT)
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            return translated()
    except (Exception, SystemExit) as error:  # mypyc leaves by SystemExit when a type does not check
        sys.stderr.write(said.getvalue())
        fall_back(f"mypyc: {first_error(said.getvalue()) or str(error) or type(error).__name__}")
        return []


def translated() -> list[Any]:
    from mypyc.build import mypycify

    extensions: list[Any] = mypycify(
        hot_sources(),
        opt_level="2",
        debug_level="0",
        multi_file=True,  # a C file a module: they are compiled side by side, see BuildAllOrNothing
        target_dir="build/mypyc",
        group_name="spillway_hot",
    )
    return extensions


def first_error(text: str) -> str | None:
    return next((line for line in text.splitlines() if "error:" in line), None)


def compiler_text(error: BaseException) -> str:
    """Without the fifty options of the command line. What the compiler said is above, where pip shows it."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, subprocess.CalledProcessError):
            return f"{Path(cause.cmd[0]).name} ended with status {cause.returncode}"
        cause = cause.__cause__ or cause.__context__
    return str(error) or type(error).__name__


class BuildAllOrNothing(build_ext):  # type: ignore[misc,unused-ignore]
    """One module of a mypyc unit without the others cannot be imported: when one fails, none is kept."""

    def build_extensions(self) -> None:
        """setuptools compiles the C files of an extension one after the other; ours are many."""
        compile_all = self.compiler.compile

        def compile_side_by_side(sources: list[str], *args: Any, **options: Any) -> list[str]:
            with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
                made = pool.map(lambda source: compile_all([source], *args, **options), sources)
                return [built for objects in made for built in objects]

        self.compiler.compile = compile_side_by_side
        super().build_extensions()

    def run(self) -> None:
        try:
            super().run()
        except (Exception, SystemExit) as error:
            fall_back(f"the C compiler: {compiler_text(error)}")
            for output in self.get_outputs():
                Path(output).unlink(missing_ok=True)
            self.extensions: list[Any] = []


if "--can-compile" in sys.argv:  # asked by the Makefile
    raise SystemExit(0 if reason_not_to_compile() is None else 1)

setup(ext_modules=compiled_modules(), cmdclass={"build": Build, "build_ext": BuildAllOrNothing})
