"""What people see in the terminal: progress while it runs, and a table at the end that fits 80 columns."""

import time
from typing import Any, Final

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from spillway.lab.pages import Pages
from spillway.lab.run import Progress
from spillway.lab.scenarios import Scenario

WIDTH: Final = 78
BAR_WIDTH: Final = 40
BARS: Final = (
    ("acknowledged", "green"),
    ("diverted", "dark_orange"),
    ("syphoned", "magenta"),
    ("delivered", "blue"),
)
WORDS: Final = (
    ("sent", "distinct messages that the producers tried to send"),
    ("acknowledged", "of these were confirmed to the producers"),
    ("diverted", "of these the backlog on the secondary took"),
    ("syphoned", "brought home from the backlog"),
    ("delivered", "distinct messages that the consumers received"),
    ("duplicated", "of these were stored more than once"),
    ("lost", "acknowledged, and nowhere"),
    ("out_of_order", "stored behind a later one of the same producer"),
    ("failed_attempts", "sends whose caller got an error, and sent again"),
    ("false_acknowledgements", "callers that got a wrong answer"),
    ("failover_s", "seconds from the fault until the backlog took over"),
    ("return_s", "seconds from its end until all senders were back"),
    ("pings", "to the primary while it was unavailable"),
)
TITLES: Final = {"failover_s": "failover", "return_s": "return", "false_acknowledgements": "false answers"}
COLUMNS: Final = (
    ("acknowledged", "safe"),
    ("diverted", "diverted"),
    ("delivered", "delivered"),
    ("duplicated", "twice"),
    ("lost", "lost"),
    ("failover_s", "over s"),
    ("return_s", "back s"),
    ("pings", "pings"),
)


class Screen:
    """Progress of one scenario, redrawn in a terminal, and a line per phase elsewhere. Use as a context manager."""

    def __init__(self, console: Console, scenario: Scenario, messages: int) -> None:
        self.console = console
        self.messages = messages
        self.progress = Progress("", False, 0.0, {})
        self.since_s = time.monotonic()
        self.spinner = Spinner("dots")
        self.live = Live(self, console=console, refresh_per_second=8, transient=True)
        console.print(Text.assemble((scenario.name, "bold"), f": {scenario.about}"), soft_wrap=True)

    def __enter__(self) -> "Screen":
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self.console.is_terminal:
            self.live.stop()

    def show(self, progress: Progress) -> None:
        if progress.phase != self.progress.phase and not self.console.is_terminal:
            self.console.print(f"  {clock(progress.elapsed_s)}  {progress.phase}", soft_wrap=True, highlight=False)
        self.progress = progress

    def __rich__(self) -> Table:
        now = self.progress
        style = "bold red" if now.is_outage else ""
        shown = Table.grid(padding=(0, 1))
        title = Table.grid(padding=(0, 1))
        title.add_row(self.spinner, clock(time.monotonic() - self.since_s), Text(now.phase, style=style))
        shown.add_row(title)
        bars = Table.grid(padding=(0, 1))
        for name, colour in BARS:
            count = now.counts.get(name, 0)
            bar = ProgressBar(self.messages, min(count, self.messages), BAR_WIDTH, complete_style=colour)
            bars.add_row("", name, bar, Text(f"{count:>9,}"))
        shown.add_row(bars)
        return shown


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def verdict_text(found: dict[str, Any]) -> Text:
    """The verdict first, in one line."""
    if found["problems"]:
        return Text.assemble((f"{found['scenario']}: broken", "bold red"))
    share = found["diverted"] * 100 // max(found["acknowledged"], 1)
    return Text.assemble(
        (f"{found['scenario']}: nothing was lost", "bold green"),
        f" of {found['acknowledged']:,} messages, {share} % of them diverted",
    )


def show_results(console: Console, results: list[dict[str, Any]]) -> None:
    if len(results) == 1:
        show_one(console, results[0])
    else:
        show_all(console, results)
    for found in results:
        for problem in found["problems"]:
            console.print(Text(f"{found['scenario']}: {problem}", style="red"), soft_wrap=True)


def show_one(console: Console, found: dict[str, Any]) -> None:
    console.print(verdict_text(found), soft_wrap=True)
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1))
    table.add_column(min_width=16)
    table.add_column(justify="right")
    table.add_column(style="dim")
    for name, words in WORDS:
        table.add_row(f"  {TITLES.get(name, name.replace('_', ' '))}", number(found[name]), words)
    total = sum(found["operations"].values())
    table.add_row("  operations", number(total), "that both brokers counted")
    console.print(table, width=max(WIDTH, min(console.width, 100)), highlight=False)


def show_pages(console: Console, pages: list[Pages]) -> None:
    """What the jobs on Spark say: all of one, a line each of several."""
    for each in pages:
        if len(pages) == 1:
            lines = ["", *each.cost_words(), "", *each.availability_words(), ""]
        else:
            lines = [f"cost {each.total()}"]
        for line in [*lines, *each.files_words()]:
            console.print(Text(line), soft_wrap=True)


def show_all(console: Console, results: list[dict[str, Any]]) -> None:
    """A row a scenario."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("scenario", no_wrap=True)
    for _, title in COLUMNS:
        table.add_column(title, justify="right", no_wrap=True)
    for found in results:
        style = "red" if found["problems"] else ""
        table.add_row(found["scenario"], *(number(found[name]) for name, _ in COLUMNS), style=style)
    console.print(table, width=max(WIDTH, min(console.width, 100)), highlight=False)


def number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.1f}"
