"""What people see in a terminal of 80 columns, and in a log."""

import io
from dataclasses import asdict
from typing import Any

from rich.console import Console

from spillway.lab.run import Progress
from spillway.lab.scenarios import SCENARIOS, scenario_of
from spillway.lab.screen import Screen, show_results
from tests.lab.lines import judged, outage, whole


def found(**values: Any) -> dict[str, Any]:
    return asdict(judged(whole("producer0-0", 1) + outage())) | values


def shown(*results: dict[str, Any], width: int = 80) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    show_results(console, list(results))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_one_result_has_its_verdict_first_and_every_number_in_words() -> None:
    lines = shown(found(acknowledged=20_000, diverted=8_123))
    assert lines[0] == "kill: nothing was lost of 20,000 messages, 40 % of them diverted"
    assert max(len(line.rstrip()) for line in lines) <= 80
    rows = {line[:18].strip(): line[18:].split() for line in lines[1:]}
    assert rows["acknowledged"][0] == "20,000"
    assert rows["failover"] == ["2.0", "seconds", "from", "the", "fault", "until", "the", "backlog", "took", "over"]
    assert {"sent", "out of order", "failed attempts", "return", "pings", "operations"} <= rows.keys()


def test_all_results_fit_80_columns_with_whole_names() -> None:
    results = [found(scenario=name, acknowledged=20_000, delivered=20_000, diverted=10_324) for name in SCENARIOS]
    lines = shown(*results)
    assert len(lines) == 1 + len(SCENARIOS)
    assert max(len(line.rstrip()) for line in lines) <= 80
    assert [line.split()[0] for line in lines[1:]] == list(SCENARIOS)
    assert not any("…" in line for line in lines)


def test_problems_are_said_in_full() -> None:
    problem = "2 acknowledged messages are nowhere, such as producer0-107, producer0-207 [and so on], " + "x" * 100
    lines = shown(found(lost=2, problems=[problem]))
    assert lines[0] == "kill: broken"
    assert lines[-1] == f"kill: {problem}"


def test_a_log_gets_a_line_per_phase_and_no_control_characters() -> None:
    console = Console(file=io.StringIO(), width=80)
    with Screen(console, scenario_of("kill"), 1_000) as screen:
        for phase in ("starting", "starting", "sending"):
            screen.show(Progress(phase, False, 61.0, {"acknowledged": 5}))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert text.splitlines()[1:] == ["  1:01  starting", "  1:01  sending"]
    assert "\x1b" not in text


def test_a_terminal_gets_bars_that_fit() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    screen = Screen(console, scenario_of("kill"), 1_000)
    counts = {"acknowledged": 800, "diverted": 300, "syphoned": 0, "delivered": 1_200, "failed": 0}
    screen.show(Progress("the primary is killed", True, 3.0, counts))
    with console.capture() as capture:
        console.print(screen)
    lines = capture.get().splitlines()
    assert max(len(line) for line in lines) <= 80
    assert "the primary is killed" in lines[0]
    assert [line.split()[0] for line in lines[1:]] == ["acknowledged", "diverted", "syphoned", "delivered"]
    assert "800" in lines[1] and "1,200" in lines[4]
