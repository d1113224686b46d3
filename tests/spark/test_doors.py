"""The names of the Spark room that the guides promise, under the paths that they promise."""

import re
import subprocess
import sys
from importlib import import_module, resources
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
GUIDES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").rglob("*.*"))]
IMPORTED = re.compile(r"^ *from (spillway\.spark[\w.]*) import ([\w, ]+)$", re.MULTILINE)
MODULE = re.compile(r"\bspillway\.spark(?:\.[a-z_]+)+")


def texts() -> list[str]:
    return [path.read_text(encoding="utf-8") for path in GUIDES if path.suffix in (".md", ".py", ".yml", ".yaml")]


def promised() -> list[tuple[str, str]]:
    found = {
        (module, name.strip())
        for text in texts()
        for module, names in IMPORTED.findall(text)
        for name in names.split(",")
    }
    return sorted(found)


@pytest.mark.parametrize(("module", "name"), promised())
def test_what_a_guide_imports_is_there(module: str, name: str) -> None:
    found = import_module(module)
    if not hasattr(found, name):
        import_module(f"{module}.{name}")


@pytest.mark.parametrize("name", sorted({name for text in texts() for name in MODULE.findall(text)}))
def test_what_a_guide_names_is_there(name: str) -> None:
    try:
        import_module(name)
    except ModuleNotFoundError:
        module, _, attribute = name.rpartition(".")
        assert hasattr(import_module(module), attribute)


def test_doors_open_without_spark() -> None:
    doors = "captured, charges, home, java, ledger_frames, prices, session, settle"
    text = f"import sys; from spillway.spark import {doors}; print('pyspark' in sys.modules, 'pyarrow' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True).stdout
    assert told.split() == ["False", "False"]


@pytest.mark.parametrize(
    ("package", "file"),
    [
        ("platform", "log4j2.properties"),
        ("billing", "cost_report.css"),
        ("billing", "price_lists/standard-2026-11.json"),
        ("outages", "availability.css"),
    ],
)
def test_files_lie_beside_the_code_that_reads_them(package: str, file: str) -> None:
    assert resources.files(f"spillway.spark.{package}").joinpath(file).read_text(encoding="utf-8")
