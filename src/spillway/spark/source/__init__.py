"""`format("servicebus")`: the data source, the sink, and what settles the messages that were read."""
