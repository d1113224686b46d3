"""One run of the lab: start everything, send, break something, mend it, wait until all is home, and judge."""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from spillway.lab.histories import LEDGER, LEFT, NEMESIS, History, Tail
from spillway.lab.processes import Broker, Client, LabError
from spillway.lab.scenarios import DIVERTED_SHARE, Scenario

PATH: Final = "orders"
PRIMARY: Final = "primary"
SECONDARY: Final = "secondary"
PRODUCERS: Final = 2
CONSUMERS: Final = 2
BACKLOG_QUEUES: Final = 4
IN_FLIGHT: Final = 32
FAULT_FROM: Final = 0.2  # of the messages acknowledged
FAULT_UNTIL: Final = 0.6
SETTLE_S: Final = 240.0  # for everything to come home afterwards
LOOK_S: Final = 0.1


@dataclass(frozen=True)
class Settings:
    messages: int
    rate: float  # a second, of all producers together; 0: as fast as they can
    size: int
    break_with: str | None = None


class Lab:
    """`progress` is called with the counts so far, `say` with a line for people."""

    def __init__(
        self,
        scenario: Scenario,
        settings: Settings,
        directory: Path,
        progress: Callable[[str, dict[str, int]], None],
        say: Callable[[str], None],
    ) -> None:
        self.scenario = scenario
        self.settings = settings
        self.directory = directory
        self.progress = progress
        self.say = say
        self.path = PATH
        self.primary = Broker(PRIMARY, directory, ["--config", str(self._config())])
        self.secondary = Broker(SECONDARY, directory, [])
        self.history = History(directory, "lab")
        self.tail = Tail(directory)
        self.clients: list[Client] = []
        self.phase = "starting"

    @property
    def backlog_paths(self) -> list[str]:
        from spillway.paired.backlog import backlog_path, namespace_name

        name = namespace_name(f"localhost:{self.primary.port}")
        return [backlog_path(name, index) for index in range(BACKLOG_QUEUES)]

    def _config(self) -> Path:
        """The primary's queue detects duplicates: a send of unknown outcome that is diverted stays one message."""
        queue = {
            "Name": PATH,
            "Properties": {
                "DefaultMessageTimeToLive": "P10D",
                "LockDuration": "PT10S",
                "MaxDeliveryCount": 1000,
            },
        }
        path = self.directory / "config.json"
        path.write_text(json.dumps({"UserConfig": {"Namespaces": [{"Name": PRIMARY, "Queues": [queue]}]}}))
        return path

    # -- the run ------------------------------------------------------------------------------------------------------

    def run(self) -> tuple[int, dict[str, Any]]:
        """The verdict's exit status and what it found."""
        try:
            self._start()
            self._outage()
            self._come_home()
            self._stop_clients()
            self._look_around()
        finally:
            for process in (*self.clients, self.primary, self.secondary):
                process.end()
            self.history.close()
        return self._verdict()

    def _start(self) -> None:
        self._enter("starting")
        self.primary.start()
        self.secondary.start()
        count = self.settings.messages // PRODUCERS
        producers = [
            Client("producer", self._spec(f"producer{index}", count=count), self.directory)
            for index in range(PRODUCERS)
        ]
        consumers = [Client("consumer", self._spec(f"consumer{index}"), self.directory) for index in range(CONSUMERS)]
        syphon = Client("syphon_host", self._spec("syphon"), self.directory)
        self.producers, self.consumers, self.syphon = producers, consumers, syphon
        self.clients = [*producers, *consumers, syphon]
        for client in self.clients:
            client.spawn()
        for client in self.clients:
            client.wait_ready()

    def _spec(self, name: str, count: int = 0) -> dict[str, Any]:
        return {
            "name": name,
            "directory": str(self.directory),
            "primary": self.primary.connection_string,
            "secondary": self.secondary.connection_string,
            "secondary_ca_file": self.secondary.ca_file,
            "path": PATH,
            "count": count,
            "rate": self.settings.rate / PRODUCERS,
            "size": self.settings.size,
            "in_flight": IN_FLIGHT,
            "interval_s": self.scenario.interval_s,
            "ping_s": 1.0,
            "pending": self.scenario.pending,
            "cool_down_s": 5.0,
            "long_poll_s": 5.0,
            "operation_timeout_s": self.scenario.operation_timeout_s,
            "backlog_queues": BACKLOG_QUEUES,
            "break": self.settings.break_with,
        }

    def _outage(self) -> None:
        wanted = self.settings.messages // PRODUCERS * PRODUCERS
        for producer in self.producers:
            producer.say()
        self._enter("all is well")
        self._until("acknowledged", int(wanted * FAULT_FROM))
        self._enter(f"outage: {self.scenario.about}")
        self.history.write(NEMESIS, what="begins", scenario=self.scenario.name)
        self.scenario.begin(self)
        if self.scenario.diverts:
            self._until("acknowledged", int(wanted * FAULT_UNTIL))
        else:
            self._for(15.0)
        self.scenario.end(self)
        self.history.write(NEMESIS, what="ends", scenario=self.scenario.name)
        self._enter("mended")
        self._until("acknowledged", wanted)

    def _come_home(self) -> None:
        """Until everything that was diverted is syphoned and what was delivered stops growing."""
        self._enter("bringing the backlog home")
        wanted = self.settings.messages // PRODUCERS * PRODUCERS
        deadline_s = time.monotonic() + SETTLE_S
        quiet_since_s = time.monotonic()
        last = -1
        while time.monotonic() < deadline_s:
            counts = self._look()
            if counts["delivered"] != last:
                last, quiet_since_s = counts["delivered"], time.monotonic()
            is_home = counts["syphoned"] >= counts["diverted"] and counts["delivered"] >= wanted
            if time.monotonic() - quiet_since_s > (3.0 if is_home else 75.0):
                return  # a lock that nobody holds any more has run out by then
            time.sleep(LOOK_S)

    def _stop_clients(self) -> None:
        for client in self.clients:
            client.say()
        for client in self.clients:
            if client.wait() is None:
                self.say(f"{client.name} did not end by itself")

    def _look_around(self) -> None:
        """What is still there, anywhere; and what both brokers counted."""
        asyncio.run(self._note_left())
        for broker in (self.primary, self.secondary):
            try:
                totals = broker.ask("GET", "ledger")
            except Exception:
                totals = {}
            operations = {kind: each["operations"] for kind, each in totals.get("totals", {}).items()}
            self.history.write(LEDGER, namespace=broker.name, operations=operations)

    async def _note_left(self) -> None:
        from spillway.client import connect

        queues = [(self.primary, PATH)] + [(self.secondary, path) for path in self.backlog_paths]
        for broker, path in queues:
            async with await connect(broker.connection_string) as connection:
                for place in (path, f"{path}/$DeadLetterQueue"):
                    after = 0
                    while messages := await connection.management(place).peek(after, 500):
                        for message in messages:
                            self.history.write(LEFT, id=json.loads(message.body)["id"], q=place)
                        after = (messages[-1].sequence_number or 0) + 1

    def _verdict(self) -> tuple[int, dict[str, Any]]:
        wanted = self.settings.messages // PRODUCERS * PRODUCERS
        spec: dict[str, Any] = {"scenario": self.scenario.name, "messages": wanted}
        if self.settings.break_with is None:
            spec["diverted_min" if self.scenario.diverts else "diverted_max"] = (
                int(wanted * DIVERTED_SHARE) if self.scenario.diverts else 0
            )
        (self.directory / "run.json").write_text(json.dumps(spec))
        done = subprocess.run(
            [sys.executable, "-m", "spillway.lab.verdict", str(self.directory)],
            capture_output=True,
            text=True,
            check=False,
        )
        if not done.stdout.strip():
            raise LabError(f"there is no verdict: {done.stderr.strip()[-300:]}")
        return done.returncode, json.loads(done.stdout)

    # -- small things -----------------------------------------------------------------------------------------

    def administer(self, broker: Broker, work: Callable[[Any], None]) -> None:
        from azure.servicebus.management import ServiceBusAdministrationClient

        with ServiceBusAdministrationClient.from_connection_string(
            broker.connection_string, connection_verify=broker.ca_file
        ) as client:
            work(client)

    def _enter(self, phase: str) -> None:
        self.phase = phase
        self.progress(phase, self.tail.counts)

    def _until(self, what: str, count: int) -> None:
        deadline_s = time.monotonic() + SETTLE_S
        last = -1
        while True:
            counts = self._look()
            if counts[what] >= count:
                return
            if counts[what] != last:
                last, deadline_s = counts[what], time.monotonic() + SETTLE_S
            if time.monotonic() > deadline_s:
                raise LabError(f"nothing more was {what} for {SETTLE_S:g} s ({last} of {count})")
            self._check_clients()
            if self.phase.startswith("outage"):
                self.scenario.watch(self)
            time.sleep(LOOK_S)

    def _for(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            self._look()
            self.scenario.watch(self)
            time.sleep(LOOK_S)

    def _look(self) -> dict[str, int]:
        counts = self.tail.update()
        self.progress(self.phase, counts)
        return counts

    def _check_clients(self) -> None:
        for client in self.clients:
            if not client.is_running:
                raise LabError(f"{client.name} ended before its time: {client.last_words()}")
