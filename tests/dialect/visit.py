"""A client connection and a peer back to back, without sockets; the broker behind the peer is the test's business."""

import base64
import hashlib
import hmac
import itertools
import uuid
from typing import TypeVar
from urllib.parse import quote

from spillway.amqp.codec import DecodeBudget
from spillway.amqp.connection import Connection, ConnectionOptions
from spillway.amqp.events import ConnectionEvent, LinkAttached, LinkDetached, TransferReceived
from spillway.amqp.link import Link
from spillway.amqp.message import (
    Properties,
    Sections,
    decode_body_value,
    decode_map,
    decode_properties,
    encode_amqp_value,
    encode_data,
    encode_message,
    split_sections,
)
from spillway.amqp.performatives import Source, Target, Terminus
from spillway.amqp.session import Session
from spillway.broker.commands import Command, CreateEntity, Undelivered
from spillway.broker.effects import Attached, Deliver, Effect
from spillway.dialect.peer import Peer, PeerOptions
from spillway.dialect.rights import LISTEN, MANAGE, SEND, AccessRule, Rights
from spillway.model import limits
from spillway.model.entity import QUEUE, EntitySettings, entity_key
from spillway.testing.core import CoreHarness

E = TypeVar("E", bound=ConnectionEvent)
C = TypeVar("C", bound=Command)

NOW_MS = 1_700_000_000_000
HOUR_S = 3_600
KEY = "c2VjcmV0LWtleQ=="
ROOT = "RootManageSharedAccessKey"

RULES = [
    AccessRule(ROOT, MANAGE, KEY),
    AccessRule("sender", SEND, "send-key", "send-key-2"),
    AccessRule("listener", LISTEN, "listen-key"),
]


def sas_token(
    audience: str = "sb://localhost:5672/q", name: str = ROOT, key: str = KEY, expires_s: int = NOW_MS // 1000 + HOUR_S
) -> str:
    """As the SDKs sign it."""
    resource = quote(audience, safe="")
    digest = hmac.new(key.encode(), f"{resource}\n{expires_s}".encode(), hashlib.sha256).digest()
    return (
        f"SharedAccessSignature sr={resource}&sig={quote(base64.b64encode(digest), safe='')}&se={expires_s}&skn={name}"
    )


class Names:
    """A directory of queues."""

    def __init__(self, *paths: str) -> None:
        self.keys = {entity_key(path) for path in paths}

    def exists(self, path: str) -> bool:
        return entity_key(path).removesuffix("/$deadletterqueue") in self.keys


class Numbers:
    def __init__(self) -> None:
        self.sequence = itertools.count(1)

    def next(self) -> int:
        return next(self.sequence)


class Tracking:
    def __init__(self) -> None:
        self.ids = itertools.count(1)

    def tracking_text(self, entity: str, now_ms: int) -> str:
        return f" TrackingId:{uuid.UUID(int=next(self.ids))}_G0, SystemTracker:{entity}, Timestamp:2024-01-01T00:00:00"

    def new_message_id(self) -> str:
        return f"{next(self.ids):032x}"


class Answer:
    """A response as the client reads it."""

    def __init__(self, payload: bytes) -> None:
        sections = split_sections(payload, DecodeBudget())
        self.correlation_id = decode_properties(payload, sections).correlation_id
        self.properties = decode_map(payload, sections.application_properties)
        self.body = decode_body_value(payload, sections)


class Visit:
    """One client. `now_ms` is the time for both ends."""

    def __init__(
        self,
        mechanism: str = "ANONYMOUS",
        response: bytes = b"",
        *,
        is_plain_allowed: bool = True,
        names: Names | None = None,
        now_ms: int = NOW_MS,
        hostname: str = "localhost",
    ) -> None:
        self.now_ms = now_ms
        self.directory = names or Names("q", "other", "deep/q")
        self.tracking = Tracking()
        self.peer = Peer(
            PeerOptions("ns"), self.directory, Rights(RULES), Numbers(), self.tracking, is_plain_allowed, now_ms
        )
        self.connection = Connection(
            ConnectionOptions("visitor", hostname=hostname, sasl_mechanisms=[mechanism], sasl_response=response),
            False,
            now_ms,
        )
        self.events: list[ConnectionEvent] = []
        self.commands: list[Command] = []
        self.cbs_pair: tuple[Link, Link] | None = None
        self.connection.open()
        self.session = self.connection.begin()
        self.pump()

    # -- the wire -----------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Carry bytes both ways until both ends are silent."""
        while True:
            out = b"".join(self.connection.drain_output())
            if out:
                self.peer.receive(out, self.now_ms)
            back = b"".join(self.peer.drain_output())
            if back:
                self.connection.receive(back, self.now_ms)
            self.events += self.connection.drain_events()
            self.commands += self.peer.pop_commands(10_000, 1 << 30)
            if not out and not back:
                return

    def take(self, kind: type[E]) -> E:
        """The oldest event of a kind; it must be there."""
        self.pump()
        for index, event in enumerate(self.events):
            if isinstance(event, kind):
                del self.events[index]
                return event
        raise AssertionError(f"no {kind.__name__} among {[type(event).__name__ for event in self.events]}")

    def has(self, kind: type[ConnectionEvent]) -> bool:
        self.pump()
        return any(isinstance(event, kind) for event in self.events)

    def command(self, kind: type[C]) -> C:
        """The oldest command of a kind; it must be there."""
        self.pump()
        for index, command in enumerate(self.commands):
            if isinstance(command, kind):
                del self.commands[index]
                return command
        raise AssertionError(f"no {kind.__name__} among {[type(command).__name__ for command in self.commands]}")

    def has_command(self, kind: type[Command]) -> bool:
        self.pump()
        return any(isinstance(command, kind) for command in self.commands)

    def dispatch(self, effect: Effect) -> bool:
        is_spoken = self.peer.dispatch(effect, self.now_ms)
        self.pump()
        return is_spoken

    def advance(self, ms: int) -> None:
        """Let time pass, with a heartbeat of the client every minute."""
        until_ms = self.now_ms + ms
        while self.now_ms < until_ms:
            self.now_ms = min(self.now_ms + 60_000, until_ms)
            self.connection.tick(self.now_ms)
            self.peer.tick(self.now_ms)
            self.pump()

    # -- links --------------------------------------------------------------------------------------------------

    def sender(self, address: str = "q", target: Terminus | None = None, session: Session | None = None) -> Link:
        link = (session or self.session).attach_sender(
            f"s-{uuid.uuid4()}", Source(address="me"), target or Target(address=address), rcv_settle_mode=1
        )
        self.pump()
        return link

    def receiver(
        self,
        address: str = "q",
        *,
        deletes: bool = False,
        source: Source | None = None,
        target: str | None = "me",
        name: str | None = None,
        session: Session | None = None,
    ) -> Link:
        link = (session or self.session).attach_receiver(
            name or f"r-{uuid.uuid4()}",
            source or Source(address=address),
            Target(address=target),
            snd_settle_mode=1 if deletes else 0,
            rcv_settle_mode=0 if deletes else 1,
        )
        self.pump()
        return link

    def attached(self, link: Link) -> int:
        """Answer the last attach as the core would; the link's number."""
        number = max(self.peer.links)
        assert self.dispatch(Attached(number))
        assert link.is_open
        self.take(LinkAttached)
        return number

    def refusal(self, link: Link) -> tuple[str, str]:
        """Condition and text of a link that was refused or ended."""
        event = self.take(LinkDetached)
        assert event.link is link
        assert event.error is not None
        return event.error.condition, event.error.description or ""

    # -- requests -----------------------------------------------------------------------------------------------

    def pair(self, address: str, session: Session | None = None) -> tuple[Link, Link]:
        """A sender and a receiver on a node, as Python attaches them."""
        back = self.receiver(address, target=address, session=session)
        out = self.sender(address, session=session)
        assert back.is_open
        assert out.is_open
        back.grant(100)
        self.pump()
        self.events = [event for event in self.events if not isinstance(event, LinkAttached)]
        return out, back

    def ask(
        self,
        out: Link,
        properties: dict[object, object],
        body: object,
        message_id: object = None,
        reply_to: str | None = None,
    ) -> object:
        message_id = message_id or uuid.uuid4()
        payload = encode_message(
            properties=Properties(message_id=message_id, reply_to=reply_to),
            application_properties=properties,
            body=encode_amqp_value(body),
        )
        out.send(b"\x01", payload, False)
        self.pump()
        return message_id

    def answer(self) -> Answer:
        event = self.take(TransferReceived)
        assert event.settled
        return Answer(event.payload)

    def put_token(self, token: str | None = None, name: str = "sb://localhost:5672/q") -> Answer:
        if self.cbs_pair is None:
            self.cbs_pair = self.pair("$cbs")
        properties: dict[object, object] = {"operation": "put-token", "type": "jwt", "name": name}
        self.ask(self.cbs_pair[0], properties, sas_token(name) if token is None else token)
        return self.answer()

    def authorised(self) -> "Visit":
        assert self.put_token().properties["status-code"] == 202
        self.events.clear()
        return self


def body_message(body: bytes = b"hello", **properties: object) -> bytes:
    """A message as a client encodes it."""
    made = Properties(message_id="m1")
    for name, value in properties.items():
        setattr(made, name, value)
    return encode_message(properties=made, body=encode_data(body))


def sections_of(payload: bytes) -> Sections:
    return split_sections(payload, DecodeBudget())


class Whole(Visit):
    """The visit with a real core behind the peer: a queue `q` that takes what is sent to it."""

    def __init__(
        self, settings: EntitySettings | None = None, mechanism: str = "ANONYMOUS", response: bytes = b""
    ) -> None:
        self.core = CoreHarness(NOW_MS)
        self.core.apply(CreateEntity(1_000_000, QUEUE, "q", settings or EntitySettings()))
        super().__init__(mechanism, response)
        self.peer.missing.directory = self.core.namespace

    def run(self) -> None:
        """Let commands and effects go round until nothing is left to do."""
        self.pump()
        while self.commands:
            commands = self.commands
            self.commands = []
            self.core.now_ms = self.now_ms
            self.speak(self.core.apply(*commands))
            self.pump()

    def speak(self, effects: list[Effect]) -> None:
        for effect in effects:
            is_spoken = self.peer.dispatch(effect, self.now_ms)
            if not is_spoken and isinstance(effect, Deliver) and effect.lock_token:
                self.commands.append(Undelivered(effect.path, effect.lock_token))

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        self.core.now_ms = self.now_ms
        self.peer.tick(self.now_ms)
        self.speak(self.core.apply())
        self.run()

    def open_sender(self, address: str = "q") -> Link:
        link = self.sender(address)
        self.run()
        assert link.is_open
        return link

    def open_receiver(self, address: str = "q", *, deletes: bool = False, credit: int = 0) -> Link:
        link = self.receiver(address, deletes=deletes)
        self.run()
        assert link.is_open
        if credit:
            link.grant(credit)
        self.run()
        return link

    def deliveries(self) -> list[TransferReceived]:
        self.run()
        found = [event for event in self.events if isinstance(event, TransferReceived)]
        self.events = [event for event in self.events if not isinstance(event, TransferReceived)]
        return found


MESSAGE_BYTES_MAX = limits.MESSAGE_BYTES_MAX
