"""What `make load` measures besides depth: many message sessions, and many entities."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from azure.servicebus import ServiceBusClient

from tests.tools.broker_process import NAMESPACE, BrokerProcess

ROOT = Path(__file__).resolve().parent.parent.parent
SESSION_QUEUE = "sessions"
PER_SESSION = 10
SHALLOW_SESSIONS = 1_000
MEMORY_BYTES_MAX = 60 * 1024 * 1024  # above the same broker with few sessions
ENTITIES_READY_S_MAX = 5.0
STATES = 20  # sessions that are given a state, which must be there after a kill
WATCH_EVERY_S = 0.1

Fill = Callable[[BrokerProcess, str, int, int], float]  # broker, queue, messages, sessions -> messages a second


def write_config(path: Path, queues: list[dict[str, Any]], topics: list[dict[str, Any]]) -> Path:
    namespace = {"Name": NAMESPACE, "Queues": queues, "Topics": topics}
    path.write_text(json.dumps({"UserConfig": {"Namespaces": [namespace]}}))
    return path


# -- sessions -------------------------------------------------------------------------------------------------------


class Watch:
    """The most memory that a broker had while something was done with it."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.peak_bytes = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._is_over.wait(WATCH_EVERY_S):
            self.peak_bytes = max(self.peak_bytes, self.broker.rss_bytes)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._thread.join()


def drain(broker: BrokerProcess, links: int, python_path: Path) -> dict[str, Any]:
    """By our own client, in a process with the same build."""
    path = os.pathsep.join((str(python_path), str(ROOT)))
    command = [sys.executable, "-m", "tests.tools.drain_sessions", broker.connection_string]
    command += ["--queue", SESSION_QUEUE, "--per-session", str(PER_SESSION), "--links", str(links)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return dict(json.loads(done.stdout))


def set_states(broker: BrokerProcess, names: list[str]) -> None:
    with ServiceBusClient.from_connection_string(broker.connection_string) as client:
        for name in names:
            with client.get_queue_receiver(SESSION_QUEUE, session_id=name) as receiver:
                receiver.session.set_state(f"state of {name}")


def states_of(broker: BrokerProcess, names: list[str]) -> list[str]:
    states = []
    with ServiceBusClient.from_connection_string(broker.connection_string) as client:
        for name in names:
            with client.get_queue_receiver(SESSION_QUEUE, session_id=name) as receiver:
                states.append(bytes(receiver.session.get_state()).decode())
    return states


def measure_sessions(
    directory: Path, fill: Fill, rss: Callable[[BrokerProcess], int], sessions: int, links: int, python_path: Path
) -> dict[str, Any]:
    """Fill, kill, drain; the shallow one first, in a data directory of its own."""
    measured = {}
    for name, count in (("shallow", SHALLOW_SESSIONS), ("many", sessions)):
        config = write_config(
            directory / f"sessions-{name}.json",
            [{"Name": SESSION_QUEUE, "Properties": {"RequiresSession": True, "DefaultMessageTimeToLive": "P1D"}}],
            [],
        )
        broker = BrokerProcess(directory / f"sessions-{name}", config=config, python_path=python_path)
        with broker:
            measured[name] = measure_filled(broker, fill, rss, count, links, python_path)
        shutil.rmtree(directory / f"sessions-{name}")
    growth = {
        key: measured["many"][key] - measured["shallow"][key]
        for key in ("rss_after_filling", "rss_after_kill", "rss_peak_while_draining")
    }
    sessions_per_s = measured["many"]["drained"]["sessions_per_s"]
    return {
        **measured,
        "growth_bytes": growth,
        "growth_bytes_max": MEMORY_BYTES_MAX,
        "sessions_per_s": sessions_per_s,  # reported, not judged: it is the machine's as much as the broker's
        "holds": max(growth.values()) <= MEMORY_BYTES_MAX,
    }


def measure_filled(
    broker: BrokerProcess, fill: Fill, rss: Callable[[BrokerProcess], int], count: int, links: int, python_path: Path
) -> dict[str, Any]:
    filled_per_s = fill(broker, SESSION_QUEUE, count * PER_SESSION, count)
    after_filling = rss(broker)
    names = [f"g{number:07}" for number in range(0, count, count // STATES)]
    set_states(broker, names)
    broker.kill()
    broker.start()
    after_kill = rss(broker)
    ready_s = broker.ready_s
    with Watch(broker) as watch:
        drained = drain(broker, links, python_path)
    assert drained["sessions"] == count, f"{drained['sessions']} of {count} sessions were given out"
    assert states_of(broker, names) == [f"state of {name}" for name in names], "a state was lost"
    return {
        "sessions": count,
        "messages": count * PER_SESSION,
        "filled_per_s": round(filled_per_s),
        "rss_after_filling": after_filling,
        "ready_after_kill_s": round(ready_s, 3),
        "rss_after_kill": after_kill,
        "rss_peak_while_draining": watch.peak_bytes,
        "links": links,
        "drained": drained,
    }


# -- entities -------------------------------------------------------------------------------------------------------


def measure_entities(directory: Path, count: int, python_path: Path) -> dict[str, Any]:
    """Half of them queues, half topics with a subscription each: made from a Config.json, then started again."""
    queues = [{"Name": f"queue-{number}"} for number in range(count // 2)]
    topics = [{"Name": f"topic-{number}", "Subscriptions": [{"Name": "s"}]} for number in range(count - count // 2)]
    config = write_config(directory / "entities.json", queues, topics)
    data = directory / "entities"
    options = ["--limit", f"entities={count}"]
    making = BrokerProcess(data, config=config, options=options, python_path=python_path).start(timeout_s=120)
    made_s = making.ready_s
    making.close()
    with BrokerProcess(data, options=options, python_path=python_path) as broker:
        ready_s = broker.ready_s
        broker.kill()
        broker.start()
        ready_after_kill_s = broker.ready_s
        time.sleep(1.0)
        rss_bytes = broker.rss_bytes
    shutil.rmtree(data)
    return {
        "entities": count,
        "made_and_ready_s": round(made_s, 3),
        "ready_s": round(ready_s, 3),
        "ready_after_kill_s": round(ready_after_kill_s, 3),
        "ready_s_max": ENTITIES_READY_S_MAX,
        "rss_bytes": rss_bytes,
        "holds": max(ready_s, ready_after_kill_s) <= ENTITIES_READY_S_MAX,
    }
