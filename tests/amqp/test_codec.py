"""Every AMQP value out and back, and nothing but DecodeError for bytes that are none."""

import random
import struct
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spillway.amqp.codec import DecodeBudget, decode_value, encode, skip_value
from spillway.amqp.errors import CONNECTION, AmqpError, DecodeError
from spillway.amqp.types import Array, Byte, Char, Decimal32, Described, Int, Symbol, UByte, UInt, ULong, UShort
from tests.amqp.values import VALUES, same


def decode(data: bytes) -> Any:
    value, end = decode_value(data, 0, len(data), DecodeBudget())
    assert end == len(data)
    return value


def refused(data: bytes) -> None:
    """By both ways through the decoder, and quickly."""
    started = time.process_time()
    with pytest.raises(DecodeError):
        decode_value(data, 0, len(data), DecodeBudget())
    with pytest.raises(DecodeError):
        skip_value(data, 0, len(data), DecodeBudget())
    assert time.process_time() - started < 1


@settings(max_examples=200, deadline=None)
@given(VALUES)
def test_every_value_comes_back_with_its_type(value: Any) -> None:
    data = encode(value)
    assert same(decode(data), value)
    assert skip_value(data, 0, len(data), DecodeBudget()) == len(data)


@settings(max_examples=100, deadline=None)
@given(VALUES, st.binary(max_size=4))
def test_a_value_ends_where_it_ends_whatever_follows(value: Any, rest: bytes) -> None:
    data = encode(value)
    decoded, end = decode_value(data + rest, 0, len(data) + len(rest), DecodeBudget())
    assert end == len(data) and same(decoded, value)


@settings(max_examples=100, deadline=None)
@given(VALUES)
def test_a_value_cut_anywhere_is_a_decode_error(value: Any) -> None:
    data = encode(value)
    for end in range(min(len(data), 300)):
        with pytest.raises(DecodeError):
            decode_value(data, 0, end, DecodeBudget())
        with pytest.raises(DecodeError):
            skip_value(data, 0, end, DecodeBudget())


def outcome_of(data: bytes) -> tuple[str, str]:
    """What decoding and skipping say about some bytes."""
    try:
        decoded = str(decode_value(data, 0, len(data), DecodeBudget())[1])
    except DecodeError:
        decoded = "refused"
    try:
        skipped = str(skip_value(data, 0, len(data), DecodeBudget()))
    except DecodeError:
        skipped = "refused"
    return decoded, skipped


@settings(max_examples=150, deadline=None)
@given(VALUES, st.integers(0, 2**32), st.integers(1, 255))
def test_skipping_takes_exactly_what_decoding_takes(value: Any, place: int, flip: int) -> None:
    data = bytearray(encode(value))
    data[place % len(data)] ^= flip
    decoded, skipped = outcome_of(bytes(data))
    assert decoded == skipped


def test_random_bytes_are_a_value_or_a_decode_error() -> None:
    source = random.Random(20)
    codes = (
        bytes(range(0x40, 0x46))
        + b"\x00\x50\x52\x53\x56\x70\x71\x73\x80\x83\x98\xa0\xa1\xa3\xb0\xb1\xc0\xc1\xd0\xd1\xe0\xf0"
    )
    for _ in range(4000):
        size = source.randrange(1, 40)
        data = bytes(source.choice(codes) if source.random() < 0.5 else source.randrange(16) for _ in range(size))
        decoded, skipped = outcome_of(data)
        assert decoded == skipped, data.hex()


@pytest.mark.parametrize(
    ("data", "value"),
    [
        ("8000000000000000ff", ULong(255)),
        ("7000000000", UInt(0)),
        ("5600", False),
        ("5601", True),
        ("81ffffffffffffffff", -1),
        ("71ffffff80", Int(-128)),
        ("5480", Int(-128)),
        ("b10000000161", "a"),
        ("b30000000161", Symbol("a")),
        ("b00000000161", b"a"),
        ("d00000000400000000", []),
        ("c00100", []),
        ("d10000000400000000", {}),
        ("e00302a3 0161 0162".replace(" ", ""), None),
        ("e006020101a30161", None),
    ],
)
def test_wide_encodings_are_read_and_wrong_sizes_are_not(data: str, value: object) -> None:
    raw = bytes.fromhex(data)
    if value is None:
        refused(raw)
    else:
        assert same(decode(raw), value)


def test_integers_take_their_smallest_encoding() -> None:
    encoded = [encode(value).hex() for value in (UInt(0), UInt(255), UInt(256), ULong(0), ULong(9), Int(-1), 1, 200)]
    assert encoded == ["43", "52ff", "7000000100", "44", "5309", "54ff", "5501", "8100000000000000c8"]
    assert encode(Byte(-1)).hex() == "51ff"
    assert encode([]).hex() == "45"
    assert encode({}).hex() == "c10100"


def test_an_array_is_widened_for_an_element_that_does_not_fit() -> None:
    assert decode(encode(Array(0xA3, [Symbol("x"), Symbol("y" * 300)]))) == Array(0xB3, ["x", "y" * 300])
    assert decode(encode(Array(0x52, [UInt(1), UInt(70000)]))) == Array(0x70, [1, 70000])
    assert decode(encode(Array(0x43, [UInt(0), UInt(1)]))) == Array(0x70, [0, 1])
    assert decode(encode(Array(0x41, [True, False]))) == Array(0x56, [True, False])
    assert decode(encode(Array(0x41, [True, True]))) == Array(0x41, [True, True])
    assert decode(encode(Array(0xC0, [["a" * 300]]))) == Array(0xD0, [["a" * 300]])


@pytest.mark.parametrize(
    "value",
    [
        UInt(-1),
        UInt(2**32),
        ULong(2**64),
        UByte(256),
        UShort(-1),
        2**63,
        Char("ab"),
        Symbol("é"),
        "\ud800",
        Decimal32(b"123"),
        Array(0x40, [1]),
        Array(0x70, [UInt(-1)]),
        Array(0xA1, [7]),
        Array(0x98, ["x"]),
    ],
)
def test_what_amqp_cannot_say_is_the_callers_error(value: object) -> None:
    with pytest.raises(ValueError):
        encode(value)


def test_a_value_of_no_amqp_type_is_the_callers_error() -> None:
    with pytest.raises(TypeError, match="no AMQP type"):
        encode(object())


@pytest.mark.parametrize(
    "data",
    [
        "a101ff",  # not UTF-8
        "a103eda080",  # a lone surrogate
        "a102c080",  # NUL, overlong
        "a30180",  # a symbol beyond ASCII
        "73 00110000".replace(" ", ""),  # beyond Unicode
        "730000d800",  # a surrogate as char
        "5602",  # a boolean of two
        "c1 03 01 a0 00".replace(" ", ""),  # odd map
        "c1 09 04 a1 01 61 40 a1 01 61 40".replace(" ", ""),  # the same key twice
        "c1 0b 04 a1 01 61 40 a3 01 61 40".replace(" ", ""),  # longer than its pairs
        "c1 03 02 45 40".replace(" ", ""),  # a list as key
        "c1 06 02 00 53 01 40 40".replace(" ", ""),  # a described key
        "c00502404040",  # longer than its elements
        "c0020240",  # shorter than its count
        "c000",  # no room for the count
        "c00000",  # size does not even hold the count
        "d00000000300000000",
        "a1ff61",  # sizes past the end
        "b1ffffffff61",
        "b08000000061",
        "d0ffffffffffffffff40",
        "d080000000000000014 0".replace(" ", ""),
        "f0ffffffff0000000140",
        "e0020040 40".replace(" ", "")[:4],
        "e0 02 00 3f".replace(" ", ""),  # an empty array of an unknown type
        "e0 02 00 a7".replace(" ", ""),
        "e0 01 00".replace(" ", ""),  # an array without constructor
        "e0 04 01 00 40 40".replace(" ", ""),  # described by null
        "e0 08 01 00 53 01 00 53 01 40".replace(" ", ""),  # described twice
        "00",  # a descriptor alone
        "0053",
        "005310",
        "3f",
        "57",
        "85",
        "a2",
        "b2",
        "c2",
        "ff",
        "",
    ],
)
def test_malformed_values_are_decode_errors(data: str) -> None:
    refused(bytes.fromhex(data))


@pytest.mark.parametrize("code", [0x40, 0x41, 0x42, 0x43, 0x44, 0x45])
@pytest.mark.parametrize("count", [257, 2**31, 2**32 - 1])
def test_an_array_of_nothings_is_not_believed(code: int, count: int) -> None:
    refused(b"\xf0" + struct.pack(">II", 5, count) + bytes([code]))


def test_an_array_of_up_to_256_nothings_is_fine() -> None:
    assert len(decode(b"\xf0" + struct.pack(">II", 5, 256) + b"\x40")) == 256


def test_many_arrays_of_nothings_each_under_the_cap_spend_one_budget() -> None:
    array = b"\xf0" + struct.pack(">II", 5, 256) + b"\x45"
    refused(b"\xd0" + struct.pack(">II", 4 + 6000 * len(array), 6000) + array * 6000)


def test_an_array_of_arrays_of_nothings_spends_the_same_budget() -> None:
    inner = struct.pack(">II", 5, 256) + b"\x40"
    refused(b"\xf0" + struct.pack(">II", 5 + 6000 * len(inner), 6000) + b"\xf0" + inner * 6000)


@pytest.mark.parametrize("elements", [b"\x40", b"\x45", b"\xa1\x00"])
def test_more_elements_than_the_budget_are_refused(elements: bytes) -> None:
    refused(b"\xd0" + struct.pack(">II", 4 + 70000 * len(elements), 70000) + elements * 70000)


def test_ten_thousand_nested_values_are_refused_without_recursion() -> None:
    lists = b"\x40"
    for _ in range(10_000):
        lists = b"\xd0" + struct.pack(">II", len(lists) + 4, 1) + lists
    refused(lists)
    refused(b"\x00" * 10_000 + b"\x53\x01\x40")
    refused(b"\x00\x53\x01" * 10_000 + b"\x40")
    refused(b"\xf0\x00\x00\x10\x00\x00\x00\x00\x01" * 10_000)


def test_depth_is_counted_down_a_path_and_not_over_siblings() -> None:
    deep: Any = []
    for _ in range(30):
        deep = [deep, 1]
    assert decode(encode([deep, deep, deep])) == [deep, deep, deep]
    refused(encode([[[[deep]]]]))


def test_a_decode_error_ends_the_connection_with_its_condition() -> None:
    with pytest.raises(DecodeError) as caught:
        decode_value(b"\xff", 0, 1, DecodeBudget())
    assert (caught.value.scope, caught.value.condition) == (CONNECTION, "amqp:decode-error")
    assert "0xff" in caught.value.description


def test_an_error_always_has_three_fields() -> None:
    decoded = decode(encode(AmqpError("amqp:not-found")))
    assert same(decoded, Described(ULong(0x1D), [Symbol("amqp:not-found"), None, None]))
    assert AmqpError("a", "b") == AmqpError("a", "b") != AmqpError("a", "c")
    assert repr(AmqpError("a")) == "AmqpError('a', None, None)"
