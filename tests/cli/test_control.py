"""Commands that speak to a running broker: how they find it, and what they say if they cannot."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spillway.cli.status import shown
from spillway.client.control import ControlClient, ControlError
from spillway.server.keys import DEVELOPMENT_KEY, KEY_NAME
from tests.wire.live import LiveBroker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveBroker]:
    live = LiveBroker(tmp_path_factory.mktemp("tls"))
    yield live
    live.close()


def status(*arguments: str, connection_string: str = "") -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "SPILLWAY_CONNECTION_STRING": connection_string}
    line = [sys.executable, "-m", "spillway", "status", *arguments]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=60, env=env)


def data_directory(path: Path, port: int) -> Path:
    """As a broker in development leaves it."""
    facts = {"host": "localhost", "is_clear_text": True, "is_development": True, "ports": {"wire": port}}
    (path / "running.json").write_text(json.dumps(facts))
    return path


def test_the_broker_is_found_by_the_connection_string_in_the_environment(broker: LiveBroker) -> None:
    done = status("--json", connection_string=broker.connection_string)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["namespace"] == "wire"


def test_the_broker_is_found_by_its_data_directory(broker: LiveBroker, tmp_path: Path) -> None:
    done = status("--data", str(data_directory(tmp_path, broker.server.port)))
    assert (done.returncode, done.stderr) == (0, "")
    assert "namespace:" in done.stdout
    assert "disk nearly full:    no" in done.stdout


def test_tls_is_spoken_unless_the_emulator_is_named_and_the_authority_is_asked_for(broker: LiveBroker) -> None:
    secure = broker.connection_string.replace("UseDevelopmentEmulator=true;", "")
    refused = status(connection_string=secure)
    assert refused.returncode == 1
    assert "not trusted; name its authority with --ca-file" in refused.stderr
    ca_file = str(broker.certificates.ca)
    assert status("--ca-file", ca_file, connection_string=secure).returncode == 0


def test_a_wrong_key_is_one_line_without_the_key(broker: LiveBroker) -> None:
    wrong = broker.connection_string.replace(DEVELOPMENT_KEY, "c2VjcmV0")
    done = status(connection_string=wrong)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("spillway: ")
    assert "c2VjcmV0" not in line


def test_a_broker_that_is_not_there_is_one_line() -> None:
    nobody = f"Endpoint=sb://localhost:1;SharedAccessKeyName={KEY_NAME};SharedAccessKey=k;UseDevelopmentEmulator=true;"
    done = status(connection_string=nobody)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "spillway: no broker answers on localhost:1: Connection refused\n"


def test_a_data_directory_that_nobody_served_says_how_to_start(tmp_path: Path) -> None:
    done = status("--data", str(tmp_path))
    assert done.returncode == 1
    assert "start one with: spillway serve" in done.stderr


def test_a_connection_string_that_is_none_is_refused_without_being_repeated() -> None:
    done = status(connection_string="SharedAccessKey=hushhush")
    assert done.returncode == 2
    assert "hushhush" not in done.stderr
    assert done.stderr.startswith("spillway: SPILLWAY_CONNECTION_STRING: ")


def test_a_namespace_beside_a_connection_string_is_a_contradiction(broker: LiveBroker) -> None:
    done = status("--namespace", "wire", connection_string=broker.connection_string)
    assert done.returncode == 2
    assert "leads to one namespace" in done.stderr


def test_what_every_entity_holds_is_a_table(broker: LiveBroker) -> None:
    queue = broker.queue()
    broker.send(queue, "one")
    broker.send(queue, "two")
    done = status(connection_string=broker.connection_string)
    assert (done.returncode, done.stderr) == (0, "")
    assert not set("{}[]'") & set(done.stdout)
    (line,) = [line for line in done.stdout.splitlines() if line.endswith(f"  {queue}")]
    assert line.split() == ["2", "0", "0", "0", queue]
    assert "active  scheduled  deferred  dead letters  queue, topic or subscription" in done.stdout
    as_json = json.loads(status("--json", connection_string=broker.connection_string).stdout)
    (entity,) = [each for each in as_json["entities"] if each["path"] == queue]
    assert entity["active"] == 2
    assert as_json["left_out"] == 0


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({}, "none"),
        ([], "none"),
        ({"operations": 1_200, "memory": 1}, "operations 1,200, memory 1"),
        ([{"path": "orders", "reason": "x"}, {"path": "b", "reason": "y"}], "path orders, reason x; path b, reason y"),
        (
            [{"path": "orders", "since_ms": 1_700_000_000_123, "reason": "x"}],
            "path orders, since 2023-11-14T22:13:20Z, reason x",
        ),
        (True, "yes"),
        (12_345, "12,345"),
    ],
)
def test_facts_are_written_for_people(value: object, text: str) -> None:
    assert shown(value) == text


def test_what_the_broker_says_is_said_without_the_codes_for_programs(broker: LiveBroker) -> None:
    with pytest.raises(ControlError) as refused:
        ControlClient(broker.connection_string).ask("POST", "clock", {"advance_s": "x"})
    assert refused.value.status == 400
    assert "SubCode" not in refused.value.text
