"""A client of its own process that does a little of everything and writes down what it did: the ledger must agree.

    python -m tests.tools.metered_client_process own --connection-string … --name a --history a.jsonl --operations 9000

`own` uses our own client with much in flight: sends, batches, pre-settled sends, pings, receiving in both modes, all
settlements over links and by lock token, renewals, browsing, scheduling and cancelling. `sdk` uses the official SDK for
message sessions. It ends by itself after so many operations, or when its connection breaks: nothing is tried again, so
that what was asked and never answered is known by name.

Every message id ends with the size of the encoded message, so whoever sees it knows its bytes.
"""

import argparse
import asyncio
import itertools
import json
import logging
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from spillway.client import (
    ABANDONED,
    COMPLETED,
    DEAD_LETTERED,
    DEFERRED,
    RECEIVE_AND_DELETE,
    ClientError,
    Connection,
    Management,
    OutgoingMessage,
    ReceivedMessage,
    Receiver,
    Sender,
    connect,
)

WORK, GONE, LATER, TALKS = "work", "gone", "later", "talks"
EMPTY = f"{LATER}/$DeadLetterQueue"
PING = "application/vnd.ms-servicebus-ping"
SIZE_DIGITS = 6
EDGES = (65_535, 65_536, 65_537, 131_072, 131_073, 196_609, 204_800)  # of a whole message: where units change
LARGE_ONE_OF = 80
BODY_BYTES_MAX = 1_500
BATCH_MAX = 20
IN_FLIGHT = 40
DELIVERIES_MAX = 4  # abandoned no more often: the tenth time would move it
PACE_S = 0.01
WAIT_S = 0.5
HOUR_MS = 3_600_000
BATCH_BYTES_MAX = 200_000

Item = tuple[str, int]  # message id, bytes


def size_of(message_id: str) -> int:
    return int(message_id[-SIZE_DIGITS:])


class Diary:
    """What was asked, and what is known to have been done. One JSON line each, written as it happens."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)
        self._numbers = itertools.count(1)
        self.operations = 0

    def ask(self, kind: str, entity: str, items: list[Item], **more: Any) -> int:
        number = next(self._numbers)
        self._write({"n": number, "asked": kind, "entity": entity, "items": items, **more})
        return number

    def answer(self, number: int, operations: int) -> None:
        self._write({"n": number})
        self.operations += operations

    def did(self, kind: str, entity: str, items: list[Item], **more: Any) -> None:
        """Both in one: what was done is known by what came of it."""
        self.answer(self.ask(kind, entity, items, **more), max(1, len(items)))

    def close(self) -> None:
        self._file.close()

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps({**line, "ns": time.monotonic_ns()}) + "\n")


class Worker:
    def __init__(self, chosen: argparse.Namespace) -> None:
        self.name = chosen.name
        self.budget = chosen.operations
        self.diary = Diary(Path(chosen.history))
        self.dice = random.Random(chosen.name)
        self.count = 0
        self.is_broken = False

    @property
    def is_over(self) -> bool:
        return self.is_broken or 0 < self.budget <= self.diary.operations

    # -- messages --------------------------------------------------------------------------------------------------

    def make(self, **more: Any) -> tuple[Item, OutgoingMessage]:
        """A message of some size, mostly small, sometimes right at the edge of a unit."""
        if self.dice.randrange(LARGE_ONE_OF) > 0:
            return self.make_sized(self.dice.choice((1, self.dice.randint(1, BODY_BYTES_MAX))), **more)
        overhead = len(self._message(0, 1_000, **more).encode()) - 1_000
        return self.make_sized(self.dice.choice(EDGES) - overhead, **more)

    def make_sized(self, body_bytes: int, **more: Any) -> tuple[Item, OutgoingMessage]:
        self.count += 1
        size = len(self._message(0, body_bytes, **more).encode())
        return (self._id(size), size), self._message(size, body_bytes, **more)

    def _id(self, size: int) -> str:
        return f"{self.name}-{self.count}-{size:0{SIZE_DIGITS}}"

    def _message(self, size: int, body_bytes: int, **more: Any) -> OutgoingMessage:
        return OutgoingMessage(b"x" * body_bytes, message_id=self._id(size), **more)

    # -- roles -----------------------------------------------------------------------------------------------------

    async def run(self, connection_string: str) -> None:
        roles = (self.send, self.receive, self.schedule, self.delete, self.browse, self.wait_in_vain)
        await asyncio.gather(*[self.play(role, connection_string) for role in roles])

    async def play(self, role: Callable[[Connection], Awaitable[None]], connection_string: str) -> None:
        """On a connection of its own, until the budget is used up or the connection breaks."""
        try:
            async with await connect(connection_string) as connection:
                await role(connection)
        except (ClientError, OSError) as error:
            logging.info("%s: %r", self.name, error)
            self.is_broken = True  # the others will see it soon

    async def send(self, connection: Connection) -> None:
        sender = await connection.sender(WORK)
        careless = await connection.sender(WORK, presettled=True)
        under_way: set[asyncio.Task[None]] = set()
        try:
            while not self.is_over:
                while len(under_way) < IN_FLIGHT:
                    under_way.add(asyncio.create_task(self.send_some(sender, careless)))
                done, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            await asyncio.gather(*under_way, return_exceptions=True)
        await careless.close()

    async def send_some(self, sender: Sender, careless: Sender) -> None:
        what = self.dice.random()
        if what < 0.3:
            await self.send_batch(sender)
        elif what < 0.8:
            item, message = self.make()
            number = self.diary.ask("send", WORK, [item])
            await sender.send(message)
            self.diary.answer(number, 1)
        elif what < 0.9:
            item, message = self.make()
            self.diary.ask("send", WORK, [item], is_settled=True)
            await careless.send(message)
            self.diary.operations += 1
        else:
            item, message = self.make_sized(0, content_type=PING, time_to_live_ms=1_000)
            number = self.diary.ask("ping", WORK, [item])
            await sender.send(message)
            self.diary.answer(number, 1)

    async def send_batch(self, sender: Sender) -> None:
        items: list[Item] = []
        messages: list[OutgoingMessage] = []
        for _ in range(self.dice.randint(2, BATCH_MAX)):
            item, message = self.make()
            if sum(size for _, size in items) + item[1] < BATCH_BYTES_MAX:
                items.append(item)
                messages.append(message)
        if messages:
            number = self.diary.ask("send", WORK, items)
            await sender.send_batch(messages)
            self.diary.answer(number, len(items))

    async def receive(self, connection: Connection) -> None:
        receiver = await connection.receiver(WORK)
        management = connection.management(WORK)
        deferred: dict[int, str] = {}
        while not self.is_over:
            messages = await receiver.receive(max_count=100, max_wait=WAIT_S)
            self.note_received(WORK, messages)
            if self.dice.random() < 0.2 and messages:
                await self.renew(management, messages[:10])
            by_token = [message for message in messages if self.dice.random() < 0.3]
            over_link = [message for message in messages if message not in by_token]
            await all_of([self.settle(receiver, message, deferred) for message in over_link])
            await self.settle_by_token(management, by_token, deferred)
            if len(deferred) > 20:
                await self.take_deferred(management, deferred)

    def note_received(self, entity: str, messages: list[ReceivedMessage]) -> None:
        items = [(str(message.message_id), size_of(str(message.message_id))) for message in messages]
        self.diary.did("receive" if items else "empty_receive", entity, items)

    def settlement_of(self, message: ReceivedMessage) -> str:
        what = self.dice.random()
        if what < 0.15 and message.delivery_count < DELIVERIES_MAX:
            return ABANDONED
        if what < 0.3:
            return DEFERRED
        return DEAD_LETTERED if what < 0.45 else COMPLETED

    async def settle(self, receiver: Receiver, message: ReceivedMessage, deferred: dict[int, str]) -> None:
        settlement = self.settlement_of(message)
        number = self.ask_settlement([message], settlement)
        if settlement == ABANDONED:
            await receiver.abandon(message)
        elif settlement == DEFERRED:
            await receiver.defer(message)
        elif settlement == DEAD_LETTERED:
            await receiver.dead_letter(message, "because")
        else:
            await receiver.complete(message)
        self.diary.answer(number, 1)
        self.keep_deferred([message], settlement, deferred)

    def ask_settlement(self, messages: list[ReceivedMessage], settlement: str) -> int:
        items = [(str(message.message_id), 0) for message in messages]
        return self.diary.ask("settle", WORK, items, settlement=settlement)

    def keep_deferred(self, messages: list[ReceivedMessage], settlement: str, deferred: dict[int, str]) -> None:
        if settlement == DEFERRED:
            for message in messages:
                assert message.sequence_number is not None
                deferred[message.sequence_number] = str(message.message_id)

    async def settle_by_token(
        self, management: Management, messages: list[ReceivedMessage], deferred: dict[int, str]
    ) -> None:
        groups: dict[str, list[ReceivedMessage]] = {}
        for message in messages:
            groups.setdefault(self.settlement_of(message), []).append(message)
        for settlement, group in groups.items():
            number = self.ask_settlement(group, settlement)
            await management.settle([message.lock_token for message in group if message.lock_token], settlement)
            self.diary.answer(number, len(group))
            self.keep_deferred(group, settlement, deferred)

    async def take_deferred(self, management: Management, deferred: dict[int, str]) -> None:
        numbers = list(deferred)[:10]
        messages = await management.receive_deferred(numbers)
        self.note_received(WORK, messages)
        number = self.ask_settlement(messages, COMPLETED)
        await management.settle([message.lock_token for message in messages if message.lock_token])
        self.diary.answer(number, len(messages))
        for sequence_number in numbers:
            del deferred[sequence_number]

    async def renew(self, management: Management, messages: list[ReceivedMessage]) -> None:
        tokens = [message.lock_token for message in messages if message.lock_token]
        number = self.diary.ask("renew", WORK, [(str(message.message_id), 0) for message in messages])
        await management.renew_locks(tokens)
        self.diary.answer(number, len(tokens))

    async def schedule(self, connection: Connection) -> None:
        management = connection.management(LATER)
        when_ms = int(time.time() * 1000) + HOUR_MS
        while not self.is_over:
            made = [self.make(scheduled_enqueue_time_ms=when_ms) for _ in range(self.dice.randint(1, 3))]
            items = [item for item, _ in made]
            number = self.diary.ask("schedule", LATER, items)
            sequence_numbers = await management.schedule([message for _, message in made])
            self.diary.answer(number, len(items))
            if self.dice.random() < 0.5:
                number = self.diary.ask("cancel", LATER, [(item[0], 0) for item in items])
                await management.cancel(sequence_numbers)
                self.diary.answer(number, len(items))
            await asyncio.sleep(PACE_S)

    async def delete(self, connection: Connection) -> None:
        receiver = await connection.receiver(GONE, mode=RECEIVE_AND_DELETE)
        while not self.is_over:
            self.note_received(GONE, await receiver.receive(max_count=20, max_wait=WAIT_S))
            await asyncio.sleep(PACE_S)

    async def wait_in_vain(self, connection: Connection) -> None:
        receiver = await connection.receiver(EMPTY)
        while not self.is_over:
            self.note_received(EMPTY, await receiver.receive(max_count=5, max_wait=2 * PACE_S))

    async def browse(self, connection: Connection) -> None:
        management = connection.management(WORK)
        while not self.is_over:
            messages = await management.peek(self.dice.randint(0, 2_000), 10)
            items = [(str(message.message_id), size_of(str(message.message_id))) for message in messages]
            self.diary.did("peek", WORK, items)
            await asyncio.sleep(PACE_S)


async def all_of(settling: list[Awaitable[None]]) -> None:
    """Every one to its end, then the first failure."""
    for outcome in await asyncio.gather(*settling, return_exceptions=True):
        if outcome is not None:
            raise outcome


class SdkWorker(Worker):
    """Message sessions with the official SDK: send, accept, state, receive, complete, renew."""

    def work(self, connection_string: str) -> None:
        from azure.servicebus import ServiceBusClient
        from azure.servicebus.exceptions import ServiceBusError

        logging.getLogger("azure").setLevel(logging.CRITICAL)
        try:
            with (
                ServiceBusClient.from_connection_string(connection_string, retry_total=0) as client,
                client.get_queue_sender(TALKS) as sender,
            ):
                while not self.is_over:
                    self.talk(client, sender)
        except (ServiceBusError, OSError, ValueError) as error:
            logging.info("%s: %r", self.name, error)

    def talk(self, client: Any, sender: Any) -> None:
        from azure.servicebus import ServiceBusMessage

        session_id = f"{self.name}-{self.count}"
        ids = []
        for _ in range(3):
            self.count += 1
            ids.append(self._id(0))
        number = self.diary.ask("send", TALKS, [(one, 0) for one in ids])
        sender.send_messages([ServiceBusMessage("hello", message_id=one, session_id=session_id) for one in ids])
        self.diary.answer(number, 3)
        receiver = client.get_queue_receiver(TALKS, session_id=session_id)
        receiver.__enter__()
        self.diary.did("session", TALKS, [(session_id, 0)])
        for state in (b"x" * 70_000, b"short"):
            receiver.session.set_state(state)
            self.diary.did("session", TALKS, [(session_id, len(state))])
            receiver.session.get_state()
            self.diary.did("session", TALKS, [(session_id, len(state))])
        receiver.session.renew_lock()
        self.diary.did("renew", TALKS, [(session_id, 0)])
        left = 3
        while left:
            messages = receiver.receive_messages(max_message_count=left, max_wait_time=5)
            self.diary.did(
                "receive" if messages else "empty_receive", TALKS, [(str(each.message_id), 0) for each in messages]
            )
            for message in messages:
                number = self.diary.ask("settle", TALKS, [(str(message.message_id), 0)], settlement=COMPLETED)
                receiver.complete_message(message)
                self.diary.answer(number, 1)
            left -= len(messages)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["own", "sdk"])
    parser.add_argument("--connection-string", required=True)
    parser.add_argument("--name", required=True, help="unique: message ids begin with it")
    parser.add_argument("--history", required=True, metavar="FILE")
    parser.add_argument("--operations", type=int, default=0, help="end after so many; 0: when the connection breaks")
    chosen = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    if chosen.kind == "sdk":
        SdkWorker(chosen).work(chosen.connection_string)
    else:
        asyncio.run(Worker(chosen).run(chosen.connection_string))


if __name__ == "__main__":
    main()
