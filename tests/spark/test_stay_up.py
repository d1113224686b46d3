"""Streams whose broker dies under them and comes back: they wait, go on, and nothing is lost."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spillway.client import OutgoingMessage, connect
from spillway.spark.source.settle import settle
from tests.spark.bus import run
from tests.tools.broker_process import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

AWAY_S = 6.0  # real: it is other processes that have to meet it
WAIT_S = 90.0


class Mortal:
    """A broker of its own, which may be killed, with queues."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker

    @property
    def options(self) -> dict[str, str]:
        return {"connectionString": self.broker.connection_string}

    def send(self, queue: str, first: int, count: int) -> None:
        async def work() -> None:
            async with await connect(self.broker.connection_string) as connection:
                sender = await connection.sender(queue)
                posted = [sender.post(OutgoingMessage(str(first + index))) for index in range(count)]
                await asyncio.gather(*posted)

        run(work())

    def bodies(self, queue: str) -> list[str]:
        async def work() -> list[str]:
            found: list[str] = []
            first = 0
            async with await connect(self.broker.connection_string) as connection:
                while messages := await connection.management(queue).peek(first, 500):
                    found += [message.body.decode() for message in messages]
                    first = (messages[-1].sequence_number or 0) + 1
            return found

        return run(work())


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[Mortal]:
    with BrokerProcess(tmp_path / "mortal", queues=["browsed", "locked", "sunk"]) as broker:
        yield Mortal(broker)


class Seen:
    """Bodies that batches brought, told to whoever waits for them."""

    def __init__(self) -> None:
        self.bodies: list[str] = []
        self._told = threading.Condition()

    def add(self, bodies: list[str]) -> None:
        with self._told:
            self.bodies += bodies
            self._told.notify_all()

    def wait_for(self, expected: set[str], query: "StreamingQuery") -> None:
        with self._told:
            came = self._told.wait_for(lambda: expected <= set(self.bodies) or not query.isActive, WAIT_S)
        assert came and query.isActive, (len(set(self.bodies)), query.exception())


def start(frame: "DataFrame", checkpoint: Path, each: "Callable[[DataFrame, int], None]") -> "StreamingQuery":
    writer = frame.writeStream.foreachBatch(each).option("checkpointLocation", str(checkpoint))
    return writer.trigger(processingTime="200 milliseconds").start()


def numbers(first: int, count: int) -> set[str]:
    return {str(number) for number in range(first, first + count)}


def test_a_broker_that_is_killed_and_comes_back_ends_no_stream_and_loses_nothing(
    spark: "SparkSession", mortal: Mortal, tmp_path: Path
) -> None:
    for queue in ("browsed", "locked"):
        mortal.send(queue, 0, 300)
    browsed, locked = Seen(), Seen()

    def look(batch: "DataFrame", number: int) -> None:
        browsed.add([row["body"] for row in batch.select("body").collect()])

    def store(batch: "DataFrame", number: int) -> None:
        path = str(tmp_path / f"rows/batch={number}")
        batch.write.mode("append").parquet(path)
        settle(spark.read.parquet(path), mortal.options | {"mode": "peeklock"})
        locked.add([row["body"] for row in spark.read.parquet(path).select("body").collect()])

    def read(queue: str, **options: str) -> "DataFrame":
        chosen = {**mortal.options, "bodyFormat": "string", **options}
        return spark.readStream.format("servicebus").options(**chosen).load(queue)

    browse = start(read("browsed"), tmp_path / "browse", look)
    lock = start(read("locked", mode="peeklock", settle="manual", maxWaitSeconds="0.2"), tmp_path / "lock", store)
    rows = spark.readStream.format("rate").option("rowsPerSecond", "50").load()
    sink = (
        rows.selectExpr("string(value) AS body", "string(value) AS message_id")
        .writeStream.format("servicebus")
        .options(**mortal.options, checkpointLocation=str(tmp_path / "sink"))
        .trigger(processingTime="200 milliseconds")
        .start("sunk")
    )
    queries = (browse, lock, sink)
    try:
        browsed.wait_for(numbers(0, 300), browse)
        locked.wait_for(numbers(0, 300), lock)
        until(lambda: len(mortal.bodies("sunk")) > 50 or not sink.isActive)
        mortal.broker.kill()
        threading.Event().wait(AWAY_S)
        assert [query.exception() for query in queries] == [None, None, None]
        mortal.broker.start()
        for queue in ("browsed", "locked"):
            mortal.send(queue, 300, 300)
        browsed.wait_for(numbers(0, 600), browse)
        locked.wait_for(numbers(0, 600), lock)
        at = max(int(body) for body in mortal.bodies("sunk"))
        until(lambda: not sink.isActive or max(int(body) for body in mortal.bodies("sunk")) > at + 100)
        assert [query.exception() for query in queries] == [None, None, None]
    finally:
        for query in queries:
            query.stop()
    sent = {int(body) for body in mortal.bodies("sunk")}
    assert sent == set(range(max(sent) + 1))  # each row that came before the last one has arrived
    assert sorted(browsed.bodies) == sorted(numbers(0, 600))  # none twice
    assert mortal.bodies("locked") == []  # and all of them are settled


def test_queries_that_wait_for_a_broker_that_is_away_can_be_stopped(
    spark: "SparkSession", mortal: Mortal, tmp_path: Path
) -> None:
    mortal.send("browsed", 0, 10)
    rows = spark.readStream.format("rate").option("rowsPerSecond", "50").load()
    in_task = (
        rows.selectExpr("string(value) AS body", "string(value) AS message_id")
        .writeStream.format("servicebus")
        .options(**mortal.options, checkpointLocation=str(tmp_path / "sink"))
        .trigger(processingTime="200 milliseconds")
        .start("sunk")
    )
    frame = spark.readStream.format("servicebus").options(**mortal.options).load("browsed")
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "browse"))
    until(lambda: len(mortal.bodies("sunk")) > 10 or not in_task.isActive)
    mortal.broker.kill()
    in_driver = writer.trigger(availableNow=True).start()  # waits there: nothing new would be its end
    threading.Event().wait(5)
    assert (in_task.isActive, in_driver.isActive) == (True, True)
    began_s = time.monotonic()
    in_task.stop()
    in_driver.stop()
    assert time.monotonic() - began_s < 40  # and not when their patience ends
    assert (in_task.exception(), in_driver.exception()) == (None, None)


def until(holds: Callable[[], bool]) -> None:
    """Other processes take real time: look again until it is so."""
    waited = threading.Event()
    for _ in range(int(WAIT_S * 5)):
        if holds():
            return
        waited.wait(0.2)
    raise AssertionError(f"it is not so after {WAIT_S:g} s")
