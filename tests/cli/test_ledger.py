"""`spillway ledger`: a table for people, lines for programs."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.wire.live import LiveBroker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    live = LiveBroker(tmp_path_factory.mktemp("tls"))
    queue = live.queue()
    assert queue == "q1"
    live.send(queue, "a", "b", "c" * 1_000)
    live.peek(queue)  # three messages, and a page that says there are no more
    yield live
    live.close()


def ledger(broker: LiveBroker, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "SPILLWAY_CONNECTION_STRING": broker.connection_string}
    line = [sys.executable, "-m", "spillway", "ledger", *arguments]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=60, env=env)


def test_the_table_has_a_line_for_each_kind_of_each_entity_and_a_sum(broker: LiveBroker) -> None:
    done = ledger(broker)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split() for line in done.stdout.splitlines() if line.strip()]
    assert lines[1] == ["entity", "kind", "operations", "units", "bytes"]
    assert [line[:4] for line in lines if line[0] == "q1"] == [["q1", "send", "3", "3"], ["q1", "peek", "4", "4"]]
    assert lines[-1][:3] == ["all", "7", "7"]


def test_json_is_an_object_a_line_and_one_entity_may_be_chosen(broker: LiveBroker) -> None:
    done = ledger(broker, "--json", "--minutes", "--entity", "q1")
    assert (done.returncode, done.stderr) == (0, "")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {(row["namespace"], row["entity"], row["kind"]) for row in rows} == {
        ("wire", "q1", "send"),
        ("wire", "q1", "peek"),
    }
    assert all({"minute", "epoch_s", "operations", "units", "bytes", "since", "until"} <= row.keys() for row in rows)
    assert ledger(broker, "--json", "--entity", "q2").stdout == ""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--since", "long ago"), "--since must be a day or a time, like 2027-01-31 or 2027-01-31T12:30Z."),
        (("--since", "2027-02-01", "--until", "2027-01-01"), "--until must be later than --since."),
    ],
)
def test_a_time_that_is_none_is_one_line_that_names_the_option(
    broker: LiveBroker, options: tuple[str, ...], said: str
) -> None:
    done = ledger(broker, *options)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"spillway: {said}\n")
