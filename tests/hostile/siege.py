"""A broker on a small disk with little memory, honest clients beside attackers, and what it cost whom.

Everything comes from a seed. Each kind of attack is made alone once, so that a cost has a name; then some at a time.
"""

import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from spillway.client.connection import connect
from spillway.client.errors import ClientError
from spillway.client.message import OutgoingMessage
from spillway.client.receiver import RECEIVE_AND_DELETE
from spillway.model import limits
from spillway.store.space import LOG_BYTES_MIN
from tests.hostile.honest import queue_of
from tests.hostile.onslaught import (
    ATTACKS,
    DEEP,
    DEEP_SESSIONS,
    FILTERED,
    LISTEN,
    ROOT_RIGHTS,
    SEND,
    SESSION_TOPIC,
    SESSIONS,
    TARGET,
    WIDE,
    Ground,
)
from tests.tools.broker_process import NAMESPACE, PACKAGE_PARENT, BrokerProcess
from tests.tools.loop_disk import CannotCut, LoopDisk, system

ROOT: Final = Path(__file__).resolve().parent.parent.parent
MIB: Final = 1024 * 1024
SAMPLE_S: Final = 0.05
P99_MS_MAX: Final = 50.0
RATIO_MAX: Final = 10.0
MEMORY_SLACK: Final = 1.25
AFTER_S: Final = 90.0  # at most so long after an attack until honest clients are served again
MIX: Final = 3  # attacks at a time, after each was alone
CGROUPS: Final = Path("/sys/fs/cgroup/memory")


@dataclass(frozen=True)
class Plan:
    seed: int
    seconds: float  # under attack
    quiet_s: float = 20.0
    clients: int = 20
    rate: float = 5.0  # sends a second of each
    memory_mb: int = 400
    disk_mb: int = 1_200
    depth: int = 20_000  # of what is filled before
    fan_out: int = 200
    filters: int = 400
    kinds: tuple[str, ...] = tuple(ATTACKS)
    is_short: bool = False  # none alone: all of them once, some at a time

    def slices(self) -> list[tuple[tuple[str, ...], float]]:
        """What is done for how long: each alone in an order that is drawn, in half of the time; then mixtures."""
        chance = random.Random(self.seed)
        kinds = list(self.kinds)
        chance.shuffle(kinds)
        if self.is_short:
            some = [tuple(kinds[first : first + MIX]) for first in range(0, len(kinds), MIX)]
            return [(mixed, self.seconds / len(some)) for mixed in some]
        each_s = self.seconds / 2 / len(kinds)
        slices: list[tuple[tuple[str, ...], float]] = [((kind,), each_s) for kind in kinds]
        count = max(1, len(kinds) // 2)
        for _ in range(count):
            slices.append((tuple(chance.sample(kinds, min(MIX, len(kinds)))), self.seconds / 2 / count))
        return slices


@dataclass
class Sample:
    moment: float
    rss_bytes: int
    free_bytes: int


class Watch:
    """Memory and disk of the broker, many times a second."""

    def __init__(self, broker: BrokerProcess, data: Path) -> None:
        self.broker = broker
        self.data = data
        self.samples: list[Sample] = []
        self.died_at = 0.0
        self.is_over = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while not self.is_over.wait(SAMPLE_S):
            if not self.broker.is_running:
                self.died_at = time.monotonic()
                return
            with contextlib.suppress(OSError, AssertionError):
                found = os.statvfs(self.data)
                self.samples.append(Sample(time.monotonic(), self.broker.rss_bytes, found.f_bavail * found.f_frsize))

    def between(self, begun: float, ended: float) -> dict[str, float]:
        some = [sample for sample in self.samples if begun <= sample.moment < ended]
        if not some:
            return {}
        return {
            "rss_mb_max": round(max(sample.rss_bytes for sample in some) / MIB, 1),
            "free_mb_min": round(min(sample.free_bytes for sample in some) / MIB, 1),
        }

    def close(self) -> None:
        self.is_over.set()
        self.thread.join(5)


class HonestClients:
    def __init__(self, string: str, directory: Path, plan: Plan) -> None:
        self.path = directory / "honest.txt"
        self.stderr = (directory / "honest.stderr").open("w")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.hostile.honest", string, str(self.path), str(plan.clients), str(plan.rate)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(PACKAGE_PARENT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.stderr,
            text=True,
        )

    def wait_served(self, after: float, within_s: float) -> float:
        """Until somebody's send that was due after this is answered: what an attack left behind is over. How long."""
        begun = time.monotonic()
        while time.monotonic() - begun < within_s:
            with self.path.open("rb") as file:
                file.seek(max(0, self.path.stat().st_size - 400))
                lines = file.read().splitlines()[1:]
            if any(float(line.split()[0]) > after and not line.endswith(b"failed") for line in lines):
                break
            time.sleep(0.1)
        return time.monotonic() - begun

    def between(self, begun: float, ended: float) -> dict[str, float]:
        """How long sends took to be answered; those that were refused too, for the disk or the memory was short."""
        took: list[float] = []
        busy = 0
        for line in self.path.read_text().splitlines():
            due, _, what = line.partition(" ")
            if begun <= float(due) < ended:
                busy += what.endswith("busy")
                if what:
                    took.append(float(what.split()[0]))
        took.sort()
        if not took:
            return {"sends": 0, "refused_as_busy": busy}
        return {
            "sends": len(took),
            "refused_as_busy": busy,
            "p50_ms": round(took[len(took) // 2], 2),
            "p99_ms": round(took[min(len(took) * 99 // 100, len(took) - 1)], 2),
            "max_ms": round(took[-1], 2),
        }

    def finish(self) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        try:
            line = self.process.stdout.readline()
            self.process.wait(30)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            self.process.stdout.close()
            self.stderr.close()
        found = json.loads(line) if line else {"errors": ["the honest clients ended without a word"]}
        assert isinstance(found, dict)
        return found


@contextlib.contextmanager
def small_disk(directory: Path, megabytes: int) -> Iterator[tuple[Path, str]]:
    """A file system of its own where root can make one; which kind it is."""
    if os.geteuid() != 0:
        yield directory, "none: it needs root"
        return
    disk = LoopDisk(directory, "ext4", megabytes * MIB)
    try:
        disk.__enter__()
    except CannotCut:
        root = directory / "tmpfs"
        root.mkdir()
        try:
            system("mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(root))
        except CannotCut as error:
            yield directory, f"none: {error}"
            return
        try:
            yield root, f"tmpfs of {megabytes} MB"
        finally:
            system("umount", str(root))
        return
    try:
        yield disk.root, f"ext4 of {megabytes} MB"
    finally:
        disk.__exit__(None, None, None)


class Cgroup:
    """A memory cgroup for the broker (version 1), if one can be made; beyond its limit the kernel ends the process."""

    def __init__(self, limit_bytes: int) -> None:
        self.path = CGROUPS / f"spillway-siege-{os.getpid()}"
        self.is_made = False
        try:
            self.path.mkdir()
            (self.path / "memory.limit_in_bytes").write_text(str(limit_bytes))
            self.is_made = True
        except OSError:
            self._remove()

    def take(self, pid: int) -> None:
        if self.is_made:
            (self.path / "cgroup.procs").write_text(str(pid))

    def facts(self) -> dict[str, Any]:
        if not self.is_made:
            return {"made": False}
        return {
            "made": True,
            "limit_mb": round(int((self.path / "memory.limit_in_bytes").read_text()) / MIB),
            "peak_mb_with_page_cache": round(int((self.path / "memory.max_usage_in_bytes").read_text()) / MIB),
        }

    def close(self) -> None:
        if self.is_made:
            self._remove()

    def _remove(self) -> None:
        with contextlib.suppress(OSError):
            self.path.rmdir()


def config_of(plan: Plan) -> dict[str, Any]:
    expression = " OR ".join(f"{name} LIKE '%a_{char}%'" for char in "bcdefghijklmnop" for name in "pq")
    queues: list[dict[str, Any]] = [{"Name": queue_of(number), "Properties": {}} for number in range(plan.clients)]
    queues += [
        {"Name": TARGET, "Properties": {}},
        {"Name": DEEP, "Properties": {"LockDuration": "PT5S", "MaxDeliveryCount": 100}},
        {"Name": SESSIONS, "Properties": {"RequiresSession": True}},
        {"Name": DEEP_SESSIONS, "Properties": {"RequiresSession": True}},
    ]
    wide = [{"Name": f"s{number}"} for number in range(plan.fan_out)]
    filtered = [
        {"Name": f"s{number}", "Rules": [_rule(f"{expression} OR n = {number}")]} for number in range(plan.filters)
    ]
    in_sessions = [{"Name": name, "Properties": {"RequiresSession": True}} for name in ("one", "two")]
    topics = [
        {"Name": WIDE, "Properties": {}, "Subscriptions": wide},
        {"Name": FILTERED, "Properties": {}, "Subscriptions": filtered},
        {"Name": SESSION_TOPIC, "Properties": {}, "Subscriptions": in_sessions},
    ]
    return {"UserConfig": {"Namespaces": [{"Name": NAMESPACE, "Queues": queues, "Topics": topics}]}}


def _rule(expression: str) -> dict[str, Any]:
    return {"Name": "r", "Properties": {"FilterType": "Sql", "SqlFilter": {"SqlExpression": expression}}}


def new_keys(data: Path) -> dict[str, tuple[str, str]]:
    """Rules of the namespace with the right to send alone and to listen alone."""
    keys: dict[str, tuple[str, str]] = {}
    for rights, name in ((SEND, "Send"), (LISTEN, "Listen")):
        _key(data, "add", f"attacker-{rights}", "--rights", name)
    for rule in json.loads(_key(data, "list", "--show-keys", "--json"))["rules"]:
        for rights in (SEND, LISTEN):
            if rule["name"] == f"attacker-{rights}":
                keys[rights] = (rule["name"], rule["primary_key"])
    return keys


def _key(data: Path, *words: str) -> str:
    command = [sys.executable, "-m", "spillway", "key", *words, "--data", str(data)]
    env = {**os.environ, "PYTHONPATH": str(PACKAGE_PARENT)}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=60).stdout


@dataclass
class Report:
    plan: Plan
    facts: dict[str, Any] = field(default_factory=dict)
    kinds: list[dict[str, Any]] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)  # promises that did not hold
    slow: list[str] = field(default_factory=list)  # slices whose own p99 is over the bound

    def to_json(self) -> str:
        return (
            json.dumps({**self.facts, "slices": self.kinds, "slow": self.slow, "broken": self.broken}, indent=2) + "\n"
        )


def besiege(plan: Plan, directory: Path, told: Any = print) -> Report:
    report = Report(plan)
    with small_disk(directory, plan.disk_mb) as (home, disk):
        report.facts.update(
            seed=plan.seed, seconds=plan.seconds, clients=plan.clients, memory_mb=plan.memory_mb, disk=disk
        )
        data = home / "data"
        data.mkdir(mode=0o700)
        config = directory / "Config.json"
        config.write_text(json.dumps(config_of(plan)))
        keys = new_keys(data)
        broker = BrokerProcess(
            data,
            config=config,
            is_development=False,
            options=["--limit", f"memory-mb={plan.memory_mb}"],
            log_dir=directory,
        )
        cgroup = Cgroup(int(plan.memory_mb * MEMORY_SLACK * MIB))
        try:
            broker.start(120)
            cgroup.take(broker.pid)
            _attack(plan, directory, broker, keys, cgroup, report, disk.startswith(("ext4", "tmpfs")), told)
        finally:
            if broker.is_running:
                with contextlib.suppress(AssertionError):
                    broker.stop(60)
            if broker.is_running:
                broker.kill()
            cgroup.close()
    return report


def _attack(
    plan: Plan,
    directory: Path,
    broker: BrokerProcess,
    keys: dict[str, tuple[str, str]],
    cgroup: Cgroup,
    report: Report,
    is_small: bool,
    told: Any,
) -> None:
    assert broker.data is not None
    parts = dict(part.partition("=")[::2] for part in broker.connection_string.split(";"))
    keys[ROOT_RIGHTS] = (parts["SharedAccessKeyName"], parts["SharedAccessKey"])
    ground = Ground(broker.port, keys)
    where = directory / "ground.json"
    where.write_text(ground.to_json())
    asyncio.run(_fill(ground, plan.depth))
    watch = Watch(broker, broker.data)
    honest = HonestClients(ground.string(ROOT_RIGHTS), directory, plan)
    time.sleep(3.0)
    begun = time.monotonic()
    time.sleep(plan.quiet_s)
    quiet = {**honest.between(begun, time.monotonic()), **watch.between(begun, time.monotonic())}
    report.facts["quiet"] = quiet
    told(f"quiet: {quiet}")
    attack_begun = time.monotonic()
    for number, (kinds, seconds) in enumerate(plan.slices()):
        if not broker.is_running:
            report.broken.append(f"the process ended before {kinds}")
            break
        begun = time.monotonic()
        did = _raid(where, f"{plan.seed}/{number}", seconds, kinds)
        ended = time.monotonic()
        after_s = honest.wait_served(ended, AFTER_S)
        time.sleep(0.5)
        found = {
            "kinds": list(kinds),
            "rights": sorted({ATTACKS[kind].rights for kind in kinds}),
            "seconds": round(ended - begun, 1),
            "served_again_after_s": round(after_s, 1),
            **honest.between(begun, ended),
            **watch.between(begun, ended),
            "did": did,
        }
        report.kinds.append(found)
        told(f"{' + '.join(kinds)}: {json.dumps({k: v for k, v in found.items() if k not in ('kinds', 'rights')})}")
        _judge_slice(found, quiet, plan, is_small, report)
    report.facts["attacked"] = {
        **honest.between(attack_begun, time.monotonic()),
        **watch.between(attack_begun, time.monotonic()),
    }
    if slow := _slow("all of it", report.facts["attacked"], quiet):
        report.broken.append(slow)
    report.facts["cgroup"] = cgroup.facts()
    facts = honest.finish()
    watch.close()
    report.facts["honest"] = {name: value for name, value in facts.items() if name != "not_received"}
    _judge_end(ground, broker, facts, report)


def _slow(what: str, found: dict[str, Any], quiet: dict[str, Any]) -> str | None:
    """The promise is of all ten minutes. A slice is some 14 s: one moment in which the disk stands still is more than a
    hundredth of what 20 clients send in it, so its p99 is its worst moment, which is told and breaks nothing."""
    p99 = found.get("p99_ms", float("inf"))
    if p99 >= P99_MS_MAX and p99 >= RATIO_MAX * quiet.get("p99_ms", 0):
        return f"{what}: honest p99 {p99} ms, quiet {quiet.get('p99_ms')} ms"
    return None


def _judge_slice(found: dict[str, Any], quiet: dict[str, Any], plan: Plan, is_small: bool, report: Report) -> None:
    what = " + ".join(found["kinds"])
    if slow := _slow(what, found, quiet):
        report.slow.append(slow)
    if found.get("rss_mb_max", 0) > plan.memory_mb * MEMORY_SLACK:
        report.broken.append(f"{what}: {found['rss_mb_max']} MB of memory, the limit is {plan.memory_mb}")
    # Clients add nothing below the reserve, what happens by itself stops where the disk counts as full, and deleting
    # goes on in a log that is short by then. The ballast is a file of ours.
    least = (limits.DISK_FULL_BYTES - limits.DISK_BALLAST_BYTES - LOG_BYTES_MIN) / MIB
    if is_small and found.get("free_mb_min", least) < least:
        report.broken.append(f"{what}: {found['free_mb_min']} MB free on the disk, {least:.0f} are promised")


def _judge_end(ground: Ground, broker: BrokerProcess, facts: dict[str, Any], report: Report) -> None:
    if not broker.is_running:
        report.broken.append(f"the process ended: {broker.stderr[-500:]}")
    for word in ("Traceback", " incident "):
        if word in broker.stderr:
            at = broker.stderr.index(word)
            report.broken.append(f"on stderr: {broker.stderr[max(0, at - 100) : at + 400]}")
    if facts.get("came_back"):
        report.broken.append(f"completed and came back: {facts['came_back'][:5]}")
    for name in ("errors", "failed"):
        if facts.get(name):
            report.broken.append(f"{name} of honest clients: {str(facts[name])[:300]}")
    if broker.is_running:
        status = broker.stop(90)
        if status != 0:
            report.broken.append(f"it ended with status {status}")
    broker.start(120)  # on the disk as the attack has left it
    left = set(asyncio.run(_left(ground, report.plan.clients)))
    lost = [name for name in facts.get("not_received", []) if name not in left]
    report.facts["honest"]["left_in_queues"] = len(left)
    report.facts["honest"]["lost"] = len(lost)
    if lost:
        report.broken.append(f"acknowledged and lost: {lost[:5]}")
    report.facts["restarted_on_that_disk"] = True


def _raid(where: Path, seed: str, seconds: float, kinds: tuple[str, ...]) -> dict[str, Any]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.hostile.onslaught", str(where), seed, str(seconds), *kinds],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(PACKAGE_PARENT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        said, errors = process.communicate(timeout=seconds + 30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return {"error": "the attackers did not come back"}
    if not said:
        return {"error": errors[-300:]}
    found = json.loads(said)
    assert isinstance(found, dict)
    return found


async def _fill(ground: Ground, depth: int) -> None:
    async with await connect(ground.string(ROOT_RIGHTS)) as client:
        for path, session_id in ((DEEP, None), (DEEP_SESSIONS, "many")):
            out = await client.sender(path)
            for first in range(0, depth, 500):
                some = range(first, min(first + 500, depth))
                await out.send_batch([OutgoingMessage(b"x" * 200, session_id=session_id) for _ in some])
        await out.send_batch([OutgoingMessage(b"x", session_id="few") for _ in range(5)])


async def _left(ground: Ground, clients: int) -> list[str]:
    """What still waits for honest clients; received, and so gone."""
    names: list[str] = []
    async with await connect(ground.string(ROOT_RIGHTS)) as client:
        for number in range(clients):
            inlet = await client.receiver(queue_of(number), mode=RECEIVE_AND_DELETE)
            with contextlib.suppress(ClientError):
                while found := await inlet.receive(max_count=500, max_wait=0.2):
                    names += [bytes(message.body).decode().strip() for message in found]
            await inlet.close()
    return names
