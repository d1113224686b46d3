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

A receive-and-delete stream (tools/sparkkills_delete.py), which promises at most once: nothing twice, nothing left, and
lost only what died with its task:

    delete-received     a worker dies with what it has received
    delete-worker, delete-driver, delete-executor   as above
    delete-last         nothing is killed, and nothing lost

    tools/sparkkills.py --kills 20 [--only worker,sent] [--go-on]
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

from tests.tools.commit import commit  # noqa: E402
from tools import sparkkills_capture as capture  # noqa: E402
from tools import sparkkills_delete as delete  # noqa: E402
from tools import sparkkills_syphon as syphon  # noqa: E402
from tools.sparkkills_ground import LOCK_S, MESSAGES, Ground  # noqa: E402

KINDS = (*syphon.KINDS, *capture.KINDS, *delete.KINDS)
COUNTS = ("landed", "lost", "twice", "left")

Result = dict[str, Any]


class Evidence:
    """The file that says what was found. Written after every trial: a run that is cut off has shown something too."""

    def __init__(self, path: Path, *, goes_on: bool = False) -> None:
        self.path = path
        self.trials: list[Result] = []
        if goes_on and path.exists():
            self.trials = json.loads(path.read_text(encoding="utf-8"))["trials"]

    def add(self, trial: Result) -> None:
        self.trials.append(trial)
        self.trials.sort(key=lambda each: KINDS.index(each["kind"]))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        about = {"messages": MESSAGES, "lock_s": LOCK_S}
        text = json.dumps({"about": about, "kinds": self.kinds(), "trials": self.trials}, indent=1)
        self.path.write_text(text + "\n", encoding="utf-8")

    def kinds(self) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        for kind in dict.fromkeys(trial["kind"] for trial in self.trials):
            those = [trial for trial in self.trials if trial["kind"] == kind]
            found[kind] = {"trials": len(those)} | {name: sum(int(each[name]) for each in those) for name in COUNTS}
        return found

    def landed(self, kind: str) -> int:
        """Trials in which the kill came in the middle: the others have shown nothing."""
        return self.kinds().get(kind, {}).get("landed", 0)

    def wrong(self) -> list[Result]:
        return [trial for trial in self.trials if is_wrong(trial)]


def is_wrong(trial: Result) -> bool:
    """By what its kind promises."""
    if trial["kind"] in delete.KINDS:
        return delete.is_wrong(trial)
    return bool(trial["lost"] or trial["twice"] or trial["left"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="of each kind, in the middle of its work")
    parser.add_argument("--only", default=",".join(KINDS), help="kinds, with commas between them")
    parser.add_argument("--go-on", action="store_true", help="what the file has counts: run what is missing")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "evidence" / "spark-kills.json")
    chosen = parser.parse_args()
    kinds = chosen.only.split(",")
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        parser.error(f"there is no kind {unknown[0]}; there are {', '.join(KINDS)}")
    random.seed(chosen.seed)
    about = {"seed": chosen.seed, "date": time.strftime("%Y-%m-%d"), "commit": commit()}
    evidence = Evidence(chosen.out, goes_on=chosen.go_on)
    is_enough = True
    with tempfile.TemporaryDirectory(prefix="spillway-kills-") as found:
        ground = Ground(Path(found))
        try:
            for kind in kinds:
                is_enough &= killed(ground, kind, chosen.kills, evidence, about)
        finally:
            ground.close()
    for kind, totals in evidence.kinds().items():
        print(f"spark-kills: {kind:<17} {totals}")
    wrong = evidence.wrong()
    print(f"spark-kills: {len(evidence.trials)} trials, {len(wrong)} wrong; written to {chosen.out}")
    return 1 if wrong or not is_enough else 0


def killed(ground: Ground, kind: str, kills: int, evidence: Evidence, about: Result) -> bool:
    """Until so many have landed; not for ever."""
    (kill,) = [room.kill for room in (syphon, capture, delete) if kind in room.KINDS]
    tries = 2 * kills
    while evidence.landed(kind) < kills and tries:
        tries -= 1
        result = {**kill(ground, kind), **about}
        evidence.add(result)
        print(f"spark-kills: {result}", flush=True)
    return evidence.landed(kind) >= kills


if __name__ == "__main__":
    sys.exit(main())
