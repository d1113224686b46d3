"""Dead letters are browsed once each, in the order they die, whether they keep their numbers or get new ones."""

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import LongType, StringType, StructField, StructType

from spillway.client import OutgoingMessage, connect
from spillway.spark.platform.connection_pool import NamespaceError
from spillway.spark.source import browse, dead_letters
from spillway.spark.source.batch_ends import Offset
from spillway.spark.source.browse import BrowseStreamReader
from spillway.spark.source.dead_letters import entity_of, is_dead_letters, ranges_of
from spillway.spark.source.number_runs import Runs
from spillway.spark.source.options import read_options
from tests.spark.bus import Bus, run
from tests.spark.stated_numbers import DEAD, StatedNumbers, StatedPool, live

KEY = "bm90IGEga2V5LCBidXQgaXQgbG9va3MgbGlrZSBvbmU="
NOWHERE = f"Endpoint=sb://localhost:1;SharedAccessKeyName=Root;SharedAccessKey={KEY};UseDevelopmentEmulator=true"
SCHEMA = StructType([StructField("sequence_number", LongType()), StructField("message_id", StringType())])


def reader(options: dict[str, str], entity: str, **given: str) -> BrowseStreamReader:
    return BrowseStreamReader(read_options({**options, "entity": entity, **given}, is_streaming=True), SCHEMA)


def names(stream: BrowseStreamReader, start: Offset, end: Offset) -> list[int]:
    parts = stream.partitions(start, end)
    return [
        int(row["message_id"].strip("m")) for part in parts for batch in stream.read(part) for row in batch.to_pylist()
    ]


class Query:
    """Started anew for every batch, from what its checkpoint says."""

    def __init__(self, options: dict[str, str], entity: str, **given: str) -> None:
        self.options, self.entity, self.given = options, entity, given
        self.at: Offset = reader(options, entity, **given).initialOffset()
        self.seen: list[int] = []

    def batch(self, count_max: int | None = None, is_kept: bool = True, slack: int = 0) -> list[int]:
        stream = reader(self.options, self.entity, **self.given)
        start = json.loads(json.dumps(self.at))
        end = json.loads(json.dumps(stream.latestOffset(start, limit_of(count_max))))
        found = names(reader(self.options, self.entity, **self.given), start, end) if end != start else []
        assert count_max is None or len(found) <= count_max + slack
        if is_kept:
            self.at = end
            self.seen += found
        return found


def limit_of(count_max: int | None) -> Any:
    return ReadAllAvailable() if count_max is None else ReadMaxRows(count_max)


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    made: list[StatedPool] = []

    def use(numbers: StatedNumbers) -> dict[str, str]:
        made.append(StatedPool(numbers))
        monkeypatch.setattr(browse, "connection_pool", lambda: made[-1])
        return {"connectionString": NOWHERE}

    yield use
    for pool in made:
        pool.close()


@pytest.mark.parametrize("keeps_numbers", [True, False])
def test_a_dead_letter_that_comes_late_is_not_passed_over(pools: Any, keeps_numbers: bool) -> None:
    numbers = StatedNumbers(keeps_numbers)
    numbers.send(20)
    numbers.die(9, 12)
    query = Query(pools(numbers), DEAD)
    assert query.batch() == [9, 12]
    numbers.die(3, 15, 10)  # two of them below what was read
    assert sorted(query.batch(is_kept=False)) == [3, 10, 15]
    assert sorted(query.batch()) == [3, 10, 15]  # the same once more
    assert query.batch() == []
    numbers.send(1)
    numbers.die(21, 1)
    assert sorted(query.batch()) == [1, 21]
    assert query.batch() == []


@pytest.mark.parametrize("keeps_numbers", [True, False])
def test_a_batch_has_no_more_than_its_limit_and_what_it_leaves_comes_later(pools: Any, keeps_numbers: bool) -> None:
    numbers = StatedNumbers(keeps_numbers)
    numbers.send(40)
    query = Query(pools(numbers), DEAD)
    numbers.die(40)
    assert query.batch(3) == [40]
    numbers.die(*range(2, 12))
    sizes = [len(query.batch(3)) for _ in range(4)]
    assert sizes == [3, 3, 3, 1]
    assert sorted(query.seen) == [*range(2, 12), 40]


def test_a_message_that_dies_between_planning_and_reading_is_of_a_later_batch(pools: Any) -> None:
    numbers = StatedNumbers(keeps_numbers=True)
    numbers.send(20)
    numbers.die(8, 12)
    options = pools(numbers)
    stream = reader(options, DEAD)
    end = stream.latestOffset({DEAD: 0}, ReadMaxRows(100))
    numbers.die(10)
    assert names(stream, {DEAD: 0}, end) == [8, 12]
    after = reader(options, DEAD).latestOffset(end, ReadMaxRows(100))
    assert names(stream, end, after) == [10]


@pytest.mark.parametrize("is_readable", [True, False])
@pytest.mark.parametrize("keeps_numbers", [True, False])
@pytest.mark.parametrize("seed", range(8))
def test_every_dead_letter_is_read_once_whatever_happens_meanwhile(
    pools: Any, keeps_numbers: bool, is_readable: bool, seed: int
) -> None:
    chance = random.Random(seed)
    numbers = StatedNumbers(keeps_numbers, is_readable)
    numbers.send(chance.randint(0, 30))
    numbers.meanwhile = lambda: live(numbers, chance)
    query = Query(pools(numbers), DEAD)
    for _ in range(25):
        # A look asks several times: what dies between two of its requests may come on top of the limit.
        query.batch(chance.choice([None, 1, 2, 5, 50]), is_kept=chance.random() < 0.8, slack=10)
        for number, name in list(numbers.dead.items()):
            if name in query.seen and chance.random() < 0.1:
                del numbers.dead[number]  # somebody receives what was read
    numbers.meanwhile = lambda: None
    while query.batch(5):
        pass
    assert sorted(query.seen) == sorted(numbers.died), f"seed {seed}"


def test_what_is_remembered_ends_where_nothing_can_come_any_more(pools: Any) -> None:
    numbers = StatedNumbers(keeps_numbers=True)
    numbers.send(100)
    numbers.die(*range(10, 60, 2))
    query = Query(pools(numbers), DEAD)
    query.batch()
    assert Runs.from_plain(query.at[DEAD]["seen"]) == Runs.of(range(10, 60, 2))
    numbers.complete(*[name for name in numbers.queue if name < 90])
    numbers.die(95)
    query.batch()
    numbers.die(96)
    query.batch()
    assert query.at[DEAD] == {"next": 97, "passed": [96, 1_000_096], "floor": 90, "seen": [95, 2]}
    numbers.complete(*numbers.queue)
    numbers.send(1)
    numbers.die(101)
    query.batch()
    assert query.at[DEAD] == {"next": 102, "passed": [101, 1_000_101]}  # as of any other entity


def test_an_idle_stream_does_not_look_again_at_what_is_over(pools: Any) -> None:
    numbers = StatedNumbers(keeps_numbers=True)
    numbers.send(3_000)
    numbers.die(*range(2, 3_000, 2))
    query = Query(pools(numbers), DEAD)
    query.batch()
    numbers.complete(*numbers.queue)
    stream = reader(query.options, DEAD)
    costs = []
    for _ in range(3):
        before = numbers.requests
        stream._pace.on_looked(is_idle=False)
        assert stream.latestOffset(query.at, ReadMaxRows(100)) == query.at
        costs.append(numbers.requests - before)
    assert costs[0] > 3 and costs[1:] == [1, 1]


def test_a_service_that_numbers_anew_is_known_by_a_number_that_is_in_both(pools: Any) -> None:
    numbers = StatedNumbers(keeps_numbers=False)
    numbers.send(10)
    numbers.die(5, 6, 7)  # as 1, 2 and 3; 1 is in the queue, too
    query = Query(pools(numbers), DEAD)
    query.batch()
    assert query.at[DEAD]["seen"] == [1, 3]
    numbers.die(8)
    query.batch()
    assert query.at[DEAD] == {"next": 5, "passed": [4, 1_000_008], "renumbered": True}


def test_more_than_can_be_remembered_is_an_error_that_says_what_to_do(
    pools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "RUNS_MAX", 5)
    numbers = StatedNumbers(keeps_numbers=True)
    numbers.send(40)
    numbers.die(*range(2, 40, 4))
    query = Query(pools(numbers), DEAD)
    with pytest.raises(NamespaceError, match="more than 5 of its messages have higher numbers than 1, the oldest mess"):
        query.batch()
    numbers.complete(*numbers.queue)
    assert len(query.batch()) == 10


@pytest.mark.parametrize("keeps_numbers", [True, False])
def test_a_stream_from_the_latest_has_what_comes_late_and_one_from_a_number_has_it_from_there(
    pools: Any, keeps_numbers: bool
) -> None:
    numbers = StatedNumbers(keeps_numbers)
    numbers.send(30)
    numbers.die(10, 20, 25)
    options = pools(numbers)
    latest = Query(options, DEAD, startAt="latest")
    behind = Query(options, DEAD, startAt="15" if keeps_numbers else "2")
    assert latest.batch() == []
    assert behind.batch() == [20, 25]
    numbers.die(17, 5)
    assert sorted(latest.batch()) == [5, 17]
    assert sorted(behind.batch()) == ([17] if keeps_numbers else [5, 17])


def test_a_checkpoint_of_an_earlier_version_goes_on(pools: Any) -> None:
    numbers = StatedNumbers(keeps_numbers=True)
    numbers.send(30)
    numbers.die(10, 20)
    query = Query(pools(numbers), DEAD)
    query.at = {DEAD: {"next": 21, "passed": [20, 1_000_020]}}
    numbers.die(25, 24)
    assert query.batch() == [24, 25]
    numbers.die(22)
    assert query.batch() == [22]


def test_a_run_that_takes_what_is_there_takes_late_ones_too_and_ends(pools: Any) -> None:
    numbers = StatedNumbers(keeps_numbers=True)
    numbers.send(30)
    numbers.die(10, 20)
    query = Query(pools(numbers), DEAD)
    query.batch()
    numbers.die(5, 25)
    stream = reader(query.options, DEAD)
    stream.prepareForTriggerAvailableNow()
    numbers.die(27)
    end = stream.latestOffset(query.at, ReadMaxRows(100))
    assert sorted(names(stream, query.at, end)) == [5, 25]
    assert stream.latestOffset(end, ReadMaxRows(100)) == end


def test_which_entities_are_dead_letters_and_where_those_were_before() -> None:
    for path, before in {
        "orders/$deadletterqueue": "orders",
        "t/subscriptions/s/$DeadLetterQueue": "t/subscriptions/s",
        "orders/$Transfer/$DeadLetterQueue": "orders",
    }.items():
        assert is_dead_letters(path) and entity_of(path) == before
    assert not is_dead_letters("orders") and not is_dead_letters("$deadletterqueue")


def test_runs_are_sets_of_numbers() -> None:
    some = Runs([(5, 8), (1, 2), (7, 10), (20, 20)])
    assert some.runs == ((1, 2), (5, 10)) and list(some) == [1, 5, 6, 7, 8, 9] and len(some) == 6
    assert [number in some for number in (0, 1, 2, 5, 9, 10)] == [False, True, False, True, True, False]
    assert (some.end_of(6), some.end_of(3)) == (10, 3)
    assert some.within(6, 8).runs == ((6, 8),) and some.within(2, 5).runs == ()
    assert Runs.from_plain(some.to_plain()) == some and some.to_plain() == [1, 1, 3, 5]
    assert (some | Runs.of([2, 3, 4])).runs == ((1, 10),)
    with pytest.raises(ValueError, match="not runs"):
        Runs.from_plain([1, 2, 3])
    assert [(start, end) for start, end, _ in ranges_of(Runs.of([1, 400, 2_000]))] == [(1, 401), (2_000, 2_001)]


def test_our_broker_numbers_dead_letters_anew_and_a_stream_of_them_misses_none(bus: Bus) -> None:
    queue = bus.queue(*[str(number) for number in range(1, 9)])
    path = f"{queue}/$deadletterqueue"

    def die(*bodies: str) -> None:
        async def work() -> None:
            async with await connect(bus.broker.connection_string) as connection:
                receiver = await connection.receiver(queue)
                for message in await receiver.receive(100, 1):
                    is_dying = message.body.decode() in bodies
                    await (receiver.dead_letter(message, "why") if is_dying else receiver.abandon(message))

        run(work())

    query = Query(bus.options, path)
    die("5", "7")
    assert [message.sequence_number for message in bus.peek(path)] == [1, 2]
    assert query.batch() == [4, 6]  # ids of the fifth and the seventh
    die("2")
    assert query.batch() == [1]
    assert query.at[path]["renumbered"] is True
    bus.send(queue, [OutgoingMessage("x", message_id="m8")])
    die("x")
    assert query.batch() == [8]
    assert query.batch() == []
