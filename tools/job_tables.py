"""Writes the tables of options in the guides, of what jobs and the source declare: `python tools/job_tables.py`.

The table of a job stands below the heading `## spillway pipeline NAME`, in whichever page that is, that of
`format("servicebus")` below `## Options` of spark.md. Each begins with `| option`.
"""

import re
from pathlib import Path
from typing import Any, Final

from spillway.spark.jobs.job import JSON, MASTER, Job, every_job
from spillway.spark.platform.option import Declared
from spillway.spark.source.declaration import SourceOption
from spillway.spark.source.options import OPTIONS

DOCS: Final = Path(__file__).resolve().parent.parent / "docs"
TITLES: Final = "| option | default | |\n|---|---|---|\n"
SOURCE_TITLES: Final = "| option | of | default | |\n| --- | --- | --- | --- |\n"
SOURCE_PAGE: Final = "# Service Bus in Spark\n"


def row(option: Declared) -> str:
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


def with_tables(page: str) -> str:
    """The page with the tables of all that has a section in it."""
    for job in every_job():
        page = with_table(page, f"spillway pipeline {job.name}", table(job))
    return with_table(page, "Options", source_table()) if page.startswith(SOURCE_PAGE) else page


def with_table(page: str, heading: str, made: str) -> str:
    found = re.search(rf"^## {re.escape(heading)}\n", page, re.MULTILINE)
    if found is None:
        return page
    place = re.compile(r"^\| option \|.*\n(\|.*\n)+", re.MULTILINE).search(page, found.end())
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
