"""Spillway: brokered messaging that keeps accepting messages when the broker it talks to is down."""

__version__ = "0.1.0"
