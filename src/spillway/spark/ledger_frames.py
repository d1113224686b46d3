"""The public door to ledgers as DataFrames (docs/pipeline.md)."""

from spillway.spark.billing.ledger_frames import charged as charged
from spillway.spark.billing.ledger_frames import metered as metered
from spillway.spark.billing.ledger_frames import sealed_days as sealed_days
from spillway.spark.billing.ledger_frames import set_aside as set_aside
