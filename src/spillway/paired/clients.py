"""Clients of a queue, which send and receive, and of a topic, which send (contract A2)."""

from collections.abc import Callable
from typing import Any

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusReceiver

from spillway.paired.namespace import FactoryNamespace
from spillway.paired.pairing import PairingSlot
from spillway.paired.sender import MessageSender


class TopicClient(MessageSender):
    """Sends to a topic. Each client has a backlog queue of its own, chosen at random (contract D14)."""


class QueueClient(MessageSender):
    """Sends to a queue and receives from it: with the SDK's own receiver, on the primary (contract B5)."""

    def __init__(
        self,
        primary: FactoryNamespace,
        slot: PairingSlot,
        path: str,
        make_receiver: Callable[[str], ServiceBusReceiver],
    ) -> None:
        super().__init__(primary, slot, path)
        self._make_receiver = make_receiver
        self._receiver: ServiceBusReceiver | None = None

    @property
    def receiver(self) -> ServiceBusReceiver:
        if self._receiver is None:
            self._receiver = self._make_receiver(self.path)
        return self._receiver

    async def receive_messages(
        self, max_message_count: int | None = 1, max_wait_time: float | None = None
    ) -> list[ServiceBusReceivedMessage]:
        return await self.receiver.receive_messages(max_message_count, max_wait_time)

    async def peek_messages(self, max_message_count: int = 1, **options: Any) -> list[ServiceBusReceivedMessage]:
        return await self.receiver.peek_messages(max_message_count, **options)

    async def complete_message(self, message: ServiceBusReceivedMessage) -> None:
        await self.receiver.complete_message(message)

    async def abandon_message(self, message: ServiceBusReceivedMessage) -> None:
        await self.receiver.abandon_message(message)

    async def defer_message(self, message: ServiceBusReceivedMessage) -> None:
        await self.receiver.defer_message(message)

    async def dead_letter_message(
        self, message: ServiceBusReceivedMessage, reason: str | None = None, error_description: str | None = None
    ) -> None:
        await self.receiver.dead_letter_message(message, reason, error_description)

    async def renew_message_lock(self, message: ServiceBusReceivedMessage) -> Any:
        return await self.receiver.renew_message_lock(message)

    async def close(self) -> None:
        await super().close()
        if self._receiver is not None:
            await self._receiver.close()
