"""A producer of the lab: a process that sends through the paired library and writes down what it was told.

    python -m spillway.lab.producer SPEC.json

It sends each of its messages until the library says that it is safe, like any program that must not lose one.
"""

import asyncio
import contextlib
import itertools
import json
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from spillway.lab.histories import EVENT, FAIL, INFO, OK, SEND, History, now_ns
from spillway.lab.messages import digest, make_message
from spillway.paired import (
    BacklogUnavailableError,
    Event,
    MessageSender,
    MessagingFactory,
    NamespaceManager,
    SendAvailabilityPairedNamespaceOptions,
)

RETRY_S: Final = 0.25
TOLD: Final = ("suspected", "failed-over", "recovered", "entity-failed", "pinged", "diverted", "syphoned",
               "backlog-queue-removed", "backlog-queue-readmitted", "syphon-kept", "syphon-repeated",
               "syphon-dead-lettered", "syphon-interrupted")  # fmt: skip


class ProducerPair:
    """The two factories of a process, from its spec."""

    def __init__(self, spec: dict[str, Any], history: History) -> None:
        self.spec = spec
        self.history = history
        timeout_s = spec["operation_timeout_s"]
        self.primary = MessagingFactory.from_connection_string(spec["primary"], operation_timeout=timeout_s)
        self.secondary = MessagingFactory.from_connection_string(spec["secondary"], operation_timeout=timeout_s)
        self.manager = NamespaceManager.from_connection_string(spec["secondary"], ca_file=spec["secondary_ca_file"])
        self.primary.on_event(self.note)
        self.primary.record_events(spec["events"], process=spec["name"])

    def note(self, event: Event) -> None:
        if event.name in TOLD:
            error = {} if event.error is None else {"error": type(event.error).__name__}
            self.history.write(EVENT, name=event.name, path=event.path, count=event.count, **error)

    async def pair(self, enable_syphon: bool) -> None:
        spec = self.spec
        options = SendAvailabilityPairedNamespaceOptions(
            self.manager,
            self.secondary,
            spec["backlog_queues"],
            timedelta(seconds=spec["interval_s"]),
            enable_syphon,
            ping_primary_interval=timedelta(seconds=spec["ping_s"]),
            pending=spec["pending"],
            backlog_cool_down=timedelta(seconds=spec["cool_down_s"]),
            syphon_long_poll=timedelta(seconds=spec["long_poll_s"]),
        )
        await self.primary.pair_namespace(options)

    async def close(self) -> None:
        await self.primary.close()
        await self.secondary.close()
        await self.manager.close()


class Producer:
    def __init__(self, spec: dict[str, Any], history: History, sender: MessageSender) -> None:
        self.spec = spec
        self.history = history
        self.sender = sender
        self.name: str = spec["name"]
        self.numbers = iter(range(spec["count"]))
        self.interval_s = 1.0 / spec["rate"] if spec["rate"] else 0.0
        self.due_s = asyncio.get_running_loop().time()

    async def work(self) -> None:
        """The work of one of several callers: takes the next number, keeps the pace, sends until it is safe."""
        loop = asyncio.get_running_loop()
        for number in self.numbers:
            # Time that was lost is not made up for: a burst after the outage would be no steady load.
            self.due_s = max(self.due_s + self.interval_s, loop.time() - 1.0)
            if self.due_s > loop.time():
                await asyncio.sleep(self.due_s - loop.time())
            await self.send(number)

    async def send(self, number: int) -> None:
        for attempt in itertools.count():
            message = make_message(self.name, number, attempt, self.spec["size"])
            said = {"t0": now_ns(), "id": f"{self.name}-{number}", "a": attempt, "h": digest(message)}
            if self.spec["break"] == "ack-before-send" and number % 100 == 7:
                # The planted lie: acknowledged, and never sent. The verdict must find it.
                self.history.write(SEND, **said, res=OK)
                return
            try:
                await self.sender.send_messages(message)
            except Exception as error:
                is_unsent = isinstance(error, BacklogUnavailableError) and not error.is_outcome_unknown
                res = FAIL if is_unsent else INFO
                self.history.write(SEND, **said, res=res, error=type(error).__name__)
                await asyncio.sleep(RETRY_S)
            else:
                self.history.write(SEND, **said, res=OK)
                return


async def run(spec: dict[str, Any]) -> None:
    history = History(Path(spec["directory"]), spec["name"])
    paired = ProducerPair(spec, history)
    await paired.pair(enable_syphon=False)
    sender = paired.primary.create_message_sender(spec["path"])
    print("ready", flush=True)
    if await asyncio.to_thread(sys.stdin.readline):  # all begin together; nothing, if the lab has gone
        producer = Producer(spec, history, sender)
        await asyncio.gather(*(producer.work() for _ in range(spec["in_flight"])))
        # It stays until it is told: an entity that is away is pinged as long as somebody waits for it.
        await asyncio.to_thread(sys.stdin.readline)
    await paired.close()


def main() -> None:
    spec = json.loads(Path(sys.argv[1]).read_text())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(BrokenPipeError):
        asyncio.run(run(spec))


if __name__ == "__main__":
    main()
