"""What clients did, by what they wrote down, in the ledger's own terms; and what they cannot know, by what is stored.

A client whose connection broke does not know whether its last requests were granted. The store does: the message is
there or gone, in this state or that. So every such request is decided by the message ids it named, and the ledger must
agree with the sum to the operation, the unit and the byte.
"""

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spillway.client import ABANDONED, COMPLETED, DEAD_LETTERED, OutgoingMessage, connect
from spillway.model.ledger import units_of
from spillway.model.message import DEFERRED
from tests.tools.metered_client_process import GONE, LATER, SIZE_DIGITS, TALKS, WORK, Diary

DEAD = f"{WORK}/$DeadLetterQueue"
WITH_BYTES = ("send", "receive", "peek", "ping", "schedule", "session")
PAGE = 5_000
Counted = dict[tuple[str, str], list[int]]  # (entity, kind): operations, units, bytes


@dataclass
class Request:
    """One entry of a diary."""

    kind: str
    entity: str
    items: list[tuple[str, int]]
    is_answered: bool
    is_settled: bool  # before it was sent: nobody will ever answer
    settlement: str
    asked_ns: int
    answered_ns: int = 0

    def ids(self) -> list[str]:
        return [message_id for message_id, _ in self.items]


@dataclass
class Stored:
    """Every message in the store: by entity and id, its state and how often a delivery of it failed."""

    states: dict[str, dict[str, tuple[int, int]]] = field(default_factory=dict)

    def has(self, entity: str, message_id: str) -> bool:
        return message_id in self.states[entity]


def read(paths: Iterable[Path]) -> list[Request]:
    requests: list[Request] = []
    for path in paths:
        asked: dict[int, Request] = {}
        for line in path.read_text().splitlines():
            entry = json.loads(line)
            if "asked" not in entry:
                asked[entry["n"]].is_answered = True
                asked[entry["n"]].answered_ns = entry["ns"]
                continue
            items = [(message_id, size) for message_id, size in entry["items"]]
            is_settled = entry.get("is_settled", False)
            settlement = entry.get("settlement", "")
            about = (entry["asked"], entry["entity"], items, False, is_settled, settlement, entry["ns"])
            asked[entry["n"]] = Request(*about)
        requests += asked.values()
    return requests


def look(connection_string: str) -> Stored:
    """Browse everything there is, whoever holds it."""
    return asyncio.run(_look(connection_string))


async def _look(connection_string: str) -> Stored:
    stored = Stored()
    async with await connect(connection_string) as connection:
        for entity in (WORK, DEAD, LATER, GONE, TALKS):
            management = connection.management(entity)
            found: dict[str, tuple[int, int]] = {}
            number = 0
            while messages := await management.peek(number, PAGE):
                for message in messages:
                    assert str(message.message_id) not in found, "stored once"
                    found[str(message.message_id)] = (message.state, message.delivery_count)
                    assert message.sequence_number is not None
                    number = message.sequence_number + 1
            stored.states[entity] = found
    return stored


class Verdict:
    """What was granted, of what was asked until the broker was killed."""

    def __init__(self, requests: list[Request], stored: Stored) -> None:
        self.requests = requests
        self.stored = stored
        self.received = {one for request in requests if request.kind == "receive" for one in request.ids()}
        self.unknown = sorted((each for each in requests if not each.is_answered), key=lambda each: each.asked_ns)
        self.abandoned: dict[str, int] = {}  # how often, as far as it was answered
        for request in requests:
            if request.is_answered and request.settlement == ABANDONED:
                for message_id in request.ids():
                    self.abandoned[message_id] = self.abandoned.get(message_id, 0) + 1

    def granted(self) -> list[Request]:
        return [request for request in self.requests if request.is_answered or self._is_granted(request)]

    def _is_granted(self, request: Request) -> bool:
        """All of its messages say so, or none does: a batch is stored whole or not at all."""
        each = {self._is_done(request, message_id) for message_id in request.ids()}
        assert len(each) == 1, (request, "was done by half")
        return each == {True}

    def _is_done(self, request: Request, message_id: str) -> bool:
        has = self.stored.has
        if request.kind == "send":
            in_work = request.entity == WORK and has(DEAD, message_id)
            return has(request.entity, message_id) or in_work or message_id in self.received
        if request.kind == "schedule":
            return has(LATER, message_id)
        if request.kind == "cancel":
            return not has(LATER, message_id)
        if request.kind != "settle":
            return False  # leaves nothing behind, and is not asked about
        if request.settlement == COMPLETED:
            return not has(request.entity, message_id)
        if request.settlement == DEAD_LETTERED:
            return has(DEAD, message_id)
        if request.settlement == ABANDONED:
            return self._is_abandoned(request, message_id)
        return self.stored.states[request.entity][message_id][0] == DEFERRED

    def _is_abandoned(self, request: Request, message_id: str) -> bool:
        """Whoever locks a message can be followed by another only once it has given it up."""
        if not self.stored.has(request.entity, message_id):
            return True  # settled for good since, by another
        failed = self.stored.states[request.entity][message_id][1]
        same = [each for each in self.unknown if each.settlement == ABANDONED and message_id in each.ids()]
        return same.index(request) < failed - self.abandoned.get(message_id, 0)


def count(requests: Iterable[Request]) -> Counted:
    counted: Counted = {}
    for request in requests:
        numbers = counted.setdefault((request.entity, request.kind), [0, 0, 0])
        for _, size in request.items or [("", 0)]:
            numbers[0] += 1
            numbers[1] += units_of(size)
            numbers[2] += size
    return counted


def of_ledger(rows: list[dict[str, Any]]) -> Counted:
    return {(row["entity"], row["kind"]): [row["operations"], row["units"], row["bytes"]] for row in rows}


def minus(counted: Counted, before: Counted) -> Counted:
    left = {
        key: [now - then for now, then in zip(numbers, before.get(key, [0, 0, 0]), strict=True)]
        for key, numbers in counted.items()
    }
    return {key: numbers for key, numbers in left.items() if any(numbers)}


def fill(connection_string: str, entity: str, messages: int, history: Path) -> None:
    """So many small messages, each send answered before the next."""
    diary = Diary(history)

    async def send_all() -> None:
        async with await connect(connection_string) as connection:
            sender = await connection.sender(entity)
            for first in range(0, messages, 100):
                made = []
                for number in range(first, first + 100):
                    size = len(OutgoingMessage(b"x", message_id=f"fill-{number:06}-{0:0{SIZE_DIGITS}}").encode())
                    made.append(OutgoingMessage(b"x", message_id=f"fill-{number:06}-{size:0{SIZE_DIGITS}}"))
                asked = diary.ask("send", entity, [(str(each.message_id), len(each.encode())) for each in made])
                await sender.send_batch(made)
                diary.answer(asked, len(made))

    asyncio.run(send_all())
    diary.close()
