"""Partitioned queues and partition keys with the SDKs; and sends to several entities, whose completions overlap."""

import asyncio
from functools import partial

import pytest
from azure.servicebus import ServiceBusMessage

from spillway.client import ClientError, Connection, OutgoingMessage, connect
from spillway.model.faults import SEND
from tests.wire.live import LiveBroker
from tests.wire.sdk import WAIT_S, JsClient, PythonSdk, take_one

LATE_S = 60


@pytest.fixture
def parts(live: LiveBroker) -> str:
    return live.queue(is_partitioned=True)


def test_a_partition_key_comes_with_its_message(sdk: PythonSdk, parts: str) -> None:
    sdk.sender(parts).send_messages(ServiceBusMessage("x", partition_key="p"))
    message = take_one(sdk.receiver(parts))
    assert (message.partition_key, message.sequence_number) == ("p", 1)


def test_javascript_sees_the_partition_key(js: JsClient, parts: str) -> None:
    js("send", queue=parts, message={"body": "x", "partitionKey": "p"})
    js("sendBatch", queue=parts, messages=[{"body": "y", "partitionKey": "p"}])
    first, second = js("receive", queue=parts, count=2, waitMs=WAIT_S * 1000)
    assert (first["partitionKey"], second["partitionKey"]) == ("p", "p")


def test_a_key_that_is_not_the_session_is_refused_and_a_key_for_transfers_comes_with_its_message(
    live: LiveBroker, parts: str
) -> None:
    """The SDKs refuse the one themselves, and have no word for the other."""

    async def send() -> None:
        async with await connect(live.connection_string) as connection:
            sender = await connection.sender(parts)
            with pytest.raises(ClientError, match="must have the same in both") as refused:
                await sender.send(OutgoingMessage("x", session_id="s", partition_key="p"))
            assert (refused.value.condition, refused.value.is_transient) == ("com.microsoft:argument-error", False)
            await sender.send(
                OutgoingMessage("y", partition_key="p", annotations={"x-opt-via-partition-key": "transfer"})
            )

    live.run(send())
    (message,) = live.peek(parts)
    assert message.annotations["x-opt-partition-key"] == "p"
    assert message.annotations["x-opt-via-partition-key"] == "transfer"


@pytest.mark.contract("G7")
def test_sends_to_two_entities_overlap_and_complete_in_another_order(live: LiveBroker, queue: str) -> None:
    """One entity answers late, as one on a busier node would. All sends are on their way before any is answered."""
    other = live.queue()
    completed: list[str] = []
    connections: list[Connection] = []

    def note(name: str, _: asyncio.Future[None]) -> None:
        completed.append(name)

    async def send_all() -> list[asyncio.Future[None]]:
        connections.append(await connect(live.connection_string))
        slow, quick = await connections[0].sender(queue), await connections[0].sender(other)
        sends = []
        for name, sender in (("slow 1", slow), ("quick 1", quick), ("slow 2", slow), ("quick 2", quick)):
            sends.append(sender.post(OutgoingMessage(name)))
            sends[-1].add_done_callback(partial(note, name))
        await asyncio.gather(sends[1], sends[3])
        return sends

    async def finish(sends: list[asyncio.Future[None]]) -> None:
        await asyncio.gather(*sends)
        await connections[0].close()

    live.fault("slow", queue, [SEND], delay_ms=LATE_S * 1000)
    sends = live.run(send_all())
    assert completed == ["quick 1", "quick 2"], "they did not wait for those sent before them"
    assert live.bodies(queue) == ["slow 1", "slow 2"], "accepted and stored; the completions are under way"
    live.advance(LATE_S)
    live.run(finish(sends))
    assert completed == ["quick 1", "quick 2", "slow 1", "slow 2"], "of one entity they come in order"
    live.remove_faults()


@pytest.mark.contract("G7")
def test_javascripts_sends_to_two_entities_overlap_and_complete_in_another_order(
    live: LiveBroker, js: JsClient, queue: str
) -> None:
    other = live.queue()
    for name in (queue, other):
        js("open", queue=name)
    live.fault("slow", queue, [SEND], delay_ms=LATE_S * 1000)
    slow = js.javascript.start("send", client=js.name, queue=queue, message={"body": "first"})
    live.until(queue, lambda found: found.counters.active == 1)
    js("send", queue=other, message={"body": "second"})
    assert not slow.done(), "what was sent first is completed last"
    live.advance(LATE_S)
    slow.result(WAIT_S)
    live.remove_faults()
