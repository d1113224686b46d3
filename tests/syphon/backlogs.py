"""Backlog queues with messages in them, as a paired sender leaves them, for tests of what brings them home."""

import asyncio
from collections.abc import Sequence
from typing import Any

from spillway.client import BATCH_FORMAT, OutgoingMessage, connect, encode_batch_raw
from spillway.client.control import ControlClient
from spillway.paired.backlog import backlog_path, backlog_properties
from tests.paired.namespaces import Namespaces
from tests.tools.broker_process import BrokerProcess


class Backlog:
    """The backlog queues of a pairing whose primary has a name of its own, and destinations with duplicate windows."""

    def __init__(self, namespaces: Namespaces, queues: int = 1, lock: str = "PT1M", name: str | None = None) -> None:
        self.namespaces = namespaces
        self.name = name or namespaces.unique_name()
        self.paths = [backlog_path(self.name, index) for index in range(queues)]
        with namespaces.administration(namespaces.secondary) as administration:
            for path in self.paths:
                administration.create_queue(path, **{**backlog_properties(), "lock_duration": lock})

    def destination(self, **properties: Any) -> str:
        return self.namespaces.queue(requires_duplicate_detection=True, **properties)

    def fill(self, destination: str, count: int, prefix: str = "m", size_bytes: int = 200) -> list[str]:
        """Messages for one destination, spread over the backlog queues. Returns their ids."""
        ids = [f"{prefix}{number}" for number in range(count)]
        messages = [
            OutgoingMessage(
                b"%08d" % number + b"." * size_bytes,
                message_id=id_,
                application_properties={"x-ms-path": destination, "number": number},
            )
            for number, id_ in enumerate(ids)
        ]
        self.put(messages)
        return ids

    def put(self, messages: Sequence[OutgoingMessage]) -> None:
        asyncio.run(self._put(messages))

    async def _put(self, messages: Sequence[OutgoingMessage]) -> None:
        async with await connect(self.namespaces.secondary.connection_string) as connection:
            for index, path in enumerate(self.paths):
                sender = await connection.sender(path)
                encoded = [message.encode() for message in messages[index :: len(self.paths)]]
                for at in range(0, len(encoded), 500):
                    await sender.send_raw(encode_batch_raw(encoded[at : at + 500]), BATCH_FORMAT)

    def left(self) -> int:
        """Messages in the backlog, locked ones too."""
        found = asyncio.run(self._left())
        return sum(found)

    async def _left(self) -> list[int]:
        secondary = self.namespaces.secondary
        return [len(await self.namespaces.peek(secondary, path)) for path in self.paths]

    def advance(self, seconds: float) -> None:
        """It is later on the secondary now: locks that nobody holds any more have ended."""
        ControlClient(self.namespaces.secondary.connection_string).ask("POST", "clock", {"advance_s": seconds})

    def ids_at(self, destination: str, broker: BrokerProcess | None = None) -> list[str]:
        """The ids of all messages of an entity of the primary, in its order."""
        found = asyncio.run(self.namespaces.peek(broker or self.namespaces.primary, destination))
        return [str(message.message_id) for message in found]
