"""Two connections back to back, without sockets, under a clock that only moves when told to."""

from typing import TypeVar

from spillway.amqp.connection import Connection, ConnectionOptions
from spillway.amqp.events import ConnectionEvent, SaslRequested

E = TypeVar("E", bound=ConnectionEvent)

ROUNDS_MAX = 10_000  # two ends that never fall silent are a fault of ours


def client_options() -> ConnectionOptions:
    return ConnectionOptions("client", hostname="localhost", sasl_mechanisms=["ANONYMOUS"])


def server_options() -> ConnectionOptions:
    return ConnectionOptions("server", sasl_mechanisms=["MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL"])


class WireEnd:
    """One end of the wire: a connection and the events it has told so far."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.events: list[ConnectionEvent] = []

    def collect(self) -> None:
        self.events += self.connection.drain_events()

    def pop(self, kind: type[E]) -> E:
        """The oldest event of a kind, which must be there; it is taken away."""
        self.collect()
        for index, event in enumerate(self.events):
            if isinstance(event, kind):
                del self.events[index]
                return event
        raise AssertionError(f"no {kind.__name__} among {[type(event).__name__ for event in self.events]}")

    def pop_all(self, kind: type[E]) -> list[E]:
        """All events of a kind; they are taken away."""
        self.collect()
        found = [event for event in self.events if isinstance(event, kind)]
        self.events = [event for event in self.events if not isinstance(event, kind)]
        return found


class WirePair:
    """A client and a server. The server lets everyone in through SASL; all else is for the test to decide."""

    def __init__(
        self,
        client: ConnectionOptions | None = None,
        server: ConnectionOptions | None = None,
        now_ms: int = 1_000_000,
        chunk_bytes: int = 0,
    ) -> None:
        self.now_ms = now_ms
        self.chunk_bytes = chunk_bytes
        self.client = WireEnd(Connection(client or client_options(), False, now_ms))
        self.server = WireEnd(Connection(server or server_options(), True, now_ms))
        self.bytes_carried = 0

    def open(self) -> None:
        """Carry out the whole opening."""
        self.client.connection.open()
        self.pump()

    def pump(self) -> None:
        """Carry bytes both ways until both ends are silent."""
        for _ in range(ROUNDS_MAX):
            carried = self.carry(self.client, self.server)
            carried += self.carry(self.server, self.client)
            if carried == 0:
                return
        raise AssertionError("the two ends never fall silent")

    def carry(self, source: WireEnd, sink: WireEnd) -> int:
        """Carry what one end has to say to the other."""
        data = b"".join(source.connection.drain_output())
        step = self.chunk_bytes or max(len(data), 1)
        for at in range(0, len(data), step):
            sink.connection.receive(data[at : at + step], self.now_ms)
            sink.collect()
            self.let_in(sink)
        source.collect()
        self.bytes_carried += len(data)
        return len(data)

    def let_in(self, end: WireEnd) -> None:
        for _ in [event for event in end.events if isinstance(event, SaslRequested)]:
            end.connection.sasl_done(0)
        end.events = [event for event in end.events if not isinstance(event, SaslRequested)]
        end.collect()

    def advance(self, ms: int) -> None:
        """Let time pass for both ends at once, without carrying anything."""
        self.now_ms += ms
        self.client.connection.tick(self.now_ms)
        self.server.connection.tick(self.now_ms)
