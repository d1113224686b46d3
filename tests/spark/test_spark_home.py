"""A home for Spark whose Python processes need not compile PySpark anew."""

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from spillway.spark.platform import spark_home as home_module
from spillway.spark.platform.spark_home import PACKED, light_home, main

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PACKAGE = Path(pyspark.__file__).parent


def a_package(directory: Path) -> Path:
    """Looks like a PySpark from pip."""
    for name in ("bin/spark-submit", "jars/spark.jar", "python/lib/py4j-src.zip", f"python/lib/{PACKED}"):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(name)
    return directory


def test_a_home_has_all_of_the_package_but_its_packed_copy(tmp_path: Path) -> None:
    package = a_package(tmp_path / "package")
    home = light_home(package, tmp_path / "cache" / "home")
    files = sorted(str(path.relative_to(home)) for path in home.rglob("*") if path.is_file())
    assert files == ["python/lib/py4j-src.zip"]  # and what the links lead to
    assert (home / "bin" / "spark-submit").read_text() == "bin/spark-submit"
    assert (home / "jars" / "spark.jar").is_file()
    assert light_home(package, home) == home  # there already
    assert [path.name for path in home.parent.iterdir()] == ["home"]  # nothing is left beside it


def test_where_nothing_can_be_made_better_the_package_is_its_home(tmp_path: Path) -> None:
    package = a_package(tmp_path / "package")
    (tmp_path / "file").write_text("no directory")
    assert light_home(package, tmp_path / "file" / "home") == package
    (package / "python" / "lib" / PACKED).unlink()
    assert light_home(package) == package


@pytest.mark.spark_processes
def test_the_module_prints_it_and_sparks_own_command_runs_from_it() -> None:
    asked = subprocess.run([sys.executable, "-m", "spillway.spark.home"], capture_output=True, text=True, check=True)
    home = Path(asked.stdout.strip())
    assert home == light_home(PACKAGE) != PACKAGE
    assert not (home / "python" / "lib" / PACKED).exists()
    environment = {**os.environ, "SPARK_HOME": str(home)}
    line = [str(home / "bin" / "spark-submit"), "--version"]
    said = subprocess.run(line, env=environment, capture_output=True, text=True, check=True).stderr
    assert f"version {pyspark.__version__}" in said


def test_a_missing_pyspark_is_said_in_plain_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(home_module, "installed", lambda: None)
    assert main() == 1
    assert capsys.readouterr().err == "spillway: Spark is not installed: pip install 'spillway-servicebus[spark]'\n"


def test_workers_take_pyspark_as_it_is_installed(spark: "SparkSession") -> None:
    def where(batches):  # type: ignore[no-untyped-def]
        import pyarrow
        import pyspark

        for _ in batches:
            yield pyarrow.RecordBatch.from_pydict({"where": [pyspark.__file__]})

    assert spark.range(1).mapInArrow(where, "where string").collect()[0]["where"] == pyspark.__file__
