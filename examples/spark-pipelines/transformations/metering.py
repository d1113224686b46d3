"""What was done at a namespace and what it is charged as: materialized views, made anew by every run from the sealed
days of a ledger, a file each, as a broker leaves them in its data directory."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from spillway.spark import ledger_frames
from spillway.spark.charges import Tariff
from spillway.spark.prices import find_list

spark = SparkSession.active()


@dp.temporary_view
def summed() -> DataFrame:
    # Several directories may be given: the ledgers of a pairing belong together.
    directories = str(spark.conf.get("spark.spillway.ledger")).split(",")
    return ledger_frames.sealed_days(spark, *directories)


@dp.materialized_view(comment="Operations, units and bytes by day, namespace, entity and kind", format="parquet")
def metered() -> DataFrame:
    return ledger_frames.metered(spark.read.table("summed"))


@dp.materialized_view(comment="Lines and files of ledgers that are not counted, and why", format="parquet")
def set_aside() -> DataFrame:
    return ledger_frames.set_aside(spark.read.table("summed"))


@dp.materialized_view(comment="Every line of the bill, exact to twelve digits", format="parquet")
def charges() -> DataFrame:
    prices = find_list(str(spark.conf.get("spark.spillway.prices")))
    return ledger_frames.charged(spark.read.table("metered"), Tariff(prices))
