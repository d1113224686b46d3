"""What the jobs on Spark made of a run: their pages beside the lab's own, and their numbers in words."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from spillway.pages.markup import Markup, joined, tag
from spillway.pages.table import TEXT, Column, table

JOBS: Final = ("cost", "availability")
WIDTH: Final = 78


@dataclass(frozen=True)
class Pages:
    """`made` is what the jobs answered; `files` are their pages, by the job's name, if they are kept at all."""

    made: dict[str, Any]
    files: dict[str, Path]

    @classmethod
    def of(cls, made: dict[str, Any], directory: Path, beside: Path | None, name: str, is_kept: bool) -> "Pages":
        """Copied to where the lab's report is, each with its numbers as JSON; else they stay with what is kept."""
        sources = {"cost": directory / "cost" / "cost.html", "availability": directory / "availability.html"}
        if beside is None:
            return cls(made, sources if is_kept else {})
        stem = "-".join(filter(None, (beside.stem, name)))
        files = {}
        for job, source in sources.items():
            files[job] = beside.with_name(f"{stem}-{job}.html")
            shutil.copyfile(source, files[job])
            shutil.copyfile(source.with_suffix(".json"), files[job].with_suffix(".json"))
        return cls(made, files)

    def cost_words(self) -> list[str]:
        return [str(line) for line in self.made["cost"]["words"]]

    def availability_words(self) -> list[str]:
        """A sentence an outage, then what the job says of all."""
        lines = []
        for row in self.made["availability"]["summary"]["outages"]:
            lines.append(
                f"{row['entity']}: unavailable for {seconds(row['length_s'])}, "
                f"{seconds(row['to_fail_over_s'])} to fail over, "
                f"{seconds(row['to_return_s'])} to return; {row['backlog_max']:,} waited at most"
            )
        return [*lines, *(str(line) for line in self.made["availability"]["words"])]

    def total(self) -> str:
        summary = self.made["cost"]["summary"]
        return f"{summary['currency']} {summary['total']}"

    def files_words(self) -> list[str]:
        titles = {"cost": "What it cost is", "availability": "How available it was is"}
        return [f"{titles[job]} in {path}" for job, path in self.files.items()]


def seconds(value: float | None) -> str:
    return "an unknown time" if value is None else f"{value:,.1f} s"


def pages_section(pages: Pages) -> Markup:
    """A section for the lab's page: the numbers, and the way to the whole pages beside it."""
    summary = pages.made["cost"]["summary"]
    rows = [
        (row["name"].replace("_", " "), row["operations"], row["units"], row["list_cost"]) for row in summary["by_line"]
    ]
    return joined(
        tag("h3", "What it cost, in money"),
        tag(
            "p",
            f"{pages.total()}, at the list prices of Standard namespaces: the base of both for the hours begun, "
            "operations within those included. ",
            _link(pages, "cost"),
        ),
        table((Column("line", TEXT), "operations", "units", f"at list price, {summary['currency']}"), rows),
        tag("h3", "How available it was"),
        [tag("p", line) for line in pages.availability_words()],
        tag("p", _link(pages, "availability")),
    )


def _link(pages: Pages, job: str) -> Markup | None:
    if job not in pages.files:
        return None
    return tag("a", "The report of ", tag("code", f"spillway pipeline {job}"), href=pages.files[job].name)
