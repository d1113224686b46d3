"""The summary of `spillway pipeline availability`, on a terminal."""

import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from spillway.spark.outages.availability_summary import AvailabilitySummary

WIDTH_PIPED: Final = 160  # where there is no terminal to ask


def say(summary: "AvailabilitySummary") -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    from spillway.spark.jobs.availability import table_of, words_of

    titles, *rows = table_of(summary)
    if rows:
        table = Table(box=SIMPLE_HEAD)
        for title in titles:
            is_text = title in ("entity", "began (UTC)", "end")
            table.add_column(title, justify="left" if is_text else "right", no_wrap=title != "entity", overflow="fold")
        for row in rows:
            table.add_row(*row)
        Console(width=None if sys.stdout.isatty() else WIDTH_PIPED, markup=False, highlight=False).print(table)
    print("\n".join(words_of(summary)))
