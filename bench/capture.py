"""`make bench-capture`: entities into Parquet by the capture job, and browsed into a DataFrame.

A compiled broker, 1 KB messages, two queues, batches of 50,000, a warm session on two cores. CPU is told by stage, from
the kernel: the broker, Spark's Java machine, the client in its Python workers (it has a thread of its own there), what
else these do, which is making rows, and the driver's Python.

    bench/capture.py                     200,000 messages, three times
    bench/capture.py --messages 50000 --reps 1
"""

import argparse
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

from bench.spark import BATCH, QUEUES, Bench, cpu_s, spark_cpu_s  # noqa: E402
from tests.tools.broker_process import PACKAGE_PARENT  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CAPTURE_LEAST = 10_000  # messages a second, warm
BROWSE_LEAST = 15_000  # rows a second


class Captures:
    """Fills the queues of the secondary, and takes them in the two ways."""

    def __init__(self, bench: Bench, session: "SparkSession", directory: Path) -> None:
        self.bench = bench
        self.session = session
        self.directory = directory
        self.runs = 0

    def capture(self) -> dict[str, Any]:
        """Every run into a directory of its own; what counts are the batches that are full, and warm."""
        from spillway.spark.jobs.capture import CaptureConfig, run

        self.runs += 1
        config = CaptureConfig(
            tuple(self.bench.backlogs),
            str(self.directory / f"lake{self.runs}"),
            connection_string=self.bench.secondary.connection_string,
            max_messages=BATCH,
            first_batch_messages=BATCH,
            partitions=2 // QUEUES or 1,
        )
        summary = run(self.session, config)
        assert (summary.lost, summary.left) == (0, []), summary
        return {"count": summary.settled, "batch_rates": summary.batch_rates}

    def browse(self) -> dict[str, Any]:
        """All columns, bodies too; the rows go nowhere."""
        options = {"connectionString": self.bench.secondary.connection_string, "partitions": "1"}
        frame = self.session.read.format("servicebus").options(**options).load(",".join(self.bench.backlogs))
        frame.write.format("noop").mode("overwrite").save()
        return {"count": 0}

    def measure(self, way: str, count: int, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        before = self._cpu()
        began_s = time.monotonic()
        told = work()
        took_s = time.monotonic() - began_s
        after = self._cpu()
        cpu = {stage: round((after[stage] - before.get(stage, 0.0)) / count * 1e6, 1) for stage in after}
        told["count"] = told["count"] or count
        load = round(os.getloadavg()[0], 1)
        rate = round(told["count"] / took_s)
        return {"way": way, **told, "seconds": round(took_s, 2), "rate": rate, "load": load, "cpu_us": cpu}

    def _cpu(self) -> dict[str, float]:
        return {"broker": cpu_s(self.bench.secondary.pid), "driver": cpu_s(os.getpid()), **spark_cpu_s()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "evidence" / "bench-capture.json")
    chosen = parser.parse_args()
    results: list[dict[str, Any]] = []
    with ExitStack() as stack:
        from spillway.spark.platform.session import build_session

        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="spillway-bench-")))
        bench = Bench(directory, stack, chosen.size)
        session = build_session("bench", master="local[2,4]")
        stack.callback(session.stop)
        captures = Captures(bench, session, directory)
        for _ in range(2):  # Java is warm after it has compiled what runs often, twice
            bench.fill(BATCH)
            captures.browse()
            captures.capture()
        for _ in range(chosen.reps):
            bench.fill(chosen.messages)
            results.append(captures.measure("browse", chosen.messages, captures.browse))
            results.append(captures.measure("capture", chosen.messages, captures.capture))
            for result in results[-2:]:
                print(f"bench: {result}", flush=True)
    rates = {way: statistics.median(r["rate"] for r in results if r["way"] == way) for way in ("browse", "capture")}
    rates["capture_batch"] = statistics.median(rate for result in results for rate in result.get("batch_rates", []))
    about = {"messages": chosen.messages, "size": chosen.size, "batch": BATCH, "package": PACKAGE_PARENT.name}
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps({"about": about, "medians": rates, "runs": results}, indent=1) + "\n")
    print(f"bench: {rates} a second; wanted: capture {CAPTURE_LEAST:,} in a warm batch, browse {BROWSE_LEAST:,}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
