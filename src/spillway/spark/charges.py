"""The public door to the rules of cost, in plain Python (docs/cost.md)."""

from spillway.spark.billing.charges import Charge as Charge
from spillway.spark.billing.charges import Metered as Metered
from spillway.spark.billing.charges import RawRow as RawRow
from spillway.spark.billing.charges import Tariff as Tariff
from spillway.spark.billing.charges import charges_of as charges_of
from spillway.spark.billing.charges import plain_total as plain_total
