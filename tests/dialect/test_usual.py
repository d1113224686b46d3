"""The quick way in for the usual message: what the general way gives, or nothing."""

import uuid

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from hypothesis import given
from hypothesis import strategies as st

from spillway.amqp.message import Header, Properties, encode_amqp_value, encode_data, encode_message
from spillway.amqp.types import Symbol, Timestamp, UByte, UInt, ULong
from spillway.dialect.admission import admit_any
from spillway.dialect.usual import admit_usual
from spillway.model import limits
from spillway.model.errors import BrokerError
from spillway.model.message import Message
from tests.dialect.visit import Tracking

PING = "application/vnd.ms-servicebus-ping"
FIELDS = (
    "bare_at",
    "properties_end",
    "application_end",
    "annotations_at",
    "annotations_end",
    "annotations_count",
    "delivery_annotations_at",
    "delivery_annotations_end",
    "delivery_annotations_count",
    "ttl_ms",
    "scheduled_ms",
    "durable",
    "first_acquirer",
    "priority",
    "message_id",
    "message_id_type",
    "was_scheduled",
    "digest",
    "session_id",
    "partition_key",
    "is_ping",
)


def facts_of(message: Message) -> dict[str, object]:
    return {"raw": message.raw, **{name: getattr(message, name) for name in FIELDS}}


def check(raw: bytes) -> bool:
    """Whether the quick way took it; if so, as the general way does."""
    quick = admit_usual(raw)
    if quick is None:
        return False
    try:
        general = admit_any(raw, Tracking())
    except BrokerError as error:
        raise AssertionError(f"{raw.hex()} is refused by the general way: {error.description}") from None
    assert facts_of(quick) == facts_of(general)
    return True


def test_every_field_of_a_message_is_compared() -> None:
    message = Message(b"")
    known = {name for name in dir(message) if not name.startswith("_") and not callable(getattr(message, name))}
    assert known == {"raw", *FIELDS}


USUAL = {
    "an id and data": encode_message(properties=Properties(message_id="m"), body=encode_data(b"x")),
    "no body": encode_message(properties=Properties(message_id="m")),
    "much data": encode_message(properties=Properties(message_id="m"), body=encode_data(bytes(1_000))),
    "several data": encode_message(properties=Properties(message_id="m"), body=encode_data(b"x") + encode_data(b"y")),
    "a header": encode_message(
        header=Header(True, 9, 60_000, True, 3), properties=Properties(message_id="m"), body=encode_data(b"x")
    ),
    "wide lists": (
        b"\x00\x53\x70\xd0\0\0\0\x05\0\0\0\x01\x41"
        b"\x00\x53\x73\xd0\0\0\0\x07\0\0\0\x01\xa1\x01m"
        b"\x00\x53\x75\xb0\0\0\0\x01x"
    ),
    "every property": encode_message(
        properties=Properties(
            "m", b"u", "to", "subject", "reply", "c", "text/plain", "gzip", Timestamp(5), Timestamp(4), "s", 7, "g"
        ),
        body=encode_data(b"x"),
    ),
    "application properties": encode_message(
        properties=Properties(message_id="m"),
        application_properties={"a": 1, "b": "text", "c": None, "d": uuid.UUID(int=3), "e": 1.5},
        body=encode_data(b"x"),
    ),
    "long properties": encode_message(
        properties=Properties(message_id="m", subject="s" * 200, to="t" * 200), body=encode_data(b"x")
    ),
}


@pytest.mark.parametrize("name", USUAL)
def test_a_usual_message_takes_the_quick_way(name: str) -> None:
    assert check(USUAL[name])


@pytest.mark.parametrize(
    "message",
    [
        ServiceBusMessage(b"x", message_id="m"),
        ServiceBusMessage(b"x" * 1_000, message_id="m", session_id="s", subject="t", content_type="text/plain"),
        ServiceBusMessage("text", message_id="m", application_properties={"n": 5, "t": "text"}),
    ],
)
def test_what_the_python_sdk_writes_takes_the_quick_way(message: ServiceBusMessage) -> None:
    output = bytearray()
    encode_payload(output, PyamqpTransport.to_outgoing_amqp_message(message.raw_amqp_message))
    assert check(bytes(output))


ODD = {
    "nothing": b"",
    "no id": encode_message(properties=Properties(subject="s"), body=encode_data(b"x")),
    "an empty id": encode_message(properties=Properties(message_id=""), body=encode_data(b"x")),
    "a number for an id": encode_message(properties=Properties(message_id=ULong(5)), body=encode_data(b"x")),
    "an id of a language": encode_message(properties=Properties(message_id="é"), body=encode_data(b"x")),
    "an id that is too long": encode_message(properties=Properties(message_id="m" * 129), body=encode_data(b"x")),
    "a session that is too long": encode_message(properties=Properties(message_id="m", group_id="s" * 129)),
    "annotations": encode_message(message_annotations={Symbol("a"): 1}, properties=Properties(message_id="m")),
    "a ping": encode_message(properties=Properties(message_id="m", content_type=PING), body=encode_data(b"")),
    "a value": encode_message(properties=Properties(message_id="m"), body=encode_amqp_value("x")),
    "a footer": encode_message(properties=Properties(message_id="m"), footer={Symbol("f"): 1}),
    "a longer life than a header says": encode_message(
        header=Header(False, None, 0xFFFFFFFF), properties=Properties(message_id="m"), body=encode_data(b"x")
    ),
    "too large": encode_message(
        properties=Properties(message_id="m"), body=encode_data(bytes(limits.MESSAGE_BYTES_MAX))
    ),
    "too many properties": encode_message(
        properties=Properties(message_id="m"), application_properties={"a": "x" * (limits.PROPERTY_BYTES_MAX + 1)}
    ),
    "a key twice": USUAL["no body"] + b"\x00\x53\x74\xc1\x0b\x04\xa1\x01a\x54\x01\xa1\x01a\x54\x02",
}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_message_goes_the_general_way(name: str) -> None:
    assert not check(ODD[name])


@pytest.mark.parametrize("name", USUAL)
def test_wherever_it_is_cut_the_quick_way_gives_the_same_or_nothing(name: str) -> None:
    raw = USUAL[name]
    taken = [size for size in range(len(raw)) if check(raw[:size])]
    assert len(taken) <= 3  # behind a whole section


@pytest.mark.parametrize("name", [name for name in USUAL if len(USUAL[name]) < 200])
def test_whatever_byte_is_changed_the_quick_way_gives_the_same_or_nothing(name: str) -> None:
    raw = USUAL[name]
    for at in range(len(raw)):
        for byte in range(256):
            check(raw[:at] + bytes([byte]) + raw[at + 1 :])


texts = st.text(max_size=140) | st.text("abc", max_size=300)
ids = st.none() | texts | st.binary(max_size=20) | st.uuids() | st.integers(0, 2**64 - 1).map(ULong)
optional_texts = st.none() | texts
times = st.none() | st.integers(0, 2**40).map(Timestamp)
messages = st.builds(
    encode_message,
    header=st.none()
    | st.builds(
        Header,
        st.booleans(),
        st.none() | st.integers(0, 255).map(UByte),
        st.none() | st.integers(0, 2**32 - 1).map(UInt),
        st.booleans(),
        st.integers(0, 300),
    ),
    message_annotations=st.none() | st.dictionaries(texts.map(lambda text: Symbol(ascii(text))), texts, max_size=2),
    properties=st.none()
    | st.builds(
        Properties,
        ids,
        st.none() | st.binary(max_size=20),
        optional_texts,
        optional_texts,
        optional_texts,
        ids,
        st.none() | st.sampled_from([PING, "text/plain"]),
        st.none() | st.just("gzip"),
        times,
        times,
        optional_texts,
        st.none() | st.integers(0, 2**32 - 1).map(UInt),
        optional_texts,
    ),
    application_properties=st.none() | st.dictionaries(texts, texts | st.booleans() | st.floats(), max_size=4),
    body=st.just(b"")
    | st.binary(max_size=300).map(encode_data)
    | st.lists(st.binary(max_size=20).map(encode_data), max_size=3).map(b"".join)
    | texts.map(encode_amqp_value),
    footer=st.none() | st.just({Symbol("f"): 1}),
)


@given(messages)
def test_any_message_gives_the_same_or_nothing(raw: bytes) -> None:
    check(raw)


@given(messages, st.data())
def test_any_damaged_message_gives_the_same_or_nothing(raw: bytes, data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, max(len(raw) - 1, 0)))
        change = data.draw(st.binary(max_size=3))
        raw = raw[:at] + change + raw[at + data.draw(st.integers(0, 3)) :]
    check(raw)


@given(st.binary(max_size=200))
def test_any_bytes_give_the_same_or_nothing(raw: bytes) -> None:
    check(raw)
    check(b"\x00\x53\x73" + raw)
    check(b"\x00\x53\x70" + raw)
