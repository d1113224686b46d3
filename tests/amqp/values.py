"""Random AMQP values and performatives, exact comparison, and the way to and from qpid-proton's types."""

import struct
import uuid
from typing import Any

import proton
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from spillway.amqp.errors import AmqpError
from spillway.amqp.performatives import (
    Accepted,
    Attach,
    Begin,
    Close,
    Coordinator,
    Declare,
    Declared,
    DeliveryState,
    Detach,
    Discharge,
    Disposition,
    End,
    Flow,
    Modified,
    Open,
    Performative,
    Received,
    Rejected,
    Released,
    SaslBody,
    SaslChallenge,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
    Source,
    Target,
    TransactionalState,
    Transfer,
)
from spillway.amqp.types import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)


def around(low: int, high: int) -> SearchStrategy[int]:
    """Integers of a range, the small ones and its ends more often."""
    near = st.integers(max(low, -130), min(high, 260))
    return st.one_of(near, st.integers(low, high), st.sampled_from([low, high]))


TEXT = st.one_of(st.text(max_size=12), st.text("aé€", min_size=80, max_size=300))
ASCII = st.text(st.characters(min_codepoint=0, max_codepoint=127), max_size=12)

BY_CODE: dict[int, SearchStrategy[Any]] = {
    0x40: st.none(),
    0x56: st.booleans(),
    0x50: around(0, 2**8 - 1).map(UByte),
    0x60: around(0, 2**16 - 1).map(UShort),
    0x70: around(0, 2**32 - 1).map(UInt),
    0x80: around(0, 2**64 - 1).map(ULong),
    0x51: around(-(2**7), 2**7 - 1).map(Byte),
    0x61: around(-(2**15), 2**15 - 1).map(Short),
    0x71: around(-(2**31), 2**31 - 1).map(Int),
    0x81: around(-(2**63), 2**63 - 1),
    0x83: around(-(2**63), 2**63 - 1).map(Timestamp),
    0x72: st.floats(width=32).map(Float),
    0x82: st.floats(),
    0x73: st.characters(exclude_categories=["Cs"]).map(Char),
    0x74: st.binary(min_size=4, max_size=4).map(Decimal32),
    0x84: st.binary(min_size=8, max_size=8).map(Decimal64),
    0x94: st.binary(min_size=16, max_size=16).map(Decimal128),
    0x98: st.uuids(),
    0xB0: st.one_of(st.binary(max_size=12), st.binary(min_size=250, max_size=260)),
    0xB1: TEXT,
    0xB3: ASCII.map(Symbol),
}
SCALARS = st.one_of(*BY_CODE.values())


def _array(code: int) -> SearchStrategy[Array]:
    return st.lists(BY_CODE[code], max_size=5).map(lambda items: Array(code, items))


ARRAYS = st.one_of(*[_array(code) for code in BY_CODE])


def _compounds(inner: SearchStrategy[Any]) -> SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(ASCII.map(Symbol), inner, max_size=4),
        st.dictionaries(TEXT, inner, max_size=3),
        st.dictionaries(BY_CODE[0x70], inner, max_size=3),
        st.builds(Described, st.one_of(ASCII.map(Symbol), BY_CODE[0x80]), inner),
        st.lists(st.lists(inner, max_size=3), max_size=3).map(lambda items: Array(0xD0, items)),
        st.lists(st.lists(BY_CODE[0x71], max_size=3).map(lambda i: Array(0x71, i)), max_size=3).map(
            lambda items: Array(0xF0, items)
        ),
        st.lists(inner.filter(lambda value: isinstance(value, dict)), max_size=1).map(lambda i: Array(0xD1, i)),
        st.lists(BY_CODE[0x70], max_size=3).map(lambda i: Array(0x70, i, Symbol("a:described:uint"))),
    )


VALUES: SearchStrategy[Any] = st.recursive(st.one_of(SCALARS, ARRAYS), _compounds, max_leaves=8)


def same(left: Any, right: Any) -> bool:
    """Equal, and of the same AMQP type all the way down. A code is not a type: arrays may have been widened."""
    if type(left) is not type(right):
        return False
    if isinstance(left, float):
        return struct.pack(">d", left) == struct.pack(">d", right) or (left != left and right != right)
    if isinstance(left, Array) and not same(left.descriptor, right.descriptor):
        return False
    if isinstance(left, list):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    if isinstance(left, dict):
        pairs = zip(left.items(), right.items(), strict=False)
        return len(left) == len(right) and all(same(k, m) and same(v, w) for (k, v), (m, w) in pairs)
    if isinstance(left, Described):
        return same(left.descriptor, right.descriptor) and same(left.value, right.value)
    return bool(left == right)


# --- proton ----------------------------------------------------------------------------------------------------------

_PROTON_TYPES: dict[type, Any] = {
    UByte: proton.ubyte,
    UShort: proton.ushort,
    UInt: proton.uint,
    ULong: proton.ulong,
    Byte: proton.byte,
    Short: proton.short,
    Int: proton.int32,
    Timestamp: proton.timestamp,
    Float: proton.float32,
    Char: proton.char,
    Symbol: proton.symbol,
    Decimal128: proton.decimal128,
}
_OUR_TYPES = {theirs: ours for ours, theirs in _PROTON_TYPES.items()}
_ARRAY_TYPES = {
    0x40: proton.Data.NULL,
    0x56: proton.Data.BOOL,
    0x50: proton.Data.UBYTE,
    0x60: proton.Data.USHORT,
    0x70: proton.Data.UINT,
    0x80: proton.Data.ULONG,
    0x51: proton.Data.BYTE,
    0x61: proton.Data.SHORT,
    0x71: proton.Data.INT,
    0x81: proton.Data.LONG,
    0x83: proton.Data.TIMESTAMP,
    0x72: proton.Data.FLOAT,
    0x82: proton.Data.DOUBLE,
    0x73: proton.Data.CHAR,
    0x74: proton.Data.DECIMAL32,
    0x84: proton.Data.DECIMAL64,
    0x94: proton.Data.DECIMAL128,
    0x98: proton.Data.UUID,
    0xB0: proton.Data.BINARY,
    0xB1: proton.Data.STRING,
    0xB3: proton.Data.SYMBOL,
}


def to_proton(value: Any) -> Any:
    kind = type(value)
    if kind in _PROTON_TYPES:
        return _PROTON_TYPES[kind](value)
    if kind is Decimal32:
        return proton.decimal32(int.from_bytes(value, "big"))
    if kind is Decimal64:
        return proton.decimal64(int.from_bytes(value, "big"))
    if kind is Array:
        undescribed: Any = proton.UNDESCRIBED
        return proton.Array(undescribed, _ARRAY_TYPES[value.code], *[to_proton(item) for item in value])
    if kind is list:
        return [to_proton(item) for item in value]
    if kind is dict:
        return {to_proton(key): to_proton(item) for key, item in value.items()}
    if kind is Described:
        return proton.Described(to_proton(value.descriptor), to_proton(value.value))
    return value


def from_proton(value: Any) -> Any:
    kind = type(value)
    if kind in _OUR_TYPES:
        return _OUR_TYPES[kind](value)
    if kind is proton.decimal32:
        return Decimal32(int(value).to_bytes(4, "big"))
    if kind is proton.decimal64:
        return Decimal64(int(value).to_bytes(8, "big"))
    if kind is proton.Array:
        code = next(code for code, number in _ARRAY_TYPES.items() if number == value.type)
        return Array(code, [from_proton(item) for item in value.elements])
    if kind is list:
        return [from_proton(item) for item in value]
    if kind is dict:
        return {from_proton(key): from_proton(item) for key, item in value.items()}
    if kind is proton.Described:
        return Described(from_proton(value.descriptor), from_proton(value.value))
    return bytes(value) if isinstance(value, memoryview) else value


# --- performatives ---------------------------------------------------------------------------------------------------

UINTS = around(0, 2**32 - 1)
USHORTS = around(0, 2**16 - 1)
MAYBE_UINTS = st.one_of(st.none(), UINTS)
BOOLS = st.booleans()
MAYBE_TEXT = st.one_of(st.none(), TEXT)
MAYBE_ASCII = st.one_of(st.none(), ASCII)
NAMES = st.one_of(st.none(), st.lists(ASCII, max_size=3))
MAPS = st.one_of(st.none(), st.dictionaries(ASCII.map(Symbol), st.one_of(SCALARS, ARRAYS), max_size=3))
TAGS = st.binary(max_size=32)
ERRORS = st.builds(AmqpError, ASCII, MAYBE_TEXT, MAPS)
MAYBE_ERRORS = st.one_of(st.none(), ERRORS)
OUTCOMES: SearchStrategy[DeliveryState] = st.one_of(
    st.builds(Accepted),
    st.builds(Released),
    st.builds(Rejected, MAYBE_ERRORS),
    st.builds(Modified, BOOLS, BOOLS, MAPS),
)
STATES: SearchStrategy[DeliveryState] = st.one_of(
    OUTCOMES,
    st.builds(Received, UINTS, around(0, 2**64 - 1)),
    st.builds(Declared, TAGS),
    st.builds(TransactionalState, TAGS, st.one_of(st.none(), OUTCOMES)),
)
MAYBE_STATES = st.one_of(st.none(), STATES)
TRANSACTIONS = st.one_of(st.builds(Declare), st.builds(Discharge, TAGS, BOOLS))
SOURCES = st.builds(
    Source,
    MAYBE_TEXT,
    UINTS,
    ASCII,
    UINTS,
    BOOLS,
    MAPS,
    MAYBE_ASCII,
    MAPS,
    st.one_of(st.none(), OUTCOMES),
    NAMES,
    NAMES,
)
TARGETS = st.builds(Target, MAYBE_TEXT, UINTS, ASCII, UINTS, BOOLS, MAPS, NAMES)
TERMINI = st.one_of(st.none(), TARGETS, st.builds(Coordinator, NAMES))
FLOWS = st.builds(
    Flow, MAYBE_UINTS, UINTS, UINTS, UINTS, MAYBE_UINTS, MAYBE_UINTS, MAYBE_UINTS, MAYBE_UINTS, BOOLS, BOOLS, MAPS
)
TRANSFERS = st.builds(
    Transfer,
    UINTS,
    MAYBE_UINTS,
    st.one_of(st.none(), TAGS),
    MAYBE_UINTS,
    st.one_of(st.none(), BOOLS),
    BOOLS,
    st.sampled_from([None, 0, 1]),
    MAYBE_STATES,
    BOOLS,
    BOOLS,
    BOOLS,
)
PLAIN_TRANSFERS = st.builds(Transfer, UINTS, UINTS, TAGS, UINTS, BOOLS, BOOLS)
PLAIN_FLOWS = st.builds(Flow, UINTS, UINTS, UINTS, UINTS, UINTS, UINTS, UINTS, st.none(), BOOLS, BOOLS)
DISPOSITIONS = st.builds(Disposition, BOOLS, UINTS, MAYBE_UINTS, BOOLS, MAYBE_STATES, BOOLS)
FREQUENT: SearchStrategy[Performative] = st.one_of(PLAIN_TRANSFERS, TRANSFERS, DISPOSITIONS, PLAIN_FLOWS, FLOWS)
PERFORMATIVES: SearchStrategy[Performative] = st.one_of(
    st.builds(Open, TEXT, MAYBE_TEXT, UINTS, USHORTS, MAYBE_UINTS, NAMES, NAMES, NAMES, NAMES, MAPS),
    st.builds(Begin, st.one_of(st.none(), USHORTS), UINTS, UINTS, UINTS, UINTS, NAMES, NAMES, MAPS),
    st.builds(
        Attach,
        TEXT,
        UINTS,
        BOOLS,
        st.integers(0, 2),
        st.integers(0, 1),
        st.one_of(st.none(), SOURCES),
        TERMINI,
        MAPS,
        BOOLS,
        MAYBE_UINTS,
        st.one_of(st.none(), around(0, 2**64 - 1)),
        NAMES,
        NAMES,
        MAPS,
    ),
    FREQUENT,
    st.builds(Detach, UINTS, BOOLS, MAYBE_ERRORS),
    st.builds(End, MAYBE_ERRORS),
    st.builds(Close, MAYBE_ERRORS),
)
SASL_BODIES: SearchStrategy[SaslBody] = st.one_of(
    st.builds(SaslMechanisms, st.lists(ASCII, max_size=4)),
    st.builds(SaslInit, ASCII, st.one_of(st.none(), st.binary(max_size=40)), MAYBE_TEXT),
    st.builds(SaslChallenge, st.binary(max_size=40)),
    st.builds(SaslResponse, st.binary(max_size=40)),
    st.builds(SaslOutcome, st.integers(0, 4), st.one_of(st.none(), st.binary(max_size=40))),
)

# One of each with everything filled in, for tests that walk over every byte.
_ERROR = AmqpError("amqp:not-found", "gone", {Symbol("k"): "v"})
_MAP: dict[object, object] = {Symbol("product"): "x", Symbol("n"): UInt(7)}
CORPUS: list[Performative] = [
    Open("container", "host", 65536, 4999, 240000, ["en"], ["en"], ["a"], ["b", "c"], dict(_MAP)),
    Begin(1, 0, 2048, 4294967295, 255, ["a"], ["b"], dict(_MAP)),
    Attach(
        "link",
        3,
        True,
        0,
        1,
        Source("q", 0, "session-end", 0, False, None, "move", {Symbol("f"): Described(Symbol("f"), "s")}, Released()),
        Target("t", capabilities=["queue"]),
        {b"tag": Described(ULong(0x24), [])},
        False,
        0,
        262144,
        None,
        ["x"],
        dict(_MAP),
    ),
    Attach("txn", 4, False, target=Coordinator(["amqp:local-transactions"])),
    Flow(1, 2048, 3, 4, 5, 6, 1000, 8, True, True, dict(_MAP)),
    Flow(None, 2048, 3, 4),
    Transfer(1, 300, uuid.UUID(int=5).bytes_le, 0x80013700, False, True, 1, TransactionalState(b"txn", Accepted())),
    Transfer(1, 2, b"\0\0\0\1", 0, True),
    Disposition(True, 1, 70000, True, Rejected(_ERROR)),
    Disposition(False, 1, 2, True, Modified(True, False, dict(_MAP))),
    Disposition(False, 1, None, False, Received(1, 2)),
    Disposition(True, 4, 4, True, Accepted()),
    Detach(3, True, _ERROR),
    End(_ERROR),
    Close(_ERROR),
]
SASL_CORPUS: list[SaslBody] = [
    SaslMechanisms(["MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL"]),
    SaslInit("PLAIN", b"\0user\0key", "host"),
    SaslChallenge(b"abc"),
    SaslResponse(b"abc"),
    SaslOutcome(0, b"x"),
]
