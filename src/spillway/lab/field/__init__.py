"""The field: random plays of callers, primary, secondary and time against two real brokers, each from a seed."""
