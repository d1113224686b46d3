"""The scorecard: every promise of the contract, the tests that show it, and whether they passed.

    python tools/scorecard.py                     runs the tests that claim a row, then prints
    python tools/scorecard.py --results FILE...   takes results that `make test` wrote, if nothing changed since
    python tools/scorecard.py --json              the same for programs

Exit 1 while a claimed row is not passed, 2 if the results given cannot be used.
"""

import argparse
import json
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.contract_rows import Row, load_rows  # noqa: E402

RESULTS = ROOT / "build" / "scorecard-results.json"
WATCHED = ("src/**/*.py", "src/**/*.sql", "tests/**/*.py", "tests/contract_rows.toml")
COLOURS = {"passed": "green", "failed": "bold red", "no test": "bold red", "not-a-program": "dim", "later": "dim"}


class Unusable(Exception):
    """The results file is missing, unreadable or older than the sources."""


@dataclass
class Shown:
    """One test function that claims a row, with its parametrised cases added up."""

    test: str
    cases: int = 0
    passed: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)

    @property
    def is_passed(self) -> bool:
        return self.cases > 0 and self.passed == self.cases

    def add(self, outcome: str) -> None:
        self.cases += 1
        self.passed += outcome == "passed"
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1


@dataclass
class Card:
    """One row with its tests and what they come to."""

    row: Row
    tests: list[Shown]

    @property
    def state(self) -> str:
        if self.tests:
            return "passed" if all(shown.is_passed for shown in self.tests) else "failed"
        if self.row.not_a_program:
            return "not-a-program"
        return "no test" if self.row.is_claimed else "later"

    @property
    def is_owed(self) -> bool:
        """Claimed and neither passed nor beyond what a program can show."""
        return self.row.is_claimed and self.state not in ("passed", "not-a-program")


def make_cards(rows: dict[str, Row], tests: list[dict[str, object]]) -> list[Card]:
    """Every row in order; a test that claims three rows stands under each of them."""
    claimed: dict[str, dict[str, Shown]] = {row_id: {} for row_id in rows}
    for entry in tests:
        name = str(entry["test"]).partition("[")[0]
        ids = entry["contract"]
        assert isinstance(ids, list)
        for row_id in ids:
            claimed[row_id].setdefault(name, Shown(name)).add(str(entry["outcome"]))
    return [Card(row, list(claimed[row_id].values())) for row_id, row in rows.items()]


def read_results(paths: list[Path], newest_source_s: float) -> list[dict[str, object]]:
    tests: list[dict[str, object]] = []
    for path in paths:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            is_complete, finished_at_s, found = content["is_complete"], content["finished_at_s"], content["tests"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Unusable(f"{path}: no results of `make test` ({type(error).__name__})") from error
        if not is_complete:
            raise Unusable(f"{path}: that run was broken off")
        if finished_at_s < newest_source_s:
            raise Unusable(f"{path}: older than the sources; run the tests again")
        tests += found
    return tests


def newest_source_s(root: Path) -> float:
    files = (path for pattern in WATCHED for path in root.glob(pattern) if "node_modules" not in path.parts)
    return max((path.stat().st_mtime for path in files), default=0.0)


def run_tests() -> None:
    """Only the tests that claim a row; their own output goes to stderr, so that stdout is the scorecard's."""
    RESULTS.unlink(missing_ok=True)
    line = [sys.executable, "-m", "pytest", "-q", "-m", "contract", "--results-file", str(RESULTS)]
    subprocess.run(line, cwd=ROOT, stdout=sys.stderr, check=False)


def print_cards(cards: list[Card], console: Console) -> None:
    for card in cards:
        state = card.state
        line = Text(f"{card.row.id:<4}")
        line.append(f"{state:<14}", style=COLOURS[state])
        line.append(card.row.statement)
        console.print(line)
        if state == "not-a-program":
            console.print(Text(f"      because it is {card.row.not_a_program}", style="dim"))
        for shown in card.tests:
            colour = "green" if shown.is_passed else "red"
            console.print(Text(f"      {shown.passed}/{shown.cases} {shown.test}", style=colour))
    owed = [card.row.id for card in cards if card.is_owed]
    count = sum(card.row.is_claimed for card in cards)
    console.print(f"\n{count - len(owed)} of {count} claimed rows hold, {len(cards)} rows in all")
    if owed:
        console.print(Text(f"owed: {' '.join(owed)}", style="bold red"))


def as_json(cards: list[Card]) -> str:
    rows = [
        {
            "id": card.row.id,
            "statement": card.row.statement,
            "stage": card.row.stage,
            "claimed": card.row.is_claimed,
            "state": card.state,
            "why": card.row.not_a_program,
            "tests": [asdict(shown) for shown in card.tests],
        }
        for card in cards
    ]
    owed = [card.row.id for card in cards if card.is_owed]
    return json.dumps({"ok": not owed, "owed": owed, "rows": rows}, indent=1)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Every promise of the contract and the tests that show it.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--results", nargs="+", type=Path, metavar="FILE", help="take these results, run nothing")
    options = parser.parse_args(arguments)
    if options.results is None:
        run_tests()
    try:
        tests = read_results(options.results or [RESULTS], newest_source_s(ROOT))
    except Unusable as error:
        print(f"scorecard: {error}", file=sys.stderr)
        return 2 if options.results else 1
    cards = make_cards(load_rows(), tests)
    if options.json:
        print(as_json(cards))
    else:
        print_cards(cards, Console(highlight=False, soft_wrap=True))
    return 1 if any(card.is_owed for card in cards) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
