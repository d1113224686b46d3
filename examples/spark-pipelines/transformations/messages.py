"""The messages of an entity: a streaming table, to which every run adds what has come since the last one."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()


@dp.table(comment="Messages, one row each", format="parquet")
def messages() -> DataFrame:
    # Browsing, because a pipeline may run a batch again, and make the whole table again when asked (--full-refresh):
    # both find the same messages by their sequence numbers. And nothing is settled, so that no failure can lose one.
    # Received messages would be others each time; to settle them, somebody has to know that their rows are stored,
    # and a pipeline has no place for that: `spillway pipeline capture` has.
    frame = (
        spark.readStream.format("servicebus")
        .option("secretName", spark.conf.get("spark.spillway.bus"))
        .option("mode", "browse")
        .load(spark.conf.get("spark.spillway.entity"))
    )
    # One that is scheduled gets another sequence number when its time has come, and is here then.
    return frame.where("state <> 'scheduled'").drop("lock_token", "locked_until")
