"""A turn comes back from its bytes as it was, and whatever else the bytes are is said."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spillway.model.ledger import LedgerRow
from spillway.model.message import Message, Overlay, StoredMessage
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
from spillway.store.rows import DamagedAdded, row_key
from spillway.store.turn_codec import CodecError, TurnReader, encode_turn

number = st.integers(0, (1 << 40) - 1)
entity = st.integers(1, (1 << 23) - 1)
time_ms = st.integers(0, 1 << 50)
small = st.integers(0, 1 << 30)
text = st.text(st.characters(exclude_categories=()), max_size=12)  # lone surrogates too
optional_text = st.none() | text


@st.composite
def overlays(draw: st.DrawFn) -> Overlay | None:
    if draw(st.booleans()):
        return None
    overlay = Overlay()
    overlay.hops = draw(st.integers(0, 5))
    overlay.dead_letter_reason = draw(optional_text)
    overlay.dead_letter_description = draw(optional_text)
    overlay.dead_letter_source = draw(optional_text)
    overlay.set_properties(draw(st.dictionaries(text, st.binary(max_size=9), max_size=3)))
    return overlay


@st.composite
def messages(draw: st.DrawFn) -> Message:
    message = Message(draw(st.binary(max_size=40)))
    message.message_id = draw(text)
    message.session_id = draw(optional_text)
    message.partition_key = draw(optional_text)
    message.ttl_ms = draw(st.integers(-1, 1 << 40))
    message.bare_at = draw(st.integers(0, 40))
    message.was_scheduled = draw(st.booleans())
    return message


@st.composite
def rows(draw: st.DrawFn, message: Message) -> StoredMessage:
    row = StoredMessage(message, draw(number), draw(time_ms))
    row.enqueue_sequence_number = draw(number)
    row.state = draw(st.integers(0, 3))
    row.delivery_count = draw(small)
    row.expires_ms = draw(time_ms)
    row.due_ms = draw(time_ms)
    row.overlay = draw(overlays())
    row.session_id = draw(optional_text)
    return row


@st.composite
def records(draw: st.DrawFn) -> list[Record]:
    kind = draw(st.integers(0, 12))
    if kind == 0:  # copies for several entities
        message = draw(messages())
        return [MessageAdded(draw(entity), draw(rows(message))) for _ in range(draw(st.integers(1, 3)))]
    if kind == 1:
        first = draw(number)
        entity_id = draw(entity)
        return [MessageRemoved(entity_id, first + more) for more in range(draw(st.integers(1, 4)))]
    return [
        [
            MessageRemoved(draw(entity), draw(number), draw(optional_text)),
            MessageChanged(draw(entity), draw(number), draw(st.integers(0, 3)), draw(small), draw(overlays())),
            MessageMoved(
                draw(entity),
                draw(number),
                draw(entity),
                draw(number),
                draw(time_ms),
                draw(time_ms),
                draw(small),
                draw(overlays()),
                draw(optional_text),
            ),
            EntityPut(draw(entity), draw(text), draw(text), draw(text), draw(entity)),
            EntityRemoved(draw(entity)),
            RulePut(draw(entity), draw(small), draw(text), draw(text)),
            RuleRemoved(draw(entity), draw(small)),
            SessionStatePut(draw(entity), draw(text), draw(st.none() | st.binary(max_size=9)), draw(time_ms)),
            MessageIdSeen(draw(entity), draw(number), draw(st.binary(max_size=27))),
            MessageIdsIndexed(draw(entity), draw(number), draw(time_ms)),
            MessageIdsForgotten(draw(entity), draw(number)),
        ][kind - 2]
    ]


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    turn = Turn(draw(time_ms))
    for group in draw(st.lists(records(), max_size=5)):
        turn.add(group)
    for entity_id in draw(st.lists(entity, max_size=2)):
        turn.counters[entity_id] = counters = Counters()
        counters.last_sequence_number, counters.active, counters.size_bytes = draw(number), draw(small), draw(time_ms)
        counters.deferred, counters.scheduled, counters.hidden = draw(small), draw(small), draw(small)
        counters.used_ms = draw(time_ms)
        turn.tallies[entity_id] = draw(st.binary(max_size=9))
    for _ in range(draw(st.integers(0, 2))):
        turn.ledger.append(
            LedgerRow(draw(small), draw(text), draw(st.integers(0, 9)), *(draw(small) for _ in range(3)))
        )
    turn.recounts += draw(st.lists(entity, max_size=2))
    turn.seals_before = draw(small)
    return turn


def plain(value: Any) -> Any:
    """Everything in it, by value."""
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    names = sorted({name for kind in type(value).__mro__ for name in _names(kind, value)})
    if names and not isinstance(value, str | bytes | int):
        return (type(value).__name__, {name: plain(getattr(value, name)) for name in names})
    return value


def _names(kind: type, value: object) -> list[str]:
    """Fields of a class, compiled or not."""
    compiled = [name for name in getattr(kind, "__mypyc_attrs__", ()) if not name.startswith("__")]
    return [*compiled, *getattr(value, "__dict__", {})]


def flat(turn: Turn) -> Any:
    """Without groups, which a frame makes one of: it is all or nothing itself."""
    grouped = [record for group in turn.groups for record in group]
    rest = (turn.now_ms, turn.counters, turn.ledger, turn.tallies, turn.seals_before, turn.recounts, turn.size_bytes)
    return plain(grouped), plain(rest)


def read(*encoded: Turn) -> list[Turn]:
    parts = [encode_turn(turn) for turn in encoded]
    meta = b"".join(piece for part in parts for piece in part.parts)
    return TurnReader(meta, b"".join(body for part in parts for body in part.bodies)).read()


@settings(max_examples=300, deadline=None)
@given(st.lists(turns(), min_size=1, max_size=3))
def test_turns_come_back_as_they_were(made: list[Turn]) -> None:
    assert [flat(turn) for turn in read(*made)] == [flat(turn) for turn in made]


def test_copies_of_a_message_have_its_bytes_once_and_share_it_again() -> None:
    message = Message(b"x" * 1000)
    message.message_id = "a"
    turn = Turn(1)
    turn.add([MessageAdded(entity_id, StoredMessage(message, 7, 1)) for entity_id in range(1, 11)])
    assert encode_turn(turn).bodies == [message.raw]
    (again,) = read(turn)
    found = [record.stored.message for record in again.groups[0] if isinstance(record, MessageAdded)]
    assert len(found) == 10 and all(one is found[0] for one in found)


def test_a_turn_that_was_written_for_its_time_alone_is_not_empty_when_it_is_read() -> None:
    turn = Turn(864_000_000)
    turn.add([])
    (again,) = read(turn)
    assert (again.now_ms, again.is_empty()) == (864_000_000, False)


def test_messages_removed_in_a_row_are_one_record() -> None:
    turn = Turn(1)
    turn.add([MessageRemoved(3, number) for number in range(1, 5_000)])
    assert len(b"".join(encode_turn(turn).parts)) < 100
    assert flat(read(turn)[0]) == flat(turn)


@settings(max_examples=100, deadline=None)
@given(turns(), st.data())
def test_bytes_that_somebody_else_wrote_are_refused_and_never_more_than_that(made: Turn, data: st.DataObject) -> None:
    encoded = encode_turn(made)
    meta = bytearray(b"".join(encoded.parts))
    at = data.draw(st.integers(0, len(meta) - 1))
    if data.draw(st.booleans()):
        meta[at] ^= data.draw(st.integers(1, 255))
    else:
        del meta[at:]
    try:
        TurnReader(bytes(meta), b"".join(encoded.bodies)).read()
    except CodecError as error:
        assert str(error)


@pytest.mark.parametrize("count", [1, 3])
def test_damaged_bytes_of_a_message_are_named_with_every_copy(count: int) -> None:
    message = Message(b"sound")
    message.message_id = "a"
    turn = Turn(1)
    turn.add([MessageAdded(entity_id, StoredMessage(message, 40 + entity_id, 1)) for entity_id in range(1, count + 1)])
    encoded = encode_turn(turn)
    reader = TurnReader(b"".join(encoded.parts), b"soumd")
    (again,) = reader.read()
    found = [record.key for record in again.groups[0] if isinstance(record, DamagedAdded)]
    assert found == [row_key(entity_id, 40 + entity_id) for entity_id in range(1, count + 1)]
    assert reader.damaged == count and len(again.groups[0]) == count
