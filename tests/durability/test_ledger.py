"""The ledger against the clients' own counts: 50,000 operations of every kind, with a `kill -9` in their middle."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from spillway.cli.control import RunningBroker
from spillway.store.check import check
from tests.tools import metering
from tests.tools.broker_process import NAMESPACE, PACKAGE_PARENT, BrokerProcess
from tests.tools.killing import ROOT
from tests.tools.metered_client_process import GONE, LATER, TALKS, WORK

OPERATIONS = 50_000
BEFORE_THE_KILL = 20_000
FILLED = 3_000
CLIENT = "tests.tools.metered_client_process"
SAVED_S = 1.5  # what leaves nothing to store is saved after a second
EXACT = ("send", "settle", "schedule", "cancel")


class Clients:
    def __init__(self, directory: Path, connection_string: str) -> None:
        self.directory = directory
        self.connection_string = connection_string
        self.processes: list[subprocess.Popen[bytes]] = []
        self.histories: list[Path] = []

    def start(self, kind: str, name: str, operations: int = 0) -> None:
        history = self.directory / f"{name}.jsonl"
        history.touch()
        self.histories.append(history)
        command = [sys.executable, "-m", CLIENT, kind, "--connection-string", self.connection_string]
        command += ["--name", name, "--history", str(history), "--operations", str(operations)]
        path = os.pathsep.join(part for part in (str(PACKAGE_PARENT), os.environ.get("PYTHONPATH", "")) if part)
        self.processes.append(subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}))

    def wait(self) -> None:
        for process in self.processes:
            assert process.wait(60) == 0, f"a client ended with {process.returncode}"
        self.processes.clear()

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()

    def requests(self) -> list[metering.Request]:
        return metering.read(self.histories)

    def wait_until_done(self, operations: int) -> None:
        deadline = time.monotonic() + 60
        while self.operations() < operations:
            assert time.monotonic() < deadline, f"{self.operations()} operations in 60 s"
            assert all(process.poll() is None for process in self.processes), "a client ended by itself"
            time.sleep(0.1)

    def operations(self) -> int:
        """About: the last line may be half written."""
        return sum(path.read_bytes().count(b'["') for path in self.histories)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    queues = [{"Name": name, "Properties": {"LockDuration": "PT5M"}} for name in (WORK, GONE, LATER)]
    queues.append({"Name": TALKS, "Properties": {"LockDuration": "PT5M", "RequiresSession": True}})
    path = tmp_path / "Config.json"
    path.write_text(json.dumps({"UserConfig": {"Namespaces": [{"Name": NAMESPACE, "Queues": queues, "Topics": []}]}}))
    return path


def ledger(broker: BrokerProcess) -> metering.Counted:
    answer: dict[str, Any] = RunningBroker(broker.connection_string, None).ask("GET", "ledger")
    assert (answer["damaged_rows"], answer["unreadable_days"]) == (0, [])
    return metering.of_ledger(answer["rows"])


def parts(counted: metering.Counted, kinds: tuple[str, ...]) -> metering.Counted:
    """Of these kinds. What the official SDK encodes, only the broker has the bytes of."""
    chosen = {key: numbers for key, numbers in counted.items() if key[1] in kinds}
    return {key: numbers[:2] if key[0] == TALKS and key[1] != "session" else numbers for key, numbers in chosen.items()}


@pytest.mark.timeout(180)
def test_fifty_thousand_operations_across_a_kill_are_counted_to_the_byte(tmp_path: Path, config: Path) -> None:
    begun = time.monotonic()
    with BrokerProcess(tmp_path / "data", config=config) as broker:
        clients = Clients(tmp_path, broker.connection_string)
        try:
            before = killed_in_the_middle(broker, clients, tmp_path)
            requests_before = len(clients.requests())
            done = sum(numbers[0] for numbers in before.values())
            rest = max(OPERATIONS - done, 10_000)
            clients.histories.clear()
            clients.start("own", "b1", rest // 2)
            clients.start("own", "b2", rest // 2)
            clients.start("sdk", "b3", 300)
            clients.wait()
        finally:
            clients.kill()
        after = ledger(broker)
        # Undisturbed, every kind is exact.
        kinds = tuple({kind for _, kind in after})
        expected = metering.count(clients.requests())
        assert parts(metering.minus(after, before), kinds) == parts(expected, kinds)
        assert {kind for _, kind in expected} == {
            *EXACT,
            *("receive", "empty_receive", "renew", "peek", "ping", "session"),
        }
        total = sum(numbers[0] for numbers in after.values())
        assert total >= OPERATIONS
        assert broker.stop() == 0
    assert check(tmp_path / "data" / NAMESPACE / "journal.db") == []
    print(f"{total} operations, {requests_before} requests before the kill, {time.monotonic() - begun:.1f} s")


def killed_in_the_middle(broker: BrokerProcess, clients: Clients, directory: Path) -> metering.Counted:
    """Work until the kill, start again, and compare what can be known with the ledger, which is returned."""
    history = directory / "fill.jsonl"
    metering.fill(broker.connection_string, GONE, FILLED, history)
    clients.histories.append(history)
    clients.start("own", "a1")
    clients.start("own", "a2")
    clients.start("sdk", "a3")
    clients.wait_until_done(BEFORE_THE_KILL)
    killed_ns = time.monotonic_ns()
    broker.kill()
    clients.wait()
    broker.start()
    first = ledger(broker)
    stored = metering.look(broker.connection_string)
    verdict = metering.Verdict(clients.requests(), stored)
    unknown = [request.kind for request in verdict.unknown if not request.is_settled]
    assert "send" in unknown, "the kill came while requests were under way"
    print(f"under way at the kill: { {kind: unknown.count(kind) for kind in unknown} }")
    granted = metering.count(verdict.granted())
    assert parts(first, EXACT) == parts(granted, EXACT)
    assert first[GONE, "receive"][0] == FILLED - len(stored.states[GONE]), "deleted and counted in one commit"
    # Of the rest a second may be missing, and nothing is invented.
    asked = metering.count(clients.requests())
    saved_ns = killed_ns - int(SAVED_S * 1e9)
    answered = [request for request in clients.requests() if request.is_answered]
    sure = metering.count([request for request in answered if request.answered_ns < saved_ns])
    for key in asked:
        if key[1] in ("ping", "peek", "renew", "session"):
            assert sure.get(key, [0])[0] <= first.get(key, [0])[0], key
        if key[1] in ("ping", "renew"):
            assert first.get(key, [0])[0] <= asked[key][0], key
    return ledger(broker)  # with what looking has cost
