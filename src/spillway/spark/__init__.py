"""Service Bus on Spark, through PySpark: a data source, a sink, and the jobs of the pipeline (`spillway[spark]`).

Everything here speaks to namespaces through the `client` room, ours and Azure's alike. Nothing outside of this room,
`cli` and `lab` imports it, so that a broker never needs Spark.
"""
