"""The socket and the engine behind it: bytes in, events out to the links, frames back.

Everything that links put into the engine during one pass of the event loop leaves in one write. The wire knows
nothing of Service Bus; it hands events to the `LinkEnd` that owns the link.
"""

import asyncio
from typing import Final, cast

from spillway.amqp.connection import Connection as Engine
from spillway.amqp.errors import AmqpError
from spillway.amqp.events import (
    AttachRequested,
    ConnectionClosed,
    ConnectionEvent,
    ConnectionOpened,
    DispositionReceived,
    FlowReceived,
    IncomingSettled,
    LinkAttached,
    LinkDetached,
    SaslFinished,
    SessionEnded,
    TransferReceived,
)
from spillway.amqp.link import Link
from spillway.amqp.session import Session
from spillway.client.errors import ClientError, ConnectionLost, Unauthorized, error_from, lost_from
from spillway.client.link import LinkEnd, mark_retrieved

# Bytes the socket may owe before senders stop handing it more.
WRITE_BUFFER_HIGH: Final = 1024 * 1024
FLUSH_BYTES: Final = 256 * 1024  # not held back for the end of a pass
SWEEP_EVERY_S: Final = 0.25  # how finely overdue calls are noticed
SESSIONS_KEPT_MAX: Final = 64  # that have no link at the moment


class Wire(asyncio.Protocol):
    """One connection. `opened` is done when the peer has answered our open, `closed` when the socket is gone."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self.engine = engine
        self.loop = loop
        self.is_writable = True
        self.error: ClientError | None = None
        self.opened: asyncio.Future[None] = loop.create_future()
        self.opened.add_done_callback(mark_retrieved)
        self.closed: asyncio.Future[None] = loop.create_future()
        self._ends: set[LinkEnd] = set()
        self._kept_sessions: list[Session] = []
        self._transport: asyncio.Transport | None = None
        self._is_flush_due = False
        self._due_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._sweeper: asyncio.TimerHandle | None = None

    # -- for the links -----------------------------------------------------------------------------------------

    def flush_soon(self, size: int = 0) -> None:
        """Write at the end of this pass of the loop, together with whatever else comes up in it.

        `size` is roughly what was added. When it adds up it is written at once, so that a full socket is noticed.
        """
        self._due_bytes += size
        if self._due_bytes > FLUSH_BYTES:
            self.flush()
        elif not self._is_flush_due:
            self._is_flush_due = True
            self.loop.call_soon(self._flush_if_due)

    def flush(self) -> None:
        """Write now."""
        self._is_flush_due = False
        self._due_bytes = 0
        output = self.engine.drain_output()
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if output:
            transport.write(b"".join(output))
        if self.engine.is_closed:
            transport.close()
        self._arm()

    def register(self, end: LinkEnd) -> None:
        self._ends.add(end)

    def unregister(self, end: LinkEnd) -> None:
        self._ends.discard(end)

    def keep_session(self, session: Session) -> None:
        """Its only link was ended by us: the next link may have it."""
        if len(self._kept_sessions) < SESSIONS_KEPT_MAX:
            self._kept_sessions.append(session)
        else:
            session.end()

    # -- for the connection --------------------------------------------------------------------------------------

    def session(self) -> Session:
        """One without a link: kept, or begun."""
        while self._kept_sessions:
            session = self._kept_sessions.pop()
            if not session.is_ended:
                return session
        return self.engine.begin()

    def ends(self) -> list[LinkEnd]:
        return list(self._ends)

    def now_ms(self) -> int:
        return int(self.loop.time() * 1000)

    def close(self) -> None:
        """Say close; the peer's answer, or the end of the socket, resolves `closed`."""
        if self.error is None:
            self._fail(ConnectionLost("the connection was closed by its owner", is_transient=False))
            self.engine.close()
        self.flush()

    def abort(self) -> None:
        """Drop the socket without another word."""
        if self._transport is not None:
            self._transport.abort()

    # -- asyncio.Protocol ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert self._transport is None, "a wire has one socket in its life"
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_HIGH)
        self._sweeper = self.loop.call_later(SWEEP_EVERY_S, self._sweep)
        self.engine.open()
        self.flush()

    def data_received(self, data: bytes) -> None:
        self.engine.receive(data, self.now_ms())
        self._dispatch()
        self.flush()

    def pause_writing(self) -> None:
        self.is_writable = False

    def resume_writing(self) -> None:
        self.is_writable = True
        for end in list(self._ends):
            end.on_writable()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(ConnectionLost("the connection broke" if exc is None else f"the connection broke: {exc}"))
        for timer in (self._timer, self._sweeper):
            if timer is not None:
                timer.cancel()
        if not self.closed.done():
            self.closed.set_result(None)

    # -- the engine --------------------------------------------------------------------------------------------------

    def _flush_if_due(self) -> None:
        if self._is_flush_due:
            self.flush()

    def _arm(self) -> None:
        due_ms = self.engine.next_due_ms()
        if due_ms == 0:
            return
        due_s = due_ms / 1000 + 0.001  # `now_ms` rounds down
        if self._timer is not None:
            if self._timer.when() <= due_s:
                return
            self._timer.cancel()
        self._timer = self.loop.call_at(due_s, self._tick)

    def _tick(self) -> None:
        assert self._timer is not None, "only the timer calls this"
        self._timer = None
        # The loop may call a little before the due time; a due time that is not reached yet is simply armed again.
        self.engine.tick(self.now_ms())
        self._dispatch()
        self.flush()

    def _sweep(self) -> None:
        now_s = self.loop.time()
        for end in list(self._ends):
            end.sweep(now_s)
        self._sweeper = self.loop.call_later(SWEEP_EVERY_S, self._sweep)

    def _dispatch(self) -> None:
        for event in self.engine.drain_events():
            self._tell(event)

    def _tell(self, event: ConnectionEvent) -> None:
        if isinstance(event, TransferReceived):
            _end_of(event.link).on_transfer(event)
        elif isinstance(event, DispositionReceived):
            if event.deliveries:
                _end_of(event.deliveries[0].link).on_disposition(event)
        elif isinstance(event, IncomingSettled):
            if isinstance(event.session.user, LinkEnd):
                event.session.user.on_incoming_settled(event)
        elif isinstance(event, FlowReceived):
            _end_of(event.link).on_flow(event.drain)
        elif isinstance(event, LinkAttached):
            _end_of(event.link).on_attached()
        elif isinstance(event, LinkDetached):
            if isinstance(event.link.user, LinkEnd):
                event.link.user.on_detached(event.error)
        else:
            self._tell_of_change(event)

    def _tell_of_change(self, event: ConnectionEvent) -> None:
        if isinstance(event, SessionEnded):
            for end in list(self._ends):
                if end.link.session is event.session:
                    end.fail(error_from(event.error, f"the peer ended the session of the link to {end.label}"))
        elif isinstance(event, AttachRequested):  # a service has no business with a client's links
            event.link.refuse(AmqpError("amqp:not-allowed", "This container takes no links."))
        elif isinstance(event, ConnectionOpened):
            if not self.opened.done():
                self.opened.set_result(None)
        elif isinstance(event, ConnectionClosed):
            self._fail(lost_from(event.error, "the peer closed the connection"))
        elif isinstance(event, SaslFinished) and event.code != 0:
            self._fail(Unauthorized(f"the peer refused the SASL exchange with code {event.code}"))

    def _fail(self, error: ClientError) -> None:
        if self.error is not None:
            return
        self.error = error
        if not self.opened.done():
            self.opened.set_exception(error)
        for end in list(self._ends):
            end.fail(error)
        assert not self._ends, "links end with their connection"


def _end_of(link: Link) -> LinkEnd:
    assert isinstance(link.user, LinkEnd), "an attached link is one of ours"
    return link.user
