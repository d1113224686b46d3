"""Calls that wait for a side that takes them: what was taken is not sent again, and a busy broker is left alone."""

import asyncio
import datetime
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import OperationTimeoutError

from spillway.client.faults import Fault, FaultReport, RemoteFaults
from spillway.paired import DivertedSequenceNumber
from tests.paired.namespaces import Namespaces, Pair, eventually

AT_ONCE = datetime.timedelta(0)


def two_batches_full() -> list[ServiceBusMessage]:
    """A and B fill one, C and D another."""
    return [ServiceBusMessage(letter * 100_000) for letter in "ABCD"]


def letters(bodies: list[str]) -> str:
    return "".join(body[0] for body in bodies)


@asynccontextmanager
async def room_for_one_batch(
    namespaces: Namespaces, path: str
) -> AsyncIterator[tuple[Pair, RemoteFaults, FaultReport]]:
    """The primary is away, and the only backlog queue will be full after one send."""
    async with namespaces.paired(1, pending="hold", backlog_cool_down=AT_ONCE, ping_s=1800) as pair:
        await pair.primary.create_message_sender(path).send_messages(ServiceBusMessage("first"))
        faults = RemoteFaults(namespaces.secondary.connection_string)
        full = faults.add(Fault("quota", pair.backlog_path(0), ["send"], after=1))
        yield pair, faults, full


async def test_of_a_batch_that_was_split_only_what_no_backlog_queue_took_is_sent_again(namespaces: Namespaces) -> None:
    path = namespaces.queue()
    away = namespaces.refuse(path)
    async with room_for_one_batch(namespaces, path) as (pair, faults, full):
        sending = asyncio.create_task(
            pair.primary.create_message_sender(path).send_messages(two_batches_full(), timeout=60)
        )
        await eventually(lambda: faults.get(full.number).hit >= 2)
        faults.clear()
        await sending
        kept = await namespaces.bodies(namespaces.secondary, pair.backlog_path(0))
        assert letters(kept) == "fABCD"
        away.clear()


async def test_of_a_schedule_that_was_split_the_rest_goes_to_the_primary_that_came_back(namespaces: Namespaces) -> None:
    path = namespaces.queue()
    away = namespaces.refuse(path)
    due = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
    async with room_for_one_batch(namespaces, path) as (pair, faults, full):
        sender = pair.primary.create_message_sender(path)
        sending = asyncio.create_task(sender.schedule_messages(two_batches_full(), due, timeout=60))
        await eventually(lambda: faults.get(full.number).hit >= 1)
        away.clear()
        pair.options.mark_path_healthy(path)
        numbers = await sending
        faults.clear()
        assert [isinstance(number, DivertedSequenceNumber) for number in numbers] == [True, True, False, False]
        kept = await namespaces.bodies(namespaces.secondary, pair.backlog_path(0))
        assert letters(kept) == "fAB"
        assert letters(await namespaces.bodies(namespaces.primary, path)) == "CD"


@pytest.mark.contract("D7", "I6")
async def test_a_busy_broker_is_left_alone_although_another_call_made_its_entity_suspect(
    namespaces: Namespaces,
) -> None:
    path = namespaces.queue()
    faults = RemoteFaults(namespaces.primary.connection_string)
    busy = faults.add(Fault("server-busy", path, ["send"]))
    async with namespaces.paired(1, failover_interval_s=4.0, operation_timeout=60.0) as pair:
        assert pair.primary.pairing is not None
        sender, watch = pair.primary.create_message_sender(path), pair.primary.pairing.watch(path)
        sending = asyncio.create_task(sender.send_messages(ServiceBusMessage("x")))
        await eventually(lambda: faults.get(busy.number).hit == 1)
        await asyncio.sleep(0.5)  # it has heard of that
        silence = OperationTimeoutError(message="silence")
        watch.follow(watch.machine.on_failure(silence, watch.machine.epoch, asyncio.get_running_loop().time()))
        assert pair.primary.counters["suspected"] == 1
        await asyncio.sleep(1.5)
        assert (faults.get(busy.number).hit, sending.done()) == (1, False)
        await sending  # when it has failed over the backlog takes it
        assert pair.primary.counters["diverted"] == 1
        faults.clear()
