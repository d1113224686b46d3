"""Whole messages exchanged with qpid-proton."""

from typing import Any

import proton
from hypothesis import given, settings
from hypothesis import strategies as st

from spillway.amqp.codec import DecodeBudget
from spillway.amqp.message import (
    AMQP_VALUE,
    DATA,
    Header,
    Properties,
    decode_body_value,
    decode_data_bodies,
    decode_header,
    decode_map,
    decode_properties,
    encode_amqp_value,
    encode_data,
    encode_message,
    split_sections,
)
from spillway.amqp.types import Symbol, ULong
from tests.amqp.values import ASCII, SCALARS, around, from_proton, same, to_proton

# proton's message holds text fields as C strings, and an empty one or a null body as none.
FILLED = st.text(st.characters(min_codepoint=1, exclude_categories=["Cs"]), min_size=1, max_size=40)
BODIES = SCALARS.filter(lambda value: value is not None)
IDS = st.one_of(FILLED, st.uuids(), st.binary(min_size=1, max_size=20), around(0, 2**64 - 1).map(ULong))
MESSAGES = st.fixed_dictionaries(
    {
        "id": IDS,
        "correlation_id": IDS,
        "subject": FILLED,
        "user_id": st.binary(min_size=1, max_size=20),
        "ttl": st.integers(1, 2**32 - 1),
        "priority": st.integers(0, 255),
        "durable": st.booleans(),
        "delivery_count": st.integers(0, 2**32 - 1),
        "expiry": st.integers(1, 2**40),
        "annotations": st.dictionaries(ASCII.filter(bool).map(Symbol), SCALARS, min_size=1, max_size=4),
        "application": st.dictionaries(FILLED, SCALARS, min_size=1, max_size=4),
        "value": BODIES,
        "data": st.one_of(st.none(), st.binary(max_size=300)),
    }
)


def properties_of(content: dict[str, Any]) -> Properties:
    return Properties(
        message_id=content["id"],
        user_id=content["user_id"],
        subject=content["subject"],
        correlation_id=content["correlation_id"],
        content_type="text/plain",
        absolute_expiry_time=content["expiry"],
        group_id="g",
        group_sequence=7,
    )


@settings(max_examples=80, deadline=None)
@given(MESSAGES)
def test_proton_reads_our_messages(content: dict[str, Any]) -> None:
    is_data = content["data"] is not None
    raw = encode_message(
        Header(content["durable"], content["priority"], content["ttl"], False, content["delivery_count"]),
        message_annotations=content["annotations"],
        properties=properties_of(content),
        application_properties=content["application"],
        body=encode_data(content["data"]) if is_data else encode_amqp_value(content["value"]),
    )
    message = proton.Message()
    message.decode(raw)
    assert (message.id, message.correlation_id) == (content["id"], content["correlation_id"])  # its ulongs are int here
    assert (message.subject, bytes(message.user_id)) == (content["subject"], content["user_id"])
    assert (round(message.ttl * 1000), message.priority, message.durable) == (
        content["ttl"],
        content["priority"],
        content["durable"],
    )
    assert message.delivery_count == content["delivery_count"]
    assert round(message.expiry_time * 1000) == content["expiry"]
    assert (message.content_type, message.group_id, message.group_sequence) == ("text/plain", "g", 7)
    assert message.annotations is not None
    theirs: Any = message.properties
    assert same({Symbol(key): from_proton(value) for key, value in message.annotations.items()}, content["annotations"])
    assert same({str(key): from_proton(value) for key, value in theirs.items()}, content["application"])
    assert same(from_proton(message.body), content["data"] if is_data else content["value"])


@settings(max_examples=80, deadline=None)
@given(MESSAGES)
def test_we_read_messages_of_proton(content: dict[str, Any]) -> None:
    is_data = content["data"] is not None
    message = proton.Message()
    message.id = to_proton(content["id"])
    message.correlation_id = to_proton(content["correlation_id"])
    message.subject = content["subject"]
    message.user_id = content["user_id"]
    message.priority = content["priority"]
    message.durable = content["durable"]
    message.delivery_count = content["delivery_count"]
    message.content_type = "text/plain"
    message.annotations = to_proton(content["annotations"])
    message.properties = to_proton(content["application"])
    message.inferred = is_data
    message.body = content["data"] if is_data else to_proton(content["value"])
    raw = bytes(message.encode())

    sections = split_sections(raw, DecodeBudget())
    header = decode_header(raw, sections)
    assert (header.durable, header.delivery_count) == (content["durable"], content["delivery_count"])
    assert header.priority == content["priority"] or (header.priority is None and content["priority"] == 4)
    properties = decode_properties(raw, sections)
    assert same(properties.message_id, content["id"])
    assert same(properties.correlation_id, content["correlation_id"])
    assert (properties.subject, properties.user_id, properties.content_type) == (
        content["subject"],
        content["user_id"],
        "text/plain",
    )
    assert same(decode_map(raw, sections.message_annotations), content["annotations"])
    assert same(decode_map(raw, sections.application_properties), content["application"])
    if is_data:
        assert sections.body_kind == DATA
        assert [raw[at:end] for at, end in decode_data_bodies(raw, sections)] == [content["data"]]
    else:
        assert sections.body_kind == AMQP_VALUE
        assert same(decode_body_value(raw, sections), content["value"])
