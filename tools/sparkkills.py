"""`make spark-kills`: the syphon on Spark, killed in every place, many times: nothing lost, nothing twice.

Every trial fills a backlog whose locks are short, lets the syphon bring it home, kills something in the middle, and
lets it end; then every message is in the destination exactly once, and the backlog is empty. The
destinations have a duplicate window, so "nothing twice" is what a user of pairing has.

    worker              kill -9 of a Python worker while it moves
    received, sent, completed   a worker dies by itself at that place (SPILLWAY_CRASH_AT)
    cold                the first batch of a new worker takes longer than a lock
    last                nothing is killed: the last batch is settled like the others
    driver              kill -9 of the driver's Python; the job is started again from its checkpoint
    executor            kill -9 of the Java machine, which is the executor too where Spark is embedded; started again

    tools/sparkkills.py --kills 20 [--only worker,sent]
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from spillway.client.faults import Fault, RemoteFaults  # noqa: E402
from spillway.spark.jobs.syphon import Summary, SyphonConfig, run  # noqa: E402
from tests.paired.namespaces import Namespaces  # noqa: E402
from tests.spark.backlogs import Backlog  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PLACES = ("received", "sent", "completed")
KINDS = ("worker", *PLACES, "cold", "last", "driver", "executor")
MESSAGES = 2_000
LOCK_S = 5


class Trial:
    """One backlog, one destination, and what is found in the end."""

    def __init__(self, namespaces: Namespaces, kind: str, directory: Path) -> None:
        self.namespaces = namespaces
        self.kind = kind
        self.directory = directory
        self.backlog = Backlog(namespaces, queues=2, lock=f"PT{LOCK_S}S")
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


def java_of(pid: int) -> int:
    """The Java machine that this driver started."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            head, _, tail = path.read_text().rpartition(")")
        except OSError:
            continue
        if int(tail.split()[1]) == pid and "java" in head:
            return int(path.parent.name)
    raise RuntimeError("the driver has no Java machine")


WAYS: dict[str, Callable[["SparkSession", Trial], dict[str, Any]]] = {
    "worker": kill_worker,
    "cold": cold,
    "last": last,
    **dict.fromkeys(PLACES, crash),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="of each kind")
    parser.add_argument("--only", default=",".join(KINDS))
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "evidence" / "spark-kills.json")
    chosen = parser.parse_args()
    random.seed(chosen.seed)
    kinds = chosen.only.split(",")
    results: list[dict[str, Any]] = []

    def add(result: dict[str, Any]) -> None:
        """Written down at once: a run of an hour that is cut off has shown something too."""
        results.append(result)
        print(f"spark-kills: {result}", flush=True)
        write(results, chosen)

    with tempfile.TemporaryDirectory(prefix="spillway-kills-") as found:
        directory = Path(found)
        namespaces = Namespaces(directory)
        try:
            inside = [kind for kind in kinds if kind in WAYS]
            if inside:
                from spillway.spark.session import build_session

                spark = build_session("kills", master="local[2,4]")
                for kind in inside:
                    for _ in range(chosen.kills):
                        add(WAYS[kind](spark, Trial(namespaces, kind, directory)))
                spark.stop()
            for kind in kinds:
                for _ in range(chosen.kills if kind not in WAYS else 0):
                    add(kill_driver(Trial(namespaces, kind, directory)))
        finally:
            namespaces.close()
    for kind, totals in write(results, chosen).items():
        print(f"spark-kills: {kind:<10} {totals}")
    wrong = [result for result in results if result["lost"] or result["twice"] or result["left"]]
    print(f"spark-kills: {len(results)} trials, {len(wrong)} wrong; written to {chosen.out}")
    return 1 if wrong else 0


def write(results: list[dict[str, Any]], chosen: argparse.Namespace) -> dict[str, dict[str, int]]:
    by_kind: dict[str, dict[str, int]] = {}
    for kind in dict.fromkeys(result["kind"] for result in results):
        those = [result for result in results if result["kind"] == kind]
        by_kind[kind] = {"trials": len(those)} | {
            name: sum(int(result[name]) for result in those) for name in ("landed", "lost", "twice", "left")
        }
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    about = {"messages": MESSAGES, "lock_s": LOCK_S, "seed": chosen.seed, "date": time.strftime("%Y-%m-%d")}
    chosen.out.write_text(json.dumps({"about": about, "kinds": by_kind, "trials": results}, indent=1) + "\n")
    return by_kind


if __name__ == "__main__":
    sys.exit(main())
