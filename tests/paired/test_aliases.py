"""Messages on their way to the backlog and home again: exact for everything that the SDK can send."""

import asyncio
import datetime
import os
import uuid
from collections.abc import Iterator
from contextlib import AsyncExitStack
from decimal import Decimal
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from spillway.client import ReceivedMessage, connect
from spillway.paired.aliases import refuse_aliases, to_backlog
from spillway.paired.messages import is_typed, raw_of
from spillway.syphon.restore import restore
from tests.paired.namespaces import Namespaces

# Each is a dozen messages over connections of its own. More, for an afternoon: SPILLWAY_ROUND_TRIPS=200
EXAMPLES = int(os.environ.get("SPILLWAY_ROUND_TRIPS", "2"))
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
NOW = datetime.datetime(2030, 1, 2, 3, 4, 5, 678_000, tzinfo=datetime.UTC)
# What a broker adds to a message that it hands out; none of it was the sender's.
BROKER_ANNOTATIONS = frozenset(
    ("x-opt-enqueued-time", "x-opt-sequence-number", "x-opt-enqueue-sequence-number", "x-opt-locked-until")
    + ("x-opt-message-state", "x-opt-deadletter-source", "x-opt-scheduled-enqueue-time")
)


def typed(kind: str, value: object) -> dict[str, object]:
    return {"TYPE": kind, "VALUE": value}


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
SIMPLE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**31), 2**31 - 1),
    st.floats(allow_nan=False),
    TEXT,
    st.uuids(),
    st.integers(0, 4 * 10**12).map(lambda ms: EPOCH + datetime.timedelta(milliseconds=ms)),
    st.integers(-(2**63), 2**63 - 1).map(lambda value: typed("LONG", value)),
    st.integers(0, 2**64 - 1).map(lambda value: typed("ULONG", value)),
    st.integers(0, 2**32 - 1).map(lambda value: typed("UINT", value)),
    st.integers(0, 255).map(lambda value: typed("UBYTE", value)),
    st.integers(-128, 127).map(lambda value: typed("BYTE", value)),
    st.integers(0, 2**16 - 1).map(lambda value: typed("USHORT", value)),
    st.integers(-(2**15), 2**15 - 1).map(lambda value: typed("SHORT", value)),
    st.floats(width=32, allow_nan=False).map(lambda value: typed("FLOAT", value)),
    st.binary(max_size=20).map(lambda value: typed("BINARY", value)),
    st.from_regex(r"[a-z]{1,10}", fullmatch=True).map(lambda value: typed("SYMBOL", value)),
    st.binary(max_size=20).map(bytearray),
    st.decimals(-(10**9), 10**9, places=3),
)
PROPERTIES = st.dictionaries(st.from_regex(r"[a-zA-Z][a-zA-Z0-9_.-]{0,12}", fullmatch=True), SIMPLE, max_size=6)
STRUCTURED = st.recursive(
    SIMPLE | st.binary(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.one_of(TEXT, st.binary(max_size=5), st.integers(0, 1000)), inner, max_size=3)
    ),
    max_leaves=6,
)
# As a body the SDK sends it as a map, and so it must come home.
TYPED_LIKE = st.one_of(st.integers(-(2**31), 2**31 - 1), TEXT, st.lists(SIMPLE, max_size=2)).map(
    lambda value: typed("LONG", value)
)
# Bodies whose type the SDK finds by the Python value alone.
BODIES: list[Any] = [
    NOW,
    b"\xff\x00",
    {"TYPE": "LONG", "VALUE": 7},
    {"when": NOW, "what": typed("ULONG", 1)},
    "text",
    None,
    (1, "described"),
    {b"bytes": 1, 2: "number", "text": Decimal("1.50")},
]


class Sample:
    """A message whose repr can always be printed; the SDK's cannot if a body is no text."""

    def __init__(self, message: ServiceBusMessage | AmqpAnnotatedMessage) -> None:
        self.message = message

    def __repr__(self) -> str:
        raw = self.message.raw_amqp_message if isinstance(self.message, ServiceBusMessage) else self.message
        return f"Sample({ {name: str(value) for name, value in vars(raw).items()} })"


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    body = draw(st.one_of(TEXT, st.binary(max_size=200)))
    options: dict[str, Any] = {}
    for name in ("session_id", "content_type", "correlation_id", "subject", "to", "reply_to", "reply_to_session_id"):
        if draw(st.booleans()):
            options[name] = draw(st.from_regex(r"[a-z0-9/-]{1,20}", fullmatch=True))
    if draw(st.booleans()):
        options["time_to_live"] = draw(st.timedeltas(datetime.timedelta(hours=1), datetime.timedelta(days=49)))
    if draw(st.booleans()):
        options["scheduled_enqueue_time_utc"] = NOW + draw(
            st.integers(0, 10**9).map(lambda ms: datetime.timedelta(milliseconds=ms))
        )
    options["application_properties"] = draw(PROPERTIES)
    message = ServiceBusMessage(body, message_id=str(uuid.uuid4()), **options)
    if draw(st.booleans()):
        return Sample(message)
    raw = message.raw_amqp_message
    kind, value = draw(
        st.one_of(
            st.tuples(st.just("data_body"), st.lists(st.binary(max_size=50), min_size=1, max_size=3)),
            st.tuples(st.just("value_body"), STRUCTURED.filter(lambda value: not is_typed(value))),
            st.tuples(st.just("value_body"), TYPED_LIKE),
            st.tuples(st.just("sequence_body"), st.lists(st.lists(SIMPLE, max_size=3), min_size=1, max_size=2)),
        )
    )
    given_body: dict[str, Any] = {kind: value}
    annotated = AmqpAnnotatedMessage(**given_body)
    assert raw.header is not None and raw.properties is not None
    annotated.header = raw.header
    annotated.properties = raw.properties
    annotated.application_properties = raw.application_properties
    numbered: dict[Any, Any] = draw(st.dictionaries(st.integers(0, 2**63), TEXT, max_size=2))
    annotated.annotations = {
        **(raw.annotations or {}),
        **{f"x-opt-own-{key}": v for key, v in draw(PROPERTIES).items()},
        **numbered,
    }
    annotated.footer = draw(PROPERTIES) or None
    set_rare_fields(draw, raw.header, raw.properties)
    return Sample(annotated)


def set_rare_fields(draw: st.DrawFn, header: AmqpMessageHeader, properties: AmqpMessageProperties) -> None:
    """What a `ServiceBusMessage` has no name for."""
    if draw(st.booleans()):
        # Ids are told apart by their AMQP type: a text, a UUID, a number or bytes.
        own = uuid.uuid4()
        kinds: list[Any] = [own, own.int >> 65, own.bytes]
        properties.message_id = draw(st.sampled_from(kinds))
    if draw(st.booleans()):
        correlation: Any = draw(st.one_of(st.uuids(), st.integers(0, 2**63), st.binary(max_size=8)))
        properties.correlation_id = correlation
    if draw(st.booleans()):
        header.priority = draw(st.integers(0, 255))
        header.durable = draw(st.booleans())
        header.first_acquirer = draw(st.booleans())
    if draw(st.booleans()):
        properties.user_id = draw(st.binary(min_size=1, max_size=8))
        properties.content_encoding = "utf-8"
        properties.group_sequence = draw(st.integers(0, 2**32 - 1))
    if header.time_to_live is None and draw(st.booleans()):
        properties.creation_time = draw(st.integers(10**12, 2 * 10**12))
        properties.absolute_expiry_time = 4 * 10**12


def essence(message: ReceivedMessage) -> dict[str, object]:
    """All of a message that its sender chose, with AMQP types. Of the two times that the SDK makes of a time to live,
    only their distance."""
    properties = dict(vars(message.properties))
    expiry, created = properties.pop("absolute_expiry_time"), properties.pop("creation_time")
    sections = message.sections
    own = {key: value for key, value in message.annotations.items() if str(key) not in BROKER_ANNOTATIONS}
    return {
        "header": vars(message.header),
        "times": (created, expiry) if message.header.ttl_ms is None else None,
        "life": None if expiry is None or created is None else expiry - created,
        "properties": properties,
        "due": message.annotations.get("x-opt-scheduled-enqueue-time"),
        "annotations": {key: (type(value).__name__, value) for key, value in own.items()},
        "application": {key: (type(v).__name__, v) for key, v in message.application_properties.items()},
        "body": message.raw[sections.body.start : sections.body.end] if sections.body.start >= 0 else b"",
        "footer": message.raw[sections.footer.start : sections.footer.end] if sections.footer.start >= 0 else b"",
    }


class Way:
    """Straight to one queue of the primary by the SDK, and through a backlog queue of the secondary to another, by what
    the syphons restore. Its connections stay open from example to example."""

    def __init__(self, namespaces: Namespaces) -> None:
        self.namespaces = namespaces
        self.direct, self.home = namespaces.queue(), namespaces.queue()
        self.backlog = namespaces.queue(namespaces.secondary)
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.runner.run(self.open())
        self.seen = dict.fromkeys((self.direct, self.home), 0)

    async def open(self) -> None:
        enter = self.stack.enter_async_context
        primary = await enter(ServiceBusClient.from_connection_string(self.namespaces.primary.connection_string))
        secondary = await enter(ServiceBusClient.from_connection_string(self.namespaces.secondary.connection_string))
        self.to_direct, self.to_backlog = await asyncio.gather(
            enter(primary.get_queue_sender(self.direct)), enter(secondary.get_queue_sender(self.backlog))
        )
        home = await enter(await connect(self.namespaces.primary.connection_string))
        away = await enter(await connect(self.namespaces.secondary.connection_string))
        self.to_home, self.from_backlog = await home.sender(self.home), await away.receiver(self.backlog)

    def close(self) -> None:
        self.runner.run(self.stack.aclose())
        self.runner.close()

    def go(self, given: list[Any]) -> tuple[list[ReceivedMessage], list[ReceivedMessage]]:
        """What arrived straight, and what arrived around."""
        return self.runner.run(self._go(given))

    async def _go(self, given: list[Any]) -> tuple[list[ReceivedMessage], list[ReceivedMessage]]:
        for message in given:
            await self.to_backlog.send_messages(to_backlog(message, self.home))
            await self.to_direct.send_messages(message)
        back = 0
        while back < len(given):
            for received in await self.from_backlog.receive(100, 10):
                restored = restore(received.raw, int(NOW.timestamp() * 1000))
                assert restored.path == self.home
                await self.to_home.send_raw(restored.raw)
                await self.from_backlog.complete(received)
                back += 1
        return await self._new_in(self.direct), await self._new_in(self.home)

    async def _new_in(self, path: str) -> list[ReceivedMessage]:
        found = await self.namespaces.peek(self.namespaces.primary, path, self.seen[path])
        self.seen[path] = (found[-1].sequence_number or 0) + 1
        return found


@pytest.fixture(scope="module")
def way(namespaces: Namespaces) -> Iterator[Way]:
    opened = Way(namespaces)
    yield opened
    opened.close()


@pytest.mark.contract("E7", "E1")
@settings(max_examples=EXAMPLES, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(given_samples=st.lists(samples(), min_size=12, max_size=14))
def test_the_way_back_is_exact_for_everything_that_the_sdk_can_send(way: Way, given_samples: list[Sample]) -> None:
    bodies = [AmqpAnnotatedMessage(value_body=body) for body in BODIES]
    for each in bodies:
        each.properties = AmqpMessageProperties(message_id=str(uuid.uuid4()))
    given = [*bodies, *(sample.message for sample in given_samples)]
    straight, around = way.go(given)
    assert len(straight) == len(around) == len(given)
    by_id = {str(message.properties.message_id): essence(message) for message in around}
    for message in straight:
        assert by_id[str(message.properties.message_id)] == essence(message)


@pytest.mark.parametrize("name", ["x-ms-path", "x-ms-sessionid", "x-ms-timetolive", "x-ms-scheduledenqueuetimeutc"])
def test_a_property_named_like_an_alias_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}' is the name of a property that pairing uses"):
        refuse_aliases(raw_of(ServiceBusMessage("x", application_properties={name: "mine"})))


@pytest.mark.contract("E2", "E3", "E5")
def test_session_life_and_destination_travel_as_properties_and_are_cleared() -> None:
    message = ServiceBusMessage("x", session_id="s", time_to_live=datetime.timedelta(minutes=5))
    copy = to_backlog(message, "orders")
    assert copy.application_properties == {
        "x-ms-path": "orders",
        "x-ms-sessionid": "s",
        "x-ms-timetolive": typed("LONG", 300_000),
    }
    assert copy.properties is not None and copy.header is not None
    assert (copy.properties.group_id, copy.header.time_to_live) == (None, None)
    assert (message.session_id, message.time_to_live) == ("s", datetime.timedelta(minutes=5))


@pytest.mark.contract("E4")
def test_a_due_time_travels_under_a_name_of_its_own_and_the_backlog_does_not_wait_for_it() -> None:
    copy = to_backlog(ServiceBusMessage("x", scheduled_enqueue_time_utc=NOW), "orders")
    assert copy.application_properties is not None
    assert copy.application_properties["x-ms-scheduledenqueuetimeutc"] == typed("TIMESTAMP", 1_893_553_445_678)
    assert not copy.annotations
