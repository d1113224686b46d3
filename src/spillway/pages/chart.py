"""Charts: SVG that stands in the page itself. One axis across, panels with a scale of their own above it.

Colours are the style's, by class. Across goes whatever a chart counts in: seconds, microseconds, slots.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from spillway.pages.markup import Content, Markup, tag

WIDTH: Final = 960
RIGHT: Final = 14  # of the last pixel that is drawn on
STRIP: Final = 14  # height of a strip of states
STRIP_GAP: Final = 6
LABEL_HALF: Final = 26.0  # of the widest text below the axis
NAME_MAX: Final = 22  # characters beside a strip
CHARACTER: Final = 6.2  # pixels, about
TICK: Final = 4.0
LINE: Final = 14.0
BELOW: Final = 38  # room for two lines of text under the axis

Point = tuple[float, float]


@dataclass(frozen=True)
class Mark:
    """A place on the axis, and up to two lines of text."""

    at: float
    texts: tuple[str, ...]
    has_tick: bool = True


@dataclass(frozen=True)
class Axis:
    """From values to pixels, and the marks below."""

    first: float
    last: float
    left: float

    def x(self, at: float) -> float:
        inside = min(max(at, self.first), self.last)
        return self.left + self.width * (inside - self.first) / (self.last - self.first)

    @property
    def width(self) -> float:
        return WIDTH - RIGHT - self.left

    def box(
        self,
        kind: str,
        from_: float,
        to: float,
        y: float,
        height: float,
        *title: Markup,
        least: float = 2.0,
        rx: int = 0,
    ) -> Markup:
        """A rectangle that is seen, however short the time."""
        left = min(self.x(from_), WIDTH - RIGHT - least)
        width = max(self.x(to) - left, least)
        return tag("rect", *title, class_=kind, x=left, y=y, width=width, height=height, rx=rx or None)

    def marks(self, y: float, marks: Iterable[Mark]) -> list[Markup]:
        drawn = []
        for mark in marks:
            x = self.x(mark.at)
            if mark.has_tick:
                drawn.append(tag("line", class_="grid", x1=x, y1=y, x2=x, y2=y + TICK))
            if x <= WIDTH - LABEL_HALF:  # else it would be cut off
                texts = enumerate(mark.texts)
                drawn += [tag("text", text, class_="tick", x=x, y=y + 17.0 + at * LINE) for at, text in texts]
        return drawn


@dataclass(frozen=True)
class Panel:
    """A scale from 0 up to `top`, over the axis."""

    axis: Axis
    y: float
    height: float
    top: float

    @classmethod
    def up_to(cls, most: float, axis: Axis, y: float, height: float) -> "Panel":
        return cls(axis, y, height, round_up(most))

    @property
    def floor(self) -> float:
        return self.y + self.height

    def up(self, value: float) -> float:
        return self.y + self.height * (1 - value / self.top)

    def grid(self, what: str = "") -> list[Markup]:
        left = self.axis.left
        drawn = [tag("text", what, class_="what", x=left, y=self.y - 7.0)] if what else []
        for part in (0.0, 0.5, 1.0):
            at = self.up(self.top * part)
            drawn.append(tag("line", class_="grid", x1=left, y1=at, x2=WIDTH - RIGHT, y2=at))
            drawn.append(tag("text", number(self.top * part, self.top), class_="name", x=left - 8.0, y=at + 4.0))
        return drawn

    def bar(self, kind: str, from_: float, to: float, value: float, below: float = 0.0) -> Markup:
        """`below` is where it stands: on the floor, or on another bar."""
        high = self.up(below) - self.up(below + value)
        return self.axis.box(kind, from_, to, self.up(below + value), max(high, 0.5), least=1.0)

    def area(self, kind: str, points: Sequence[Point]) -> Markup:
        """From one edge of the axis to the other, filled."""
        left, right = f"{self.axis.left:g},{self.floor:.1f}", f"{WIDTH - RIGHT},{self.floor:.1f}"
        return tag("polygon", class_=kind, points=f"{left} {self._points(points)} {right}")

    def line(self, kind: str, points: Sequence[Point]) -> Markup:
        return tag("polyline", class_=kind, points=self._points(points))

    def _points(self, points: Sequence[Point]) -> str:
        return " ".join(f"{self.axis.x(at):.1f},{self.up(value):.1f}" for at, value in points)


def svg(height: float, words: str, *drawn: Content) -> Markup:
    """`words` are what someone hears who cannot see it."""
    return tag(
        "svg",
        *drawn,
        viewBox=f"0 0 {WIDTH} {height:.0f}",
        role="img",
        aria_label=words,
        xmlns="http://www.w3.org/2000/svg",
    )


def strip_name(name: str, axis: Axis, y: float) -> Markup:
    """Beside a strip of states; a long one is cut, and whole under the pointer."""
    shown = name if len(name) <= NAME_MAX else f"…{name[-NAME_MAX + 1 :]}"
    title = tag("title", name) if shown != name else None
    return tag("text", shown, title, class_="name", x=axis.left - 8.0, y=y + 11.0)


def strip_text(text: str, axis: Axis, from_: float, to: float, y: float, least: float) -> Markup | None:
    """On a strip, if it is long enough."""
    left, right = axis.x(from_), axis.x(to)
    if right - left < max(least, CHARACTER * len(text)):
        return None
    return tag("text", text, class_="on", x=(left + right) / 2, y=y + 11.0)


def round_up(value: float) -> float:
    """To a number that half of it is easy to read of."""
    size = 1.0
    while size < value:
        size *= 10
    while size / 10 >= value:
        size /= 10
    return next(size / 10 * step for step in (1, 1.2, 1.6, 2, 2.4, 3, 4, 5, 6, 8, 10) if size / 10 * step >= value)


def number(value: float, top: float) -> str:
    """On a scale that ends at `top`."""
    if value >= 1_000_000:
        return f"{value / 1_000_000:,.4g} M"
    return f"{value:,.0f}" if top >= 10 else f"{value:.4g}"
