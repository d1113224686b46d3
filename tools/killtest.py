"""`make killtest`: kill -9 under load, many times, with the official SDK on both sides.

Writes docs/evidence/killtest.json and ends with status 1 if anything acknowledged was lost, anything completed came
back, or anything else was seen that must not be.
"""

import argparse
import json
import platform
import shutil
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
sys.path.append(str(ROOT / "src"))  # last: an installed or compiled build named by PYTHONPATH comes first

from tests.tools import killing  # noqa: E402 - the tools are imported from the tree they lie in


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the random moments; printed")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "evidence" / "killtest.json")
    parser.add_argument("--keep", action="store_true", help="keep the data directory and the histories")
    chosen = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="spillway-killtest-"))
    print(f"killtest: {chosen.kills} kills, seed {chosen.seed}")
    report = killing.run(directory, chosen.kills, seed=chosen.seed)
    facts = {
        "machine": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        **report.summary(),
    }
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps(facts, indent=2) + "\n")
    print(json.dumps(facts, indent=2))
    if chosen.keep or not report.verdict.is_clean:
        print(f"killtest: histories and data kept in {directory}")
    else:
        shutil.rmtree(directory)
    print("killtest: " + ("clean" if report.verdict.is_clean else "NOT clean"))
    return 0 if report.verdict.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
