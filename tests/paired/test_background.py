"""Pairing in the background: a program that starts before its secondary, and what it sees meanwhile."""

import asyncio
import datetime
import itertools
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage

from spillway.paired import (
    MessagingFactory,
    NamespaceManager,
    PairingError,
    SendAvailabilityPairedNamespaceOptions,
    sync,
)
from spillway.paired.attempts import FIRST_PAUSE_S, PAUSE_MAX_S, pauses
from tests.paired.namespaces import NO_KEEP_ALIVE, Namespaces, eventually
from tests.tools.broker_process import BrokerProcess

AT_ONCE = datetime.timedelta(0)


@pytest.fixture
def late(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A secondary that is not there yet, though its address is known."""
    broker = BrokerProcess(tmp_path / "late")
    broker.start()
    broker.kill()
    yield broker
    broker.close()


async def test_a_program_that_starts_before_its_secondary_sends_and_is_paired_when_it_comes(
    namespaces: Namespaces, late: BrokerProcess
) -> None:
    path = namespaces.queue()
    primary = namespaces.primary_factory(namespace_name=namespaces.unique_name())
    secondary = MessagingFactory.from_connection_string(late.connection_string, **NO_KEEP_ALIVE)
    manager = NamespaceManager.from_connection_string(late.connection_string)
    async with primary, secondary, manager:
        assert (primary.pairing_state, primary.pairing_error) == ("unpaired", None)
        options = SendAvailabilityPairedNamespaceOptions(manager, secondary, 2, AT_ONCE, chance=random.Random(1))
        sender = primary.create_message_sender(path)
        primary.pair_namespace_in_background(options)
        assert primary.pairing_state == "pairing"
        await sender.send_messages(ServiceBusMessage("to the primary"))
        await eventually(lambda: primary.counters["pairing-failed"] >= 1)
        assert primary.pairing_state == "pairing"
        assert isinstance(primary.pairing_error, PairingError)
        assert "For all 2 queues: Cannot connect to host" in str(primary.pairing_error)
        with pytest.raises(PairingError, match="pair_namespace: this factory is being paired already"):
            await primary.pair_namespace(options)
        await asyncio.to_thread(late.start)
        await eventually(lambda: primary.pairing_state == "paired")
        assert primary.pairing_error is None
        assert (primary.counters["paired"], options.backlog_queue_count) == (1, 2)
        away = namespaces.refuse(path)
        await sender.send_messages(ServiceBusMessage("to the backlog"))
        assert primary.counters["diverted"] == 1
        away.clear()
    assert await namespaces.bodies(namespaces.primary, path) == ["to the primary"]


async def test_closing_ends_the_trying_at_once(namespaces: Namespaces, late: BrokerProcess) -> None:
    primary = namespaces.primary_factory()
    secondary = MessagingFactory.from_connection_string(late.connection_string, **NO_KEEP_ALIVE)
    async with secondary, NamespaceManager.from_connection_string(late.connection_string) as manager:
        options = SendAvailabilityPairedNamespaceOptions(manager, secondary, 1)
        primary.pair_namespace_in_background(options)
        await eventually(lambda: primary.counters["pairing-failed"] >= 1)
        began_s = time.monotonic()
        await primary.close()
        assert time.monotonic() - began_s < 2.0
        assert primary.pairing_state == "unpaired"
        assert not options.is_in_use
        assert primary.attempts._task is not None and primary.attempts._task.done()


async def test_closing_while_an_attempt_is_under_way_ends_it(namespaces: Namespaces) -> None:
    primary, secondary = namespaces.primary_factory(operation_timeout=60.0), namespaces.secondary_factory()
    async with secondary, namespaces.manager() as manager:
        namespaces.secondary.pause()
        try:
            primary.pair_namespace_in_background(SendAvailabilityPairedNamespaceOptions(manager, secondary, 10))
            await asyncio.sleep(0.2)
            began_s = time.monotonic()
            await primary.close()
            assert time.monotonic() - began_s < 2.0
        finally:
            namespaces.secondary.resume()
    assert primary.counters["pairing-failed"] == 0, "that it was closed says nothing about the secondary"


async def test_a_key_that_may_not_ends_the_trying_and_says_why(namespaces: Namespaces) -> None:
    limited = namespaces.secondary_with("both")
    primary, secondary = namespaces.primary_factory(), namespaces.secondary_factory()
    async with primary, secondary, NamespaceManager.from_connection_string(limited) as manager:
        options = SendAvailabilityPairedNamespaceOptions(manager, secondary, 2)
        primary.pair_namespace_in_background(options)
        await eventually(lambda: primary.pairing_state == "unpaired")
        assert "Unauthorized" in str(primary.pairing_error)
        assert primary.counters["pairing-failed"] == 1
        right = SendAvailabilityPairedNamespaceOptions(namespaces.manager(), secondary, 2)
        await primary.pair_namespace(right)  # it is free to be paired with others
        assert (primary.pairing_state, primary.pairing_error) == ("paired", None)
        await right.secondary_namespace_manager.close()


async def test_wrong_options_are_refused_at_once(namespaces: Namespaces) -> None:
    async with namespaces.primary_factory() as primary, namespaces.primary_factory() as twin:
        itself = NamespaceManager.from_connection_string(namespaces.primary.connection_string)
        with pytest.raises(PairingError, match="messaging_factory: it leads to .*, the primary itself"):
            primary.pair_namespace_in_background(SendAvailabilityPairedNamespaceOptions(itself, twin, 1))
        with pytest.raises(TypeError, match="options must be"):
            primary.pair_namespace_in_background("nonsense")  # type: ignore[arg-type]
        assert primary.pairing_state == "unpaired"
        await itself.close()


async def test_a_try_that_the_caller_waited_for_leaves_its_reason_too(
    namespaces: Namespaces, late: BrokerProcess
) -> None:
    primary = namespaces.primary_factory()
    secondary = MessagingFactory.from_connection_string(late.connection_string, **NO_KEEP_ALIVE)
    async with primary, secondary, NamespaceManager.from_connection_string(late.connection_string) as manager:
        with pytest.raises(PairingError) as refused:
            await primary.pair_namespace(SendAvailabilityPairedNamespaceOptions(manager, secondary, 1))
        assert primary.pairing_error is refused.value
        assert (primary.pairing_state, primary.counters["pairing-failed"]) == ("unpaired", 1)


def test_pauses_double_up_to_a_minute_and_are_never_the_same() -> None:
    found = list(itertools.islice(pauses(random.Random(7)), 200))
    expected_s = FIRST_PAUSE_S
    for pause_s in found:
        assert expected_s / 2 <= pause_s <= expected_s
        expected_s = min(PAUSE_MAX_S, expected_s * 2)
    assert len(set(found)) == len(found)
    assert found == list(itertools.islice(pauses(random.Random(7)), 200)), "by the chance that is given"


def test_the_blocking_flavour_pairs_in_the_background_too(namespaces: Namespaces, late: BrokerProcess) -> None:
    path = namespaces.queue()
    primary = sync.MessagingFactory.from_connection_string(
        namespaces.primary.connection_string, namespace_name=namespaces.unique_name()
    )
    secondary = sync.MessagingFactory.from_connection_string(late.connection_string)
    manager = sync.NamespaceManager.from_connection_string(late.connection_string)
    with primary, secondary, manager:
        with pytest.raises(TypeError, match="options must be"):
            primary.pair_namespace_in_background("nonsense")  # type: ignore[arg-type]
        primary.pair_namespace_in_background(
            sync.SendAvailabilityPairedNamespaceOptions(manager, secondary, 1, AT_ONCE, chance=random.Random(1))
        )
        assert primary.pairing_state == "pairing"
        primary.create_message_sender(path).send_messages(ServiceBusMessage("x"))
        _until(lambda: primary.counters["pairing-failed"] >= 1)
        assert isinstance(primary.pairing_error, PairingError)
        late.start()
        _until(lambda: primary.pairing_state == "paired")
        assert primary.pairing_error is None


def _until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60.0
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
