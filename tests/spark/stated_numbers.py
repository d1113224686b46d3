"""A queue in memory whose dead letters keep their numbers, or get new ones: both are said of Azure."""

import random
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any

from spillway.amqp.types import Timestamp
from spillway.client import Connection, Management, OutgoingMessage, Unauthorized
from spillway.spark.platform.access import Access
from spillway.spark.platform.connection_pool import ConnectionPool

QUEUE = "orders"
DEAD = "orders/$deadletterqueue"


class StatedNumbers:
    """The numbers of both queues. `name` of a message is the number that it was sent with."""

    def __init__(self, keeps_numbers: bool, is_readable: bool = True) -> None:
        self.keeps_numbers = keeps_numbers
        self.is_readable = is_readable  # the queue itself
        self.queue: set[int] = set()
        self.dead: dict[int, int] = {}  # number among the dead letters -> name
        self.died: list[int] = []
        self.last = 0
        self.requests = 0
        self.meanwhile: Callable[[], None] = lambda: None
        self.enqueued_ms: Callable[[int], int] = lambda name: 1_000_000 + name

    def send(self, count: int) -> None:
        self.queue |= set(range(self.last + 1, self.last + count + 1))
        self.last += count

    def die(self, *names: int) -> None:
        for name in names:
            self.queue.remove(name)
            self.died.append(name)
            self.dead[name if self.keeps_numbers else len(self.died)] = name

    def complete(self, *names: int) -> None:
        self.queue -= set(names)

    def peek(self, path: str, start: int, count: int) -> list[dict[object, object]]:
        self.requests += 1
        self.meanwhile()
        if path == QUEUE and not self.is_readable:
            raise Unauthorized("no", "amqp:unauthorized-access")
        held = self.dead if path == DEAD else self.queue
        numbers = islice((number for number in range(start, self.last + 1) if number in held), count)
        return [{"message": self._encoded(number, self.dead[number] if path == DEAD else number)} for number in numbers]

    def _encoded(self, number: int, name: int) -> bytes:
        annotations = {"x-opt-sequence-number": number, "x-opt-enqueued-time": Timestamp(self.enqueued_ms(name))}
        return OutgoingMessage(str(name), message_id=str(name), annotations=annotations).encode()


class StatedManagement(Management):
    def __init__(self, path: str, numbers: StatedNumbers) -> None:
        self.path = path
        self._numbers = numbers

    async def call(
        self, operation: str, body: Mapping[str, object], timeout: float | None = None
    ) -> dict[object, object]:
        assert operation == "com.microsoft:peek-message"
        start, count = body["from-sequence-number"], body["message-count"]
        assert isinstance(start, int) and isinstance(count, int)
        return {"messages": self._numbers.peek(self.path, start, int(count))}


class StatedPool(ConnectionPool):
    """Ways to this one namespace."""

    def __init__(self, numbers: StatedNumbers) -> None:
        super().__init__()
        self._numbers = numbers
        self._nothing: Any = object()

    async def connection(self, access: Access, purpose: str = "") -> Connection:
        found: Connection = self._nothing
        return found

    def management(self, connection: Connection, entity: str) -> Management:
        return StatedManagement(entity, self._numbers)


def live(numbers: StatedNumbers, chance: random.Random) -> None:
    """Something happens to a queue, or nothing."""
    kind, held = chance.random(), sorted(numbers.queue)
    if kind < 0.3:
        numbers.send(chance.randint(1, 4))
    elif kind < 0.6 and held:
        numbers.die(chance.choice(held))
    elif kind < 0.8 and held:
        numbers.complete(held[0] if chance.random() < 0.7 else chance.choice(held))
