"""The timeline as a picture: one SVG that stands in the page itself. Colours are the page's (`report.STYLE`)."""

import html
from typing import Final

from spillway.lab.timeline import ACKNOWLEDGED, ANSWERED, DIVERTED, FAILED, Span, Timeline

WIDTH: Final = 960
LEFT: Final = 92
RIGHT: Final = 12
STRIP: Final = 14  # height of a strip of states
STRIP_GAP: Final = 6
TOP: Final = 20
RATES: Final = 200  # heights of the two panels
DEPTH: Final = 84
GAP: Final = 34
LABELLED_MIN: Final = 60.0  # pixels that a strip must have to be written on

LEGEND: Final = (
    ("to-primary", "sent to the primary"),
    ("diverted", "sent to the backlog instead"),
    ("delivered", "delivered to consumers"),
    ("failed", "a caller heard an error"),
    ("outage", "the outage"),
)


def draw(timeline: Timeline) -> str:
    """States on top, rates below them, what waits in the backlog at the bottom, if there was anything."""
    rows = [("primary", _primary(timeline)), *timeline.states.items()]
    rates_y = TOP + len(rows) * (STRIP + STRIP_GAP) + GAP - 8
    depth_y = rates_y + RATES + GAP
    floor_y = depth_y + DEPTH if any(timeline.backlog) else rates_y + RATES
    height = floor_y + 26
    drawn = [_strip(name, spans, at, timeline) for at, (name, spans) in enumerate(rows)]
    for span in timeline.outages:
        drawn.append(f'<rect class="outage" {_box(span, timeline, rates_y, floor_y - rates_y)}/>')
    drawn += _rates(timeline, rates_y)
    if any(timeline.backlog):
        drawn += _depth(timeline, depth_y)
    drawn.append(_seconds(timeline, floor_y))
    words = "Messages a second over time: sent to the primary, sent to the backlog, delivered; and the backlog itself."
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{words}" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(drawn)}</svg>'
    )


def _primary(timeline: Timeline) -> list[Span]:
    spans = []
    at_s = 0.0
    for outage in timeline.outages:
        spans += [Span(at_s, outage.from_s, "healthy"), outage]
        at_s = outage.to_s
    return [*spans, Span(at_s, timeline.length_s, "healthy")]


def _strip(name: str, spans: list[Span], at: int, timeline: Timeline) -> str:
    y = TOP + at * (STRIP + STRIP_GAP)
    drawn = f'<text class="name" x="{LEFT - 8}" y="{y + 11}">{html.escape(name)}</text>'
    for span in spans:
        drawn += f'<rect class="state {span.state.replace(" ", "-")}" {_box(span, timeline, y, STRIP)} rx="2"/>'
        left, right = _x(span.from_s, timeline), _x(span.to_s, timeline)
        if right - left >= LABELLED_MIN and span.state != "healthy":
            drawn += f'<text class="on" x="{(left + right) / 2:.1f}" y="{y + 11}">{html.escape(span.state)}</text>'
    return drawn


def _box(span: Span, timeline: Timeline, y: float, height: float) -> str:
    left, right = _x(span.from_s, timeline), _x(span.to_s, timeline)
    return f'x="{left:.1f}" y="{y:.1f}" width="{max(right - left, 1.0):.1f}" height="{height:.1f}"'


def _rates(timeline: Timeline, y: float) -> list[str]:
    none = [0.0] * len(timeline.backlog)
    acknowledged, diverted = timeline.rates.get(ACKNOWLEDGED, none), timeline.rates.get(DIVERTED, none)
    delivered = timeline.rates.get(ANSWERED, none)
    sent = [max(all_, part) for all_, part in zip(acknowledged, diverted, strict=True)]
    top = _round_up(max(*sent, *delivered, 1.0))
    drawn = _scale(y, RATES, top, "messages/s")
    drawn.append(_area("to-primary", sent, timeline, y, RATES, top))
    drawn.append(_area("diverted", diverted, timeline, y, RATES, top))
    drawn.append(_line("delivered", delivered, timeline, y, RATES, top))
    for at, value in enumerate(timeline.rates.get(FAILED, none)):
        if value:
            x = _x(at * timeline.slot_s, timeline)
            width = max(_x(timeline.slot_s, timeline) - LEFT, 1.5)
            drawn.append(f'<rect class="failed" x="{x:.1f}" y="{y + RATES - 6:.1f}" width="{width:.1f}" height="6"/>')
    return drawn


def _depth(timeline: Timeline, y: float) -> list[str]:
    top = _round_up(float(max(*timeline.backlog, 1, 1)))
    depths = [float(value) for value in timeline.backlog]
    return [
        *_scale(y, DEPTH, top, "waiting in the backlog, until the syphon brings it home"),
        _area("diverted", depths, timeline, y, DEPTH, top),
    ]


def _scale(y: float, height: float, top: float, what: str) -> list[str]:
    drawn = [f'<text class="what" x="{LEFT}" y="{y - 6:.1f}">{what}</text>']
    for part in (0.0, 0.5, 1.0):
        at = y + height * (1 - part)
        drawn.append(f'<line class="grid" x1="{LEFT}" y1="{at:.1f}" x2="{WIDTH - RIGHT}" y2="{at:.1f}"/>')
        drawn.append(f'<text class="name" x="{LEFT - 8}" y="{at + 4:.1f}">{top * part:,.0f}</text>')
    return drawn


def _seconds(timeline: Timeline, y: float) -> str:
    steps = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600)
    step_s = next((step for step in steps if timeline.length_s / step <= 14), 7200)
    return "".join(
        f'<text class="tick" x="{_x(at, timeline):.1f}" y="{y + 18:.1f}">{at} s</text>'
        for at in range(0, int(timeline.length_s) + 1, step_s)
    )


def _points(values: list[float], timeline: Timeline, y: float, height: float, top: float) -> str:
    """A value stands in the middle of its slot."""
    return " ".join(
        f"{_x(min((at + 0.5) * timeline.slot_s, timeline.length_s), timeline):.1f},{y + height * (1 - value / top):.1f}"
        for at, value in enumerate(values)
    )


def _line(name: str, values: list[float], timeline: Timeline, y: float, height: float, top: float) -> str:
    return f'<polyline class="{name}" points="{_points(values, timeline, y, height, top)}"/>'


def _area(name: str, values: list[float], timeline: Timeline, y: float, height: float, top: float) -> str:
    floor = y + height
    points = f"{LEFT},{floor:.1f} {_points(values, timeline, y, height, top)} {WIDTH - RIGHT},{floor:.1f}"
    return f'<polygon class="{name}" points="{points}"/>'


def _x(seconds: float, timeline: Timeline) -> float:
    return LEFT + (WIDTH - LEFT - RIGHT) * seconds / timeline.length_s


def _round_up(value: float) -> float:
    """To a number that reads well on an axis."""
    size = 1.0
    while size * 10 <= value:
        size *= 10
    return next(size * step for step in (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if size * step >= value)
