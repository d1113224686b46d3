"""`make bench`: the broker, compiled and not, beside RabbitMQ and Artemis where they are installed, in one run.

On a shared machine only numbers of one run compare, and of those the CPU per message most: so every scenario is
measured for every broker before the next repetition begins, and the medians are printed side by side. The load comes
from `amqpload`, a C client that costs about one microsecond a message; see bench/README.md for what it prints. At the
end each bar is printed with what was found. The status is 1 if a run failed, not if a bar is missed.

    bench/run.py                      everything, five repetitions, a quarter of an hour
    bench/run.py --quick              one repetition, small counts: does it work, roughly how fast
    bench/run.py --only compiled,uncompiled --scenarios 1+1,w1
    bench/run.py --only compiled --beside before=../before/build/compiled    two versions in one run
    bench/run.py --only compiled --beside plain=build/compiled,asyncio --scenarios 1+1,w1    two event loops in one run
    bench/run.py --only compiled --beside before=… --scenarios 1+1,8+8 --scale 0.25 --reps 40    by many short pairs
"""

import argparse
import json
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from tests.tools.broker_process import BrokerProcess  # noqa: E402 - the tools are imported from the tree they lie in
from tests.tools.commit import commit  # noqa: E402

COMPILED = ROOT / "build" / "compiled"
SOURCES = ROOT / "src"
RABBIT_SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
RABBIT_PORT = 15673
ARTEMIS = ROOT / "bench" / "artemis.sh"
ARTEMIS_PORT = 15675
# A Java machine compiles what runs often, while it runs: so many messages go through it before anything is measured.
ARTEMIS_WARM_UP = 60_000
ALL = ("compiled", "uncompiled", "rabbit-classic", "rabbit-quorum", "artemis")
QUEUES = 9
# A fast broker gets more messages, or its runs are too short for the 10 ms ticks of the CPU clock.
OUR_SCALE = 3.0
PAIRS_MIN = 10  # for a ratio with an interval
REPS = 5  # with fewer, or with smaller counts, what is printed beside a bar is a hint
RUN_S = 600.0
# What a broker does after the last message, such as folding its log, is neither the next one's nor forgotten.
QUIET_S, QUIET_CORES, QUIET_WITHIN_S = 0.2, 0.1, 5.0

# The bars, all of them for the compiled broker.
FULL_SPEED = ("1+1", "8+8")
RATE_RATIO_MIN = 6.0  # of the better RabbitMQ's rate, in those
CPU_US_MAX = 12.0  # a message, in those
ACK_RATIO_MAX = 0.6  # of the better RabbitMQ's median acknowledgement, at window 1
BESIDE_RATIO_MIN = 0.97  # of another version's rate in the same run: runs of the same code differ
# The rates of docs/bench.md from before there was a log. Of another day, so a floor rather than a comparison.
OLD_RATES = {"1+1": 23_629, "send": 36_156, "recv": 23_964, "8+8": 24_332, "w1": 1_191, "8xw1": 4_305}


@dataclass(frozen=True)
class Scenario:
    """One way to load a broker. `recv` drains what `send` left: list it after `send`."""

    count: int
    warmup: int
    senders: int
    receivers: int
    queues: int
    window: int
    what: str
    copies: int = 1  # of every message: sent to a topic, received from its subscriptions


SUBSCRIPTIONS = 50
SCENARIOS = {
    "1+1": Scenario(60_000, 10_000, 1, 1, 1, 1000, "1 sender, 1 receiver, 1000 in flight"),
    "send": Scenario(40_000, 8_000, 1, 0, 1, 1000, "1 sender alone"),
    "recv": Scenario(40_000, 0, 0, 1, 1, 1000, "1 receiver alone, what `send` left"),
    "8+8": Scenario(80_000, 16_000, 8, 8, 8, 1000, "8 senders, 8 receivers, 8 queues"),
    "w1": Scenario(1_500, 200, 1, 1, 1, 1, "1 sender that waits for each acknowledgement"),
    "8xw1": Scenario(5_000, 800, 8, 8, 8, 1, "8 such senders"),
    "fanout": Scenario(
        2_000,
        300,
        5,
        SUBSCRIPTIONS,
        SUBSCRIPTIONS,
        100,
        "topic, 50 subscriptions, 10 copies a message; rates of copies",
        10,
    ),
}


@dataclass
class Target:
    """One broker under test. `options` go to amqpload."""

    name: str
    port: int
    pid: int
    options: list[str]
    fan_out: list[str]  # where the messages of a topic are sent to and received from
    scale: float = 1.0
    warm_up: int = 0  # messages, once, before anything is measured
    results: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def median(self, scenario: str, *path: str) -> float | None:
        values = []
        for result in self.results.get(scenario, []):
            value: Any = result
            for key in path:
                value = value[key]
            values.append(float(value))
        return statistics.median(values) if values else None

    def some(self, scenario: str, *path: str) -> float | None:
        """As `median`, but None for zero too: runs so short that nothing lay in the window."""
        return self.median(scenario, *path) or None


def build_load_generator(directory: Path) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        sys.exit("bench: needs a C compiler: apt-get install gcc")
    program = directory / "amqpload"
    subprocess.run(
        [compiler, "-O2", "-Wall", "-Wextra", "-o", str(program), str(ROOT / "bench" / "amqpload.c")], check=True
    )
    return program


def start_ours(stack: ExitStack, directory: Path, name: str, python_path: Path, loop: str = "") -> Target:
    """Receivers settle as the SDKs do: unsettled disposition, and the broker's answer is waited for (`--second`)."""
    config = directory / "fanout.json"
    config.write_text(json.dumps(fan_out_config()))
    broker = BrokerProcess(
        directory / name,
        queues=[f"bench{number}" for number in range(QUEUES)],
        config=config,
        options=["--loop", loop] if loop else [],
        python_path=python_path,
    )
    broker.start()
    stack.callback(broker.close)
    options = ["--user", "RootManageSharedAccessKey", "--pass", "SAS_KEY_VALUE", "--second"]
    fan_out = ["--send-address", "fan", "--address", "fan/Subscriptions/s%d", "--numbers", "100"]
    return Target(name, broker.port, broker.pid, [*options, "--address", "bench%d"], fan_out, OUR_SCALE)


def fan_out_config(count: int = SUBSCRIPTIONS) -> dict[str, Any]:
    """A topic whose messages have a number n below 100 and g, 'g0' to 'g4'. Half of its subscriptions have an SQL
    filter, half a correlation filter. Each message matches a fifth of both, if there is a multiple of ten."""
    subscriptions = []
    for number in range(count):
        part = number % 5
        if number % 2 == 0:
            low = number // 2 % 5 * 20
            rule = {"FilterType": "Sql", "SqlFilter": {"SqlExpression": f"n >= {low} AND n < {low + 20}"}}
        else:
            rule = {"FilterType": "Correlation", "CorrelationFilter": {"Properties": {"g": f"g{part}"}}}
        subscriptions.append({"Name": f"s{number}", "Rules": [{"Name": "only", "Properties": rule}]})
    topic = {"Name": "fan", "Subscriptions": subscriptions}
    return {"UserConfig": {"Namespaces": [{"Name": "sbemulatorns", "Topics": [topic]}], "Logging": {"Type": "Console"}}}


def start_rabbit(stack: ExitStack, directory: Path) -> list[Target]:
    """One private node serves both kinds of queue; it refuses receiver settle mode second, so `first` it is."""
    script = str(ROOT / "bench" / "rabbit.sh")
    home = str(directory / "rabbit")
    started = subprocess.run(
        [script, "start", home, str(RABBIT_PORT)], check=True, capture_output=True, text=True, timeout=120
    )
    stack.callback(subprocess.run, [script, "stop", home, str(RABBIT_PORT)], check=False, timeout=60)
    pid = int(started.stdout.split()[-1])
    common = ["--user", "guest", "--pass", "guest", "--vhost", "vhost:/"]
    targets = []
    for name, letter in (("rabbit-classic", "c"), ("rabbit-quorum", "q")):
        fan_out = ["--send-address", f"/exchange/{letter}fan/g%d", "--address", f"/amq/queue/{letter}f%d"]
        options = [*common, "--address", f"/amq/queue/{letter}q%d"]
        targets.append(Target(name, RABBIT_PORT, pid, options, fan_out))
    return targets


def start_artemis(stack: ExitStack, directory: Path) -> Target:
    """A private broker with a synced journal. It always settles as `first`, whatever a receiver asks for."""
    home = str(directory / "artemis")
    started = subprocess.run(
        [str(ARTEMIS), "start", home, str(ARTEMIS_PORT)], check=True, capture_output=True, text=True, timeout=120
    )
    stack.callback(subprocess.run, [str(ARTEMIS), "stop", home], check=False, timeout=60)
    options = ["--user", "bench", "--pass", "bench", "--address", "bench%d"]
    fan_out = ["--send-address", "fan", "--address", "fan::f%d", "--numbers", "100"]
    pid = int(started.stdout.split()[-1])
    return Target("artemis", ARTEMIS_PORT, pid, options, fan_out, warm_up=ARTEMIS_WARM_UP)


def artemis_version() -> str | None:
    """None where it is not to be had, or where there is no Java to run it."""
    asked = subprocess.run([str(ARTEMIS), "version"], capture_output=True, text=True, check=False)
    return asked.stdout.strip() or None if shutil.which("java") else None


def start_targets(stack: ExitStack, directory: Path, compiled: Path, only: set[str], beside: list[str]) -> list[Target]:
    """Those asked for and present; what is missing is said, in one line each."""
    targets = []
    if "compiled" in only:
        if any(compiled.glob("**/*.so")):
            targets.append(start_ours(stack, directory, "compiled", compiled))
        else:
            print(f"bench: no compiled build in {compiled}, left out")
    if "uncompiled" in only:
        targets.append(start_ours(stack, directory, "uncompiled", SOURCES))
    for each in beside:
        name, _, rest = each.partition("=")
        path, _, loop = rest.partition(",")
        if not Path(path, "spillway").is_dir():
            sys.exit(
                f"bench: --beside {each}: {path or 'nothing'} is no directory with spillway in it (NAME=DIRECTORY)"
            )
        targets.append(start_ours(stack, directory, name, Path(path).resolve(), loop))
    if only & {"rabbit-classic", "rabbit-quorum"}:
        if RABBIT_SERVER.exists():
            targets += [target for target in start_rabbit(stack, directory) if target.name in only]
        else:
            print("bench: rabbitmq-server is not installed, left out (apt-get install rabbitmq-server)")
    if "artemis" in only:
        if artemis_version() is not None:
            targets.append(start_artemis(stack, directory))
        else:
            print("bench: Apache Artemis is not there, left out (bench/README.md says how to get it)")
    return targets


def warm_up(load: Path, target: Target, scale: float) -> None:
    count = str(int(target.warm_up * scale))
    command = [str(load), "--port", str(target.port), "--count", count, "--idle", "30", *target.options]
    subprocess.run(command, capture_output=True, check=True, timeout=120)


def measure(load: Path, target: Target, name: str, scale: float, size_bytes: int) -> dict[str, Any]:
    """One run of the load generator. Its own error, if any, is in the result."""
    scenario = SCENARIOS[name]
    factor = scale * target.scale
    command = [str(load), "--port", str(target.port), "--pid", str(target.pid), "--label", f"{target.name} {name}"]
    command += ["--senders", str(scenario.senders), "--receivers", str(scenario.receivers)]
    command += ["--queues", str(scenario.queues), "--window", str(scenario.window), "--credit", "1000"]
    command += ["--count", str(int(scenario.count * factor)), "--warmup", str(int(scenario.warmup * factor))]
    command += ["--size", str(size_bytes), "--idle", "30", *target.options]
    if scenario.copies > 1:
        command += ["--copies", str(scenario.copies), *target.fan_out]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=RUN_S)
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {RUN_S:.0f} s"}
    if not done.stdout.strip():
        return {"error": done.stderr.strip() or f"exit {done.returncode}"}
    result: dict[str, Any] = json.loads(done.stdout)
    result["load_average"] = round(os.getloadavg()[0], 2)
    result["cpu_after_us_per_msg"] = round(cpu_s_until_quiet(target.pid) * 1e6 / max(1, result["measured"]), 2)
    return result


def cpu_s_of(pid: int) -> float:
    """User and system time of a process, from the kernel."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu_s_until_quiet(pid: int) -> float:
    """Wait until a broker has nothing left to do; the CPU time that it took meanwhile."""
    begun = last = cpu_s_of(pid)
    deadline = time.monotonic() + QUIET_WITHIN_S
    while time.monotonic() < deadline:
        time.sleep(QUIET_S)
        now = cpu_s_of(pid)
        if now - last <= QUIET_CORES * QUIET_S:
            break
        last = now
    return last - begun


def measure_all(load: Path, targets: list[Target], names: list[str], chosen: argparse.Namespace) -> list[str]:
    """Interleaved, every other time from the last to the first. Returns what went wrong."""
    wrong = []
    for target in targets:
        if target.warm_up:
            warm_up(load, target, chosen.scale)
    for repetition in range(chosen.reps):
        for name in names:
            for target in targets if repetition % 2 == 0 else reversed(targets):
                result = measure(load, target, name, chosen.scale, chosen.size)
                if result.get("error"):
                    wrong.append(f"{target.name} {name}: {result['error']}")
                    print(f"bench: {wrong[-1]}")
                else:
                    target.results.setdefault(name, []).append(result)
        print(f"bench: repetition {repetition + 1} of {chosen.reps} done")
    return wrong


COLUMNS: list[tuple[str, tuple[str, ...]]] = [
    ("msg/s", ("rate",)),
    ("send/s", ("send_rate",)),
    ("recv/s", ("recv_rate",)),
    ("cpu us", ("broker_cpu_us_per_msg",)),
    ("after us", ("cpu_after_us_per_msg",)),
    ("cores", ("broker_cores",)),
    ("ack p50", ("send_latency_us", "p50")),
    ("ack p99", ("send_latency_us", "p99")),
    ("e2e p50", ("e2e_latency_us", "p50")),
    ("e2e p99", ("e2e_latency_us", "p99")),
]


def table(targets: list[Target], names: list[str]) -> str:
    """Medians; latencies in microseconds; ratios are of the first broker against this one, more is better for it."""
    lines = ["scenario broker          " + "".join(f"{title:>9}" for title, _ in COLUMNS) + "   rate x  cpu x"]
    for name in names:
        for target in targets:
            values = [target.median(name, *path) for _, path in COLUMNS]
            if values[0] is None:
                continue
            cells = "".join(
                f"{value:9.2f}" if title == "cores" else f"{value:9.1f}" if title.endswith(" us") else f"{value:9.0f}"
                for (title, _), value in zip(COLUMNS, values, strict=True)
                if value is not None
            )
            lines.append(f"{name:<8} {target.name:<16}{cells}" + ratios(targets[0], target, name))
        lines.append("")
    return "\n".join(lines)


@dataclass(frozen=True)
class Paired:
    """How many times as fast the first broker is as another one, by runs that lay side by side.

    What else the machine does changes by the minute, and hits both runs of a pair alike. `low` and `high` are the 95 %
    interval of the median, by resampling.
    """

    median: float
    low: float
    high: float
    pairs: int


def paired(first: Target, other: Target, name: str, path: str = "rate") -> Paired | None:
    both = zip(first.results.get(name, []), other.results.get(name, []), strict=False)
    found = [float(one[path]) / float(two[path]) for one, two in both if two[path]]
    if first is other or len(found) < PAIRS_MIN:
        return None
    dice = random.Random(1)
    medians = sorted(statistics.median(dice.choices(found, k=len(found))) for _ in range(2_000))
    return Paired(round(statistics.median(found), 3), round(medians[50], 3), round(medians[1949], 3), len(found))


def paired_lines(targets: list[Target], names: list[str]) -> str:
    lines = []
    for name in names:
        for target in targets[1:]:
            found = paired(targets[0], target, name)
            if found is not None:
                span = f"{found.low:.2f} to {found.high:.2f}"
                lines.append(
                    f"{name}: {targets[0].name} is {found.median:.2f} times {target.name} ({span}, {found.pairs} pairs)"
                )
    return "\n".join(lines)


def ratios(first: Target, other: Target, name: str) -> str:
    rate, cpu = (first.median(name, key) for key in ("rate", "broker_cpu_us_per_msg"))
    other_rate, other_cpu = (other.median(name, key) for key in ("rate", "broker_cpu_us_per_msg"))
    if first is other or not (rate and cpu and other_rate and other_cpu):
        return ""
    return f"{rate / other_rate:9.2f}{other_cpu / cpu:7.2f}"


@dataclass(frozen=True)
class Bar:
    """One thing that was to be reached, and what was found. `holds` is None where it cannot be told."""

    what: str
    found: str
    holds: bool | None

    def __str__(self) -> str:
        verdict = {None: "not judged", True: "holds", False: "does NOT hold"}[self.holds]
        return f"{verdict}: {self.what}: {self.found}"


def bars(targets: list[Target], names: list[str]) -> list[Bar]:
    """Of the compiled broker, by medians. Nothing where it was not measured."""
    by_name = {target.name: target for target in targets}
    if "compiled" not in by_name:
        return []
    ours = by_name["compiled"]
    rabbits = [by_name[name] for name in ("rabbit-classic", "rabbit-quorum") if name in by_name]
    found = []
    for name in names:
        if name in FULL_SPEED:
            best = max((rate for each in rabbits if (rate := each.some(name, "rate"))), default=None)
            what = f"{name}, rate, of the better RabbitMQ's"
            found.append(ratio_bar(what, ours.some(name, "rate"), best, RATE_RATIO_MIN, is_least=True))
            peer = by_name["artemis"].some(name, "rate") if "artemis" in by_name else None
            found.append(ratio_bar(f"{name}, rate, of Artemis's", ours.some(name, "rate"), peer, 1.0, is_least=True))
            cpu_us = ours.some(name, "broker_cpu_us_per_msg")
            said = f"{cpu_us:.1f} us, at most {CPU_US_MAX:g}" if cpu_us else "not measured"
            found.append(Bar(f"{name}, CPU a message", said, cpu_us <= CPU_US_MAX if cpu_us else None))
        if name == "w1":
            found += window_bars(ours, rabbits)
        if name in OLD_RATES:
            what = f"{name}, rate, of the old table's"
            found.append(ratio_bar(what, ours.some(name, "rate"), OLD_RATES[name], 1.0, is_least=True))
        for other in targets:
            if other.name not in ALL:
                what = f"{name}, rate, of {other.name}'s"
                rates = (ours.some(name, "rate"), other.some(name, "rate"))
                found.append(ratio_bar(what, *rates, BESIDE_RATIO_MIN, is_least=True))
    return found


def window_bars(ours: Target, rabbits: list[Target]) -> list[Bar]:
    """Of one sender that waits for each acknowledgement."""
    ack, end_to_end = ("send_latency_us", "p50"), ("e2e_latency_us", "p50")
    best = min((value for each in rabbits if (value := each.some("w1", *ack))), default=None)
    classic = next((each.some("w1", *end_to_end) for each in rabbits if each.name == "rabbit-classic"), None)
    what = "w1, acknowledged after (p50), of the better RabbitMQ's"
    acknowledged = ratio_bar(what, ours.some("w1", *ack), best, ACK_RATIO_MAX, is_least=False)
    what = "w1, end to end (p50), of RabbitMQ classic's"
    return [acknowledged, ratio_bar(what, ours.some("w1", *end_to_end), classic, 1.0, is_least=False)]


def ratio_bar(what: str, ours: float | None, other: float | None, bound: float, *, is_least: bool) -> Bar:
    if not ours or not other:
        return Bar(what, "one of the two was not measured", None)
    ratio = ours / other
    words = f"{ours:,.0f} and {other:,.0f}, {ratio:.2f} times, at {'least' if is_least else 'most'} {bound:g}"
    return Bar(what, words, ratio >= bound if is_least else ratio <= bound)


def bar_lines(found: list[Bar], reps: int, scale: float) -> str:
    hint = "" if reps >= REPS and scale >= 1.0 else "; fewer or smaller than the bars ask for, so a hint"
    return "\n".join([f"bench: the bars, by medians of {reps}{hint}", *(f"  {each}" for each in found)])


def sync_us(directory: Path, count: int = 200) -> dict[str, float]:
    """What one 4 KB fdatasync into written space costs here: the floor of every acknowledgement."""
    path = directory / "sync"
    with path.open("wb", buffering=0) as file:
        file.write(bytes(4096 * count))
        os.fsync(file.fileno())
        file.seek(0)
        took = []
        for _ in range(count):
            file.write(bytes(4096))
            begun = time.perf_counter()
            os.fdatasync(file.fileno())
            took.append((time.perf_counter() - begun) * 1e6)
    took.sort()
    return {"p50": round(took[count // 2]), "p99": round(took[int(count * 0.99)])}


def machine(directory: Path) -> dict[str, Any]:
    about_cpu = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.split(":", 1)[1].strip() for line in about_cpu if line.startswith("model name")]
    rabbit = ""
    if RABBIT_SERVER.exists():
        asked = subprocess.run(["dpkg-query", "-W", "-f=${Version}", "rabbitmq-server"], capture_output=True, text=True)
        rabbit = asked.stdout.strip()
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "rabbitmq": rabbit or None,
        "artemis": artemis_version(),
        "fdatasync_4k_us": sync_us(directory),
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
    }


def report(targets: list[Target], names: list[str], wrong: list[str], facts: dict[str, Any]) -> dict[str, Any]:
    medians = {
        name: {
            target.name: {title: target.median(name, *path) for title, path in COLUMNS}
            for target in targets
            if target.results.get(name)
        }
        for name in names
    }
    pairs = {
        name: {
            target.name: asdict(found)
            for target in targets[1:]
            if (found := paired(targets[0], target, name)) is not None
        }
        for name in names
    }
    raw = [result for target in targets for name in names for result in target.results.get(name, [])]
    about = {name: SCENARIOS[name].what for name in names}
    facts_of = {"machine": facts, "scenarios": about}
    judged = [asdict(bar) for bar in bars(targets, names)]
    return {**facts_of, "medians": medians, "bars": judged, "paired": pairs, "errors": wrong, "runs": raw}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one repetition of small counts")
    parser.add_argument("--reps", type=int, default=REPS)
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies every count")
    parser.add_argument("--size", type=int, default=1024, help="bytes of a body")
    parser.add_argument("--scenarios", default=",".join(SCENARIOS))
    parser.add_argument("--only", default=",".join(ALL), help="of " + ", ".join(ALL))
    parser.add_argument("--compiled", type=Path, default=COMPILED, help="the compiled build")
    parser.add_argument(
        "--beside",
        action="append",
        default=[],
        metavar="NAME=DIRECTORY[,LOOP]",
        help="another version, by its package's parent, or the same on another event loop",
    )
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "evidence" / "bench.json")
    parser.add_argument("--data", type=Path, help="where the brokers keep their data (a temporary directory)")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.reps, chosen.scale = 1, 0.2
    names = chosen.scenarios.split(",")
    unknown = set(names) - set(SCENARIOS) | set(chosen.only.split(",")) - set(ALL) - {""}
    if unknown:
        parser.error(f"{','.join(sorted(unknown))}: there are {', '.join(SCENARIOS)} and {', '.join(ALL)}")
    begun_s = time.monotonic()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="spillway-bench-", dir=chosen.data)))
        load = build_load_generator(directory)
        facts = machine(directory)
        targets = start_targets(stack, directory, chosen.compiled, set(chosen.only.split(",")), chosen.beside)
        if not targets:
            sys.exit("bench: nothing to measure")
        wrong = measure_all(load, targets, names, chosen)
        # Before the brokers end: one that complains then must not take what was measured with it.
        facts |= {"reps": chosen.reps, "scale": chosen.scale, "took_s": round(time.monotonic() - begun_s)}
        chosen.out.parent.mkdir(parents=True, exist_ok=True)
        chosen.out.write_text(json.dumps(report(targets, names, wrong, facts), indent=1) + "\n")
    print("\n" + table(targets, names))
    print(paired_lines(targets, names))
    print(bar_lines(bars(targets, names), chosen.reps, chosen.scale))
    print(f"bench: {facts['took_s']} s; raw results in {chosen.out}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
