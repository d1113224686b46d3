"""The public door to settling rows by their lock tokens (docs/spark.md)."""

from spillway.spark.source.settle import LocksLost as LocksLost
from spillway.spark.source.settle import LocksLostWarning as LocksLostWarning
from spillway.spark.source.settle import Settled as Settled
from spillway.spark.source.settle import settle as settle
from spillway.spark.source.settling import settling as settling
