"""Locks outlive the Python workers that took them, and are kept for nobody no longer than until the next try."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from spillway.spark.platform.queries import run_to_end
from spillway.spark.settle import Settled, settle
from tests.spark.bus import Bus

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOCKED = {"mode": "peeklock", "settle": "manual"}


@pytest.fixture
def workers_end_with_their_tasks(spark: "SparkSession") -> "Iterator[None]":
    """As Spark ends them after a minute without work, which no setting makes shorter."""
    conf = spark.sparkContext._jsc.sc().conf()  # as Spark itself sees it
    conf.set("spark.python.worker.reuse", "false")
    yield
    conf.remove("spark.python.worker.reuse")


def run_now(spark: "SparkSession", bus: Bus, queue: str, checkpoint: Path, each: Any) -> None:
    frame = spark.readStream.format("servicebus").options(**bus.options, **LOCKED).load(queue)
    writer = frame.writeStream.foreachBatch(each).option("checkpointLocation", str(checkpoint))
    run_to_end(lambda: writer.trigger(availableNow=True).start(), 120)


@pytest.mark.usefixtures("workers_end_with_their_tasks")
def test_a_batch_may_work_longer_than_the_lock_and_the_workers_that_received_it(
    spark: "SparkSession", bus: Bus, tmp_path: Path
) -> None:
    queue = bus.queue(*[str(number) for number in range(40)], lock_s=5)
    settled: list[Settled] = []

    def be_slow(batch: "DataFrame", number: int) -> None:
        path = str(tmp_path / f"batch={number}")
        batch.write.mode("append").parquet(path)
        threading.Event().wait(8)  # longer than the lock: real time, because locks are renewed by a real process
        settled.append(settle(spark.read.parquet(path), {**bus.options, **LOCKED}))

    run_now(spark, bus, queue, tmp_path / "checkpoint", be_slow)
    assert settled == [Settled(40, 0)]
    assert bus.peek(queue) == []


@pytest.mark.parametrize("second_checkpoint", ["first", "second"])
def test_the_next_try_has_the_messages_of_a_batch_that_raised(
    spark: "SparkSession", bus: Bus, tmp_path: Path, second_checkpoint: str
) -> None:
    queue = bus.queue("one", "two", "three")
    seen: list[set[int]] = []

    def store(batch: "DataFrame", number: int) -> None:
        path = str(tmp_path / f"try={len(seen)}")
        batch.write.parquet(path)
        seen.append({row["sequence_number"] for row in spark.read.parquet(path).collect()})
        if len(seen) == 1:
            raise RuntimeError("no room for these")
        settle(spark.read.parquet(path), {**bus.options, **LOCKED})

    with pytest.raises(StreamingQueryException, match="no room for these"):
        run_now(spark, bus, queue, tmp_path / "first", store)
    run_now(spark, bus, queue, tmp_path / second_checkpoint, store)
    assert seen == [{1, 2, 3}, {1, 2, 3}]
    assert bus.peek(queue) == []
