"""`make week`: a week in an hour.

64 callers send to 50 entities, half of which detect duplicates, while both namespaces are restarted, frozen, throttled
and cut off at random and the syphon is killed now and then. Ends with status 1 if an acknowledged message was lost, one
is there twice where duplicates are detected, or memory or sockets of a program grew. The numbers, and samples of what
each process held, are in `--out`; histories of a run that was not clean are kept.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
sys.path.append(str(ROOT / "src"))  # last: an installed or compiled build named by PYTHONPATH comes first

from spillway.lab.field.week import Week, plan_of  # noqa: E402
from spillway.lab.guard import Guard  # noqa: E402
from tests.tools.commit import commit, machine  # noqa: E402


def say(text: str) -> None:
    print(f"week: {datetime.now(UTC):%H:%M:%S} {text}", flush=True)


def write(path: Path, facts: dict[str, Any]) -> None:
    """Readable: a line for each process's samples."""
    samples = facts.pop("samples")
    head = json.dumps(facts, indent=2)
    lines = ",\n    ".join(f"{json.dumps(name)}: {json.dumps(each)}" for name, each in samples.items())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{head[:-2]},\n  "samples": {{\n    {lines}\n  }}\n}}\n')


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between two sends of a caller, about")
    parser.add_argument("--library", type=Path, help="source directory of another tree, whose library is used")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "evidence" / "week.json")
    parser.add_argument("--keep", type=Path, default=ROOT / "build" / "week", help="for a run that was not clean")
    chosen = parser.parse_args(arguments)
    shutil.rmtree(chosen.keep, ignore_errors=True)
    chosen.keep.mkdir(parents=True)
    with Guard() as guard:
        plan = plan_of(chosen.seed, chosen.minutes)
        found = Week(plan, chosen.minutes, chosen.pause, chosen.keep, guard, say, chosen.library).run()
    facts = {
        "machine": machine(),
        "commit": commit(),
        "ended": datetime.now(UTC).isoformat(timespec="seconds"),
        **found,
    }
    write(chosen.out, dict(facts))
    numbers = {name: value for name, value in found.items() if name != "samples"}
    say(json.dumps(numbers))
    if found["problems"]:
        say(f"NOT clean, kept in {chosen.keep}")
        return 1
    shutil.rmtree(chosen.keep, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
