"""A service in a few lines, on the engine's server side and a real socket: says what a test tells it to say.

It knows `$cbs`, one kind of sender and receiver link, and `$management` as a function. Nothing is stored and nobody
is checked: what is under test is the client.
"""

import asyncio
import ssl
import uuid
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import cast

from spillway.amqp.codec import DecodeBudget
from spillway.amqp.connection import Connection as Engine
from spillway.amqp.connection import ConnectionOptions
from spillway.amqp.errors import AmqpError
from spillway.amqp.events import (
    AttachRequested,
    ConnectionEvent,
    DispositionReceived,
    FlowReceived,
    LinkDetached,
    SaslRequested,
    TransferReceived,
)
from spillway.amqp.link import Link
from spillway.amqp.message import (
    Properties,
    decode_body_value,
    decode_map,
    decode_properties,
    encode_amqp_value,
    encode_message,
    split_sections,
)
from spillway.amqp.performatives import ACCEPTED, DeliveryState, Rejected, Source, Target
from spillway.amqp.types import Int, Symbol

Answer = tuple[int, str | None, object]  # status, error condition, body
KEY = "c2NyaXB0ZWQ="


class ScriptedServer:
    """What to say is in its public attributes; what was heard is in its lists."""

    def __init__(self) -> None:
        # -- what to say
        self.credit = 1000
        self.max_message_size = 262_144
        self.token_status = 202
        self.sasl_code = 0
        self.idle_timeout_ms = 240_000
        self.tls: ssl.SSLContext | None = None
        self.answers_drain = True
        self.refusals: dict[str, AmqpError] = {}
        self.silent_paths: set[str] = set()
        self.on_send: Callable[[bytes, int], DeliveryState | None] = lambda payload, message_format: ACCEPTED
        self.on_settle: Callable[[DeliveryState | None], DeliveryState | None] = echo
        self.on_request: Callable[[str, dict[object, object], object], Answer] = lambda operation, properties, body: (
            501,
            "amqp:not-implemented",
            {},
        )
        self.outgoing: deque[bytes] = deque()
        self.holds_answers = False
        # -- what was heard
        self.received: list[tuple[bytes, int]] = []
        self.settlements: list[tuple[int, bool, DeliveryState | None]] = []
        self.tokens: asyncio.Queue[tuple[dict[object, object], object]] = asyncio.Queue()
        self.detached: asyncio.Queue[str] = asyncio.Queue()
        self.attached: list[Link] = []
        self.held: list[Callable[[], object]] = []  # answers of $management that were not given
        self.peers: list[Peer] = []
        self.port = 0
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> "ScriptedServer":
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Peer(self), "127.0.0.1", 0, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for peer in self.peers:
            peer.drop()
        await self._server.wait_closed()

    @property
    def connection_string(self) -> str:
        return (
            f"Endpoint=sb://localhost:{self.port};SharedAccessKeyName=Root;SharedAccessKey={KEY};"
            "UseDevelopmentEmulator=true;"
        )

    def deliver(self, *messages: bytes) -> None:
        """Messages for whoever has credit."""
        self.outgoing.extend(messages)
        for peer in self.peers:
            peer.serve_all()
            peer.flush()

    def link_to(self, path: str) -> Link:
        return next(link for link in self.attached if path_of(link) == path and not link.is_detached)


class Peer(asyncio.Protocol):
    """One connection of the scripted server."""

    def __init__(self, server: ScriptedServer) -> None:
        self.server = server
        self.loop = asyncio.get_running_loop()
        self.engine = Engine(
            ConnectionOptions(
                container_id="scripted",
                sasl_mechanisms=["MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL"],
                idle_timeout_ms=server.idle_timeout_ms,
            ),
            True,
            0,
        )
        self.transport: asyncio.Transport | None = None
        self.bytes_received = 0
        self.links: list[Link] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.server.peers.append(self)

    def data_received(self, data: bytes) -> None:
        self.bytes_received += len(data)
        self.engine.receive(data, int(self.loop.time() * 1000))
        for event in self.engine.drain_events():
            self.on_event(event)
        self.flush()

    def flush(self) -> None:
        assert self.transport is not None
        self.transport.writelines(self.engine.drain_output())
        if self.engine.is_closed:
            self.transport.close()

    def drop(self) -> None:
        assert self.transport is not None
        self.transport.abort()

    def on_event(self, event: ConnectionEvent) -> None:
        if isinstance(event, TransferReceived):
            self.on_transfer(event)
        elif isinstance(event, DispositionReceived):
            for delivery in event.deliveries:
                self.server.settlements.append((delivery.delivery_id, event.settled, event.state))
            answer = self.server.on_settle(event.state)
            if not event.settled and answer is not None:
                for delivery in event.deliveries:
                    delivery.link.session.settle_sent(delivery.delivery_id, answer)
        elif isinstance(event, FlowReceived):
            self.serve(event.link)
            if event.drain and self.server.answers_drain:
                event.link.drained()
        elif isinstance(event, AttachRequested):
            self.on_attach(event.link)
        elif isinstance(event, SaslRequested):
            self.engine.sasl_done(self.server.sasl_code)
        elif isinstance(event, LinkDetached):
            self.server.detached.put_nowait(path_of(event.link))

    def on_attach(self, link: Link) -> None:
        path = path_of(link)
        self.links.append(link)
        self.server.attached.append(link)
        assert link.attach is not None
        if path in self.server.refusals:
            link.refuse(self.server.refusals[path])
        elif path not in self.server.silent_paths:
            link.accept(
                link.attach.source or Source(), link.attach.target or Target(), None, self.server.max_message_size
            )
            if not link.is_sender:
                link.grant(100 if "$" in path else self.server.credit)

    def on_transfer(self, event: TransferReceived) -> None:
        link = event.link
        path = path_of(link)
        if path == "$cbs" or path.endswith("/$management"):
            link.session.settle(event.delivery_id, ACCEPTED)
            link.grant(100)
            self.answer(link, path, event.payload)
            return
        self.server.received.append((event.payload, event.message_format))
        state = self.server.on_send(event.payload, event.message_format)
        if state is not None and not event.settled:
            link.session.settle(event.delivery_id, state)
        if link.credit_left <= self.server.credit // 2:
            link.grant(self.server.credit)

    def answer(self, link: Link, path: str, payload: bytes) -> None:
        sections = split_sections(payload, DecodeBudget())
        properties = decode_properties(payload, sections)
        values = decode_map(payload, sections.application_properties)
        body = decode_body_value(payload, sections)
        answered: dict[object, object]
        if path == "$cbs":
            self.server.tokens.put_nowait((values, body))
            answered = {"status-code": Int(self.server.token_status), "status-description": "TrackingId:abc_1"}
            answer: object = None
        else:
            status, condition, answer = self.server.on_request(str(values["operation"]), values, body)
            answered = {"statusCode": Int(status), "statusDescription": "because. TrackingId:def_2, SystemTracker:x"}
            if condition is not None:
                answered["errorCondition"] = Symbol(condition)
        reply = next(
            other
            for other in self.links
            if other.is_sender and other.session is link.session and path_of(other) == path
        )
        if reply.is_detached:
            return
        encoded = encode_message(
            properties=Properties(correlation_id=properties.message_id),
            application_properties=answered,
            body=encode_amqp_value(answer),
        )
        if self.server.holds_answers and path != "$cbs":
            self.server.held.append(lambda: reply.send(uuid.uuid4().bytes, encoded, True))
        else:
            reply.send(uuid.uuid4().bytes, encoded, True)

    def serve_all(self) -> None:
        for link in self.links:
            self.serve(link)

    def serve(self, link: Link) -> None:
        path = path_of(link)
        if not link.is_sender or link.is_detached or path == "$cbs" or path.endswith("/$management"):
            return
        settled = link.snd_settle_mode == 1
        while link.credit > 0 and self.server.outgoing:
            link.send(uuid.uuid4().bytes, self.server.outgoing.popleft(), settled)


def path_of(link: Link) -> str:
    assert link.attach is not None
    terminus = link.attach.source if link.is_sender else link.attach.target
    return (terminus.address or "") if isinstance(terminus, Source | Target) else ""


def echo(state: DeliveryState | None) -> DeliveryState | None:
    """As the service does: the outcome that was asked for, and no error in it."""
    return Rejected() if isinstance(state, Rejected) else state


async def until(condition: Callable[[], bool]) -> None:
    """Give way to the loop until something is so; a test that never gets there ends by its time-out."""
    for _ in range(1_000_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never became so")
