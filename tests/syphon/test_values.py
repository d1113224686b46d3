"""Values that the SDK forgets, changes or cannot read: home with the bytes of a message that was sent directly."""

import asyncio
import datetime
import decimal
from collections.abc import Callable
from typing import Any

import pytest
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties

from spillway.client import ReceivedMessage
from spillway.paired.aliases import to_backlog
from tests.paired.namespaces import Namespaces
from tests.syphon.backlogs import Backlog
from tests.syphon.drivers import DRIVERS, Driver
from tests.syphon.test_contract import until_at_home
from tests.syphon.test_restore import part

DAY = datetime.datetime(2026, 2, 3, 4, 5, 6, tzinfo=datetime.UTC)


def message(**parts: Any) -> AmqpAnnotatedMessage:
    body = parts.pop("value", "x")
    made = AmqpAnnotatedMessage(value_body=body, **parts)
    made.properties = AmqpMessageProperties(message_id="m")
    return made


def with_decimal() -> AmqpAnnotatedMessage:
    return message(application_properties={"price": decimal.Decimal("12.50"), "n": 1})


SAMPLES: dict[str, Callable[[], AmqpAnnotatedMessage]] = {
    "a bytearray property": lambda: message(application_properties={"b": bytearray(b"\x00text")}),
    "bytes that are no text": lambda: message(
        value={"b": b"\xff\xfe"}, annotations={"x-own": b"\xff"}, application_properties={"b": bytearray(b"\xff\x00")}
    ),
    "an annotation with a number for a key": lambda: message(annotations={7: "seven", "x-own": 1}),
    "a body map with keys that are bytes": lambda: message(value={b"\xff": 1, b"text": [1, None]}),
    "a body map with keys that are numbers": lambda: message(value={1: "one", 2: {3: b"\xfe"}}),
    "a tuple as body": lambda: message(value=(1, "two", b"three")),
    "a decimal property": with_decimal,
    "1,100 dates": lambda: message(application_properties={f"d{number}": DAY for number in range(1_100)}),
}


@pytest.fixture(params=list(DRIVERS))
def driver(request: pytest.FixtureRequest) -> Driver:
    return DRIVERS[request.param]


@pytest.mark.contract("E7")
@pytest.mark.parametrize("name", list(SAMPLES))
async def test_a_value_comes_home_with_the_bytes_of_one_that_was_sent_directly(
    namespaces: Namespaces, driver: Driver, name: str
) -> None:
    backlog = await asyncio.to_thread(Backlog, namespaces)
    direct, home = backlog.destination(), backlog.destination()
    await send(namespaces.primary.connection_string, direct, SAMPLES[name]())
    await send(namespaces.secondary.connection_string, backlog.paths[0], to_backlog(SAMPLES[name](), home))
    async with driver.running(namespaces.primary, namespaces.secondary, backlog.paths) as heard:
        await until_at_home(namespaces, home, ["m"], 20.0)
    assert (heard.kept_reasons, heard.dead) == ({}, {})
    (straight,) = await namespaces.peek(namespaces.primary, direct)
    (around,) = await namespaces.peek(namespaces.primary, home)
    assert parts_of(around) == parts_of(straight)


async def send(connection_string: str, path: str, one: AmqpAnnotatedMessage) -> None:
    async with (
        ServiceBusClient.from_connection_string(connection_string, retry_total=0) as client,
        client.get_queue_sender(path) as sender,
    ):
        await sender.send_messages(one)


def parts_of(one: ReceivedMessage) -> dict[str, bytes]:
    """Annotations without the broker's own."""
    found = {name: part(one.raw, name) for name in ("application_properties", "body", "footer")}
    own = {key: value for key, value in one.annotations.items() if not str(key).startswith("x-opt-")}
    return {**found, "annotations": repr(own).encode()}
