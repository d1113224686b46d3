"""What a query asks of a service: ever less often while nothing comes, counted, within a budget. Time is stepped."""

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import LongType, StringType, StructField, StructType

from spillway.client import OutgoingMessage
from spillway.spark.platform import operations as operations_module
from spillway.spark.platform.connection_pool import connection_pool
from spillway.spark.platform.operations import COUNT, IDLE_LOOK_S, Operations, PollPace
from spillway.spark.source.browse import BrowseReader, BrowseStreamReader
from spillway.spark.source.locked import LockedPartition, LockedStreamReader, Reception
from spillway.spark.source.options import read_options, write_options
from spillway.spark.source.refusals import OutgoingRow
from spillway.spark.source.sink import RowSending
from tests.spark.bus import Bus

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = StructType([StructField("sequence_number", LongType()), StructField("lock_token", StringType())])
NO_DATA = "spark.sql.streaming.noDataProgressEventInterval"  # how often Spark tells of idle streams, in ms
POLL_S = 0.01  # Spark's own, without a trigger


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


Stream = BrowseStreamReader | LockedStreamReader


def poll(stream: Stream, clock: Clock, start: dict[str, Any], for_s: float) -> dict[str, Any]:
    """As Spark does: the latest offset and the one to report, until something is new."""
    until_s = clock.now_s + for_s
    while clock.now_s < until_s:
        end = stream.latestOffset(start, ReadMaxRows(100))
        if end != start:
            return end
        stream.reportLatestOffset()
        clock.now_s += POLL_S
    return start


def test_an_idle_stream_looks_ever_less_often_and_at_once_when_something_came() -> None:
    clock = Clock()
    pace = PollPace(clock)
    looks: list[float] = []
    while clock.now_s < 1_600:
        if pace.is_due:
            looks.append(clock.now_s)
            pace.on_looked(is_idle=True)
        clock.now_s += POLL_S
    gaps = [later - earlier for earlier, later in zip(looks, looks[1:], strict=False)]
    assert gaps[0] < 0.12 and max(gaps) < IDLE_LOOK_S + 2 * POLL_S and gaps[-1] > IDLE_LOOK_S - POLL_S
    assert all(later > earlier - 2 * POLL_S for earlier, later in zip(gaps, gaps[1:], strict=False))
    assert len(looks) < 80  # ten minutes
    pace.on_looked(is_idle=False)
    assert pace.is_due


def browsing(bus: Bus, queue: str, clock: Clock) -> Stream:
    return BrowseStreamReader(read_options({**bus.options, "entity": queue}, True), SCHEMA, clock)


def receiving(bus: Bus, queue: str, clock: Clock) -> Stream:
    options = read_options({**bus.options, "entity": queue, "mode": "peeklock", "settle": "manual"}, True)
    return LockedStreamReader(options, SCHEMA, clock)


@pytest.mark.parametrize("make", [browsing, receiving])
def test_a_minute_of_nothing_costs_few_operations_and_what_comes_is_found(bus: Bus, make: Any) -> None:
    clock = Clock()
    queue = bus.queue()
    stream: Stream = make(bus, queue, clock)
    start = stream.initialOffset()
    assert poll(stream, clock, start, 60) == start
    count = stream._operations.count
    assert 5 < count <= 60  # of 6,000 times that Spark asked, which were 12,000
    report = stream.reportLatestOffset()
    assert report[COUNT] == count
    bus.send(queue, [OutgoingMessage("new")])
    assert poll(stream, clock, start, IDLE_LOOK_S + 1) != start


def test_messages_in_somebodys_lock_are_asked_for_seldom_too(bus: Bus) -> None:
    clock = Clock()
    queue = bus.queue("one")
    stream = receiving(bus, queue, clock)
    end = stream.latestOffset(stream.initialOffset(), ReadMaxRows(100))
    with bus.locked_by_another(queue, 1):
        poll(stream, clock, end, 60)
    assert stream._operations.count < 25 * 21  # a look at a line that does not move is some twenty


# -- the budget --------------------------------------------------------------------------------------------------------


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """For the budget: told, and not waited for."""
    found: list[float] = []

    async def pause(seconds: float) -> None:
        found.append(seconds)

    monkeypatch.setattr(operations_module, "pause", pause)
    return found


def test_operations_have_their_turns_in_the_order_they_are_asked_for(waited: list[float]) -> None:
    clock = Clock()
    operations = Operations(10, clock)

    async def work() -> None:
        await asyncio.gather(*[operations.begin() for _ in range(4)])
        operations.add(6)  # messages that one of them brought
        await operations.begin()
        clock.now_s += 60
        await operations.begin()  # what was not used is not saved up

    asyncio.run(work())
    assert [round(seconds, 3) for seconds in waited] == [0.1, 0.2, 0.3, 1.0]
    assert operations.count == 12
    assert operations.most_at_a_time(2_000) == 10


def test_without_a_budget_nothing_waits(waited: list[float]) -> None:
    operations = Operations()
    asyncio.run(operations.begin())
    assert (operations.count, operations.most_at_a_time(2_000), waited) == (1, 2_000, [])


def test_tasks_that_browse_share_the_budget(bus: Bus, waited: list[float]) -> None:
    queue = bus.queue(*[str(number) for number in range(1_200)])
    options = {**bus.options, "entity": queue, "partitions": "2", "maxOperationsPerSecond": "0.4"}
    reader = BrowseReader(read_options(options), SCHEMA)
    parts = reader.partitions()
    waited.clear()  # those of planning
    assert sum(batch.num_rows for part in parts for batch in reader.read(part)) == 1_200
    assert len(waited) == 2 and all(3 < seconds <= 5 for seconds in waited)  # two pages each, one in five seconds


def test_a_task_that_receives_keeps_to_the_budget_message_by_message(bus: Bus, waited: list[float]) -> None:
    queue = bus.queue(*[str(number) for number in range(12)])
    given = {"entity": queue, "mode": "receiveanddelete", "allowLoss": "true", "maxWaitSeconds": "0.1"}
    options = read_options({**bus.options, **given, "maxOperationsPerSecond": "2"})
    chunks = [len(chunk) for chunk in Reception(connection_pool(), options, LockedPartition(queue, 12, None)).chunks()]
    assert sum(chunks) == 12 and max(chunks) <= 2
    assert sum(waited) > 8  # the pauses were not made, so that they grow: twelve at two a second


def test_a_task_that_writes_keeps_to_the_budget(bus: Bus, waited: list[float]) -> None:
    queue = bus.queue()
    sending = RowSending(
        connection_pool(), write_options({**bus.options, "path": queue, "maxOperationsPerSecond": "1"})
    )
    some = [(queue, str(number), OutgoingMessage(str(number)).encode()) for number in range(20)]
    connection_pool().run(sending._send([OutgoingRow(each, None) for each in some], is_all_or_none=False))
    connection_pool().run(sending._close())
    assert len(bus.peek(queue)) == 20
    assert len(waited) == 19 and max(waited) > 12


# -- with Spark --------------------------------------------------------------------------------------------------------


def test_the_progress_of_an_idle_stream_has_few_operations_in_it(
    spark: "SparkSession", bus: Bus, tmp_path: Path
) -> None:
    queue = bus.queue("one")

    def ignore(batch: "DataFrame", number: int) -> None:
        batch.count()

    frame = spark.readStream.format("servicebus").options(**bus.options).load(queue)
    spark.conf.set(NO_DATA, "1000")
    # No trigger: as soon as possible, which nobody should say.
    query = frame.writeStream.foreachBatch(ignore).option("checkpointLocation", str(tmp_path)).start()
    try:
        query.processAllAvailable()
        query.awaitTermination(5)  # real: it is Spark that asks
        assert query.exception() is None
        progress = query.lastProgress
        assert progress is not None
        latest = progress["sources"][0]["latestOffset"]
    finally:
        query.stop()
        spark.conf.unset(NO_DATA)
    counted = re.findall(r'\$operations"?\s*[:=]\s*(\d+)', str(latest).replace("'", ""))
    assert counted and 2 <= int(counted[-1]) < 60, latest


def test_every_program_of_the_guides_that_writes_a_stream_has_a_trigger() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    programs = [
        (page.name, program)
        for page in pages
        for program in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
        if "writeStream" in program
    ]
    assert programs
    assert [name for name, program in programs if ".trigger(" not in program] == []
