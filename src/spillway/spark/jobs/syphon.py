"""The syphon as a job: all backlog queues of a pairing, emptied to where their messages belong.

    spillway pipeline syphon --primary env:PRIMARY --secondary env:SECONDARY
    spark-submit …/spillway/spark/jobs/syphon.py --primary env:PRIMARY --secondary env:SECONDARY
    run(spark, SyphonConfig(primary="env:PRIMARY", secondary="env:SECONDARY"))

A run takes what is there, in batches, until nothing is left but what destinations refuse. With `watch` it goes on until
it is stopped. It can be stopped and started again at any time: what counts is what is in the backlog.

Rows of a task that dies are lost with it, so counts come from the tasks' own reports too where those can be read, and
the summary says what the brokers counted beside them.
"""

import contextlib
import json
import shutil
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from spillway.client import ClientError
from spillway.model.texts import count_text
from spillway.spark.jobs.job import Job
from spillway.spark.platform.access import Access, checked
from spillway.spark.platform.connect import NO_WATCH, is_connect, parallelism, refuse_on_connect
from spillway.spark.platform.connection_pool import NamespaceError, backlogs_of, connection_pool
from spillway.spark.platform.java import SparkMissing
from spillway.spark.platform.job_metrics import JobMetrics
from spillway.spark.platform.option import Option, check_options
from spillway.spark.platform.preflight import check_writable, to_mend
from spillway.spark.platform.queries import NOT_BEGUN, TRIES_MAX, stopped_by_signals, wait_for_end
from spillway.spark.platform.reasons import reason_of
from spillway.spark.platform.session import build_session, check_spark, say_on_stderr
from spillway.syphon.depths import Depth, SecondaryError, name_of
from spillway.syphon.outcomes import DEAD_LETTERED, KEPT, MOVED, REPEATED, OutcomeCount, OutcomeCounts
from spillway.syphon.restore import Ttl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from spillway.paired.event_file import EventFile
    from spillway.paired.events import Event

BATCH_MESSAGES: Final = 50_000
BACKLOG_QUEUES: Final = 10
ROUNDS_IN_VAIN: Final = 2
WATCH_INTERVAL_S: Final = 1.0
DIED_AT_ONCE_S: Final = 60.0
PATIENCE_S: Final = 15.0  # a busy destination wants ten seconds


class SyphonError(RuntimeError):
    """The job cannot go on. The text says why."""


@dataclass(frozen=True)
class SyphonConfig:
    """`primary`, `secondary`: `env:NAME` or `file:PATH` with a connection string in it, or the string itself."""

    primary: Annotated[
        str,
        Option(
            "WHERE",
            "`env:NAME` or `file:PATH`, where the primary's connection string is found, or the string itself.",
            is_secret=True,
            more="A name is looked up by each process that connects; on a cluster it must mean the same there.",
        ),
    ] = field(repr=False)
    secondary: Annotated[
        str,
        Option(
            "WHERE",
            "The same for the namespace with the backlog queues.",
            is_secret=True,
            more="With the right Manage all of them are found by their name, and how deep they are is known; with "
            "Listen alone the first `--backlog-queues` are looked for.",
        ),
    ] = field(repr=False)
    namespace_name: Annotated[
        str,
        Option(
            "NAME",
            "What senders call the primary in backlog paths, if they were given a `namespace_name`.",
            default="as its host says",
        ),
    ] = ""
    backlog_queues: Annotated[
        int, Option("N", "How many to look for where the key has not the right Manage.", 1, 1_000)
    ] = BACKLOG_QUEUES
    watch: Annotated[
        bool,
        Option(
            "",
            "Go on until stopped by Ctrl-C or SIGTERM.",
            more="A look every second, less and less often while there is nothing, after three minutes every 15 "
            "s, and every 10 s at messages that stay where they are. A look is an operation for each queue, "
            "two with a connection string that is not for development: ten queues idle for a month are 1.7 "
            "or 3.5 million. A namespace that is unavailable is waited for; at the start also until there is a "
            "backlog queue. Those that are made after the first one was found are not looked at: pair once, "
            "then start the watch. A query that dies is started again, unless it does so five times in a row "
            "within a minute each.",
        ),
    ] = False
    checkpoint: Annotated[
        str,
        Option(
            "DIR",
            "Where the query keeps its place.",
            default="a temporary directory",
            more="What counts is what is in the backlog, so none is needed. On a cluster give a directory that "
            "driver and executors share, then the reports of tasks that died are counted too.",
        ),
    ] = ""
    batch_messages: Annotated[int, Option("N", "Messages of a batch.", 1, 10_000_000)] = BATCH_MESSAGES
    partitions: Annotated[
        int,
        Option(
            "N", "Tasks of a batch; 0: as many as there are cores.", 0, 1_000, more="A deep queue is shared by several."
        ),
    ] = 0
    ttl: Annotated[
        Ttl,
        Option(
            "HOW",
            "`restart` (the clock of a life starts again at the primary) or `remaining` (less the time in the "
            "backlog).",
        ),
    ] = "restart"
    primary_ca_file: Annotated[str, Option("FILE", "Trust this authority at the primary, and use TLS.")] = ""
    secondary_ca_file: Annotated[str, Option("FILE", "The same at the secondary.")] = ""
    idle_s: float = 0.5
    patience_s: float = PATIENCE_S
    again_s: float = 10.0  # a watch asks again for messages that stayed where they are
    events: Annotated[
        str,
        Option(
            "DIR",
            "Write what came home as lines of events, for the availability job.",
            more="As the syphon of the library does ([events.md](events.md)): the availability report takes its "
            "backlog from them. A batch is one moment, its end.",
        ),
    ] = ""
    environment: Mapping[str, str] = field(default_factory=dict)  # of the tasks; for tests
    timeout_s: float = Access.timeout_s  # so long an answer of a namespace is waited for
    on_event: "Callable[[Event], None] | None" = field(default=None, repr=False)  # hears what `events` writes down


@dataclass
class Summary:
    """What became of the backlog. `moved` is what tasks counted; `before` less `after` is what the broker counted."""

    namespace_name: str
    backlogs: int = 0
    moved: int = 0
    repeated: int = 0
    dead_lettered: int = 0
    kept: int = 0
    before: int | None = None
    after: int | None = None
    batches: int = 0
    rounds: int = 0
    seconds: float = 0.0
    processes: list[str] = field(default_factory=list)  # host:pid of the tasks that moved messages
    tasks_lost: int = 0  # attempts that died; what their reports say is counted
    lines: list[dict[str, Any]] = field(default_factory=list)
    batch_rates: list[float] = field(
        default_factory=list
    )  # messages a second of the last batches, from one's end to the next one's

    @property
    def broker_counted(self) -> int | None:
        """Gone from the backlog; less than moved if new messages came meanwhile."""
        return None if self.before is None or self.after is None else self.before - self.after


def access_of(text: str, ca_file: str, option: str, timeout_s: float = Access.timeout_s) -> Access:
    """A secret by its name, or a connection string as it is; an error never repeats it."""
    if text.startswith(("env:", "file:")):
        access = Access(secret_name=text, ca_file=ca_file, timeout_s=timeout_s)
        access.resolve()
        return access
    return Access(connection_string=checked(text, option), ca_file=ca_file, timeout_s=timeout_s)


def check(config: SyphonConfig) -> None:
    """What can be seen before Spark is started."""
    check_options(config)
    access_of(config.primary, config.primary_ca_file, "primary")
    access_of(config.secondary, config.secondary_ca_file, "secondary")


def check_namespaces(config: SyphonConfig) -> None:
    """That both can be reached, and that the secondary says what is in its backlog queues. `SecondaryError` or
    `NamespaceError`."""
    pool = connection_pool()
    primary = access_of(config.primary, config.primary_ca_file, "primary", config.timeout_s)
    secondary = access_of(config.secondary, config.secondary_ca_file, "secondary", config.timeout_s)
    name = config.namespace_name or name_of(primary.resolve())
    pool.run(backlogs_of(secondary, name, config.backlog_queues).depths(()))
    try:
        pool.run(pool.connection(primary))
    except ClientError as error:
        raise NamespaceError(f"the primary namespace cannot be reached: {error}") from None


class SyphonRun:
    """One run of the job."""

    def __init__(self, spark: "SparkSession", config: SyphonConfig) -> None:
        check(config)
        if config.watch:
            refuse_on_connect(spark, "a syphon that watches", NO_WATCH)
        self.spark = spark
        self.config = config
        self.primary = access_of(config.primary, config.primary_ca_file, "primary", config.timeout_s)
        self.secondary = access_of(config.secondary, config.secondary_ca_file, "secondary", config.timeout_s)
        self.name = config.namespace_name or name_of(self.primary.resolve())
        self.backlogs = backlogs_of(self.secondary, self.name, config.backlog_queues)
        self.summary = Summary(self.name)
        self.metrics = JobMetrics(spark, "syphon")
        self.restarts = 0
        self.outcomes = OutcomeCounts()
        # Of the last round, or the last batch of a watch, by backlog queue and number: a message that two tasks were
        # refused is kept once.
        self.kept: dict[tuple[str, int], tuple[str, str, int]] = {}
        self.attempts: set[str] = set()  # counted, though their reports could not be removed
        self.processes: set[str] = set()
        self.own_checkpoint = "" if config.checkpoint else tempfile.mkdtemp(prefix="spillway-syphon-")
        self.checkpoint = config.checkpoint or self.own_checkpoint
        self.reports = _local_path(self.checkpoint)
        if self.reports is not None:
            self.reports = self.reports / "reports" / uuid.uuid4().hex
        self.events = _event_file(config.events, self.name)
        self.stopped = threading.Event()
        self.batch_ended_s = 0.0  # the last one's of this round

    def run(self) -> Summary:
        from pyspark.errors import PySparkException

        began_s = time.monotonic()
        try:
            depths = self._first_depths()
            self.summary.backlogs = len(depths)
            self.summary.before = _sum(depths)
            if not depths:
                say_on_stderr(f"there is no backlog queue of '{self.name}' in the secondary namespace")
            elif self.config.watch:
                self._watch(depths)
            else:
                self._drain(depths)
        except PySparkException as error:
            raise SyphonError(reason_of(error)) from None
        finally:
            self._add_reports()
            self.metrics.close()
            if self.events is not None:
                self.events.close()
            if self.reports is not None:
                shutil.rmtree(self.reports, ignore_errors=True)
            if self.own_checkpoint:
                shutil.rmtree(self.own_checkpoint, ignore_errors=True)
        return self._finished(time.monotonic() - began_s)

    def _first_depths(self) -> list[Depth]:
        """A watch waits for the secondary to answer and to have backlog queues: senders make them when they pair."""
        said = ""
        while True:
            try:
                depths = self._depths()
                why = f"there is no backlog queue of '{self.name}' in the secondary namespace yet"
            except SecondaryError as error:
                if not self.config.watch:
                    raise
                depths, why = [], str(error)
            if depths or not self.config.watch:
                return depths
            if why != said:
                say_on_stderr(f"{why}: looking every second")
                said = why
            try:
                if self.stopped.wait(WATCH_INTERVAL_S):
                    return []
            except KeyboardInterrupt:
                return []

    def _depths(self, paths: tuple[str, ...] = ()) -> list[Depth]:
        return connection_pool().run(self.backlogs.depths(paths))

    # -- rounds -----------------------------------------------------------------------------------------------------

    def _drain(self, depths: list[Depth]) -> None:
        """Round after round until nothing is left but what is kept. What a dead task had locked comes back."""
        in_vain = 0
        while _left(depths) and in_vain < ROUNDS_IN_VAIN and not self.stopped.is_set():
            done, tasks_lost = self._done(), self.summary.tasks_lost
            self.kept = {}
            self.summary.rounds += 1
            self._round(depths)
            self._add_reports()
            depths = self._depths(tuple(depth.path for depth in depths))
            self.summary.after = _sum(depths)
            assert self._done() >= done, "what came home stays counted"
            in_vain = in_vain + 1 if self._done() == done else 0
            # What a task had locked that died may be as many as were kept before and came home since.
            after = self.summary.after
            if after is not None and after <= len(self.kept) and self.summary.tasks_lost == tasks_lost:
                return
            if in_vain and in_vain < ROUNDS_IN_VAIN:
                lock_s = max(depth.lock_s for depth in depths)
                say_on_stderr(f"messages are left that are locked by somebody: looking again in {lock_s:.0f} s")
                if self.stopped.wait(lock_s):
                    return

    def _round(self, depths: list[Depth]) -> None:
        """On a machine that is very busy Spark may give up on a Python process of its own before that has begun."""
        for tries in range(1, TRIES_MAX + 1):
            query = self._start(depths, {"availableNow": True})
            error = wait_for_end(query, self.stopped, say_on_stderr)
            if is_connect(self.spark):
                self._collect(query)
            if error is None:
                return
            if tries == TRIES_MAX or NOT_BEGUN not in str(error):
                raise error
            self._restarted()
            say_on_stderr("Spark could not start its Python process in time: once more")

    def _watch(self, depths: list[Depth]) -> None:
        """A namespace that is away is waited for. A query that dies is started again, unless it dies at once."""
        self.summary.rounds = 1
        died = 0
        while not self.stopped.is_set() and died < TRIES_MAX:
            began_s = time.monotonic()
            query = self._start(depths, {"processingTime": f"{WATCH_INTERVAL_S} seconds"})
            error = wait_for_end(query, self.stopped, say_on_stderr)
            if error is None:
                break
            died = died + 1 if time.monotonic() - began_s < DIED_AT_ONCE_S else 1
            if died >= TRIES_MAX:
                raise error
            self._restarted()
            say_on_stderr(f"the query died, it is started again: {_first_line(error)}")
            self._add_reports()
            self.stopped.wait(WATCH_INTERVAL_S)
        with contextlib.suppress(SecondaryError):  # then nobody knows
            self.summary.after = _sum(self._depths(tuple(depth.path for depth in depths)))

    def _restarted(self) -> None:
        self.restarts += 1
        self.metrics.tell(restarts=self.restarts)

    def stop(self) -> None:
        """From another thread: the job ends after the batch under way."""
        self.stopped.set()

    def _start(self, depths: list[Depth], trigger: dict[str, Any]) -> "StreamingQuery":
        from spillway.spark.source.syphon_source import FORMAT, OPTION, SyphonPlan, SyphonSource

        config = self.config
        self.batch_ended_s = 0.0
        self.spark.dataSource.register(SyphonSource)
        plan = SyphonPlan(
            self.primary,
            self.secondary,
            self.name,
            tuple(depth.path for depth in depths),
            config.batch_messages,
            config.partitions or max(2, parallelism(self.spark)),
            config.idle_s,
            config.patience_s,
            config.ttl,
            "" if self.reports is None else str(self.reports),
            config.environment,
            config.watch,
            config.again_s,
        )
        counts = self.spark.readStream.format(FORMAT).option(OPTION, plan.to_json()).load()
        if is_connect(self.spark):
            # Rows that a few tasks of a run count: the server keeps them until they are collected. No checkpoint then.
            kept = counts.writeStream.format("memory").queryName(f"syphon_{uuid.uuid4().hex}")
            return kept.outputMode("append").trigger(**trigger).start()
        # A checkpoint belongs to one query over the same backlog queues; Spark refuses another.
        writer = counts.writeStream.queryName(f"syphon {self.name}").foreachBatch(self._batch)
        return writer.option("checkpointLocation", f"{self.checkpoint}/query").trigger(**trigger).start()

    def _collect(self, query: "StreamingQuery") -> None:
        assert query.name is not None, "it is the name of the table"
        self._batch(self.spark.table(query.name), 0)
        self.spark.catalog.dropTempView(query.name)

    # -- counts -----------------------------------------------------------------------------------------------------

    def _batch(self, counts: "DataFrame", number: int) -> None:
        """Rows of a batch: a few for each task, and nothing of a message."""
        before, began_s = self._done(), self.batch_ended_s or time.monotonic()
        rows = counts.collect()
        self.batch_ended_s = time.monotonic()
        away = ""
        if self.config.watch:
            self.kept = {}  # a batch of a watch is asked for everything that is there
        self._remove_reports({row.attempt for row in rows})
        for row in rows:
            away = away or (row.reason if not row.outcome else "")
            count = OutcomeCount(row.backlog, row.destination, row.outcome, row.reason, row.messages, row.size_bytes)
            self._add(count, f"{row.host}:{row.pid}")
            for kept in row.numbers:
                self.kept[row.backlog, kept] = (row.destination, row.reason, row.size_bytes // row.messages)
        self.summary.batches += 1
        self._tell()
        took_s = self.batch_ended_s - began_s
        done = self._done() - before
        rate = done / max(took_s, 0.001)
        self.summary.batch_rates = [*self.summary.batch_rates[-99:], round(rate, 1)]
        kept = len(self.kept)
        say_on_stderr(f"batch {number}: {done:,} came home in {took_s:.1f} s ({rate:,.0f} messages/s), {kept:,} kept")
        if away:
            say_on_stderr(f"a namespace is unavailable, the next batch tries again: {away}")

    def _add(self, count: OutcomeCount, process: str) -> None:
        if count.messages == 0 or count.outcome == KEPT:
            return
        self.outcomes.add(count)
        for tell in (self.events, self.config.on_event):
            if tell is not None:
                tell(_event_of(count))
        if count.outcome == MOVED:
            self.processes.add(process)

    def _tell(self) -> None:
        self.metrics.tell(
            moved=self.outcomes.total(MOVED),
            repeated=self.outcomes.total(REPEATED),
            dead_lettered=self.outcomes.total(DEAD_LETTERED),
            kept=len(self.kept),
            batches=self.summary.batches,
            tasks_lost=self.summary.tasks_lost,
        )

    def _done(self) -> int:
        return self.outcomes.total(MOVED) + self.outcomes.total(DEAD_LETTERED)

    def _add_reports(self) -> None:
        """Of tasks whose rows never came."""
        if self.reports is None or not self.reports.is_dir():
            return
        for path in self.reports.glob("*.jsonl"):
            if path.stem in self.attempts:
                continue
            self.summary.tasks_lost += 1
            lines = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
            for line in lines[1:]:
                self._add(OutcomeCount(**line), f"{lines[0]['host']}:{lines[0]['pid']}")
            self._remove_reports({path.stem})
        self._tell()

    def _remove_reports(self, attempts: set[str]) -> None:
        """They are counted. A watch has a task every second, and would leave as many files."""
        if self.reports is not None:
            for attempt in attempts:
                try:
                    (self.reports / f"{attempt}.jsonl").unlink(missing_ok=True)
                except OSError:
                    self.attempts.add(attempt)

    def _finished(self, seconds: float) -> Summary:
        summary = self.summary
        summary.moved = self.outcomes.total(MOVED)
        summary.repeated = self.outcomes.total(REPEATED)
        summary.dead_lettered = self.outcomes.total(DEAD_LETTERED)
        if summary.after == 0:
            self.kept = {}  # what one task was refused, another one brought home
        summary.kept = len(self.kept)
        summary.processes = sorted(self.processes)
        summary.seconds = round(seconds, 3)
        kept = OutcomeCounts()
        for (backlog, _), (destination, reason, size_bytes) in self.kept.items():
            kept.add(OutcomeCount(backlog, destination, KEPT, reason, 1, size_bytes))
        summary.lines = [asdict(count) for outcomes in (self.outcomes, kept) for count in outcomes.counts()]
        return summary


def run(spark: "SparkSession", config: SyphonConfig) -> Summary:
    """Empty the backlog; returns when nothing is left but what is kept, or with `watch` when it is stopped."""
    return SyphonRun(spark, config).run()


def run_here(config: SyphonConfig, master: str | None = None) -> Summary:
    """In a session of this process, ended by SIGTERM as by Ctrl-C: after the batch under way."""
    with to_mend(*ERRORS):
        check_spark(master)
        check(config)
        check_writable("checkpoint", config.checkpoint or tempfile.gettempdir())
        check_writable("events", config.events or tempfile.gettempdir())
        if not config.watch:  # which waits for them
            check_namespaces(config)
    syphon = SyphonRun(build_session("spillway syphon", master=master), config)
    with stopped_by_signals(syphon.stop):
        return syphon.run()


def text_of(summary: Summary) -> str:
    """The summary for people."""
    lines = [
        f"{count_text(summary.moved, 'message')} came home from {count_text(summary.backlogs, 'backlog queue')} in "
        f"{summary.seconds:.1f} s, {summary.dead_lettered:,} dead-lettered, {summary.kept:,} kept"
    ]
    if summary.broker_counted is not None:
        lines.append(f"the broker counts {summary.broker_counted:,} fewer in the backlog, {summary.after:,} are left")
    if summary.repeated or summary.tasks_lost:
        died = count_text(summary.tasks_lost, "task")
        lines.append(f"{died} died; sent home more than once: {count_text(summary.repeated, 'message')}")
    for line in summary.lines:
        if line["outcome"] != MOVED:
            place = line["destination"] or line["backlog"]
            lines.append(f"  {line['messages']:,} {line['outcome']}: {place}: {line['reason']}")
    return "\n".join(lines)


def _event_file(directory: str, name: str) -> "EventFile | None":
    """The syphon of the library writes the same, so that a report need not know which one it was."""
    if not directory:
        return None
    from spillway.paired.event_file import EventFile

    return EventFile(directory, name, process="spark-syphon")


def _event_of(count: OutcomeCount) -> "Event":
    from spillway.paired import events

    if count.outcome == MOVED:
        return events.Event(events.SYPHONED, count.destination, count.messages, details={"queue": count.backlog})
    name = events.SYPHON_REPEATED if count.outcome == REPEATED else events.SYPHON_DEAD_LETTERED
    return events.Event(name, count.backlog, count.messages, details={"reason": count.reason})


def _first_line(error: object) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _sum(depths: Sequence[Depth]) -> int | None:
    """None if that of one is not known."""
    counts = [depth.active for depth in depths if depth.active is not None]
    return sum(counts) if len(counts) == len(depths) else None


def _left(depths: Sequence[Depth]) -> bool:
    return any(depth.active != 0 for depth in depths)


ERRORS: Final = (SyphonError, SecondaryError, NamespaceError, SparkMissing, ClientError)


def _local_path(checkpoint: str) -> Path | None:
    """Where tasks can leave reports that this process can read: on this machine, or a file system they share."""
    bare = checkpoint.removeprefix("file://").removeprefix("file:")
    return None if "://" in bare else Path(bare)


JOB: Final = Job(
    "syphon",
    "Move all messages of the backlog queues to the queues and topics that they were sent to.",
    SyphonConfig,
    run_here,
    text_of,
    ERRORS,
)
main: Final = JOB.main


if __name__ == "__main__":
    sys.exit(main())
