"""`make bench-paired`: what pairing costs while all is well, how fast a backlog fills and comes home, what callers see.

Two namespaces as real processes, clients as processes of their own (bench/paired_clients.py). As in bench/run.py only
numbers of one run compare, so what is compared is measured in turns.

    bench/paired.py                              everything: 100,000 messages each way, several minutes
    bench/paired.py --quick                      does it work, roughly how fast
    bench/paired.py --only cost --messages 500
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from bench.run import COMPILED, SOURCES, machine  # noqa: E402 - the tools are imported from the tree they lie in
from spillway.client import connect  # noqa: E402
from tests.tools.broker_process import BrokerProcess  # noqa: E402

CLIENTS = ROOT / "bench" / "paired_clients.py"
PARTS = ("cost", "backlog", "callers")
BACKLOG_QUEUES = 10
TIMEOUT_S = 3_600.0
COST_MAX = 1.10  # what a paired sender may cost of a bare one's CPU, median of the pairs
WITHOUT_ID = "sequential, no id"  # the paired sender gives each one, and the SDK encodes a section more

Result = dict[str, Any]


class Bench:
    def __init__(self, directory: Path, python_path: Path, chosen: argparse.Namespace, stack: ExitStack) -> None:
        self.chosen = chosen
        config = directory / "primary.json"
        names = ["bare", "paired", "home", "moved", "held", "frozen", "killed"]
        config.write_text(json.dumps(queues_config(names)))
        self.primary = BrokerProcess(directory / "primary", config=config, python_path=python_path)
        self.secondary = BrokerProcess(directory / "secondary", queues=["bare"], python_path=python_path)
        for broker in (self.primary, self.secondary):
            broker.start()
            stack.callback(broker.close)

    def spec(self, name: str, **more: Any) -> dict[str, Any]:
        """`name` is the primary's name in backlog paths: backlog queues of its own."""
        return {
            "primary": self.primary.connection_string,
            "secondary": self.secondary.connection_string,
            "ca_file": self.secondary.ca_file,
            "name": name,
            "size": self.chosen.size,
            "ids": True,
            "backlog_queues": BACKLOG_QUEUES,
            "in_flight": 1,
        } | more

    def run(self, role: str, spec: dict[str, Any]) -> Result:
        child = self.start(role, spec)
        return finish(role, child)

    def start(self, role: str, spec: dict[str, Any]) -> "subprocess.Popen[str]":
        environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
        return subprocess.Popen(
            [sys.executable, str(CLIENTS), role, json.dumps(spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    # -- the cost of being paired while all is well -------------------------------------------------------------------

    def cost(self) -> Result:
        """User and system time of the client's process for each message. A pair is one process that has a bare sender
        of the SDK and a paired one, and gives them a few messages in turns: on a shared machine the same work costs a
        quarter more or less from one second to the next, and so both meet the same seconds. Or 64 tasks, over four bare
        senders that they take in turns (an SDK sender serves one at a time) and over one paired sender (which has up to
        four inside)."""
        found: Result = {}
        for title, in_flight, ids in (("sequential", 1, True), (WITHOUT_ID, 1, False), ("64 in flight", 64, True)):
            runs: dict[str, list[Result]] = {"bare": [], "paired": []}
            count = self.chosen.messages * (1 if in_flight == 1 else 4)
            for number in range(self.chosen.pairs):
                spec = self.spec(f"cost-{in_flight}-{number}", queue="paired", bare_queue="bare", senders=4, ids=ids)
                spec |= {"in_flight": in_flight, "count": count, "block": 25 * in_flight}
                pair = self.run("alternate", spec)
                for flavour, results in runs.items():
                    results.append(pair[flavour])
            found[title] = compared(runs)
            print(f"bench: {title}: {found[title]['cpu_ratio']:.3f} of the bare sender's CPU")
        return found

    # -- the backlog, there and back ----------------------------------------------------------------------------------

    def backlog(self) -> Result:
        count = self.chosen.backlog
        found: Result = {"messages": count, "backlog_queues": BACKLOG_QUEUES, "in_flight": 64}
        bare = self.spec("bare", primary=self.secondary.connection_string, queue="bare", senders=8, in_flight=64)
        found["bare send"] = self.run("send", bare | {"count": count // 4, "warmup": 200, "is_paired": False})
        self.primary.kill()
        for name in ("home", "moved"):
            spec = self.spec(name, queue=name, count=count, clients=8, in_flight=64, is_paired=True, interval_s=0.0)
            found[f"divert to {name}"] = self.run("divert", spec)
            print(f"bench: diverted {count} at {found[f'divert to {name}']['rate']:.0f}/s")
        self.primary.start()
        found["syphon"] = self.run("syphon", self.spec("home", queue="home", count=count))
        print(f"bench: syphoned {count} at {found['syphon']['rate']:.0f}/s")
        found["bare move"] = self.run("move", self.spec("moved", queue="moved", count=count))
        print(f"bench: moved {count} with the bare SDK at {found['bare move']['rate']:.0f}/s")
        for name in ("home", "moved"):
            found[f"found in {name}"] = self.verdict(name, name, count)
        return found

    def verdict(self, queue: str, name: str, count: int) -> Result:
        """What is in the queue at the end, against what was acknowledged: every number below `count`."""
        ids = Counter(asyncio.run(ids_in(self.primary.connection_string, queue)))
        sent = {f"{name}-{number}" for number in range(count)}
        left = sum(
            len(asyncio.run(ids_in(self.secondary.connection_string, f"{name}/x-servicebus-transfer/{index}")))
            for index in range(BACKLOG_QUEUES)
        )
        return {
            "delivered": sum(ids.values()),
            "lost": len(sent - set(ids)),
            "duplicates": sum(ids.values()) - len(ids),
            "unknown": len(set(ids) - sent),
            "left_in_backlog": left,
        }

    # -- what callers see ---------------------------------------------------------------------------------------------

    def callers(self) -> Result:
        found: Result = {"hold": self.hold()}
        print(f"bench: held: {found['hold']['exceptions']} exceptions, longest {found['hold']['longest_call_s']} s")
        for queue, begin, end in (
            ("frozen", self.primary.pause, self.primary.resume),
            ("killed", self.primary.kill, self.primary.start),
        ):
            spec = self.spec(queue, queue=queue, interval_s=0.0, operation_timeout_s=10.0, backlog_queues=1)
            child = self.start("fail-at-once", spec)
            wait_ready(child)
            begin()
            try:
                found[f"interval zero, {queue}"] = finish("fail-at-once", child, "go\n") | {"operation_timeout_s": 10.0}
            finally:
                end()
            print(f"bench: {queue}: the failing call took {found[f'interval zero, {queue}']['failing_call_s']} s of 10")
        return found

    def hold(self) -> Result:
        """Killed, away for a while, and back, while callers send all the time."""
        spec = self.spec("held", queue="held", interval_s=3.0, ping_s=1.0, operation_timeout_s=20.0, in_flight=16)
        child = self.start("hold", spec | {"pause_s": 0.02})
        wait_ready(child)
        time.sleep(self.chosen.spell)
        self.primary.kill()
        time.sleep(self.chosen.spell + 3.0)
        self.primary.start()
        time.sleep(self.chosen.spell)
        result = finish("hold", child, "over\n")
        self.run("syphon", self.spec("held", queue="held", count=result["diverted"]))
        return result | {"found": self.verdict("held", "held", result["acknowledged"] + result["exceptions"])}


def queues_config(names: list[str]) -> dict[str, Any]:
    """Queues that know duplicates, for ten minutes: the window inside which there must be none."""
    properties = {"RequiresDuplicateDetection": True, "DuplicateDetectionHistoryTimeWindow": "PT10M"}
    queues = [{"Name": name, "Properties": properties} for name in names]
    return {"UserConfig": {"Namespaces": [{"Name": "sbemulatorns", "Queues": queues}], "Logging": {"Type": "Console"}}}


def wait_ready(child: "subprocess.Popen[str]") -> None:
    assert child.stdout is not None
    line = child.stdout.readline()
    if line.strip() != "ready":
        sys.exit("bench: a client did not become ready")


def finish(role: str, child: "subprocess.Popen[str]", word: str | None = None) -> Result:
    """Its result, after it was told the word it waits for."""
    try:
        out, _ = child.communicate(word, timeout=TIMEOUT_S)
    except BaseException:
        child.kill()
        raise
    if child.returncode != 0:
        sys.exit(f"bench: '{role}' ended with status {child.returncode}")
    result: Result = json.loads(out.strip().splitlines()[-1])
    return result | {"load_average": round(os.getloadavg()[0], 2)}


def compared(runs: dict[str, list[Result]]) -> Result:
    """Medians, and the median of the ratios of each pair."""
    ratios = [
        paired["cpu_us_per_msg"] / bare["cpu_us_per_msg"]
        for bare, paired in zip(runs["bare"], runs["paired"], strict=True)
    ]
    result: Result = {
        "cpu_ratio": round(statistics.median(ratios), 3),
        "cpu_ratios": [round(each, 3) for each in ratios],
    }
    for flavour, measured in runs.items():
        for key in ("cpu_us_per_msg", "rate"):
            result[f"{flavour}_{key}"] = round(statistics.median(each[key] for each in measured), 1)
    return result | {"runs": runs}


async def ids_in(connection_string: str, path: str) -> list[str]:
    found: list[str] = []
    async with await connect(connection_string) as connection:
        after = 0
        while messages := await connection.management(path).peek(after, 500):
            found += [str(message.message_id) for message in messages]
            after = (messages[-1].sequence_number or 0) + 1
    return found


def judged(results: Result) -> list[str]:
    """What is not as it must be."""
    wrong = []
    for title, cost in results.get("cost", {}).items():
        if cost["cpu_ratio"] > COST_MAX:
            wrong.append(f"{title}: a paired sender costs {cost['cpu_ratio']:.3f} of a bare one, more than {COST_MAX}")
    places = {"the backlog": results.get("backlog", {}).get("found in home")}
    places["held sends"] = results.get("callers", {}).get("hold", {}).get("found")
    for place, found in places.items():
        for key in ("lost", "duplicates", "unknown", "left_in_backlog"):
            if found and found[key]:
                wrong.append(f"{place}: {found[key]} {key}")
    callers = results.get("callers", {})
    if callers and callers["hold"]["exceptions"]:
        wrong.append(f"callers that are held saw {callers['hold']['exceptions']} exceptions")
    for name, each in callers.items():
        if "failing_call_s" in each and each["failing_call_s"] > each["operation_timeout_s"]:
            wrong.append(f"{name}: the failing call took {each['failing_call_s']} s")
    return wrong


def main() -> int:
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one pair, small counts")
    parser.add_argument("--only", default=",".join(PARTS), help=f"of {', '.join(PARTS)}")
    parser.add_argument("--pairs", type=int, default=5, help="of a bare and a paired run")
    parser.add_argument("--messages", type=int, default=5_000, help="of one run of the cost")
    parser.add_argument("--backlog", type=int, default=100_000, help="messages diverted and brought home")
    parser.add_argument("--spell", type=float, default=8.0, help="seconds before, during and after the outage")
    parser.add_argument("--size", type=int, default=1024, help="bytes of a body")
    parser.add_argument("--compiled", type=Path, default=COMPILED, help="the compiled build, if there is one")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "evidence" / "bench-paired.json")
    parser.add_argument("--data", type=Path, help="where the brokers keep their data (a temporary directory)")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.pairs, chosen.messages, chosen.backlog, chosen.spell = 1, 500, 2_000, 3.0
    is_compiled = any(chosen.compiled.glob("**/*.so"))
    results: Result = {}
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="spillway-bench-", dir=chosen.data)))
        results["machine"] = machine(directory) | {"broker": "compiled" if is_compiled else "uncompiled"}
        results["machine"]["load_average"] = [round(each, 2) for each in os.getloadavg()]
        bench = Bench(directory, chosen.compiled if is_compiled else SOURCES, chosen, stack)
        for part in chosen.only.split(","):
            results[part] = getattr(bench, part)()
    results["machine"]["load_average_at_end"] = [round(each, 2) for each in os.getloadavg()]
    results["wrong"] = wrong = judged(results)
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps(results, indent=1) + "\n")
    for line in wrong:
        print(f"bench: {line}")
    print(f"bench: raw results in {chosen.out}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
