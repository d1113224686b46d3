"""Messages of a backlog, back to the bytes that were sent."""

import asyncio
from typing import Any

import pytest
from azure.servicebus.aio import ServiceBusClient
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from spillway.amqp.codec import encode
from spillway.amqp.message import (
    APPLICATION_PROPERTIES,
    FOOTER,
    MESSAGE_ANNOTATIONS,
    Header,
    Properties,
    encode_data,
    encode_header,
    encode_map_section,
    encode_message,
    encode_properties,
)
from spillway.amqp.types import Int, Symbol, Timestamp, UInt
from spillway.client import ReceivedMessage, connect
from spillway.client.sections import plain_sections
from spillway.dialect.admission import admit_again
from spillway.dialect.delivery import encode_delivery
from spillway.model.aliases import EXPIRY_MS_MAX, TTL_UINT_MAX, Malformed
from spillway.model.message import StoredMessage
from spillway.paired.aliases import to_backlog
from spillway.syphon.restore import restore
from tests.amqp.values import SCALARS, VALUES
from tests.paired.namespaces import Namespaces
from tests.paired.test_aliases import Sample, essence, samples

NOW_MS = 1_900_000_000_000
TOKEN = bytes(range(16))
NAMES = st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=12)


def in_backlog(raw: bytes, enqueued_ms: int = NOW_MS, delivery_count: int = 0) -> bytes:
    """As the broker of the backlog hands it out, locked."""
    stored = StoredMessage(admit_again(raw), 7, enqueued_ms)
    stored.delivery_count = delivery_count
    return encode_delivery(stored, TOKEN, NOW_MS + 60_000)


def with_aliases(**aliases: object) -> bytes:
    return encode_message(
        properties=Properties(message_id="m"),
        application_properties={"mine": 1} | {f"x-ms-{name}": value for name, value in aliases.items()},
        body=encode_data(b"body"),
    )


@st.composite
def messages(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A message, and the same as a paired sender writes it into the backlog."""
    own: dict[object, object] = draw(st.dictionaries(NAMES, SCALARS, max_size=5))
    annotations: dict[object, object] = draw(
        st.dictionaries(NAMES.map(lambda name: Symbol(f"own-{name}")), VALUES, max_size=3)
    )
    body = draw(
        st.one_of(
            st.lists(st.binary(max_size=400), min_size=1, max_size=3).map(
                lambda parts: b"".join(map(encode_data, parts))
            ),
            VALUES.map(lambda value: encode_message(body=b"\x00\x53\x77" + encode(value))),
        )
    )
    footer: Any = draw(st.none() | st.dictionaries(NAMES.map(Symbol), VALUES, min_size=1, max_size=2))
    tail = body + (encode_map_section(FOOTER, footer) if footer else b"")
    priority = draw(st.none() | st.integers(0, 9))
    ttl_ms = draw(st.none() | st.integers(1, TTL_UINT_MAX))
    session_id = draw(st.none() | NAMES)
    due_ms = draw(st.none() | st.integers(0, 4 * 10**12))
    message_id, subject, content_type = draw(NAMES), draw(st.none() | NAMES), draw(st.none() | NAMES)
    aliases: dict[object, object] = {"x-ms-path": "orders"}
    if session_id is not None:
        aliases["x-ms-sessionid"] = session_id
    if ttl_ms is not None:
        aliases["x-ms-timetolive"] = ttl_ms
    if due_ms is not None:
        aliases["x-ms-scheduledenqueuetimeutc"] = Timestamp(due_ms)
    due: dict[object, object] = {} if due_ms is None else {Symbol("x-opt-scheduled-enqueue-time"): Timestamp(due_ms)}
    return (
        _assembled(
            priority,
            ttl_ms,
            {**annotations, **due},
            Properties(message_id, subject=subject, content_type=content_type, group_id=session_id),
            dict(own),
            tail,
        ),
        _assembled(
            priority,
            None,
            dict(annotations),
            Properties(message_id, subject=subject, content_type=content_type),
            {**own, **aliases},
            tail,
        ),
    )


def _assembled(
    priority: int | None,
    ttl_ms: int | None,
    annotations: dict[object, object],
    properties: Properties,
    own: dict[object, object],
    tail: bytes,
) -> bytes:
    return (
        (encode_header(False, priority, ttl_ms, 0) if priority is not None or ttl_ms is not None else b"")
        + (encode_map_section(MESSAGE_ANNOTATIONS, annotations) if annotations else b"")
        + encode_properties(properties)
        + (encode_map_section(APPLICATION_PROPERTIES, own) if own else b"")
        + tail
    )


def part(raw: bytes, name: str) -> bytes:
    """The bytes of a section; of a map its pairs, since an empty one may be left out."""
    raw, sections = plain_sections(raw)
    section = getattr(sections, name)
    if name in ("message_annotations", "application_properties"):
        return raw[section.pairs_at : section.pairs_end]
    return raw[section.start : section.end] if section.start >= 0 else b""


@settings(max_examples=200, deadline=None)
@given(both=messages(), delivery_count=st.integers(0, 3))
def test_what_went_to_the_backlog_comes_home_byte_for_byte(both: tuple[bytes, bytes], delivery_count: int) -> None:
    sent, aliased = both
    restored = restore(in_backlog(aliased, delivery_count=delivery_count), NOW_MS)
    assert restored.path == "orders"
    for name in ("message_annotations", "application_properties", "body", "footer"):
        assert part(restored.raw, name) == part(sent, name), name
    given, home = ReceivedMessage(sent), ReceivedMessage(restored.raw)
    if given.header.ttl_ms is not None:  # as the SDK writes it
        given.properties.creation_time = NOW_MS
        given.properties.absolute_expiry_time = NOW_MS + given.header.ttl_ms
    assert vars(home.properties) == vars(given.properties)
    assert vars(home.header) == vars(given.header)


@pytest.mark.contract("E7")
@settings(max_examples=4, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(given_samples=st.lists(samples(), min_size=1, max_size=10))
def test_a_message_that_went_through_the_backlog_has_the_bytes_of_one_that_was_sent_directly(
    namespaces: Namespaces, way: tuple[str, str, str], given_samples: list[Sample]
) -> None:
    """Sent by the official SDK both times; the body and every property keep their bytes."""
    direct, home, backlog = way
    straight, around = asyncio.run(_both_ways(namespaces, given_samples, direct, home, backlog))
    by_id = {message.message_id: message for message in around}
    assert len(straight) == len(around)
    for message in straight[-len(given_samples) :]:
        other = by_id[message.message_id]
        assert essence(other) == essence(message)
        for name in ("application_properties", "body", "footer"):
            assert part(other.raw, name) == part(message.raw, name), name


async def _both_ways(
    namespaces: Namespaces, given_samples: list[Sample], direct: str, home: str, backlog: str
) -> tuple[list[ReceivedMessage], list[ReceivedMessage]]:
    async with (
        ServiceBusClient.from_connection_string(namespaces.primary.connection_string) as primary,
        ServiceBusClient.from_connection_string(namespaces.secondary.connection_string) as secondary,
        primary.get_queue_sender(direct) as to_direct,
        secondary.get_queue_sender(backlog) as to_backlog_queue,
    ):
        for sample in given_samples:
            await to_backlog_queue.send_messages(to_backlog(sample.message, home))
            await to_direct.send_messages(sample.message)
    async with (
        await connect(namespaces.primary.connection_string) as ours,
        await connect(namespaces.secondary.connection_string) as theirs,
    ):
        sender, receiver = await ours.sender(home), await theirs.receiver(backlog)
        left = len(given_samples)
        while left:
            for message in await receiver.receive(100, 10.0):
                restored = restore(message.raw, NOW_MS)
                assert restored.path == home
                await sender.send_raw(restored.raw)
                await receiver.complete(message)
                left -= 1
    return await namespaces.peek(namespaces.primary, direct), await namespaces.peek(namespaces.primary, home)


@pytest.fixture(scope="module")
def way(namespaces: Namespaces) -> tuple[str, str, str]:
    return namespaces.queue(), namespaces.queue(), namespaces.queue(namespaces.secondary)


def test_a_time_to_live_is_restored_whole_or_less_the_time_in_the_backlog() -> None:
    aliased = in_backlog(with_aliases(path="orders", timetolive=100_000), enqueued_ms=NOW_MS - 30_000)
    assert ReceivedMessage(restore(aliased, NOW_MS).raw).header.ttl_ms == 100_000
    assert ReceivedMessage(restore(aliased, NOW_MS, "remaining").raw).header.ttl_ms == 70_000
    assert ReceivedMessage(restore(aliased, NOW_MS + 10**9, "remaining").raw).header.ttl_ms == 1


def test_a_life_that_a_header_cannot_hold_is_said_by_two_times() -> None:
    home = ReceivedMessage(restore(in_backlog(with_aliases(path="orders", timetolive=10**10)), NOW_MS).raw)
    assert home.header.ttl_ms == TTL_UINT_MAX
    assert (home.properties.creation_time, home.properties.absolute_expiry_time) == (NOW_MS, NOW_MS + 10**10)
    for_ever = in_backlog(with_aliases(path="orders", timetolive=2**62))
    assert ReceivedMessage(restore(for_ever, NOW_MS).raw).properties.absolute_expiry_time == EXPIRY_MS_MAX


def test_a_life_that_the_backlog_gave_it_stays_behind() -> None:
    stored = StoredMessage(admit_again(with_aliases(path="orders")), 7, NOW_MS)
    stored.expires_ms = NOW_MS + 5_000
    home = restore(encode_delivery(stored, TOKEN, NOW_MS), NOW_MS)
    assert plain_sections(home.raw)[1].header.start < 0


def test_messages_of_one_session_or_partition_say_so() -> None:
    assert restore(in_backlog(with_aliases(path="orders", sessionid="s")), NOW_MS).key == "s"
    keyed = encode_message(
        message_annotations={Symbol("x-opt-partition-key"): "p"},
        properties=Properties("m"),
        application_properties={"x-ms-path": "orders"},
    )
    assert restore(in_backlog(keyed), NOW_MS).key == "p"
    assert restore(in_backlog(with_aliases(path="orders")), NOW_MS).key is None


@pytest.mark.parametrize(
    ("aliases", "reason"),
    [
        ({}, "PathMissing"),
        ({"path": ""}, "PathMissing"),
        ({"path": "/"}, "PathMissing"),
        ({"path": 7}, "AliasOfWrongType"),
        ({"path": b"\xff"}, "AliasOfWrongType"),
        ({"path": "orders", "sessionid": True}, "AliasOfWrongType"),
        ({"path": "orders", "timetolive": "long"}, "AliasOfWrongType"),
        ({"path": "orders", "timetolive": -1}, "AliasOfWrongType"),
        ({"path": "orders", "timetolive": True}, "AliasOfWrongType"),
        ({"path": "orders", "scheduledenqueuetimeutc": 1.5}, "AliasOfWrongType"),
    ],
)
def test_what_no_paired_sender_writes_is_malformed(aliases: dict[str, object], reason: str) -> None:
    with pytest.raises(Malformed) as refused:
        restore(in_backlog(with_aliases(**aliases)), NOW_MS)
    assert refused.value.reason == reason


def test_bytes_that_are_no_message_are_malformed() -> None:
    with pytest.raises(Malformed, match="cannot be read"):
        restore(b"\x00\x53\x75\xa0\xff", NOW_MS)


def test_every_kind_of_number_is_taken_for_a_time() -> None:
    for number in (UInt(5), Int(5), Timestamp(5), 5):
        home = restore(in_backlog(with_aliases(path="orders", timetolive=number)), NOW_MS)
        assert ReceivedMessage(home.raw).header.ttl_ms == 5
    assert Header().ttl_ms is None


@settings(max_examples=300, deadline=None)
@given(both=messages(), data=st.data())
def test_whatever_is_wrong_with_the_bytes_it_is_restored_or_malformed(
    both: tuple[bytes, bytes], data: st.DataObject
) -> None:
    """Nothing else is ever raised: one that nobody can read must not end whoever reads it."""
    raw = bytearray(in_backlog(both[1]))
    for _ in range(data.draw(st.integers(1, 6))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(raw[: data.draw(st.integers(0, len(raw)))]) if data.draw(st.booleans()) else bytes(raw)
    try:
        assert restore(cut, NOW_MS).path
    except Malformed as error:
        assert error.reason and error.description
