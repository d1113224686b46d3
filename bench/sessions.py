"""`bench/sessions.py`: the same messages in a queue and in many message sessions, browsed and received on Spark.

A compiled broker, a warm session on two cores. Three ways: browsed; received and deleted by a batch read; received
locked and settled by a stream that takes what is there. On a shared machine only numbers of one run compare, so queue
and sessions take turns.

    bench/sessions.py                       600 sessions of 5 messages, 50,000 of 2
    bench/sessions.py --shapes 600x5 --reps 1
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from azure.servicebus.management import ServiceBusAdministrationClient  # noqa: E402

from bench.spark import cpu_s, spark_cpu_s  # noqa: E402
from spillway.client import OutgoingMessage, connect  # noqa: E402
from tests.tools.broker_process import PACKAGE_PARENT, BrokerProcess  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TIMES_MAX = 2.0  # of what the same messages take without sessions
WAYS = ("browse", "receive", "lock and settle")


class SessionBench:
    """One broker, one Spark session, and the ways to read."""

    def __init__(self, directory: Path, stack: ExitStack, size_bytes: int) -> None:
        from spillway.spark.platform.session import build_session

        self.directory = directory
        self.body = os.urandom(size_bytes)
        self.broker = BrokerProcess(directory / "broker")
        self.broker.start()
        stack.callback(self.broker.close)
        self.session: SparkSession = build_session("bench", master="local[2,4]")
        stack.callback(self.session.stop)
        self.number = 0

    def queue(self, sessions: int, count: int) -> str:
        """A queue with so many messages, in turn for each session if it has any."""
        self.number += 1
        name = f"q{self.number}"
        with ServiceBusAdministrationClient.from_connection_string(
            self.broker.connection_string, connection_verify=self.broker.ca_file
        ) as client:
            client.create_queue(name, requires_session=sessions > 0)
        asyncio.run(self._fill(name, sessions, count))
        return name

    async def _fill(self, name: str, sessions: int, count: int) -> None:
        async with await connect(self.broker.connection_string) as connection:
            sender = await connection.sender(name)
            posted = []
            for at in range(count):
                session_id = f"s{at % sessions:06d}" if sessions else None
                message = OutgoingMessage(self.body, message_id=f"m{at}", session_id=session_id)
                await sender.ready()
                posted.append(sender.post(message))
            await asyncio.gather(*posted)

    def read(self, way: str, name: str, sessions: int, count: int) -> int:
        """How many rows there were."""
        options = {"connectionString": self.broker.connection_string} | ({"sessions": "*"} if sessions else {})
        if way == "browse":
            return self._rows(name, options)
        if way == "receive":
            limits = {"mode": "receiveanddelete", "allowLoss": "true", "maxMessages": str(count)}
            return self._rows(name, options | limits)
        return self._settle(name, options | {"mode": "peeklock", "settle": "manual"})

    def _rows(self, name: str, options: dict[str, str]) -> int:
        frame = self.session.read.format("servicebus").options(**options).load(name)
        return int(frame.selectExpr("count(body) AS n").collect()[0]["n"])

    def _settle(self, name: str, options: dict[str, str]) -> int:
        from spillway.spark.settle import settling

        counts: list[int] = []

        def store(batch: "DataFrame", number: int) -> None:
            counts.append(batch.count())

        query = (
            self.session.readStream.format("servicebus")
            .options(**options)
            .load(name)
            .writeStream.foreachBatch(settling(store, options))
            .option("checkpointLocation", str(self.directory / f"checkpoint-{name}"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return sum(counts)

    def measure(self, way: str, name: str, sessions: int, count: int) -> dict[str, Any]:
        before = self._cpu()
        began_s = time.monotonic()
        rows = self.read(way, name, sessions, count)
        took_s = time.monotonic() - began_s
        assert rows == count, f"{way} of {name}: {rows} rows, not {count}"
        cpu = {stage: round(now - before.get(stage, 0.0), 2) for stage, now in self._cpu().items()}
        load = round(os.getloadavg()[0], 1)
        return {
            "way": way,
            "sessions": sessions,
            "messages": count,
            "seconds": round(took_s, 2),
            "load": load,
            "cpu_s": cpu,
        }

    def _cpu(self) -> dict[str, float]:
        return {"broker": cpu_s(self.broker.pid), "driver": cpu_s(os.getpid()), **spark_cpu_s()}


def run_shape(bench: SessionBench, sessions: int, messages: int, ways: list[str], say: Callable[[Any], None]) -> None:
    """The queue without sessions and the one with them, one after the other in each way."""
    count = sessions * messages
    plain, divided = bench.queue(0, count), bench.queue(sessions, count)
    for way in ways:
        for name, some in ((plain, 0), (divided, sessions)):
            say(bench.measure(way, name, some, count))
            if way == "receive" and "lock and settle" in ways:
                asyncio.run(bench._fill(name, some, count))


def compared(results: list[dict[str, Any]], shapes: list[tuple[int, int]], ways: list[str]) -> list[dict[str, Any]]:
    """Medians, and how many times as long sessions take."""

    def median(way: str, sessions: int, count: int) -> float:
        chosen = [
            one["seconds"]
            for one in results
            if (one["way"], one["sessions"], one["messages"]) == (way, sessions, count)
        ]
        return float(statistics.median(chosen))

    found = []
    for sessions, messages in shapes:
        for way in ways:
            plain, divided = median(way, 0, sessions * messages), median(way, sessions, sessions * messages)
            shape = {"sessions": sessions, "messages": sessions * messages, "way": way}
            times = round(divided / plain, 2)
            found.append({**shape, "queue_s": plain, "sessions_s": divided, "times": times})
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="600x5,50000x2", help="sessions x messages of each")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--reps", type=int, default=1)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--remark", default="", help="what else the machine did")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "evidence" / "bench-sessions.json")
    chosen = parser.parse_args()
    shapes = [(int(a), int(b)) for a, b in (shape.split("x") for shape in chosen.shapes.split(","))]
    ways = chosen.ways.split(",")
    results: list[dict[str, Any]] = []

    def say(result: dict[str, Any]) -> None:
        results.append(result)
        print(f"bench: {result}", flush=True)

    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="spillway-bench-")))
        bench = SessionBench(directory, stack, chosen.size)
        for _ in range(2):  # Java and the Python workers are warm then
            run_shape(bench, 100, 5, ways, lambda result: None)
        for sessions, messages in shapes:
            for _ in range(chosen.reps):
                run_shape(bench, sessions, messages, ways, say)
    medians = compared(results, shapes, ways)
    about = {"size": chosen.size, "package": PACKAGE_PARENT.name, "reps": chosen.reps, "remark": chosen.remark}
    chosen.out.write_text(json.dumps({"about": about, "medians": medians, "runs": results}, indent=1) + "\n")
    for line in medians:
        print(f"bench: {json.dumps(line)}; wanted: at most {TIMES_MAX:g} times")
    return 0


if __name__ == "__main__":
    sys.exit(main())
