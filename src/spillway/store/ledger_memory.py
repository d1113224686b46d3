"""The ledger of the journal that forgets: the same rows and the same sealed days, in dictionaries."""

from spillway.model.ledger import MINUTES_PER_DAY, LedgerRow, day_of
from spillway.model.records import LoadLedger, Rows, Turn
from spillway.store.day_files import DaysInMemory


class LedgerMemory:
    def __init__(self, days: DaysInMemory) -> None:
        self._days = days
        self._rows: dict[tuple[int, str, int], LedgerRow] = {}
        self._sealed_before = 0

    def first_minute(self) -> int:
        return min((minute for minute, _, _ in self._rows), default=0)

    def add(self, turn: Turn) -> None:
        for row in turn.ledger:
            found = self._rows.setdefault(row.key(), LedgerRow(*row.key(), 0, 0, 0))
            found.operations += row.operations
            found.units += row.units
            found.size_bytes += row.size_bytes
        if turn.seals_before > self._sealed_before:
            self._seal(turn.seals_before)

    def _seal(self, before: int) -> None:
        over = sorted(key for key in self._rows if key[0] < before)
        for day in sorted({day_of(key[0]) for key in over}):
            self._days.put(day, [self._rows[key] for key in over if key[0] // MINUTES_PER_DAY == day])
        for key in over:
            del self._rows[key]
        self._sealed_before = before

    def page(self, query: LoadLedger) -> Rows:
        found = [key for key in self._rows if query.since <= key[0] < query.until and key > query.after]
        found.sort()
        rows = Rows([])
        rows.sealed_before = self._sealed_before
        rows.is_cut = len(found) > query.count
        for key in found[: query.count]:
            row = self._rows[key]
            rows.ledger.append(LedgerRow(*key, row.operations, row.units, row.size_bytes))
            rows.ledger_end = key
        return rows
