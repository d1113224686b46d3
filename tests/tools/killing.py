"""`kill -9` under load, again and again, and the verdict over what the clients wrote down.

Clients are processes of their own and outlive the broker's lives. Every kill comes while messages are being
acknowledged, at a random moment; one of five comes while the broker is still recovering from the one before.
"""

import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.tools.broker_process import NAMESPACE, PACKAGE_PARENT, BrokerProcess
from tests.tools.history import Verdict, judge, read

ROOT = Path(__file__).resolve().parent.parent.parent
SDK = "tests.tools.client_process"
PIPELINED = "tests.tools.pipelined_client_process"
PROGRESS_TIMEOUT_S = 30.0
LOADED_S_MAX = 0.4  # how long a life may work under load before it is killed
RECOVERING_S_MAX = 0.6  # a kill in this time after the start mostly falls before "ready"
RECOVERING_ONE_OF = 5
QUEUE = "kills"


@dataclass
class Report:
    """What happened, for a test to assert on and for the evidence."""

    kills: int
    kills_while_recovering: int
    ready_s: list[float]
    took_s: float
    seed: int
    verdict: Verdict

    def summary(self) -> dict[str, Any]:
        ordered = sorted(self.ready_s)
        return {
            "kills": self.kills,
            "kills_while_recovering": self.kills_while_recovering,
            "took_s": round(self.took_s, 1),
            "seed": self.seed,
            "ready_s": {
                "median": round(statistics.median(ordered), 3),
                "p99": round(ordered[int(0.99 * (len(ordered) - 1))], 3),
                "max": round(ordered[-1], 3),
            },
            **self.verdict.summary(),
        }


class Clients:
    """Client processes with one history file each."""

    def __init__(self, directory: Path, connection_string: str) -> None:
        self.directory = directory
        self.connection_string = connection_string
        self.processes: list[subprocess.Popen[bytes]] = []
        self.histories: list[Path] = []

    def start(self, module: str, role: str, name: str, queue: str, *more: str) -> "subprocess.Popen[bytes]":
        history = self.directory / f"{name}.jsonl"
        history.touch()
        command = [sys.executable, "-m", module, role, "--connection-string"]
        command += [self.connection_string, "--queue", queue, "--name", name, "--history", str(history), *more]
        path = os.pathsep.join(part for part in (str(PACKAGE_PARENT), os.environ.get("PYTHONPATH", "")) if part)
        env = {**os.environ, "PYTHONPATH": path}
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, env=env)
        self.processes.append(process)
        self.histories.append(history)
        return process

    def marks(self) -> dict[Path, int]:
        """How long each history is now."""
        return {path: path.stat().st_size for path in self.histories}

    def has_news(self, since: dict[Path, int], prefix: str, event: str) -> bool:
        """Whether a client of this kind has written down such an event since then."""
        wanted = f'"event": "{event}"'.encode()
        for path, position in since.items():
            if path.name.startswith(prefix):
                with path.open("rb") as file:
                    file.seek(position)
                    if wanted in file.read():
                        return True
        return False

    def stop(self) -> None:
        """Tell all of them to finish and see them end well."""
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self.processes:
            assert process.wait(60) == 0, f"a client ended with {process.returncode}"
        self.processes.clear()

    def kill(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def run(
    directory: Path,
    kills: int,
    *,
    seed: int,
    is_forgetful: bool = False,
    resends: bool = False,
    detects_duplicates: bool = False,
    env: Mapping[str, str] | None = None,
    said: Callable[[str], None] = print,
) -> Report:
    """Start a broker and its clients in `directory`, kill it `kills` times, drain it, judge.

    One sender and one receiver on the official SDK, one of each on our own client with hundreds in flight. A forgetful
    broker keeps its messages in memory: the negative control, which must not come out clean. Senders that resend send
    everything again whose outcome they do not know, until they know it.
    """
    dice = random.Random(seed)
    config = directory / "Config.json"
    config.write_text(json.dumps(_config(detects_duplicates)))
    broker = BrokerProcess(None if is_forgetful else directory / "data", config=config, log_dir=directory, env=env)
    more = ["--resend"] if resends else []
    begun = time.monotonic()
    with broker:
        clients = Clients(directory, broker.connection_string)
        try:
            for module, name in ((SDK, "sdk"), (PIPELINED, "own")):
                clients.start(module, "send", f"s-{name}", QUEUE, *more)
                clients.start(module, "receive", f"r-{name}", QUEUE)
            report = _kill_again_and_again(broker, clients, kills, dice, said)
            clients.stop()
            # Once more, so that no lock of a client that has gone stands in the way of the drain.
            broker.kill()
            broker.start()
            _drain(clients)
        finally:
            clients.kill()
    report.seed = seed
    report.took_s = time.monotonic() - begun
    report.verdict = judge(read(clients.histories))
    return report


def _config(detects_duplicates: bool) -> dict[str, Any]:
    properties = {
        "RequiresDuplicateDetection": detects_duplicates,
        "DuplicateDetectionHistoryTimeWindow": "PT1H",
        "DefaultMessageTimeToLive": "P1D",
        "MaxDeliveryCount": 10,
    }
    queue = {"Name": QUEUE, "Properties": properties}
    return {"UserConfig": {"Namespaces": [{"Name": NAMESPACE, "Queues": [queue]}]}}


def _kill_again_and_again(
    broker: BrokerProcess, clients: Clients, kills: int, dice: random.Random, said: Callable[[str], None]
) -> Report:
    report = Report(kills=0, kills_while_recovering=0, ready_s=[broker.ready_s], took_s=0.0, seed=0, verdict=Verdict())
    while report.kills < kills:
        _wait_for_progress(broker, clients)
        time.sleep(dice.uniform(0, LOADED_S_MAX))
        broker.kill()
        report.kills += 1
        if dice.randrange(RECOVERING_ONE_OF) == 0 and report.kills < kills:
            broker.spawn()
            time.sleep(dice.uniform(0, RECOVERING_S_MAX))
            broker.kill()
            report.kills += 1
            report.kills_while_recovering += 1
        broker.start()
        report.ready_s.append(broker.ready_s)
        if report.kills % 20 == 0:
            said(f"{report.kills} kills, {sum(clients.marks().values())} bytes of history")
    return report


def _wait_for_progress(broker: BrokerProcess, clients: Clients) -> None:
    """Every kind of client has been answered in this life: the kill to come is one under load."""
    deadline = time.monotonic() + PROGRESS_TIMEOUT_S
    since = clients.marks()
    for prefix, event in (("s-sdk", "sent"), ("s-own", "sent"), ("r-", "completed")):
        while not clients.has_news(since, prefix, event):
            assert broker.is_running, f"the broker died by itself:\n{broker.stderr}"
            assert time.monotonic() < deadline, f"nothing {event} by {prefix} clients in {PROGRESS_TIMEOUT_S} s"
            time.sleep(0.01)


def _drain(clients: Clients) -> None:
    """Everything that is left, from the queue and from its dead-letter queue."""
    for name, more in (("drain", []), ("drain-dead", ["--dead-letters"])):
        process = clients.start(PIPELINED, "receive", name, QUEUE, "--drain", *more)
        assert process.wait(300) == 0
