"""A foreachBatch that settles in one line, and what happens without it."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from spillway.spark.platform.access import OptionError
from spillway.spark.platform.queries import run_to_end
from spillway.spark.settle import LocksLost, LocksLostWarning, Settled, settle, settling
from spillway.spark.source.lock_handover import held_by
from spillway.spark.source.lock_renewer import LockBatch
from spillway.spark.source.settle import check_lost
from tests.spark.bus import Bus

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LOCKED = {"mode": "peeklock", "settle": "manual", "maxWaitSeconds": "0.2"}


def run_now(spark: "SparkSession", bus: Bus, queue: str, checkpoint: Path, each: Any) -> "StreamingQuery":
    frame = spark.readStream.format("servicebus").options(**bus.options, **LOCKED).load(queue)
    writer = frame.writeStream.foreachBatch(each).option("checkpointLocation", str(checkpoint))
    return run_to_end(lambda: writer.trigger(availableNow=True).start(), 120)


def test_a_batch_is_received_once_used_twice_and_settled_when_the_function_returns(
    spark: "SparkSession", bus: Bus, tmp_path: Path
) -> None:
    queue = bus.queue("one", "two", "three")
    counts: list[int] = []
    holders: list[str] = []

    def store(batch: "DataFrame", number: int) -> None:
        counts.append(batch.count())
        batch.write.parquet(str(tmp_path / f"rows{len(counts)}"))
        holders.extend(row["holder"] for row in batch.mapInArrow(holder_of_task, "holder string").collect())
        if len(counts) == 1:
            raise RuntimeError("no room for these")

    each = settling(store, {**bus.options, **LOCKED})
    with pytest.raises(StreamingQueryException, match="no room for these"):
        run_now(spark, bus, queue, tmp_path / "checkpoint", each)
    query = run_now(spark, bus, queue, tmp_path / "checkpoint", each)
    assert counts[:2] == [3, 3] and not any(counts[2:])
    assert spark.read.parquet(str(tmp_path / "rows2")).count() == 3
    assert bus.peek(queue) == []
    assert set(holders) == {f"query {query.id}"}  # over both starts
    assert spark.sparkContext._jsc.getPersistentRDDs().isEmpty()  # nothing of it is kept on


def holder_of_task(batches: Iterator[Any]) -> Iterator[Any]:
    import pyarrow as pa

    batch = held_by(LockBatch("query", (1, 1)))
    assert batch is not None
    yield pa.RecordBatch.from_pydict({"holder": pa.array([batch.holder])})


def test_options_that_are_wrong_are_said_before_the_first_batch() -> None:
    with pytest.raises(OptionError, match="there is no option 'entiy'"):
        settling(lambda batch, number: None, {"entiy": "q"})


def test_a_locking_stream_that_goes_straight_into_a_sink_is_refused(
    spark: "SparkSession", bus: Bus, tmp_path: Path
) -> None:
    queue = bus.queue("one")
    frame = spark.readStream.format("servicebus").options(**bus.options, mode="peeklock").load(queue)
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(PySparkException, match="Say settle=manual"):
        run_to_end(lambda: writer.option("path", str(tmp_path / "rows")).trigger(availableNow=True).start(), 120)
    assert [message.delivery_count for message in bus.peek(queue)] == [0]


def test_a_batch_read_locks_no_more_than_it_says_and_lost_locks_are_said(
    spark: "SparkSession", bus: Bus, tmp_path: Path
) -> None:
    queue = bus.queue(*[str(number) for number in range(1_200)])
    options = {**bus.options, "mode": "peeklock", "maxWaitSeconds": "0.2"}
    frame = spark.read.format("servicebus").options(**options).load(queue)
    assert len(frame.limit(5).collect()) == 5
    # What it did not lock, another receiver gets.
    rest = str(tmp_path / "rest")
    spark.read.format("servicebus").options(**options).option("maxMessages", 5_000).load(queue).write.parquet(rest)
    stored = spark.read.parquet(rest)
    assert stored.count() >= 200
    some = stored.limit(10).localCheckpoint()
    assert settle(some, options) == Settled(10, 0)
    with pytest.raises(LocksLost, match="all 10 locks were lost: they had run out"):
        settle(some, options)
    with pytest.warns(LocksLostWarning, match="10 of .* locks were lost"):
        settle(stored, options)


def test_locks_that_were_lost_after_an_outage_may_have_been_settled_and_end_nothing() -> None:
    with pytest.warns(LocksLostWarning, match="3 of 3 locks were lost"):
        check_lost(Settled(0, 3), doubtful=3)
    with pytest.raises(LocksLost):
        check_lost(Settled(0, 3))


def test_that_nothing_was_lost_is_not_said() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_lost(Settled(3, 0))
        check_lost(Settled(0, 0))
