"""What capture leaves behind, and the view that has every message once.

Files are written at least once: a message whose lock was lost before it could be settled is received and written
again. Copies of one message have the same namespace, entity, sequence number and enqueued time. The time is part of it
because an entity that is deleted and made again counts from 1. The day is the day of that time, so that whoever asks
for an entity and a day reads only its directories. Of days that were compacted the files have every message once.
"""

from typing import TYPE_CHECKING, Final

from spillway.spark.source.compacted_days import Snapshot, snapshot_of
from spillway.spark.source.lake import BATCH, DAY, ENTITY, FORMAT, Lake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# The day in UTC, whatever time zone the session has.
DAY_OF: Final = "date_from_unix_date(CAST(unix_seconds(enqueued_time) DIV 86400 AS INT))"
KEY: Final = ("namespace", ENTITY, DAY, "sequence_number", "enqueued_time")

COLUMNS: Final = (
    "namespace STRING, sequence_number BIGINT, enqueued_sequence_number BIGINT, enqueued_time TIMESTAMP, state STRING, "
    "delivery_count INT, lock_token STRING, locked_until TIMESTAMP, message_id STRING, session_id STRING, "
    "partition_key STRING, correlation_id STRING, subject STRING, content_type STRING, `to` STRING, reply_to STRING, "
    "reply_to_session_id STRING, time_to_live_ms BIGINT, expires_at TIMESTAMP, scheduled_enqueue_time TIMESTAMP, "
    "dead_letter_reason STRING, dead_letter_error_description STRING, dead_letter_source STRING, "
    "application_properties MAP<STRING, STRING>, property_types MAP<STRING, STRING>, body_type STRING, body BINARY"
)
# The types of partitions are said too: Spark would take an entity that is called 007 for the number 7.
SCHEMA: Final = f"{COLUMNS}, {BATCH} STRING, {ENTITY} STRING, {DAY} DATE"


def captured_files(spark: "SparkSession", path: str) -> "DataFrame":
    """Every row that was written, without those that were compacted: at least one for each message."""
    found = _snapshot(spark, path)
    return _rows(spark, path, [*found.plain, *found.others])


def captured(spark: "SparkSession", path: str) -> "DataFrame":
    """Exactly one row for each message: the copy that was written first. Days that were compacted are just read.

    It is the lake as it is now: ask again for what is captured or compacted later.
    """
    found = _snapshot(spark, path)
    frames = []
    if found.plain:
        frames.append(_rows(spark, path, found.plain))
    if found.others or not found.plain:
        frames.append(without_copies(_rows(spark, path, found.others)))
    return frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])


def without_copies(rows: "DataFrame") -> "DataFrame":
    """Of each message the copy that was written first; a compaction's own rows come before all others."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    first = Window.partitionBy(*KEY).orderBy(BATCH, "lock_token")
    return rows.withColumn("copy", F.row_number().over(first)).where("copy = 1").drop("copy")


def rows_of(spark: "SparkSession", path: str, paths: list[str]) -> "DataFrame":
    """The rows of these directories and files of a lake."""
    # Whatever the session says: a file that cannot be read is an error, and not a file without messages.
    strict = {"basePath": path, "ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}
    return spark.read.schema(SCHEMA).options(**strict).parquet(*paths)


def _rows(spark: "SparkSession", path: str, paths: list[str]) -> "DataFrame":
    return rows_of(spark, path, paths) if paths else spark.createDataFrame([], SCHEMA)


def _snapshot(spark: "SparkSession", path: str) -> Snapshot:
    """Of a directory that has no such layout all of it, as files that may hold copies."""
    lake = Lake(spark, path)
    return snapshot_of(lake) if lake.format() == FORMAT else Snapshot([], [path])


def captured_sql(path: str, view: str = "captured") -> str:
    """The same in SQL, for those who have no Python at hand. It drops copies everywhere, of compacted days too."""
    files = f"{view}_files"
    quoted = path.replace("\\", "\\\\").replace("'", "\\'")
    return (
        f"CREATE OR REPLACE TEMPORARY VIEW {files} ({SCHEMA})\n"
        f"USING parquet OPTIONS (path '{quoted}');\n"
        f"CREATE OR REPLACE TEMPORARY VIEW {view} AS\n"
        f"SELECT * EXCEPT (copy) FROM (\n"
        f"  SELECT *, row_number() OVER (PARTITION BY {', '.join(KEY)} ORDER BY {BATCH}, lock_token) AS copy\n"
        f"  FROM {files}\n"
        f") WHERE copy = 1;\n"
    )
