"""One run of the lab: start everything, send, break something, mend it, wait until all is home, and judge."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from spillway.lab.afterwards import count_stored, note_ledgers, note_left, save_ledger
from spillway.lab.guard import Guard
from spillway.lab.histories import BEGINS, FAULT, MENDED, MENDING, NOTE, UNCLEAN, History, Tail
from spillway.lab.processes import END_S, Client, LabBroker, LabError
from spillway.lab.scenarios import DIVERTED_SHARE, Scenario
from spillway.lab.spark import SparkHost
from spillway.lab.verdict import EXPECTED_FILE, SECONDARY, VERDICT_FILE, Expected

PATH: Final = "orders"
PRIMARY: Final = "primary"
PRODUCERS: Final = 2
CONSUMERS: Final = 2
RECEIVERS: Final = 4  # of each consumer; each waits for the answer to one completion at a time
BACKLOG_QUEUES: Final = 4
IN_FLIGHT: Final = 32  # of each producer
LOCK_S: Final = 10
FAULT_FROM: Final = 0.2  # of the messages acknowledged
FAULT_UNTIL: Final = 0.5
DIVERTED_UNTIL: Final = DIVERTED_SHARE + 0.05  # of all messages; some margin
STALLED_S: Final = 120.0  # nothing goes on any more
HOME_STALLED_S: Final = 75.0  # a lock that nobody holds any more has run out by then, in the backlog too
SPARK_STALLED_S: Final = 240.0  # Spark may have to start first, on a machine on which everybody is busy
LOOK_S: Final = 0.1
ASK_S: Final = 0.5


@dataclass(frozen=True)
class Settings:
    messages: int
    rate: float  # a second, of all producers together; 0: as fast as they can
    size: int
    break_with: str | None = None


@dataclass(frozen=True)
class Progress:
    """How far it is, for the eye."""

    phase: str
    is_outage: bool
    elapsed_s: float
    counts: dict[str, int]


class Lab:
    """`show` is called with the progress, `note` is a line for people. `spark` syphons, else a process of its own."""

    def __init__(
        self,
        scenario: Scenario,
        settings: Settings,
        directory: Path,
        guard: Guard,
        show: Callable[[Progress], None],
        spark: SparkHost | None = None,
    ) -> None:
        self.scenario = scenario
        self.settings = settings
        self.directory = directory
        self.guard = guard
        self.show = show
        self.spark = spark
        self.events = directory / "events"
        self.path = PATH
        self.primary = LabBroker(PRIMARY, directory, ["--config", str(self._config())], guard)
        self.secondary = LabBroker(SECONDARY, directory, [], guard)
        self.history = History(directory, "lab")
        self.tail = Tail(directory)
        self.producers: list[Client] = []
        self.clients: list[Client] = []
        self.phase = ""
        self.is_outage = False
        self.begun_s = time.monotonic()

    @property
    def messages(self) -> int:
        return self.settings.messages

    @property
    def pairing_name(self) -> str:
        """What the primary is called in the paths of its backlog queues."""
        from spillway.paired.backlog import namespace_name

        return namespace_name(f"localhost:{self.primary.port}")

    @property
    def backlog_paths(self) -> list[str]:
        from spillway.paired.backlog import backlog_path

        return [backlog_path(self.pairing_name, index) for index in range(BACKLOG_QUEUES)]

    def fault(self, what: str) -> None:
        self.history.write(FAULT, what=what)

    def note(self, text: str) -> None:
        """Say something to people, in the report too."""
        self.history.write(NOTE, text=text)
        self._enter(text)

    def _config(self) -> Path:
        """The primary's queue detects duplicates: a send of unknown outcome that is diverted stays one message."""
        queue = {
            "Name": PATH,
            "Properties": {
                "DefaultMessageTimeToLive": "P10D",
                "DuplicateDetectionHistoryTimeWindow": "PT10M",
                "LockDuration": f"PT{LOCK_S}S",
                "MaxDeliveryCount": 1000,
                "RequiresDuplicateDetection": True,
            },
        }
        path = self.directory / "config.json"
        path.write_text(json.dumps({"UserConfig": {"Namespaces": [{"Name": PRIMARY, "Queues": [queue]}]}}))
        return path

    # -- the run ------------------------------------------------------------------------------------------------------

    def run(self) -> dict[str, Any]:
        """What the verdict found."""
        try:
            self._start()
            self._send_through_outage()
            self._come_home()
            self._stop_clients()
            brokers = [self.primary, self.secondary]
            note_ledgers(brokers, self.history)
            for broker in brokers:
                save_ledger(broker, self.ledger_of(broker))
            note_left([(self.primary, PATH), *((self.secondary, path) for path in self.backlog_paths)], self.history)
        finally:
            for process in (*self.clients, self.primary, self.secondary):
                process.end()
            self.history.close()
        return self._verdict()

    def report(self) -> dict[str, Any]:
        """After the verdict: what the jobs on Spark make of ledgers, events and histories. The pages are files."""
        assert self.spark is not None, "only with Spark"
        self._enter("metering, cost and availability, on Spark")
        ledgers = {broker.name: str(self.ledger_of(broker)) for broker in (self.primary, self.secondary)}
        spec = {"directory": str(self.directory), "events": str(self.events), "ledgers": ledgers}
        return self.spark.report({**spec, "name": self.pairing_name, "primary": PRIMARY})

    def ledger_of(self, broker: LabBroker) -> Path:
        """Where its rows are kept for the jobs."""
        return self.directory / "ledgers" / broker.name

    def _start(self) -> None:
        syphon = "five clients" if self.spark is None else "four clients; Spark starts beside them"
        self._enter(f"starting two brokers and {syphon}")
        self.primary.start()
        self.secondary.start()
        each, more = divmod(self.settings.messages, PRODUCERS)
        for index in range(PRODUCERS):
            self.producers.append(self._client("producer", f"producer{index}", each + (index < more)))
        self.clients = [
            *self.producers,
            *(self._client("consumer", f"consumer{index}") for index in range(CONSUMERS)),
        ]
        if self.spark is None:
            self.clients.append(self._client("syphon_host", "syphon"))
        for client in self.clients:
            client.spawn()
        for client in self.clients:
            client.wait_ready()
        if self.spark is not None:  # the producers have made the backlog queues
            where = (self.primary.connection_string, self.secondary.connection_string)
            self.spark.syphon(*where, self.directory, self.events)

    def _client(self, module: str, name: str, count: int = 0) -> Client:
        spec = {
            "name": name,
            "directory": str(self.directory),
            "events": str(self.events),
            "primary": self.primary.connection_string,
            "secondary": self.secondary.connection_string,
            "secondary_ca_file": self.secondary.ca_file,
            "path": PATH,
            "count": count,
            "rate": self.settings.rate / PRODUCERS,
            "size": self.settings.size,
            "in_flight": IN_FLIGHT,
            "receivers": RECEIVERS,
            "lock_s": LOCK_S,
            "interval_s": self.scenario.interval_s,
            "ping_s": 1.0,
            "pending": self.scenario.pending,
            "cool_down_s": 5.0,
            "long_poll_s": 5.0,
            "operation_timeout_s": self.scenario.operation_timeout_s,
            "backlog_queues": BACKLOG_QUEUES,
            "break": self.settings.break_with,
        }
        return Client(module, spec, self.directory, self.guard)

    def _send_through_outage(self) -> None:
        wanted = self.settings.messages
        for producer in self.producers:
            producer.send_go()
        self._enter("sending, all is well")
        self._until(lambda counts: counts["acknowledged"] >= wanted * FAULT_FROM)
        self.is_outage = True
        self._enter(self.scenario.about)
        self.fault(BEGINS)
        self.scenario.begin(self)
        until_s = time.monotonic() + self.scenario.lasts_s
        self._until(lambda counts: self._is_enough(counts, until_s))
        self._enter("mending it")
        self.fault(MENDING)
        self.scenario.end(self)
        self.fault(MENDED)
        self.is_outage = False
        self._enter("mended, sending the rest")
        self._until(lambda counts: counts["acknowledged"] >= wanted)

    def _is_enough(self, counts: dict[str, int], until_s: float) -> bool:
        """Whether the outage has lasted long enough."""
        self.scenario.watch(self)
        if time.monotonic() < until_s or not self.scenario.is_complete():
            return counts["acknowledged"] >= self.settings.messages
        if not self.scenario.diverts or counts["acknowledged"] >= self.settings.messages:
            return True
        is_sent = counts["acknowledged"] >= self.settings.messages * FAULT_UNTIL
        return is_sent and counts["diverted"] >= self.settings.messages * DIVERTED_UNTIL

    def _come_home(self) -> None:
        """Until no broker holds a message and every producer is back, or nothing moves any more."""
        self._enter("bringing the backlog home")
        before: tuple[int, ...] = ()
        moved_s = time.monotonic()
        while time.monotonic() - moved_s < (HOME_STALLED_S if self.spark is None else SPARK_STALLED_S):
            stored = count_stored([self.primary, self.secondary])
            counts = self._refresh()
            if stored == 0 and not self.tail.away:
                return
            now = (stored, len(self.tail.away), *counts.values())
            if now != before:
                before, moved_s = now, time.monotonic()
            self._check_clients()
            time.sleep(ASK_S)

    def _stop_clients(self) -> None:
        self._enter("ending the clients")
        if self.spark is not None:
            self.spark.stop()
        for client in self.clients:
            client.send_go()
        for client in self.clients:
            if (how := client.how_it_ended(END_S)) is not None:
                self.history.write(UNCLEAN, text=how)
                self.note(how)

    def _verdict(self) -> dict[str, Any]:
        self._enter("judging")
        wanted = self.settings.messages
        is_true = self.settings.break_with is None
        expected = Expected(
            scenario=self.scenario.name,
            messages=wanted,
            diverted_min=int(wanted * DIVERTED_SHARE) if self.scenario.diverts and is_true else None,
            diverted_max=None if self.scenario.diverts else 0,
            duplicated_max=0,
            failed_max=0 if self.scenario.pending == "hold" else None,
        )
        (self.directory / EXPECTED_FILE).write_text(json.dumps(asdict(expected)))
        done = subprocess.run(
            [sys.executable, "-m", "spillway.lab.verdict", str(self.directory)],
            capture_output=True,
            text=True,
            check=False,
        )
        try:
            found: dict[str, Any] = json.loads(done.stdout)
        except ValueError:
            raise LabError(f"there is no verdict: {done.stderr.strip()[-300:]}") from None
        (self.directory / VERDICT_FILE).write_text(done.stdout)
        return found

    # -- small things ---------------------------------------------------------------------------------------------

    def _enter(self, phase: str) -> None:
        self.phase = phase
        self._show()

    def _until(self, is_reached: Callable[[dict[str, int]], bool]) -> None:
        """Look every now and then, as long as something goes on."""
        moved_s = time.monotonic()
        before = ""
        while not is_reached(self._refresh()):
            now = str(self.tail.counts)
            if now != before:
                before, moved_s = now, time.monotonic()
            if time.monotonic() - moved_s > STALLED_S:
                raise LabError(f"nothing goes on since {STALLED_S:g} s, while {self.phase}: {now}")
            self._check_clients()
            time.sleep(LOOK_S)

    def _refresh(self) -> dict[str, int]:
        self.tail.update()
        self._show()
        return self.tail.counts

    def _show(self) -> None:
        elapsed_s = time.monotonic() - self.begun_s
        self.show(Progress(self.phase, self.is_outage, elapsed_s, self.tail.counts))

    def _check_clients(self) -> None:
        if self.spark is not None:
            self.spark.check()
        for client in self.clients:
            if not client.is_running:
                raise LabError(f"{client.name} ended before its time: {client.last_words()}")
