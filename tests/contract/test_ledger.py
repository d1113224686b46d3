"""The ledger, for every journal: rows are added to, survive, are read in pages, and go to sealed days when asked."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from spillway.model.ledger import EMPTY_RECEIVE, KIND_NAMES, MINUTES_PER_DAY, RECEIVE, RENEW, SEND, LedgerRow, Tally
from spillway.model.records import Catalogue, EntityRemoved, LoadLedger, Rows, Turn
from spillway.store.journal import Journal
from tests.contract.kinds import KINDS, open_kind
from tests.store.listening import Desk, added, counters, queue_put

BEFORE_ALL = (-1, "", -1)
FOR_EVER = 1 << 40
DAY = 20_000
MINUTE = DAY * MINUTES_PER_DAY
Fields = tuple[int, str, int, int, int, int]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def journal(kind: str, tmp_path: Path) -> Iterator[Journal]:
    made: Journal = open_kind(kind, tmp_path / "journal.db")
    yield made
    made.close()


@pytest.fixture
def desk(journal: Journal) -> Desk:
    journal.recover()
    return Desk(journal).start()


def write(desk: Desk, *rows: Fields, seals_before: int = 0) -> int:
    turn = Turn(1)
    turn.ledger = [LedgerRow(*row) for row in rows]
    turn.seals_before = seals_before
    return desk.submit(turn)


def fields(rows: list[LedgerRow]) -> list[Fields]:
    return [(*row.key(), row.operations, row.units, row.size_bytes) for row in rows]


def page(desk: Desk, since: int = 0, until: int = FOR_EVER, count: int = 1_000) -> Rows:
    return desk.ask(LoadLedger(since, until, BEFORE_ALL, count))


def wait_until_sealed(desk: Desk, before: int) -> None:
    """The writer seals a step at a time, between whatever else it has to do: ask until it has."""
    for _ in range(10_000):
        if page(desk, FOR_EVER).sealed_before == before:
            return
    raise AssertionError("it is never sealed")


def reopened(kind: str, desk: Desk, path: Path) -> tuple[Desk, Catalogue]:
    """A new life, and what it finds."""
    if kind == "memory":
        journal: Journal = desk.journal
    else:
        desk.journal.close()
        journal = open_kind(kind, path / "journal.db")
    catalogue = journal.recover()
    return Desk(journal).start(), catalogue


def test_rows_of_one_minute_entity_and_kind_are_added_up(desk: Desk) -> None:
    write(desk, (MINUTE, "q", SEND, 1, 2, 3), (MINUTE, "q", SEND, 10, 20, 30), (MINUTE, "r", SEND, 1, 1, 1))
    write(desk, (MINUTE, "q", SEND, 100, 200, 300), (MINUTE + 1, "q", SEND, 5, 5, 5), (MINUTE, "q", RECEIVE, 7, 7, 7))
    assert fields(page(desk).ledger) == [
        (MINUTE, "q", SEND, 111, 222, 333),
        (MINUTE, "q", RECEIVE, 7, 7, 7),
        (MINUTE, "r", SEND, 1, 1, 1),
        (MINUTE + 1, "q", SEND, 5, 5, 5),
    ]


def test_rows_ride_with_the_records_of_their_turn(desk: Desk) -> None:
    turn = Turn(1)
    turn.add([queue_put(1), added(1, 1)])
    turn.ledger = [LedgerRow(MINUTE, "queue-1", SEND, 1, 1, 4)]
    ticket = desk.submit(turn)
    desk.wait(lambda: desk.durable >= ticket)
    assert fields(page(desk).ledger) == [(MINUTE, "queue-1", SEND, 1, 1, 4)]


def test_a_page_is_cut_by_time_and_by_count_and_the_next_goes_on_behind_it(desk: Desk) -> None:
    rows: list[Fields] = [
        (MINUTE + at, f"q{queue}", kind, 1, 1, 1) for at in range(3) for queue in range(3) for kind in range(3)
    ]
    write(desk, *rows)
    seen: list[Fields] = []
    after = BEFORE_ALL
    while True:
        found = desk.ask(LoadLedger(MINUTE + 1, MINUTE + 3, after, 4))
        assert len(found.ledger) <= 4
        seen += fields(found.ledger)
        after = found.ledger_end
        if not found.is_cut:
            break
    assert seen == [row for row in rows if row[0] > MINUTE]


def test_every_kind_and_every_name_comes_back_as_it_was_written(desk: Desk) -> None:
    rows: list[Fields] = [(MINUTE, "Grüße/ö 'x' \"y\"", kind, kind + 1, 0, 1 << 50) for kind in range(len(KIND_NAMES))]
    write(desk, *rows)
    assert fields(page(desk).ledger) == rows


def test_the_ledger_outlives_the_process_and_says_since_when_it_is_open(kind: str, desk: Desk, tmp_path: Path) -> None:
    write(desk, (MINUTE + 5, "q", SEND, 1, 1, 1), (MINUTE + 3, "q", SEND, 2, 2, 2))
    desk.settle()
    again, catalogue = reopened(kind, desk, tmp_path)
    assert catalogue.ledger_minute == MINUTE + 3
    write(again, (MINUTE + 5, "q", SEND, 1, 1, 1))
    assert fields(page(again).ledger) == [(MINUTE + 3, "q", SEND, 2, 2, 2), (MINUTE + 5, "q", SEND, 2, 2, 2)]
    again.journal.close()


def test_a_tally_is_kept_with_its_entity_until_rows_are_made_of_it(kind: str, desk: Desk, tmp_path: Path) -> None:
    tally = Tally("queue-1", 1)
    tally.minute = MINUTE
    tally.send(70_000)
    tally.count(RENEW)
    turn = Turn(1)
    turn.add([queue_put(1), queue_put(2), added(1, 1)])
    turn.counters = {1: counters(1, 1)}
    turn.tallies = {1: tally.pack(), 2: tally.pack()}
    desk.submit(turn)
    turn = Turn(2)
    turn.tallies = {2: b""}
    turn.ledger = [LedgerRow(MINUTE, "queue-2", SEND, 1, 2, 70_000)]
    desk.submit(turn)
    desk.settle()
    again, catalogue = reopened(kind, desk, tmp_path)
    assert {row.put.entity_id: row.tally for row in catalogue.entities} == {1: tally.pack(), 2: b""}
    assert [row.counters.active for row in catalogue.entities] == [1, 0]
    again.submit_records(EntityRemoved(1))
    again.settle()
    last, catalogue = reopened(kind, again, tmp_path)
    assert [row.put.entity_id for row in catalogue.entities] == [2]
    assert fields(page(last).ledger) == [(MINUTE, "queue-2", SEND, 1, 2, 70_000)]
    last.journal.close()


def test_days_that_are_over_go_to_where_sealed_days_are_kept_and_later_ones_stay(desk: Desk) -> None:
    first = (MINUTE, "q", SEND, 1, 1, 1)
    second = (MINUTE + MINUTES_PER_DAY, "q", SEND, 2, 2, 2)
    third = (MINUTE + 3 * MINUTES_PER_DAY, "q", EMPTY_RECEIVE, 3, 3, 3)
    write(desk, first, second, third)
    write(desk, seals_before=MINUTE + 3 * MINUTES_PER_DAY)
    wait_until_sealed(desk, MINUTE + 3 * MINUTES_PER_DAY)
    assert fields(page(desk).ledger) == [third]
    days = desk.journal.days
    assert [fields(list(days.rows(DAY + at))) for at in range(4)] == [[first], [second], [], []]


def test_a_turn_may_bring_the_last_rows_of_the_day_it_ends(desk: Desk) -> None:
    write(desk, (MINUTE + 1_439, "q", SEND, 1, 1, 1), seals_before=MINUTE + MINUTES_PER_DAY)
    wait_until_sealed(desk, MINUTE + MINUTES_PER_DAY)
    assert fields(list(desk.journal.days.rows(DAY))) == [(MINUTE + 1_439, "q", SEND, 1, 1, 1)]


def test_a_sealed_day_is_not_open_in_the_next_life(kind: str, desk: Desk, tmp_path: Path) -> None:
    write(desk, (MINUTE, "q", SEND, 1, 1, 1), seals_before=MINUTE + MINUTES_PER_DAY)
    wait_until_sealed(desk, MINUTE + MINUTES_PER_DAY)
    again, catalogue = reopened(kind, desk, tmp_path)
    assert catalogue.ledger_minute == 0
    assert page(again).sealed_before == MINUTE + MINUTES_PER_DAY
    assert len(list(again.journal.days.rows(DAY))) == 1
    again.journal.close()


def test_a_day_with_many_rows_is_sealed_whole_and_in_order(desk: Desk) -> None:
    rows: list[Fields] = [(MINUTE + at, f"q{queue}", SEND, at, 1, 1) for at in range(300) for queue in range(10)]
    write(desk, *rows, seals_before=MINUTE + MINUTES_PER_DAY)
    wait_until_sealed(desk, MINUTE + MINUTES_PER_DAY)
    assert fields(list(desk.journal.days.rows(DAY))) == rows
    assert page(desk).ledger == []
