"""`make bench-spark`: the syphon broker to broker, on Spark, by the same mover outside of it, and by the official SDK.

Two compiled brokers, 1 KB messages, batches of 50,000, two cores. On a shared machine only numbers of one run compare,
so the three ways take turns over the same backlog; CPU per message is of each process, from the kernel.

    bench/spark.py                     400,000 messages for Spark and for the mover, 5,000 for the SDK
    bench/spark.py --messages 50000 --reps 1
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
COMPILED = ROOT / "build" / "compiled"
PACKAGE = os.environ.get("SPILLWAY_BENCH_PATH", str(COMPILED if COMPILED.exists() else ROOT / "src"))
sys.path[:0] = [str(ROOT), PACKAGE]
# Spark's Python workers find the package by this; without it they would take the one that is installed, uncompiled.
os.environ["PYTHONPATH"] = os.pathsep.join([PACKAGE, *filter(None, [os.environ.get("PYTHONPATH")])])

from spillway.client import BATCH_FORMAT, OutgoingMessage, connect, encode_batch_raw  # noqa: E402
from tests.tools.broker_process import PACKAGE_PARENT, BrokerProcess  # noqa: E402

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage
    from pyspark.sql import SparkSession

NAME = "bench"
QUEUES = 2
DESTINATIONS = 4
BATCH = 50_000
TICKS = os.sysconf("SC_CLK_TCK")


class Bench:
    """Two brokers, and what is known of every way to move between them."""

    def __init__(self, directory: Path, stack: ExitStack, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.backlogs = [f"{NAME}/x-servicebus-transfer/{index}" for index in range(QUEUES)]
        self.homes = [f"home{index}" for index in range(DESTINATIONS)]
        self.primary = BrokerProcess(directory / "primary", queues=self.homes)
        self.secondary = BrokerProcess(directory / "secondary", queues=self.backlogs)
        for broker in (self.primary, self.secondary):
            broker.start()
            stack.callback(broker.close)
        self.number = 0

    def fill(self, count: int) -> None:
        asyncio.run(self._fill(count))

    async def _fill(self, count: int) -> None:
        body = os.urandom(self.size_bytes)
        async with await connect(self.secondary.connection_string) as connection:
            for path in self.backlogs:
                sender = await connection.sender(path, window=20)
                sent = []
                for _ in range(0, count // QUEUES, 200):
                    await sender.ready()
                    sent.append(
                        sender.post_raw(encode_batch_raw([self._message(body) for _ in range(200)]), BATCH_FORMAT)
                    )
                await asyncio.gather(*sent)

    def _message(self, body: bytes) -> bytes:
        self.number += 1
        home = self.homes[self.number % DESTINATIONS]
        properties = {"x-ms-path": home, "number": self.number}
        return OutgoingMessage(body, message_id=f"m{self.number}", application_properties=properties).encode()

    def empty_primary(self) -> None:
        """What came home is deleted, so that the next run finds the same."""
        asyncio.run(self._empty())

    async def _empty(self) -> None:
        async with await connect(self.primary.connection_string) as connection:
            for home in self.homes:
                management = connection.management(home)
                while await management.batch_delete(4_000, timeout=60):
                    pass

    def measure(self, name: str, count: int, work: Callable[[], int]) -> dict[str, Any]:
        self.fill(count)
        before = self.cpu(name == "spark")
        began_s = time.monotonic()
        moved = work()
        took_s = time.monotonic() - began_s
        cpu = {
            each: round((now - before[each]) / max(1, moved) * 1e6, 1)
            for each, now in self.cpu(name == "spark").items()
        }
        self.empty_primary()
        load = round(os.getloadavg()[0], 1)
        result = {"way": name, "moved": moved, "seconds": round(took_s, 2), "rate": round(moved / took_s), "load": load}
        return {**result, "cpu_us": cpu}

    def cpu(self, has_spark: bool) -> dict[str, float]:
        """Of brokers and of Spark; the mover outside says its own."""
        brokers = {"primary": cpu_s(self.primary.pid), "secondary": cpu_s(self.secondary.pid)}
        return {**brokers, **spark_cpu_s()} if has_spark else brokers


def cpu_s(pid: int, thread: int | None = None) -> float:
    """Of a process with all its threads, or of one of them."""
    path = Path(f"/proc/{pid}/stat" if thread is None else f"/proc/{pid}/task/{thread}/stat")
    fields = path.read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def spark_cpu_s() -> dict[str, float]:
    """Of the Spark in this process: its Java machine, and its Python workers, in which the client has a thread."""
    stages = {"java": 0.0, "client": 0.0, "python": 0.0}
    for pid, kind in spark_processes(os.getpid()).items():
        try:
            whole, main = cpu_s(pid), cpu_s(pid, pid)
        except OSError:
            continue  # it has ended
        if kind == "java":
            stages["java"] += whole
        else:
            stages["python"] += main
            stages["client"] += whole - main
    return stages


def spark_processes(root: int) -> dict[int, str]:
    """Spark's processes under this one: its Java machine, and every Python that this one has started."""
    parents: dict[int, tuple[int, str]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, tail = path.read_text().rpartition(")")
        except OSError:
            continue
        parents[int(path.parent.name)] = (int(tail.split()[1]), head.partition("(")[2])
    machines = {pid for pid, (parent, name) in parents.items() if name == "java" and parent == root}
    found = dict.fromkeys(machines, "java")
    near = set(machines)
    while near:
        near = {pid for pid, (parent, _) in parents.items() if parent in near}
        found |= dict.fromkeys(near, "python")
    return found


MOVER = """
import asyncio, json, sys, time
from spillway.client import connect
from spillway.syphon.move import MoveOptions, BacklogShare, move
async def main(primary, secondary, shares):
    loop = asyncio.get_running_loop()
    line = sys.stdin.readline()
    async with await connect(primary) as one, await connect(secondary) as two:
        while line:
            cpu = time.process_time()
            wanted = [BacklogShare(path, json.loads(line)) for path in shares]
            moved = await move(one, two, wanted, MoveOptions(idle_s=0.5))
            if moved.error is not None:
                raise moved.error
            count = moved.outcomes.total("moved")
            print(json.dumps([count, (time.process_time() - cpu) / max(1, count) * 1e6]), flush=True)
            line = await loop.run_in_executor(None, sys.stdin.readline)
asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
"""


class OutsideSpark:
    """The same mover, one process for each core as Spark has, told by a line when to begin."""

    def __init__(self, bench: Bench, stack: ExitStack, processes: int) -> None:
        line = [sys.executable, "-c", MOVER, bench.primary.connection_string, bench.secondary.connection_string]
        environment = {**os.environ, "PYTHONPATH": str(PACKAGE_PARENT)}
        self.movers = [
            subprocess.Popen(
                [*line, *bench.backlogs], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
            )
            for _ in range(processes)
        ]
        for mover in self.movers:
            stack.callback(mover.kill)
        self.cpu_us = 0.0

    def move(self, count: int) -> int:
        """In batches, as Spark does: nobody takes more than its share."""
        moved, cpu = 0, 0.0
        while moved < count:
            share = min(BATCH, count - moved) // (len(self.movers) * QUEUES)
            for mover in self.movers:
                assert mover.stdin is not None
                mover.stdin.write(f"{share}\n")
                mover.stdin.flush()
            answers = []
            for mover in self.movers:
                assert mover.stdout is not None
                answers.append(json.loads(mover.stdout.readline()))
            moved += sum(answer[0] for answer in answers)
            cpu += sum(answer[0] * answer[1] for answer in answers)
        self.cpu_us = round(cpu / moved, 1)
        return moved


class OnSpark:
    """The job, in a session that has run it before."""

    def __init__(self, bench: Bench) -> None:
        from spillway.spark.platform.session import build_session

        self.bench = bench
        self.session: SparkSession = build_session("bench", master="local[2,4]")
        self.rates: list[float] = []

    def move(self) -> int:
        from spillway.spark.jobs.syphon import SyphonConfig, run

        bench = self.bench
        config = SyphonConfig(
            bench.primary.connection_string,
            bench.secondary.connection_string,
            namespace_name=NAME,
            batch_messages=BATCH,
            idle_s=0.5,
        )
        summary = run(self.session, config)
        assert summary.kept == summary.dead_lettered == summary.after == 0, summary
        self.rates = summary.batch_rates
        return summary.moved


def by_sdk(bench: Bench, count: int) -> int:
    """As a program on the official SDK would: receive, send each batch by destination, complete one by one."""
    return asyncio.run(_by_sdk(bench, count))


def restored(message: "ServiceBusReceivedMessage") -> tuple[str, "ServiceBusMessage"]:
    """Where it belongs, and what the bench has put into it."""
    from azure.servicebus import ServiceBusMessage

    properties = dict(message.application_properties or {})
    path = properties.pop(b"x-ms-path")
    assert isinstance(path, bytes)
    return path.decode(), ServiceBusMessage(b"".join(message.body), message_id=message.message_id)


async def _by_sdk(bench: Bench, count: int) -> int:
    from azure.servicebus.aio import ServiceBusClient

    moved = 0
    async with (
        ServiceBusClient.from_connection_string(bench.primary.connection_string) as primary,
        ServiceBusClient.from_connection_string(bench.secondary.connection_string) as secondary,
    ):
        senders = {home: primary.get_queue_sender(home) for home in bench.homes}
        receivers = [secondary.get_queue_receiver(path, prefetch_count=500) for path in bench.backlogs]

        async def empty(receiver: Any) -> int:
            done = 0
            while messages := await receiver.receive_messages(500, max_wait_time=2):
                homes: dict[str, list[Any]] = {}
                for message in messages:
                    path, home = restored(message)
                    homes.setdefault(path, []).append(home)
                for path, parcel in homes.items():
                    for at in range(0, len(parcel), 150):
                        await senders[path].send_messages(parcel[at : at + 150])
                for message in messages:
                    await receiver.complete_message(message)
                done += len(messages)
            return done

        for receiver in receivers:  # one after the other: senders of the SDK are for one coroutine at a time
            moved += await empty(receiver)
        for each in (*senders.values(), *receivers):
            await each.close()
    return moved


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=400_000)
    parser.add_argument("--sdk-messages", type=int, default=5_000)
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "evidence" / "bench-spark.json")
    chosen = parser.parse_args()
    results: list[dict[str, Any]] = []
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="spillway-bench-")))
        bench = Bench(directory, stack, chosen.size)
        outside = OutsideSpark(bench, stack, 2)
        on_spark = OnSpark(bench)
        bench.measure("warm-up", 2 * BATCH, on_spark.move)
        bench.measure("warm-up", 20_000, lambda: outside.move(20_000))
        for _ in range(chosen.reps):
            results.append(bench.measure("spark", chosen.messages, on_spark.move))
            results[-1]["batch_rates"] = on_spark.rates
            results.append(bench.measure("outside", chosen.messages, lambda: outside.move(chosen.messages)))
            results[-1]["client_cpu_us"] = outside.cpu_us
            results.append(bench.measure("sdk", chosen.sdk_messages, lambda: by_sdk(bench, chosen.sdk_messages)))
            for result in results[-3:]:
                print(f"bench: {result}", flush=True)
        on_spark.session.stop()
    rates = {
        way: statistics.median(r["rate"] for r in results if r["way"] == way) for way in ("spark", "outside", "sdk")
    }
    batches = [rate for result in results for rate in result.get("batch_rates", [])]
    rates["spark_batch"] = statistics.median(batches) if batches else 0
    ratio = rates["spark_batch"] / rates["outside"]
    rates["batch_of_outside"], rates["whole_of_outside"] = round(ratio, 3), round(rates["spark"] / rates["outside"], 3)
    about = {"messages": chosen.messages, "size": chosen.size, "batch": BATCH, "package": PACKAGE_PARENT.name}
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps({"about": about, "medians": rates, "runs": results}, indent=1) + "\n")
    print(f"bench: messages/s: {rates}; a batch on Spark is {ratio:.0%} of the mover outside of it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
