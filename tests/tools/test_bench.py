"""`make bench`: its bars and ratios, without a broker."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.run import REPS, SCENARIOS, Target, bar_lines, bars, cpu_s_of, cpu_s_until_quiet, paired, table
from tests.tools.broker_process import PACKAGE_PARENT

ROOT = Path(__file__).resolve().parents[2]


def measured(name: str, scenario: str, rate: float, cpu_us: float = 10.0, ack: float = 1.0, e2e: float = 1.0) -> Target:
    target = Target(name, 0, 0, [], [])
    result: dict[str, Any] = {"rate": rate, "send_rate": rate, "recv_rate": rate, "broker_cpu_us_per_msg": cpu_us}
    result |= {"cpu_after_us_per_msg": 0.0, "broker_cores": 1.0}
    result |= {"send_latency_us": {"p50": ack, "p99": ack}, "e2e_latency_us": {"p50": e2e, "p99": e2e}}
    target.results[scenario] = [result] * REPS
    return target


def verdicts(targets: list[Target], scenario: str) -> dict[str, bool | None]:
    return {bar.what: bar.holds for bar in bars(targets, [scenario])}


def test_six_times_is_of_the_better_rabbitmq() -> None:
    rabbits = [measured("rabbit-classic", "1+1", 10_000.0), measured("rabbit-quorum", "1+1", 12_000.0)]
    artemis = measured("artemis", "1+1", 71_999.0)
    reached = [measured("compiled", "1+1", 72_000.0, cpu_us=12.0), *rabbits, artemis]
    assert verdicts(reached, "1+1") == {
        "1+1, rate, of the better RabbitMQ's": True,
        "1+1, rate, of Artemis's": True,
        "1+1, CPU a message": True,
        "1+1, rate, of the old table's": True,
    }
    missed = [measured("compiled", "1+1", 71_000.0, cpu_us=12.1), *rabbits, artemis]
    assert verdicts(missed, "1+1") == {
        "1+1, rate, of the better RabbitMQ's": False,
        "1+1, rate, of Artemis's": False,
        "1+1, CPU a message": False,
        "1+1, rate, of the old table's": True,
    }


def test_window_1_is_judged_by_its_latencies() -> None:
    rabbits = [
        measured("rabbit-classic", "w1", 1_300.0, ack=700.0, e2e=500.0),
        measured("rabbit-quorum", "w1", 900.0, ack=1_000.0, e2e=200.0),
    ]
    reached = verdicts([measured("compiled", "w1", 1_500.0, ack=419.0, e2e=500.0), *rabbits], "w1")
    assert reached["w1, acknowledged after (p50), of the better RabbitMQ's"] is True
    assert reached["w1, end to end (p50), of RabbitMQ classic's"] is True
    missed = verdicts([measured("compiled", "w1", 1_100.0, ack=421.0, e2e=501.0), *rabbits], "w1")
    assert set(missed.values()) == {False}


def test_what_was_not_measured_is_not_judged() -> None:
    alone = verdicts([measured("compiled", "8+8", 80_000.0)], "8+8")
    assert alone["8+8, rate, of the better RabbitMQ's"] is alone["8+8, rate, of Artemis's"] is None
    assert alone["8+8, CPU a message"] is True
    assert bars([measured("uncompiled", "8+8", 80_000.0)], ["8+8"]) == []


def test_another_version_is_a_bar_too() -> None:
    ours = measured("compiled", "fanout", 97.0)
    assert verdicts([ours, measured("before", "fanout", 100.0)], "fanout") == {"fanout, rate, of before's": True}
    assert verdicts([ours, measured("before", "fanout", 101.0)], "fanout") == {"fanout, rate, of before's": False}


def test_few_repetitions_are_a_hint() -> None:
    found = bars([measured("compiled", "1+1", 20_000.0, cpu_us=13.0)], ["1+1"])
    assert bar_lines(found, 1, 1.0).startswith("bench: the bars, by medians of 1; fewer or smaller")
    said = bar_lines(found, REPS, 1.0).splitlines()
    assert said[0] == f"bench: the bars, by medians of {REPS}"
    assert "  does NOT hold: 1+1, CPU a message: 13.0 us, at most 12" in said
    assert "  does NOT hold: 1+1, rate, of the old table's: 20,000 and 23,629, 0.85 times, at least 1" in said


def test_a_run_too_short_for_a_rate_has_no_ratio() -> None:
    ours, short = measured("compiled", "send", 50_000.0), measured("rabbit-classic", "send", 0.0)
    for each in (ours, short):
        each.results["send"] *= 4
    assert paired(ours, short, "send") is None
    assert "rabbit-classic" in table([ours, short], ["send"])


def test_a_process_that_does_nothing_is_quiet() -> None:
    with subprocess.Popen(["sleep", "60"]) as idle:
        try:
            assert cpu_s_until_quiet(idle.pid) < 0.1
        finally:
            idle.kill()
    assert cpu_s_of(os.getpid()) > 0


def test_a_scenario_that_is_not_there_is_named() -> None:
    path = os.pathsep.join((str(PACKAGE_PARENT), str(ROOT)))
    command = [sys.executable, str(ROOT / "bench" / "run.py"), "--scenarios", "1+1,2+2"]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2
    assert f"2+2: there are {', '.join(SCENARIOS)}" in done.stderr
