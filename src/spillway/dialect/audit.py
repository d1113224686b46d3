"""What is told to whoever keeps watch over a namespace: who was refused, and who changed what.

This room writes no log. It tells an `Audit`, which knows where the client is.
"""

from typing import Protocol


class Audit(Protocol):
    def refused(self, what: str, rule: str, path: str, why: str) -> None:
        """`rule` is the name that a client gave, true or not; empty if it gave none."""

    def done(self, what: str, rule: str, path: str) -> None:
        """`rule` is the one whose key allowed it."""


class NoAudit:
    """Nobody listens."""

    def refused(self, what: str, rule: str, path: str, why: str) -> None:
        return

    def done(self, what: str, rule: str, path: str) -> None:
        return
