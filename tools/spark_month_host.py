"""The driver of tools/spark_month.py: one Spark session with a stream of each kind, each started again when it ends.

The first line on stdin is what it needs, as JSON; the others say what to do. It tells what
happens by lines of JSON on stdout. It may be killed at any moment; another one goes on from the checkpoints.
"""

import json
import sys
import threading
import time
import warnings
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
sys.path.append(str(ROOT / "src"))  # last: an installed or compiled build named by PYTHONPATH comes first

from spillway.spark.captured import captured  # noqa: E402
from spillway.spark.jobs import compact  # noqa: E402
from spillway.spark.jobs.capture import Capture, CaptureConfig  # noqa: E402
from spillway.spark.jobs.syphon import SyphonConfig, SyphonRun  # noqa: E402
from spillway.spark.platform.reasons import reason_of  # noqa: E402
from spillway.spark.platform.session import activate_session, build_session  # noqa: E402
from spillway.spark.settle import settling  # noqa: E402
from tests.spark.java import QUICK_JAVA  # noqa: E402
from tools.spark_month_judge import BATCHES_KEPT  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

AGAIN_S: Final = 2.0  # so long an operator looks at what ended
APART_S: Final = 20.0  # streams of one session are started one after the other (docs/spark.md, What to know)
LOOK_S: Final = 0.3
END_S: Final = 60.0
ID = "sha2(concat_ws('/', namespace, entity, sequence_number, unix_micros(enqueued_time)), 256) AS message_id"


class Host:
    """The session and its streams."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec
        self.place = Path(spec["directory"])
        self.stopped = threading.Event()
        self.starting = threading.Lock()
        self.speaking = threading.Lock()
        self.ahead = timedelta(seconds=spec["ahead_s"])  # of the machine's clock: what the namespaces say
        self.slow_s = 0.0  # of the next batch that has rows
        self.batch = threading.local()  # `lost`: warnings of lost locks in the batch that runs in this thread
        self.stops: list[Callable[[], None]] = []
        self.spark = self._session()

    def _session(self) -> "SparkSession":
        config = {
            "spark.driver.defaultJavaOptions": QUICK_JAVA,
            "spark.sql.shuffle.partitions": "1",
            "spark.sql.streaming.minBatchesToRetain": str(BATCHES_KEPT),
        }
        return build_session("month", master="local[2,4]", config=config, say=lambda text: None)

    def tell(self, op: str, **about: Any) -> None:
        with self.speaking:
            sys.stdout.write(json.dumps({"op": op, **about}) + "\n")
            sys.stdout.flush()

    # -- what is said to it -----------------------------------------------------------------------------------------

    def serve(self) -> None:
        """Until it is told to stop, or whoever started it is gone."""
        threads = [
            threading.Thread(target=self._supervise, args=(name, work), daemon=True)
            for name, work in {
                "browse": self._browse,
                "receive": lambda: self._receive("receive", {}),
                "sessions": lambda: self._receive("sessions", {"sessions": "*"}),
                "sink": self._sink,
                "capture": self._capture,
                "syphon": self._syphon,
            }.items()
        ]
        for thread in threads:
            thread.start()
        self.tell("ready")
        for line in sys.stdin:
            said = json.loads(line)
            if said["op"] == "stop":
                break
            # Beside the streams, and beside each other.
            threading.Thread(target=self._obey, args=(said,), daemon=True).start()
        self.stopped.set()
        for stop in list(self.stops):
            stop()
        for thread in threads:
            thread.join(END_S)
        self.spark.stop()
        self.tell("ended", alive=[thread.name for thread in threads if thread.is_alive()])

    def _obey(self, said: dict[str, Any]) -> None:
        op = said["op"]
        try:
            if op == "slow":
                self.slow_s = said["seconds"]
            elif op == "compact":
                self.ahead = datetime.fromisoformat(said["now"]) - datetime.now(UTC)
                lake = compact.CompactConfig(str(self.place / "lake"))
                done = compact.run(self.spark, lake, lambda text: None, self.now)
                self.tell("compacted", days=len(done.days), deleted=done.files_deleted, copies=done.copies)
            elif op == "view":
                rows = captured(self.spark, str(self.place / "lake")).selectExpr("string(body) AS body").collect()
                Path(said["to"]).write_text(json.dumps([int(row["body"]) for row in rows]))
                self.tell("viewed")
            elif op == "heap":
                self.tell("heap", mb=self._heap_mb())
        except Exception as error:  # whoever asked is told
            self.tell("failed", what=op, reason=reason_of(error)[:300])

    def now(self) -> datetime:
        return datetime.now(UTC) + self.ahead

    def _heap_mb(self) -> int:
        """What the Java machine holds, without what only waits to be collected."""
        assert self.spark._jvm is not None
        machine = self.spark._jvm.java.lang.Runtime.getRuntime()
        machine.gc()
        return (int(machine.totalMemory()) - int(machine.freeMemory())) >> 20

    # -- streams ----------------------------------------------------------------------------------------------------

    def _supervise(self, name: str, work: Callable[[], str]) -> None:
        """As an operator does: what has ended is started again. `work` returns the reason why it ended."""
        activate_session(self.spark)  # in this thread, for the sink
        while not self.stopped.is_set():
            try:
                reason = work()
            except Exception as error:  # whatever it is, an operator starts it again
                reason = reason_of(error)
            if self.stopped.is_set():
                return
            self.tell("died", stream=name, reason=reason[:300])
            self.stopped.wait(AGAIN_S)

    def _access(self, **options: str) -> dict[str, str]:
        return {"connectionString": self.spec["primary"], "patienceSeconds": str(self.spec["patience_s"]), **options}

    def _follow(self, name: str, start: "Callable[[], StreamingQuery]") -> str:
        """Until the query has ended; tells of every batch that had rows."""
        with self.starting:
            query = start()
            self._until_it_runs(name)
        self.tell("started", stream=name)
        batch = -1
        while query.isActive and not self.stopped.wait(LOOK_S):
            progress = query.lastProgress
            if progress is not None and progress["batchId"] != batch and progress["numInputRows"]:
                batch = progress["batchId"]
                self.tell("rows", stream=name, count=progress["numInputRows"])
        if self.stopped.is_set():
            query.stop()
        error = query.exception()
        return "it ended without an error" if error is None else reason_of(error)

    def _until_it_runs(self, name: str) -> None:
        """It has done a batch, or has died, or takes so long that the next one may begin."""
        was_there = False
        until_s = time.monotonic() + APART_S
        while time.monotonic() < until_s and not self.stopped.wait(0.1):
            queries = [each for each in self.spark.streams.active if (each.name or "").startswith(name)]
            if any(query.lastProgress is not None for query in queries) or (was_there and not queries):
                return
            was_there = was_there or bool(queries)

    def _stream(self, name: str, frame: "DataFrame", each: "Callable[[DataFrame, int], None] | None") -> str:
        writer = frame.writeStream.option("checkpointLocation", str(self.place / "checkpoints" / name))
        writer = writer.queryName(name).trigger(processingTime=f"{self.spec['trigger_s']} seconds")
        if each is not None:
            return self._follow(name, writer.foreachBatch(each).start)
        writer = writer.format("servicebus").outputMode("append").options(**self._access())
        return self._follow(name, lambda: writer.start("sunk"))

    def _browse(self) -> str:
        """Into a directory for each batch: one that is run again has the same messages, and replaces it."""

        def store(batch: "DataFrame", number: int) -> None:
            batch.coalesce(1).write.mode("overwrite").parquet(str(self.place / f"browse/{number:06d}"))

        options = self._access(bodyFormat="string", onReset="earliest")
        frame = self.spark.readStream.format("servicebus").options(**options)
        columns = "body string, sequence_number long, enqueued_time timestamp"
        return self._stream("browse", frame.schema(columns).load("browsed"), store)

    def _receive(self, name: str, more: dict[str, str]) -> str:
        """Into a directory for each try of a batch: it has other messages when it is run again."""
        options = self._access(mode="peeklock", settle="manual", bodyFormat="string", maxWaitSeconds="0.3", **more)
        slow: list[float] = []

        def store(batch: "DataFrame", number: int) -> None:
            place = self.place / name / f"{time.time_ns():020d}"
            columns = ("body", "entity", "session_id", "sequence_number", "enqueued_time")
            batch.select(*columns).write.parquet(str(place))
            if name == "receive" and self.slow_s and not batch.isEmpty():
                slow.append(self.slow_s)
                self.slow_s = 0.0
                time.sleep(slow[0])

        settle = settling(store, options)

        def each(batch: "DataFrame", number: int) -> None:
            slow.clear()
            self.batch.lost = 0
            try:
                settle(batch, number)
            except Exception:
                self.batch.lost += 1  # whatever it was, it is not settled
                raise
            finally:
                if slow:
                    self.tell("was-slow", seconds=slow[0], lost=self.batch.lost)

        return self._stream(name, self.spark.readStream.format("servicebus").options(**options).load(name), each)

    def _sink(self) -> str:
        """The recipe for exactly once of docs/spark.md: an id that is the same whenever a row is made again."""
        frame = self.spark.readStream.format("servicebus").options(**self._access()).load("to-sink")
        return self._stream("sink", frame.selectExpr(ID, "body"), None)

    def _capture(self) -> str:
        config = CaptureConfig(
            ("captured",),
            str(self.place / "lake"),
            connection_string=self.spec["primary"],
            checkpoint=str(self.place / "checkpoints/capture"),
            watch=True,
            interval_s=self.spec["trigger_s"],
            min_messages=1_000,
            max_messages=10_000,
            max_wait_s=self.spec["trigger_s"],
        )
        job = Capture(self.spark, config, self._hear_capture, self.now)
        return self._job("capture", job, lambda: job.summary.messages)

    def _hear_capture(self, text: str) -> None:
        self.tell("said", stream="capture", text=text[:300])

    def _syphon(self) -> str:
        moved = [0]

        def hear(event: Any) -> None:
            moved[0] += event.count

        config = SyphonConfig(
            self.spec["primary"],
            self.spec["secondary"],
            namespace_name=self.spec["pairing"],
            watch=True,
            checkpoint=str(self.place / "checkpoints/syphon"),
            batch_messages=10_000,
            partitions=2,
            idle_s=0.3,
            on_event=hear,
        )
        return self._job("syphon", SyphonRun(self.spark, config), lambda: moved[0])

    def _job(self, name: str, job: Capture | SyphonRun, count: Callable[[], int]) -> str:
        over = threading.Event()

        def look() -> None:
            before = 0
            while not over.wait(LOOK_S):
                if count() > before:
                    self.tell("rows", stream=name, count=count() - before)
                    before = count()

        def work() -> None:
            try:
                job.run()
            except Exception as error:  # whatever it is, an operator starts it again
                reasons.append(reason_of(error))

        reasons: list[str] = []
        works = threading.Thread(target=work, daemon=True)
        looks = threading.Thread(target=look, daemon=True)
        self.stops.append(job.stop)
        with self.starting:
            works.start()
            looks.start()
            self._until_it_runs(name)
        self.tell("started", stream=name)
        works.join()
        over.set()
        looks.join()
        self.stops.remove(job.stop)
        return reasons[0] if reasons else "it ended without an error"

    def hear_warning(self, message: Warning | str, *_: Any) -> None:
        """Of locks that were lost, mostly."""
        if type(message).__name__ == "LocksLostWarning":
            self.batch.lost = getattr(self.batch, "lost", 0) + 1
        self.tell("warning", text=str(message)[:300])


def main() -> int:
    host = Host(json.loads(sys.stdin.readline()))
    warnings.simplefilter("always")
    warnings.showwarning = host.hear_warning  # type: ignore[assignment]
    host.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
