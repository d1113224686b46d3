"""Like `client_process`, on our own client with many sends and completions in flight: large group commits to kill.

Same command line, same history, same end.
"""

import argparse
import asyncio
import logging
import random
import time
from collections.abc import Iterable
from pathlib import Path

from spillway.client import ClientError, Connection, OutgoingMessage, ReceivedMessage, Receiver, Sender, connect
from tests.tools.client_process import ABANDON_ONE_OF, PAUSE_AFTER_FAILURE_S, SIZE_BYTES_MAX, arguments, must_stop
from tests.tools.history import HistoryWriter, body_of

IN_FLIGHT = 300
LAST_OUTCOMES_S = 30.0


class PipelinedSender:
    """Keeps the window full; every message has an outcome of its own."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self.name = chosen.name
        self.queue = chosen.queue
        self.history = HistoryWriter(Path(chosen.history))
        self.random = random.Random(chosen.name)
        self.count = 0
        self.resends = chosen.resend
        self.doubtful: dict[str, None] = {}  # sent, and not answered

    async def work(self, connection: Connection, opened_ns: int) -> bool:
        sender = await connection.sender(self.queue)
        again = list(self.doubtful) if self.resends else []
        under_way: set[asyncio.Task[None]] = set()
        try:
            while again or under_way or not must_stop():
                while len(under_way) < IN_FLIGHT and (again or not must_stop()):
                    under_way.add(asyncio.create_task(self._send_one(sender, again.pop() if again else "")))
                done, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
                await _all_of(done)
            return True
        finally:
            await asyncio.wait_for(asyncio.gather(*under_way, return_exceptions=True), LAST_OUTCOMES_S)

    async def _send_one(self, sender: Sender, message_id: str) -> None:
        """This one again, or a new one."""
        if not message_id:
            self.count += 1
            message_id = f"{self.name}-{self.count}-{self.random.randint(1, SIZE_BYTES_MAX)}"
        self.doubtful[message_id] = None
        body = body_of(message_id, int(message_id.rsplit("-", 1)[1]))
        self.history.note("sending", [message_id])
        await sender.send(OutgoingMessage(body, message_id=message_id))
        del self.doubtful[message_id]
        self.history.note("sent", [message_id])


class PipelinedReceiver:
    """Receives by the hundred and completes them side by side."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        self.name = chosen.name
        self.queue = chosen.queue + ("/$DeadLetterQueue" if chosen.dead_letters else "")
        self.is_drain = chosen.drain
        self.history = HistoryWriter(Path(chosen.history))
        self.random = random.Random(chosen.name)

    async def work(self, connection: Connection, opened_ns: int) -> bool:
        receiver = await connection.receiver(self.queue)
        while not must_stop():
            messages = await receiver.receive(max_count=IN_FLIGHT, max_wait=2)
            if not messages and self.is_drain:
                return True
            for message in messages:
                self._note_received(message, opened_ns)
            await _all_of([asyncio.create_task(self._settle_one(receiver, message)) for message in messages])
        return True

    def _note_received(self, message: ReceivedMessage, opened_ns: int) -> None:
        message_id = str(message.message_id)
        self.history.note(
            "received",
            [message_id],
            client=self.name,
            queue=self.queue,
            opened_ns=opened_ns,
            sequence_number=message.sequence_number,
            intact=message.body == body_of(message_id, int(message_id.rsplit("-", 1)[1])),
        )

    async def _settle_one(self, receiver: Receiver, message: ReceivedMessage) -> None:
        message_id = str(message.message_id)
        if not self.is_drain and self.random.randrange(ABANDON_ONE_OF) == 0:
            await receiver.abandon(message)
            return
        self.history.note("completing", [message_id])
        await receiver.complete(message)
        self.history.note("completed", [message_id], client=self.name)


async def _all_of(tasks: Iterable["asyncio.Task[None]"]) -> None:
    """Let every one of them come to its end, then raise what the first failure was."""
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    for outcome in outcomes:
        if outcome is not None:
            raise outcome


async def run(worker: PipelinedSender | PipelinedReceiver, connection_string: str) -> None:
    """A connection that fails is given up, and a new one is made. Who resends ends when nothing is in doubt."""
    while not must_stop() or (isinstance(worker, PipelinedSender) and worker.resends and worker.doubtful):
        opened_ns = time.monotonic_ns()
        try:
            async with await connect(connection_string) as connection:
                if await worker.work(connection, opened_ns):
                    return
        except (ClientError, OSError) as error:
            logging.info("%s: %r", worker.name, error)
            await asyncio.sleep(PAUSE_AFTER_FAILURE_S)


def main() -> None:
    chosen = arguments(__doc__ or "")
    logging.basicConfig(level=logging.WARNING)
    worker = PipelinedSender(chosen) if chosen.role == "send" else PipelinedReceiver(chosen)
    asyncio.run(run(worker, chosen.connection_string))


if __name__ == "__main__":
    main()
