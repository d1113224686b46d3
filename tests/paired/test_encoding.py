"""A message that the SDK cannot encode is its caller's mistake: no entity and no backlog queue is to blame for it."""

import asyncio
import time

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from spillway.paired import Blame, FailoverPolicy, MessagingError
from tests.paired.namespaces import Namespaces


def too_much_for_an_int() -> ServiceBusMessage:
    """The SDK encodes an int as one of 32 bits, and only when the message is on its way."""
    return ServiceBusMessage("x", application_properties={"at_ms": int(time.time() * 1000)})


async def test_what_cannot_be_encoded_says_nothing_against_a_healthy_primary(namespaces: Namespaces) -> None:
    path = namespaces.queue()
    async with namespaces.paired(1) as pair:
        sender = pair.primary.create_message_sender(path)
        for _ in range(3):
            with pytest.raises(ServiceBusError, match="Value supplied for int invalid") as refused:
                await sender.send_messages(too_much_for_an_int())
            assert isinstance(refused.value, MessagingError)
            assert not refused.value.is_transient
        await sender.send_messages(ServiceBusMessage("good"))
        counters = pair.primary.counters
        assert (counters["suspected"], counters["failed-over"], counters["diverted"]) == (0, 0, 0)
        assert len(pair.primary.pools.at(path).idle) == 1  # the same sender all the time
    assert await namespaces.bodies(namespaces.primary, path) == ["good"]


async def test_what_cannot_be_encoded_takes_no_backlog_queue_out_of_the_rotation(namespaces: Namespaces) -> None:
    path = namespaces.queue()
    away = namespaces.refuse(path)
    async with namespaces.paired(2, ping_s=1800) as pair:
        sender = pair.primary.create_message_sender(path)
        await sender.send_messages(ServiceBusMessage("first"))
        with pytest.raises(ServiceBusError, match="Value supplied for int invalid") as refused:
            await sender.send_messages(too_much_for_an_int())
        assert isinstance(refused.value, MessagingError)
        await sender.send_messages(ServiceBusMessage("second"))
        assert pair.primary.counters["backlog-queue-removed"] == 0
        kept = [await namespaces.bodies(namespaces.secondary, pair.backlog_path(index)) for index in range(2)]
        assert sorted(kept) == [[], ["first", "second"]]
        away.clear()


async def test_strangers_who_share_a_batch_with_it_are_sent(namespaces: Namespaces) -> None:
    path = namespaces.queue()
    async with namespaces.paired(1) as pair:
        sender = pair.primary.create_message_sender(path)
        messages = [ServiceBusMessage(str(number)) for number in range(40)]
        messages[20] = too_much_for_an_int()
        outcomes = await asyncio.gather(*map(sender.send_messages, messages), return_exceptions=True)
        refused = [at for at, outcome in enumerate(outcomes) if outcome is not None]
        assert refused == [20]
        assert pair.primary.counters["failed-over"] == 0
    assert len(await namespaces.bodies(namespaces.primary, path)) == 39


def test_an_error_of_the_same_class_that_was_not_raised_by_the_encoder_counts_against_the_entity() -> None:
    """As the SDK raises it if the negotiation fails."""
    try:
        raise ValueError("SASL negotiation failed.")
    except ValueError as inner:
        error = ServiceBusError(message=f"Handler failed: {inner}.", error=inner)
    assert FailoverPolicy().judge(error).blame is Blame.WAY
