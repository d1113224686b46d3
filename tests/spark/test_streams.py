"""Streams over `format("servicebus")`: offsets, limits, triggers, locked rows settled when they are stored."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from spillway.client import OutgoingMessage
from spillway.spark.platform.queries import run_to_end
from spillway.spark.source.settle import Settled, settle
from tests.spark.bus import Bus

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def stream(spark: "SparkSession", bus: Bus, entity: str, **options: Any) -> "DataFrame":
    return spark.readStream.format("servicebus").options(**bus.options, **options).load(entity)


def run_now(frame: "DataFrame", checkpoint: Path, each: Callable[["DataFrame", int], None]) -> list[int]:
    """Take what is there now; how many rows each batch had."""
    writer = frame.writeStream.foreachBatch(each).option("checkpointLocation", str(checkpoint))
    query = run_to_end(lambda: writer.trigger(availableNow=True).start(), 120)
    return [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]


def test_a_browsing_stream_goes_on_where_it_was_and_reads_what_is_there(
    spark: "SparkSession", bus: Bus, tmp_path: Path
) -> None:
    first, second = bus.queue("a1", "a2", "a3"), bus.queue("b1")
    seen: list[str] = []

    def collect(batch: "DataFrame", number: int) -> None:
        seen.extend(row["body"] for row in batch.select("body").collect())

    frame = stream(spark, bus, f"{first},{second}", bodyFormat="string", maxMessages=2)
    counts = run_now(frame, tmp_path / "checkpoint", collect)
    assert sorted(seen) == ["a1", "a2", "a3", "b1"]
    assert max(counts) <= 2
    bus.send(second, [OutgoingMessage("b2")])
    seen.clear()
    run_now(frame, tmp_path / "checkpoint", collect)
    assert seen == ["b2"]  # and nothing once more
    assert (bus.bodies(first), bus.bodies(second)) == (["a1", "a2", "a3"], ["b1", "b2"])


def test_a_checkpoint_of_another_query_is_refused_with_the_reason(
    spark: "SparkSession", bus: Bus, tmp_path: Path
) -> None:
    first, second = bus.queue("one"), bus.queue("two")

    def ignore(batch: "DataFrame", number: int) -> None:
        batch.count()

    run_now(stream(spark, bus, first), tmp_path, ignore)
    with pytest.raises(PySparkException, match=f"the checkpoint is of another query: it knows of {first}"):
        run_now(stream(spark, bus, second), tmp_path, ignore)
    with pytest.raises(PySparkException, match="the checkpoint is of another query, not of one that receives"):
        run_now(stream(spark, bus, first, mode="peeklock", settle="manual"), tmp_path, ignore)


def test_locked_rows_are_settled_when_they_are_stored_and_the_last_batch_too(
    spark: "SparkSession", bus: Bus, tmp_path: Path
) -> None:
    queue = bus.queue(*[str(number) for number in range(130)])
    options = {
        "mode": "peeklock",
        "settle": "manual",
        "maxMessages": "60",
        "firstBatchMessages": "20",
        "partitions": "2",
    }
    settled: list[Settled] = []

    def store(batch: "DataFrame", number: int) -> None:
        path = str(tmp_path / f"batch={number}")
        batch.write.mode("append").parquet(path)
        settled.append(settle(spark.read.parquet(path), {**bus.options, **options}))

    counts = run_now(stream(spark, bus, queue, **options), tmp_path / "checkpoint", store)
    assert counts[0] == 20 and max(counts) <= 60  # the first batch is small
    assert (sum(one.settled for one in settled), sum(one.lost for one in settled)) == (130, 0)
    assert bus.peek(queue) == []
    rows = spark.read.option("basePath", str(tmp_path)).parquet(str(tmp_path / "batch=*"))
    assert rows.selectExpr("count(*) AS n", "count(DISTINCT sequence_number) AS d").collect()[0].asDict() == {
        "n": 130,
        "d": 130,
    }


def test_a_run_ends_although_others_hold_messages_or_nobody_settles(
    spark: "SparkSession", bus: Bus, tmp_path: Path
) -> None:
    queue = bus.queue("one", "two", "three")
    seen: list[str] = []

    def look(batch: "DataFrame", number: int) -> None:
        seen.extend(row["body"] for row in batch.select("body").collect())

    with bus.locked_by_another(queue, 1):
        options = {"mode": "peeklock", "settle": "manual", "holder": "none"}
        frame = stream(spark, bus, queue, **options, bodyFormat="string", maxWaitSeconds="0.1")
        run_now(frame, tmp_path / "checkpoint", look)
    assert sorted(seen) == ["three", "two"]
    assert len(bus.peek(queue)) == 3


def test_a_stream_that_goes_on_takes_what_comes(spark: "SparkSession", bus: Bus, tmp_path: Path) -> None:
    queue = bus.queue("early")
    seen: list[str] = []
    told = threading.Condition()

    def look(batch: "DataFrame", number: int) -> None:
        with told:
            seen.extend(row["body"] for row in batch.select("body").collect())
            told.notify_all()

    options = {"mode": "receiveanddelete", "allowLoss": "true", "bodyFormat": "string", "maxWaitSeconds": "0.2"}
    query = (
        stream(spark, bus, queue, **options)
        .writeStream.foreachBatch(look)
        .option("checkpointLocation", str(tmp_path))
        .trigger(processingTime="200 milliseconds")
        .start()
    )
    try:
        with told:
            assert told.wait_for(lambda: seen == ["early"], 90), query.exception()
        bus.send(queue, [OutgoingMessage("late")])
        with told:
            assert told.wait_for(lambda: seen == ["early", "late"], 90), query.exception()
    finally:
        query.stop()
    assert bus.peek(queue) == []


def test_locks_are_renewed_while_a_batch_takes_longer_than_a_lock(
    spark: "SparkSession", bus: Bus, tmp_path: Path
) -> None:
    queue = bus.queue(*[str(number) for number in range(40)], lock_s=5)
    options = {"mode": "peeklock", "settle": "manual"}
    settled: list[Settled] = []

    def be_slow(batch: "DataFrame", number: int) -> None:
        path = str(tmp_path / f"batch={number}")
        batch.write.mode("append").parquet(path)
        threading.Event().wait(7)  # longer than the lock: real time, because it is the client that renews
        settled.append(settle(spark.read.parquet(path), {**bus.options, **options}))

    run_now(stream(spark, bus, queue, **options), tmp_path / "checkpoint", be_slow)
    assert settled == [Settled(40, 0)]
    assert bus.peek(queue) == []
