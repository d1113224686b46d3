"""A filter that is pushed down changes what is asked for, never the result."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from spillway.client import OutgoingMessage
from spillway.spark.source import browse
from spillway.spark.source.browse import BrowseReader, FilteredBrowseReader, RangePartition
from spillway.spark.source.enqueued_times import CLOCK_STEP_MS
from spillway.spark.source.options import read_options
from spillway.spark.source.pushdown import Narrowed
from tests.spark.bus import Bus
from tests.spark.stated_numbers import QUEUE, StatedNumbers, StatedPool
from tests.spark.test_dead_letters import NOWHERE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = StructType(
    [
        StructField("entity", StringType()),
        StructField("sequence_number", LongType()),
        StructField("enqueued_time", TimestampType()),
        StructField("session_id", StringType()),
        StructField("subject", StringType()),
    ]
)
Row = dict[str, Any]


# -- what a filter means, as Spark has it: True, False, or None for what is not known ---------------------------------

COMPARED: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: lambda value, other: bool(value == other),
    GreaterThan: lambda value, other: bool(value > other),
    GreaterThanOrEqual: lambda value, other: bool(value >= other),
    LessThan: lambda value, other: bool(value < other),
    LessThanOrEqual: lambda value, other: bool(value <= other),
    StringStartsWith: lambda value, other: str(value).startswith(other),
    StringEndsWith: lambda value, other: str(value).endswith(other),
    StringContains: lambda value, other: other in str(value),
}


def meaning(each: Any, row: Row) -> bool | None:
    if isinstance(each, Not):
        found = meaning(each.child, row)
        return None if found is None else not found
    value = row[each.attribute[0]]
    if isinstance(each, IsNull | IsNotNull):
        return (value is None) == isinstance(each, IsNull)
    if isinstance(each, EqualNullSafe):
        return bool(value == each.value)
    if isinstance(each, In):
        if value is None:
            return None
        return True if value in each.value else None if None in each.value else False
    if value is None or each.value is None:
        return None
    return COMPARED[type(each)](value, each.value)


# -- the table --------------------------------------------------------------------------------------------------------


class Setting:
    """A read over entities that have what the columns can be."""

    def __init__(self, options: dict[str, str]) -> None:
        self.options = options
        self.rows = self.read([])[0]

    def read(self, filters: Sequence[Filter]) -> tuple[list[Row], list[Filter]]:
        reader = FilteredBrowseReader(read_options(self.options, is_streaming=False), SCHEMA)
        left = list(reader.pushFilters(list(filters)))
        parts = reader.partitions()
        rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
        return rows, left


@pytest.fixture(scope="module")
def plain(bus: Bus) -> Setting:
    """Two queues with messages of all kinds: with a session and without, deferred, waiting for their time, and gaps."""
    first, second = bus.queue(), bus.queue("other")
    later = int((datetime.now(UTC) + timedelta(days=1)).timestamp() * 1000)
    some = [OutgoingMessage("x", subject=str(index % 3), session_id="a" if index % 2 else None) for index in range(12)]
    bus.send(first, [*some[:5], OutgoingMessage("later", scheduled_enqueue_time_ms=later), *some[5:]])
    with bus.locked_by_another(first, 3):
        pass
    return Setting({**bus.options, "entity": f"{first},{second},{first}/$deadletterqueue"})


@pytest.fixture(scope="module")
def with_sessions(bus: Bus) -> Setting:
    queue = bus.queue(requires_session=True)
    bus.send(queue, [OutgoingMessage("x", session_id=name) for name in "abacab"])
    return Setting({**bus.options, "entity": queue, "sessions": "*"})


def values_of(column: str, rows: Sequence[Row]) -> list[Any]:
    """Those that are there, between them, beyond them, none."""
    found = sorted({row[column] for row in rows if row[column] is not None})
    middle = found[len(found) // 2]
    if column == "sequence_number":
        return [found[0], middle, found[-1], found[-1] + 1, 0, -5, 2**62, 2**63 - 1, None]
    if column == "enqueued_time":
        moment = found[0].astimezone(UTC)
        days = [moment + timedelta(days=day) for day in (-2, 2)]
        return [
            moment,
            middle.astimezone(UTC),
            moment + timedelta(microseconds=7),
            *days,
            moment.replace(tzinfo=None),
            None,
        ]
    return [found[0], middle, found[-1][:3], "", "no such", None]


def filters_of(column: str, values: Sequence[Any]) -> Iterator[Filter]:
    at = (column,)
    texts: list[Any] = [StringStartsWith, StringEndsWith, StringContains] if column in ("entity", "session_id") else []
    compared: list[Any] = [EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual]
    for kind in compared:
        yield from [kind(at, value) for value in values if column != "enqueued_time" or is_moment(value)]
    for kind in texts:
        yield from [kind(at, value) for value in values if value is not None]
    listed = [value for value in values if is_moment(value)] if column == "enqueued_time" else values
    yield from [In(at, tuple(some)) for some in (listed[:1], listed[:3], listed[-2:], listed, [None], listed[3:5])]
    yield from [IsNull(at), IsNotNull(at)]


def is_moment(value: Any) -> bool:
    return value is None or value.tzinfo is not None


@pytest.mark.parametrize("column", ["sequence_number", "enqueued_time", "entity", "session_id", "subject"])
@pytest.mark.parametrize("setting", ["plain", "with_sessions"])
def test_every_filter_gives_what_it_gives_without_being_pushed(
    request: pytest.FixtureRequest, setting: str, column: str
) -> None:
    made: Setting = request.getfixturevalue(setting)
    if not any(row[column] is not None for row in made.rows):
        return  # messages of that queue have none
    singles = list(filters_of(column, values_of(column, made.rows)))
    counted = 0
    for each in [*singles, *[Not(one) for one in singles]]:
        expected = [row for row in made.rows if meaning(each, row) is True]
        rows, left = made.read([each])
        found = [row for row in rows if all(meaning(one, row) is True for one in left)]
        assert sorted(map(str, found)) == sorted(map(str, expected)), each
        assert all(any(one is other for other in [each]) for one in left)
        counted += 1
    assert counted > 60 or column == "subject"


def test_filters_hold_together(plain: Setting) -> None:
    numbers = sorted({row["sequence_number"] for row in plain.rows})
    some = [
        GreaterThan(("sequence_number",), numbers[1]),
        In(("sequence_number",), (*numbers[:4], None)),
        StringEndsWith(("entity",), "queue"),
        Not(EqualTo(("entity",), "x")),
        EqualTo(("session_id",), "a"),
        LessThan(("enqueued_time",), datetime.now(UTC) + timedelta(days=3)),
        EqualTo(("subject",), "1"),
    ]
    for count in range(1, 4):
        for chosen in itertools.combinations(some, count):
            expected = [row for row in plain.rows if all(meaning(each, row) is True for each in chosen)]
            rows, left = plain.read(chosen)
            found = [row for row in rows if all(meaning(one, row) is True for one in left)]
            assert sorted(map(str, found)) == sorted(map(str, expected)), chosen


def test_what_spark_has_to_look_at_and_what_not(plain: Setting) -> None:
    answered = [LessThan(("sequence_number",), 5), IsNotNull(("entity",)), Not(StringContains(("entity",), "dead"))]
    narrowing = [GreaterThan(("enqueued_time",), datetime.now(UTC))]
    others = [EqualTo(("subject",), "1"), EqualTo(("session_id",), "a"), Not(EqualTo(("sequence_number",), 5))]
    others += [IsNull(("sequence_number",)), EqualTo(("sequence_number",), None), EqualTo(("entity", "x"), "y")]
    reader = FilteredBrowseReader(read_options(plain.options, is_streaming=False), SCHEMA)
    assert list(reader.pushFilters([*answered, *narrowing, *others])) == [*narrowing, *others]
    limited = FilteredBrowseReader(read_options({**plain.options, "maxMessages": "5"}, is_streaming=False), SCHEMA)
    assert list(limited.pushFilters([*answered])) == answered  # five messages, and of those the ones that match
    assert limited._narrowed == Narrowed(limited._read.options.entities)


# -- less is asked for ------------------------------------------------------------------------------------------------


def parts_of(reader: BrowseReader) -> list[tuple[int, int]]:
    return [(part.start, part.end) for part in reader.partitions() if isinstance(part, RangePartition)]


def test_numbers_far_apart_are_read_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = StatedNumbers(keeps_numbers=True)
    numbers.send(20_000)
    pool = StatedPool(numbers)
    monkeypatch.setattr(browse, "connection_pool", lambda: pool)
    options = read_options({"connectionString": NOWHERE, "entity": QUEUE}, is_streaming=False)
    reader = FilteredBrowseReader(options, SCHEMA)
    assert list(reader.pushFilters([In(("sequence_number",), (7, 8, 12_000, 19_999, 50_000))])) == []
    parts = reader.partitions()
    planned = numbers.requests
    rows = [row["sequence_number"] for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    assert rows == [7, 8, 12_000, 19_999]
    assert numbers.requests - planned <= 6 and planned < 40
    pool.close()


def test_a_time_is_found_by_halving_and_a_clock_that_was_set_back_is_allowed_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    numbers = StatedNumbers(keeps_numbers=True)
    numbers.send(100_000)
    numbers.enqueued_ms = lambda name: name * 1_000 - (50_000 if 60_000 <= name < 60_020 else 0)
    pool = StatedPool(numbers)
    monkeypatch.setattr(browse, "connection_pool", lambda: pool)
    options = read_options({"connectionString": NOWHERE, "entity": QUEUE}, is_streaming=False)
    for at_s, count_s in ((59_950, 0), (59_960, 20), (10, 5), (99_990, 100)):
        from_ = datetime.fromtimestamp(at_s, UTC)
        reader = FilteredBrowseReader(options, SCHEMA)
        before = numbers.requests
        some = [
            GreaterThanOrEqual(("enqueued_time",), from_),
            LessThanOrEqual(("enqueued_time",), from_ + timedelta(seconds=count_s)),
        ]
        assert list(reader.pushFilters(list(some))) == some
        ((start, end),) = parts_of(reader)
        meant = [
            name
            for name in sorted(numbers.queue)
            if at_s * 1_000 <= numbers.enqueued_ms(name) <= (at_s + count_s) * 1_000
        ]
        assert start <= meant[0] and meant[-1] < end
        assert end - start < 4 * CLOCK_STEP_MS // 1_000 + count_s
        assert numbers.requests - before < 90
    pool.close()


CONDITIONS = {
    "entity = '{first}' AND sequence_number > 12 AND sequence_number <= 20": 8,
    "sequence_number IN (1, 5, 29) OR entity = '{second}'": 5,
    "sequence_number IN (1, 5, 29)": 4,
    "enqueued_time < TIMESTAMP '{later}' AND entity <> '{first}'": 2,
    "entity LIKE '{second}%' AND subject IS NULL AND sequence_number <=> 2": 1,
}


def test_conditions_have_the_same_rows_whether_they_are_pushed_down_or_not(spark: "SparkSession", bus: Bus) -> None:
    first, second = bus.queue(*[str(index) for index in range(30)]), bus.queue("x", "y")
    later = f"{datetime.now(UTC) + timedelta(hours=2):%Y-%m-%d %H:%M:%S}"
    left: dict[str, bool] = {}
    for text, count in CONDITIONS.items():
        condition = text.format(first=first, second=second, later=later)
        answers = []
        for pushdown in ("true", "false"):
            reads = spark.read.format("servicebus").options(**bus.options, pushdown=pushdown)
            frame = reads.load(f"{first},{second}").where(condition).select("entity", "sequence_number")
            answers.append(sorted(map(tuple, frame.collect())))
            left[pushdown] = "Filter (" in frame._jdf.queryExecution().executedPlan().toString()
            if text.startswith("entity = "):
                assert left[pushdown] == (pushdown == "false")  # Spark has nothing left to look at
        assert answers[0] == answers[1] and len(answers[0]) == count, text


def test_spark_gives_what_was_read_for_one_condition_to_another_query_which_is_why_it_has_to_be_asked_for(
    spark: "SparkSession", bus: Bus
) -> None:
    queue = bus.queue(*"abcdef")
    counts = {}
    for pushdown in ("true", "false"):
        frame = spark.read.format("servicebus").options(**bus.options, pushdown=pushdown).load(queue)
        counts[pushdown] = (frame.where("sequence_number = 2").count(), frame.count())
    assert counts["false"] == (1, 6)
    assert counts["true"] == (
        1,
        1,
    )  # if this is 6, Spark has been mended: the guide can say so, and the default can be true
