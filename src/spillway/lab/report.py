"""The report: one HTML page that needs nothing else, with the timeline of each scenario as a picture.

Everything in it comes from the histories, like the verdict. What was written by a client is shown as text, never as
markup.
"""

import html
from pathlib import Path
from typing import Any, Final

from spillway.lab.histories import DELIVERED, EVENT, NEMESIS, OK, SEND, read_all

NS: Final = 1_000_000_000
WIDTH: Final = 900
HEIGHT: Final = 220
LEFT: Final = 60
BOTTOM: Final = 30
BUCKETS_MAX: Final = 180
SERIES: Final = (
    ("acknowledged", "#2a7", "acknowledged, a second"),
    ("diverted", "#e80", "of these diverted to the backlog"),
    ("delivered", "#36c", "delivered to consumers"),
    ("failed", "#c22", "sends whose caller heard an error"),
)
MARKED: Final = {"suspected": "suspected", "failed-over": "failed over", "recovered": "recovered"}
COLUMNS: Final = (
    ("sent", "sent"),
    ("acknowledged", "acknowledged"),
    ("diverted", "diverted"),
    ("syphoned", "syphoned"),
    ("delivered", "delivered"),
    ("duplicated", "duplicated"),
    ("lost", "lost"),
    ("out_of_order", "out of order"),
    ("failover_s", "failover, s"),
    ("return_s", "return, s"),
    ("pings", "pings"),
)
STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 960px; margin: 2em auto; color: #222; padding: 0 1em; }
table { border-collapse: collapse; margin: 1em 0; } th, td { padding: .25em .7em; text-align: right; }
th { border-bottom: 1px solid #999; font-weight: 600; } .good { color: #186a3b; } .bad { color: #b00; }
svg text { font: 11px system-ui, sans-serif; fill: #444; } .key span { margin-right: 1.2em; }
"""


def write_report(path: Path, results: list[dict[str, Any]], directories: list[Path]) -> None:
    parts = [f"<h1>Outage lab</h1><p>{len(results)} scenario{'s' if len(results) != 1 else ''}. {overall(results)}</p>"]
    for result, directory in zip(results, directories, strict=True):
        parts.append(section(result, read_all(directory)))
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Spillway outage lab</title>'
        f"<style>{STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )
    path.write_text(page, encoding="utf-8")


def overall(results: list[dict[str, Any]]) -> str:
    lost = sum(result["lost"] for result in results)
    acknowledged = sum(result["acknowledged"] for result in results)
    kind = "bad" if any(result["problems"] for result in results) else "good"
    return f'<strong class="{kind}">{lost:,} of {acknowledged:,} acknowledged messages were lost.</strong>'


def section(result: dict[str, Any], lines: list[dict[str, Any]]) -> str:
    head = "".join(f"<th>{title}</th>" for _, title in COLUMNS)
    cells = "".join(f"<td>{shown(result[name])}</td>" for name, _ in COLUMNS)
    problems = "".join(f'<p class="bad">{html.escape(problem)}</p>' for problem in result["problems"])
    key = "".join(f'<span><b style="color:{colour}">&#9632;</b> {title}</span>' for _, colour, title in SERIES)
    operations = ", ".join(f"{html.escape(kind)} {count:,}" for kind, count in sorted(result["operations"].items()))
    return (
        f"<h2>{html.escape(result['scenario'])}</h2>{problems}<table><tr>{head}</tr><tr>{cells}</tr></table>"
        f'{picture(lines)}<p class="key">{key}</p>'
        + (f"<p>Operations that the two brokers counted: {operations}.</p>" if operations else "")
    )


def shown(value: object) -> str:
    if value is None:
        return "&ndash;"
    return f"{value:,}" if isinstance(value, int) else html.escape(str(value))


def picture(lines: list[dict[str, Any]]) -> str:
    """Rates over time, the outage shaded, what the library told marked."""
    counted = [line for line in lines if line["op"] in (SEND, DELIVERED, EVENT, NEMESIS)]
    if not counted:
        return ""
    begin, end = counted[0]["t"], counted[-1]["t"]
    length_s = max((end - begin) / NS, 1.0)
    bucket_s = max(0.25, length_s / BUCKETS_MAX)
    rates = {name: [0.0] * (int(length_s / bucket_s) + 1) for name, _, _ in SERIES}
    for line in counted:
        name, count = series_of(line)
        if name:
            rates[name][int((line["t"] - begin) / NS / bucket_s)] += count / bucket_s
    top = max(max(values) for values in rates.values()) or 1.0
    drawn = [shade(counted, begin, length_s), axes(length_s, top)]
    for name, colour, _ in SERIES:
        drawn.append(curve(rates[name], colour, length_s, bucket_s, top))
    drawn += marks(counted, begin, length_s)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT + BOTTOM + 20}" role="img" width="100%">{"".join(drawn)}</svg>'


def series_of(line: dict[str, Any]) -> tuple[str, int]:
    if line["op"] == SEND:
        return ("acknowledged" if line["res"] == OK else "failed"), 1
    if line["op"] == DELIVERED:
        return "delivered", 1
    if line["op"] == EVENT and line["name"] == "diverted":
        return "diverted", line["count"]
    return "", 0


def x_of(seconds: float, length_s: float) -> float:
    return LEFT + (WIDTH - LEFT - 10) * seconds / length_s


def y_of(value: float, top: float) -> float:
    return 20 + HEIGHT * (1.0 - value / top)


def curve(values: list[float], colour: str, length_s: float, bucket_s: float, top: float) -> str:
    points = " ".join(
        f"{x_of(min(at * bucket_s, length_s), length_s):.1f},{y_of(value, top):.1f}" for at, value in enumerate(values)
    )
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>'


def shade(lines: list[dict[str, Any]], begin: int, length_s: float) -> str:
    drawn = ""
    since = None
    for line in lines:
        if line["op"] != NEMESIS:
            continue
        at_s = (line["t"] - begin) / NS
        if line["what"] == "begins":
            since = at_s
        elif since is not None:
            left, right = x_of(since, length_s), x_of(at_s, length_s)
            drawn += f'<rect x="{left:.1f}" y="20" width="{right - left:.1f}" height="{HEIGHT}" fill="#fde8e8"/>'
            drawn += f'<text x="{left + 4:.1f}" y="32">outage</text>'
            since = None
    return drawn


def axes(length_s: float, top: float) -> str:
    floor = y_of(0.0, top)
    drawn = f'<line x1="{LEFT}" y1="{floor}" x2="{WIDTH - 10}" y2="{floor}" stroke="#999"/>'
    for part in (0.0, 0.5, 1.0):
        y = y_of(top * part, top)
        drawn += f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{top * part:,.0f}/s</text>'
    step_s = next(step for step in (1, 2, 5, 10, 20, 60, 120, 600, 3600) if length_s / step <= 12 or step == 3600)
    for at in range(0, int(length_s) + 1, step_s):
        drawn += f'<text x="{x_of(at, length_s):.1f}" y="{floor + 16}" text-anchor="middle">{at} s</text>'
    return drawn


def marks(lines: list[dict[str, Any]], begin: int, length_s: float) -> list[str]:
    """The first of each kind after another kind: several clients tell the same."""
    drawn = []
    last = ""
    for line in lines:
        if line["op"] != EVENT or line["name"] not in MARKED or line["name"] == last:
            continue
        last = line["name"]
        x = x_of((line["t"] - begin) / NS, length_s)
        y = HEIGHT + 44
        drawn.append(
            f'<line x1="{x:.1f}" y1="20" x2="{x:.1f}" y2="{HEIGHT + 20}" stroke="#888" stroke-dasharray="3 3"/>'
        )
        drawn.append(f'<text x="{x:.1f}" y="{y}" text-anchor="middle">{MARKED[last]}</text>')
    return drawn
