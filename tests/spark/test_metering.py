"""The metering job on real Spark: days are made once, what is damaged is set aside, nothing is counted twice."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spillway.client.control import ControlClient
from spillway.model.ledger import LedgerRow, line_of
from spillway.paired.ledger import SEND, ClientLedger
from spillway.spark.billing.charges import RawRow, day_text
from spillway.spark.billing.ledger_files import LedgerFile
from spillway.spark.billing.metering_inputs import LedgerDirectory, MeteringError
from spillway.spark.billing.pricing import read_metered
from spillway.spark.jobs import metering
from spillway.spark.jobs.metering import MeteringConfig, MeteringSummary, run
from tests.spark.ledgers import write_sealed
from tests.tools.broker_process import BrokerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)  # the first of them starts Spark, each has several jobs
DAY_S = 86_400
NOON = 1_798_804_800  # 2027-01-01T12:00:00Z


def row(entity: str, operations: int, *, day: int = 0, namespace: str = "east", kind: str = "send") -> RawRow:
    return RawRow(namespace, NOON + day * DAY_S, entity, kind, operations, operations, operations * 10)


def meter(spark: "SparkSession", out: Path, *ledgers: Path, **more: Any) -> MeteringSummary:
    directories = tuple(LedgerDirectory(path) for path in ledgers)
    return run(spark, MeteringConfig(out, directories, **more), lambda line: None)


def found(spark: "SparkSession", out: Path) -> dict[tuple[str, str, str, str], int]:
    rows = read_metered(spark, str(out / "metered")).collect()
    return {(each["day"], each["namespace"], each["entity"], each["kind"]): each["operations"] for each in rows}


def set_aside(out: Path) -> list[dict[str, Any]]:
    lines = [path.read_text(encoding="utf-8").splitlines() for path in sorted((out / "quarantine").glob("*.jsonl"))]
    return [json.loads(line) for of_file in lines for line in of_file]


def test_days_are_made_once_and_again_only_when_a_file_is_new_or_has_changed(
    spark: "SparkSession", tmp_path: Path
) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    write_sealed(data, [row("orders", 5), row("orders", 6, kind="receive"), row("orders", 7, day=1)])
    first = meter(spark, out, data)
    assert (first.days, first.days_kept, first.files, first.lines, first.rows) == (2, 0, 2, 3, 3)
    expected = {
        ("2027-01-01", "east", "orders", "send"): 5,
        ("2027-01-01", "east", "orders", "receive"): 6,
        ("2027-01-02", "east", "orders", "send"): 7,
    }
    assert found(spark, out) == expected
    write_sealed(data, [row("bills", 8, day=2, namespace="west"), row("orders", 9, day=1)])
    again = meter(spark, out, data)
    assert (again.days, again.days_kept) == (2, 1)
    expected |= {("2027-01-02", "east", "orders", "send"): 9, ("2027-01-03", "west", "bills", "send"): 8}
    assert found(spark, out) == expected
    # Files may be moved away when they have been counted.
    (data / "ledger" / "day=2027-01-01" / "east.jsonl.gz").unlink()
    assert meter(spark, out, data).days_kept == 2
    assert found(spark, out) == expected


def test_a_day_is_not_made_again_without_what_was_counted_in_it(spark: "SparkSession", tmp_path: Path) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    east, _ = write_sealed(data, [row("orders", 5), row("orders", 6, namespace="west")])
    meter(spark, out, data)
    before = found(spark, out)
    east.unlink()
    write_sealed(data, [row("orders", 7, namespace="west")])
    summary = meter(spark, out, data)
    assert summary.notes == [
        "2027-01-01 was left as it is: its files have changed, but east east.jsonl.gz is not here any more"
    ]
    assert found(spark, out) == before


def test_a_run_that_dies_before_its_checkpoint_is_made_good_by_the_next(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    write_sealed(data, [row("orders", 5), row("orders", 7, day=1)])
    write = metering.write_whole
    written: list[Path] = []

    def die(path: Path, text: str) -> None:
        if path.name.startswith("day="):
            written.append(path)
            raise KeyboardInterrupt
        write(path, text)

    monkeypatch.setattr(metering, "write_whole", die)
    with pytest.raises(KeyboardInterrupt):
        meter(spark, out, data)
    assert len(written) == 1 and len(found(spark, out)) == 2  # the rows are there, but nothing says so
    monkeypatch.setattr(metering, "write_whole", write)
    assert meter(spark, out, data).days == 2
    assert sum(found(spark, out).values()) == 12
    assert read_metered(spark, str(out / "metered")).count() == 2


def test_what_is_damaged_is_set_aside_by_file_and_line_and_the_rest_is_counted(
    spark: "SparkSession", tmp_path: Path
) -> None:
    data, out = tmp_path / "data", tmp_path / "out"
    good, cut = write_sealed(data, [row("orders", 5), row("orders", 6, day=1)])
    whole = cut.read_bytes()
    cut.write_bytes(whole[:-20])
    (data / "ledger" / "day=tomorrow").mkdir()
    (good.parent / "notes.txt").write_text("hello")
    (good.parent / ".west.jsonl.gz.new").write_text("being written")
    summary = meter(spark, out, data)
    assert found(spark, out) == {("2027-01-01", "east", "orders", "send"): 5}
    assert summary.set_aside == 3
    told = {Path(each["file"]).name: each["reason"] for each in set_aside(out)}
    assert told == {
        "day=tomorrow": "the directory's name is no day like day=2027-01-31",
        "notes.txt": "the file's name is not NAMESPACE.jsonl.gz",
        "east.jsonl.gz": "gzip: the file is cut short, after line 0; nothing of the file is counted",
    }
    with pytest.raises(MeteringError, match=r"3 lines or files were set aside: see .* \(--strict\)"):
        meter(spark, out, data, is_strict=True)
    cut.write_bytes(whole)  # mended: the day is made
    assert meter(spark, out, data).days == 1
    assert found(spark, out)["2027-01-02", "east", "orders", "send"] == 6
    assert len(set_aside(out)) == 2


def test_of_a_client_and_a_broker_the_broker_counts_and_clients_add_up(spark: "SparkSession", tmp_path: Path) -> None:
    data, out, clients = tmp_path / "data", tmp_path / "out", tmp_path / "clients"
    clients.mkdir()
    write_sealed(data, [row("orders", 100)])
    for name in ("one", "two"):
        lines = []
        for namespace, at_ms in (("east", NOON * 1000), ("azure-host", NOON * 1000), ("azure-host", NOON * 2000)):
            ledger = ClientLedger(namespace, lambda at_ms=at_ms: at_ms)  # type: ignore[misc]
            for _ in range(3):
                ledger.count("orders", SEND, 70_000)
            lines += list(ledger.lines())
        (clients / f"{name}.jsonl").write_text("\n".join([*lines, "?"]), encoding="utf-8")
    summary = meter(
        spark,
        out,
        data,
        client_ledgers=(clients,),
        aliases={"azure-host": "azure"},
        now=lambda: datetime(2027, 1, 2, tzinfo=UTC),
    )
    later = day_text(NOON * 2)
    assert found(spark, out) == {
        ("2027-01-01", "east", "orders", "send"): 100,
        ("2027-01-01", "azure", "orders", "send"): 6,
        (later, "azure", "orders", "send"): 6,
    }
    assert summary.open_days == [later]
    assert [(Path(each["file"]).name, each["line"]) for each in set_aside(out)] == [("one.jsonl", 4), ("two.jsonl", 4)]


class LimitedBroker:
    """Answers as a broker does that has more rows than it gives at once."""

    def __init__(self, rows_max: int) -> None:
        self.rows_max = rows_max
        self.asked = 0
        begin = NOON // 60
        self.rows = [LedgerRow(begin + minute, "orders", SEND, 1, 1, 0) for minute in range(0, 600, 3)]

    def ask(
        self, method: str, resource: str, body: dict[str, Any] | None = None, query: dict[str, str] | None = None
    ) -> Any:
        self.asked += 1
        until = NOON + 601 * 60
        answer = {"namespace": "east", "since": "2026-12-02T00:00:00Z", "damaged_rows": 0, "unreadable_days": []}
        answer["until"] = datetime.fromtimestamp(until, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        if query is None:
            return answer
        since, end = (datetime.fromisoformat(query[name]).timestamp() for name in ("since", "until"))
        rows = [json.loads(line_of("east", row)) for row in self.rows if since <= row.minute * 60 < end]
        if len(rows) > self.rows_max:
            raise RuntimeError(f"There are more than {self.rows_max} rows: ask for less time, or for one entity.")
        names = ("minute", "epoch_s", "entity", "kind", "operations", "units", "bytes")
        return answer | {"rows": [{name: row[name] for name in names} for row in rows]}


def test_a_day_with_more_rows_than_one_answer_holds_is_asked_for_in_pieces(
    spark: "SparkSession", tmp_path: Path
) -> None:
    broker = LimitedBroker(50)
    summary = meter(spark, tmp_path / "out", brokers=(("", broker),))
    assert found(spark, tmp_path / "out") == {("2027-01-01", "east", "orders", "send"): 200}
    assert summary.open_days == ["2027-01-01"] and broker.asked > 35
    # Sealed since: the file counts, what was said before does not.
    write_sealed(tmp_path / "data", [row("orders", 201)])
    assert meter(spark, tmp_path / "out", tmp_path / "data").days == 1
    assert found(spark, tmp_path / "out") == {("2027-01-01", "east", "orders", "send"): 201}


@pytest.fixture
def unused(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker of its own: workers of other tests may still renew locks at the shared one."""
    broker = BrokerProcess(tmp_path / "broker")
    broker.spawn()
    broker.wait_ready()
    yield broker
    broker.close()


def test_the_open_day_of_a_real_broker_is_what_its_ledger_shows(
    spark: "SparkSession", unused: BrokerProcess, tmp_path: Path
) -> None:
    client = ControlClient(unused.connection_string, Path(unused.ca_file) if unused.ca_file else None)
    client.send("GET", "/$Resources/Queues?api-version=2021-05")  # something to count
    meter(spark, tmp_path / "out", brokers=(("mine", client),))
    shown = client.ask("GET", "ledger")
    operations = sum(each["operations"] for each in shown["rows"])
    assert sum(found(spark, tmp_path / "out").values()) == operations > 0
    assert {key[1] for key in found(spark, tmp_path / "out")} == {"mine"}


@pytest.mark.parametrize("name", ["foreign.txt", "checkpoint/metering.json"])
def test_a_directory_that_holds_something_else_is_left_alone(name: str, spark: "SparkSession", tmp_path: Path) -> None:
    path = tmp_path / "out" / name
    path.parent.mkdir(parents=True)
    path.write_text('{"job": "capture", "format": 1}')
    write_sealed(tmp_path / "data", [row("orders", 1)])
    with pytest.raises(MeteringError, match="holds (something else|the checkpoint of something else)"):
        meter(spark, tmp_path / "out", tmp_path / "data")
    assert path.read_text() == '{"job": "capture", "format": 1}'


def test_what_cannot_be_metered_is_refused_by_name(spark: "SparkSession", tmp_path: Path) -> None:
    with pytest.raises(MeteringError, match="nothing to meter: give --ledger"):
        meter(spark, tmp_path / "out")
    with pytest.raises(MeteringError, match="--ledger: .*none is no directory"):
        meter(spark, tmp_path / "out", tmp_path / "none")
    with pytest.raises(MeteringError, match="--client-ledger: .*none is not there"):
        meter(spark, tmp_path / "out", client_ledgers=(tmp_path / "none",))
    for name in ("one", "two"):
        write_sealed(tmp_path / name, [row("orders", 1)])
    with pytest.raises(MeteringError, match="2027-01-01 of namespace 'east' is there twice: .*one.* and .*two"):
        meter(spark, tmp_path / "out", tmp_path / "one", tmp_path / "two")


def test_two_brokers_that_call_their_namespace_alike_are_told_apart_by_a_name(
    spark: "SparkSession", tmp_path: Path
) -> None:
    for name in ("one", "two"):
        write_sealed(tmp_path / name, [row("orders", 1)])
    ledgers = (LedgerDirectory(tmp_path / "one"), LedgerDirectory(tmp_path / "two", "west"))
    run(spark, MeteringConfig(tmp_path / "out", ledgers), lambda line: None)
    assert {key[1] for key in found(spark, tmp_path / "out")} == {"east", "west"}


def test_what_travels_to_executors_is_plain_values() -> None:
    assert all(isinstance(value, str) for value in LedgerFile("a", "2027-01-01", "east", "broker"))
