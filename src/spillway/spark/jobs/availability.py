"""The availability job: the events of a pairing become outages, with their times, their backlog and a picture.

`OUT/outages`, `absences`, `backlog`, `entities` and `events` are tables in Parquet, `OUT/quarantine` has what was set
aside and why. Everything is made anew by every run, from the files alone: a run that was killed is run again.
"""

import json
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from spillway.model.texts import count_text
from spillway.spark.billing.ledger_checks import checked, counted
from spillway.spark.billing.metering_inputs import Inputs, LedgerDirectory, MeteringError, find_sealed
from spillway.spark.jobs.job import Job
from spillway.spark.outages.availability_picture import SLOTS, OutageWindow
from spillway.spark.outages.availability_report import text_of, windows_of, write_report
from spillway.spark.outages.availability_summary import AvailabilitySummary
from spillway.spark.outages.entity_outages import CLOCKS_US
from spillway.spark.outages.event_lines import find_files
from spillway.spark.outages.order_and_duplicates import CapturedError, captured, histories, judged
from spillway.spark.outages.timelines import processes_of, read_events, stories_of, timed
from spillway.spark.platform.java import SparkMissing
from spillway.spark.platform.option import Option
from spillway.spark.platform.preflight import check_writable, to_mend
from spillway.spark.platform.session import Say, build_session, check_spark, say_on_stderr

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

APP: Final = "spillway-availability"
OURS: Final[Mapping[str, object]] = {"job": "availability", "format": 1}
ABOUT: Final = "availability.json"
ENTITIES_MAX: Final = 500  # of a summary: those that were away longest
OUTAGES_MAX: Final = 1_000  # the longest
REMARKS_MAX: Final = 50


class AvailabilityError(ValueError):
    """What was asked cannot be done, and why; the user's to mend."""


def parse_ledger(text: str) -> tuple[str, Path]:
    """`NAME=DIR`, or DIR alone."""
    name, equals, rest = text.partition("=")
    return (name.strip().lower(), Path(rest)) if equals and "/" not in name else ("", Path(text))


@dataclass(frozen=True)
class AvailabilityConfig:
    """What to tell outages from, and where to write them."""

    out: Annotated[
        Path,
        Option(
            "DIR",
            "Where the tables and the quarantine go.",
            more="A directory that is empty, not there yet, or of an earlier run.",
        ),
    ]
    events: Annotated[
        tuple[Path, ...],
        Option(
            "DIR",
            "Directory or file of events that processes wrote.",
            is_repeated=True,
            more="Of any number of processes and days; `.jsonl` or `.jsonl.gz`.",
        ),
    ]
    ledgers: Annotated[
        tuple[tuple[str, Path], ...],
        Option(
            "[NAME=]DIR",
            "Sealed days of a broker: its data directory, or the `ledger` inside.",
            name="ledger",
            parse=parse_ledger,
            is_repeated=True,
            more="See [ledger.md](ledger.md). `NAME` is what the pairing calls the namespace, if the broker calls it "
            "something else: backlog queues are `NAME/x-servicebus-transfer/0`.",
        ),
    ] = ()
    captured: Annotated[
        str | None,
        Option(
            "PATH",
            "Parquet of what the primary stored, with `entity`, `sequence_number` and `message_id`.",
            more="Duplicates are counted in it.",
        ),
    ] = None
    sender: Annotated[
        str | None,
        Option(
            "SQL",
            "The sender of a captured message, out of its columns.",
            more="An expression like `application_properties['producer']` or `session_id`.",
        ),
    ] = None
    position: Annotated[
        str | None,
        Option(
            "SQL",
            "The number that a captured message has among its sender's.",
            more="An expression over its columns. Without it order is not judged.",
        ),
    ] = None
    histories: Annotated[
        Path | None,
        Option(
            "DIR",
            "What the clients of `spillway lab --keep DIR` wrote down.",
            more="Order and duplicates are judged by it.",
        ),
    ] = None
    report: Annotated[
        Path | None,
        Option("FILE", "Write a page of HTML that needs nothing else, with the timeline as a picture."),
    ] = None


def run_here(config: AvailabilityConfig, master: str | None = None) -> AvailabilitySummary:
    """In a session of this process. What the user has to mend is an `OptionError`, before Spark is started."""
    with to_mend(AvailabilityError, SparkMissing, OSError):
        check_spark(master)
        _ledger_files(config)
        _event_files(config)
        check_writable("--out", config.out)
        is_free(config.out)
        if config.report is not None:
            check_writable("--report", config.report.parent)
    return run(build_session(APP, master=master), config)


def run(spark: "SparkSession", config: AvailabilityConfig, say: Say = say_on_stderr) -> AvailabilitySummary:
    """Raises `AvailabilityError` with what is wrong."""
    began = time.monotonic()
    ledger_files = _ledger_files(config)
    files = _event_files(config)
    stored = _stored(spark, config)
    check_place(config.out)
    say(f"reading the events of {count_text(len(files), 'file')}")
    _write(read_events(spark, files), config.out / "events")
    lines = spark.read.parquet(str(config.out / "events"))
    events = lines.where("problem is null")
    summary = AvailabilitySummary(str(config.out), remarks=list(ledger_files.notes))
    processes = processes_of(lines).persist()
    try:
        until_us = _count(summary, processes)
        told = count_text(summary.processes, "process", "processes")
        say(f"{count_text(summary.events, 'event')} of {told}: putting them in order")
        _tell(spark, config, summary, timed(events, processes), until_us)
        if ledger_files.files:
            say(f"comparing with {count_text(len(ledger_files.files), 'file')} of the ledger")
            files_read = ledger_files.files
            ledger = counted(spark, files_read).persist()
            checks = checked(spark, files_read, ledger, timed(events, processes), summary.namespaces)
            summary.checks = [{**asdict(each), "difference": each.difference} for each in checks]
            summary.set_aside += ledger.where("problem is not null").count()
            _set_aside(summary, lines, ledger)
            ledger.unpersist()
        else:
            _set_aside(summary, lines, None)
    finally:
        processes.unpersist()
    for table in stored:
        _judge(summary, table)
    summary.set_aside += len(ledger_files.bad)
    summary.remarks += [f"{bad.file}: {bad.reason}" for bad in ledger_files.bad[:REMARKS_MAX]]
    if summary.set_aside:
        summary.remarks.append(
            f"{summary.set_aside:,} lines or files could not be used: see {config.out / 'quarantine'}"
        )
    summary.seconds = round(time.monotonic() - began, 2)
    if config.report is not None:
        write_report(config.report, summary, _windows(spark, config.out, summary))
        say(f"the report is {config.report}")
    return summary


# -- what goes in -------------------------------------------------------------------------------------------------


def _event_files(config: AvailabilityConfig) -> list[str]:
    try:
        files = find_files(list(config.events))
    except FileNotFoundError as error:
        raise AvailabilityError(f"--events: {error}") from None
    if not files:
        raise AvailabilityError(f"--events: there is no .jsonl file below {', '.join(map(str, config.events))}")
    return files


def check_place(out: Path) -> None:
    """A directory that is ours, or empty, or not there: it is ours from now on."""
    if is_free(out):
        out.mkdir(parents=True, exist_ok=True)
        (out / ABOUT).write_text(json.dumps(OURS) + "\n", encoding="utf-8")


def is_free(out: Path) -> bool:
    """Whether the directory is empty or not there, and not ours already; `AvailabilityError` if it is another's."""
    about = out / ABOUT
    if about.exists():
        try:
            found = json.loads(about.read_text(encoding="utf-8"))
        except (ValueError, OSError) as error:
            raise AvailabilityError(f"{about} cannot be read: {error}") from None
        if found != OURS:
            raise AvailabilityError(f"--out {out} holds something else: {json.dumps(found)[:100]}")
        return False
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise AvailabilityError(f"--out {out} holds something else: give a directory that is empty or not there yet")
    return True


def _ledger_files(config: AvailabilityConfig) -> Inputs:
    inputs = Inputs()
    try:
        for name, path in config.ledgers:
            find_sealed(LedgerDirectory(path, name), inputs)
        inputs.by_day()  # refuses one namespace that is there twice
    except MeteringError as error:
        raise AvailabilityError(str(error)) from None
    return inputs


# -- the steps ----------------------------------------------------------------------------------------------------


def _count(summary: AvailabilitySummary, processes: "DataFrame") -> int:
    """How much there is, and what is known to be missing. The time of the last event."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    found = processes.agg(
        F.count("process").alias("processes"),
        F.min("first_us").alias("first_us"),
        F.max("last_us").alias("last_us"),
        F.collect_set(F.lower("namespace")).alias("namespaces"),
        F.sum((F.col("spread_us") > CLOCKS_US).cast("bigint")).alias("jumped"),
        F.sum("lines_missing").alias("missing"),
        *(F.sum(name).alias(name) for name in ("events", "bad", "lost", "repeated", "dead_lettered")),
    ).collect()[0]
    summary.events, summary.processes = found["events"] or 0, found["processes"]
    summary.set_aside = found["bad"] or 0
    summary.namespaces = sorted(found["namespaces"])
    summary.repeated, summary.dead_lettered = found["repeated"] or 0, found["dead_lettered"] or 0
    if not summary.events:
        summary.remarks.append("no line of the files can be used")
        return 0
    summary.first, summary.last = text_of(found["first_us"]), text_of(found["last_us"])
    if found["missing"]:
        missing = count_text(found["missing"], "line is", "lines are")
        summary.remarks.append(f"{missing} missing, by the numbers of those that are there")
    if found["lost"]:
        lost = count_text(found["lost"], "event was", "events were")
        summary.remarks.append(f"{lost} lost by their writers: a disk did not keep up")
    if found["jumped"]:
        whose = count_text(found["jumped"], "process", "processes")
        summary.remarks.append(f"the clock of {whose} was set while {'it' if found['jumped'] == 1 else 'they'} ran")
    return int(found["last_us"])


def _tell(
    spark: "SparkSession", config: AvailabilityConfig, summary: AvailabilitySummary, events: "DataFrame", until_us: int
) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    stories = stories_of(events, until_us).persist()
    try:
        for column, name in (
            ("outage", "outages"),
            ("absence", "absences"),
            ("depth", "backlog"),
            ("story", "entities"),
        ):
            table = stories.where(F.col(column).isNotNull()).select("namespace", "entity", f"{column}.*")
            _write(_with_times(table), config.out / name)
    finally:
        stories.unpersist()
    entities, outages = (spark.read.parquet(str(config.out / name)) for name in ("entities", "outages"))
    longest = entities.orderBy(F.desc("away_s"), "namespace", "entity").limit(ENTITIES_MAX)
    summary.entities = [_plain(row.asDict()) for row in longest.collect()]
    _sum_up(summary, entities)
    shown = outages.orderBy(F.desc("length_s"), "began_us").limit(OUTAGES_MAX)
    summary.outages = sorted((_plain(row.asDict()) for row in shown.collect()), key=lambda row: row["began_us"])
    for row in summary.entities:
        remarks = [f"{row['entity']}: {remark}" for remark in row["remarks"]]
        summary.remarks += remarks[: max(0, REMARKS_MAX - len(summary.remarks))]


def _sum_up(summary: AvailabilitySummary, entities: "DataFrame") -> None:
    """Of all entities, also of those that the summary has no row of."""
    names = ("outages", "diverted", "syphoned", "waiting")
    rows: list[Any] = summary.entities
    count = len(rows)
    if count >= ENTITIES_MAX:
        rows = entities.selectExpr("count(*) as entities", *(f"sum({name}) as {name}" for name in names)).collect()
        count = rows[0]["entities"]
    summary.entities_count = count
    summary.outages_count, summary.diverted, summary.syphoned, summary.waiting = (
        sum(row[name] for row in rows) for name in names
    )


def _stored(spark: "SparkSession", config: AvailabilityConfig) -> "list[DataFrame]":
    """What order and duplicates are judged by. A mistake in what was given is said before anything is made."""
    tables = []
    try:
        if config.captured is not None:
            tables.append(captured(spark, config.captured, config.sender, config.position))
        if config.histories is not None:
            tables.append(histories(spark, config.histories))
    except CapturedError as error:
        raise AvailabilityError(str(error)) from None
    return tables


def _judge(summary: AvailabilitySummary, stored: "DataFrame") -> None:
    stored = stored.persist()
    try:
        summary.delivered += [asdict(each) for each in judged(stored)]
        if "problem" in stored.columns and (bad := stored.where("problem is not null").count()):
            summary.remarks.append(f"--histories: {bad:,} lines could not be used")
    finally:
        stored.unpersist()


def _set_aside(summary: AvailabilitySummary, lines: "DataFrame", ledger: "DataFrame | None") -> None:
    place = Path(summary.out) / "quarantine"
    if not summary.set_aside:
        shutil.rmtree(place, ignore_errors=True)  # of an earlier run
        return
    bad = lines.where("problem is not null").select("file", "line", "problem", "text")
    if ledger is not None:
        bad = bad.unionByName(ledger.where("problem is not null").select("file", "line", "problem", "text"))
    bad.coalesce(1).write.mode("overwrite").json(str(place))


def _windows(spark: "SparkSession", out: Path, summary: AvailabilitySummary) -> list[OutageWindow]:
    """The longest outages as they are drawn: who was away when, and the backlog in as many slots as fit."""
    from pyspark.sql import functions as F  # noqa: N812

    windows = windows_of(summary)
    if not windows:
        return []
    bounds = spark.createDataFrame(
        [(each.index, each.namespace.lower(), each.entity.lower(), each.from_us, each.to_us) for each in windows],
        "index int, place string, key string, from_us bigint, to_us bigint",
    )

    def keyed(name: str) -> "DataFrame":
        table = spark.read.parquet(str(out / name))
        return table.withColumn("place", F.lower("namespace")).withColumn("key", F.lower("entity"))

    depths = (
        keyed("backlog")
        .join(F.broadcast(bounds), ["place", "key"])
        .where("at_us between from_us and to_us")
        .withColumn("slot", F.expr(f"least({SLOTS - 1}, (at_us - from_us) * {SLOTS} div (to_us - from_us))"))
        .groupBy("index", "slot")
        .agg(
            F.sum("diverted").alias("diverted"),
            F.sum("syphoned").alias("syphoned"),
            F.max("waiting_max").alias("waiting_max"),
            F.max_by("waiting", "at_us").alias("waiting"),
        )
    )
    for row in depths.collect():
        windows[row["index"]].slots[row["slot"]] = (
            row["diverted"], row["syphoned"], row["waiting_max"], row["waiting"],
        )  # fmt: skip
    away = (
        keyed("absences")
        .join(F.broadcast(bounds), ["place", "key"])
        .where("began_us <= to_us and ended_us >= from_us")
        .select("index", "process", "began_us", "suspected_us", "failed_over_us", "ended_us", "end")
        .orderBy("index", "began_us")
        .limit(OUTAGES_MAX)
    )
    for row in away.collect():
        windows[row["index"]].absences.append(row.asDict())
    return windows


# -- small things -------------------------------------------------------------------------------------------------


def _write(table: "DataFrame", path: Path) -> None:
    table.write.mode("overwrite").parquet(str(path))


def _with_times(table: "DataFrame") -> "DataFrame":
    """`began_us` also as `began`, a time that people and SQL can read."""
    from pyspark.sql import functions as F  # noqa: N812

    for name in table.columns:
        if name.endswith("_us"):
            table = table.withColumn(name.removesuffix("_us"), F.timestamp_micros(name))
    return table


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """For JSON: times as text beside the microseconds."""
    for name in [name for name in row if f"{name}_us" in row]:
        at_us = row[f"{name}_us"]
        row[name] = None if at_us is None else text_of(at_us)
    return row


# -- for people and for spark-submit ------------------------------------------------------------------------------


def table_of(summary: AvailabilitySummary) -> list[list[str]]:
    """The outages, for a terminal: a row of titles, and a row each."""
    titles = ["entity", "began (UTC)", "to fail over", "lasted", "to return", "diverted", "came home", "backlog", "end"]
    rows = [
        [
            row["entity"],
            row["began"][:19].replace("T", " "),
            seconds(row["to_fail_over_s"]),
            seconds(row["length_s"]),
            seconds(row["to_return_s"]),
            f"{row['diverted']:,}",
            f"{row['syphoned']:,}",
            f"{row['backlog_max']:,}",
            row["end"],
        ]
        for row in summary.outages
    ]
    return [titles, *rows]


def words_of(summary: AvailabilitySummary) -> list[str]:
    """All but the table."""
    lines = [
        f"{count_text(summary.outages_count, 'outage')}, {summary.first[:19]} to {summary.last[:19]}: "
        f"{count_text(summary.events, 'event')} of {count_text(summary.processes, 'process', 'processes')}; "
        f"{count_text(summary.diverted, 'message')} diverted, {summary.syphoned:,} came home, "
        f"{summary.waiting:,} in the backlog still"
    ]
    for row in summary.delivered:
        late = "order was not told" if row["out_of_order"] is None else f"{row['out_of_order']:,} out of order"
        name = row["entity"] or "all"
        lines.append(
            f"{name}: {count_text(row['messages'], 'message')} stored, {row['duplicated']:,} of them twice, {late}"
        )
    for row in summary.checks:
        at = row["entity"] or "backlog"
        counts = f"{row['by_events']:,} by events, {row['by_ledger']:,} by the ledger"
        lines.append(f"{row['namespace']} {at}: {row['what']}: {counts}, on {count_text(row['days'], 'day')}")
    return [*lines, *summary.remarks]


def seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f} s"


def text_of_summary(summary: AvailabilitySummary) -> str:
    """For a file or a pipe; a terminal has a table with lines (cli/pipeline_availability.py)."""
    return "\n".join(["\t".join(row) for row in table_of(summary)] + words_of(summary))


JOB: Final = Job(
    "availability",
    "Tell outages from the events of a pairing: how long, how many messages, in which order they came home.",
    AvailabilityConfig,
    run_here,
    text_of_summary,
    (SparkMissing,),
    (AvailabilityError,),
)
main: Final = JOB.main


if __name__ == "__main__":
    sys.exit(main())
