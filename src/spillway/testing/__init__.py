"""Doubles for tests: a clock that stands still, a bad disk, a core alone, two connections without sockets."""
