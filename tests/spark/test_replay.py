"""Replay on real Spark: what was captured arrives as it was sent, in order, and once where duplicates are dropped."""

import uuid
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spillway.amqp.types import Int, Timestamp
from spillway.client import OutgoingMessage
from spillway.spark.jobs import capture
from spillway.spark.jobs.replay import ReplayConfig, ranges, run
from spillway.spark.places import PlaceError
from tests.spark.bus import Bus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 20
PROPERTIES = {"n": Int(7), "when": Timestamp(1_700_000_000_000), "none": None, "id": uuid.UUID(int=5), "b": b"\x00"}


class Lake:
    """A queue and a dead-letter queue, captured."""

    def __init__(self, spark: "SparkSession", bus: Bus, path: Path) -> None:
        self.path = str(path)
        self.queue, dead = bus.queue(), bus.queue("bad")
        self.dead = f"{dead}/$deadletterqueue"
        sent = [
            OutgoingMessage(
                f"body {index}",
                message_id=f"id {index}",
                session_id=f"s{index % 2}",
                subject="even" if index % 2 == 0 else "odd",
                correlation_id="c",
                content_type="text/plain",
                time_to_live_ms=3_600_000,
                application_properties=PROPERTIES,
            )
            for index in range(COUNT)
        ]
        bus.send(self.queue, sent)
        bus.dead_letter(dead, "bad")
        access = bus.options["connectionString"]
        config = capture.CaptureConfig((self.queue, self.dead), self.path, connection_string=access, patience_s=0.0)
        assert capture.run(spark, config).settled == COUNT + 1


@pytest.fixture(scope="module")
def lake(spark: "SparkSession", bus: Bus, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return Lake(spark, bus, tmp_path_factory.mktemp("lake"))


def config_for(bus: Bus, lake: Lake, to: str, **options: Any) -> ReplayConfig:
    return ReplayConfig(lake.path, to, **{"connection_string": bus.options["connectionString"], **options})


def test_messages_arrive_as_they_were_in_their_order_and_a_run_goes_on_from_its_checkpoint(
    spark: "SparkSession", bus: Bus, lake: Lake, tmp_path: Path
) -> None:
    to = bus.queue(requires_duplicate_detection=True, duplicate_detection_history_time_window=timedelta(hours=1))
    config = config_for(bus, lake, to, entities=(lake.queue,), step_messages=8, checkpoint=str(tmp_path))
    summary = run(spark, config)
    assert (summary.planned, summary.sent, summary.steps) == (COUNT, COUNT, 3)
    arrived = bus.peek(to)
    assert [message.body.decode() for message in arrived] == [f"body {index}" for index in range(COUNT)]
    first = arrived[0]
    assert (first.message_id, first.session_id, first.properties.subject) == ("id 0", "s0", "even")
    assert (first.properties.correlation_id, first.properties.content_type) == ("c", "text/plain")
    assert first.header.ttl_ms == 3_600_000
    assert first.application_properties == PROPERTIES
    assert [type(value) for value in first.application_properties.values()] == [type(v) for v in PROPERTIES.values()]
    # A run that died after the second step had been sent, and before that was written down.
    (tmp_path / "done" / "000001.json").unlink()
    again = run(spark, config)
    assert (again.sent, again.steps, again.steps_before) == (7, 1, 2)  # numbers 7 to 13
    assert len(bus.peek(to)) == COUNT  # duplicates were dropped
    assert run(spark, config).sent == 0
    with pytest.raises(PlaceError, match='its where is "", and here it is "true"'):
        run(spark, config_for(bus, lake, to, entities=(lake.queue,), where="true", checkpoint=str(tmp_path)))


def test_ranges_cover_every_number_once() -> None:
    assert ranges(1, 20, 20, 8) == [(1, 6), (7, 13), (14, 20)]
    assert ranges(5, 5, 1, 50_000) == [(5, 5)]
    assert ranges(1, 1_000_000, 3, 2) == [(1, 500_000), (500_001, 1_000_000)]
