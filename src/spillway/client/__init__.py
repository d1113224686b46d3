"""An asyncio client for Service Bus namespaces, ours and Azure's alike.

async with await connect(connection_string) as connection:
    sender = await connection.sender("orders")
    await sender.send(OutgoingMessage(b"hello"))
    receiver = await connection.receiver("orders")
    for message in await receiver.receive(max_count=10, max_wait=5):
        await receiver.complete(message)
"""

from spillway.client.connection import Connection, connect, connect_host
from spillway.client.connection_string import ConnectionString, parse_connection_string
from spillway.client.credentials import (
    BearerCredential,
    Credential,
    SasCredential,
    SignatureCredential,
    TokenCredential,
)
from spillway.client.errors import (
    ClientError,
    ConnectionLost,
    EntityDisabled,
    EntityNotFound,
    LinkClosed,
    MessageLockLost,
    MessageNotFound,
    MessageTooLarge,
    NotAllowed,
    NoToken,
    OperationTimeout,
    QuotaExceeded,
    ServerBusy,
    SessionCannotBeLocked,
    SessionLockLost,
    SettlementFailed,
    Unauthorized,
    WindowFull,
)
from spillway.client.management import ABANDONED, COMPLETED, DEAD_LETTERED, DEFERRED, Management
from spillway.client.message import (
    BATCH_FORMAT,
    AmqpValue,
    OutgoingMessage,
    ReceivedMessage,
    encode_batch,
    encode_batch_raw,
)
from spillway.client.receiver import PEEK_LOCK, RECEIVE_AND_DELETE, Receiver
from spillway.client.sender import Sender

__all__ = [
    "ABANDONED",
    "BATCH_FORMAT",
    "COMPLETED",
    "DEAD_LETTERED",
    "DEFERRED",
    "PEEK_LOCK",
    "RECEIVE_AND_DELETE",
    "AmqpValue",
    "BearerCredential",
    "ClientError",
    "Connection",
    "ConnectionLost",
    "ConnectionString",
    "Credential",
    "EntityDisabled",
    "EntityNotFound",
    "LinkClosed",
    "Management",
    "MessageLockLost",
    "MessageNotFound",
    "MessageTooLarge",
    "NoToken",
    "NotAllowed",
    "OperationTimeout",
    "OutgoingMessage",
    "QuotaExceeded",
    "ReceivedMessage",
    "Receiver",
    "SasCredential",
    "Sender",
    "ServerBusy",
    "SessionCannotBeLocked",
    "SessionLockLost",
    "SettlementFailed",
    "SignatureCredential",
    "TokenCredential",
    "Unauthorized",
    "WindowFull",
    "connect",
    "connect_host",
    "encode_batch",
    "encode_batch_raw",
    "parse_connection_string",
]
