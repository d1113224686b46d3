"""PySpark looks for data sources in modules whose names begin with `pyspark_`."""

from spillway.spark.source.data_source import DefaultSource as DefaultSource
