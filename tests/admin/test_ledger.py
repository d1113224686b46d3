"""`/$spillway/ledger`: sums and rows, sealed days and today in one answer; and what administrators are charged."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from spillway.model.ledger import day_name
from spillway.store.directory import DataDirectory
from spillway.store.sqlite import SqliteJournal, open_sqlite_journal
from tests.admin.client import Client, entry
from tests.wire.live import LiveBroker

DAY_S = 86_400
DAY_MS = DAY_S * 1_000


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def journal(data: Path) -> SqliteJournal:
    return open_sqlite_journal(DataDirectory(data), "wire")


@pytest.fixture
def own(tmp_path_factory: pytest.TempPathFactory, journal: SqliteJournal) -> Iterator[LiveBroker]:
    """A broker on SQLite whose clock only this test moves, at the beginning of a day."""
    live = LiveBroker(tmp_path_factory.getbasetemp(), journal)
    live.advance(DAY_S - live.server.clock.now_ms() % DAY_MS / 1_000)
    yield live
    live.close()


@pytest.fixture
def admin(own: LiveBroker) -> Iterator[Client]:
    made = Client(own.server.port)
    yield made
    made.close()


def ledger(client: Client, **query: str) -> dict[str, Any]:
    text = "&".join(f"{name}={quote(value)}" for name, value in query.items())
    answered = client.ask("GET", f"/$spillway/ledger?{text}")
    assert answered.status == 200, answered.body
    answer = json.loads(answered.body)
    assert isinstance(answer, dict)
    assert (answer["damaged_rows"], answer["unreadable_days"]) == (0, [])
    return answer


def sums(client: Client, **query: str) -> dict[tuple[str, str], int]:
    return {(row["entity"], row["kind"]): row["operations"] for row in ledger(client, **query)["rows"]}


def refusal(client: Client, query: str) -> tuple[int, str]:
    answered = client.ask("GET", f"/$spillway/ledger?{query}")
    return answered.status, json.loads(answered.body)["error"].partition(" TrackingId:")[0]


def today(broker: LiveBroker, ahead: int = 0) -> str:
    return day_name(broker.server.clock.now_ms() // DAY_MS + ahead)


# -- what administrators do ----------------------------------------------------------------------------------------


def test_a_call_of_the_administration_is_charged_to_its_entity_or_to_the_namespace(
    own: LiveBroker, admin: Client
) -> None:
    admin.ask("PUT", "/orders", entry("QueueDescription"))
    admin.ask("GET", "/orders")
    admin.ask("GET", "/nobody")
    admin.ask("PUT", "/news", entry("TopicDescription"))
    admin.ask("PUT", "/news/Subscriptions/all", entry("SubscriptionDescription"))
    admin.ask("GET", "/news/Subscriptions/all/rules")
    admin.ask("DELETE", "/news/Subscriptions/all/rules/$Default")
    admin.ask("GET", "/$Resources/queues")
    admin.ask("DELETE", "/orders")
    assert admin.ask("DELETE", "/orders").status == 404  # refused: not charged
    assert sums(admin) == {
        ("orders", "management"): 3,
        ("news", "management"): 1,
        ("news/Subscriptions/all", "management"): 3,
        ("$namespace", "management"): 1 + (admin.ask("GET", "/nobody").status == 200),
    }


def test_reading_the_ledger_and_the_status_costs_nothing(own: LiveBroker, admin: Client) -> None:
    for _ in range(3):
        admin.ask("GET", "/$spillway/status")
        assert sums(admin) == {}


# -- days ------------------------------------------------------------------------------------------------------------


def test_sealed_days_and_today_are_shown_as_one(own: LiveBroker, admin: Client, data: Path) -> None:
    admin.ask("PUT", "/q", entry("QueueDescription"))
    own.send("q", "one", "two")
    first = today(own)
    own.advance(DAY_S)
    own.send("q", "three")
    sealed = data / "ledger" / f"day={first}" / "wire.jsonl.gz"
    own.wait(sealed.exists)
    assert sums(admin) == {("q", "send"): 3, ("q", "management"): 1}
    assert sums(admin, until=first) == {("q", "send"): 2, ("q", "management"): 1}
    assert sums(admin, since=today(own)) == {("q", "send"): 1}
    lines = [json.loads(line) for line in gzip.decompress(sealed.read_bytes()).splitlines()]
    assert [(line["namespace"], line["entity"], line["kind"], line["operations"]) for line in lines] == [
        ("wire", "q", "send", 2),
        ("wire", "q", "management", 1),
    ]
    assert {line["minute"][:10] for line in lines} == {first}


def test_each_day_has_its_file_and_a_day_without_operations_has_none(
    own: LiveBroker, admin: Client, data: Path
) -> None:
    admin.ask("PUT", "/q", entry("QueueDescription"))
    days = []
    for ahead in (1, 3, 1):
        days.append(f"day={today(own)}")
        own.send("q", "x")
        own.advance(ahead * DAY_S)
    own.wait(lambda: len(list((data / "ledger").rglob("*.gz"))) == 3)
    assert sorted(path.name for path in (data / "ledger").iterdir()) == days
    assert sums(admin) == {("q", "send"): 3, ("q", "management"): 1}


def test_rows_by_minute_come_in_order_across_a_sealed_day(own: LiveBroker, admin: Client) -> None:
    admin.ask("PUT", "/q", entry("QueueDescription"))
    for ahead_s in (60, DAY_S, 60):
        own.send("q", "x")
        own.advance(ahead_s)
    own.send("q", "x")
    rows = [row for row in ledger(admin, by="minute")["rows"] if row["kind"] == "send"]
    assert [row["operations"] for row in rows] == [1, 1, 1, 1]
    assert [row["epoch_s"] - rows[0]["epoch_s"] for row in rows] == [0, 60, DAY_S + 60, DAY_S + 120]
    assert all(row["minute"].endswith(":00Z") for row in rows)


def test_one_entity_is_found_whatever_the_case_of_its_letters(own: LiveBroker, admin: Client) -> None:
    for name in ("orders", "others"):
        admin.ask("PUT", f"/{name}", entry("QueueDescription"))
        own.send(name, "x")
    assert sums(admin, entity="Orders") == {("orders", "send"): 1, ("orders", "management"): 1}
    assert sums(admin, entity="nobody") == {}


def test_a_restart_counts_on(tmp_path: Path) -> None:
    for _ in range(3):
        live = LiveBroker(tmp_path, open_sqlite_journal(DataDirectory(tmp_path / "data"), "wire"))
        client = Client(live.server.port)
        client.ask("PUT", "/q", entry("QueueDescription"))  # refused but for the first time
        live.send("q", "x")
        live.peek("q")  # leaves nothing to remember: the end of this life saves it. The last page is an empty one
        client.close()
        live.close()
    live = LiveBroker(tmp_path, open_sqlite_journal(DataDirectory(tmp_path / "data"), "wire"))
    client = Client(live.server.port)
    assert sums(client) == {("q", "send"): 3, ("q", "management"): 1, ("q", "peek"): (1 + 1) + (2 + 1) + (3 + 1)}
    client.close()
    live.close()


def test_a_day_file_that_cannot_be_read_is_named_and_the_rest_is_shown(
    own: LiveBroker, admin: Client, data: Path
) -> None:
    admin.ask("PUT", "/q", entry("QueueDescription"))
    own.send("q", "one")
    first = today(own)
    own.advance(DAY_S)
    own.send("q", "two")
    sealed = data / "ledger" / f"day={first}" / "wire.jsonl.gz"
    own.wait(sealed.exists)
    sums(admin)
    sealed.write_bytes(sealed.read_bytes()[:-10])
    answer = json.loads(admin.ask("GET", "/$spillway/ledger").body)
    assert [text.partition(":")[0] for text in answer["unreadable_days"]] == [first]
    assert "cut short" in answer["unreadable_days"][0]
    assert {"entity": "q", "kind": "send", "operations": 2} in [
        {name: row[name] for name in ("entity", "kind", "operations")} for row in answer["rows"]
    ]


def test_a_day_file_that_was_moved_away_is_simply_not_there(own: LiveBroker, admin: Client, data: Path) -> None:
    admin.ask("PUT", "/q", entry("QueueDescription"))
    first = today(own)
    own.advance(DAY_S)
    sealed = data / "ledger" / f"day={first}" / "wire.jsonl.gz"
    own.wait(sealed.exists)
    sums(admin)
    sealed.unlink()
    assert sums(admin) == {}


# -- what is asked --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("since=yesterday", "'since' must be a day or a time, like 2027-01-31 or 2027-01-31T12:30Z."),
        ("until=2027-13-01", "'until' must be a day or a time, like 2027-01-31 or 2027-01-31T12:30Z."),
        ("until=9999-12-31", "'until' is too late."),
        ("since=2027-01-02&until=2027-01-01", "'until' must be later than 'since'."),
        ("by=day", "'by' must be 'kind' (sums by entity and kind) or 'minute' (every row)."),
        ("entiy=q", "'entiy' is not known here; the names are since, until, entity, by."),
    ],
)
def test_what_is_wrong_with_a_question_is_said(client: Client, query: str, said: str) -> None:
    status, error = refusal(client, query)
    assert (status, error.removeprefix("SubCode=40000. ")) == (400, said)


def test_times_are_taken_as_they_are_written(client: Client) -> None:
    answer = ledger(client, since="2027-01-31", until="2027-02-01")
    assert (answer["since"], answer["until"]) == ("2027-01-31T00:00:00Z", "2027-02-02T00:00:00Z")
    answer = ledger(client, since="2027-01-31T12:30:59", until="2027-01-31T14:00:01+01:00")
    assert (answer["since"], answer["until"]) == ("2027-01-31T12:30:00Z", "2027-01-31T13:01:00Z")
    answer = ledger(client, since="0001-01-01", until="2027-01-31T14:00Z")
    assert answer["since"] == "1970-01-01T00:00:00Z"
