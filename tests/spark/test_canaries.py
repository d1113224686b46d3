"""A planted key: used in every way that Spark has, and then looked for wherever it must not be (S10, S23)."""

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from spillway.spark.jobs.syphon import SyphonConfig, run, text_of
from spillway.spark.platform.queries import run_to_end
from spillway.syphon.depths import SecondaryError
from tests.paired.namespaces import Namespaces
from tests.spark.bus import Bus
from tests.syphon.backlogs import Backlog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def files_with(directory: Path, text: str) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


def test_no_plan_log_checkpoint_or_event_file_has_the_key(
    spark: "SparkSession", bus: Bus, tmp_path: Path, capfd: pytest.CaptureFixture[str], event_log: Path
) -> None:
    queue, target = bus.queue("one"), bus.queue()
    canary = bus.key(queue, ["Send", "Listen"])
    key = re.findall("SharedAccessKey=([^;]+)", canary)[0]
    frame = spark.read.format("servicebus").option("connectionString", canary).load(queue)
    frame.createOrReplaceTempView("canary")
    plans = [
        spark.sql(f"EXPLAIN {kind} SELECT * FROM canary").collect()[0][0]
        for kind in ("EXTENDED", "FORMATTED", "CODEGEN")
    ]
    plans.append(str(frame))
    writer = (
        spark.readStream.format("servicebus")
        .option("connectionString", canary)
        .load(queue)
        .writeStream.format("servicebus")
        .options(**bus.options)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
    )
    query = run_to_end(lambda: writer.trigger(availableNow=True).start(target), 90)
    plans += [str(progress) for progress in query.recentProgress]
    errors = []
    wrong = canary.replace(key, key[:-4] + "AAA=")
    for options in (
        {"connectionString": wrong},
        {"connectionString": canary + ";Oops"},
        {"secretName": canary},
        {"connectionString": canary, "maxMessages": canary},
    ):
        with pytest.raises(PySparkException) as raised:
            spark.read.format("servicebus").options(**options).load(queue)
        errors.append(str(raised.value))
    assert not [text for text in (*plans, *errors) if key in text or key[:-4] in text]
    assert bus.bodies(target) == ["one"]
    assert files_with(tmp_path, key) == []
    assert list(event_log.rglob("*")), "the event log is written"
    assert files_with(event_log, key) == []
    out, err = capfd.readouterr()
    assert key not in out + err


def test_nothing_of_the_syphon_has_the_keys_of_its_namespaces(
    spark: "SparkSession", namespaces: Namespaces, tmp_path: Path, capfd: pytest.CaptureFixture[str], event_log: Path
) -> None:
    """Its plan goes to executors as an option, and a query that dies tells what it was."""
    backlog = Backlog(namespaces)
    queue = backlog.destination()
    backlog.fill(queue, 5)
    canary = namespaces.secondary_with("both")
    key = re.findall("SharedAccessKey=([^;]+)", canary)[0]
    config = SyphonConfig(
        namespaces.primary.connection_string,
        canary,
        namespace_name=backlog.name,
        checkpoint=str(tmp_path / "checkpoint"),
        events=str(tmp_path / "events"),
        idle_s=0.3,
    )
    assert key not in repr(config)
    summary = run(spark, config)
    assert summary.moved == 5
    wrong = canary.replace(key, key[:-4] + "AAA=")
    with pytest.raises(SecondaryError) as raised:
        run(spark, replace(config, secondary=wrong))
    out, err = capfd.readouterr()
    assert not [text for text in (str(raised.value), text_of(summary), out, err) if key[:-4] in text]
    assert files_with(tmp_path, key) == []
    assert files_with(event_log, key) == []


def test_a_secret_is_looked_up_by_the_workers(spark: "SparkSession", bus: Bus, tmp_path: Path) -> None:
    queue = bus.queue("one", "two")
    secret = tmp_path / "secret"
    secret.write_text(bus.options["connectionString"])
    frame = spark.read.format("servicebus").option("secretName", f"file:{secret}").load(queue)
    assert frame.count() == 2
    secret.unlink()
    with pytest.raises(PySparkException, match="secretName=file:.*: the file cannot be read here"):
        frame.count()
