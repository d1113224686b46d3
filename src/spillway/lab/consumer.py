"""A consumer of the lab: a process that receives from the primary with the bare SDK and writes down what it got.

    python -m spillway.lab.consumer SPEC.json

It knows nothing of pairing: receiving is from the primary alone. When the primary is away it tries again. Its receivers
have a connection each, since the SDK's are not made for several coroutines.
"""

import asyncio
import contextlib
import datetime
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver

from spillway.lab.histories import COMPLETED, DELIVERED, INFO, OK, History, now_ns
from spillway.lab.messages import digest, identity_of

BATCH: Final = 50
WAIT_S: Final = 1.0
STUCK_S: Final = 15.0  # a receive on a frozen primary is given up, and a new connection made
# A new client costs the SDK 50 ms of CPU: those that wait for the primary must not starve those that work.
AGAIN_S: Final = 0.5
AGAIN_S_MAX: Final = 2.0
CLOSE_S: Final = 5.0


class Consumer:
    def __init__(self, spec: dict[str, Any], history: History) -> None:
        self.spec = spec
        self.history = history
        self.stopping = asyncio.Event()
        self.lock_s: float = spec["lock_s"]

    async def work(self) -> None:
        """The work of one receiver, on one connection after the other."""
        again_s = AGAIN_S
        while not self.stopping.is_set():
            client = ServiceBusClient.from_connection_string(self.spec["primary"], retry_total=0)
            receiver = client.get_queue_receiver(self.spec["path"])
            with contextlib.suppress(Exception):
                while not self.stopping.is_set():
                    await self.receive(receiver)
                    again_s = AGAIN_S
            for closable in (receiver, client):
                with contextlib.suppress(Exception):
                    async with asyncio.timeout(CLOSE_S):
                        await closable.close()
            if not self.stopping.is_set():
                await asyncio.sleep(again_s)
                again_s = min(again_s * 2, AGAIN_S_MAX)

    async def receive(self, receiver: ServiceBusReceiver) -> None:
        async with asyncio.timeout(STUCK_S):
            messages = await receiver.receive_messages(BATCH, max_wait_time=WAIT_S)
        for message in messages:
            identity, attempt = identity_of(message)
            number = message.sequence_number
            self.history.write(
                DELIVERED,
                id=identity,
                a=attempt,
                h=digest(message),
                seq=number,
                dc=message.delivery_count,
                g=self.locked_at_ns(message),
            )
            try:
                async with asyncio.timeout(STUCK_S):
                    await receiver.complete_message(message)
            except Exception as error:
                self.history.write(COMPLETED, id=identity, seq=number, res=INFO, error=type(error).__name__)
                raise
            self.history.write(COMPLETED, id=identity, seq=number, res=OK)

    def locked_at_ns(self, message: ServiceBusReceivedMessage) -> int:
        """When the broker handed it out, by the clock of the histories: from the end of its lock."""
        until: datetime.datetime | None = message.locked_until_utc
        if until is None:
            return now_ns()
        ago_s = time.time() - (until.timestamp() - self.lock_s)
        return now_ns() - int(ago_s * 1e9)


async def run(spec: dict[str, Any]) -> None:
    consumer = Consumer(spec, History(Path(spec["directory"]), spec["name"]))
    print("ready", flush=True)
    working = [asyncio.create_task(consumer.work()) for _ in range(spec["receivers"])]
    await asyncio.to_thread(sys.stdin.readline)
    consumer.stopping.set()
    await asyncio.gather(*working)


def main() -> None:
    spec = json.loads(Path(sys.argv[1]).read_text())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(BrokenPipeError):
        asyncio.run(run(spec))


if __name__ == "__main__":
    main()
