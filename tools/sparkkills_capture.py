"""The capture, killed in every place: every message is in the view exactly once, and none is left in its queue.

A trial fills a queue whose locks are short, captures it, kills something in the middle, and lets it end. Files may have
copies: the view that docs/pipeline.md gives is what is counted.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import Any

from spillway.client import OutgoingMessage
from spillway.client.faults import Fault, RemoteFaults
from spillway.spark.jobs.capture import CaptureConfig, CaptureSummary, run
from spillway.spark.source.deduplicated_view import captured, captured_files
from spillway.syphon.crash import AFTER, AT, COMPLETED, ONCE, RECEIVED, SENT
from tests.spark.bus import Bus
from tools.sparkkills_ground import LOCK_S, MESSAGES, Ground, failed_tasks, java_of, workers_of

PLACES = {"capture-received": RECEIVED, "capture-written": SENT, "capture-completed": COMPLETED}
WORKER = "capture-worker"
DRIVER = "capture-driver"
EXECUTOR = "capture-executor"
KINDS = (*PLACES, WORKER, DRIVER, EXECUTOR)

BATCH_MESSAGES = MESSAGES // 4
FIRST_BATCH_MESSAGES = 200
PATIENCE_S = 90.0


class Trial:
    """One queue, one directory, and what is found in the end."""

    def __init__(self, ground: Ground, kind: str) -> None:
        self.ground = ground
        self.kind = kind
        self.bus = Bus(ground.namespaces, ground.namespaces.primary)
        self.queue = self.bus.queue(lock_s=LOCK_S)
        self.ids = [f"m{number}" for number in range(MESSAGES)]
        self.bus.send(self.queue, [OutgoingMessage(b"." * 200, message_id=id_) for id_ in self.ids])
        self.out = ground.directory / f"{kind}-{self.queue}"
        self.faults = RemoteFaults(self.bus.broker.connection_string)
        self.began_s = time.monotonic()

    def slow_down(self) -> None:
        """So that there is a middle."""
        self.faults.add(Fault("slow", self.queue, ["receive", "settle"], delay_ms=300))

    def capture(self, **options: Any) -> CaptureSummary:
        config = CaptureConfig(
            (self.queue,),
            str(self.out),
            connection_string=self.bus.broker.connection_string,
            max_messages=BATCH_MESSAGES,
            first_batch_messages=FIRST_BATCH_MESSAGES,
            patience_s=PATIENCE_S,
            **options,
        )
        return run(self.ground.spark(), config)

    def has_begun(self) -> bool:
        """Whether there is anything that was captured."""
        return any(self.out.glob("day=*/batch=*/entity=*"))

    def left(self) -> int:
        """Messages in the queue or its dead letters, locked ones too."""
        return sum(len(self.bus.peek(path)) for path in (self.queue, f"{self.queue}/$deadletterqueue"))

    def verdict(self, landed: bool, about: dict[str, Any]) -> dict[str, Any]:
        """`landed`: whether the kill came while messages were under way."""
        seconds = time.monotonic() - self.began_s
        spark = self.ground.spark()
        found = Counter(row["message_id"] for row in captured(spark, str(self.out)).select("message_id").collect())
        return {
            "kind": self.kind,
            "landed": landed,
            "lost": len(set(self.ids) - set(found)),
            "twice": sum(1 for count in found.values() if count > 1),
            "left": self.left(),
            "seconds": round(seconds, 1),
            "copies": captured_files(spark, str(self.out)).count() - len(found),
            **about,
        }


def told(summary: CaptureSummary) -> dict[str, Any]:
    return {"settled": summary.settled, "locks_lost": summary.lost, "batches": summary.batches}


def crash(trial: Trial) -> dict[str, Any]:
    marker = trial.ground.directory / f"{trial.queue}.crashed"
    after = random.randrange(3)
    environment = {AT: PLACES[trial.kind], ONCE: str(marker), AFTER: str(after)}
    summary = trial.capture(environment=environment)
    return trial.verdict(marker.exists(), {**told(summary), "after": after})


def kill_worker(trial: Trial) -> dict[str, Any]:
    """One that receives, hands on or settles, which of them is left to chance; idle ones too, until one was busy."""
    trial.slow_down()
    spark = trial.ground.spark()
    java, failed_before = java_of(os.getpid()), failed_tasks(spark)
    killed: list[int] = []
    ended = threading.Event()

    def kill() -> None:
        while not trial.has_begun() and not ended.wait(0.05):
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
        summary = trial.capture()
    finally:
        ended.set()
        killer.join()
        trial.faults.clear()
    return trial.verdict(failed_tasks(spark) > failed_before, {**told(summary), "killed": len(killed)})


def kill_driver(trial: Trial) -> dict[str, Any]:
    """The driver, or its Java machine, in the middle; then the same command again, which has the checkpoint."""
    trial.slow_down()
    line = [sys.executable, "-m", "spillway.spark.jobs.capture", "--secret", "env:BUS", "--entity", trial.queue]
    line += ["--out", str(trial.out), "--max-messages", str(BATCH_MESSAGES), "--json"]
    environment = {**os.environ, "BUS": trial.bus.broker.connection_string}
    left_then = 0
    with (trial.ground.directory / "capture.log").open("ab") as log:
        first = subprocess.Popen(line, env=environment, stdout=log, stderr=log)
        while first.poll() is None and not trial.has_begun():
            time.sleep(0.05)
        time.sleep(random.uniform(0.0, 3.0))
        if first.poll() is None:
            os.kill(first.pid if trial.kind == DRIVER else java_of(first.pid), signal.SIGKILL)
            left_then = trial.left()
        first.wait(120)
        trial.faults.clear()
        again = subprocess.run(line, env=environment, stdout=subprocess.PIPE, stderr=log, text=True, check=True)
    said = json.loads(again.stdout.splitlines()[-1])
    about = {"left_then": left_then, "settled_by_the_second": said["settled"]}
    return trial.verdict(left_then > 0, about)


def kill(ground: Ground, kind: str) -> dict[str, Any]:
    """One trial."""
    trial = Trial(ground, kind)
    if kind in PLACES:
        return crash(trial)
    return kill_worker(trial) if kind == WORKER else kill_driver(trial)
