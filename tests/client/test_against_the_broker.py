"""The client against a real broker in a process of its own: what it promises is what is stored."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import pytest

from spillway.amqp.types import Int, Symbol, Timestamp, UInt, ULong
from spillway.client import (
    ABANDONED,
    BATCH_FORMAT,
    COMPLETED,
    DEAD_LETTERED,
    DEFERRED,
    RECEIVE_AND_DELETE,
    AmqpValue,
    Connection,
    ConnectionLost,
    EntityNotFound,
    MessageLockLost,
    MessageNotFound,
    MessageTooLarge,
    OutgoingMessage,
    ReceivedMessage,
    Unauthorized,
    connect,
    encode_batch_raw,
)
from tests.tools.broker_process import BrokerProcess

WAIT_S = 20.0
_numbers = count()


@pytest.fixture
def queue() -> str:
    """A queue that no other test uses."""
    return f"q{next(_numbers)}"


@pytest.fixture
async def live(broker: BrokerProcess) -> AsyncIterator[Connection]:
    async with await connect(broker.connection_string, operation_timeout=WAIT_S) as connection:
        yield connection


@pytest.mark.contract("G1", "H8")
async def test_a_message_is_sent_received_and_completed(live: Connection, queue: str) -> None:
    sender = await live.sender(queue)
    properties = {"int": Int(1), "long": 2, "uint": UInt(3), "ulong": ULong(4), "text": "é", "when": Timestamp(5)}
    identity = uuid.uuid4()
    message = OutgoingMessage(
        b"body",
        message_id="m1",
        subject="subject",
        correlation_id="c",
        content_type="text/plain",
        time_to_live_ms=60_000,
        application_properties={**properties, "id": identity},
        annotations={"x-mine": "kept"},
    )
    await sender.send(message)
    receiver = await live.receiver(queue)
    (received,) = await receiver.receive(max_wait=WAIT_S)
    assert (received.body, received.message_id, received.properties.subject) == (b"body", "m1", "subject")
    assert received.application_properties == {**properties, "id": identity}
    for name, value in properties.items():
        assert type(received.application_properties[name]) is type(value), name
    assert received.annotations[Symbol("x-mine")] == "kept"
    assert (received.delivery_count, received.header.ttl_ms) == (0, 60_000)
    assert received.sequence_number == 1
    assert received.locked_until_ms is not None
    assert abs((received.enqueued_time_ms or 0) - time.time() * 1000) < 60_000
    await receiver.complete(received)
    assert await live.management(queue).peek() == []


async def test_an_amqp_value_comes_back_as_it_was(live: Connection, queue: str) -> None:
    value = {"list": [1, Int(2), None, True], "map": {"a": b"b"}}
    await (await live.sender(queue)).send(OutgoingMessage(AmqpValue(value)))
    receiver = await live.receiver(queue, mode=RECEIVE_AND_DELETE)
    (received,) = await receiver.receive(max_wait=WAIT_S)
    assert (received.value, received.body, received.lock_token) == (value, b"", None)
    assert await receiver.receive(max_wait=0) == []


@pytest.mark.contract("G5", "G6")
async def test_thousands_are_pipelined_on_one_link_and_arrive_in_order(live: Connection, queue: str) -> None:
    sender = await live.sender(queue, window=500)
    outcomes = []
    for number in range(3000):
        await sender.ready()
        outcomes.append(sender.post(OutgoingMessage(f"{number}")))
    await asyncio.gather(*outcomes)
    receiver = await live.receiver(queue, credit=500)
    bodies: list[int] = []
    settled: list[asyncio.Future[None]] = []
    while len(bodies) < 3000:
        messages = await receiver.receive(max_count=200, max_wait=WAIT_S)
        assert messages
        bodies += [int(message.body) for message in messages]
        settled += [receiver.complete(message) for message in messages]
    await asyncio.gather(*settled)
    assert bodies == list(range(3000))
    assert await live.management(queue).peek() == []


async def test_a_batch_is_stored_as_its_messages(live: Connection, queue: str) -> None:
    sender = await live.sender(queue)
    await sender.send_batch([OutgoingMessage(f"{number}", message_id=f"m{number}") for number in range(100)])
    await sender.send_raw(encode_batch_raw([OutgoingMessage(b"raw").encode()]), BATCH_FORMAT)
    messages = await live.management(queue).peek(0, 200)
    assert [message.body for message in messages] == [f"{number}".encode() for number in range(100)] + [b"raw"]
    assert [message.sequence_number for message in messages] == list(range(1, 102))


async def test_every_settlement_over_the_link_does_what_it_says(live: Connection, queue: str) -> None:
    sender = await live.sender(queue)
    await sender.send_batch([OutgoingMessage(name) for name in ("abandon", "defer", "dead", "release")])
    receiver = await live.receiver(queue)
    abandon, defer, dead, release = await receiver.receive(max_count=4, max_wait=WAIT_S)
    await receiver.defer(defer, {"deferred": "yes"})
    await receiver.dead_letter(dead, "reason", "description", {"note": 7})
    await receiver.abandon(abandon, {"tried": Int(1)})
    receiver.release(release)
    (again,) = await receiver.receive(max_wait=WAIT_S)
    assert (again.body, again.delivery_count, again.application_properties) == (b"abandon", 1, {"tried": 1})
    (freed,) = await receiver.receive(max_wait=WAIT_S)
    assert (freed.body, freed.delivery_count) == (b"release", 0)
    dead_letters = await live.receiver(f"{queue}/$DeadLetterQueue")
    (buried,) = await dead_letters.receive(max_wait=WAIT_S)
    assert (buried.body, buried.dead_letter_reason, buried.dead_letter_description) == (
        b"dead",
        "reason",
        "description",
    )
    assert buried.application_properties["note"] == 7
    assert buried.dead_letter_source == queue
    await dead_letters.complete(buried)
    (deferred,) = await live.management(queue).receive_deferred([defer.sequence_number or 0])
    assert (deferred.body, deferred.application_properties) == (b"defer", {"deferred": "yes"})


async def test_closing_a_prefetching_receiver_gives_its_messages_back_uncounted(live: Connection, queue: str) -> None:
    await (await live.sender(queue)).send_batch([OutgoingMessage(f"{number}") for number in range(10)])
    async with await live.receiver(queue, credit=10) as receiver:
        (first,) = await receiver.receive(max_count=1, max_wait=WAIT_S)
        await receiver.complete(first)
    messages = await (await live.receiver(queue)).receive(max_count=20, max_wait=WAIT_S)
    assert [(int(message.body), message.delivery_count) for message in messages] == [(n, 0) for n in range(1, 10)]


async def test_settling_by_lock_token_from_another_connection(
    broker: BrokerProcess, live: Connection, queue: str
) -> None:
    await (await live.sender(queue)).send_batch([OutgoingMessage(f"{number}") for number in range(5)])
    receiver = await live.receiver(queue)
    messages = await receiver.receive(max_count=5, max_wait=WAIT_S)
    tokens = [message.lock_token for message in messages if message.lock_token is not None]
    await receiver.close()
    async with await connect(broker.connection_string) as other:
        management = other.management(queue)
        until_ms = await management.renew_locks(tokens)
        assert all(until >= (messages[0].locked_until_ms or 0) for until in until_ms)
        await management.settle(tokens[:2], COMPLETED)
        await management.settle(tokens[2:3], ABANDONED)
        await management.settle(tokens[3:4], DEFERRED)
        await management.settle(tokens[4:], DEAD_LETTERED, reason="r", description="d")
        with pytest.raises(MessageLockLost) as caught:
            await management.settle(tokens[:1], COMPLETED)
        assert caught.value.tracking_id is not None
        left = await management.peek(0, 10)
        assert [(int(message.body), message.state, message.delivery_count) for message in left] == [
            (2, 0, 1),
            (3, 1, left[1].delivery_count),
        ]
        (dead,) = await other.management(f"{queue}/$DeadLetterQueue").peek()
        assert (dead.body, dead.dead_letter_reason) == (b"4", "r")


@pytest.mark.contract("H12")
async def test_completing_twice_is_a_lost_lock(live: Connection, queue: str) -> None:
    await (await live.sender(queue)).send(OutgoingMessage(b"once"))
    receiver = await live.receiver(queue)
    (message,) = await receiver.receive(max_wait=WAIT_S)
    assert message.lock_token is not None
    await live.management(queue).settle([message.lock_token])
    with pytest.raises(MessageLockLost) as caught:
        await receiver.complete(message)
    assert (caught.value.is_transient, caught.value.tracking_id is not None) == (False, True)


async def test_scheduled_messages_appear_later_or_are_cancelled(live: Connection, queue: str) -> None:
    management = live.management(queue)
    now_ms = int(time.time() * 1000)
    soon, never = await management.schedule([OutgoingMessage(b"soon"), OutgoingMessage(b"never")], now_ms + 700)
    assert [message.state for message in await management.peek(0, 10)] == [2, 2]
    await management.cancel([never])
    with pytest.raises(MessageNotFound):
        await management.cancel([never])
    receiver = await live.receiver(queue)
    (message,) = await receiver.receive(max_wait=WAIT_S)
    assert message.body == b"soon"
    assert (message.enqueued_time_ms or 0) >= now_ms + 700
    await receiver.complete(message)
    assert soon != never


async def test_batch_delete_removes_the_oldest(live: Connection, queue: str) -> None:
    await (await live.sender(queue)).send_batch([OutgoingMessage(f"{number}") for number in range(10)])
    management = live.management(queue)
    assert await management.batch_delete(4) == 4
    assert [message.body for message in await management.peek(0, 1)] == [b"4"]
    assert await management.batch_delete(100) == 6
    assert await management.batch_delete(100) == 0


async def test_a_received_message_is_passed_on_byte_for_byte(live: Connection, queue: str) -> None:
    other = f"q{next(_numbers)}"
    original = OutgoingMessage(AmqpValue([Int(1)]), message_id="m", application_properties={"a": UInt(1)}).encode()
    await (await live.sender(queue)).send_raw(original)
    (received,) = await (await live.receiver(queue)).receive(max_wait=WAIT_S)
    sections = received.sections
    bare = received.raw[sections.properties.start :]
    assert bare == original, "properties, application properties and body are as they were sent"
    await (await live.sender(other)).send_raw(received.raw)
    (again,) = await (await live.receiver(other)).receive(max_wait=WAIT_S)
    assert again.raw[again.sections.properties.start :] == original
    assert again.sequence_number == 1


@pytest.mark.contract("G2", "G3", "G4")
async def test_a_message_over_the_limit_is_refused_and_the_link_lives_on(live: Connection, queue: str) -> None:
    sender = await live.sender(queue)
    with pytest.raises(MessageTooLarge):
        await sender.send(OutgoingMessage(b"x" * 300_000))
    sender.max_message_size = 0  # let the service say it
    with pytest.raises(MessageTooLarge) as caught:
        await sender.send(OutgoingMessage(b"x" * 300_000))
    assert caught.value.tracking_id is not None
    assert not caught.value.is_transient, "the condition says that sending it again is of no use"
    await sender.send(OutgoingMessage(b"x" * 260_000))
    (received,) = await (await live.receiver(queue)).receive(max_wait=WAIT_S)
    assert len(received.body) == 260_000


@pytest.mark.contract("G13")
async def test_presettled_messages_are_stored_without_an_outcome(live: Connection, queue: str) -> None:
    sender = await live.sender(queue, presettled=True)
    for number in range(10):
        await sender.send(OutgoingMessage(f"{number}"))
    receiver = await live.receiver(queue, credit=10)
    bodies: list[bytes] = []
    while len(bodies) < 10:
        bodies += [message.body for message in await receiver.receive(max_count=10, max_wait=WAIT_S)]
    assert bodies == [f"{number}".encode() for number in range(10)]


async def test_an_unknown_queue_is_not_found_and_a_bad_key_is_unauthorized(
    broker: BrokerProcess, live: Connection
) -> None:
    for attach in (live.sender, live.receiver):
        with pytest.raises(EntityNotFound) as missing:
            await attach("no-such-queue")
        assert missing.value.tracking_id is not None
    with pytest.raises(EntityNotFound):
        await live.management("no-such-queue").peek()
    string = broker.connection_string.replace("SharedAccessKey=", "SharedAccessKey=x")
    async with await connect(string) as stranger:
        with pytest.raises(Unauthorized):
            await stranger.sender("q0")


async def test_the_same_over_tls(broker: BrokerProcess, queue: str) -> None:
    (listening,) = broker.namespaces.values()
    assert listening.ca_file is not None
    async with await connect(broker.connection_string, ca_file=listening.ca_file) as connection:
        sender = await connection.sender(queue)
        await asyncio.gather(*[sender.post(OutgoingMessage(b"x" * 50_000)) for _ in range(50)])
        receiver = await connection.receiver(queue, mode=RECEIVE_AND_DELETE, credit=50)
        count = 0
        while count < 50:
            count += len(await receiver.receive(max_count=50, max_wait=WAIT_S))


async def test_a_killed_broker_fails_everything_and_what_was_accepted_is_there_again(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", queues=["q"]) as broker:
        connection = await connect(broker.connection_string)
        sender = await connection.sender("q")
        await sender.send_batch([OutgoingMessage(f"{number}") for number in range(10)])
        receiver = await connection.receiver("q")
        messages = await receiver.receive(max_count=10, max_wait=WAIT_S)
        await receiver.complete(messages[0])
        waiting = asyncio.create_task(receiver.receive(max_wait=WAIT_S))
        broker.kill()
        with pytest.raises(ConnectionLost):
            await waiting
        with pytest.raises(ConnectionLost):
            await sender.send(OutgoingMessage(b"x"))
        await connection.close()
        broker.start()
        async with await connect(broker.connection_string) as again:
            left = await (await again.receiver("q")).receive(max_count=20, max_wait=WAIT_S)
            assert [int(message.body) for message in left] == list(range(1, 10))


@pytest.mark.contract("H8")
async def test_many_messages_are_completed_together_and_what_failed_is_named(live: Connection, queue: str) -> None:
    sender = await live.sender(queue)
    await sender.send_batch([OutgoingMessage(b"x", message_id=f"{number}") for number in range(300)])
    receiver = await live.receiver(queue, credit=400)
    received: list[ReceivedMessage] = []
    while len(received) < 300:
        received += await receiver.receive(max_count=300, max_wait=WAIT_S)
    await live.management(queue).settle([token for each in received[7:9] if (token := each.lock_token) is not None])
    failed = await receiver.complete_all(received)
    assert sorted(failed) == [each.delivery_id for each in received[7:9]]
    assert all(isinstance(error, MessageLockLost) for error in failed.values())
    assert await live.management(queue).peek() == []
    assert await receiver.complete_all([]) == {}
    with pytest.raises(ValueError, match="settled already"):
        receiver.complete_all(received[:1])


async def test_completing_together_on_a_link_that_has_ended_says_so_of_each(live: Connection, queue: str) -> None:
    sender = await live.sender(queue)
    await sender.send_batch([OutgoingMessage(b"x") for _ in range(3)])
    receiver = await live.receiver(queue, credit=10)
    received: list[ReceivedMessage] = []
    while len(received) < 3:
        received += await receiver.receive(max_count=10, max_wait=WAIT_S)
    await receiver.close()
    assert len(await receiver.complete_all(received)) == 3


async def test_a_receiver_with_a_limit_never_locks_more_than_that(live: Connection, queue: str) -> None:
    sender = await live.sender(queue)
    await sender.send_batch([OutgoingMessage(b"x", message_id=f"{number}") for number in range(50)])
    receiver = await live.receiver(queue, credit=10, limit=25)
    taken: list[ReceivedMessage] = []
    while len(taken) < 25:
        taken += await receiver.receive(max_count=7, max_wait=WAIT_S)
    assert len(taken) == 25
    other = await live.receiver(queue)
    (next_one,) = await other.receive(max_wait=WAIT_S)
    assert next_one.message_id == "25"
    receiver.allow(1)
    (one_more,) = await receiver.receive(max_count=7, max_wait=WAIT_S)
    assert one_more.message_id == "26"
    with pytest.raises(ValueError, match="limit must be at least 1"):
        await live.receiver(queue, limit=0)


async def test_a_receiver_asks_whether_there_is_nothing_and_what_comes_instead_is_received(
    live: Connection, queue: str
) -> None:
    sender = await live.sender(queue)
    await sender.send(OutgoingMessage(b"x"))
    receiver = await live.receiver(queue, credit=10)
    assert not await receiver.is_empty()
    (first,) = await receiver.receive(max_wait=WAIT_S)
    await receiver.complete(first)
    assert await receiver.is_empty()
    await sender.send(OutgoingMessage(b"y"))
    (second,) = await receiver.receive(max_wait=WAIT_S)
    assert second.body == b"y"
