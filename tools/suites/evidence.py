"""What the suites of others said, as numbers: docs/evidence/suites.json has one entry a suite."""

import json
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

SUITES = Path(__file__).resolve().parents[2] / "docs" / "evidence" / "suites.json"
REASON_CHARS_MAX = 300


@dataclass
class Case:
    name: str
    outcome: str  # passed, failed, skipped
    reason: str = ""


@dataclass
class Summary:
    passed: int
    failed: int
    skipped: int
    failures: dict[str, str] = field(default_factory=dict)
    skips: dict[str, int] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """Of those that ran, how many passed."""
        return self.passed / max(self.passed + self.failed, 1)


def read_junit(root: ElementTree.Element) -> list[Case]:
    """A test that fails and errs too is one case."""
    cases: dict[str, Case] = {}
    for element in root.iter("testcase"):
        name = f"{element.get('classname', '')}::{element.get('name', '')}"
        case = Case(name, "passed")
        for child in element:
            if child.tag in ("failure", "error"):
                case = Case(name, "failed", (child.get("message") or child.text or "").strip()[:REASON_CHARS_MAX])
                break
            if child.tag == "skipped":
                case = Case(name, "skipped", (child.get("message") or "").strip()[:REASON_CHARS_MAX])
        if name not in cases or case.outcome == "failed":
            cases[name] = case
    return list(cases.values())


def summarise(cases: list[Case]) -> Summary:
    counts = Counter(case.outcome for case in cases)
    return Summary(
        counts["passed"],
        counts["failed"],
        counts["skipped"],
        {case.name: case.reason for case in cases if case.outcome == "failed"},
        dict(Counter(case.reason for case in cases if case.outcome == "skipped")),
    )


def show(summary: Summary) -> None:
    for name, reason in summary.failures.items():
        print(f"FAILED {name}: {reason.splitlines()[0] if reason else ''}")
    for reason, count in summary.skips.items():
        print(f"skipped {count}: {reason}")
    print(f"{summary.passed} passed, {summary.failed} failed, {summary.skipped} skipped ({summary.share:.1%})")


def write(path: Path, suite: str, summary: Summary) -> None:
    put(path, suite, asdict(summary))


def put(path: Path, suite: str, said: Mapping[str, object]) -> None:
    """In place of what that suite said before; the others stay."""
    found = json.loads(path.read_text()) if path.exists() else {}
    found[suite] = {"at": datetime.now(UTC).strftime("%Y-%m-%d"), **said}
    path.write_text(json.dumps(dict(sorted(found.items())), indent=1, ensure_ascii=False) + "\n")
