"""One client's socket and the peer that speaks through it.

The transport's callbacks become calls of the peer and marks for the pump; nothing is decided here. Bytes go out only
when the pump flushes, once a turn.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from typing import Final, cast

from spillway.model import limits
from spillway.model.budget import Account
from spillway.model.errors import BrokerError, QuotaExceeded
from spillway.server.clock import Timer
from spillway.server.pump import Pump, PumpedPeer

log = logging.getLogger(__name__)

# What a client that does not read may have waiting. Its links get no more at OUTPUT_BYTES_PAUSE; what was decided by
# then still comes, at most a turn's worth per link. Beyond this the client is not worth the memory.
OUTPUT_BYTES_MAX: Final = 64 * limits.MIB
LAST_READ_BYTES: Final = 64 * limits.KIB
LINGER_MS: Final = 10_000  # for a client to read the last of what it was told


class ClientConnection(asyncio.Protocol):
    """`raw` is the socket below the transport, or None if it cannot be read past it (TLS)."""

    def __init__(
        self,
        pump: Pump,
        make_peer: Callable[[], PumpedPeer],
        raw: socket.socket | None,
        where: str,
        on_lost: "Callable[[ClientConnection], None] | None" = None,
    ) -> None:
        self.pump = pump
        self.peer: PumpedPeer = make_peer()
        self.raw = raw
        self.where = where  # the client's address, for the log
        self.on_lost = on_lost
        self.transport: asyncio.Transport | None = None
        self.is_lost = False
        self.is_closing = False
        self.is_reading = True
        self.held_bytes = 0  # read, and not yet taken from the peer by the pump
        self.lingering: Timer | None = None  # until it is cut off
        self.slowing: Timer | None = None  # until it is read again: it had sent too many frames
        self.frames_count = 0  # at the last look
        self.counted_ms = 0  # since when its frames are counted, and how many it had sent then
        self.counted_frames = 0
        self.output_paid = 0  # bytes that wait to be read by the client, charged to its account
        self.is_end_told = False
        self.peer.account.on_over = self.end_overdrawn

    @property
    def account(self) -> Account:
        """The account that pays for what is held for this client."""
        return self.peer.account

    # -- what the transport says --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self.transport.set_write_buffer_limits(high=limits.OUTPUT_BYTES_PAUSE, low=limits.OUTPUT_BYTES_PAUSE // 2)
        if transport.get_extra_info("ssl_object") is not None:
            self.peer.account.charge(limits.TLS_BYTES)
        log.debug("namespace=%s client=%s connected", self.pump.name, self.where)
        self.pump.add(self)
        self.pump.mark_dirty(self)

    def data_received(self, data: bytes) -> None:
        self.pump.read(self, data)
        per_second = self.pump.frames_per_second
        if not self.peer.is_authorised:
            if self.peer.has_unread and self.peer.unread_bytes > limits.UNAUTHENTICATED_UNREAD_BYTES_MAX:
                log.debug("namespace=%s client=%s sent too much before a token: closed", self.pump.name, self.where)
                self.abort()
                return
            per_second = self.pump.unauthenticated_frames_per_second
        elif self.peer.is_overasked:
            per_second = self.pump.unauthenticated_frames_per_second
        if per_second:
            self.count_frames(per_second)

    def count_frames(self, per_second: int) -> None:
        """A client that sends more is read no faster: what is too much waits in its socket, and what was read, here."""
        now_ms = self.pump.clock.real_ms()
        if now_ms - self.counted_ms >= 1_000:
            self.counted_ms = now_ms
            self.counted_frames = self.frames_count
        self.frames_count = self.peer.frames_count
        sent = self.frames_count - self.counted_frames
        if sent > per_second and self.slowing is None:
            wait_ms = sent * 1_000 // per_second - (now_ms - self.counted_ms)
            self.set_reading(False)
            self.slowing = self.pump.clock.call_at(self.pump.clock.now_ms() + wait_ms, self.read_again)

    @property
    def is_slowed(self) -> bool:
        return self.slowing is not None

    def read_again(self) -> None:
        self.slowing = None
        if self.peer.has_unread:
            self.pump.read_later(self)
        else:
            self.set_reading(self.pump.may_read() and not self.peer.has_commands)

    def eof_received(self) -> None:
        """The transport closes itself. A client that has stopped sending gets no more deliveries."""
        self.linger()

    def connection_lost(self, error: Exception | None) -> None:
        if self.is_lost:
            return
        self.is_lost = True
        for timer in (self.lingering, self.slowing):
            if timer is not None:
                timer.cancel()
        if self.on_lost is not None:
            self.on_lost(self)
        self.peer.last_words()
        if self.peer.is_authorised and self.peer.has_unread:
            self.read_what_came()
        if isinstance(error, OSError) and not self.is_closing and self.peer.is_authorised:
            self.read_the_rest()
        log.debug("namespace=%s client=%s gone%s", self.pump.name, self.where, f": {error}" if error else "")
        try:
            self.peer.lost()
        except Exception as fault:
            self.fail(fault)
        self.pump.mark_dirty(self)

    def read_what_came(self) -> None:
        """The last words of a client: they were received, and are heard before it is unregistered."""
        try:
            self.peer.receive(b"", self.pump.clock.real_ms())
        except Exception as error:
            self.fail(error)

    def pause_writing(self) -> None:
        self.peer.set_writable(False, self.pump.clock.real_ms())
        self.pump.mark_dirty(self)

    def resume_writing(self) -> None:
        self.peer.set_writable(True, self.pump.clock.real_ms())
        self.pump.mark_dirty(self)

    def read_the_rest(self) -> None:
        """A write failed because the client has closed; what it said before is still in the kernel's buffer.

        Without this its last dispositions would be lost and the messages come again (docs/wire.md, "Frames come after
        the end"). The socket is not closed before `connection_lost` returns.
        """
        if self.raw is None or self.raw.fileno() < 0:
            return
        try:
            while data := self.raw.recv(LAST_READ_BYTES):
                self.peer.receive(data, self.pump.clock.real_ms())
        except OSError:
            return
        except Exception as error:
            self.fail(error)

    # -- what the pump says -------------------------------------------------------------------------------------

    def write(self, parts: list[bytes]) -> None:
        transport = self.transport
        if transport is None or self.is_lost or transport.is_closing():
            return
        transport.writelines(parts)
        waiting = transport.get_write_buffer_size()
        if waiting != self.output_paid:
            self.pay_output(waiting)
        if waiting > OUTPUT_BYTES_MAX:
            log.warning("namespace=%s client=%s does not read: closed", self.pump.name, self.where)
            self.abort()
        elif self.peer.account.is_over:
            self.tell_overdrawn(waiting)

    def pay_output(self, waiting: int) -> None:
        """What the client does not read is held for it."""
        self.peer.account.charge(waiting - self.output_paid)
        self.output_paid = waiting

    def weigh(self) -> None:
        """Once a second: what was waiting may have been read, and nothing written since."""
        if self.output_paid and self.transport is not None and not self.is_lost:
            self.pay_output(self.transport.get_write_buffer_size())

    def end_overdrawn(self) -> None:
        """Somebody else needs the room, and this client holds most of it."""
        self.peer.close(QuotaExceeded(self.peer.account.why()))
        self.write(self.peer.drain_output())
        self.pump.mark_dirty(self)

    def tell_overdrawn(self, waiting: int) -> None:
        """The connection is closed; a client that has much to read is not waited for."""
        if not self.is_end_told:
            self.is_end_told = True
            log.warning("namespace=%s client=%s makes the broker hold too much: closed", self.pump.name, self.where)
        if waiting > LAST_READ_BYTES:
            self.abort()

    def set_reading(self, is_reading: bool) -> None:
        transport = self.transport
        if is_reading == self.is_reading or transport is None or self.is_lost or transport.is_closing():
            return
        if is_reading and (self.slowing is not None or self.peer.has_unread):
            return
        self.is_reading = is_reading
        if is_reading:
            transport.resume_reading()
        else:
            transport.pause_reading()

    def close_when_written(self) -> None:
        if self.transport is not None and not self.is_closing:
            self.is_closing = True
            self.transport.close()
            self.linger()

    def linger(self) -> None:
        """A closed transport still waits for its client to read the rest, for ever if it never does."""
        if not self.is_lost and self.lingering is None:
            self.lingering = self.pump.clock.call_at(self.pump.clock.now_ms() + LINGER_MS, self.abort)

    def abort(self) -> None:
        if self.transport is not None and not self.is_lost:
            self.is_closing = True
            self.transport.abort()

    def fail(self, error: Exception) -> None:
        """Peers never raise for what a client sends; if one does, the fault is ours and costs this client only.

        The peer has closed itself in order before it raised: what it has to say is still said.
        """
        log.error("namespace=%s client=%s closed by a fault of the broker", self.pump.name, self.where, exc_info=error)
        with contextlib.suppress(Exception):
            self.write(self.peer.drain_output())
        self.close_when_written()

    # -- what the pre-auth limiter says -----------------------------------------------------------------------------

    @property
    def is_admitted(self) -> bool:
        return self.peer.is_authorised or self.is_lost

    def reject(self, error: BrokerError | None) -> None:
        """The client is told why if there is time for it, cut off if not (`error` is None)."""
        if error is None:
            self.abort()
            return
        self.peer.close(error)
        self.pump.mark_dirty(self)
