"""`make neighbours`: what one client costs another, attack by attack.

Each scenario is a fresh broker with set-up of its own, one honest neighbour that sends a message to a queue of its own
every 10 ms, and attackers that do with their rights (or without any) what costs most. A send is timed from the moment
it was due, so a broker that stands still for a second is seen a hundred times and not once. First without the attack,
then under it.

A machine that stands still for a tenth of a second by itself decides the p99 of eight seconds, in quiet as well as
under an attack. So each scenario is measured in three rounds, all of them are written down, and the medians are judged.

Writes docs/evidence/neighbours.json; ends with status 1 if the median of a neighbour's p99 under an attack is 50 ms or
more, or ten times the median of its p99 without it or more.
"""

import argparse
import asyncio
import contextlib
import json
import os
import platform
import select
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from spillway.amqp.frames import encode_frame  # noqa: E402 - after the path above
from spillway.amqp.message import Properties, encode_data, encode_message  # noqa: E402
from spillway.amqp.performatives import Begin, Detach, Disposition, Flow, Transfer  # noqa: E402
from spillway.amqp.types import Described, Symbol  # noqa: E402
from spillway.client.connection import connect  # noqa: E402
from spillway.client.errors import ClientError  # noqa: E402
from spillway.client.message import OutgoingMessage  # noqa: E402
from spillway.dialect.annotations import BATCH_FORMAT, SESSION_FILTER  # noqa: E402
from tests.hostile.attacker import (  # noqa: E402 - the tools are imported from the tree they lie in
    Attacker,
    put_token,
    receiver,
    sender,
)
from tests.tools.broker_process import NAMESPACE, BrokerProcess  # noqa: E402
from tests.tools.commit import commit  # noqa: E402

COMPILED: Final = ROOT / "build" / "compiled"
NEIGHBOURS: Final = "neighbours"
TARGET: Final = "target"
TOPIC: Final = "events"
EVERY_S: Final = 0.01
P99_MS_MAX: Final = 50.0
RATIO_MAX: Final = 10.0
PROPERTY_CHARS: Final = 31_000


# -- the neighbour, in a process of its own ----------------------------------------------------------------------------


def be_neighbour(port: int) -> None:
    """One line a send: when it was due, and how many ms until it was accepted. Ends when stdin does."""
    client = Attacker(port).open().begin().attach_sender(address=NEIGHBOURS)
    payload = encode_message(properties=Properties(message_id="n"), body=encode_data(b"x" * 100))
    client.socket.setblocking(False)
    out: dict[int, float] = {}
    due = time.monotonic()
    number = 0
    while True:
        now = time.monotonic()
        if now >= due:
            frame = encode_frame(0, Transfer(0, number, number.to_bytes(4, "big"), 0, settled=False), payload)
            client.socket.setblocking(True)
            client.socket.sendall(frame)
            client.socket.setblocking(False)
            out[number] = due
            number += 1
            due += EVERY_S
            continue
        readable, _, _ = select.select([client.socket, sys.stdin], [], [], due - now)
        if sys.stdin in readable:
            break
        if client.socket in readable:
            hear_dispositions(client, out)
    now = time.monotonic()
    for sent in out.values():  # not answered at the end: it took at least so long
        print(f"{sent} {(now - sent) * 1000}")
    sys.stdout.flush()


def hear_dispositions(client: Attacker, out: dict[int, float]) -> None:
    client.drain()
    client.socket.setblocking(False)
    now = time.monotonic()
    for _, answer in client.answers:
        if isinstance(answer, Disposition):
            last = answer.first if answer.last is None else answer.last
            for number in range(answer.first, last + 1):
                sent = out.pop(number)
                print(f"{sent} {(now - sent) * 1000}", flush=True)
    client.answers.clear()
    if client.is_over:
        raise SystemExit("the broker hung up")


class Neighbour:
    def __init__(self, port: int, nice: int) -> None:
        self.samples: list[tuple[float, float]] = []
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--neighbour", str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        prefer(self.process.pid, nice)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            sent, took_ms = line.split()
            self.samples.append((float(sent), float(took_ms)))

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(30)
        self.reader.join(5)
        self.process.stdout.close()

    def between(self, begun: float, ended: float) -> dict[str, float]:
        took = sorted(ms for sent, ms in self.samples if begun <= sent < ended)
        assert took, "the neighbour has sent nothing"
        return {
            "sends": len(took),
            "p50_ms": round(took[len(took) // 2], 2),
            "p99_ms": round(took[min(len(took) * 99 // 100, len(took) - 1)], 2),
            "max_ms": round(took[-1], 2),
        }


def prefer(pid: int, nice: int) -> None:
    """Who is not root leaves all processes alike."""
    with contextlib.suppress(PermissionError):
        for task in os.listdir(f"/proc/{pid}/task"):
            os.setpriority(os.PRIO_PROCESS, int(task), nice)


# -- the ground --------------------------------------------------------------------------------------------------------


class Ground:
    """One broker, and the ways to fill it."""

    def __init__(self, broker: BrokerProcess, loader: Path | None, scale: float) -> None:
        self.broker = broker
        self.loader = loader
        self.scale = scale  # of depths; below 1 in the short form
        self.notes: dict[str, Any] = {}

    @property
    def port(self) -> int:
        return self.broker.port

    def depth(self, count: int) -> int:
        return max(int(count * self.scale), 100)

    def fill(self, queue: str, count: int, *more: str) -> None:
        """Messages with a body of 200 bytes; by the C load generator if there is a compiler."""
        if self.loader is None:
            asyncio.run(self._fill_slowly(queue, count, "0" if more else None))
            return
        command = [str(self.loader), "--port", str(self.port), "--address", queue, "--count", str(count)]
        command += ["--user", "RootManageSharedAccessKey", "--pass", "SAS_KEY_VALUE", "--size", "200"]
        done = subprocess.run([*command, "--receivers", "0", "--idle", "60", *more], capture_output=True, check=False)
        assert done.returncode == 0, done.stderr

    async def _fill_slowly(self, queue: str, count: int, session_id: str | None) -> None:
        async with await connect(self.broker.connection_string) as connection, await connection.sender(queue) as out:
            for first in range(0, count, 500):
                messages = [OutgoingMessage(b"x" * 200, session_id=session_id) for _ in range(min(500, count - first))]
                await out.send_batch(messages)


def build_loader(directory: Path) -> Path | None:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return None
    program = directory / "amqpload"
    subprocess.run([compiler, "-O2", "-o", str(program), str(ROOT / "bench" / "amqpload.c")], check=True)
    return program


def config_of(queues: list[dict[str, Any]], topics: list[dict[str, Any]]) -> dict[str, Any]:
    queues = [{"Name": NEIGHBOURS, "Properties": {}}, *queues]
    return {"UserConfig": {"Namespaces": [{"Name": NAMESPACE, "Queues": queues, "Topics": topics}]}}


def queue_of(**properties: object) -> list[dict[str, Any]]:
    return [{"Name": TARGET, "Properties": {"MaxDeliveryCount": 100, **properties}}]


def sql_rule(name: str, expression: str) -> dict[str, Any]:
    return {"Name": name, "Properties": {"FilterType": "Sql", "SqlFilter": {"SqlExpression": expression}}}


def until(deadline: float, act: Callable[[], object]) -> int:
    """Over and over, once at least."""
    count = 0
    while count == 0 or time.monotonic() < deadline:
        act()
        count += 1
    return count


def drain(client: Attacker, seconds: float) -> int:
    """Read and forget; how many bytes."""
    deadline = time.monotonic() + seconds
    count = 0
    while time.monotonic() < deadline:
        client.socket.settimeout(0.05)
        try:
            data = client.socket.recv(1 << 20)
        except TimeoutError:
            continue
        except OSError:
            break
        if not data:
            break
        count += len(data)
    return count


# -- the attacks -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scenario:
    name: str
    what: str
    config: Callable[[Ground], dict[str, Any]]
    attack: Callable[[Ground, float], None]  # until this moment, or a little longer
    set_up: Callable[[Ground], object] = lambda ground: None
    lull: Callable[[Any], None] = lambda state: None


def no_config(ground: Ground) -> dict[str, Any]:
    return config_of(queue_of(), [])


def attack_as_strangers(ground: Ground, deadline: float) -> None:
    """Ten connections without a right: bad tokens, as many as go through, and again when they are cut off."""
    tokens = b"".join(
        encode_frame(
            0,
            Transfer(0, number, number.to_bytes(4, "big"), 0, settled=True),
            put_token(number, "sb://localhost/target", "SharedAccessSignature sr=x&sig=eA%3d%3d&se=9999999999&skn=y"),
        )
        for number in range(2_000)
    )
    counts = [0] * 10

    def one(index: int) -> None:
        while time.monotonic() < deadline:
            try:
                client = Attacker(ground.port).open("ANONYMOUS")
                client.begin(incoming_window=1 << 30)
                client.tell(sender(0, "$cbs", "in"), receiver(1, "$cbs", "out"))
                client.tell(Flow(0, 1 << 30, 0, 5_000, 1, 0, 1_000_000))
                client.socket.setblocking(False)
                at = 0
                while time.monotonic() < deadline:
                    readable, writable, _ = select.select([client.socket], [client.socket], [], 0.1)
                    if readable and not client.socket.recv(1 << 20):
                        break
                    if writable:
                        sent = client.socket.send(tokens[at : at + 65_536])
                        counts[index] += sent
                        at += sent
                        if at == len(tokens):
                            break
                client.socket.close()
            except (OSError, AssertionError):
                continue

    threads = [threading.Thread(target=one, args=(index,)) for index in range(len(counts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ground.notes["bytes_taken"] = sum(counts)


def attack_with_frames(ground: Ground, deadline: float) -> None:
    """Ten connections with a key: flows that change nothing, as many as go through."""
    flows = encode_frame(0, Flow(0, 5_000, 0, 5_000, None, None, None)) * 20_000
    counts = [0] * 10

    def one(index: int) -> None:
        client = Attacker(ground.port).open()
        client.begin()
        client.socket.setblocking(False)
        at = 0
        while time.monotonic() < deadline:
            readable, writable, _ = select.select([client.socket], [client.socket], [], 0.1)
            if readable and not client.socket.recv(1 << 20):
                break
            if writable:
                sent = client.socket.send(flows[at : at + 262_144])
                counts[index] += sent
                at = (at + sent) % len(flows)
        client.socket.close()

    threads = [threading.Thread(target=one, args=(index,)) for index in range(len(counts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ground.notes["bytes_taken"] = sum(counts)


def filters_config(ground: Ground) -> dict[str, Any]:
    expression = " OR ".join(f"{name} LIKE '%a_{char}%'" for char in "bcdefghijklmnop" for name in "pq")
    subscriptions = [
        {"Name": f"s{number}", "Rules": [sql_rule("r", f"{expression} OR n = {number}")]}
        for number in range(ground.depth(400))
    ]
    return config_of([], [{"Name": TOPIC, "Properties": {}, "Subscriptions": subscriptions}])


def attack_with_filters(ground: Ground, deadline: float) -> None:
    """One message after the other whose texts every LIKE must walk through to the end."""
    text = "bcdefghijklmnop" + "a" * (PROPERTY_CHARS - 15)

    async def run() -> None:
        async with await connect(ground.broker.connection_string) as client, await client.sender(TOPIC) as out:
            message = OutgoingMessage(b"x", application_properties={"p": text, "q": text})
            sent = 0
            while sent == 0 or time.monotonic() < deadline:
                await out.send(message, timeout=120)
                sent += 1
            ground.notes["messages"] = sent

    asyncio.run(run())


def copies_config(ground: Ground) -> dict[str, Any]:
    subscriptions = [{"Name": f"s{number}"} for number in range(200)]
    return config_of([], [{"Name": TOPIC, "Properties": {}, "Subscriptions": subscriptions}])


def attack_with_copies(ground: Ground, deadline: float) -> None:
    """Batches of small messages to a topic with 200 subscriptions that take everything."""
    batch = b""
    count = 0
    while len(batch) < 126_000 * min(ground.scale * 2, 1):
        batch += encode_data(encode_message(body=encode_data(b"%021d" % count)))
        count += 1

    async def run() -> None:
        async with await connect(ground.broker.connection_string) as client, await client.sender(TOPIC) as out:
            sent = 0
            while sent == 0 or time.monotonic() < deadline:
                await out.send_raw(batch, BATCH_FORMAT, timeout=120)
                sent += 1
            ground.notes["batches"] = sent
            ground.notes["messages_of_a_batch"] = count

    asyncio.run(run())


def deep_config(ground: Ground) -> dict[str, Any]:
    return config_of(queue_of(LockDuration="PT1M"), [])


def locks_config(ground: Ground) -> dict[str, Any]:
    return config_of(queue_of(LockDuration="PT5S"), [])


def session_locks_config(ground: Ground) -> dict[str, Any]:
    return config_of(queue_of(LockDuration="PT5S", RequiresSession=True), [])


def fill_for_locks(ground: Ground) -> None:
    ground.fill(TARGET, ground.depth(100_000))


def fill_session_for_locks(ground: Ground) -> None:
    ground.fill(TARGET, ground.depth(100_000), "--groups", "1")


def locked_by(ground: Ground, count: int, session_filter: bool = False) -> Attacker:
    """A client that holds so many locks and settles none."""
    client = Attacker(ground.port).open()
    client.tell(Begin(None, 0, 1 << 30, 5_000))
    client.hear(Begin)
    attach = receiver(1, TARGET, "holder")
    if session_filter:
        assert attach.source is not None
        attach.source.filter = {Symbol(SESSION_FILTER): Described(Symbol(SESSION_FILTER), None)}
    client.tell(attach)
    client.hear(type(attach))
    client.tell(Flow(0, 1 << 30, 0, 5_000, 1, 0, count))
    return client


def attack_by_locks(ground: Ground, deadline: float) -> None:
    """All that there is, locked at once, and left until the locks end together."""
    client = locked_by(ground, 100_000)
    ground.notes["bytes_received"] = drain(client, max(deadline - time.monotonic(), 15))
    client.socket.close()


def attack_by_session_locks(ground: Ground, deadline: float) -> None:
    """The same of one message session: its locks end in the same moment."""
    client = locked_by(ground, 100_000, session_filter=True)
    ground.notes["bytes_received"] = drain(client, max(deadline - time.monotonic(), 15))
    client.socket.close()


def session_config(ground: Ground) -> dict[str, Any]:
    return config_of(queue_of(RequiresSession=True), [])


def fill_sessions(ground: Ground) -> None:
    ground.fill(TARGET, ground.depth(200_000), "--groups", "1")

    async def run() -> None:
        async with await connect(ground.broker.connection_string) as client, await client.sender(TARGET) as out:
            await out.send_batch([OutgoingMessage(b"x", session_id="few") for _ in range(5)])

    asyncio.run(run())


def attack_by_browsing(ground: Ground, deadline: float) -> None:
    """The few messages of one session, behind all those of another."""

    async def run() -> None:
        async with await connect(ground.broker.connection_string, operation_timeout=120) as client:
            node = client.management(TARGET)
            count = 0
            while count == 0 or time.monotonic() < deadline:
                found = await asyncio.gather(*[node.peek(0, 10, session_id="few", timeout=120) for _ in range(4)])
                assert [len(each) for each in found] == [5] * 4
                count += 4
            ground.notes["requests"] = count

    asyncio.run(run())


def fill_deep(ground: Ground) -> None:
    ground.fill(TARGET, ground.depth(200_000))


def attack_by_deleting(ground: Ground, deadline: float) -> None:
    """Messages older than any there is."""

    async def run() -> None:
        async with await connect(ground.broker.connection_string, operation_timeout=120) as client:
            node = client.management(TARGET)
            count = 0
            while count == 0 or time.monotonic() < deadline:
                assert await node.batch_delete(4_000, 1_000_000_000_000, timeout=120) == 0
                count += 1
            ground.notes["requests"] = count

    asyncio.run(run())


def fill_for_links(ground: Ground) -> None:
    ground.fill(TARGET, ground.depth(99_000))


def attack_by_links(ground: Ground, deadline: float) -> None:
    """Links that come and go beside one with 99,000 deliveries that are not settled, in one session."""
    client = locked_by(ground, 99_000)
    drain(client, 8 * ground.scale + 1)
    burst = b""
    for number in range(200):
        burst += encode_frame(0, receiver(2, TARGET, f"link {number}")) + encode_frame(0, Detach(2, True))
    client.socket.setblocking(False)
    bursts = 0
    while bursts == 0 or time.monotonic() < deadline:
        heard = 0
        client.socket.setblocking(True)
        client.socket.settimeout(60)
        client.socket.sendall(burst)
        while heard < 200 * 8:  # at least an empty frame's worth for each answer
            data = client.socket.recv(1 << 20)
            if not data:
                raise ConnectionError("hung up")
            heard += len(data)
        bursts += 1
    ground.notes["attached_and_detached"] = bursts * 200
    client.socket.close()


def rules_config(ground: Ground) -> dict[str, Any]:
    rules = [sql_rule(f"r{number}", long_expression(number)) for number in range(ground.depth(1_500))]
    subscriptions = [{"Name": "s", "Rules": rules}]
    return config_of([], [{"Name": TOPIC, "Properties": {}, "Subscriptions": subscriptions}])


def long_expression(number: int) -> str:
    parts = [f"p{number} = {number}"] + [f"name{index} LIKE 'some text {index}%'" for index in range(20)]
    return " AND ".join(parts)


def attack_by_rules(ground: Ground, deadline: float) -> None:
    """Rules added to 1,500 others and removed again, with a message after each."""

    async def run() -> None:
        async with await connect(ground.broker.connection_string, operation_timeout=120) as client:
            node = client.management(f"{TOPIC}/Subscriptions/s")
            out = await client.sender(TOPIC)
            count = 0
            while count == 0 or time.monotonic() < deadline:
                description = {"sql-filter": {"expression": long_expression(count)}}
                body = {"rule-name": "more", "rule-description": description}
                await node.call("com.microsoft:add-rule", body, 120)
                await out.send(OutgoingMessage(b"x", application_properties={"p": 1}), timeout=120)
                await node.call("com.microsoft:remove-rule", {"rule-name": "more"}, 120)
                count += 1
            ground.notes["added_and_removed"] = count
            await out.close()

    asyncio.run(run())


SCENARIOS: Final = {
    one.name: one
    for one in (
        Scenario("strangers", "10 connections that put bad tokens", no_config, attack_as_strangers),
        Scenario("frames", "10 connections with a key that send flows", no_config, attack_with_frames),
        Scenario("filters", "messages through 400 LIKE filters", filters_config, attack_with_filters),
        Scenario("copies", "batches of 126 KB to 200 subscriptions", copies_config, attack_with_copies),
        Scenario("locks", "100,000 locks that end together", locks_config, attack_by_locks, fill_for_locks),
        Scenario(
            "session-locks",
            "100,000 locks of one session",
            session_locks_config,
            attack_by_session_locks,
            fill_session_for_locks,
        ),
        Scenario(
            "browsing", "a session's few messages among 200,000", session_config, attack_by_browsing, fill_sessions
        ),
        Scenario("deleting", "a batch delete that finds none of 200,000", deep_config, attack_by_deleting, fill_deep),
        Scenario("links", "links beside 99,000 unsettled", deep_config, attack_by_links, fill_for_links),
        Scenario("rules", "rules added to 1,500", rules_config, attack_by_rules),
    )
}


def measure(scenario: Scenario, directory: Path, python_path: Path, options: argparse.Namespace) -> dict[str, Any]:
    """One round, on a broker of its own."""
    home = Path(tempfile.mkdtemp(prefix=f"{scenario.name}-", dir=directory))
    loader = build_loader(home)
    config_path = home / "Config.json"
    broker = BrokerProcess(home / "data", config=config_path, python_path=python_path)
    ground = Ground(broker, loader, options.scale)
    config_path.write_text(json.dumps(scenario.config(ground)))
    with broker:
        prefer(broker.pid, options.nice)
        scenario.set_up(ground)
        neighbour = Neighbour(broker.port, options.nice)
        time.sleep(1.0)
        quiet_begun = time.monotonic()
        time.sleep(options.seconds)
        begun = time.monotonic()
        try:
            scenario.attack(ground, begun + options.seconds)
            ended = time.monotonic()
        except (OSError, AssertionError, ClientError) as error:
            ended = time.monotonic()
            ground.notes["attack_ended_by"] = f"{type(error).__name__}: {error}"[:200]
        neighbour.close()
        assert broker.is_running, broker.stderr[-2_000:]
        quiet = neighbour.between(quiet_begun, begun)
        under = neighbour.between(begun, ended)
    return {"quiet": quiet, "under_attack": under, "attack_s": round(ended - begun, 1), **ground.notes}


def judge(what: str, rounds: list[dict[str, Any]]) -> dict[str, Any]:
    quiet = statistics.median(each["quiet"]["p99_ms"] for each in rounds)
    under = statistics.median(each["under_attack"]["p99_ms"] for each in rounds)
    return {
        "what": what,
        "quiet_p99_ms": quiet,
        "p99_ms": under,
        "ratio_p99": round(under / quiet, 1),
        "holds": under < P99_MS_MAX and under < RATIO_MAX * quiet,
        "rounds": rounds,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenarios", default=",".join(SCENARIOS))
    parser.add_argument("--rounds", type=int, default=3, help="of each scenario; the medians are judged")
    parser.add_argument("--seconds", type=float, default=8.0, help="without the attack, and under it at least")
    parser.add_argument("--scale", type=float, default=1.0, help="of the depths: 0.1 is a tenth of them")
    parser.add_argument("--uncompiled", action="store_true", help="the sources, even if there is a compiled build")
    parser.add_argument("--compiled", type=Path, default=COMPILED, help="the compiled build")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "evidence" / "neighbours.json")
    parser.add_argument("--nice", type=int, default=0, help="of broker and neighbour: below 0 beside other work (root)")
    parser.add_argument("--neighbour", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.neighbour is not None:
        be_neighbour(options.neighbour)
        return 0
    if options.rounds < 1:
        parser.error(f"--rounds is {options.rounds}; it takes 1 or more")
    is_compiled = not options.uncompiled and any(options.compiled.glob("**/*.so"))
    python_path = options.compiled if is_compiled else ROOT / "src"
    facts: dict[str, Any] = {
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, "
        f"Python {platform.python_version()}",
        "compiled": is_compiled,
        "sends_per_second": round(1 / EVERY_S),
        "p99_ms_max": P99_MS_MAX,
        "ratio_max": RATIO_MAX,
        "commit": commit(),
    }
    names = options.scenarios.split(",")
    os.nice(19)  # the attackers: they would have a machine of their own
    with tempfile.TemporaryDirectory(prefix="spillway-neighbours-") as directory:
        for name in names:
            rounds = []
            for number in range(options.rounds):
                rounds.append(measure(SCENARIOS[name], Path(directory), python_path, options))
                print(f"neighbours: {name}, round {number + 1}: {json.dumps(rounds[-1])}", flush=True)
            facts[name] = found = judge(SCENARIOS[name].what, rounds)
            print(
                f"neighbours: {name}: p99 {found['p99_ms']:.1f} ms, {found['ratio_p99']} times quiet, "
                f"{'holds' if found['holds'] else 'DOES NOT HOLD'}",
                flush=True,
            )
    holds = all(facts[name]["holds"] for name in names)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({**facts, "holds": holds}, indent=2) + "\n")
    print("neighbours: " + ("nobody pays for another" if holds else "somebody PAYS for another"))
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
