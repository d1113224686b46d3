"""Pairing in the field: bad messages, peers that were restarted, a second outage, queues that are really full.

Two sentences hold in all of it: what a caller was told is safe will be delivered, and one bad thing never takes the way
around from everybody.
"""

import asyncio
import contextlib
import datetime
import gc
import os
import weakref
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties
from azure.servicebus.exceptions import MessageSizeExceededError, ServiceBusError

from spillway.client.faults import Fault, RemoteFaults
from spillway.lab.field.vitals import count_sockets
from spillway.paired import (
    BacklogUnavailableError,
    Event,
    FactoryClosed,
    MessageSender,
    MessagingError,
    MessagingFactory,
    NamespaceManager,
)
from spillway.paired import SendAvailabilityPairedNamespaceOptions as Options
from tests.paired.namespaces import NO_KEEP_ALIVE, Namespaces, Pair, eventually
from tests.tools.broker_process import BrokerProcess


class TwoBrokers:
    """Of one test alone: it kills them."""

    def __init__(self, directory: Path) -> None:
        self.primary = BrokerProcess(directory / "primary", queues=["orders", "other"])
        self.secondary = BrokerProcess(directory / "secondary")

    @contextlib.asynccontextmanager
    async def paired(
        self, count: int = 10, interval_s: float = 0.0, timeout_s: float = 10.0, **options: Any
    ) -> AsyncIterator[Pair]:
        primary, secondary = (
            MessagingFactory.from_connection_string(
                broker.connection_string, namespace_name="contoso", operation_timeout=timeout_s, **NO_KEEP_ALIVE
            )
            for broker in (self.primary, self.secondary)
        )
        manager = NamespaceManager.from_connection_string(
            self.secondary.connection_string, ca_file=self.secondary.ca_file
        )
        interval = datetime.timedelta(seconds=interval_s)
        chosen = Options(
            manager, secondary, count, interval, ping_primary_interval=datetime.timedelta(minutes=30), **options
        )
        async with primary, secondary, manager:
            await primary.pair_namespace(chosen)
            yield Pair(primary, secondary, manager, chosen)


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[TwoBrokers]:
    both = TwoBrokers(tmp_path)
    with both.primary, both.secondary:
        yield both


async def killed_and_started(broker: BrokerProcess) -> None:
    await asyncio.to_thread(broker.kill)
    await asyncio.to_thread(broker.start)


def is_untouched(pair: Pair) -> bool:
    """Nobody else has noticed anything."""
    counters = pair.primary.counters
    return not any(counters[name] for name in ("suspected", "failed-over", "diverted", "backlog-queue-removed"))


def with_properties(**properties: Any) -> AmqpAnnotatedMessage:
    """The SDK's `ServiceBusMessage` looks at some of them itself; this one is sent as it is."""
    return AmqpAnnotatedMessage(data_body=b"x", properties=AmqpMessageProperties(**properties))


def long_id() -> AmqpAnnotatedMessage:
    return with_properties(message_id="i" * 200)


def long_session() -> AmqpAnnotatedMessage:
    return with_properties(group_id="s" * 200)


def no_session() -> ServiceBusMessage:
    return ServiceBusMessage("x")


# -- one bad message --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interval_s", [0.0, 60.0])
@pytest.mark.parametrize("make", [long_id, long_session])
async def test_a_message_that_no_entity_takes_is_its_callers_error_and_nothing_else(
    namespaces: Namespaces, make: Any, interval_s: float
) -> None:
    path = namespaces.queue()
    async with namespaces.primary_factory() as bare:
        with pytest.raises(ServiceBusError) as expected:
            await bare.create_message_sender(path).send_messages(make())
    async with namespaces.paired(10, interval_s) as pair:
        sender = pair.primary.create_message_sender(path)
        with pytest.raises(ServiceBusError) as refused:
            await sender.send_messages(make())
        assert type(refused.value).__name__ == type(expected.value).__name__
        assert isinstance(refused.value, MessagingError) and not refused.value.is_transient
        assert is_untouched(pair)
        await sender.send_messages(ServiceBusMessage("good"))
    assert await namespaces.bodies(namespaces.primary, path) == ["good"]


@pytest.mark.parametrize("make", [no_session, long_session])
async def test_what_a_queue_with_sessions_refuses_is_not_told_to_be_safe(namespaces: Namespaces, make: Any) -> None:
    path = namespaces.queue(requires_session=True)
    message = make()
    async with namespaces.paired(1) as pair:
        sender = pair.primary.create_message_sender(path)
        with pytest.raises(ServiceBusError, match="(?i)session"):
            await sender.send_messages(message)
        assert is_untouched(pair)
        await sender.send_messages(ServiceBusMessage("good", session_id="s"))
        away = namespaces.refuse(path)
        with pytest.raises((ServiceBusError, ValueError), match="(?i)session"):  # in the outage it is known
            await sender.send_messages(message)
        await sender.send_messages(ServiceBusMessage("diverted", session_id="s"))
        assert await namespaces.bodies(namespaces.secondary, pair.backlog_path(0)) == ["diverted"]
        away.clear()


async def test_in_an_outage_a_bad_message_takes_no_backlog_queue_from_the_others(namespaces: Namespaces) -> None:
    path = namespaces.queue()
    away = namespaces.refuse(path)
    async with namespaces.paired(3, ping_s=1800) as pair:
        senders = [pair.primary.create_message_sender(path) for _ in range(6)]
        await senders[0].send_messages(ServiceBusMessage("first"))
        for sender in senders:
            with pytest.raises(ServiceBusError):
                await sender.send_messages(long_id())
            with pytest.raises(ValueError, match="session_id"):
                await sender.send_messages(long_session())
            await sender.send_messages(ServiceBusMessage("good"))
        assert pair.primary.counters["backlog-queue-removed"] == 0
        assert pair.primary.counters["diverted"] == 7
        away.clear()


def many_dates() -> ServiceBusMessage:
    when: Any = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    return ServiceBusMessage("x", application_properties={f"date{number}": when for number in range(1_100)})


def nearly_all_properties() -> ServiceBusMessage:
    properties: dict[str | bytes, Any] = {f"p{number}": "v" * 1_000 for number in range(64)}
    return ServiceBusMessage("x", application_properties={**properties, "last": "v" * 890})


@pytest.mark.contract("E8")
async def test_properties_that_leave_no_room_for_the_aliases_are_a_size_error_before_anything_is_sent(
    namespaces: Namespaces,
) -> None:
    path = namespaces.queue()
    async with namespaces.paired(3, ping_s=1800) as pair:
        sender = pair.primary.create_message_sender(path)
        await sender.send_messages(nearly_all_properties())  # the primary takes it
        away = namespaces.refuse(path)
        with pytest.raises(MessageSizeExceededError, match="application properties have .* Nothing was sent"):
            await sender.send_messages(nearly_all_properties())
        await sender.send_messages(many_dates())  # their types need no room
        assert pair.primary.counters["backlog-queue-removed"] == 0
        assert pair.primary.counters["diverted"] == 1
        away.clear()


async def test_a_refusal_in_words_that_nobody_knows_is_judged_by_who_else_takes_it(namespaces: Namespaces) -> None:
    """By every backlog queue: it is the message. By one of them: it is that queue."""
    path = namespaces.queue()
    away = namespaces.refuse(path)
    strange = Fault("refuse", "*", ["send"], condition="com.contoso:never-heard-of")
    async with namespaces.paired(2, ping_s=1800) as pair:
        sender = pair.primary.create_message_sender(path)
        await sender.send_messages(ServiceBusMessage("first"))
        faults = RemoteFaults(namespaces.secondary.connection_string)
        with faults.planted(strange), pytest.raises(ServiceBusError, match="never-heard-of"):
            await sender.send_messages(ServiceBusMessage("x"))
        assert pair.primary.counters["backlog-queue-removed"] == 0
        with faults.planted(Fault("refuse", pair.backlog_path(0), ["send"], condition=strange.condition)):
            for number in range(8):
                await pair.primary.create_message_sender(path).send_messages(ServiceBusMessage(str(number)))
        assert pair.primary.counters["backlog-queue-removed"] == 1
        away.clear()


# -- a queue that is full ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interval_s", [0.0, 1.0])
async def test_a_queue_that_answers_pings_and_takes_no_message_diverts_without_error(
    namespaces: Namespaces, interval_s: float
) -> None:
    """A peer that answers pings though it is full. Sends fail, pings do not."""
    path = namespaces.queue()
    async with namespaces.paired(1, interval_s, ping_s=1.0) as pair:
        counters = pair.primary.counters
        is_full = answer_pings_only(namespaces, pair, path)
        sender = pair.primary.create_message_sender(path)
        if interval_s:
            with pytest.raises(ServiceBusError):
                await sender.send_messages(ServiceBusMessage("inside the interval"))
            await pair.until("failed-over")
        for number in range(30):
            await sender.send_messages(ServiceBusMessage(str(number)))
            await asyncio.sleep(0.1)
        assert counters["diverted"] == 30
        assert 2 <= counters["failed-over"] <= 5  # one, and a relapse for each ping that was taken for room
        is_full.clear()
        await pair.until("recovered", counters["failed-over"])  # perhaps it is back already
        await sender.send_messages(ServiceBusMessage("home"))
    assert await namespaces.bodies(namespaces.primary, path) == ["home"]


def answer_pings_only(namespaces: Namespaces, pair: Pair, path: str) -> list[bool]:
    """Sends are refused, but nothing is while the library pings. It has room when the list is emptied."""
    faults = RemoteFaults(namespaces.primary.connection_string)
    full = Fault("quota", path, ["send"])

    def look(event: Event) -> None:
        if event.name == "failed-over":
            faults.clear()
        elif event.name == "recovered" and is_full:
            faults.add(full)

    is_full = [True]
    pair.primary.on_event(look)
    faults.add(full)
    return is_full


# -- connections ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interval_s", [0.0, 60.0])
async def test_a_primary_that_was_restarted_is_no_outage(brokers: TwoBrokers, interval_s: float) -> None:
    async with brokers.paired(1, interval_s) as pair:
        sender = pair.primary.create_message_sender("orders")
        await asyncio.gather(*(sender.send_messages(ServiceBusMessage("before")) for _ in range(8)))
        await killed_and_started(brokers.primary)
        begun_s = asyncio.get_running_loop().time()
        await sender.send_messages(ServiceBusMessage("after"))
        assert asyncio.get_running_loop().time() - begun_s < 3.0
        await asyncio.gather(*(sender.send_messages(ServiceBusMessage("after")) for _ in range(8)))
        assert is_untouched(pair)


async def test_connections_that_were_dead_leave_no_socket(brokers: TwoBrokers) -> None:
    """Not even until garbage is collected."""
    gc.disable()
    try:
        async with brokers.paired(1) as pair:
            sender = pair.primary.create_message_sender("orders")
            counts = []
            for _ in range(3):
                await asyncio.gather(*(sender.send_messages(ServiceBusMessage("x")) for _ in range(8)))
                await asyncio.gather(*pair.primary.pools.at("orders").closing)
                counts.append(sockets())
                await killed_and_started(brokers.primary)
            assert len(set(counts)) == 1
    finally:
        gc.enable()


async def test_an_entity_that_was_made_anew_while_its_links_were_idle_is_no_outage(namespaces: Namespaces) -> None:
    path = namespaces.queue()
    async with namespaces.paired(1) as pair:
        sender = pair.primary.create_message_sender(path)
        await sender.send_messages(ServiceBusMessage("before"))
        with namespaces.administration(namespaces.primary) as client:
            client.delete_queue(path)
            client.create_queue(path)
        await sender.send_messages(ServiceBusMessage("after"))
        assert is_untouched(pair)
    assert await namespaces.bodies(namespaces.primary, path) == ["after"]


async def test_the_second_outage_finds_the_backlog_though_the_secondary_was_restarted_between(
    brokers: TwoBrokers,
) -> None:
    faults = RemoteFaults(brokers.primary.connection_string)
    async with brokers.paired(10) as pair:
        senders = [pair.primary.create_message_sender("orders") for _ in range(20)]
        for expected in (20, 40):
            with faults.planted(Fault("quota", "orders", ["send"])):
                await asyncio.gather(*(sender.send_messages(ServiceBusMessage("x")) for sender in senders))
            assert pair.primary.counters["diverted"] == expected
            pair.options.mark_path_healthy("orders")
            await killed_and_started(brokers.secondary)
        assert pair.primary.counters["backlog-queue-removed"] == 0


async def test_queues_that_cool_down_are_tried_when_there_is_no_other(brokers: TwoBrokers) -> None:
    faults = RemoteFaults(brokers.primary.connection_string)
    broken = RemoteFaults(brokers.secondary.connection_string)
    async with brokers.paired(3) as pair:
        sender = pair.primary.create_message_sender("orders")
        with faults.planted(Fault("quota", "orders", ["send"])):
            with broken.planted(Fault("quota", "*", ["send"])), pytest.raises(BacklogUnavailableError):
                await sender.send_messages(ServiceBusMessage("x"))
            assert pair.primary.counters["backlog-queue-removed"] == 3  # for a minute
            await sender.send_messages(ServiceBusMessage("y"))
            assert pair.primary.counters["backlog-queue-readmitted"] == 1


@pytest.mark.parametrize("interval_s", [0.0, 1.0])
async def test_calls_that_are_held_wait_for_a_secondary_that_comes_back(brokers: TwoBrokers, interval_s: float) -> None:
    async with brokers.paired(10, interval_s, timeout_s=20.0, pending="hold") as pair:
        sender = pair.primary.create_message_sender("orders")
        await sender.send_messages(ServiceBusMessage("before"))
        await asyncio.to_thread(brokers.secondary.kill)
        await asyncio.to_thread(brokers.primary.kill)
        calls = [asyncio.create_task(sender.send_messages(ServiceBusMessage("held"))) for _ in range(5)]
        await asyncio.sleep(3.0)
        await asyncio.to_thread(brokers.secondary.start)
        await asyncio.gather(*calls)
        assert pair.primary.counters["diverted"] == 5


@pytest.mark.parametrize("frozen", ["primary", "secondary"])
async def test_calls_that_wait_for_a_frozen_peer_end_with_the_factory(brokers: TwoBrokers, frozen: str) -> None:
    async with brokers.paired(2, timeout_s=60.0) as pair:
        sender = pair.primary.create_message_sender("orders")
        await sender.send_messages(ServiceBusMessage("before"))
        if frozen == "secondary":
            await asyncio.to_thread(brokers.primary.kill)
        broker = brokers.primary if frozen == "primary" else brokers.secondary
        broker.pause()
        try:
            calls = [asyncio.create_task(sender.send_messages(ServiceBusMessage("x"))) for _ in range(3)]
            await asyncio.sleep(2.0)
            begun_s = asyncio.get_running_loop().time()
            await pair.primary.close()
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            assert asyncio.get_running_loop().time() - begun_s < 8.0
            assert [type(outcome) for outcome in outcomes] == [FactoryClosed] * 3
            await pair.secondary.close()
        finally:
            broker.resume()


@pytest.mark.parametrize("is_connected", [True, False], ids=["connected", "while-connecting"])
async def test_no_socket_waits_for_the_garbage_collector_when_both_are_frozen(
    brokers: TwoBrokers, is_connected: bool
) -> None:
    """The SDK forgets a connection whose opening is cut short, and leaves its socket open."""
    gc.collect()
    gc.disable()
    try:
        before = count_sockets()
        async with brokers.paired(2, timeout_s=60.0, pending="hold") as pair:
            senders = [pair.primary.create_message_sender(path) for path in ("orders", "other")]
            if is_connected:
                await asyncio.gather(*(sender.send_messages(ServiceBusMessage("before")) for sender in senders))
            brokers.primary.pause()
            brokers.secondary.pause()
            calls = [asyncio.create_task(sender.send_messages(ServiceBusMessage("x"))) for sender in senders]
            await asyncio.sleep(0.5)
            assert count_sockets() > before
            await asyncio.gather(pair.primary.close(), pair.secondary.close())
            await asyncio.gather(*calls, return_exceptions=True)
            await pair.manager.close()
            await asyncio.sleep(0.1)
            assert count_sockets() == before
    finally:
        gc.enable()
        brokers.primary.resume()
        brokers.secondary.resume()


async def test_a_call_whose_time_is_up_while_it_connects_leaves_no_socket(brokers: TwoBrokers) -> None:
    gc.collect()
    gc.disable()
    brokers.primary.pause()
    try:
        factory = MessagingFactory.from_connection_string(brokers.primary.connection_string, operation_timeout=1.0)
        async with factory:
            before = count_sockets()
            for _ in range(3):
                with pytest.raises(MessagingError):
                    await factory.create_message_sender("orders").send_messages(ServiceBusMessage("x"))
            await asyncio.sleep(0.5)
            assert count_sockets() == before
    finally:
        gc.enable()
        brokers.primary.resume()


async def test_a_call_that_fails_after_its_entity_was_away_and_is_back_goes_to_the_entity(brokers: TwoBrokers) -> None:
    """Two calls that are never answered, one after the other. The first fails the entity over, a ping brings it back,
    and only then the second fails, of the time before."""
    faults = RemoteFaults(brokers.primary.connection_string)
    async with brokers.paired(2, interval_s=0.0, timeout_s=6.0) as pair:
        sender = pair.primary.create_message_sender("orders")
        await sender.send_messages(ServiceBusMessage("before"))
        with faults.planted(Fault("timeout", "orders", ["send"])) as fault:
            first = asyncio.create_task(sender.send_messages(ServiceBusMessage("first")))
            await asyncio.sleep(1.0)
            second = asyncio.create_task(sender.send_messages(ServiceBusMessage("second")))
            await eventually(lambda: faults.get(fault.number).hit >= 2)
        await asyncio.gather(first, second)
        counters = pair.primary.counters
        assert (counters["failed-over"], counters["recovered"], counters["diverted"]) == (1, 1, 1)


async def test_a_message_that_failed_is_not_kept_until_garbage_is_collected(namespaces: Namespaces) -> None:
    path = namespaces.queue()
    faults = RemoteFaults(namespaces.primary.connection_string)
    gc.disable()
    try:
        async with namespaces.paired(1, 60.0) as pair:
            sender = pair.primary.create_message_sender(path)
            with faults.planted(Fault("quota", path, ["send"])):
                kept = [await refused(sender) for _ in range(3)]
            assert [message() for message in kept[:-1]] == [None] * 2  # the last is in the entity's last error
    finally:
        gc.enable()


async def refused(sender: MessageSender) -> "weakref.ref[ServiceBusMessage]":
    message = ServiceBusMessage("x")
    with contextlib.suppress(ServiceBusError):
        await sender.send_messages(message)
    return weakref.ref(message)


def sockets() -> int:
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            count += os.readlink(f"/proc/self/fd/{fd}").startswith("socket:")
    return count


async def test_the_connections_of_senders_that_were_closed_are_closed(namespaces: Namespaces) -> None:
    paths = [namespaces.queue() for _ in range(6)]
    async with namespaces.primary_factory() as factory:
        before = sockets()
        for path in paths:
            async with factory.create_message_sender(path) as sender, factory.create_message_sender(path):
                await asyncio.gather(*(sender.send_messages(ServiceBusMessage("x")) for _ in range(8)))
            pool = factory.pools.at(path)
            await asyncio.gather(*pool.closing)
            assert (len(pool.idle), pool.busy_count) == (0, 0)
        assert sockets() <= before


async def test_connections_that_nobody_uses_are_closed_in_time_and_the_oldest_make_room(
    namespaces: Namespaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spillway.paired.pools.IDLE_S", 5.0)
    monkeypatch.setattr("spillway.paired.pools.IDLE_MAX", 4)
    paths = [namespaces.queue() for _ in range(8)]
    async with namespaces.primary_factory() as factory:
        for path in paths:
            await factory.create_message_sender(path).send_messages(ServiceBusMessage("x"))
        assert factory.pools.idle_count == 4
        async with asyncio.timeout(20):
            while factory.pools.idle_count:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        await factory.create_message_sender(paths[0]).send_messages(ServiceBusMessage("y"))
    assert await namespaces.bodies(namespaces.primary, paths[0]) == ["x", "y"]


# -- what the caller hears --------------------------------------------------------------------------------------------


async def test_a_call_that_ends_at_its_deadline_names_the_cause_it_had(namespaces: Namespaces) -> None:
    path = namespaces.queue()
    faults = RemoteFaults(namespaces.primary.connection_string)
    async with namespaces.paired(1, 60.0, pending="hold") as pair:
        sender = pair.primary.create_message_sender(path)
        with faults.planted(Fault("quota", path, ["send"])), pytest.raises(ServiceBusError) as caught:
            await sender.send_messages(ServiceBusMessage("x"), timeout=2.5)
    causes: list[str] = []
    error: BaseException | None = caught.value
    while error is not None:
        causes.append(type(error).__name__)
        error = error.__cause__
    assert "ServiceBusQuotaExceededError" in causes


def annotated() -> AmqpAnnotatedMessage:
    odd: dict[str, Any] = {"annotations": {5: "number"}, "application_properties": {"b": bytearray(b"\xff")}}
    return AmqpAnnotatedMessage(value_body={b"k": 1, 2: "v"}, **odd)


async def test_odd_values_are_diverted_as_the_sdk_sends_them(namespaces: Namespaces) -> None:
    """What the primary takes, the backlog takes: bytes by bytes but for the aliases."""
    path = namespaces.queue()
    async with namespaces.paired(1, ping_s=1800) as pair:
        sender = pair.primary.create_message_sender(path)
        await sender.send_messages(annotated())
        away = namespaces.refuse(path)
        await sender.send_messages(annotated())
        assert pair.primary.counters["diverted"] == 1
        away.clear()
