"""What pairing gives and what it does not, as docs/pairing.md promises it."""

import asyncio
import datetime
import logging
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError, ServiceBusQuotaExceededError

from spillway.client.control import ControlClient
from spillway.client.faults import Fault, RemoteFaults
from spillway.paired import SendAvailabilityPairedNamespaceOptions
from spillway.paired.syphoning import make_syphon
from tests.paired.namespaces import Namespaces, Pair

AT_ONCE = datetime.timedelta(0)


@asynccontextmanager
async def syphoning(pair: Pair) -> AsyncIterator[None]:
    assert pair.primary.pairing is not None
    running = make_syphon(pair.primary.pairing)
    running.start()
    try:
        yield
    finally:
        await running.close()


@pytest.mark.contract("A16")
async def test_until_pairing_has_returned_nobody_is_covered_and_then_everybody_is(namespaces: Namespaces) -> None:
    path = namespaces.queue()
    away = namespaces.refuse(path)
    administration = RemoteFaults(namespaces.secondary.connection_string)
    primary, secondary = (
        namespaces.primary_factory(namespace_name=namespaces.unique_name()),
        namespaces.secondary_factory(),
    )
    async with primary, secondary, namespaces.manager() as manager:
        sender = primary.create_message_sender(path)
        with administration.planted(Fault("slow", "*", ["administration"], delay_ms=1_000)):
            pairing = asyncio.create_task(
                primary.pair_namespace(SendAvailabilityPairedNamespaceOptions(manager, secondary, 1, AT_ONCE))
            )
            with pytest.raises(ServiceBusQuotaExceededError):
                await sender.send_messages(ServiceBusMessage("too early"))
            assert not pairing.done()
            await pairing
        await sender.send_messages(ServiceBusMessage("in time"))
        backlog = f"{primary.namespace_name}/x-servicebus-transfer/0"
        assert await namespaces.bodies(namespaces.secondary, backlog) == ["in time"]
    away.clear()


@pytest.mark.contract("B4")
async def test_during_an_outage_messages_can_be_sent_and_not_received(namespaces: Namespaces) -> None:
    path = namespaces.queue()
    async with namespaces.paired(1, operation_timeout=5.0) as pair:
        client = pair.primary.create_queue_client(path)
        await client.send_messages(ServiceBusMessage("before"))
        await client.peek_messages(1)  # the receiver is connected
        namespaces.primary.pause()
        try:
            await client.send_messages(ServiceBusMessage("during"))
            assert await namespaces.bodies(namespaces.secondary, pair.backlog_path(0)) == ["during"]
            try:
                got = await client.receive_messages(1, max_wait_time=1)
            except ServiceBusError:
                got = []
            assert got == []
        finally:
            namespaces.primary.resume()


@pytest.mark.contract("B5")
async def test_receivers_are_those_of_the_primary_and_see_nothing_of_the_backlog(namespaces: Namespaces) -> None:
    path = namespaces.queue()
    away = namespaces.refuse(path)
    async with namespaces.paired(1) as pair:
        client = pair.primary.create_queue_client(path)
        await client.send_messages(ServiceBusMessage("x"))
        away.clear()
        receiver = pair.primary.create_message_receiver(path)
        assert receiver.fully_qualified_namespace in namespaces.primary.connection_string
        assert await receiver.peek_messages(1) == []
        assert await receiver.receive_messages(1, max_wait_time=0.2) == []
        async with syphoning(pair):
            (message,) = await client.receive_messages(1, max_wait_time=20)
        assert str(message) == "x"


@pytest.mark.contract("B6", "B9")
async def test_what_was_sent_later_may_arrive_earlier(namespaces: Namespaces) -> None:
    path = namespaces.queue()
    away = namespaces.refuse(path)
    async with namespaces.paired(1) as pair:
        sender = pair.primary.create_message_sender(path)
        await sender.send_messages(ServiceBusMessage("sent first"))
        away.clear()
        await pair.until("recovered")
        await sender.send_messages(ServiceBusMessage("sent second"))
        async with syphoning(pair):
            await pair.until("syphoned")
    assert await namespaces.bodies(namespaces.primary, path) == ["sent second", "sent first"]


@pytest.mark.contract("B7", "B8")
async def test_a_session_keeps_its_messages_together_but_not_in_order_and_its_state_is_the_primarys(
    namespaces: Namespaces,
) -> None:
    path = namespaces.queue(requires_session=True)
    away = namespaces.refuse(path)
    async with namespaces.paired(1) as pair:
        sender = pair.primary.create_message_sender(path)
        await sender.send_messages(ServiceBusMessage("sent first", session_id="s"))
        await sender.send_messages(ServiceBusMessage("another session's", session_id="t"))
        async with pair.primary.create_message_receiver(path, session_id="s") as receiver:
            await receiver.session.set_state("half done")
        away.clear()
        await pair.until("recovered")
        await sender.send_messages(ServiceBusMessage("sent second", session_id="s"))
        async with syphoning(pair):
            await pair.until("syphoned", 2)
        async with pair.primary.create_message_receiver(path, session_id="s") as receiver:
            assert await receiver.session.get_state() == b"half done"
            got = await receiver.receive_messages(3, max_wait_time=5)
            while len(got) < 2:
                got += await receiver.receive_messages(3, max_wait_time=5)
        assert [str(each) for each in got] == ["sent second", "sent first"]
        with namespaces.administration(namespaces.secondary) as client:
            assert client.get_queue(pair.backlog_path(0)).requires_session is False  # there is no state there


@pytest.mark.contract("F3")
async def test_every_factory_pings_every_entity_that_is_away_by_itself_however_many_senders_it_has(
    namespaces: Namespaces,
) -> None:
    paths = [namespaces.queue(), namespaces.topic("all"), namespaces.queue()]
    away, well = paths[:2], paths[2]
    faults = [namespaces.refuse(path) for path in away][-1]
    async with namespaces.paired(1) as one, namespaces.paired(1) as other:
        senders = [
            pair.primary.create_message_sender(path) for pair in (one, other) for path in paths for _ in range(3)
        ]
        await asyncio.gather(*(sender.send_messages(ServiceBusMessage("x")) for sender in senders))
        faults.clear()
        await asyncio.gather(*(pair.until("recovered", 2) for pair in (one, other)))
    rows = ControlClient(namespaces.primary.connection_string).ask("GET", "ledger")["rows"]
    answered = {row["entity"]: row["operations"] for row in rows if row["kind"] == "ping" and row["entity"] in paths}
    assert answered == dict.fromkeys(away, 2)  # one of each factory; none to `well`
    assert well not in answered


@pytest.mark.parametrize(("requires_duplicate_detection", "copies"), [(True, 1), (False, 2)])
async def test_a_send_whose_answer_was_lost_and_that_was_diverted_is_one_message_where_duplicates_are_detected(
    namespaces: Namespaces, requires_duplicate_detection: bool, copies: int
) -> None:
    path = namespaces.queue(requires_duplicate_detection=requires_duplicate_detection)
    faults = RemoteFaults(namespaces.primary.connection_string)
    async with namespaces.paired(1, operation_timeout=5.0) as pair:
        sender = pair.primary.create_message_sender(path)
        await sender.create_message_batch()  # it is connected
        # Stored at once; the answer comes when nobody waits for it any more.
        with faults.planted(Fault("slow", path, ["send"], delay_ms=10_000, count=1)):
            await sender.send_messages(ServiceBusMessage("x"))
        assert pair.primary.counters["diverted"] == 1
        async with syphoning(pair):
            await pair.until("syphoned")
    assert await namespaces.bodies(namespaces.primary, path) == ["x"] * copies


async def test_a_program_that_is_started_again_during_an_outage_fails_over_again_and_the_backlog_is_still_there(
    namespaces: Namespaces,
) -> None:
    path, name = namespaces.queue(), namespaces.unique_name()
    away = namespaces.refuse(path)
    for life in ("first life", "second life"):
        primary, secondary = namespaces.primary_factory(namespace_name=name), namespaces.secondary_factory()
        async with primary, secondary, namespaces.manager() as manager:
            await primary.pair_namespace(SendAvailabilityPairedNamespaceOptions(manager, secondary, 1, AT_ONCE))
            await primary.create_message_sender(path).send_messages(ServiceBusMessage(life))
            assert primary.counters["failed-over"] == 1
    assert await namespaces.bodies(namespaces.secondary, f"{name}/x-servicebus-transfer/0") == [
        "first life",
        "second life",
    ]
    away.clear()


HELD = """
import asyncio, datetime, sys
from azure.servicebus import ServiceBusMessage
from spillway.paired import MessagingFactory, NamespaceManager, SendAvailabilityPairedNamespaceOptions

async def main(primary, secondary, ca_file, path, name):
    first = MessagingFactory.from_connection_string(primary, namespace_name=name)
    second = MessagingFactory.from_connection_string(secondary)
    manager = NamespaceManager.from_connection_string(secondary, ca_file=ca_file)
    options = SendAvailabilityPairedNamespaceOptions(manager, second, 1, pending="hold")
    await first.pair_namespace(options)
    first.on_event(lambda event: print(event.name, flush=True))
    await first.create_message_sender(path).send_messages(ServiceBusMessage("held"))
    print("sent", flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_what_is_held_in_memory_goes_with_its_process_and_nobody_was_told_that_it_is_safe(
    namespaces: Namespaces,
) -> None:
    path, name = namespaces.queue(), namespaces.unique_name()
    away = namespaces.refuse(path)
    command = [sys.executable, "-c", HELD, namespaces.primary.connection_string]
    command += [namespaces.secondary.connection_string, str(namespaces.secondary.ca_file), path, name]
    program = subprocess.Popen(  # noqa: ASYNC220 - it only starts here
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": source()}
    )
    assert program.stdout is not None
    said = await asyncio.to_thread(program.stdout.readline)
    program.kill()
    rest = await asyncio.to_thread(program.stdout.read)
    program.wait()
    program.stdout.close()
    assert said == "suspected\n"  # inside the interval: the call is held
    assert "sent" not in rest
    away.clear()
    assert await namespaces.bodies(namespaces.primary, path) == []
    assert await namespaces.bodies(namespaces.secondary, f"{name}/x-servicebus-transfer/0") == []


def source() -> str:
    import spillway

    return str(Path(spillway.__file__).parent.parent)


async def test_a_backlog_queue_that_takes_messages_again_is_back_in_rotation(
    namespaces: Namespaces, caplog: pytest.LogCaptureFixture
) -> None:
    path = namespaces.queue()
    away = namespaces.refuse(path)
    caplog.set_level(logging.INFO, "spillway.paired")
    async with namespaces.paired(2, backlog_cool_down=AT_ONCE) as pair:
        broken = namespaces.refuse(pair.backlog_path(0), broker=namespaces.secondary)
        for _ in range(8):
            await pair.primary.create_message_sender(path).send_messages(ServiceBusMessage("x"))
        assert pair.primary.counters["backlog-queue-removed"] >= 1
        assert pair.primary.counters["backlog-queue-readmitted"] == 0
        broken.clear()
        while pair.primary.counters["backlog-queue-readmitted"] == 0:
            await pair.primary.create_message_sender(path).send_messages(ServiceBusMessage("y"))
        assert "y" in await namespaces.bodies(namespaces.secondary, pair.backlog_path(0))
        away.clear()
    lines = [record.getMessage() for record in caplog.records if record.name == "spillway.paired"]
    assert any(line.startswith(f"event=failed-over path={path} before=healthy error=") for line in lines)
    assert f"event=backlog-queue-readmitted path={pair.backlog_path(0)}" in lines


async def test_a_callback_that_fails_harms_nobody(namespaces: Namespaces, caplog: pytest.LogCaptureFixture) -> None:
    path = namespaces.queue()
    away = namespaces.refuse(path)
    async with namespaces.paired(1) as pair:
        pair.primary.on_event(lambda event: 1 / 0)  # type: ignore[arg-type]
        await pair.primary.create_message_sender(path).send_messages(ServiceBusMessage("x"))
        assert pair.primary.counters["diverted"] == 1
        away.clear()
    assert "a callback for events failed" in caplog.text
