"""Sending: an outcome for every message, bounded by a window, a credit and a socket."""

import asyncio

import pytest

from spillway.amqp.errors import AmqpError
from spillway.amqp.performatives import ACCEPTED, RELEASED, DeliveryState, Modified, Rejected
from spillway.client import (
    BATCH_FORMAT,
    AmqpValue,
    ClientError,
    Connection,
    ConnectionLost,
    EntityNotFound,
    LinkClosed,
    MessageTooLarge,
    OperationTimeout,
    OutgoingMessage,
    QuotaExceeded,
    ReceivedMessage,
    ServerBusy,
    WindowFull,
    connect,
)
from tests.client.scripted import ScriptedServer, until


def busy(payload: bytes, message_format: int) -> DeliveryState:
    return Rejected(AmqpError("com.microsoft:server-busy", "Slow down. TrackingId:0a_B1, SystemTracker:q", None))


def silence(payload: bytes, message_format: int) -> DeliveryState | None:
    return None


async def test_a_send_returns_when_the_message_was_accepted(server: ScriptedServer, connection: Connection) -> None:
    sender = await connection.sender("q")
    await sender.send(OutgoingMessage(b"one", message_id="m", subject="s"))
    ((payload, message_format),) = server.received
    message = ReceivedMessage(payload)
    assert (message.body, message.message_id, message.properties.subject, message_format) == (b"one", "m", "s", 0)


@pytest.mark.contract("G4")
async def test_a_rejection_becomes_an_exception_with_its_tracking_id(
    server: ScriptedServer, connection: Connection
) -> None:
    server.on_send = busy
    sender = await connection.sender("q")
    with pytest.raises(ServerBusy) as caught:
        await sender.send(OutgoingMessage(b"one"))
    assert (caught.value.condition, caught.value.is_transient) == ("com.microsoft:server-busy", True)
    assert caught.value.tracking_id == "0a_B1"
    server.on_send = lambda payload, message_format: Rejected(AmqpError("amqp:resource-limit-exceeded", "Full."))
    with pytest.raises(QuotaExceeded) as full:
        await sender.send(OutgoingMessage(b"two"))
    assert (full.value.is_transient, full.value.tracking_id) == (False, None)


@pytest.mark.parametrize(("state", "is_transient"), [(RELEASED, True), (Modified(), True), (Rejected(), False)])
async def test_an_outcome_that_is_no_accept_is_an_error_even_without_a_reason(
    server: ScriptedServer, connection: Connection, state: DeliveryState, is_transient: bool
) -> None:
    server.on_send = lambda payload, message_format: state
    sender = await connection.sender("q")
    with pytest.raises(ClientError) as caught:
        await sender.send(OutgoingMessage(b"one"))
    assert caught.value.is_transient is is_transient


@pytest.mark.contract("G6")
async def test_posts_are_on_the_wire_before_any_of_them_is_answered(
    server: ScriptedServer, connection: Connection
) -> None:
    server.on_send = silence
    sender = await connection.sender("q")
    outcomes = [sender.post(OutgoingMessage(f"{number}")) for number in range(50)]
    await until(lambda: len(server.received) == 50)
    assert not any(outcome.done() for outcome in outcomes)
    (peer,) = server.peers
    for delivery_id in range(50):
        refused = delivery_id % 7 == 0
        server.link_to("q").session.settle(delivery_id, Rejected(AmqpError("amqp:x", "no")) if refused else ACCEPTED)
    peer.flush()
    results = await asyncio.gather(*outcomes, return_exceptions=True)
    assert [index for index, result in enumerate(results) if result is not None] == list(range(0, 50, 7))
    assert sender.pending == 0


async def test_delivery_tags_that_begin_again_leave_out_those_without_an_outcome(
    server: ScriptedServer, connection: Connection
) -> None:
    """One that nobody ever answers keeps its tag, however long its link lives."""
    server.on_send = silence
    sender = await connection.sender("q")
    forgotten = sender.post(OutgoingMessage("forgotten"))
    assert list(sender._unsettled) == [b"\0\0\0\1"]
    sender._tag = 0xFFFFFFFE
    outcomes = [sender.post(OutgoingMessage(f"{number}")) for number in range(3)]
    assert list(sender._unsettled) == [b"\0\0\0\1", b"\xff\xff\xff\xff", b"\0\0\0\0", b"\0\0\0\2"]
    assert sender.pending == 4
    await until(lambda: len(server.received) == 4)
    for delivery_id in range(4):
        server.link_to("q").session.settle(delivery_id, ACCEPTED)
    server.peers[0].flush()
    await asyncio.gather(forgotten, *outcomes)
    assert (sender.pending, sender._bytes) == (0, 0)


async def test_messages_wait_in_line_for_credit_and_leave_in_order(
    server: ScriptedServer, connection: Connection
) -> None:
    server.credit = 1
    sender = await connection.sender("q")
    await asyncio.gather(*[sender.post_raw(encoded(number)) for number in range(20)])
    assert [payload for payload, _ in server.received] == [encoded(number) for number in range(20)]


@pytest.mark.contract("G10")
async def test_a_full_window_refuses_posts_and_ready_waits_for_room(
    server: ScriptedServer, connection: Connection
) -> None:
    server.on_send = silence
    sender = await connection.sender("q", window=3)
    outcomes = [sender.post(OutgoingMessage(b"x")) for _ in range(3)]
    with pytest.raises(WindowFull):
        sender.post(OutgoingMessage(b"one too many"))
    waiting = asyncio.create_task(sender.ready())
    await until(lambda: len(server.received) == 3)
    assert not waiting.done()
    server.link_to("q").session.settle(0, ACCEPTED)
    server.peers[0].flush()
    await waiting
    assert sender.pending == 2
    assert outcomes[0].done()
    for outcome in outcomes:
        outcome.cancel()


async def test_the_window_counts_bytes_too(server: ScriptedServer, connection: Connection) -> None:
    server.on_send = silence
    sender = await connection.sender("q", window_bytes=1000)
    outcome = sender.post(OutgoingMessage(b"x" * 1000))
    with pytest.raises(WindowFull):
        sender.post(OutgoingMessage(b"x"))
    outcome.cancel()


@pytest.mark.contract("G11")
async def test_many_coroutines_share_a_small_window(server: ScriptedServer, connection: Connection) -> None:
    sender = await connection.sender("q", window=10)
    most = 0

    async def send_one(number: int) -> None:
        nonlocal most
        await sender.send(OutgoingMessage(f"{number}"))
        most = max(most, sender.pending)

    await asyncio.gather(*(send_one(number) for number in range(200)))
    assert len(server.received) == 200
    assert most <= 10


async def test_a_waiter_that_is_cancelled_leaves_its_room_to_the_next(
    server: ScriptedServer, connection: Connection
) -> None:
    server.on_send = silence
    sender = await connection.sender("q", window=1)
    first = sender.post(OutgoingMessage(b"1"))
    waiters = [asyncio.create_task(sender.ready()) for _ in range(3)]
    await until(lambda: len(server.received) > 0)
    server.link_to("q").session.settle(0, ACCEPTED)
    server.peers[0].flush()
    await first
    waiters[0].cancel()  # it has been told of the room and has not run yet, or is just about to be
    await waiters[1]
    await waiters[2]


async def test_a_send_given_up_before_it_had_credit_is_never_sent(
    server: ScriptedServer, connection: Connection
) -> None:
    server.credit = 0
    sender = await connection.sender("q")
    with pytest.raises(OperationTimeout):
        await sender.send(OutgoingMessage(b"late"), timeout=0.05)
    server.link_to("q").grant(10)
    server.peers[0].flush()
    await sender.send(OutgoingMessage(b"next"))
    assert [ReceivedMessage(payload).body for payload, _ in server.received] == [b"next"]
    assert sender.pending == 0


async def test_a_post_without_an_answer_fails_after_the_operation_timeout(server: ScriptedServer) -> None:
    server.on_send = silence
    async with await connect(server.connection_string, operation_timeout=0.3) as connection:
        sender = await connection.sender("q", window=2)
        outcome = sender.post(OutgoingMessage(b"x"))
        with pytest.raises(OperationTimeout) as caught:
            await outcome
        assert caught.value.is_transient
        assert sender.pending == 1, "it may yet be stored, so it keeps its place"


async def test_a_presettled_sender_hears_nothing(server: ScriptedServer, connection: Connection) -> None:
    server.on_send = busy
    sender = await connection.sender("q", presettled=True)
    await sender.send(OutgoingMessage(b"gone"))
    await until(lambda: len(server.received) > 0)
    assert sender.pending == 0


async def test_a_batch_is_one_transfer_of_whole_messages(server: ScriptedServer, connection: Connection) -> None:
    sender = await connection.sender("q")
    messages = [OutgoingMessage(b"a", message_id="1", session_id="s"), OutgoingMessage(b"b", message_id="2")]
    await sender.send_batch(messages)
    ((payload, message_format),) = server.received
    envelope = ReceivedMessage(payload)
    assert message_format == BATCH_FORMAT
    assert (envelope.message_id, envelope.session_id) == ("1", "s")
    assert envelope.body == messages[0].encode() + messages[1].encode()
    with pytest.raises(ValueError):
        await sender.send_batch([])


async def test_a_message_larger_than_the_peer_takes_is_refused_here(
    server: ScriptedServer, connection: Connection
) -> None:
    server.max_message_size = 1000
    sender = await connection.sender("q")
    with pytest.raises(MessageTooLarge):
        await sender.send(OutgoingMessage(b"x" * 1001))
    assert server.received == []


async def test_a_message_of_many_frames_arrives_whole(server: ScriptedServer, connection: Connection) -> None:
    sender = await connection.sender("q")
    body = bytes(range(256)) * 1000
    await sender.send(OutgoingMessage(body))
    assert ReceivedMessage(server.received[0][0]).body == body


async def test_raw_bytes_are_sent_as_they_are(server: ScriptedServer, connection: Connection) -> None:
    sender = await connection.sender("q")
    raw = OutgoingMessage(AmqpValue({"a": 1})).encode()
    await sender.post_raw(raw, 7)
    assert server.received == [(raw, 7)]


async def test_a_refused_attach_raises_what_the_service_said(server: ScriptedServer, connection: Connection) -> None:
    text = "The messaging entity 'sb://localhost/none' could not be found. TrackingId:1_2"
    server.refusals["none"] = AmqpError("amqp:not-found", text, None)
    with pytest.raises(EntityNotFound) as caught:
        await connection.sender("none")
    assert (caught.value.tracking_id, caught.value.is_transient) == ("1_2", False)
    await (await connection.sender("q")).send(OutgoingMessage(b"the connection lives on"))


async def test_an_attach_without_an_answer_times_out_and_is_given_up(
    server: ScriptedServer, connection: Connection
) -> None:
    server.silent_paths.add("q")
    with pytest.raises(OperationTimeout):
        await connection.sender("q", timeout=0.1)
    server.silent_paths.clear()
    await (await connection.sender("q")).send(OutgoingMessage(b"again"))


async def test_a_detach_fails_what_is_in_flight_with_its_reason(server: ScriptedServer, connection: Connection) -> None:
    server.on_send = silence
    sender = await connection.sender("q")
    outcome = sender.post(OutgoingMessage(b"x"))
    await until(lambda: len(server.received) > 0)
    server.link_to("q").detach(AmqpError("amqp:not-found", "deleted", None))
    server.peers[0].flush()
    with pytest.raises(EntityNotFound):
        await outcome
    with pytest.raises(EntityNotFound):
        await sender.send(OutgoingMessage(b"y"))
    with pytest.raises(EntityNotFound):
        await sender.ready()


async def test_an_ended_session_fails_its_link_alone(server: ScriptedServer, connection: Connection) -> None:
    sender, other = await connection.sender("q"), await connection.sender("other")
    server.link_to("q").session.end(AmqpError("amqp:internal-error", "oops", None))
    server.peers[0].flush()
    await until(lambda: sender.error is not None)
    with pytest.raises(ClientError) as caught:
        await sender.send(OutgoingMessage(b"x"))
    assert (caught.value.condition, caught.value.is_transient) == ("amqp:internal-error", True)
    await other.send(OutgoingMessage(b"y"))


async def test_a_lost_connection_fails_every_pending_future(server: ScriptedServer, connection: Connection) -> None:
    server.on_send = silence
    sender = await connection.sender("q", window=5)
    outcomes = [sender.post(OutgoingMessage(b"x")) for _ in range(5)]
    waiting = asyncio.create_task(sender.ready())
    await until(lambda: len(server.received) == 5)
    server.peers[0].drop()
    for result in await asyncio.gather(*outcomes, waiting, return_exceptions=True):
        assert isinstance(result, ConnectionLost)
        assert result.is_transient
    with pytest.raises(ConnectionLost):
        await connection.sender("q")


async def test_closing_waits_for_the_outcomes_and_detaches(server: ScriptedServer, connection: Connection) -> None:
    async with await connection.sender("q") as sender:
        outcomes = [sender.post(OutgoingMessage(b"x")) for _ in range(10)]
    assert [outcome.done() for outcome in outcomes] == [True] * 10
    assert await server.detached.get() == "q"
    with pytest.raises(LinkClosed):
        await sender.send(OutgoingMessage(b"too late"))


def encoded(number: int) -> bytes:
    return OutgoingMessage(f"{number}").encode()
