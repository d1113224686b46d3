"""Client and server of ours, back to back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spillway.amqp.connection import ConnectionOptions
from spillway.amqp.errors import AmqpError
from spillway.amqp.events import (
    AttachRequested,
    ConnectionClosed,
    DetachConfirmed,
    DispositionReceived,
    EndConfirmed,
    FlowReceived,
    IncomingSettled,
    LinkAttached,
    LinkDetached,
    SessionBegun,
    SessionEnded,
    TransferReceived,
    WindowOpened,
)
from spillway.amqp.link import Link
from spillway.amqp.performatives import ACCEPTED, Modified, Rejected, Source, Target
from spillway.testing.wire import WirePair, client_options, server_options
from tests.amqp.script import condition

LAST = (1 << 32) - 1


def opened(
    client: ConnectionOptions | None = None, server: ConnectionOptions | None = None, chunk_bytes: int = 0
) -> WirePair:
    wire = WirePair(client, server, chunk_bytes=chunk_bytes)
    wire.open()
    return wire


def client_sends(wire: WirePair, credit: int, initial_delivery_count: int = 0) -> tuple[Link, Link]:
    """A link from client to server: the client's end and the server's."""
    session = wire.client.connection.begin()
    sender = session.attach_sender(
        "up", Source("client"), Target("queue"), initial_delivery_count=initial_delivery_count
    )
    wire.pump()
    receiver = wire.server.pop(AttachRequested).link
    receiver.accept(Source("client"), Target("queue"), max_message_size=1 << 20)
    receiver.grant(credit)
    wire.pump()
    assert wire.client.pop(LinkAttached).link is sender
    return sender, receiver


def server_sends(wire: WirePair, credit: int) -> tuple[Link, Link]:
    """A link from server to client: the server's end and the client's."""
    session = wire.client.connection.begin()
    receiver = session.attach_receiver("down", Source("queue"), Target("client"), rcv_settle_mode=1)
    receiver.grant(credit)
    wire.pump()
    sender = wire.server.pop(AttachRequested).link
    sender.accept(Source("queue"), Target("client"))
    wire.pump()
    assert wire.client.pop(LinkAttached).link is receiver
    wire.server.pop_all(FlowReceived)
    return sender, receiver


def test_a_send_and_its_outcome() -> None:
    wire = opened()
    sender, receiver = client_sends(wire, 10)
    assert sender.credit == 10
    sender.send(b"tag", b"hello", False)
    wire.pump()
    received = wire.server.pop(TransferReceived)
    assert (received.link, received.tag, received.payload) == (receiver, b"tag", b"hello")
    receiver.session.settle(received.delivery_id, ACCEPTED)
    wire.pump()
    outcome = wire.client.pop(DispositionReceived)
    assert [delivery.tag for delivery in outcome.deliveries] == [b"tag"]
    assert outcome.settled
    assert outcome.state == ACCEPTED


def test_a_refused_send_brings_its_error() -> None:
    wire = opened()
    sender, receiver = client_sends(wire, 10)
    sender.send(b"tag", b"hello", False)
    wire.pump()
    receiver.session.settle(0, Rejected(AmqpError("amqp:link:message-size-exceeded", "too large", {"max": 1})))
    wire.pump()
    state = wire.client.pop(DispositionReceived).state
    assert isinstance(state, Rejected)
    assert condition(state.error) == "amqp:link:message-size-exceeded"


def test_a_delivery_is_settled_by_the_echo_of_what_was_asked() -> None:
    wire = opened()
    sender, receiver = server_sends(wire, 5)
    assert sender.credit == 5
    sender.send(b"lock", b"message", False)
    wire.pump()
    received = wire.client.pop(TransferReceived)
    receiver.session.dispose(received.delivery_id, Modified(True, False))
    wire.pump()
    asked = wire.server.pop(DispositionReceived)
    assert not asked.settled
    assert asked.state is not None
    sender.session.settle_sent(asked.deliveries[0].delivery_id, asked.state)
    wire.pump()
    echo = wire.client.pop(IncomingSettled)
    assert (echo.first, echo.last, echo.state) == (0, 0, Modified(True, False))
    assert not sender.session.outgoing.unsettled


@pytest.mark.parametrize("chunk_bytes", [0, 1, 777])
def test_a_large_message_crosses_in_many_frames(chunk_bytes: int) -> None:
    small = ConnectionOptions("server", max_frame_size=512)
    wire = opened(ConnectionOptions("client"), small, chunk_bytes)
    sender, _ = client_sends(wire, 10)
    payload = bytes(range(256)) * 100
    sender.send(b"large", payload, False, 7)
    sender.send(b"small", b"", True)
    wire.pump()
    large, little = wire.server.pop_all(TransferReceived)
    assert (large.payload, large.message_format, large.settled) == (payload, 7, False)
    assert (little.payload, little.settled) == (b"", True)


def test_a_window_of_2048_is_respected_and_reopened() -> None:
    client = client_options()
    client.incoming_window = 2_048
    wire = opened(client)
    sender, receiver = server_sends(wire, 10_000)
    for number in range(5_000):
        sender.send(number.to_bytes(4, "big"), b"m", False)
    assert sender.unsent == 5_000 - 2_048
    assert sender.session.window == 0
    wire.carry(wire.server, wire.client)
    assert len(wire.client.pop_all(TransferReceived)) == 2_048
    wire.pump()
    assert len(wire.client.pop_all(TransferReceived)) == 5_000 - 2_048
    assert len(wire.server.pop_all(WindowOpened)) == 1
    assert (sender.unsent, sender.credit, receiver.credit_left) == (0, 5_000, 5_000)
    assert not wire.client.pop_all(SessionEnded), "the window was never overrun"


def test_credit_and_ids_wrap() -> None:
    wire = opened()
    sender, receiver = client_sends(wire, 10, initial_delivery_count=LAST - 3)
    sender.session.outgoing.next_delivery_id = LAST - 2
    for _ in range(3):
        while sender.credit > 0:
            sender.send(b"t", b"m", False)
        wire.pump()
        for received in wire.server.pop_all(TransferReceived):
            receiver.session.settle(received.delivery_id, ACCEPTED)
        receiver.grant(10)
        wire.pump()
    assert sender.delivery_count == (LAST - 3 + 30) & LAST
    assert receiver.delivery_count == sender.delivery_count
    assert sender.credit == 10
    assert sum(len(event.deliveries) for event in wire.client.pop_all(DispositionReceived)) == 30
    assert not sender.session.outgoing.unsettled


def test_drain() -> None:
    wire = opened()
    sender, receiver = server_sends(wire, 0)
    receiver.grant(100, drain=True)
    wire.pump()
    asked = wire.server.pop(FlowReceived)
    assert asked.drain
    sender.send(b"a", b"m", True)
    sender.drained()
    wire.pump()
    wire.client.pop(TransferReceived)
    assert wire.client.pop(FlowReceived).drain
    assert (receiver.credit_left, sender.credit) == (0, 0)
    assert receiver.delivery_count == sender.delivery_count == 100
    receiver.grant(5)
    wire.pump()
    assert sender.credit == 5


def test_detach_end_and_close_from_either_side() -> None:
    wire = opened()
    sender, receiver = client_sends(wire, 1)
    sender.detach()
    wire.pump()
    detached = wire.server.pop(LinkDetached)
    assert (detached.link, detached.error, detached.closed) == (receiver, None, True)
    assert wire.client.pop(DetachConfirmed).link is sender

    other = wire.client.connection.begin()
    wire.pump()
    wire.server.pop_all(SessionBegun)[-1].session.end(AmqpError("amqp:internal-error", "no more"))
    wire.pump()
    ended = wire.client.pop(SessionEnded)
    assert ended.session is other
    assert condition(ended.error) == "amqp:internal-error"
    wire.server.pop(EndConfirmed)

    wire.client.connection.close()
    wire.pump()
    assert wire.server.pop(ConnectionClosed).error is None
    assert wire.client.pop(ConnectionClosed).error is None
    assert wire.client.connection.is_closed and wire.server.connection.is_closed


def test_a_refused_link() -> None:
    wire = opened()
    link = wire.client.connection.begin().attach_receiver("r", Source("nowhere"), Target("t"))
    wire.pump()
    wire.server.pop(AttachRequested).link.refuse(AmqpError("amqp:not-found", "no such entity"))
    wire.pump()
    detached = wire.client.pop(LinkDetached)
    assert detached.link is link
    assert condition(detached.error) == "amqp:not-found"
    assert not wire.client.pop_all(LinkAttached)
    wire.server.pop(DetachConfirmed)


def test_handles_and_channels_are_used_again() -> None:
    wire = opened()
    for _ in range(5):
        sender, receiver = client_sends(wire, 1)
        assert (sender.local_handle, sender.session.local_channel) == (0, 0)
        sender.detach()
        sender.session.end()
        wire.pump()
    assert not wire.server.connection.sessions
    assert not wire.client.connection.sessions


def test_everything_may_be_asked_for_before_the_server_answers() -> None:
    wire = WirePair()
    wire.client.connection.open()
    session = wire.client.connection.begin()
    receiver = session.attach_receiver("r", Source("q"), Target("t"))
    receiver.grant(3)
    wire.pump()
    link = wire.server.pop(AttachRequested).link
    assert link.credit == 3
    link.accept(Source("q"), Target("t"))
    assert wire.server.pop(FlowReceived).link is link


def test_heartbeats_pass_both_ways_and_silence_ends_it() -> None:
    server = server_options()
    server.idle_timeout_ms = 10_000
    wire = opened(server=server)
    for _ in range(100):
        wire.advance(5_000)
        wire.pump()
    assert not wire.server.connection.is_closed
    wire.advance(20_000)  # the cable is cut: nothing is carried
    assert wire.server.connection.is_closed
    assert condition(wire.server.pop(ConnectionClosed).error) == "amqp:resource-limit-exceeded"


@settings(max_examples=40, deadline=None)
@given(
    payloads=st.lists(st.binary(max_size=3_000), max_size=12),
    frame_size=st.sampled_from([512, 600, 65_536]),
    window=st.sampled_from([1, 2, 3, 7, 2_048]),
    chunk_bytes=st.sampled_from([0, 5, 511]),
)
def test_whatever_is_sent_arrives_whole_and_in_order(
    payloads: list[bytes], frame_size: int, window: int, chunk_bytes: int
) -> None:
    client = ConnectionOptions("client", max_frame_size=frame_size, incoming_window=window)
    wire = opened(client, ConnectionOptions("server"), chunk_bytes)
    sender, receiver = server_sends(wire, len(payloads))
    for number, payload in enumerate(payloads):
        sender.send(bytes([number]), payload, False)
    wire.pump()
    received = wire.client.pop_all(TransferReceived)
    assert [(event.tag, event.payload) for event in received] == [
        (bytes([number]), payload) for number, payload in enumerate(payloads)
    ]
    assert [event.delivery_id for event in received] == list(range(len(payloads)))
    for event in received:
        receiver.session.settle(event.delivery_id, ACCEPTED)
    wire.pump()
    assert not sender.session.outgoing.unsettled
    assert sum(len(event.deliveries) for event in wire.server.pop_all(DispositionReceived)) == len(payloads)
