"""The scorecard and the plugin that feeds it, driven as a developer drives them: real runs of pytest."""

import json
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.contract_rows import IDS_PER_TEST_MAX, claim_problem, load_rows
from tests.skips import is_allowed, load_allowed
from tools.scorecard import Card, Unusable, as_json, make_cards, read_results

ROOT = Path(__file__).resolve().parent.parent
ROWS = load_rows()
NOT_A_PROGRAM = {"B1", "B2", "B10", "C13", "G5", "G14", "I2", "I4", "I11"}


def cards_for(*tests: tuple[str, list[str], str]) -> dict[str, Card]:
    entries: list[dict[str, object]] = [
        {"test": test, "contract": ids, "outcome": outcome} for test, ids, outcome in tests
    ]
    return {card.row.id: card for card in make_cards(ROWS, entries)}


def test_every_row_of_the_contract_is_there() -> None:
    lengths = {"A": 19, "B": 11, "C": 15, "D": 16, "E": 8, "F": 12, "G": 14, "H": 17, "I": 11}
    assert list(ROWS) == [f"{letter}{n}" for letter, count in lengths.items() for n in range(1, count + 1)]


def test_the_first_stage_claims_its_rows() -> None:
    claimed = {f"G{n}" for n in range(1, 15)} - {"G7"} | {f"H{n}" for n in range(1, 15)} | {"H17", "F1", "F2"}
    assert {row.id for row in ROWS.values() if row.stage == 1} == claimed
    assert all(ROWS[row_id].is_claimed for row_id in claimed)


def test_the_rows_of_pairing_are_claimed() -> None:
    assert all(row.is_claimed for row in ROWS.values() if row.id[0] in "ABCDEFI")


def test_only_the_agreed_rows_are_beyond_a_program_and_each_says_why() -> None:
    assert {row.id for row in ROWS.values() if row.not_a_program} == NOT_A_PROGRAM


def test_a_row_is_passed_when_all_of_its_tests_passed() -> None:
    cards = cards_for(("a.py::x", ["H6"], "passed"), ("b.py::y[1]", ["H6", "H7"], "passed"))
    assert cards["H6"].state == "passed"
    assert not cards["H6"].is_owed
    assert [shown.test for shown in cards["H6"].tests] == ["a.py::x", "b.py::y"]


@pytest.mark.parametrize("outcome", ["failed", "skipped", "not run"])
def test_one_test_that_did_not_pass_fails_the_row(outcome: str) -> None:
    cards = cards_for(("a.py::x[1]", ["H6"], "passed"), ("a.py::x[2]", ["H6"], outcome))
    assert cards["H6"].state == "failed"
    assert cards["H6"].is_owed
    assert cards["H6"].tests[0].passed == 1
    assert cards["H6"].tests[0].cases == 2


def test_a_claimed_row_without_a_test_is_owed_and_a_later_one_is_not() -> None:
    cards = cards_for()
    later = Card(replace(ROWS["A1"], stage=4, is_claimed=False), [])
    assert (cards["H6"].state, cards["H6"].is_owed) == ("no test", True)
    assert (later.state, later.is_owed) == ("later", False)
    assert (cards["G5"].state, cards["G5"].is_owed) == ("not-a-program", False)


def test_the_json_names_what_is_owed() -> None:
    content = json.loads(as_json(list(cards_for(("a.py::x", ["H6"], "passed")).values())))
    assert content["ok"] is False
    assert "H6" not in content["owed"]
    assert "H7" in content["owed"]
    assert len(content["rows"]) == len(ROWS)


def test_a_claim_has_one_to_three_known_ids() -> None:
    assert claim_problem(["H6"], ROWS) is None
    assert claim_problem(["H6", "H7", "G1"], ROWS) is None
    assert "at most 3" in str(claim_problem(["H1", "H2", "H3", "H4"], ROWS))
    assert "unknown contract id Z9" in str(claim_problem(["H6", "Z9"], ROWS))
    assert "without an id" in str(claim_problem([], ROWS))
    assert IDS_PER_TEST_MAX == 3


def test_results_that_are_stale_broken_off_or_no_results_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    now_s = time.time()
    with pytest.raises(Unusable, match="no results"):
        read_results([path], now_s)
    path.write_text("[]")
    with pytest.raises(Unusable, match="no results"):
        read_results([path], now_s)
    path.write_text(json.dumps({"is_complete": True, "finished_at_s": now_s - 10, "tests": []}))
    with pytest.raises(Unusable, match="older than the sources"):
        read_results([path], now_s)
    path.write_text(json.dumps({"is_complete": False, "finished_at_s": now_s + 10, "tests": []}))
    with pytest.raises(Unusable, match="broken off"):
        read_results([path], now_s)
    path.write_text(json.dumps({"is_complete": True, "finished_at_s": now_s + 10, "tests": [{"test": "a"}]}))
    assert read_results([path, path], now_s) == [{"test": "a"}, {"test": "a"}]


def test_a_skip_is_allowed_only_with_a_reason() -> None:
    allowed = load_allowed("# comment\n\ntests/a.py::x -- needs a browser\ntests/b.py* -- only on Linux\n")
    assert is_allowed("tests/a.py::x", allowed)
    assert is_allowed("tests/b.py::y[1]", allowed)
    assert not is_allowed("tests/a.py::x2", allowed)
    with pytest.raises(ValueError, match="line 1"):
        load_allowed("tests/a.py::x\n")
    with pytest.raises(ValueError, match="line 2"):
        load_allowed("\ntests/a.py::x -- \n")


# -- the plugin itself, in a small project of its own


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of the plugin with no tests yet."""
    (tmp_path / "tests").mkdir()
    for name in (
        "__init__.py",
        "conftest.py",
        "contract_rows.py",
        "contract_rows.toml",
        "skips.py",
        "allowed_skips.txt",
    ):
        shutil.copy(ROOT / "tests" / name, tmp_path / "tests" / name)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def run_pytest(project: Path, source: str) -> tuple[int, str, dict[str, dict[str, object]]]:
    (project / "tests" / "test_it.py").write_text("import pytest\n" + source)
    line = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "--results-file", "results.json"]
    done = subprocess.run(line, cwd=project, capture_output=True, text=True, check=False)
    results = project / "results.json"
    tests = json.loads(results.read_text())["tests"] if results.exists() else []
    output = done.stdout + done.stderr
    return done.returncode, output, {test["test"].rpartition("::")[2]: test for test in tests}


def test_the_plugin_records_outcomes_and_ids(project: Path) -> None:
    code, _, tests = run_pytest(
        project,
        """
@pytest.mark.contract("H6", "H7")
def test_good(): pass
@pytest.mark.contract("G1")
def test_bad(): assert False
@pytest.fixture
def broken(): raise OSError
def test_no_set_up(broken): pass
@pytest.fixture
def leaks():
    yield
    raise OSError
def test_bad_tear_down(leaks): pass
""",
    )
    assert code == 1
    assert {name: (test["outcome"], test["contract"]) for name, test in tests.items()} == {
        "test_good": ("passed", ["H6", "H7"]),
        "test_bad": ("failed", ["G1"]),
        "test_no_set_up": ("failed", []),
        "test_bad_tear_down": ("failed", []),
    }


@pytest.mark.parametrize(
    ("mark", "complaint"),
    [('"H6", "H7", "H8", "H9"', "at most 3"), ('"X1"', "unknown contract id X1"), ("", "without an id")],
)
def test_a_bad_claim_stops_the_run_before_any_test(project: Path, mark: str, complaint: str) -> None:
    code, output, _ = run_pytest(project, f"@pytest.mark.contract({mark})\ndef test_it(): print('it was run')\n")
    assert code == pytest.ExitCode.USAGE_ERROR
    assert complaint in output
    assert "it was run" not in output


@pytest.mark.parametrize(
    "source",
    [
        "@pytest.mark.skip(reason='later')\ndef test_it(): pass\ndef test_other(): pass\n",
        "def test_it(): pytest.skip('later')\ndef test_other(): pass\n",
        "@pytest.mark.xfail(reason='later')\ndef test_it(): assert False\ndef test_other(): pass\n",
    ],
)
def test_a_skip_that_is_not_listed_fails_the_run(project: Path, source: str) -> None:
    code, output, tests = run_pytest(project, source)
    assert code == 1
    assert tests["test_it"]["outcome"] == "skipped"
    assert "allowed_skips.txt does not list" in output
    assert "tests/test_it.py::test_it: " in output


def test_a_module_that_skips_itself_fails_the_run_too(project: Path) -> None:
    (project / "tests" / "test_other.py").write_text("def test_other(): pass\n")
    code, output, _ = run_pytest(project, "pytest.importorskip('no_such_module')\ndef test_it(): pass\n")
    assert code == 1
    assert "allowed_skips.txt does not list" in output


def test_a_listed_skip_passes(project: Path) -> None:
    (project / "tests" / "allowed_skips.txt").write_text("tests/test_it.py::test_it -- there is no such machine\n")
    code, _, _ = run_pytest(project, "@pytest.mark.skip\ndef test_it(): pass\ndef test_other(): pass\n")
    assert code == 0


def test_the_scorecard_takes_results_and_exits_1_while_a_row_is_owed(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"is_complete": True, "finished_at_s": time.time() + 3_600, "tests": []}))
    line = [sys.executable, str(ROOT / "tools" / "scorecard.py"), "--results", str(path)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "owed: A1 A2 A3" in done.stdout
    assert all(f"\n{row_id} " in f"\n{done.stdout}" for row_id in ROWS)


def test_the_scorecard_says_when_results_cannot_be_used(tmp_path: Path) -> None:
    line = [sys.executable, str(ROOT / "tools" / "scorecard.py"), "--results", str(tmp_path / "none.json")]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("scorecard: ")
    assert done.stdout == ""
