"""A process that may have 256 MB, and producers faster than its disk: they wait or are told so, and it lives."""

import asyncio
import resource
import time
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus.management import ServiceBusAdministrationClient

from spillway.client import OutgoingMessage, ServerBusy, connect
from tests.tools.broker_process import BrokerProcess
from tests.tools.syncshim import SyncShim

MIB = 1024 * 1024
PROCESS_BYTES_MAX = 256 * MIB  # every allocation beyond it fails
LIMIT_MB = 192  # three quarters, as the broker takes by itself where it is not for development
DELAY_MS = 100  # per sync
PUSH_S = 2.0
QUEUES = [f"q{number}" for number in range(8)]
PRODUCERS = 64  # with 1,024 messages of 200 KB in flight: 200 MB
IN_FLIGHT = 16
BODY = b"x" * 200_000


class Outcomes:
    def __init__(self) -> None:
        self.accepted = 0
        self.busy: list[str] = []
        self.peak_bytes = 0


async def produce(connection_string: str, queue: str, deadline: float, outcomes: Outcomes) -> None:
    async def send_on() -> None:
        while time.monotonic() < deadline:
            try:
                await sender.send(OutgoingMessage(BODY))
                outcomes.accepted += 1
            except ServerBusy as error:
                outcomes.busy.append(str(error))
                await asyncio.sleep(0.05)

    async with await connect(connection_string) as connection:
        sender = await connection.sender(queue)
        await asyncio.gather(*(send_on() for _ in range(IN_FLIGHT)))


async def watch(broker: BrokerProcess, deadline: float, outcomes: Outcomes) -> None:
    while time.monotonic() < deadline:
        outcomes.peak_bytes = max(outcomes.peak_bytes, broker.rss_bytes)
        await asyncio.sleep(0.05)


async def push(broker: BrokerProcess) -> Outcomes:
    outcomes = Outcomes()
    deadline = time.monotonic() + PUSH_S
    producers = [
        produce(broker.connection_string, QUEUES[number % len(QUEUES)], deadline, outcomes)
        for number in range(PRODUCERS)
    ]
    await asyncio.gather(watch(broker, deadline, outcomes), *producers)
    return outcomes


def held_count(broker: BrokerProcess) -> int:
    options: dict[str, Any] = {"connection_verify": broker.ca_file}
    with ServiceBusAdministrationClient.from_connection_string(broker.connection_string, **options) as client:
        return sum(known(client.get_queue_runtime_properties(queue).active_message_count) for queue in QUEUES)


def known(count: int | None) -> int:
    assert count is not None
    return count


@pytest.mark.contract("I5", "G1")
def test_producers_faster_than_the_disk_do_not_use_up_the_memory(tmp_path: Path, shim: SyncShim) -> None:
    limit = ["--limit", f"memory-mb={LIMIT_MB}"]
    with BrokerProcess(tmp_path / "data", queues=QUEUES, env=shim.env, options=limit) as broker:
        resource.prlimit(broker.pid, resource.RLIMIT_DATA, (PROCESS_BYTES_MAX, PROCESS_BYTES_MAX))
        shim.set(delay_ms=DELAY_MS)
        outcomes = asyncio.run(push(broker))
        shim.set()
        assert outcomes.accepted > 100
        assert outcomes.peak_bytes < PROCESS_BYTES_MAX
        assert all("limit memory-mb" in text for text in outcomes.busy)
        assert held_count(broker) == outcomes.accepted, "what was accepted is there, and nothing else"
