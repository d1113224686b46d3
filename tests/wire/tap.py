"""The frames that a client and the broker spoke, for tests that must see the wire and not only its effect."""

from typing import Any, TypeVar

from spillway.amqp.codec import DecodeBudget
from spillway.amqp.connection import ALL_FRAMES
from spillway.amqp.errors import AmqpError
from spillway.amqp.frames import SASL, FrameParser, decode_body
from spillway.amqp.message import Properties, decode_body_value, decode_map, decode_properties, split_sections
from spillway.amqp.performatives import ROLE_SENDER, Attach, Performative, SaslInit, SaslOutcome, Transfer
from spillway.dialect.peer import Peer

FRAME_BYTES_MAX = 1 << 20
P = TypeVar("P", bound=Performative)


class Said:
    """One frame. `payload` is a transfer's."""

    def __init__(self, is_from_client: bool, channel: int, body: Performative, payload: bytes) -> None:
        self.is_from_client = is_from_client
        self.channel = channel
        self.body = body
        self.payload = payload


class Request:
    """A message of `$cbs` or `$management`, either way."""

    def __init__(self, payload: bytes) -> None:
        sections = split_sections(payload, DecodeBudget())
        self.properties: Properties = decode_properties(payload, sections)
        self.named: dict[object, object] = decode_map(payload, sections.application_properties)
        self.body = decode_body_value(payload, sections)


class Direction:
    """One way of the byte stream: headers, SASL frames, AMQP frames."""

    def __init__(self, is_from_client: bool) -> None:
        self.is_from_client = is_from_client
        self.parser = FrameParser(FRAME_BYTES_MAX)
        self.is_at_header = True

    def feed(self, data: bytes) -> list[Said]:
        said: list[Said] = []
        self.parser.feed(data)
        while True:
            if self.is_at_header:
                header = self.parser.next_header()
                if header is None:
                    return said
                self.is_at_header = False
                continue
            frame = self.parser.next()
            if frame is None:
                return said
            if frame.kind == SASL:
                body, _ = decode_body(frame, DecodeBudget())
                # Behind the client's init and the server's outcome comes the header of AMQP itself.
                self.is_at_header = isinstance(body, SaslInit | SaslOutcome)
            elif frame.at < frame.end:
                body, after = decode_body(frame, DecodeBudget())
                payload = bytes(frame.data[after : frame.end])
                said.append(Said(self.is_from_client, frame.channel, body, payload))


class Spoken:
    """Everything said on one connection, in order."""

    def __init__(self) -> None:
        self.frames: list[Said] = []
        self._client = Direction(True)
        self._broker = Direction(False)
        self.broker_bytes = b""

    def hear(self, is_from_client: bool, data: bytes) -> None:
        self.frames += (self._client if is_from_client else self._broker).feed(data)
        if not is_from_client:
            self.broker_bytes += data

    def of(self, kind: type[P], is_from_client: bool) -> list[P]:
        return [
            said.body for said in self.frames if isinstance(said.body, kind) and said.is_from_client == is_from_client
        ]

    def errors(self) -> list[AmqpError]:
        """Every error that the broker said in a detach, an end, a close or an outcome."""
        found: list[AmqpError] = []
        for said in self.frames:
            for holder in (said.body, getattr(said.body, "state", None)):
                error = getattr(holder, "error", None)
                if not said.is_from_client and isinstance(error, AmqpError):
                    found.append(error)
        return found

    def requests(self, is_from_client: bool, node: str) -> list[Request]:
        """The messages to or from a node, by the address of the link they went over."""
        return [Request(payload) for payload in self.payloads(is_from_client, node)]

    def payloads(self, is_from_client: bool, node: str) -> list[bytes]:
        """What was transferred over links whose address ends so, whole, in one frame each or in several."""
        addresses: dict[tuple[int, int], str] = {}
        unfinished: dict[tuple[int, int], bytes] = {}
        found: list[bytes] = []
        for said in self.frames:
            if said.is_from_client != is_from_client:
                continue
            if isinstance(said.body, Attach):
                addresses[said.channel, said.body.handle] = _address(said.body, is_from_client)
            elif isinstance(said.body, Transfer):
                link = (said.channel, said.body.handle)
                payload = unfinished.pop(link, b"") + said.payload
                if said.body.more:
                    unfinished[link] = payload
                elif addresses[link].endswith(node):
                    found.append(payload)
        return found


def _address(attach: Attach, is_from_client: bool) -> str:
    """The node that a link leads to: its target where the client sends, else its source."""
    is_client_sending = (attach.role == ROLE_SENDER) == is_from_client
    end = attach.target if is_client_sending else attach.source
    return str(getattr(end, "address", "") or "")


class Tap:
    """The connections made while it was listening, in order."""

    def __init__(self) -> None:
        self.connections: list[Spoken] = []

    def of(self, kind: type[P], is_from_client: bool) -> list[P]:
        return [body for spoken in self.connections for body in spoken.of(kind, is_from_client)]


class TappedPeer:
    """A peer with a tap on both sides of it; all else is the peer's own."""

    def __init__(self, peer: Peer, tap: Tap) -> None:
        self.peer = peer
        self.spoken = Spoken()
        tap.connections.append(self.spoken)

    def receive(self, data: bytes, now_ms: int, frames_max: int = ALL_FRAMES) -> None:
        self.spoken.hear(True, data)
        self.peer.receive(data, now_ms, frames_max)

    def drain_output(self) -> list[bytes]:
        parts = self.peer.drain_output()
        for part in parts:
            self.spoken.hear(False, bytes(part))
        return parts

    def __getattr__(self, name: str) -> Any:
        return getattr(self.peer, name)
