"""A stored message as the client reads it."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway.amqp.codec import DecodeBudget, encode
from spillway.amqp.message import (
    Header,
    Properties,
    decode_header,
    decode_map,
    encode_data,
    encode_message,
    split_sections,
)
from spillway.amqp.types import Int, Symbol, Timestamp, UByte, UInt, ULong
from spillway.dialect.admission import admit
from spillway.dialect.delivery import UsualHeads, encode_delivery, encode_without_body, network_uuid
from spillway.model.message import ACTIVE, DEFERRED, NEVER, SCHEDULED, Overlay, StoredMessage, unpack_message
from tests.dialect.visit import Tracking, body_message

TOKEN = bytes(range(16))
ENQUEUED_MS = 1_700_000_000_000
LOCKED_UNTIL_MS = ENQUEUED_MS + 60_000


def stored_from(raw: bytes, number: int = 5) -> StoredMessage:
    return StoredMessage(admit(raw, Tracking()), number, ENQUEUED_MS)


def maps(payload: bytes) -> tuple[dict[object, object], dict[object, object], dict[object, object]]:
    """Delivery annotations, message annotations, application properties."""
    sections = split_sections(payload, DecodeBudget())
    assert sections.is_plain
    return (
        decode_map(payload, sections.delivery_annotations),
        decode_map(payload, sections.message_annotations),
        decode_map(payload, sections.application_properties),
    )


OURS: dict[object, object] = {
    "x-opt-locked-until": LOCKED_UNTIL_MS,
    "x-opt-sequence-number": 5,
    "x-opt-enqueued-time": ENQUEUED_MS,
}
OF_A_COPY: dict[object, object] = {**OURS, "x-opt-enqueue-sequence-number": 5, "x-opt-message-state": 0}


def test_the_usual_delivery_has_these_bytes() -> None:
    payload = encode_delivery(
        stored_from(encode_message(properties=Properties("m1"), body=encode_data(b"hi"))), TOKEN, LOCKED_UNTIL_MS
    )
    assert payload.hex(" ") == (
        # header: delivery-count 0
        "00 53 70 c0 0a 05 40 40 40 40 70 00 00 00 00 "
        # delivery annotations: x-opt-lock-token, a uuid in network order
        "00 53 71 c1 24 02 a3 10 78 2d 6f 70 74 2d 6c 6f 63 6b 2d 74 6f 6b 65 6e "
        "98 03 02 01 00 05 04 07 06 08 09 0a 0b 0c 0d 0e 0f "
        # message annotations: x-opt-locked-until
        "00 53 72 c1 5c 06 a3 12 78 2d 6f 70 74 2d 6c 6f 63 6b 65 64 2d 75 6e 74 69 6c 83 00 00 01 8b cf e6 52 60 "
        # x-opt-sequence-number
        "a3 15 78 2d 6f 70 74 2d 73 65 71 75 65 6e 63 65 2d 6e 75 6d 62 65 72 81 00 00 00 00 00 00 00 05 "
        # x-opt-enqueued-time
        "a3 13 78 2d 6f 70 74 2d 65 6e 71 75 65 75 65 64 2d 74 69 6d 65 83 00 00 01 8b cf e5 68 00 "
        # what the sender sent
        + encode_message(properties=Properties("m1"), body=encode_data(b"hi")).hex(" ")
    )


def check_head(heads: UsualHeads, stored: StoredMessage, token: bytes, until_ms: int) -> bool:
    """Whether it has a head of the usual kind; if so, that of the general way."""
    head = heads.head(stored, token, until_ms)
    if head is None:
        return False
    general = encode_delivery(stored, token, until_ms, heads.is_copy)
    assert (head + stored.message.raw[stored.message.bare_at :]).hex(" ") == general.hex(" ")
    return True


USUAL = {
    "an id and data": encode_message(properties=Properties("m"), body=encode_data(b"x")),
    "durable": encode_message(header=Header(True), properties=Properties("m"), body=encode_data(b"x")),
    "not durable": encode_message(header=Header(False), properties=Properties("m"), body=encode_data(b"x")),
    "a priority": encode_message(header=Header(False, 9), properties=Properties("m"), body=encode_data(b"x")),
    "a time to live": encode_message(header=Header(True, None, 5_000), properties=Properties("m")),
    "properties": encode_message(properties=Properties("m"), application_properties={"n": "1"}, body=encode_data(b"x")),
}


@pytest.mark.parametrize("is_copy", [False, True])
@pytest.mark.parametrize("name", USUAL)
def test_a_usual_message_has_the_head_of_the_general_way(name: str, is_copy: bool) -> None:
    heads = UsualHeads(is_copy)
    for number in (1, 2, 255, 256, 70_000, 3):
        stored = stored_from(USUAL[name], number)
        for stored.delivery_count in (0, 3):
            assert check_head(heads, stored, TOKEN, LOCKED_UNTIL_MS + number)
        assert check_head(heads, stored, bytes(16 - number % 16) + TOKEN[: number % 16], LOCKED_UNTIL_MS)


@pytest.mark.parametrize("is_copy", [False, True])
def test_an_unusual_message_goes_the_general_way(is_copy: bool) -> None:
    annotated = stored_from(encode_message(message_annotations={Symbol("a"): 1}, properties=Properties("m")))
    annotated_on_its_way = stored_from(encode_message(delivery_annotations={Symbol("a"): 1}))
    changed = stored_from(USUAL["properties"])
    changed.overlay = Overlay()
    changed.overlay.properties = {"n": encode("2")}
    deferred = stored_from(USUAL["properties"])
    deferred.state = DEFERRED
    scheduled = stored_from(USUAL["properties"])
    scheduled.message.was_scheduled = True
    for stored in (annotated, annotated_on_its_way, changed, deferred, scheduled):
        assert not check_head(UsualHeads(is_copy), stored, TOKEN, LOCKED_UNTIL_MS)
    assert not check_head(UsualHeads(is_copy), stored_from(USUAL["properties"]), b"", 0)


stored_messages = st.builds(
    stored_from,
    st.builds(
        encode_message,
        header=st.none()
        | st.builds(
            Header,
            st.booleans(),
            st.none() | st.integers(0, 255).map(UByte),
            st.none() | st.integers(0, 2**32 - 1).map(UInt),
            st.booleans(),
        ),
        delivery_annotations=st.none() | st.just({Symbol("d"): 1}),
        message_annotations=st.none() | st.just({Symbol("a"): 1}),
        properties=st.just(Properties("m")),
        application_properties=st.none() | st.just({"n": "1"}),
        body=st.binary(max_size=9).map(encode_data),
    ),
    st.integers(1, 2**62),
)


@given(
    st.booleans(),
    st.lists(st.tuples(stored_messages, st.binary(min_size=16, max_size=16) | st.just(b"")), max_size=4),
    st.data(),
)
def test_any_message_has_the_head_of_the_general_way_or_none(
    is_copy: bool, messages: list[tuple[StoredMessage, bytes]], data: st.DataObject
) -> None:
    heads = UsualHeads(is_copy)
    for stored, token in messages:
        stored.delivery_count = data.draw(st.integers(0, 2**31))
        stored.enqueued_ms = data.draw(st.integers(0, 2**42))
        stored.expires_ms = data.draw(st.sampled_from([NEVER, stored.enqueued_ms + 7, stored.enqueued_ms + 2**40]))
        stored.state = data.draw(st.sampled_from([ACTIVE, DEFERRED]))
        stored.message.was_scheduled = data.draw(st.booleans())
        if data.draw(st.booleans()):
            stored.enqueue_sequence_number = data.draw(st.integers(1, 2**62))
        if data.draw(st.booleans()):
            stored.overlay = Overlay()
            stored.overlay.hops = data.draw(st.integers(0, 2))
            if data.draw(st.booleans()):
                stored.overlay.set_properties({"n": encode("2")})
            stored.overlay.dead_letter_source = data.draw(st.none() | st.just("q"))
        check_head(heads, stored, token, data.draw(st.integers(0, 2**42)))


@pytest.mark.parametrize("token", [b"", TOKEN])
@pytest.mark.parametrize(
    ("state", "was_scheduled", "first_number", "is_copy", "said"),
    [
        (ACTIVE, False, 5, False, {}),
        (ACTIVE, False, 5, True, {"enqueue-sequence-number": 5, "message-state": 0}),
        (ACTIVE, False, 2, False, {"enqueue-sequence-number": 2}),
        (ACTIVE, True, 2, False, {"enqueue-sequence-number": 2, "message-state": 2}),
        (ACTIVE, True, 5, True, {"enqueue-sequence-number": 5, "message-state": 2}),
        (SCHEDULED, True, 5, False, {"message-state": 2}),
        (DEFERRED, False, 5, False, {"message-state": 1}),
        (DEFERRED, True, 2, True, {"enqueue-sequence-number": 2, "message-state": 1}),
    ],
)
def test_where_it_comes_from_and_its_state_are_said_where_they_tell_anything(
    token: bytes, state: int, was_scheduled: bool, first_number: int, is_copy: bool, said: dict[str, int]
) -> None:
    """As Azure does: a message that waited for its time is called scheduled for as long as it lives."""
    stored = stored_from(body_message())
    stored.state = state
    stored.enqueue_sequence_number = first_number
    stored.message.was_scheduled = was_scheduled
    stored.message = unpack_message(stored.message.raw, stored.message.pack_meta())
    _, annotations, _ = maps(encode_delivery(stored, token, LOCKED_UNTIL_MS, is_copy))
    ours = dict(OURS) if token else {key: value for key, value in OURS.items() if key != "x-opt-locked-until"}
    more: dict[object, object] = {f"x-opt-{name}": value for name, value in said.items()}
    assert annotations == {**ours, **more}


def test_nobody_sees_how_often_a_message_was_passed_on() -> None:
    direct = stored_from(body_message())
    passed_on = stored_from(body_message())
    passed_on.overlay = Overlay()
    passed_on.overlay.hops = 4
    _, annotations, _ = maps(encode_delivery(passed_on, TOKEN, LOCKED_UNTIL_MS))
    assert annotations == {**OURS, "x-opt-enqueue-sequence-number": 5}  # but that it was
    assert encode_delivery(direct, TOKEN, LOCKED_UNTIL_MS, True) == encode_delivery(
        passed_on, TOKEN, LOCKED_UNTIL_MS, True
    )


def test_a_locked_delivery_carries_its_token_and_the_brokers_annotations_in_their_types() -> None:
    payload = encode_delivery(stored_from(body_message()), TOKEN, LOCKED_UNTIL_MS, True)
    delivery_annotations, annotations, _ = maps(payload)
    assert delivery_annotations == {"x-opt-lock-token": uuid.UUID(bytes_le=TOKEN)}
    assert annotations == OF_A_COPY
    assert type(annotations["x-opt-sequence-number"]) is int
    assert type(annotations["x-opt-enqueued-time"]) is Timestamp
    assert type(annotations["x-opt-locked-until"]) is Timestamp
    assert type(annotations["x-opt-message-state"]) is Int


def test_the_tag_is_the_guid_and_the_annotation_its_uuid() -> None:
    assert network_uuid(TOKEN) == uuid.UUID(bytes_le=TOKEN).bytes
    assert network_uuid(network_uuid(TOKEN)) == TOKEN


def test_without_a_lock_the_delivery_annotations_are_empty_and_no_end_of_lock_is_said() -> None:
    delivery_annotations, annotations, _ = maps(encode_delivery(stored_from(body_message()), b"", 0))
    assert delivery_annotations == {}
    assert "x-opt-locked-until" not in annotations
    assert annotations["x-opt-sequence-number"] == 5


@pytest.mark.parametrize("token", [b"", TOKEN])
def test_the_senders_own_annotations_reach_the_receiver(token: bytes) -> None:
    raw = encode_message(
        delivery_annotations={Symbol("d"): Int(1)},
        message_annotations={Symbol("mine"): [ULong(3)], Symbol("x-opt-partition-key"): "p"},
        properties=Properties("m"),
        body=encode_data(b"x"),
    )
    delivery_annotations, annotations, _ = maps(encode_delivery(stored_from(raw), token, LOCKED_UNTIL_MS))
    assert delivery_annotations["d"] == 1
    assert annotations["mine"] == [3]
    assert annotations["x-opt-partition-key"] == "p"
    assert annotations["x-opt-sequence-number"] == 5
    assert ("x-opt-lock-token" in delivery_annotations) is bool(token)


def test_many_annotations_need_a_wide_map_and_get_one() -> None:
    raw = encode_message(
        message_annotations={Symbol(f"key-{number}"): "x" * 50 for number in range(200)}, properties=Properties("m")
    )
    _, annotations, _ = maps(encode_delivery(stored_from(raw), TOKEN, LOCKED_UNTIL_MS))
    assert len(annotations) == 200 + len(OURS)


def test_the_header_keeps_durable_and_priority_and_always_has_the_delivery_count() -> None:
    stored = stored_from(encode_message(header=Header(True, 9, 1_000), properties=Properties("m")))
    stored.delivery_count = 2
    payload = encode_delivery(stored, TOKEN, LOCKED_UNTIL_MS)
    header = decode_header(payload, split_sections(payload, DecodeBudget()))
    assert (header.durable, header.priority, header.ttl_ms, header.delivery_count) == (True, 9, 1_000, 2)


@pytest.mark.parametrize("durable", [0x40, 0x41, 0x42])
@pytest.mark.parametrize("first_acquirer", [0x40, 0x41, 0x42])
@pytest.mark.parametrize("lock_token", [TOKEN, b""])
def test_flags_of_the_header_come_as_they_were_sent(durable: int, first_acquirer: int, lock_token: bytes) -> None:
    sent = bytes([0x00, 0x53, 0x70, 0xC0, 0x05, 0x04, durable, 0x40, 0x40, first_acquirer])
    stored = stored_from(sent + encode_message(properties=Properties("m"), body=encode_data(b"hi")))
    kept = unpack_message(stored.message.raw, stored.message.pack_meta())
    for message in (stored.message, kept):
        stored.message = message
        payload = encode_delivery(stored, lock_token, LOCKED_UNTIL_MS)
        assert payload[:10] == bytes([0x00, 0x53, 0x70, 0xC0, 0x0A, 0x05, durable, 0x40, 0x40, first_acquirer])


def test_the_time_to_live_is_the_one_that_counts_in_this_entity() -> None:
    stored = stored_from(body_message())
    stored.expires_ms = ENQUEUED_MS + 30_000
    payload = encode_delivery(stored, TOKEN, LOCKED_UNTIL_MS)
    assert decode_header(payload, split_sections(payload, DecodeBudget())).ttl_ms == 30_000
    stored.expires_ms = ENQUEUED_MS + (1 << 40)
    payload = encode_delivery(stored, TOKEN, LOCKED_UNTIL_MS)
    assert decode_header(payload, split_sections(payload, DecodeBudget())).ttl_ms == 0xFFFFFFFF


def test_a_deferred_message_says_so_and_its_first_number_is_kept() -> None:
    stored = stored_from(body_message(), number=9)
    stored.state = DEFERRED
    stored.enqueue_sequence_number = 2
    _, annotations, _ = maps(encode_delivery(stored, b"", 0))
    assert annotations["x-opt-message-state"] == 1
    assert annotations["x-opt-enqueue-sequence-number"] == 2


def overlaid(raw: bytes) -> StoredMessage:
    stored = stored_from(raw)
    overlay = Overlay()
    overlay.dead_letter_reason = "why"
    overlay.dead_letter_description = "how"
    overlay.dead_letter_source = "q"
    overlay.properties = {"changed": encode("new"), "added": encode(Timestamp(7))}
    stored.overlay = overlay
    return stored


def test_changes_are_merged_and_untouched_properties_stay_byte_for_byte() -> None:
    # `n` is a long in its eight-byte form, which no encoder of ours would choose for 1
    pairs = (
        b"\xa1\x01n\x81" + (1).to_bytes(8, "big") + b"\xa1\x07changed\xa1\x03old" + b"\xa1\x10DeadLetterReason\xa1\x01x"
    )
    section = b"\x00\x53\x74\xc1" + bytes([len(pairs) + 1, 6]) + pairs
    raw = encode_message(properties=Properties("m")) + section + encode_data(b"body")
    payload = encode_delivery(overlaid(raw), TOKEN, LOCKED_UNTIL_MS)
    _, annotations, properties = maps(payload)
    assert properties == {
        "n": 1,
        "changed": "new",
        "added": 7,
        "DeadLetterReason": "why",
        "DeadLetterErrorDescription": "how",
    }
    assert b"\xa1\x01n\x81" + (1).to_bytes(8, "big") in payload
    assert annotations["x-opt-deadletter-source"] == "q"
    assert payload.endswith(encode_data(b"body"))
    assert payload.count(encode_message(properties=Properties("m"))) == 1


@pytest.mark.parametrize("body", [b"", encode_data(b"body")])
def test_changes_to_a_message_without_properties_add_the_section(body: bytes) -> None:
    payload = encode_delivery(overlaid(encode_message(properties=Properties("m"), body=body)), b"", 0)
    _, _, properties = maps(payload)
    assert properties["DeadLetterReason"] == "why"
    assert payload.endswith(body)


def test_a_wide_property_map_is_merged_too() -> None:
    raw = encode_message(
        properties=Properties("m"),
        application_properties={f"p{number}": "x" * 30 for number in range(100)},
        body=encode_data(b"body"),
        footer={Symbol("f"): 1},
    )
    _, _, properties = maps(encode_delivery(overlaid(raw), TOKEN, LOCKED_UNTIL_MS))
    assert len(properties) == 104


def test_expiry_and_creation_time_stay_as_the_sender_wrote_them() -> None:
    raw = encode_message(
        header=Header(ttl_ms=1_000),
        properties=Properties("m", absolute_expiry_time=2_000, creation_time=1_000),
        body=encode_data(b"x"),
    )
    payload = encode_delivery(stored_from(raw), TOKEN, LOCKED_UNTIL_MS)
    assert payload.endswith(raw[split_sections(raw, DecodeBudget()).properties.start :])


def test_browsing_without_bodies_keeps_everything_but_the_body() -> None:
    raw = encode_message(properties=Properties("m"), application_properties={"a": 1}, body=encode_data(b"body" * 100))
    payload = encode_without_body(stored_from(raw))
    sections = split_sections(payload, DecodeBudget())
    assert sections.body_kind == 0
    assert decode_map(payload, sections.application_properties) == {"a": 1}
