"""AMQP values as text and back, and bodies as what they were said to be."""

import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from spillway.amqp.message import encode_amqp_sequence, encode_amqp_value, encode_data, encode_message
from spillway.amqp.types import (
    Byte,
    Char,
    Decimal64,
    Decimal128,
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
from spillway.client import OutgoingMessage, ReceivedMessage
from spillway.spark.source.options import ReadOptions, read_options
from spillway.spark.source.rows import RowMaker, body_bytes, read_json, read_string
from spillway.spark.source.schema import schema_for
from spillway.spark.source.values import text_of, type_name, value_of

PROPERTIES = [
    None, True, False, "text", "", "é\n", Symbol("symbol"), Char("é"), b"\x00\xff", uuid.UUID(int=2**127 + 7),
    UByte(255), UShort(1),
    UInt(2**32 - 1), ULong(2**64 - 1), Byte(-128), Short(-1), Int(-(2**31)), 2**62, 1.5, float("inf"), Float(0.5),
    Timestamp(0), Timestamp(1_700_000_000_123), Timestamp(-1), Timestamp(2**62), Decimal64(b"12345678"),
    Decimal128(bytes(16)),
]  # fmt: skip


@pytest.mark.parametrize("value", PROPERTIES, ids=lambda value: f"{type_name(value)}-{value!r}"[:40])
def test_a_property_comes_back_from_its_text_and_its_type(value: object) -> None:
    back = value_of(text_of(value), type_name(value))
    assert back == value and type(back) is type(value)


@settings(max_examples=50, deadline=None)
@given(st.one_of(st.text(), st.integers(-(2**63), 2**63 - 1), st.binary(), st.floats(allow_nan=False), st.uuids()))
def test_any_property_comes_back(value: object) -> None:
    assert value_of(text_of(value), type_name(value)) == value


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("256", "ubyte"), ("-1", "uint"), ("x", "int"), ("yes", "boolean"), ("é", "symbol"), ("ab", "char"),
        ("!", "binary"), ("1", "uuid"), ("soon", "timestamp"), ("00", "decimal64"), ("1", "map"),
    ],
)  # fmt: skip
def test_a_text_that_is_not_of_its_type_is_refused(text: str, kind: str) -> None:
    with pytest.raises(ValueError, match=kind):
        value_of(text, kind)


def bytes_of(body: bytes) -> bytes:
    raw = encode_message(body=body)
    return body_bytes(raw, ReceivedMessage(raw).sections)


def test_bodies_of_every_kind_have_bytes() -> None:
    assert bytes_of(encode_data(b"one") + encode_data(b"two")) == b"onetwo"
    assert bytes_of(encode_amqp_value("é")) == "é".encode()
    assert bytes_of(encode_amqp_value(b"\xff")) == b"\xff"
    assert bytes_of(encode_amqp_value({"a": [1, None, Timestamp(0)]})) == (
        b'{"a": [1, null, "1970-01-01T00:00:00.000Z"]}'
    )
    assert bytes_of(encode_amqp_sequence([1, "two"]) + encode_amqp_sequence([3])) == b'[1, "two", 3]'
    assert bytes_of(b"") == b""


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b'{"a": 1}', None),
        (b"1", None),
        (b"", "not JSON: Expecting value, line 1 column 1"),
        (b'{"a": }', "not JSON: Expecting value, line 1 column 7"),
        (b"NaN", "not JSON: NaN is no JSON value"),
        (b"\xff", "not UTF-8: byte 0 of 1"),
        (b"[" * 100_000, "not JSON that can be read: nested too deeply"),
    ],
)
def test_json_is_json_or_says_why_not(body: bytes, error: str | None) -> None:
    text, said = read_json(body)
    assert said == error
    assert text == (None if error else body.decode())


def test_text_is_utf8_or_says_why_not() -> None:
    assert read_string("é".encode()) == ("é", None)
    assert read_string(b"ab\xe9") == (None, "not UTF-8: byte 2 of 3")


def options(**given: str) -> ReadOptions:
    return read_options({"secretName": "X", "entity": "q", **given})


def test_a_batch_has_the_columns_that_were_asked_for_and_no_others() -> None:
    received = ReceivedMessage(OutgoingMessage(b"x", message_id="m", application_properties={"n": Int(1)}).encode())
    schema = StructType([each for each in schema_for(options()).fields if each.name in ("message_id", "body")])
    assert RowMaker(schema, options(), "ns").batch("q", [received]).to_pylist() == [{"message_id": "m", "body": b"x"}]


def test_a_quarantined_body_stays_beside_its_reason() -> None:
    chosen = options(bodyFormat="json")
    good, bad = (ReceivedMessage(OutgoingMessage(body).encode()) for body in (b"{}", b"{"))
    rows = RowMaker(schema_for(chosen), chosen, "ns").batch("q", [good, bad]).to_pylist()
    assert [(row["body"], row["body_quarantine"]) for row in rows] == [("{}", None), (None, b"{")]
    assert rows[0]["body_error"] is None and "Expecting property name" in rows[1]["body_error"]
