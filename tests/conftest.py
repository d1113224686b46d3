"""The tests' own plugin: contract ids, results for the scorecard, no skip without a reason."""

import asyncio
import importlib.machinery
import json
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import uvloop

from tests.contract_rows import claim_problem, load_rows
from tests.skips import ALLOWED_FILE, is_allowed, load_allowed

ROOT = Path(__file__).resolve().parent.parent
CONTRACT = "contract"  # the property of a report that says which rows its test shows
COMPILED_SAMPLES = ("spillway.model.entity", "spillway.broker.commands")

# A suite that a shell runs in the background ignores Ctrl-C, and so would every program that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@dataclass
class Outcome:
    """One test: `passed`, `failed` or `skipped`, and the rows it shows."""

    contract: list[str] = field(default_factory=list)
    outcome: str = "passed"
    reason: str = ""
    duration_s: float = 0.0


class Results:
    """Collects what every test came to; registered as a plugin for one session."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.rows = load_rows()
        self.outcomes: dict[str, Outcome] = {}
        self.refused_skips: list[str] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        problems = []
        for item in items:
            ids: list[object] = [row_id for mark in item.iter_markers("contract") for row_id in mark.args]
            if item.get_closest_marker("contract") is not None:
                problem = claim_problem(ids, self.rows)
                if problem is not None:
                    problems.append(f"{item.nodeid}: {problem}")
            self.outcomes[item.nodeid] = Outcome(contract=[str(row_id) for row_id in ids], outcome="not run")
            if ids:
                item.user_properties.append((CONTRACT, [str(row_id) for row_id in ids]))
        if problems:
            raise pytest.UsageError("\n".join(problems))

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        for item in items:
            self.outcomes.pop(item.nodeid, None)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        # A module that skips itself (importorskip) has no tests to report it.
        if report.outcome == "skipped":
            self.outcomes[report.nodeid] = Outcome(outcome="skipped", reason=_reason(report.longrepr))
        elif report.outcome == "failed":
            self.outcomes[report.nodeid] = Outcome(outcome="failed", reason="not collected")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test has three reports, for its set-up, itself and its tear-down; the worst one counts."""
        result = self.outcomes.get(report.nodeid)
        if result is None:  # collected by another process, which runs a share of the tests
            ids: list[str] = next((value for name, value in report.user_properties if name == CONTRACT), [])  # type: ignore[misc]
            result = self.outcomes[report.nodeid] = Outcome(contract=ids, outcome="not run")
        result.duration_s += report.duration
        if report.outcome == "failed":
            result.outcome = "failed"
        elif report.outcome == "skipped" and result.outcome != "failed":
            result.outcome = "skipped"
            result.reason = getattr(report, "wasxfail", "") or _reason(report.longrepr)
        elif report.when == "call" and result.outcome == "not run":
            result.outcome = "passed"

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(self.config, "workerinput"):
            return  # a share of the tests: its results are reported to the process that shared them out
        allowed = load_allowed(ALLOWED_FILE.read_text(encoding="utf-8"))
        self.refused_skips = [
            test
            for test, result in self.outcomes.items()
            if result.outcome == "skipped" and not is_allowed(test, allowed)
        ]
        if self.refused_skips and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        path: str | None = self.config.getoption("--results-file")
        if path is not None:
            self.write(ROOT / path, is_complete=session.exitstatus in (0, 1))

    def write(self, path: Path, is_complete: bool) -> None:
        content = {
            "finished_at_s": time.time(),
            "is_complete": is_complete,
            "is_compiled": bool(self.config.getoption("--expect-compiled")),
            "tests": [
                {
                    "test": test,
                    "contract": result.contract,
                    "outcome": result.outcome,
                    "reason": result.reason,
                    "duration_s": round(result.duration_s, 3),
                }
                for test, result in self.outcomes.items()
            ],
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.refused_skips:
            terminalreporter.section("skips that tests/allowed_skips.txt does not list")
            for test in self.refused_skips:
                terminalreporter.line(f"{test}: {self.outcomes[test].reason}")


def _reason(longrepr: object) -> str:
    return str(longrepr[2]) if isinstance(longrepr, tuple) else str(longrepr or "")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("spillway")
    group.addoption("--results-file", metavar="FILE", help="write every test's result and contract ids as JSON")
    group.addoption(
        "--loop", choices=("uvloop", "asyncio"), help="the loop of asynchronous tests and of every broker process"
    )
    group.addoption("--expect-compiled", action="store_true", help="fail unless the hot rooms are compiled")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--expect-compiled"):
        _check_compiled()
    if config.getoption("--loop"):
        _set_loop(config.getoption("--loop"))
    config.pluginmanager.register(Results(config), "spillway-results")


def _set_loop(name: str) -> None:
    """Without the option tests run on asyncio in this process, and brokers in processes of their own on uvloop."""
    from tests.tools.loop_choice import LOOP_VARIABLE  # tests of this plugin have no other file beside it

    os.environ[LOOP_VARIABLE] = name
    if name == "uvloop":
        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())


def _check_compiled() -> None:
    suffixes = tuple(importlib.machinery.EXTENSION_SUFFIXES)
    for name in COMPILED_SAMPLES:
        origin = str(importlib.import_module(name).__file__)
        if not origin.endswith(suffixes):
            raise pytest.UsageError(f"{name} is not compiled: {origin}")
