"""The table of what callers see: the guide has what was measured."""

import json
from pathlib import Path

from tools import callers

ROOT = Path(__file__).resolve().parents[2]
FACTS = json.loads((ROOT / "docs" / "evidence" / "callers.json").read_text(encoding="utf-8"))


def test_the_table_in_the_guide_is_what_was_measured() -> None:
    page = callers.GUIDE.read_text(encoding="utf-8")
    assert callers.with_table(page, FACTS) == page
    assert page.count(callers.BEGIN) == page.count(callers.END) == 1


def test_every_fault_was_measured_with_every_setting() -> None:
    measured = {(row["fault"], row["interval_s"], row["pending"]) for row in FACTS["rows"]}
    wanted = {
        (fault, each, pending) for fault in callers.FAULTS for each in (0.0, 2.0) for pending in ("raise", "hold")
    }
    assert measured == wanted


def test_a_call_is_told_in_words() -> None:
    assert callers.call_words({"took_s": 0.7, "returned": "returns"}) == "returns within a second"
    assert callers.call_words({"took_s": 9.9, "returned": "EntityFailed"}) == "`EntityFailed` after 10 s"


def test_settings_that_saw_the_same_share_a_row() -> None:
    same = {(interval_s, pending): "x" for interval_s in (0.0, 2.0) for pending in ("raise", "hold")}
    assert callers.merged(same) == [("any | any", "x")]
    assert callers.merged(same | {(2.0, "hold"): "y"}) == [
        ("zero | any", "x"),
        ("2 s | raise", "x"),
        ("2 s | hold", "y"),
    ]
