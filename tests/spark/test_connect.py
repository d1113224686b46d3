"""Every job on Spark Connect, where there is no Spark context: it runs, or says why it does not before it begins."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spillway.spark.platform.java import SparkMissing, find_java
from spillway.spark.platform.session import build_session, check_spark
from tests.paired.namespaces import Namespaces
from tests.spark.bus import Bus
from tests.spark.cluster import SPARK_HOME, Node
from tests.spark.java import QUICK_JAVA
from tests.syphon.backlogs import Backlog
from tests.tools.broker_process import PACKAGE_PARENT

pytestmark = [pytest.mark.spark_processes, pytest.mark.timeout(600)]

ROOT = Path(__file__).resolve().parents[2]
RUN_S_MAX = 500
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
Told = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def backlog(namespaces: Namespaces) -> Backlog:
    found = Backlog(namespaces)
    found.fill(found.destination(), 5)
    return found


@pytest.fixture(scope="module")
def queues(bus: Bus) -> tuple[str, str]:
    return bus.queue("one", "two", "three"), bus.queue()


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    path = os.pathsep.join((str(PACKAGE_PARENT), str(ROOT), os.environ.get("PYTHONPATH", "")))
    return {
        **os.environ,
        "PYTHONPATH": path,
        "JAVA_HOME": str(find_java().home()),
        "SPARK_HOME": str(SPARK_HOME),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }


@pytest.fixture(scope="module")
def address(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Connect server, as Spark's own script starts it."""
    line = [str(SPARK_HOME / "bin" / "spark-submit"), "--class", SERVER, "--master", "local[2,4]"]
    line += ["--conf", "spark.connect.grpc.binding.port=0", "--conf", "spark.ui.enabled=false"]
    line += ["--driver-java-options", QUICK_JAVA, "spark-internal"]
    server = Node("connect", line, environment, tmp_path_factory.mktemp("server"))
    try:
        yield "sc://localhost:" + server.said(r"Spark Connect server started at: \S*:(\d+)")
    finally:
        server.end()


@pytest.fixture(scope="module")
def told(
    address: str,
    environment: dict[str, str],
    namespaces: Namespaces,
    backlog: Backlog,
    queues: tuple[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Told:
    """What became of each job; one client runs them all."""
    place = tmp_path_factory.mktemp("place")
    line = [sys.executable, "-m", "tests.spark.connect_host", address, str(place), namespaces.primary.connection_string]
    line += [namespaces.secondary.connection_string, backlog.name, *queues]
    ended = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=RUN_S_MAX)
    assert ended.returncode == 0, ended.stderr[-4000:]
    print(ended.stdout, ended.stderr)
    return {said["job"]: said for said in map(json.loads, ended.stdout.splitlines())}


def test_the_address_of_a_server_makes_a_session_whose_cores_are_known(told: Told) -> None:
    assert told["session"] == {"job": "session", "is_connect": True, "cores": 2}
    assert told["again"]["is_same"] is True


def test_jobs_on_tables_run(told: Told) -> None:
    assert (told["metering"]["days"], told["metering"]["lines"]) == (1, 1)
    assert "error" not in told["cost"] and told["cost"]["total"]
    assert told["availability"]["outages"] == 1


def test_what_is_captured_is_settled_compacted_and_replayed(told: Told, bus: Bus, queues: tuple[str, str]) -> None:
    captured = told["capture"]
    assert (captured["messages"], captured["settled"], captured["lost"], captured["left"]) == (3, 3, 0, [])
    assert len(told["compact"]["days"]) == 1
    assert told["replay"]["sent"] == 3
    assert bus.peek(queues[0]) == []
    assert bus.bodies(queues[1]) == ["one", "two", "three"]


def test_a_syphon_brings_the_backlog_home_and_counts_it(told: Told) -> None:
    assert (told["syphon"]["moved"], told["syphon"]["after"]) == (5, 0)


def test_what_cannot_be_done_is_told_before_it_begins(told: Told) -> None:
    for job in ("capture watch", "syphon watch"):
        assert told[job]["error"] == "OptionError"
        assert "cannot be done over Spark Connect: " in told[job]["text"]
        assert "without --watch" in told[job]["text"]
    assert told["capture elsewhere"]["error"] == "OptionError"
    assert "hdfs://nowhere/lake: a job with files there cannot be done over" in told["capture elsewhere"]["text"]


def test_a_server_that_is_not_there_is_told_in_one_line() -> None:
    address = "sc://localhost:1/;token=topsecret"
    for ask in (check_spark, lambda master: build_session("nobody", master=master, say=lambda line: None)):
        with pytest.raises(SparkMissing, match="Spark Connect at sc://localhost:1/: nobody answers: ") as raised:
            ask(address)
        assert "\n" not in str(raised.value) and "topsecret" not in str(raised.value)
