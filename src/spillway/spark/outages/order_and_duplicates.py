"""Order and duplicates, from what was stored at the primary: a captured table, or the histories of the lab."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from spillway.spark.platform.arrow_rows import arrow_of, batched, slices
from spillway.spark.platform.line_files import DamagedFile, chunks_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

NEEDED: Final = ("entity", "sequence_number", "message_id")
STORED: Final = (
    "entity string, sequence_number bigint, message_id string, sender string, position bigint, problem string"
)
HISTORIES: Final = "*.history.jsonl"


class CapturedError(ValueError):
    """What was given cannot be judged, and why."""


@dataclass(frozen=True)
class Delivered:
    """Of one entity. `out_of_order` is None where nobody said what the order was to be."""

    entity: str
    messages: int
    duplicated: int  # message ids that are stored more than once
    copies: int  # stored beyond the first of each
    without_id: int
    out_of_order: int | None


def captured(spark: "SparkSession", path: str, sender: str | None, position: str | None) -> "DataFrame":
    """A table in Parquet; `sender` and `position` are SQL expressions over its columns. `CapturedError`."""
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    try:
        table = spark.read.parquet(path)
    except AnalysisException as error:
        raise CapturedError(f"--captured {path}: {_first_line(error)}") from None
    missing = [name for name in NEEDED if name not in table.columns]
    if missing:
        has = ", ".join(table.columns)
        raise CapturedError(f"--captured {path}: it has no column {', '.join(missing)}; it has {has}")
    try:
        return table.select(
            F.col("entity").cast("string").alias("entity"),
            F.col("sequence_number").cast("bigint").alias("sequence_number"),
            F.col("message_id").cast("string").alias("message_id"),
            F.expr(f"cast(({sender}) as string)").alias("sender") if sender else F.lit("").alias("sender"),
            F.expr(f"try_cast(({position}) as bigint)").alias("position")
            if position
            else F.lit(None).cast("bigint").alias("position"),
        )
    except Exception as error:  # a ParseException or an AnalysisException, by what is wrong with it
        raise CapturedError(f"--sender or --position: {_first_line(error)}") from None


def histories(spark: "SparkSession", directory: Path, entity: str = "") -> "DataFrame":
    """What the consumers of a lab wrote down: its producers number their messages. `CapturedError`."""
    files = sorted(str(path) for path in directory.rglob(HISTORIES))
    if not files:
        raise CapturedError(f"--histories {directory}: there is no {HISTORIES} below it")
    schema = arrow_of(STORED)

    def read(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from batched(_deliveries_of(files[number], entity), schema)

    return spark.range(0, len(files), 1, slices(spark, len(files))).mapInArrow(read, STORED)


def _deliveries_of(path: str, entity: str) -> Iterator[dict[str, Any]]:
    try:
        for chunk in chunks_of(Path(path)):
            for line in chunk.split(b"\n")[:-1]:
                yield from _delivery_of(line, path, entity)
    except (DamagedFile, OSError) as damage:
        yield {"problem": f"{path}: {damage}"}


def _delivery_of(line: bytes, path: str, entity: str) -> Iterator[dict[str, Any]]:
    try:
        said = json.loads(line)
        if said["op"] != "recv":
            return
        identity, number = str(said["id"]), int(said["seq"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        yield {"problem": f"{path}: {type(error).__name__}: {error}"[:300]}
        return
    sender, _, position = identity.rpartition("-")
    yield {
        "entity": entity,
        "sequence_number": number,
        "message_id": identity,
        "sender": sender,
        "position": int(position) if position.isdecimal() and len(position) < 18 else None,
    }


def judged(stored: "DataFrame") -> list[Delivered]:
    """A row an entity. A message that was delivered or captured twice with one sequence number is stored once."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    rows = stored.where("sequence_number is not null").dropDuplicates(["entity", "sequence_number"])
    has_id = F.coalesce(F.col("message_id"), F.lit("")) != ""
    copies = (
        rows.where(has_id)
        .groupBy("entity", "message_id")
        .agg(
            F.count("*").alias("copies"),
            F.min("sequence_number").alias("sequence_number"),
            F.min_by("sender", "sequence_number").alias("sender"),
            F.min_by("position", "sequence_number").alias("position"),
        )
    )
    # Behind a later message of the same sender, in the order in which the entity hands out what it has stored.
    before = (
        Window.partitionBy("entity", "sender").orderBy("sequence_number").rowsBetween(Window.unboundedPreceding, -1)
    )
    placed = copies.withColumn("is_late", F.col("position") < F.max("position").over(before))
    found = placed.groupBy("entity").agg(
        F.sum((F.col("copies") > 1).cast("bigint")).alias("duplicated"),
        F.sum(F.col("copies") - 1).alias("copies"),
        F.count("position").alias("placed"),
        F.sum(F.coalesce(F.col("is_late"), F.lit(False)).cast("bigint")).alias("late"),
    )
    counted = rows.groupBy("entity").agg(
        F.count("*").alias("messages"), F.sum((~has_id).cast("bigint")).alias("without_id")
    )
    return [
        Delivered(
            entity=row["entity"] or "",
            messages=row["messages"],
            duplicated=row["duplicated"] or 0,
            copies=row["copies"] or 0,
            without_id=row["without_id"],
            out_of_order=row["late"] if row["placed"] else None,
        )
        for row in counted.join(found, "entity", "left").orderBy("entity").limit(ENTITIES_MAX).collect()
    ]


ENTITIES_MAX: Final = 10_000  # a row each: more is no report


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:300]
