"""Writes the tables of the guides that jobs and the source declare: `python tools/job_tables.py`.

The options of a job stand below the heading `## spillway pipeline NAME`, in whichever page that is, those of
`format("servicebus")` below `## Options` of spark.md: a table that begins with `| option`. What jobs tell Spark's
metrics stands below `## Prometheus`, and begins with `| number`.
"""

import re
from pathlib import Path
from typing import Any, Final

from spillway.spark.jobs.job import JSON, MASTER, Job, every_job
from spillway.spark.platform.job_metrics import GAUGES, NUMBERS
from spillway.spark.platform.option import DeclaredOption
from spillway.spark.source.declaration import SourceOption
from spillway.spark.source.options import OPTIONS

DOCS: Final = Path(__file__).resolve().parent.parent / "docs"
TITLES: Final = "| option | default | |\n|---|---|---|\n"
SOURCE_TITLES: Final = "| option | of | default | |\n| --- | --- | --- | --- |\n"
NUMBER_TITLES: Final = "| number | | |\n|---|---|---|\n"
SOURCE_PAGE: Final = "# Service Bus in Spark\n"


def row(option: DeclaredOption) -> str:
    name = f"--{option.name} {option.option.metavar}".strip()
    default = "required" if option.is_required else option.default_text()
    return line(f"`{name}`", default, option.paragraph()).replace("|  |", "| |")


def source_row(option: SourceOption[Any]) -> str:
    return line(f"`{option.name}`", option.side, f"`{option.default}`" if option.default else "", option.paragraph())


def line(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def table(job: Job[Any, Any]) -> str:
    return TITLES + "".join(row(option) for option in (*job.options(), MASTER, JSON))


def source_table() -> str:
    return SOURCE_TITLES + "".join(source_row(option) for option in OPTIONS)


def number_table() -> str:
    """What jobs tell Spark's metrics."""
    rows = [(job, name, text) for job, numbers in NUMBERS.items() for name, text in numbers.items()]
    return NUMBER_TITLES + "".join(
        line(f"`{job}_{name}`", "rises and falls" if name in GAUGES else "rises", text) for job, name, text in rows
    )


def with_tables(page: str) -> str:
    """The page with the tables of all that has a section in it."""
    for job in every_job():
        page = with_table(page, f"spillway pipeline {job.name}", table(job))
    page = with_table(page, "Prometheus", number_table(), "number")
    return with_table(page, "Options", source_table()) if page.startswith(SOURCE_PAGE) else page


def with_table(page: str, heading: str, made: str, first: str = "option") -> str:
    found = re.search(rf"^## {re.escape(heading)}\n", page, re.MULTILINE)
    if found is None:
        return page
    place = re.compile(rf"^\| {first} \|.*\n(\|.*\n)+", re.MULTILINE).search(page, found.end())
    assert place is not None, f"the section {heading} has no table"
    assert "\n## " not in page[found.end() : place.start()], f"the section {heading} has no table"
    return page[: place.start()] + made + page[place.end() :]


def main() -> None:
    for path in sorted(DOCS.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        made = with_tables(text)
        if made != text:
            path.write_text(made, encoding="utf-8")
            print(path.relative_to(DOCS.parent))


if __name__ == "__main__":
    main()
