"""What the jobs on Spark made of a run: where their pages are, and how the lab tells of them."""

import io
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from spillway.cli.errors import UsageError
from spillway.cli.lab import is_spark
from spillway.lab.pages import Pages, pages_section
from spillway.lab.screen import show_pages

HOSTILE = "<script>alert('x')</script>\"&'"


def made(name: str = "orders") -> dict[str, Any]:
    outage = {"entity": name, "length_s": 14.25, "to_fail_over_s": 1.5, "to_return_s": None, "backlog_max": 8_000}
    line = {"name": name, "operations": 40_000, "units": 40_000, "list_cost": "0.032"}
    summary = {"currency": "USD", "total": "0.03", "by_line": [line]}
    return {
        "cost": {"words": ["2027-01-15 to 2027-01-15: USD 0.03"], "summary": summary},
        "availability": {"words": ["1 outage"], "summary": {"outages": [outage]}},
    }


def with_pages(directory: Path) -> Path:
    (directory / "cost").mkdir(parents=True)
    for path in (directory / "cost" / "cost.html", directory / "availability.html"):
        path.write_text(f"<!doctype html>{path.stem}")
        path.with_suffix(".json").write_text("{}")
    return directory


def test_pages_and_numbers_are_put_beside_the_report(tmp_path: Path) -> None:
    run = with_pages(tmp_path / "kill")
    pages = Pages.of(made(), run, tmp_path / "outage.html", "", is_kept=False)
    assert pages.files["cost"] == tmp_path / "outage-cost.html"
    assert pages.files["availability"].read_text() == "<!doctype html>availability"
    assert (tmp_path / "outage-availability.json").read_text() == "{}"
    several = Pages.of(made(), run, tmp_path / "outage.html", "kill", is_kept=False)
    assert several.files["cost"] == tmp_path / "outage-kill-cost.html"


def test_without_a_report_they_are_where_everything_is_kept_or_nowhere(tmp_path: Path) -> None:
    run = with_pages(tmp_path / "kill")
    assert Pages.of(made(), run, None, "", is_kept=True).files["cost"] == run / "cost" / "cost.html"
    assert Pages.of(made(), run, None, "", is_kept=False).files == {}


def test_the_page_of_the_lab_has_the_numbers_and_the_way_to_the_pages_beside_it() -> None:
    text = str(pages_section(Pages(made(), {"cost": Path("/somewhere/a-cost.html")})))
    assert "USD 0.03" in text and "<td>40,000</td>" in text and "unavailable for 14.2 s" in text
    assert 'href="a-cost.html"' in text and "/somewhere" not in text


def test_nothing_that_a_job_answered_is_markup() -> None:
    text = str(pages_section(Pages(made(HOSTILE), {"cost": Path(f"/{HOSTILE.replace('/', '')}.html")})))
    assert "<script" not in text


def test_the_terminal_gets_all_of_one_run_and_a_line_each_of_several() -> None:
    console = Console(file=io.StringIO(), width=80)
    pages = Pages(made(), {"cost": Path("a-cost.html")})
    show_pages(console, [pages])
    show_pages(console, [pages, pages])
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert "2027-01-15 to 2027-01-15: USD 0.03" in lines
    told = "orders: unavailable for 14.2 s, 1.5 s to fail over, an unknown time to return; 8,000 waited at most"
    assert told in lines
    assert lines[-4:] == ["cost USD 0.03", "What it cost is in a-cost.html"] * 2


def test_without_spark_the_lab_says_so_in_one_line_and_does_without(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    assert not is_spark(None)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("spillway: Spark is not installed: pip install 'spillway-servicebus[spark]'")
    with pytest.raises(UsageError, match="--syphon spark: Spark is not installed"):
        is_spark("spark")
    assert not is_spark("process")
