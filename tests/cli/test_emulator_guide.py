"""docs/emulator.md: its programs, written for the emulator, run unchanged against `spillway serve`."""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.emulator_config.sample_config import SAMPLE
from tests.tools import js
from tests.tools.broker_process import BrokerProcess

ROOT = Path(__file__).resolve().parent.parent.parent
GUIDE = (ROOT / "docs" / "emulator.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, flags=re.DOTALL)


@pytest.fixture(scope="module")
def also_port() -> int:
    """One that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, also_port: int) -> Iterator[BrokerProcess]:
    """As the guide starts it, on other ports."""
    directory = tmp_path_factory.mktemp("emulator")
    (directory / "Config.json").write_text(json.dumps(SAMPLE))
    options = ["--also-listen", str(also_port)]
    with BrokerProcess(directory / "data", config=directory / "Config.json", options=options) as started:
        yield started


def run(command: list[str], cwd: Path, **env: str) -> str:
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_connection_string_of_the_guide_is_the_brokers_with_the_usual_port(broker: BrokerProcess) -> None:
    (string,) = re.findall(r"^Endpoint=.*$", GUIDE, flags=re.MULTILINE)
    assert broker.connection_string.replace(f":{broker.port}", "") == string
    assert "spillway serve --dev --config Config.json --also-listen 5300" in GUIDE


def test_the_python_program_runs_unchanged(broker: BrokerProcess, tmp_path: Path) -> None:
    (said,) = blocks("text")
    program = blocks("python")[0]
    assert "spillway" not in program.lower()
    assert "localhost" not in program
    strings = {"SERVICEBUS_CONNECTION_STRING": broker.connection_string}
    assert run([sys.executable, "-c", program], tmp_path, **strings) == said


def test_the_javascript_program_runs_unchanged(broker: BrokerProcess, tmp_path: Path) -> None:
    (said,) = blocks("text")
    (program,) = blocks("javascript")
    assert "spillway" not in program.lower()
    js.install()
    (tmp_path / "program.mjs").write_text(program)
    (tmp_path / "node_modules").symlink_to(js.DIRECTORY / "node_modules")
    strings = {"SERVICEBUS_CONNECTION_STRING": broker.connection_string}
    assert run([*js.node_command(), "program.mjs"], tmp_path, **strings) == said


def test_the_administration_program_finds_the_entities_on_the_second_port(
    broker: BrokerProcess, also_port: int, tmp_path: Path
) -> None:
    program = blocks("python")[1]
    assert broker.ca_file is not None
    strings = {
        "SERVICEBUS_ADMINISTRATION_CONNECTION_STRING": broker.connection_string.replace(
            f":{broker.port}", f":{also_port}"
        ),
        "CA_FILE": broker.ca_file,
    }
    assert run([sys.executable, "-c", program], tmp_path, **strings) == "['queue.1']\n['topic.1']\n"


def test_a_key_of_ones_own_and_clear_text_serve_every_address(tmp_path: Path) -> None:
    """As the guide says for containers that do not share a network."""
    assert "spillway serve --host 0.0.0.0 --clear-text --config Config.json" in GUIDE
    options = ["--host", "0.0.0.0", "--clear-text"]
    with BrokerProcess(tmp_path / "data", queues=["queue.1"], options=options, is_development=False) as broker:
        assert "SAS_KEY_VALUE" not in broker.connection_string
        program = (
            "import os; from azure.servicebus import ServiceBusClient, ServiceBusMessage\n"
            "with ServiceBusClient.from_connection_string(os.environ['S']) as client:\n"
            "    with client.get_queue_sender('queue.1') as sender:\n"
            "        sender.send_messages(ServiceBusMessage('x'))\n"
            "print('sent')"
        )
        assert run([sys.executable, "-c", program], tmp_path, S=broker.connection_string) == "sent\n"
