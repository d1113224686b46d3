"""A receive-and-delete stream stores no message twice, and loses only what died with its task."""

from pathlib import Path
from typing import TYPE_CHECKING

from spillway.syphon.crash import AT, ONCE, RECEIVED
from tests.spark.bus import Bus
from tools.sparkkills_delete import BATCH_MESSAGES, stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MESSAGES = 400


def test_a_worker_that_dies_takes_its_messages_along_and_no_other_is_lost_or_doubled(
    spark: "SparkSession", bus: Bus, tmp_path: Path
) -> None:
    queue = bus.queue(*[b"." * 50] * MESSAGES)
    marker = tmp_path / "crashed"
    stream(spark, queue, tmp_path, bus.options, {AT: RECEIVED, ONCE: str(marker)})
    assert marker.exists()
    stored = [row["message_id"] for row in spark.read.parquet(str(tmp_path / "rows")).collect()]
    assert len(stored) == len(set(stored))
    # One of two receivers of the first batch died with its half, or with the part of it that it had.
    assert MESSAGES - BATCH_MESSAGES // 4 <= len(stored) < MESSAGES
    assert bus.peek(queue) == []
