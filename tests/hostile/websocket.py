"""A WebSocket that follows no rule it is not told to follow, and the attacker inside it."""

import base64
import os
import socket
import ssl
import struct
from collections.abc import Iterable
from typing import Any, cast

from wsproto.frame_protocol import FrameProtocol, Opcode

from tests.hostile.attacker import ANSWER_S, Attacker

PATH = "/$servicebus/websocket"
CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10


def head(
    path: str = PATH,
    *,
    method: str = "GET",
    http: str = "1.1",
    without: Iterable[str] = (),
    more: Iterable[str] = (),
    **changed: str,
) -> bytes:
    """A request for a WebSocket; header lines can be changed, left out and added."""
    lines = {
        "Host": "localhost",
        "Upgrade": "websocket",
        "Connection": "keep-alive, Upgrade",
        "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Protocol": "AMQPWSB10",
        **{name.replace("_", "-"): value for name, value in changed.items()},
    }
    text = [f"{method} {path} HTTP/{http}", *(f"{n}: {v}" for n, v in lines.items() if n not in without), *more, "", ""]
    return "\r\n".join(text).encode()


def frame(
    opcode: int,
    payload: bytes = b"",
    *,
    is_last: bool = True,
    reserved: int = 0,
    is_masked: bool = True,
    claimed: int | None = None,
) -> bytes:
    """`claimed` is the length in the header, if it is not to be the true one."""
    size = len(payload) if claimed is None else claimed
    first = bytes([is_last << 7 | reserved << 4 | opcode])
    mask_bit = 0x80 if is_masked else 0
    if size < 126:
        length = bytes([mask_bit | size])
    elif size < 65_536:
        length = bytes([mask_bit | 126]) + struct.pack(">H", size)
    else:
        length = bytes([mask_bit | 127]) + struct.pack(">Q", size)
    if not is_masked:
        return first + length + payload
    key = os.urandom(4)
    return first + length + key + masked(payload, key)


def masked(payload: bytes, key: bytes) -> bytes:
    keys = (key * (len(payload) // 4 + 1))[: len(payload)]
    return (int.from_bytes(payload, "big") ^ int.from_bytes(keys, "big")).to_bytes(len(payload), "big")


class RawWebSocket:
    """Where a socket is expected: what is sent becomes binary messages, what is received comes out of them."""

    def __init__(
        self, port: int, asked: bytes | None = None, tls: ssl.SSLContext | None = None, **changed: Any
    ) -> None:
        self.below = socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S)
        self.below.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self.below = tls.wrap_socket(self.below, server_hostname="localhost")
        self.frames = FrameProtocol(client=True, extensions=[])
        self.pongs: list[bytes] = []
        self.sizes: list[int] = []  # of the messages that came
        self.closed: tuple[int, str] | None = None  # what the broker said when it closed
        self.below.sendall(asked or head(**changed))
        self.answer = self._answer()

    def _answer(self) -> bytes:
        heard = b""
        while b"\r\n\r\n" not in heard:
            part = self.below.recv(65_536)
            if not part:
                return heard
            heard += part
        answer, _, rest = heard.partition(b"\r\n\r\n")
        if answer.startswith(b"HTTP/1.1 101 "):
            self.frames.receive_bytes(rest)
            return answer
        return heard

    def say(self, *frames: bytes) -> None:
        """As they are. Who has been hung up on is not listened to."""
        try:
            self.below.sendall(b"".join(frames))
        except OSError:
            pass

    def hear(self) -> bytes:
        """The next bytes of the stream; empty if there are no more."""
        while self.closed is None:
            for one in self.frames.received_frames():
                if one.opcode is Opcode.BINARY:
                    payload = cast(bytes, one.payload)
                    self.sizes.append(len(payload))
                    if payload:
                        return payload
                elif one.opcode is Opcode.PONG:
                    self.pongs.append(cast(bytes, one.payload))
                elif one.opcode is Opcode.CLOSE:
                    self.closed = cast(tuple[int, str], one.payload)
                    return b""
            data = self.below.recv(262_144)
            if not data:
                return b""
            self.frames.receive_bytes(data)
        return b""

    def hear_close(self) -> tuple[int, str] | None:
        """What the broker closes with; None if it hangs up without a word."""
        try:
            while self.hear():
                pass
        except ConnectionError:
            pass
        return self.closed

    def is_hung_up(self) -> bool:
        """The broker has closed the socket, too."""
        try:
            while self.below.recv(262_144):
                pass
        except ConnectionError:
            pass
        return True

    # -- as a socket

    def sendall(self, data: bytes) -> None:
        self.below.sendall(frame(BINARY, data))

    def recv(self, size: int) -> bytes:
        return self.hear()

    def settimeout(self, seconds: float | None) -> None:
        self.below.settimeout(seconds)

    def setblocking(self, is_blocking: bool) -> None:
        self.below.setblocking(is_blocking)

    def setsockopt(self, *arguments: Any) -> None:
        self.below.setsockopt(*arguments)

    def close(self) -> None:
        self.below.close()

    def __enter__(self) -> "RawWebSocket":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class WebSocketAttacker(Attacker):
    """Says exactly what it is told, inside a WebSocket."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(port)
        self.socket.close()
        self.websocket = RawWebSocket(port, tls=tls)
        self.socket = cast(socket.socket, self.websocket)
