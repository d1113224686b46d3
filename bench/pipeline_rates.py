"""`bench/pipeline_rates.py --before DIRECTORY`: the pipeline's rates beside those of another checkout, in one run.

DIRECTORY is a checkout of this project with a compiled build (`make build/compiled/.ready` there). `bench/spark.py` and
`bench/capture.py` of both run in turn: on a shared machine only neighbours compare. Said is the median of the ratios
of neighbouring runs, for each way; the bar is 0.95.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from tests.tools.commit import commit, machine  # noqa: E402

LEAST = 0.95
SPARK = ("spark", "outside")
CAPTURE = ("browse", "capture")


def run(tree: Path, bench: str, *arguments: str) -> dict[str, dict[str, Any]]:
    """One repetition of a bench of that tree: what each way of it reached."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [sys.executable, str(tree / "bench" / bench), "--reps", "1", "--out", file.name, *arguments]
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{bench} in {tree} ended with {done.returncode}:\n{done.stderr[-2000:]}")
        found = json.loads(Path(file.name).read_text())
    assert found["about"]["package"] == "compiled", f"{tree} has no compiled build"
    return {one["way"]: {name: one[name] for name in ("rate", "cpu_us", "load")} for one in found["runs"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=4)
    parser.add_argument("--messages", type=int, default=200_000)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "evidence" / "bench-pipeline-rates.json")
    chosen = parser.parse_args()
    trees = {"now": ROOT, "before": chosen.before.resolve()}
    pairs: list[dict[str, dict[str, Any]]] = []
    for number in range(chosen.pairs):
        pair: dict[str, dict[str, Any]] = {name: {} for name in trees}
        # The first of two meets a machine that has rested: they take turns in being it.
        for name in sorted(trees, reverse=bool(number % 2)):
            count = str(chosen.messages)
            pair[name] |= run(trees[name], "spark.py", "--messages", count, "--sdk-messages", "200")
            pair[name] |= run(trees[name], "capture.py", "--messages", count)
            print(
                f"bench: pair {number + 1}, {name}: {[(way, one['rate']) for way, one in pair[name].items()]}",
                flush=True,
            )
        pairs.append(pair)
    ratios = {
        way: [round(pair["now"][way]["rate"] / pair["before"][way]["rate"], 3) for pair in pairs]
        for way in (*SPARK, *CAPTURE)
    }
    medians = {way: round(statistics.median(some), 3) for way, some in ratios.items()}
    about = {"commit": commit(), "machine": machine(), "messages": chosen.messages, "least": LEAST}
    about["before"] = subprocess.run(
        ["git", "-C", str(trees["before"]), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    chosen.out.write_text(
        json.dumps({"about": about, "medians": medians, "ratios": ratios, "pairs": pairs}, indent=1) + "\n"
    )
    holds = all(median >= LEAST for median in medians.values())
    print(f"bench: {medians} of {about['before']}, {len(pairs)} pairs: {'holds' if holds else 'DOES NOT HOLD'}")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
