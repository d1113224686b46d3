"""Pairing: what it takes, what it makes, what it refuses (contract A and C)."""

import datetime
import inspect
import random
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import QueueProperties

from spillway import paired
from spillway.client.faults import Fault, RemoteFaults
from spillway.paired import (
    MessageSender,
    MessagingFactory,
    NamespaceManager,
    PairedNamespaceOptions,
    PairingError,
    SendAvailabilityPairedNamespaceOptions,
)
from spillway.paired.backlog import backlog_path, namespace_name
from tests.paired.namespaces import Namespaces, close_all

CONNECTION = "Endpoint=sb://{};SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey={};{}"


def connection(host: str, key: str = "SAS_KEY_VALUE") -> str:
    return CONNECTION.format(host, key, "UseDevelopmentEmulator=true;")


# -- the shape of it ------------------------------------------------------------------------------------------------


@pytest.mark.contract("A1", "A5", "A6")
async def test_two_factories_a_manager_and_options_of_two_arguments_are_enough(namespaces: Namespaces) -> None:
    primary = namespaces.primary_factory(namespace_name=namespaces.unique_name())
    secondary, manager = namespaces.secondary_factory(), namespaces.manager()
    options = SendAvailabilityPairedNamespaceOptions(manager, secondary)
    await primary.pair_namespace(options)
    assert primary.pairing is not None
    await close_all(primary, secondary, manager)


@pytest.mark.contract("A3")
async def test_there_is_one_kind_of_pairing_below_a_base_of_all_kinds(namespaces: Namespaces) -> None:
    assert SendAvailabilityPairedNamespaceOptions.__mro__[1] is PairedNamespaceOptions
    async with namespaces.primary_factory() as primary:
        with pytest.raises(TypeError, match="the only kind of pairing"):
            await primary.pair_namespace(PairedNamespaceOptions())


@pytest.mark.contract("A4", "A9", "F4")
async def test_the_widest_constructor_takes_its_parameters_in_the_documents_order_and_defaults() -> None:
    parameters = inspect.signature(SendAvailabilityPairedNamespaceOptions).parameters
    positional = [name for name, each in parameters.items() if each.kind is each.POSITIONAL_OR_KEYWORD]
    assert positional == [
        "secondary_namespace_manager",
        "messaging_factory",
        "backlog_queue_count",
        "failover_interval",
        "enable_syphon",
    ]
    assert parameters["backlog_queue_count"].default == 10
    assert parameters["failover_interval"].default == datetime.timedelta(minutes=1)
    assert parameters["enable_syphon"].default is False
    assert parameters["ping_primary_interval"].default == datetime.timedelta(minutes=1)


async def test_the_blocking_flavour_has_the_same_names() -> None:
    import spillway.paired.sync as blocking

    assert set(paired.__all__) <= set(blocking.__all__)


@pytest.mark.contract("A18", "C12")
async def test_backlog_queues_beyond_the_count_are_left_alone_and_the_options_say_how_many_there_are(
    namespaces: Namespaces,
) -> None:
    name = namespaces.unique_name()
    with namespaces.administration(namespaces.secondary) as client:
        client.create_queue(backlog_path(name, 7))
    primary = namespaces.primary_factory(namespace_name=name)
    secondary, manager = namespaces.secondary_factory(), namespaces.manager()
    options = SendAvailabilityPairedNamespaceOptions(manager, secondary, 5)
    await primary.pair_namespace(options)
    assert options.backlog_queue_count == 5
    assert primary.pairing is not None
    assert [queue.path for queue in primary.pairing.rotation.queues] == [
        backlog_path(name, index) for index in range(5)
    ]
    with namespaces.administration(namespaces.secondary) as client:
        assert client.get_queue(backlog_path(name, 7)).name == backlog_path(name, 7)
    await close_all(primary, secondary, manager)


# -- backlog queues -------------------------------------------------------------------------------------------------


def made(namespaces: Namespaces, path: str) -> QueueProperties:
    with namespaces.administration(namespaces.secondary) as client:
        return client.get_queue(path)


@pytest.mark.contract("C3", "C4", "A11")
async def test_a_backlog_queue_holds_5_gb_and_never_gives_a_message_up(namespaces: Namespaces) -> None:
    async with namespaces.paired(1) as pair:
        queue = made(namespaces, pair.backlog_path(0))
    assert (queue.max_size_in_megabytes, queue.max_delivery_count) == (5120, 2_147_483_647)


@pytest.mark.contract("C5", "C6", "C7")
async def test_its_messages_live_for_ever_it_does_too_and_locks_last_a_minute(namespaces: Namespaces) -> None:
    async with namespaces.paired(1) as pair:
        queue = made(namespaces, pair.backlog_path(0))
    for_ever = datetime.timedelta(days=10_675_199)
    assert isinstance(queue.default_message_time_to_live, datetime.timedelta)
    assert isinstance(queue.auto_delete_on_idle, datetime.timedelta)
    assert queue.default_message_time_to_live >= for_ever
    assert queue.auto_delete_on_idle >= for_ever
    assert queue.lock_duration == datetime.timedelta(minutes=1)


@pytest.mark.contract("C8", "C9", "C10")
async def test_what_expires_is_dead_lettered_and_all_else_is_as_the_service_makes_it(namespaces: Namespaces) -> None:
    plain = namespaces.queue(namespaces.secondary)
    async with namespaces.paired(1) as pair:
        queue = made(namespaces, pair.backlog_path(0))
    default = made(namespaces, plain)
    assert (queue.dead_lettering_on_message_expiration, queue.enable_batched_operations) == (True, True)
    chosen = {"name", "max_size_in_megabytes", "max_delivery_count", "default_message_time_to_live", "lock_duration"}
    chosen |= {"auto_delete_on_idle", "dead_lettering_on_message_expiration", "enable_batched_operations"}
    compared = set(queue.keys()) - chosen
    assert len(compared) >= 10
    for name in compared:
        assert queue[name] == default[name], name


@pytest.mark.contract("C11", "A7")
async def test_only_missing_queues_are_made(namespaces: Namespaces) -> None:
    name = namespaces.unique_name()
    with namespaces.administration(namespaces.secondary) as client:
        client.create_queue(backlog_path(name, 1), max_delivery_count=3)
    primary = namespaces.primary_factory(namespace_name=name)
    secondary, manager = namespaces.secondary_factory(), namespaces.manager()
    await primary.pair_namespace(SendAvailabilityPairedNamespaceOptions(manager, secondary, 3))
    assert primary.counters["backlog-queue-created"] == 2
    assert made(namespaces, backlog_path(name, 1)).max_delivery_count == 3
    await close_all(primary, secondary, manager)


@pytest.mark.contract("C14")
async def test_a_queue_of_that_name_with_other_settings_is_the_owners_choice_and_is_said(
    namespaces: Namespaces,
) -> None:
    name = namespaces.unique_name()
    with namespaces.administration(namespaces.secondary) as client:
        client.create_queue(backlog_path(name, 0), max_delivery_count=3)
    primary = namespaces.primary_factory(namespace_name=name)
    secondary, manager = namespaces.secondary_factory(), namespaces.manager()
    told = []
    primary.on_event(lambda event: told.append((event.name, event.details.get("differences", ""))))
    await primary.pair_namespace(SendAvailabilityPairedNamespaceOptions(manager, secondary, 1))
    (differing,) = [details for event, details in told if event == "backlog-queue-differs"]
    assert "max_delivery_count=3" in differing
    await close_all(primary, secondary, manager)


@pytest.mark.contract("C1", "C2")
@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("contoso.servicebus.windows.net", "contoso"),
        ("Contoso.ServiceBus.Windows.net", "contoso"),
        ("localhost", "localhost"),
        ("localhost:5672", "localhost-5672"),
        ("127.0.0.1:5672", "127.0.0.1-5672"),
        ("[::1]:5672", "0--1-5672"),
        ("[fe80::]", "fe80--0"),
        ("my-broker.example.org:5671", "my-broker"),
    ],
)
async def test_a_namespace_is_named_after_its_host(host: str, name: str) -> None:
    assert namespace_name(host) == name
    assert backlog_path(namespace_name("contoso.servicebus.windows.net"), 0) == "contoso/x-servicebus-transfer/0"


# -- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.contract("A17", "A7")
@pytest.mark.parametrize(("rule", "key"), [("both", None), ("both", "d3Jvbmc=")])
async def test_a_manager_without_manage_or_with_a_wrong_key_surfaces_when_pairing_ends(
    namespaces: Namespaces, rule: str, key: str | None
) -> None:
    limited = namespaces.secondary_with(rule, key)
    async with namespaces.primary_factory() as primary, namespaces.secondary_factory() as secondary:
        manager = NamespaceManager.from_connection_string(limited, ca_file=namespaces.secondary.ca_file)
        options = SendAvailabilityPairedNamespaceOptions(manager, secondary, 2)
        with pytest.raises(PairingError, match="secondary_namespace_manager: no backlog queue could be found or made"):
            await primary.pair_namespace(options)
        assert options.backlog_queue_count == 2, "as it was asked for"
        assert primary.pairing is None
        await manager.close()


@pytest.mark.contract("A17", "A8")
@pytest.mark.parametrize(
    ("rule", "key", "enable_syphon", "cannot"),
    [
        ("both", "d3Jvbmc=", False, "send to"),
        ("listens", None, False, "send to"),
        ("sends", None, True, "receive from"),
    ],
)
async def test_a_secondary_factory_that_may_not_do_its_part_surfaces_when_pairing_ends(
    namespaces: Namespaces, rule: str, key: str | None, enable_syphon: bool, cannot: str
) -> None:
    primary = namespaces.primary_factory(namespace_name=namespaces.unique_name())
    limited = namespaces.secondary_with(rule, key)
    secondary = MessagingFactory.from_connection_string(limited, operation_timeout=10.0)
    async with primary, secondary, namespaces.manager() as manager:
        options = SendAvailabilityPairedNamespaceOptions(manager, secondary, 1, enable_syphon=enable_syphon)
        with pytest.raises(PairingError, match=f"messaging_factory: it cannot {cannot} '.*/x-servicebus-transfer/0'"):
            await primary.pair_namespace(options)
        assert primary.pairing is None
        assert primary.syphon is None


@pytest.mark.contract("A7")
async def test_manage_is_needed_by_the_manager_alone_a_sending_factory_does_with_send(namespaces: Namespaces) -> None:
    path, limited = namespaces.queue(), namespaces.secondary_with("sends")
    away = namespaces.refuse(path)
    primary = namespaces.primary_factory(namespace_name=namespaces.unique_name())
    secondary = MessagingFactory.from_connection_string(limited, operation_timeout=10.0)
    async with primary, secondary, namespaces.manager() as manager:
        await primary.pair_namespace(
            SendAvailabilityPairedNamespaceOptions(manager, secondary, 1, datetime.timedelta(0))
        )
        await primary.create_message_sender(path).send_messages(ServiceBusMessage("x"))
        assert primary.counters["diverted"] == 1
        away.clear()


@pytest.mark.contract("A17", "A18")
async def test_backlog_queues_that_cannot_be_made_are_named_and_those_that_can_are_used(namespaces: Namespaces) -> None:
    primary = namespaces.primary_factory(namespace_name=namespaces.unique_name())
    faults = RemoteFaults(namespaces.secondary.connection_string)
    second = backlog_path(primary.namespace_name, 1)
    async with primary, namespaces.secondary_factory() as secondary, namespaces.manager() as manager:
        options = SendAvailabilityPairedNamespaceOptions(manager, secondary, 2)
        with (
            faults.planted(Fault("refuse", "*", ["administration"], condition="amqp:not-allowed")),
            pytest.raises(PairingError, match="secondary_namespace_manager: .* For all 2 queues: "),
        ):
            await primary.pair_namespace(options)
        assert options.backlog_queue_count == 2, "as it was asked for"
        with faults.planted(Fault("refuse", second, ["administration"], condition="amqp:not-allowed")):
            await primary.pair_namespace(options)
        assert options.backlog_queue_count == 1
        assert primary.pairing is not None
        assert primary.pairing.missed_backlog_paths == [second]


@pytest.mark.parametrize(
    "parameter", ["operation_timeout", "max_in_flight", "max_in_flight_bytes", "senders_per_entity"]
)
def test_a_parameter_of_a_factory_that_is_not_above_zero_is_refused_by_name(parameter: str) -> None:
    wrong: dict[str, Any] = {parameter: 0}
    with pytest.raises(ValueError, match=f"{parameter} must be greater than 0"):
        MessagingFactory.from_connection_string(connection("localhost:1"), **wrong)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"backlog_queue_count": 0}, "backlog_queue_count must be 1 to"),
        ({"backlog_queue_count": 1_001}, "backlog_queue_count must be 1 to"),
        ({"failover_interval": datetime.timedelta(seconds=-1)}, "failover_interval must be"),
        ({"failover_interval": datetime.timedelta(minutes=61)}, "failover_interval must be"),
        ({"ping_primary_interval": datetime.timedelta(milliseconds=999)}, "ping_primary_interval must be"),
        ({"ping_primary_interval": datetime.timedelta(minutes=31)}, "ping_primary_interval must be"),
        ({"pending": "drop"}, "pending must be 'raise' or 'hold'"),
        ({"ttl": "half"}, "ttl must be 'restart' or 'remaining'"),
        ({"syphon_long_poll": datetime.timedelta(0)}, "syphon_long_poll must be"),
    ],
)
@pytest.mark.contract("A9")
async def test_a_parameter_out_of_range_is_refused_by_name(
    namespaces: Namespaces, changed: dict[str, object], said: str
) -> None:
    async with namespaces.secondary_factory() as secondary, namespaces.manager() as manager:
        with pytest.raises(ValueError, match=said):
            SendAvailabilityPairedNamespaceOptions(manager, secondary, **changed)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["secondary_namespace_manager", "messaging_factory"])
async def test_things_of_the_wrong_kind_are_refused_by_name(namespaces: Namespaces, name: str) -> None:
    async with namespaces.secondary_factory() as secondary, namespaces.manager() as manager:
        given = {"secondary_namespace_manager": manager, "messaging_factory": secondary, name: "nonsense"}
        with pytest.raises(TypeError, match=name):
            SendAvailabilityPairedNamespaceOptions(**given)  # type: ignore[arg-type]


async def test_a_factory_is_paired_once_and_options_are_used_once(namespaces: Namespaces) -> None:
    async with namespaces.paired(1) as pair:
        again = SendAvailabilityPairedNamespaceOptions(pair.manager, pair.secondary, 1)
        with pytest.raises(PairingError, match="pair_namespace: this factory is paired already"):
            await pair.primary.pair_namespace(again)
        async with namespaces.primary_factory(namespace_name="other") as other:
            with pytest.raises(PairingError, match="options: another factory is paired with them"):
                await other.pair_namespace(pair.options)


async def test_a_namespace_is_not_paired_with_itself(namespaces: Namespaces) -> None:
    itself = NamespaceManager.from_connection_string(
        namespaces.primary.connection_string, ca_file=namespaces.primary.ca_file
    )
    async with namespaces.primary_factory() as primary, namespaces.primary_factory() as twin, itself:
        options = SendAvailabilityPairedNamespaceOptions(itself, twin, 1)
        with pytest.raises(PairingError, match="messaging_factory: it leads to .*, the primary itself"):
            await primary.pair_namespace(options)


async def test_manager_and_factory_must_lead_to_the_same_namespace(namespaces: Namespaces) -> None:
    elsewhere = NamespaceManager.from_connection_string(connection("localhost:1"))
    async with namespaces.primary_factory() as primary, namespaces.secondary_factory() as secondary, elsewhere:
        options = SendAvailabilityPairedNamespaceOptions(elsewhere, secondary, 1)
        with pytest.raises(PairingError, match="secondary_namespace_manager: it leads to localhost:1, but"):
            await primary.pair_namespace(options)


@pytest.mark.parametrize("text", ["", "nonsense", "Endpoint=sb://x", "SharedAccessKey=hush"])
async def test_a_connection_string_that_is_none_is_refused_without_the_key(text: str) -> None:
    for make in (MessagingFactory.from_connection_string, NamespaceManager.from_connection_string):
        with pytest.raises(ValueError) as refused:
            make(text)
        assert "hush" not in str(refused.value)


async def test_a_message_with_a_property_named_like_an_alias_is_refused_at_send(namespaces: Namespaces) -> None:
    path = namespaces.queue()
    async with namespaces.paired(1) as pair:
        sender = pair.primary.create_message_sender(path)
        with pytest.raises(ValueError, match="application_properties: 'x-ms-path' is the name of a property"):
            await sender.send_messages(ServiceBusMessage("x", application_properties={"x-ms-path": "mine"}))


@pytest.mark.contract("D14")
async def test_each_client_has_a_backlog_queue_of_its_own_chosen_at_random(namespaces: Namespaces) -> None:
    queue, topic = namespaces.queue(), namespaces.topic("all")
    namespaces.refuse(queue)
    away = namespaces.refuse(topic)
    async with namespaces.paired(3, chance=random.Random(7)) as pair:
        clients: list[MessageSender] = []
        for _ in range(6):
            clients += [pair.primary.create_queue_client(queue), pair.primary.create_topic_client(topic)]
        for _ in range(2):
            for number, client in enumerate(clients):
                await client.send_messages(ServiceBusMessage(str(number)))
        found = [await namespaces.bodies(namespaces.secondary, pair.backlog_path(index)) for index in range(3)]
        away.clear()
    assert all(found)
    # What a client sends twice lies in one queue twice: in its own.
    assert sorted(body for bodies in found for body in set(bodies)) == sorted(str(number) for number in range(12))
