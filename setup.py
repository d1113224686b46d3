"""Builds spillway, with its hot rooms compiled by mypyc where that is possible.

`SPILLWAY_COMPILE` decides: `0` never, `1` or the build fails, anything else (also unset) if a C compiler and Python's
headers are there. Everything runs as plain Python too, only slower, so no failure to compile may stop an install that
did not ask for it. Editable installs are never compiled: a stale binary beside an edited source would win.
"""

import os
import shutil
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
HOT_ROOMS = ("model", "amqp", "dialect", "broker")
# int, str and list subclasses with fields of their own: slower compiled than not. The grammar is lark's.
UNCOMPILED = {"src/spillway/amqp/types.py", "src/spillway/broker/filter_grammar.py"}
BUILDS = {"build", "build_ext", "bdist_wheel", "install"}

WANTED = os.environ.get("SPILLWAY_COMPILE", "")
IS_REQUIRED = WANTED == "1"


def say(line: str) -> None:
    print(f"spillway: {line}", file=sys.stderr)


def hot_sources() -> list[str]:
    found = [
        path.relative_to(ROOT).as_posix()
        for room in HOT_ROOMS
        for path in sorted((ROOT / "src" / "spillway" / room).rglob("*.py"))
        if path.name != "__init__.py"
    ]
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
    if not BUILDS.intersection(sys.argv):
        return []
    reason = reason_not_to_compile()
    if reason is not None:
        if IS_REQUIRED:
            raise SystemExit(f"spillway: SPILLWAY_COMPILE=1, but: {reason}")
        say(f"plain Python, not compiled: {reason}")
        return []
    os.chdir(ROOT)
    try:
        from mypyc.build import mypycify

        extensions: list[Any] = mypycify(
            hot_sources(),
            opt_level="2",
            debug_level="0",
            multi_file=True,  # a C file a module: they are compiled side by side, see BuildAllOrNothing
            target_dir="build/mypyc",
            group_name="spillway_hot",
        )
    except (Exception, SystemExit) as error:  # mypyc leaves by SystemExit when a type does not check
        if IS_REQUIRED:
            raise
        say(f"plain Python, not compiled: mypyc: {error}")
        return []
    return extensions


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
        except Exception as error:
            if IS_REQUIRED:
                raise
            say(f"plain Python, not compiled: {error}")
            for output in self.get_outputs():
                Path(output).unlink(missing_ok=True)
            self.extensions: list[Any] = []


if "--can-compile" in sys.argv:  # asked by the Makefile
    raise SystemExit(0 if reason_not_to_compile() is None else 1)

setup(ext_modules=compiled_modules(), cmdclass={"build_ext": BuildAllOrNothing})
