"""`LocalNamespace`: what a test has in its hands."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from spillway.broker.commands import Describe
from spillway.broker.effects import Descriptions
from spillway.client import OutgoingMessage, ReceivedMessage
from spillway.model.entity import QUEUE, SUBSCRIPTION, TOPIC, subscription_path
from spillway.model.faults import Fault
from spillway.model.namespaces import namespace_name_problem
from spillway.model.quotas import Quotas
from spillway.pytest_plugin.certificates import shared_certificates
from spillway.pytest_plugin.faults import LocalFaults
from spillway.pytest_plugin.hosting import HostedNamespace
from spillway.pytest_plugin.log import SWITCHBOARD, NamespaceLog
from spillway.pytest_plugin.messages import outgoing_messages

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusMessage
    from azure.servicebus.aio.management import ServiceBusAdministrationClient as AsyncAdministrationClient
    from azure.servicebus.management import ServiceBusAdministrationClient

    Sendable = OutgoingMessage | str | bytes | Mapping[str, object] | ServiceBusMessage

__all__ = ["Counts", "Fault", "LocalNamespace", "NamespaceFailed"]

DEFAULT_NAME: Final = "local"
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class NamespaceFailed(Exception):
    """The broker itself failed: a fault of Spillway, not of the test."""


@dataclass(frozen=True)
class Counts:
    """Messages of a queue or subscription. Active ones include those that a receiver holds."""

    active: int
    scheduled: int
    deferred: int
    dead_letters: int


class LocalNamespace:
    """A namespace of Service Bus, in memory, on a free port of this machine, while the `with` block lasts.

    Its methods may be called from any thread and from coroutines: they take a millisecond or so, and need nothing of
    the caller's event loop.
    """

    def __init__(self, name: str = DEFAULT_NAME, *, limits: Mapping[str, int] | None = None) -> None:
        """`limits` are those of `spillway serve --limit`: `{"operations-per-second": 5}` throttles."""
        problem = namespace_name_problem(name)
        if problem is not None:
            raise ValueError(f"a namespace's name is {problem}; this one is {name!r}")
        self.name = name
        self._quotas = Quotas()
        for limit, value in (limits or {}).items():
            self._quotas.set(limit, value)
        self._log = NamespaceLog()
        self._numbers = itertools.count(1)
        self._hosted: HostedNamespace | None = None

    def __repr__(self) -> str:
        where = "closed" if self._hosted is None else f"port {self._host.server.port}"
        return f"<LocalNamespace {self.name}, {where}>"

    # -- its life --------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Returns when clients can connect. `with` does it for you."""
        if self._hosted is not None:
            raise RuntimeError(f"the namespace {self.name} is open already")
        hosted = HostedNamespace(self.name, shared_certificates(), quotas=self._quotas)
        hosted.start()
        SWITCHBOARD.open(hosted.thread_id, self._log)
        self._hosted = hosted
        return self

    def close(self) -> None:
        """Ends every connection and forgets every message. `NamespaceFailed` if the broker broke meanwhile."""
        hosted, self._hosted = self._hosted, None
        if hosted is None:
            return
        try:
            hosted.close()
        finally:
            SWITCHBOARD.close_log(hosted.thread_id)
        if hosted.failures:
            raise NamespaceFailed(f"the broker of {self.name} failed: {hosted.failures[0]!r}") from hosted.failures[0]

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def is_open(self) -> bool:
        return self._hosted is not None

    @property
    def _host(self) -> HostedNamespace:
        if self._hosted is None:
            raise RuntimeError(f"the namespace {self.name} is not open: use it in a `with` block")
        return self._hosted

    # -- how to get there ------------------------------------------------------------------------------------------

    @property
    def connection_string(self) -> str:
        """A connection string for `ServiceBusClient.from_connection_string` of any SDK."""
        return self._host.connection_string

    @property
    def port(self) -> int:
        return self._host.server.port

    @property
    def ca_file(self) -> Path:
        """The certificate authority that clients with TLS must trust; administration clients always speak TLS."""
        return self._host.certificates.ca

    def administration(self, **options: Any) -> "ServiceBusAdministrationClient":
        """The SDK's own, to be closed by the caller."""
        from azure.servicebus.management import ServiceBusAdministrationClient

        given = {"connection_verify": str(self.ca_file), **options}
        return ServiceBusAdministrationClient.from_connection_string(self.connection_string, **given)

    def administration_aio(self, **options: Any) -> "AsyncAdministrationClient":
        """The SDK's own for asyncio, to be closed by the caller."""
        from azure.servicebus.aio.management import ServiceBusAdministrationClient

        given = {"connection_verify": str(self.ca_file), **options}
        return ServiceBusAdministrationClient.from_connection_string(self.connection_string, **given)

    # -- entities --------------------------------------------------------------------------------------------------

    def queue(self, name: str | None = None, **settings: Any) -> str:
        """A new queue, and its name. Settings are called as in `create_queue` of the administration client."""
        name = name or f"queue-{next(self._numbers)}"
        self._create(QUEUE, name, settings)
        return name

    def topic(self, name: str | None = None, **settings: Any) -> str:
        """A new topic, and its name. Settings are called as in `create_topic` of the administration client."""
        name = name or f"topic-{next(self._numbers)}"
        self._create(TOPIC, name, settings)
        return name

    def subscription(
        self, topic: str, name: str | None = None, *, sql_filter: str | None = None, **settings: Any
    ) -> str:
        """A new subscription of a topic, and its name. Without a filter it gets every message.

        Settings are called as in `create_subscription` of the administration client. Where an entity is asked for,
        a subscription is `f"{topic}/Subscriptions/{name}"`.
        """
        name = name or f"subscription-{next(self._numbers)}"
        self._create(SUBSCRIPTION, subscription_path(topic, name), settings, sql_filter)
        return name

    def _create(self, kind: str, path: str, settings: dict[str, Any], sql_filter: str | None = None) -> None:
        from spillway.pytest_plugin.entities import create

        host = self._host
        host.run(create(host.front.namespace, kind, path, settings, sql_filter))

    # -- messages --------------------------------------------------------------------------------------------------

    def send(self, entity: str, *messages: "Sendable | Sequence[Sendable]") -> None:
        """What a test has waiting for its program: texts, bytes, dicts (sent as JSON), `ServiceBusMessage` of the SDK,
        `spillway.client.OutgoingMessage`, and lists of these."""
        self._host.send(entity, *outgoing_messages(messages))

    def peek(self, entity: str) -> list[ReceivedMessage]:
        """All messages of a queue or subscription, scheduled, deferred and locked ones too. Changes nothing."""
        return self._host.peek(entity)

    def dead_letters(self, entity: str) -> list[ReceivedMessage]:
        """All messages of the dead-letter queue of an entity. Changes nothing."""
        return self._host.dead_letters(entity)

    def counts(self, entity: str) -> Counts:
        answer = self._host.ask(lambda number: Describe(number, entity))
        assert isinstance(answer, Descriptions), "a description was asked for"
        shown = answer.descriptions[0]
        counters = shown.counters
        return Counts(counters.active, counters.scheduled, counters.deferred, shown.dead_letter_count)

    # -- what happens to it ----------------------------------------------------------------------------------------

    def now(self) -> datetime:
        """What time it is for the broker: real time, and what was let pass on top of it."""
        return EPOCH + timedelta(milliseconds=self._host.server.clock.now_ms())

    def advance(self, by: timedelta | float) -> None:
        """Let time pass at once (a number is seconds): locks end, messages expire, scheduled ones are due.

        Returns when everything that is due by then has happened.
        """
        delta = by if isinstance(by, timedelta) else timedelta(seconds=by)
        if delta < timedelta(0):
            raise ValueError("time does not go back")
        self._host.advance_ms(delta // timedelta(milliseconds=1))

    def cut_connections(self) -> None:
        """Break every connection, as a failing network does: nobody says goodbye. New ones are welcome at once."""
        self._host.cut()

    @property
    def faults(self) -> LocalFaults:
        """What goes wrong on purpose: busy, silent, slow, gone. See docs/faults.md."""
        return LocalFaults(self._host)

    # -- what it said ----------------------------------------------------------------------------------------------

    @property
    def log(self) -> NamespaceLog:
        """The broker's log: the last thousand lines, without secrets."""
        return self._log
