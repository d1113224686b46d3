"""`make lab-soak`: every scenario of the outage lab, many times.

Writes docs/evidence/lab-soak.json with every result, after each of them, and ends with status 1 if one promise was
broken or one run did not come about. The histories of such a run are kept.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "src"))  # last: an installed or compiled build named by PYTHONPATH comes first

from spillway.lab.scenarios import SCENARIOS  # noqa: E402 - of the tree that this file lies in

Result = dict[str, Any]


def run_one(scenario: str, messages: int, rate: float, keep: Path) -> Result:
    """What the lab said; `error` if it said nothing."""
    line = [sys.executable, "-m", "spillway", "lab", "--scenario", scenario, "--json", "--keep", str(keep)]
    line += ["--messages", str(messages), "--rate", str(rate)]
    places = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(reversed(places))}
    began_s = time.monotonic()
    done = subprocess.run(line, capture_output=True, text=True, check=False, env=environment)
    took_s = round(time.monotonic() - began_s, 1)
    try:
        found: Result = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        found = {"scenario": scenario, "error": done.stderr.strip()[-500:] or f"status {done.returncode}"}
    return {**found, "status": done.returncode, "took_s": took_s}


def is_clean(result: Result) -> bool:
    return result["status"] == 0 and not result.get("problems") and "error" not in result


def summary(results: Sequence[Result]) -> dict[str, Result]:
    """By scenario: sums of messages, medians and worst of seconds."""
    found: dict[str, Result] = {}
    for name in dict.fromkeys(result["scenario"] for result in results):
        runs = [result for result in results if result["scenario"] == name]
        whole = [run for run in runs if "error" not in run]
        row: Result = {"runs": len(runs), "clean": sum(map(is_clean, runs))}
        for key in ("acknowledged", "diverted", "delivered", "duplicated", "lost", "failed_attempts"):
            row[key] = sum(run[key] for run in whole)
        for key in ("failover_s", "return_s", "took_s"):
            values = [run[key] for run in whole if run[key] is not None]
            row[key] = {"median": statistics.median(values), "worst": max(values)} if values else None
        found[name] = row
    return found


def report(results: Sequence[Result], chosen: argparse.Namespace) -> Result:
    python = f"Python {platform.python_version()}"
    return {
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs, {python}",
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        "messages": chosen.messages,
        "rate": chosen.rate,
        "runs": len(results),
        "clean": sum(map(is_clean, results)),
        "acknowledged": sum(result.get("acknowledged", 0) for result in results),
        "lost": sum(result.get("lost", 0) for result in results),
        "scenarios": summary(results),
        "results": list(results),
    }


def write(path: Path, facts: Result) -> None:
    """Readable, and one line a result: a change of it can be looked at."""
    results = facts.pop("results")
    head = json.dumps(facts, indent=2)
    lines = ",\n    ".join(json.dumps(result) for result in results)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{head[:-2]},\n  "results": [\n    {lines}\n  ]\n}}\n')


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rate", type=float, default=1_000.0)
    parser.add_argument("--scenario", action="append", choices=list(SCENARIOS), help="only these; all by default")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "evidence" / "lab-soak.json")
    chosen = parser.parse_args()
    names = chosen.scenario or list(SCENARIOS)
    root = Path(tempfile.mkdtemp(prefix="spillway-labsoak-"))
    results: list[Result] = []
    for number in range(1, chosen.rounds + 1):
        for name in names:
            keep = root / f"{number}-{name}"
            result = {"round": number, **run_one(name, chosen.messages, chosen.rate, keep)}
            results.append(result)
            write(chosen.out, report(results, chosen))
            said = "clean" if is_clean(result) else f"NOT clean, kept in {keep}: {result.get('problems') or result}"
            print(f"lab-soak: round {number} of {chosen.rounds}, {name}: {said} ({result['took_s']} s)", flush=True)
            if is_clean(result):
                shutil.rmtree(keep, ignore_errors=True)
    broken = [result for result in results if not is_clean(result)]
    if not broken:
        shutil.rmtree(root)
    print(f"lab-soak: {len(results)} runs, {len(broken)} not clean")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
