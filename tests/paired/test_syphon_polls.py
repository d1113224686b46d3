"""How long the syphon waits in a receive, and what that costs (contract F9, F10)."""

import asyncio
from datetime import timedelta
from typing import Any, cast

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusReceiver

from spillway.client.control import ControlClient
from spillway.paired import MessagingFactory, NamespaceManager, SendAvailabilityPairedNamespaceOptions, syphon
from spillway.paired.ledger import EMPTY_RECEIVE, ClientLedger
from spillway.paired.pairing import Pairing
from spillway.paired.syphon import SHORT_POLL_S, QueueSyphon
from tests.paired.namespaces import Namespaces, eventually

CONNECTION = "Endpoint=sb://{}.example;SharedAccessKeyName=k;SharedAccessKey=a2V5"
LONG_S = 900.0


class ScriptedReceiver:
    """Returns so many messages, one number a call; remembers how long each call was ready to wait."""

    def __init__(self, *counts: int) -> None:
        self.counts = list(counts)
        self.waits_s: list[float] = []

    async def receive_messages(self, max_message_count: int, max_wait_time: float) -> list[ServiceBusMessage]:
        self.waits_s.append(max_wait_time)
        return [ServiceBusMessage("x")] * self.counts.pop(0)


async def waits_s(*counts: int) -> list[float]:
    primary = MessagingFactory.from_connection_string(CONNECTION.format("one"))
    secondary = MessagingFactory.from_connection_string(CONNECTION.format("two"))
    manager = NamespaceManager.from_connection_string(CONNECTION.format("two"))
    options = SendAvailabilityPairedNamespaceOptions(manager, secondary, syphon_long_poll=timedelta(seconds=LONG_S))
    queue = QueueSyphon(Pairing(primary, options, ["one/x-servicebus-transfer/0"]), "one/x-servicebus-transfer/0")
    receiver: Any = ScriptedReceiver(*counts)
    for _ in counts:
        await queue._receive(cast(ServiceBusReceiver, receiver))
    for closable in (primary, secondary, manager):
        await closable.close()
    found: list[float] = receiver.waits_s
    return found


async def test_an_idle_syphon_makes_one_long_poll_after_the_other() -> None:
    assert await waits_s(0, 0, 0) == [LONG_S, LONG_S, LONG_S]


async def test_after_messages_came_a_short_poll_takes_out_what_the_sdk_has_left() -> None:
    """The SDK may have been handed more than it was asked for. It returns the rest with the next receive, but only when
    the wait of that is over: with the long one, past the end of their locks."""
    assert await waits_s(200, 50, 0, 0) == [LONG_S, SHORT_POLL_S, SHORT_POLL_S, LONG_S]


class Month:
    """A clock that stands still but for the waits of a scripted receiver, and thirty days of it."""

    END_S = 30 * 24 * 3600.0

    def __init__(self) -> None:
        self.now_s = 0.0
        self.polls = 0

    async def receive_messages(self, max_message_count: int, max_wait_time: float) -> list[object]:
        if self.now_s >= self.END_S:
            raise asyncio.CancelledError
        self.now_s += max_wait_time
        self.polls += 1
        return []


@pytest.mark.contract("F9", "F10")
async def test_ten_idle_backlog_queues_cost_28_800_receives_in_thirty_days() -> None:
    primary = MessagingFactory.from_connection_string(CONNECTION.format("one"))
    secondary = MessagingFactory.from_connection_string(CONNECTION.format("two"))
    manager = NamespaceManager.from_connection_string(CONNECTION.format("two"))
    options = SendAvailabilityPairedNamespaceOptions(manager, secondary)
    assert options.syphon_long_poll == timedelta(minutes=15)
    paths = [f"one/x-servicebus-transfer/{index}" for index in range(10)]
    pairing = Pairing(primary, options, paths)
    polls = 0
    for path in paths:
        month: Any = Month()
        with pytest.raises(asyncio.CancelledError):
            await QueueSyphon(pairing, path)._serve(cast(ServiceBusReceiver, month))
        polls += month.polls
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


async def test_what_was_passed_over_for_lack_of_room_comes_home_before_its_lock_ends(
    namespaces: Namespaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind as many held messages as are allowed the syphon looks for other destinations. What it finds there of the
    blocked one is locked for a minute."""
    monkeypatch.setattr(syphon, "OUTSTANDING_MAX", 4)
    monkeypatch.setattr(syphon, "BATCH", 4)
    monkeypatch.setattr(syphon, "HELPERS_MAX", 0)
    monkeypatch.setattr(syphon, "BLOCKED_PACE_S", 0.1)
    path = namespaces.queue()
    faults = namespaces.refuse(path)
    async with namespaces.paired(enable_syphon=True) as pair:
        sender = pair.primary.create_message_sender(path)
        await sender.send_messages([ServiceBusMessage(f"{number}") for number in range(8)])
        assert pair.primary.syphon is not None
        (queue,) = pair.primary.syphon.queues
        await eventually(lambda: queue._outstanding() + len(queue.passed) == 8)
        faults.clear()
        await pair.until("syphoned", 8, timeout_s=20.0)
