"""The timeline as a picture. Colours are the page's (`report.css`)."""

from typing import Final

from spillway.lab.timeline import ACKNOWLEDGED, ANSWERED, DIVERTED, FAILED, Span, Timeline
from spillway.pages.chart import STRIP, STRIP_GAP, Axis, Panel, Point, strip_name, strip_text, svg
from spillway.pages.marks import elapsed_marks
from spillway.pages.markup import Markup

LEFT: Final = 92
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


def draw(timeline: Timeline) -> Markup:
    """States on top, rates below them, what waits in the backlog at the bottom, if there was anything."""
    axis = Axis(0.0, timeline.length_s, LEFT)
    rows = [("primary", _primary(timeline)), *timeline.states.items()]
    rates_y = TOP + len(rows) * (STRIP + STRIP_GAP) + GAP - 8
    depth_y = rates_y + RATES + GAP
    floor_y = depth_y + DEPTH if any(timeline.backlog) else rates_y + RATES
    drawn = [_strip(name, spans, at, axis) for at, (name, spans) in enumerate(rows)]
    outages = [
        axis.box("outage", span.from_s, span.to_s, rates_y, floor_y - rates_y, least=1.0) for span in timeline.outages
    ]
    panels = _rates(timeline, axis, rates_y)
    if any(timeline.backlog):
        panels += _depth(timeline, axis, depth_y)
    words = "Messages a second over time: sent to the primary, sent to the backlog, delivered; and the backlog itself."
    return svg(floor_y + 26, words, drawn, outages, panels, axis.marks(floor_y, elapsed_marks(axis)))


def _primary(timeline: Timeline) -> list[Span]:
    spans = []
    at_s = 0.0
    for outage in timeline.outages:
        spans += [Span(at_s, outage.from_s, "healthy"), outage]
        at_s = outage.to_s
    return [*spans, Span(at_s, timeline.length_s, "healthy")]


def _strip(name: str, spans: list[Span], at: int, axis: Axis) -> list[Markup | None]:
    y = TOP + at * (STRIP + STRIP_GAP)
    drawn: list[Markup | None] = [strip_name(name, axis, y)]
    for span in spans:
        kind = f"state {span.state.replace(' ', '-')}"
        drawn.append(axis.box(kind, span.from_s, span.to_s, y, STRIP, least=1.0, rx=2))
        if span.state != "healthy":
            drawn.append(strip_text(span.state, axis, span.from_s, span.to_s, y, LABELLED_MIN))
    return drawn


def _rates(timeline: Timeline, axis: Axis, y: float) -> list[Markup]:
    none = [0.0] * len(timeline.backlog)
    acknowledged, diverted = timeline.rates.get(ACKNOWLEDGED, none), timeline.rates.get(DIVERTED, none)
    delivered = timeline.rates.get(ANSWERED, none)
    sent = [max(all_, part) for all_, part in zip(acknowledged, diverted, strict=True)]
    panel = Panel.up_to(max(*sent, *delivered, 1.0), axis, y, RATES)
    drawn = panel.grid("messages/s")
    drawn.append(panel.area("to-primary", _points(sent, timeline)))
    drawn.append(panel.area("diverted", _points(diverted, timeline)))
    drawn.append(panel.line("delivered", _points(delivered, timeline)))
    for at, value in enumerate(timeline.rates.get(FAILED, none)):
        if value:
            begins_s = at * timeline.slot_s
            drawn.append(axis.box("failed", begins_s, begins_s + timeline.slot_s, panel.floor - 6, 6, least=1.5))
    return drawn


def _depth(timeline: Timeline, axis: Axis, y: float) -> list[Markup]:
    panel = Panel.up_to(max(*timeline.backlog, 1, 1), axis, y, DEPTH)
    depths = _points([float(value) for value in timeline.backlog], timeline)
    return [
        *panel.grid("waiting in the backlog, until the syphon brings it home"),
        panel.area("diverted", depths),
    ]


def _points(values: list[float], timeline: Timeline) -> list[Point]:
    """A value stands in the middle of its slot."""
    return [((at + 0.5) * timeline.slot_s, value) for at, value in enumerate(values)]
