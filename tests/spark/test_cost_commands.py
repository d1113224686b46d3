"""`spillway pipeline metering`, `cost` and `what-if`, as they are typed."""

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from spillway.cli.app import make_app
from spillway.cli.errors import UsageError
from spillway.client import OutgoingMessage, connect
from spillway.client.control import ControlClient
from tests.paired.namespaces import Namespaces
from tests.spark.ledgers import write_sealed
from tests.spark.test_charges import row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.tools.broker_process import BrokerProcess


pytestmark = pytest.mark.timeout(600)  # the first of them starts Spark, each has several jobs


def typed(*words: str) -> str:
    result = CliRunner().invoke(make_app(), ["pipeline", *words], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def refused(*words: str) -> str:
    result = CliRunner().invoke(make_app(), ["pipeline", *words])
    assert isinstance(result.exception, UsageError)
    return str(result.exception)


async def use(broker: "BrokerProcess", path: str, count: int) -> None:
    """Send, receive and complete."""
    async with await connect(broker.connection_string) as connection:
        async with await connection.sender(path) as sender:
            for number in range(count):
                await sender.send(OutgoingMessage(str(number)))
        async with await connection.receiver(path) as receiver:
            received = 0
            while received < count:
                for message in await receiver.receive(count, 10.0):
                    await receiver.complete(message)
                    received += 1


@pytest.fixture
def unused(tmp_path: Path) -> Iterator[Namespaces]:
    """Two brokers of its own: a bill has everything that was done there."""
    namespaces = Namespaces(tmp_path)
    yield namespaces
    namespaces.close()


async def test_from_two_running_brokers_to_their_bill(
    spark: "SparkSession", unused: Namespaces, tmp_path: Path
) -> None:
    namespaces = unused
    orders = namespaces.queue()
    backlog = "north/x-servicebus-transfer/0"
    with namespaces.administration(namespaces.secondary) as client:
        client.create_queue(backlog)
    await use(namespaces.secondary, backlog, 3)
    await use(namespaces.primary, orders, 5)
    shown: dict[str, Any] = {}
    asked = []
    for name, broker in (("primary", namespaces.primary), ("secondary", namespaces.secondary)):
        asked += ["--open-day", f"{name}={broker.data}"]
        ca_file = Path(broker.ca_file) if broker.ca_file else None
        shown[name] = ControlClient(broker.connection_string, ca_file).ask("GET", "ledger")["rows"]
    summary = json.loads(typed("metering", *asked, "--out", str(tmp_path / "bill"), "--json").splitlines()[-1])
    assert summary["days"] >= 1 and summary["open_days"] and summary["set_aside"] == 0
    told = typed(
        *("cost", "--metered", str(tmp_path / "bill"), "--out", str(tmp_path / "cost")),
        *("--alias", "north=primary", "--prices", "basic", "--json"),
    )
    bill = json.loads(told.splitlines()[-1])
    units = {one["name"]: one["units"] for one in bill["by_line"]}
    counted = sum(each["units"] for rows in shown.values() for each in rows)
    assert sum(units.values()) == counted
    assert units["send_to_backlog"] == units["receive_from_backlog"] == units["send_to_primary"] == 3
    assert units["receive_from_primary"] == 3
    settled = sum(each["units"] for rows in shown.values() for each in rows if each["kind"] == "settle")
    assert Decimal(bill["total_exact"]) == (counted - settled) * Decimal("0.00000005")


def test_an_outage_is_worked_out_in_words_and_in_json() -> None:
    told = typed("what-if", "--rate", "500", "--outage", "1h", "--size", "256KB", "--backlog-queues", "2")
    assert "diverted           40,960 messages, 10.00 GB" in told
    assert "NO ROOM            for 1,759,040 messages: senders get an error" in told
    found = json.loads(typed("what-if", "--rate", "500", "--outage", "PT1H", "--drain-rate", "2500", "--json"))
    assert (found["diverted"], found["drain_s"], found["cost"]) == (1_800_000, 720, "5.783088")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["what-if", "--rate", "fast", "--outage", "1h"], "--rate must be messages a second"),
        (["what-if", "--rate", "1", "--outage", "soon"], "--outage must be a time like 90s, 5m, 1h"),
        (["what-if", "--rate", "1", "--outage", "1h", "--prices", "gold"], "price list gold: not a file, nor one of"),
        (["what-if", "--rate", "1", "--outage", "1h", "--backlog-queues", "0"], "--backlog-queues must be from 1"),
        (["what-if", "--rate", "1", "--outage", "1500ms"], "--outage must be whole seconds"),
        (["cost", "--metered", "none", "--out", "out"], "none has no metered days"),
        (["cost", "--metered", "none", "--out", "out", "--alias", "x"], "--alias must be NAME=NAMESPACE, not 'x'"),
        (["cost", "--metered", "none", "--out", "out", "--prices", "x.json"], "price list x.json: cannot be read"),
    ],
)
def test_what_is_wrong_is_one_line_and_status_two(words: list[str], said: str) -> None:
    assert said in refused(*words)


def test_a_broker_that_is_to_be_asked_must_be_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPILLWAY_CONNECTION_STRING", raising=False)
    said = refused("metering", "--out", str(tmp_path / "out"), "--open-day", "-")
    assert said == "pipeline metering: --open-day -: SPILLWAY_CONNECTION_STRING is not set"


def test_metering_without_a_ledger_says_what_to_give(spark: "SparkSession", tmp_path: Path) -> None:
    assert "nothing to meter: give --ledger" in refused("metering", "--out", str(tmp_path / "out"))
    write_sealed(tmp_path / "data", [row("orders", "send", 1)])
    said = refused("metering", "--out", str(tmp_path / "data"), "--ledger", str(tmp_path / "data"))
    assert "holds something else" in said
