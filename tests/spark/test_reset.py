"""A browsing checkpoint belongs to one entity: what was made anew under the same name is noticed, with Listen alone."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import LongType, StructField, StructType

from spillway.client import OutgoingMessage, connect
from spillway.spark.platform.connection_pool import NamespaceError
from spillway.spark.platform.queries import run_to_end
from spillway.spark.source.batch_ends import Offset
from spillway.spark.source.browse import BrowseStreamReader
from spillway.spark.source.options import read_options
from tests.spark.bus import Bus, run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NUMBERS = StructType([StructField("sequence_number", LongType())])


def reader(options: dict[str, str], entity: str, **given: str) -> BrowseStreamReader:
    return BrowseStreamReader(read_options({**options, "entity": entity, **given}, is_streaming=True), NUMBERS)


def latest(bus: Bus, queue: str, start: Offset, **given: str) -> Offset:
    """As a query that is started again asks."""
    return reader(bus.options, queue, **given).latestOffset(start, ReadMaxRows(1_000))


def read(bus: Bus, queue: str, start: Offset, end: Offset) -> list[int]:
    stream = reader(bus.options, queue)
    parts = stream.partitions(start, end)
    return [row["sequence_number"] for part in parts for batch in stream.read(part) for row in batch.to_pylist()]


def send(bus: Bus, queue: str, count: int, **properties: Any) -> None:
    bus.send(queue, [OutgoingMessage(str(number), **properties) for number in range(count)])


def make_anew(bus: Bus, queue: str, count: int) -> None:
    with bus.namespaces.administration(bus.broker) as client:
        client.delete_queue(queue)
        client.create_queue(queue)
    send(bus, queue, count)


def take(bus: Bus, queue: str, count: int, skipped: int = 0) -> None:
    """Somebody receives and completes messages; the first ones are deferred instead, and stay."""

    async def work() -> None:
        async with await connect(bus.broker.connection_string) as connection:
            receiver = await connection.receiver(queue)
            left = count
            while left:
                for message in await receiver.receive(left, 5):
                    is_kept = count - left < skipped
                    await (receiver.defer(message) if is_kept else receiver.complete(message))
                    left -= 1

    run(work())


def a_minute_earlier(offset: Offset, queue: str) -> Offset:
    """As if what was read had been sent then."""
    number, enqueued_ms = offset[queue]["passed"]
    return {queue: {**offset[queue], "passed": [number, enqueued_ms - 60_000]}}


def test_a_queue_made_anew_that_has_more_messages_than_were_read_is_noticed(bus: Bus) -> None:
    queue = bus.queue(*"abcde")
    end = latest(bus, queue, {queue: 0})
    make_anew(bus, queue, 8)
    with pytest.raises(NamespaceError, match="made anew: message 5, enqueued .* is one enqueued .* onReset=earliest"):
        latest(bus, queue, end)


def test_a_queue_made_anew_that_has_fewer_is_noticed_as_soon_as_it_has_any(bus: Bus) -> None:
    queue = bus.queue(*"abcde")
    end = a_minute_earlier(latest(bus, queue, {queue: 0}), queue)
    make_anew(bus, queue, 0)
    assert latest(bus, queue, end) == end  # nothing is passed over
    send(bus, queue, 2)
    with pytest.raises(NamespaceError, match="message 1 was enqueued .*, after message 5 was"):
        latest(bus, queue, end)


def test_a_stream_that_is_running_notices_it_too(bus: Bus) -> None:
    queue = bus.queue(*"abcde")
    stream = reader(bus.options, queue)
    end = stream.latestOffset(stream.initialOffset(), ReadMaxRows(1_000))
    assert stream.latestOffset(end, ReadMaxRows(1_000)) == end
    make_anew(bus, queue, 8)

    def look_thrice() -> None:
        for _ in range(3):  # the first may meet the end of its link
            stream._patience.on_answered()
            stream._pace.on_looked(is_idle=False)
            assert stream.latestOffset(end, ReadMaxRows(1_000)) == end

    with pytest.raises(NamespaceError, match="made anew"):
        look_thrice()


@pytest.mark.parametrize("count", [2, 8])
def test_onreset_earliest_begins_anew_and_the_batch_is_the_same_when_it_is_planned_again(bus: Bus, count: int) -> None:
    queue = bus.queue(*"abcde")
    start = a_minute_earlier(latest(bus, queue, {queue: 0}), queue)
    make_anew(bus, queue, count)
    end = latest(bus, queue, start, onReset="earliest")
    assert read(bus, queue, start, end) == read(bus, queue, start, end) == list(range(1, count + 1))
    assert latest(bus, queue, end, onReset="earliest") == end  # and once only
    send(bus, queue, 1)
    after = latest(bus, queue, end, onReset="fail")
    assert read(bus, queue, end, after) == [count + 1]


def test_messages_that_were_received_meanwhile_are_no_reset(bus: Bus) -> None:
    queue = bus.queue(*"abcdefgh")
    end = latest(bus, queue, {queue: 0})
    take(bus, queue, 8, skipped=2)
    assert latest(bus, queue, end) == end  # 1 and 2 are left, which are older
    take_all = latest(bus, queue, a_minute_earlier(end, queue), onReset="earliest")
    assert take_all[queue]["next"] == 3  # the same as another entity would look
    send(bus, queue, 1)
    assert read(bus, queue, end, latest(bus, queue, end)) == [9]


def test_messages_that_wait_for_their_time_and_dead_letters_are_no_reset(bus: Bus) -> None:
    queue = bus.queue()
    send(bus, queue, 1, scheduled_enqueue_time_ms=int((datetime.now(UTC) + timedelta(days=1)).timestamp() * 1000))
    send(bus, queue, 3)
    end = latest(bus, queue, {queue: 0})
    take(bus, queue, 3)
    assert latest(bus, queue, end) == end
    dead = bus.queue(*"abc")
    bus.dead_letter(dead, "why")
    path = f"{dead}/$deadletterqueue"
    after = latest(bus, path, {path: 0})
    take(bus, path, 1)
    earlier = a_minute_earlier({path: {**after[path], "passed": [9, after[path]["passed"][1]], "next": 10}}, path)
    assert latest(bus, path, earlier) == earlier


def test_a_checkpoint_of_an_earlier_version_goes_on_and_knows_from_then_on(bus: Bus) -> None:
    queue = bus.queue(*"abcde")
    end = latest(bus, queue, {queue: 3})
    assert read(bus, queue, {queue: 3}, end) == [3, 4, 5]
    assert latest(bus, queue, {queue: 6}) == {queue: 6}
    make_anew(bus, queue, 8)
    with pytest.raises(NamespaceError, match="made anew"):
        latest(bus, queue, end)


def test_the_right_to_listen_is_enough(bus: Bus) -> None:
    queue = bus.queue(*"abcde")
    listener = {"connectionString": bus.key(queue, ["Listen"])}
    end = reader(listener, queue).latestOffset({queue: 0}, ReadMaxRows(1_000))
    assert end[queue]["next"] == 6
    with bus.namespaces.administration(bus.broker) as client:
        client.delete_queue(queue)
        client.create_queue(queue)
    send(bus, queue, 8)
    # Another connection, as another process has it: the old one's token was of the rule that went with the queue.
    listener = {"connectionString": bus.key(queue, ["Listen"]), "timeoutSeconds": "59"}
    with pytest.raises(NamespaceError, match="made anew"):
        reader(listener, queue).latestOffset(end, ReadMaxRows(1_000))


def test_a_query_on_a_queue_made_anew_fails_with_the_choice_and_takes_it(
    spark: "SparkSession", bus: Bus, tmp_path: Path
) -> None:
    queue = bus.queue(*[str(number) for number in range(50)])
    seen: list[int] = []

    def collect(batch: "DataFrame", number: int) -> None:
        seen.extend(row["sequence_number"] for row in batch.select("sequence_number").collect())

    def run_now(**options: str) -> list[int]:
        seen.clear()
        frame = spark.readStream.format("servicebus").options(**bus.options, **options).load(queue)
        writer = frame.writeStream.foreachBatch(collect).option("checkpointLocation", str(tmp_path))
        run_to_end(lambda: writer.trigger(availableNow=True).start(), 120)
        return sorted(seen)

    assert run_now() == list(range(1, 51))
    make_anew(bus, queue, 60)
    with pytest.raises(PySparkException, match="made anew.*Say onReset=earliest"):
        run_now()
    assert seen == []
    assert run_now(onReset="earliest") == list(range(1, 61))
    assert run_now() == []
