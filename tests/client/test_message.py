"""Messages: what they say is what is encoded, and received bytes can be passed on."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway.amqp.errors import DecodeError
from spillway.amqp.message import encode_amqp_sequence, encode_data, encode_message
from spillway.amqp.types import Int, Symbol, Timestamp
from spillway.client import AmqpValue, OutgoingMessage, ReceivedMessage, encode_batch, encode_batch_raw

TEXT = st.none() | st.text(max_size=20)


@given(
    body=st.binary(max_size=300),
    message_id=TEXT,
    session_id=TEXT,
    subject=TEXT,
    to=TEXT,
    reply_to=TEXT,
    correlation_id=TEXT,
    time_to_live_ms=st.none() | st.integers(0, 2**32 - 1),
    scheduled_ms=st.none() | st.integers(0, 2**53),
    partition_key=TEXT,
    properties=st.dictionaries(
        st.text(max_size=10),
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**63 - 1)
        | st.text(max_size=10)
        | st.uuids()
        | st.binary(max_size=10),
        max_size=5,
    ),
)
def test_what_a_message_says_is_what_is_read(
    body: bytes,
    message_id: str | None,
    session_id: str | None,
    subject: str | None,
    to: str | None,
    reply_to: str | None,
    correlation_id: str | None,
    time_to_live_ms: int | None,
    scheduled_ms: int | None,
    partition_key: str | None,
    properties: dict[str, object],
) -> None:
    message = OutgoingMessage(
        body,
        message_id=message_id,
        session_id=session_id,
        partition_key=partition_key,
        subject=subject,
        to=to,
        reply_to=reply_to,
        correlation_id=correlation_id,
        time_to_live_ms=time_to_live_ms,
        scheduled_enqueue_time_ms=scheduled_ms,
        application_properties=properties,
    )
    read = ReceivedMessage(message.encode())
    assert (read.body, read.message_id, read.session_id) == (body, message_id, session_id)
    found = read.properties
    assert (found.subject, found.to, found.reply_to, found.correlation_id) == (subject, to, reply_to, correlation_id)
    assert read.header.ttl_ms == time_to_live_ms
    assert read.scheduled_enqueue_time_ms == scheduled_ms
    assert read.annotations.get("x-opt-partition-key") == partition_key
    assert read.application_properties == properties


def test_text_is_sent_as_utf_8_and_nothing_is_sent_that_was_not_said() -> None:
    assert OutgoingMessage("é").encode() == encode_data("é".encode())
    assert OutgoingMessage().encode() == encode_data(b"")


def test_several_data_sections_are_one_body_and_other_bodies_have_none() -> None:
    assert ReceivedMessage(encode_data(b"a") + encode_data(b"b")).body == b"ab"
    assert ReceivedMessage(encode_amqp_sequence([1])).body == b""
    value = ReceivedMessage(OutgoingMessage(AmqpValue([Int(1)])).encode())
    assert (value.body, value.value) == (b"", [1])
    assert ReceivedMessage(encode_data(b"a")).value is None


def test_the_delivery_tag_is_the_lock_token_in_guid_order() -> None:
    token = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
    assert ReceivedMessage(b"", token.bytes_le, is_settled=False).lock_token == token
    assert ReceivedMessage(b"", token.bytes_le, is_settled=True).lock_token is None
    assert ReceivedMessage(b"", b"short", is_settled=False).lock_token is None


def test_what_the_service_wrote_is_read_by_name() -> None:
    raw = encode_message(
        message_annotations={
            Symbol("x-opt-sequence-number"): 7,
            Symbol("x-opt-enqueued-time"): Timestamp(8),
            Symbol("x-opt-locked-until"): Timestamp(9),
            Symbol("x-opt-message-state"): Int(1),
            Symbol("x-opt-deadletter-source"): "q",
        },
        application_properties={"DeadLetterReason": "r", "DeadLetterErrorDescription": "d"},
        body=encode_data(b"x"),
    )
    read = ReceivedMessage(raw)
    assert (read.sequence_number, read.enqueued_time_ms, read.locked_until_ms, read.state) == (7, 8, 9, 1)
    assert (read.dead_letter_source, read.dead_letter_reason, read.dead_letter_description) == ("q", "r", "d")


def test_a_message_that_cannot_be_read_still_has_its_bytes() -> None:
    broken = ReceivedMessage(b"\x00\x53\x75\xa0\xff")
    assert broken.raw == b"\x00\x53\x75\xa0\xff"
    with pytest.raises(DecodeError):
        _ = broken.body


def test_a_batch_holds_each_message_whole() -> None:
    one, two = OutgoingMessage(b"1"), OutgoingMessage(b"2")
    assert encode_batch([one, two]) == encode_data(one.encode()) + encode_data(two.encode())
    assert encode_batch_raw([one.encode()]) == encode_data(one.encode())
