"""`make growth`: its verdicts, without a broker; and its smallest part, for real."""

import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from bench import growth as tool
from bench.growth import MIB, PARTS, Line, Measured, cost_problems, flat_memory_problems, memory_problems, page, table
from bench.run import fan_out_config
from tests.tools.broker_process import PACKAGE_PARENT

ROOT = Path(__file__).resolve().parents[2]


def steps(*given: tuple[int, float, int], work: float = 1.0) -> list[Measured]:
    return [Measured(f"{units} of it", units, work, 1_000.0, cpu_us, mb * MIB) for units, cpu_us, mb in given]


def test_a_cost_that_stays_or_falls_holds() -> None:
    assert cost_problems(steps((1, 20.0, 80), (1_000, 22.0, 80), (10_000, 12.0, 80)), "a message") == []


def test_a_cost_that_grows_is_named_with_both_steps() -> None:
    (problem,) = cost_problems(steps((1, 20.0, 80), (1_000, 20.0, 80), (10_000, 30.0, 80)), "a message")
    assert problem == ("a message: 30.00 us of CPU at 10000 of it, 20.00 at 1000 of it: 1.50 times, 1.25 allowed")


def test_a_message_of_64_times_the_bytes_may_cost_so_much_more_and_no_more() -> None:
    small, large = Measured("1 KB", 1, 1.0, cpu_us=20.0), Measured("64 KB", 64, 64.0, cpu_us=64 * 20.0)
    assert cost_problems([small, large], "a KB") == []
    large.cpu_us *= 1.3
    assert len(cost_problems([small, large], "a KB")) == 1


def test_memory_may_grow_with_what_is_held() -> None:
    assert memory_problems(steps((0, 1.0, 80), (1_000, 1.0, 100), (10_000, 1.0, 280))) == []


def test_memory_that_grows_faster_than_what_is_held_is_named() -> None:
    (problem,) = memory_problems(steps((0, 1.0, 80), (1_000, 1.0, 100), (10_000, 1.0, 500)))
    assert problem == "memory: 420 MB more at 10000 of it than at 0 of it, 310 allowed"


def test_what_is_on_disk_takes_no_memory() -> None:
    assert flat_memory_problems(steps((10, 1.0, 80), (1_000, 1.0, 139))) == []
    assert flat_memory_problems(steps((10, 1.0, 80), (1_000, 1.0, 141))) != []


def test_the_table_says_what_does_not_hold() -> None:
    measured = steps((1, 20.0, 80), (1_000, 40.0, 80))
    shown = table([Line("queues", "all in use", "message", measured, cost_problems(measured, "a message"))])
    assert re.search(r"^queues +1000 of it +1,000 +40\.0 +40\.00 +80 +NO$", shown, re.MULTILINE)
    assert shown.splitlines()[-1].strip().startswith("! a message: 40.00 us of CPU at 1000 of it")


FACTS = {"commit": "abc", "date": "2026-01-01", "machine": "Linux", "compiled": True, "reps": 5, "quick": False}


def test_the_page_has_every_step_and_what_does_not_hold() -> None:
    measured = steps((1, 20.0, 80), (1_000, 40.0, 81))
    measured[1].e2e_ms = 1_426.1
    lines = [
        Line("queues", "all in use", "message", measured, cost_problems(measured, "a message")),
        Line("size", "the body grows", "KB", steps((1, 20.0, 80)), []),
    ]
    said = page(lines, FACTS).splitlines()
    assert "| 1 of it | 1,000 | 20.0 | 20.00 | 80 |  |" in said
    assert "| 1000 of it | 1,000 | 40.0 | 40.00 | 81 | 1,426.1 |" in said
    assert said.count("It holds.") == said.count("It does not hold:") == 1
    assert any(line.startswith("- a message: 40.00 us of CPU at 1000 of it") for line in said)


def test_what_was_too_quick_has_no_verdict_on_the_page() -> None:
    said = page([Line("queues", "all in use", "message", steps((1, 20.0, 80)), [])], {**FACTS, "quick": True})
    assert "too quick to be judged" in said
    assert "It holds" not in said


def test_a_part_that_fails_is_a_line_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(ground: tool.Ground) -> Line:
        raise AssertionError("a traceback on the console")

    monkeypatch.setitem(PARTS, "size", dies)
    ground = tool.Ground(tmp_path, tmp_path, tmp_path, scale=1.0, reps=1, is_quick=True, is_full=False)
    line = tool.measured_part("size", ground)
    assert (line.holds, line.problems) == (False, ["not measured: a traceback on the console"])
    assert re.search(r"^size +! not measured: a traceback on the console$", table([line]), re.MULTILINE)
    assert "- not measured: a traceback on the console" in page([line], FACTS)


def growth(*words: str) -> "subprocess.CompletedProcess[str]":
    path = os.pathsep.join((str(PACKAGE_PARENT), str(ROOT)))
    return subprocess.run(
        [sys.executable, str(ROOT / "bench" / "growth.py"), *words],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )


def test_a_part_that_is_not_there_is_named() -> None:
    done = growth("--only", "size,colour")
    assert done.returncode == 2
    assert f"--only colour: there are {', '.join(PARTS)}" in done.stderr


def test_the_smallest_part_is_measured_for_real(tmp_path: Path) -> None:
    out = tmp_path / "growth.json"
    done = growth("--quick", "--uncompiled", "--only", "queues", "--out", str(out))
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    assert done.stdout.splitlines()[-1] == f"growth: too quick to be judged; results in {out}"
    assert "## queues" in out.with_suffix(".md").read_text()
    facts = json.loads(out.read_text())
    (line,) = facts["lines"]
    assert (facts["quick"], line["part"]) == (True, "queues")
    assert [step["units"] for step in line["steps"]] == [1, 100]
    for step in line["steps"]:
        (run,) = step["runs"]
        assert run["error"] is None
        assert run["sent"] == run["acked"] == run["received"] > 0
        assert step["rate"] > 0
        assert step["rss_bytes"] > 10 * MIB


# -- the peers --------------------------------------------------------------------------------------------------------


def artemis(*words: str, home: Path, repository: Path) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "ARTEMIS_HOME": str(home) if home.name else "", "MAVEN_REPOSITORY": str(repository)}
    return subprocess.run(
        [str(ROOT / "bench" / "artemis.sh"), *words], env=environment, capture_output=True, text=True, check=False
    )


def test_artemis_is_found_where_maven_puts_it_or_where_it_was_unpacked(tmp_path: Path) -> None:
    assert artemis("find", home=Path(), repository=tmp_path).returncode == 1
    for version in ("2.9.0", "2.44.0"):
        place = tmp_path / "org" / "apache" / "activemq" / "apache-artemis" / version
        place.mkdir(parents=True)
        (place / f"apache-artemis-{version}-bin.tar.gz").touch()
    found = artemis("find", home=Path(), repository=tmp_path)
    assert found.stdout.strip().endswith("apache-artemis-2.44.0-bin.tar.gz")
    assert artemis("version", home=Path(), repository=tmp_path).stdout == "2.44.0\n"
    unpacked = tmp_path / "apache-artemis-2.45.0"
    (unpacked / "bin").mkdir(parents=True)
    assert artemis("find", home=unpacked, repository=tmp_path).returncode == 1, "there is no program in it"
    (unpacked / "bin" / "artemis").touch(mode=0o755)
    assert artemis("find", home=unpacked, repository=tmp_path).stdout.strip() == str(unpacked)
    assert artemis("version", home=unpacked, repository=tmp_path).stdout == "2.45.0\n"


def test_artemis_has_the_filters_of_our_topic(tmp_path: Path) -> None:
    """Or its fan-out would be another work than ours."""
    said = artemis("addresses", home=Path(), repository=tmp_path).stdout
    fan = ElementTree.fromstring(f"<addresses>{said}</addresses>").find("address[@name='fan']")
    assert fan is not None
    theirs = {queue.attrib["name"]: queue.find("filter") for queue in fan.iter("queue")}
    ours = fan_out_config()["UserConfig"]["Namespaces"][0]["Topics"][0]["Subscriptions"]
    assert len(ours) == len(theirs) == 50
    for subscription in ours:
        rule = subscription["Rules"][0]["Properties"]
        if "SqlFilter" in rule:
            wanted = rule["SqlFilter"]["SqlExpression"]
        else:
            wanted = f"g = '{rule['CorrelationFilter']['Properties']['g']}'"
        found = theirs[subscription["Name"].replace("s", "f")]
        assert found is not None
        assert found.attrib["string"] == wanted


@pytest.mark.parametrize("count", [10, 50, 500])
def test_a_fifth_of_the_subscriptions_gets_each_message(count: int) -> None:
    subscriptions = fan_out_config(count)["UserConfig"]["Namespaces"][0]["Topics"][0]["Subscriptions"]
    for n in range(100):
        matching = 0
        for subscription in subscriptions:
            rule = subscription["Rules"][0]["Properties"]
            if "SqlFilter" in rule:
                low, high = (int(number) for number in re.findall(r"\d+", rule["SqlFilter"]["SqlExpression"]))
                matching += low <= n < high
            else:
                matching += rule["CorrelationFilter"]["Properties"]["g"] == f"g{n % 5}"
        assert matching == count // 5
