"""A primary and a secondary namespace, each a broker process of its own, and what tests do with them."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

from azure.servicebus.management import ServiceBusAdministrationClient

from spillway.client import ReceivedMessage, connect
from spillway.client.faults import Fault, RemoteFaults
from spillway.model.access import LISTEN, SEND
from spillway.paired import MessagingFactory, NamespaceManager, SendAvailabilityPairedNamespaceOptions
from spillway.server.keys import new_rule, write_rules
from tests.tools.broker_process import BrokerProcess


async def eventually(holds: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Other processes take real time: look again until it is so."""
    async with asyncio.timeout(timeout_s):
        while not holds():  # noqa: ASYNC110 - nobody tells us
            await asyncio.sleep(0.02)


class Closable(Protocol):
    async def close(self) -> None: ...


async def close_all(*closables: Closable) -> None:
    """At the same time: each says goodbye to somebody else."""
    await asyncio.gather(*(each.close() for each in closables))


class Pair:
    """Two factories that are paired, inside one event loop."""

    def __init__(
        self,
        primary: MessagingFactory,
        secondary: MessagingFactory,
        manager: NamespaceManager,
        options: SendAvailabilityPairedNamespaceOptions,
    ) -> None:
        self.primary = primary
        self.secondary = secondary
        self.manager = manager
        self.options = options

    async def until(self, event: str, count: int = 1, timeout_s: float = 30.0) -> None:
        """Wait until the library has told of it so often."""
        told = asyncio.Event()

        def look(_: object = None) -> None:
            if self.primary.counters[event] >= count:
                told.set()

        self.primary.on_event(look)
        look()
        async with asyncio.timeout(timeout_s):
            await told.wait()

    def backlog_path(self, index: int) -> str:
        return f"{self.primary.namespace_name}/x-servicebus-transfer/{index}"


RULES = {"sends": SEND, "listens": LISTEN, "both": SEND | LISTEN}
# Without it the SDK waits up to a second when a sender is closed.
NO_KEEP_ALIVE: dict[str, Any] = {"keep_alive": 0}


class Namespaces:
    def __init__(self, directory: Path) -> None:
        self.primary = BrokerProcess(directory / "primary")
        self.secondary = BrokerProcess(directory / "secondary")
        (directory / "secondary").mkdir()
        self._rules = [new_rule(name, rights) for name, rights in RULES.items()]
        write_rules(directory / "secondary", self._rules)
        for broker in (self.primary, self.secondary):
            broker.spawn()
        for broker in (self.primary, self.secondary):
            broker.wait_ready()
        self._names = itertools.count(1)

    def close(self) -> None:
        for broker in (self.primary, self.secondary):
            broker.close()

    def administration(self, broker: BrokerProcess) -> ServiceBusAdministrationClient:
        return ServiceBusAdministrationClient.from_connection_string(
            broker.connection_string, connection_verify=broker.ca_file
        )

    def queue(self, broker: BrokerProcess | None = None, **properties: Any) -> str:
        """A queue that no other test uses, on the primary."""
        name = f"q{next(self._names)}"
        with self.administration(broker or self.primary) as client:
            client.create_queue(name, **properties)
        return name

    def topic(self, *subscriptions: str) -> str:
        name = f"t{next(self._names)}"
        with self.administration(self.primary) as client:
            client.create_topic(name)
            for subscription in subscriptions:
                client.create_subscription(name, subscription)
        return name

    def unique_name(self) -> str:
        """For `namespace_name`: backlog queues that no other test uses."""
        return f"n{next(self._names)}"

    def primary_factory(self, **options: Any) -> MessagingFactory:
        options.setdefault("operation_timeout", 10.0)
        return MessagingFactory.from_connection_string(self.primary.connection_string, **NO_KEEP_ALIVE, **options)

    def secondary_factory(self, **options: Any) -> MessagingFactory:
        options.setdefault("operation_timeout", 10.0)
        return MessagingFactory.from_connection_string(self.secondary.connection_string, **NO_KEEP_ALIVE, **options)

    def manager(self) -> NamespaceManager:
        return NamespaceManager.from_connection_string(self.secondary.connection_string, ca_file=self.secondary.ca_file)

    def secondary_with(self, rule: str, key: str | None = None) -> str:
        """A connection string of the secondary with one of `RULES`, or with a key that is none of its own."""
        (found,) = [each for each in self._rules if each.name == rule]
        at = f"Endpoint=sb://localhost:{self.secondary.port};SharedAccessKeyName={rule}"
        return f"{at};SharedAccessKey={key or found.primary_key};UseDevelopmentEmulator=true;"

    def refuse(self, path: str, kind: str = "quota", broker: BrokerProcess | None = None) -> RemoteFaults:
        """From now on sends to this entity fail, until `clear` is called on the answer."""
        faults = RemoteFaults((broker or self.primary).connection_string)
        faults.add(Fault(kind, path, ["send"]))
        return faults

    @contextlib.asynccontextmanager
    async def paired(
        self,
        backlog_queue_count: int = 1,
        failover_interval_s: float = 0.0,
        enable_syphon: bool = False,
        operation_timeout: float = 10.0,
        ping_s: float = 1.0,
        namespace_name: str | None = None,
        **options: Any,
    ) -> AsyncIterator[Pair]:
        """Quick: fails over at once, pings every second."""
        name = namespace_name or self.unique_name()
        primary = self.primary_factory(namespace_name=name, operation_timeout=operation_timeout)
        secondary = self.secondary_factory(operation_timeout=operation_timeout)
        manager = self.manager()
        chosen = SendAvailabilityPairedNamespaceOptions(
            manager,
            secondary,
            backlog_queue_count,
            timedelta(seconds=failover_interval_s),
            enable_syphon,
            ping_primary_interval=timedelta(seconds=ping_s),
            syphon_long_poll=timedelta(seconds=1),
            **options,
        )
        try:
            await primary.pair_namespace(chosen)
            yield Pair(primary, secondary, manager, chosen)
        finally:
            await close_all(primary, secondary, manager)

    async def bodies(self, broker: BrokerProcess, path: str) -> list[str]:
        return [message.body.decode() for message in await self.peek(broker, path)]

    async def until_bodies(self, broker: BrokerProcess, path: str, bodies: list[str], timeout_s: float = 30.0) -> None:
        """Wait until these, and only these, are there."""
        async with asyncio.timeout(timeout_s):
            while sorted(await self.bodies(broker, path)) != sorted(bodies):  # noqa: ASYNC110
                await asyncio.sleep(0.1)

    async def peek(self, broker: BrokerProcess, path: str, first: int = 0) -> list[ReceivedMessage]:
        """All messages of a queue from that number on, byte for byte."""
        found: list[ReceivedMessage] = []
        async with await connect(broker.connection_string) as connection:
            while messages := await connection.management(path).peek(first, 500):
                found += messages
                first = (messages[-1].sequence_number or 0) + 1
        return found
