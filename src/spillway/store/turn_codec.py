"""A turn as bytes, and back: what the log has of it.

The bytes of messages are kept apart from everything else, so that the rest can be written twice: it is little, and with
it a damaged message can still be named by its entity and number. Copies of one message have its bytes once.

Numbers are little-endian. A text is its size and UTF-8; of an optional one the size is -1 where there is none.
"""

import struct
from typing import Final
from zlib import crc32

from spillway.model.ledger import LedgerRow
from spillway.model.message import Message, Overlay, StoredMessage, unpack_message, unpack_overlay
from spillway.model.records import (
    Counters,
    EntityPut,
    EntityRemoved,
    MessageAdded,
    MessageChanged,
    MessageIdSeen,
    MessageIdsForgotten,
    MessageIdsIndexed,
    MessageMoved,
    MessageRemoved,
    Record,
    RulePut,
    RuleRemoved,
    SessionStatePut,
    Turn,
)
from spillway.store.rows import DamagedAdded

TURN: Final = 1
ADDED: Final = 2
COPIED: Final = 3  # another row of the message before it
REMOVED: Final = 4  # a run of messages without sessions
REMOVED_OF_SESSION: Final = 5
CHANGED: Final = 6
MOVED: Final = 7
ENTITY_PUT: Final = 8
ENTITY_REMOVED: Final = 9
RULE_PUT: Final = 10
RULE_REMOVED: Final = 11
SESSION_STATE_PUT: Final = 12
ID_SEEN: Final = 13
IDS_INDEXED: Final = 14
IDS_FORGOTTEN: Final = 15
COUNTERS: Final = 16
TALLY: Final = 17
LEDGER: Final = 18
RECOUNT: Final = 19

_TURN: Final = struct.Struct("<Bqq")
_ADDED: Final = struct.Struct("<BqqqqqqiBiiIII")  # ends with the sizes of four texts and the checksum of the last
_COPIED: Final = struct.Struct("<BqqqqqqiBii")
_ONE: Final = struct.Struct("<Bq")
_TWO: Final = struct.Struct("<Bqq")
_THREE: Final = struct.Struct("<Bqqq")
_CHANGED: Final = struct.Struct("<BqqBqi")
_MOVED: Final = struct.Struct("<Bqqqqqqqii")
_COUNTERS: Final = struct.Struct("<Bqqqqqqqq")
_LEDGER: Final = struct.Struct("<Bqqqqq")
_SIZE: Final = struct.Struct("<i")


class EncodedTurn:
    """What is to be written of a turn. `parts` are the records without the bytes of messages, which are `bodies`."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.bodies: list[bytes] = []


class CodecError(Exception):
    """What was read is nothing that was written here, though its checksum holds: written by another version."""


# -- writing ----------------------------------------------------------------------------------------------------------


def encode_turn(turn: Turn) -> EncodedTurn:
    encoded = EncodedTurn()
    parts = encoded.parts
    parts.append(_TURN.pack(TURN, turn.now_ms, turn.seals_before))
    last: Message | None = None  # whose bytes were written last
    run_entity_id = run_first = run_last = -1
    for group in turn.groups:
        for record in group:
            if isinstance(record, MessageRemoved) and record.session_id is None:
                if record.entity_id == run_entity_id and record.sequence_number == run_last + 1:
                    run_last = record.sequence_number
                    continue
                if run_entity_id >= 0:
                    parts.append(_THREE.pack(REMOVED, run_entity_id, run_first, run_last))
                run_entity_id = record.entity_id
                run_first = run_last = record.sequence_number
                continue
            if run_entity_id >= 0:  # in order: a number may be removed only after it was added
                parts.append(_THREE.pack(REMOVED, run_entity_id, run_first, run_last))
                run_entity_id = -1
            if isinstance(record, MessageAdded):
                message = record.stored.message
                if message is last:
                    _write_copied(parts, record)
                else:
                    _write_added(encoded, record)
                    last = message
            elif isinstance(record, MessageIdSeen):
                parts.append(_TWO.pack(ID_SEEN, record.entity_id, record.sequence_number))
                _write_bytes(parts, record.packed)
            else:
                _write_rare(parts, record)
    if run_entity_id >= 0:
        parts.append(_THREE.pack(REMOVED, run_entity_id, run_first, run_last))
    for entity_id, counters in turn.counters.items():
        parts.append(
            _COUNTERS.pack(
                COUNTERS,
                entity_id,
                counters.last_sequence_number,
                counters.active,
                counters.deferred,
                counters.scheduled,
                counters.hidden,
                counters.size_bytes,
                counters.used_ms,
            )
        )
    if turn.tallies:
        for entity_id, tally in turn.tallies.items():
            parts.append(_ONE.pack(TALLY, entity_id))
            _write_bytes(parts, tally)
    for row in turn.ledger:
        parts.append(_LEDGER.pack(LEDGER, row.minute, row.kind, row.operations, row.units, row.size_bytes))
        _write_text(parts, row.entity)
    for entity_id in turn.recounts:
        parts.append(_ONE.pack(RECOUNT, entity_id))
    return encoded


def _write_added(encoded: EncodedTurn, record: MessageAdded) -> None:
    stored = record.stored
    raw = stored.message.raw
    meta = stored.message.pack_meta()
    session = b"" if stored.session_id is None else stored.session_id.encode("utf-8", "surrogatepass")
    overlay = b"" if stored.overlay is None else stored.overlay.pack()
    encoded.parts.append(
        _ADDED.pack(
            ADDED,
            record.entity_id,
            stored.sequence_number,
            stored.enqueued_ms,
            stored.enqueue_sequence_number,
            stored.expires_ms,
            stored.due_ms,
            stored.delivery_count,
            stored.state,
            -1 if stored.session_id is None else len(session),
            -1 if stored.overlay is None else len(overlay),
            len(meta),
            len(raw),
            crc32(raw),
        )
    )
    encoded.parts.append(meta)
    if session:
        encoded.parts.append(session)
    if overlay:
        encoded.parts.append(overlay)
    encoded.bodies.append(raw)


def _write_copied(parts: list[bytes], record: MessageAdded) -> None:
    stored = record.stored
    session = b"" if stored.session_id is None else stored.session_id.encode("utf-8", "surrogatepass")
    overlay = b"" if stored.overlay is None else stored.overlay.pack()
    parts.append(
        _COPIED.pack(
            COPIED,
            record.entity_id,
            stored.sequence_number,
            stored.enqueued_ms,
            stored.enqueue_sequence_number,
            stored.expires_ms,
            stored.due_ms,
            stored.delivery_count,
            stored.state,
            -1 if stored.session_id is None else len(session),
            -1 if stored.overlay is None else len(overlay),
        )
    )
    parts.append(session)
    parts.append(overlay)


def _write_rare(parts: list[bytes], record: Record) -> None:
    if isinstance(record, MessageRemoved):
        parts.append(_TWO.pack(REMOVED_OF_SESSION, record.entity_id, record.sequence_number))
        _write_optional(parts, record.session_id)
    elif isinstance(record, MessageChanged):
        overlay = b"" if record.overlay is None else record.overlay.pack()
        size = -1 if record.overlay is None else len(overlay)
        place = (record.entity_id, record.sequence_number)
        parts.append(_CHANGED.pack(CHANGED, *place, record.state, record.delivery_count, size))
        parts.append(overlay)
    elif isinstance(record, MessageMoved):
        _write_moved(parts, record)
    elif isinstance(record, EntityPut):
        parts.append(_TWO.pack(ENTITY_PUT, record.entity_id, record.parent_id))
        for text in (record.kind, record.path, record.settings):
            _write_text(parts, text)
    elif isinstance(record, EntityRemoved):
        parts.append(_ONE.pack(ENTITY_REMOVED, record.entity_id))
    elif isinstance(record, RulePut):
        parts.append(_TWO.pack(RULE_PUT, record.entity_id, record.number))
        _write_text(parts, record.name)
        _write_text(parts, record.text)
    elif isinstance(record, RuleRemoved):
        parts.append(_TWO.pack(RULE_REMOVED, record.entity_id, record.number))
    elif isinstance(record, SessionStatePut):
        parts.append(_TWO.pack(SESSION_STATE_PUT, record.entity_id, record.now_ms))
        _write_text(parts, record.session_id)
        if record.state is None:
            parts.append(_SIZE.pack(-1))
        else:
            _write_bytes(parts, record.state)
    elif isinstance(record, MessageIdsIndexed):
        parts.append(_THREE.pack(IDS_INDEXED, record.entity_id, record.upto, record.accepted_ms))
    elif isinstance(record, MessageIdsForgotten):
        parts.append(_TWO.pack(IDS_FORGOTTEN, record.entity_id, record.upto))
    else:
        raise AssertionError(f"a record the log does not know: {type(record).__name__}")


def _write_moved(parts: list[bytes], record: MessageMoved) -> None:
    overlay = b"" if record.overlay is None else record.overlay.pack()
    session = b"" if record.session_id is None else record.session_id.encode("utf-8", "surrogatepass")
    parts.append(
        _MOVED.pack(
            MOVED,
            record.from_entity_id,
            record.from_sequence_number,
            record.to_entity_id,
            record.to_sequence_number,
            record.enqueued_ms,
            record.expires_ms,
            record.delivery_count,
            -1 if record.session_id is None else len(session),
            -1 if record.overlay is None else len(overlay),
        )
    )
    parts.append(session)
    parts.append(overlay)


def _write_bytes(parts: list[bytes], data: bytes) -> None:
    parts.append(_SIZE.pack(len(data)))
    parts.append(data)


def _write_text(parts: list[bytes], text: str) -> None:
    _write_bytes(parts, text.encode("utf-8", "surrogatepass"))


def _write_optional(parts: list[bytes], text: str | None) -> None:
    if text is None:
        parts.append(_SIZE.pack(-1))
    else:
        _write_text(parts, text)


# -- reading ----------------------------------------------------------------------------------------------------------


class TurnReader:
    """Reads the turns of one frame: `meta` is all of their parts, `bodies` all of their bodies.

    A message whose bytes do not match is `DamagedAdded`; `damaged` counts them.
    """

    def __init__(self, meta: bytes, bodies: bytes) -> None:
        self._meta = meta
        self._bodies = bodies
        self._at = 0
        self._body_at = 0
        self._last: Message | None = None
        self._last_meta = b""
        self._is_last_sound = True
        self.damaged = 0

    def read(self) -> list[Turn]:
        """Whatever is wrong with bytes whose checksum holds is another version's, and no damage."""
        try:
            return self._read()
        except (struct.error, IndexError, ValueError, OverflowError) as error:
            raise CodecError(f"{type(error).__name__}: {error}") from error

    def _read(self) -> list[Turn]:
        turns: list[Turn] = []
        meta = self._meta
        end = len(meta)
        turn = Turn(0)
        group: list[Record] = []
        while self._at < end:
            kind = meta[self._at]
            if kind == TURN:
                _end_turn(turn, group)
                _, now_ms, seals_before = _TURN.unpack_from(meta, self._at)
                self._at += _TURN.size
                turn = Turn(now_ms)
                turn.seals_before = seals_before
                group = []
                turns.append(turn)
            elif kind == ADDED:
                self._read_added(group)
            elif kind == REMOVED:
                _, entity_id, first, last = _THREE.unpack_from(meta, self._at)
                self._at += _THREE.size
                for number in range(first, last + 1):
                    group.append(MessageRemoved(entity_id, number))
            elif kind == COUNTERS:
                self._read_counters(turn)
            elif kind == COPIED:
                self._read_copied(group)
            elif kind == ID_SEEN:
                _, entity_id, number = _TWO.unpack_from(meta, self._at)
                self._at += _TWO.size
                group.append(MessageIdSeen(entity_id, number, self._read_bytes()))
            else:
                self._read_rare(kind, turn, group)
        _end_turn(turn, group)
        return turns

    def _read_added(self, group: list[Record]) -> None:
        meta = self._meta
        fields = _ADDED.unpack_from(meta, self._at)
        meta_size, raw_size, checksum = fields[11:]
        self._at += _ADDED.size
        self._last_meta = meta[self._at : self._at + meta_size]
        self._at += meta_size
        raw = self._bodies[self._body_at : self._body_at + raw_size]
        self._body_at += raw_size
        self._is_last_sound = len(raw) == raw_size and crc32(raw) == checksum
        self._last = unpack_message(raw, self._last_meta)
        self._add(fields[1], self._stored(fields), group)

    def _read_copied(self, group: list[Record]) -> None:
        fields = _COPIED.unpack_from(self._meta, self._at)
        self._at += _COPIED.size
        self._add(fields[1], self._stored(fields), group)

    def _stored(self, fields: tuple[int, ...]) -> StoredMessage:
        (
            _,
            _,
            number,
            enqueued_ms,
            first_number,
            expires_ms,
            due_ms,
            delivery_count,
            state,
            session_size,
            overlay_size,
        ) = fields[:11]
        if self._last is None:
            raise ValueError("a copy of no message")
        stored = StoredMessage(self._last, number, enqueued_ms)
        stored.enqueue_sequence_number = first_number
        stored.expires_ms = expires_ms
        stored.due_ms = due_ms
        stored.delivery_count = delivery_count
        stored.state = state
        stored.session_id = self._read_sized(session_size)
        stored.overlay = self._read_overlay(overlay_size)
        return stored

    def _add(self, entity_id: int, stored: StoredMessage, group: list[Record]) -> None:
        if self._is_last_sound:
            group.append(MessageAdded(entity_id, stored))
        else:
            self.damaged += 1
            group.append(DamagedAdded(entity_id, stored, self._last_meta))

    def _read_counters(self, turn: Turn) -> None:
        _, entity_id, *numbers = _COUNTERS.unpack_from(self._meta, self._at)
        self._at += _COUNTERS.size
        counters = Counters()
        (
            counters.last_sequence_number,
            counters.active,
            counters.deferred,
            counters.scheduled,
            counters.hidden,
            counters.size_bytes,
            counters.used_ms,
        ) = numbers
        turn.counters[entity_id] = counters

    def _read_rare(self, kind: int, turn: Turn, group: list[Record]) -> None:
        meta = self._meta
        at = self._at
        if kind == REMOVED_OF_SESSION:
            _, entity_id, number = _TWO.unpack_from(meta, at)
            self._at += _TWO.size
            group.append(MessageRemoved(entity_id, number, self._read_optional()))
        elif kind == CHANGED:
            _, entity_id, number, state, delivery_count, size = _CHANGED.unpack_from(meta, at)
            self._at += _CHANGED.size
            group.append(MessageChanged(entity_id, number, state, delivery_count, self._read_overlay(size)))
        elif kind == MOVED:
            _, *places, delivery_count, session_size, size = _MOVED.unpack_from(meta, at)
            self._at += _MOVED.size
            session_id = self._read_sized(session_size)
            from_id, from_number, to_id, to_number, enqueued_ms, expires_ms = places
            overlay = self._read_overlay(size)
            group.append(
                MessageMoved(
                    from_id, from_number, to_id, to_number, enqueued_ms, expires_ms, delivery_count, overlay, session_id
                )
            )
        elif kind == ENTITY_PUT:
            _, entity_id, parent_id = _TWO.unpack_from(meta, at)
            self._at += _TWO.size
            kind_of_entity, path, settings = self._read_text(), self._read_text(), self._read_text()
            group.append(EntityPut(entity_id, kind_of_entity, path, settings, parent_id))
        elif kind == RULE_PUT:
            _, entity_id, number = _TWO.unpack_from(meta, at)
            self._at += _TWO.size
            name, text = self._read_text(), self._read_text()
            group.append(RulePut(entity_id, number, name, text))
        elif kind == SESSION_STATE_PUT:
            _, entity_id, now_ms = _TWO.unpack_from(meta, at)
            self._at += _TWO.size
            session_id = self._read_text()
            group.append(SessionStatePut(entity_id, session_id, self._read_state(), now_ms))
        elif kind == LEDGER:
            _, minute, kind_of_row, operations, units, size_bytes = _LEDGER.unpack_from(meta, at)
            self._at += _LEDGER.size
            turn.ledger.append(LedgerRow(minute, self._read_text(), kind_of_row, operations, units, size_bytes))
        else:
            self._read_small(kind, turn, group)

    def _read_small(self, kind: int, turn: Turn, group: list[Record]) -> None:
        meta = self._meta
        at = self._at
        if kind in (ENTITY_REMOVED, TALLY, RECOUNT):
            _, entity_id = _ONE.unpack_from(meta, at)
            self._at += _ONE.size
            if kind == ENTITY_REMOVED:
                group.append(EntityRemoved(entity_id))
            elif kind == TALLY:
                turn.tallies[entity_id] = self._read_bytes()
            else:
                turn.recounts.append(entity_id)
        elif kind in (RULE_REMOVED, IDS_FORGOTTEN):
            _, entity_id, number = _TWO.unpack_from(meta, at)
            self._at += _TWO.size
            group.append(
                RuleRemoved(entity_id, number) if kind == RULE_REMOVED else MessageIdsForgotten(entity_id, number)
            )
        elif kind == IDS_INDEXED:
            _, entity_id, upto, accepted_ms = _THREE.unpack_from(meta, at)
            self._at += _THREE.size
            group.append(MessageIdsIndexed(entity_id, upto, accepted_ms))
        else:
            raise ValueError(f"a record of no known kind: {kind}")

    def _read_sized(self, size: int) -> str | None:
        if size < 0:
            return None
        text = self._meta[self._at : self._at + size].decode("utf-8", "surrogatepass")
        self._at += size
        return text

    def _read_overlay(self, size: int) -> Overlay | None:
        if size < 0:
            return None
        overlay = unpack_overlay(self._meta[self._at : self._at + size])
        self._at += size
        return overlay

    def _read_size(self) -> int:
        (size,) = _SIZE.unpack_from(self._meta, self._at)
        self._at += _SIZE.size
        return int(size)

    def _read_bytes(self) -> bytes:
        state = self._read_state()
        if state is None:
            raise ValueError("bytes are missing")
        return state

    def _read_state(self) -> bytes | None:
        size = self._read_size()
        if size < 0:
            return None
        data = self._meta[self._at : self._at + size]
        self._at += size
        return data

    def _read_text(self) -> str:
        text = self._read_sized(self._read_size())
        if text is None:
            raise ValueError("a text is missing")
        return text

    def _read_optional(self) -> str | None:
        return self._read_sized(self._read_size())


def _end_turn(turn: Turn, group: list[Record]) -> None:
    """A turn without anything in it was written for its time, which the clock goes on from: it is not empty."""
    if group or turn.is_empty():
        turn.add(group)
