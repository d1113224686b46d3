"""`MessagingFactory`: a namespace as a program sees it. It makes senders, receivers and clients, and can be paired."""

import asyncio
import contextlib
import itertools
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self

from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver

from spillway.paired import events
from spillway.paired.backlog import namespace_name
from spillway.paired.bound import InFlight
from spillway.paired.clients import QueueClient, TopicClient
from spillway.paired.ending import close_quietly
from spillway.paired.endpoints import host_of
from spillway.paired.errors import FactoryClosed, PairingError
from spillway.paired.event_file import EventFile
from spillway.paired.events import Event, Events
from spillway.paired.ledger import ClientLedger
from spillway.paired.options import PairedNamespaceOptions, SendAvailabilityPairedNamespaceOptions
from spillway.paired.outlet import Outlet
from spillway.paired.pairing import Pairing
from spillway.paired.partners import Partners
from spillway.paired.policy import FailoverPolicy, is_unauthorised
from spillway.paired.preparing import cannot, check_sends, ensure_backlog, refuse_pair
from spillway.paired.sender import DivertedSequenceNumber, MessageSender
from spillway.paired.syphon import Syphon

OPERATION_TIMEOUT_S: Final = 60.0
IN_FLIGHT_MAX: Final = 1_000
IN_FLIGHT_BYTES_MAX: Final = 64 * 1024 * 1024
SENDERS_PER_ENTITY: Final = 4
_SUBSCRIPTIONS: Final = "/subscriptions/"


class MessagingFactory:
    """From a host and a credential, or `from_connection_string`. Use it as an async context manager, or `close` it."""

    def __init__(
        self,
        host: str,
        credential: Any,
        *,
        ca_file: str | Path | None = None,
        namespace_name: str | None = None,
        operation_timeout: float = OPERATION_TIMEOUT_S,
        max_in_flight: int = IN_FLIGHT_MAX,
        max_in_flight_bytes: int = IN_FLIGHT_BYTES_MAX,
        senders_per_entity: int = SENDERS_PER_ENTITY,
        **sdk_options: Any,
    ) -> None:
        def make(**options: Any) -> ServiceBusClient:
            return ServiceBusClient(host, credential, **options)

        self._set_up(
            host, make, ca_file, namespace_name, operation_timeout, max_in_flight, max_in_flight_bytes,
            senders_per_entity, sdk_options,
        )  # fmt: skip

    @classmethod
    def from_connection_string(
        cls,
        conn_str: str,
        *,
        ca_file: str | Path | None = None,
        namespace_name: str | None = None,
        operation_timeout: float = OPERATION_TIMEOUT_S,
        max_in_flight: int = IN_FLIGHT_MAX,
        max_in_flight_bytes: int = IN_FLIGHT_BYTES_MAX,
        senders_per_entity: int = SENDERS_PER_ENTITY,
        **sdk_options: Any,
    ) -> Self:
        def make(**options: Any) -> ServiceBusClient:
            return ServiceBusClient.from_connection_string(conn_str, **options)

        factory = cls.__new__(cls)
        factory._set_up(
            host_of(conn_str), make, ca_file, namespace_name, operation_timeout, max_in_flight, max_in_flight_bytes,
            senders_per_entity, sdk_options,
        )  # fmt: skip
        return factory

    def _set_up(
        self,
        host: str,
        make_client: Callable[..., ServiceBusClient],
        ca_file: str | Path | None,
        name: str | None,
        operation_timeout: float,
        max_in_flight: int,
        max_in_flight_bytes: int,
        senders_per_entity: int,
        sdk_options: dict[str, Any],
    ) -> None:
        for parameter, value in (
            ("operation_timeout", operation_timeout),
            ("max_in_flight", max_in_flight),
            ("max_in_flight_bytes", max_in_flight_bytes),
            ("senders_per_entity", senders_per_entity),
        ):
            if isinstance(value, (bool, str)) or not value > 0:
                raise ValueError(f"{parameter} must be greater than 0, not {value!r}")
        if ca_file is not None:
            sdk_options.setdefault("connection_verify", str(ca_file))
        self.host = host
        self.namespace_name = name or namespace_name(host)
        self.operation_timeout_s = float(operation_timeout)
        self.policy = FailoverPolicy()  # of a factory that is not paired: what to try again
        self.events = Events()
        self.ledger = ClientLedger(self.namespace_name)  # what this factory made the namespace do
        self.in_flight = InFlight(max_in_flight, max_in_flight_bytes)
        self.senders_per_entity = senders_per_entity
        self.pairing: Pairing | None = None
        self.syphon: Syphon | None = None
        self.syphons_fed: list[Syphon] = []  # those of primaries whose backlog this namespace has
        self.is_closed = False
        self.fault: BaseException | None = None
        self.on_end: list[Callable[[], None]] = []  # told when it is closed or faulted
        self._ended = asyncio.Event()
        # The library owns the retries of sends; receivers keep the SDK's.
        self._client = make_client(**{"retry_total": 0, **sdk_options})
        self._make_client = make_client
        self._sdk_options = sdk_options
        self._receiving_client: ServiceBusClient | None = None
        # Those that somebody still has: a program may make one for every session, and close it.
        self._receivers: weakref.WeakSet[ServiceBusReceiver] = weakref.WeakSet()
        self._outlets: dict[str, Outlet] = {}
        self._diverted_numbers = itertools.count(1)
        self._is_pairing = False
        self._event_files: list[EventFile] = []

    # -- what it makes --------------------------------------------------------------------------------------------

    def create_message_sender(self, path: str) -> MessageSender:
        """A sender to a queue or topic."""
        self.check_open()
        return MessageSender(self, _checked(path))

    def create_message_receiver(self, path: str, **options: Any) -> ServiceBusReceiver:
        """The SDK's receiver, with its options, on this namespace: of a queue, or of `TOPIC/Subscriptions/NAME`."""
        self.check_open()
        if self._receiving_client is None:
            self._receiving_client = self._make_client(**self._sdk_options)
        topic, name = split_subscription(_checked(path))
        if name:
            receiver = self._receiving_client.get_subscription_receiver(topic, name, **options)
        else:
            receiver = self._receiving_client.get_queue_receiver(path, **options)
        self._receivers.add(receiver)
        return receiver

    def create_queue_client(self, path: str) -> QueueClient:
        """Sender and receiver in one."""
        return QueueClient(self, _checked(path))

    def create_topic_client(self, path: str) -> TopicClient:
        return TopicClient(self, _checked(path))

    # -- pairing --------------------------------------------------------------------------------------------------

    async def pair_namespace(self, options: PairedNamespaceOptions) -> None:
        """When it returns, the pairing acts on every sender and client of this factory. Do not send before."""
        self.check_open()
        if not isinstance(options, SendAvailabilityPairedNamespaceOptions):
            raise TypeError("options must be SendAvailabilityPairedNamespaceOptions, the only kind of pairing there is")
        if self._is_pairing:
            raise PairingError("pair_namespace: this factory is being paired already; a factory has one partner")
        refuse_pair(self, options)
        self._is_pairing = True
        try:
            paths = await ensure_backlog(self, options)
            await check_sends(options, paths[0])
            pairing = Pairing(self, options, paths)
            syphon = await self._start_syphon(pairing) if options.enable_syphon else None
        finally:
            self._is_pairing = False
        self.pairing = options.pairing = pairing
        self.events.tell(
            events.PAIRED,
            secondary=options.messaging_factory.host,
            backlog_queues=len(paths),
            failover_interval_s=options.failover_interval.total_seconds(),
            ping_interval_s=options.ping_primary_interval.total_seconds(),
            is_syphon=options.enable_syphon,
        )
        if syphon is not None:
            self.syphon = syphon
            options.messaging_factory.syphons_fed.append(syphon)
            Partners(self, options.messaging_factory).watch_each_other()

    async def _start_syphon(self, pairing: Pairing) -> Syphon:
        """`PairingError` if it may not receive from the backlog."""
        syphon = Syphon(pairing)
        syphon.start()
        try:
            refusal = await syphon.tried()
            if refusal is not None and is_unauthorised(refusal):
                raise cannot("receive from", pairing.options, syphon.queues[0].path, refusal) from refusal
        except BaseException:
            await syphon.close()
            raise
        return syphon

    # -- watching it ----------------------------------------------------------------------------------------------

    @property
    def counters(self) -> Counter[str]:
        """How often each event happened, in messages where it is about messages."""
        return self.events.counters

    def on_event(self, callback: Callable[[Event], None]) -> None:
        """Call back for every event. It must be quick: it runs between two steps of a send."""
        self.events.callbacks.append(callback)

    def record_events(self, directory: str | Path, *, process: str | None = None) -> EventFile:
        """From now on write every event to files in this directory (docs/events.md), until the factory is closed.

        A send never waits for it, nor fails with it. Call it before `pair_namespace`, or that goes unrecorded.
        """
        self.check_open()
        file = EventFile(directory, self.namespace_name, process=process, host=self.host)
        self._event_files.append(file)
        self.on_event(file)
        return file

    # -- the end --------------------------------------------------------------------------------------------------

    @property
    def is_faulted(self) -> bool:
        return self.fault is not None

    def check_open(self) -> None:
        if self.fault is not None:
            raise FactoryClosed(f"the factory of {self.host} was faulted: {self.fault}") from self.fault
        if self.is_closed:
            raise FactoryClosed(f"the factory of {self.host} has been closed")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Finish what is in flight no more; close every connection."""
        if not self.is_closed:
            self.is_closed = True
            self._tell_end()
            await self._let_go()

    async def abort(self, error: BaseException) -> None:
        """Fault: from now on every call fails with this error."""
        if self.fault is None and not self.is_closed:
            self.fault = error
            self.is_closed = True
            self.events.tell(events.FAULTED, self.host, error=error)
            self._tell_end()
            await self._let_go()

    def _tell_end(self) -> None:
        self._ended.set()
        if self.pairing is not None:
            self.pairing.stop()
        for told in self.on_end:
            told()

    async def _let_go(self) -> None:
        if self.syphon is not None:
            await self.syphon.close()
        for syphon in self.syphons_fed:  # or it would find its receivers closed
            await syphon.close()
        # All at the same time: every connection takes a moment to say goodbye.
        ends = [outlet.close() for outlet in self._outlets.values()]
        if self.pairing is not None:
            ends.append(self.pairing.close())
        await asyncio.gather(*ends, *(close_quietly(receiver) for receiver in list(self._receivers)))
        clients = [client for client in (self._client, self._receiving_client) if client is not None]
        await asyncio.gather(*(close_quietly(client) for client in clients))
        await asyncio.gather(*(asyncio.to_thread(file.close) for file in self._event_files))

    # -- for the other modules of this room -----------------------------------------------------------------------

    def outlet(self, path: str) -> Outlet:
        key = path.strip("/").lower()
        outlet = self._outlets.get(key)
        if outlet is None:
            outlet = self._outlets[key] = self.new_outlet(path, self.senders_per_entity)
        return outlet

    def new_outlet(self, path: str, senders_max: int) -> Outlet:
        return Outlet(path, lambda: self._client.get_queue_sender(path), senders_max)

    async def rest(self, until_s: float) -> None:
        """Wait until that time has come, or the factory's end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until_s):
                await self._ended.wait()

    def next_diverted_number(self) -> DivertedSequenceNumber:
        return DivertedSequenceNumber(-next(self._diverted_numbers))

    def backlog_receiver(self, path: str) -> ServiceBusReceiver:
        """For the syphon, which retries by itself."""
        return self._client.get_queue_receiver(path)


def split_subscription(path: str) -> tuple[str, str]:
    """Topic and name, or the path itself and nothing if it is no subscription's."""
    at = path.lower().find(_SUBSCRIPTIONS)
    return (path, "") if at < 0 else (path[:at], path[at + len(_SUBSCRIPTIONS) :])


def _checked(path: str) -> str:
    if not path.strip("/"):
        raise ValueError("path must be the name of a queue, topic or subscription")
    return path.strip("/")
