"""Calls that are under way when their factory is closed hear of it at once, and nothing goes on afterwards."""

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from spillway.client.faults import Fault, RemoteFaults
from spillway.paired import FactoryClosed, MessagingFactory
from tests.paired.namespaces import Namespaces, eventually

SOON_S = 8.0  # closing takes a moment; every call below would have far more time


async def closed_during(
    factory: MessagingFactory, until: Callable[[], bool], *calls: Coroutine[Any, Any, Any]
) -> list[Any]:
    """Closed as soon as the calls have come so far: what they ended with."""
    sending = [asyncio.create_task(call) for call in calls]
    await eventually(until)
    assert not any(each.done() for each in sending)
    begun_s = asyncio.get_running_loop().time()
    await factory.close()
    outcomes = await asyncio.gather(*sending, return_exceptions=True)
    assert asyncio.get_running_loop().time() - begun_s < SOON_S
    return outcomes


async def test_calls_in_flight_and_calls_that_wait_their_turn_hear_it_and_nothing_is_diverted(
    namespaces: Namespaces,
) -> None:
    path = namespaces.queue()
    faults = RemoteFaults(namespaces.primary.connection_string)
    async with namespaces.paired(1, operation_timeout=60.0) as pair:
        sender = pair.primary.create_message_sender(path)
        pool = pair.primary.pools.at(path)
        with faults.planted(Fault("slow", path, ["send"], delay_ms=20_000)):
            calls = [sender.send_messages(ServiceBusMessage("x")) for _ in range(12)]
            outcomes = await closed_during(pair.primary, lambda: len(pool.waiting) == 8, *calls)
        assert [type(outcome) for outcome in outcomes] == [FactoryClosed] * 12
        counters = pair.primary.counters
        assert (counters["failed-over"], counters["diverted"], counters["pinged"]) == (0, 0, 0)
        assert pair.primary.pairing is not None
        watch = pair.primary.pairing.watch(path)
        assert watch._pinging is None and watch._pool is None and watch._timer is None


async def test_calls_that_are_held_hear_it_at_once(namespaces: Namespaces) -> None:
    """Inside the interval, and with both sides away."""
    one, other = namespaces.queue(), namespaces.queue()
    faults = namespaces.refuse(one)
    namespaces.refuse(other)
    async with namespaces.paired(1, 60.0, pending="hold") as inside, namespaces.paired(1, pending="hold") as both:
        broken = namespaces.refuse(both.backlog_path(0), broker=namespaces.secondary)
        held = inside.primary.create_message_sender(one).send_messages(ServiceBusMessage("x"), timeout=100)
        nowhere = both.primary.create_message_sender(other).send_messages(ServiceBusMessage("x"), timeout=100)
        outcomes = await asyncio.gather(
            closed_during(inside.primary, lambda: inside.primary.counters["suspected"] == 1, held),
            closed_during(both.primary, lambda: both.primary.counters["backlog-queue-removed"] == 1, nowhere),
        )
        assert [type(outcome) for (outcome,) in outcomes] == [FactoryClosed] * 2
        assert both.primary.counters["failed-over"] == both.primary.counters["backlog-queue-removed"] == 1
        assert inside.primary.counters["failed-over"] == 0
        pings = both.primary.counters["pinged"]
        await asyncio.sleep(1.5)  # longer than the interval of pings
        assert both.primary.counters["pinged"] == pings
        broken.clear()
        faults.clear()


async def test_calls_that_wait_for_a_busy_broker_or_for_room_hear_it_at_once(namespaces: Namespaces) -> None:
    path = namespaces.queue()
    faults = RemoteFaults(namespaces.primary.connection_string)
    busy = faults.add(Fault("server-busy", path, ["send"]))
    factory = namespaces.primary_factory(operation_timeout=60.0, max_in_flight=1)
    sender = factory.create_message_sender(path)
    calls = [sender.send_messages(ServiceBusMessage("x")) for _ in range(2)]
    outcomes = await closed_during(factory, lambda: faults.get(busy.number).hit == 1, *calls)
    assert [type(outcome) for outcome in outcomes] == [FactoryClosed] * 2
    assert factory.in_flight.count == 0
    with pytest.raises(FactoryClosed):
        await sender.create_message_batch()
    faults.clear()


async def test_a_receiver_that_nobody_has_any_more_is_not_kept_and_one_that_is_open_is_closed(
    namespaces: Namespaces,
) -> None:
    path = namespaces.queue()
    async with namespaces.primary_factory() as factory:
        for _ in range(20):
            factory.create_message_receiver(path)
        kept = factory.create_message_receiver(path)
        gc.collect()
        assert list(factory._receivers) == [kept]
        await kept.peek_messages(1)
    with pytest.raises(ValueError, match="already been shutdown"):
        await kept.peek_messages(1)
