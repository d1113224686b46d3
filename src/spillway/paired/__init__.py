"""Paired namespaces: sends that survive an outage, on the official azure-servicebus SDK.

When an entity of the primary namespace stops taking messages, senders divert to backlog queues on a secondary one, ping
the primary, return the moment it answers, and a syphon brings the backlog home. Asyncio; `spillway.paired.sync` is the
same for blocking programs. Works against Azure and against Spillway's own broker, and needs nothing of the latter.
"""

from spillway.model.failures import Blame, Failure
from spillway.paired.clients import QueueClient, TopicClient
from spillway.paired.errors import (
    BacklogUnavailableError,
    EntityFailed,
    FactoryClosed,
    MessagingError,
    PairingError,
    SchedulingError,
)
from spillway.paired.event_file import EventFile
from spillway.paired.events import Event
from spillway.paired.factory import MessagingFactory
from spillway.paired.failures import FailoverPolicy
from spillway.paired.manager import NamespaceManager
from spillway.paired.namespace import DivertedSequenceNumber
from spillway.paired.options import PairedNamespaceOptions, SendAvailabilityPairedNamespaceOptions
from spillway.paired.sender import MessageSender

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
