"""`make spark-kills`: jobs on Spark, killed in every place, many times: nothing lost, nothing twice, nothing left.

The syphon (tools/sparkkills_syphon.py):

    worker              kill -9 of a Python worker while it moves
    received, sent, completed   a worker dies by itself at that place (SPILLWAY_CRASH_AT)
    cold                the first batch of a new worker takes longer than a lock
    last                nothing is killed: the last batch is settled like the others
    driver              kill -9 of the driver's Python; the job is started again from its checkpoint
    executor            kill -9 of the Java machine, which is the executor too where Spark is embedded; started again

The capture (tools/sparkkills_capture.py):

    capture-received, capture-written, capture-completed   a worker dies between two of: received, written, settled
    capture-worker      kill -9 of a Python worker in the middle
    capture-driver, capture-executor   as above

    tools/sparkkills.py --kills 20 [--only worker,sent] [--merge]
"""

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from tools import sparkkills_capture as capture  # noqa: E402
from tools import sparkkills_syphon as syphon  # noqa: E402
from tools.sparkkills_ground import LOCK_S, MESSAGES, Ground  # noqa: E402

KINDS = (*syphon.KINDS, *capture.KINDS)
COUNTS = ("landed", "lost", "twice", "left")

Result = dict[str, Any]


class Evidence:
    """The file that says what was found. Written after every trial: a run that is cut off has shown something too."""

    def __init__(self, path: Path, about: dict[str, Any], *, is_merged: bool = False) -> None:
        """`is_merged`: kinds that are not run now stay as the file has them, with the day and the seed they had."""
        self.path = path
        self.about = about
        self.earlier: dict[str, Any] = {"about": {}, "kinds": {}, "trials": []}
        if is_merged and path.exists():
            self.earlier = json.loads(path.read_text(encoding="utf-8"))
        self.results: list[Result] = []

    def add(self, result: Result) -> None:
        self.results.append(result)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        about = {name: self.about[name] for name in ("messages", "lock_s")}
        text = json.dumps({"about": about, "kinds": self.kinds(), "trials": self.trials()}, indent=1)
        self.path.write_text(text + "\n", encoding="utf-8")

    def trials(self) -> list[Result]:
        now = {result["kind"] for result in self.results}
        kept = [result for result in self.earlier["trials"] if result["kind"] not in now]
        return sorted([*kept, *self.results], key=lambda result: KINDS.index(result["kind"]))

    def kinds(self) -> dict[str, dict[str, Any]]:
        now = {result["kind"] for result in self.results}
        trials = self.trials()
        found: dict[str, dict[str, Any]] = {}
        for kind in dict.fromkeys(result["kind"] for result in trials):
            those = [result for result in trials if result["kind"] == kind]
            before = {**self.earlier["about"], **self.earlier["kinds"].get(kind, {})}
            about = self.about if kind in now else before
            found[kind] = {"trials": len(those)} | {name: sum(int(each[name]) for each in those) for name in COUNTS}
            found[kind] |= {name: about[name] for name in ("date", "seed") if name in about}
        return found

    def wrong(self) -> list[Result]:
        return [result for result in self.results if result["lost"] or result["twice"] or result["left"]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="of each kind")
    parser.add_argument("--only", default=",".join(KINDS), help="kinds, with commas between them")
    parser.add_argument("--merge", action="store_true", help="keep what the file says of kinds that are not run now")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "evidence" / "spark-kills.json")
    chosen = parser.parse_args()
    kinds = chosen.only.split(",")
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        parser.error(f"there is no kind {unknown[0]}; there are {', '.join(KINDS)}")
    random.seed(chosen.seed)
    about = {"messages": MESSAGES, "lock_s": LOCK_S, "seed": chosen.seed, "date": time.strftime("%Y-%m-%d")}
    evidence = Evidence(chosen.out, about, is_merged=chosen.merge)
    with tempfile.TemporaryDirectory(prefix="spillway-kills-") as found:
        ground = Ground(Path(found))
        try:
            for kind in kinds:
                kill = capture.kill if kind in capture.KINDS else syphon.kill
                for _ in range(chosen.kills):
                    result = kill(ground, kind)
                    evidence.add(result)
                    print(f"spark-kills: {result}", flush=True)
        finally:
            ground.close()
    for kind, totals in evidence.kinds().items():
        print(f"spark-kills: {kind:<17} {totals}")
    wrong = evidence.wrong()
    print(f"spark-kills: {len(evidence.results)} trials, {len(wrong)} wrong; written to {chosen.out}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
