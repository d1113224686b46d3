"""The public door to price lists (docs/cost.md)."""

from spillway.spark.billing.prices import PriceList as PriceList
from spillway.spark.billing.prices import PriceListError as PriceListError
from spillway.spark.billing.prices import find_list as find_list
from spillway.spark.billing.prices import read_list as read_list
