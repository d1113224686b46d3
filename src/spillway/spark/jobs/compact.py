"""The compact job: days of a lake that are over become few files, sorted, with every message once.

    spillway pipeline compact --captured lake
    spark-submit …/spillway/spark/jobs/compact.py --captured hdfs:///lake
    run(spark, CompactConfig("lake"))

A day is written anew beside the lake, renamed into it, and made the one that counts by its manifest, a small file that
appears in one step (source/compacted_days.py). Captures and readers go on meanwhile. Files that were replaced are
deleted by a run that comes later, after the grace time.
"""

import math
import sys
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final

from spillway.model.texts import count_text
from spillway.spark.jobs.job import Job
from spillway.spark.platform.access import OptionError
from spillway.spark.platform.java import SparkMissing
from spillway.spark.platform.job_directory import FoundFile, JobDirectoryError
from spillway.spark.platform.option import Option, check_options
from spillway.spark.platform.paths import local_path
from spillway.spark.platform.preflight import to_mend
from spillway.spark.platform.queries import stopped_by_signals
from spillway.spark.platform.reasons import is_of_spark, reason_of
from spillway.spark.platform.session import Say, build_session, check_spark, say_on_stderr
from spillway.spark.source.compacted_days import (
    Manifest,
    clean,
    current_files,
    files_of,
    is_clean,
    manifests_of,
    now_text,
    publish,
    replaced_of,
)
from spillway.spark.source.deduplicated_view import rows_of, without_copies
from spillway.spark.source.lake import (
    ENTITY,
    FORMAT,
    FORMAT_BATCH_FIRST,
    MOMENT,
    STAGING,
    Clock,
    Lake,
    days_of,
    utc_now,
)
from spillway.spark.source.settle_after_write import Synced
from spillway.syphon.crash import PLACED, PUBLISHED, STAGED, crash_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

APP: Final = "spillway compact"
GRACE_S: Final = 6 * 3_600.0
CLOSED_AFTER_S: Final = 3_600.0
FILE_MB: Final = 256
SECONDS_MAX: Final = 366 * 86_400
ORDER: Final = (ENTITY, "sequence_number", "enqueued_time", "namespace")


class CompactError(RuntimeError):
    """The job cannot go on. The text says why."""


@dataclass(frozen=True)
class CompactConfig:
    """Which days of a lake to compact."""

    captured: Annotated[str, Option("DIR", "What a capture has written, or is writing.")]
    day: Annotated[
        str,
        Option(
            "DAY",
            "Only `2026-11-16`, or `2026-11-01..2026-11-16`, in UTC.",
            default="all days that are over and have something new",
        ),
    ] = ""
    closed_after_s: Annotated[
        float, Option("SECONDS", "How long after its end, in UTC, a day is over.", 0, SECONDS_MAX)
    ] = CLOSED_AFTER_S
    grace_s: Annotated[
        float,
        Option(
            "SECONDS",
            "How long replaced files are kept for readers.",
            0,
            SECONDS_MAX,
            more="With 0 they are deleted at once: only if nobody reads.",
        ),
    ] = GRACE_S
    file_mb: Annotated[
        int, Option("N", "Size of a file, about.", 1, 10_000, more="A file has one entity: each has at least one.")
    ] = FILE_MB
    dry_run: Annotated[
        bool, Option("", "Say which days would be compacted, with how many files; write and delete nothing.")
    ] = False


@dataclass
class CompactSummary:
    """`days` has a line for each day that was compacted, or would be."""

    captured: str
    is_dry: bool = False
    days: list[dict[str, Any]] = field(default_factory=list)
    days_clean: int = 0  # nothing had come since they were compacted
    days_open: int = 0  # not over yet
    days_taken: list[str] = field(default_factory=list)  # another compaction was first
    messages: int = 0
    copies: int = 0  # rows that were there more than once
    files_deleted: int = 0
    seconds: float = 0.0


def check(config: CompactConfig) -> None:
    """What can be seen before Spark is started; a lake that only Spark can see is looked at later."""
    check_options(config)
    days_of(config.day)
    if local_path(config.captured) is not None:
        check_lake(Lake(None, config.captured))


def check_lake(lake: Lake) -> None:
    """That a capture has written there, in a layout that has days."""
    found = lake.format()
    if found == FORMAT_BATCH_FIRST:
        raise OptionError(
            f"captured {lake.path} has the layout of an earlier version, batch=…/entity=…/day=…, which cannot be "
            "compacted. It can still be read and replayed; capture to another directory"
        )
    if found != FORMAT:
        raise OptionError(f"captured {lake.path}: no capture has written there")


class Compact:
    """One run of the job."""

    def __init__(
        self, spark: "SparkSession", config: CompactConfig, say: Say = say_on_stderr, clock: Clock = utc_now
    ) -> None:
        check(config)
        self.spark = spark
        self.config = config
        self.say = say
        self.clock = clock
        self.lake = Lake(spark, config.captured)
        check_lake(self.lake)
        self.run_id = uuid.uuid4().hex[:8]
        self.summary = CompactSummary(self.lake.path, config.dry_run)
        self.stopped = threading.Event()

    def run(self) -> CompactSummary:
        began_s = time.monotonic()
        try:
            self._compact_days()
            if not self.config.dry_run and not self.stopped.is_set():
                self._clean()
        except Exception as error:
            if is_of_spark(error):
                raise CompactError(reason_of(error)) from None
            raise
        self.summary.seconds = round(time.monotonic() - began_s, 3)
        return self.summary

    def stop(self) -> None:
        """From another thread: it ends after the day under way."""
        self.stopped.set()

    # -- days -------------------------------------------------------------------------------------------------------

    def _compact_days(self) -> None:
        manifests = manifests_of(self.lake)
        chosen = self._closed_days()
        for number, day in enumerate(chosen, 1):
            if self.stopped.is_set():
                return
            manifest = manifests.get(day)
            files = current_files(self.lake, day, manifest)
            if not files or is_clean(files, manifest):
                self.summary.days_clean += 1
                continue
            if self.config.dry_run:
                self.summary.days.append(_line(day, files))
                continue
            self._compact(day, manifest, f"day {number} of {len(chosen)}")

    def _closed_days(self) -> list[str]:
        wanted = days_of(self.config.day)
        over = self.clock() - timedelta(days=1, seconds=self.config.closed_after_s)
        found = []
        for name in self.lake.days():
            try:
                day = date.fromisoformat(name)
            except ValueError:
                continue  # of messages without a time
            if wanted is not None and not wanted[0] <= day <= wanted[1]:
                continue
            if datetime(day.year, day.month, day.day, tzinfo=UTC) > over:
                self.summary.days_open += 1
            else:
                found.append(name)
        return found

    def _compact(self, day: str, before: Manifest | None, progress: str) -> None:
        began_s = time.monotonic()
        # Once, before anything is read: what comes later is late, and neither rewritten nor deleted.
        replaced = replaced_of(self.lake, before)
        listed = files_of(self.lake, day)
        files = [file for file in listed if file.name not in replaced]
        name = f"{self.clock().strftime(MOMENT)}-{self.run_id}-compact-{day}"
        rows, messages = self._rewrite(files, name)
        crash_at(STAGED)
        version = 1 if before is None else before.version + 1
        batch = f"{version:08d}-{self.run_id}"  # before the names of all batches, which begin with the year
        manifest = Manifest(day, version, batch, "", messages)
        made = self._place(name, manifest)
        crash_at(PLACED)
        manifest = replace(manifest, published=now_text(self.clock()))
        if not publish(self.lake, manifest, [file.name for file in listed]):
            self.summary.days_taken.append(day)
            self.say(f"{progress}, {day}: another compaction was first; what this one wrote is left to the next run")
            return
        crash_at(PUBLISHED)
        self.summary.messages += messages
        self.summary.copies += rows - messages
        line = _line(day, files) | {
            "messages": messages,
            "copies": rows - messages,
            "files_after": len(made),
            "bytes_after": sum(file.size_bytes for file in made),
        }
        self.summary.days.append(line)
        took_s = time.monotonic() - began_s
        self.say(
            f"{progress}, {day}: {count_text(messages, 'message')} in {count_text(len(made), 'file')}, "
            f"before {len(files):,} with {count_text(rows - messages, 'copy', 'copies')}, in {took_s:.1f} s"
        )

    def _rewrite(self, files: Sequence[FoundFile], name: str) -> tuple[int, int]:
        """Write the rows of these files, each message once, to the staging directory: how many rows and messages."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

        written = Observation()
        paths = [f"{self.lake.path}/{file.name}" for file in files]
        rows = rows_of(self.spark, self.lake.path, paths)
        parts = max(1, math.ceil(sum(file.size_bytes for file in files) / (self.config.file_mb * 1_000_000)))
        ordered = _sorted(without_copies(rows), parts).observe(written, F.count(F.lit(1)).alias("rows"))
        marks = "mapreduce.fileoutputcommitter.marksuccessfuljobs"
        writer = ordered.drop("batch", "day").write.option("compression", "zstd").option(marks, "false")
        place = self.lake.staging(name)
        writer.partitionBy(ENTITY).parquet(place)
        count = int(written.get["rows"])
        found = self.spark.read.schema("sequence_number BIGINT").parquet(place).count()
        if found != count:
            raise CompactError(f"{place}: {count:,} messages were written and {found:,} are there; nothing is replaced")
        return rows.count(), count

    def _place(self, name: str, manifest: Manifest) -> list[FoundFile]:
        """Rename what was written into the day, and see that it is on the disk; its files."""
        self.lake.directory.move(f"{STAGING}/{name}", manifest.place)
        made = [file for file in self.lake.directory.files(manifest.place) if file.name.endswith(".parquet")]
        root = local_path(self.lake.path)
        synced = Synced(self.lake.path)
        for file in made if root is not None else ():
            synced.add(f"{root}/{file.name}")
        return made

    # -- files that were replaced -----------------------------------------------------------------------------------

    def _clean(self) -> None:
        now = self.clock()
        for manifest in manifests_of(self.lake).values():
            if manifest.is_older_than(self.config.grace_s, now):
                self.summary.files_deleted += clean(self.lake, manifest)
        self.lake.sweep_staging(now)


def _sorted(rows: "DataFrame", parts: int) -> "DataFrame":
    """In so many parts that follow each other, so that conditions on the order's columns pass over files."""
    return rows.repartitionByRange(parts, *ORDER).sortWithinPartitions(*ORDER)


def _line(day: str, files: Sequence[FoundFile]) -> dict[str, Any]:
    return {"day": day, "files": len(files), "bytes": sum(file.size_bytes for file in files)}


def run(
    spark: "SparkSession", config: CompactConfig, say: Say = say_on_stderr, clock: Clock = utc_now
) -> CompactSummary:
    """Compact the days that are over. Raises `OptionError`, `JobDirectoryError` or `CompactError`."""
    return Compact(spark, config, say, clock).run()


def text_of(summary: CompactSummary) -> str:
    """The summary for people."""
    days = count_text(len(summary.days), "day")
    others = f"{summary.days_clean:,} had nothing new, {summary.days_open:,} not over"
    if summary.is_dry:
        lines = [f"{summary.captured}: {days} would be compacted; {others}"]
        lines += [
            f"  {line['day']}: {count_text(line['files'], 'file')}, {_mb(line['bytes'])}" for line in summary.days
        ]
        return "\n".join(lines)
    lines = [
        f"{summary.captured}: {days} compacted in {summary.seconds:.1f} s; {others}; "
        f"{count_text(summary.files_deleted, 'replaced file')} deleted"
    ]
    lines += [
        f"  {line['day']}: {count_text(line['messages'], 'message')}, "
        f"{line['files']:,} files to {line['files_after']:,}, {_mb(line['bytes'])} to {_mb(line['bytes_after'])}, "
        f"{count_text(line['copies'], 'copy', 'copies')} dropped"
        for line in summary.days
    ]
    if summary.days_taken:
        lines.append(f"another compaction was first at {', '.join(summary.days_taken)}")
    return "\n".join(lines)


def _mb(size_bytes: int) -> str:
    return f"{size_bytes / 1_000_000:,.1f} MB"


ERRORS: Final = (CompactError, JobDirectoryError, SparkMissing)


def run_here(config: CompactConfig, master: str | None = None) -> CompactSummary:
    """In a session of this process, ended by SIGTERM as by Ctrl-C: after the day under way."""
    with to_mend(*ERRORS):
        check_spark(master)
        check(config)
    compact = Compact(build_session(APP, master=master), config)
    with stopped_by_signals(compact.stop):
        return compact.run()


JOB: Final = Job(
    "compact",
    "Rewrite days that are over, sorted and each message once, while captures and readers go on.",
    CompactConfig,
    run_here,
    text_of,
    ERRORS,
)
main: Final = JOB.main


if __name__ == "__main__":
    sys.exit(main())
