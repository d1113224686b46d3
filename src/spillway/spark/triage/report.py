"""The page about dead letters: one file of HTML that needs nothing else. Whatever a message says is shown as text."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from spillway.model.texts import count_text
from spillway.pages.document import document, figures, section, soft, style_of, verdict, write_page
from spillway.pages.markup import Content, Markup, joined, tag
from spillway.pages.table import NAME, TEXT, TIME, Column, table
from spillway.spark.triage.frames import AGE, ENTITY, REASON
from spillway.spark.triage.show_text import ORDER, minute
from spillway.spark.triage.summaries import ShowSummary

BARS_MAX: Final = 12
EMPTY: Final = "not said"
AGES: Final = {
    "hour": "in the last hour",
    "day": "in the last day",
    "week": "in the last week",
    "month": "in the last 30 days",
    "older": "earlier",
}
TITLES: Final = ((REASON, "By reason"), (ENTITY, "By entity"), (AGE, "By age: enqueued"))


def write_report(path: Path, summary: ShowSummary) -> None:
    """The file appears whole or not at all."""
    write_page(path, page(summary))


def page(summary: ShowSummary) -> Markup:
    return document(
        "Dead letters",
        style_of("spillway.spark.triage", "report.css"),
        _head(summary),
        _banner(summary),
        [_bars(summary, name, title) for name, title in TITLES],
        _groups(summary),
        _meaning(),
    )


def _head(summary: ShowSummary) -> Markup:
    seen = f"Seen on {minute(summary.at)} UTC in {count_text(len(summary.entities), 'entity', 'entities')}"
    where: Content = [", where ", tag("code", summary.where)] if summary.where else None
    return joined(
        tag("h1", f"Dead letters of {summary.namespace}"), soft(seen, where, ". Nothing was locked or changed.")
    )


def _banner(summary: ShowSummary) -> Markup:
    if not summary.messages:
        return verdict("No dead letters.")
    entities = sum(line["messages"] > 0 for line in summary.totals.get(ENTITY, []))
    words = f"In {count_text(summary.groups_count, 'group')}, enqueued {minute(summary.oldest)} to "
    words += f"{minute(summary.newest)} UTC."
    shown = figures(
        [
            (summary.messages, "dead letters"),
            (entities, "entities that have some"),
            (len(summary.totals.get(REASON, [])), "reasons"),
        ]
    )
    return joined(verdict(f"{count_text(summary.messages, 'dead letter')}.", words, is_bad=True), shown)


def _bars(summary: ShowSummary, name: str, title: str) -> Markup | None:
    lines = summary.totals.get(name, [])
    if not lines:
        return None
    most = max(line["messages"] for line in lines)
    more = len(lines) - BARS_MAX
    rest = soft(f"and {more:,} more") if more > 0 else None
    columns = (Column("", NAME), "", Column("", "bar"))
    return section(title, table(columns, [_bar(line, name, most) for line in lines[:BARS_MAX]]), rest)


def _bar(line: dict[str, Any], name: str, most: int) -> tuple[Content, ...]:
    text = AGES.get(line[name], line[name]) if name == AGE else line[name]
    share = 100 * line["messages"] / most
    return (text or EMPTY, line["messages"], tag("i", style=f"width:{share:.1f}%"))


def _groups(summary: ShowSummary) -> Markup | None:
    if not summary.groups:
        return None
    keys = [name for name in ORDER if name in summary.by]
    hidden = summary.groups_count - len(summary.groups)
    rest = soft(f"and {count_text(hidden, 'smaller group')}") if hidden > 0 else None
    columns: list[Column | str] = [
        "messages",
        Column("oldest, UTC", TIME),
        Column("newest, UTC", TIME),
        *(Column(name, NAME) for name in keys),
        Column("example", NAME),
        Column("--where", TEXT),
    ]
    return section("Groups", table(columns, [_group(group, keys) for group in summary.groups]), rest)


def _group(group: dict[str, Any], keys: Sequence[str]) -> list[Content]:
    return [
        group["messages"],
        minute(group["oldest"]),
        minute(group["newest"]),
        *(group[name] or EMPTY for name in keys),
        f"{group['example']['entity']} {group['example']['sequence_number']}",
        tag("code", group["where"]),
    ]


def _meaning() -> Markup:
    return section(
        "What to do with them",
        soft(
            "The condition of a group, behind ",
            tag("code", "--where"),
            ", chooses its messages: ",
            tag("code", "spillway pipeline dead-letters resubmit --dry-run"),
            " says what would be sent again, ",
            tag("code", "purge --dry-run"),
            " what would be deleted. An age is counted from when a message was enqueued; when it died nobody writes "
            "down.",
        ),
    )
