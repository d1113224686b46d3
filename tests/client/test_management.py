"""Management calls: what they ask, how answers and refusals are read (docs/wire.md, "Management requests")."""

import asyncio
import uuid

import pytest

from spillway.amqp.types import LONGS, UUIDS, Array, Timestamp
from spillway.client import (
    ABANDONED,
    DEAD_LETTERED,
    ClientError,
    Connection,
    ConnectionLost,
    LinkClosed,
    MessageLockLost,
    MessageNotFound,
    OperationTimeout,
    OutgoingMessage,
    ReceivedMessage,
)
from tests.client.scripted import Answer, ScriptedServer, until

TOKEN = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")


class Script:
    """Answers every operation with the same, and remembers what was asked."""

    def __init__(self, status: int = 200, condition: str | None = None, body: object = None) -> None:
        self.answer: Answer = (status, condition, {} if body is None else body)
        self.asked: list[tuple[str, dict[object, object], dict[object, object]]] = []

    def __call__(self, operation: str, properties: dict[object, object], body: object) -> Answer:
        assert isinstance(body, dict)
        self.asked.append((operation, properties, body))
        return self.answer


async def test_peek_asks_by_number_and_reads_messages(server: ScriptedServer, connection: Connection) -> None:
    raw = OutgoingMessage(b"seen", message_id="m").encode()
    script = server.on_request = Script(body={"messages": [{"message": raw}]})
    (message,) = await connection.management("q").peek(5, 10, timeout=7)
    assert (message.body, message.message_id, message.lock_token, message.raw) == (b"seen", "m", None, raw)
    ((operation, properties, body),) = script.asked
    assert (operation, body) == ("com.microsoft:peek-message", {"from-sequence-number": 5, "message-count": 10})
    assert properties["com.microsoft:server-timeout"] == 7000


async def test_a_peek_past_the_end_is_empty(server: ScriptedServer, connection: Connection) -> None:
    server.on_request = Script(204)
    assert await connection.management("q").peek() == []


async def test_a_peek_can_leave_the_bodies_where_they_are(server: ScriptedServer, connection: Connection) -> None:
    script = server.on_request = Script(204)
    await connection.management("q").peek(5, omit_body=True)
    assert script.asked[0][2]["omit-message-body"] is True


async def test_sessions_with_messages_are_listed_and_a_held_one_renewed(
    server: ScriptedServer, connection: Connection
) -> None:
    script = server.on_request = Script(body={"skip": 2, "sessions-ids": Array(0xA1, ["a", "b"]), "expiration": 9})
    management = connection.management("q")
    assert await management.sessions(1, 2) == ["a", "b"]
    assert await management.renew_session("a") == 9
    (listed, _, asked), (renewed, _, which) = script.asked
    assert (listed, renewed) == ("com.microsoft:get-message-sessions", "com.microsoft:renew-session-lock")
    assert (asked["skip"], asked["top"], which) == (1, 2, {"session-id": "a"})
    assert isinstance(asked["last-updated-time"], Timestamp)


async def test_locks_are_renewed_by_uuid_in_order(server: ScriptedServer, connection: Connection) -> None:
    script = server.on_request = Script(body={"expirations": Array(0x83, [Timestamp(5), Timestamp(6)])})
    other = uuid.uuid4()
    assert await connection.management("q").renew_locks([TOKEN, other]) == [5, 6]
    assert script.asked[0][2] == {"lock-tokens": Array(UUIDS, [TOKEN, other])}


async def test_a_lost_lock_on_renewal_is_raised_with_its_tracking_id(
    server: ScriptedServer, connection: Connection
) -> None:
    server.on_request = Script(410, "com.microsoft:message-lock-lost")
    with pytest.raises(MessageLockLost) as caught:
        await connection.management("q").renew_locks([TOKEN])
    assert caught.value.tracking_id == "def_2"


async def test_scheduling_puts_the_time_and_an_id_into_each_message(
    server: ScriptedServer, connection: Connection
) -> None:
    script = server.on_request = Script(body={"sequence-numbers": Array(LONGS, [7, 8])})
    messages = [OutgoingMessage(b"a"), OutgoingMessage(b"b", message_id="b", session_id="s", partition_key="s")]
    assert await connection.management("q").schedule(messages, 1_700_000_000_000) == [7, 8]
    entries = script.asked[0][2]["messages"]
    assert isinstance(entries, list)
    received = [ReceivedMessage(entry["message"]) for entry in entries]
    assert [message.scheduled_enqueue_time_ms for message in received] == [1_700_000_000_000] * 2
    assert [entry["message-id"] for entry in entries] == [message.message_id for message in received]
    assert (entries[1]["message-id"], entries[1]["session-id"], entries[1]["partition-key"]) == ("b", "s", "s")
    with pytest.raises(ValueError):
        await connection.management("q").schedule([OutgoingMessage(b"when?")])


async def test_cancelling_an_unknown_number_is_not_found(server: ScriptedServer, connection: Connection) -> None:
    script = server.on_request = Script(404, "com.microsoft:message-not-found")
    with pytest.raises(MessageNotFound):
        await connection.management("q").cancel([7])
    assert script.asked[0][2] == {"sequence-numbers": Array(LONGS, [7])}


async def test_deferred_messages_come_with_their_lock_tokens(server: ScriptedServer, connection: Connection) -> None:
    raw = OutgoingMessage(b"set aside").encode()
    script = server.on_request = Script(body={"messages": [{"message": raw, "lock-token": TOKEN}]})
    (message,) = await connection.management("q").receive_deferred([7])
    assert (message.body, message.lock_token) == (b"set aside", TOKEN)
    assert script.asked[0][2] == {"sequence-numbers": Array(LONGS, [7]), "receiver-settle-mode": 1}


async def test_settling_by_token_says_what_and_why(server: ScriptedServer, connection: Connection) -> None:
    script = server.on_request = Script()
    management = connection.management("q", link_name="some-link")
    await management.settle([TOKEN])
    await management.settle([TOKEN], ABANDONED, properties={"a": "b"})
    await management.settle([TOKEN], DEAD_LETTERED, reason="r", description="d")
    tokens = Array(UUIDS, [TOKEN])
    assert [body for _, _, body in script.asked] == [
        {"disposition-status": "completed", "lock-tokens": tokens},
        {"disposition-status": "abandoned", "lock-tokens": tokens, "properties-to-modify": {"a": "b"}},
        {
            "disposition-status": "suspended",
            "lock-tokens": tokens,
            "deadletter-reason": "r",
            "deadletter-description": "d",
        },
    ]
    assert script.asked[0][1]["associated-link-name"] == "some-link"
    with pytest.raises(ValueError):
        await management.settle([TOKEN], "deferred")


async def test_batch_delete_answers_how_many(server: ScriptedServer, connection: Connection) -> None:
    script = server.on_request = Script(body={"message-count": 3})
    management = connection.management("q")
    assert await management.batch_delete(500, 1_700_000_000_000) == 3
    assert script.asked[0][2] == {"message-count": 500, "enqueued-time-utc": 1_700_000_000_000}
    server.on_request = Script(204)
    assert await management.batch_delete(500) == 0


async def test_many_calls_at_once_each_get_their_own_answer(server: ScriptedServer, connection: Connection) -> None:
    def answer(operation: str, properties: dict[object, object], body: object) -> Answer:
        assert isinstance(body, dict)
        return 200, None, {"sequence-numbers": Array(LONGS, [body["from-sequence-number"]])}

    server.on_request = answer
    management = connection.management("q")
    calls = [management.call("x", {"from-sequence-number": number}) for number in range(300)]
    answers = await asyncio.gather(*calls)
    assert [found["sequence-numbers"] for found in answers] == [[number] for number in range(300)]


@pytest.mark.parametrize(
    "body", [{"messages": [{}]}, {"messages": [{"message": "text"}]}, {"messages": ["x"]}], ids=["no", "text", "flat"]
)
async def test_an_answer_without_the_bytes_is_an_error(
    server: ScriptedServer, connection: Connection, body: object
) -> None:
    server.on_request = Script(body=body)
    with pytest.raises(ClientError):
        await connection.management("q").peek()


async def test_a_call_without_an_answer_times_out_and_a_late_answer_is_dropped(
    server: ScriptedServer, connection: Connection
) -> None:
    server.on_request = Script(204)
    management = connection.management("q")
    await management.peek()
    server.holds_answers = True
    with pytest.raises(OperationTimeout):
        await management.peek(timeout=0.05)
    server.holds_answers = False
    assert await management.peek() == []
    assert len(server.held) == 1
    server.held.pop()()  # the late one
    server.peers[0].flush()
    assert await management.peek() == []


async def test_the_links_are_attached_again_after_they_were_closed(
    server: ScriptedServer, connection: Connection
) -> None:
    server.on_request = Script(204)
    management = connection.management("q")
    await management.peek()
    await management.close()
    await management.peek()
    server.link_to("q/$management").detach()
    server.peers[0].flush()
    with pytest.raises(LinkClosed):  # this one crossed the detach
        await management.peek()
    await management.peek()


async def test_a_call_fails_with_its_link_or_connection(server: ScriptedServer, connection: Connection) -> None:
    server.on_request = Script(204)
    management = connection.management("q")
    await management.peek()
    server.holds_answers = True
    waiting = asyncio.create_task(management.peek())
    await until(lambda: len(server.held) > 0)
    server.link_to("q/$management").detach()
    server.peers[0].flush()
    with pytest.raises(LinkClosed):
        await waiting
    waiting = asyncio.create_task(management.peek())
    await until(lambda: len(server.held) == 2)
    server.peers[0].drop()
    with pytest.raises(ConnectionLost):
        await waiting
