"""The ledger through the real SDKs: what an application does is what is counted, calls that got nothing included."""

import uuid
from datetime import UTC, datetime, timedelta

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode

from spillway.broker.commands import ReadLedger
from spillway.broker.effects import LedgerPage
from spillway.client import connect
from spillway.model.ledger import KIND_NAMES, UNIT_BYTES, Totals
from tests.wire.live import LiveBroker
from tests.wire.sdk import JsClient, PythonSdk, known, take, take_one

FOR_EVER = 1 << 40
BEFORE_ALL = (-1, "", -1)
POLL_S = 0.2


def counted(live: LiveBroker, entity: str) -> dict[str, int]:
    """Operations of this entity by kind, up to now."""
    return {kind: numbers[0] for kind, numbers in totals(live, entity).items()}


def totals(live: LiveBroker, entity: str) -> dict[str, tuple[int, int, int]]:
    found = Totals()
    page = live.ask(lambda number: ReadLedger(number, 0, FOR_EVER, BEFORE_ALL, 5_000))
    assert isinstance(page, LedgerPage)
    assert page.after is None
    for row in page.rows:
        found.add(row)
    return {
        KIND_NAMES[kind]: (count.operations, count.units, count.size_bytes)
        for (name, kind), count in found.counts.items()
        if name == entity
    }


def test_an_application_is_counted_as_it_works(sdk: PythonSdk, live: LiveBroker, queue: str) -> None:
    sender = sdk.sender(queue)
    sender.send_messages([ServiceBusMessage(f"{number}", message_id=f"{number}") for number in range(5)])
    sender.send_messages(ServiceBusMessage(b"x" * 200_000, message_id="large"))
    numbers = sender.schedule_messages([ServiceBusMessage("later")] * 2, datetime.now(UTC) + timedelta(days=30))
    sender.cancel_scheduled_messages(numbers)
    receiver = sdk.receiver(queue)
    first, second, third, fourth, *others = take(receiver, 6)
    receiver.renew_message_lock(first)
    receiver.complete_message(first)
    receiver.abandon_message(second)
    receiver.defer_message(third)
    receiver.dead_letter_message(fourth)
    (deferred,) = receiver.receive_deferred_messages([known(third.sequence_number)])
    receiver.complete_message(deferred)
    assert len(receiver.peek_messages(10, sequence_number=1)) == 3  # the abandoned one and what is locked
    found = counted(live, queue)
    assert {kind: found[kind] for kind in ("send", "schedule", "cancel", "settle", "renew", "peek")} == {
        "send": 6,
        "schedule": 2,
        "cancel": 2,
        "settle": 5,
        "renew": 1,
        "peek": 3,
    }
    assert found["receive"] in (7, 8)  # the abandoned one goes out again if the receiver still has credit
    operations, units, size_bytes = totals(live, queue)["send"]
    assert units == operations + 3 and size_bytes > 200_000
    assert len(others) == 2


def test_every_call_of_python_that_got_nothing_is_an_empty_receive(
    sdk: PythonSdk, live: LiveBroker, queue: str
) -> None:
    receiver = sdk.receiver(queue)
    for _ in range(3):
        assert receiver.receive_messages(max_message_count=5, max_wait_time=POLL_S) == []
    receiver.close()
    live.wait(lambda: not live.server.core.directory.queues[queue].lane.receivers.links)
    assert counted(live, queue) == {"empty_receive": 3}


def test_a_call_of_python_that_got_something_is_not_and_the_next_one_is(
    sdk: PythonSdk, live: LiveBroker, queue: str
) -> None:
    live.send(queue, "one")
    receiver = sdk.receiver(queue)
    receiver.complete_message(take_one(receiver))
    for _ in range(2):
        assert receiver.receive_messages(max_message_count=1, max_wait_time=POLL_S) == []
    receiver.close()
    live.wait(lambda: not live.server.core.directory.queues[queue].lane.receivers.links)
    assert counted(live, queue) == {"send": 1, "receive": 1, "settle": 1, "empty_receive": 2}


def test_every_call_of_javascript_that_got_nothing_is_an_empty_receive(
    js: JsClient, live: LiveBroker, queue: str
) -> None:
    for _ in range(3):
        assert js("receive", queue=queue, count=5, waitMs=200) == []
    assert counted(live, queue) == {"empty_receive": 3}
    live.send(queue, "one")
    (message,) = js("receive", queue=queue, count=5)
    js("complete", lockToken=message["lockToken"])
    assert counted(live, queue) == {"send": 1, "receive": 1, "settle": 1, "empty_receive": 3}


def test_every_call_of_our_own_client_that_got_nothing_is_an_empty_receive(live: LiveBroker, queue: str) -> None:
    async def poll() -> None:
        async with await connect(live.connection_string) as connection:
            receiver = await connection.receiver(queue)
            for _ in range(3):
                assert await receiver.receive(max_count=5, max_wait=0.05) == []

    live.run(poll())
    assert counted(live, queue) == {"empty_receive": 3}


def test_receiving_and_deleting_is_received_and_nothing_is_settled(
    sdk: PythonSdk, live: LiveBroker, queue: str
) -> None:
    live.send(queue, "one", "two")
    receiver = sdk.receiver(queue, receive_mode=ServiceBusReceiveMode.RECEIVE_AND_DELETE)
    assert len(take(receiver, 2)) == 2
    assert counted(live, queue) == {"send": 2, "receive": 2}


@pytest.mark.contract("F5")
def test_a_ping_is_charged_by_its_bytes_and_nobody_receives_it(sdk: PythonSdk, live: LiveBroker, queue: str) -> None:
    ping = ServiceBusMessage(
        b"", content_type="application/vnd.ms-servicebus-ping", time_to_live=timedelta(seconds=1), message_id="p"
    )
    sdk.sender(queue).send_messages(ping)
    found = totals(live, queue)
    assert found.keys() == {"ping"}
    operations, units, size_bytes = found["ping"]
    assert (operations, units) == (1, 1) and size_bytes > 0


def test_sessions_are_counted(sdk: PythonSdk, live: LiveBroker) -> None:
    talks = live.queue(requires_session=True)
    session_id = str(uuid.uuid4())
    receiver = sdk.receiver(talks, session_id=session_id)
    receiver.session.set_state(b"x" * (UNIT_BYTES + 1))
    assert receiver.session.get_state() == b"x" * (UNIT_BYTES + 1)
    receiver.session.renew_lock()
    found = totals(live, talks)
    assert found["session"] == (3, 5, 2 * (UNIT_BYTES + 1))
    assert found["renew"] == (1, 1, 0)


def test_rules_over_management_are_counted_at_the_subscription(js: JsClient, live: LiveBroker) -> None:
    topic = live.topic()
    path = live.subscription(topic, "s")
    js("createRule", topic=topic, subscription="s", name="mine", filter={"sqlExpression": "1 = 1"})
    js("deleteRule", topic=topic, subscription="s", name="mine")
    assert counted(live, path) == {"management": 2}
