"""Performatives, termini and states out and back; what the peer may leave out and what it may not."""

from typing import Any

import pytest
from hypothesis import given, settings

from spillway.amqp.codec import Composite, DecodeBudget, decode_value, encode
from spillway.amqp.composites import code_of, composite_from
from spillway.amqp.errors import INVALID_FIELD, AmqpError, DecodeError, ProtocolError
from spillway.amqp.frames import decode_performative, encode_frame, encode_sasl_frame
from spillway.amqp.performatives import (
    Accepted,
    Attach,
    Close,
    Declare,
    Detach,
    Discharge,
    Disposition,
    End,
    Modified,
    Open,
    Performative,
    Rejected,
    SaslBody,
    SaslMechanisms,
    Source,
    Target,
    Transfer,
)
from spillway.amqp.types import Array, Described, Symbol, UByte, UInt, ULong
from tests.amqp.values import (
    CORPUS,
    PERFORMATIVES,
    SASL_BODIES,
    SASL_CORPUS,
    STATES,
    TRANSACTIONS,
    same,
)


def body_of(performative: Performative) -> bytes:
    frame = encode_sasl_frame(performative) if isinstance(performative, SaslBody) else encode_frame(0, performative)
    return frame[8:]


def decode(data: bytes) -> Performative:
    performative, end = decode_performative(data, 0, len(data), DecodeBudget())
    assert end == len(data)
    return performative


def plain(value: Any) -> Any:
    """Composites taken apart, so that types can be compared all the way down."""
    if isinstance(value, Composite):
        return [type(value).__name__, [plain(field) for field in value.fields()]]
    if isinstance(value, AmqpError):
        return [value.condition, value.description, value.info]
    return value


def described(code: int, *fields: object) -> bytes:
    return encode(Described(ULong(code), list(fields)))


@settings(max_examples=150, deadline=None)
@given(PERFORMATIVES)
def test_every_performative_comes_back(performative: Performative) -> None:
    decoded = decode(body_of(performative))
    assert same(plain(decoded), plain(performative))
    assert decoded == performative or "nan" in repr(performative)  # which is not equal to itself


@settings(max_examples=60, deadline=None)
@given(SASL_BODIES)
def test_every_sasl_body_comes_back(body: SaslBody) -> None:
    assert same(plain(decode(body_of(body))), plain(body))


@settings(max_examples=100, deadline=None)
@given(STATES | TRANSACTIONS)
def test_states_and_transaction_commands_come_back(composite: Composite) -> None:
    data = encode(composite)
    value, _ = decode_value(data, 0, len(data), DecodeBudget())
    assert isinstance(value, Described)
    assert same(plain(composite_from(value)), plain(composite))


@pytest.mark.parametrize("performative", [*CORPUS, *SASL_CORPUS], ids=repr)
def test_a_performative_cut_at_any_byte_is_a_decode_error(performative: Performative) -> None:
    data = body_of(performative)
    assert decode(data) == performative
    for end in range(len(data)):
        with pytest.raises(DecodeError):
            decode_performative(data, 0, end, DecodeBudget())
        with pytest.raises(DecodeError):
            decode_performative(data[:end], 0, end, DecodeBudget())


@pytest.mark.parametrize("performative", [*CORPUS, *SASL_CORPUS], ids=repr)
def test_a_performative_with_any_byte_changed_is_one_or_a_protocol_error(performative: Performative) -> None:
    data = body_of(performative)
    for place in range(len(data)):
        for value in (0x00, 0x40, 0x41, 0x45, 0x53, 0x7F, 0xA0, 0xC0, 0xF0, 0xFF):
            changed = data[:place] + bytes([value]) + data[place + 1 :]
            try:
                decode_performative(changed, 0, len(changed), DecodeBudget())
            except ProtocolError:
                continue


@pytest.mark.parametrize("performative", [*CORPUS, *SASL_CORPUS], ids=repr)
def test_every_field_is_written_for_sdks_that_count(performative: Performative) -> None:
    value, _ = decode_value(body_of(performative), 0, len(body_of(performative)), DecodeBudget())
    assert isinstance(value, Described) and isinstance(value.value, list)
    assert len(value.value) == len(performative.fields())


def test_descriptors_are_smallulong_always() -> None:
    for performative in [*CORPUS, *SASL_CORPUS]:
        assert body_of(performative)[:3] == bytes([0x00, 0x53, performative.code])


def test_descriptors_are_read_in_all_three_forms_and_no_other() -> None:
    fields = encode([None])
    assert decode(b"\x00\x80" + (0x18).to_bytes(8, "big") + fields) == Close()
    assert decode(b"\x00\xa3\x0famqp:close:list" + fields) == Close()
    for wrong in (
        b"\x00\xa3\x0famqp:close:lisu",
        b"\x00\xa3\x10amqp:close:list2",
        b"\x00\xa1\x0famqp:close:list",
        b"\x00\x52\x18",
        b"\x00\x53\x24",
        b"\x00\x53\x1d",
        b"\x00\x53\x70",
        b"\x00\x80\x00\x00\x00\x01\x00\x00\x00\x18",
        b"\x00\x40",
        b"",
    ):
        with pytest.raises(DecodeError):
            decode(wrong + fields)


def test_an_error_has_three_fields_wherever_it_travels() -> None:
    error = AmqpError("amqp:not-found")
    for body in (Close(error), End(error), Detach(1, True, error), Disposition(True, 1, 1, True, Rejected(error))):
        assert b"\x00\x53\x1d\xc0\x13\x03\xa3\x0eamqp:not-found\x40\x40" in body_of(body)


def test_a_rejection_without_error_has_no_field_at_all() -> None:
    assert encode(Rejected()) == b"\x00\x53\x25\x45"


def test_an_open_is_written_in_full_up_to_the_idle_time_out() -> None:
    assert body_of(Open("c", None, 65536, 4999, 240000))[6:26].hex() == "a10163407000010000601387700003a980404040"


@pytest.mark.parametrize(
    "data",
    [
        described(0x10),  # open without container-id
        described(0x10, UInt(1)),
        described(0x10, "c", None, ULong(1)),
        described(0x10, "c", None, UInt(1), UInt(1)),
        described(0x10, "c", None, None, None, None, UInt(1)),
        described(0x10, "c", None, None, None, None, Array(0x70, [UInt(1)])),
        described(0x10, "c", None, None, None, None, None, None, None, None, [1]),
        described(0x11, None, UInt(0), UInt(0)),
        described(0x12, "n", UInt(0)),
        described(0x12, "n", UInt(0), True, UByte(3)),
        described(0x12, "n", UInt(0), True, UByte(0), UByte(2)),
        described(0x12, "n", UInt(0), True, None, None, Target("x")),
        described(0x12, "n", UInt(0), True, None, None, None, Source("x")),
        described(0x12, "n", UInt(0), True, None, None, "x"),
        described(0x12, "n", UInt(0), True, None, None, Source(), Accepted()),
        described(0x13, None, UInt(0), UInt(0)),
        described(0x14),
        described(0x14, None),
        described(0x14, UInt(0), None, "tag"),
        described(0x14, UInt(0), None, None, None, UInt(1)),
        described(0x14, UInt(0), None, None, None, None, None, UByte(2)),
        described(0x14, UInt(0), None, None, None, None, None, None, Source()),
        described(0x15, True),
        described(0x15, None, UInt(1)),
        described(0x15, True, UInt(1), None, None, Described(ULong(0x23), [UInt(1)])),
        described(0x15, True, UInt(1), None, None, Described(ULong(0x33), [None])),
        described(0x16),
        described(0x17, "error"),
        described(0x18, Described(ULong(0x24), [])),
        described(0x18, Described(ULong(0x1D), [])),
        described(0x18, Described(ULong(0x1D), [Symbol("a"), UInt(1)])),
        described(0x40),
        described(0x41, None),
        described(0x44, UByte(5)),
        described(0x44),
    ],
    ids=lambda data: data.hex(),
)
def test_a_field_that_is_missing_or_of_a_wrong_type_is_an_invalid_field(data: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode(data)
    assert caught.value.condition == INVALID_FIELD


@pytest.mark.parametrize(
    "data",
    [
        described(0x18, None, None),  # more fields than there are
        described(0x14, *([UInt(0)] + [None] * 11)),
        described(0x15, True, UInt(1), None, None, Described(ULong(0x24), [1])),
        described(0x15, True, UInt(1), None, None, Described(ULong(0x99), [])),
        described(0x15, True, UInt(1), None, None, Described(ULong(0x24), {})),
        described(0x19),
        encode(Described(ULong(0x18), {})),
        encode(Described(ULong(0x18), Array(0x40, [None]))),
        encode(Described(ULong(0x18), None)),
        encode([None]),
        encode(None),
    ],
    ids=lambda data: data.hex(),
)
def test_what_no_performative_looks_like_is_a_decode_error(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode(data)


def test_missing_trailing_fields_and_nulls_mean_the_defaults() -> None:
    attach = decode(described(0x12, "n", UInt(0), False))
    assert isinstance(attach, Attach)
    assert (attach.snd_settle_mode, attach.rcv_settle_mode, attach.source, attach.target) == (2, 0, None, None)
    opened = decode(described(0x10, "c", None, None, None))
    assert isinstance(opened, Open)
    assert (opened.max_frame_size, opened.channel_max, opened.idle_time_out) == (4294967295, 65535, None)
    source = composite_from(Described(Symbol("amqp:source:list"), []))
    assert isinstance(source, Source) and source.expiry_policy == "session-end" and source.address is None


def test_one_symbol_stands_for_a_list_of_one() -> None:
    mechanisms = decode(described(0x40, Symbol("PLAIN")))
    assert isinstance(mechanisms, SaslMechanisms) and mechanisms.sasl_server_mechanisms == ["PLAIN"]


def test_transaction_commands_are_read_from_an_amqp_value() -> None:
    assert composite_from(Described(ULong(0x31), [None])) == Declare()
    assert composite_from(Described(ULong(0x32), [b"t", True])) == Discharge(b"t", True)
    with pytest.raises(ProtocolError):
        composite_from(Described(ULong(0x32), []))


def test_codes_of_descriptors_are_exact() -> None:
    assert code_of(ULong(0x24)) == 0x24
    assert code_of(Symbol("amqp:accepted:list")) == 0x24
    assert [code_of(value) for value in ("amqp:accepted:list", 0x24, UInt(0x24), None, Symbol("amqp:accepted"))] == [
        -1
    ] * 5


def test_composites_print_and_compare_by_their_fields() -> None:
    assert repr(Modified(True)) == "Modified(True, False, None)"
    assert Transfer(1) == Transfer(1) != Transfer(2)
    assert len({Accepted(), Accepted()}) == 1
