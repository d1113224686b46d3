"""One stored message as one row, and back, with a checksum over everything in it.

A row that does not match its checksum is never turned into a message again. It becomes a `DamagedRow`, which can be
moved and removed like any other, and stays damaged wherever it goes.
"""

import struct
from collections.abc import Callable
from typing import Final, TypeAlias
from zlib import crc32

from spillway.model.message import HIDDEN, NEVER, SCHEDULED, StoredMessage, unpack_message, unpack_overlay
from spillway.model.records import Record

SEQUENCE_BITS: Final = 40  # 10^12 messages an entity; 2^23 entities in the 63 bits of a key
SEQUENCE_MASK: Final = (1 << SEQUENCE_BITS) - 1

# key, state, due_ms, enqueued_ms, expires_ms, delivery_count, enqueue_sequence_number, session_id, checksum, overlay,
# meta, body_id, raw: one of the last two is None
Columns: TypeAlias = tuple[
    int, int, int, int, int, int, int, str | None, int, bytes | None, bytes, int | None, bytes | None
]

SESSION_ID_AT: Final = 7  # among the columns
BODY_ID_AT: Final = 11

_HEAD: Final = struct.Struct("<qqqqqqqqqqq")


def row_key(entity_id: int, sequence_number: int) -> int:
    return entity_id << SEQUENCE_BITS | sequence_number


def sequence_number_of(key: int) -> int:
    return key & SEQUENCE_MASK


def entity_id_of(key: int) -> int:
    return key >> SEQUENCE_BITS


def text_of(value: object) -> str | None:
    """Text that was read as bytes; None if it is none."""
    if isinstance(value, str):
        return value
    if not isinstance(value, bytes):
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def checksum_of(
    key: int,
    state: int,
    due_ms: int,
    enqueued_ms: int,
    expires_ms: int,
    delivery_count: int,
    enqueue_sequence_number: int,
    session_id: str | None,
    overlay: bytes | None,
    meta: bytes,
    body_id: int | None,
    raw: bytes,
) -> int:
    """Sizes are part of it, so that bytes cannot wander from one blob to the next; and the bytes of a shared body."""
    head = _HEAD.pack(
        key,
        state,
        due_ms,
        enqueued_ms,
        expires_ms,
        delivery_count,
        enqueue_sequence_number,
        -1 if overlay is None else len(overlay),
        len(meta),
        0 if body_id is None else body_id,
        len(raw),
    )
    if session_id is not None:
        head += b"s" + session_id.encode("utf-8", "surrogatepass")
    return crc32(raw, crc32(head + meta if overlay is None else head + meta + overlay))


def columns_of(key: int, stored: StoredMessage, body_id: int | None = None) -> Columns:
    """The columns of a message. With `body_id`, the bytes are there and not in this row."""
    overlay = None if stored.overlay is None else stored.overlay.pack()
    meta = stored.message.pack_meta()
    raw = stored.message.raw
    due_ms = stored.due_ms if stored.state in (SCHEDULED, HIDDEN) else NEVER
    checksum = checksum_of(
        key,
        stored.state,
        due_ms,
        stored.enqueued_ms,
        stored.expires_ms,
        stored.delivery_count,
        stored.enqueue_sequence_number,
        stored.session_id,
        overlay,
        meta,
        body_id,
        raw,
    )
    return (
        key,
        stored.state,
        due_ms,
        stored.enqueued_ms,
        stored.expires_ms,
        stored.delivery_count,
        stored.enqueue_sequence_number,
        stored.session_id,
        checksum,
        overlay,
        meta,
        body_id,
        raw if body_id is None else None,
    )


class DamagedRow:
    """A row whose checksum does not hold, as it was read."""

    def __init__(self, columns: tuple[object, ...]) -> None:
        text = text_of(columns[7])  # as it goes back into the table, if it is text
        self.columns = columns if text is None else (*columns[:7], text, *columns[8:])

    def at(self, key: int) -> tuple[object, ...]:
        """The same content under another key as an active row: no checksum matches None, so it stays damaged."""
        _, _, _, enqueued_ms, expires_ms, delivery_count, enqueue_number, _, _, *blobs = self.columns
        return (key, 0, 0, enqueued_ms, expires_ms, delivery_count, enqueue_number, None, None, *blobs)

    @property
    def session_id(self) -> str | None:
        """The session id of the row, as far as it can be told."""
        session_id = self.columns[7]
        return session_id if isinstance(session_id, str) else None

    @property
    def body_id(self) -> object:
        return self.columns[BODY_ID_AT]

    @property
    def state(self) -> object:
        return self.columns[1]


class DamagedAdded(Record):
    """A message that was added, and whose bytes are not what they were: its row is damaged from the beginning."""

    def __init__(self, entity_id: int, stored: StoredMessage, meta: bytes) -> None:
        super().__init__()
        self.key = row_key(entity_id, stored.sequence_number)
        columns = columns_of(self.key, stored)
        self.row = DamagedRow((*columns[:8], None, columns[9], meta, *columns[11:]))  # no checksum matches None


def stored_of(columns: tuple[object, ...], read_body: Callable[[int], object]) -> StoredMessage | DamagedRow:
    """A flipped byte may change a column's type as well as its value: both are damage, neither is an exception.

    `read_body` finds the bytes of a row that has none of its own.
    """
    (
        key,
        state,
        due_ms,
        enqueued_ms,
        expires_ms,
        delivery_count,
        enqueue_number,
        session_id,
        checksum,
        overlay,
        meta,
        body_id,
        raw,
    ) = columns
    if raw is None and isinstance(body_id, int):
        raw = read_body(body_id)
    if session_id is not None:
        session_id = text_of(session_id)
        if session_id is None:
            return DamagedRow(columns)
    if not (
        isinstance(key, int)
        and isinstance(state, int)
        and isinstance(due_ms, int)
        and isinstance(enqueued_ms, int)
        and isinstance(expires_ms, int)
        and isinstance(delivery_count, int)
        and isinstance(enqueue_number, int)
        and (overlay is None or isinstance(overlay, bytes))
        and isinstance(meta, bytes)
        and (body_id is None or isinstance(body_id, int))
        and isinstance(raw, bytes)
    ):
        return DamagedRow(columns)
    if checksum != checksum_of(
        key,
        state,
        due_ms,
        enqueued_ms,
        expires_ms,
        delivery_count,
        enqueue_number,
        session_id,
        overlay,
        meta,
        body_id,
        raw,
    ):
        return DamagedRow(columns)
    try:
        message = unpack_message(raw, meta)
        changes = None if overlay is None else unpack_overlay(overlay)
    except Exception:  # whatever it is, it is nothing that this version wrote: one row, and no reason to stop
        return DamagedRow(columns)
    stored = StoredMessage(message, sequence_number_of(key), enqueued_ms)
    stored.enqueue_sequence_number = enqueue_number
    stored.state = state
    stored.delivery_count = delivery_count
    stored.expires_ms = expires_ms
    stored.due_ms = due_ms
    stored.session_id = session_id
    stored.overlay = changes
    return stored


class RowDecoder:
    """Decodes rows of an answer, one a call. A damaged one is handed to `on_damaged`, and its number answered."""

    def __init__(self, read_body: Callable[[int], object], on_damaged: Callable[[DamagedRow], None]) -> None:
        self._read_body = read_body
        self._on_damaged = on_damaged

    def decode(self, columns: tuple[object, ...]) -> StoredMessage | int:
        row = stored_of(columns, self._read_body)
        if isinstance(row, StoredMessage):
            return row
        self._on_damaged(row)
        key = columns[0]
        assert isinstance(key, int), "a rowid is an integer"
        return sequence_number_of(key)


def copy_of(stored: StoredMessage) -> StoredMessage:
    """A twin that may be changed. The message itself never is, so both share it."""
    twin = StoredMessage(stored.message, stored.sequence_number, stored.enqueued_ms)
    twin.enqueue_sequence_number = stored.enqueue_sequence_number
    twin.state = stored.state
    twin.delivery_count = stored.delivery_count
    twin.expires_ms = stored.expires_ms
    twin.due_ms = stored.due_ms if stored.state in (SCHEDULED, HIDDEN) else NEVER
    twin.overlay = None if stored.overlay is None else stored.overlay.copy()
    twin.session_id = stored.session_id
    return twin
