"""Rows that tasks on executors make: how many tasks, and rows as Arrow's batches."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from spillway.spark.platform.connect import parallelism

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

BATCH_ROWS: Final = 5_000
TASKS_PER_CORE: Final = 4  # a task each for thousands of small files would be mostly tasks


def slices(spark: "SparkSession", count: int) -> int:
    """Tasks for so many files."""
    return min(count, TASKS_PER_CORE * max(1, parallelism(spark)))


def arrow_of(schema: str) -> "pa.Schema":
    """In the driver: only there is somebody who can read what Spark calls a schema."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    parsed = StructType.fromDDL(schema)
    assert isinstance(parsed, StructType), "columns were given, and no single type"
    return to_arrow_schema(parsed)


def batched(rows: Iterator[dict[str, Any]], schema: "pa.Schema") -> "Iterator[pa.RecordBatch]":
    import pyarrow as pa

    waiting: list[dict[str, Any]] = []
    for row in rows:
        waiting.append(row)
        if len(waiting) >= BATCH_ROWS:
            yield pa.RecordBatch.from_pylist(waiting, schema=schema)
            waiting = []
    yield pa.RecordBatch.from_pylist(waiting, schema=schema)
