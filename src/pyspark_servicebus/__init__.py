"""PySpark looks for data sources in modules whose names begin with `pyspark_`."""
