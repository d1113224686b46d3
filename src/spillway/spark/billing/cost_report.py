"""The cost report: one page of HTML that needs nothing else, its pictures drawn in it.

Names of entities are written by strangers: they are shown as text, never as markup.
"""

from collections import defaultdict
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spillway.pages.chart import Axis, Mark, Panel, svg
from spillway.pages.document import document, figures, legend, section, soft, style_of, write_page
from spillway.pages.markup import Content, Markup, joined, tag
from spillway.pages.table import NAME, TEXT, Column, table
from spillway.spark.billing.charges import BASE, MESSAGING_UNITS, PAIRING_LINES, Tariff
from spillway.spark.billing.prices import PriceList, money

if TYPE_CHECKING:
    from spillway.spark.billing.cost_summary import CostSummary, Sum

HEIGHT: Final = 190
LEFT: Final = 78
TOP: Final = 12
LABELS: Final = 8  # days that are named below a picture
BARS_MAX: Final = 120  # more days than this are drawn several to a bar
GROUPS: Final = (
    ("hours", "by the hour (base, messaging units)"),
    ("messages", "sends and receives"),
    ("other", "everything else"),
    ("pairing", "the backlog: four charges a message, idle receives, pings"),
)
WORDS: Final = {
    "send_to_backlog": "first charge of a diverted message: it is sent to a backlog queue",
    "receive_from_backlog": "second charge: the syphon receives it",
    "send_to_primary": "third charge: the syphon sends it home",
    "receive_from_primary": "fourth charge: its consumer receives it",
    "idle_receive": "the syphon's calls to backlog queues that had nothing",
    "ping": "to a primary that was unavailable, to see when it is back",
    "base": "for every hour that the namespace was there",
    "messaging_units": "for every hour and messaging unit",
    "empty_receive": "calls to receive that got nothing",
    "settle": "completed, abandoned, deferred or dead-lettered",
    "renew": "locks that were renewed",
}


def write_report(path: Path, summary: "CostSummary", tariff: Tariff) -> None:
    write_page(path, page(summary, tariff))


def page(summary: "CostSummary", tariff: Tariff) -> Markup:
    lists = {id(each): each for each in map(tariff.list_of, summary.prices)}
    return document(
        f"Cost, {period(summary)}",
        style_of("spillway.spark.billing", "cost_report.css"),
        tag("h1", "What the operations cost"),
        soft(f"{period(summary)}, {counted(len(summary.prices), 'namespace')}"),
        total(summary),
        [tag("p", note, class_="note") for note in summary.notes],
        groups(summary),
        section("Cost by day", bars(summary, "cost", summary.currency)),
        section("Units by day", bars(summary, "units", "units"), legend(GROUPS)),
        section("What pairing costs", pairing(summary)),
        section("By line", sums_table(summary.by_line, summary, "line", WORDS)),
        section("By namespace", sums_table(summary.by_namespace, summary, "namespace", summary.prices)),
        section("The dearest entities", sums_table(summary.by_entity, summary, "entity", {}, is_whole=False)),
        section("Prices", [price_list(each, tariff.messaging_units) for each in lists.values()]),
        soft(
            "Amounts are exact; only what is shown is rounded to cents, so that each column adds up. "
            "Included operations go to the first days of a month; the cost of a day is shared by its lines in "
            "proportion to their units. The column at list price shows what a line would cost at the first tier that "
            "is paid."
        ),
    )


def total(summary: "CostSummary") -> Markup:
    units = sum(one.units for one in summary.by_line)
    exactly = tag("p", f"{units:,} units of 64 KB; exactly {summary.currency} {summary.total_exact}")
    return tag("div", tag("strong", f"{summary.currency} {amount(summary.total)}"), exactly, class_="total")


def period(summary: "CostSummary") -> str:
    if summary.first_day == summary.last_day:
        return summary.first_day
    return f"{summary.first_day} to {summary.last_day}"


def counted(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def amount(text: str) -> str:
    return f"{Decimal(text):,.2f}"


def small(text: str) -> str:
    """Fractions of a cent are worth showing where there is nothing else."""
    value = Decimal(text)
    return f"{value:,.2f}" if value >= 1 or not value else f"{value:.6f}"


def group_of(line: str) -> str:
    if line in (BASE, MESSAGING_UNITS):
        return "hours"
    if line in PAIRING_LINES:
        return "pairing"
    return "messages" if line in ("send", "receive") else "other"


def groups(summary: "CostSummary") -> Markup:
    costs: dict[str, Decimal] = defaultdict(Decimal)
    units: dict[str, int] = defaultdict(int)
    for one in summary.by_line:
        costs[group_of(one.name)] += Decimal(one.cost)
        units[group_of(one.name)] += one.units
    shown = []
    for name, words in (
        ("hours", "by the hour"),
        ("messages", "sends and receives"),
        ("pairing", "pairing"),
        ("other", "everything else"),
    ):
        of_it = f" · {units[name]:,} units" if name != "hours" else ""
        shown.append((small(str(costs[name])), f"{words}{of_it}"))
    return figures(shown)


# -- tables -------------------------------------------------------------------------------------------------------


def sums_table(
    sums: "list[Sum]", summary: "CostSummary", name: str, words: dict[str, str], is_whole: bool = True
) -> Markup:
    from spillway.spark.billing.cost_summary import shown_cents

    costs = [Decimal(one.cost) for one in sums]
    cents = shown_cents(costs) if is_whole else [cost.quantize(Decimal("0.01")) for cost in costs]
    rows: list[list[Content]] = []
    for one, cost in zip(sums, cents, strict=True):
        what = words.get(one.name, "")
        about = tag("span", what, class_="what") if what else None
        counts = (one.operations or None, one.units or None, sized(one.size_bytes))
        rows.append([joined(one.name, about), *counts, small(one.list_cost), f"{cost:,.2f}"])
    all_of_it: list[Content] = [
        "all",
        sum(one.operations for one in sums),
        sum(one.units for one in sums),
        sized(sum(one.size_bytes for one in sums)),
        small(str(sum((Decimal(one.list_cost) for one in sums), Decimal(0)))),
        f"{sum(cents, Decimal(0)):,.2f}",
    ]
    columns = (Column(name, NAME), "operations", "units", "bytes", "at list price", summary.currency)
    return table(columns, rows, all_of_it if is_whole else None)


def sized(size_bytes: int) -> str | None:
    if not size_bytes:
        return None
    size = float(size_bytes)
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1000
    raise AssertionError("the last unit takes all")


def pairing(summary: "CostSummary") -> Markup:
    found = {one.name: one for one in summary.by_line}
    if not any(line in found for line in PAIRING_LINES):
        return soft("Nothing was diverted, no backlog queue was polled, nothing was pinged.")
    ordered = [found[line] for line in PAIRING_LINES if line in found]
    return sums_table(ordered, summary, "line", WORDS)


def price_list(prices: PriceList, messaging_units: int) -> Markup:
    rows = []
    if prices.base_per_hour_pico:
        rows.append(("base, an hour", money(prices.base_per_hour_pico)))
    if prices.messaging_unit_per_hour_pico:
        rows.append(
            (f"messaging unit, an hour ({messaging_units} counted)", money(prices.messaging_unit_per_hour_pico))
        )
    if prices.included_operations:
        rows.append((f"the first {prices.included_operations:,} operations of a month", Decimal(0)))
    before = prices.included_operations
    for tier in prices.tiers:
        upto = f"{before:,} to {tier.up_to:,}" if tier.up_to is not None else f"beyond {before:,}"
        rows.append((f"a million operations, {upto}", money(tier.per_operation_pico * 1_000_000)))
        before = tier.up_to or before
    if prices.egress_per_byte_pico:
        rows.append(("a GB that is received", money(prices.egress_per_byte_pico * 10**9)))
    columns = (Column(f"{prices.name}, from {prices.valid_from}", TEXT), prices.currency)
    whose = "each namespace" if prices.scope == "namespace" else "all namespaces together"
    return joined(
        table(columns, [(words, plain(price)) for words, price in rows]),
        soft(f"Tiers are counted by the month for {whose}. Source: {prices.source}"),
    )


def plain(price: Decimal) -> str:
    text = f"{price:f}".rstrip("0").rstrip(".") if price else "included"
    return text if "." not in text or len(text.split(".")[1]) >= 2 else f"{price:.2f}"


# -- pictures -----------------------------------------------------------------------------------------------------


def bars(summary: "CostSummary", measure: str, unit: str) -> Markup:
    """A bar a day, or for several days where there are very many, stacked by group."""
    days = sorted({each["day"] for each in summary.by_day})
    per_bar = -(-len(days) // BARS_MAX)
    place = {day: at // per_bar for at, day in enumerate(days)}
    count = place[days[-1]] + 1
    stacks: list[dict[str, float]] = [defaultdict(float) for _ in range(count)]
    for each in summary.by_day:
        stacks[place[each["day"]]][group_of(each["line"])] += float(each[measure])
    axis = Axis(0, count, LEFT)
    panel = Panel.up_to(max(sum(stack.values()) for stack in stacks) or 1.0, axis, TOP, HEIGHT)
    half = min(0.41, 30.0 * count / axis.width)  # of a bar; of few days they are no wider than 60 pixels
    drawn = panel.grid()
    for at, stack in enumerate(stacks):
        below = 0.0
        for name, _ in GROUPS:
            if stack[name] > 0:
                drawn.append(panel.bar(name, at + 0.5 - half, at + 0.5 + half, stack[name], below))
                below += stack[name]
    step = max(1, -(-count // LABELS))
    marks = [Mark(at + 0.5, (days[at * per_bar][5:],)) for at in range(0, count, step)]
    words = f"{unit} by day" + (f", {per_bar} days a bar" if per_bar > 1 else "")
    return svg(panel.floor + 26, words, drawn, axis.marks(panel.floor, marks))
