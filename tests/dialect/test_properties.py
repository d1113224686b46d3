"""What rules see of an encoded message, and that they see it without decoding more than they ask for."""

import uuid

import pytest

from spillway.amqp.codec import encode
from spillway.amqp.message import (
    APPLICATION_PROPERTIES,
    Header,
    Properties,
    encode_data,
    encode_map_section,
    encode_message,
)
from spillway.amqp.types import (
    Byte,
    Char,
    Decimal32,
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
from spillway.dialect.admission import admit
from spillway.dialect.properties import EncodedAccess, EncodedProperties
from spillway.model import properties as names
from spillway.model.message import unpack_message
from spillway.model.properties import Duration, Moment, fold
from tests.dialect.visit import NOW_MS, Tracking, body_message

ID = uuid.UUID("0f0e0d0c-0b0a-0908-0706-050403020100")
NUMBER = 77


def view_of(raw: bytes) -> EncodedProperties:
    view = EncodedAccess().read(admit(raw, Tracking()), NUMBER, NOW_MS)
    assert isinstance(view, EncodedProperties)
    return view


def with_values(values: dict[object, object]) -> EncodedProperties:
    return view_of(
        encode_message(properties=Properties(message_id="m"), application_properties=values, body=encode_data(b"x"))
    )


FULL = encode_message(
    header=Header(ttl_ms=60_000),
    message_annotations={
        Symbol("x-opt-partition-key"): "pk",
        Symbol("x-opt-via-partition-key"): "via",
        Symbol("x-opt-scheduled-enqueue-time"): Timestamp(NOW_MS + 5_000),
    },
    properties=Properties(
        message_id="m-1",
        to="t",
        subject="s",
        reply_to="r",
        correlation_id="c",
        content_type="text/plain",
        group_id="g",
        reply_to_group_id="rg",
    ),
    body=encode_data(b"hello"),
)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (names.MESSAGE_ID, "m-1"),
        (names.TO, "t"),
        (names.LABEL, "s"),
        (names.REPLY_TO, "r"),
        (names.CORRELATION_ID, "c"),
        (names.CONTENT_TYPE, "text/plain"),
        (names.SESSION_ID, "g"),
        (names.REPLY_TO_SESSION_ID, "rg"),
        (names.PARTITION_KEY, "pk"),
        (names.VIA_PARTITION_KEY, "via"),
        (names.SCHEDULED_ENQUEUE_TIME, Moment(NOW_MS + 5_000)),
        (names.TIME_TO_LIVE, Duration(60_000)),
        (names.EXPIRES_AT, Moment(NOW_MS + 60_000)),
        (names.ENQUEUED_TIME, Moment(NOW_MS)),
        (names.SEQUENCE_NUMBER, NUMBER),
        (names.ENQUEUED_SEQUENCE_NUMBER, NUMBER),
        (names.DELIVERY_COUNT, 0),
        (names.DEAD_LETTER_SOURCE, None),
        (names.SIZE, len(FULL)),
    ],
)
def test_every_system_property_is_known(name: str, value: object) -> None:
    found = view_of(FULL).system(name)
    assert found == value
    assert type(found) is type(value)


def test_all_system_properties_can_be_asked_of_a_bare_message() -> None:
    view = view_of(encode_message(body=encode_data(b"")))
    given = {name: view.system(name) for name in [*names.SETTABLE, *names.READ_ONLY]}
    assert {name for name, value in given.items() if value is not None} == {
        names.MESSAGE_ID,  # admission gave it one
        names.ENQUEUED_TIME,
        names.SEQUENCE_NUMBER,
        names.ENQUEUED_SEQUENCE_NUMBER,
        names.DELIVERY_COUNT,
        names.SIZE,
    }
    assert view.user("any") is None
    assert not view.has_user("any")


@pytest.mark.parametrize(
    ("correlation_id", "text"), [(ULong(7), "7"), (ID, str(ID)), (b"\x01\xff", "01ff"), ("text", "text")]
)
def test_a_correlation_id_is_compared_as_text_whatever_its_type(correlation_id: object, text: str) -> None:
    assert view_of(body_message(correlation_id=correlation_id)).system(names.CORRELATION_ID) == text


@pytest.mark.parametrize(
    ("sent", "seen"),
    [
        ("text", "text"),
        (Symbol("sym"), "sym"),
        (Char("c"), "c"),
        (True, True),
        (5, 5),
        (Int(-5), -5),
        (UInt(5), 5),
        (ULong(2**64 - 1), 2**64 - 1),
        (Short(-1), -1),
        (UShort(1), 1),
        (Byte(-1), -1),
        (UByte(1), 1),
        (1.5, 1.5),
        (Float(1.5), 1.5),
        (Timestamp(NOW_MS), Moment(NOW_MS)),
        (ID, ID),
        (b"\x00\x01", b"\x00\x01"),
    ],
)
def test_a_value_is_one_of_the_kinds_that_rules_know(sent: object, seen: object) -> None:
    found = with_values({"p": sent}).user("p")
    assert found == seen
    assert type(found) is type(seen)


@pytest.mark.parametrize("value", [None, Decimal32(b"1234"), Decimal64(b"12345678"), Decimal128(b"x" * 16)])
def test_null_and_what_rules_cannot_compare_are_there_and_unknown(value: object) -> None:
    view = with_values({"p": value})
    assert view.has_user("p")
    assert view.user("p") is None
    assert not view.has_user("q")


def test_names_do_not_depend_on_case_and_the_first_of_a_kind_counts() -> None:
    view = with_values({"Color": "red", "COLOR": "blue", "größe": 1})
    assert view.user(fold("cOlOr")) == "red"
    assert view.user(fold("GRÖßE")) == 1


def test_a_map_of_more_than_255_bytes_is_read_too() -> None:
    values: dict[object, object] = {f"name-{number}": "x" * number for number in range(200)}
    view = with_values(values)
    assert [view.user(f"name-{number}") for number in (0, 199)] == ["", "x" * 199]


def test_application_properties_without_properties_are_found() -> None:
    raw = encode_map_section(APPLICATION_PROPERTIES, {"a": 1}) + encode_data(b"x")
    assert view_of(raw).user("a") == 1


def test_a_message_that_was_stored_shows_the_same() -> None:
    """Scheduled messages are published when they are read back."""
    message = admit(FULL, Tracking())
    again = unpack_message(message.raw, message.pack_meta())
    view = EncodedProperties(again, NUMBER, NOW_MS)
    assert view.system(names.LABEL) == "s"
    assert view.system(names.VIA_PARTITION_KEY) == "via"


def test_nothing_is_decoded_before_it_is_asked_for_and_then_once() -> None:
    view = with_values({"a": 1})
    assert view.fields is None
    assert view.values is None
    view.system(names.MESSAGE_ID)
    view.system(names.SIZE)
    assert view.fields is None
    view.system(names.LABEL)
    fields = view.fields
    assert fields is not None
    assert view.values is None
    view.system(names.TO)
    assert view.fields is fields
    view.user("a")
    values = view.values
    assert values is not None
    view.has_user("b")
    assert view.values is values


def test_keys_of_annotations_may_be_numbers() -> None:
    raw = encode_message(
        message_annotations={ULong(5): "x-opt-", Symbol("x-opt-via-partition-key"): "via"},
        properties=Properties(message_id="m"),
        body=encode_data(b""),
    )
    assert view_of(raw).system(names.VIA_PARTITION_KEY) == "via"
    assert encode(ULong(5)) in raw
