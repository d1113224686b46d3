"""The replay job: captured messages are sent once more, to a queue or a topic.

    spillway pipeline replay --captured lake --to orders --secret env:BUS --day 2026-11-16
    spark-submit …/spillway/spark/jobs/replay.py --captured hdfs:///lake --to orders --secret env:BUS
    run(spark, ReplayConfig("lake", "orders", secret="env:BUS"))

A replay is planned once: how many messages each entity and day has, cut into steps by sequence number. With a
checkpoint the plan and every step that was sent are written down, and a run that is started again does the rest.
Messages keep their ids, so that an entity with duplicate detection drops what a step that is repeated sends twice.
"""

import json
import logging
import sys
import time
from dataclasses import asdict, dataclass, field
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

from spillway.client import ClientError, parse_connection_string
from spillway.model.texts import count_text
from spillway.spark.jobs.job import Job
from spillway.spark.platform.access import OptionError, access_options
from spillway.spark.platform.connection_pool import NamespaceError
from spillway.spark.platform.java import SparkMissing
from spillway.spark.platform.job_directory import JobDirectory, JobDirectoryError
from spillway.spark.platform.option import CaFile, ConnectionString, Option, Secret, check_options
from spillway.spark.platform.paths import local_path
from spillway.spark.platform.preflight import to_mend
from spillway.spark.platform.reasons import reason_of
from spillway.spark.platform.session import Say, activate_session, build_session, check_spark, say_on_stderr
from spillway.spark.source.deduplicated_view import captured
from spillway.spark.source.lake import Lake, days_of
from spillway.spark.source.options import WriteOptions, entities_of, write_options

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

APP: Final = "spillway replay"
FORMAT: Final = 1
STEP_MESSAGES: Final = 50_000
ABOUT: Final = "about.json"
PLAN: Final = "plan.json"
DONE: Final = "done"
# Application properties that --stamp adds.
STAMP: Final = "x-spillway-captured-"
SENT: Final = (
    "session_id", "partition_key", "correlation_id", "subject", "content_type", "to", "reply_to",
    "reply_to_session_id", "time_to_live_ms", "body",
)  # fmt: skip
# A message that was sent without an id gets one that is always the same.
ID: Final = (
    "coalesce(nullif(message_id, ''), concat('captured-', left(sha2(concat_ws('/', namespace, entity, "
    "string(sequence_number), string(unix_micros(enqueued_time))), 256), 32)))"
)
# What a dead-letter queue has added; a message that is dead-lettered again gets them again.
DEAD: Final = "(lower(entity) LIKE '%/$deadletterqueue' AND k IN ('DeadLetterReason', 'DeadLetterErrorDescription'))"


class ReplayError(RuntimeError):
    """The job cannot begin, or cannot go on. The text says why."""


@dataclass(frozen=True)
class ReplayConfig:
    """What of a capture to send, and where to. `secret` is `env:NAME` or `file:PATH`."""

    captured: Annotated[str, Option("DIR", "What a capture has written.")]
    to: Annotated[str, Option("NAME", "Queue or topic to send to.")]
    secret: Secret = ""
    connection_string: ConnectionString = field(default="", repr=False)
    ca_file: CaFile = ""
    entities: Annotated[
        tuple[str, ...],
        Option("NAMES", "Only what was captured from these.", name="entity", parse=entities_of, default="all of them"),
    ] = ()
    day: Annotated[
        str, Option("DAY", "Only what was enqueued on `2026-11-16`, or from `2026-11-01..2026-11-16`, in UTC.")
    ] = ""
    since: Annotated[
        str,
        Option("TIME", "Enqueued at this time or later; ISO 8601.", more="In UTC unless it says otherwise."),
    ] = ""
    until: Annotated[str, Option("TIME", "Enqueued before this time.")] = ""
    where: Annotated[
        str,
        Option(
            "SQL",
            "Only rows of the view for which this is true.",
            more="Like `\"subject = 'paid' AND application_properties['shop'] = '7'\"`.",
        ),
    ] = ""
    checkpoint: Annotated[
        str,
        Option(
            "DIR",
            "Where the plan and the steps that were sent are written down, so that it can be started again.",
            more="Without one a run that is started again sends everything again.",
        ),
    ] = ""
    dry_run: Annotated[
        bool,
        Option(
            "",
            "Say how many messages of each entity and day would be sent; the destination is looked at, nothing is "
            "sent.",
            more="Not with `--checkpoint`.",
        ),
    ] = False
    stamp: Annotated[
        bool,
        Option(
            "",
            "Add where and when each was enqueued, as application properties.",
            more="`x-spillway-captured-namespace`, `-entity`, `-sequence-number` (a long) and `-enqueued-time` "
            "(a timestamp).",
        ),
    ] = False
    partitions: Annotated[int, Option("N", "Senders side by side; 1 keeps the order.", 1, 1_000)] = 1
    step_messages: Annotated[
        int, Option("N", "About how many messages between two notes in the checkpoint.", 1, 10_000_000)
    ] = STEP_MESSAGES


@dataclass(frozen=True)
class Step:
    """Messages of one entity and day, from one sequence number to another, both of them included."""

    entity: str
    day: str
    first: int
    last: int


@dataclass
class ReplaySummary:
    captured: str
    to: str
    planned: int = 0
    sent: int = 0  # by this run
    steps: int = 0
    steps_before: int = 0  # of runs before, as the checkpoint has it
    is_dry: bool = False
    lines: list[dict[str, Any]] = field(default_factory=list)  # entity, day, messages
    seconds: float = 0.0


@dataclass(frozen=True)
class Filters:
    """The choices of a config that are about time, read and checked."""

    first_day: date | None
    last_day: date | None
    since: datetime | None
    until: datetime | None


def filters_of(config: ReplayConfig) -> Filters:
    first, last = days_of(config.day) or (None, None)
    since, until = _moment("since", config.since), _moment("until", config.until)
    if since is not None and until is not None and until <= since:
        raise OptionError("until has to be later than since")
    return Filters(first, last, since, until)


def _moment(name: str, text: str) -> datetime | None:
    if not text:
        return None
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise OptionError(f"{name}: a time in ISO 8601, as 2026-11-16T08:30:00Z") from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def options_of(config: ReplayConfig) -> dict[str, str]:
    """For `format("servicebus")`."""
    access = access_options(config.secret, config.connection_string, config.ca_file)
    return {"entity": json.dumps([config.to]), **access}


def check(config: ReplayConfig) -> WriteOptions:
    """What can be seen before Spark is started: options, the key, that the destination may be sent to."""
    from spillway.spark.source.sink import check_destination

    check_options(config)
    if config.dry_run and config.checkpoint:
        raise OptionError("dry-run sends nothing, so that there is nothing to write into a checkpoint")
    filters_of(config)
    options = write_options(options_of(config))
    options.access.resolve()
    check_destination(options, is_patient=False)
    return options


def source_of(config: ReplayConfig) -> str:
    return config.captured.rstrip("/") or config.captured


def claim_places(spark: "SparkSession | None", config: ReplayConfig, options: WriteOptions) -> JobDirectory | None:
    """That a capture has written what is to be sent, and that the checkpoint is this replay's: the answer, if any.

    Without Spark only places of the local file system are looked at.
    """
    source = source_of(config)
    if spark is not None or local_path(source) is not None:
        if Lake(spark, source).format() is None:
            raise ReplayError(f"captured {source}: no capture has written there")
    if not config.checkpoint or (spark is None and local_path(config.checkpoint) is None):
        return None
    checkpoint = JobDirectory(spark, config.checkpoint)
    about = {
        "job": "replay",
        "format": FORMAT,
        "captured": source,
        "namespace": parse_connection_string(options.access.resolve()).authority,
        "to": config.to,
        "entities": sorted(config.entities),
        "day": config.day,
        "since": config.since,
        "until": config.until,
        "where": config.where,
        "stamp": config.stamp,
    }
    checkpoint.claim(ABOUT, about, "checkpoint")
    return checkpoint


class Replay:
    """One run of the job."""

    def __init__(self, spark: "SparkSession", config: ReplayConfig, say: Say = say_on_stderr) -> None:
        self.spark = spark
        self.config = config
        self.say = say
        self.options = check(config)
        self.filters = filters_of(config)
        self.source = source_of(config)
        self.summary = ReplaySummary(self.source, config.to, is_dry=config.dry_run)
        self.checkpoint = claim_places(spark, config, self.options)

    def run(self) -> ReplaySummary:
        from pyspark.errors import PySparkException

        began_s = time.monotonic()
        try:
            self._run()
        except PySparkException as error:
            raise ReplayError(reason_of(error)) from None
        self.summary.seconds = round(time.monotonic() - began_s, 3)
        return self.summary

    def _run(self) -> None:
        steps = self._plan()
        done = set() if self.checkpoint is None else set(self.checkpoint.names(DONE))
        steps_text = count_text(len(steps), "step")
        self.say(f"{count_text(self.summary.planned, 'message')} in {steps_text} for {self.config.to}")
        if self.config.dry_run:
            return
        for number, step in enumerate(steps):
            name = f"{number:06d}.json"
            if name in done:
                self.summary.steps_before += 1
                continue
            began_s = time.monotonic()
            count = self._send(step)
            if self.checkpoint is not None:
                self.checkpoint.write(f"{DONE}/{name}", json.dumps({**asdict(step), "sent": count}) + "\n")
            self.summary.sent += count
            self.summary.steps += 1
            rate = count / max(time.monotonic() - began_s, 0.001)
            self.say(f"step {number + 1} of {len(steps)}: {count:,} of {step.entity}, {step.day} ({rate:,.0f}/s)")
        assert self.summary.steps + self.summary.steps_before == len(steps), "a step was sent now or before"

    # -- the plan ---------------------------------------------------------------------------------------------------

    def _plan(self) -> list[Step]:
        text = None if self.checkpoint is None else self.checkpoint.read(PLAN)
        if text is None:
            found = self._count()
            text = json.dumps(found)
            if self.checkpoint is not None:
                self.checkpoint.write(PLAN, text + "\n")
        lines = json.loads(text)
        self.summary.lines = [{name: line[name] for name in ("entity", "day", "messages")} for line in lines]
        self.summary.planned = sum(line["messages"] for line in lines)
        return [Step(line["entity"], line["day"], first, last) for line in lines for first, last in line["ranges"]]

    def _count(self) -> list[dict[str, Any]]:
        from pyspark.errors import AnalysisException, ParseException

        rows = self._chosen()
        if self.config.where:
            try:
                rows = rows.where(self.config.where)
            except (AnalysisException, ParseException) as error:
                raise OptionError(f"where: {reason_of(error)}") from None
        groups = rows.groupBy("entity", "day").agg(
            *_sums(),
        )
        return [
            {
                "entity": row["entity"],
                "day": "" if row["day"] is None else row["day"].isoformat(),
                "messages": row["messages"],
                "ranges": ranges(row["first"], row["last"], row["messages"], self.config.step_messages),
            }
            for row in groups.orderBy("day", "entity").collect()
        ]

    def _chosen(self) -> "DataFrame":
        """By what copies of a message have in common; Spark reads only the directories of these entities and days."""
        from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

        rows = captured(self.spark, self.source)
        if self.config.entities:
            rows = rows.where(F.col("entity").isin(list(self.config.entities)))
        filters = self.filters
        if filters.first_day is not None:
            rows = rows.where(F.col("day").between(F.lit(filters.first_day), F.lit(filters.last_day)))
        if filters.since is not None:
            rows = rows.where(F.col("enqueued_time") >= F.lit(filters.since))
        if filters.until is not None:
            rows = rows.where(F.col("enqueued_time") < F.lit(filters.until))
        return rows

    # -- a step -----------------------------------------------------------------------------------------------------

    def _send(self, step: Step) -> int:
        """All messages of it, in the order of their sequence numbers, or of each session's with several partitions."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

        day = F.col("day").isNull() if not step.day else F.col("day") == F.lit(date.fromisoformat(step.day))
        rows = self._chosen().where(day & (F.col("entity") == F.lit(step.entity)))
        rows = rows.where(F.col("sequence_number").between(step.first, step.last))
        if self.config.where:
            rows = rows.where(self.config.where)
        properties, types = properties_of(self.config.stamp)
        messages = rows.select(
            "sequence_number",
            F.expr(ID).alias("message_id"),
            *SENT,
            F.expr(properties).alias("application_properties"),
            F.expr(types).alias("property_types"),
        )
        if self.config.partitions == 1:
            messages = messages.coalesce(1)
        else:
            group = F.coalesce("session_id", "partition_key", "message_id")
            messages = messages.repartition(self.config.partitions, group)
        count = Observation()
        ordered = messages.sortWithinPartitions("sequence_number").observe(count, F.count(F.lit(1)).alias("messages"))
        activate_session(self.spark)  # whatever thread this is
        ordered.write.format("servicebus").options(**options_of(self.config)).mode("append").save()
        return int(count.get["messages"])


def _sums() -> "list[Column]":
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    return [
        F.count(F.lit(1)).alias("messages"),
        F.min("sequence_number").alias("first"),
        F.max("sequence_number").alias("last"),
    ]


def ranges(first: int, last: int, count: int, step: int) -> list[tuple[int, int]]:
    """From the first to the last, in as many parts as make about `step` messages each."""
    parts = max(1, min(-(-count // step), last - first + 1))
    edges = [first + (last + 1 - first) * index // parts for index in range(parts + 1)]
    assert edges[0] == first and edges[-1] == last + 1, "the steps are the whole, without a gap"
    return [(low, high - 1) for low, high in zip(edges, edges[1:], strict=False)]


def properties_of(has_stamp: bool) -> tuple[str, str]:
    """The application properties to send, and their types, in SQL."""
    old = f"{DEAD} OR k LIKE '{STAMP}%'" if has_stamp else DEAD
    properties, types = (
        f"map_filter({name}, (k, v) -> NOT ({old}))" for name in ("application_properties", "property_types")
    )
    if not has_stamp:
        return properties, types
    values = {
        "namespace": ("namespace", "string"),
        "entity": ("entity", "string"),
        "sequence-number": ("string(sequence_number)", "long"),
        "enqueued-time": ("string(unix_millis(enqueued_time))", "timestamp"),
    }
    stamps = ", ".join(f"'{STAMP}{name}', {value}" for name, (value, _) in values.items())
    kinds = ", ".join(f"'{STAMP}{name}', '{kind}'" for name, (_, kind) in values.items())
    return _both(properties, f"map({stamps})"), _both(types, f"map({kinds})")


def _both(first: str, second: str) -> str:
    """The sum of two maps; of one that is null Spark's own would be null."""
    return f"coalesce(map_concat({first}, {second}), {second})"


def run(spark: "SparkSession", config: ReplayConfig, say: Say = say_on_stderr) -> ReplaySummary:
    """Send what was captured. Raises `OptionError`, `NamespaceError`, `JobDirectoryError` or `ReplayError`."""
    return Replay(spark, config, say).run()


def text_of(summary: ReplaySummary) -> str:
    """The summary for people."""
    lines = [f"  {line['messages']:,} of {line['entity']}, {line['day']}" for line in summary.lines]
    if summary.is_dry:
        return "\n".join([f"{count_text(summary.planned, 'message')} would be sent to {summary.to}:", *lines])
    steps = count_text(summary.steps_before, "step was", "steps were")
    before = f"; {steps} done before" if summary.steps_before else ""
    told = (
        f"{summary.sent:,} of {summary.planned:,} messages were sent to {summary.to} in {summary.seconds:.1f} s{before}"
    )
    return "\n".join([told, *lines])


ERRORS: Final = (ReplayError, NamespaceError, JobDirectoryError, SparkMissing, ClientError)


def run_here(config: ReplayConfig, master: str | None = None) -> ReplaySummary:
    """In a session of this process."""
    with to_mend(*ERRORS):
        check_spark(master)
        claim_places(None, config, check(config))
    # PySpark writes an error of analysis to stderr, with its traceback, before it raises it.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    return run(build_session(APP, master=master), config)


JOB: Final = Job(
    "replay",
    "Send captured messages to a queue or topic again, with the ids they had.",
    ReplayConfig,
    run_here,
    text_of,
    ERRORS,
)
main: Final = JOB.main


if __name__ == "__main__":
    sys.exit(main())
