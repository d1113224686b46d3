"""How far streams are behind, as their progress tells it. Time is stepped."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import LongType, StringType, StructField, StructType

from spillway.client import OutgoingMessage
from spillway.spark.platform.operations import COUNT, REPORT_S
from spillway.spark.platform.queries import run_to_end
from spillway.spark.source.browse import BrowseStreamReader
from spillway.spark.source.lag import LAG, LAG_MESSAGES, LAG_S, EntityLag, Lag
from spillway.spark.source.locked import LockedStreamReader
from spillway.spark.source.options import read_options
from spillway.spark.source.settling import settling
from tests.spark.bus import Bus

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = StructType([StructField("sequence_number", LongType()), StructField("lock_token", StringType())])
MODES = {
    "browse": {},
    "peeklock": {"mode": "peeklock", "settle": "manual"},
    "receiveanddelete": {"mode": "receiveanddelete", "allowLoss": "true"},
}


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def stream_of(bus: Bus, mode: str, clock: Clock, *queues: str) -> BrowseStreamReader | LockedStreamReader:
    options = read_options({**bus.options, "entity": ",".join(queues), **MODES[mode]}, is_streaming=True)
    kind = BrowseStreamReader if mode == "browse" else LockedStreamReader
    return kind(options, SCHEMA, clock)


@pytest.mark.parametrize("mode", MODES)
def test_a_stream_reports_what_waits_in_each_entity_and_for_how_long(bus: Bus, mode: str) -> None:
    clock = Clock()
    many, one, empty = bus.queue(*[str(number) for number in range(40)]), bus.queue("x"), bus.queue()
    first_ms, other_ms = bus.peek(many)[0].enqueued_time_ms, bus.peek(one)[0].enqueued_time_ms
    assert first_ms is not None and other_ms is not None
    stream = stream_of(bus, mode, clock, many, one, empty)
    stream._lag = Lag(clock, now=lambda: first_ms / 1000 + 90)
    start: dict[str, Any] = stream.initialOffset()
    planned = 10 if mode == "browse" else 0  # what is received is in its entity until a task has it
    one_waits = 0 if mode == "browse" else 1
    assert stream.latestOffset(start, ReadMaxRows(20)) != start
    report = stream.reportLatestOffset()
    assert report[LAG][many] == {"messages": 40 - planned, "seconds": pytest.approx(90, abs=1)}
    assert report[LAG][one]["messages"] == one_waits
    assert report[LAG][empty] == {"messages": 0, "seconds": 0.0}
    assert report[LAG_MESSAGES] == 40 - planned + one_waits
    assert report[LAG_S] == report[LAG][many]["seconds"]
    json.dumps(report)


@pytest.mark.parametrize("mode", MODES)
def test_what_waits_is_looked_at_only_now_and_then_and_follows_what_comes_and_goes(bus: Bus, mode: str) -> None:
    clock = Clock()
    queue = bus.queue("one", "two")
    stream = stream_of(bus, mode, clock, queue)
    stream._lag = Lag(clock, now=clock)
    stream.latestOffset(stream.initialOffset(), ReadMaxRows(1))
    first = stream.reportLatestOffset()
    taken = 1 if mode == "browse" else 0
    assert first[LAG_MESSAGES] == 2 - taken
    bus.send(queue, [OutgoingMessage("three")])
    assert stream.reportLatestOffset() == first  # nothing was asked
    clock.now_s += REPORT_S
    later = stream.reportLatestOffset()
    assert (later[LAG_MESSAGES], later[LAG_S] >= first[LAG_S]) == (3 - taken, True)
    assert 0 < later[COUNT] - first[COUNT] <= 6
    bus.dead_letter(queue, "gone")
    clock.now_s += REPORT_S
    assert stream.reportLatestOffset()[LAG_MESSAGES] == 0


def test_a_last_message_that_has_gone_is_not_counted_with_those_before_it(bus: Bus) -> None:
    clock = Clock()
    queue = bus.queue("one", "two")
    stream = stream_of(bus, "browse", clock, queue)
    stream._lag.waiting = {queue: EntityLag(1, 0, 50)}
    assert stream.reportLatestOffset()[LAG_MESSAGES] == 2


def test_numbers_that_tell_nothing_are_not_added_up() -> None:
    lag = Lag(Clock(), now=lambda: 100.0)
    lag.waiting = {"partitioned": EntityLag(2**50, 40_000, None), "other": EntityLag(3, 70_000, 5)}
    report = lag.report(("partitioned", "other"), {})
    assert report[LAG]["partitioned"] == {"messages": None, "seconds": 60.0}
    assert (report[LAG]["other"]["messages"], report[LAG_MESSAGES], report[LAG_S]) == (3, None, 60.0)
    assert lag.report(("other",), {"other": 6})[LAG_MESSAGES] == 0


def test_the_progress_of_a_receiving_query_has_its_lag(spark: "SparkSession", bus: Bus, tmp_path: Path) -> None:
    queue = bus.queue(*[str(number) for number in range(30)])
    options = {**bus.options, **MODES["peeklock"], "firstBatchMessages": "10"}

    def ignore(batch: "DataFrame", number: int) -> None:
        batch.count()

    frame = spark.readStream.format("servicebus").options(**options).load(queue)
    writer = frame.writeStream.foreachBatch(settling(ignore, options)).option("checkpointLocation", str(tmp_path))
    query = run_to_end(lambda: writer.trigger(availableNow=True).start(), 120)
    told: list[dict[str, Any]] = [json.loads(one["sources"][0]["latestOffset"]) for one in query.recentProgress]
    assert [one["numInputRows"] for one in query.recentProgress][:2] == [10, 20]
    assert told[0][LAG][queue]["messages"] == told[0][LAG_MESSAGES] == 30
    assert told[0][LAG_S] > 0
    assert bus.peek(queue) == []
