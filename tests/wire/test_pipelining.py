"""100 sends over a long cable to a disk that takes its time: one after the other, and all at once on one link.

The network is a relay that adds 35 ms each way, the store a preload library that adds 10 ms to every sync: the
numbers of the example that is promised (contract G8, G9).
"""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from spillway.client import OutgoingMessage, connect
from tests.tools.broker_process import BrokerProcess
from tests.tools.js import JavaScript
from tests.tools.relay import Relay
from tests.tools.syncshim import SyncShim

QUEUE = "faraway"
COUNT = 100
ONE_WAY_MS = 35
STORE_MS = 10
SEQUENTIAL_S_MIN = 8.0  # 100 × (2 × 35 ms + 10 ms)
PIPELINED_S_MAX = 1.0
THROTTLE = 10


@pytest.fixture
def far_connection_string(tmp_path: Path) -> Iterator[str]:
    """Started on a fast disk, so that only the sends are slow."""
    shim = SyncShim(tmp_path)
    with (
        BrokerProcess(tmp_path / "data", queues=[QUEUE], env=shim.env) as broker,
        Relay("127.0.0.1", broker.port, delay_ms=ONE_WAY_MS) as relay,
    ):
        shim.set(delay_ms=STORE_MS)
        yield relay.through(broker.connection_string)
        shim.set()
        assert stored_bodies(broker.connection_string) == sorted(f"number {number}" for number in range(COUNT))


def stored_bodies(connection_string: str) -> list[str]:
    """All are there: an acknowledgement that meant nothing would be quick too."""
    with (
        ServiceBusClient.from_connection_string(connection_string) as client,
        client.get_queue_receiver(QUEUE) as receiver,
    ):
        bodies: list[str] = []
        position = 0
        while messages := receiver.peek_messages(max_message_count=COUNT, sequence_number=position):
            bodies += [b"".join(bytes(part) for part in message.body).decode() for message in messages]
            position = (messages[-1].sequence_number or 0) + 1
        return sorted(bodies)


@pytest.mark.contract("G8")
def test_sends_that_wait_for_each_answer_pay_the_round_trip_every_time(far_connection_string: str) -> None:
    with (
        ServiceBusClient.from_connection_string(far_connection_string) as client,
        client.get_queue_sender(QUEUE) as sender,
    ):
        begun = time.monotonic()
        for number in range(COUNT):
            sender.send_messages(ServiceBusMessage(f"number {number}"))
        took_s = time.monotonic() - begun
    assert took_s >= SEQUENTIAL_S_MIN


@pytest.mark.contract("G6", "G9")
def test_the_javascript_sdk_overlaps_its_sends_on_one_link(far_connection_string: str) -> None:
    with JavaScript() as js:
        js.call("connect", client="c", connectionString=far_connection_string)
        js.call("open", client="c", queue=QUEUE)
        # The SDK encodes a body as an AMQP value unless it is bytes.
        messages = [{"body": f"number {number}".encode()} for number in range(COUNT)]
        answer = js.call("sendMany", client="c", queue=QUEUE, messages=messages)
        js.call("close", client="c")
    assert answer["outcomes"] == [None] * COUNT
    assert answer["tookMs"] / 1000 < PIPELINED_S_MAX


@pytest.mark.contract("G6", "G9")
def test_our_client_overlaps_its_sends_on_one_link(far_connection_string: str) -> None:
    async def send_all() -> float:
        async with await connect(far_connection_string) as connection:
            sender = await connection.sender(QUEUE)
            begun = time.monotonic()
            outcomes = [sender.post(OutgoingMessage(f"number {number}".encode())) for number in range(COUNT)]
            await asyncio.gather(*outcomes)
            return time.monotonic() - begun

    assert asyncio.run(send_all()) < PIPELINED_S_MAX


@pytest.mark.contract("G11")
def test_a_semaphore_of_ten_takes_ten_round_trips(far_connection_string: str) -> None:
    async def send_all() -> float:
        async with await connect(far_connection_string) as connection:
            sender = await connection.sender(QUEUE)
            throttle = asyncio.Semaphore(THROTTLE)
            in_flight: list[int] = []

            async def send_one(number: int) -> None:
                async with throttle:
                    in_flight.append(sender.pending)
                    await sender.send(OutgoingMessage(f"number {number}".encode()))

            begun = time.monotonic()
            await asyncio.gather(*(send_one(number) for number in range(COUNT)))
            assert max(in_flight) == THROTTLE - 1, "the eleventh waits until one completes"
            return time.monotonic() - begun

    took_s = asyncio.run(send_all())
    assert COUNT / THROTTLE * (2 * ONE_WAY_MS + STORE_MS) / 1000 <= took_s < SEQUENTIAL_S_MIN / 2
