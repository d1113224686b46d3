"""Entities by a pattern: listed where a read begins, and again while a stream runs. Time is stepped."""

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import LongType, StringType, StructField, StructType

from spillway.client import OutgoingMessage
from spillway.spark.platform.access import OptionError
from spillway.spark.platform.connection_pool import NamespaceError
from spillway.spark.platform.operations import REPORT_S
from spillway.spark.platform.queries import run_to_end
from spillway.spark.source import entity_patterns
from spillway.spark.source.browse import BrowseStreamReader
from spillway.spark.source.entity_patterns import LIST_S, EntityPattern, listed, with_entities
from spillway.spark.source.locked import LockedStreamReader
from spillway.spark.source.options import read_options
from tests.spark.bus import Bus

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = StructType([StructField("entity", StringType()), StructField("sequence_number", LongType())])
_numbers = itertools.count(1)


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def prefix() -> str:
    """Of names that no other test uses."""
    return f"pattern{next(_numbers)}"


def made(bus: Bus, name: str, *bodies: str) -> str:
    bus.named_queue(name)
    bus.send(name, [OutgoingMessage(body) for body in bodies])
    return name


def remove(bus: Bus, name: str) -> None:
    with bus.namespaces.administration(bus.broker) as client:
        client.delete_queue(name)


@pytest.mark.parametrize(
    ("pattern", "entities", "others"),
    [
        ("orders-*", ["orders-1", "Orders-eu/west"], ["orders", "my-orders-1", "orders-1/$deadletterqueue"]),
        ("order?", ["orders", "order1"], ["order", "orders1", "order/1/$deadletterqueue"]),
        ("a.b", ["a.b"], ["axb"]),
        ("*", ["a", "a/b"], ["t/subscriptions/s"]),
        (
            "t*/subscriptions/s*",
            ["t1/subscriptions/s", "T/Subscriptions/S2"],
            ["t1", "t/subscriptions/x", "x/subscriptions/s"],
        ),
        ("orders-*/$deadletterqueue", ["orders-1/$DeadLetterQueue"], ["orders-1", "bills/$deadletterqueue"]),
        ("*/subscriptions/*/$DeadLetterQueue", ["t/subscriptions/s/$deadletterqueue"], ["t/subscriptions/s", "q"]),
    ],
)
def test_patterns_have_queues_or_subscriptions_or_dead_letters(
    pattern: str, entities: list[str], others: list[str]
) -> None:
    made = EntityPattern(pattern)
    assert [made.has(each) for each in entities] == [True] * len(entities)
    assert [made.has(each) for each in others] == [False] * len(others)


def options_of(bus: Bus, pattern: str, **given: str) -> Any:
    return read_options({**bus.options, "entityPattern": pattern, **given}, is_streaming=True)


def test_entities_are_listed_from_the_broker_however_many_they_are(
    bus: Bus, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = sorted(made(bus, f"{prefix}-{index}") for index in range(5))
    subscriptions = f"{bus.topic('one', 'two', 'other')}/subscriptions"
    for page in (entity_patterns.PAGE, 2):
        monkeypatch.setattr(entity_patterns, "PAGE", page)
        assert listed(options_of(bus, f"{prefix}-*")) == tuple(names)
        assert listed(options_of(bus, f"{subscriptions}/*o*e*")) == (f"{subscriptions}/one", f"{subscriptions}/other")
    assert listed(options_of(bus, f"{prefix.upper()}-?/$deadletterqueue"))[0] == f"{prefix}-0/$deadletterqueue"


def test_what_is_missing_is_said(bus: Bus, prefix: str) -> None:
    queue = bus.queue()
    with pytest.raises(NamespaceError, match=f"entityPattern={prefix}-.*: no entity of the namespace is called so"):
        listed(options_of(bus, f"{prefix}-*"))
    limited = read_options({"connectionString": bus.key(queue, ["Listen"]), "entityPattern": "*"})
    with pytest.raises(NamespaceError, match="needs the right to manage: give a key that has it, or name them"):
        listed(limited)
    for given, said in (({"entity": "q"}, "give one of them"), ({"entityPattern": " "}, "names with . and . in them")):
        with pytest.raises(OptionError, match=said):
            options_of(bus, **{"pattern": "a*", **given})


def rows(stream: BrowseStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[str, int]]:
    parts = stream.partitions(start, end)
    found = [row for part in parts for batch in stream.read(part) for row in batch.to_pylist()]
    return sorted((row["entity"], row["sequence_number"]) for row in found)


def latest(stream: BrowseStreamReader, start: dict[str, Any]) -> dict[str, Any]:
    stream._pace.on_looked(is_idle=False)
    return stream.latestOffset(start, ReadMaxRows(100))


def test_a_browsing_stream_takes_what_is_added_and_goes_on_without_what_has_gone(bus: Bus, prefix: str) -> None:
    clock = Clock()
    a, b, c = f"{prefix}-a", f"{prefix}-b", f"{prefix}-c"
    made(bus, a, "1", "2"), made(bus, b, "1")
    stream = BrowseStreamReader(with_entities(options_of(bus, f"{prefix}-*")), SCHEMA, clock)
    start = stream.initialOffset()
    first = latest(stream, start)
    assert rows(stream, start, first) == [(a, 1), (a, 2), (b, 1)]
    made(bus, c, "1", "2")
    bus.send(a, [OutgoingMessage("3")])
    second = latest(stream, first)
    assert rows(stream, first, second) == [(a, 3)]  # not listed again yet
    clock.now_s += LIST_S
    third = latest(stream, second)
    assert rows(stream, second, third) == rows(stream, second, third) == [(c, 1), (c, 2)]
    assert {a, b, c} <= set(stream.reportLatestOffset())
    remove(bus, b)
    clock.now_s += REPORT_S
    stream.reportLatestOffset()
    bus.send(c, [OutgoingMessage("3")])
    fourth = latest(stream, third)  # it has gone since they were listed
    assert rows(stream, third, fourth) == [(c, 3)]
    assert fourth[b] == third[b]  # remembered, so that it is known if it is made anew
    again = BrowseStreamReader(with_entities(options_of(bus, f"{prefix}-*")), SCHEMA, clock)
    assert latest(again, fourth) == fourth
    with pytest.raises(ValueError, match="the checkpoint is of another query"):
        latest(BrowseStreamReader(with_entities(options_of(bus, f"{prefix}-c")), SCHEMA, clock), fourth)


def test_a_list_that_cannot_be_had_leaves_a_stream_as_it_was(
    bus: Bus, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    made(bus, f"{prefix}-a", "1")
    stream = BrowseStreamReader(with_entities(options_of(bus, f"{prefix}-*")), SCHEMA, clock)
    remove(bus, f"{prefix}-a")  # nothing is called so any more
    made(bus, f"{prefix}x", "1")
    clock.now_s += LIST_S
    assert stream._refresh().entities == (f"{prefix}-a",)


def test_a_receiving_stream_takes_what_is_added(bus: Bus, prefix: str) -> None:
    clock = Clock()
    a, b = f"{prefix}-a", f"{prefix}-b"
    made(bus, a)
    given = {"mode": "peeklock", "settle": "manual"}
    stream = LockedStreamReader(with_entities(options_of(bus, f"{prefix}-*", **given)), SCHEMA, clock)
    start = stream.initialOffset()
    assert stream.latestOffset(start, ReadMaxRows(10)) == start
    made(bus, b, "1")
    clock.now_s += LIST_S
    end = stream.latestOffset(start, ReadMaxRows(10))
    assert [part.entity for part in stream.partitions(start, end)] == [b]  # type: ignore[attr-defined]
    remove(bus, a)
    stream._pace.on_looked(is_idle=False)
    stream.latestOffset(end, ReadMaxRows(10))  # it has gone since they were listed
    assert stream._read.options.entities == (b,)


def test_a_query_adds_entities_to_its_checkpoint(spark: "SparkSession", bus: Bus, prefix: str, tmp_path: Path) -> None:
    a, b = made(bus, f"{prefix}-a", "1", "2"), f"{prefix}-b"
    seen: list[tuple[str, int]] = []

    def collect(batch: "DataFrame", number: int) -> None:
        seen.extend(
            (row["entity"], row["sequence_number"]) for row in batch.select("entity", "sequence_number").collect()
        )

    def run_now() -> list[tuple[str, int]]:
        seen.clear()
        reads = spark.readStream.format("servicebus").options(**bus.options, entityPattern=f"{prefix}-*")
        writer = reads.load().writeStream.foreachBatch(collect).option("checkpointLocation", str(tmp_path))
        run_to_end(lambda: writer.trigger(availableNow=True).start(), 120)
        return sorted(seen)

    assert run_now() == [(a, 1), (a, 2)]
    made(bus, b, "1")
    bus.send(a, [OutgoingMessage("3")])
    assert run_now() == [(a, 3), (b, 1)]
    options = {"connectionString": bus.key(a, ["Listen"]), "entityPattern": f"{prefix}-*"}
    with pytest.raises(PySparkException, match="needs the right to manage"):
        spark.read.format("servicebus").options(**options).load()
