"""What capture leaves behind, and the view that has every message once.

Files are written at least once: a message whose lock was lost before it could be settled is received and written
again. Copies of one message have the same namespace, entity, sequence number and enqueued time. The time is part of it
because an entity that is deleted and made again counts from 1. The day is the day of that time, so that whoever asks
for an entity and a day reads only its directories.
"""

from typing import TYPE_CHECKING, Final

from spillway.spark.source.lake import BATCH, DAY, ENTITY

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
    """Every row that was written: at least one for each message."""
    return spark.read.schema(SCHEMA).parquet(path)


def captured(spark: "SparkSession", path: str) -> "DataFrame":
    """Exactly one row for each message: the copy that was written first."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    first = Window.partitionBy(*KEY).orderBy(BATCH, "lock_token")
    rows = captured_files(spark, path)
    return rows.withColumn("copy", F.row_number().over(first)).where("copy = 1").drop("copy")


def captured_sql(path: str, view: str = "captured") -> str:
    """The same in SQL, for those who have no Python at hand."""
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
