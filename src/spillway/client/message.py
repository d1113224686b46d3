"""Messages as a caller sees them: made to be sent, or received with everything the service put on them.

A received message keeps its bytes (`raw`) and where its sections lie (`sections`); everything else is decoded when it
is asked for, so that who only passes bytes on pays for nothing else.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from spillway.amqp.codec import MESSAGE_ELEMENTS_MAX, DecodeBudget
from spillway.amqp.link import Link
from spillway.amqp.message import (
    Header,
    Properties,
    Sections,
    decode_body_value,
    decode_data_bodies,
    decode_header,
    decode_map,
    decode_properties,
    encode_amqp_value,
    encode_data,
    encode_message,
    split_sections,
)
from spillway.amqp.types import Symbol, Timestamp
from spillway.dialect.annotations import (
    BATCH_FORMAT,
    DEAD_LETTER_DESCRIPTION,
    DEAD_LETTER_REASON,
    DEAD_LETTER_SOURCE,
    ENQUEUED_TIME,
    LOCKED_UNTIL,
    MESSAGE_STATE,
    PARTITION_KEY,
    SCHEDULED_ENQUEUE_TIME,
    SEQUENCE_NUMBER,
)

__all__ = ["BATCH_FORMAT", "AmqpValue", "OutgoingMessage", "ReceivedMessage", "encode_batch", "encode_batch_raw"]

_LOCK_TOKEN_BYTES: Final = 16


@dataclass(frozen=True)
class AmqpValue:
    """A body that is one AMQP value instead of bytes. Python's int is a long; `amqp.types` has the others."""

    value: object


@dataclass
class OutgoingMessage:
    """A message to send. A body of bytes or text (as UTF-8) becomes one data section."""

    body: bytes | str | AmqpValue = b""
    message_id: str | None = None
    session_id: str | None = None
    partition_key: str | None = None
    subject: str | None = None
    to: str | None = None
    reply_to: str | None = None
    reply_to_session_id: str | None = None
    correlation_id: str | None = None
    content_type: str | None = None
    time_to_live_ms: int | None = None
    scheduled_enqueue_time_ms: int | None = None
    application_properties: Mapping[str, object] = field(default_factory=dict)
    annotations: Mapping[str, object] = field(default_factory=dict)

    def encode(self, *, message_id: str | None = None, scheduled_enqueue_time_ms: int | None = None) -> bytes:
        """The bytes of the message. What is given here replaces what the message says."""
        properties = self.application_properties
        return encode_message(
            header=None if self.time_to_live_ms is None else Header(ttl_ms=self.time_to_live_ms),
            message_annotations=self._annotations(scheduled_enqueue_time_ms),
            properties=self._properties(self.message_id if message_id is None else message_id),
            application_properties=dict(properties.items()) if properties else None,
            body=_encode_body(self.body),
        )

    def _annotations(self, scheduled_ms: int | None) -> dict[object, object] | None:
        if scheduled_ms is None:
            scheduled_ms = self.scheduled_enqueue_time_ms
        if scheduled_ms is None and self.partition_key is None and not self.annotations:
            return None
        annotations: dict[object, object] = {Symbol(name): value for name, value in self.annotations.items()}
        if self.partition_key is not None:
            annotations[Symbol(PARTITION_KEY)] = self.partition_key
        if scheduled_ms is not None:
            annotations[Symbol(SCHEDULED_ENQUEUE_TIME)] = Timestamp(scheduled_ms)
        return annotations

    def _properties(self, message_id: str | None) -> Properties | None:
        if (
            message_id is None
            and self.session_id is None
            and self.subject is None
            and self.to is None
            and self.reply_to is None
            and self.reply_to_session_id is None
            and self.correlation_id is None
            and self.content_type is None
        ):
            return None
        return Properties(
            message_id=message_id,
            to=self.to,
            subject=self.subject,
            reply_to=self.reply_to,
            correlation_id=self.correlation_id,
            content_type=self.content_type,
            group_id=self.session_id,
            reply_to_group_id=self.reply_to_session_id,
        )


class ReceivedMessage:
    """A message from a receiver, a peek or a deferred receive. `lock_token` is None when nothing is locked."""

    def __init__(
        self,
        raw: bytes,
        tag: bytes = b"",
        delivery_id: int = -1,
        link: Link | None = None,
        is_settled: bool = True,
    ) -> None:
        self.raw = raw
        self.delivery_id = delivery_id
        self.link = link
        self.is_settled = is_settled
        # The tag is the token in GUID order, not in network order (docs/wire.md, "Lock tokens have two byte orders").
        self._token_bytes = b"" if is_settled else tag

    def __repr__(self) -> str:
        return f"<ReceivedMessage {len(self.raw)} bytes, lock token {self.lock_token}>"

    @cached_property
    def lock_token(self) -> uuid.UUID | None:
        return uuid.UUID(bytes_le=self._token_bytes) if len(self._token_bytes) == _LOCK_TOKEN_BYTES else None

    @cached_property
    def sections(self) -> Sections:
        """Where the sections of the message lie in `raw`."""
        return split_sections(self.raw, DecodeBudget(MESSAGE_ELEMENTS_MAX))

    @cached_property
    def header(self) -> Header:
        return decode_header(self.raw, self.sections)

    @cached_property
    def properties(self) -> Properties:
        return decode_properties(self.raw, self.sections)

    @cached_property
    def annotations(self) -> dict[object, object]:
        """Message annotations, with the service's and the sender's own."""
        return decode_map(self.raw, self.sections.message_annotations)

    @cached_property
    def delivery_annotations(self) -> dict[object, object]:
        return decode_map(self.raw, self.sections.delivery_annotations)

    @cached_property
    def application_properties(self) -> dict[object, object]:
        """Application properties with their exact AMQP types, so that they can be sent on unchanged."""
        return decode_map(self.raw, self.sections.application_properties)

    @cached_property
    def body(self) -> bytes:
        """The data of a body of data sections, joined; empty for any other body."""
        return b"".join(self.raw[at:end] for at, end in decode_data_bodies(self.raw, self.sections))

    @cached_property
    def value(self) -> object:
        """The value of a body that is an AMQP value; None for any other body."""
        return decode_body_value(self.raw, self.sections)

    # -- what the service says of it ---------------------------------------------------------------------------

    @property
    def message_id(self) -> object:
        """The id as it was sent: nearly always a str, but AMQP allows uuid, ulong and binary too."""
        return self.properties.message_id

    @property
    def session_id(self) -> str | None:
        return self.properties.group_id

    @property
    def delivery_count(self) -> int:
        """Failed deliveries so far."""
        return self.header.delivery_count or 0

    @property
    def sequence_number(self) -> int | None:
        return self._number(SEQUENCE_NUMBER)

    @property
    def enqueued_time_ms(self) -> int | None:
        return self._number(ENQUEUED_TIME)

    @property
    def locked_until_ms(self) -> int | None:
        return self._number(LOCKED_UNTIL)

    @property
    def scheduled_enqueue_time_ms(self) -> int | None:
        return self._number(SCHEDULED_ENQUEUE_TIME)

    @property
    def state(self) -> int:
        """0 active, 1 deferred, 2 scheduled: matters on a peek."""
        return self._number(MESSAGE_STATE) or 0

    @property
    def dead_letter_source(self) -> object:
        return self.annotations.get(DEAD_LETTER_SOURCE)

    @property
    def dead_letter_reason(self) -> object:
        return self.application_properties.get(DEAD_LETTER_REASON)

    @property
    def dead_letter_description(self) -> object:
        return self.application_properties.get(DEAD_LETTER_DESCRIPTION)

    def _number(self, name: str) -> int | None:
        value = self.annotations.get(name)
        return value if isinstance(value, int) else None


def encode_batch(messages: Sequence[OutgoingMessage]) -> bytes:
    """Several messages as one, to be sent with `BATCH_FORMAT`: all of them are stored or none."""
    if not messages:
        raise ValueError("a batch has at least one message")
    first = messages[0]
    # The envelope says where the batch goes; the service reads it before it opens the batch.
    envelope = OutgoingMessage(
        message_id=first.message_id, session_id=first.session_id, partition_key=first.partition_key
    )
    return encode_batch_raw([message.encode() for message in messages], envelope)


def encode_batch_raw(messages: Sequence[bytes], envelope: OutgoingMessage | None = None) -> bytes:
    """A batch of messages that are encoded already."""
    body = b"".join([encode_data(message) for message in messages])
    if envelope is None:
        return body
    return encode_message(
        message_annotations=envelope._annotations(None), properties=envelope._properties(envelope.message_id), body=body
    )


def _encode_body(body: bytes | str | AmqpValue) -> bytes:
    if isinstance(body, bytes):
        return encode_data(body)
    if isinstance(body, str):
        return encode_data(body.encode())
    return encode_amqp_value(body.value)
