"""A message as its sender encoded it, and the same message once it is stored.

The broker never re-encodes what a sender sent. `Message` keeps the raw bytes, where their sections lie, and the few
fields that decide what happens to it. What the broker itself changes (dead-letter reason, modified properties) goes
into an `Overlay`, which the dialect merges when it encodes a delivery.
"""

import struct
from typing import Final

# States, as `x-opt-message-state` says them (docs/wire.md, "Message sections").
ACTIVE: Final = 0
DEFERRED: Final = 1
SCHEDULED: Final = 2
# Ours alone, never said: accepted and stored, but not to be seen by anybody before its due time (contract I8).
HIDDEN: Final = 3

NEVER: Final = 0  # of an expiry or a due time in ms: there is none
NO_TTL: Final = -1

# Types of a message-id. 5 and "5" are two ids, as the SDKs show them.
# What a header's flag says: it reaches the receiver as it was sent, and unsaid is not false.
UNSAID: Final = 0
SAID_FALSE: Final = 1
SAID_TRUE: Final = 2

TEXT_ID: Final = 0
NUMBER_ID: Final = 1
UUID_ID: Final = 2
BINARY_ID: Final = 3

_META: Final = struct.Struct("<IIIIIIIIIqqbBhhh")


class Message:
    """What arrived. Immutable by convention: two subscriptions may share one.

    Offsets point into `raw`. `annotations_*` and `delivery_annotations_*` span the encoded key/value pairs of their
    maps, without descriptor and map header, so that ours can be appended; count is the number of *pairs*.
    `bare_at` is where the part that is passed on untouched begins. `properties_end` is where the application
    properties begin or would begin, `application_end` where they end; equal when there are none.
    """

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.bare_at = 0
        self.properties_end = 0
        self.application_end = 0
        self.annotations_at = 0
        self.annotations_end = 0
        self.annotations_count = 0
        self.delivery_annotations_at = 0
        self.delivery_annotations_end = 0
        self.delivery_annotations_count = 0
        self.ttl_ms = NO_TTL
        self.scheduled_ms = NEVER
        self.durable: int = UNSAID
        self.first_acquirer: int = UNSAID
        self.priority = -1  # absent
        self.message_id: str = ""  # its text, whatever its AMQP type; never empty once admitted
        self.message_id_type: int = TEXT_ID
        self.was_scheduled = False  # it waited for its time once: receivers are told for as long as it lives
        self.digest = b""  # of its id, while an entity looks whether it is a duplicate
        self.session_id: str | None = None
        self.partition_key: str | None = None
        self.is_ping = False  # contract F1, F2: answered, never stored

    def packed_flags(self) -> int:
        """The flags in one byte: durable in two bits of it, the lower one for true, where stores before this had it."""
        durable = 0b1 if self.durable == SAID_TRUE else 0b1_0000 if self.durable == SAID_FALSE else 0
        scheduled = 0b1000_0000 if self.was_scheduled else 0
        return durable | self.message_id_type << 1 | self.first_acquirer << 5 | scheduled

    def unpack_flags(self, flags: int) -> None:
        self.durable = SAID_TRUE if flags & 0b1 else SAID_FALSE if flags & 0b1_0000 else UNSAID
        self.message_id_type = flags >> 1 & 0b111
        self.first_acquirer = flags >> 5 & 0b11
        self.was_scheduled = flags & 0b1000_0000 != 0

    def pack_meta(self) -> bytes:
        """Everything but `raw`, for the store."""
        message_id = self.message_id.encode("utf-8", "surrogatepass")
        session_id = b"" if self.session_id is None else self.session_id.encode("utf-8", "surrogatepass")
        partition_key = b"" if self.partition_key is None else self.partition_key.encode("utf-8", "surrogatepass")
        return (
            _META.pack(
                self.bare_at,
                self.properties_end,
                self.application_end,
                self.annotations_at,
                self.annotations_end,
                self.annotations_count,
                self.delivery_annotations_at,
                self.delivery_annotations_end,
                self.delivery_annotations_count,
                self.ttl_ms,
                self.scheduled_ms,
                self.priority,
                self.packed_flags(),
                len(message_id),
                -1 if self.session_id is None else len(session_id),
                -1 if self.partition_key is None else len(partition_key),
            )
            + message_id
            + session_id
            + partition_key
        )


def unpack_message(raw: bytes, meta: bytes) -> Message:
    """The inverse of `Message.pack_meta`."""
    message = Message(raw)
    (
        message.bare_at,
        message.properties_end,
        message.application_end,
        message.annotations_at,
        message.annotations_end,
        message.annotations_count,
        message.delivery_annotations_at,
        message.delivery_annotations_end,
        message.delivery_annotations_count,
        message.ttl_ms,
        message.scheduled_ms,
        message.priority,
        flags,
        message_id_size,
        session_id_size,
        partition_key_size,
    ) = _META.unpack_from(meta, 0)
    message.unpack_flags(flags)
    at = _META.size
    message.message_id = meta[at : at + message_id_size].decode("utf-8", "surrogatepass")
    at += message_id_size
    if session_id_size >= 0:
        message.session_id = meta[at : at + session_id_size].decode("utf-8", "surrogatepass")
        at += session_id_size
    if partition_key_size >= 0:
        message.partition_key = meta[at : at + partition_key_size].decode("utf-8", "surrogatepass")
    return message


# What a property takes besides its name and value: in an encoded message, and in memory.
PROPERTY_HEAD_BYTES: Final = 5
PROPERTY_ENTRY_BYTES: Final = 200


class Overlay:
    """What the broker or a settlement changed. Property values are encoded AMQP values, opaque here."""

    def __init__(self) -> None:
        self.properties: dict[str, bytes] = {}
        self.properties_bytes = 0  # what they take in a message
        self.dead_letter_reason: str | None = None
        self.dead_letter_description: str | None = None
        self.dead_letter_source: str | None = None
        self.hops = 0  # how often it was passed on from one entity to another

    @property
    def size_bytes(self) -> int:
        """What it takes in memory, about."""
        size = 100 + self.properties_bytes + len(self.properties) * PROPERTY_ENTRY_BYTES
        for text in (self.dead_letter_reason, self.dead_letter_description, self.dead_letter_source):
            if text is not None:
                size += len(text)
        return size

    def set_properties(self, changes: dict[str, bytes]) -> None:
        for name, value in changes.items():
            old = self.properties.get(name)
            if old is not None:
                self.properties_bytes -= _property_bytes(name, old)
            self.properties[name] = value
            self.properties_bytes += _property_bytes(name, value)

    def clear_properties(self) -> None:
        self.properties = {}
        self.properties_bytes = 0

    def changes_nothing(self) -> bool:
        """Whether the overlay changes nothing of what a receiver sees."""
        return (
            not self.properties
            and self.dead_letter_reason is None
            and self.dead_letter_description is None
            and self.dead_letter_source is None
        )

    def copy(self) -> "Overlay":
        twin = Overlay()
        twin.properties = dict(self.properties)
        twin.properties_bytes = self.properties_bytes
        twin.dead_letter_reason = self.dead_letter_reason
        twin.dead_letter_description = self.dead_letter_description
        twin.dead_letter_source = self.dead_letter_source
        twin.hops = self.hops
        return twin

    def pack(self) -> bytes:
        """The hops, three optional texts, then name/value pairs, each as a length (-1: absent) and bytes."""
        parts: list[bytes] = [struct.pack("<i", self.hops)]
        for text in (self.dead_letter_reason, self.dead_letter_description, self.dead_letter_source):
            if text is None:
                parts.append(struct.pack("<i", -1))
            else:
                data = text.encode("utf-8", "surrogatepass")
                parts.append(struct.pack("<i", len(data)))
                parts.append(data)
        for name, value in self.properties.items():
            data = name.encode("utf-8", "surrogatepass")
            parts.append(struct.pack("<ii", len(data), len(value)))
            parts.append(data)
            parts.append(value)
        return b"".join(parts)


def _property_bytes(name: str, value: bytes) -> int:
    size = len(name) if name.isascii() else len(name.encode("utf-8", "surrogatepass"))
    return size + PROPERTY_HEAD_BYTES + len(value)


def unpack_overlay(data: bytes) -> Overlay:
    """The inverse of `Overlay.pack`."""
    overlay = Overlay()
    texts: list[str | None] = []
    (overlay.hops,) = struct.unpack_from("<i", data, 0)
    at = 4
    for _ in range(3):
        (size,) = struct.unpack_from("<i", data, at)
        at += 4
        if size < 0:
            texts.append(None)
        else:
            texts.append(data[at : at + size].decode("utf-8", "surrogatepass"))
            at += size
    overlay.dead_letter_reason, overlay.dead_letter_description, overlay.dead_letter_source = texts
    while at < len(data):
        name_size, value_size = struct.unpack_from("<ii", data, at)
        at += 8
        name = data[at : at + name_size].decode("utf-8", "surrogatepass")
        at += name_size
        overlay.properties[name] = data[at : at + value_size]
        overlay.properties_bytes += name_size + PROPERTY_HEAD_BYTES + value_size
        at += value_size
    return overlay


class StoredMessage:
    """A message in an entity: what the store keeps as one row."""

    def __init__(self, message: Message, sequence_number: int, enqueued_ms: int) -> None:
        self.message = message
        self.sequence_number = sequence_number
        self.enqueued_ms = enqueued_ms
        self.enqueue_sequence_number = sequence_number  # the number it had first, kept over moves
        self.state: int = ACTIVE
        self.delivery_count = 0  # failed deliveries so far: equals the wire's header field
        self.expires_ms: int = NEVER
        self.due_ms: int = NEVER  # of a scheduled or hidden message
        self.overlay: Overlay | None = None
        self.session_id: str | None = None  # only in an entity that requires sessions

    @property
    def size_bytes(self) -> int:
        return len(self.message.raw)
