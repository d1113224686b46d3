"""Many sends in flight on one factory, what bounds them, and a primary that falls silent (contract G6 to G12)."""

import asyncio
from collections.abc import Callable
from typing import cast

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.aio import ServiceBusSender
from azure.servicebus.exceptions import MessageSizeExceededError, OperationTimeoutError

from spillway.paired import MessagingFactory
from spillway.paired.in_flight import InFlight
from spillway.paired.pool import _Waiting
from spillway.paired.requests import SendRequest
from tests.paired.namespaces import Namespaces
from tests.tools.relay import Relay


@pytest.mark.contract("G6", "G10")
async def test_two_hundred_sends_in_flight_share_a_few_senders_and_each_hears_its_own_outcome(
    namespaces: Namespaces,
) -> None:
    path = namespaces.queue()
    async with namespaces.primary_factory(senders_per_entity=4) as factory:
        sender = factory.create_message_sender(path)
        good = [sender.send_messages(ServiceBusMessage(f"message {number}")) for number in range(200)]
        bad = ServiceBusMessage("bad")
        bad.application_properties = {"nonsense": object()}
        outcomes = await asyncio.gather(*good[:100], sender.send_messages(bad), *good[100:], return_exceptions=True)
        assert [type(outcome) for outcome in outcomes if outcome is not None] == [TypeError]
        assert outcomes[100] is not None
        assert len(factory.pools.at(path).idle) <= 4
    bodies = await namespaces.bodies(namespaces.primary, path)
    assert sorted(bodies) == sorted(f"message {number}" for number in range(200))


@pytest.mark.contract("G8", "G9")
async def test_overlapped_sends_over_a_long_way_finish_in_a_fraction_of_a_loops_time(namespaces: Namespaces) -> None:
    path = namespaces.queue()
    loop = asyncio.get_running_loop()
    with Relay("127.0.0.1", namespaces.primary.port, delay_ms=35) as relay:
        far = namespaces.primary.connection_string.replace(f":{namespaces.primary.port}", f":{relay.port}")
        async with MessagingFactory.from_connection_string(far) as factory:
            sender = factory.create_message_sender(path)
            await asyncio.gather(*(sender.send_messages(ServiceBusMessage("warm")) for _ in range(4)))
            begun_s = loop.time()
            for _ in range(10):
                await sender.send_messages(ServiceBusMessage("one by one"))
            alone_s = (loop.time() - begun_s) / 10
            begun_s = loop.time()
            await asyncio.gather(*(sender.send_messages(ServiceBusMessage("together")) for _ in range(100)))
            together_s = loop.time() - begun_s
    assert alone_s >= 0.07  # the way there and back
    assert together_s < 100 * alone_s / 5


@pytest.mark.contract("G11")
async def test_the_eleventh_send_waits_until_one_of_ten_is_done() -> None:
    bound = InFlight(10, 1_000_000)
    for _ in range(10):
        await bound.enter(1, 100)
    eleventh = asyncio.create_task(bound.enter(1, 100))
    await asyncio.sleep(0)
    assert (bound.count, bound.waiting_count, eleventh.done()) == (10, 1, False)
    bound.leave(1, 100)
    await eleventh
    assert (bound.count, bound.waiting_count) == (10, 0)


async def test_bytes_are_bounded_too_in_order_and_a_large_one_goes_alone() -> None:
    bound = InFlight(10, 1_000)
    await bound.enter(1, 5_000)
    small = asyncio.create_task(bound.enter(1, 10))
    await asyncio.sleep(0)
    assert not small.done()
    bound.leave(1, 5_000)
    await small
    large = asyncio.create_task(bound.enter(1, 2_000))
    behind = asyncio.create_task(bound.enter(1, 10))
    await asyncio.sleep(0)
    assert (large.done(), behind.done()) == (False, False)  # nobody overtakes
    large.cancel()
    await asyncio.gather(large, return_exceptions=True)
    await behind
    assert (bound.count, bound.bytes) == (2, 20)


@pytest.mark.contract("G12")
async def test_a_send_for_which_there_is_no_room_in_time_is_told_so_by_the_settings_name(
    namespaces: Namespaces,
) -> None:
    path = namespaces.queue()
    async with namespaces.primary_factory(max_in_flight=1) as factory:
        await factory.in_flight.enter(1, 10)
        with pytest.raises(OperationTimeoutError, match="max_in_flight"):
            await factory.create_message_sender(path).send_messages(ServiceBusMessage("x"), timeout=0.2)
        factory.in_flight.leave(1, 10)


@pytest.mark.contract("D5")
async def test_a_primary_that_falls_silent_fails_over_within_one_time_out(namespaces: Namespaces) -> None:
    path = namespaces.queue()
    loop = asyncio.get_running_loop()
    async with namespaces.paired(1, operation_timeout=4.0) as pair:
        sender = pair.primary.create_message_sender(path)
        await sender.send_messages(ServiceBusMessage("before"))
        namespaces.primary.pause()
        try:
            begun_s = loop.time()
            await sender.send_messages(ServiceBusMessage("during"))
            assert loop.time() - begun_s <= 4.5
            assert await namespaces.bodies(namespaces.secondary, pair.backlog_path(0)) == ["during"]
        finally:
            namespaces.primary.resume()
        await pair.until("recovered")
        await sender.send_messages(ServiceBusMessage("after"))


async def test_callers_with_little_time_do_not_share_a_batch_with_those_who_have_much(namespaces: Namespaces) -> None:
    async with namespaces.primary_factory() as factory:
        pool = factory.pools.at("anything")
        loop = asyncio.get_running_loop()
        for left_s in (10, 8, 3, 3, 0.5, 60):
            request = SendRequest([ServiceBusMessage("x")], False)
            pool.waiting.append(_Waiting(request, loop.time() + left_s, loop.create_future()))
        assert [len(pool._next_group()) for _ in range(4)] == [2, 2, 1, 1]


async def test_a_sender_that_cannot_be_made_is_an_error_every_time_and_takes_no_place(
    namespaces: Namespaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> None:
        raise ValueError(f"no sender for {path}")

    async with namespaces.primary_factory(operation_timeout=5.0) as factory:
        monkeypatch.setattr(factory.pools, "make_sender", refuse)
        sender = factory.create_message_sender(namespaces.queue())
        for _ in range(6):  # more than there are senders of an entity
            with pytest.raises(ValueError, match="no sender for"):
                await sender.send_messages(ServiceBusMessage("x"))


class RefusingSender:
    """Stands in for the SDK's: refuses every batch, takes single messages, and lets the test do something meanwhile."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        self.meanwhile = meanwhile
        self.sent: list[str] = []

    async def create_message_batch(self) -> ServiceBusMessageBatch:
        return ServiceBusMessageBatch()

    async def send_messages(self, content: ServiceBusMessage | ServiceBusMessageBatch, timeout: float) -> None:
        if isinstance(content, ServiceBusMessageBatch):
            self.meanwhile()
            raise MessageSizeExceededError(message="One of them is to blame.")
        self.sent.append(str(content))


async def test_of_a_refused_batch_nobody_sends_again_for_callers_who_gave_up(namespaces: Namespaces) -> None:
    """Their messages are in the backlog by now, or were never to be sent."""
    async with namespaces.primary_factory() as factory:
        pool = factory.pools.at("anything")
        loop = asyncio.get_running_loop()
        group = [
            _Waiting(SendRequest([ServiceBusMessage(text)], False), loop.time() + 10, loop.create_future())
            for text in ("patient", "gave up", "patient too")
        ]

        def give_up() -> None:
            group[1].done.cancel()

        sdk = RefusingSender(meanwhile=give_up)
        await pool._send_group(cast(ServiceBusSender, sdk), 10.0, list(group))
        assert sdk.sent == ["patient", "patient too"]
        assert [waiting.done.done() and not waiting.done.cancelled() for waiting in group] == [True, False, True]
