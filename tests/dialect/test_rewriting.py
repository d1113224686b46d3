"""What an action changes in a copy, and that all else goes over byte for byte."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway.amqp.codec import DecodeBudget, encode
from spillway.amqp.message import (
    Header,
    Properties,
    Sections,
    decode_header,
    decode_map,
    decode_properties,
    encode_data,
    encode_message,
    split_sections,
)
from spillway.amqp.types import Byte, Int, Short, Symbol, Timestamp, UByte, UInt, ULong, UShort
from spillway.broker.rules.actions import compile_action
from spillway.dialect.admission import UINT_MAX, admit
from spillway.dialect.properties import EncodedAccess, EncodedProperties
from spillway.dialect.rewriting import rewritten
from spillway.model import limits
from spillway.model.message import NO_TTL, SAID_TRUE, Message
from spillway.model.properties import ChangedProperties, Duration, MessageProperties, Moment, fold
from spillway.model.rules import FilterError, SqlAction
from tests.dialect.visit import NOW_MS, Tracking, body_message

ACCESS = EncodedAccess()
DAY_MS = 86_400_000


def admitted(raw: bytes) -> Message:
    return admit(raw, Tracking())


def with_values(values: dict[object, object], **properties: object) -> Message:
    made = Properties(message_id="m")
    for name, value in properties.items():
        setattr(made, name, value)
    return admitted(encode_message(properties=made, application_properties=values, body=encode_data(b"body")))


def changed(message: Message, expression: str) -> Message:
    """As a topic does it."""
    view = ACCESS.read(message, 1, NOW_MS)
    return ACCESS.rewrite(message, compile_action(SqlAction(expression)).apply(view, b"seed"))


def sections_of(message: Message) -> Sections:
    return split_sections(message.raw, DecodeBudget())


def values_of(message: Message) -> dict[object, object]:
    return decode_map(message.raw, sections_of(message).application_properties)


def annotations_of(message: Message) -> dict[object, object]:
    return decode_map(message.raw, sections_of(message).message_annotations)


def properties_of(message: Message) -> Properties:
    return decode_properties(message.raw, sections_of(message))


# -- application properties -------------------------------------------------------------------------------------------


def test_a_new_property_follows_the_others() -> None:
    message = with_values({"a": Int(1)})
    copy = changed(message, "SET b = 'two'; SET C = 3")
    assert list(values_of(copy).items()) == [("a", 1), ("b", "two"), ("C", 3)]
    assert copy is not message
    assert values_of(message) == {"a": 1}


def test_a_changed_property_keeps_its_place_and_its_spelling() -> None:
    copy = changed(with_values({"a": "1", "Color": "red", "z": "9"}), "SET color = 'blue'")
    assert list(values_of(copy).items()) == [("a", "1"), ("Color", "blue"), ("z", "9")]


def test_a_removed_property_is_gone_in_every_spelling() -> None:
    copy = changed(with_values({"Color": "red", "color": "blue", "a": "1"}), "REMOVE COLOR")
    assert values_of(copy) == {"a": "1"}


def test_setting_one_that_stands_there_twice_leaves_one() -> None:
    copy = changed(with_values({"Color": "red", "color": "blue"}), "SET COLOR = 'green'")
    assert values_of(copy) == {"Color": "green"}


def test_the_section_goes_with_its_last_property_and_comes_with_the_first() -> None:
    message = admitted(body_message())
    with_one = changed(message, "SET a = 1")
    without = changed(with_one, "REMOVE a")
    assert sections_of(without).application_properties.start == -1
    assert without.raw == message.raw


def test_properties_that_are_not_touched_keep_their_very_bytes() -> None:
    """A long in its wide form, a symbol, a name in str32: another encoder would write them otherwise."""
    wide_name = b"\xb1\x00\x00\x00\x04wide" + b"\x81" + (7).to_bytes(8, "big")
    pairs = wide_name + encode("s") + encode(Symbol("sym")) + encode("a") + encode(Int(1))
    section = b"\x00\x53\x74\xc1" + bytes([len(pairs) + 1, 6]) + pairs
    message = admitted(encode_message(properties=Properties(message_id="m")) + section + encode_data(b"body"))
    copy = changed(message, "SET a = 2; SET b = 3")
    assert wide_name in copy.raw
    assert encode("s") + encode(Symbol("sym")) + encode("a") + encode(Int(2)) + encode("b") + encode(3) in copy.raw


@pytest.mark.parametrize("kind", [Byte, UByte, Short, UShort, Int, UInt, ULong])
def test_an_integer_keeps_its_type_when_the_value_fits(kind: type[int]) -> None:
    value = values_of(changed(with_values({"n": kind(5)}), "SET n = n + 1"))["n"]
    assert (type(value), value) == (kind, 6)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [(Byte, "128", 128), (UByte, "-1", -1), (Short, "32768", 2**15), (Int, "2147483648", 2**31), (UInt, "-5", -5)],
)
def test_an_integer_that_does_not_fit_its_type_becomes_a_long(kind: type[int], text: str, value: int) -> None:
    found = values_of(changed(with_values({"n": kind(5)}), f"SET n = {text}"))["n"]
    assert (type(found), found) == (int, value)


def test_a_ulong_beyond_a_long_can_be_copied() -> None:
    found = values_of(changed(with_values({"n": ULong(2**64 - 1)}), "SET m = n"))["m"]
    assert (type(found), found) == (ULong, 2**64 - 1)


def test_values_of_all_kinds_are_written_in_their_types() -> None:
    message = with_values({"t": Timestamp(5), "f": 1.0, "b": b"\x01"}, group_id="g")
    copy = changed(message, "SET t2 = t; SET f = 3; SET b2 = b; SET yes = TRUE; SET none = missing; SET id = newid()")
    values = values_of(copy)
    assert (type(values["t2"]), values["t2"]) == (Timestamp, 5)
    assert (type(values["f"]), values["f"]) == (float, 3.0)
    assert values["b2"] == b"\x01"
    assert values["yes"] is True
    assert values["none"] is None
    assert str(values["id"]).count("-") == 4


def test_a_duration_is_written_as_text() -> None:
    message = admitted(encode_message(header=Header(ttl_ms=90_500), body=encode_data(b"")))
    assert values_of(changed(message, "SET life = sys.TimeToLive")) == {"life": "PT90.500S"}


# -- system properties ------------------------------------------------------------------------------------------------


def test_texts_are_set_and_cleared_among_the_properties() -> None:
    message = with_values({}, subject="old", to="somewhere", user_id=b"u", group_sequence=7, content_encoding="gzip")
    copy = changed(
        message,
        "SET sys.Label = 'new'; REMOVE sys.To; SET sys.ReplyTo = 'r'; SET sys.CorrelationId = 'c';"
        " SET sys.ContentType = 'text/plain'; SET sys.SessionId = 's'; SET sys.ReplyToSessionId = 'rs';"
        " SET sys.MessageId = 'm2'",
    )
    found = properties_of(copy)
    assert (found.subject, found.to, found.reply_to, found.correlation_id) == ("new", None, "r", "c")
    assert (found.content_type, found.group_id, found.reply_to_group_id) == ("text/plain", "s", "rs")
    assert (found.user_id, found.group_sequence, found.content_encoding) == (b"u", 7, "gzip")
    assert (found.message_id, copy.message_id, copy.session_id) == ("m2", "m2", "s")


def test_an_id_that_is_no_text_keeps_its_type_when_others_change() -> None:
    message = with_values({}, message_id=ULong(9), correlation_id=b"\x01")
    found = properties_of(changed(message, "SET sys.Label = 'x'"))
    assert (type(found.message_id), found.correlation_id) == (ULong, b"\x01")


def test_partition_keys_and_the_scheduled_time_are_annotations() -> None:
    message = admitted(
        encode_message(
            message_annotations={
                ULong(3): "number",
                Symbol("x-opt-partition-key"): "old",
                Symbol("x-opt-via-partition-key"): "via",
                Symbol("mine"): Int(1),
            },
            properties=Properties(message_id="m"),
            application_properties={"at": Timestamp(NOW_MS + 1)},
            body=encode_data(b""),
        )
    )
    copy = changed(
        message,
        "SET sys.PartitionKey = 'new'; REMOVE sys.ViaPartitionKey; SET sys.ScheduledEnqueueTimeUtc = at",
    )
    assert annotations_of(copy) == {
        3: "number",
        "mine": 1,
        "x-opt-partition-key": "new",
        "x-opt-scheduled-enqueue-time": NOW_MS + 1,
    }
    assert isinstance(annotations_of(copy)["x-opt-scheduled-enqueue-time"], Timestamp)
    assert (copy.partition_key, copy.scheduled_ms, copy.annotations_count) == ("new", NOW_MS + 1, 4)


def test_annotations_that_were_the_only_ones_go_with_their_section() -> None:
    message = admitted(
        encode_message(
            message_annotations={Symbol("x-opt-partition-key"): "old"},
            properties=Properties(message_id="m"),
            body=encode_data(b""),
        )
    )
    copy = changed(message, "REMOVE sys.PartitionKey")
    assert sections_of(copy).message_annotations.start == -1
    assert copy.partition_key is None


def lived(message: Message, ttl_ms: int | None) -> Message:
    changes = ChangedProperties(ACCESS.read(message, 1, NOW_MS))
    changes.set_system("TimeToLive", None if ttl_ms is None else Duration(ttl_ms))
    return rewritten(message, changes)


def test_a_time_to_live_is_set_in_the_header_and_the_rest_of_it_stays() -> None:
    message = admitted(encode_message(header=Header(durable=True, priority=7), body=encode_data(b"")))
    copy = lived(message, 5_000)
    header = decode_header(copy.raw, sections_of(copy))
    assert (header.durable, header.priority, header.ttl_ms) == (True, 7, 5_000)
    assert (copy.durable, copy.priority, copy.ttl_ms) == (SAID_TRUE, 7, 5_000)
    assert properties_of(copy).absolute_expiry_time is None


def test_times_that_say_how_long_a_message_lives_follow_the_header() -> None:
    """JavaScript takes the time to live from these two."""
    message = admitted(
        encode_message(
            header=Header(ttl_ms=60_000),
            properties=Properties(message_id="m", creation_time=NOW_MS - 10, absolute_expiry_time=NOW_MS + 59_990),
            body=encode_data(b""),
        )
    )
    found = properties_of(lived(message, 5_000))
    assert (found.creation_time, found.absolute_expiry_time) == (NOW_MS - 10, NOW_MS + 4_990)
    without = lived(message, None)
    assert without.ttl_ms == NO_TTL
    assert properties_of(without).absolute_expiry_time is None


@pytest.mark.parametrize("ttl_ms", [UINT_MAX + 1, 100 * DAY_MS, limits.TTL_MS_MAX + 5])
def test_a_life_of_more_than_49_days_is_said_by_the_times(ttl_ms: int) -> None:
    copy = lived(admitted(body_message()), ttl_ms)
    assert decode_header(copy.raw, sections_of(copy)).ttl_ms == UINT_MAX
    assert properties_of(copy).creation_time == NOW_MS
    assert copy.ttl_ms == min(ttl_ms, limits.TTL_MS_MAX)


# -- the whole --------------------------------------------------------------------------------------------------------


def test_every_other_section_goes_over_byte_for_byte() -> None:
    raw = encode_message(
        header=Header(durable=True, ttl_ms=5),
        delivery_annotations={Symbol("mine"): "d"},
        message_annotations={Symbol("mine"): "a"},
        properties=Properties(message_id="m", subject="s"),
        application_properties={"a": 1},
        body=encode_data(b"one") + encode_data(b"two"),
        footer={Symbol("f"): "foot"},
    )
    copy = changed(admitted(raw), "SET a = 2")
    assert copy.raw == raw.replace(encode("a") + encode(1), encode("a") + encode(2))


def test_without_changes_the_copy_is_the_message() -> None:
    message = with_values({"a": 1})
    assert ACCESS.rewrite(message, ChangedProperties(MessageProperties())) is message


def test_a_ping_that_an_action_makes_is_a_message_all_the_same() -> None:
    message = admitted(encode_message(properties=Properties(message_id="m"), body=encode_data(b"")))
    copy = changed(message, "SET sys.ContentType = 'application/vnd.ms-servicebus-ping'")
    assert not copy.is_ping


def too_large() -> tuple[Message, ChangedProperties]:
    message = admitted(body_message(b"x" * (limits.MESSAGE_BYTES_MAX - 200)))
    changes = ChangedProperties(ACCESS.read(message, 1, NOW_MS))
    changes.set_user("a", "y" * 1_000)
    return message, changes


def too_many() -> tuple[Message, ChangedProperties]:
    message = with_values({"a": "x" * 30_000, "b": "x" * 30_000})
    changes = ChangedProperties(ACCESS.read(message, 1, NOW_MS))
    changes.set_user("c", "x" * 10_000)
    return message, changes


def too_late() -> tuple[Message, ChangedProperties]:
    message = admitted(body_message())
    changes = ChangedProperties(ACCESS.read(message, 1, NOW_MS))
    changes.set_system("ScheduledEnqueueTimeUtc", Moment(limits.SCHEDULED_MS_MAX + 1))
    return message, changes


def unsayable() -> tuple[Message, ChangedProperties]:
    message = admitted(body_message())
    changes = ChangedProperties(ACCESS.read(message, 1, NOW_MS))
    changes.set_user("c", "\ud800")
    return message, changes


def beyond_64_bits() -> tuple[Message, ChangedProperties]:
    message = admitted(body_message())
    changes = ChangedProperties(ACCESS.read(message, 1, NOW_MS))
    changes.set_user("c", Moment(1 << 70))
    return message, changes


IMPOSSIBLE = [too_large, too_many, too_late, unsayable, beyond_64_bits]


@pytest.mark.parametrize("make", IMPOSSIBLE)
def test_changes_that_make_no_message_are_refused(make: object) -> None:
    assert callable(make)
    message, changes = make()
    with pytest.raises(FilterError):
        rewritten(message, changes)


@pytest.mark.parametrize("make", IMPOSSIBLE)
def test_changes_that_make_no_message_are_the_rules_error(make: object) -> None:
    assert callable(make)
    message, changes = make()
    with pytest.raises(FilterError):
        ACCESS.rewrite(message, changes)


NAMES = st.sampled_from(["a", "A", "b", "Long name", "größe", ""])
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text("abß\n", max_size=20),
    st.binary(max_size=20),
    st.uuids(),
    st.integers(-(2**31), 2**31 - 1).map(Int),
    st.integers(0, 2**40).map(Timestamp),
)


@given(st.dictionaries(NAMES, VALUES), st.dictionaries(NAMES, VALUES.filter(lambda v: type(v) is not Timestamp)), NAMES)
def test_what_the_action_saw_is_what_the_copy_has(
    sent: dict[object, object], wanted: dict[str, object], removed: str
) -> None:
    message = with_values(sent)
    changes = ChangedProperties(ACCESS.read(message, 1, NOW_MS))
    for name, value in wanted.items():
        changes.set_user(name, value)
    changes.remove_user(removed)
    copy = ACCESS.rewrite(message, changes)
    view = EncodedProperties(copy, 1, NOW_MS)
    for name in ("a", "b", "long name", "größe", ""):
        assert view.user(fold(name)) == changes.user(fold(name))
        assert view.has_user(fold(name)) == changes.has_user(fold(name))
    assert copy.raw.endswith(encode_data(b"body"))
