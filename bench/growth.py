"""`make growth`: what a message costs as sizes, queues, connections, depth, subscriptions, sessions and ids grow.

    bench/growth.py                          all parts, less than half an hour
    bench/growth.py --only queues,size       some of them
    bench/growth.py --quick                  counts of a few seconds: does it work
    bench/growth.py --full                   a depth of ten million too: some minutes more and 20 GB of disk

Every step of a part has a broker of its own, all of them are measured in turn before the next repetition begins, and
the medians are compared: CPU of the broker for a unit of work, and its memory. The load comes from `amqpload`, as in
bench/run.py. A line holds if a unit of work costs at most GROWTH_MAX times what it costs one step before, and if memory
grows no faster than what is held. After each part it writes docs/evidence/growth.json and a page beside it, and
ends with status 1 if a line does not hold. What `--quick` measures is too small to be judged.
"""

import argparse
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from bench.run import (  # noqa: E402 - the tools are imported from the tree they lie in
    COMPILED,
    RABBIT_SERVER,
    REPS,
    SOURCES,
    Target,
    build_load_generator,
    cpu_s_of,
    fan_out_config,
    start_rabbit,
)
from tests.tools.broker_process import BrokerProcess  # noqa: E402
from tests.tools.commit import commit, machine  # noqa: E402
from tests.tools.many import PER_SESSION, SESSION_QUEUE, Watch, drain, write_config  # noqa: E402

KIB, MIB = 1024, 1024 * 1024
GROWTH_MAX = 1.25  # times what a unit of work cost one step before: what a machine that is not quiet does to a median
MEMORY_FLOOR_BYTES = (
    60 * MIB
)  # above the first step: caches that fill, whatever it is that there is more of (tools/load.py)
DEEP_RATIO_MIN = 3.0  # receiving from a deep queue, beside the better RabbitMQ
LINKS_EACH = 10  # on a connection, where there are many entities
BODY_BYTES = 1024
# With header, id and properties a message is somewhat larger than its body, and 256 KB is the most there may be.
LARGEST_BODY_BYTES = 256 * KIB - 256
QUEUE_MB = 20 * 1024  # a deep queue's: ten million messages are 11 GB
USER = ["--user", "RootManageSharedAccessKey", "--pass", "SAS_KEY_VALUE", "--second"]
READY_S = 180.0
FILL_S = 1_800.0
FULL_DISK_BYTES = 40 * 1024 * MIB  # what --full wants to find free


@dataclass(frozen=True)
class Step:
    """One size of what grows. `units` is what memory is held for, `work` what a message is worth of what it costs."""

    name: str
    units: int
    load: list[str]
    work: float = 1.0


@dataclass
class Measured:
    """Medians of one step."""

    name: str
    units: int
    work: float
    rate: float = 0.0  # messages a second, copies a second for a topic
    cpu_us: float = 0.0  # of the broker, for a message
    rss_bytes: int = 0  # the most there was
    e2e_ms: float = 0.0  # from sender to receiver; far above the others' where a sender ran ahead of its receiver
    runs: list[dict[str, Any]] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def cpu_us_per_work(self) -> float:
        return self.cpu_us / self.work

    def settle(self) -> None:
        """Of the runs, the medians."""
        self.rate = round(statistics.median(run["rate"] for run in self.runs))
        self.cpu_us = round(statistics.median(run["broker_cpu_us_per_msg"] for run in self.runs), 2)
        self.rss_bytes = max(run["rss_bytes"] for run in self.runs)
        if all(run["senders"] and run["receivers"] for run in self.runs):
            self.e2e_ms = round(statistics.median(run["e2e_latency_us"]["p50"] for run in self.runs) / 1000, 1)


@dataclass
class Line:
    """One part's answer: its steps, and what does not hold. `unit` is what the cost is of."""

    part: str
    what: str
    unit: str
    steps: list[Measured]
    problems: list[str]
    more: dict[str, Any] = field(default_factory=dict)
    took_s: int = 0

    @property
    def holds(self) -> bool:
        return not self.problems


class LoadFailed(Exception):
    """The load generator did not get through; the text has what it printed. The part fails, the others go on."""


@dataclass(frozen=True)
class Ground:
    """What all parts measure with: where, with which build, how much and how often."""

    directory: Path
    load: Path
    python_path: Path
    scale: float
    reps: int
    is_quick: bool
    is_full: bool

    def count(self, usual: int, least: int = 200) -> int:
        return max(least, int(usual * self.scale))

    def steps(self, usual: list[int], quick: list[int]) -> list[int]:
        return quick if self.is_quick else usual

    def broker(
        self, stack: ExitStack, name: str, config: Path | None, queues: list[str], options: list[str]
    ) -> BrokerProcess:
        data = self.directory / name
        broker = BrokerProcess(data, queues=queues, config=config, options=options, python_path=self.python_path)
        broker.start(timeout_s=READY_S)
        stack.callback(shutil.rmtree, data, ignore_errors=True)
        stack.callback(broker.close)
        return broker

    def run(self, target: Target, words: list[str]) -> dict[str, Any]:
        """One run of the load generator, with the most memory that the broker had meanwhile."""
        command = [str(self.load), "--port", str(target.port), "--pid", str(target.pid), "--idle", "60"]
        try:
            done = subprocess.run(
                [*command, *target.options, *words], capture_output=True, text=True, check=False, timeout=FILL_S
            )
        except subprocess.TimeoutExpired as error:
            raise LoadFailed(f"{target.name}: {' '.join(words)}: not done after {FILL_S:.0f} s") from error
        if done.returncode != 0:
            raise LoadFailed(f"{target.name}: {' '.join(words)}: {done.stdout}{done.stderr}")
        result: dict[str, Any] = json.loads(done.stdout)
        return result

    def watched(self, broker: BrokerProcess, words: list[str]) -> dict[str, Any]:
        with Watch(broker) as watch:
            result = self.run(Target("spillway", broker.port, broker.pid, USER, []), words)
        result["rss_bytes"] = max(watch.peak_bytes, broker.rss_bytes)
        return result


# -- verdicts ---------------------------------------------------------------------------------------------------------


def cost_problems(steps: list[Measured], unit: str) -> list[str]:
    """A unit of work may get cheaper with more of it; it must not get dearer."""
    problems = []
    for before, after in zip(steps, steps[1:], strict=False):
        if before.cpu_us_per_work <= 0:
            continue
        ratio = after.cpu_us_per_work / before.cpu_us_per_work
        if ratio > GROWTH_MAX:
            problems.append(
                f"{unit}: {after.cpu_us_per_work:.2f} us of CPU at {after.name}, {before.cpu_us_per_work:.2f} at "
                f"{before.name}: {ratio:.2f} times, {GROWTH_MAX} allowed"
            )
    return problems


def memory_problems(steps: list[Measured]) -> list[str]:
    """From the second step on, what is held costs no more memory a piece than it did up to there."""
    first = steps[0]
    each = 0.0
    problems = []
    for step in steps[1:]:
        grown = step.rss_bytes - first.rss_bytes
        allowed = MEMORY_FLOOR_BYTES + each * (step.units - first.units) * GROWTH_MAX
        if each and grown > allowed:
            problems.append(memory_text(grown, first, step, allowed))
        each = max(each, grown / max(1, step.units - first.units), 1.0)
    return problems


def flat_memory_problems(steps: list[Measured], allowed_bytes: int = MEMORY_FLOOR_BYTES) -> list[str]:
    """For what is on disk, not in memory."""
    first, last = steps[0], steps[-1]
    grown = last.rss_bytes - first.rss_bytes
    if grown <= allowed_bytes:
        return []
    return [memory_text(grown, first, last, allowed_bytes)]


def memory_text(grown: int, first: Measured, last: Measured, allowed: float) -> str:
    return f"memory: {grown / MIB:.0f} MB more at {last.name} than at {first.name}, {allowed / MIB:.0f} allowed"


def measure_in_turn(ground: Ground, steps: list[Step], brokers: list[BrokerProcess]) -> list[Measured]:
    """Every other time from the last to the first: what else the machine does hits all steps alike."""
    measured = [Measured(step.name, step.units, step.work) for step in steps]
    order = list(range(len(steps)))
    for repetition in range(ground.reps):
        for index in order if repetition % 2 == 0 else reversed(order):
            result = ground.watched(brokers[index], steps[index].load)
            measured[index].runs.append(result)
    for each in measured:
        each.settle()
    return measured


# -- the parts --------------------------------------------------------------------------------------------------------


def measure_size(ground: Ground) -> Line:
    """One sender, one receiver, about 1 MB under way at any time."""
    bodies = ground.steps([KIB, 64 * KIB, LARGEST_BODY_BYTES], [KIB, 64 * KIB])
    steps = []
    for size in bodies:
        count = ground.count(120_000 if size == KIB else 400_000 * KIB // size * 2)
        window = str(max(8, 1000 * KIB // size))
        words = ["--address", "q", "--size", str(size), "--window", window, "--credit", window]
        words += ["--count", str(count), "--warmup", str(count // 10)]
        steps.append(Step(f"{round(size / KIB)} KB", size, words, work=size / KIB))
    with ExitStack() as stack:
        brokers = [ground.broker(stack, f"size{number}", None, ["q"], []) for number in range(len(steps))]
        measured = measure_in_turn(ground, steps, brokers)
    problems = cost_problems(measured, "a KB") + flat_memory_problems(measured, 2 * MEMORY_FLOOR_BYTES)
    return Line("size", "1 sender, 1 receiver; the body grows", "KB", measured, problems)


def measure_queues(ground: Ground) -> Line:
    """All of them are sent to and received from, ten to a connection; from ten on, what is under way is the same."""
    steps, brokers = [], []
    with ExitStack() as stack:
        for queues in ground.steps([1, 1_000, 10_000], [1, 100]):
            links = min(queues, LINKS_EACH)
            if queues > 1_000:
                links = 100  # or there would be a thousand connections more, which is another line
            count = ground.count(60_000, least=12 * queues)  # or it would be the first message of each that is measured
            words = ["--address", "q%d", "--queues", str(queues), "--links", str(links)]
            words += ["--senders", str(queues // links), "--receivers", str(queues // links)]
            words += ["--window", str(max(1, 1000 * links // queues)), "--credit", "100" if queues > 1 else "1000"]
            words += ["--count", str(count), "--warmup", str(count // 6)]
            steps.append(Step(f"{queues:,} queue{'s' if queues > 1 else ''}", queues, words))
            config = write_config(
                ground.directory / f"queues{queues}.json", [{"Name": f"q{number}"} for number in range(queues)], []
            )
            options = ["--limit", f"entities={max(queues, 1)}"]
            brokers.append(ground.broker(stack, f"queues{queues}", config, [], options))
        measured = measure_in_turn(ground, steps, brokers)
    problems = cost_problems(measured[1:], "a message") + memory_problems(measured)
    return Line("queues", "all queues in use, 1,000 messages under way", "message", measured, problems)


def measure_connections(ground: Ground) -> Line:
    """One sender and one receiver at full speed, beside connections that are open and have nothing to say."""
    steps, brokers = [], []
    with ExitStack() as stack:
        for connections in ground.steps([2, 1_000, 10_000], [2, 100]):
            count = ground.count(90_000)
            words = ["--address", "q", "--bystanders", str(connections - 2)]
            words += ["--count", str(count), "--warmup", str(count // 6)]
            steps.append(Step(f"{connections:,} connections", connections, words))
            options = ["--limit", f"connections={connections + 100}"]
            brokers.append(ground.broker(stack, f"connections{connections}", None, ["q"], options))
        measured = measure_in_turn(ground, steps, brokers)
    problems = cost_problems(measured, "a message") + memory_problems(measured)
    what = "1 sender, 1 receiver, the others open and silent"
    return Line("connections", what, "message", measured, problems)


def measure_busy_connections(ground: Ground) -> Line:
    """Half of them send, each waiting for its acknowledgement; the other half receive."""
    steps, brokers = [], []
    with ExitStack() as stack:
        for connections in ground.steps([16, 1_000, 10_000], [16, 100]):
            count = ground.count(40_000, least=4 * connections)
            half = str(connections // 2)
            words = ["--address", "q%d", "--queues", "8", "--senders", half, "--receivers", half]
            words += ["--window", "1", "--credit", "10", "--count", str(count), "--warmup", str(count // 4)]
            steps.append(Step(f"{connections:,} connections", connections, words))
            options = ["--limit", f"connections={connections + 100}"]
            queues = [f"q{number}" for number in range(8)]
            brokers.append(ground.broker(stack, f"busy{connections}", None, queues, options))
        measured = measure_in_turn(ground, steps, brokers)
    problems = cost_problems(measured, "a message") + memory_problems(measured)
    what = "half of them send with one message under way each, half receive, 8 queues"
    return Line("busy-connections", what, "message", measured, problems)


def measure_depth(ground: Ground) -> Line:
    """Receive from a queue as deep as this; what was taken is sent again before the next repetition."""
    depths = ground.steps([50_000, 200_000, 1_000_000], [2_000, 10_000])
    if ground.is_full:
        depths.append(10_000_000)
    taken = min(ground.count(40_000), depths[0])
    steps, brokers = [], []
    take = ["--address", "q", "--senders", "0", "--count", str(taken)]
    with ExitStack() as stack:
        for depth in depths:
            steps.append(Step(f"{depth:,} deep", depth, take))
            options = ["--limit", "store-mb=0"]
            config = write_config(
                ground.directory / "deep.json", [{"Name": "q", "Properties": {"MaxSizeInMegabytes": QUEUE_MB}}], []
            )
            broker = ground.broker(stack, f"depth{depth}", config, [], options)
            brokers.append(broker)
        measured = [Measured(step.name, step.units, step.work) for step in steps]
        filled = [fill(ground, our_target(broker), "q", depth) for broker, depth in zip(brokers, depths, strict=True)]
        for _ in range(ground.reps):
            for index, broker in enumerate(brokers):
                measured[index].runs.append(ground.watched(broker, take))
                fill(ground, our_target(broker), "q", taken)
        for each, run in zip(measured, filled, strict=True):
            each.settle()
            each.more = {"filled_per_s": run["rate"], "filling_cpu_us": run["broker_cpu_us_per_msg"]}
        beside = beside_rabbit(ground, stack, brokers[-1 - ground.is_full], depths[-1 - ground.is_full], take)
    problems = cost_problems(measured, "a message") + flat_memory_problems(measured)
    problems += [problem for problem in [beside.pop("problem", None)] if problem]
    return Line("depth", "1 receiver, a queue that is deep before and after", "message", measured, problems, beside)


def our_target(broker: BrokerProcess) -> Target:
    return Target("spillway", broker.port, broker.pid, USER, [])


def fill(ground: Ground, target: Target, address: str, count: int) -> dict[str, Any]:
    return ground.run(target, ["--address", address, "--receivers", "0", "--count", str(count)])


def beside_rabbit(
    ground: Ground, stack: ExitStack, broker: BrokerProcess, depth: int, take: list[str]
) -> dict[str, Any]:
    """Receiving from queues of the same depth, in turn with both kinds of RabbitMQ's."""
    if not RABBIT_SERVER.exists():
        print(
            "growth: rabbitmq-server is not installed, so a deep queue stands alone (apt-get install rabbitmq-server)"
        )
        return {"beside": None}
    rabbits = start_rabbit(stack, ground.directory)
    addresses = {"rabbit-classic": "/amq/queue/cq0", "rabbit-quorum": "/amq/queue/qq0"}
    rates: dict[str, list[dict[str, Any]]] = {"spillway": [], **{rabbit.name: [] for rabbit in rabbits}}
    for rabbit in rabbits:
        print(f"growth: {rabbit.name} is filled with {depth:,}")
        fill(ground, rabbit, addresses[rabbit.name], depth)
    for _ in range(ground.reps):
        rates["spillway"].append(ground.run(our_target(broker), take))
        for rabbit in rabbits:
            rates[rabbit.name].append(ground.run(rabbit, [*take[:1], addresses[rabbit.name], *take[2:]]))
    medians = {
        name: {
            "rate": statistics.median(run["rate"] for run in runs),
            "cpu_us": statistics.median(run["broker_cpu_us_per_msg"] for run in runs),
        }
        for name, runs in rates.items()
    }
    best = max(medians[rabbit.name]["rate"] for rabbit in rabbits)
    ratio = round(medians["spillway"]["rate"] / best, 2)
    found: dict[str, Any] = {"beside": {"depth": depth, **medians, "ratio": ratio, "ratio_min": DEEP_RATIO_MIN}}
    if ratio < DEEP_RATIO_MIN:
        found["problem"] = f"a deep queue: {ratio:.2f} times the better RabbitMQ, {DEEP_RATIO_MIN} wanted"
    return found


def measure_subscriptions(ground: Ground) -> Line:
    """A fifth of the subscriptions gets each message: ten times as many are ten times the filters and the copies."""
    steps, brokers = [], []
    with ExitStack() as stack:
        for subscriptions in ground.steps([10, 50, 500], [10, 50]):
            copies = subscriptions // 5
            count = ground.count(120_000 // copies, least=100)
            words = ["--send-address", "fan", "--address", "fan/Subscriptions/s%d", "--numbers", "100"]
            words += ["--queues", str(subscriptions), "--links", str(LINKS_EACH), "--copies", str(copies)]
            words += ["--senders", "1", "--receivers", str(subscriptions // LINKS_EACH)]
            words += ["--window", "100", "--credit", "100"]  # so 20 copies are under way to each subscription
            words += ["--count", str(count), "--warmup", str(count // 10)]
            steps.append(Step(f"{subscriptions} subscriptions", subscriptions, words))
            config = ground.directory / f"fan{subscriptions}.json"
            config.write_text(json.dumps(fan_out_config(subscriptions)))
            brokers.append(ground.broker(stack, f"subscriptions{subscriptions}", config, [], []))
        measured = measure_in_turn(ground, steps, brokers)
    problems = cost_problems(measured, "a copy") + memory_problems(measured)
    return Line("subscriptions", "1 sender to a topic, a fifth of its filters match", "copy", measured, problems)


def measure_sessions(ground: Ground) -> Line:
    """Ten messages in each session: filled, and emptied by our own client, session after session."""
    measured = []
    with ExitStack() as stack:
        for sessions in ground.steps([1_000, 5_000, 20_000], [100, 300]):
            config = write_config(
                ground.directory / f"sessions{sessions}.json",
                [{"Name": SESSION_QUEUE, "Properties": {"RequiresSession": True}}],
                [],
            )
            broker = ground.broker(stack, f"sessions{sessions}", config, [], [])
            count = sessions * PER_SESSION
            words = ["--address", SESSION_QUEUE, "--receivers", "0", "--groups", str(sessions), "--count", str(count)]
            filled = ground.watched(broker, words)
            begun_s = cpu_s_of(broker.pid)
            with Watch(broker) as watch:
                drained = drain(broker, min(100, sessions), ground.python_path)
            cpu_us = (cpu_s_of(broker.pid) - begun_s) * 1e6 / count
            assert drained["sessions"] == sessions, f"{drained['sessions']} of {sessions} sessions were given out"
            step = Measured(f"{sessions:,} sessions", sessions, 1 / PER_SESSION)
            step.rate = round(drained["sessions_per_s"] * PER_SESSION)
            step.cpu_us = round(cpu_us, 1)
            step.rss_bytes = max(filled["rss_bytes"], watch.peak_bytes)
            step.more = {
                "sessions_per_s": drained["sessions_per_s"],
                "filled_per_s": filled["rate"],
                "filling_cpu_us": filled["broker_cpu_us_per_msg"],
            }
            measured.append(step)
    problems = cost_problems(measured, "a session of ten messages, accepted and emptied")
    problems += flat_memory_problems(measured)
    what = "ten messages in each, accepted and emptied over 100 links; once"
    return Line("sessions", what, "session", measured, problems)


def measure_duplicates(ground: Ground) -> Line:
    """One sender, one receiver; the ids of what was sent before are remembered."""
    usual = ground.count(90_000)
    config = write_config(
        ground.directory / "duplicates.json",
        [
            {
                "Name": "q",
                "Properties": {
                    "RequiresDuplicateDetection": True,
                    "DuplicateDetectionHistoryTimeWindow": "PT2H",
                },
            }
        ],
        [],
    )
    next_id = 1
    with ExitStack() as stack:
        plain = ground.broker(stack, "without", None, ["q"], [])
        measured = [Measured("detection off", 0, 1.0)]
        brokers = [plain]
        for known in ground.steps([10_000, 100_000, 1_000_000], [1_000, 5_000]):
            broker = ground.broker(stack, f"duplicates{known}", config, [], [])
            words = ["--address", "q", "--size", "16", "--count", str(known), "--first-id", str(next_id)]
            ground.run(our_target(broker), words)
            next_id += known
            measured.append(Measured(f"{known:,} ids known", known, 1.0))
            brokers.append(broker)
        for _ in range(ground.reps):
            for step, broker in zip(measured, brokers, strict=True):
                words = ["--address", "q", "--count", str(usual), "--warmup", str(usual // 6)]
                step.runs.append(ground.watched(broker, [*words, "--first-id", str(next_id)]))
                next_id += usual
        for step in measured:
            step.settle()
    problems = cost_problems(measured[1:], "a message") + memory_problems(measured[1:])
    what = "1 sender, 1 receiver, duplicate detection with a window of two hours"
    return Line("duplicates", what, "message", measured, problems)


PARTS: dict[str, Callable[[Ground], Line]] = {
    "size": measure_size,
    "queues": measure_queues,
    "connections": measure_connections,
    "busy-connections": measure_busy_connections,
    "depth": measure_depth,
    "subscriptions": measure_subscriptions,
    "sessions": measure_sessions,
    "duplicates": measure_duplicates,
}


# -- what is printed and written --------------------------------------------------------------------------------------


def table(lines: list[Line], is_judged: bool = True) -> str:
    rows = [f"{'part':<17} {'step':<20} {'msg/s':>9} {'cpu us':>9} {'per unit':>9} {'MB':>6} {'e2e ms':>8}  holds"]
    for line in lines:
        for number, step in enumerate(line.steps):
            verdict = ("yes" if line.holds else "NO") if is_judged and number == len(line.steps) - 1 else ""
            rows.append(
                f"{line.part:<17} {step.name:<20} {step.rate:>9,.0f} {step.cpu_us:>9.1f} {step.cpu_us_per_work:>9.2f} "
                f"{step.rss_bytes / MIB:>6.0f} {f'{step.e2e_ms:,.1f}' if step.e2e_ms else '':>8}  {verdict}"
            )
        if beside_text(line):
            rows.append(f"{'':<17} {beside_text(line)}")
        rows += [f"{line.part if not line.steps else '':<17} ! {problem}" for problem in line.problems]
    return "\n".join(rows)


def measured_part(part: str, ground: Ground) -> Line:
    """One that fails, by a broker that does not start or complains at its end, takes none of the others with it."""
    try:
        return PARTS[part](ground)
    except (LoadFailed, AssertionError, subprocess.SubprocessError) as error:
        return Line(part, "not measured", "", [], [f"not measured: {error}"])


def write(path: Path, lines: list[Line], facts: dict[str, Any]) -> None:
    holds = all(line.holds for line in lines)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**facts, "holds": holds, "lines": [written(line) for line in lines]}, indent=1) + "\n")
    path.with_suffix(".md").write_text(page(lines, facts))


def written(line: Line) -> dict[str, Any]:
    steps = [{**asdict(step), "cpu_us_per_work": round(step.cpu_us_per_work, 3)} for step in line.steps]
    return {**asdict(line), "steps": steps, "holds": line.holds}


def page(lines: list[Line], facts: dict[str, Any]) -> str:
    """The same as Markdown."""
    said = [
        "# How cost grows",
        "",
        f"Written by `bench/growth.py` at {facts['commit'] or 'no commit'} on {facts['date']}: {facts['machine']}, "
        f"{'compiled' if facts['compiled'] else 'not compiled'}, medians of {facts['reps']}"
        + (", too quick to be judged." if facts["quick"] else ".")
        + " docs/bench.md says what each part does and what must hold.",
    ]
    for line in lines:
        said += ["", f"## {line.part}", "", f"{line.what[:1].upper()}{line.what[1:]}."]
        if line.steps:
            said += ["", f"| | msg/s | CPU us a message | CPU us a {line.unit} | memory, MB | end to end p50, ms |"]
            said += ["|---|---|---|---|---|---|"]
        for step in line.steps:
            said.append(
                f"| {step.name} | {step.rate:,.0f} | {step.cpu_us:.1f} | {step.cpu_us_per_work:.2f} | "
                f"{step.rss_bytes / MIB:.0f} | {f'{step.e2e_ms:,.1f}' if step.e2e_ms else ''} |"
            )
        if beside_text(line):
            said += ["", f"{beside_text(line)}."]
        if not facts["quick"] or not line.steps:
            said += ["", "It holds." if line.holds else "It does not hold:"]
            said += [""] * bool(line.problems) + [f"- {problem}" for problem in line.problems]
    return "\n".join(said) + "\n"


def beside_text(line: Line) -> str:
    beside = line.more.get("beside")
    if not beside:
        return ""
    rates = ", ".join(f"{name} {beside[name]['rate']:,.0f}" for name in beside if "-" in name or name == "spillway")
    return f"{beside['depth']:,} deep, msg/s: {rates}; {beside['ratio']:.2f} times the better RabbitMQ"


def raise_file_limit() -> None:
    """10,000 connections are as many files, here and in the broker, which raises its own."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), help="of " + ", ".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="one repetition, small steps and counts")
    parser.add_argument("--full", action="store_true", help="a depth of ten million too")
    parser.add_argument("--reps", type=int, default=REPS)
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies every count of messages, but no depth")
    parser.add_argument("--uncompiled", action="store_true", help="the sources, even if there is a compiled build")
    parser.add_argument("--compiled", type=Path, default=COMPILED, help="the compiled build")
    parser.add_argument("--data", type=Path, help="where the brokers keep their data (a temporary directory)")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "evidence" / "growth.json")
    chosen = parser.parse_args()
    unknown = set(chosen.only.split(",")) - set(PARTS)
    if unknown:
        parser.error(f"--only {','.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    if chosen.quick:
        chosen.reps, chosen.scale = 1, 0.02
    if chosen.full and shutil.disk_usage(chosen.data or tempfile.gettempdir()).free < FULL_DISK_BYTES:
        parser.error(f"--full: less than {FULL_DISK_BYTES // (1024 * MIB)} GB are free (--data names another place)")
    raise_file_limit()
    is_compiled = not chosen.uncompiled and any(chosen.compiled.glob("**/*.so"))
    lines: list[Line] = []
    facts = {
        "machine": machine(),
        "commit": commit(),
        "compiled": is_compiled,
        "date": time.strftime("%Y-%m-%d"),
        "reps": chosen.reps,
        "scale": chosen.scale,
        "quick": chosen.quick,
        "growth_max": GROWTH_MAX,
    }
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="spillway-growth-", dir=chosen.data) as name:
        ground = Ground(
            directory=Path(name),
            load=build_load_generator(Path(name)),
            python_path=chosen.compiled.resolve() if is_compiled else SOURCES,
            scale=chosen.scale,
            reps=chosen.reps,
            is_quick=chosen.quick,
            is_full=chosen.full,
        )
        for part in chosen.only.split(","):
            since_s = time.monotonic()
            line = measured_part(part, ground)
            line.took_s = round(time.monotonic() - since_s)
            if chosen.quick and line.steps:
                line.problems.clear()
            lines.append(line)
            write(chosen.out, lines, {**facts, "took_s": round(time.monotonic() - begun_s)})
            print(f"growth: {part} took {line.took_s} s", flush=True)
    holds = all(line.holds for line in lines)
    print("\n" + table(lines, is_judged=not chosen.quick))
    verdict = "every line holds" if holds else "a line does NOT hold"
    print(f"growth: {'too quick to be judged' if chosen.quick and holds else verdict}; results in {chosen.out}")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
