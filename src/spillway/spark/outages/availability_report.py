"""The availability report: one HTML page that needs nothing else, with every long outage as a picture.

What a client wrote, like the path of an entity or an error, is shown as text, never as markup.
"""

import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from spillway.pages.document import bad, document, figures, legend, section, soft, style_of, verdict, write_page
from spillway.pages.marks import SECOND_US
from spillway.pages.markup import Content, Markup, joined, tag
from spillway.pages.table import NAME, TEXT, TIME, UNKNOWN, Column, table
from spillway.spark.outages.availability_picture import LEGEND, ROWS_MAX, OutageWindow, draw_overview, draw_window

if TYPE_CHECKING:
    from spillway.spark.outages.availability_summary import AvailabilitySummary

WINDOWS_MAX: Final = 8  # outages that have a picture of their own: the longest
TABLE_MAX: Final = 200  # rows of a table
MEANING: Final = (
    ("to fail over", "From the first failed send of a process until it sent to the backlog: the slowest process. It "
     "waits out the failover interval that it was set up with."),
    ("to return", "At most so long after the primary was back: from the last ping in vain until a ping got through, "
     "the slowest process. When exactly the primary was back, no client can know."),
    ("emptied", "From the end of the outage until all that was diverted had been brought home."),
    ("backlog", "Messages that were diverted and not yet brought home, by what senders and syphons told."),
)  # fmt: skip


def windows_of(summary: "AvailabilitySummary") -> list[OutageWindow]:
    """The longest outages, earliest first, with some time before and the drain behind them."""
    longest = sorted(summary.outages, key=lambda outage: -outage["length_s"])[:WINDOWS_MAX]
    last_us = max((outage["last_us"] for outage in summary.entities), default=0)
    windows = []
    for index, outage in enumerate(sorted(longest, key=lambda outage: outage["began_us"])):
        end_us = max(outage["ended_us"], outage["emptied_us"] or 0)
        if outage["diverted"] > outage["syphoned"]:  # not all of it came home: as far as the events go
            nexts = [
                each["began_us"]
                for each in summary.outages
                if _key(each) == _key(outage) and each["began_us"] > outage["began_us"]
            ]
            end_us = max(end_us, min([last_us, *nexts]))
        margin_us = max(SECOND_US, (end_us - outage["began_us"]) // 20)
        windows.append(OutageWindow(index, outage, outage["began_us"] - margin_us, end_us + margin_us))
    return windows


def write_report(
    path: Path, summary: "AvailabilitySummary", windows: list[OutageWindow], now: datetime.datetime | None = None
) -> None:
    """The file appears whole or not at all."""
    now = now or datetime.datetime.now(datetime.UTC)
    page = document(
        "Availability",
        style_of("spillway.spark.outages", "availability.css"),
        _head(summary, now),
        _banner(summary),
        _overview(summary),
        _outages(summary),
        [_picture(window, summary) for window in windows],
        _delivered(summary),
        _checks(summary),
        _remarks(summary),
        _meaning(),
    )
    write_page(path, page)


def _head(summary: "AvailabilitySummary", now: datetime.datetime) -> Markup:
    of = ", ".join(summary.namespaces[:5]) + (" …" if len(summary.namespaces) > 5 else "")
    when = f"{_minute(summary.first)} to {_minute(summary.last)} UTC" if summary.first else "no events"
    who = f"{_many(summary.events, 'event', 'events')} of {_many(summary.processes, 'process', 'processes')}"
    return joined(
        tag("h1", f"Availability of {of or 'nothing'}"),
        soft(f"{when}, from {who}. Made on {now:%d %B %Y, %H:%M} UTC."),
    )


def _banner(summary: "AvailabilitySummary") -> Markup:
    away = sum(row["outages"] > 0 for row in summary.entities)
    still = sum(outage["end"] == "still away" for outage in summary.outages)
    if not summary.outages_count:
        title = "No outage."
    else:
        title = f"{_many(summary.outages_count, 'outage', 'outages')} of {_many(away, 'entity', 'entities')}."
    words = f"{_many(summary.diverted, 'message was', 'messages were')} diverted, {summary.syphoned:,} brought home"
    words += f"; {summary.waiting:,} still wait in the backlog." if summary.waiting else "."
    if still:
        words += f" {_many(still, 'outage is', 'outages are')} not over."
    shown = figures(
        [
            (_span(sum(row["away_s"] for row in summary.entities)), "unavailable, all entities together"),
            (_most(summary.outages, "to_fail_over_s"), "to fail over, the slowest"),
            (_most(summary.outages, "to_return_s"), "to return, the slowest, at most"),
            (max((outage["backlog_max"] for outage in summary.outages), default=0), "in the backlog, at most"),
            (_most(summary.outages, "to_empty_s"), "until it was empty, the slowest"),
            (summary.repeated, "brought home, perhaps twice"),
        ]
    )
    return joined(verdict(title, words, is_bad=bool(still or summary.waiting)), shown)


def _overview(summary: "AvailabilitySummary") -> Markup | None:
    entities = [row for row in summary.entities if row["outages"]][:ROWS_MAX]
    if not entities:
        return None
    rows = [(_place(row, summary), [each for each in summary.outages if _key(each) == _key(row)]) for row in entities]
    first_us = min(row["first_us"] for row in summary.entities)
    last_us = max([row["last_us"] for row in summary.entities] + [outage["ended_us"] for outage in summary.outages])
    more = sum(row["outages"] > 0 for row in summary.entities) - len(entities)
    rest = soft(f"{_many(more, 'entity', 'entities')} more not drawn.") if more > 0 else None
    return section("All of it", draw_overview(rows, first_us, last_us), rest)


def _outages(summary: "AvailabilitySummary") -> Markup | None:
    if not summary.outages:
        return None
    numbers = ("to fail over", "lasted", "to return", "pings", "diverted", "came home", "backlog", "emptied")
    shown = sorted(summary.outages, key=lambda outage: -outage["length_s"])[:TABLE_MAX]
    rows = [_outage_row(outage, summary) for outage in sorted(shown, key=lambda outage: outage["began_us"])]
    more = summary.outages_count - len(shown)
    rest = soft(f"and {more:,} shorter ones, in the table outages") if more > 0 else None
    columns = (Column("entity", NAME), Column("began, UTC", TIME), *numbers, Column("end", TEXT))
    return section("Outages", table(columns, rows), rest)


def _outage_row(outage: dict[str, Any], summary: "AvailabilitySummary") -> list[Content]:
    is_over = outage["end"] == "recovered"
    return [
        _place(outage, summary), _second(outage["began"]),
        _seconds(outage["to_fail_over_s"]), _span(outage["length_s"]), _seconds(outage["to_return_s"]),
        outage["pings"], outage["diverted"], outage["syphoned"], outage["backlog_max"], _seconds(outage["to_empty_s"]),
        outage["end"] if is_over else tag("span", outage["end"], class_="bad-text"),
    ]  # fmt: skip


def _picture(window: OutageWindow, summary: "AvailabilitySummary") -> Markup:
    outage = window.outage
    back = f"{outage['processes_back']:,} of {_many(outage['processes'], 'process', 'processes')} returned"
    cause = f" It began with: {outage['cause']}." if outage["cause"] else ""
    refused = " The primary refused pings for good." if outage["is_refused"] else ""
    return section(
        f"{_place(outage, summary)}, {_second(outage['began'])}",
        soft(f"{_span(outage['length_s'])}; {back}.{cause}{refused}"),
        [bad(remark) for remark in outage["remarks"]],
        draw_window(window),
        legend(LEGEND),
    )


def _delivered(summary: "AvailabilitySummary") -> Markup | None:
    if not summary.delivered:
        return None
    rows = [
        (
            row["entity"] or "all", row["messages"], row["duplicated"], row["copies"],
            "not told" if row["out_of_order"] is None else row["out_of_order"], row["without_id"],
        )
        for row in summary.delivered[:TABLE_MAX]
    ]  # fmt: skip
    numbers = ("messages stored", "stored twice", "copies too many", "out of order", "without an id")
    return section(
        "Order and duplicates",
        soft("Of what the primary stored. Out of order: behind a later message of the same sender."),
        table((Column("entity", NAME), *numbers), rows),
    )


def _checks(summary: "AvailabilitySummary") -> Markup | None:
    if not summary.checks:
        return None
    rows = [
        (
            row["namespace"], row["entity"] or "backlog queues", row["what"],
            row["days"], row["by_events"], row["by_ledger"], f"{row['difference']:+,}",
        )
        for row in summary.checks[:TABLE_MAX]
    ]  # fmt: skip
    columns = (Column("primary", TEXT), Column("at", NAME), Column("what", TEXT))
    return section(
        "Beside the ledger",
        soft(
            "What clients told and what brokers counted, on days that both know. A broker also counts what it took "
            "while its answer was lost; a client that was killed did not tell of its last second."
        ),
        table((*columns, "days", "events", "ledger", "difference"), rows),
    )


def _remarks(summary: "AvailabilitySummary") -> Markup | None:
    if not summary.remarks:
        return None
    return section("What is missing or odd", tag("ul", [tag("li", each) for each in summary.remarks], class_="plain"))


def _meaning() -> Markup:
    return section("What the numbers mean", tag("dl", [(tag("dt", word), tag("dd", text)) for word, text in MEANING]))


# -- words ---------------------------------------------------------------------------------------------------------


def text_of(at_us: int) -> str:
    at = datetime.datetime.fromtimestamp(at_us // SECOND_US, datetime.UTC)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{at_us % SECOND_US // 1000:03d}Z"


def _key(row: dict[str, Any]) -> tuple[str, str]:
    return (row["namespace"].lower(), row["entity"].lower())


def _place(row: dict[str, Any], summary: "AvailabilitySummary") -> str:
    """The entity; with its namespace, if there are several."""
    return str(row["entity"]) if len(summary.namespaces) == 1 else f"{row['namespace']}: {row['entity']}"


def _minute(text: str) -> str:
    return text[:16].replace("T", " ")


def _second(text: str) -> str:
    return text[:19].replace("T", " ")


def _many(count: int, one: str, several: str) -> str:
    return f"{count:,} {one if count == 1 else several}"


def _most(rows: list[dict[str, Any]], name: str) -> str:
    return _seconds(max((row[name] for row in rows if row[name] is not None), default=None))


def _seconds(value: float | None) -> str:
    return UNKNOWN if value is None else _span(value)


def _span(value: float) -> str:
    """With spaces that do not break."""
    if value < 120:
        return f"{value:,.1f}\u00a0s"
    minutes, seconds = divmod(round(value), 60)
    if minutes < 120:
        return f"{minutes}\u00a0min\u00a0{seconds:02d}\u00a0s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,}\u00a0h\u00a0{minutes:02d}\u00a0min"
