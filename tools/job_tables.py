"""Writes the tables of options in the guides, of what each job on Spark declares: `python tools/job_tables.py`.

A table stands below the heading `## spillway pipeline NAME`, in whichever page that is, and begins with `| option`.
"""

import re
from pathlib import Path
from typing import Any, Final

from spillway.spark.jobs.job import JSON, MASTER, Job, every_job
from spillway.spark.platform.option import Declared

DOCS: Final = Path(__file__).resolve().parent.parent / "docs"
TITLES: Final = "| option | default | |\n|---|---|---|\n"


def row(option: Declared) -> str:
    name = f"--{option.name} {option.option.metavar}".strip()
    default = "required" if option.is_required else option.default_text()
    cells = [f"`{name}`", default, option.paragraph()]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells).replace("|  |", "| |") + " |\n"


def table(job: Job[Any, Any]) -> str:
    return TITLES + "".join(row(option) for option in (*job.options(), MASTER, JSON))


def with_tables(page: str) -> str:
    """The page with the tables of all jobs that have a section in it."""
    for job in every_job():
        found = re.search(rf"^## spillway pipeline {job.name}\n", page, re.MULTILINE)
        if found is None:
            continue
        place = re.compile(r"^\| option \|.*\n(\|.*\n)+", re.MULTILINE).search(page, found.end())
        assert place is not None, f"the section of {job.name} has no table"
        assert "\n## " not in page[found.end() : place.start()], f"the section of {job.name} has no table"
        page = page[: place.start()] + table(job) + page[place.end() :]
    return page


def main() -> None:
    for path in sorted(DOCS.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        made = with_tables(text)
        if made != text:
            path.write_text(made, encoding="utf-8")
            print(path.relative_to(DOCS.parent))


if __name__ == "__main__":
    main()
