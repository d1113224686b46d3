"""The capture job: entities become Parquet, and a message is settled when its row is on the disk.

    spillway pipeline capture --secret env:BUS --entity orders,bills --out lake
    spark-submit …/spillway/spark/jobs/capture.py --secret env:BUS --entity orders --out hdfs:///lake
    run(spark, CaptureConfig(("orders",), "lake", secret="env:BUS"))

A batch is received locked, written once, and renamed into the directories of its days (source/lake.py). Then it is
read back, and what was read back is settled by its lock tokens, on executors. Whoever dies on the way leaves messages
that come again, and rows that are copies of them: `captured` (spark/captured.py) has each message once.
"""

import hashlib
import json
import os
import sys
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final

from spillway.client import ClientError, parse_connection_string
from spillway.model.texts import count_text
from spillway.spark.jobs.job import Job
from spillway.spark.platform.access import OptionError, access_options
from spillway.spark.platform.connect import NO_WATCH, is_connect, parallelism, refuse_on_connect
from spillway.spark.platform.connection_pool import NamespaceError
from spillway.spark.platform.java import SparkMissing
from spillway.spark.platform.job_directory import JobDirectory, JobDirectoryError
from spillway.spark.platform.job_metrics import JobMetrics
from spillway.spark.platform.operations import COUNT
from spillway.spark.platform.option import CaFile, ConnectionString, Option, Secret, check_options
from spillway.spark.platform.paths import local_path
from spillway.spark.platform.preflight import to_mend
from spillway.spark.platform.queries import stopped_by_signals, wait_for_end
from spillway.spark.platform.reasons import reason_of
from spillway.spark.platform.session import Say, build_session, check_spark, say_on_stderr
from spillway.spark.source.declaration import PEEK_LOCK
from spillway.spark.source.deduplicated_view import DAY_OF
from spillway.spark.source.lag import LAG_MESSAGES, LAG_S
from spillway.spark.source.lake import DAY, ENTITY, MOMENT, OURS, Clock, Lake, utc_now
from spillway.spark.source.leftovers import Leftovers
from spillway.spark.source.options import MANUAL, ReadOptions, entities_of, read_options
from spillway.spark.source.settle_after_write import FILE, RESULT, die_when_received, settle_after_write
from spillway.syphon.crash import AT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery

APP: Final = "spillway capture"
CHECKPOINT_FORMAT: Final = 1
BATCH_MESSAGES: Final = 50_000
FIRST_BATCH_MESSAGES: Final = 1_000
PATIENCE_S: Final = 65.0  # a little more than the lock of a minute that most entities have
AGAIN_S: Final = 5.0
RENEW_S: Final = 300.0
# Of a watch. A batch is at least a file for each receiver that got something: at most 288 batches a day of what comes
# slowly, and as many as it takes of what comes fast.
INTERVAL_S: Final = 5.0
MAX_WAIT_S: Final = 300.0
RECEIVER_MESSAGES: Final = 25_000  # of a full batch, at least, where a watch chooses how many receivers there are
# Queries that end badly, one after the other, without a batch between them. On a machine that is very busy Spark gives
# up on Python processes of its own, and a namespace may be away for a while.
FAILURES_MAX: Final = 2
FAILURES_MAX_WATCHING: Final = 10
FAILURE_WAIT_S: Final = 5.0
OPEN_FILES: Final = 16  # of a task: entities and days of one batch, mostly; beyond it Spark sorts
ABOUT: Final = "about.json"
READ_BACK: Final = f"{ENTITY} STRING, session_id STRING, lock_token STRING"


class CaptureError(RuntimeError):
    """The job cannot begin, or cannot go on. The text says why."""


@dataclass(frozen=True)
class CaptureConfig:
    """`secret` is `env:NAME` or `file:PATH`; a `connection_string` may be given instead."""

    entities: Annotated[
        tuple[str, ...],
        Option(
            "NAMES",
            "Queues, `topic/subscriptions/name`, `queue/$deadletterqueue`, with commas between them, or a JSON list.",
            name="entity",
            parse=entities_of,
            more="Write a name the same way every time: it is in the paths, and the view tells messages by it.",
        ),
    ]
    out: Annotated[
        str,
        Option(
            "DIR",
            "Where to write: a path, or a URL of a file system that Spark knows.",
            more="A directory that holds something else is refused.",
        ),
    ]
    secret: Secret = ""
    connection_string: ConnectionString = field(default="", repr=False)
    ca_file: CaFile = ""
    sessions: Annotated[
        str,
        Option(
            "IDS",
            "Of entities with message sessions, which cannot be captured without: `*`, or ids with commas between "
            "them.",
        ),
    ] = ""
    checkpoint: Annotated[
        str,
        Option(
            "DIR",
            "Where the query keeps its place.",
            default="inside of `--out`, one for each set of entities",
            more="That of another query is refused.",
        ),
    ] = ""
    watch: Annotated[
        bool,
        Option(
            "",
            "Go on until stopped by Ctrl-C or SIGTERM.",
            more="They end it, with or without this, as they end the syphon.",
        ),
    ] = False
    max_messages: Annotated[int, Option("N", "Messages of a batch.", 1, 10_000_000)] = BATCH_MESSAGES
    first_batch_messages: int = FIRST_BATCH_MESSAGES
    partitions: Annotated[
        int,
        Option(
            "N",
            "Receivers of each entity; with 0 the cores are shared out.",
            0,
            1_000,
            more="A watch then has one for each 25,000 of `--max-messages` at most.",
        ),
    ] = 0
    patience_s: Annotated[
        float, Option("SECONDS", "How long to wait for messages that are in somebody's lock.", 0, 86_400)
    ] = PATIENCE_S
    # What a failed task has received is renewed as long, or until its process is given work of a later batch.
    renew_s: Annotated[
        float,
        Option(
            "SECONDS",
            "How long locks are renewed; a batch has to be settled by then.",
            0,
            86_400,
            name="renew-seconds",
        ),
    ] = RENEW_S
    interval_s: Annotated[
        float,
        Option(
            "SECONDS",
            "Between two looks of a watch.",
            0,
            86_400,
            more="A batch begins at a look. While nothing comes, or too few, looks are ever rarer, to 15 s.",
        ),
    ] = INTERVAL_S
    min_messages: Annotated[
        int,
        Option(
            "N",
            "Of a watch: how many messages of an entity have to wait before they are taken; 0 is a full batch.",
            0,
            10_000_000,
            more="By their sequence numbers (gaps count). With 1 and `--interval 1` everything is in the lake within "
            "seconds, in tens of thousands of files a day.",
        ),
    ] = 0
    max_wait_s: Annotated[float, Option("SECONDS", "Of a watch: after how long fewer are taken.", 0, 86_400)] = (
        MAX_WAIT_S
    )
    environment: Mapping[str, str] = field(default_factory=dict)  # of the tasks: crash points
    available_now: Annotated[
        bool, Option("", "Take what is there now, and end. That is so unless `--watch` is given.")
    ] = False


@dataclass
class CaptureSummary:
    """`messages` rows were written; `settled` and `lost` say what became of their locks, so they add up to it."""

    out: str
    messages: int = 0
    settled: int = 0
    lost: int = 0  # locks that had run out: these come again, and the view has them once
    batches: int = 0
    entities: dict[str, int] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)  # entities with messages that somebody else has locked
    restarts: int = 0
    seconds: float = 0.0
    batch_rates: list[float] = field(default_factory=list)  # messages a second of the last batches


def options_of(config: CaptureConfig, partitions: int = 1) -> dict[str, str]:
    """For `format("servicebus")`."""
    options = {
        "entity": json.dumps(list(config.entities)),
        "mode": PEEK_LOCK,
        "settle": MANUAL,
        "maxMessages": str(config.max_messages),
        "firstBatchMessages": str(config.first_batch_messages),
        "partitions": str(partitions),
        "renewSeconds": f"{config.renew_s:g}",
        "minMessages": str(config.min_messages or config.max_messages),
        "maxDelaySeconds": f"{config.max_wait_s:g}",
        **access_options(config.secret, config.connection_string, config.ca_file),
    }
    if config.sessions:
        options["sessions"] = config.sessions
    return options


def check(config: CaptureConfig) -> ReadOptions:
    """What can be seen before Spark is started: options, the key, that entities are there and may be received from."""
    from spillway.spark.source.data_source import check_entities

    check_options(config)
    if config.available_now and config.watch:
        raise OptionError("--available-now and --watch: give one of them")
    if config.min_messages > config.max_messages:
        raise OptionError("min-messages: from 1 to max-messages, or 0 for as many as these")
    options = read_options(options_of(config), is_streaming=True)
    options.access.resolve()
    check_entities(options)
    return options


def claim_places(spark: "SparkSession | None", config: CaptureConfig, options: ReadOptions) -> str:
    """The directory is one of captures, and the checkpoint is this one's; the answer is where the checkpoint is.

    Without Spark only places of the local file system are looked at.
    """
    namespace = parse_connection_string(options.access.resolve()).authority
    query = {"namespace": namespace, "entities": sorted(options.entities), "sessions": config.sessions}
    name = hashlib.sha256(json.dumps(query).encode()).hexdigest()[:16]
    out = config.out.rstrip("/") or config.out
    checkpoint = config.checkpoint.rstrip("/") or f"{out}/{OURS}/checkpoints/{name}"
    if spark is not None or local_path(out) is not None:
        Lake(spark, out).claim("out")
    if spark is not None or local_path(checkpoint) is not None:
        about = {"job": "capture", "format": CHECKPOINT_FORMAT, **query, "out": out}
        JobDirectory(spark, checkpoint).claim(ABOUT, about, "checkpoint")
    return checkpoint


class Capture:
    """One run of the job."""

    def __init__(
        self, spark: "SparkSession", config: CaptureConfig, say: Say = say_on_stderr, clock: Clock = utc_now
    ) -> None:
        self.spark = spark
        self.config = config
        self.say = say
        self.clock = clock  # of the names of batches, by which a compaction tells what was left behind
        if config.watch:
            refuse_on_connect(spark, "a capture that watches", NO_WATCH)
        self.options = check(config)
        self.lake = Lake(spark, config.out)
        self.out = self.lake.path
        self.run_id = uuid.uuid4().hex[:8]
        self.summary = CaptureSummary(self.out)
        self.metrics = JobMetrics(spark, "capture")
        self.stopped = threading.Event()
        self.environment = {name: text for name, text in os.environ.items() if name.startswith("SPILLWAY_CRASH_")}
        self.environment |= config.environment
        self.checkpoint = claim_places(spark, config, self.options)
        self.lake.sweep_staging(clock())

    def run(self) -> CaptureSummary:
        began_s = time.monotonic()
        try:
            if self.config.watch:
                milliseconds = f"{self.config.interval_s * 1000:.0f} milliseconds"
                self._query({"processingTime": milliseconds}, FAILURES_MAX_WATCHING)
            else:
                self._drain()
        finally:
            self.metrics.close()
        self.summary.seconds = round(time.monotonic() - began_s, 3)
        return self.summary

    def stop(self) -> None:
        """From another thread: it ends after the batch under way."""
        self.stopped.set()

    # -- rounds -----------------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        """Until nothing is left of what was there, or for `patience_s` nothing of it could be received."""
        leftovers = Leftovers(self.options)
        if leftovers.are_known and not leftovers.left():
            self.say("there is nothing to capture")
            return
        moved_s = time.monotonic()
        while not self.stopped.is_set():
            before = self.summary.settled
            if is_connect(self.spark):
                self._read_batches(leftovers)
            else:
                self._query({"availableNow": True}, FAILURES_MAX)
            self.summary.left = leftovers.left()
            if self.summary.settled > before:
                moved_s = time.monotonic()
            waited_s = time.monotonic() - moved_s
            if not self.summary.left or waited_s >= self.config.patience_s:
                return
            names = ", ".join(self.summary.left[:5])
            self.say(f"messages of {names} are in somebody's lock: looking again in {AGAIN_S:.0f} s")
            self._pause(min(AGAIN_S, self.config.patience_s - waited_s))

    def _read_batches(self, leftovers: Leftovers) -> None:
        """On Spark Connect: batch reads in the place of a query, until one finds nothing, or nothing is left."""
        options = options_of(self.config, receivers(self.config, max(2, parallelism(self.spark))))
        for name in ("firstBatchMessages", "minMessages", "maxDelaySeconds"):
            del options[name]  # a query's
        while not self.stopped.is_set():
            before, number = self.summary.messages, self.summary.batches
            self._batch(self.spark.read.format("servicebus").options(**options).load(), number)
            if self.summary.messages == before or (leftovers.are_known and not leftovers.left()):
                return

    def _query(self, trigger: dict[str, Any], failures_max: int) -> None:
        """Until it ends or is stopped. One that fails is started again, so often."""
        failures = 0
        while not self.stopped.is_set():
            batches = self.summary.batches
            error = wait_for_end(self._start(trigger), self.stopped, self.say, self._on_progress)
            if error is None:
                return
            failures = 1 if self.summary.batches > batches else failures + 1
            if failures > failures_max:
                raise CaptureError(reason_of(error)) from None
            self.summary.restarts += 1
            self.metrics.tell(restarts=self.summary.restarts)
            self.say(f"{reason_of(error)}; starting again in {FAILURE_WAIT_S:.0f} s")
            self._pause(FAILURE_WAIT_S)

    def _pause(self, seconds: float) -> None:
        try:
            self.stopped.wait(seconds)
        except KeyboardInterrupt:
            self.stopped.set()

    def _start(self, trigger: dict[str, Any]) -> "StreamingQuery":
        partitions = receivers(self.config, max(2, parallelism(self.spark)))
        # A batch is settled before the next one begins: what is left of an earlier one, nobody will settle.
        options = {**options_of(self.config, partitions), "holder": f"capture {self.run_id}"}
        frame = self.spark.readStream.format("servicebus").options(**options).load()
        writer = frame.writeStream.queryName(f"capture {self.run_id}").foreachBatch(self._batch)
        return writer.option("checkpointLocation", f"{self.checkpoint}/query").trigger(**trigger).start()

    # -- a batch ----------------------------------------------------------------------------------------------------

    def _batch(self, frame: "DataFrame", number: int) -> None:
        """Write once, read back, settle what was read back. A second action on `frame` would receive again."""
        began_s = time.monotonic()
        # A name that nothing has had: a batch that is run again has other messages, and must not replace these.
        name = f"{self.clock().strftime(MOMENT)}-{self.run_id}-{number:06d}"
        if AT in self.environment:
            frame = frame.mapInArrow(die_when_received(self.environment), frame.schema)
        # So many files open at a time, and rows need not be sorted by directory first. The session is the query's own.
        frame.sparkSession.conf.set("spark.sql.maxConcurrentOutputFileWriters", str(OPEN_FILES))
        rows = frame.selectExpr("*", f"{DAY_OF} AS {DAY}")
        # A directory that is complete is told by the settling of its messages, not by a file in it.
        marks = "mapreduce.fileoutputcommitter.marksuccessfuljobs"
        writer = rows.write.mode("append").option("compression", "zstd").option(marks, "false")
        writer.partitionBy(DAY, ENTITY).parquet(self.lake.staging(name))
        count = self._settle(self.lake.publish(name))
        self.summary.batches += 1
        self.metrics.tell(
            messages=self.summary.messages,
            settled=self.summary.settled,
            lost=self.summary.lost,
            batches=self.summary.batches,
        )
        took_s = time.monotonic() - began_s
        rate = count / max(took_s, 0.001)
        self.summary.batch_rates = [*self.summary.batch_rates[-99:], round(rate, 1)]
        self.say(
            f"batch {number}: {count_text(count, 'message')} in {took_s:.1f} s ({rate:,.0f}/s), "
            f"{self.summary.messages:,} in all"
        )

    def _on_progress(self, progress: "StreamingQueryProgress") -> None:
        """What the source says of itself travels in its offset."""
        try:
            latest = json.loads(progress["sources"][0]["latestOffset"] or "{}")
        except (LookupError, ValueError):  # nothing was asked yet
            return
        lag = {"lag_messages": latest.get(LAG_MESSAGES), "lag_seconds": latest.get(LAG_S)}
        self.metrics.tell(**lag, operations=latest.get(COUNT))

    def _settle(self, paths: list[str]) -> int:
        if not paths:
            return 0
        written = self.spark.read.schema(READ_BACK).option("basePath", self.out).parquet(*paths)
        columns = (ENTITY, "session_id", "lock_token", f"_metadata.file_path AS {FILE}")
        rows = written.where("lock_token IS NOT NULL").selectExpr(*columns)
        work = settle_after_write(self.options.access, self.options.has_sessions, self.out, self.environment)
        count = 0
        for row in rows.mapInArrow(work, RESULT).collect():
            self.summary.settled += row["settled"]
            self.summary.lost += row["lost"]
            here = row["settled"] + row["lost"]
            count += here
            self.summary.entities[row["entity"]] = self.summary.entities.get(row["entity"], 0) + here
        self.summary.messages += count
        assert self.summary.settled + self.summary.lost == self.summary.messages, "a row is settled or its lock is lost"
        return count


def receivers(config: CaptureConfig, cores: int) -> int:
    """How many receivers each entity has, and with them files of a batch: in a watch, no more than are worth a file."""
    if config.partitions:
        return config.partitions
    found = max(1, cores // len(config.entities))
    return min(found, max(1, config.max_messages // RECEIVER_MESSAGES)) if config.watch else found


def run(spark: "SparkSession", config: CaptureConfig, say: Say = say_on_stderr) -> CaptureSummary:
    """Capture what is there, or with `watch` what comes until it is stopped.

    Raises `OptionError`, `NamespaceError`, `JobDirectoryError` or `CaptureError`, each with what is wrong in its text.
    """
    return Capture(spark, config, say).run()


def text_of(summary: CaptureSummary) -> str:
    """The summary for people."""
    batches = count_text(summary.batches, "batch", "batches")
    lines = [f"{summary.out}: {count_text(summary.messages, 'message')} in {batches}, {summary.seconds:.1f} s"]
    lines += [f"  {count:,} of {entity}" for entity, count in sorted(summary.entities.items())]
    if summary.lost:
        lines.append(f"{summary.lost:,} had lost their locks: they come again, and the view has each of them once")
    if summary.left:
        lines.append(f"messages are left in {', '.join(summary.left)}, in somebody's lock: run again when it has ended")
    return "\n".join(lines)


ERRORS: Final = (CaptureError, NamespaceError, JobDirectoryError, SparkMissing, ClientError)


def run_here(config: CaptureConfig, master: str | None = None) -> CaptureSummary:
    """In a session of this process, ended by SIGTERM as by Ctrl-C: after the batch under way."""
    with to_mend(*ERRORS):
        check_spark(master)
        claim_places(None, config, check(config))
    capture = Capture(build_session(APP, master=master), config)
    with stopped_by_signals(capture.stop):
        return capture.run()


JOB: Final = Job(
    "capture",
    "Write the messages of entities to Parquet, by day and entity; settle each when it is on the disk.",
    CaptureConfig,
    run_here,
    text_of,
    ERRORS,
)
main: Final = JOB.main


if __name__ == "__main__":
    sys.exit(main())
