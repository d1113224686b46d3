"""The cost report: one page of HTML that needs nothing else, its pictures drawn in it.

Names of entities are written by strangers: they are shown as text, never as markup.
"""

import html
from collections import defaultdict
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spillway.spark.billing.charges import BASE, MESSAGING_UNITS, PAIRING_LINES, Tariff
from spillway.spark.billing.prices import PriceList, money

if TYPE_CHECKING:
    from spillway.spark.billing.cost_summary import CostSummary, Sum

STYLE: Final = Path(__file__).with_name("cost_report.css")
WIDTH: Final = 960
HEIGHT: Final = 190
LEFT: Final = 78
TOP: Final = 12
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
    "ping": "to a primary that was away, to see when it is back",
    "base": "for every hour that the namespace was there",
    "messaging_units": "for every hour and messaging unit",
    "empty_receive": "calls to receive that got nothing",
    "settle": "completed, abandoned, deferred or dead-lettered",
    "renew": "locks that were renewed",
}


def write_report(path: Path, summary: "CostSummary", tariff: Tariff) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(summary, tariff), encoding="utf-8")


def page(summary: "CostSummary", tariff: Tariff) -> str:
    units = sum(one.units for one in summary.by_line)
    notes = "".join(f'<p class="note">{html.escape(note)}</p>' for note in summary.notes)
    lists = {id(each): each for each in map(tariff.list_of, summary.prices)}
    parts = [
        "<h1>What the operations cost</h1>",
        f'<p class="soft">{period(summary)}, {counted(len(summary.prices), "namespace")}</p>',
        f'<div class="total"><strong>{summary.currency} {amount(summary.total)}</strong>'
        f"<p>{units:,} units of 64 KB; exactly {summary.currency} {html.escape(summary.total_exact)}</p></div>",
        notes,
        figures(summary),
        "<h2>Cost by day</h2>",
        bars(summary, "cost", summary.currency),
        "<h2>Units by day</h2>",
        bars(summary, "units", "units"),
        key(),
        "<h2>What pairing costs</h2>",
        pairing(summary),
        "<h2>By line</h2>",
        table(summary.by_line, summary, "line", WORDS),
        "<h2>By namespace</h2>",
        table(summary.by_namespace, summary, "namespace", summary.prices),
        "<h2>The dearest entities</h2>",
        table(summary.by_entity, summary, "entity", {}, is_whole=False),
        "<h2>Prices</h2>",
        *[price_list(each, tariff.messaging_units) for each in lists.values()],
        '<p class="soft">Amounts are exact; only what is shown is rounded to cents, so that each column adds up. '
        "Included operations go to the first days of a month; the cost of a day is shared by its lines in proportion "
        "to their units. The column at list price shows what a line would cost at the first tier that is paid.</p>",
    ]
    title = f"Cost, {period(summary)}"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{STYLE.read_text(encoding='utf-8')}</style></head>"
        f"<body>{''.join(parts)}</body></html>\n"
    )


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


def figures(summary: "CostSummary") -> str:
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
        of_it = f" &middot; {units[name]:,} units" if name != "hours" else ""
        shown.append(f"<div><b>{small(str(costs[name]))}</b><span>{words}{of_it}</span></div>")
    return f'<div class="figures">{"".join(shown)}</div>'


def key() -> str:
    items = "".join(f'<li><i class="{name}"></i>{words}</li>' for name, words in GROUPS)
    return f'<ul class="key">{items}</ul>'


# -- tables -------------------------------------------------------------------------------------------------------


def table(sums: "list[Sum]", summary: "CostSummary", name: str, words: dict[str, str], is_whole: bool = True) -> str:
    from spillway.spark.billing.cost_summary import shown_cents

    costs = [Decimal(one.cost) for one in sums]
    cents = shown_cents(costs) if is_whole else [cost.quantize(Decimal("0.01")) for cost in costs]
    rows = []
    for one, cost in zip(sums, cents, strict=True):
        what = words.get(one.name, "")
        about = f'<span class="what">{html.escape(what)}</span>' if what else ""
        counts = [f"{count:,}" if count else "&ndash;" for count in (one.operations, one.units)]
        cells = (*counts, sized(one.size_bytes), small(one.list_cost), f"{cost:,.2f}")
        rows.append(f"<tr><td>{html.escape(one.name)}{about}</td>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    if is_whole:
        total = (
            f"{sum(one.operations for one in sums):,}",
            f"{sum(one.units for one in sums):,}",
            sized(sum(one.size_bytes for one in sums)),
            small(str(sum((Decimal(one.list_cost) for one in sums), Decimal(0)))),
            f"{sum(cents, Decimal(0)):,.2f}",
        )
        rows.append(f'<tr class="sum"><td>all</td>{"".join(f"<td>{cell}</td>" for cell in total)}</tr>')
    titles = (name, "operations", "units", "bytes", "at list price", summary.currency)
    head = "".join(f"<th>{title}</th>" for title in titles)
    return f'<div class="scroll"><table><tr>{head}</tr>{"".join(rows)}</table></div>'


def sized(size_bytes: int) -> str:
    if not size_bytes:
        return "&ndash;"
    size = float(size_bytes)
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            return f"{size:,.0f} {unit}" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1000
    raise AssertionError("the last unit takes all")


def pairing(summary: "CostSummary") -> str:
    found = {one.name: one for one in summary.by_line}
    if not any(line in found for line in PAIRING_LINES):
        return '<p class="soft">Nothing was diverted, no backlog queue was polled, nothing was pinged.</p>'
    ordered = [found[line] for line in PAIRING_LINES if line in found]
    return table(ordered, summary, "line", WORDS)


def price_list(prices: PriceList, messaging_units: int) -> str:
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
    cells = "".join(f"<tr><td>{words}</td><td>{plain(price)}</td></tr>" for words, price in rows)
    return (
        f'<div class="scroll"><table><tr><th>{html.escape(prices.name)}, from {prices.valid_from}</th>'
        f"<th>{prices.currency}</th></tr>{cells}</table></div>"
        f'<p class="soft">Tiers are counted by the month for '
        f"{'each namespace' if prices.scope == 'namespace' else 'all namespaces together'}. "
        f"Source: {html.escape(prices.source)}</p>"
    )


def plain(price: Decimal) -> str:
    text = f"{price:f}".rstrip("0").rstrip(".") if price else "included"
    return text if "." not in text or len(text.split(".")[1]) >= 2 else f"{price:.2f}"


# -- pictures -----------------------------------------------------------------------------------------------------


def bars(summary: "CostSummary", measure: str, unit: str) -> str:
    """A bar a day, or for several days where there are very many, stacked by group."""
    days = sorted({each["day"] for each in summary.by_day})
    per_bar = -(-len(days) // BARS_MAX)
    place = {day: at // per_bar for at, day in enumerate(days)}
    count = place[days[-1]] + 1
    stacks: list[dict[str, float]] = [defaultdict(float) for _ in range(count)]
    for each in summary.by_day:
        stacks[place[each["day"]]][group_of(each["line"])] += float(each[measure])
    top = round_up(max(sum(stack.values()) for stack in stacks) or 1.0)
    step = (WIDTH - LEFT - 10) / count
    wide = min(step * 0.82, 60.0)
    drawn = []
    for part in (0.0, 0.5, 1.0):
        y = TOP + HEIGHT * (1 - part)
        drawn.append(f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - 10}" y2="{y:.1f}"/>')
        drawn.append(f'<text class="end" x="{LEFT - 8}" y="{y + 4:.1f}">{scale(top * part, top)}</text>')
    for at, stack in enumerate(stacks):
        x = LEFT + at * step + (step - wide) / 2
        y = TOP + HEIGHT * 1.0
        for name, _ in GROUPS:
            high = HEIGHT * stack[name] / top
            if high > 0:
                y -= high
                drawn.append(
                    f'<rect class="{name}" x="{x:.1f}" y="{y:.2f}" width="{wide:.1f}" height="{max(high, 0.5):.2f}"/>'
                )
    labelled = max(1, -(-count // 8))
    for at in range(0, count, labelled):
        x = LEFT + (at + 0.5) * step
        drawn.append(f'<text class="mid" x="{x:.1f}" y="{TOP + HEIGHT + 18}">{days[at * per_bar][5:]}</text>')
    words = f"{html.escape(unit)} by day" + (f", {per_bar} days a bar" if per_bar > 1 else "")
    return (
        f'<svg viewBox="0 0 {WIDTH} {TOP + HEIGHT + 26}" role="img" aria-label="{words}" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(drawn)}</svg>'
    )


def round_up(value: float) -> float:
    """To a number that half of it is easy to read of."""
    size = 1.0
    while size < value:
        size *= 10
    while size / 10 >= value:
        size /= 10
    return next(size / 10 * step for step in (1, 1.2, 1.6, 2, 2.4, 3, 4, 5, 6, 8, 10) if size / 10 * step >= value)


def scale(value: float, top: float) -> str:
    if value >= 1_000_000:
        return f"{value / 1_000_000:,.4g} M"
    if top >= 10:
        return f"{value:,.0f}"
    return f"{value:.4g}"
