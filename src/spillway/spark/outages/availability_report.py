"""The availability report: one HTML page that needs nothing else, with every long outage as a picture.

What a client wrote, like the path of an entity or an error, is shown as text, never as markup.
"""

import datetime
import html
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from spillway.spark.outages.availability_picture import LEGEND, ROWS_MAX, SECOND_US, Window, draw_overview, draw_window

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


def windows_of(summary: "AvailabilitySummary") -> list[Window]:
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
        windows.append(Window(index, outage, outage["began_us"] - margin_us, end_us + margin_us))
    return windows


def write_report(
    path: Path, summary: "AvailabilitySummary", windows: list[Window], now: datetime.datetime | None = None
) -> None:
    """The file appears whole or not at all."""
    now = now or datetime.datetime.now(datetime.UTC)
    style = resources.files("spillway.spark.outages").joinpath("availability.css").read_text(encoding="utf-8")
    body = [_head(summary, now), _banner(summary), _overview(summary), _outages(summary)]
    body += [_picture(window, summary) for window in windows]
    body += [_delivered(summary), _checks(summary), _remarks(summary), _meaning()]
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Availability</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<style>{style}</style></head><body>{''.join(body)}</body></html>\n"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = path.with_name(path.name + ".part")
    whole.write_text(page, encoding="utf-8")
    whole.replace(path)


def _head(summary: "AvailabilitySummary", now: datetime.datetime) -> str:
    of = ", ".join(summary.namespaces[:5]) + (" …" if len(summary.namespaces) > 5 else "")
    when = f"{_minute(summary.first)} to {_minute(summary.last)} UTC" if summary.first else "no events"
    return (
        f'<h1>Availability of {html.escape(of) or "nothing"}</h1><p class="soft">{when}, told by {summary.events:,} '
        f"events of {_many(summary.processes, 'process', 'processes')}. Made on {now:%d %B %Y, %H:%M} UTC.</p>"
    )


def _banner(summary: "AvailabilitySummary") -> str:
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
    kind = ' class="verdict bad"' if still or summary.waiting else ' class="verdict"'
    fail_over = _most(summary.outages, "to_fail_over_s")
    figures = [
        (_span(sum(row["away_s"] for row in summary.entities)), "away, all entities together"),
        (fail_over, "to fail over, the slowest"),
        (_most(summary.outages, "to_return_s"), "to return, the slowest, at most"),
        (f"{max((outage['backlog_max'] for outage in summary.outages), default=0):,}", "in the backlog, at most"),
        (_most(summary.outages, "to_empty_s"), "until it was empty, the slowest"),
        (f"{summary.repeated:,}", "brought home, perhaps twice"),
    ]
    shown = "".join(f"<div><b>{value}</b><span>{words_}</span></div>" for value, words_ in figures)
    return f'<div{kind}><strong>{title}</strong><p>{words}</p></div><div class="figures">{shown}</div>'


def _overview(summary: "AvailabilitySummary") -> str:
    entities = [row for row in summary.entities if row["outages"]][:ROWS_MAX]
    if not entities:
        return ""
    rows = [(_place(row, summary), [each for each in summary.outages if _key(each) == _key(row)]) for row in entities]
    first_us = min(row["first_us"] for row in summary.entities)
    last_us = max([row["last_us"] for row in summary.entities] + [outage["ended_us"] for outage in summary.outages])
    more = sum(row["outages"] > 0 for row in summary.entities) - len(entities)
    rest = f'<p class="soft">{_many(more, "entity", "entities")} more not drawn.</p>' if more > 0 else ""
    return f"<section><h2>All of it</h2>{draw_overview(rows, first_us, last_us)}{rest}</section>"


def _outages(summary: "AvailabilitySummary") -> str:
    if not summary.outages:
        return ""
    titles = ("to fail over", "lasted", "to return", "pings", "diverted", "came home", "backlog", "emptied")
    header = "".join(f"<th>{title}</th>" for title in titles)
    shown = sorted(summary.outages, key=lambda outage: -outage["length_s"])[:TABLE_MAX]
    rows = "".join(_outage_row(outage, summary) for outage in sorted(shown, key=lambda outage: outage["began_us"]))
    more = summary.outages_count - len(shown)
    rest = f'<p class="soft">and {more:,} shorter ones, in the table outages</p>' if more > 0 else ""
    return (
        '<section><h2>Outages</h2><div class="scroll"><table><tr><th class="text">entity</th><th class="text">began, '
        f'UTC</th>{header}<th class="text">end</th></tr>{rows}</table></div>{rest}</section>'
    )


def _outage_row(outage: dict[str, Any], summary: "AvailabilitySummary") -> str:
    cells = [
        _seconds(outage["to_fail_over_s"]), _span(outage["length_s"]), _seconds(outage["to_return_s"]),
        f"{outage['pings']:,}", f"{outage['diverted']:,}", f"{outage['syphoned']:,}", f"{outage['backlog_max']:,}",
        _seconds(outage["to_empty_s"]),
    ]  # fmt: skip
    end = html.escape(outage["end"])
    shown = end if outage["end"] == "recovered" else f'<span class="bad-text">{end}</span>'
    return (
        f'<tr><td class="text entity">{html.escape(_place(outage, summary))}</td>'
        f'<td class="text time">{_second(outage["began"])}</td>'
        f'{"".join(f"<td>{cell}</td>" for cell in cells)}<td class="text">{shown}</td></tr>'
    )


def _picture(window: Window, summary: "AvailabilitySummary") -> str:
    outage = window.outage
    key = "".join(f'<li><i class="{name}"></i>{html.escape(words)}</li>' for name, words in LEGEND)
    back = f"{outage['processes_back']:,} of {_many(outage['processes'], 'process', 'processes')} returned"
    cause = f" It began with: {html.escape(outage['cause'])}." if outage["cause"] else ""
    refused = " The primary refused pings for good." if outage["is_refused"] else ""
    remarks = "".join(f'<p class="bad-text">{html.escape(remark)}</p>' for remark in outage["remarks"])
    return (
        f"<section><h2>{html.escape(_place(outage, summary))}, {_second(outage['began'])}</h2>"
        f'<p class="soft">{_span(outage["length_s"])}; {back}.{cause}{refused}</p>{remarks}{draw_window(window)}'
        f'<ul class="key">{key}</ul></section>'
    )


def _delivered(summary: "AvailabilitySummary") -> str:
    if not summary.delivered:
        return ""
    rows = ""
    for row in summary.delivered[:TABLE_MAX]:
        late = "not told" if row["out_of_order"] is None else f"{row['out_of_order']:,}"
        cells = (f"{row['messages']:,}", f"{row['duplicated']:,}", f"{row['copies']:,}", late, f"{row['without_id']:,}")
        name = html.escape(row["entity"]) or "all"
        rows += f'<tr><td class="text entity">{name}</td>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'
    titles = ("messages stored", "stored twice", "copies too many", "out of order", "without an id")
    header = "".join(f"<th>{title}</th>" for title in titles)
    return (
        '<section><h2>Order and duplicates</h2><p class="soft">Of what the primary stored. Out of order: behind a '
        "later message of the same sender.</p>"
        f'<div class="scroll"><table><tr><th class="text">entity</th>{header}</tr>{rows}</table></div></section>'
    )


def _checks(summary: "AvailabilitySummary") -> str:
    if not summary.checks:
        return ""
    rows = "".join(
        f'<tr><td class="text">{html.escape(row["namespace"])}</td>'
        f'<td class="text entity">{html.escape(row["entity"]) or "backlog queues"}</td>'
        f'<td class="text">{html.escape(row["what"])}</td><td>{row["days"]:,}</td><td>{row["by_events"]:,}</td>'
        f"<td>{row['by_ledger']:,}</td><td>{row['difference']:+,}</td></tr>"
        for row in summary.checks[:TABLE_MAX]
    )
    header = '<th class="text">primary</th><th class="text">at</th><th class="text">what</th>'
    return (
        '<section><h2>Beside the ledger</h2><p class="soft">What clients told and what brokers counted, on days that '
        "both know. A broker also counts what it took while its answer was lost; a client that was killed did not "
        f'tell of its last second.</p><div class="scroll"><table><tr>{header}<th>days</th><th>events</th>'
        f"<th>ledger</th><th>difference</th></tr>{rows}</table></div></section>"
    )


def _remarks(summary: "AvailabilitySummary") -> str:
    if not summary.remarks:
        return ""
    items = "".join(f"<li>{html.escape(remark)}</li>" for remark in summary.remarks)
    return f'<section><h2>What is missing or odd</h2><ul class="plain">{items}</ul></section>'


def _meaning() -> str:
    items = "".join(f"<dt>{html.escape(word)}</dt><dd>{html.escape(text)}</dd>" for word, text in MEANING)
    return f"<section><h2>What the numbers mean</h2><dl>{items}</dl></section>"


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
    return "&ndash;" if value is None else _span(value)


def _span(value: float) -> str:
    if value < 120:
        return f"{value:,.1f}&nbsp;s"
    minutes, seconds = divmod(round(value), 60)
    if minutes < 120:
        return f"{minutes}&nbsp;min&nbsp;{seconds:02d}&nbsp;s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,}&nbsp;h&nbsp;{minutes:02d}&nbsp;min"
