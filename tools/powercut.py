"""`make powercut`: cut the power under load, many times, and see what is still there.

A broker runs on a file system of its own (ext4, and xfs where xfsprogs is installed), in a file on a loop device. Under
load it is frozen, its file system is shut down without flushing anything, and the broker is killed; the disk is mounted
again, the store is checked, and the next life of the broker works on the same data. What clients were told is in
histories on another file system. Once more with a broker that does not wait for its disk, which must be found out.

Writes docs/evidence/powercut.json. Ends with status 1 if anything acknowledged was lost, anything completed came back,
a store was not sound, or the negative control came out clean; with status 2 where power cannot be cut (it needs root
and loop devices).
"""

import argparse
import json
import os
import platform
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
sys.path.append(str(ROOT / "src"))  # last: an installed or compiled build named by PYTHONPATH comes first

from tests.tools import cutting  # noqa: E402 - the tools are imported from the tree they lie in
from tests.tools.loop_disk import MAKE, CannotCut, try_out  # noqa: E402

COMPILED = ROOT / "build" / "compiled"
CONTROL_CUTS = 2
EXIT_CANNOT = 2
# In namespaces of its own, the tool takes every process and every mount with it, however it ends.
ISOLATED = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuts", type=int, default=60, help="of all file systems together")
    parser.add_argument("--file-systems", default=",".join(MAKE), help="which of them, if they can be made here")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the random moments; printed")
    parser.add_argument("--minutes", type=float, default=20.0, help="no cut is made after so many")
    parser.add_argument("--uncompiled", action="store_true", help="the sources, even if there is a compiled build")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "evidence" / "powercut.json")
    parser.add_argument("--keep", action="store_true", help="keep the histories")
    parser.add_argument("--is-isolated", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def say(text: str) -> None:
    print(f"powercut: {text}", flush=True)


def cannot(why: str) -> int:
    say(f"power cannot be cut here: {why}")
    return EXIT_CANNOT


def isolate() -> int:
    """Start again, isolated. Returns only where that cannot be done."""
    if os.geteuid() != 0:
        return cannot("it needs root")
    sys.stdout.flush()
    try:
        os.execvp(ISOLATED[0], [*ISOLATED, sys.executable, *sys.argv, "--is-isolated"])
    except OSError as error:
        return cannot(f"{ISOLATED[0]}: {error.strerror}")


def usable(names: list[str]) -> tuple[list[str], dict[str, str]]:
    """The file systems whose power can be cut, and what is missing for the others."""
    usable_ones: list[str] = []
    missing: dict[str, str] = {}
    for name in names:
        try:
            try_out(name)
            usable_ones.append(name)
        except CannotCut as error:
            missing[name] = str(error)
            say(f"no {name}: {error}")
    return usable_ones, missing


class Evidence:
    """All runs of one call."""

    def __init__(self, chosen: argparse.Namespace, directory: Path, kinds: list[str]) -> None:
        self.chosen = chosen
        self.directory = directory
        self.kinds = kinds
        self.is_compiled = not chosen.uncompiled and any(COMPILED.glob("**/*.so"))
        self.deadline = time.monotonic() + chosen.minutes * 60
        self.reports: list[cutting.Report] = []
        self.controls: list[cutting.Report] = []

    def collect(self) -> None:
        """The controls first: they are short, and a cut that cuts nothing needs no further run."""
        for kind in self.kinds:
            control = self._run(kind, CONTROL_CUTS, "control", {"SPILLWAY_UNSAFE_SYNCHRONOUS": "OFF"})
            say(f"{kind}, not waiting for the disk: {len(control.verdict.lost)} of {control.verdict.acknowledged} lost")
            self.controls.append(control)
        for index, kind in enumerate(self.kinds):
            cuts = self.chosen.cuts // len(self.kinds) + (index < self.chosen.cuts % len(self.kinds))
            report = self._run(kind, cuts, "default", {})
            verdict = report.verdict
            say(f"{kind}: {len(verdict.lost)} of {verdict.acknowledged} lost, {len(verdict.resurrected)} came back")
            self.reports.append(report)

    def _run(self, kind: str, cuts: int, name: str, env: dict[str, str]) -> cutting.Report:
        directory = self.directory / f"{kind}-{name}"
        directory.mkdir()
        return cutting.run(
            directory,
            kind,
            cuts,
            seed=self.chosen.seed,
            env=env,
            python_path=COMPILED if self.is_compiled else None,
            deadline=self.deadline,
            said=say,
        )

    @property
    def cuts(self) -> int:
        return sum(report.cuts for report in self.reports)

    @property
    def holds(self) -> bool:
        return (
            all(report.is_clean for report in self.reports)
            and all(control.verdict.lost for control in self.controls)
            and self.cuts >= self.chosen.cuts
        )

    def summary(self, missing: dict[str, str]) -> dict[str, Any]:
        verdicts = [report.verdict for report in self.reports]
        return {
            "machine": f"{platform.system()} {platform.release()} {platform.machine()}, {os.cpu_count()} processors, "
            f"Python {platform.python_version()}",
            "compiled": self.is_compiled,
            "cuts": self.cuts,
            "cuts_asked_for": self.chosen.cuts,
            "acknowledged": sum(verdict.acknowledged for verdict in verdicts),
            "completed": sum(verdict.completed for verdict in verdicts),
            "lost": sum(len(verdict.lost) for verdict in verdicts),
            "resurrected": sum(len(verdict.resurrected) for verdict in verdicts),
            "store_errors": sum(len(report.store_errors) for report in self.reports),
            "holds": self.holds,
            "file_systems": [report.summary() for report in self.reports],
            "file_systems_missing": missing,
            "negative_control": {
                "what": "SPILLWAY_UNSAFE_SYNCHRONOUS=OFF: answers without waiting for the disk; must lose",
                "lost": sum(len(control.verdict.lost) for control in self.controls),
                "file_systems": [control.summary() for control in self.controls],
            },
        }


def main() -> int:
    chosen = arguments()
    if not chosen.is_isolated:
        return isolate()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    kinds, missing = usable(chosen.file_systems.split(","))
    if not kinds:
        return cannot("; ".join(f"{kind}: {why}" for kind, why in missing.items()))
    directory = Path(tempfile.mkdtemp(prefix="spillway-powercut-"))
    say(f"{chosen.cuts} cuts on {' and '.join(kinds)}, seed {chosen.seed}")
    evidence = Evidence(chosen, directory, kinds)
    is_kept = chosen.keep
    try:
        evidence.collect()
        facts = evidence.summary(missing)
        chosen.out.parent.mkdir(parents=True, exist_ok=True)
        chosen.out.write_text(json.dumps(facts, indent=2) + "\n")
        print(json.dumps(facts, indent=2))
        is_kept = is_kept or not evidence.holds
    finally:
        if is_kept:
            say(f"histories kept in {directory}")
        else:
            shutil.rmtree(directory)
    say("clean" if evidence.holds else "NOT clean")
    return 0 if evidence.holds else 1


if __name__ == "__main__":
    sys.exit(main())
