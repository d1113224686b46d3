"""What a ledger costs: the rules, in plain Python and whole numbers. docs/cost.md says them in words.

The cost job does the same on Spark. What both need to know before they can price a single line (how far a month had
come when a day began, what the syphon brought home) is a `ChargePlan`, made of sums by day and kind, which are few.
`plain_total` shares nothing with either: it is the sum over raw rows that the report is held against.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, NamedTuple

from spillway.model.ledger import NAMESPACE_ENTITY
from spillway.spark.billing.prices import ACCOUNT, PriceList

HOUR_S: Final = 3600
DAY_HOURS: Final = 24
SETTLE: Final = "settle"
SEND: Final = "send"
RECEIVE: Final = "receive"
# {primary}/x-servicebus-transfer/{index}; the same words are in Spark's own dialect of regular expressions.
BACKLOG_PATTERN: Final = "^(.+)/x-servicebus-transfer/[0-9]+$"
BACKLOG: Final = re.compile(BACKLOG_PATTERN)

SEND_TO_BACKLOG: Final = "send_to_backlog"
RECEIVE_FROM_BACKLOG: Final = "receive_from_backlog"
SEND_TO_PRIMARY: Final = "send_to_primary"
RECEIVE_FROM_PRIMARY: Final = "receive_from_primary"
IDLE_RECEIVE: Final = "idle_receive"
PING: Final = "ping"
BASE: Final = "base"
MESSAGING_UNITS: Final = "messaging_units"

AT_BACKLOG: Final = {SEND: SEND_TO_BACKLOG, RECEIVE: RECEIVE_FROM_BACKLOG, "empty_receive": IDLE_RECEIVE}
COMING_HOME: Final = {SEND: SEND_TO_PRIMARY, RECEIVE: RECEIVE_FROM_PRIMARY}
# What pairing costs: the four charges of a syphoned message, the syphon's calls in vain, the pings.
PAIRING_LINES: Final = (
    SEND_TO_BACKLOG,
    RECEIVE_FROM_BACKLOG,
    SEND_TO_PRIMARY,
    RECEIVE_FROM_PRIMARY,
    IDLE_RECEIVE,
    PING,
)
assert {*AT_BACKLOG.values(), *COMING_HOME.values(), PING} == {*PAIRING_LINES}, "every line of pairing is told apart"
OUTBOUND_KINDS: Final = frozenset({RECEIVE, "peek"})  # their bytes leave the service


class Metered(NamedTuple):
    """What was counted of one kind at one entity on one day."""

    day: str
    namespace: str
    entity: str
    kind: str
    operations: int
    units: int
    size_bytes: int
    first_epoch_s: int
    last_epoch_s: int


class Charge(NamedTuple):
    """One line of the bill."""

    day: str
    namespace: str
    entity: str
    kind: str
    line: str
    operations: int
    units: int
    size_bytes: int
    hours: int
    operations_pico: int
    transfer_pico: int
    hours_pico: int

    @property
    def cost_pico(self) -> int:
        return self.operations_pico + self.transfer_pico + self.hours_pico


class Subtotal(NamedTuple):
    """The sum of a namespace's day and kind, over all entities or over the backlog queues of one primary."""

    day: str
    namespace: str
    kind: str
    backlog_of: str  # the primary's name, "" for what is no backlog queue
    operations: int
    units: int
    size_bytes: int
    first_epoch_s: int
    last_epoch_s: int


class Amount(NamedTuple):
    operations: int
    units: int
    size_bytes: int


class DayPrice(NamedTuple):
    """What a bill's operations of one day cost together, and how many there were."""

    bill: str
    units: int
    cost_pico: int


@dataclass(frozen=True)
class Tariff:
    """Which namespace has which price list."""

    default: PriceList
    of_namespace: Mapping[str, PriceList] = field(default_factory=dict)
    messaging_units: int = 1
    # Names in backlog paths that are not the ledger's: {"localhost-5672": "contoso"}.
    aliases: Mapping[str, str] = field(default_factory=dict)

    def list_of(self, namespace: str) -> PriceList:
        return self.of_namespace.get(namespace, self.default)

    def bill_of(self, namespace: str) -> str:
        """Whose operations count together towards the tiers of a month."""
        prices = self.list_of(namespace)
        return f"$account {prices.name}" if prices.scope == ACCOUNT else namespace

    def currency(self) -> str:
        """ValueError if the lists do not agree: there is no sum of two currencies."""
        found = sorted({self.default.currency, *(each.currency for each in self.of_namespace.values())})
        if len(found) > 1:
            raise ValueError(f"price lists in {' and '.join(found)}: a report has one currency")
        return found[0]


@dataclass
class ChargePlan:
    tariff: Tariff
    days: dict[tuple[str, str], DayPrice]  # by bill and day
    home: dict[tuple[str, str, str], Amount]  # by namespace, day and kind: what the syphon brought
    all_of: dict[tuple[str, str, str], Amount]  # the same, with everything else that is no backlog queue's
    by_the_hour: list[Charge]
    notes: list[str]
    namespace_days: frozenset[tuple[str, str]]

    def total_pico(self, transfer_pico: int) -> int:
        """What all lines must come to, given what was transferred."""
        hours = sum(each.hours_pico for each in self.by_the_hour)
        return sum(price.cost_pico for price in self.days.values()) + hours + transfer_pico


def backlog_of(entity: str) -> str:
    """The name of the primary whose backlog queue this is, or nothing."""
    found = BACKLOG.match(entity)
    return found[1].lower() if found else ""


def line_of(kind: str, is_backlog: bool) -> str:
    return AT_BACKLOG.get(kind, kind) if is_backlog else kind


def share(total: int, weights: Iterable[int], all_weights: int) -> list[int]:
    """`total` in parts by weight that add up to it: each the difference of two rounded running sums."""
    parts = []
    running = before = 0
    for weight in weights:
        running += weight
        upto = total * running // all_weights if all_weights else 0
        parts.append(upto - before)
        before = upto
    return parts


# -- the plan -----------------------------------------------------------------------------------------------------


def subtotals_of(metered: Iterable[Metered]) -> list[Subtotal]:
    sums: dict[tuple[str, str, str, str], Subtotal] = {}
    for each in metered:
        key = (each.day, each.namespace, each.kind, backlog_of(each.entity))
        one = Subtotal(*key, each.operations, each.units, each.size_bytes, each.first_epoch_s, each.last_epoch_s)
        before = sums.get(key)
        sums[key] = one if before is None else merged(before, one)
    return list(sums.values())


def merged(one: Subtotal, other: Subtotal) -> Subtotal:
    return one._replace(
        operations=one.operations + other.operations,
        units=one.units + other.units,
        size_bytes=one.size_bytes + other.size_bytes,
        first_epoch_s=min(one.first_epoch_s, other.first_epoch_s),
        last_epoch_s=max(one.last_epoch_s, other.last_epoch_s),
    )


def make_plan(subtotals: list[Subtotal], tariff: Tariff) -> ChargePlan:
    tariff.currency()
    notes: list[str] = []
    all_of = {
        (each.namespace, each.day, each.kind): Amount(each.operations, each.units, each.size_bytes)
        for each in subtotals
        if not each.backlog_of and each.kind in COMING_HOME
    }
    home = came_home(subtotals, all_of, tariff, notes)
    days = frozenset((each.namespace, each.day) for each in subtotals)
    return ChargePlan(tariff, day_prices(subtotals, tariff), home, all_of, by_the_hour(subtotals, tariff), notes, days)


def day_prices(subtotals: list[Subtotal], tariff: Tariff) -> dict[tuple[str, str], DayPrice]:
    """Day by day up the tiers of each month: what a day costs does not change when later ones come."""
    units: dict[tuple[str, str], int] = defaultdict(int)
    lists: dict[str, PriceList] = {}
    for each in subtotals:
        bill, prices = tariff.bill_of(each.namespace), tariff.list_of(each.namespace)
        lists[bill] = prices
        units[bill, each.day] += each.units if each.kind in prices.charged_kinds else 0
    found: dict[tuple[str, str], DayPrice] = {}
    so_far: dict[tuple[str, str], int] = defaultdict(int)
    for bill, day in sorted(units):
        before = so_far[bill, day[:7]]
        after = before + units[bill, day]
        cost = lists[bill].operations_pico(after) - lists[bill].operations_pico(before)
        found[bill, day] = DayPrice(bill, units[bill, day], cost)
        so_far[bill, day[:7]] = after
    return found


def came_home(
    subtotals: list[Subtotal], all_of: dict[tuple[str, str, str], Amount], tariff: Tariff, notes: list[str]
) -> dict[tuple[str, str, str], Amount]:
    """Of a primary's sends and receives of a day, how much the syphon brought: what was received from its backlog
    queues and settled. A ledger does not know who sends, so this is told by numbers alone, and never more than all."""
    received: dict[tuple[str, str], Amount] = defaultdict(lambda: Amount(0, 0, 0))
    settled: dict[tuple[str, str], int] = defaultdict(int)
    for each in subtotals:
        if not each.backlog_of:
            continue
        key = (tariff.aliases.get(each.backlog_of, each.backlog_of), each.day)
        if each.kind == RECEIVE:
            was = received[key]
            received[key] = Amount(
                was.operations + each.operations, was.units + each.units, was.size_bytes + each.size_bytes
            )
        elif each.kind == SETTLE:
            settled[key] += each.operations
    home: dict[tuple[str, str, str], Amount] = {}
    strangers: set[str] = set()
    known = {each.namespace for each in subtotals}
    for (primary, day), amount in sorted(received.items()):
        if primary not in known:
            strangers.add(primary)
        count = min(settled[primary, day], amount.operations)
        if not count:
            continue
        brought = Amount(
            count, amount.units * count // amount.operations, amount.size_bytes * count // amount.operations
        )
        for kind in COMING_HOME:
            there = all_of.get((primary, day, kind))
            if there is not None:
                home[primary, day, kind] = Amount(*(min(pair) for pair in zip(brought, there, strict=True)))
    for primary in sorted(strangers):
        notes.append(
            f"there are backlog queues of '{primary}', but no ledger of it: what came home to it is not in the report"
        )
    return home


def by_the_hour(subtotals: list[Subtotal], tariff: Tariff) -> list[Charge]:
    """The base charge and the messaging units: for each hour from that of the first row to that of the last."""
    bills: dict[str, tuple[int, int, PriceList]] = {}
    namespaces: dict[str, tuple[int, int, PriceList]] = {}
    for each in subtotals:
        prices = tariff.list_of(each.namespace)
        for hours, name in ((bills, tariff.bill_of(each.namespace)), (namespaces, each.namespace)):
            first, last, _ = hours.get(name, (each.first_epoch_s, each.last_epoch_s, prices))
            hours[name] = (min(first, each.first_epoch_s), max(last, each.last_epoch_s), prices)
    charges = []
    for name, (first, last, prices) in sorted(bills.items()):
        if prices.base_per_hour_pico:
            charges += hours_of(name, BASE, first, last, prices.base_per_hour_pico)
    for name, (first, last, prices) in sorted(namespaces.items()):
        if prices.messaging_unit_per_hour_pico:
            an_hour = prices.messaging_unit_per_hour_pico * tariff.messaging_units
            charges += hours_of(name, MESSAGING_UNITS, first, last, an_hour)
    return charges


def hours_of(name: str, line: str, first_epoch_s: int, last_epoch_s: int, hour_pico: int) -> list[Charge]:
    first, end = first_epoch_s // HOUR_S, last_epoch_s // HOUR_S + 1
    charges = []
    for day in range(first // DAY_HOURS, (end - 1) // DAY_HOURS + 1):
        hours = min(end, (day + 1) * DAY_HOURS) - max(first, day * DAY_HOURS)
        text = day_text(day * DAY_HOURS * HOUR_S)
        charges.append(Charge(text, name, NAMESPACE_ENTITY, line, line, 0, 0, 0, hours, 0, 0, hours * hour_pico))
    return charges


def day_text(epoch_s: int) -> str:
    return datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%d")


# -- the lines ----------------------------------------------------------------------------------------------------


class UnpricedLine(NamedTuple):
    """A line that is not priced yet, in the order in which a day's cost is shared out."""

    namespace: str
    entity: str
    kind: str
    line: str
    amount: Amount


def charges_of(metered: Iterable[Metered], tariff: Tariff) -> tuple[list[Charge], ChargePlan]:
    """Every line of the bill, in plain Python: what the job on Spark computes too."""
    rows = sorted(metered)
    plan = make_plan(subtotals_of(rows), tariff)
    by_day: dict[tuple[str, str], list[UnpricedLine]] = defaultdict(list)
    for (day, namespace), parts in parts_by_day(rows, plan).items():
        by_day[tariff.bill_of(namespace), day] += parts
    charges = []
    for (bill, day), parts in by_day.items():
        charges += priced(sorted(parts), day, plan.days[bill, day], tariff)
    return sorted(charges + plan.by_the_hour), plan


def parts_by_day(rows: list[Metered], plan: ChargePlan) -> dict[tuple[str, str], list[UnpricedLine]]:
    kinds: dict[tuple[str, str, str], list[Metered]] = defaultdict(list)
    parts: dict[tuple[str, str], list[UnpricedLine]] = defaultdict(list)
    for row in rows:
        if backlog_of(row.entity) or (row.namespace, row.day, row.kind) not in plan.home:
            line = line_of(row.kind, bool(backlog_of(row.entity)))
            amount = Amount(row.operations, row.units, row.size_bytes)
            parts[row.day, row.namespace].append(UnpricedLine(row.namespace, row.entity, row.kind, line, amount))
        else:
            kinds[row.namespace, row.day, row.kind].append(row)
    for (namespace, day, kind), of_kind in kinds.items():
        home, all_of = plan.home[namespace, day, kind], plan.all_of[namespace, day, kind]
        shares = zip(
            of_kind,
            share(home.operations, (row.operations for row in of_kind), all_of.operations),
            share(home.units, (row.units for row in of_kind), all_of.units),
            share(home.size_bytes, (row.size_bytes for row in of_kind), all_of.size_bytes),
            strict=True,
        )
        for row, operations, units, size_bytes in shares:
            brought = Amount(operations, units, size_bytes)
            rest = Amount(row.operations - operations, row.units - units, row.size_bytes - size_bytes)
            for line, amount in ((COMING_HOME[kind], brought), (kind, rest)):
                if any(amount):
                    parts[day, namespace].append(UnpricedLine(namespace, row.entity, kind, line, amount))
    return parts


def priced(parts: list[UnpricedLine], day: str, price: DayPrice, tariff: Tariff) -> list[Charge]:
    charged = [part.amount.units if part.kind in tariff.list_of(part.namespace).charged_kinds else 0 for part in parts]
    charges = []
    for part, cost in zip(parts, share(price.cost_pico, charged, price.units), strict=True):
        egress = tariff.list_of(part.namespace).egress_per_byte_pico if part.kind in OUTBOUND_KINDS else 0
        charges.append(
            Charge(day, *part[:4], *part.amount, 0, cost, part.amount.size_bytes * egress, 0),
        )
    assert sum(each.operations_pico for each in charges) == price.cost_pico, "a day is shared out as a whole"
    return charges


# -- the reference ------------------------------------------------------------------------------------------------


class RawRow(NamedTuple):
    """A line of a ledger."""

    namespace: str
    epoch_s: int
    entity: str
    kind: str
    operations: int
    units: int
    size_bytes: int


def plain_total(rows: Iterable[RawRow], tariff: Tariff) -> int:
    """What the rows cost, in trillionths: one pass, a few sums, nothing shared with the code above."""
    units: dict[tuple[str, str], int] = {}
    hours: dict[str, tuple[int, int]] = {}
    lists: dict[str, PriceList] = {}
    namespace_hours: dict[str, tuple[int, int]] = {}
    total = 0
    for row in rows:
        prices = tariff.list_of(row.namespace)
        bill = tariff.bill_of(row.namespace)
        lists[bill] = prices
        month = datetime.fromtimestamp(row.epoch_s, UTC).strftime("%Y-%m")
        if row.kind in prices.charged_kinds:
            units[bill, month] = units.get((bill, month), 0) + row.units
        if row.kind in ("receive", "peek"):
            total += row.size_bytes * prices.egress_per_byte_pico
        hour = row.epoch_s // 3600
        first, last = hours.get(bill, (hour, hour))
        hours[bill] = (min(first, hour), max(last, hour))
        first, last = namespace_hours.get(row.namespace, (hour, hour))
        namespace_hours[row.namespace] = (min(first, hour), max(last, hour))
    total += sum(lists[bill].operations_pico(count) for (bill, _), count in units.items())
    total += sum((last - first + 1) * lists[bill].base_per_hour_pico for bill, (first, last) in hours.items())
    for namespace, (first, last) in namespace_hours.items():
        an_hour = tariff.list_of(namespace).messaging_unit_per_hour_pico * tariff.messaging_units
        total += (last - first + 1) * an_hour
    return total
