"""Honest clients: each sends to a queue of its own, receives from it and completes, and keeps a record of all of it.

    python -m tests.hostile.honest CONNECTION_STRING RECORD CLIENTS RATE

A line of the record for every send: when it was due, how many ms until it was answered, and `busy` if it was refused or
`failed` if nobody answered. It ends when stdin does: then what was acknowledged and not yet received is received,
and one JSON line on stdout says the rest.
"""

import asyncio
import contextlib
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Final, TextIO

from spillway.client.connection import connect
from spillway.client.errors import ClientError, ServerBusy
from spillway.client.message import OutgoingMessage
from spillway.client.receiver import Receiver
from spillway.client.sender import Sender

SEND_S: Final = 60.0
EMPTY_S: Final = 3.0


def queue_of(number: int) -> str:
    return f"honest-{number}"


class Honest:
    def __init__(self, number: int, string: str, every_s: float, record: TextIO) -> None:
        self.number = number
        self.string = string
        self.every_s = every_s
        self.record = record
        self.acked: set[str] = set()
        self.completed: set[str] = set()
        self.settling: set[str] = set()  # completed, or perhaps: nobody heard the answer
        self.again: list[str] = []  # received after it was completed
        self.busy = 0
        self.failed: Counter[str] = Counter()  # sends without an answer
        self.errors: list[str] = []
        self.is_over = False
        self.count = 0

    async def run(self) -> None:
        """Through as many connections as it takes; each lost one is an error that is told."""
        while True:
            try:
                async with await connect(self.string, operation_timeout=SEND_S) as client:
                    out = await client.sender(queue_of(self.number))
                    inlet = await client.receiver(queue_of(self.number))
                    receiving = asyncio.create_task(self._receive(inlet))
                    try:
                        await self._send(out)
                        await receiving
                        return
                    finally:
                        receiving.cancel()
                        with contextlib.suppress(asyncio.CancelledError, ClientError):
                            await receiving
            except (ClientError, OSError) as error:
                self.errors.append(f"{type(error).__name__}: {error}"[:200])
                if len(self.errors) > 100:
                    return
                await asyncio.sleep(0.2)

    async def _send(self, out: Sender) -> None:
        due = time.monotonic()
        sends: set[asyncio.Task[None]] = set()
        while not self.is_over:
            self.count += 1
            sends.add(asyncio.create_task(self._send_one(out, f"{self.number}-{self.count}", due)))
            due += self.every_s
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            if out.error is not None:
                raise out.error
            sends = {task for task in sends if not task.done()}
        if sends:
            await asyncio.wait(sends)

    async def _send_one(self, out: Sender, name: str, due: float) -> None:
        try:
            await out.send(OutgoingMessage(name.encode() + b" " * 100, message_id=name), timeout=SEND_S)
        except ServerBusy:
            self.busy += 1
            self.record.write(f"{due} {(time.monotonic() - due) * 1000:.2f} busy\n")
            return
        except ClientError as error:  # not acknowledged; as slow as that
            self.failed[f"{type(error).__name__}: {error}"[:120]] += 1
            self.record.write(f"{due} {(time.monotonic() - due) * 1000:.2f} failed\n")
            return
        self.acked.add(name)
        self.record.write(f"{due} {(time.monotonic() - due) * 1000:.2f}\n")

    async def _receive(self, inlet: Receiver) -> None:
        last = time.monotonic()
        while not self.is_over or self.acked - self.completed or time.monotonic() - last < EMPTY_S:
            for message in await inlet.receive(max_count=50, max_wait=0.5):
                last = time.monotonic()
                name = bytes(message.body).decode().strip()
                if name in self.completed:
                    self.again.append(name)
                self.settling.add(name)
                await inlet.complete(message)
                self.completed.add(name)
            if self.is_over and time.monotonic() - last > 10 * EMPTY_S:
                return


async def run(string: str, path: Path, clients: int, rate: float) -> None:
    with path.open("w", buffering=1) as record:
        honest = [Honest(number, string, 1 / rate, record) for number in range(clients)]
        tasks = [asyncio.create_task(one.run()) for one in honest]
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        for one in honest:
            one.is_over = True
        await asyncio.wait(tasks, timeout=90)
        facts = {
            "acknowledged": sum(len(one.acked) for one in honest),
            "completed": sum(len(one.completed) for one in honest),
            "refused_as_busy": sum(one.busy for one in honest),
            "not_received": sorted(name for one in honest for name in one.acked - one.settling),
            "unsure": sum(len(one.settling - one.completed) for one in honest),
            "came_back": sorted(name for one in honest for name in one.again),
            "failed": dict(sum((one.failed for one in honest), Counter())),
            "errors": [error for one in honest for error in one.errors][:50],
        }
        print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
