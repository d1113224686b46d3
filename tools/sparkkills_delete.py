"""A receive-and-delete stream, killed in every place: at most once. No message is stored twice, and none stays behind.

The service deletes a message when it hands it out, so what a task had received that died before its rows were stored is
gone. How many that were is written down as `lost`; it can be no more than what the batches that were hit had received.
Where nothing dies nothing is lost.

A trial fills a queue, lets a stream write it to files with Spark's own sink, kills something in the middle, and starts
the stream again from its checkpoint until the queue is empty.
"""

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from spillway.client import OutgoingMessage  # noqa: E402
from spillway.client.faults import Fault, RemoteFaults  # noqa: E402
from spillway.spark.platform.session import build_session  # noqa: E402
from spillway.spark.source.settle_after_write import die_when_received  # noqa: E402
from spillway.syphon.crash import AFTER, AT, ONCE, RECEIVED  # noqa: E402
from tests.spark.bus import Bus  # noqa: E402
from tools.sparkkills_ground import MESSAGES, Ground, failed_tasks, java_of, workers_of  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CRASH = "delete-received"
WORKER = "delete-worker"
DRIVER = "delete-driver"
EXECUTOR = "delete-executor"
LAST = "delete-last"
KINDS = (CRASH, WORKER, DRIVER, EXECUTOR, LAST)

BATCH_MESSAGES = MESSAGES // 4
SECRET = "env:BUS"
QUERY_S_MAX = 300


def stream(
    spark: "SparkSession", queue: str, out: Path, options: Mapping[str, str], environment: Mapping[str, str]
) -> None:
    """What is in the queue now, into files; the query keeps its place beside them."""
    given = {
        "mode": "receiveanddelete",
        "allowLoss": "true",
        "partitions": "2",
        "maxMessages": str(BATCH_MESSAGES),
        "firstBatchMessages": str(BATCH_MESSAGES // 2),
        **options,
    }
    frame = spark.readStream.format("servicebus").options(**given).load(queue)
    if environment:
        frame = frame.mapInArrow(die_when_received(environment), frame.schema)
    writer = frame.select("message_id", "sequence_number").writeStream.format("parquet")
    writer = writer.option("path", str(out / "rows")).option("checkpointLocation", str(out / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    try:
        if not query.awaitTermination(QUERY_S_MAX):
            raise TimeoutError(f"the stream has not ended within {QUERY_S_MAX} s")
    finally:
        query.stop()


class Trial:
    """One queue, one stream, and what is found in the end."""

    def __init__(self, ground: Ground, kind: str) -> None:
        self.ground = ground
        self.kind = kind
        self.bus = Bus(ground.namespaces, ground.namespaces.primary)
        self.queue = self.bus.queue()
        self.ids = [f"m{number}" for number in range(MESSAGES)]
        self.bus.send(self.queue, [OutgoingMessage(b"." * 200, message_id=id_) for id_ in self.ids])
        self.out = ground.directory / f"{kind}-{self.queue}"
        self.faults = RemoteFaults(self.bus.broker.connection_string)
        self.began_s = time.monotonic()

    def slow_down(self) -> None:
        """So that there is a middle."""
        self.faults.add(Fault("slow", self.queue, ["receive"], delay_ms=300))

    def stream(self, environment: Mapping[str, str] | None = None) -> None:
        stream(self.ground.spark(), self.queue, self.out, self.bus.options, environment or {})

    def left(self) -> int:
        return len(self.bus.peek(self.queue))

    def verdict(self, landed: bool, hit: int, about: Mapping[str, Any]) -> dict[str, Any]:
        """`hit`: how many tasks, or drivers with all of a batch, died at most with what they had received."""
        seconds = time.monotonic() - self.began_s
        rows = self.ground.spark().read.parquet(str(self.out / "rows"))
        found = Counter(row["message_id"] for row in rows.select("message_id").collect())
        return {
            "kind": self.kind,
            "landed": landed,
            "lost": len(set(self.ids) - set(found)),
            "lost_max": hit * BATCH_MESSAGES,
            "twice": sum(1 for count in found.values() if count > 1),
            "left": self.left(),
            "seconds": round(seconds, 1),
            **about,
        }


def is_wrong(trial: Mapping[str, Any]) -> bool:
    """At most once: a message that is stored twice, one that stays, or more lost than died with their tasks."""
    return bool(trial["twice"] or trial["left"] or trial["lost"] > trial["lost_max"])


def crash(trial: Trial) -> dict[str, Any]:
    """A worker dies with what it has received, before the row is in a file."""
    marker = trial.ground.directory / f"{trial.queue}.crashed"
    after = random.randrange(3)
    trial.stream({AT: RECEIVED, ONCE: str(marker), AFTER: str(after)})
    return trial.verdict(marker.exists(), 1, {"after": after})


def kill_worker(trial: Trial) -> dict[str, Any]:
    """Whichever, idle ones too, until one had a task."""
    trial.slow_down()
    spark = trial.ground.spark()
    java, failed_before = java_of(os.getpid()), failed_tasks(spark)
    killed: list[int] = []
    ended = threading.Event()

    def kill() -> None:
        while trial.left() == MESSAGES and not ended.wait(0.05):
            pass
        while failed_tasks(spark) == failed_before and not ended.wait(random.uniform(0.1, 1.5)):
            workers = workers_of(java)
            if workers:
                killed.append(random.choice(workers))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(killed[-1], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        trial.stream()
    finally:
        ended.set()
        killer.join()
        trial.faults.clear()
    return trial.verdict(failed_tasks(spark) > failed_before, len(killed), {"killed": len(killed)})


def kill_driver(trial: Trial) -> dict[str, Any]:
    """The driver, or its Java machine, in the middle of a batch; then the same stream again, from its checkpoint."""
    trial.slow_down()
    line = [sys.executable, __file__, "--queue", trial.queue, "--out", str(trial.out)]
    environment = {**os.environ, "BUS": trial.bus.broker.connection_string}
    left_then = 0
    with (trial.ground.directory / "delete.log").open("ab") as log:
        first = subprocess.Popen(line, env=environment, stdout=log, stderr=log)
        while first.poll() is None and trial.left() == MESSAGES:
            time.sleep(0.05)
        time.sleep(random.uniform(0.0, 3.0))
        if first.poll() is None:
            os.kill(first.pid if trial.kind == DRIVER else java_of(first.pid), signal.SIGKILL)
            left_then = trial.left()
        first.wait(120)
        trial.faults.clear()
        subprocess.run(line, env=environment, stdout=log, stderr=log, check=True)
    return trial.verdict(left_then > 0, 1, {"left_then": left_then})


def last(trial: Trial) -> dict[str, Any]:
    """Nothing dies: nothing is lost, the last batch is as good as the others."""
    trial.stream()
    return trial.verdict(True, 0, {})


def kill(ground: Ground, kind: str) -> dict[str, Any]:
    """One trial."""
    if kind in (DRIVER, EXECUTOR):
        ground.stop_spark()  # a driver of its own has the machine for itself
        return kill_driver(Trial(ground, kind))
    return {CRASH: crash, WORKER: kill_worker, LAST: last}[kind](Trial(ground, kind))


def main() -> None:
    """The driver that is killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--queue", required=True)
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    spark = build_session("receive and delete", master="local[2,4]")
    stream(spark, chosen.queue, chosen.out, {"secretName": SECRET}, {})
    spark.stop()


if __name__ == "__main__":
    main()
