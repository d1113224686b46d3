"""Events of many processes and days, on executors: read, put in order, and told as the stories of their entities.

Nothing here holds more than the events of one microsecond and the outages of one entity: rows come sorted, and the
rules of `entity_outages` take them one by one.
"""

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from spillway.model.backlogs import SEGMENT
from spillway.spark.outages.entity_outages import CLOCKS_US, SYPHONED, TOLD, Happening, OutageReading
from spillway.spark.outages.event_lines import read_file
from spillway.spark.platform.arrow_rows import arrow_of, batched, slices
from spillway.spark.platform.line_files import BadLine

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

BACKLOG_SEGMENT: Final = f"/{SEGMENT}/"  # in the path of every backlog queue

READ: Final = (
    "namespace string, process string, number bigint, event string, entity string, count bigint, epoch_us bigint, "
    "clock_us bigint, until_us bigint, answered boolean, before string, error string, queue string, "
    "file string, line bigint, problem string, text string"
)
OUTAGE: Final = (
    "number int, began_us bigint, failed_over_us bigint, ended_us bigint, end string, length_s double, "
    "to_fail_over_s double, to_return_s double, to_empty_s double, processes int, processes_back int, pings bigint, "
    "pings_answered bigint, diverted bigint, syphoned bigint, backlog_max bigint, emptied_us bigint, "
    "is_refused boolean, cause string, remarks array<string>"
)
ABSENCE: Final = (
    "process string, began_us bigint, suspected_us bigint, failed_over_us bigint, ended_us bigint, end string, "
    "to_fail_over_s double, away_s double, to_return_s double, pings bigint, pings_answered bigint, diverted bigint, "
    "is_refused boolean, cause string, remarks array<string>"
)
DEPTH: Final = "at_us bigint, diverted bigint, syphoned bigint, waiting bigint, waiting_max bigint"
ENTITY: Final = (
    "first_us bigint, last_us bigint, outages int, suspicions int, away_s double, pings bigint, diverted bigint, "
    "syphoned bigint, waiting bigint, remarks array<string>"
)
TOLD_OF: Final = (
    f"namespace string, entity string, outage struct<{OUTAGE}>, absence struct<{ABSENCE}>, depth struct<{DEPTH}>, "
    f"story struct<{ENTITY}>"
)


def read_events(spark: "SparkSession", files: list[str]) -> "DataFrame":
    """Every line of the files once, a task a file. `problem` says why one cannot be used.

    A file that could not be written for a while, or was copied, has lines twice.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    schema = arrow_of(READ)

    def read(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from batched(_rows_of(files[number]), schema)

    lines = spark.range(0, len(files), 1, slices(spark, len(files))).mapInArrow(read, READ)
    key = F.struct(F.coalesce("process", "file"), F.coalesce("number", "line"), F.isnull("problem"))
    return lines.withColumn("key", key).dropDuplicates(["key"]).drop("key")


def _rows_of(path: str) -> Iterator[dict[str, Any]]:
    for row in read_file(path):
        if isinstance(row, BadLine):
            yield {"file": row.file, "line": row.line, "problem": row.reason, "text": row.text}
        else:
            yield {**row, "file": path}


def processes_of(lines: "DataFrame") -> "DataFrame":
    """One row a process: whether it ended in peace, how many lines are missing, how steady its machine's clock was.

    Lines that cannot be used are counted in a row without a process.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    def count_of(event: str) -> "Column":
        return F.sum(F.when(F.col("event") == event, F.col("count")).otherwise(0))

    offset = F.col("epoch_us") - F.col("clock_us")
    return lines.groupBy("process").agg(
        F.count("event").alias("events"),
        F.count("problem").alias("bad"),
        F.first("namespace").alias("namespace"),
        F.min("epoch_us").alias("first_us"),
        F.max("epoch_us").alias("last_us"),
        (F.max("number") - F.count_distinct("number")).alias("lines_missing"),
        F.bool_or(F.col("event") == "closed").alias("is_closed"),
        count_of("events-lost").alias("lost"),
        count_of("syphon-repeated").alias("repeated"),
        count_of("syphon-dead-lettered").alias("dead_lettered"),
        F.percentile_approx(offset, 0.5).alias("offset_us"),
        F.coalesce(F.max(offset) - F.min(offset), F.lit(0)).alias("spread_us"),
    )


def timed(events: "DataFrame", processes: "DataFrame") -> "DataFrame":
    """With `at_us`. A machine's clock that was set while the process ran is made up for by the one that never jumps."""
    from pyspark.sql import functions as F  # noqa: N812

    own = F.col("clock_us") + F.col("offset_us")
    is_steady = (F.col("spread_us") <= CLOCKS_US) | own.isNull()
    begun = F.when(is_steady, F.col("epoch_us")).otherwise(own)
    # Of a sum of messages: they are in the backlog from the first on, and out of it with the last.
    lasted = F.when(F.col("event") == SYPHONED, F.coalesce(F.col("until_us") - F.col("epoch_us"), F.lit(0)))
    known = processes.select("process", "is_closed", "offset_us", "spread_us")
    return events.join(known, "process").withColumn("at_us", begun + F.coalesce(F.greatest(lasted, F.lit(0)), F.lit(0)))


def stories_of(events: "DataFrame", until_us: int) -> "DataFrame":
    """The events of each entity in order, through the rules: rows of `TOLD_OF`, each with one of its structs."""
    from pyspark.sql import functions as F  # noqa: N812

    keyed = (
        events.where(F.col("event").isin(*TOLD) & (F.col("entity") != "") & ~F.col("entity").contains(BACKLOG_SEGMENT))
        .withColumn("place", F.lower("namespace"))
        .withColumn("key", F.lower("entity"))
        .select(
            "place", "key", "at_us", "process", "number", "namespace", "entity", "event", "count", "clock_us",
            "before", "answered", "error", "is_closed",
        )
    )  # fmt: skip
    ordered = keyed.repartition("place", "key").sortWithinPartitions("place", "key", "at_us", "process", "number")
    schema = arrow_of(TOLD_OF)

    def tell(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        yield from batched(_tell(batches, until_us), schema)

    return ordered.mapInArrow(tell, TOLD_OF)


def _tell(batches: "Iterator[pa.RecordBatch]", until_us: int) -> Iterator[dict[str, Any]]:
    key: tuple[str, str] | None = None
    about: dict[str, Any] = {}
    reading = OutageReading()
    for batch in batches:
        for row in batch.to_pylist():
            if (row["place"], row["key"]) != key:
                if key is not None:
                    yield from _finished(reading, about, until_us)
                key = (row["place"], row["key"])
                about = {"namespace": row["namespace"], "entity": row["entity"]}
                reading = OutageReading()
            reading.add(_happening(row))
            for depth in reading.drain_depths():
                yield {**about, "depth": asdict(depth)}
    if key is not None:
        yield from _finished(reading, about, until_us)


def _happening(row: dict[str, Any]) -> Happening:
    return Happening(
        at_us=row["at_us"],
        process=row["process"],
        number=row["number"],
        event=row["event"],
        count=row["count"],
        clock_us=row["clock_us"],
        before=row["before"],
        is_answered=row["answered"],
        error=row["error"],
        is_process_closed=row["is_closed"],
    )


def _finished(reading: OutageReading, about: dict[str, Any], until_us: int) -> Iterator[dict[str, Any]]:
    story = reading.finish(until_us)
    for depth in reading.drain_depths():
        yield {**about, "depth": asdict(depth)}
    for absence in story.absences:
        yield {**about, "absence": asdict(absence)}
    for outage in story.outages:
        extra = {"length_s": outage.length_s, "to_empty_s": outage.to_empty_s}
        yield {**about, "outage": {**asdict(outage), **extra}}
    told = asdict(story)
    del told["absences"]
    yield {**about, "story": {**told, "outages": len(story.outages)}}
