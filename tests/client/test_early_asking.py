"""A message session and its first messages asked for in one go: one wait for both, and nothing lost by who gives up."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from azure.servicebus.management import ServiceBusAdministrationClient

from spillway.amqp.errors import AmqpError
from spillway.client import (
    RECEIVE_AND_DELETE,
    Connection,
    LinkClosed,
    OperationTimeout,
    OutgoingMessage,
    ReceivedMessage,
    SessionCannotBeLocked,
    connect,
)
from tests.client.scripted import ScriptedServer, until
from tests.tools.broker_process import BrokerProcess

HELD = AmqpError("com.microsoft:session-cannot-be-locked", "Another receiver holds it.")


def encoded(*numbers: int) -> list[bytes]:
    return [OutgoingMessage(f"{number}").encode() for number in numbers]


def bodies(messages: list[ReceivedMessage]) -> list[bytes]:
    return [message.body for message in messages]


async def test_the_first_receive_has_what_was_asked_for_with_the_link(
    server: ScriptedServer, connection: Connection
) -> None:
    server.deliver(*encoded(1, 2))
    receiver = await connection.ask_session("q", "s", 5)
    assert not receiver.was_attached, "nothing is waited for yet"
    assert bodies(await receiver.receive(5, 30)) == [b"1", b"2"]
    assert receiver.was_attached and receiver.is_drained, "fewer than five, and the service says that these are all"
    assert server.link_to("q").credit == 0


async def test_one_that_is_empty_is_waited_for_as_ever(server: ScriptedServer, connection: Connection) -> None:
    receiver = await connection.ask_session("q", "s", 5)
    assert await receiver.receive(5, 0.02) == []
    waiting = asyncio.create_task(receiver.receive(5, 30))
    await until(lambda: server.link_to("q").credit > 0)
    assert not receiver.is_drained
    server.deliver(*encoded(1))
    assert bodies(await waiting) == [b"1"]


async def test_a_refusal_is_raised_by_the_first_receive(server: ScriptedServer, connection: Connection) -> None:
    server.refusals["q"] = HELD
    receiver = await connection.ask_session("q", "s", 5)
    with pytest.raises(SessionCannotBeLocked):
        await receiver.receive(5, 30)
    assert not receiver.was_attached


async def test_a_service_that_does_not_answer_the_attach_is_given_up(server: ScriptedServer) -> None:
    server.silent_paths.add("q")
    async with await connect(server.connection_string, operation_timeout=0.3) as connection:
        receiver = await connection.ask_session("q", "s", 5, max_wait=0)
        with pytest.raises(OperationTimeout):
            await receiver.receive(5, 30)
        assert not receiver.was_attached and receiver.error is not None


async def test_a_service_that_does_not_answer_the_drain_costs_a_wait_and_is_asked_again(
    server: ScriptedServer, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spillway.client.receiver.DRAIN_S_MAX", 0.05)
    server.answers_drain = False
    server.deliver(*encoded(1))
    receiver = await connection.ask_session("q", "s", 5)
    assert bodies(await receiver.receive(5, 0.05)) == [b"1"]
    assert not receiver.is_drained, "whether there are more is not known"


@pytest.mark.parametrize("silent", [True, False])
async def test_what_arrives_after_a_cancelled_receive_is_there_for_the_next(
    server: ScriptedServer, connection: Connection, silent: bool
) -> None:
    """Deleted already, it would be lost: also where the link was not there yet."""
    server.deliver(*encoded(1, 2))
    receiver = await connection.ask_session("q", "s", 5, mode=RECEIVE_AND_DELETE)
    waiting = asyncio.create_task(receiver.receive(5, 30))
    if silent:
        await asyncio.sleep(0)
        assert not receiver.was_attached
    else:
        await until(lambda: receiver.was_attached)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert bodies(await receiver.receive(5, 30)) == [b"1", b"2"]
    assert receiver.is_drained


async def test_one_that_is_closed_before_its_link_is_there_asks_for_nothing(
    server: ScriptedServer, connection: Connection
) -> None:
    server.deliver(*encoded(1))
    receiver = await connection.ask_session("q", "s", 5, mode=RECEIVE_AND_DELETE)
    await receiver.close()
    with pytest.raises(LinkClosed):
        await receiver.receive(5, 0)
    other = await connection.receiver("q", mode=RECEIVE_AND_DELETE)
    assert bodies(await other.receive(1, 30)) == [b"1"]


async def test_the_next_link_has_the_amqp_session_of_the_one_that_was_closed(
    server: ScriptedServer, connection: Connection
) -> None:
    sessions = set()
    for number in range(20):
        server.deliver(*encoded(number))
        receiver = await connection.ask_session("q", f"s{number}", 5)
        (message,) = await receiver.receive(5, 30)
        sessions.add(receiver.link.session)
        await receiver.complete(message)  # confirmations find the receiver that has the session now
        await receiver.close()
    assert len(sessions) == 1
    kept = await connection.receiver("q")
    assert kept.link.session not in sessions, "any other receiver has one of its own"


async def test_an_amqp_session_that_has_ended_is_not_used_again(server: ScriptedServer, connection: Connection) -> None:
    receiver = await connection.ask_session("q", "s", 5)
    await receiver.receive(5, 0)
    await receiver.close()
    ended = receiver.link.session
    ended.end()
    other = await connection.ask_session("q", "s", 5)
    assert other.link.session is not ended
    assert await other.receive(5, 0) == []


# -- against the broker ------------------------------------------------------------------------------------------------


@pytest.fixture
async def divided(tmp_path: Path) -> AsyncIterator[tuple[Connection, str]]:
    """A queue with 300 sessions of three messages each, sent in turn."""
    with BrokerProcess(tmp_path / "data") as broker:
        with ServiceBusAdministrationClient.from_connection_string(
            broker.connection_string, connection_verify=broker.ca_file
        ) as client:
            client.create_queue("divided", requires_session=True)
        async with await connect(broker.connection_string, operation_timeout=30) as connection:
            sender = await connection.sender("divided")
            for at in range(900):
                await sender.ready()
                sender.post(OutgoingMessage(f"{at // 300}", session_id=f"s{at % 300}"))
            await sender.close()
            yield connection, "divided"


async def test_hundreds_of_sessions_at_a_time_are_complete_and_each_in_its_order(
    divided: tuple[Connection, str],
) -> None:
    connection, queue = divided

    async def receive(name: str) -> list[bytes]:
        receiver = await connection.ask_session(queue, name, 16, mode=RECEIVE_AND_DELETE)
        found = await receiver.receive(16, 5)
        assert receiver.is_drained and receiver.session_id == name
        await receiver.close()
        return bodies(found)

    found = await asyncio.gather(*[receive(f"s{at}") for at in range(300)])
    assert found == [[b"0", b"1", b"2"]] * 300
    assert await connection.management(queue).peek() == []


async def test_a_session_that_somebody_holds_is_refused_and_free_when_its_receiver_is_closed(
    divided: tuple[Connection, str],
) -> None:
    connection, queue = divided
    first = await connection.ask_session(queue, "s7", 2)
    messages = await first.receive(2, 5)
    assert bodies(messages) == [b"0", b"1"]
    second = await connection.ask_session(queue, "s7", 2)
    with pytest.raises(SessionCannotBeLocked):
        await second.receive(2, 5)
    await first.complete(messages[0])
    await first.close()
    third = await connection.ask_session(queue, "s7", 5)
    assert bodies(await third.receive(5, 5)) == [b"1", b"2"]
