"""The syphon, killed in every place: every message is in its destination exactly once, and the backlog is empty.

A trial fills a backlog whose locks are short, lets the syphon bring it home, kills something in the middle, and lets it
end. The destinations have a duplicate window, so "nothing twice" is what a user of pairing has.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from spillway.client.faults import Fault, RemoteFaults
from spillway.spark.jobs.syphon import Summary, SyphonConfig, run
from tests.syphon.backlogs import Backlog
from tools.sparkkills_ground import LOCK_S, MESSAGES, Ground, java_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLACES = ("received", "sent", "completed")


class Trial:
    """One backlog, one destination, and what is found in the end."""

    def __init__(self, ground: Ground, kind: str) -> None:
        self.namespaces = ground.namespaces
        self.kind = kind
        self.directory = ground.directory
        self.backlog = Backlog(self.namespaces, queues=2, lock=f"PT{LOCK_S}S")
        self.queue = self.backlog.destination()
        self.ids = self.backlog.fill(self.queue, MESSAGES)
        self.began_s = time.monotonic()

    def config(self, **options: Any) -> SyphonConfig:
        return SyphonConfig(
            self.namespaces.primary.connection_string,
            self.namespaces.secondary.connection_string,
            namespace_name=self.backlog.name,
            batch_messages=MESSAGES // 4,
            idle_s=0.3,
            **options,
        )

    def verdict(self, landed: bool, about: dict[str, Any]) -> dict[str, Any]:
        """`landed`: whether the kill came while messages were under way."""
        found = Counter(self.backlog.ids_at(self.queue))
        return {
            "kind": self.kind,
            "landed": landed,
            "lost": len(set(self.ids) - set(found)),
            "twice": sum(1 for count in found.values() if count > 1),
            "left": self.backlog.left(),
            "seconds": round(time.monotonic() - self.began_s, 1),
            **about,
        }


def told(summary: Summary) -> dict[str, Any]:
    return {
        "moved": summary.moved,
        "broker_counted": summary.broker_counted,
        "tasks_lost": summary.tasks_lost,
        "repeated": summary.repeated,
        "processes": len(summary.processes),
    }


# -- inside one session -----------------------------------------------------------------------------------------------


def crash(spark: "SparkSession", trial: Trial) -> dict[str, Any]:
    marker = trial.directory / f"{trial.backlog.name}.crashed"
    after = random.randrange(3)
    environment = {
        "SPILLWAY_CRASH_AT": trial.kind,
        "SPILLWAY_CRASH_ONCE": str(marker),
        "SPILLWAY_CRASH_AFTER": str(after),
    }
    summary = run(spark, trial.config(environment=environment))
    return trial.verdict(marker.exists(), {**told(summary), "after": after})


def kill_worker(spark: "SparkSession", trial: Trial) -> dict[str, Any]:
    """Sends are slow, so that there is a middle; any Python worker of ours that has begun is killed."""
    faults = RemoteFaults(trial.namespaces.primary.connection_string)
    faults.add(Fault("slow", trial.queue, ["send"], delay_ms=300))
    killed: list[int] = []
    reports = trial.directory / trial.backlog.name
    ended = threading.Event()

    def kill() -> None:
        while not killed and not ended.wait(0.05):
            found = list(reports.rglob("*.jsonl"))
            if found:
                time.sleep(random.uniform(0.05, 0.5))
                pid = json.loads(random.choice(found).read_text().splitlines()[0])["pid"]
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
                killed.append(pid)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        summary = run(spark, trial.config(checkpoint=str(reports)))
    finally:
        ended.set()
        killer.join()
        faults.clear()
    return trial.verdict(bool(killed) and summary.tasks_lost > 0, told(summary))


def cold(spark: "SparkSession", trial: Trial) -> dict[str, Any]:
    faults = RemoteFaults(trial.namespaces.primary.connection_string)
    faults.add(Fault("slow", trial.queue, ["send"], delay_ms=(LOCK_S + 2) * 1_000, count=4))
    summary = run(spark, trial.config())
    faults.clear()
    return trial.verdict(summary.seconds > LOCK_S, told(summary))


def last(spark: "SparkSession", trial: Trial) -> dict[str, Any]:
    summary = run(spark, trial.config())
    return trial.verdict(summary.batches >= 2, told(summary))


# -- drivers of their own ---------------------------------------------------------------------------------------------


def kill_driver(trial: Trial) -> dict[str, Any]:
    """The driver, or its Java machine, in the middle of a batch; then the same command again."""
    faults = RemoteFaults(trial.namespaces.primary.connection_string)
    faults.add(Fault("slow", trial.queue, ["send"], delay_ms=500))
    checkpoint = trial.directory / trial.backlog.name
    line = [
        sys.executable,
        "-m",
        "spillway.spark.jobs.syphon",
        "--primary",
        "env:PRIMARY",
        "--secondary",
        "env:SECONDARY",
    ]
    line += ["--namespace-name", trial.backlog.name, "--batch-messages", str(MESSAGES // 4)]
    line += ["--checkpoint", str(checkpoint), "--json"]
    environment = {
        **os.environ,
        "PRIMARY": trial.namespaces.primary.connection_string,
        "SECONDARY": trial.namespaces.secondary.connection_string,
    }
    with (trial.directory / "driver.log").open("ab") as log:
        first = subprocess.Popen(line, env=environment, stdout=log, stderr=log)
        landed = False
        while first.poll() is None:
            if list(checkpoint.rglob("*.jsonl")):
                time.sleep(random.uniform(0.0, 3.0))
                pid = first.pid if trial.kind == "driver" else java_of(first.pid)
                os.kill(pid, signal.SIGKILL)
                landed = True
                break
            time.sleep(0.05)
        first.wait(120)
        faults.clear()
        again = subprocess.run(line, env=environment, stdout=subprocess.PIPE, stderr=log, text=True, check=True)
    said = json.loads(again.stdout.splitlines()[-1])
    return trial.verdict(landed, {"moved_by_the_second": said["moved"]})


INSIDE: dict[str, Callable[["SparkSession", Trial], dict[str, Any]]] = {
    "worker": kill_worker,
    "cold": cold,
    "last": last,
    **dict.fromkeys(PLACES, crash),
}
KINDS = ("worker", *PLACES, "cold", "last", "driver", "executor")


def kill(ground: Ground, kind: str) -> dict[str, Any]:
    """One trial."""
    if kind in INSIDE:
        return INSIDE[kind](ground.spark(), Trial(ground, kind))
    ground.stop_spark()  # a driver of its own has the machine for itself
    return kill_driver(Trial(ground, kind))
