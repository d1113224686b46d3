"""`make sim`: the simulation over the cross product of settings, many seeds, many steps each.

Writes docs/evidence/simulation.json (what was played, what met what, what failed) and ends with status 1 if anything
did. `--first` and `--seeds` choose the seeds; one that fails is printed with the fewest steps that do.
"""

import argparse
import concurrent.futures
import json
import os
import platform
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
sys.path.append(str(ROOT / "src"))  # last: an installed or compiled build named by PYTHONPATH comes first

from spillway.broker import namespace  # noqa: E402
from tests.sim.running import SQLITE_EVERY, Outcome, explain, play  # noqa: E402

EXPLAINED_MAX = 3  # different failures that are told in full


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=100_000, help="the first seed")
    parser.add_argument("--seeds", type=int, default=400)
    parser.add_argument("--steps", type=int, default=1_000, help="of each seed")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "evidence" / "simulation.json")
    chosen = parser.parse_args()
    print(f"sim: seeds {chosen.first} to {chosen.first + chosen.seeds - 1}, {chosen.steps} steps each")
    began = time.monotonic()
    outcomes: list[Outcome] = []
    with concurrent.futures.ProcessPoolExecutor(chosen.jobs) as pool:
        seeds = range(chosen.first, chosen.first + chosen.seeds)
        for outcome in pool.map(play, seeds, [chosen.steps] * chosen.seeds, chunksize=4):
            outcomes.append(outcome)
            if len(outcomes) % 50 == 0:
                print(f"sim: {len(outcomes)} seeds, {time.monotonic() - began:.0f} s", flush=True)
    failed = [outcome for outcome in outcomes if outcome.failure]
    facts = summary(outcomes, chosen.steps, time.monotonic() - began)
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps(facts, indent=2) + "\n")
    told: set[str] = set()
    for outcome in failed:
        if outcome.failure not in told and len(told) < EXPLAINED_MAX:
            told.add(outcome.failure)
            print(explain(outcome))
    print(json.dumps({name: value for name, value in facts.items() if name != "met"}, indent=2))
    print(f"sim: {len(failed)} of {len(outcomes)} seeds failed")
    return 1 if failed else 0


def summary(outcomes: list[Outcome], steps: int, seconds: float) -> dict[str, object]:
    seen: Counter[str] = Counter()
    for outcome in outcomes:
        seen.update(outcome.seen)
    is_compiled = not str(namespace.__file__).endswith(".py")
    return {
        "machine": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "build": "compiled" if is_compiled else "python",
        "first_seed": outcomes[0].seed,
        "seeds": len(outcomes),
        "steps_each": steps,
        "steps": sum(outcome.steps for outcome in outcomes),
        "seeds_on_sqlite": sum(1 for outcome in outcomes if outcome.seed % SQLITE_EVERY == 0),
        "messages_sent": sum(outcome.sent for outcome in outcomes),
        "restarts": sum(outcome.lives - 1 for outcome in outcomes),
        "seconds": round(seconds),
        "commands": _counted(seen, "command "),
        "refusals": _counted(seen, "refused by "),
        "settings_that_had_messages": len(_counted(seen, "added to ")),
        "events_by_settings": sum(1 for key in seen if "[" in key),
        "met": {key: count for key, count in sorted(seen.items()) if "[" in key},
        "failed": [{"seed": outcome.seed, "failure": outcome.failure} for outcome in outcomes if outcome.failure],
    }


def _counted(seen: Counter[str], head: str) -> dict[str, int]:
    return {key.removeprefix(head): count for key, count in sorted(seen.items()) if key.startswith(head)}


if __name__ == "__main__":
    sys.exit(main())
