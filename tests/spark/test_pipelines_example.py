"""examples/spark-pipelines, run by Spark's own command against a real broker and the ledger that this one seals."""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pyspark
import pytest

from spillway.client import OutgoingMessage, ReceivedMessage, connect
from spillway.client.control import ControlClient
from spillway.spark.billing.charges import RawRow, Tariff, plain_total
from spillway.spark.billing.ledger_files import rows_of
from spillway.spark.billing.prices import find_list, money
from spillway.spark.platform.java import find_java
from spillway.spark.platform.spark_home import light_home
from tests.spark.bus import run
from tests.spark.java import QUICK_JAVA
from tests.tools.broker_process import PACKAGE_PARENT, BrokerProcess

pytestmark = pytest.mark.spark_processes

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "spark-pipelines"
KEPT = "/tmp/spillway-pipelines"
SECRET = "SAS_KEY_VALUE"
DAY_S = 86_400
RUN_S_MAX = 250
CONNECT_PORT = 15_002  # Spark's, and the command has no other


class Example:
    """A copy of the example, whose places are those of this test."""

    def __init__(self, directory: Path, broker: BrokerProcess) -> None:
        self.directory = directory / "example"
        self.kept = directory / "kept"
        self.broker = broker
        self.output = ""
        shutil.copytree(EXAMPLE, self.directory)
        for name in ("spark-pipeline.yml", "conf/spark-defaults.conf"):
            file = self.directory / name
            text = file.read_text(encoding="utf-8")
            assert KEPT in text
            text = text.replace(KEPT, str(self.kept)).replace("/var/lib/spillway", str(broker.data))
            file.write_text(text, encoding="utf-8")

    def run(self) -> None:
        """As the README says."""
        until_free(CONNECT_PORT)
        path = os.pathsep.join(part for part in (str(PACKAGE_PARENT), os.environ.get("PYTHONPATH", "")) if part)
        program = Path(sys.executable).with_name("spark-pipelines")
        ended = subprocess.run(
            [str(program), "run", "--remote", "local[2,4]"],
            cwd=self.directory,
            env={
                **os.environ,
                "BUS": self.broker.connection_string,
                "JAVA_HOME": str(find_java().home()),
                "JAVA_TOOL_OPTIONS": QUICK_JAVA,
                "PYSPARK_PYTHON": sys.executable,
                "PYTHONPATH": path,
                "SPARK_HOME": str(light_home(Path(pyspark.__file__).parent)),
                "SPARK_CONF_DIR": str(self.directory / "conf"),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=RUN_S_MAX,
            check=False,
        )
        self.output += ended.stdout
        assert ended.returncode == 0, ended.stdout

    def rows(self, table: str) -> list[dict[str, Any]]:
        files = sorted((self.kept / "tables" / table).glob("*.parquet"))
        return [row for file in files for row in pyarrow.parquet.read_table(file).to_pylist()]


def until_free(port: int) -> None:
    """Somebody else may be running a pipeline on this machine."""
    deadline_s = time.monotonic() + 60
    while True:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
                return
            except OSError:
                assert time.monotonic() < deadline_s, f"port {port} is taken"
        time.sleep(0.5)


@pytest.fixture
def example(tmp_path: Path) -> Iterator[Example]:
    """At a broker of its own: its day is ended here, which others would not like."""
    with BrokerProcess(tmp_path / "data", queues=["orders"]) as broker:
        yield Example(tmp_path, broker)


def send(broker: BrokerProcess, *bodies: str) -> None:
    async def work() -> None:
        async with await connect(broker.connection_string) as connection:
            sender = await connection.sender("orders")
            for body in bodies:
                await sender.send(OutgoingMessage(body, message_id=body))

    run(work())


async def peek(broker: BrokerProcess) -> list[ReceivedMessage]:
    async with await connect(broker.connection_string) as connection:
        return await connection.management("orders").peek(0, 100)


def sealed_rows(broker: BrokerProcess) -> list[RawRow]:
    """The broker's clock is moved into the next day; the file of the last one appears soon after."""
    assert broker.data is not None
    ControlClient(broker.connection_string).ask("POST", "clock", {"advance_s": DAY_S})
    deadline_s = time.monotonic() + 30
    while not (files := list((broker.data / "ledger").glob("day=*/*.jsonl.gz"))):
        assert time.monotonic() < deadline_s, "the day was not sealed"
        time.sleep(0.05)
    return [row for file in files for row in rows_of(file)]


def total(rows: list[dict[str, Any]]) -> Decimal:
    return sum((row["cost"] for row in rows), Decimal(0))


def test_messages_and_charges_are_kept_in_tables_and_the_secret_nowhere(example: Example) -> None:
    send(example.broker, "one", "two", "three")
    raw = sealed_rows(example.broker)
    example.run()
    found = {row["sequence_number"]: bytes(row["body"]).decode() for row in example.rows("messages")}
    assert found == {1: "one", 2: "two", 3: "three"}
    # Nothing was taken from the queue: a table that is made again finds the same.
    assert [message.message_id for message in run(peek(example.broker))] == list(found.values())
    # The tables say what the ledger says, and the bill is what a plain sum over its raw rows comes to.
    counted: Counter[tuple[str, str]] = Counter()
    for row in raw:
        counted[row.entity, row.kind] += row.operations
    assert {(row["entity"], row["kind"]): row["operations"] for row in example.rows("metered")} == counted
    assert counted["orders", "send"] == 3
    assert example.rows("set_aside") == []
    by_entity = example.rows("cost_by_entity")
    assert total(example.rows("charges")) == total(by_entity) == money(plain_total(raw, Tariff(find_list("standard"))))
    assert total(by_entity) > 0
    assert ("orders", "send", 3) in {(row["entity"], row["kind"], row["operations"]) for row in by_entity}
    # A catalogue of its own remembers the tables for the next run.
    assert (example.kept / "catalogue").is_dir()
    assert SECRET in example.broker.connection_string
    assert SECRET not in example.output
    kept = b"".join(path.read_bytes() for path in example.kept.rglob("*") if path.is_file())
    assert SECRET.encode() not in kept
