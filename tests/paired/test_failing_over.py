"""Failing over and coming back, through the real SDK and two broker processes (contract A, B, D, E and F)."""

import asyncio
import datetime
import itertools

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)

from spillway.paired import (
    BacklogUnavailableError,
    DivertedSequenceNumber,
    EntityFailed,
    MessagingError,
    MessagingFactory,
    SchedulingError,
    SendAvailabilityPairedNamespaceOptions,
)
from spillway.paired.plan import RETRIES_MAX
from spillway.paired.watch import make_ping
from tests.paired.namespaces import Namespaces

UTC = datetime.UTC


@pytest.mark.contract("D1", "D2", "A2")
async def test_on_a_healthy_primary_nothing_changes(namespaces: Namespaces) -> None:
    path, topic = namespaces.queue(), namespaces.topic("all")
    async with namespaces.paired(1) as pair:
        await pair.primary.create_message_sender(path).send_messages(ServiceBusMessage("by sender"))
        await pair.primary.create_queue_client(path).send_messages(ServiceBusMessage("by client"))
        await pair.primary.create_topic_client(topic).send_messages(ServiceBusMessage("by topic client"))
        assert await namespaces.bodies(namespaces.secondary, pair.backlog_path(0)) == []
        assert pair.primary.counters["diverted"] == pair.primary.counters["pinged"] == 0
    assert await namespaces.bodies(namespaces.primary, path) == ["by sender", "by client"]
    assert await namespaces.bodies(namespaces.primary, f"{topic}/Subscriptions/all") == ["by topic client"]


@pytest.mark.contract("A13", "D9", "D10")
async def test_with_an_interval_of_zero_the_failing_call_itself_goes_to_the_backlog(namespaces: Namespaces) -> None:
    path = namespaces.queue()
    faults = namespaces.refuse(path)
    async with namespaces.paired(3, ping_s=1800) as pair:
        await pair.primary.create_message_sender(path).send_messages(ServiceBusMessage("x"))
        await pair.until("pinged")  # the first comes with the redirection, not after an interval
        found = [await namespaces.bodies(namespaces.secondary, pair.backlog_path(index)) for index in range(3)]
        assert sorted(found) == [[], [], ["x"]]
        assert pair.primary.counters["failed-over"] == 1
        assert await namespaces.bodies(namespaces.primary, path) == []
        faults.clear()


@pytest.mark.contract("A12", "B3", "D3")
async def test_inside_the_interval_the_caller_hears_the_primarys_error_then_the_backlog_takes_over(
    namespaces: Namespaces,
) -> None:
    path = namespaces.queue()
    faults = namespaces.refuse(path)
    async with namespaces.paired(1, failover_interval_s=1.0) as pair:
        sender = pair.primary.create_message_sender(path)
        with pytest.raises(ServiceBusQuotaExceededError) as refused:
            await sender.send_messages(ServiceBusMessage("first"))
        assert isinstance(refused.value, MessagingError)
        assert not refused.value.is_transient
        assert isinstance(refused.value.__cause__, ServiceBusQuotaExceededError)
        assert pair.primary.counters["suspected"] == 1
        await pair.until("failed-over")
        await sender.send_messages(ServiceBusMessage("second"))
        assert await namespaces.bodies(namespaces.secondary, pair.backlog_path(0)) == ["second"]
        faults.clear()


@pytest.mark.contract("D4")
async def test_a_success_inside_the_interval_means_no_failover(namespaces: Namespaces) -> None:
    path = namespaces.queue()
    faults = namespaces.refuse(path)
    async with namespaces.paired(1, failover_interval_s=60.0) as pair:
        sender = pair.primary.create_message_sender(path)
        with pytest.raises(ServiceBusQuotaExceededError):
            await sender.send_messages(ServiceBusMessage("x"))
        faults.clear()
        await sender.send_messages(ServiceBusMessage("y"))
        assert (pair.primary.counters["recovered"], pair.primary.counters["failed-over"]) == (1, 0)
        watch = pair.primary.pairing.watch(path)  # type: ignore[union-attr]
        assert watch.machine.fail_over_at_s is None


async def test_a_call_that_is_held_sees_no_error_and_is_sent_when_one_side_takes_it(namespaces: Namespaces) -> None:
    path = namespaces.queue()
    faults = namespaces.refuse(path)
    async with namespaces.paired(1, failover_interval_s=1.0, pending="hold") as pair:
        sender = pair.primary.create_message_sender(path)
        await sender.send_messages(ServiceBusMessage("held"))
        assert await namespaces.bodies(namespaces.secondary, pair.backlog_path(0)) == ["held"]
        faults.clear()


@pytest.mark.contract("D5", "B11", "I10")
async def test_a_primary_that_is_lost_fails_over_after_the_librarys_own_retries(namespaces: Namespaces) -> None:
    attempts = 0

    def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal attempts
        attempts += 1
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        lost = f"Endpoint=sb://localhost:{port};SharedAccessKeyName=k;SharedAccessKey=k;UseDevelopmentEmulator=true;"
        primary = MessagingFactory.from_connection_string(lost, operation_timeout=10)
        async with primary, namespaces.secondary_factory() as secondary, namespaces.manager() as manager:
            sender = primary.create_message_sender("orders")
            with pytest.raises((ServiceBusConnectionError, OperationTimeoutError)) as seen:  # what one sees without
                await sender.send_messages(ServiceBusMessage("lost"))
            assert isinstance(seen.value, MessagingError)
            assert seen.value.is_transient
            assert attempts == 1 + RETRIES_MAX
            options = SendAvailabilityPairedNamespaceOptions(manager, secondary, 1, datetime.timedelta(0))
            await primary.pair_namespace(options)
            await sender.send_messages(ServiceBusMessage("safe"))
            assert attempts >= 2 * (1 + RETRIES_MAX)
            backlog = f"localhost-{port}/x-servicebus-transfer/0"
            assert await namespaces.bodies(namespaces.secondary, backlog) == ["safe"]


@pytest.mark.contract("D6")
async def test_a_misconfigured_client_does_not_fail_over(namespaces: Namespaces) -> None:
    path = namespaces.queue()
    wrong = namespaces.primary.connection_string.replace("SAS_KEY_VALUE", "d3Jvbmc=")
    primary = MessagingFactory.from_connection_string(wrong, operation_timeout=10)
    async with primary, namespaces.secondary_factory() as secondary, namespaces.manager() as manager:
        await primary.pair_namespace(
            SendAvailabilityPairedNamespaceOptions(manager, secondary, 1, datetime.timedelta(0))
        )
        with pytest.raises((ServiceBusAuthenticationError, ServiceBusAuthorizationError)) as refused:
            await primary.create_message_sender(path).send_messages(ServiceBusMessage("x"))
        assert isinstance(refused.value, MessagingError)
        assert primary.counters["failed-over"] == primary.counters["diverted"] == 0


@pytest.mark.contract("D7", "I6")
async def test_server_busy_is_waited_out_for_ten_seconds_and_never_fails_over(namespaces: Namespaces) -> None:
    path = namespaces.queue()
    faults = namespaces.refuse(path, "server-busy")
    async with namespaces.paired(1, operation_timeout=30.0) as pair:
        sender = pair.primary.create_message_sender(path)
        loop = asyncio.get_running_loop()
        with pytest.raises(ServiceBusServerBusyError):
            await sender.send_messages(ServiceBusMessage("no time to wait"), timeout=5.0)
        begun_s = loop.time()
        sending = asyncio.create_task(sender.send_messages(ServiceBusMessage("x")))
        await asyncio.sleep(0.5)
        faults.clear()
        await sending
        assert loop.time() - begun_s >= 10.0
        assert pair.primary.counters["suspected"] == pair.primary.counters["failed-over"] == 0
    assert await namespaces.bodies(namespaces.primary, path) == ["x"]


@pytest.mark.contract("D8", "C15", "E6")
async def test_one_entity_failing_says_nothing_of_another_and_two_that_fail_share_the_backlog(
    namespaces: Namespaces,
) -> None:
    one, two, well = namespaces.queue(), namespaces.topic("all"), namespaces.queue()
    faults = namespaces.refuse(one)
    namespaces.refuse(two)
    async with namespaces.paired(1) as pair:
        for path in (one, two, well):
            await pair.primary.create_message_sender(path).send_messages(ServiceBusMessage(path))
        assert await namespaces.bodies(namespaces.secondary, pair.backlog_path(0)) == [one, two]
        assert await namespaces.bodies(namespaces.primary, well) == [well]
        faults.clear()


@pytest.mark.contract("D13")
async def test_later_sends_of_any_sender_of_the_factory_go_to_the_backlog(namespaces: Namespaces) -> None:
    path = namespaces.queue()
    faults = namespaces.refuse(path)
    async with namespaces.paired(1, ping_s=1800) as pair:
        other = pair.primary.create_queue_client(path)
        await pair.primary.create_message_sender(path).send_messages(ServiceBusMessage("first"))
        await pair.until("pinged")
        faults.clear()  # the primary would take it, but nobody knows before the next ping
        await other.send_messages(ServiceBusMessage("second"))
        bodies = await namespaces.bodies(namespaces.secondary, pair.backlog_path(0))
        assert bodies == ["first", "second"]


@pytest.mark.contract("D15", "F4", "F6")
async def test_a_ping_that_gets_through_sends_everybody_back_at_once_and_pings_stop(namespaces: Namespaces) -> None:
    path = namespaces.queue()
    faults = namespaces.refuse(path)
    async with namespaces.paired(1, ping_s=1.0) as pair:
        loop, times_s = asyncio.get_running_loop(), list[float]()
        pair.primary.on_event(lambda event: times_s.append(loop.time()) if event.name == "pinged" else None)
        senders = [pair.primary.create_message_sender(path) for _ in range(3)]
        await senders[0].send_messages(ServiceBusMessage("away"))
        await pair.until("pinged", 3)
        assert all(later - earlier >= 0.99 for earlier, later in itertools.pairwise(times_s))  # the interval
        faults.clear()
        await pair.until("recovered")
        pings = pair.primary.counters["pinged"]
        for sender in senders:
            await sender.send_messages(ServiceBusMessage("back"))
        await asyncio.sleep(1.5)
        assert pair.primary.counters["pinged"] == pings
        assert await namespaces.bodies(namespaces.primary, path) == ["back"] * 3
        assert await namespaces.bodies(namespaces.secondary, pair.backlog_path(0)) == ["away"]


@pytest.mark.contract("D11", "D12")
async def test_a_backlog_queue_that_fails_leaves_the_rotation_for_all_senders(namespaces: Namespaces) -> None:
    path = namespaces.queue()
    faults = namespaces.refuse(path)
    async with namespaces.paired(2) as pair:
        broken = namespaces.refuse(pair.backlog_path(0), broker=namespaces.secondary)
        senders = [pair.primary.create_message_sender(path) for _ in range(8)]
        for number, sender in enumerate(senders):
            await sender.send_messages(ServiceBusMessage(str(number)))
        assert pair.primary.counters["backlog-queue-removed"] == 1
        assert len(await namespaces.bodies(namespaces.secondary, pair.backlog_path(1))) == 8
        broken.clear()
        faults.clear()


@pytest.mark.contract("A10")
async def test_with_no_backlog_queue_left_the_caller_hears_each_and_its_cause(namespaces: Namespaces) -> None:
    path = namespaces.queue()
    faults = namespaces.refuse(path)
    async with namespaces.paired(1) as pair:
        broken = namespaces.refuse(pair.backlog_path(0), broker=namespaces.secondary)
        sender = pair.primary.create_message_sender(path)
        with pytest.raises(BacklogUnavailableError, match=r"nothing was sent\..*x-servicebus-transfer/0: "):
            await sender.send_messages(ServiceBusMessage("x"))
        assert await namespaces.bodies(namespaces.primary, path) == []
        broken.clear()
        faults.clear()


async def test_a_send_whose_answer_was_lost_is_not_said_to_be_unsent(namespaces: Namespaces) -> None:
    path = namespaces.queue()
    faults = namespaces.refuse(path)
    async with namespaces.paired(1) as pair:
        broken = namespaces.refuse(pair.backlog_path(0), "timeout-refused", namespaces.secondary)
        sender = pair.primary.create_message_sender(path)
        with pytest.raises(BacklogUnavailableError, match="whether it was sent is not known") as caught:
            await sender.send_messages(ServiceBusMessage("x"))
        assert caught.value.is_outcome_unknown
        broken.clear()
        faults.clear()


async def test_a_ping_refused_for_good_stops_the_piling_up_until_the_owner_says_otherwise(
    namespaces: Namespaces,
) -> None:
    async with namespaces.paired(1, ping_s=1.0) as pair:
        sender = pair.primary.create_message_sender("not-there-yet")
        await sender.send_messages(ServiceBusMessage("first"))
        await pair.until("entity-failed")
        with pytest.raises(EntityFailed, match="waiting does not bring it back"):
            await sender.send_messages(ServiceBusMessage("second"))
        assert await namespaces.bodies(namespaces.secondary, pair.backlog_path(0)) == ["first"]
        with namespaces.administration(namespaces.primary) as client:
            client.create_queue("not-there-yet")
        pair.options.mark_path_healthy("not-there-yet")
        await sender.send_messages(ServiceBusMessage("third"))
        assert await namespaces.bodies(namespaces.primary, "not-there-yet") == ["third"]


@pytest.mark.contract("F1", "F2", "F5")
async def test_a_ping_is_answered_counted_and_never_delivered_not_even_by_a_topic(namespaces: Namespaces) -> None:
    queue, topic = namespaces.queue(requires_session=True), namespaces.topic("all")
    ping = make_ping()
    assert ping.properties is not None and ping.header is not None
    assert (ping.body, ping.properties.content_type) == (None, "application/vnd.ms-servicebus-ping")
    assert ping.header.time_to_live == 1_000
    async with namespaces.primary_factory() as primary:
        for path in (queue, topic):
            await primary.create_message_sender(path).send_messages(make_ping())
    for path in (queue, f"{topic}/Subscriptions/all"):
        assert await namespaces.peek(namespaces.primary, path) == []
    from spillway.client.control import ControlClient

    rows = ControlClient(namespaces.primary.connection_string).ask("GET", "ledger")["rows"]
    counted = {row["entity"]: row["operations"] for row in rows if row["kind"] == "ping"}
    assert (counted[queue], counted[topic]) == (1, 1)


@pytest.mark.contract("E8")
async def test_a_message_too_large_with_its_aliases_is_the_sdks_size_error_and_nothing_is_stuck(
    namespaces: Namespaces,
) -> None:
    path = namespaces.queue()
    async with namespaces.paired(1) as pair:
        sender = pair.primary.create_message_sender(path)
        large = ServiceBusMessage(b"x" * 261_970, session_id="s" * 100)
        await sender.send_messages(large)  # fits as it is
        faults = namespaces.refuse(path)
        with pytest.raises(MessageSizeExceededError, match="^message: .* larger than [0-9]+ bytes.*. Nothing was sent"):
            await sender.send_messages(large)
        await sender.send_messages(ServiceBusMessage(b"x" * 261_000, session_id="s" * 100))
        (kept,) = await namespaces.peek(namespaces.secondary, pair.backlog_path(0))
        assert len(kept.body) == 261_000
        faults.clear()


async def test_a_batch_that_outgrows_the_limit_with_its_aliases_is_split(namespaces: Namespaces) -> None:
    path = namespaces.queue()
    faults = namespaces.refuse(path)
    async with namespaces.paired(1) as pair:
        sender = pair.primary.create_message_sender(path)
        batch = await sender.create_message_batch()
        count = 0
        while True:
            try:
                batch.add_message(ServiceBusMessage(b"x" * 1_000, session_id="s"))
                count += 1
            except MessageSizeExceededError:
                break
        await sender.send_messages(batch)
        assert len(await namespaces.peek(namespaces.secondary, pair.backlog_path(0))) == count
        faults.clear()


async def test_a_schedule_that_went_to_the_backlog_has_a_token_that_cancel_understands(namespaces: Namespaces) -> None:
    path = namespaces.queue()
    due = datetime.datetime.now(UTC) + datetime.timedelta(hours=1)
    faults = namespaces.refuse(path)
    async with namespaces.paired(1) as pair:
        sender = pair.primary.create_message_sender(path)
        numbers = await sender.schedule_messages([ServiceBusMessage("a"), ServiceBusMessage("b")], due)
        assert all(isinstance(number, DivertedSequenceNumber) and number < 0 for number in numbers)
        assert len(set(numbers)) == 2
        with pytest.raises(SchedulingError, match="is in the backlog and cannot be cancelled"):
            await sender.cancel_scheduled_messages(numbers)
        faults.clear()
        await pair.until("recovered")
        real = await sender.schedule_messages(ServiceBusMessage("c"), due)
        await sender.cancel_scheduled_messages(real)
        assert await namespaces.peek(namespaces.primary, path) == []


async def test_a_message_without_an_id_gets_one_before_the_first_attempt(namespaces: Namespaces) -> None:
    path = namespaces.queue()
    faults = namespaces.refuse(path)
    async with namespaces.paired(1) as pair:
        message = ServiceBusMessage("x")
        await pair.primary.create_message_sender(path).send_messages(message)
        (kept,) = await namespaces.peek(namespaces.secondary, pair.backlog_path(0))
        assert kept.message_id == message.message_id is not None
        faults.clear()
