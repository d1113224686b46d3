"""A WebSocket as a plain stream of bytes: a protocol to the socket below it, a transport to whoever speaks above it.

Binary messages carry the stream in pieces of any size (docs/wire.md, "WebSocket"): what has come of one is handed on at
once, so a message of any length costs no memory. Whatever a transport promises is kept: nothing is read while the
reader above wants nothing, and what is not yet written is the socket's to count. The AMQP above looks after time-outs,
as it does on a bare socket.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Iterable
from typing import Any, Final, cast

from wsproto.frame_protocol import CloseReason, Frame, FrameProtocol, Opcode, ParseFailed

from spillway.model.budget import Account

log = logging.getLogger(__name__)

MESSAGE_BYTES: Final = 64 * 1024  # of ours: aiohttp takes none of more than 4 MiB
# A frame may be 6 bytes long and takes some 10 microseconds: then others have their turn.
FRAMES_PER_VISIT: Final = 128
# Pings and empty frames behind each other. aiohttp pings every 10 s; AMQP says something at least every 4 minutes.
EMPTY_FRAMES_MAX: Final = 1_000
LAST_READ_BYTES: Final = 64 * 1024
LINGER_S: Final = 2.0  # for a client that broke the rules to read which one
LINGERING_MAX: Final = 100


class WebSockets:
    """What all of a namespace have in common."""

    def __init__(self) -> None:
        self.is_leaving = False  # the namespace is
        self.linger_s = LINGER_S
        self.lingering: dict[WebSocketStream, None] = {}

    def linger(self, stream: "WebSocketStream") -> None:
        self.lingering[stream] = None
        if len(self.lingering) > LINGERING_MAX:
            next(iter(self.lingering)).abort()


class WebSocketStream(asyncio.Protocol, asyncio.Transport):
    def __init__(
        self,
        transport: asyncio.Transport,
        above: asyncio.Protocol,
        raw: socket.socket | None,
        together: WebSockets,
        loop: asyncio.AbstractEventLoop,
        account: Account | None = None,
    ) -> None:
        super().__init__()
        self.account = account  # of who speaks above: pays for what came and was not looked at
        self.unread_bytes = 0
        self.transport = transport
        self.above = above
        self.raw = raw  # the socket below the transport, or None if it cannot be read past it (TLS)
        self.together = together
        self.loop = loop
        self.frames = FrameProtocol(client=False, extensions=[])
        self.is_wanted = True  # by the reader above
        self.is_behind = False  # there are frames that came and were not looked at
        self.is_open_below = True  # the socket is being read
        self.is_writable = True
        self.is_close_sent = False
        self.is_muted = False  # nothing it says counts any more
        self.closed_by: int | None = None  # the client's reason
        self.is_over = False  # the reader above knows that there is nothing more
        self.empty_count = 0  # of frames since the last that carried something
        self.pong: bytes | None = None  # owed: to the last ping alone [RFC 6455 section 5.5.3]
        self.again: asyncio.Handle | None = None
        self.cut_off: asyncio.TimerHandle | None = None

    def begin(self, rest: bytes) -> None:
        """The answer 101 is said; `rest` is what came behind the request."""
        self.transport.set_protocol(self)
        self.above.connection_made(self)
        if rest:
            self.data_received(rest)

    # -- what the socket says ------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self.is_muted:
            return
        self.frames.receive_bytes(data)
        self.unread_bytes += len(data)
        if self.account is not None:
            self.account.charge(len(data))
        if not self.is_behind:
            self.is_behind = True
            self.visit()

    def eof_received(self) -> None:
        """The transport closes itself."""
        self.is_muted = True
        if not self.is_over:
            self.above.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        if isinstance(error, OSError) and not self.is_close_sent:
            self.read_the_rest()
        for timer in (self.again, self.cut_off):
            if timer is not None:
                timer.cancel()
        self.together.lingering.pop(self, None)
        if not self.is_over:
            self.is_over = True
            self.above.connection_lost(error)

    def pause_writing(self) -> None:
        self.is_writable = False
        if not self.is_over:
            self.above.pause_writing()

    def resume_writing(self) -> None:
        self.is_writable = True
        self.answer_ping()
        if not self.is_over:
            self.above.resume_writing()

    def read_the_rest(self) -> None:
        """The client has closed; what it said before still counts (docs/wire.md, "Frames come after the end")."""
        raw = self.raw if self.raw is not None and self.raw.fileno() >= 0 else None
        data = b""
        while True:
            if data:
                self.frames.receive_bytes(data)
            while not self.is_muted and self.read_frames():
                pass
            if self.is_muted or raw is None:
                return
            try:
                data = raw.recv(LAST_READ_BYTES)
            except OSError:
                return
            if not data:
                return

    # -- frames --------------------------------------------------------------------------------------------------------

    def visit(self) -> None:
        """Look at some frames; the rest comes when others have had their turn, and when it is wanted."""
        self.again = None
        if not (self.is_wanted or self.is_close_sent):
            return
        self.is_behind = self.read_frames()
        if not self.is_behind and self.account is not None:
            self.account.charge(-self.unread_bytes)
            self.unread_bytes = 0
        self.answer_ping()
        if self.is_behind:
            self.again = self.loop.call_soon(self.visit)
        self.read_as_wanted()

    def read_frames(self) -> bool:
        """Hand on what the next frames carry; True if there may be more of them."""
        parts: list[bytes] = []
        problem: ParseFailed | None = None
        count = 0
        try:
            for frame in self.frames.received_frames():
                count += 1
                if frame.opcode is Opcode.BINARY and frame.payload:
                    self.empty_count = 0
                    parts.append(cast(bytes, frame.payload))
                else:
                    self.handle_control(frame)
                if count >= FRAMES_PER_VISIT:
                    break
        except ParseFailed as error:
            problem = error
        if parts and not self.is_close_sent and not self.is_over:
            self.above.data_received(b"".join(parts))
        if problem is not None:
            self.fail(problem)
        elif self.closed_by is not None:
            self.on_close(self.closed_by)
        return count >= FRAMES_PER_VISIT and not self.is_muted

    def handle_control(self, frame: Frame) -> None:
        """Everything that is not part of the stream."""
        if frame.opcode is Opcode.TEXT:
            raise ParseFailed("AMQP is binary: no text is taken.", CloseReason.UNSUPPORTED_DATA)
        if frame.opcode is Opcode.CLOSE:
            self.closed_by = cast(tuple[int, str], frame.payload)[0]
        elif frame.opcode is Opcode.PING:
            self.pong = cast(bytes, frame.payload)
        self.empty_count += 1
        if self.empty_count > EMPTY_FRAMES_MAX:
            text = f"More than {EMPTY_FRAMES_MAX} frames without content."
            raise ParseFailed(text, CloseReason.POLICY_VIOLATION)

    def answer_ping(self) -> None:
        """A client that does not read its pongs is owed one, however often it asks."""
        if self.pong is not None and self.is_writable and not self.is_closing():
            self.transport.write(self.frames.pong(self.pong))
            self.pong = None

    def on_close(self, code: int) -> None:
        """The client has closed: so do we."""
        self.is_muted = True
        self.send_close(code)
        if not self.is_over:
            self.above.eof_received()
        self.transport.close()

    def fail(self, problem: ParseFailed) -> None:
        """The client broke the rules of WebSockets. It is told, and given a moment to read it."""
        log.debug("a WebSocket was closed: %s", problem)
        self.is_muted = True
        self.send_close(problem.code, str(problem))
        self.cut_off = self.loop.call_later(self.together.linger_s, self.transport.abort)
        self.together.linger(self)
        if not self.is_over:
            self.is_over = True
            self.above.connection_lost(None)

    def send_close(self, code: int, reason: str | None = None) -> None:
        if not self.is_closing():
            self.answer_ping()
            self.transport.write(self.frames.close(code, reason))
        self.is_close_sent = True

    # -- what the one above says ---------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        if self.is_closing():
            return
        data = b"".join(list_of_data)
        if not data:
            return
        pieces = [data] if len(data) <= MESSAGE_BYTES else in_pieces(data)
        self.transport.writelines([self.frames.send_data(piece) for piece in pieces])

    def close(self) -> None:
        """Say so, and wait for the client's answer; how long is for the one above to say, with `abort`."""
        if not self.is_closing():
            leaving = self.together.is_leaving
            self.send_close(CloseReason.GOING_AWAY if leaving else CloseReason.NORMAL_CLOSURE)
            self.resume()

    def abort(self) -> None:
        self.transport.abort()

    def is_closing(self) -> bool:
        return self.is_close_sent or self.transport.is_closing()

    def pause_reading(self) -> None:
        self.is_wanted = False
        self.read_as_wanted()

    def resume_reading(self) -> None:
        self.is_wanted = True
        self.resume()

    def is_reading(self) -> bool:
        return self.is_wanted

    def resume(self) -> None:
        if self.is_behind and self.again is None:
            self.again = self.loop.call_soon(self.visit)
        self.read_as_wanted()

    def read_as_wanted(self) -> None:
        should_be = (self.is_wanted or self.is_close_sent) and not self.is_behind
        if should_be == self.is_open_below or self.transport.is_closing():
            return
        self.is_open_below = should_be
        if should_be:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self.transport.get_write_buffer_size()

    def can_write_eof(self) -> bool:
        return False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.transport.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.above = cast(asyncio.Protocol, protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self.above


def in_pieces(data: bytes) -> list[bytes]:
    return [data[at : at + MESSAGE_BYTES] for at in range(0, len(data), MESSAGE_BYTES)]


Opener = Callable[[], asyncio.Protocol | None]  # a byte stream to the broker; None if it takes no more
