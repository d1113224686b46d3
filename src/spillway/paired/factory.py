"""`MessagingFactory`: a namespace as a program sees it. It makes senders, receivers and clients, and can be paired."""

import asyncio
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver

from spillway.paired import parameters
from spillway.paired.access import NamespaceAccess
from spillway.paired.attempts import Attempts, State
from spillway.paired.clients import QueueClient, TopicClient
from spillway.paired.endpoints import host_of
from spillway.paired.event_file import EventFile
from spillway.paired.events import Event
from spillway.paired.namespace import (
    IN_FLIGHT_BYTES_MAX,
    IN_FLIGHT_MAX,
    OPERATION_TIMEOUT_S,
    SENDERS_PER_ENTITY,
    FactoryNamespace,
)
from spillway.paired.options import PairedNamespaceOptions
from spillway.paired.pairing import Pairing, PairingSlot
from spillway.paired.sender import MessageSender
from spillway.paired.shutdown import close_quietly

if TYPE_CHECKING:  # who only sends needs none of it
    from spillway.syphon.standing import StandingSyphon

_SUBSCRIPTIONS: Final = "/subscriptions/"


class MessagingFactory(FactoryNamespace):
    """A namespace from a host and a credential, or `from_connection_string`. Use it as an async context manager, or
    `close` it."""

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
        parameters.host("host", host)
        parameters.messaging_credential("credential", credential)

        def make(**options: Any) -> ServiceBusClient:
            return ServiceBusClient(host, credential, **options)

        self._set_up(
            NamespaceAccess(host, credential=credential),
            make, ca_file, namespace_name, operation_timeout, max_in_flight,
            max_in_flight_bytes, senders_per_entity, sdk_options,
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
            NamespaceAccess(host_of(conn_str), conn_str),
            make, ca_file, namespace_name, operation_timeout, max_in_flight,
            max_in_flight_bytes, senders_per_entity, sdk_options,
        )  # fmt: skip
        return factory

    def _set_up(
        self,
        access: NamespaceAccess,
        make_client: Callable[..., ServiceBusClient],
        ca_file: str | Path | None,
        name: str | None,
        operation_timeout: float,
        max_in_flight: int,
        max_in_flight_bytes: int,
        senders_per_entity: int,
        sdk_options: dict[str, Any],
    ) -> None:
        parameters.check_factory(
            ca_file=ca_file,
            namespace_name=name,
            operation_timeout=operation_timeout,
            max_in_flight=max_in_flight,
            max_in_flight_bytes=max_in_flight_bytes,
            senders_per_entity=senders_per_entity,
        )
        if ca_file is not None:
            sdk_options.setdefault("connection_verify", str(ca_file))
        FactoryNamespace.__init__(
            self, access, make_client, name, operation_timeout, max_in_flight, max_in_flight_bytes, senders_per_entity,
            sdk_options,
        )  # fmt: skip
        self.slot = PairingSlot()
        self.attempts = Attempts(self, self.slot)
        self._receiving_client: ServiceBusClient | None = None
        # Those that somebody still has: a program may make one for every session, and close it.
        self._receivers: weakref.WeakSet[ServiceBusReceiver] = weakref.WeakSet()
        self._event_files: list[EventFile] = []

    @property
    def syphon(self) -> "StandingSyphon | None":
        return self.slot.syphon

    @property
    def pairing(self) -> Pairing | None:
        return self.slot.pairing

    # -- what it makes --------------------------------------------------------------------------------------------

    def create_message_sender(self, path: str) -> MessageSender:
        """A sender to a queue or topic."""
        self.check_open()
        return MessageSender(self, self.slot, parameters.entity_path("path", path))

    def create_message_receiver(self, path: str, **options: Any) -> ServiceBusReceiver:
        """The SDK's receiver, with its options, on this namespace: of a queue, or of `TOPIC/Subscriptions/NAME`."""
        self.check_open()
        if self._receiving_client is None:
            self._receiving_client = self.make_client(**self.sdk_options)
        topic, name = split_subscription(parameters.entity_path("path", path))
        if name:
            receiver = self._receiving_client.get_subscription_receiver(topic, name, **options)
        else:
            receiver = self._receiving_client.get_queue_receiver(path, **options)
        self._receivers.add(receiver)
        return receiver

    def create_queue_client(self, path: str) -> QueueClient:
        """Sender and receiver in one."""
        self.check_open()
        return QueueClient(self, self.slot, parameters.entity_path("path", path), self.create_message_receiver)

    def create_topic_client(self, path: str) -> TopicClient:
        self.check_open()
        return TopicClient(self, self.slot, parameters.entity_path("path", path))

    # -- pairing --------------------------------------------------------------------------------------------------

    async def pair_namespace(self, options: PairedNamespaceOptions) -> None:
        """When it returns, the pairing acts on every sender and client of this factory. Do not send before."""
        await self.attempts.pair(options)

    def pair_namespace_in_background(self, options: PairedNamespaceOptions) -> None:
        """Try until it is paired, refused for good or closed; sends go to the primary alone meanwhile."""
        self.attempts.pair_in_background(options)

    @property
    def pairing_state(self) -> State:
        """`unpaired`, `pairing` or `paired`."""
        return self.attempts.state

    @property
    def pairing_error(self) -> BaseException | None:
        """Why the last attempt to pair failed; nothing once it is paired."""
        return self.attempts.error

    # -- watching it ----------------------------------------------------------------------------------------------

    @property
    def counters(self) -> Counter[str]:
        """How often each event happened, in messages where it is about messages."""
        return self.events.counters

    def on_event(self, callback: Callable[[Event], None]) -> None:
        """Call back for every event. It must be quick: it runs between two steps of a send."""
        self.events.callbacks.append(parameters.callback("callback", callback))

    def record_events(self, directory: str | Path, *, process: str | None = None) -> EventFile:
        """From now on write every event to files in this directory (docs/events.md), until the factory is closed.

        A send never waits for it, nor fails with it. Call it before `pair_namespace`, or that goes unrecorded.
        """
        self.check_open()
        parameters.location("directory", directory)
        parameters.optional_text("process", process)
        file = EventFile(directory, self.namespace_name, process=process, host=self.host)
        self._event_files.append(file)
        self.on_event(file)
        return file

    # -- the end --------------------------------------------------------------------------------------------------

    def tell_end(self) -> None:
        if self.pairing is not None:
            self.pairing.stop()
        super().tell_end()

    async def release(self) -> None:
        await self.attempts.close()
        if self.syphon is not None:
            await self.syphon.close()
        ends = [super().release()]
        if self.pairing is not None:
            ends.append(self.pairing.close())
        await asyncio.gather(*ends, *(close_quietly(receiver) for receiver in list(self._receivers)))
        if self._receiving_client is not None:
            await close_quietly(self._receiving_client)
        await asyncio.gather(*(asyncio.to_thread(file.close) for file in self._event_files))


def split_subscription(path: str) -> tuple[str, str]:
    """Topic and name, or the path itself and nothing if it is no subscription's."""
    at = path.lower().find(_SUBSCRIPTIONS)
    return (path, "") if at < 0 else (path[:at], path[at + len(_SUBSCRIPTIONS) :])


def _checked(path: str) -> str:
    if not path.strip("/"):
        raise ValueError("path must be the name of a queue, topic or subscription")
    return path.strip("/")
