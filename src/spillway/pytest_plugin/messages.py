"""What a test may hand to `send`, as messages of our client: the SDK takes a second to connect, ours milliseconds."""

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from spillway.amqp.types import Timestamp
from spillway.client import OutgoingMessage
from spillway.client.message import AmqpValue

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusMessage

JSON: Final = "application/json"
TAKEN: Final = "a text, bytes, a dict (sent as JSON), a ServiceBusMessage, an OutgoingMessage, or a list of these"


def outgoing_messages(given: Iterable[object]) -> list[OutgoingMessage]:
    """Messages in their order, lists taken apart. TypeError says what can be sent."""
    made: list[OutgoingMessage] = []
    for one in given:
        if isinstance(one, (list, tuple)):
            made += outgoing_messages(one)
        else:
            made.append(outgoing_message(one))
    return made


def outgoing_message(one: object) -> OutgoingMessage:
    if isinstance(one, OutgoingMessage):
        return one
    if isinstance(one, str):
        return OutgoingMessage(one)
    if isinstance(one, (bytes, bytearray, memoryview)):
        return OutgoingMessage(bytes(one))
    if isinstance(one, Mapping):
        return OutgoingMessage(json.dumps(one), content_type=JSON)
    if type(one).__module__.startswith("azure."):
        from azure.servicebus import ServiceBusMessage

        if isinstance(one, ServiceBusMessage):
            return of_the_sdk(one)
    raise TypeError(f"send takes {TAKEN}; not {type(one).__name__}")


def of_the_sdk(message: "ServiceBusMessage") -> OutgoingMessage:
    """A message of ours with everything that the SDK lets a program set on it."""
    properties = message.application_properties or {}
    return OutgoingMessage(
        body_of(message),
        message_id=message.message_id,
        session_id=message.session_id,
        partition_key=message.partition_key,
        subject=message.subject,
        to=message.to,
        reply_to=message.reply_to,
        reply_to_session_id=message.reply_to_session_id,
        correlation_id=message.correlation_id,
        content_type=message.content_type,
        time_to_live_ms=None if message.time_to_live is None else message.time_to_live // timedelta(milliseconds=1),
        scheduled_enqueue_time_ms=moment_ms(message.scheduled_enqueue_time_utc),
        application_properties={text_of(name): value_of(value) for name, value in properties.items()},
    )


def body_of(message: "ServiceBusMessage") -> bytes | AmqpValue:
    from azure.servicebus.amqp import AmqpMessageBodyType

    body: Any = message.body
    if message.body_type == AmqpMessageBodyType.DATA:
        return b"".join(body)
    if message.body_type == AmqpMessageBodyType.VALUE:
        return AmqpValue(value_of(body))
    raise TypeError("send takes bodies of bytes, or of one AMQP value; one of sequences is for the SDK's own sender")


def value_of(value: object) -> object:
    if isinstance(value, datetime):
        moment = moment_ms(value)
        assert moment is not None, "there is one"
        return Timestamp(moment)
    return value


def text_of(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name


def moment_ms(moment: datetime | None) -> int | None:
    """The SDK means UTC when nothing is said."""
    if moment is None:
        return None
    known = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (known - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
