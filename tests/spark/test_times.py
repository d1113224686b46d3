"""A read that begins at a time, and ends at one."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import LongType, StructField, StructType

from spillway.client import OutgoingMessage
from spillway.spark.source import browse
from spillway.spark.source.browse import BrowseReader, BrowseStreamReader
from spillway.spark.source.options import read_options
from spillway.spark.source.time_options import times_of
from tests.spark.bus import Bus
from tests.spark.stated_numbers import DEAD, QUEUE, StatedNumbers, StatedPool
from tests.spark.test_dead_letters import NOWHERE

NUMBERS = StructType([StructField("sequence_number", LongType())])


@pytest.fixture
def numbers(monkeypatch: pytest.MonkeyPatch) -> Iterator[StatedNumbers]:
    """A queue with one message a second, from one second after the beginning of 1970 on."""
    made = StatedNumbers(keeps_numbers=True)
    made.enqueued_ms = lambda name: name * 1_000
    pool = StatedPool(made)
    monkeypatch.setattr(browse, "connection_pool", lambda: pool)
    yield made
    pool.close()


def batch(entity: str, **given: str) -> list[int]:
    found = {"connectionString": NOWHERE, "entity": entity, **given}
    reader = BrowseReader(read_options(found, is_streaming=False), NUMBERS)
    parts = reader.partitions()
    return [row["sequence_number"] for part in parts for rows in reader.read(part) for row in rows.to_pylist()]


def stream(entity: str, **given: str) -> tuple[BrowseStreamReader, dict[str, Any]]:
    found = {"connectionString": NOWHERE, "entity": entity, **given}
    reader = BrowseStreamReader(read_options(found, is_streaming=True), NUMBERS)
    return reader, reader.initialOffset()


@pytest.mark.parametrize(
    ("start", "end", "first", "last"),
    [
        ("5000", "8000", 5, 7),
        ("4999", "8001", 5, 8),
        ("1970-01-01T00:00:05Z", "1970-01-01T02:00:08+02:00", 5, 7),
        ("1970-01-01 00:00:05.001", None, 6, 30),
        ("0", "1970-01-01T00:00:03", 1, 2),
        (None, "999999", 1, 30),
    ],
)
def test_a_batch_has_what_was_enqueued_between_two_times(
    numbers: StatedNumbers, start: str | None, end: str | None, first: int, last: int
) -> None:
    numbers.send(30)
    given = {"startingTime": start, "endingTime": end}
    assert batch(QUEUE, **{name: text for name, text in given.items() if text}) == list(range(first, last + 1))


def test_times_without_messages_have_none(numbers: StatedNumbers) -> None:
    assert batch(QUEUE, startingTime="5000") == []
    numbers.send(30)
    numbers.complete(*range(10, 20))
    assert batch(QUEUE, startingTime="31000") == []
    assert batch(QUEUE, startingTime="12000", endingTime="15000") == []
    assert batch(QUEUE, startingTime="9000", endingTime="21000") == [9, 20]
    assert batch(QUEUE, endingTime="500") == []


def test_a_time_is_found_with_few_requests(numbers: StatedNumbers) -> None:
    numbers.send(200_000)
    before = numbers.requests
    assert stream(QUEUE, startingTime="123456789")[1] == {QUEUE: 123_457}
    assert numbers.requests - before < 70  # to find the end, and then the time


def test_a_stream_begins_at_a_time_and_goes_on_from_its_checkpoint(numbers: StatedNumbers) -> None:
    numbers.send(30)
    reader, at = stream(QUEUE, startingTime="20000")
    end = reader.latestOffset(at, ReadMaxRows(5))
    assert (at, end[QUEUE]["next"]) == ({QUEUE: 20}, 25)
    numbers.send(5)
    later, _ = stream(QUEUE, startingTime="34000")  # started again, with another time
    assert later.latestOffset(end, ReadMaxRows(100))[QUEUE]["next"] == 36
    empty, at = stream(QUEUE, startingTime="99000")
    assert at == {QUEUE: 36} and empty.latestOffset(at, ReadMaxRows(5)) == at


def test_dead_letters_are_chosen_one_by_one(numbers: StatedNumbers) -> None:
    numbers.enqueued_ms = lambda name: (100 - name) * 1_000  # those with lower numbers died later
    numbers.send(30)
    numbers.die(*range(5, 15))
    assert batch(DEAD, startingTime="90000") == [5, 6, 7, 8, 9, 10]
    assert batch(DEAD, startingTime="90000", endingTime="94000") == [7, 8, 9, 10]
    reader, at = stream(DEAD, startingTime="90000")
    end = reader.latestOffset(at, ReadMaxRows(100))
    parts = reader.partitions(at, end)
    found = [row["sequence_number"] for part in parts for rows in reader.read(part) for row in rows.to_pylist()]
    assert found == [5, 6, 7, 8, 9, 10]


def test_times_are_utc_unless_they_say_otherwise() -> None:
    def ms(text: str) -> int | None:
        return times_of({"startingtime": text}, False, now=lambda: 2e9)[0]

    assert (
        ms("2026-11-17T08:00:00Z") == ms("2026-11-17T08:00:00") == ms("2026-11-17 10:00:00+02:00") == 1_794_902_400_000
    )
    assert ms("2026-11-17") == 1_794_873_600_000
    assert ms(" 1794902400000 ") == 1_794_902_400_000
    assert ms("1969-12-31") == -86_400_000


def test_a_broker_is_read_from_a_time_on(bus: Bus) -> None:
    queue = bus.queue("a", "b")
    later = int((datetime.now(UTC) + timedelta(days=1)).timestamp() * 1000)
    bus.send(queue, [OutgoingMessage("later", scheduled_enqueue_time_ms=later)])
    bus.send(queue, [OutgoingMessage("c"), OutgoingMessage("d")])
    times = {message.sequence_number: message.enqueued_time_ms for message in bus.peek(queue)}
    at = times[4]
    expected = [
        number for number, ms in times.items() if number != 3 and ms is not None and at is not None and ms >= at
    ]
    found = batch(queue, **bus.options, startingTime=str(at))
    assert [number for number in found if number != 3] == expected and 5 in expected
