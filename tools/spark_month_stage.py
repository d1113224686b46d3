"""Who plays in the month of tools/spark_month.py: two namespaces, producers that note what was acknowledged, the driver
with its processes, and what they hold."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from azure.core.exceptions import AzureError, ResourceExistsError, ResourceNotFoundError
from azure.servicebus.management import ServiceBusAdministrationClient

from spillway.client import ClientError, OutgoingMessage, connect
from spillway.client.control import ControlClient
from spillway.lab.field.vitals import resident_kb
from spillway.paired.backlog import backlog_path, backlog_properties
from tests.tools.broker_process import BrokerProcess
from tools.sparkkills_ground import DAEMON, command_of

ROOT = Path(__file__).resolve().parent.parent
PAIRING: Final = "month"
SESSIONS: Final = 6
LOCK: Final = timedelta(seconds=30)
WINDOW: Final = timedelta(days=7)  # of duplicates: longer than any failure and restart of this month
KEEPER_MODULE: Final = "spillway.spark.source.lock_keeper"
WAKES_AT: Final = timedelta(hours=2)  # a day is over an hour after its end
SAMPLE_S: Final = 2.0
BROKER_S: Final = 120.0  # to be ready; a machine may be very busy
ENTITIES: Final = {"browse": "browsed", "receive": "receive", "sessions": "sessions"} | {
    "sink": "to-sink",
    "capture": "captured",
    "syphon": backlog_path(PAIRING, 0),
}
STREAMS: Final = tuple(ENTITIES)
ENDS: Final = {"sink": "sunk", "syphon": "home"}  # where messages of these are in the end
EMPTIED: Final = ("receive", "sessions", "capture", "syphon")  # streams that leave nothing where it was


class Clock:
    """The movable clock of a namespace."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._client = ControlClient(broker.connection_string)

    def now(self) -> datetime:
        return datetime.fromisoformat(self._client.ask("GET", "clock")["time"]).astimezone(UTC)

    def advance(self, seconds: float) -> None:
        self._client.ask("POST", "clock", {"advance_s": seconds})

    def sleep_until_morning(self) -> datetime:
        """The next day, when the last one is over."""
        now = self.now()
        morning = now.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1) + WAKES_AT
        self.advance((morning - now).total_seconds())
        return self.now()


class Stage:
    """Both namespaces and their entities. `lock_s`: of the queue whose batches may be slow."""

    def __init__(self, directory: Path, lock_s: int) -> None:
        self.primary = BrokerProcess(directory / "primary")
        self.secondary = BrokerProcess(directory / "secondary")
        self.brokers = {"primary": self.primary, "secondary": self.secondary}
        self.lock = timedelta(seconds=lock_s)

    def start(self) -> None:
        for broker in self.brokers.values():
            broker.spawn()
        for broker in self.brokers.values():
            broker.wait_ready(BROKER_S)
        self.clocks = {side: Clock(broker) for side, broker in self.brokers.items()}
        with self.administration(self.primary) as client:
            for name in ("browsed", "to-sink"):
                client.create_queue(name)
            client.create_queue("receive", lock_duration=self.lock)
            client.create_queue("captured", lock_duration=LOCK)
            client.create_queue("sessions", lock_duration=LOCK, requires_session=True)
            for name in ENDS.values():
                client.create_queue(
                    name, requires_duplicate_detection=True, duplicate_detection_history_time_window=WINDOW
                )
        with self.administration(self.secondary) as client:
            client.create_queue(ENTITIES["syphon"], **{**backlog_properties(), "lock_duration": LOCK})

    def administration(self, broker: BrokerProcess) -> ServiceBusAdministrationClient:
        return ServiceBusAdministrationClient.from_connection_string(
            broker.connection_string, connection_verify=broker.ca_file
        )

    def broker_of(self, stream: str) -> BrokerProcess:
        return self.secondary if stream == "syphon" else self.primary

    def make_anew(self, queue: str) -> None:
        """An operator deletes a queue and creates it again, and does not give up when the namespace is busy."""
        with self.administration(self.primary) as client:
            _insist(lambda: client.delete_queue(queue))
            _insist(lambda: client.create_queue(queue))

    def peek(self, broker: BrokerProcess, path: str) -> list[str]:
        """The bodies of all messages that are there, locked ones too."""

        async def work() -> list[str]:
            found: list[str] = []
            first = 0
            async with await connect(broker.connection_string) as connection:
                while messages := await connection.management(path).peek(first, 500):
                    found += [message.body.decode() for message in messages]
                    first = (messages[-1].sequence_number or 0) + 1
            return found

        return asyncio.run(work())

    def left(self, stream: str) -> int:
        return len(self.peek(self.broker_of(stream), ENTITIES[stream]))

    def dead(self, stream: str) -> int:
        return len(self.peek(self.broker_of(stream), f"{ENTITIES[stream]}/$deadletterqueue"))

    def close(self) -> None:
        for broker in self.brokers.values():
            broker.close()


def _insist(work: Callable[[], Any], tries: int = 20) -> None:
    for at in range(tries):
        try:
            work()
            return
        except (ResourceNotFoundError, ResourceExistsError):
            return  # it was done, and the answer was lost
        except AzureError:
            if at == tries - 1:
                raise
            time.sleep(0.5)


class Producer:
    """Sends numbered messages to one entity, a few at a time, and notes which of them were acknowledged.

    What was not is not sent again: it may have arrived or not.
    """

    def __init__(self, stream: str, broker: BrokerProcess, pause_s: float, burst: int) -> None:
        self.stream = stream
        self.broker = broker
        self.pause_s = pause_s
        self.burst = burst
        self.sent = 0
        self.acknowledged: set[int] = set()
        self.refusals: Counter[str] = Counter()
        self.is_open = True
        self.is_idle = True

    def message(self, number: int) -> OutgoingMessage:
        session = f"s{number % SESSIONS}" if self.stream == "sessions" else None
        properties: dict[str, Any] = {"x-ms-path": ENDS["syphon"]} if self.stream == "syphon" else {}
        return OutgoingMessage(
            str(number).encode(),
            message_id=f"{self.stream}-{number}",
            session_id=session,
            application_properties=properties,
        )

    async def run(self, over: asyncio.Event) -> None:
        while not over.is_set():
            try:
                async with await connect(self.broker.connection_string, operation_timeout=10.0) as connection:
                    sender = await connection.sender(ENTITIES[self.stream])
                    while not over.is_set() and await self._send_some(sender):  # noqa: ASYNC110
                        await asyncio.sleep(self.pause_s)
            except (ClientError, OSError) as error:
                self.refusals[type(error).__name__] += 1
            await asyncio.sleep(0.3)

    async def _send_some(self, sender: Any) -> bool:
        """Whether the link is still good."""
        self.is_idle = False  # before it looks whether it may: see Producers.pause
        try:
            return not self.is_open or await self._send_burst(sender)
        finally:
            self.is_idle = True

    async def _send_burst(self, sender: Any) -> bool:
        await sender.ready()
        numbers = range(self.sent, self.sent + self.burst)
        self.sent += self.burst
        posted = [sender.post(self.message(number)) for number in numbers]
        answers = await asyncio.gather(*posted, return_exceptions=True)
        for number, answer in zip(numbers, answers, strict=True):
            if answer is None:
                self.acknowledged.add(number)
            else:
                self.refusals[type(answer).__name__] += 1
        return not any(isinstance(answer, BaseException) for answer in answers)


class Producers:
    """One for each stream, on a loop of their own."""

    def __init__(self, stage: Stage, pause_s: float, burst: int) -> None:
        self.of = {stream: Producer(stream, stage.broker_of(stream), pause_s, burst) for stream in STREAMS}
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        async def work() -> None:
            await asyncio.gather(*[producer.run(self._over) for producer in self.of.values()])

        self._loop.run_until_complete(work())

    def pause(self, stream: str) -> None:
        """It sends nothing more, and everything that it has sent is answered."""
        producer = self.of[stream]
        producer.is_open = False
        until(lambda: producer.is_idle, 60.0, f"the producer of {stream} is answered")

    def resume(self, stream: str) -> None:
        self.of[stream].is_open = True

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._over.set)
            self._thread.join(60)


class Driver:
    """tools/spark_month_host.py, through as many lives as it takes, and its processes."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.lives = 0
        self.java = 0
        self.told: list[dict[str, Any]] = []
        self.rows: Counter[str] = Counter()
        self.deaths: dict[str, Counter[str]] = defaultdict(Counter)
        self.warnings: Counter[str] = Counter()
        self._process: subprocess.Popen[str] | None = None
        self._heard = threading.Condition()

    def start(self, spec: dict[str, Any], timeout_s: float) -> None:
        places = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(ROOT / "tools" / "spark_month_host.py")],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self.lives += 1
        self.java = 0
        mark = len(self.told)
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()
        self._write(spec)
        self.wait_for("ready", mark, timeout_s)
        self.java = next(pid for pid, parent in parents().items() if parent == self.pid and "java" in name_of(pid))

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    def _listen(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        for line in process.stdout:
            said = json.loads(line)
            with self.log.open("a") as log:
                log.write(f"month: {datetime.now(UTC):%H:%M:%S} {line}")
            with self._heard:
                self.told.append(said)
                if said["op"] == "rows":
                    self.rows[said["stream"]] += said["count"]
                elif said["op"] == "died":
                    self.deaths[said["stream"]][said["reason"]] += 1
                elif said["op"] == "warning":
                    self.warnings[said["text"]] += 1
                self._heard.notify_all()

    def ask(self, op: str, answer: str, timeout_s: float, **about: Any) -> dict[str, Any]:
        mark = len(self.told)
        self._write({"op": op, **about})
        return self.wait_for(answer, mark, timeout_s)

    def _write(self, said: dict[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(said) + "\n")
        self._process.stdin.flush()

    def wait_for(self, op: str, mark: int, timeout_s: float) -> dict[str, Any]:
        """The first such line after so many."""

        def found() -> dict[str, Any] | None:
            return next((each for each in self.told[mark:] if each["op"] in (op, "failed")), None)

        with self._heard:
            self._heard.wait_for(lambda: found() is not None or not self.is_running, timeout_s)
            said = found()
        if said is None or said["op"] != op:
            raise RuntimeError(f"the driver was to tell of {op!r} within {timeout_s:g} s: {said or 'it did not'}")
        return said

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self, pid: int) -> None:
        """`kill -9` of one of its processes."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def clear_away(self) -> None:
        """The driver's Python or its Java machine was killed: the other one ends too, as a service manager sees to."""
        assert self._process is not None
        gone_s = time.monotonic() + 20.0
        while self.java in parents() and "java" in name_of(self.java):
            if time.monotonic() > gone_s:
                self.kill(self.java)
            time.sleep(0.1)
        self._process.kill()
        self._process.wait()

    def stop(self, timeout_s: float) -> None:
        if self.is_running:
            self.ask("stop", "ended", timeout_s)
            assert self._process is not None
            self._process.wait(timeout_s)

    def end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill(self.java or self.pid)
            self.clear_away()

    # -- its processes ----------------------------------------------------------------------------------------------

    def roles(self) -> dict[str, list[int]]:
        """Which process is what."""
        tree = parents()
        found: dict[str, list[int]] = {"driver": [self.pid], "java": [self.java], "keeper": [], "worker": []}
        found["planner"] = []
        daemons = set()
        for pid, parent in tree.items():
            command = command_of(pid)
            if KEEPER_MODULE in command and str(self.java) in command:
                found["keeper"].append(pid)
            elif parent == self.java and command[-2:] == DAEMON:
                daemons.add(pid)
            elif parent == self.java and command:
                found["planner"].append(pid)
        found["worker"] = [pid for pid, parent in tree.items() if parent in daemons]
        return found


class Sampler:
    """The most that one process of each role had in memory, in MB, since it was last asked."""

    def __init__(self, stage: Stage, driver: Driver) -> None:
        self._stage = stage
        self._driver = driver
        self._most: dict[str, int] = {}
        self._mutex = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(SAMPLE_S):
            roles = self._driver.roles() if self._driver.is_running and self._driver.java else {}
            for side, broker in self._stage.brokers.items():
                roles[side] = [broker.pid]
            with self._mutex:
                for role, pids in roles.items():
                    for pid in pids:
                        self._most[role] = max(self._most.get(role, 0), resident_kb(pid) // 1024)

    def take(self) -> dict[str, int]:
        with self._mutex:
            found, self._most = self._most, {}
        return {role: most for role, most in sorted(found.items()) if most}

    def stop(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()


def parents() -> dict[int, int]:
    """Every process that has not ended, with its parent."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                found[int(path.parent.name)] = int(parent)
    return found


def name_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text()
    return ""


def until(holds: Callable[[], bool], timeout_s: float, what: str, look_s: float = 0.1) -> None:
    """Other processes take real time: look again until it is so."""
    until_s = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > until_s:
            raise TimeoutError(f"waited {timeout_s:g} s until {what}")
        time.sleep(look_s)
