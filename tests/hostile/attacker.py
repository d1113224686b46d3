"""A client that says exactly what it is told to say, right or wrong, over a real socket.

It writes bytes and performatives without checking anything and reads back what the broker answers, frame by frame.
"""

import socket
import struct
import time
from types import TracebackType
from typing import Self, TypeVar

from spillway.amqp.codec import DecodeBudget
from spillway.amqp.errors import AmqpError
from spillway.amqp.frames import AMQP_HEADER, SASL_HEADER, decode_performative, encode_frame, encode_sasl_frame
from spillway.amqp.message import Properties, encode_amqp_value, encode_data, encode_message
from spillway.amqp.performatives import (
    ACCEPTED,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Open,
    Performative,
    SaslInit,
    SaslOutcome,
    Source,
    Target,
    Transfer,
)
from spillway.amqp.sasl import write_plain
from spillway.client.credentials import sign_sas

KEY_NAME = "RootManageSharedAccessKey"
KEY = "SAS_KEY_VALUE"
# The promise is one second; the machine that runs the tests may be busy with others.
ANSWER_S = 15.0
TARGET = "target"  # the queue that attackers use

P = TypeVar("P", bound=Performative)


class Hangup(AssertionError):
    """The broker closed the socket before it said what was awaited."""


class Attacker:
    """`answers` is everything the broker has said so far, in order, as (channel, performative)."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.received = bytearray()
        self.answers: list[tuple[int, Performative]] = []
        self.payloads: list[bytes] = []
        self.is_over = False  # the broker has closed the socket
        self._looked = 0

    # -- saying

    def say(self, data: bytes) -> None:
        """A broker that has closed already is not listening: what it said before that is what counts."""
        try:
            self.socket.sendall(data)
        except OSError:
            pass

    def tell(self, *performatives: Performative, channel: int = 0) -> None:
        self.say(b"".join(encode_frame(channel, performative) for performative in performatives))

    def transfer(self, transfer: Transfer, payload: bytes, channel: int = 0) -> None:
        self.say(encode_frame(channel, transfer, payload))

    # -- hearing

    def header(self) -> bytes:
        """The eight bytes of a protocol header."""
        deadline = time.monotonic() + ANSWER_S
        while len(self.received) < 8:
            self._read(deadline)
        header = bytes(self.received[:8])
        del self.received[:8]
        return header

    def hear(self, kind: type[P], within_s: float = ANSWER_S) -> P:
        """The next performative of this kind; what comes before it is passed over, and kept in `answers`."""
        deadline = time.monotonic() + within_s
        while True:
            while self._looked < len(self.answers):
                _, answer = self.answers[self._looked]
                self._looked += 1
                if isinstance(answer, kind):
                    return answer
            self._read(deadline)

    def hear_end(self, within_s: float = ANSWER_S) -> bytes:
        """Until the broker hangs up. What it said that is no frame."""
        deadline = time.monotonic() + within_s
        while not self.is_over:
            try:
                self._read(deadline)
            except Hangup:
                break
        return bytes(self.received)

    def drain(self) -> None:
        """Read what is there now, and no more."""
        self.socket.setblocking(False)
        try:
            while data := self.socket.recv(262_144):
                self.received += data
            self.is_over = True
        except OSError:
            pass
        self.socket.settimeout(ANSWER_S)
        self._parse()

    def said(self, kind: type[P]) -> list[P]:
        return [answer for _, answer in self.answers if isinstance(answer, kind)]

    def _read(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        assert left > 0, f"no answer in time; so far: {[type(answer).__name__ for _, answer in self.answers[-5:]]}"
        self.socket.settimeout(left)
        try:
            data = self.socket.recv(262_144)
        except ConnectionError:
            data = b""
        if not data:
            self.is_over = True
            raise Hangup(f"the broker hung up; so far: {[type(answer).__name__ for _, answer in self.answers[-5:]]}")
        self.received += data
        self._parse()

    def _parse(self) -> None:
        """Frames only: who awaits a header takes it before."""
        received = self.received
        at = 0
        while len(received) - at >= 8 and bytes(received[at : at + 4]) != b"AMQP":
            size, offset, _, channel = struct.unpack_from(">IBBH", received, at)
            if len(received) - at < size:
                break
            if size > offset * 4:
                frame = bytes(received[at : at + size])
                body, after = decode_performative(frame, offset * 4, size, DecodeBudget())
                self.answers.append((channel, body))
                if isinstance(body, Transfer):
                    self.payloads.append(frame[after:])
            at += size
        del received[:at]

    # -- the usual steps

    def sasl(self, mechanism: str = "PLAIN", response: bytes | None = None) -> Self:
        """In by a rule's name and key, which authorises the whole connection; ANONYMOUS authorises nothing."""
        if response is None:
            response = write_plain(KEY_NAME, KEY) if mechanism == "PLAIN" else b""
        self.say(SASL_HEADER)
        assert self.header() == SASL_HEADER
        self.say(encode_sasl_frame(SaslInit(mechanism, response)))
        assert self.hear(SaslOutcome).outcome == 0
        self.say(AMQP_HEADER)
        assert self.header() == AMQP_HEADER
        return self

    def open(self, mechanism: str = "PLAIN", max_frame_size: int = 65_536, channel_max: int = 4_999) -> Self:
        self.sasl(mechanism)
        self.tell(Open("attacker", "localhost", max_frame_size, channel_max))
        self.hear(Open)
        return self

    def begin(self, channel: int = 0, incoming_window: int = 5_000) -> Self:
        self.tell(Begin(None, 0, incoming_window, 5_000), channel=channel)
        self.hear(Begin)
        return self

    def attach_sender(self, handle: int = 0, address: str = TARGET, name: str = "", channel: int = 0) -> Self:
        """Attached, with the credit that the broker grants at once."""
        self.tell(sender(handle, address, name), channel=channel)
        self.hear(Attach)
        self.hear(Flow)
        return self

    def attach_receiver(
        self, handle: int = 1, address: str = TARGET, credit: int = 0, name: str = "", channel: int = 0
    ) -> Self:
        self.tell(receiver(handle, address, name), channel=channel)
        self.hear(Attach)
        if credit:
            self.tell(flow(handle, credit), channel=channel)
        return self

    def send(self, delivery_id: int, payload: bytes, handle: int = 0, message_format: int = 0) -> None:
        self.transfer(
            Transfer(handle, delivery_id, delivery_id.to_bytes(4, "big"), message_format, settled=False), payload
        )

    # -- checks

    def closes_with(self, *conditions: str) -> AmqpError:
        """The connection is closed with one of these conditions, and the socket with it."""
        error = self.hear(Close).error
        assert error is not None, "closed without an error"
        assert error.condition in conditions, (error.condition, error.description)
        self.tell(Close())
        self.hear_end()
        return error

    def ends_with(self, *conditions: str) -> AmqpError:
        """The session is ended with one of these conditions; the connection lives."""
        error = self.hear(End).error
        assert error is not None, "ended without an error"
        assert error.condition in conditions, (error.condition, error.description)
        assert not self.said(Close)
        return error

    def detaches_with(self, *conditions: str) -> AmqpError:
        """The link is detached with one of these conditions; its session lives."""
        detach = self.hear(Detach)
        assert detach.error is not None, "detached without an error"
        assert detach.closed
        assert detach.error.condition in conditions, (detach.error.condition, detach.error.description)
        assert not self.said(End)
        assert not self.said(Close)
        return detach.error

    def is_served(self, channel: int) -> None:
        """The connection lives: another session on it is begun and ended in order."""
        self.begin(channel)
        self.tell(End(), channel=channel)
        assert self.hear(End).error is None

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def sender(handle: int = 0, address: str = TARGET, name: str = "") -> Attach:
    """We send."""
    return Attach(name or f"s{handle}", handle, False, 0, 0, Source("here"), Target(address), initial_delivery_count=0)


def receiver(handle: int = 1, address: str = TARGET, name: str = "") -> Attach:
    """We receive."""
    return Attach(name or f"r{handle}", handle, True, 0, 0, Source(address), Target("here"))


def flow(
    handle: int | None, credit: int | None, delivery_count: int | None = 0, drain: bool = False, echo: bool = False
) -> Flow:
    return Flow(0, 5_000, 0, 5_000, handle, delivery_count, credit, drain=drain, echo=echo)


def accept(first: int, last: int | None = None, settled: bool = False) -> Disposition:
    return Disposition(True, first, last, settled, ACCEPTED)


def message(body: bytes = b"x", message_id: object = "m") -> bytes:
    return encode_message(properties=Properties(message_id=message_id), body=encode_data(body))


def put_token(number: int, audience: str, token: str | None = None) -> bytes:
    """A put-token request, good unless a token is given that is not."""
    token = token if token is not None else sign_sas(audience, KEY_NAME, KEY, int(time.time()) + 600)
    return encode_message(
        properties=Properties(message_id=f"token-{number}", reply_to="cbs"),
        application_properties={"operation": "put-token", "type": "servicebus.windows.net:sastoken", "name": audience},
        body=encode_amqp_value(token),
    )


def request(number: int, operation: str, body: object) -> bytes:
    return encode_message(
        properties=Properties(message_id=f"request-{number}", reply_to="here"),
        application_properties={"operation": operation},
        body=encode_amqp_value(body),
    )
