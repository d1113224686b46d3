"""Receiving: credit that is asked for and given back, and settlements that the service confirms."""

import asyncio
import uuid

import pytest

from spillway.amqp.errors import AmqpError
from spillway.amqp.performatives import ACCEPTED, Accepted, Modified, Rejected, Released
from spillway.client import (
    RECEIVE_AND_DELETE,
    Connection,
    ConnectionLost,
    EntityNotFound,
    LinkClosed,
    MessageLockLost,
    OperationTimeout,
    OutgoingMessage,
    SettlementFailed,
    connect,
)
from tests.client.scripted import ScriptedServer, until


def encoded(*numbers: int) -> list[bytes]:
    return [OutgoingMessage(f"{number}").encode() for number in numbers]


async def test_what_is_there_comes_at_once_and_the_rest_of_the_credit_goes_back(
    server: ScriptedServer, connection: Connection
) -> None:
    server.deliver(*encoded(1, 2, 3))
    receiver = await connection.receiver("q")
    messages = await receiver.receive(max_count=10, max_wait=30)
    assert [message.body for message in messages] == [b"1", b"2", b"3"]
    assert server.link_to("q").credit == 0, "a message that comes now is nobody's yet"
    assert all(isinstance(message.lock_token, uuid.UUID) for message in messages)


async def test_no_more_is_taken_than_was_asked_for(server: ScriptedServer, connection: Connection) -> None:
    server.deliver(*encoded(1, 2, 3))
    receiver = await connection.receiver("q")
    assert [message.body for message in await receiver.receive(max_count=2)] == [b"1", b"2"]
    assert [message.body for message in await receiver.receive(max_count=2)] == [b"3"]


async def test_a_waiting_receive_is_served_when_a_message_appears(
    server: ScriptedServer, connection: Connection
) -> None:
    receiver = await connection.receiver("q")
    waiting = asyncio.create_task(receiver.receive(max_wait=30))
    await until(lambda: server.link_to("q").credit > 0)
    server.deliver(*encoded(1))
    assert [message.body for message in await waiting] == [b"1"]


async def test_an_empty_receive_ends_with_its_wait(server: ScriptedServer, connection: Connection) -> None:
    receiver = await connection.receiver("q")
    assert await receiver.receive(max_wait=0.02) == []
    assert server.link_to("q").credit == 0


async def test_a_service_that_does_not_answer_a_drain_costs_a_wait_and_no_message(
    server: ScriptedServer, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spillway.client.receiver.DRAIN_S_MAX", 0.05)
    server.answers_drain = False
    server.deliver(*encoded(1))
    receiver = await connection.receiver("q")
    assert len(await receiver.receive(max_count=5)) == 1


async def test_a_cancelled_receive_keeps_what_arrives_for_the_next(
    server: ScriptedServer, connection: Connection
) -> None:
    receiver = await connection.receiver("q")
    waiting = asyncio.create_task(receiver.receive(max_count=2, max_wait=30))
    await until(lambda: server.link_to("q").credit > 0)
    server.deliver(*encoded(1))  # on its way while we give up
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert [message.body for message in await receiver.receive(max_wait=30)] == [b"1"]
    server.deliver(*encoded(2))
    assert [message.body for message in await receiver.receive(max_wait=30)] == [b"2"]


async def test_two_receives_at_a_time_are_refused(server: ScriptedServer, connection: Connection) -> None:
    receiver = await connection.receiver("q")
    waiting = asyncio.create_task(receiver.receive(max_wait=30))
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError):
        await receiver.receive()
    waiting.cancel()
    with pytest.raises(ValueError):
        await receiver.receive(max_count=0)


async def test_prefetch_keeps_the_credit_up_and_no_higher(server: ScriptedServer, connection: Connection) -> None:
    server.deliver(*encoded(*range(100)))
    receiver = await connection.receiver("q", credit=10)
    bodies: list[int] = []
    while len(bodies) < 100:
        taken = await receiver.receive(max_count=4)
        assert 1 <= len(taken) <= 4
        assert 100 - len(server.outgoing) - len(bodies) <= 10
        bodies += [int(message.body) for message in taken]
    assert bodies == list(range(100))


async def test_receive_and_delete_has_no_locks_to_settle(server: ScriptedServer, connection: Connection) -> None:
    server.deliver(*encoded(1))
    receiver = await connection.receiver("q", mode=RECEIVE_AND_DELETE)
    (message,) = await receiver.receive()
    assert message.lock_token is None
    with pytest.raises(ValueError):
        receiver.complete(message)


async def test_h2_closing_hands_out_what_came_meanwhile_where_receiving_deletes(
    server: ScriptedServer, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spillway.client.receiver.DRAIN_S_MAX", 0.05)
    server.answers_drain = False
    receiver = await connection.receiver("q", mode=RECEIVE_AND_DELETE)
    assert await receiver.receive(max_count=2, max_wait=0) == []
    server.deliver(*encoded(1, 2))  # late: it is slow to answer the drain
    await until(lambda: len(list(receiver.prefetched)) == 2)
    assert [message.body for message in await receiver.close()] == [b"1", b"2"]
    assert await receiver.close() == []


async def test_closing_gives_locked_messages_back_and_hands_out_none(
    server: ScriptedServer, connection: Connection
) -> None:
    server.deliver(*encoded(1, 2))
    receiver = await connection.receiver("q", credit=5)
    await until(lambda: len(list(receiver.prefetched)) == 2)
    assert await receiver.close() == []
    await until(lambda: len(server.settlements) == 2)
    assert [type(state) for _, _, state in server.settlements] == [Released, Released]


async def test_each_settlement_says_its_outcome_and_waits_for_the_echo(
    server: ScriptedServer, connection: Connection
) -> None:
    server.deliver(*encoded(*range(6)))
    receiver = await connection.receiver("q")
    messages = await receiver.receive(max_count=6)
    await receiver.complete(messages[0])
    await receiver.abandon(messages[1], {"why": "x"})
    await receiver.defer(messages[2])
    await receiver.dead_letter(messages[3], "bad", "really bad", {"more": 1})
    receiver.release(messages[4])
    await receiver.abandon(messages[5])
    states = {delivery_id: (settled, state) for delivery_id, settled, state in server.settlements}
    ids = [message.delivery_id for message in messages]
    assert states[ids[0]] == (False, ACCEPTED)
    assert states[ids[1]] == (False, Modified(True, False, {"why": "x"}))
    assert states[ids[2]] == (False, Modified(True, True))
    settled, rejected = states[ids[3]]
    assert not settled
    assert isinstance(rejected, Rejected)
    assert rejected.error is not None
    assert rejected.error.condition == "com.microsoft:dead-letter"
    info = {"DeadLetterReason": "bad", "DeadLetterErrorDescription": "really bad", "more": 1}
    assert rejected.error.info == info
    assert states[ids[4]][0] is True
    assert isinstance(states[ids[4]][1], Released)
    assert states[ids[5]] == (False, Modified(True, False))


async def test_pipelined_settlements_travel_as_ranges_and_are_all_confirmed(
    server: ScriptedServer, connection: Connection
) -> None:
    server.deliver(*encoded(*range(500)))
    receiver = await connection.receiver("q")
    messages = await receiver.receive(max_count=500)
    (peer,) = server.peers
    before = peer.bytes_received
    await asyncio.gather(*[receiver.complete(message) for message in messages])
    assert len(server.settlements) == 500
    assert all(isinstance(state, Accepted) for _, _, state in server.settlements)
    assert peer.bytes_received - before < 500, "one disposition for the whole range"


async def test_a_lost_lock_is_raised_and_the_others_are_not_affected(
    server: ScriptedServer, connection: Connection
) -> None:
    answers = iter(
        [ACCEPTED, Rejected(AmqpError("com.microsoft:message-lock-lost", "The lock. TrackingId:9_9")), ACCEPTED]
    )
    server.on_settle = lambda state: next(answers)
    server.deliver(*encoded(1, 2, 3))
    receiver = await connection.receiver("q")
    messages = await receiver.receive(max_count=3)
    await receiver.complete(messages[0])
    with pytest.raises(MessageLockLost) as caught:
        await receiver.complete(messages[1])
    assert (caught.value.tracking_id, caught.value.is_transient) == ("9_9", False)
    await receiver.complete(messages[2])


async def test_another_outcome_than_the_one_asked_for_is_no_success(
    server: ScriptedServer, connection: Connection
) -> None:
    server.on_settle = lambda state: Released()
    server.deliver(*encoded(1))
    receiver = await connection.receiver("q")
    (message,) = await receiver.receive()
    with pytest.raises(SettlementFailed):
        await receiver.complete(message)


async def test_a_settlement_without_an_answer_times_out(server: ScriptedServer) -> None:
    server.on_settle = lambda state: None
    server.deliver(*encoded(1))
    async with await connect(server.connection_string, operation_timeout=0.3) as connection:
        receiver = await connection.receiver("q")
        (message,) = await receiver.receive()
        with pytest.raises(OperationTimeout):
            await receiver.complete(message)


async def test_a_message_is_settled_once_and_by_its_own_receiver(
    server: ScriptedServer, connection: Connection
) -> None:
    server.deliver(*encoded(1))
    receiver = await connection.receiver("q")
    other = await connection.receiver("q")
    (message,) = await receiver.receive()
    with pytest.raises(ValueError):
        other.complete(message)
    await receiver.complete(message)
    with pytest.raises(ValueError):
        receiver.abandon(message)


async def test_closing_releases_what_was_prefetched_and_never_taken(
    server: ScriptedServer, connection: Connection
) -> None:
    server.deliver(*encoded(1, 2, 3))
    receiver = await connection.receiver("q", credit=10)
    (taken,) = await receiver.receive(max_count=1)
    await receiver.close()
    assert await server.detached.get() == "q"
    released = [
        (delivery_id, settled) for delivery_id, settled, state in server.settlements if isinstance(state, Released)
    ]
    assert released == [(taken.delivery_id + 1, True), (taken.delivery_id + 2, True)]
    with pytest.raises(LinkClosed):
        await receiver.receive()
    with pytest.raises(LinkClosed):
        await receiver.complete(taken)


async def test_what_has_arrived_is_handed_out_before_a_detach_is_reported(
    server: ScriptedServer, connection: Connection
) -> None:
    server.deliver(*encoded(1, 2))
    receiver = await connection.receiver("q", credit=10)
    assert len(await receiver.receive(max_count=1)) == 1
    server.link_to("q").detach(AmqpError("amqp:not-found", "deleted", None))
    server.peers[0].flush()
    await until(lambda: receiver.error is not None)
    assert len(await receiver.receive(max_count=1)) == 1
    with pytest.raises(EntityNotFound):
        await receiver.receive(max_count=1)


async def test_a_lost_connection_ends_a_waiting_receive_and_open_settlements(
    server: ScriptedServer, connection: Connection
) -> None:
    server.on_settle = lambda state: None
    server.deliver(*encoded(1))
    receiver = await connection.receiver("q")
    (message,) = await receiver.receive()
    settling = receiver.complete(message)
    waiting = asyncio.create_task(receiver.receive(max_wait=30))
    await until(lambda: len(server.settlements) > 0)
    server.peers[0].drop()
    results = await asyncio.gather(settling, waiting, return_exceptions=True)
    assert [type(result) for result in results] == [ConnectionLost, ConnectionLost]
