"""qpid-proton's blocking client against a small server on the engine, over a real socket."""

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from proton import Message
from proton.utils import BlockingConnection, LinkDetached, SendException

from spillway.amqp.connection import Connection, ConnectionOptions
from spillway.amqp.errors import AmqpError
from spillway.amqp.events import (
    AttachRequested,
    DispositionReceived,
    FlowReceived,
    SaslRequested,
    TransferReceived,
    TransferTooLarge,
)
from spillway.amqp.link import Link
from spillway.amqp.performatives import ACCEPTED, Rejected, Target

CREDIT = 10
SIZE_MAX = 300_000
TIMEOUT_S = 10


class TinyBroker:
    """One queue in memory: what is sent is handed out again, in order."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"amqp://127.0.0.1:{self.listener.getsockname()[1]}"
        self.waiting: list[tuple[bytes, int]] = []
        self.settled = 0
        self.ended_well = 0
        self.mutex = threading.Lock()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            try:
                peer, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.serve, args=(peer,), daemon=True).start()

    def serve(self, peer: socket.socket) -> None:
        now_ms = time.monotonic_ns() // 1_000_000
        options = ConnectionOptions("tiny", sasl_mechanisms=["PLAIN", "ANONYMOUS"], max_frame_size=4_096)
        connection = Connection(options, True, now_ms)
        with peer:
            while not connection.is_closed:
                data = peer.recv(65_536)
                if not data:
                    return
                connection.receive(data, time.monotonic_ns() // 1_000_000)
                with self.mutex:
                    self.answer(connection)
                peer.sendall(b"".join(connection.drain_output()))
            self.ended_well += 1

    def answer(self, connection: Connection) -> None:
        events = connection.drain_events()
        while events:
            for event in events:
                if isinstance(event, SaslRequested):
                    connection.sasl_done(0)
                elif isinstance(event, AttachRequested):
                    self.attach(event.link)
                elif isinstance(event, FlowReceived):
                    self.hand_out(event.link, event.drain)
                elif isinstance(event, TransferReceived):
                    self.waiting.append((event.payload, event.message_format))
                    event.link.session.settle(event.delivery_id, ACCEPTED)
                    event.link.grant(CREDIT)
                elif isinstance(event, TransferTooLarge):
                    error = AmqpError("amqp:link:message-size-exceeded", f"{event.size} bytes")
                    event.link.session.settle(event.delivery_id, Rejected(error))
                elif isinstance(event, DispositionReceived):
                    self.settled += len(event.deliveries)
            events = connection.drain_events()

    def attach(self, link: Link) -> None:
        attach = link.attach
        assert attach is not None
        address = attach.source.address if link.is_sender and attach.source is not None else None
        if not link.is_sender and isinstance(attach.target, Target):
            address = attach.target.address
        if address != "queue":
            link.refuse(AmqpError("amqp:not-found", f"no {address} here"))
            return
        link.accept(attach.source, attach.target, max_message_size=SIZE_MAX)
        if not link.is_sender:
            link.grant(CREDIT)

    def hand_out(self, link: Link, drain: bool) -> None:
        while self.waiting and link.credit > 0:
            payload, message_format = self.waiting.pop(0)
            link.send(link.delivery_count.to_bytes(16, "big"), payload, False, message_format)
        if drain:
            link.drained()


@pytest.fixture
def broker() -> Iterator[TinyBroker]:
    broker = TinyBroker()
    yield broker
    broker.listener.close()


@pytest.fixture
def connection(broker: TinyBroker) -> Iterator[Any]:
    connection = BlockingConnection(broker.url, timeout=TIMEOUT_S, sasl_enabled=True, allowed_mechs="ANONYMOUS")
    yield connection
    connection.close()


def test_proton_sends_and_receives(broker: TinyBroker, connection: Any) -> None:
    sender = connection.create_sender("queue")
    bodies = [f"message {number}" for number in range(50)] + ["x" * 100_000]  # the last in many frames, both ways
    for body in bodies:
        sender.send(Message(body=body, id=body[:20]))
    receiver = connection.create_receiver("queue", credit=5)
    received = []
    for _ in bodies:
        received.append(receiver.receive(timeout=TIMEOUT_S).body)
        receiver.accept()
    assert received == bodies
    sender.close()
    receiver.close()
    connection.close()
    assert broker.settled == len(bodies)


def test_proton_hears_of_a_refused_link(connection: Any) -> None:
    with pytest.raises(LinkDetached, match="amqp:not-found"):
        connection.create_sender("elsewhere")


def test_proton_hears_of_a_refused_message_and_goes_on(broker: TinyBroker, connection: Any) -> None:
    sender = connection.create_sender("queue")
    with pytest.raises(SendException):
        sender.send(Message(body="x" * (SIZE_MAX + 1)))
    sender.send(Message(body="small"))
    assert len(broker.waiting) == 1


def test_proton_logs_in_with_plain_and_closes_in_order(broker: TinyBroker) -> None:
    connection: Any = BlockingConnection(
        broker.url, timeout=TIMEOUT_S, user="name", password="key", allowed_mechs="PLAIN", allow_insecure_mechs=True
    )
    connection.create_sender("queue").close()
    connection.close()
    deadline = time.monotonic() + TIMEOUT_S
    while broker.ended_well == 0 and time.monotonic() < deadline:
        threading.Event().wait(0.01)
    assert broker.ended_well == 1
