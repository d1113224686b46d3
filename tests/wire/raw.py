"""A client of a few lines on a bare socket, for what no SDK would do on purpose."""

import socket
from typing import TypeVar

from spillway.amqp.connection import Connection, ConnectionOptions
from spillway.amqp.events import ConnectionEvent, ConnectionOpened, LinkAttached, TransferReceived
from spillway.amqp.link import Link
from spillway.amqp.performatives import RCV_SECOND, Source, Target
from spillway.server.keys import DEVELOPMENT_KEY, KEY_NAME

TIMEOUT_S = 20.0
E = TypeVar("E", bound=ConnectionEvent)


class RawClient:
    """Logged in by SASL PLAIN, so it needs no token. Time stands still for it: it never sends a heartbeat."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        self.engine = Connection(
            ConnectionOptions(
                "raw",
                hostname="localhost",
                sasl_mechanisms=["PLAIN"],
                sasl_response=f"\0{KEY_NAME}\0{DEVELOPMENT_KEY}".encode(),
            ),
            False,
            0,
        )
        self.events: list[ConnectionEvent] = []
        self.engine.open()
        self.wait(ConnectionOpened)
        self.session = self.engine.begin()

    def flush(self) -> None:
        self.socket.sendall(b"".join(self.engine.drain_output()))

    def wait(self, kind: type[E]) -> E:
        """The oldest event of a kind; it is taken away."""
        while True:
            self.flush()
            for index, event in enumerate(self.events):
                if isinstance(event, kind):
                    del self.events[index]
                    return event
            data = self.socket.recv(1 << 16)
            assert data, f"closed before {kind.__name__}"
            self.engine.receive(data, 0)
            self.events += self.engine.drain_events()

    def sender(self, path: str) -> Link:
        link = self.session.attach_sender("raw sender", Source("raw"), Target(path))
        self.wait(LinkAttached)
        return link

    def receiver(self, path: str) -> Link:
        link = self.session.attach_receiver("raw receiver", Source(path), Target("raw"), rcv_settle_mode=RCV_SECOND)
        self.wait(LinkAttached)
        return link

    def receive(self, link: Link, count: int) -> list[TransferReceived]:
        link.grant(count)
        return [self.wait(TransferReceived) for _ in range(count)]

    def close(self) -> None:
        self.socket.close()
