"""Groups of dead letters as a table. What strangers wrote is shown as text that is nothing else to a terminal."""

from collections.abc import Sequence
from typing import Any, Final

from spillway.model.texts import count_text
from spillway.spark.triage.frames import ENTITY, ERROR, PATTERN, REASON
from spillway.spark.triage.summaries import ShowSummary

CELL_CHARS_MAX: Final = 90
# The longest ones last, so that nothing stands behind them.
ORDER: Final = (REASON, ENTITY, "age", ERROR, PATTERN)
EMPTY: Final = "–"


def show_text(summary: ShowSummary) -> str:
    entities = count_text(len(summary.entities), "entity", "entities")
    if not summary.messages:
        return f"no dead letters in {entities} of {summary.namespace}"
    lines = [f"{count_text(summary.messages, 'dead letter')} in {entities} of {summary.namespace}", ""]
    lines += table_of(summary)
    hidden = summary.groups_count - len(summary.groups)
    if hidden > 0:
        lines.append(f"and {count_text(hidden, 'smaller group')}")
    return "\n".join(lines)


def table_of(summary: ShowSummary) -> list[str]:
    keys = [name for name in ORDER if name in summary.by]
    titles = ["messages", "oldest (UTC)", "newest (UTC)", "example", *keys]
    rows = [titles, *[_cells(group, keys) for group in summary.groups]]
    widths = [max(len(row[index]) for row in rows) for index in range(len(titles))]
    return [_line(row, widths) for row in rows]


def _cells(group: dict[str, Any], keys: Sequence[str]) -> list[str]:
    example = group["example"]
    # Where the entity is said anyway, the number is enough.
    where = str(example["sequence_number"]) if ENTITY in keys else f"{example['entity']} {example['sequence_number']}"
    return [
        f"{group['messages']:,}",
        minute(group["oldest"]),
        minute(group["newest"]),
        printable(where),
        *[printable(group[name]) or EMPTY for name in keys],
    ]


def _line(row: list[str], widths: list[int]) -> str:
    first = row[0].rjust(widths[0])
    return "  ".join([first, *[cell.ljust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]]).rstrip()


def minute(text: str) -> str:
    return text[:16].replace("T", " ")


def printable(text: str) -> str:
    shown = "".join(each if each.isprintable() else " " for each in text)
    return shown if len(shown) <= CELL_CHARS_MAX else shown[: CELL_CHARS_MAX - 1] + "…"
