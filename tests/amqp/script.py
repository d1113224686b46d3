"""A peer made of bytes: frames written one by one, and the answers read back."""

from spillway.amqp.codec import DecodeBudget
from spillway.amqp.connection import Connection, ConnectionOptions
from spillway.amqp.errors import AmqpError
from spillway.amqp.events import AttachRequested, ConnectionEvent, SaslRequested
from spillway.amqp.frames import (
    AMQP_HEADER,
    SASL_HEADER,
    FrameParser,
    decode_performative,
    encode_frame,
    encode_sasl_frame,
)
from spillway.amqp.link import Link
from spillway.amqp.performatives import (
    Attach,
    Begin,
    Flow,
    Open,
    Performative,
    SaslInit,
    Source,
    Target,
    Transfer,
)

NOW = 1_000
WINDOW = 2_048

Said = tuple[int, Performative, bytes]


class Script:
    """A connection of ours and what its scripted peer has heard from it."""

    def __init__(self, is_server: bool = True, options: ConnectionOptions | None = None) -> None:
        mechanisms = ["PLAIN", "ANONYMOUS"] if is_server else ["ANONYMOUS"]
        self.connection = Connection(options or ConnectionOptions("us", sasl_mechanisms=mechanisms), is_server, NOW)
        self.events: list[ConnectionEvent] = []
        self.headers: list[bytes] = []
        self.raw = b""

    # -- what the peer sends

    def give(self, data: bytes) -> None:
        self.connection.receive(data, NOW)
        self.events += self.connection.drain_events()

    def frame(self, channel: int, performative: Performative, payload: bytes = b"") -> None:
        self.give(encode_frame(channel, performative, payload))

    def log_in(self) -> None:
        self.give(SASL_HEADER + encode_sasl_frame(SaslInit("ANONYMOUS", b"")))
        assert isinstance(self.events[-1], SaslRequested)
        self.connection.sasl_done(0)

    def open(self) -> None:
        """Everything up to an open connection, for a server of ours."""
        if self.connection.options.sasl_mechanisms:
            self.log_in()
        self.give(AMQP_HEADER)
        self.frame(0, Open("peer"))
        self.hear()

    def begin(self, channel: int = 0, incoming_window: int = WINDOW) -> None:
        self.frame(channel, Begin(None, 0, incoming_window, WINDOW))

    def attach(self, handle: int, we_send: bool = False, channel: int = 0, name: str = "") -> Link:
        """The peer attaches; what it asked for is not answered yet."""
        self.frame(
            channel,
            Attach(
                name or f"link-{channel}-{handle}",
                handle,
                we_send,
                source=Source("here"),
                target=Target("there"),
                initial_delivery_count=None if we_send else 0,
            ),
        )
        requested = [event for event in self.events if isinstance(event, AttachRequested)]
        return requested[-1].link

    def attached(self, handle: int, we_send: bool = False, channel: int = 0, name: str = "", credit: int = 100) -> Link:
        """A link that is attached, with credit."""
        link = self.attach(handle, we_send, channel, name)
        assert link.attach is not None
        link.accept(link.attach.source, link.attach.target)
        if we_send:
            self.flow(handle, credit, channel=channel)
        else:
            link.grant(credit)
        return link

    def flow(
        self,
        handle: int,
        credit: int,
        delivery_count: int = 0,
        drain: bool = False,
        channel: int = 0,
        echo: bool = False,
    ) -> None:
        self.frame(channel, Flow(0, WINDOW, 0, WINDOW, handle, delivery_count, credit, drain=drain, echo=echo))

    def transfer(
        self, handle: int, delivery_id: int, payload: bytes = b"x", channel: int = 0, more: bool = False
    ) -> None:
        self.frame(channel, Transfer(handle, delivery_id, b"tag", 0, False, more), payload)

    # -- what it hears

    def hear(self) -> list[Said]:
        """Every frame since the last time: channel, performative, payload."""
        data = b"".join(self.connection.drain_output())
        self.raw += data
        parser = FrameParser(1 << 30)
        while data[:4] == b"AMQP" or data[5:6] == b"\x01":
            # headers and SASL frames come first, and only there
            size = 8 if data[:4] == b"AMQP" else int.from_bytes(data[:4], "big")
            if data[:4] == b"AMQP":
                self.headers.append(data[:8])
            data = data[size:]
        parser.feed(data)
        heard: list[Said] = []
        while (frame := parser.next()) is not None:
            if frame.at == frame.end:
                continue
            body, at = decode_performative(frame.data, frame.at, frame.end, DecodeBudget())
            heard.append((frame.channel, body, frame.data[at : frame.end]))
        return heard

    def heard(self, kind: type[Performative]) -> list[Performative]:
        """The performatives of a kind since the last time."""
        return [body for _, body, _ in self.hear() if isinstance(body, kind)]


def condition(error: AmqpError | None) -> str:
    assert error is not None, "an error was to be told"
    return error.condition
