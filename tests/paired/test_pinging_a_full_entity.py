"""A ping on the wire, of the SDK's, to an entity that is really full: refused as the messages are."""

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusSender
from azure.servicebus.exceptions import ServiceBusQuotaExceededError

from spillway.paired.watch import make_ping
from tests.paired.namespaces import Namespaces

BODY = b"x" * 200_000


async def fill(sender: ServiceBusSender) -> ServiceBusQuotaExceededError:
    """Until there is no room for one more; what the service said of that."""
    for _ in range(10):
        try:
            await sender.send_messages(ServiceBusMessage(BODY))
        except ServiceBusQuotaExceededError as error:
            return error
    raise AssertionError("it is never full")


@pytest.mark.contract("F1", "F2")
@pytest.mark.parametrize("requires_duplicate_detection", [False, True])
async def test_a_ping_to_a_full_queue_is_refused_like_a_message_until_there_is_room(
    namespaces: Namespaces, requires_duplicate_detection: bool
) -> None:
    path = namespaces.queue(max_size_in_megabytes=1, requires_duplicate_detection=requires_duplicate_detection)
    client = ServiceBusClient.from_connection_string(namespaces.primary.connection_string, retry_total=0)
    async with client, client.get_queue_sender(path) as sender, client.get_queue_receiver(path) as receiver:
        await sender.send_messages(make_ping())
        refused = await fill(sender)
        with pytest.raises(ServiceBusQuotaExceededError) as pinged:
            await sender.send_messages(make_ping())
        assert said(pinged.value) == said(refused)
        (message,) = await receiver.receive_messages(1, max_wait_time=10)
        await receiver.complete_message(message)
        await sender.send_messages(make_ping())
        assert isinstance(await fill(sender), ServiceBusQuotaExceededError)
        assert await namespaces.bodies(namespaces.primary, path) == [BODY.decode()] * 5


def said(error: ServiceBusQuotaExceededError) -> str:
    return str(error).partition("TrackingId")[0]
