"""What these tests do with a namespace besides Spark: fill queues, look into them."""

import asyncio
import base64
import contextlib
import itertools
import re
from collections.abc import Coroutine, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

from azure.servicebus.management import AuthorizationRule

from spillway.client import OutgoingMessage, ReceivedMessage, connect
from tests.paired.namespaces import Namespaces
from tests.tools.broker_process import BrokerProcess

T = TypeVar("T")
_numbers = itertools.count(1)


class Bus:
    """One namespace, of a broker in a process of its own."""

    def __init__(self, namespaces: Namespaces, broker: BrokerProcess) -> None:
        self.namespaces = namespaces
        self.broker = broker

    @property
    def options(self) -> dict[str, str]:
        """How to reach it."""
        return {"connectionString": self.broker.connection_string}

    def queue(self, *bodies: str | bytes, lock_s: float | None = None, **properties: Any) -> str:
        """A queue that no other test uses, with these messages in it."""
        if lock_s is not None:
            properties["lock_duration"] = timedelta(seconds=lock_s)
        name = self.namespaces.queue(self.broker, **properties)
        if bodies:
            self.send(name, [OutgoingMessage(body, message_id=f"m{index}") for index, body in enumerate(bodies)])
        return name

    def named_queue(self, name: str) -> str:
        with self.namespaces.administration(self.broker) as client:
            client.create_queue(name)
        return name

    def topic(self, *subscriptions: str) -> str:
        name = f"spark-topic-{next(_numbers)}"
        with self.namespaces.administration(self.broker) as client:
            client.create_topic(name)
            for subscription in subscriptions:
                client.create_subscription(name, subscription)
        return name

    def send(self, path: str, messages: Sequence[OutgoingMessage]) -> None:
        async def work() -> None:
            async with await connect(self.broker.connection_string) as connection:
                sender = await connection.sender(path)
                posted = []
                for message in messages:
                    await sender.ready()
                    posted.append(sender.post(message))
                await asyncio.gather(*posted)

        run(work())

    def peek(self, path: str) -> list[ReceivedMessage]:
        return run(self.namespaces.peek(self.broker, path))

    def bodies(self, path: str) -> list[str]:
        return [message.body.decode() for message in self.peek(path)]

    def dead_letter(self, path: str, reason: str, description: str = "why") -> None:
        """Every message of a queue."""

        async def work() -> None:
            async with await connect(self.broker.connection_string) as connection:
                receiver = await connection.receiver(path)
                while messages := await receiver.receive(100, 0.2):
                    await asyncio.gather(*[receiver.dead_letter(message, reason, description) for message in messages])

        run(work())

    def key(self, path: str, rights: Sequence[str]) -> str:
        """A connection string with a rule of the queue's own, which has these rights."""
        key = base64.b64encode(b"a key for a rule of its own, 32 b").decode()
        rule = AuthorizationRule(
            type="SharedAccessAuthorizationRule",
            claim_type="SharedAccessKey",
            claim_value="None",
            rights=list(rights),
            key_name="limited",
            primary_key=key,
            secondary_key=key,
        )
        with self.namespaces.administration(self.broker) as client:
            found = client.get_queue(path)
            found.authorization_rules = [rule]
            client.update_queue(found)
        text = self.broker.connection_string
        text = re.sub("SharedAccessKeyName=[^;]+", "SharedAccessKeyName=limited", text)
        return re.sub("SharedAccessKey=[^;]+", f"SharedAccessKey={key}", text)

    @contextlib.contextmanager
    def locked_by_another(self, path: str, count: int) -> Iterator[list[ReceivedMessage]]:
        """The first messages of a queue are in the lock of somebody else meanwhile."""
        loop = asyncio.new_event_loop()
        try:
            connection = loop.run_until_complete(connect(self.broker.connection_string))
            receiver = loop.run_until_complete(connection.receiver(path))
            held = loop.run_until_complete(receiver.receive(count, 5.0))
            yield held
            for message in held:
                receiver.release(message)
            loop.run_until_complete(connection.close())
        finally:
            loop.close()


def run(work: Coroutine[Any, Any, T]) -> T:
    """On a loop of its own: pytest's may be running."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()
