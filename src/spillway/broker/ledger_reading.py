"""Showing the ledger: the rows that are not yet sealed, a page at a time, up to the moment they are asked for."""

from spillway.broker.commands import ReadLedger
from spillway.broker.decided import Decided
from spillway.broker.effects import LedgerPage
from spillway.broker.loads import LoadStep
from spillway.model import limits
from spillway.model.records import LoadLedger, Query, Rows


class ReadLedgerStep(LoadStep):
    def __init__(self, request: ReadLedger) -> None:
        self.request = request

    def query(self, decided: Decided) -> Query | None:
        request = self.request
        return LoadLedger(request.since, request.until, request.after, min(request.count, limits.LEDGER_ROWS_MAX))

    def loaded(self, rows: Rows, decided: Decided) -> bool:
        after = rows.ledger_end if rows.is_cut else None
        page = LedgerPage(self.request.request_id, rows.ledger, after, rows.sealed_before, rows.damaged_count)
        decided.emit(page)
        return False
