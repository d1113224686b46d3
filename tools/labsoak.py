"""`make lab-soak`: every scenario of the outage lab, many times.

`--out` has sums by scenario and every result so far; it is written when a run has ended. If it has fewer runs than are
wanted when the tool is started, with the same settings, these are not run again: a soak that was cut off goes on where
it was, on another machine too. Bodies are small and large in turns. Ends with status 1 if one promise was broken or one
run did not come about; the histories of such a run are kept.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
sys.path.append(str(ROOT / "src"))  # last: an installed or compiled build named by PYTHONPATH comes first

from spillway.lab.scenarios import SCENARIOS  # noqa: E402 - of the tree that this file lies in
from tests.tools.commit import commit  # noqa: E402

HANGS_S: Final = 900.0
SIZES: Final = (200, 6_000)  # of a body, round by round: a batch of many, and one of few
INTERRUPTED: Final = 130  # with Ctrl-C
# Of a verdict, in the order of the evidence.
SUMS: Final = (
    "acknowledged",
    "diverted",
    "delivered",
    "lost",
    "false_acknowledgements",
    "duplicated",
    "failed_attempts",
)
TIMES: Final = ("failover_s", "return_s", "took_s")
Result = dict[str, Any]


def run_one(scenario: str, messages: int, rate: float, size: int, keep: Path) -> Result:
    """What the verdict said; `error` if there is none."""
    line = [sys.executable, "-m", "spillway", "lab", "--syphon", "process", "--scenario", scenario]
    line += ["--messages", str(messages), "--rate", str(rate), "--size", str(size), "--keep", str(keep)]
    places = [*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT / "src")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
    began_s = time.monotonic()
    try:
        done = subprocess.run(line, capture_output=True, text=True, check=False, env=environment, timeout=HANGS_S)
        status, words = done.returncode, done.stderr
    except subprocess.TimeoutExpired:
        status, words = -1, f"it hung, and was ended after {HANGS_S:g} s"
    said = {"status": status, "took_s": round(time.monotonic() - began_s, 1), "load": round(os.getloadavg()[0], 1)}
    try:
        found: Result = json.loads((keep / scenario / "verdict.json").read_text())
    except (OSError, ValueError):
        found = {"scenario": scenario, "error": words.strip()[-500:] or f"status {status}"}
    return {**found, **said}


def is_clean(result: Result) -> bool:
    return result["status"] == 0 and not result.get("problems") and "error" not in result


def summary(results: Sequence[Result]) -> dict[str, Result]:
    """By scenario: sums of messages, the smallest share that was diverted, medians and worst of seconds."""
    found: dict[str, Result] = {}
    for name in [name for name in SCENARIOS if any(result["scenario"] == name for result in results)]:
        runs = [result for result in results if result["scenario"] == name]
        whole = [run for run in runs if "error" not in run]
        row: Result = {"rounds": len(runs), "clean": sum(map(is_clean, runs))}
        row["messages"] = sum(run["sent"] for run in whole)
        row |= {key: sum(run[key] for run in whole) for key in SUMS}
        shares = [run["diverted"] / max(run["acknowledged"], 1) for run in whole]
        row["diverted_share_min"] = round(min(shares), 3) if shares else None
        for key in TIMES:
            values = [run[key] for run in whole if run[key] is not None]
            row[key] = {"median": round(statistics.median(values), 3), "max": max(values)} if values else None
        found[name] = row
    return found


def report(results: Sequence[Result], chosen: argparse.Namespace, wanted: int) -> Result:
    python = f"Python {platform.python_version()}"
    loads = [result["load"] for result in results]
    load = f"load average {statistics.median(loads)} in the median, {max(loads)} at most" if loads else ""
    return {
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs, {python}",
        "load": f"{load}; {chosen.jobs} at a time",
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        **settings_of(chosen),
        "runs": len(results),
        "runs_wanted": wanted,
        "clean": sum(map(is_clean, results)),
        **{key: sum(result.get(key, 0) for result in results) for key in ("acknowledged", "diverted", "lost")},
        "false_acknowledgements": sum(result.get("false_acknowledgements", 0) for result in results),
        "scenarios": summary(results),
        "results": list(results),
    }


def settings_of(chosen: argparse.Namespace) -> Result:
    return {"messages_each": chosen.messages, "rate": chosen.rate, "sizes": list(SIZES)}


def write(path: Path, facts: Result) -> None:
    """Readable, and one line a result: a change of it can be looked at. It appears whole or not at all."""
    results = facts.pop("results")
    head = json.dumps(facts, indent=2)
    lines = ",\n    ".join(json.dumps(result) for result in results)
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = path.with_name(path.name + ".part")
    whole.write_text(f'{head[:-2]},\n  "results": [\n    {lines}\n  ]\n}}\n')
    whole.replace(path)


class Soak:
    """Runs what is missing, `chosen.jobs` at a time, and writes down each result as it comes."""

    def __init__(
        self, chosen: argparse.Namespace, run: Callable[[str, int, float, int, Path], Result] = run_one
    ) -> None:
        self.chosen = chosen
        self.run = run
        self.names: list[str] = chosen.scenario or list(SCENARIOS)
        self.mutex = threading.Lock()
        self.commit = commit()
        self.results = self._read()

    def missing(self) -> list[tuple[int, str]]:
        done = {(result["round"], result["scenario"]) for result in self.results}
        wanted = [(number, name) for number in range(1, self.chosen.rounds + 1) for name in self.names]
        return [each for each in wanted if each not in done]

    def work(self) -> int:
        """How many runs were not clean."""
        if self.results:
            say(f"{len(self.results)} runs are in {self.chosen.out} already")
        pool = ThreadPoolExecutor(self.chosen.jobs)
        try:
            for future in [pool.submit(self._one, number, name) for number, name in self.missing()]:
                future.result()
        finally:
            pool.shutdown(cancel_futures=True)
        broken = [result for result in self.results if not is_clean(result)]
        say(f"{len(self.results)} runs, {len(broken)} not clean; {self.chosen.out}")
        return len(broken)

    def _one(self, number: int, name: str) -> None:
        keep: Path = self.chosen.keep / f"{number}-{name}"
        shutil.rmtree(keep, ignore_errors=True)  # of an earlier soak
        self.chosen.keep.mkdir(parents=True, exist_ok=True)
        size = SIZES[(number - 1) % len(SIZES)]
        found = self.run(name, self.chosen.messages, self.chosen.rate, size, keep)
        result = {"round": number, "commit": self.commit, "size": size, **found}
        if result["status"] == INTERRUPTED:
            return  # it is no result, and is run again by the next start
        words = "clean"
        if is_clean(result):
            shutil.rmtree(keep, ignore_errors=True)
        else:
            words = f"NOT clean, kept in {keep}: {result.get('problems') or result}"
        with self.mutex:
            self._note(result)
            at = f"round {number} of {self.chosen.rounds}, {name}"
            say(f"{at}: {words} ({result['took_s']} s; {len(self.missing())} runs to go)")

    def _note(self, result: Result) -> None:
        self.results.append(result)
        self.results.sort(key=lambda each: (each["round"], list(SCENARIOS).index(each["scenario"])))
        write(self.chosen.out, report(self.results, self.chosen, self.chosen.rounds * len(self.names)))

    def _read(self) -> list[Result]:
        """Of an earlier start with the same settings that did not come to its end."""
        if not self.chosen.out.exists():
            return []
        facts: Result = json.loads(self.chosen.out.read_text())
        is_same = {name: facts.get(name) for name in settings_of(self.chosen)} == settings_of(self.chosen)
        results: list[Result] = facts["results"]
        return results if is_same and facts["runs"] < facts["runs_wanted"] else []


def say(text: str) -> None:
    print(f"lab-soak: {datetime.now(UTC):%H:%M:%S} {text}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rate", type=float, default=1_000.0)
    parser.add_argument("--jobs", type=int, default=1, help="so many runs at a time")
    parser.add_argument("--scenario", action="append", choices=list(SCENARIOS), help="only these; all by default")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "evidence" / "lab-soak.json")
    parser.add_argument("--keep", type=Path, default=ROOT / "build" / "lab-soak", help="for runs that are not clean")
    return 1 if Soak(parser.parse_args(arguments)).work() else 0


if __name__ == "__main__":
    sys.exit(main())
