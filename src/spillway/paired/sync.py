"""The paired library for blocking programs: the same names, a thin front of the asyncio one.

All factories of a process share one event loop on a thread of its own. Any thread may send; calls of several threads to
one entity go together like those of several coroutines. Receivers are the SDK's blocking ones. A fork has a loop of its
own, and what was made before it stays its parent's.
"""

import asyncio
import datetime
import inspect
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Self

from azure.servicebus import ServiceBusClient, ServiceBusMessageBatch, ServiceBusReceivedMessage, ServiceBusReceiver

from spillway import paired
from spillway.paired import (
    BacklogUnavailableError,
    Blame,
    DivertedSequenceNumber,
    EntityFailed,
    Event,
    EventFile,
    FactoryClosed,
    FailoverPolicy,
    Failure,
    MessagingError,
    PairedNamespaceOptions,
    PairingError,
    SchedulingError,
    parameters,
)
from spillway.paired.attempts import State
from spillway.paired.factory import split_subscription
from spillway.paired.process_loop import LOOP, BlockingFront

__all__ = [
    "BacklogUnavailableError",
    "Blame",
    "DivertedSequenceNumber",
    "EntityFailed",
    "Event",
    "EventFile",
    "FactoryClosed",
    "FailoverPolicy",
    "Failure",
    "MessageSender",
    "MessagingError",
    "MessagingFactory",
    "NamespaceManager",
    "PairedNamespaceOptions",
    "PairingError",
    "QueueClient",
    "SchedulingError",
    "SendAvailabilityPairedNamespaceOptions",
    "TopicClient",
]


class _AsyncCredential:
    """A credential of a blocking program, for the SDK's asyncio clients."""

    def __init__(self, credential: Any) -> None:
        self._credential = credential

    async def get_token(self, *scopes: str, **options: Any) -> Any:
        return await asyncio.to_thread(self._credential.get_token, *scopes, **options)


def _for_asyncio(credential: Any) -> Any:
    get_token = getattr(credential, "get_token", None)
    if get_token is None or inspect.iscoroutinefunction(get_token):
        return credential
    return _AsyncCredential(credential)


class _ClosingFront(BlockingFront):
    """A front whose asyncio twin is closed with it, at the end of a `with` or by hand."""

    inner: Any

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        if not self.is_of_the_parent:
            LOOP.run(self.inner.close())


class NamespaceManager(_ClosingFront):
    inner: paired.NamespaceManager

    def __init__(self, host: str, credential: Any, *, ca_file: str | Path | None = None, **sdk_options: Any) -> None:
        self.inner = LOOP.call(
            lambda: paired.NamespaceManager(host, _for_asyncio(credential), ca_file=ca_file, **sdk_options)
        )

    @classmethod
    def from_connection_string(cls, conn_str: str, *, ca_file: str | Path | None = None, **sdk_options: Any) -> Self:
        manager = cls.__new__(cls)
        manager.inner = LOOP.call(
            lambda: paired.NamespaceManager.from_connection_string(conn_str, ca_file=ca_file, **sdk_options)
        )
        return manager


class MessageSender(_ClosingFront):
    """The blocking SDK sender's own methods."""

    inner: paired.MessageSender

    def __init__(self, inner: paired.MessageSender) -> None:
        self.inner = inner

    @property
    def entity_name(self) -> str:
        return self.inner.entity_name

    def send_messages(self, message: Any, *, timeout: float | None = None) -> None:
        self.check_process()
        LOOP.run(self.inner.send_messages(message, timeout=timeout))

    def schedule_messages(
        self, messages: Any, schedule_time_utc: datetime.datetime, *, timeout: float | None = None
    ) -> list[int]:
        self.check_process()
        return LOOP.run(self.inner.schedule_messages(messages, schedule_time_utc, timeout=timeout))

    def cancel_scheduled_messages(self, sequence_numbers: int | list[int], *, timeout: float | None = None) -> None:
        self.check_process()
        LOOP.run(self.inner.cancel_scheduled_messages(sequence_numbers, timeout=timeout))

    def create_message_batch(self, max_size_in_bytes: int | None = None) -> ServiceBusMessageBatch:
        self.check_process()
        return LOOP.run(self.inner.create_message_batch(max_size_in_bytes))


class TopicClient(MessageSender):
    """Sends to a topic, with a backlog queue of its own."""


class QueueClient(MessageSender):
    """Sends to a queue, with a backlog queue of its own, and receives from it with the SDK's blocking receiver."""

    def __init__(self, inner: paired.MessageSender, factory: "MessagingFactory") -> None:
        super().__init__(inner)
        self._factory = factory
        self._receiver: ServiceBusReceiver | None = None

    @property
    def receiver(self) -> ServiceBusReceiver:
        self.check_process()
        if self._receiver is None:
            self._receiver = self._factory.create_message_receiver(self.inner.path)
        return self._receiver

    def receive_messages(
        self, max_message_count: int | None = 1, max_wait_time: float | None = None
    ) -> list[ServiceBusReceivedMessage]:
        return self.receiver.receive_messages(max_message_count, max_wait_time)

    def peek_messages(self, max_message_count: int = 1, **options: Any) -> list[ServiceBusReceivedMessage]:
        return self.receiver.peek_messages(max_message_count, **options)

    def complete_message(self, message: ServiceBusReceivedMessage) -> None:
        self.receiver.complete_message(message)

    def abandon_message(self, message: ServiceBusReceivedMessage) -> None:
        self.receiver.abandon_message(message)

    def defer_message(self, message: ServiceBusReceivedMessage) -> None:
        self.receiver.defer_message(message)

    def dead_letter_message(
        self, message: ServiceBusReceivedMessage, reason: str | None = None, error_description: str | None = None
    ) -> None:
        self.receiver.dead_letter_message(message, reason, error_description)

    def renew_message_lock(self, message: ServiceBusReceivedMessage) -> Any:
        return self.receiver.renew_message_lock(message)

    def close(self) -> None:
        super().close()
        if self._receiver is not None and not self.is_of_the_parent:
            self._receiver.close()


class _Ledger:
    """The factory's ledger, read on the thread that counts in it."""

    def __init__(self, factory: "MessagingFactory") -> None:
        self._factory = factory
        self._inner = factory.inner.ledger

    def operations(self, kind: int, entity: str | None = None) -> int:
        """How many of a kind so far, at one entity or at all."""
        return self._factory.call(lambda: self._inner.operations(kind, entity))

    def totals(self) -> dict[str, dict[str, int]]:
        """Operations by entity and the kind's name."""
        return self._factory.call(self._inner.totals)

    def lines(self) -> Iterator[str]:
        """One line of JSON a minute, entity and kind."""
        return iter(self._factory.call(lambda: list(self._inner.lines())))


class MessagingFactory(_ClosingFront):
    inner: paired.MessagingFactory

    _make_receiving_client: Callable[[], ServiceBusClient]

    def __init__(self, host: str, credential: Any, **options: Any) -> None:
        self.inner = LOOP.call(lambda: paired.MessagingFactory(host, _for_asyncio(credential), **options))
        self._make_receiving_client = lambda: ServiceBusClient(host, credential, **_of_the_sdk(options))
        self._begin()

    @classmethod
    def from_connection_string(cls, conn_str: str, **options: Any) -> Self:
        """`ca_file`, `namespace_name`, `operation_timeout` and the other options of `spillway.paired`."""
        factory = cls.__new__(cls)
        factory.inner = LOOP.call(lambda: paired.MessagingFactory.from_connection_string(conn_str, **options))
        factory._make_receiving_client = lambda: ServiceBusClient.from_connection_string(
            conn_str, **_of_the_sdk(options)
        )
        factory._begin()
        return factory

    def _begin(self) -> None:
        self._receiving_client: ServiceBusClient | None = None
        # Those that somebody still has: a program may make one for every session, and close it.
        self._receivers: weakref.WeakSet[ServiceBusReceiver] = weakref.WeakSet()

    def create_message_sender(self, path: str) -> MessageSender:
        return MessageSender(self.call(lambda: self.inner.create_message_sender(path)))

    def create_message_receiver(self, path: str, **options: Any) -> ServiceBusReceiver:
        """The SDK's blocking receiver, on this namespace: of a queue, or of `TOPIC/Subscriptions/NAME`."""
        self.check_process()
        self.inner.check_open()
        topic, name = split_subscription(parameters.entity_path("path", path))
        if self._receiving_client is None:
            self._receiving_client = self._make_receiving_client()
        if name:
            receiver = self._receiving_client.get_subscription_receiver(topic, name, **options)
        else:
            receiver = self._receiving_client.get_queue_receiver(topic, **options)
        self._receivers.add(receiver)
        return receiver

    def create_queue_client(self, path: str) -> QueueClient:
        return QueueClient(self.call(lambda: self.inner.create_queue_client(path)), self)

    def create_topic_client(self, path: str) -> TopicClient:
        return TopicClient(self.call(lambda: self.inner.create_topic_client(path)))

    def pair_namespace(self, options: "SendAvailabilityPairedNamespaceOptions") -> None:
        """When it returns, the pairing acts on every sender and client of this factory. Do not send before."""
        self.check_process()
        LOOP.run(self.inner.pair_namespace(_inner_of(options)))

    def pair_namespace_in_background(self, options: "SendAvailabilityPairedNamespaceOptions") -> None:
        """Try until it is paired, refused for good or closed; sends go to the primary alone meanwhile."""
        inner = _inner_of(options)
        self.call(lambda: self.inner.pair_namespace_in_background(inner))

    @property
    def pairing_state(self) -> State:
        """`unpaired`, `pairing` or `paired`."""
        return self.inner.pairing_state

    @property
    def pairing_error(self) -> BaseException | None:
        """Why the last attempt to pair failed; nothing once it is paired."""
        return self.inner.pairing_error

    @property
    def counters(self) -> Counter[str]:
        return self.inner.counters

    @property
    def ledger(self) -> _Ledger:
        """What this factory made the namespace do; receivers are the SDK's, and are not counted."""
        return _Ledger(self)

    def on_event(self, callback: Callable[[Event], None]) -> None:
        """Call back for every event, on the library's own thread: it must be quick and must not send."""
        self.inner.on_event(callback)

    def record_events(self, directory: str | Path, *, process: str | None = None) -> EventFile:
        """From now on write every event to files in this directory, until the factory is closed."""
        self.check_process()
        return self.inner.record_events(directory, process=process)

    @property
    def is_closed(self) -> bool:
        return self.inner.is_closed

    @property
    def is_faulted(self) -> bool:
        return self.inner.is_faulted

    def close(self) -> None:
        """In a fork of the process that made it there is nothing to close: the connections are the parent's."""
        if not self.is_of_the_parent:
            LOOP.run(self.inner.close())
            self._close_receivers()

    def abort(self, error: BaseException) -> None:
        self.check_process()
        LOOP.run(self.inner.abort(error))
        self._close_receivers()

    def _close_receivers(self) -> None:
        for receiver in list(self._receivers):
            receiver.close()
        self._receivers.clear()
        if self._receiving_client is not None:
            self._receiving_client.close()
            self._receiving_client = None


class SendAvailabilityPairedNamespaceOptions(PairedNamespaceOptions):
    """Options as in `spillway.paired`, with a manager and a factory of this module."""

    def __init__(
        self,
        secondary_namespace_manager: NamespaceManager,
        messaging_factory: MessagingFactory,
        *positional: Any,
        **options: Any,
    ) -> None:
        self.secondary_namespace_manager = parameters.instance(
            "secondary_namespace_manager",
            secondary_namespace_manager,
            NamespaceManager,
            "a NamespaceManager of spillway.paired.sync",
        )
        self.messaging_factory = parameters.instance(
            "messaging_factory", messaging_factory, MessagingFactory, "a MessagingFactory of spillway.paired.sync"
        )
        self.inner = paired.SendAvailabilityPairedNamespaceOptions(
            secondary_namespace_manager.inner, messaging_factory.inner, *positional, **options
        )

    @property
    def backlog_queue_count(self) -> int:
        return self.inner.backlog_queue_count

    @property
    def failover_interval(self) -> datetime.timedelta:
        return self.inner.failover_interval

    @property
    def enable_syphon(self) -> bool:
        return self.inner.enable_syphon

    @property
    def ping_primary_interval(self) -> datetime.timedelta:
        return self.inner.ping_primary_interval

    @ping_primary_interval.setter
    def ping_primary_interval(self, value: datetime.timedelta) -> None:
        self.inner.ping_primary_interval = value

    def mark_path_healthy(self, path: str) -> None:
        self.messaging_factory.call(lambda: self.inner.mark_path_healthy(path))


def _inner_of(options: object) -> paired.SendAvailabilityPairedNamespaceOptions:
    checked = parameters.instance(
        "options",
        options,
        SendAvailabilityPairedNamespaceOptions,
        "SendAvailabilityPairedNamespaceOptions of spillway.paired.sync",
    )
    return checked.inner


_OWN_OPTIONS: Final = frozenset(
    {"ca_file", "namespace_name", "operation_timeout", "max_in_flight", "max_in_flight_bytes", "senders_per_entity"}
)


def _of_the_sdk(options: dict[str, Any]) -> dict[str, Any]:
    """What is left for the SDK's client of receivers."""
    kept = {name: value for name, value in options.items() if name not in _OWN_OPTIONS}
    if options.get("ca_file") is not None:
        kept.setdefault("connection_verify", str(options["ca_file"]))
    return kept
