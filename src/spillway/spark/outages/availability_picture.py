"""Timelines as pictures: SVG that stands in the page itself. Colours are the page's (`availability.css`)."""

import datetime
import html
from dataclasses import dataclass, field
from typing import Any, Final

SECOND_US: Final = 1_000_000
SLOTS: Final = 240
WIDTH: Final = 960
LEFT: Final = 150
RIGHT: Final = 14
STRIP: Final = 14  # height of a strip of states
STRIP_GAP: Final = 6
TOP: Final = 8
RATES: Final = 110  # heights of the two panels
DEPTH: Final = 110
GAP: Final = 34
ROWS_MAX: Final = 12  # strips of a picture
NAME_MAX: Final = 22  # characters beside a strip
LABELLED_MIN: Final = 66.0  # pixels that a strip must have to be written on
TICK_PIXELS: Final = 88  # from one time to the next, at least
LABEL_HALF: Final = 26  # of the widest time

# Steps of the axis of time, in seconds: those that people count in.
STEPS: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
DAY_S: Final = 86_400

LEGEND: Final = (
    ("suspect", "a send failed, the failover interval runs"),
    ("away", "failed over: messages go to the backlog"),
    ("syphoned", "brought home"),
)


@dataclass
class Window:
    """One outage and what is drawn of it."""

    index: int
    outage: dict[str, Any]
    from_us: int
    to_us: int
    absences: list[dict[str, Any]] = field(default_factory=list)
    # By slot: diverted, syphoned, most that waited, waiting at its end. Slots in which nothing changed are not there.
    slots: dict[int, tuple[int, int, int, int]] = field(default_factory=dict)

    @property
    def namespace(self) -> str:
        return str(self.outage["namespace"])

    @property
    def entity(self) -> str:
        return str(self.outage["entity"])

    @property
    def slot_s(self) -> float:
        return (self.to_us - self.from_us) / SECOND_US / SLOTS


class Axis:
    """From times to pixels."""

    def __init__(self, from_us: int, to_us: int) -> None:
        self.from_us = from_us
        self.to_us = max(to_us, from_us + SECOND_US)

    def x(self, at_us: float) -> float:
        inside = min(max(at_us, self.from_us), self.to_us)
        return LEFT + (WIDTH - LEFT - RIGHT) * (inside - self.from_us) / (self.to_us - self.from_us)

    def box(self, from_us: float, to_us: float, y: float, height: float, least: float = 2.0) -> str:
        left, right = self.x(from_us), self.x(to_us)
        left = min(left, WIDTH - RIGHT - least)
        return f'x="{left:.1f}" y="{y:.1f}" width="{max(right - left, least):.1f}" height="{height:.1f}"'

    def ticks(self, y: float) -> str:
        """Times of day, with the day where one begins and at the left end."""
        length_s = (self.to_us - self.from_us) / SECOND_US
        fit = max(2, (WIDTH - LEFT - RIGHT) // TICK_PIXELS)
        whole_days = -(-int(length_s) // (DAY_S * fit))
        step_s = next((step for step in STEPS if length_s / step <= fit), DAY_S * max(1, whole_days))
        first = -(-self.from_us // (step_s * SECOND_US)) * step_s
        drawn, is_dated = "", True
        for at_s in range(first, self.to_us // SECOND_US + 1, step_s):
            x = self.x(at_s * SECOND_US)
            at = datetime.datetime.fromtimestamp(at_s, datetime.UTC)
            is_midnight = at_s % DAY_S == 0
            text = f"{at:%d %b}" if is_midnight else f"{at:%H:%M:%S}" if step_s < 60 else f"{at:%H:%M}"
            drawn += f'<line class="grid" x1="{x:.1f}" y1="{y:.1f}" x2="{x:.1f}" y2="{y + 4:.1f}"/>'
            if x > WIDTH - LABEL_HALF:
                break  # it would be cut off
            drawn += f'<text class="tick" x="{x:.1f}" y="{y + 17:.1f}">{text}</text>'
            if is_dated and not is_midnight and step_s < DAY_S:
                drawn += f'<text class="tick" x="{x:.1f}" y="{y + 31:.1f}">{at:%d %b %Y}</text>'
            is_dated = False
        return drawn


def draw_overview(rows: list[tuple[str, list[dict[str, Any]]]], from_us: int, to_us: int) -> str:
    """Every entity with its outages, over the whole time that the events tell of."""
    axis = Axis(from_us, to_us)
    drawn = []
    for at, (name, outages) in enumerate(rows):
        y = TOP + at * (STRIP + STRIP_GAP)
        drawn.append(_name(name, y))
        drawn.append(f'<rect class="healthy" {axis.box(from_us, axis.to_us, y, STRIP)} rx="2"/>')
        for outage in outages:
            words = f"outage {outage['number']}, {outage['began']}, {outage['length_s']:,.1f} s"
            box = axis.box(outage["began_us"], outage["ended_us"], y, STRIP)
            drawn.append(f'<rect class="away" {box} rx="1"><title>{html.escape(words)}</title></rect>')
    end = TOP + len(rows) * (STRIP + STRIP_GAP)
    return _svg("".join(drawn) + axis.ticks(end), end + 38, "Every entity and its outages over time.")


def draw_window(window: Window) -> str:
    """States of the processes on top, rates below them, what waits in the backlog at the bottom."""
    axis = Axis(window.from_us, window.to_us)
    rows = _rows(window)
    rates_y = TOP + len(rows) * (STRIP + STRIP_GAP) + GAP - 6
    depth_y = rates_y + RATES + GAP
    drawn = [_strip(name, spans, at, axis) for at, (name, spans) in enumerate(rows)]
    if not window.slots:  # nothing was diverted
        end = TOP + len(rows) * (STRIP + STRIP_GAP)
        return _svg("".join(drawn) + axis.ticks(end), end + 38, "When each process was away.")
    shade = axis.box(window.outage["began_us"], window.outage["ended_us"], rates_y, depth_y + DEPTH - rates_y)
    drawn.append(f'<rect class="outage" {shade}/>')
    drawn += _rates(window, axis, rates_y)
    drawn += _depths(window, axis, depth_y)
    drawn.append(axis.ticks(depth_y + DEPTH))
    words = "When each process was away, messages into the backlog and home again a second, and the backlog itself."
    return _svg("".join(drawn), depth_y + DEPTH + 38, words)


def _svg(drawn: str, height: float, words: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{html.escape(words)}" '
        f'xmlns="http://www.w3.org/2000/svg">{drawn}</svg>'
    )


def _name(name: str, y: float) -> str:
    shown = name if len(name) <= NAME_MAX else f"…{name[-NAME_MAX + 1 :]}"
    return (
        f'<text class="name" x="{LEFT - 8}" y="{y + 11}">{html.escape(shown)}<title>{html.escape(name)}</title></text>'
    )


def _rows(window: Window) -> list[tuple[str, list[dict[str, Any]]]]:
    by_process: dict[str, list[dict[str, Any]]] = {}
    for absence in window.absences:
        by_process.setdefault(absence["process"], []).append(absence)
    rows = list(by_process.items())
    if len(rows) <= ROWS_MAX:
        return rows
    rest = [absence for _, absences in rows[ROWS_MAX - 1 :] for absence in absences]
    return [*rows[: ROWS_MAX - 1], (f"{len(rows) - ROWS_MAX + 1:,} more", rest)]


def _strip(name: str, absences: list[dict[str, Any]], at: int, axis: Axis) -> str:
    y = TOP + at * (STRIP + STRIP_GAP)
    drawn = _name(name, y) + f'<rect class="healthy" {axis.box(axis.from_us, axis.to_us, y, STRIP)} rx="2"/>'
    for absence in absences:
        away_us, ended_us = absence["failed_over_us"], absence["ended_us"]
        if absence["suspected_us"] is not None:
            drawn += _span("suspect", "suspect", absence["suspected_us"], away_us or ended_us, y, axis)
        if away_us is not None:
            words = "failed over" if absence["end"] == "recovered" else f"failed over ({absence['end']})"
            drawn += _span("away", words, away_us, ended_us, y, axis)
    return drawn


def _span(kind: str, words: str, from_us: int, to_us: int, y: float, axis: Axis) -> str:
    left, right = axis.x(from_us), axis.x(to_us)
    title = f"<title>{html.escape(words)}, {(to_us - from_us) / SECOND_US:,.1f} s</title>"
    drawn = f'<rect class="{kind}" {axis.box(from_us, to_us, y, STRIP)} rx="2">{title}</rect>'
    if right - left >= max(LABELLED_MIN, 6.2 * len(words)):
        drawn += f'<text class="on" x="{(left + right) / 2:.1f}" y="{y + 11}">{html.escape(words)}</text>'
    return drawn


def _rates(window: Window, axis: Axis, y: float) -> list[str]:
    # A second is the finest that is known: a slot that is shorter has what happened in all of it.
    slot_s = max(window.slot_s, 1.0)
    diverted, syphoned = ({slot: each[at] / slot_s for slot, each in window.slots.items()} for at in (0, 1))
    top = round_up(max([*diverted.values(), *syphoned.values(), 1.0]))
    drawn = _scale(y, RATES, top, "messages a second: into the backlog, and home again")
    width = max(1.0, slot_s / window.slot_s)
    for name, values in (("diverted", diverted), ("syphoned", syphoned)):
        for slot, value in values.items():
            if value:
                begins = window.from_us + slot * window.slot_s * SECOND_US
                height = RATES * value / top
                box = axis.box(begins, begins + width * window.slot_s * SECOND_US, y + RATES - height, height, 1.0)
                drawn.append(f'<rect class="{name}" {box}/>')
    return drawn


def _depths(window: Window, axis: Axis, y: float) -> list[str]:
    """It stays as it is until something changes: steps."""
    waiting = 0
    if window.slots:
        diverted, syphoned, _, after = window.slots[min(window.slots)]
        waiting = max(0, after - diverted + syphoned)
    most = max([waiting, *(each[2] for each in window.slots.values()), 1])
    top = round_up(float(most))
    points = [(axis.x(window.from_us), waiting)]
    for slot, (_, _, slot_most, after) in sorted(window.slots.items()):
        x = axis.x(window.from_us + (slot + 0.5) * window.slot_s * SECOND_US)
        points += [(x, waiting), (x, slot_most), (x, after)]
        waiting = after
    points.append((axis.x(window.to_us), waiting))
    shown = " ".join(f"{x:.1f},{y + DEPTH * (1 - value / top):.1f}" for x, value in points)
    floor = y + DEPTH
    return [
        *_scale(y, DEPTH, top, "waiting in the backlog"),
        f'<polygon class="depth" points="{LEFT},{floor:.1f} {shown} {WIDTH - RIGHT},{floor:.1f}"/>',
    ]


def _scale(y: float, height: float, top: float, what: str) -> list[str]:
    drawn = [f'<text class="what" x="{LEFT}" y="{y - 7:.1f}">{what}</text>']
    for part in (0.0, 0.5, 1.0):
        at = y + height * (1 - part)
        drawn.append(f'<line class="grid" x1="{LEFT}" y1="{at:.1f}" x2="{WIDTH - RIGHT}" y2="{at:.1f}"/>')
        shown = f"{top * part:,.0f}" if top >= 2 else f"{top * part:.1f}"
        drawn.append(f'<text class="name" x="{LEFT - 8}" y="{at + 4:.1f}">{shown}</text>')
    return drawn


def round_up(value: float) -> float:
    """To a number that reads well on an axis."""
    size = 1.0
    while size * 10 <= value:
        size *= 10
    return next(size * step for step in (1, 1.2, 1.6, 2, 2.4, 3, 4, 5, 6, 8, 10) if size * step >= value)
