"""Messages taken apart and put together; what must not get in."""

import random
import struct
import tracemalloc
import uuid
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spillway.amqp.codec import MESSAGE_ELEMENTS_MAX, DecodeBudget, encode
from spillway.amqp.errors import DecodeError
from spillway.amqp.message import (
    AMQP_SEQUENCE,
    AMQP_VALUE,
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    Header,
    Properties,
    Sections,
    decode_body_value,
    decode_data_bodies,
    decode_header,
    decode_map,
    decode_properties,
    decode_sequences,
    encode_amqp_sequence,
    encode_amqp_value,
    encode_data,
    encode_header,
    encode_map_section,
    encode_message,
    encode_properties,
    in_plain_form,
    split_sections,
)
from spillway.amqp.types import Described, Float, Int, Symbol, Timestamp, UByte, UInt, ULong
from tests.amqp.values import ASCII, MAYBE_TEXT, SCALARS, TEXT, VALUES, around, same
from tests.steps import steps_of


def split(raw: bytes) -> Sections:
    return split_sections(raw, DecodeBudget(MESSAGE_ELEMENTS_MAX))


def refused(raw: bytes) -> None:
    with pytest.raises(DecodeError):
        split(raw)


def section(code: int, value: object) -> bytes:
    return encode(Described(ULong(code), value))


FULL = encode_message(
    Header(True, 7, 60_000, False, 3),
    {Symbol("x-opt-lock-token"): uuid.UUID(int=1)},
    {Symbol("x-opt-partition-key"): "p", Symbol("x-opt-n"): 5, Symbol("x-opt-list"): [1, {"a": None}]},
    Properties("id", b"user", "to", "subject", "reply", ULong(5), "text/plain", "gzip", 1000, 900, "group", 4, "rg"),
    {"text": "t", "int": Int(5), "float": Float(1.5), "time": Timestamp(5), "none": None},
    encode_data(b"hello") + encode_data(b"x" * 300),
    {Symbol("crc"): UInt(1)},
)


def test_a_full_message_is_found_section_by_section() -> None:
    sections = split(FULL)
    spans = [
        (part.start, part.end)
        for part in (
            sections.header,
            sections.delivery_annotations,
            sections.message_annotations,
            sections.properties,
            sections.application_properties,
            sections.body,
            sections.footer,
        )
    ]
    assert spans[0][0] == 0 and spans[-1][1] == len(FULL)
    assert all(left[1] == right[0] for left, right in zip(spans, spans[1:], strict=False))
    assert sections.body_kind == DATA and sections.is_plain
    assert [FULL[at:end] for at, end in decode_data_bodies(FULL, sections)] == [b"hello", b"x" * 300]


def test_the_pairs_of_a_map_can_be_appended_to_without_decoding() -> None:
    sections = split(FULL)
    annotations = sections.message_annotations
    assert annotations.pairs_count == 3
    more = FULL[annotations.pairs_at : annotations.pairs_end] + encode(Symbol("x-opt-m")) + encode(9)
    rebuilt = b"\x00\x53\x72\xd1" + struct.pack(">II", len(more) + 4, 8) + more
    rebuilt_sections = split(rebuilt)
    assert decode_map(rebuilt, rebuilt_sections.message_annotations) == {
        **decode_map(FULL, annotations),
        Symbol("x-opt-m"): 9,
    }


def test_every_section_is_read_back() -> None:
    sections = split(FULL)
    header = decode_header(FULL, sections)
    assert (header.durable, header.priority, header.ttl_ms, header.delivery_count) == (True, 7, 60_000, 3)
    properties = decode_properties(FULL, sections)
    assert same(properties.correlation_id, ULong(5))
    assert (properties.message_id, properties.user_id, properties.to, properties.subject) == (
        "id",
        b"user",
        "to",
        "subject",
    )
    assert (properties.reply_to, properties.content_type, properties.content_encoding) == (
        "reply",
        "text/plain",
        "gzip",
    )
    assert (properties.absolute_expiry_time, properties.creation_time) == (1000, 900)
    assert (properties.group_id, properties.group_sequence, properties.reply_to_group_id) == ("group", 4, "rg")
    assert same(decode_map(FULL, sections.application_properties)["float"], Float(1.5))
    assert decode_map(FULL, sections.footer) == {"crc": 1}
    assert decode_body_value(FULL, sections) is None


def test_a_message_without_anything_has_defaults() -> None:
    sections = split(b"")
    header = decode_header(b"", sections)
    assert (header.durable, header.priority, header.ttl_ms, header.delivery_count) == (False, None, None, 0)
    assert decode_properties(b"", sections).message_id is None
    assert decode_map(b"", sections.footer) == {}
    assert decode_data_bodies(b"", sections) == []
    assert sections.body_kind == 0 and sections.body.start == -1


@settings(max_examples=80, deadline=None)
@given(VALUES)
def test_an_amqp_value_body_comes_back(value: Any) -> None:
    raw = encode_amqp_value(value)
    sections = split(raw)
    assert sections.body_kind == AMQP_VALUE
    assert same(decode_body_value(raw, sections), value)


@settings(max_examples=80, deadline=None)
@given(
    st.one_of(st.none(), TEXT, st.uuids(), st.binary(max_size=20), around(0, 2**64 - 1).map(ULong)),
    MAYBE_TEXT,
    st.one_of(st.none(), ASCII),
    st.one_of(st.none(), around(-(2**63), 2**63 - 1)),
    st.dictionaries(TEXT, SCALARS, max_size=4),
    st.dictionaries(ASCII.map(Symbol), VALUES, max_size=4),
)
def test_properties_and_maps_come_back(
    message_id: object,
    text: str | None,
    content_type: str | None,
    moment: int | None,
    application: dict[object, object],
    annotations: dict[object, object],
) -> None:
    properties = Properties(message_id, None, text, content_type=content_type, absolute_expiry_time=moment)
    raw = encode_message(None, None, annotations, properties, application, encode_data(b""))
    sections = split(raw)
    decoded = decode_properties(raw, sections)
    assert same(decoded.message_id, message_id)
    assert (decoded.to, decoded.content_type, decoded.absolute_expiry_time) == (text, content_type, moment)
    assert same(decode_map(raw, sections.application_properties), application)
    assert same(decode_map(raw, sections.message_annotations), annotations)
    assert encode_properties(decoded) == encode_properties(properties)


def test_header_and_properties_are_written_in_full() -> None:
    assert encode_header(False, None, None, 0).hex() == "005370c006054240404043"
    assert encode_header(False, -1, -1, 0) == encode_header(False, None, None, 0)
    assert encode_properties(Properties())[:6].hex() == "005373c00e0d"
    assert encode_map_section(MESSAGE_ANNOTATIONS, {}).hex() == "005372c10100"


_EMPTY: dict[int, object] = {HEADER: [], PROPERTIES: [], DATA: b"", AMQP_VALUE: None, AMQP_SEQUENCE: []}


def message_of(codes: list[int]) -> bytes:
    return b"".join([section(code, _EMPTY.get(code, {})) for code in codes])


@pytest.mark.parametrize(
    "codes",
    [
        [HEADER, HEADER],
        [HEADER, PROPERTIES, HEADER],
        [DATA, DELIVERY_ANNOTATIONS, DELIVERY_ANNOTATIONS],
        [MESSAGE_ANNOTATIONS, DATA, MESSAGE_ANNOTATIONS],
        [PROPERTIES, HEADER, PROPERTIES],
        [APPLICATION_PROPERTIES, DATA, APPLICATION_PROPERTIES],
        [DATA, AMQP_VALUE],
        [DATA, AMQP_SEQUENCE],
        [AMQP_SEQUENCE, DATA],
        [AMQP_VALUE, DATA],
        [DATA, FOOTER, AMQP_VALUE],
        [FOOTER, DATA, AMQP_SEQUENCE],
        [AMQP_VALUE, AMQP_VALUE],
        [AMQP_VALUE, HEADER, AMQP_VALUE],
        [FOOTER, FOOTER],
        [FOOTER, DATA, FOOTER],
        [0x6F],
        [0x79],
        [0x24],
    ],
)
def test_sections_twice_of_two_kinds_of_body_or_unknown_are_refused(codes: list[int]) -> None:
    refused(message_of(codes))


@pytest.mark.parametrize("body", [[DATA, DATA], [AMQP_SEQUENCE, AMQP_SEQUENCE], [AMQP_VALUE]])
def test_sections_come_in_any_order_and_are_put_in_theirs(body: list[int]) -> None:
    """The Python SDK writes delivery annotations behind the body, rhea the footer before it."""
    codes = [HEADER, DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS, PROPERTIES, APPLICATION_PROPERTIES, *body, FOOTER]
    in_order = message_of(codes)
    assert split(in_order).is_plain
    dice = random.Random(1)
    for _ in range(200):
        shuffled = codes[:]
        while shuffled == codes:
            dice.shuffle(shuffled)
        raw = message_of(shuffled)
        sections = split(raw)
        assert not sections.is_plain
        assert sections.body_kind == body[0]
        assert len(decode_data_bodies(raw, sections)) == body.count(DATA)
        assert in_plain_form(raw, DecodeBudget()) == in_order


def test_sequences_are_read_one_after_the_other_whatever_lies_between() -> None:
    raw = encode_amqp_sequence([1, 2]) + section(FOOTER, {}) + encode_amqp_sequence([3])
    assert decode_sequences(raw, split(raw)) == [1, 2, 3]
    assert decode_sequences(encode_data(b"x"), split(encode_data(b"x"))) == []


def test_what_stands_in_sections_out_of_order_is_found() -> None:
    raw = (
        encode_data(b"one")
        + section(FOOTER, {Symbol("f"): 1})
        + encode_data(b"two")
        + encode_properties(Properties("id"))
        + section(DELIVERY_ANNOTATIONS, {Symbol("d"): 2})
        + section(HEADER, [True])
    )
    sections = split(raw)
    assert [raw[at:end] for at, end in decode_data_bodies(raw, sections)] == [b"one", b"two"]
    assert decode_properties(raw, sections).message_id == "id" and decode_header(raw, sections).durable
    assert decode_map(raw, sections.footer) == {"f": 1}
    plain = in_plain_form(raw, DecodeBudget())
    sections = split(plain)
    assert [plain[at:end] for at, end in decode_data_bodies(plain, sections)] == [b"one", b"two"]
    assert decode_map(plain, sections.delivery_annotations) == {"d": 2}


@pytest.mark.parametrize(
    "raw",
    [
        section(HEADER, [UInt(1)]),
        section(HEADER, [None, UInt(1)]),
        section(HEADER, [None, None, ULong(1)]),
        section(HEADER, [None] * 6),
        section(HEADER, {}),
        section(PROPERTIES, [Int(1)]),
        section(PROPERTIES, [None, "user"]),
        section(PROPERTIES, [None, None, Symbol("to")]),
        section(PROPERTIES, [None] * 8 + [5]),
        section(PROPERTIES, [None] * 14),
        section(PROPERTIES, [[]]),
        section(MESSAGE_ANNOTATIONS, {5: 1}),
        section(MESSAGE_ANNOTATIONS, []),
        section(MESSAGE_ANNOTATIONS, None),
        section(APPLICATION_PROPERTIES, {Symbol("a"): 1}),
        section(APPLICATION_PROPERTIES, {"a": [1]}),
        section(APPLICATION_PROPERTIES, {"a": {}}),
        section(APPLICATION_PROPERTIES, {"a": Described(ULong(1), 1)}),
        section(DATA, "text"),
        section(DATA, None),
        section(AMQP_SEQUENCE, {}),
        section(AMQP_SEQUENCE, None),
        section(FOOTER, {5: 1}),
        b"\x00\x53\x74\xc1\x09\x04\xa1\x01a\x40\xa1\x01a\x40",  # the same property twice
        b"\x00\x53\x74\xc1\x0c\x04\xa1\x01a\x40\xb1\x00\x00\x00\x01a\x40",  # in two encodings
        b"\x00\x53\x72\xc1\x09\x04\xa1\x01a\x40\xa3\x01a\x40",  # as string and as symbol
        b"\x00\x53\x72\xc1\x06\x04\x53\x00\x40\x44\x40",  # as two ulongs
        b"\x00\x53\x74\xc1\x04\x01\xa1\x01a",  # odd
        b"\x00\x53\x74\xc1\x06\x02\xa1\x01a\x40\x40",  # longer than its pairs
        b"\x00\x53\x70\xc0\x04\x01\x41\x41\x41",  # longer than its fields
        b"\x00\x53\x70\xc0\x01\x02",  # shorter than its count
        b"\x00\x53\x75\xa0\x05abc",
        b"\x00\x53\x75\xb0\xff\xff\xff\xffabc",
        b"\x00\x53\x75",
        b"\x00\x53",
        b"\x00",
        b"\x40",
        b"hello",
        b"\x00\x53\x77",
        b"\x00\xa1\x10amqp:data:binary\xa0\x00",
        b"\x00\xa3\x0famqp:data:binar\xa0\x00",
    ],
    ids=lambda raw: raw.hex(),
)
def test_what_an_sdk_could_not_read_again_is_refused(raw: bytes) -> None:
    refused(raw)


def test_a_message_cut_at_any_byte_inside_a_section_is_refused() -> None:
    sections = split(FULL)
    ends = {
        sections.header.end,
        sections.delivery_annotations.end,
        sections.message_annotations.end,
        sections.properties.end,
        sections.application_properties.end,
        sections.body.end,
        sections.body.start + len(encode_data(b"hello")),
    }
    for end in range(1, len(FULL)):
        if end in ends:
            split(FULL[:end])
        else:
            refused(FULL[:end])


def test_a_message_with_random_changes_is_sound_or_refused() -> None:
    source = random.Random(5)
    for _ in range(3000):
        raw = bytearray(FULL[:200])
        for _ in range(source.randrange(1, 4)):
            raw[source.randrange(len(raw))] = source.randrange(256)
        data = bytes(raw)
        try:
            sections = split(data)
        except DecodeError:
            continue
        decode_header(data, sections)
        decode_properties(data, sections)
        decode_map(data, sections.message_annotations)
        decode_map(data, sections.application_properties)


def test_a_large_body_is_not_looked_into() -> None:
    small, large = encode_data(bytes(500)), encode_data(bytes(50_000_000))
    split(small)
    assert steps_of(lambda: split(large)) == steps_of(lambda: split(small))
    tracemalloc.start()
    try:
        split(large)
        assert tracemalloc.get_traced_memory()[1] < 65_536, "nothing of it is copied"
    finally:
        tracemalloc.stop()


def test_bombs_in_messages_are_refused() -> None:
    nothings = b"\xf0" + struct.pack(">II", 5, 2**32 - 1) + b"\x40"
    refused(b"\x00\x53\x77" + nothings)
    capped = b"\xf0" + struct.pack(">II", 5, 256) + b"\x40"
    refused(b"\x00\x53\x77\xd0" + struct.pack(">II", 4 + 5000 * len(capped), 5000) + capped * 5000)
    refused(b"\x00\x53\x77" + b"\x00\x53\x01" * 10_000 + b"\x40")
    refused(b"\x00\x53\x74\xd1" + struct.pack(">II", 2**32 - 1, 2**32 - 2))


def test_descriptors_in_other_forms_are_read_and_can_be_made_plain() -> None:
    plain = encode_message(Header(True), properties=Properties("id"), body=encode_data(b"x") + encode_data(b"y"))
    odd = (
        plain.replace(b"\x00\x53\x70", b"\x00\x80" + ULong(0x70).to_bytes(8, "big"))
        .replace(b"\x00\x53\x73", b"\x00\xa3\x14amqp:properties:list")
        .replace(b"\x00\x53\x75", b"\x00\xa3\x10amqp:data:binary")
    )
    sections = split(odd)
    assert not sections.is_plain
    assert decode_header(odd, sections).durable and decode_properties(odd, sections).message_id == "id"
    assert [odd[at:end] for at, end in decode_data_bodies(odd, sections)] == [b"x", b"y"]
    assert in_plain_form(odd, DecodeBudget()) == plain


def test_sequences_repeat_and_absent_sections_are_marked() -> None:
    raw = encode_amqp_sequence([1]) + encode_amqp_sequence([])
    sections = split(raw)
    assert (sections.body_kind, sections.body.start, sections.body.end) == (AMQP_SEQUENCE, 0, len(raw))
    assert sections.header.start == -1


def test_annotation_keys_may_be_symbols_strings_or_ulongs() -> None:
    raw = encode_map_section(MESSAGE_ANNOTATIONS, {Symbol("a"): 1, "b": 2, ULong(3): UByte(3)})
    assert split(raw).message_annotations.pairs_count == 3
