"""`make attack`: ten minutes of attacks with the right to send, the right to listen and none, beside 20 honest clients.

The broker is a process with default limits but for `memory-mb`, in a cgroup and on a disk of its own where they can be
made. Each kind of attack is made alone, then some at a time, drawn from the seed. Writes docs/evidence/attack.json with
what every kind cost, and ends with status 1 if the process ended, memory or disk passed their bounds, an acknowledged
message was lost, or the p99 of the honest clients over all of it was 50 ms or more and ten times what it is in quiet or
more. A kind that passes that for itself is told, and its worst moments are in the file.
"""

import argparse
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
sys.path.append(str(ROOT / "src"))  # last: an installed or compiled build named by PYTHONPATH comes first

from spillway.broker import namespace  # noqa: E402
from tests.hostile.onslaught import ATTACKS  # noqa: E402
from tests.hostile.siege import Plan, besiege  # noqa: E402
from tests.tools.commit import commit  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600.0, help="of attacks")
    parser.add_argument("--quiet", type=float, default=20.0, help="seconds without any, before")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="printed")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rate", type=float, default=5.0, help="sends a second of each honest client")
    parser.add_argument("--memory-mb", type=int, default=400)
    parser.add_argument("--disk-mb", type=int, default=1_200)
    parser.add_argument("--depth", type=int, default=20_000, help="messages in the queues that are deep")
    parser.add_argument("--kinds", default=",".join(ATTACKS), help="comma-separated")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "evidence" / "attack.json")
    chosen = parser.parse_args()
    plan = Plan(
        chosen.seed,
        chosen.seconds,
        chosen.quiet,
        chosen.clients,
        chosen.rate,
        chosen.memory_mb,
        chosen.disk_mb,
        chosen.depth,
        kinds=tuple(chosen.kinds.split(",")),
    )
    print(f"attack: seed {chosen.seed}, {chosen.seconds:.0f} s", flush=True)
    at = commit()
    with tempfile.TemporaryDirectory(prefix="spillway-attack-") as directory:
        report = besiege(plan, Path(directory), lambda text: print(f"attack: {text}", flush=True))
    report.facts["machine"] = (
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    )
    report.facts["commit"] = at
    report.facts["build"] = "python" if str(namespace.__file__).endswith(".py") else "compiled"
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(report.to_json())
    for text in report.slow:
        print(f"attack: slow for a while: {text}")
    for text in report.broken:
        print(f"attack: BROKEN: {text}")
    print(f"attack: {len(report.broken)} promises did not hold" if report.broken else "attack: everything held")
    return 1 if report.broken else 0


if __name__ == "__main__":
    sys.exit(main())
