"""Frames: cutting the byte stream into them, and performatives in and out of them [2.3].

Transfer, disposition and flow are most of the traffic; their plain forms are read and written in `fast`. Everything
else, and every odd form of those three, goes the general way here, which alone decides what is an error.
"""

import struct
from typing import Final

from spillway.amqp.codec import DecodeBudget, decode_value, encode_value
from spillway.amqp.composites import build, code_of, list_of
from spillway.amqp.errors import CONNECTION, FRAMING_ERROR, DecodeError, ProtocolError
from spillway.amqp.fast import (
    decode_disposition,
    decode_flow,
    decode_transfer,
    encode_disposition_frame,
    encode_flow_frame,
    encode_transfer_frame,
)
from spillway.amqp.performatives import Disposition, Flow, Performative, SaslBody, Transfer
from spillway.amqp.types import Described

AMQP: Final = 0  # frame types
SASL: Final = 1

HEADER_SIZE: Final = 8
SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"
AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"
EMPTY_FRAME: Final = b"\x00\x00\x00\x08\x02\x00\x00\x00"

_HEADER: Final = struct.Struct(">IBBH")


class Frame:
    """One frame where it lies: its body is `data[at:end]`, empty for a heartbeat."""

    def __init__(self, kind: int, channel: int, data: bytes, at: int, end: int) -> None:
        self.kind = kind
        self.channel = channel
        self.data = data
        self.at = at
        self.end = end


class FrameParser:
    """Bytes in, frames out, one at a time: what `next` does may change how the bytes behind it must be read.

    Whole frames are handed out where they lie in the chunk that brought them. Only an unfinished one is copied, into a
    buffer that grows with what really arrives, never with the size a header claims; once it is whole, what came behind
    it is read where it lies again.

        `data` from `at` on │ `_behind` from `_behind_at` on       or, of a frame that is not whole, `_pending` alone
    """

    def __init__(self, max_frame_size: int) -> None:
        self.max_frame_size = max_frame_size
        self.data = b""
        self.at = 0
        self._behind = b""  # read after `data`
        self._behind_at = 0
        self._pending = bytearray()
        self._needed = 0

    def feed(self, data: bytes) -> None:
        if self._pending:
            self._feed_pending(data)
        elif self.at >= len(self.data) and not self._behind:
            self.data = data
            self.at = 0
        else:  # not all of what came before was read
            self.data = self.data[self.at :] + self._behind[self._behind_at :] + data
            self.at = 0
            self._behind = b""

    def _feed_pending(self, data: bytes) -> None:
        """More of a frame that is not whole yet."""
        missing = self._needed - len(self._pending)
        if len(data) < missing:
            self._pending += data
            return
        if self._needed == HEADER_SIZE:
            missing = len(data)  # how much more it needs is not known yet
        else:
            self._behind = data if missing < len(data) else b""
            self._behind_at = missing
        self._pending += data[:missing]
        self.data = bytes(self._pending)
        self.at = 0
        self._pending.clear()
        self._needed = 0

    @property
    def unread(self) -> int:
        """Bytes fed that no frame has been made of."""
        behind = len(self._behind) - self._behind_at if self._behind else 0
        return len(self.data) - self.at + behind + len(self._pending)

    def _go_behind(self) -> None:
        """All of `data` is read: go on with what came behind it."""
        self.data = self._behind
        self.at = self._behind_at
        self._behind = b""

    def next_header(self) -> bytes | None:
        """The next eight bytes as a protocol header, None until they are there."""
        if self._behind and self.at >= len(self.data):
            self._go_behind()
        at = self.at
        left = len(self.data) - at
        if left < HEADER_SIZE:
            self._wait_for(HEADER_SIZE, left)
            return None
        self.at += HEADER_SIZE
        return self.data[at : self.at]

    def next(self) -> Frame | None:
        """The next whole frame, None until more bytes come."""
        if self._behind and self.at >= len(self.data):
            self._go_behind()
        data = self.data
        at = self.at
        left = len(data) - at
        if left < HEADER_SIZE:
            self._wait_for(HEADER_SIZE, left)
            return None
        size = (data[at] << 24) | (data[at + 1] << 16) | (data[at + 2] << 8) | data[at + 3]
        body = 4 * data[at + 4]
        kind = data[at + 5]
        if size < HEADER_SIZE or size > self.max_frame_size:
            raise ProtocolError(CONNECTION, FRAMING_ERROR, f"a frame of {size} bytes; at most {self.max_frame_size}")
        if body < HEADER_SIZE or body > size:
            raise ProtocolError(CONNECTION, FRAMING_ERROR, "a frame whose body begins outside of it")
        if kind > SASL:
            raise ProtocolError(CONNECTION, FRAMING_ERROR, f"a frame of unknown type {kind}")
        if left < size:
            self._wait_for(size, left)
            return None
        self.at = at + size
        return Frame(kind, (data[at + 6] << 8) | data[at + 7], data, at + body, at + size)

    def _wait_for(self, size: int, left: int) -> None:
        """Fewer than `size` bytes are `left` in `data`, and none behind: they wait in `_pending` for the rest."""
        if self._pending:
            return  # still the same unfinished frame: what it needs is known
        assert not self._behind, "what lies behind begins with a frame"
        self._needed = size
        if left > 0:
            self._pending += self.data[self.at :]
            self.data = b""
            self.at = 0


def decode_performative(data: bytes, at: int, end: int, budget: DecodeBudget) -> tuple[Performative, int]:
    """The body of a frame, and where the payload behind it begins. SASL bodies are `SaslBody`."""
    if end - at > 5 and data[at] == 0x00 and data[at + 1] == 0x53 and data[at + 3] == 0xC0:
        code = data[at + 2]
        after = at + 5 + data[at + 4]
        if after <= end:
            fast: Performative | None = None
            if code == 0x14:
                fast = decode_transfer(data, at + 5, after)
            elif code == 0x15:
                fast = decode_disposition(data, at + 5, after)
            elif code == 0x13:
                fast = decode_flow(data, at + 5, after)
            if fast is not None:
                return fast, after
    return decode_general(data, at, end, budget)


def decode_general(data: bytes, at: int, end: int, budget: DecodeBudget) -> tuple[Performative, int]:
    """Any performative in any legal encoding."""
    value, after = decode_value(data, at, end, budget)
    if not isinstance(value, Described):
        raise DecodeError("a frame whose body is no described list")
    body = build(code_of(value.descriptor), list_of(value))
    if not isinstance(body, Performative):
        raise DecodeError(f"no performative is described by {str(value.descriptor)[:64]!r}")
    return body, after


def decode_body(frame: Frame, budget: DecodeBudget) -> tuple[Performative, int]:
    """`decode_performative` of a frame, which also holds frame type and body together."""
    body, after = decode_performative(frame.data, frame.at, frame.end, budget)
    if isinstance(body, Transfer) and frame.kind == AMQP:
        return body, after
    if isinstance(body, SaslBody) != (frame.kind == SASL):
        raise DecodeError("a SASL body in an AMQP frame, or the other way round")
    if after != frame.end:
        raise DecodeError("bytes behind a performative that has no payload")
    return body, after


def encode_frame(channel: int, performative: Performative, payload: bytes = b"") -> bytes:
    """A frame of type AMQP. Only a transfer has a payload."""
    assert not payload or isinstance(performative, Transfer), "only a transfer has a payload"
    fast: bytes | None = None
    if isinstance(performative, Transfer):
        fast = encode_transfer_frame(channel, performative, payload)
    elif isinstance(performative, Disposition):
        fast = encode_disposition_frame(channel, performative)
    elif isinstance(performative, Flow):
        fast = encode_flow_frame(channel, performative)
    if fast is not None:
        return fast
    return encode_general(AMQP, channel, performative, payload)


def encode_sasl_frame(body: SaslBody) -> bytes:
    """A frame of type SASL; it has no channel."""
    return encode_general(SASL, 0, body, b"")


def encode_general(kind: int, channel: int, performative: Performative, payload: bytes) -> bytes:
    """Any performative, every field written."""
    out = bytearray(HEADER_SIZE)
    encode_value(out, performative)
    _HEADER.pack_into(out, 0, len(out) + len(payload), 2, kind, channel)
    return bytes(out) + payload
