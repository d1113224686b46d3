"""What `make spark-kills` writes down: whole after every trial, and other kinds are kept where that is asked."""

import json
from pathlib import Path
from typing import Any

from tools.sparkkills import Evidence


def result(kind: str, **about: Any) -> dict[str, Any]:
    return {"kind": kind, "landed": True, "lost": 0, "twice": 0, "left": 0, **about}


def about(seed: int, date: str) -> dict[str, Any]:
    return {"messages": 2_000, "lock_s": 5, "seed": seed, "date": date}


def test_a_merged_run_keeps_other_kinds_and_replaces_its_own(tmp_path: Path) -> None:
    path = tmp_path / "evidence" / "kills.json"
    first = Evidence(path, about(1, "2026-11-15"))
    for kind in ("sent", "worker", "worker"):
        first.add(result(kind))
    assert first.wrong() == []
    second = Evidence(path, about(2, "2026-11-16"), is_merged=True)
    second.add(result("capture-driver"))
    second.add(result("worker", lost=3))
    written = json.loads(path.read_text())
    assert [trial["kind"] for trial in written["trials"]] == ["worker", "sent", "capture-driver"]
    assert {kind: (each["trials"], each["lost"], each["seed"]) for kind, each in written["kinds"].items()} == {
        "worker": (1, 3, 2),
        "sent": (1, 0, 1),
        "capture-driver": (1, 0, 2),
    }
    assert [trial["kind"] for trial in second.wrong()] == ["worker"]
    # Without the word the file says what this run has found, and nothing else.
    third = Evidence(path, about(3, "2026-11-17"))
    third.add(result("cold"))
    assert list(json.loads(path.read_text())["kinds"]) == ["cold"]


def test_a_file_that_has_its_day_only_once_is_merged_too(tmp_path: Path) -> None:
    path = tmp_path / "kills.json"
    old = {"about": {"date": "2026-11-14"}, "kinds": {"last": {"trials": 1}}, "trials": [result("last")]}
    path.write_text(json.dumps(old))
    Evidence(path, about(2, "2026-11-16"), is_merged=True).add(result("cold"))
    kinds = json.loads(path.read_text())["kinds"]
    assert (kinds["last"]["date"], kinds["cold"]["date"]) == ("2026-11-14", "2026-11-16")
