"""The messages of the lab: what a producer puts in, and how a consumer knows that it got exactly that."""

import hashlib
import json
from typing import Any, Final

from azure.servicebus import ServiceBusMessage, ServiceBusReceivedMessage

SUBJECT: Final = "order"
DIGEST_CHARS: Final = 16


def make_message(producer: str, number: int, attempt: int, size: int) -> ServiceBusMessage:
    """Message id and body say which one it is and which attempt to send it. The id is the same in every attempt, so
    that a queue which detects duplicates keeps one."""
    identity = f"{producer}-{number}"
    return ServiceBusMessage(
        json.dumps({"id": identity, "a": attempt, "pad": "x" * size}),
        message_id=identity,
        subject=SUBJECT,
        correlation_id=producer,
        content_type="application/json",
        application_properties={"producer": producer, "number": number, "half": number / 2, "even": number % 2 == 0},
    )


def digest(message: ServiceBusMessage | ServiceBusReceivedMessage) -> str:
    """A digest of everything that the sender said, and of nothing else: an alias that was left on it shows here."""
    properties: dict[Any, Any] = message.application_properties or {}
    said = [
        b"".join(message.body).hex(),
        message.message_id,
        message.subject,
        message.correlation_id,
        message.content_type,
        message.session_id,
        sorted((_text(key), *_typed(value)) for key, value in properties.items()),
    ]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:DIGEST_CHARS]


def identity_of(message: ServiceBusReceivedMessage) -> tuple[str, int]:
    """Id and attempt; of something that no producer sent, what it looks like."""
    try:
        said = json.loads(str(message))
        return str(said["id"]), int(said["a"])
    except (ValueError, TypeError, KeyError):
        return f"a stranger: {message.content_type} {message.message_id}"[:200], 0


def _typed(value: object) -> tuple[str, str]:
    """The SDK hands text back as bytes."""
    return ("str" if isinstance(value, bytes) else type(value).__name__), _text(value)


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
