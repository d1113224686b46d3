"""`spillway clock`, and a broker that was moved, stopped and started again."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from spillway.cli.clock import read_duration_ms, say
from spillway.cli.errors import UsageError
from tests.tools.broker_process import BrokerProcess

TEN_DAYS_S = 10 * 86_400


def clock(broker: BrokerProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "spillway", "clock", *arguments, "--data", str(broker.data)]
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=60, env=broker_env(broker))


def broker_env(broker: BrokerProcess) -> dict[str, str]:
    env = {**os.environ, "PYTHONPATH": str(broker.python_path)}
    env.pop("SPILLWAY_CONNECTION_STRING", None)
    return env


def ahead_s(broker: BrokerProcess) -> float:
    shown = clock(broker, "show", "--json")
    assert shown.returncode == 0, shown.stderr
    return float(json.loads(shown.stdout)["ahead_s"])


def send_and_receive(broker: BrokerProcess, text: str) -> list[str]:
    with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_sender("orders") as sender,
        client.get_queue_receiver("orders") as receiver,
    ):
        sender.send_messages(ServiceBusMessage(text))
        messages = receiver.receive_messages(max_message_count=10, max_wait_time=5)
        for message in messages:
            receiver.complete_message(message)
        return [str(message) for message in messages]


def test_a_namespace_that_was_moved_goes_on_from_there_in_its_next_life_and_without_the_option(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", queues=["orders"]) as broker:
        moved = clock(broker, "advance", "10d")
        assert (moved.returncode, moved.stderr) == (0, "")
        assert "864000.0 s ahead of real time" in moved.stdout
        broker.kill()
        broker.start()
        assert TEN_DAYS_S - 30 < ahead_s(broker) <= TEN_DAYS_S
        assert send_and_receive(broker, "with the movable clock") == ["with the movable clock"]
        broker.stop()
        broker.is_development = False
        broker.start()
        assert send_and_receive(broker, "with the usual clock") == ["with the usual clock"]
        assert TEN_DAYS_S - 60 < ahead_s(broker) <= TEN_DAYS_S
        refused = clock(broker, "advance", "1h")
        assert (refused.returncode, refused.stdout) == (1, "")
        assert "start the broker with --movable-clock, or with --dev" in refused.stderr
        assert "the wall clock is 8" in broker.stderr


def test_the_clock_can_be_moved_without_the_development_key_if_that_is_asked_for(tmp_path: Path) -> None:
    options = ["--movable-clock"]
    with BrokerProcess(tmp_path / "data", queues=["orders"], options=options, is_development=False) as broker:
        moved = clock(broker, "advance", "PT1H", "--json")
        assert json.loads(moved.stdout)["is_settled"] is True
        assert ahead_s(broker) == pytest.approx(3_600, abs=0.01)


@pytest.mark.parametrize(
    ("text", "ms"),
    [("250ms", 250), ("90s", 90_000), ("5m", 300_000), ("1h", 3_600_000), ("10d", 864_000_000), ("PT1H30M", 5_400_000)],
)
def test_durations_are_written_short_or_as_service_bus_writes_them(text: str, ms: int) -> None:
    assert read_duration_ms(text) == ms


@pytest.mark.parametrize("text", ["", "10", "1w", "-5s", "0s", "1.5h", "PT0S", "P", "١s", "9" * 30 + "d", "P99999999D"])
def test_what_is_no_duration_is_refused_with_examples(text: str) -> None:
    with pytest.raises(UsageError, match="must be a duration above zero, like 90s, 5m, 1h, 10d or PT1H30M"):
        read_duration_ms(text)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"ahead_s": 0.0, "is_movable": True}, "T"),
        ({"ahead_s": 0.0, "is_movable": False}, "T, and cannot be moved"),
        ({"ahead_s": 3_600.5, "is_movable": True}, "T, 3600.5 s ahead of real time"),
    ],
)
def test_the_time_is_one_line(answer: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    say({"time": "T", **answer}, as_json=False)
    assert capsys.readouterr().out == said + "\n"
