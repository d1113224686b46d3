"""`make field`: random plays of the outage lab, one a seed.

`--out` has sums and every result so far; it is written when a play has ended. If it has fewer plays than are wanted
when the tool is started with the same settings, these are not played again: what was cut off goes on where it was. Ends
with status 1 if one invariant was broken or one play did not come about; plan and histories of such a play are kept.
`--library` plays to the client library of another source tree.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
sys.path.append(str(ROOT / "src"))  # last: an installed or compiled build named by PYTHONPATH comes first

from tests.tools.commit import commit, machine  # noqa: E402 - of the tree that this file lies in

HANGS_S: Final = 300.0
INTERRUPTED: Final = 130  # with Ctrl-C
SUMS: Final = ("calls", "messages", "acknowledged", "delivered", "diverted", "refused", "failed_over")
Result = dict[str, Any]


def play_one(seed: int, library: str, keep: Path) -> Result:
    """What the verdict said; `error` if there is none."""
    line = [sys.executable, "-m", "spillway", "lab", "--scenario", "random", "--seed", str(seed), "--json"]
    line += ["--keep", str(keep), *(["--library", library] if library else [])]
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
        found: Result = json.loads((keep / "verdict.json").read_text())
    except (OSError, ValueError):
        found = {"error": words.strip()[-500:] or f"status {status}"}
    return {**found, **said, "seed": seed}


def is_clean(result: Result) -> bool:
    return result["status"] == 0 and not result.get("problems") and "error" not in result


def report(results: Sequence[Result], chosen: argparse.Namespace) -> Result:
    broken = Counter(each["invariant"] for result in results for each in result.get("problems", []))
    ailments = Counter(name for result in results for name in result.get("ailments", []))
    took_s = [result["took_s"] for result in results]
    return {
        "machine": machine(),
        "load": f"load average {statistics.median(each['load'] for each in results)}; {chosen.jobs} at a time",
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        **settings_of(chosen),
        "plays": len(results),
        "clean": sum(map(is_clean, results)),
        **{key: sum(result.get(key, 0) for result in results) for key in SUMS},
        "took_s": {"median": round(statistics.median(took_s), 1), "max": max(took_s)},
        "starved_share": round(statistics.mean(result.get("starved_share", 0.0) for result in results), 2),
        "close_most_s": max(result.get("close_most_s", 0.0) for result in results),
        "sockets_most": max(result.get("sockets_most", 0) for result in results),
        "ailments": dict(sorted(ailments.items())),
        "broken": dict(broken.most_common()),
        "results": list(results),
    }


def wanted(chosen: argparse.Namespace) -> list[int]:
    return chosen.seed or list(range(chosen.first, chosen.first + chosen.seeds))


def settings_of(chosen: argparse.Namespace) -> Result:
    seeds = wanted(chosen)
    return {"wanted": len(seeds), "seeds": f"{seeds[0]} to {seeds[-1]}" if not chosen.seed else seeds}


def write(path: Path, facts: Result) -> None:
    """Readable, and one line a result. It appears whole or not at all."""
    results = facts.pop("results")
    head = json.dumps(facts, indent=2)
    lines = ",\n    ".join(json.dumps(result) for result in results)
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = path.with_name(path.name + ".part")
    whole.write_text(f'{head[:-2]},\n  "results": [\n    {lines}\n  ]\n}}\n')
    whole.replace(path)


class Field:
    """Plays what is missing, `chosen.jobs` at a time, and writes down each result as it comes."""

    def __init__(self, chosen: argparse.Namespace, play: Callable[[int, str, Path], Result] = play_one) -> None:
        self.chosen = chosen
        self.play = play
        self.mutex = threading.Lock()
        self.commit = commit()
        self.results = self._read()

    def missing(self) -> list[int]:
        done = {result["seed"] for result in self.results}
        return [seed for seed in wanted(self.chosen) if seed not in done]

    def work(self) -> int:
        """How many plays were not clean."""
        if self.results:
            say(f"{len(self.results)} plays are in {self.chosen.out} already")
        pool = ThreadPoolExecutor(self.chosen.jobs)
        try:
            for future in [pool.submit(self._one, seed) for seed in self.missing()]:
                future.result()
        finally:
            pool.shutdown(cancel_futures=True)
        broken = [result for result in self.results if not is_clean(result)]
        say(f"{len(self.results)} plays, {len(broken)} not clean; {self.chosen.out}")
        return len(broken)

    def _one(self, seed: int) -> None:
        keep: Path = self.chosen.keep / str(seed)
        shutil.rmtree(keep, ignore_errors=True)  # of an earlier run
        self.chosen.keep.mkdir(parents=True, exist_ok=True)
        result = {"commit": self.commit, **self.play(seed, self.chosen.library, keep)}
        if result["status"] == INTERRUPTED:
            return  # it is no result, and is played again by the next start
        words = "clean"
        if is_clean(result):
            shutil.rmtree(keep, ignore_errors=True)
        else:
            texts = [f"{each['invariant']}: {each['text']}" for each in result.get("problems", [])]
            words = f"NOT clean, kept in {keep}: {' | '.join(texts[:3]) or result}"
        with self.mutex:
            self.results.append(result)
            self.results.sort(key=lambda each: each["seed"])
            write(self.chosen.out, report(self.results, self.chosen))
            say(f"seed {seed}: {words} ({result['took_s']} s; {len(self.missing())} to go)")

    def _read(self) -> list[Result]:
        """Of an earlier start with the same settings that did not come to its end."""
        if not self.chosen.out.exists():
            return []
        facts: Result = json.loads(self.chosen.out.read_text())
        is_same = {name: facts.get(name) for name in settings_of(self.chosen)} == settings_of(self.chosen)
        results: list[Result] = facts["results"]
        return results if is_same and facts["plays"] < facts["wanted"] else []


def say(text: str) -> None:
    print(f"field: {datetime.now(UTC):%H:%M:%S} {text}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="so many plays")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--seed", type=int, action="append", help="only this one; may be given several times")
    parser.add_argument("--jobs", type=int, default=2, help="so many at a time")
    parser.add_argument("--library", default="", help="source directory of another tree, whose library is played to")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "evidence" / "field.json")
    parser.add_argument("--keep", type=Path, default=ROOT / "build" / "field", help="for plays that are not clean")
    return 1 if Field(parser.parse_args(arguments)).work() else 0


if __name__ == "__main__":
    sys.exit(main())
