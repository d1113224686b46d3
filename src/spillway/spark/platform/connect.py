"""Spark Connect: a session whose Java machine is elsewhere, without a Spark context. What jobs do otherwise there."""

import socket
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from spillway.spark.platform.access import OptionError
from spillway.spark.platform.java import SparkMissing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A function that Spark calls for each batch is run beside the server there, in a process that ends with the query: what
# it counts does not come back, and what it holds cannot be sent.
NO_WATCH: Final = "batches are counted in this process. Run it without --watch, as often as needed"
REMOTE: Final = "sc://"  # begins the address of a Connect server, where others have a master
PORT: Final = 15_002  # Spark's own
ANSWER_S: Final = 10.0
_MODULE: Final = "pyspark.sql.connect."
_ROWS: Final = 100_000  # more than any cluster has cores


def check_answers(address: str) -> None:
    """`SparkMissing` if nobody listens there: PySpark itself would try for ten minutes."""
    try:
        found = urlsplit(address)
        host, port = found.hostname or "", found.port or PORT
        socket.create_connection((host, port), ANSWER_S).close()
    except (OSError, ValueError) as error:
        raise SparkMissing(f"Spark Connect at {address.partition(';')[0]}: nobody answers: {error}") from None


def is_connect(spark: "SparkSession | None") -> bool:
    """Whether a session is one of Spark Connect."""
    return spark is not None and type(spark).__module__.startswith(_MODULE)


def parallelism(spark: "SparkSession") -> int:
    """How many tasks Spark runs at a time by default: its cores."""
    if not is_connect(spark):
        return int(spark.sparkContext.defaultParallelism)
    # A range is cut into as many pieces unless told otherwise; nothing else tells a Connect client.
    pieces = spark.range(0, _ROWS).selectExpr("spark_partition_id() AS piece").distinct()
    return max(1, pieces.count())


def refuse_on_connect(spark: "SparkSession | None", what: str, instead: str) -> None:
    """`OptionError` with why, before anything was begun."""
    if is_connect(spark):
        raise OptionError(f"{what} cannot be done over Spark Connect: {instead}")
