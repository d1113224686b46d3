"""The soak of the lab: what it sums up, and that one which was cut off goes on where it was."""

import importlib.util
import json
import sys
from argparse import Namespace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from spillway.lab.scenarios import SCENARIOS

TOOL = Path(__file__).resolve().parents[2] / "tools" / "labsoak.py"


@pytest.fixture(scope="module")
def labsoak() -> ModuleType:
    spec = importlib.util.spec_from_file_location("labsoak", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module


def found(scenario: str, **values: Any) -> dict[str, Any]:
    return {
        "scenario": scenario, "sent": 100, "acknowledged": 100, "diverted": 40, "delivered": 100, "duplicated": 0,
        "lost": 0, "failed_attempts": 0, "false_acknowledgements": 0, "failover_s": 2.0, "return_s": 1.0,
        "problems": [], "status": 0, "took_s": 9.0, "load": 1.5,
    } | values  # fmt: skip


def soak_of(
    labsoak: ModuleType, tmp_path: Path, run: Any, *scenarios: str, rounds: int = 2, messages: int = 100
) -> Any:
    chosen = Namespace(
        rounds=rounds, messages=messages, rate=0.0, jobs=2, scenario=list(scenarios), out=tmp_path / "out.json",
        keep=tmp_path / "kept",
    )  # fmt: skip
    return labsoak.Soak(chosen, run)


def evidence(tmp_path: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((tmp_path / "out.json").read_text())
    return facts


def test_the_evidence_has_sums_by_scenario_the_smallest_share_and_the_worst_times(
    labsoak: ModuleType, tmp_path: Path
) -> None:
    def run(scenario: str, messages: int, rate: float, size: int, keep: Path) -> dict[str, Any]:
        later = "2-" in keep.name
        return found(scenario, diverted=35 if later else 50, failover_s=4.0 if later else 2.0, return_s=None)

    assert soak_of(labsoak, tmp_path, run, "kill", "busy").work() == 0
    facts = evidence(tmp_path)
    assert (facts["runs"], facts["runs_wanted"], facts["clean"], facts["lost"]) == (4, 4, 4, 0)
    assert [(each["round"], each["scenario"]) for each in facts["results"]] == [
        (1, "kill"), (1, "busy"), (2, "kill"), (2, "busy"),
    ]  # fmt: skip
    kill = facts["scenarios"]["kill"]
    assert (kill["rounds"], kill["messages"], kill["diverted"], kill["diverted_share_min"]) == (2, 200, 85, 0.35)
    assert (kill["lost"], kill["false_acknowledgements"], kill["duplicated"]) == (0, 0, 0)
    assert (kill["failover_s"], kill["return_s"]) == ({"median": 3.0, "max": 4.0}, None)
    assert "load average 1.5" in facts["load"]


def test_a_soak_that_was_cut_off_goes_on_where_it_was(labsoak: ModuleType, tmp_path: Path) -> None:
    runs: list[str] = []

    def cut_off(scenario: str, messages: int, rate: float, size: int, keep: Path) -> dict[str, Any]:
        if keep.name == "2-kill":
            return {"scenario": scenario, "error": "interrupted", "status": 130, "took_s": 1.0, "load": 1.0}
        return found(scenario)

    def run(scenario: str, messages: int, rate: float, size: int, keep: Path) -> dict[str, Any]:
        runs.append(keep.name)
        return found(scenario)

    first = soak_of(labsoak, tmp_path, cut_off, "kill", "freeze")
    for number, name in first.missing():
        first._one(number, name)
    assert (evidence(tmp_path)["runs"], evidence(tmp_path)["runs_wanted"]) == (3, 4)
    assert soak_of(labsoak, tmp_path, run, "kill", "freeze").work() == 0
    assert runs == ["2-kill"]
    assert evidence(tmp_path)["runs"] == 4
    runs.clear()
    soak_of(labsoak, tmp_path, run, "kill", rounds=1).work()
    assert runs == ["1-kill"], "one that came to its end is not gone on with"


def test_results_of_other_settings_are_not_taken(labsoak: ModuleType, tmp_path: Path) -> None:
    first = soak_of(labsoak, tmp_path, lambda name, *_: found(name), "kill", rounds=2)
    first._one(1, "kill")
    assert soak_of(labsoak, tmp_path, None, "kill", rounds=2).missing() == [(2, "kill")]
    assert soak_of(labsoak, tmp_path, None, "kill", rounds=2, messages=200).missing() == [(1, "kill"), (2, "kill")]


def test_bodies_are_small_and_large_in_turns(labsoak: ModuleType, tmp_path: Path) -> None:
    sizes: list[int] = []

    def run(scenario: str, messages: int, rate: float, size: int, keep: Path) -> dict[str, Any]:
        sizes.append(size)
        return found(scenario)

    soak = soak_of(labsoak, tmp_path, run, "kill", rounds=3)
    for number, name in soak.missing():
        soak._one(number, name)
    assert sizes == [200, 6_000, 200]
    assert [result["size"] for result in evidence(tmp_path)["results"]] == sizes


@pytest.mark.parametrize(
    "values",
    [
        {"lost": 1, "status": 1, "problems": ["1 acknowledged messages are nowhere"]},
        {"status": 1},
        {"error": "the lab itself failed"},
    ],
)
def test_a_run_that_broke_a_promise_or_did_not_come_about_is_not_clean(
    labsoak: ModuleType, tmp_path: Path, values: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert soak_of(labsoak, tmp_path, lambda name, *_: found(name, **values), "kill", rounds=1).work() == 1
    assert evidence(tmp_path)["clean"] == 0
    assert "NOT clean, kept in" in capsys.readouterr().out


def test_all_scenarios_are_meant_unless_some_are_named(labsoak: ModuleType, tmp_path: Path) -> None:
    assert [name for _, name in soak_of(labsoak, tmp_path, None, rounds=1).missing()] == list(SCENARIOS)
