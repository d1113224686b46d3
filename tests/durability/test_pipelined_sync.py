"""The same promises with hundreds of sends in flight on one link: group commits, one sync for many."""

import asyncio
import time

import pytest

from spillway.client import ClientError, Connection, OutgoingMessage, connect
from tests.durability.conftest import QUEUE
from tests.tools.broker_process import BrokerProcess
from tests.tools.syncshim import SyncShim

COUNT = 200
DELAY_MS = 100


async def post_all(connection: Connection) -> list[tuple[int, int, bool]]:
    """When each was posted, when its outcome came, and whether it was accepted."""
    sender = await connection.sender(QUEUE)

    async def post_one(number: int) -> tuple[int, int, bool]:
        begun_ns = time.monotonic_ns()
        try:
            await sender.post(OutgoingMessage(b"x" * 100, message_id=f"number {number}"))
        except ClientError:
            return begun_ns, time.monotonic_ns(), False
        return begun_ns, time.monotonic_ns(), True

    return list(await asyncio.gather(*(post_one(number) for number in range(COUNT))))


async def send_after_connecting(
    broker: BrokerProcess, shim: SyncShim, fault: dict[str, int]
) -> list[tuple[int, int, bool]]:
    """The disk turns bad when the client is connected."""
    connection = await connect(broker.connection_string)
    try:
        shim.set(delay_ms=fault.get("delay_ms", 0), fail_from=fault.get("fail_from", 0))
        return await post_all(connection)
    finally:
        shim.set()
        if broker.is_running:
            await connection.close()


@pytest.mark.contract("G1", "G6")
def test_each_of_many_overlapping_sends_is_acknowledged_after_a_sync_that_covers_it(
    slow_disk_broker: BrokerProcess, shim: SyncShim
) -> None:
    outcomes = asyncio.run(send_after_connecting(slow_disk_broker, shim, {"delay_ms": DELAY_MS}))
    calls = [call for call in shim.calls() if call.result == 0]
    for begun_ns, ended_ns, is_accepted in outcomes:
        assert is_accepted
        assert [call for call in calls if begun_ns <= call.begun_ns and call.ended_ns <= ended_ns]
    syncs = [call for call in calls if outcomes[0][0] <= call.begun_ns]
    assert len(syncs) < COUNT / 4, "one sync covers many of them"


def test_a_failed_sync_acknowledges_none_of_many_overlapping_sends(
    slow_disk_broker: BrokerProcess, shim: SyncShim
) -> None:
    outcomes = asyncio.run(send_after_connecting(slow_disk_broker, shim, {"fail_from": 1}))
    assert not [outcome for outcome in outcomes if outcome[2]]
    assert slow_disk_broker.wait(20) != 0
