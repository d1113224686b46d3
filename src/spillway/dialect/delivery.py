"""A stored message as it goes to a client: our head, then the sender's bytes (docs/wire.md, "Message sections").

The head is header, delivery annotations and message annotations. The same encoder serves deliveries, browsing and
receiving by sequence number. The usual message gets its head by one join of bytes that are there (`UsualHeads`).

`absolute-expiry-time` and `creation-time` stay as the sender wrote them. Rewriting them would mean re-encoding the
properties of every message with a time to live; JavaScript subtracts one from the other, so both from the sender give
the right time to live, and one from each side would not.
"""

import struct
from typing import Final

from spillway.amqp.codec import encode
from spillway.amqp.rising import LAST_BYTES, Rising
from spillway.dialect.admission import admit_again
from spillway.dialect.annotations import (
    DEAD_LETTER_DESCRIPTION,
    DEAD_LETTER_REASON,
    DEAD_LETTER_SOURCE,
    ENQUEUE_SEQUENCE_NUMBER,
    ENQUEUED_TIME,
    LOCK_TOKEN,
    LOCKED_UNTIL,
    MESSAGE_STATE,
    SEQUENCE_NUMBER,
    encoded_symbol,
)
from spillway.dialect.encoded_maps import key_text, map_of, pairs_at, pairs_of
from spillway.model.errors import BrokerError
from spillway.model.message import ACTIVE, NEVER, SCHEDULED, UNSAID, Message, Overlay, StoredMessage

UINT_MAX: Final = 0xFFFFFFFF

# Descriptors are always smallulong (0x53): Python's decoder reads the code as one byte.
_HEADER: Final = b"\x00\x53\x70"
_DELIVERY_ANNOTATIONS: Final = b"\x00\x53\x71"
_MESSAGE_ANNOTATIONS: Final = b"\x00\x53\x72"
_APPLICATION_PROPERTIES: Final = b"\x00\x53\x74"

_NO_DELIVERY_ANNOTATIONS: Final = _DELIVERY_ANNOTATIONS + b"\xc1\x01\x00"

# In the tables below: "s" a literal, the rest a value.
_LONG: Final = b"\x81"
_TIMESTAMP: Final = b"\x83"
_SMALLINT: Final = b"\x54"
_UUID: Final = b"\x98"
_UINT: Final = b"\x70"

_TOKEN_KEY: Final = encoded_symbol(LOCK_TOKEN) + _UUID
_LOCKED_KEY: Final = encoded_symbol(LOCKED_UNTIL) + _TIMESTAMP
_NUMBER_KEY: Final = encoded_symbol(SEQUENCE_NUMBER) + _LONG
_TIME_KEY: Final = encoded_symbol(ENQUEUED_TIME) + _TIMESTAMP
_FIRST_NUMBER_KEY: Final = encoded_symbol(ENQUEUE_SEQUENCE_NUMBER) + _LONG
_STATE_KEY: Final = encoded_symbol(MESSAGE_STATE) + _SMALLINT
_SOURCE_KEY: Final = encoded_symbol(DEAD_LETTER_SOURCE)

# Our own pairs of the message annotations; the lock's end where there is one, and where it comes from and its state
# where those tell anything: Azure has neither on an active message that was sent to this very queue.
_PAIRS: Final = struct.Struct(f">{len(_NUMBER_KEY)}sq{len(_TIME_KEY)}sq")
_PAIRS_COUNT: Final = 2
_LOCKED_PAIR: Final = struct.Struct(f">{len(_LOCKED_KEY)}sq")
_FIRST_NUMBER_PAIR: Final = struct.Struct(f">{len(_FIRST_NUMBER_KEY)}sq")
_STATE_PAIR: Final = struct.Struct(f">{len(_STATE_KEY)}sB")

# The usual locked message: constants between its numbers.
_PLAIN_HEADERS: Final[list[bytes]] = [
    _HEADER + b"\xc0\x0a\x05" + flag + b"\x40\x40\x40" + _UINT + bytes(4) for flag in (b"\x40", b"\x42", b"\x41")
]
_TOKEN_PAIR_SIZE: Final = len(_TOKEN_KEY) + 16
_TOKEN_HEAD: Final = _DELIVERY_ANNOTATIONS + bytes([0xC1, 1 + _TOKEN_PAIR_SIZE, 2]) + _TOKEN_KEY
_OUR_SIZE: Final = _PAIRS.size + _LOCKED_PAIR.size
_OUR_HEAD: Final = _MESSAGE_ANNOTATIONS + bytes([0xC1, 1 + _OUR_SIZE, 2 * (_PAIRS_COUNT + 1)]) + _LOCKED_KEY
# The same of a copy in a subscription, which says where it comes from.
_COPY_SIZE: Final = _OUR_SIZE + _FIRST_NUMBER_PAIR.size + _STATE_PAIR.size
_COPY_HEAD: Final = _MESSAGE_ANNOTATIONS + bytes([0xC1, 1 + _COPY_SIZE, 2 * (_PAIRS_COUNT + 3)]) + _LOCKED_KEY
_COPY_STATE: Final = _STATE_KEY + bytes([ACTIVE])

_FLAGS: Final = b"\x40\x42\x41"  # null, false, true: by what was said


class UsualHeads:
    """Heads of the usual messages that one link is handed: locked, active, without annotations of their own, nothing
    changed by the broker. `head` gives what `encode_delivery` puts before the sender's bytes, or None for any other.

    Their numbers and times rise, and of their lock tokens only the second half differs.
    """

    def __init__(self, is_copy: bool) -> None:
        self.is_copy = is_copy
        self.seed = b""  # the first half of the last lock token
        self.token_head = b""  # up to there, in network order
        self.locked = Rising(8)
        self.numbers = Rising(8)
        self.times = Rising(8)
        self.first_numbers = Rising(8)

    def head(self, stored: StoredMessage, lock_token: bytes, locked_until_ms: int) -> bytes | None:
        message = stored.message
        if (
            message.annotations_count != 0
            or message.delivery_annotations_count != 0
            or stored.state != ACTIVE
            or message.was_scheduled
            or len(lock_token) != 16
        ):
            return None
        overlay = stored.overlay
        if self.is_copy:
            if overlay is not None and not overlay.changes_nothing():
                return None
        elif overlay is not None or stored.enqueue_sequence_number != stored.sequence_number:
            return None
        if not lock_token.startswith(self.seed) or not self.seed:
            self.seed = lock_token[:8]
            self.token_head = _TOKEN_HEAD + network_uuid(lock_token)[:8]
        number = stored.sequence_number
        enqueued_ms = stored.enqueued_ms
        head = b"%b%b%b%b%b%b%b%b%b%b%b%b" % (
            _plain_header(stored),
            self.token_head,
            lock_token[8:],
            _COPY_HEAD if self.is_copy else _OUR_HEAD,
            self.locked.upper(locked_until_ms),
            LAST_BYTES[locked_until_ms & 0xFF],
            _NUMBER_KEY,
            self.numbers.upper(number),
            LAST_BYTES[number & 0xFF],
            _TIME_KEY,
            self.times.upper(enqueued_ms),
            LAST_BYTES[enqueued_ms & 0xFF],
        )
        if self.is_copy:
            first = stored.enqueue_sequence_number
            upper = self.first_numbers.upper(first)
            return b"%b%b%b%b%b" % (head, _FIRST_NUMBER_KEY, upper, LAST_BYTES[first & 0xFF], _COPY_STATE)
        return head


def _plain_header(stored: StoredMessage) -> bytes:
    """The header; it says nothing but whether the message is durable, mostly."""
    message = stored.message
    if (
        stored.delivery_count == 0
        and message.priority < 0
        and message.first_acquirer == UNSAID
        and message.ttl_ms < 0
        and stored.expires_ms == NEVER
    ):
        return _PLAIN_HEADERS[message.durable]
    return _header(stored)


def encode_delivery(stored: StoredMessage, lock_token: bytes, locked_until_ms: int, is_copy: bool = False) -> bytes:
    """The whole message. Without a lock token it is not locked: browsed, or deleted as it was handed out.

    `is_copy`: it is in a subscription, and came by a topic.
    """
    message = stored.message
    return _head(stored, lock_token, locked_until_ms, is_copy) + _bare(message, stored.overlay, len(message.raw))


def encode_without_body(stored: StoredMessage, is_copy: bool = False) -> bytes:
    """For browsing with `omit-message-body`: everything up to the application properties."""
    return _head(stored, b"", 0, is_copy) + _bare(stored.message, stored.overlay, stored.message.application_end)


def network_uuid(lock_token: bytes) -> bytes:
    """The sixteen bytes of an AMQP uuid for a lock token, which is in GUID order; and back (docs/wire.md, "Lock tokens
    have two byte orders")."""
    return lock_token[3::-1] + lock_token[5:3:-1] + lock_token[7:5:-1] + lock_token[8:]


# -- the head, piece by piece -----------------------------------------------------------------------------------


def _head(stored: StoredMessage, lock_token: bytes, locked_until_ms: int, is_copy: bool) -> bytes:
    message = stored.message
    ours = _PAIRS.pack(_NUMBER_KEY, stored.sequence_number, _TIME_KEY, stored.enqueued_ms)
    count = _PAIRS_COUNT
    if is_copy or _is_from_elsewhere(stored):
        ours += _FIRST_NUMBER_PAIR.pack(_FIRST_NUMBER_KEY, stored.enqueue_sequence_number)
        count += 1
    # Azure calls a message that waited for its time scheduled for ever after.
    state = SCHEDULED if stored.state == ACTIVE and message.was_scheduled else stored.state
    if is_copy or state != ACTIVE:
        ours += _STATE_PAIR.pack(_STATE_KEY, state)
        count += 1
    if lock_token:
        ours = _LOCKED_PAIR.pack(_LOCKED_KEY, locked_until_ms) + ours
        count += 1
    overlay = stored.overlay
    if overlay is not None and overlay.dead_letter_source is not None:
        ours += _SOURCE_KEY + encode(overlay.dead_letter_source)
        count += 1
    theirs = message.raw[message.annotations_at : message.annotations_end]
    return (
        _header(stored)
        + _delivery_annotations(message, lock_token)
        + _MESSAGE_ANNOTATIONS
        + map_of(theirs + ours, message.annotations_count + count)
    )


def _is_from_elsewhere(stored: StoredMessage) -> bool:
    """It had another number once: before its time had come, or in what passed it on or dead-lettered it."""
    if stored.enqueue_sequence_number != stored.sequence_number:
        return True
    overlay = stored.overlay
    return overlay is not None and (overlay.hops > 0 or overlay.dead_letter_source is not None)


def _header(stored: StoredMessage) -> bytes:
    """Delivery count always; durable, priority and first-acquirer as sent; the time to live that counts here."""
    message = stored.message
    priority = b"\x40" if message.priority < 0 else bytes([0x50, message.priority])
    ttl_ms = message.ttl_ms
    if stored.expires_ms != NEVER:  # the entity's default, where that is shorter
        ttl_ms = stored.expires_ms - stored.enqueued_ms
    ttl = b"\x40" if ttl_ms < 0 else struct.pack(">BI", 0x70, min(ttl_ms, UINT_MAX))
    durable = _FLAGS[message.durable : message.durable + 1]
    first = _FLAGS[message.first_acquirer : message.first_acquirer + 1]
    fields = durable + priority + ttl + first + struct.pack(">BI", 0x70, stored.delivery_count)
    return _HEADER + bytes([0xC0, 1 + len(fields), 5]) + fields


def _delivery_annotations(message: Message, lock_token: bytes) -> bytes:
    """The sender's own reach the receiver; the lock token is ours (docs/wire.md, "Message sections")."""
    count = message.delivery_annotations_count
    if not lock_token and count == 0:
        return _NO_DELIVERY_ANNOTATIONS
    pairs = message.raw[message.delivery_annotations_at : message.delivery_annotations_end]
    if lock_token:
        pairs += _TOKEN_KEY + network_uuid(lock_token)
        count += 1
    return _DELIVERY_ANNOTATIONS + map_of(pairs, count)


# -- the rest, with what the broker changed ----------------------------------------------------------------------


def merged(message: Message, overlay: Overlay) -> Message:
    """The message with the changed properties among its own; as it is if that would be too much for a message."""
    changes = _changes(overlay)
    if not changes:
        return message
    raw = message.raw
    properties = _changed_properties(message, changes)
    try:
        changed = admit_again(raw[: message.properties_end] + properties + raw[message.application_end :])
    except BrokerError:
        return message
    changed.was_scheduled = message.was_scheduled
    return changed


def _changes(overlay: Overlay) -> dict[str, bytes]:
    changes = dict(overlay.properties)
    if overlay.dead_letter_reason is not None:
        changes[DEAD_LETTER_REASON] = encode(overlay.dead_letter_reason)
    if overlay.dead_letter_description is not None:
        changes[DEAD_LETTER_DESCRIPTION] = encode(overlay.dead_letter_description)
    return changes


def _bare(message: Message, overlay: Overlay | None, end: int) -> bytes:
    raw = message.raw
    changes = {} if overlay is None else _changes(overlay)
    if not changes:
        return raw[message.bare_at : end]
    properties = _changed_properties(message, changes)
    return raw[message.bare_at : message.properties_end] + properties + raw[message.application_end : end]


def _changed_properties(message: Message, changes: dict[str, bytes]) -> bytes:
    """The application properties with these set. Pairs that stay are copied as they are, byte for byte."""
    raw = message.raw
    kept: list[bytes] = []
    if message.properties_end < message.application_end:
        for pair in pairs_of(raw, pairs_at(raw, message.properties_end), message.application_end):
            if key_text(raw, pair) not in changes:
                kept.append(raw[pair.at : pair.end])
    for name, value in changes.items():
        kept.append(encode(name) + value)
    return _APPLICATION_PROPERTIES + map_of(b"".join(kept), len(kept))
