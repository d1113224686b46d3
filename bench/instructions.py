"""Instructions of the broker a message, of several builds side by side, counted by valgrind.

Timed runs of the same code differ by a tenth on a shared machine. Instructions do not depend on what else it does: a
broker under callgrind is loaded with few messages and with many, and what the others took is divided by their number.
How many messages a commit has, and whether a sender runs ahead of its receiver, still depends on it: so that is done
several times, in turn with the other builds, and the median counts.

    bench/instructions.py now=build/compiled before=../before/build/compiled [--messages 12000] [--scenarios 1+1,8+8]

It needs valgrind (apt-get install valgrind), and about a minute for each build, scenario and repetition, three
uncompiled. Writes docs/evidence/instructions.json; `ratio`: how many another build takes for one of the first; 1.05 is
a twentieth more.
"""

import argparse
import json
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from bench.run import SCENARIOS, build_load_generator  # noqa: E402 - the tools are imported from the tree they lie in
from tests.tools.broker_process import BrokerProcess  # noqa: E402
from tests.tools.commit import commit  # noqa: E402

FEW: Final = 2_000  # what a start, a login and the first messages take is in both numbers
START_S: Final = 300.0  # fifty times as slow


class CountedBroker(BrokerProcess):
    """Under callgrind, which writes how many instructions there were into a file when it ends."""

    log: Path

    def command(self) -> list[str]:
        directory = self.log.parent
        return ["valgrind", "--tool=callgrind", f"--log-file={self.log}",
                f"--callgrind-out-file={directory / 'callgrind.out'}", *super().command()]  # fmt: skip

    def counted(self) -> int:
        found = re.search(r"Collected : (\d+)", self.log.read_text())
        assert found is not None, self.log.read_text()[-500:]
        return int(found.group(1))


def count(load: Path, build: Path, scenario: str, messages: int) -> int:
    """All that a broker does from its start to its end, with so many messages between."""
    plan = SCENARIOS[scenario]
    with tempfile.TemporaryDirectory(prefix="spillway-instructions-") as directory:
        queues = [f"bench{number}" for number in range(plan.queues)]
        broker = CountedBroker(Path(directory) / "data", queues=queues, python_path=build)
        broker.log = Path(directory) / "valgrind.log"
        broker.start(START_S)
        command = [str(load), "--port", str(broker.port), "--address", "bench%d", "--second", "--idle", "120"]
        command += ["--user", "RootManageSharedAccessKey", "--pass", "SAS_KEY_VALUE", "--size", "1024"]
        command += ["--senders", str(plan.senders), "--receivers", str(plan.receivers), "--queues", str(plan.queues)]
        command += ["--window", str(plan.window), "--credit", "1000", "--count", str(messages), "--warmup", "0"]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"
        broker.stop(START_S)
        broker.close()
        return broker.counted()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "builds", nargs="+", help="NAME=DIRECTORY with spillway in it; the first is compared with the others"
    )
    parser.add_argument("--messages", type=int, default=12_000)
    parser.add_argument("--scenarios", default="1+1,8+8")
    parser.add_argument("--reps", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "evidence" / "instructions.json")
    options = parser.parse_args()
    if options.messages <= FEW:
        parser.error(f"--messages has to be more than {FEW:,}, which are the start that is taken off")
    if shutil.which("valgrind") is None:
        sys.exit("instructions: needs valgrind: apt-get install valgrind")
    builds = {name: Path(path).resolve() for name, _, path in (each.partition("=") for each in options.builds)}
    for name, path in builds.items():
        if not (path / "spillway").is_dir():
            sys.exit(f"instructions: {name}: there is no spillway in {path} (NAME=DIRECTORY)")
    facts: dict[str, Any] = {"machine": f"{platform.machine()}, Python {platform.python_version()}"}
    facts |= {"commit": commit(), "messages": options.messages, "scenarios": {}}
    with tempfile.TemporaryDirectory() as directory:
        load = build_load_generator(Path(directory))
        for scenario in options.scenarios.split(","):
            each: dict[str, list[int]] = {name: [] for name in builds}
            for _ in range(options.reps):
                for name, path in builds.items():
                    many = count(load, path, scenario, options.messages) - count(load, path, scenario, FEW)
                    each[name].append(round(many / (options.messages - FEW)))
                    print(f"instructions: {scenario} {name}: {each[name][-1]:,} a message", flush=True)
            taken = {name: round(statistics.median(counts)) for name, counts in each.items()}
            first = next(iter(builds))
            ratios = {name: round(taken[name] / taken[first], 3) for name in builds if name != first}
            facts["scenarios"][scenario] = {"instructions_per_message": taken, "ratio": ratios, "each": each}
    options.out.write_text(json.dumps(facts, indent=2) + "\n")
    print(f"instructions: {json.dumps(facts['scenarios'])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
