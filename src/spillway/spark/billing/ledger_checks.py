"""What clients say beside what brokers counted: pings, messages into the backlog and out of it, day by day.

Ledgers are sealed once a day is over, so only days that both know are compared. A difference is not yet a mistake: a
broker counts pings and sends whose answer the client did not hear, and a client that was killed lost its last second.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spillway.model.backlogs import SEGMENT
from spillway.spark.billing.ledger_files import LedgerFile, sum_file
from spillway.spark.platform.arrow_rows import arrow_of, batched, slices

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

BACKLOG_SEGMENT: Final = f"/{SEGMENT}/"  # in the path of every backlog queue
CHECKS_MAX: Final = 1_000
DAY_US: Final = 86_400_000_000  # days are UTC's, whatever time zone a session has
COUNTED: Final = (
    "day string, owner string, entity string, kind string, operations bigint, "
    "file string, line bigint, problem string, text string"
)
WHAT: Final = {
    "ping": "pings that were answered",
    "send": "messages into the backlog",
    "settle": "messages out of the backlog",
}


@dataclass(frozen=True)
class Check:
    """`namespace` is the primary; of the backlog all queues together."""

    namespace: str
    entity: str
    what: str
    days: int  # that both know
    by_events: int
    by_ledger: int

    @property
    def difference(self) -> int:
        return self.by_ledger - self.by_events


def counted(spark: "SparkSession", files: list[LedgerFile]) -> "DataFrame":
    """Pings of every entity, and what was sent to and settled at backlog queues, by day. Rows with a `problem` too."""
    schema = arrow_of(COUNTED)

    def read(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from batched(_counts_of(files[number]), schema)

    return spark.range(0, len(files), 1, slices(spark, len(files))).mapInArrow(read, COUNTED)


def _counts_of(file: LedgerFile) -> "Iterator[dict[str, Any]]":
    summed = sum_file(file)
    owner = file.counted_as or file.namespace
    for bad in summed.bad:
        yield {"file": bad.file, "line": bad.line, "problem": bad.reason, "text": bad.text}
    if summed.table is None:
        return
    for row in summed.table.to_pylist():
        is_backlog = BACKLOG_SEGMENT in row["entity"]
        if row["kind"] == "ping" or (is_backlog and row["kind"] in ("send", "settle")):
            yield {"day": file.day, "owner": owner, **{name: row[name] for name in ("entity", "kind", "operations")}}


def checked(
    spark: "SparkSession", files: list[LedgerFile], ledger: "DataFrame", events: "DataFrame", places: list[str]
) -> list[Check]:
    """`ledger` is what was counted in `files`, `events` have `at_us`, `places` are the primaries that they are of.

    Pings are compared entity by entity, the backlog of a primary as a whole.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    kinds = {"pinged": "ping", "diverted": "send", "syphoned": "settle"}
    told = events.where("event in ('diverted', 'syphoned') or (event = 'pinged' and answered)").select(
        F.lower("namespace").alias("place"),
        F.expr("if(event = 'pinged', lower(entity), '')").alias("entity"),
        F.create_map(*(F.lit(word) for pair in kinds.items() for word in pair))[F.col("event")].alias("kind"),
        F.expr(f"CAST(date_from_unix_date(CAST(at_us DIV {DAY_US} AS INT)) AS STRING)").alias("day"),
        F.col("count").alias("by_events"),
        F.lit(0).cast("bigint").alias("by_ledger"),
    )
    rows = ledger.where("problem is null")
    primary = F.lower(F.substring_index("entity", BACKLOG_SEGMENT, 1))
    counts = rows.select(
        F.when(F.col("kind") == "ping", F.lower("owner")).otherwise(primary).alias("place"),
        F.expr("if(kind = 'ping', lower(entity), '')").alias("entity"),
        "kind",
        "day",
        F.lit(0).cast("bigint").alias("by_events"),
        F.col("operations").alias("by_ledger"),
    )
    backlog = rows.where(F.col("entity").contains(BACKLOG_SEGMENT))
    keepers = backlog.select(F.lower("owner"), primary).distinct().limit(CHECKS_MAX).collect()
    known = _known_days(files, [(owner, place) for owner, place in keepers])
    both = spark.createDataFrame(sorted(known), "place string, is_ping boolean, day string")
    compared = (
        told.unionByName(counts)
        .where(F.col("place").isin(places))
        .withColumn("is_ping", F.col("kind") == "ping")
        .join(F.broadcast(both), ["place", "is_ping", "day"])
        .groupBy("place", "entity", "kind")
        .agg(
            F.count_distinct("day").alias("days"),
            F.sum("by_events").alias("by_events"),
            F.sum("by_ledger").alias("by_ledger"),
        )
        .orderBy("place", "entity", "kind")
        .limit(CHECKS_MAX)
    )
    return [
        Check(row["place"], row["entity"], WHAT[row["kind"]], row["days"], row["by_events"], row["by_ledger"])
        for row in compared.collect()
    ]


def _known_days(files: list[LedgerFile], keepers: list[tuple[str, str]]) -> set[tuple[str, bool, str]]:
    """Primary, whether of pings, and day: its own ledger has them, the backlog is in that of whoever keeps it."""
    days: dict[str, set[str]] = {}
    for file in files:
        days.setdefault((file.counted_as or file.namespace).lower(), set()).add(file.day)
    known = {(owner, True, day) for owner, of_owner in days.items() for day in of_owner}
    return known | {(place, False, day) for owner, place in keepers for day in days.get(owner, ())}
