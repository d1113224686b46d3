"""How long the syphon waits in a receive, and what that costs (contract F9, F10)."""

import asyncio
from datetime import timedelta
from typing import Any, cast

import pytest
from azure.servicebus import ServiceBusMessage

from spillway.client import ReceivedMessage
from spillway.client.control import ControlClient
from spillway.paired import MessagingFactory, NamespaceManager, SendAvailabilityPairedNamespaceOptions
from spillway.paired.ledger import EMPTY_RECEIVE, ClientLedger
from spillway.paired.pairing import Pairing
from spillway.paired.syphoning import PairingObserver, make_syphon
from spillway.syphon import standing
from spillway.syphon.standing import Reported, StandingLane, StandingSyphon
from tests.paired.namespaces import Namespaces, eventually

CONNECTION = "Endpoint=sb://{}.example;SharedAccessKeyName=k;SharedAccessKey=a2V5"


class Month:
    """A clock that stands still but for the waits of a scripted receive, and thirty days of it."""

    END_S = 30 * 24 * 3600.0

    def __init__(self) -> None:
        self.now_s = 0.0
        self.waits_s: list[float] = []

    def clock(self) -> float:
        return self.now_s

    async def receive(self, max_count: int = 1, max_wait: float | None = None) -> list[ReceivedMessage]:
        assert max_wait is not None
        if self.now_s >= self.END_S:
            raise asyncio.CancelledError
        self.now_s += max_wait
        self.waits_s.append(max_wait)
        return []


def lane_of(syphon: StandingSyphon, pairing: Pairing, path: str) -> StandingLane:
    """Without a receiver: what it is asked for goes to a seam."""
    nothing = cast(Any, None)
    return StandingLane(
        path,
        syphon.destinations,
        PairingObserver(pairing),
        nothing,
        nothing,
        "restart",
        syphon.queues[0].long_poll_s,
        Reported(),
    )


@pytest.mark.contract("F9", "F10")
async def test_ten_idle_backlog_queues_cost_28_800_receives_in_thirty_days() -> None:
    primary = MessagingFactory.from_connection_string(CONNECTION.format("one"))
    secondary = MessagingFactory.from_connection_string(CONNECTION.format("two"))
    manager = NamespaceManager.from_connection_string(CONNECTION.format("two"))
    options = SendAvailabilityPairedNamespaceOptions(manager, secondary)
    assert options.syphon_long_poll == timedelta(minutes=15)
    paths = [f"one/x-servicebus-transfer/{index}" for index in range(10)]
    pairing = Pairing(primary, options, paths)
    syphon = make_syphon(pairing)
    assert [queue.path for queue in syphon.queues] == paths
    polls = 0
    for path in paths:
        month = Month()
        with pytest.raises(asyncio.CancelledError):
            await lane_of(syphon, pairing, path).receive_for_ever(month, month.clock)
        assert set(month.waits_s) == {900.0}
        polls += len(month.waits_s)
    assert polls == 28_800 == 10 * 4 * 24 * 30
    assert secondary.ledger.operations(EMPTY_RECEIVE) == 28_800
    for closable in (primary, secondary, manager):
        await closable.close()


async def polls_a_second(ledger: ClientLedger) -> float:
    loop = asyncio.get_running_loop()
    begun_s, before = loop.time(), ledger.operations(EMPTY_RECEIVE)
    await eventually(lambda: ledger.operations(EMPTY_RECEIVE) >= before + 20)
    return (ledger.operations(EMPTY_RECEIVE) - before) / (loop.time() - begun_s)


@pytest.mark.contract("F10")
async def test_ten_real_queues_polled_every_second_cost_ten_receives_a_second_in_both_ledgers(
    namespaces: Namespaces,
) -> None:
    async with namespaces.paired(10, enable_syphon=True) as pair:
        ledger = pair.secondary.ledger
        await eventually(lambda: ledger.operations(EMPTY_RECEIVE) >= 10)
        # A poll takes its second and the way there and back. What else the machine does can only make it slower: the
        # best of a few looks counts.
        rates: list[float] = []
        while not rates or (max(rates) < 9.0 and len(rates) < 10):
            rates.append(await polls_a_second(ledger))
        paths = [pair.backlog_path(index) for index in range(10)]
    assert 9.0 <= max(rates) <= 11.0
    rows = ControlClient(namespaces.secondary.connection_string).ask("GET", "ledger")["rows"]
    counted = sum(row["operations"] for row in rows if row["kind"] == "empty_receive" and row["entity"] in paths)
    # A receive that was under way when the syphon was closed is counted by the broker alone.
    assert 0 <= counted - ledger.operations(EMPTY_RECEIVE) <= 10


async def test_what_was_set_aside_for_lack_of_room_comes_home_before_its_lock_ends(
    namespaces: Namespaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind as many held messages as are allowed the syphon looks for other destinations. What it finds there of the
    blocked one is locked for a minute."""
    monkeypatch.setattr(standing, "HELD_MAX", 4)
    path = namespaces.queue()
    faults = namespaces.refuse(path)
    async with namespaces.paired(enable_syphon=True) as pair:
        sender = pair.primary.create_message_sender(path)
        assert pair.primary.syphon is not None
        (queue,) = pair.primary.syphon.queues
        for first in (0, 4):
            await sender.send_messages([ServiceBusMessage(f"{number}") for number in range(first, first + 4)])
            await eventually(lambda: queue.lane is not None and queue.lane.held_count == 4)
        await eventually(lambda: queue.lane is not None and len(queue.lane.aside) == 4)
        faults.clear()
        await pair.until("syphoned", 8, timeout_s=20.0)
    assert await namespaces.bodies(namespaces.primary, path) == [f"{number}" for number in range(8)]
