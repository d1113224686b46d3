"""The syphon: what it brings home, keeps and dead-letters, and how it ends (contract D16, E7, F7 to F12)."""

import asyncio
import datetime
import time
from collections import Counter

import pytest
from azure.core.exceptions import ServiceResponseError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient
from azure.servicebus.management import QueueProperties

from spillway.amqp.types import Timestamp
from spillway.client.control import ControlClient
from spillway.client.faults import Fault, RemoteFaults
from spillway.paired import MessagingFactory, NamespaceManager, SendAvailabilityPairedNamespaceOptions
from spillway.paired.events import Event
from spillway.paired.ledger import RECEIVE, RENEW, SEND
from spillway.paired.syphoning import make_syphon
from tests.paired.namespaces import Namespaces, Pair, close_all, eventually


async def divert(
    namespaces: Namespaces, pair: Pair, path: str, *messages: ServiceBusMessage | list[ServiceBusMessage]
) -> None:
    """Send these while the entity is away; it is well again afterwards."""
    faults = namespaces.refuse(path)
    sender = pair.primary.create_message_sender(path)
    for message in messages:
        await sender.send_messages(message)
    faults.clear()
    pair.options.mark_path_healthy(path)


@pytest.mark.contract("D16", "A14", "F8")
async def test_what_was_diverted_waits_in_the_secondary_until_a_syphon_brings_it_to_the_right_entities(
    namespaces: Namespaces,
) -> None:
    queue, topic = namespaces.queue(), namespaces.topic("all")
    name = namespaces.unique_name()
    secondary, manager = namespaces.secondary_factory(), namespaces.manager()
    sending, syphoning = (namespaces.primary_factory(namespace_name=name) for _ in range(2))
    options = [
        SendAvailabilityPairedNamespaceOptions(
            manager, secondary, 3, datetime.timedelta(0), is_syphon, syphon_long_poll=datetime.timedelta(seconds=1)
        )
        for is_syphon in (False, True)
    ]
    await sending.pair_namespace(options[0])
    pair = Pair(sending, secondary, manager, options[0])
    for number in range(6):  # six clients: more than one backlog queue is used
        await divert(namespaces, pair, queue if number % 2 else topic, ServiceBusMessage(f"message {number}"))
    assert await namespaces.bodies(namespaces.primary, queue) == []
    waiting = [await namespaces.bodies(namespaces.secondary, pair.backlog_path(index)) for index in range(3)]
    assert sum(len(bodies) for bodies in waiting) == 6
    await syphoning.pair_namespace(options[1])
    await Pair(syphoning, secondary, manager, options[1]).until("syphoned", 6)
    assert sorted(await namespaces.bodies(namespaces.primary, queue)) == ["message 1", "message 3", "message 5"]
    assert sorted(await namespaces.bodies(namespaces.primary, f"{topic}/Subscriptions/all")) == [
        "message 0",
        "message 2",
        "message 4",
    ]
    await close_all(sending, syphoning, secondary, manager)


class Forgetful(NamespaceManager):
    """Of a secondary whose administration does not answer for one queue."""

    async def ensure_backlog_queue(self, path: str) -> tuple[QueueProperties, bool]:
        if path.endswith("/1"):
            raise ServiceResponseError("Connection reset by peer")
        return await super().ensure_backlog_queue(path)


@pytest.mark.contract("F8")
async def test_a_backlog_queue_that_was_missed_while_pairing_is_syphoned_when_it_is_there(
    namespaces: Namespaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, name = namespaces.queue(), namespaces.unique_name()
    manager = Forgetful.from_connection_string(
        namespaces.secondary.connection_string, ca_file=namespaces.secondary.ca_file
    )
    syphoning, secondary = namespaces.primary_factory(namespace_name=name), namespaces.secondary_factory()
    options = SendAvailabilityPairedNamespaceOptions(
        manager, secondary, 2, enable_syphon=True, syphon_long_poll=datetime.timedelta(seconds=1)
    )
    await syphoning.pair_namespace(options)
    pair = Pair(syphoning, secondary, manager, options)
    assert options.backlog_queue_count == 1
    missed = pair.backlog_path(1)
    assert syphoning.syphon is not None
    queue = syphoning.syphon.queues[1]
    tries = 0
    live = queue._live

    async def watched() -> None:
        nonlocal tries
        tries += 1
        await live()

    monkeypatch.setattr(queue, "_live", watched)
    await eventually(lambda: tries >= 2)
    assert syphoning.counters["syphon-interrupted"] == 1  # it is not there, said once
    with namespaces.administration(namespaces.secondary) as client:
        client.create_queue(missed)
    async with namespaces.secondary_factory() as other:
        message = ServiceBusMessage("x", application_properties={"x-ms-path": path})
        await other.create_message_sender(missed).send_messages(message)
    await pair.until("syphoned")
    assert await namespaces.bodies(namespaces.primary, path) == ["x"]
    await close_all(syphoning, secondary, manager)


@pytest.mark.contract("F8")
@pytest.mark.parametrize("size", [3_500, 12_000, 100_000])
async def test_what_does_not_fit_into_one_batch_comes_home_whole(namespaces: Namespaces, size: int) -> None:
    path = namespaces.queue()
    count = 120 if size < 100_000 else 8
    together = 240_000 // (size + 1_000)
    ids = [f"m{number}" for number in range(count)]
    async with namespaces.paired(1) as pair:
        batches = [
            [ServiceBusMessage(b"x" * size, message_id=each) for each in ids[at : at + together]]
            for at in range(0, count, together)
        ]
        await divert(namespaces, pair, path, *batches)
        backlog = pair.backlog_path(0)
        assert len(await namespaces.peek(namespaces.secondary, backlog)) == count
        name = pair.primary.namespace_name
        async with namespaces.paired(1, enable_syphon=True, namespace_name=name) as syphoning:
            await syphoning.until("syphoned", count)
            running = syphoning.primary.syphon
            assert running is not None
            await eventually(lambda: running.outstanding_count == 0)
            assert syphoning.primary.counters["syphon-kept"] == 0
        home = Counter(message.message_id for message in await namespaces.peek(namespaces.primary, path))
        assert home == Counter(ids)
        assert await namespaces.peek(namespaces.secondary, backlog) == []


async def test_a_secondary_that_does_not_answer_a_settlement_is_not_waited_for(namespaces: Namespaces) -> None:
    path, name = namespaces.queue(requires_duplicate_detection=True), namespaces.unique_name()
    with namespaces.administration(namespaces.secondary) as client:
        client.create_queue(f"{name}/x-servicebus-transfer/0", lock_duration=datetime.timedelta(seconds=5))
    async with namespaces.paired(1, namespace_name=name) as pair:
        await divert(namespaces, pair, path, ServiceBusMessage("around"))
        backlog = pair.backlog_path(0)
        faults = RemoteFaults(namespaces.secondary.connection_string)
        faults.add(Fault("timeout", backlog, ["settle"]))
        syphon = namespaces.paired(1, enable_syphon=True, namespace_name=name, operation_timeout=2.0)
        async with syphon as syphoning:
            began_s = time.monotonic()
            await syphoning.until("syphon-interrupted")
            assert time.monotonic() - began_s < 30  # far from the SDK's minute
            faults.clear()
            await namespaces.until_bodies(namespaces.secondary, backlog, [], timeout_s=60)
        assert await namespaces.bodies(namespaces.primary, path) == ["around"]


async def test_locks_are_renewed_while_a_destination_keeps_them_waiting(namespaces: Namespaces) -> None:
    """A lock of five seconds, a destination that is away for longer: nobody else is handed the messages meanwhile."""
    name = namespaces.unique_name()
    with namespaces.administration(namespaces.secondary) as client:
        lock = datetime.timedelta(seconds=5)
        client.create_queue(f"{name}/x-servicebus-transfer/0", lock_duration=lock)
    path = namespaces.queue()
    async with namespaces.paired(1, namespace_name=name) as pair:
        await divert(namespaces, pair, path, *[ServiceBusMessage(f"message {number}") for number in range(3)])
        faults = namespaces.refuse(path, "disabled")
        async with namespaces.paired(1, enable_syphon=True, namespace_name=name) as syphoning:
            ledger = syphoning.secondary.ledger
            began_s = time.monotonic()
            await eventually(lambda: ledger.operations(RENEW) >= 3 and time.monotonic() - began_s > 7)
            faults.clear()
            await syphoning.until("syphoned", 3)
            assert ledger.operations(RECEIVE) == 3  # each of them once
            assert syphoning.primary.counters["syphon-repeated"] == 0
        assert sorted(await namespaces.bodies(namespaces.primary, path)) == [f"message {number}" for number in range(3)]


@pytest.mark.contract("E2", "E3", "E4")
async def test_session_life_and_due_time_travel_as_properties_and_are_restored_at_home(namespaces: Namespaces) -> None:
    path = namespaces.queue(requires_session=True)
    due = datetime.datetime.now(datetime.UTC).replace(microsecond=0) + datetime.timedelta(hours=1)
    life = datetime.timedelta(minutes=30)
    async with namespaces.paired(1) as pair:
        await divert(
            namespaces,
            pair,
            path,
            ServiceBusMessage("now", session_id="s", time_to_live=life),
            ServiceBusMessage("later", session_id="s", scheduled_enqueue_time_utc=due),
        )
        now, later = await namespaces.peek(namespaces.secondary, pair.backlog_path(0))  # neither waits, neither ends
        assert (now.properties.group_id, now.header.ttl_ms, later.annotations.get("x-opt-scheduled-enqueue-time")) == (
            None,
            None,
            None,
        )
        # A plain int is a long: see spillway.amqp.types.
        travels = {key: (type(value), value) for key, value in now.application_properties.items()}
        assert travels == {"x-ms-path": (str, path), "x-ms-sessionid": (str, "s"), "x-ms-timetolive": (int, 1_800_000)}
        due_ms = later.application_properties["x-ms-scheduledenqueuetimeutc"]
        assert (type(due_ms), due_ms) == (Timestamp, int(due.timestamp() * 1000))
        assert pair.primary.pairing is not None
        running = make_syphon(pair.primary.pairing)
        running.start()
        await pair.until("syphoned", 2)
        await running.close()
    async with (
        ServiceBusClient.from_connection_string(namespaces.primary.connection_string) as client,
        client.get_queue_receiver(path, session_id="s") as receiver,
    ):
        (message,) = await receiver.receive_messages(10, max_wait_time=5)
        assert (str(message), message.session_id, message.time_to_live) == ("now", "s", life)
        assert message.application_properties in (None, {})
        peeked = await receiver.peek_messages(10)
    (waiting,) = [each for each in peeked if str(each) == "later"]
    assert waiting.scheduled_enqueue_time_utc == due


async def test_a_due_time_that_has_passed_is_delivered_at_once_and_what_is_left_of_a_life_can_be_kept(
    namespaces: Namespaces,
) -> None:
    path = namespaces.queue()
    past = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=1)
    async with namespaces.paired(1, enable_syphon=True, ttl="remaining") as pair:
        message = ServiceBusMessage("x", scheduled_enqueue_time_utc=past, time_to_live=datetime.timedelta(minutes=30))
        await divert(namespaces, pair, path, message)
        await pair.until("syphoned")
        (home,) = await namespaces.peek(namespaces.primary, path)
        assert home.header.ttl_ms is not None
        assert 1_000_000 < home.header.ttl_ms < 1_800_000


async def test_what_no_paired_sender_wrote_is_dead_lettered_with_reason_and_text(namespaces: Namespaces) -> None:
    async with namespaces.paired(1, enable_syphon=True) as pair:
        backlog = pair.backlog_path(0)
        async with namespaces.secondary_factory() as direct:
            sender = direct.create_message_sender(backlog)
            await sender.send_messages(ServiceBusMessage("nowhere"))
            wrong = {"x-ms-path": "orders", "x-ms-timetolive": "soon"}
            await sender.send_messages(ServiceBusMessage("wrong", application_properties=wrong))  # type: ignore[arg-type]
        await pair.until("syphon-dead-lettered", 2)
        dead = await namespaces.peek(namespaces.secondary, f"{backlog}/$DeadLetterQueue")
    reasons = {each.body.decode(): each.application_properties["DeadLetterReason"] for each in dead}
    assert reasons == {"nowhere": "PathMissing", "wrong": "AliasOfWrongType"}
    assert all("property" in str(each.application_properties["DeadLetterErrorDescription"]) for each in dead)


async def test_a_destination_that_refuses_keeps_its_messages_and_holds_nobody_up(namespaces: Namespaces) -> None:
    full, well = namespaces.queue(), namespaces.queue()
    async with namespaces.paired(1, enable_syphon=True) as pair:
        faults = RemoteFaults(namespaces.primary.connection_string)
        with faults.planted(Fault("quota", full, ["send"])):
            with faults.planted(Fault("quota", well, ["send"])):
                for path in (full, well):
                    await pair.primary.create_message_sender(path).send_messages(ServiceBusMessage(path))
                await pair.until("syphon-kept", 2)
            await namespaces.until_bodies(namespaces.primary, well, [well])
            await namespaces.until_bodies(namespaces.secondary, pair.backlog_path(0), [full])
        await namespaces.until_bodies(namespaces.primary, full, [full])
        await namespaces.until_bodies(namespaces.secondary, pair.backlog_path(0), [])


async def test_a_message_that_its_destination_refuses_stays_behind_alone_and_those_behind_it_go_home(
    namespaces: Namespaces,
) -> None:
    path = namespaces.queue(requires_session=True)
    told: list[Event] = []
    async with namespaces.paired(1) as pair:
        await divert(
            namespaces,
            pair,
            path,
            ServiceBusMessage("without a session"),
            *(ServiceBusMessage(f"message {number}", session_id="s") for number in range(3)),
            ServiceBusMessage("without one either"),
            ServiceBusMessage("last", session_id="t"),
        )
        assert pair.primary.pairing is not None
        pair.primary.on_event(told.append)
        running = make_syphon(pair.primary.pairing)
        running.start()
        await pair.until("syphoned", 4)
        backlog = pair.backlog_path(0)
        await namespaces.until_bodies(namespaces.secondary, backlog, ["without a session", "without one either"])
        await running.close()
    kept = [event for event in told if event.name == "syphon-kept"]
    assert [(event.path, "not-allowed" in str(event.error)) for event in kept] == [(backlog, True)] * 2
    home = [f"message {number}" for number in range(3)] + ["last"]
    assert sorted(await namespaces.bodies(namespaces.primary, path)) == sorted(home)


@pytest.mark.contract("A15", "F7")
async def test_several_syphons_side_by_side_lose_nothing_and_one_is_enough(namespaces: Namespaces) -> None:
    path = namespaces.queue(requires_duplicate_detection=True)
    name = namespaces.unique_name()
    manager = namespaces.manager()
    secondary, sending = namespaces.secondary_factory(), namespaces.primary_factory(namespace_name=name)
    await sending.pair_namespace(SendAvailabilityPairedNamespaceOptions(manager, secondary, 2, datetime.timedelta(0)))
    pair = Pair(sending, secondary, manager, sending.pairing.options)  # type: ignore[union-attr]
    await divert(namespaces, pair, path, *(ServiceBusMessage(str(number)) for number in range(100)))
    syphons: list[tuple[MessagingFactory, MessagingFactory]] = []
    for _ in range(2):
        primary, second = namespaces.primary_factory(namespace_name=name), namespaces.secondary_factory()
        await primary.pair_namespace(
            SendAvailabilityPairedNamespaceOptions(
                manager, second, 2, enable_syphon=True, syphon_long_poll=datetime.timedelta(seconds=1)
            )
        )
        syphons.append((primary, second))
    await eventually(lambda: sum(primary.counters["syphoned"] for primary, _ in syphons) >= 100)
    bodies = await namespaces.bodies(namespaces.primary, path)
    assert Counter(bodies) == Counter(str(number) for number in range(100))
    await close_all(*(factory for pair in syphons for factory in pair), sending, secondary, manager)


@pytest.mark.contract("F11", "A8")
async def test_a_syphoned_message_is_charged_four_times(namespaces: Namespaces) -> None:
    path = namespaces.queue()
    async with namespaces.paired(1, enable_syphon=True) as pair:
        await divert(namespaces, pair, path, *(ServiceBusMessage(str(number)) for number in range(5)))
        await pair.until("syphoned", 5)
        receiver = pair.primary.create_message_receiver(path)
        received = 0
        while received < 5:
            for message in await receiver.receive_messages(5, max_wait_time=5):
                await receiver.complete_message(message)
                received += 1
        backlog = pair.backlog_path(0)
        assert (
            pair.secondary.ledger.operations(SEND, backlog) == pair.secondary.ledger.operations(RECEIVE, backlog) == 5
        )
        assert pair.primary.ledger.operations(SEND, path) == 5
    charged = {}
    for broker, entity in ((namespaces.secondary, backlog), (namespaces.primary, path)):
        for row in ControlClient(broker.connection_string).ask("GET", "ledger")["rows"]:
            if row["entity"] == entity and row["kind"] in ("send", "receive"):
                charged[entity, row["kind"]] = row["operations"]
    assert charged == {(backlog, "send"): 5, (backlog, "receive"): 5, (path, "send"): 5, (path, "receive"): 5}


@pytest.mark.contract("A19", "F12")
async def test_pairing_makes_queues_redirects_pings_syphons_and_a_fault_of_one_side_ends_the_other(
    namespaces: Namespaces,
) -> None:
    path = namespaces.queue()
    away = namespaces.refuse(path)
    async with namespaces.paired(1, enable_syphon=True) as pair:
        await pair.primary.create_message_sender(path).send_messages(ServiceBusMessage("x"))
        away.clear()
        await pair.until("recovered")
        await pair.until("syphoned")
        jobs = ("backlog-queue-created", "diverted", "recovered", "syphoned")
        assert [pair.primary.counters[job] for job in jobs] == [1, 1, 1, 1]
        assert pair.primary.counters["pinged"] >= 1
        assert await namespaces.bodies(namespaces.primary, path) == ["x"]
        await pair.secondary.abort(OSError("the disk is gone"))
        await eventually(lambda: pair.primary.is_faulted, 5.0)
        with pytest.raises(Exception, match="was faulted: its partner.*the disk is gone"):
            pair.primary.create_message_sender("q")


@pytest.mark.contract("F12")
async def test_a_partner_that_is_closed_gives_the_other_five_seconds(namespaces: Namespaces) -> None:
    loop = asyncio.get_running_loop()
    async with namespaces.paired(1, enable_syphon=True) as pair:
        begun_s = loop.time()
        await pair.secondary.close()
        await eventually(lambda: pair.primary.is_faulted, 15.0)
        assert loop.time() - begun_s >= 5.0


@pytest.mark.contract("F12")
async def test_two_that_are_closed_within_the_five_seconds_are_not_faulted(namespaces: Namespaces) -> None:
    async with namespaces.paired(1, enable_syphon=True) as pair:
        await pair.primary.close()
        await pair.secondary.close()
        assert (pair.primary.is_closed, pair.primary.is_faulted) == (True, False)
        assert (pair.secondary.is_closed, pair.secondary.is_faulted) == (True, False)


async def test_the_secondary_may_be_closed_first_and_the_syphon_stops_without_a_complaint(
    namespaces: Namespaces,
) -> None:
    async with namespaces.paired(2, enable_syphon=True) as pair:
        await pair.until("syphon-polled")
        await pair.secondary.close()
        await pair.primary.close()
        assert pair.primary.counters["syphon-interrupted"] == 0
        assert (pair.primary.is_faulted, pair.secondary.is_faulted) == (False, False)
