"""The ledger of what a client makes a namespace do: kinds, minutes and lines are those of the broker's own.

docs/ledger.md explains them. For namespaces that one does not own it is the only ledger there is. The bytes are those
of the bodies: what the SDK adds when it encodes a message is not known here.
"""

import time
from collections.abc import Callable, Iterator
from typing import Final

from spillway.model.ledger import (
    CANCEL,
    EMPTY_RECEIVE,
    KIND_NAMES,
    MS_PER_MINUTE,
    PING,
    RECEIVE,
    RENEW,
    SCHEDULE,
    SEND,
    SETTLE,
    UNIT_BYTES,
    Count,
    LedgerRow,
    line_of,
    units_of,
)

__all__ = ["CANCEL", "EMPTY_RECEIVE", "PING", "RECEIVE", "RENEW", "SCHEDULE", "SEND", "SETTLE", "ClientLedger"]

ROWS_MAX: Final = 100_000  # minutes, entities and kinds that are kept apart; the totals are kept for ever


def wall_ms() -> int:
    return int(time.time() * 1000)


class ClientLedger:
    def __init__(self, namespace: str, now_ms: Callable[[], int] = wall_ms) -> None:
        self.namespace = namespace
        self.now_ms = now_ms
        self._rows: dict[tuple[int, str, int], Count] = {}
        self._forgotten: dict[tuple[str, int], int] = {}  # operations of rows that are no longer kept

    def count(self, entity: str, kind: int, size_bytes: int = 0) -> None:
        """One operation. Every send pays for this: only the row is counted, totals are summed when they are asked."""
        key = (self.now_ms() // MS_PER_MINUTE, entity, kind)
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = Count()
            if len(self._rows) > ROWS_MAX:
                self._evict(next(iter(self._rows)))
            assert len(self._rows) <= ROWS_MAX and key in self._rows, "the oldest row makes room for the newest"
        row.operations += 1
        row.units += 1 if size_bytes <= UNIT_BYTES else units_of(size_bytes)
        row.size_bytes += size_bytes

    def _evict(self, key: tuple[int, str, int]) -> None:
        _, entity, kind = key
        self._forgotten[entity, kind] = self._forgotten.get((entity, kind), 0) + self._rows.pop(key).operations

    def operations(self, kind: int, entity: str | None = None) -> int:
        """How many of a kind so far, at one entity or at all."""
        return sum(
            operations
            for (each, counted), operations in self._totals().items()
            if counted == kind and entity in (None, each)
        )

    def totals(self) -> dict[str, dict[str, int]]:
        """Operations by entity and the kind's name."""
        found: dict[str, dict[str, int]] = {}
        for (entity, kind), operations in self._totals().items():
            found.setdefault(entity, {})[KIND_NAMES[kind]] = operations
        return found

    def _totals(self) -> dict[tuple[str, int], int]:
        found = dict(self._forgotten)
        for (_, entity, kind), row in self._rows.items():
            found[entity, kind] = found.get((entity, kind), 0) + row.operations
        return found

    def lines(self) -> Iterator[str]:
        """One line of JSON a minute, entity and kind, as in the broker's sealed days."""
        for (minute, entity, kind), count in self._rows.items():
            row = LedgerRow(minute, entity, kind, count.operations, count.units, count.size_bytes)
            yield line_of(self.namespace, row)
