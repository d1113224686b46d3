"""Service Bus on Spark, through PySpark: a data source, a sink, and the jobs of the pipeline (the extra `spark`).

`source` is the data source and the sink, `platform` what a Spark process stands on, `billing` ledgers and what they
cost, `outages` the events of pairings, `jobs` the programs made of them. The modules beside these packages are public
doors: the names that the guides use, which stay where they are.

Everything here speaks to namespaces through the `client` room, ours and Azure's alike. Nothing outside of this room,
`cli` and `lab` imports it, so that a broker never needs Spark.
"""
