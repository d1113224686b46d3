"""`make long-batch`: a batch that really takes ten minutes between reading and settling, with locks of a minute.

A peek-lock stream receives 500 messages and stores them. Then both cores work in the JVM, where nothing is Python:
Spark ends the workers that received, a minute after their last task. Ten minutes later the rows are read back and
settled.
Meanwhile another receiver asks the queue again and again, and must get nothing. In the end the driver exits, its JVM
with it, and the process that kept the locks has to follow.

    driver (a process of its own)          this process
    receive, store      ── received.json ─▶ looks for the lock keeper
    work in the JVM                         asks the queue every half minute
    settle, exit        ── settled.json ──▶ waits for JVM and keeper to end, looks into queue and dead letters

Writes docs/evidence/long-batch.json; ends with status 1 if a message was lost, came twice or stayed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from spillway.client import connect  # noqa: E402
from spillway.spark.platform.processes import ProcessId, process_id  # noqa: E402
from spillway.spark.platform.session import SHORT_LIVED_JAVA, build_session  # noqa: E402
from spillway.spark.settle import LocksLost, Settled, settle  # noqa: E402
from tests.paired.namespaces import Namespaces  # noqa: E402
from tests.spark.bus import Bus, run  # noqa: E402
from tests.tools.commit import commit, machine  # noqa: E402
from tools.sparkkills_ground import command_of, java_of, workers_of  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MESSAGES: Final = 500
SECONDS: Final = 600.0
LOCK_S: Final = 60
MARGIN_S: Final = 300.0  # of the bound: starting the work and settling take time too
ASK_S: Final = 30.0
START_S_MAX: Final = 600.0
END_S_MAX: Final = 60.0
KEEPER: Final = "spillway.spark.source.lock_keeper"
RECEIVED: Final = "received.json"
SETTLED: Final = "settled.json"

Result = dict[str, Any]


# -- the driver --------------------------------------------------------------------------------------------------------


def drive(directory: Path, queue: str, seconds: float) -> None:
    """The stream with its one long batch; the connection string is in the environment, as a user would have it."""
    options = {
        "secretName": "env:BUS",
        "mode": "peeklock",
        "settle": "manual",
        "renewSeconds": f"{seconds + MARGIN_S:g}",
        "maxMessages": str(MESSAGES),
        "firstBatchMessages": str(MESSAGES),
    }
    spark = build_session("long batch", master="local[2,4]")
    java = java_of(os.getpid())

    def store_and_work(batch: "DataFrame", number: int) -> None:
        path = str(directory / f"batch={number}")
        batch.write.parquet(path)
        began_s = time.monotonic()
        receivers = workers_of(java)
        write(directory / RECEIVED, {"java": list(process_id(java)), "keepers": keepers_of(java)})
        work_in_java(batch, seconds)
        left = workers_of(java)
        took_s = time.monotonic() - began_s
        rows = spark.read.parquet(path)
        done = settled(rows, options)
        deliveries = Counter(row["delivery_count"] + 1 for row in rows.select("delivery_count").collect())
        facts = {
            "batch": number,
            "messages": sum(deliveries.values()),
            "seconds": round(took_s, 1),
            "workers_that_received": len(receivers),
            "of_them_alive_when_settling": len(set(receivers) & set(left)),
            "workers_alive_when_settling": len(left),
            "settled": done.settled,
            "lost": done.lost,
            "deliveries": {str(count): messages for count, messages in sorted(deliveries.items())},
        }
        write(directory / SETTLED, facts)

    frame = spark.readStream.format("servicebus").options(**options).load(queue)
    writer = frame.writeStream.foreachBatch(store_and_work).option("checkpointLocation", str(directory / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    spark.stop()


def work_in_java(batch: "DataFrame", seconds: float) -> None:
    """A task on each core that takes so long, and nothing of it is Python."""
    work = f"java_method('java.lang.Thread', 'sleep', {int(seconds * 1000)}L)"
    batch.sparkSession.range(0, 2, 1, 2).selectExpr(work).collect()


def settled(rows: "DataFrame", options: dict[str, str]) -> Settled:
    """What was settled; that locks were lost is said in the evidence, and not by an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return settle(rows, options)
        except LocksLost:
            return Settled(0, rows.count())


def keepers_of(java: int) -> list[int]:
    """Processes that keep the locks of this JVM."""
    found = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return [pid for pid in found if KEEPER in (words := command_of(pid)) and str(java) in words]


# -- the one who watches -----------------------------------------------------------------------------------------------


class Watch:
    """Asks for messages that are locked, while the driver works."""

    def __init__(self, bus: Bus, queue: str) -> None:
        self.bus = bus
        self.queue = queue
        self.asked = 0
        self.received = 0

    def ask(self) -> None:
        """Take one if there is one: it would be one that the batch has lost."""

        async def work() -> int:
            async with await connect(self.bus.broker.connection_string) as connection:
                receiver = await connection.receiver(self.queue)
                return len(await receiver.receive(1, 1.0))

        self.asked += 1
        self.received += run(work())


def long_batch(directory: Path, seconds: float, lock_s: float) -> Result:
    namespaces = Namespaces(directory)
    try:
        bus = Bus(namespaces, namespaces.primary)
        queue = bus.queue(*[f"message {number}" for number in range(MESSAGES)], lock_s=lock_s)
        watch = Watch(bus, queue)
        line = [sys.executable, __file__, "--drive", str(directory), "--queue", queue, "--seconds", f"{seconds:g}"]
        environment = {**os.environ, "BUS": bus.broker.connection_string, "JDK_JAVA_OPTIONS": SHORT_LIVED_JAVA}
        driver = subprocess.Popen(line, env=environment)
        try:
            ended = watched(driver, directory, watch, seconds)
        finally:
            driver.kill()
            driver.wait()
        told = said_by(directory / SETTLED)
        left = {"left": len(bus.peek(queue)), "dead_letters": len(bus.peek(f"{queue}/$deadletterqueue"))}
    finally:
        namespaces.close()
    others = {"asked_by_another": watch.asked, "received_by_another": watch.received}
    return {"sent": MESSAGES, "lock_s": lock_s, "renew_s": seconds + MARGIN_S, **told, **others, **left, **ended}


def watched(driver: "subprocess.Popen[bytes]", directory: Path, watch: Watch, seconds: float) -> Result:
    """The time from the first message to the end of everything that the driver has started."""
    wait_until(lambda: (directory / RECEIVED).exists() or driver.poll() is not None, START_S_MAX)
    told = said_by(directory / RECEIVED)
    until_s = time.monotonic() + seconds + START_S_MAX
    while driver.poll() is None and not (directory / SETTLED).exists() and time.monotonic() < until_s:
        watch.ask()
        wait_until(lambda: driver.poll() is not None or (directory / SETTLED).exists(), ASK_S)
    status = driver.wait(START_S_MAX)
    java = ProcessId(*told["java"])
    has_java_ended = wait_until(java.has_ended, END_S_MAX)
    began_s = time.monotonic()
    has_keeper_ended = wait_until(lambda: not any(command_of(pid) for pid in told["keepers"]), END_S_MAX)
    return {
        "driver_status": status,
        "keepers": len(told["keepers"]),
        "jvm_ended": has_java_ended,
        "keeper_ended": has_keeper_ended,
        "keeper_ended_after_jvm_s": round(time.monotonic() - began_s, 1) if has_keeper_ended else None,
    }


def said_by(path: Path) -> Result:
    try:
        found: Result = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SystemExit(f"long-batch: the driver ended without {path.name}; what it said is above") from None
    return found


def wait_until(happened: Callable[[], bool], seconds: float) -> bool:
    """Whether it has, within this time."""
    until_s = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > until_s:
            return False
        time.sleep(0.2)
    return True


def problems_of(result: Result, seconds: float) -> list[str]:
    """What is not as it has to be, each in a few words."""
    wanted = {
        "messages": result["sent"],
        "settled": result["sent"],
        "lost": 0,
        "deliveries": {"1": result["sent"]},
        "received_by_another": 0,
        "left": 0,
        "dead_letters": 0,
        "of_them_alive_when_settling": 0 if seconds > 120 else result["of_them_alive_when_settling"],
        "driver_status": 0,
        "keepers": 1,
        "jvm_ended": True,
        "keeper_ended": True,
    }
    found = [f"{name} is {result[name]}, not {value}" for name, value in wanted.items() if result[name] != value]
    if result["seconds"] < seconds:
        found.append(f"the batch took {result['seconds']} s, not {seconds:g}")
    return found


def write(path: Path, facts: Result) -> None:
    """It appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="between reading and settling")
    parser.add_argument("--lock", type=float, default=LOCK_S, help="seconds that a lock of the queue lasts")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "evidence" / "long-batch.json")
    parser.add_argument("--drive", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--queue", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.drive:
        drive(chosen.drive, chosen.queue, chosen.seconds)
        return 0
    about = {"commit": commit(), "machine": machine(), "began": datetime.now(UTC).isoformat(timespec="seconds")}
    with tempfile.TemporaryDirectory(prefix="spillway-long-") as directory:
        result = long_batch(Path(directory), chosen.seconds, chosen.lock)
    problems = problems_of(result, chosen.seconds)
    write(chosen.out, {**about, **result, "problems": problems})
    print(
        f"long-batch: {result['messages']} messages, {result['seconds']} s between reading and settling, "
        f"{result['settled']} settled, {result['lost']} lost, {len(problems)} problems; written to {chosen.out}"
    )
    for problem in problems:
        print(f"long-batch: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
