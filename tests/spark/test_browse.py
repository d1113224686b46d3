"""Browsing as the driver plans it and an executor reads it, without Spark around it."""

import asyncio

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import LongType, StructField, StructType

from spillway.client import OutgoingMessage, ReceivedMessage, connect
from spillway.spark.source.batch_ends import Offset
from spillway.spark.source.browse import BrowseStreamReader, RangePartition
from spillway.spark.source.options import read_options
from tests.spark.bus import Bus, run

NUMBERS = StructType([StructField("sequence_number", LongType())])


def reader(bus: Bus, entity: str, **options: str) -> BrowseStreamReader:
    return BrowseStreamReader(read_options({**bus.options, "entity": entity, **options}, is_streaming=True), NUMBERS)


def numbers(stream: BrowseStreamReader, start: Offset, end: Offset) -> list[int]:
    return [
        row["sequence_number"]
        for partition in stream.partitions(start, end)
        for batch in stream.read(partition)
        for row in batch.to_pylist()
    ]


def with_gaps(bus: Bus, count: int, kept: set[int]) -> str:
    """A queue of which only these messages are left."""
    queue = bus.queue(*[str(number) for number in range(1, count + 1)])

    async def work() -> None:
        async with await connect(bus.broker.connection_string) as connection:
            receiver = await connection.receiver(queue)
            messages: list[ReceivedMessage] = []
            while len(messages) < count:
                messages += await receiver.receive(count, 5)
            await asyncio.gather(
                *[
                    receiver.complete(message) if message.sequence_number not in kept else receiver.abandon(message)
                    for message in messages
                ]
            )

    run(work())
    return queue


def test_batches_follow_each_other_over_gaps_and_have_no_more_than_their_limit(bus: Bus) -> None:
    left = {3, 4, 40, 41, 42, 99}
    queue = with_gaps(bus, 100, left)
    stream = reader(bus, queue)
    at = stream.initialOffset()
    seen: list[list[int]] = []
    while (end := stream.latestOffset(at, ReadMaxRows(2))) != at:
        seen.append(numbers(stream, at, end))
        assert numbers(stream, at, end) == seen[-1]  # the same once more
        at = end
    assert all(len(batch) <= 2 for batch in seen)
    assert [number for batch in seen for number in batch] == sorted(left)


def test_everything_available_is_one_batch_in_as_many_parts_as_asked_for(bus: Bus) -> None:
    queue = bus.queue(*[str(number) for number in range(20)])
    stream = reader(bus, queue, partitions="3")
    end = stream.latestOffset({queue: 0}, ReadAllAvailable())
    assert end[queue]["next"] == 21
    parts = [part for part in stream.partitions({queue: 5}, end) if isinstance(part, RangePartition)]
    assert [(part.start, part.end) for part in parts] == [(5, 10), (10, 15), (15, 21)]
    assert stream.partitions(end, end) == []


def test_a_run_that_takes_what_is_there_does_not_see_what_comes_later(bus: Bus) -> None:
    queue = bus.queue("one", "two")
    stream = reader(bus, queue)
    stream.prepareForTriggerAvailableNow()
    bus.send(queue, [OutgoingMessage("later")])
    end = stream.latestOffset(stream.initialOffset(), ReadMaxRows(100))
    assert numbers(stream, {queue: 0}, end) == [1, 2]
    assert stream.latestOffset(end, ReadMaxRows(100)) == end
    report = stream.reportLatestOffset()
    assert report[queue] == 4  # which is what is still to come


def test_a_stream_from_the_latest_begins_with_the_next_message(bus: Bus) -> None:
    queue = bus.queue("one", "two")
    stream = reader(bus, queue, startAt="latest")
    at = stream.initialOffset()
    assert stream.latestOffset(at, ReadMaxRows(10)) == at
    stream._pace.on_looked(is_idle=False)  # the pause is over
    bus.send(queue, [OutgoingMessage("three")])
    assert numbers(stream, at, stream.latestOffset(at, ReadMaxRows(10))) == [3]


def test_the_rows_of_a_batch_are_shared_among_the_entities_that_have_any(bus: Bus) -> None:
    first, second, empty = bus.queue(*"abcdef"), bus.queue(*"abc"), bus.queue()
    stream = reader(bus, f"{first},{second},{empty}")
    end = stream.latestOffset(stream.initialOffset(), ReadMaxRows(4))
    assert (end[first]["next"], end[second]["next"], end[empty]) == (3, 3, 0)
