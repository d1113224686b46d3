"""Tables: numbers to the right, text to the left, a dash where something is not known."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from spillway.pages.markup import Content, Markup, tag

UNKNOWN: Final = "–"
TEXT: Final = "text"
NAME: Final = "text name"  # a stranger's, of any length: it may be broken anywhere
WORDS: Final = "text words"  # that explain the row
TIME: Final = "text time"


@dataclass(frozen=True)
class Column:
    title: str
    kind: str = ""  # empty: numbers


def table(
    columns: Sequence[Column | str], rows: Iterable[Sequence[Content]], total: Sequence[Content] | None = None
) -> Markup:
    """A column that is only a title has numbers. `total` is a last row, under a line."""
    kinds = [column if isinstance(column, Column) else Column(column) for column in columns]
    titles = [tag("th", column.title, class_=column.kind or None) for column in kinds]
    shown = [tag("tr", _cells(kinds, row)) for row in rows]
    if total is not None:
        shown.append(tag("tr", _cells(kinds, total), class_="sum"))
    has_titles = any(column.title for column in kinds)
    return tag("div", tag("table", tag("tr", titles) if has_titles else None, shown), class_="scroll")


def _cells(columns: Sequence[Column], row: Sequence[Content]) -> list[Markup]:
    return [
        tag("td", UNKNOWN if cell is None else cell, class_=column.kind or None)
        for column, cell in zip(columns, row, strict=True)
    ]
