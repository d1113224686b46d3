"""`/$spillway/ledger`: what was done and what it is charged as, from sealed days and up to this moment."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from spillway.admin.http_refusals import HttpRefusal, bad_request
from spillway.admin.namespace import AdministeredNamespace, SealedDays
from spillway.admin.resource import ControlCall, refuse_unknown
from spillway.broker.commands import ReadLedger
from spillway.broker.effects import LedgerPage
from spillway.model import limits
from spillway.model.entity import entity_key
from spillway.model.ledger import (
    KIND_NAMES,
    MINUTES_PER_DAY,
    LedgerRow,
    Totals,
    day_name,
    day_of,
    minute_of,
    minute_text,
)

DAYS_SHOWN: Final = 30  # and today, if no time is given
ROWS_MAX: Final = 100_000  # of a list by minutes: some 20 MB of JSON
READS_MAX: Final = 5  # a day that is sealed meanwhile is read again
FIRST_KEY: Final = (-1, "", -1)
MINUTES_MAX: Final = 9_999 * 366 * MINUTES_PER_DAY


class LedgerQuery:
    """What of the ledger is to be shown: minutes from `since` to before `until`; of one entity unless it is ""."""

    def __init__(self, query: dict[str, str], now_ms: int) -> None:
        refuse_unknown(query, ("since", "until", "entity", "by"))
        today = day_of(minute_of(now_ms)) * MINUTES_PER_DAY
        self.since = today - DAYS_SHOWN * MINUTES_PER_DAY
        self.until = minute_of(now_ms) + 1
        if "since" in query:
            self.since = read_moment("since", query["since"], False)
        if "until" in query:
            self.until = read_moment("until", query["until"], True)
        if self.until <= self.since:
            raise bad_request("'until' must be later than 'since'.")
        self.key = entity_key(query.get("entity", ""))
        by = query.get("by", "kind")
        if by not in ("kind", "minute"):
            raise bad_request("'by' must be 'kind' (sums by entity and kind) or 'minute' (every row).")
        self.is_by_minute = by == "minute"

    def wants(self, row: LedgerRow) -> bool:
        return self.since <= row.minute < self.until and (not self.key or entity_key(row.entity) == self.key)


def read_moment(name: str, text: str, is_end: bool) -> int:
    """A minute. A day without a time is meant whole: as an end, its end."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise bad_request(f"'{name}' must be a day or a time, like 2027-01-31 or 2027-01-31T12:30Z.") from None
    is_day = len(text) <= len("2027-01-31")
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    try:
        if is_end and is_day:
            moment += timedelta(days=1)
        seconds = int(moment.timestamp())
    except OverflowError:
        raise bad_request(f"'{name}' is too late.") from None
    return max(0, min(MINUTES_MAX, -(-seconds // 60) if is_end else seconds // 60))


class LedgerAnswer:
    """What was read so far."""

    def __init__(self, asked: LedgerQuery) -> None:
        self.asked = asked
        self.totals = Totals()
        self.rows: list[LedgerRow] = []
        self.damaged_count = 0
        self.unreadable: list[str] = []

    def add(self, row: LedgerRow) -> None:
        if not self.asked.wants(row):
            return
        if not self.asked.is_by_minute:
            self.totals.add(row)
            return
        if len(self.rows) >= ROWS_MAX:
            raise HttpRefusal(400, f"There are more than {ROWS_MAX} rows: ask for less time, or for one entity.")
        self.rows.append(row)

    def add_sealed(self, days: SealedDays, before: int) -> None:
        """Add sealed days. Off the loop: this takes the time that the files take."""
        for day in range(day_of(self.asked.since), day_of(min(before, self.asked.until) + MINUTES_PER_DAY - 1)):
            try:
                for row in days.rows(day):
                    self.add(row)
            except (ValueError, OSError) as error:
                self.unreadable.append(f"{day_name(day)}: {error}")

    def shown(self) -> list[dict[str, object]]:
        if self.asked.is_by_minute:
            return [
                {"minute": minute_text(row.minute), "epoch_s": row.minute * 60, **shown(row)}
                for row in sorted(self.rows, key=LedgerRow.key)
            ]
        sums = [
            LedgerRow(0, entity, kind, count.operations, count.units, count.size_bytes)
            for (entity, kind), count in sorted(self.totals.counts.items())
        ]
        return [shown(row) for row in sums]


def shown(row: LedgerRow) -> dict[str, object]:
    return {
        "entity": row.entity,
        "kind": KIND_NAMES[row.kind],
        "operations": row.operations,
        "units": row.units,
        "bytes": row.size_bytes,
    }


class LedgerResource:
    methods = ("GET",)

    def __init__(self, namespace: AdministeredNamespace) -> None:
        self.namespace = namespace

    async def answer(self, call: ControlCall) -> object:
        asked = LedgerQuery(call.query, self.namespace.now_ms())
        for _ in range(READS_MAX):
            found = await self.read(asked)
            if found is not None:
                return {
                    "namespace": self.namespace.name.lower(),
                    "since": minute_text(asked.since),
                    "until": minute_text(asked.until),
                    "rows": found.shown(),
                    "damaged_rows": found.damaged_count,
                    "unreadable_days": found.unreadable,
                }
        raise HttpRefusal(503, "A day of the ledger is being sealed. Try again.")

    async def read(self, asked: LedgerQuery) -> LedgerAnswer | None:
        """What the ledger has. None: a day was sealed meanwhile, and what was read of it before and after would not fit
        together."""
        found = LedgerAnswer(asked)
        after: tuple[int, str, int] | None = FIRST_KEY
        sealed_before: int | None = None
        while after is not None:
            page = await self.namespace.pump.ask(question(asked, after))
            assert isinstance(page, LedgerPage), "a page was asked for"
            if sealed_before is not None and page.sealed_before != sealed_before:
                return None
            sealed_before = page.sealed_before
            for row in page.rows:
                found.add(row)
            found.damaged_count += page.damaged_count
            after = page.after
        await asyncio.to_thread(found.add_sealed, self.namespace.sealed_days, sealed_before or 0)
        return found


def question(asked: LedgerQuery, after: tuple[int, str, int]) -> Callable[[int], ReadLedger]:
    return lambda number: ReadLedger(number, asked.since, asked.until, after, limits.LEDGER_ROWS_MAX)
