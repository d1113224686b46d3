"""Timelines as pictures. Colours are the page's (`availability.css`); the axis is in microseconds since 1970."""

from dataclasses import dataclass, field
from typing import Any, Final

from spillway.pages.chart import BELOW, STRIP, STRIP_GAP, Axis, Panel, Point, strip_name, strip_text, svg
from spillway.pages.marks import SECOND_US, clock_marks
from spillway.pages.markup import Markup, tag

SLOTS: Final = 240
LEFT: Final = 150
TOP: Final = 8
RATES: Final = 110  # heights of the two panels
DEPTH: Final = 110
GAP: Final = 34
ROWS_MAX: Final = 12  # strips of a picture
LABELLED_MIN: Final = 66.0  # pixels that a strip must have to be written on

LEGEND: Final = (
    ("suspect", "a send failed, the failover interval runs"),
    ("away", "failed over: messages go to the backlog"),
    ("syphoned", "brought home"),
)


@dataclass
class OutageWindow:
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


def axis_of(from_us: int, to_us: int) -> Axis:
    return Axis(from_us, max(to_us, from_us + SECOND_US), LEFT)


def draw_overview(rows: list[tuple[str, list[dict[str, Any]]]], from_us: int, to_us: int) -> Markup:
    """Every entity with its outages, over the whole time that the events tell of."""
    axis = axis_of(from_us, to_us)
    drawn = []
    for at, (name, outages) in enumerate(rows):
        y = _y(at)
        drawn += [strip_name(name, axis, y), axis.box("healthy", axis.first, axis.last, y, STRIP, rx=2)]
        for outage in outages:
            title = tag("title", f"outage {outage['number']}, {outage['began']}, {outage['length_s']:,.1f} s")
            drawn.append(axis.box("away", outage["began_us"], outage["ended_us"], y, STRIP, title, rx=1))
    end = _y(len(rows))
    marks = axis.marks(end, clock_marks(axis))
    return svg(end + BELOW, "Every entity and its outages over time.", drawn, marks)


def draw_window(window: OutageWindow) -> Markup:
    """States of the processes on top, rates below them, what waits in the backlog at the bottom."""
    axis = axis_of(window.from_us, window.to_us)
    rows = _rows(window)
    strips = [_strip(name, spans, at, axis) for at, (name, spans) in enumerate(rows)]
    if not window.slots:  # nothing was diverted
        end = _y(len(rows))
        words = "When the entity was unavailable to each process."
        return svg(end + BELOW, words, strips, axis.marks(end, clock_marks(axis)))
    rates_y = _y(len(rows)) + GAP - 6
    depth_y = rates_y + RATES + GAP
    floor = depth_y + DEPTH
    words = "When the entity was unavailable to each process; messages a second into the backlog and back; the backlog."
    return svg(
        floor + BELOW,
        words,
        strips,
        axis.box("outage", window.outage["began_us"], window.outage["ended_us"], rates_y, floor - rates_y),
        _rates(window, axis, rates_y),
        _depths(window, axis, depth_y),
        axis.marks(floor, clock_marks(axis)),
    )


def _y(row: int) -> int:
    return TOP + row * (STRIP + STRIP_GAP)


def _rows(window: OutageWindow) -> list[tuple[str, list[dict[str, Any]]]]:
    by_process: dict[str, list[dict[str, Any]]] = {}
    for absence in window.absences:
        by_process.setdefault(absence["process"], []).append(absence)
    rows = list(by_process.items())
    if len(rows) <= ROWS_MAX:
        return rows
    rest = [absence for _, absences in rows[ROWS_MAX - 1 :] for absence in absences]
    return [*rows[: ROWS_MAX - 1], (f"{len(rows) - ROWS_MAX + 1:,} more", rest)]


def _strip(name: str, absences: list[dict[str, Any]], at: int, axis: Axis) -> list[Markup | None]:
    y = _y(at)
    drawn: list[Markup | None] = [strip_name(name, axis, y)]
    drawn.append(axis.box("healthy", axis.first, axis.last, y, STRIP, rx=2))
    for absence in absences:
        away_us, ended_us = absence["failed_over_us"], absence["ended_us"]
        if absence["suspected_us"] is not None:
            drawn += _span("suspect", "suspect", absence["suspected_us"], away_us or ended_us, y, axis)
        if away_us is not None:
            words = "failed over" if absence["end"] == "recovered" else f"failed over ({absence['end']})"
            drawn += _span("away", words, away_us, ended_us, y, axis)
    return drawn


def _span(kind: str, words: str, from_us: int, to_us: int, y: float, axis: Axis) -> list[Markup | None]:
    title = tag("title", f"{words}, {(to_us - from_us) / SECOND_US:,.1f} s")
    text = strip_text(words, axis, from_us, to_us, y, LABELLED_MIN)
    return [axis.box(kind, from_us, to_us, y, STRIP, title, rx=2), text]


def _rates(window: OutageWindow, axis: Axis, y: float) -> list[Markup]:
    # A second is the finest that is known: a slot that is shorter has what happened in all of it.
    slot_s = max(window.slot_s, 1.0)
    diverted, syphoned = ({slot: each[at] / slot_s for slot, each in window.slots.items()} for at in (0, 1))
    panel = Panel.up_to(max([*diverted.values(), *syphoned.values(), 1.0]), axis, y, RATES)
    drawn = panel.grid("messages a second: into the backlog, and home again")
    for name, values in (("diverted", diverted), ("syphoned", syphoned)):
        for slot, value in values.items():
            if value:
                begins = window.from_us + slot * window.slot_s * SECOND_US
                drawn.append(panel.bar(name, begins, begins + slot_s * SECOND_US, value))
    return drawn


def _depths(window: OutageWindow, axis: Axis, y: float) -> list[Markup]:
    """It stays as it is until something changes: steps."""
    waiting = 0
    if window.slots:
        diverted, syphoned, _, after = window.slots[min(window.slots)]
        waiting = max(0, after - diverted + syphoned)
    panel = Panel.up_to(max([waiting, *(each[2] for each in window.slots.values()), 1]), axis, y, DEPTH)
    points: list[Point] = [(window.from_us, waiting)]
    for slot, (_, _, slot_most, after) in sorted(window.slots.items()):
        at = window.from_us + (slot + 0.5) * window.slot_s * SECOND_US
        points += [(at, waiting), (at, slot_most), (at, after)]
        waiting = after
    points.append((window.to_us, waiting))
    return [*panel.grid("waiting in the backlog"), panel.area("depth", points)]
