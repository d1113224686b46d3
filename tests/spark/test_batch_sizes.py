"""Batches by bytes, and tasks by what there is to do."""

from collections.abc import Iterator

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import LongType, StructField, StructType

from spillway.spark.platform.connection_pool import connection_pool
from spillway.spark.platform.operations import CountedPool, Operations
from spillway.spark.source import browse, parallel
from spillway.spark.source.browse import BrowseReader, BrowseStreamReader, RangePartition
from spillway.spark.source.byte_limits import bytes_of
from spillway.spark.source.locked import LockedPartition, LockedStreamReader, Reception, plan
from spillway.spark.source.options import read_options
from spillway.spark.source.parallel import tasks_for
from tests.spark.bus import Bus
from tests.spark.stated_numbers import QUEUE, StatedNumbers, StatedPool
from tests.spark.test_dead_letters import NOWHERE

NUMBERS = StructType([StructField("sequence_number", LongType())])
KB = "x" * 1_000


def sizes(bus: Bus, queue: str, count_max: int = 1_000, **given: str) -> list[int]:
    """Of each batch of a stream that browses, in messages."""
    options = read_options({**bus.options, "entity": queue, **given}, is_streaming=True)
    stream = BrowseStreamReader(options, NUMBERS)
    at, found = stream.initialOffset(), []
    while (end := stream.latestOffset(at, ReadMaxRows(count_max))) != at:
        parts = stream.partitions(at, end)
        found.append(sum(rows.num_rows for part in parts for rows in stream.read(part)))
        at = end
    return found


def test_batches_of_a_browsing_stream_have_about_so_many_bytes(bus: Bus) -> None:
    queue = bus.queue(*[KB] * 100)
    found = sizes(bus, queue, maxBytes="22k")
    assert sum(found) == 100 and all(15 <= count <= 22 for count in found[:-1])  # with their properties
    assert sizes(bus, queue, maxBytes="1m") == [100]
    assert sizes(bus, queue, count_max=10, maxBytes="1m") == [10] * 10


def test_a_message_that_is_larger_than_the_limit_is_a_batch_of_its_own(bus: Bus) -> None:
    queue = bus.queue("a", KB * 50, KB * 50, *"bcd")
    assert sizes(bus, queue, maxBytes="10k") == [1, 1, 1, 3]


def test_the_latest_is_the_end_whatever_the_limit_is(bus: Bus) -> None:
    queue = bus.queue(*[KB] * 30)
    given = {**bus.options, "entity": queue, "maxBytes": "5k", "startAt": "latest"}
    stream = BrowseStreamReader(read_options(given, is_streaming=True), NUMBERS)
    assert stream.initialOffset()[queue]["next"] == 31
    stream.prepareForTriggerAvailableNow()
    assert stream._target == {queue: 31}


def received(bus: Bus, queue: str, bytes_max: int) -> list[int]:
    given = {"mode": "receiveanddelete", "allowLoss": "true", "maxWaitSeconds": "0.1", "entity": queue}
    partition = LockedPartition(queue, 1_000, None, is_of_stream=True)
    partition.bytes_max = bytes_max
    options = read_options({**bus.options, **given})
    return [
        sum(len(message.raw) for message in chunk)
        for chunk in Reception(connection_pool(), options, partition).chunks()
    ]


def test_a_task_that_receives_ends_when_it_has_so_many_bytes(bus: Bus) -> None:
    queue = bus.queue(*[KB] * 100)
    assert 20_000 <= sum(received(bus, queue, 20_000)) <= 22_000
    assert 78 <= len(bus.peek(queue)) <= 82
    sized = bus.queue("a", *[KB * 20] * 50)
    chunks = received(bus, sized, 100_000)
    assert 100_000 <= sum(chunks) <= 3 * 100_000  # at most twice as many at a time as it had
    assert len(received(bus, bus.queue(KB * 20, "b"), 1)) == 1


def test_tasks_share_the_bytes_of_a_batch(bus: Bus) -> None:
    queue = bus.queue("a", "b")
    given = {"mode": "peeklock", "settle": "manual", "entity": queue, "maxBytes": "1000", "partitions": "4"}
    stream = LockedStreamReader(read_options({**bus.options, **given}, is_streaming=True), NUMBERS)
    start = stream.initialOffset()
    parts = stream.partitions(start, stream.latestOffset(start, ReadMaxRows(100)))
    assert [part.bytes_max for part in parts if isinstance(part, LockedPartition)] == [250] * 4


@pytest.mark.parametrize(("text", "count"), [("500", 500), ("2k", 2_048), ("64M", 64 * 1024**2), (" 1g ", 1024**3)])
def test_bytes_are_said_in_units(text: str, count: int) -> None:
    assert bytes_of({"maxbytes": text}, True) == count


# -- tasks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "entities", "cores", "tasks"),
    [(1, 1, 8, 1), (5_000, 1, 8, 1), (5_001, 1, 8, 2), (10**6, 1, 8, 8), (10**6, 3, 8, 3), (10**6, 20, 8, 1)]
    + [(10**9, 1, 500, 32), (10**6, 1, 1, 1)],
)
def test_tasks_are_as_many_as_there_is_work_for_and_cores(count: int, entities: int, cores: int, tasks: int) -> None:
    assert tasks_for(count, entities, cores) == tasks


@pytest.fixture
def deep(monkeypatch: pytest.MonkeyPatch) -> Iterator[StatedNumbers]:
    numbers = StatedNumbers(keeps_numbers=True)
    numbers.send(12_000)
    pool = StatedPool(numbers)
    monkeypatch.setattr(browse, "connection_pool", lambda: pool)
    monkeypatch.setattr(parallel, "core_count", lambda: 8)
    yield numbers
    pool.close()


def test_a_deep_entity_is_browsed_by_several_tasks_unless_it_is_said_how_many(deep: StatedNumbers) -> None:
    def parts(**given: str) -> list[tuple[int, int]]:
        options = {"connectionString": NOWHERE, "entity": QUEUE, **given}
        reader = BrowseReader(read_options(options, is_streaming=False), NUMBERS)
        return [(part.start, part.end) for part in reader.partitions() if isinstance(part, RangePartition)]

    assert parts() == parts(partitions="auto") == [(1, 4_001), (4_001, 8_001), (8_001, 12_001)]
    assert parts(partitions="1") == [(1, 12_001)]
    options = read_options({"connectionString": NOWHERE, "entity": QUEUE}, is_streaming=True)
    stream = BrowseStreamReader(options, NUMBERS)
    end = stream.latestOffset({QUEUE: 0}, ReadAllAvailable())
    assert len(stream.partitions({QUEUE: 0}, end)) == 3
    assert len(stream.partitions({QUEUE: 11_000}, end)) == 1


def test_receivers_are_as_many_as_have_something_to_do(deep: StatedNumbers) -> None:
    given = {"connectionString": NOWHERE, "entity": QUEUE, "mode": "peeklock", "settle": "manual"}

    def receivers(count: int, **more: str) -> int:
        pool = StatedPool(deep)
        options = read_options({**given, **more}, is_streaming=True)
        try:
            return len(pool.run(plan(CountedPool(pool, Operations()), options, options.entities, count)))
        finally:
            pool.close()

    assert [receivers(count) for count in (1_000, 10_000, 40_000, 0)] == [1, 2, 3, 3]
    assert receivers(10_000, partitions="5") == 5
    deep.complete(*range(1, 11_900))
    assert receivers(40_000) == 1
