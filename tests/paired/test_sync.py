"""The blocking flavour: the same things, from threads."""

import concurrent.futures
import datetime
import gc
import json

import pytest
from azure.servicebus import ServiceBusMessage

from spillway.paired import sync
from spillway.paired.ledger import SEND
from tests.paired.namespaces import Namespaces


def pair(namespaces: Namespaces, **options: object) -> tuple[sync.MessagingFactory, sync.MessagingFactory]:
    primary = sync.MessagingFactory.from_connection_string(
        namespaces.primary.connection_string, namespace_name=namespaces.unique_name(), operation_timeout=10
    )
    secondary = sync.MessagingFactory.from_connection_string(
        namespaces.secondary.connection_string, operation_timeout=10
    )
    manager = sync.NamespaceManager.from_connection_string(
        namespaces.secondary.connection_string, ca_file=namespaces.secondary.ca_file
    )
    primary.pair_namespace(
        sync.SendAvailabilityPairedNamespaceOptions(manager, secondary, 1, datetime.timedelta(0), **options)
    )
    manager.close()
    return primary, secondary


def test_threads_send_and_a_blocking_receiver_gets_everything(namespaces: Namespaces) -> None:
    path = namespaces.queue()
    primary, secondary = pair(namespaces)
    with primary, secondary, primary.create_queue_client(path) as client:
        with concurrent.futures.ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda number: client.send_messages(ServiceBusMessage(str(number))), range(40)))
        got: list[str] = []
        while len(got) < 40:
            for message in client.receive_messages(40, max_wait_time=5):
                got.append(str(message))
                client.complete_message(message)
    assert sorted(got, key=int) == [str(number) for number in range(40)]


def test_a_blocking_program_survives_an_outage_and_the_syphon_brings_its_message_home(namespaces: Namespaces) -> None:
    path = namespaces.queue()
    primary, secondary = pair(namespaces, enable_syphon=True, ping_primary_interval=datetime.timedelta(seconds=1))
    with primary, secondary:
        faults = namespaces.refuse(path)
        primary.create_message_sender(path).send_messages(ServiceBusMessage("x"))
        assert primary.counters["diverted"] == 1
        faults.clear()
        receiver = primary.create_message_receiver(path)
        (message,) = receiver.receive_messages(1, max_wait_time=30)
        assert str(message) == "x"
        receiver.complete_message(message)


def test_what_is_refused_says_so_in_the_blocking_flavour_too(namespaces: Namespaces) -> None:
    primary, secondary = pair(namespaces)
    with primary, secondary:
        with pytest.raises(TypeError, match="secondary_namespace_manager"):
            sync.SendAvailabilityPairedNamespaceOptions("nonsense", secondary)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="timeout must be greater than 0"):
            primary.create_message_sender("q").send_messages(ServiceBusMessage("x"), timeout=-1)
    assert primary.is_closed
    with pytest.raises(sync.FactoryClosed):
        primary.create_message_sender("q")


def test_the_ledger_is_there_in_the_blocking_flavour_too(namespaces: Namespaces) -> None:
    path = namespaces.queue()
    with sync.MessagingFactory.from_connection_string(namespaces.primary.connection_string) as factory:
        sender = factory.create_message_sender(path)
        for _ in range(3):
            sender.send_messages(ServiceBusMessage("x"))
        assert factory.ledger.totals() == {path: {"send": 3}}
        assert factory.ledger.operations(SEND, path) == 3
        assert sum(json.loads(line)["operations"] for line in factory.ledger.lines()) == 3


def test_a_blocking_receiver_that_nobody_has_any_more_is_not_kept(namespaces: Namespaces) -> None:
    path = namespaces.queue()
    with sync.MessagingFactory.from_connection_string(namespaces.primary.connection_string) as factory:
        for _ in range(20):
            factory.create_message_receiver(path)
        kept = factory.create_message_receiver(path)
        gc.collect()
        assert list(factory._receivers) == [kept]
