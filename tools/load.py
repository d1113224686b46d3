"""`make load`: a deep queue costs disk, not memory and not start-up time; neither do many message sessions.

Fills a queue with 1,000,000 waiting messages of 1 KB, one with 200,000 scheduled and one with 200,000 deferred, and
compares resident memory with the same broker at 10,000, and the time to ready with an empty store's. Memory is read
three times: in the life that took the messages, in a fresh one, and when that one has handed some out. Starts of the
deep and of the empty store take turns, so that other work on the machine slows both.

Then 200,000 messages over 20,000 message sessions, which are accepted one after the other over many links and emptied,
and the time to ready with 10,000 queues and topics (tests/tools/many.py).

Writes docs/evidence/load.json; ends with status 1 if a limit is broken.
"""

import argparse
import json
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from azure.servicebus import ServiceBusClient, ServiceBusMessageState  # noqa: E402 - after the path above

from tests.tools.broker_process import BrokerProcess  # noqa: E402 - the tools are imported from the tree they lie in
from tests.tools.many import measure_entities, measure_sessions  # noqa: E402

COMPILED = ROOT / "build" / "compiled"
SHALLOW = 10_000
MEMORY_BYTES_MAX = 60 * 1024 * 1024  # above the shallow queue's
READY_S_MAX = 0.5  # above an empty store's
STARTS = 7  # the median of so many
STARTS_AFTER_KILL = 3
# With header and properties the encoded message is 1,024 bytes, and a million of them fit a queue's default size.
BODY_BYTES = 942
HANDED_OUT = 2_000
SETTLE_S = 2.0  # let the writer finish its checkpoint before memory is read
SCHEDULE_S = 24 * 3600
QUEUE = "deep"
STATES = {
    "waiting": ServiceBusMessageState.ACTIVE,
    "scheduled": ServiceBusMessageState.SCHEDULED,
    "deferred": ServiceBusMessageState.DEFERRED,
}


@dataclass
class Depth:
    """One broker at one depth."""

    messages: int
    empty_ready_s: float
    ready_s: float
    ready_after_kill_s: float
    rss_after_filling: int
    rss_after_restart: int
    rss_after_handing_out: int
    filled_per_s: float
    store_bytes: int


class Filler:
    """amqpload with the words for the three kinds."""

    def __init__(self, directory: Path) -> None:
        compiler = shutil.which("gcc") or shutil.which("cc")
        if compiler is None:
            sys.exit("load: needs a C compiler: apt-get install gcc")
        self.program = directory / "amqpload"
        subprocess.run([compiler, "-O2", "-o", str(self.program), str(ROOT / "bench" / "amqpload.c")], check=True)

    def fill(self, broker: BrokerProcess, kind: str, count: int) -> float:
        """Returns messages per second."""
        begun = time.monotonic()
        more = ["--schedule", str(SCHEDULE_S)] if kind == "scheduled" else []
        self._run(broker, count, "--receivers", "0", *more)
        if kind == "deferred":
            self._run(broker, count, "--senders", "0", "--defer")
        return count / (time.monotonic() - begun)

    def fill_sessions(self, broker: BrokerProcess, queue: str, count: int, sessions: int) -> float:
        begun = time.monotonic()
        self._run(broker, count, "--receivers", "0", "--groups", str(sessions), "--address", queue)
        return count / (time.monotonic() - begun)

    def take(self, broker: BrokerProcess, count: int) -> None:
        """Receive and complete some, so that the resident window is in use."""
        self._run(broker, count, "--senders", "0", "--second")

    def _run(self, broker: BrokerProcess, count: int, *more: str) -> None:
        command = [str(self.program), "--port", str(broker.port), "--address", QUEUE, "--count", str(count)]
        command += ["--user", "RootManageSharedAccessKey", "--pass", "SAS_KEY_VALUE", "--size", str(BODY_BYTES)]
        done = subprocess.run([*command, "--idle", "60", *more], capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"


def ready_times(broker: BrokerProcess, empty: BrokerProcess) -> tuple[float, float, float]:
    """Median time to ready of the empty store, of this one, and of this one after a kill. Leaves this one running."""
    empty_s, clean_s, killed_s = [], [], []
    for _ in range(STARTS):
        empty_s.append(empty.start().ready_s)
        assert empty.stop() == 0
        assert broker.stop() == 0
        clean_s.append(broker.start().ready_s)
    for _ in range(STARTS_AFTER_KILL):
        broker.kill()
        killed_s.append(broker.start().ready_s)
    medians = [round(statistics.median(times), 3) for times in (empty_s, clean_s, killed_s)]
    return medians[0], medians[1], medians[2]


def check_depth(broker: BrokerProcess, kind: str, messages: int) -> None:
    """Browse with the official SDK: the oldest and the newest are there and in the state that was asked for."""
    with (
        ServiceBusClient.from_connection_string(broker.connection_string) as client,
        client.get_queue_receiver(QUEUE) as receiver,
    ):
        for number in (1, messages):
            found = receiver.peek_messages(max_message_count=1, sequence_number=number)
            assert [message.state for message in found] == [STATES[kind]], f"{kind} at {number}: {found}"


def store_bytes(data: Path) -> int:
    return sum(path.stat().st_size for path in data.rglob("*") if path.is_file())


def rss(broker: BrokerProcess) -> int:
    time.sleep(SETTLE_S)
    return broker.rss_bytes


def measure_depth(
    broker: BrokerProcess, empty: BrokerProcess, filler: Filler, kind: str, have: int, want: int
) -> Depth:
    """Fill up to `want` in a fresh life, then restart. Of waiting messages a few are handed out and sent again."""
    filled_per_s = filler.fill(broker, kind, want - have)
    after_filling = rss(broker)
    check_depth(broker, kind, want)
    empty_ready_s, ready_s, ready_after_kill_s = ready_times(broker, empty)
    after_restart = rss(broker)
    if kind == "waiting":
        filler.take(broker, HANDED_OUT)
        filler.fill(broker, kind, HANDED_OUT)
    after_handing_out = rss(broker)
    assert broker.data is not None
    return Depth(
        messages=want,
        empty_ready_s=empty_ready_s,
        ready_s=ready_s,
        ready_after_kill_s=ready_after_kill_s,
        rss_after_filling=after_filling,
        rss_after_restart=after_restart,
        rss_after_handing_out=after_handing_out,
        filled_per_s=round(filled_per_s),
        store_bytes=store_bytes(broker.data),
    )


def measure_kind(directory: Path, filler: Filler, kind: str, deep: int, python_path: Path) -> dict[str, Any]:
    """Shallow, then deep, in one data directory, beside one that stays empty."""
    empty = BrokerProcess(directory / f"{kind}-empty", queues=[QUEUE], python_path=python_path)
    with BrokerProcess(directory / kind, queues=[QUEUE], python_path=python_path) as broker:
        shallow = measure_depth(broker, empty, filler, kind, 0, SHALLOW)
        assert broker.stop() == 0
        broker.start()
        deepest = measure_depth(broker, empty, filler, kind, SHALLOW, deep)
    empty.close()
    growth = {
        name: getattr(deepest, name) - getattr(shallow, name)
        for name in ("rss_after_filling", "rss_after_restart", "rss_after_handing_out")
    }
    ready_more_s = round(deepest.ready_s - deepest.empty_ready_s, 3)
    return {
        "shallow": asdict(shallow),
        "deep": asdict(deepest),
        "growth_bytes": growth,
        "growth_bytes_max": MEMORY_BYTES_MAX,
        "ready_more_s": ready_more_s,
        "ready_more_s_max": READY_S_MAX,
        "holds": max(growth.values()) <= MEMORY_BYTES_MAX and ready_more_s <= READY_S_MAX,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--waiting", type=int, default=1_000_000)
    parser.add_argument("--scheduled", type=int, default=200_000)
    parser.add_argument("--deferred", type=int, default=200_000)
    parser.add_argument("--sessions", type=int, default=20_000, help="with ten messages each")
    parser.add_argument("--links", type=int, default=500, help="that accept and empty the sessions")
    parser.add_argument("--entities", type=int, default=10_000)
    parser.add_argument("--kinds", default="waiting,scheduled,deferred,sessions,entities")
    parser.add_argument("--uncompiled", action="store_true", help="the sources, even if there is a compiled build")
    parser.add_argument("--compiled", type=Path, default=COMPILED, help="the compiled build")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "evidence" / "load.json")
    chosen = parser.parse_args()
    is_compiled = not chosen.uncompiled and any(chosen.compiled.glob("**/*.so"))
    python_path = chosen.compiled if is_compiled else ROOT / "src"
    facts: dict[str, Any] = {
        "machine": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "compiled": is_compiled,
        "message_bytes": 1024,
    }
    with tempfile.TemporaryDirectory(prefix="spillway-load-") as name:
        directory = Path(name)
        filler = Filler(directory)
        for kind in chosen.kinds.split(","):
            count = getattr(chosen, kind)
            print(f"load: {count} {kind}")
            if kind == "sessions":
                facts[kind] = measure_sessions(directory, filler.fill_sessions, rss, count, chosen.links, python_path)
            elif kind == "entities":
                facts[kind] = measure_entities(directory, count, python_path)
            else:
                facts[kind] = measure_kind(directory, filler, kind, count, python_path)
                shutil.rmtree(directory / kind)
            print(json.dumps(facts[kind], indent=2))
    holds = all(facts[kind]["holds"] for kind in chosen.kinds.split(","))
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps({**facts, "holds": holds}, indent=2) + "\n")
    print("load: " + ("all limits hold" if holds else "a limit is BROKEN"))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
