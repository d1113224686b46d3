"""What is let into the store, and what is changed on the way: next to nothing."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway.amqp.codec import DecodeBudget
from spillway.amqp.errors import DecodeError
from spillway.amqp.message import (
    Header,
    Properties,
    decode_data_bodies,
    decode_map,
    decode_properties,
    encode_amqp_value,
    encode_data,
    encode_message,
    encode_properties,
    split_sections,
)
from spillway.amqp.types import Array, Int, Symbol, Timestamp, ULong
from spillway.dialect.admission import admit, admit_transfer
from spillway.dialect.annotations import BATCH_FORMAT, BROKER_OWNED
from spillway.dialect.errors import MessageMalformed
from spillway.model import limits
from spillway.model.errors import (
    ArgumentError,
    ArgumentOutOfRange,
    BrokerError,
    MessageTooLarge,
    NotImplementedHere,
)
from spillway.model.message import NEVER, NO_TTL, SAID_TRUE, UNSAID, Message, unpack_message
from tests.dialect.visit import Tracking, body_message

PING = "application/vnd.ms-servicebus-ping"


def admitted(raw: bytes) -> Message:
    return admit(raw, Tracking())


def refusal(raw: bytes) -> BrokerError:
    with pytest.raises(BrokerError) as caught:
        admitted(raw)
    return caught.value


def annotated(annotations: dict[object, object]) -> bytes:
    return encode_message(
        message_annotations=annotations, properties=Properties(message_id="m"), body=encode_data(b"x")
    )


def with_properties(properties: dict[object, object]) -> bytes:
    return encode_message(
        properties=Properties(message_id="m"), application_properties=properties, body=encode_data(b"x")
    )


def test_an_ordinary_message_is_kept_byte_for_byte() -> None:
    raw = body_message(b"hello")
    message = admitted(raw)
    assert message.raw is raw
    assert (message.bare_at, message.message_id) == (0, "m1")
    assert (message.ttl_ms, message.scheduled_ms, message.priority, message.durable) == (NO_TTL, NEVER, -1, UNSAID)


def test_every_part_is_found_where_it_lies() -> None:
    raw = encode_message(
        header=Header(True, 7, 60_000),
        delivery_annotations={Symbol("d"): 1},
        message_annotations={Symbol("x-opt-partition-key"): "p", Symbol("mine"): "kept"},
        properties=Properties(message_id="id", group_id="s"),
        application_properties={"a": 1},
        body=encode_data(b"body"),
        footer={Symbol("f"): 1},
    )
    message = admitted(raw)
    sections = split_sections(raw, DecodeBudget())
    assert message.raw == raw
    assert message.bare_at == sections.properties.start
    assert message.properties_end == sections.application_properties.start
    assert message.application_end == sections.body.start
    assert (message.annotations_count, message.delivery_annotations_count) == (2, 1)
    assert raw[message.annotations_at : message.annotations_end].endswith(b"\xa1\x04kept")
    assert (message.durable, message.priority, message.ttl_ms) == (SAID_TRUE, 7, 60_000)
    assert (message.session_id, message.partition_key) == ("s", "p")


@pytest.mark.parametrize(
    ("raw", "bare_at"),
    [
        (encode_message(properties=Properties(message_id="m")), 0),
        (encode_message(header=Header(), properties=Properties(message_id="m")), 11),
    ],
)
def test_a_message_without_a_body_is_a_message(raw: bytes, bare_at: int) -> None:
    message = admitted(raw)
    assert message.bare_at == bare_at
    assert message.properties_end == message.application_end == len(raw)


@pytest.mark.parametrize(
    ("message_id", "text"),
    [
        ("text", "text"),
        (ULong(7), "7"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (b"\xab", "ab"),
    ],
)
def test_a_message_id_may_have_any_of_its_four_types(message_id: object, text: str) -> None:
    raw = encode_message(properties=Properties(message_id=message_id), body=encode_data(b""))
    message = admitted(raw)
    assert message.message_id == text
    assert message.raw == raw


@pytest.mark.parametrize("message_id", [None, "", b""])
@pytest.mark.parametrize("subject", [None, "s"])
def test_a_message_without_an_id_is_given_one(message_id: object, subject: str | None) -> None:
    body = encode_amqp_value({"k": Int(1)})
    raw = encode_message(
        header=Header(ttl_ms=5),
        properties=Properties(message_id=message_id, subject=subject, correlation_id=ULong(5)),
        application_properties={"a": Int(1)},
        body=body,
    )
    message = admitted(raw)
    sections = split_sections(message.raw, DecodeBudget())
    properties = decode_properties(message.raw, sections)
    assert properties.message_id == message.message_id == f"{1:032x}"
    assert (properties.subject, properties.correlation_id) == (subject, 5)
    assert type(properties.correlation_id) is ULong
    assert message.raw.endswith(body)
    assert decode_map(message.raw, sections.application_properties) == {"a": 1}


def test_a_message_without_properties_is_given_an_id_too() -> None:
    message = admitted(encode_data(b"x"))
    assert message.message_id == f"{1:032x}"
    assert message.raw.endswith(encode_data(b"x"))


def test_nothing_at_all_is_a_message_without_a_body() -> None:
    assert admitted(b"").message_id == f"{1:032x}"


def test_annotations_of_the_broker_are_cut_out_and_others_kept_byte_for_byte() -> None:
    theirs: dict[object, object] = {Symbol("mine"): Array(0x54, [Int(1)]), Symbol("x-opt-partition-key"): "p"}
    ours: dict[object, object] = {Symbol(name): 1 for name in BROKER_OWNED}
    raw = encode_message(
        header=Header(ttl_ms=9),
        delivery_annotations={Symbol("x-opt-lock-token"): uuid.UUID(int=1), Symbol("d"): True},
        message_annotations={**ours, **theirs},
        properties=Properties(message_id="m"),
        body=encode_data(b"x"),
    )
    message = admitted(raw)
    sections = split_sections(message.raw, DecodeBudget())
    assert decode_map(message.raw, sections.message_annotations) == theirs
    assert decode_map(message.raw, sections.delivery_annotations) == {"d": True}
    assert (message.annotations_count, message.delivery_annotations_count) == (2, 1)
    assert message.ttl_ms == 9
    assert message.raw[message.bare_at :] == raw[split_sections(raw, DecodeBudget()).properties.start :]


def test_annotations_that_are_all_the_brokers_leave_no_section() -> None:
    message = admitted(annotated({Symbol("x-opt-sequence-number"): 5}))
    assert message.annotations_count == 0
    assert message.bare_at == 0


def test_descriptors_in_their_long_form_are_rewritten_in_the_one_python_reads() -> None:
    raw = b"\x00\x80" + (0x75).to_bytes(8, "big") + b"\xa0\x01x"
    assert admitted(raw).raw.endswith(encode_data(b"x"))


def test_annotations_that_the_python_sdk_sends_on_are_read_in_its_types() -> None:
    """It received a time and texts, and sends a number and bytes."""
    names = ("x-opt-scheduled-enqueue-time", "x-opt-partition-key", "x-opt-via-partition-key")
    raw = annotated(dict(zip([Symbol(name) for name in names], [123, b"key", b"via"], strict=True)))
    message = admitted(raw)
    assert (message.scheduled_ms, message.partition_key, message.raw) == (123, "key", raw)


def test_the_due_time_is_read_from_its_annotation() -> None:
    message = admitted(annotated({Symbol("x-opt-scheduled-enqueue-time"): Timestamp(123)}))
    assert message.scheduled_ms == 123
    assert message.annotations_count == 1
    assert admitted(annotated({Symbol("x-opt-scheduled-enqueue-time"): None})).scheduled_ms == NEVER


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-opt-scheduled-enqueue-time", "tomorrow"),
        ("x-opt-scheduled-enqueue-time", True),
        ("x-opt-partition-key", 5),
        ("x-opt-via-partition-key", [b"x"]),
    ],
)
def test_an_annotation_of_a_wrong_type_is_named(name: str, value: object) -> None:
    error = refusal(annotated({Symbol(name): value}))
    assert isinstance(error, ArgumentError)
    assert name in error.description


@pytest.mark.parametrize(
    ("raw", "limit"),
    [
        (body_message(message_id="x" * 129), "128"),
        (body_message(message_id=b"x" * 129), "128"),
        (body_message(group_id="x" * 129), "128"),
        (annotated({Symbol("x-opt-partition-key"): "x" * 129}), "128"),
        (with_properties({"a": "x" * 33_000}), "32768"),
        (with_properties({f"p{n}": "x" * 1_000 for n in range(66)}), "65536"),
    ],
)
def test_what_is_over_a_limit_is_refused_and_the_limit_is_said(raw: bytes, limit: str) -> None:
    error = refusal(raw)
    assert isinstance(error, ArgumentOutOfRange)
    assert limit in error.description


@pytest.mark.parametrize(
    "raw",
    [
        body_message(message_id="x" * 128),
        body_message(group_id="x" * 128),
        body_message(group_id=""),
        with_properties({"a": "x" * 32_000}),
        with_properties({f"p{n}": "x" * 1_000 for n in range(60)}),
        with_properties({}),
    ],
)
def test_what_is_at_a_limit_is_let_in(raw: bytes) -> None:
    assert admitted(raw).raw == raw


def test_a_message_over_256_kib_is_refused_with_both_sizes() -> None:
    error = refusal(body_message(b"x" * limits.MESSAGE_BYTES_MAX))
    assert isinstance(error, MessageTooLarge)
    assert "262144" in error.description


@pytest.mark.parametrize(
    "raw",
    [
        b"x",
        b"\x00",
        b"\x00\x53\x75",
        b"\x00\x53\x75\xa0\x05x",
        b"\x00\x53\x99\x45",
        encode_data(b"x") + b"\x00\x53\x73\x45\x00\x53\x73\x45",
        b"\x00\x53\x74\xc1\x04\x02\xa3\x01a\x41",
        b"\x00\x53\x73\xc0\x04\x01\xa1\x01\xff",
        b"\x00\x53\x77" + b"\xc0\x03\x01" * 100,
    ],
)
def test_what_is_no_message_is_refused_in_words(raw: bytes) -> None:
    error = refusal(raw)
    assert isinstance(error, MessageMalformed)
    assert error.condition == "amqp:decode-error"
    assert "no AMQP message" in error.description


def test_a_time_to_live_beyond_the_headers_reach_is_the_span_of_the_two_times() -> None:
    year_ms = 365 * 86_400_000
    raw = encode_message(
        header=Header(ttl_ms=0xFFFFFFFF),
        properties=Properties(message_id="m", creation_time=1_000, absolute_expiry_time=1_000 + year_ms),
        body=encode_data(b""),
    )
    assert admitted(raw).ttl_ms == year_ms
    plain = encode_message(header=Header(ttl_ms=0xFFFFFFFF), properties=Properties(message_id="m"))
    assert admitted(plain).ttl_ms == 0xFFFFFFFF


def test_times_that_no_store_could_hold_are_cut_or_refused() -> None:
    raw = encode_message(
        header=Header(ttl_ms=0xFFFFFFFF),
        properties=Properties(message_id="m", creation_time=-(2**63), absolute_expiry_time=2**63 - 1),
    )
    message = admitted(raw)
    assert message.ttl_ms == limits.TTL_MS_MAX
    assert unpack_message(message.raw, message.pack_meta()).ttl_ms == limits.TTL_MS_MAX
    late = annotated({Symbol("x-opt-scheduled-enqueue-time"): Timestamp(limits.SCHEDULED_MS_MAX + 1)})
    assert isinstance(refusal(late), ArgumentOutOfRange)


@pytest.mark.contract("F1")
@pytest.mark.parametrize("body", [b"", encode_data(b""), encode_amqp_value(None), encode_amqp_value("")])
def test_an_empty_message_of_the_pings_content_type_is_a_ping(body: bytes) -> None:
    raw = encode_message(header=Header(ttl_ms=1_000), properties=Properties("m", content_type=PING), body=body)
    assert admitted(raw).is_ping


@pytest.mark.parametrize(
    ("content_type", "body"),
    [(PING, encode_data(b"x")), (PING, encode_amqp_value(0)), ("text/plain", encode_data(b"")), (None, b"")],
)
def test_anything_else_is_no_ping(content_type: str | None, body: bytes) -> None:
    raw = encode_message(properties=Properties("m", content_type=content_type), body=body)
    assert not admitted(raw).is_ping


# -- batches -------------------------------------------------------------------------------------------------


def batch_of(*messages: bytes) -> bytes:
    return encode_message(
        properties=Properties(message_id="envelope", group_id="envelope"),
        body=b"".join(encode_data(m) for m in messages),
    )


def test_the_messages_of_a_batch_count_and_not_their_envelope() -> None:
    inner = [body_message(b"1", message_id="a"), body_message(b"2", message_id="b")]
    messages = admit_transfer(batch_of(*inner), BATCH_FORMAT, Tracking())
    assert [message.raw for message in messages] == inner
    assert [message.message_id for message in messages] == ["a", "b"]
    assert [message.session_id for message in messages] == [None, None]


def test_the_message_of_a_batch_that_is_wrong_is_named() -> None:
    with pytest.raises(MessageMalformed, match="Message 2 of the batch"):
        admit_transfer(batch_of(body_message(), b"junk"), BATCH_FORMAT, Tracking())


def test_a_batch_of_something_else_than_data_is_refused() -> None:
    with pytest.raises(ArgumentError, match="data sections"):
        admit_transfer(encode_message(body=encode_amqp_value("x")), BATCH_FORMAT, Tracking())


def test_a_batch_of_too_many_messages_is_refused() -> None:
    with pytest.raises(ArgumentOutOfRange, match="at most 4500"):
        admit_transfer(batch_of(*[b""] * 4_501), BATCH_FORMAT, Tracking())


def test_a_batch_may_be_a_little_larger_than_a_message() -> None:
    payload = batch_of(*[body_message(b"x" * 65_500) for _ in range(4)])
    assert limits.MESSAGE_BYTES_MAX < len(payload) < limits.MESSAGE_BYTES_MAX + limits.BATCH_SLACK_BYTES
    assert len(admit_transfer(payload, BATCH_FORMAT, Tracking())) == 4


def test_sections_in_any_order_are_stored_in_theirs() -> None:
    """The Python SDK writes delivery annotations behind the body, rhea the footer before it; also inside a batch."""
    body = encode_data(b"x")
    properties = encode_properties(Properties("m"))
    delivery = b"\x00\x53\x71\xc1\x06\x02\xa3\x01d\x54\x05"
    footer = b"\x00\x53\x78\xc1\x06\x02\xa3\x01f\x54\x06"
    for raw in (properties + body + delivery + footer, footer + properties + delivery + body):
        (message,) = admit_transfer(raw, 0, Tracking())
        assert message.raw == delivery + properties + body + footer
        (message,) = admit_transfer(encode_data(raw) + b"\x00\x53\x70\x45", BATCH_FORMAT, Tracking())
        assert message.raw == delivery + properties + body + footer


def test_an_unknown_message_format_is_refused() -> None:
    with pytest.raises(NotImplementedHere, match="0x00000005"):
        admit_transfer(body_message(), 5, Tracking())


# -- anything at all -----------------------------------------------------------------------------------------

VALUES = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=20) | st.binary(max_size=20)


@given(
    annotations=st.none()
    | st.dictionaries(st.from_regex(r"[a-z-]{1,20}", fullmatch=True).map(Symbol), VALUES, max_size=4),
    properties=st.none() | st.dictionaries(st.text(min_size=1, max_size=10), VALUES, max_size=4),
    message_id=st.none() | st.text(max_size=128),
    body=st.binary(max_size=100),
)
def test_whatever_is_admitted_can_be_read_again_and_survives_the_store(
    annotations: dict[object, object] | None,
    properties: dict[object, object] | None,
    message_id: str | None,
    body: bytes,
) -> None:
    raw = encode_message(
        message_annotations=annotations,
        properties=Properties(message_id=message_id),
        application_properties=properties,
        body=encode_data(body),
    )
    message = admitted(raw)
    sections = split_sections(message.raw, DecodeBudget())
    ((at, end),) = decode_data_bodies(message.raw, sections)
    assert message.raw[at:end] == body
    assert decode_map(message.raw, sections.application_properties) == (properties or {})
    twin = unpack_message(message.raw, message.pack_meta())
    assert twin.pack_meta() == message.pack_meta()


@given(st.binary(max_size=200))
def test_any_bytes_are_admitted_or_refused_with_a_broker_error(raw: bytes) -> None:
    try:
        message = admitted(raw)
    except BrokerError:
        return
    try:
        split_sections(message.raw, DecodeBudget())
    except DecodeError as error:
        raise AssertionError("admitted and unreadable") from error
