"""Spark starts by one call, quietly, with what the jobs rely on."""

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from spillway.spark.platform import session as session_module
from spillway.spark.platform.java import SparkMissing
from spillway.spark.platform.session import build_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_session_has_what_the_jobs_rely_on(spark: "SparkSession") -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.execution.arrow.pyspark.enabled") == "true"
    assert spark.sparkContext.master == "local[2,4]"  # four attempts a task
    assert spark.sparkContext.uiWebUrl is None


def test_a_session_that_is_there_is_taken(spark: "SparkSession") -> None:
    said: list[str] = []
    assert build_session("another", master="local[2,4]", say=said.append).sparkContext is spark.sparkContext
    assert said == []


def test_embedded_is_local_with_attempts_and_submitted_keeps_the_master_it_was_given() -> None:
    embedded = session_module._settings(None, False, False, {"spark.driver.memory": "2g"})
    assert embedded["spark.master"] == "local[*,4]"
    assert embedded["spark.driver.memory"] == "2g"
    submitted = session_module._settings(None, False, True, {})
    assert "spark.master" not in submitted and "spark.driver.host" not in submitted


def test_a_missing_pyspark_is_said_in_plain_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(SparkMissing, match=r"Spark is not installed .*pip install 'spillway-servicebus\[spark\]'"):
        build_session("none")


def test_the_command_line_does_not_load_spark() -> None:
    text = "import sys, spillway.cli.app as app; app.make_app(); print([m for m in sys.modules if 'spark' in m])"
    asked = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert asked.stdout.strip() == "[]"
