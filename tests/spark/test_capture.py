"""Capture on real Spark from a real broker: settled when it is on the disk, and once in the view."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spillway.client import OutgoingMessage
from spillway.spark.jobs.capture import (
    Capture,
    CaptureConfig,
    CaptureSummary,
    check,
    main,
    options_of,
    receivers,
    run,
    text_of,
)
from spillway.spark.platform.access import OptionError
from spillway.spark.platform.connection_pool import NamespaceError
from spillway.spark.platform.job_directory import JobDirectory, JobDirectoryError, _Hadoop
from spillway.spark.platform.paths import local_path
from spillway.spark.platform.reasons import reason_of
from spillway.spark.source.deduplicated_view import SCHEMA, captured, captured_files, captured_sql
from spillway.spark.source.lake import ABOUT, OURS, STAGING, Lake
from spillway.spark.source.options import read_options
from spillway.spark.source.schema import schema_for
from spillway.spark.source.settle_after_write import Synced
from tests.spark.bus import Bus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def config_for(bus: Bus, out: Path, *entities: str, **options: Any) -> CaptureConfig:
    options = {"patience_s": 0.0, "connection_string": bus.options["connectionString"], **options}
    return CaptureConfig(entities, str(out), **options)


def bodies(spark: "SparkSession", out: Path, entity: str) -> list[str]:
    rows = captured(spark, str(out)).where(f"entity = '{entity}'").selectExpr("string(body) AS body").collect()
    return sorted(row["body"] for row in rows)


def test_queues_dead_letters_and_subscriptions_are_captured_and_the_last_batch_is_settled(
    spark: "SparkSession", bus: Bus, tmp_path: Path
) -> None:
    queue, topic, dead = bus.queue(*map(str, range(130))), bus.topic("sub"), bus.queue("d1", "d2")
    bus.send(topic, [OutgoingMessage("t", message_id="t")])
    bus.dead_letter(dead, "bad")
    entities = (queue, f"{topic}/subscriptions/sub", f"{dead}/$deadletterqueue")
    said: list[str] = []
    config = config_for(bus, tmp_path, *entities, max_messages=90, first_batch_messages=30)
    summary = run(spark, config, said.append)
    assert summary.entities == {entities[0]: 130, entities[1]: 1, entities[2]: 2}
    assert (summary.messages, summary.settled, summary.lost, summary.left) == (133, 133, 0, [])
    assert summary.batches >= 2 and [bus.peek(entity) for entity in entities] == [[], [], []]
    assert "batch 0: 13 messages" in said[0]  # a small one: ten of each entity at most, and two have fewer
    rows = {(row["entity"], bytes(row["body"]).decode()): row for row in captured(spark, str(tmp_path)).collect()}
    assert sorted(body for entity, body in rows if entity == queue) == sorted(map(str, range(130)))
    row = rows[entities[1], "t"]
    assert (row["message_id"], row["day"]) == ("t", row["enqueued_time"].date())
    first = rows[entities[2], "d1"]
    assert (first["dead_letter_reason"], first["dead_letter_source"]) == ("bad", dead)
    # Where it is: a directory for each day, in it one for each batch, and in it one for each entity.
    files = [path.relative_to(tmp_path).parts for path in tmp_path.rglob("*.parquet")]
    assert {tuple(part.partition("=")[0] for part in parts[:-1]) for parts in files} == {("day", "batch", "entity")}
    assert {parts[2] for parts in files} >= {f"entity={queue}", f"entity={topic}%2Fsubscriptions%2Fsub"}
    assert JobDirectory(spark, str(tmp_path)).names(STAGING) == []
    written = b"".join(path.read_bytes() for path in (tmp_path / OURS).rglob("*") if path.is_file())
    assert b"SAS_KEY_VALUE" not in written
    assert run(spark, config, said.append).messages == 0  # once more from its checkpoint: there is nothing
    assert said[-1] == "there is nothing to capture"


@pytest.mark.parametrize("place", ["received", "sent", "completed"])
def test_a_worker_that_dies_at_any_place_loses_nothing_and_the_view_has_each_message_once(
    spark: "SparkSession", bus: Bus, tmp_path: Path, place: str
) -> None:
    queue = bus.queue(*map(str, range(60)), lock_s=5)
    marker, out = tmp_path / "crashed", tmp_path / "out"
    environment = {"SPILLWAY_CRASH_AT": place, "SPILLWAY_CRASH_ONCE": str(marker)}
    # The process that received lives on where another one dies, and renews, until it is given work of a later batch.
    options: dict[str, Any] = {"patience_s": 90.0, "partitions": 1}
    summary = run(spark, config_for(bus, out, queue, environment=environment, **options))
    assert marker.exists()
    assert (bus.peek(queue), summary.left) == ([], [])
    assert bodies(spark, out, queue) == sorted(map(str, range(60)))
    # The worker that died after it had settled was tried again, and found the locks gone: nothing comes again.
    if place == "completed":
        assert (summary.settled, summary.lost, captured_files(spark, str(out)).count()) == (0, 60, 60)


def test_messages_whose_locks_were_lost_come_again_and_the_view_drops_the_copies(
    spark: "SparkSession", bus: Bus, tmp_path: Path
) -> None:
    queue = bus.queue("one", "two", "three")
    config = config_for(bus, tmp_path, queue)
    with bus.locked_by_another(queue, 2):
        first = run(spark, config)
    assert (first.messages, first.left) == (1, [queue])
    assert f"messages are left in {queue}" in text_of(first)
    # As a run that dies before it settles leaves them: rows are there, and their messages are too.
    frame = spark.read.format("servicebus").options(**bus.options).load(queue)
    day = "date_from_unix_date(CAST(unix_seconds(enqueued_time) DIV 86400 AS INT)) AS day"
    frame.selectExpr("*", day, "'0-dead' AS batch").write.mode("append").partitionBy("day", "batch", "entity").parquet(
        str(tmp_path)
    )
    second = run(spark, config)
    assert (second.settled, bus.peek(queue)) == (2, [])
    assert captured_files(spark, str(tmp_path)).count() == 5
    assert bodies(spark, tmp_path, queue) == ["one", "three", "two"]
    for statement in captured_sql(str(tmp_path), "seen").split(";\n"):
        if statement.strip():
            spark.sql(statement)
    assert sorted(map(str, spark.table("seen").collect())) == sorted(map(str, captured(spark, str(tmp_path)).collect()))


def test_sessions_are_captured_and_settled(spark: "SparkSession", bus: Bus, tmp_path: Path) -> None:
    queue = bus.queue(requires_session=True)
    bus.send(queue, [OutgoingMessage(f"{index}", session_id=f"s{index % 3}") for index in range(9)])
    summary = run(spark, config_for(bus, tmp_path, queue, sessions="*", partitions=2))
    assert (summary.settled, summary.lost, bus.peek(queue)) == (9, 0, [])
    assert bodies(spark, tmp_path, queue) == [str(index) for index in range(9)]


def test_a_watch_takes_what_comes_until_it_is_stopped(spark: "SparkSession", bus: Bus, tmp_path: Path) -> None:
    queue = bus.queue("early")
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        if " 1 in all" in line:
            bus.send(queue, [OutgoingMessage("late")])
        elif " 2 in all" in line:
            capture.stop()

    # A full batch is never there: each of the two is taken when it has waited so long.
    capture = Capture(spark, config_for(bus, tmp_path, queue, watch=True, interval_s=0.5, max_wait_s=1.0), say)
    summary = capture.run()
    assert (summary.settled, summary.restarts, bus.peek(queue)) == (2, 0, [])
    assert "stopping after the batch under way" in said


def test_a_watch_makes_hundreds_of_files_a_day_and_not_tens_of_thousands() -> None:
    watch = CaptureConfig(("orders",), "lake", secret="env:BUS", watch=True)
    options = read_options(options_of(watch), is_streaming=True)
    assert (options.min_messages, options.max_delay_s) == (50_000, 300.0)
    # A million messages a day fill no batch before the delay is over, on a cluster as on a laptop.
    batches = max(86_400 / options.max_delay_s, 1_000_000 / options.min_messages)
    assert batches * receivers(watch, cores=64) <= 600
    assert receivers(watch, cores=1) == 1
    assert receivers(CaptureConfig(("orders",), "lake"), cores=64) == 64  # a run that ends takes all there are
    assert receivers(CaptureConfig(("orders",), "lake", watch=True, partitions=7), cores=64) == 7


def test_a_lake_of_the_first_layout_is_read_and_not_added_to(spark: "SparkSession", bus: Bus, tmp_path: Path) -> None:
    queue = bus.queue("old")
    frame = spark.read.format("servicebus").options(**bus.options).load(queue)
    day = "date_from_unix_date(CAST(unix_seconds(enqueued_time) DIV 86400 AS INT)) AS day"
    for batch in ("1", "2"):  # the same message twice
        frame.selectExpr("*", day).write.partitionBy("entity", "day").parquet(f"{tmp_path}/batch={batch}")
    (tmp_path / OURS).mkdir()
    (tmp_path / ABOUT).write_text('{"job": "capture", "format": 1}')
    with pytest.raises(JobDirectoryError, match="give another directory. What is in this one can still be read"):
        Capture(spark, config_for(bus, tmp_path, queue))
    assert captured_files(spark, str(tmp_path)).count() == 2
    assert bodies(spark, tmp_path, queue) == ["old"]


def test_what_a_dead_job_left_in_the_staging_directory_is_swept_out_later(
    spark: "SparkSession", tmp_path: Path
) -> None:
    for name in ("20261114T000000Z-dead-000001", "20261116T000000Z-live-000001", "something"):
        (tmp_path / STAGING / name / "day=2026-11-14").mkdir(parents=True)
    lake = Lake(spark, str(tmp_path))
    assert lake.sweep_staging(datetime(2026, 11, 16, 1, tzinfo=UTC)) == 1
    assert lake.directory.names(STAGING) == ["20261116T000000Z-live-000001", "something"]


def test_what_is_wrong_is_said_before_anything_begins(spark: "SparkSession", bus: Bus, tmp_path: Path) -> None:
    queue, other = bus.queue("one"), bus.queue()
    with pytest.raises(OptionError, match="entity is missing"):
        check(config_for(bus, tmp_path))
    with pytest.raises(OptionError, match="out is missing"):
        check(CaptureConfig((queue,), " "))
    with pytest.raises(OptionError, match="no environment variable NOT_THERE"):
        check(CaptureConfig((queue,), str(tmp_path), secret="env:NOT_THERE"))
    for wrong, said in (
        ({"interval_s": -1.0}, "interval: seconds"),
        ({"min_messages": 51, "max_messages": 50}, "min-messages: from 1 to max-messages"),
        ({"max_wait_s": 1e6}, "max-wait: seconds"),
    ):
        with pytest.raises(OptionError, match=said):
            check(config_for(bus, tmp_path, queue, **wrong))
    with pytest.raises(NamespaceError, match="there is no entity 'nowhere'"):
        check(config_for(bus, tmp_path, "nowhere"))
    with pytest.raises(NamespaceError, match="needs the right to listen") as refused:
        check(config_for(bus, tmp_path, queue, connection_string=bus.key(queue, ["Send"])))
    assert "SharedAccessKey=" not in str(refused.value)
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "thesis.txt").write_text("mine")
    with pytest.raises(JobDirectoryError, match="holds something else"):
        Capture(spark, config_for(bus, tmp_path / "else", queue))
    checkpoint = str(tmp_path / "checkpoint")
    Capture(spark, config_for(bus, tmp_path / "out", queue, checkpoint=checkpoint))
    with pytest.raises(JobDirectoryError, match=rf'its entities is \["{queue}"\], and here it is \["{other}"\]'):
        Capture(spark, config_for(bus, tmp_path / "out", other, checkpoint=checkpoint))
    assert bus.bodies(queue) == ["one"]


def test_the_module_prints_its_summary_and_one_line_of_what_is_wrong(
    spark: "SparkSession", bus: Bus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queue, secret = bus.queue(), tmp_path / "bus"
    secret.write_text(bus.options["connectionString"])
    line = ["--secret", f"file:{secret}", "--out", str(tmp_path / "out"), "--json", "--entity"]
    assert main([*line, queue]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out.splitlines()[-1])["messages"] == 0
    assert main([*line, "nowhere"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("capture: there is no entity 'nowhere' in this namespace (")
    assert main([*line, "a,,b"]) == 2
    capsys.readouterr()
    assert main([*line, queue, "--watch", "--available-now"]) == 2
    assert capsys.readouterr().err == "capture: --available-now and --watch: give one of them\n"


def test_the_schema_of_the_files_is_that_of_the_source(spark: "SparkSession") -> None:
    source = schema_for(read_options({"secretName": "env:X", "entity": "q"}))
    names = {field.name: field.dataType.simpleString() for field in source.fields}
    written = {name: kind for name, kind in names.items() if name != "entity"}
    frame = spark.createDataFrame([], SCHEMA)
    assert {field.name: field.dataType.simpleString() for field in frame.schema.fields} == {
        **written,
        "batch": "string",
        "entity": "string",
        "day": "date",
    }


def test_files_and_every_directory_up_to_the_one_above_are_synced(tmp_path: Path) -> None:
    file = tmp_path / "out" / "batch=1" / "entity=a%2Fb" / "day=2026-11-16" / "part 0.parquet"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"rows")
    synced = Synced(str(tmp_path / "out"))
    synced.add(file.as_uri())
    assert synced._done == {file, *list(file.parents)[:5]}
    assert local_path("s3a://bucket/out") is None
    assert local_path("file:///data/a%20b") == Path("/data/a%20b")
    assert local_path("file:///data/a%2520b", is_quoted=True) == Path("/data/a%20b")


def lake_operations(place: JobDirectory) -> None:
    """The same on every file system."""
    assert (place.create("log/1.json", "one"), place.create("log/1.json", "two")) == (True, False)
    assert (place.read("log/1.json"), place.names("log")) == ("one", ["1.json"])
    place.write("staged/day=1/part", "rows")
    place.move("staged/day=1", "day=1/batch=1")
    assert [tuple(file) for file in place.files("day=1")] == [("day=1/batch=1/part", 4)]
    place.write("staged/day=1/part", "others")
    with pytest.raises(JobDirectoryError, match="cannot be moved"):
        place.move("staged/day=1", "day=1/batch=1")
    assert place.remove_if_empty("day=1/batch=1") is False
    place.remove("day=1/batch=1/part")
    place.remove("day=1/batch=1/part")
    assert (place.remove_if_empty("day=1/batch=1"), place.remove_if_empty("day=1/batch=1")) == (True, True)
    place.remove_tree("staged")
    assert (place.names("staged"), place.files("staged"), place.files("day=1")) == ([], [], [])


def test_a_place_on_this_machine_is_read_and_written_without_spark(spark: "SparkSession", tmp_path: Path) -> None:
    lake_operations(JobDirectory(spark, str(tmp_path / "here")))


def test_a_place_on_another_file_system_is_read_and_written_by_spark(spark: "SparkSession", tmp_path: Path) -> None:
    place = JobDirectory(spark, str(tmp_path / "here"))
    place._files = _Hadoop(spark, f"file:{tmp_path}/here")
    assert (place.read("about.json"), place.names()) == (None, [])
    place.claim("about.json", {"job": "é"}, "out")
    place.claim("about.json", {"job": "é"}, "out")
    place.write("done/1.json", "first")
    place.write("done/1.json", "second")
    assert (place.read("done/1.json"), place.names("done")) == ("second", ["1.json"])
    lake_operations(place)
    with pytest.raises(JobDirectoryError, match="its job is"):
        place.claim("about.json", {"job": "e"}, "out")
    place.write("about.json", "{")
    with pytest.raises(JobDirectoryError, match="cannot be read"):
        place.claim("about.json", {"job": "e"}, "out")


def test_the_reason_of_a_failure_is_its_cause() -> None:
    ours = "[X] failed\nTraceback:\n  spillway.spark.platform.connection_pool.NamespaceError: there is no entity 'a'"
    assert reason_of(RuntimeError(ours.replace("  spill", "spill"))) == "there is no entity 'a'"
    assert reason_of(RuntimeError("Traceback (most recent)\n  x\nKeyError: 'k'\n")) == "KeyError: 'k'"
    assert reason_of(RuntimeError("\n first line\nsecond")) == "first line"
    java = "An error occurred while calling o66.parquet.\n: a.b.SparkException: Job aborted.\n\tat x.Y(Z.java)"
    assert reason_of(RuntimeError(java)) == "Job aborted."
    caused = f"{java}\nCaused by: java.io.IOException: No space left on device\n\tat x.Y(Z.java)\n\t... 1 more"
    assert reason_of(RuntimeError(caused)) == "No space left on device"
    in_batch = "[FOREACH_BATCH] failed. Reason: Return Message: Traceback (most recent call last):\n  x\n"
    lost = f"{in_batch}spillway.spark.source.settle.LocksLost: all 9 locks were lost\n SQLSTATE: 39000"
    assert reason_of(RuntimeError(lost)) == "all 9 locks were lost"
    assert "3 had lost" in text_of(CaptureSummary("out", messages=3, lost=3))
