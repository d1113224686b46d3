"""One connection: bytes in, events out, and what the owner says back as bytes [2.2 to 2.4].

Both roles, no sockets, no clock: the owner hands in what it read and what time it is. Whatever the peer sends,
`receive` does not raise; each fault ends exactly its link, session or connection. What each performative does in each
state is the table in `rules`, which a test walks.
"""

from typing import TYPE_CHECKING, Final, Protocol

from spillway.amqp import states
from spillway.amqp.codec import DEPTH_MAX, FRAME_ELEMENTS_MAX, DecodeBudget
from spillway.amqp.errors import CONNECTION, FRAMING_ERROR, INVALID_FIELD, AmqpError, ProtocolError, error_from
from spillway.amqp.events import (
    ConnectionClosed,
    ConnectionEvent,
    ConnectionOpened,
    SaslFinished,
    SaslRequested,
)
from spillway.amqp.fast import PlainTransfer, uint_at
from spillway.amqp.frames import (
    AMQP_HEADER,
    EMPTY_FRAME,
    SASL,
    SASL_HEADER,
    Frame,
    FrameParser,
    decode_body,
    encode_frame,
    encode_sasl_frame,
)
from spillway.amqp.performatives import (
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
    SaslMechanisms,
    SaslOutcome,
    Transfer,
)
from spillway.amqp.sasl import SASL_FRAME_BYTES_MAX, UNDECIDED_BYTES_MAX, choose_init
from spillway.amqp.session import SESSION_BYTES, Session
from spillway.amqp.types import Symbol

if TYPE_CHECKING:
    from mypy_extensions import i64  # an int where it is not compiled

    from spillway.amqp.link import Link

FRAME_BYTES_MIN: Final = 512  # [2.7.1] MIN-MAX-FRAME-SIZE
HEARTBEAT_MS_MIN: Final = 100  # a peer that asks for more is told less
CLOSE_WAIT_MS: Final = 10_000  # how long the peer may take to answer our close
ALL_FRAMES: Final = 1 << 62
LIGHT_FRAME_BYTES: Final = 2_048  # a larger one counts as one more for each of these
DISPOSITION_BYTES: Final = 40  # roughly, of a run not written yet
JOINED_BYTES_MAX: Final = 8 * 1024  # pieces of output that are larger on average are not copied once more
_PLAIN_HEADER: Final = 0x0200  # doff 2, type AMQP; the channel is behind it
_TRANSFER_DESCRIPTOR: Final = 0x005314C0  # and a list8
_TRANSFER_BYTES_MIN: Final = 21  # less is no plain one


class Account(Protocol):
    """The account of what the peer makes us hold longer than the call it came in; less, if `count` is negative."""

    def charge(self, count: int) -> None: ...


class NoAccount:
    def charge(self, count: int) -> None:
        """A peer that we chose ourselves is not counted."""


class ConnectionOptions:
    """How we present ourselves, and what a peer may make us hold."""

    def __init__(
        self,
        container_id: str,
        hostname: str | None = None,
        max_frame_size: int = 65_536,
        channel_max: int = 4_999,
        handle_max: int = 4_999,
        idle_timeout_ms: int = 240_000,
        sasl_mechanisms: list[str] | None = None,
        sasl_response: bytes = b"",
        incoming_window: int = (1 << 31) - 1,
        sessions_max: int = 5_000,
        links_max: int = 5_000,
        elements_max: int = FRAME_ELEMENTS_MAX,
        partial_bytes_max: int = 32 * 1024 * 1024,
        properties: dict[str, str] | None = None,
        is_sasl_required: bool = False,
        weighs_frames: bool = True,
    ) -> None:
        assert max_frame_size >= FRAME_BYTES_MIN, "[2.7.1]"
        assert incoming_window > 0, "a window of none would never let anything in"
        self.container_id = container_id
        self.hostname = hostname
        self.max_frame_size = max_frame_size
        self.channel_max = channel_max
        self.handle_max = handle_max
        self.idle_timeout_ms = idle_timeout_ms
        self.sasl_mechanisms: list[str] = [] if sasl_mechanisms is None else sasl_mechanisms
        self.sasl_response = sasl_response
        self.incoming_window = incoming_window
        # The bounds that the connection begins with: see `Connection.set_bounds`.
        self.sessions_max = sessions_max
        self.links_max = links_max
        self.elements_max = elements_max
        self.partial_bytes_max = partial_bytes_max
        self.properties = properties
        self.is_sasl_required = is_sasl_required
        self.weighs_frames = weighs_frames


class Connection:
    """Our end of a connection."""

    def __init__(
        self, options: ConnectionOptions, is_server: bool, now_ms: int, account: Account | None = None
    ) -> None:
        self.options = options
        self.account: Account = NoAccount() if account is None else account
        self.unread_paid = 0  # bytes of an unfinished frame
        self.is_server = is_server
        self.state: int = states.HEADER
        self.frames_count = 0  # received
        self.frames_weight = 0  # the same, and more for those that are large or ask for work
        self.events: list[ConnectionEvent] = []
        self.sessions: dict[int, Session] = {}  # by our channel
        self.sessions_by_remote_channel: dict[int, Session] = {}
        self.ended_channels: set[int] = set()  # docs/wire.md, "Frames come after the end"
        self.names: dict[tuple[str, bool], Link] = {}  # links by name and role, for stealing
        self.remote_open: Open | None = None
        self.frame_bytes_max: int = FRAME_BYTES_MIN  # that we may send
        self.links_count: int = 0
        self.partial_bytes: int = 0
        # What the peer may make us hold.
        self.sessions_max = options.sessions_max
        self.links_max = options.links_max
        self.elements_max = options.elements_max  # of one frame
        self.partial_bytes_max = options.partial_bytes_max  # of unfinished deliveries
        self.weighs_frames = options.weighs_frames  # large frames, and those that ask for work, count as many
        self.dirty_sessions: list[Session] = []
        self._parser = FrameParser(SASL_FRAME_BYTES_MAX)
        self._transfer = PlainTransfer()  # the one being read
        self._frames_left: int = ALL_FRAMES  # that may still be read before the owner asks again
        self._out: list[bytes] = []
        self._out_bytes: int = 0
        self._held: list[bytes] = []  # client: everything behind SASL, until that has gone well
        self._is_holding = False
        self._budget = DecodeBudget(self.elements_max)  # of the next frame
        self._is_open_sent = False
        self._is_closed_told = False
        self._now_ms: int = now_ms
        self._received_ms: int = now_ms
        self._sent_ms: int = now_ms
        self._close_due_ms: int = 0

    # -- the owner's side ---------------------------------------------------------------------------------

    def receive(self, data: bytes, now_ms: int, frames_max: int = ALL_FRAMES) -> None:
        """Take in bytes. Bad ones are answered with an error and an event, never with an exception.

        At most `frames_max` frames are read; if there may be more, `is_cut` says so, and no bytes at all go on with
        what was received before.
        """
        if data:
            self._received_ms = now_ms
            if self.state == states.CLOSED:
                return
            self._parser.feed(data)
        self._now_ms = now_ms
        self._frames_left = frames_max
        self._read()
        unread = self._parser.unread
        if unread != self.unread_paid:
            self.account.charge(unread - self.unread_paid)
            self.unread_paid = unread

    @property
    def is_cut(self) -> bool:
        """There may be whole frames that were received and not read."""
        return self._frames_left <= 0 and self.state != states.CLOSED and self._parser.unread > 0

    def set_bounds(
        self, *, sessions_max: int, links_max: int, elements_max: int, partial_bytes_max: int, weighs_frames: bool
    ) -> None:
        """What the peer may make us hold from here on. Its owner raises this as it learns to trust the peer.

        What it has already stays: fewer than it has means that it gets no more.
        """
        self.sessions_max = sessions_max
        self.links_max = links_max
        self.elements_max = elements_max
        self.partial_bytes_max = partial_bytes_max
        self.weighs_frames = weighs_frames

    def spend_frames(self, count: int) -> None:
        """The one being read counts as so many more: who asks for much is read less of at a time."""
        if self.weighs_frames:
            self._frames_left -= count
            self.frames_weight += count

    def drain_events(self) -> list[ConnectionEvent]:
        """What has happened since the last call."""
        events = self.events
        self.events = []
        return events

    def drain_output(self) -> list[bytes]:
        """Everything that is to be written, in order; in one piece, unless it is large."""
        if self.dirty_sessions:
            sessions = self.dirty_sessions
            self.dirty_sessions = []
            for session in sessions:
                session.flush()
        out = self._out
        if out:
            if len(out) > 1 and self._out_bytes <= len(out) * JOINED_BYTES_MAX:
                out = [b"".join(out)]
            self._out = []
            self._out_bytes = 0
            self._sent_ms = self._now_ms
        return out

    @property
    def output_bytes(self) -> int:
        """About how much `drain_output` would give."""
        return self._out_bytes + len(self.dirty_sessions) * DISPOSITION_BYTES

    @property
    def is_closed(self) -> bool:
        """Nothing more will be read; nothing more will be written once the output has been."""
        return self.state == states.CLOSED

    @property
    def is_closing(self) -> bool:
        """We have said our close, or nothing more is read at all."""
        return self.state >= states.CLOSE_SENT

    @property
    def is_undecided(self) -> bool:
        """Server: `sasl_done` is awaited."""
        return self.state == states.SASL_DECIDING

    @property
    def bytes_kept(self) -> int:
        """Bytes received and not read yet: of an unfinished frame, or behind a SASL response not decided about."""
        return self._parser.unread

    def open(self) -> None:
        """Client: start. Begin and attach may follow at once; all of it goes out when the server lets us in."""
        assert not self.is_server and not self._is_open_sent, "a client opens once"
        if self.options.sasl_mechanisms:
            self.append(SASL_HEADER)
            self._is_holding = True
        self.append(AMQP_HEADER)
        self._write_open()

    def begin(self) -> Session:
        """Start a session of our own."""
        assert self._is_open_sent, "open first"
        channel = self._free_channel(0)
        session = Session(self, channel)
        self.sessions[channel] = session
        session.write_begin(None)
        return session

    def sasl_done(self, code: int) -> None:
        """Server: the answer to `SaslRequested`: 0 lets the client in, anything else closes the connection."""
        if self.state == states.CLOSED:
            return  # the client did not wait for the answer, or said too much meanwhile
        assert self.state == states.SASL_DECIDING, "nobody asked"
        self.append(encode_sasl_frame(SaslOutcome(code)))
        if code == 0:
            self.state = states.AMQP_HEADER
            self._read()
        else:
            self._finish(AmqpError(states.UNAUTHORIZED_ACCESS, "SASL authentication failed."))

    def close(self, error: AmqpError | None = None) -> None:
        """Close in order: what was to be said is said, then the peer's close is awaited, for a while."""
        if self.state >= states.CLOSE_SENT:
            return
        if self.state < states.OPENING and not self._is_open_sent:
            self._finish(error)
            return
        self._write_close(error)
        if self._is_holding:
            self._finish(error)  # the close will never be let out
            return
        self.state = states.CLOSE_SENT
        self._close_due_ms = self._now_ms + CLOSE_WAIT_MS

    def release(self) -> None:
        """The connection is closed: nothing that the peer made us hold stays, though its socket may for a while."""
        for session in self.sessions.values():
            if not session.is_ended:
                session.free()
            session.links.clear()
        self.sessions.clear()
        self.sessions_by_remote_channel.clear()
        self.ended_channels.clear()
        self.names.clear()
        self._parser = FrameParser(self._parser.max_frame_size)

    # -- time ---------------------------------------------------------------------------------------------

    def next_due_ms(self) -> int:
        """When `tick` has something to do; 0 for never."""
        if self.state == states.CLOSED:
            return 0
        if self.state == states.CLOSE_SENT:
            return self._close_due_ms
        due = 0
        if self.options.idle_timeout_ms > 0:
            due = self._received_ms + 2 * self.options.idle_timeout_ms
        interval = self._heartbeat_ms()
        if interval > 0 and (due == 0 or self._sent_ms + interval < due):
            due = self._sent_ms + interval
        return due

    def tick(self, now_ms: int) -> None:
        """Write a heartbeat if we have been silent long enough; give up a peer that has been silent too long."""
        self._now_ms = now_ms
        if self.state == states.CLOSED:
            return
        if self.state == states.CLOSE_SENT:
            if now_ms >= self._close_due_ms:
                self._finish(None)
            return
        # Twice what we announced: a peer's timer and the way here may be slow.
        idle_ms = 2 * self.options.idle_timeout_ms
        if idle_ms > 0 and now_ms - self._received_ms >= idle_ms:
            self.fail(states.RESOURCE_LIMIT_EXCEEDED, f"Nothing was received for {idle_ms} ms.")
            self.state = states.CLOSED  # nobody is there to answer
            return
        interval = self._heartbeat_ms()
        if interval > 0 and now_ms - self._sent_ms >= interval and not self._out:
            self.append(EMPTY_FRAME)

    def _heartbeat_ms(self) -> int:
        """Half of what the peer's patience allows [2.4.5]; 0 if it has no limit."""
        if self.remote_open is None or not self.remote_open.idle_time_out:
            return 0
        return max(self.remote_open.idle_time_out // 2, HEARTBEAT_MS_MIN)

    # -- reading ------------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Work through what has been fed, as far as the state lets us."""
        parser = self._parser
        try:
            while self._frames_left > 0:
                state = self.state
                if state == states.OPENED:
                    self._read_plain_transfers(parser)
                    if self._frames_left <= 0:
                        return
                self._frames_left -= 1
                if state == states.OPENED:
                    frame = parser.next()
                    if frame is None:
                        self._frames_left = 1  # nothing was cut off
                        return
                    self._on_frame(frame)
                elif state == states.HEADER or state == states.AMQP_HEADER:
                    header = parser.next_header()
                    if header is None:
                        self._frames_left = 1
                        return
                    self._on_header(header)
                elif state == states.SASL_DECIDING:
                    self._frames_left += 1  # its end goes on with them
                    if parser.unread > UNDECIDED_BYTES_MAX:
                        self._finish(
                            AmqpError(states.RESOURCE_LIMIT_EXCEEDED, "Too much was sent before SASL was over.")
                        )
                    return
                elif state == states.CLOSED:
                    return
                else:
                    frame = parser.next()
                    if frame is None:
                        self._frames_left = 1
                        return
                    self._on_early_or_late_frame(frame)
        except ProtocolError as fault:
            # Nothing behind bytes that cannot be read can be trusted: say so, and read no more.
            error = error_from(fault)
            self._fail_with(error)
            self._finish(error)

    def _read_plain_transfers(self, parser: FrameParser) -> None:
        """Deliveries of one frame each, one behind the other where they lie, as `_on_frame` would read them.

        Whatever comes first that is anything else, or not whole, is left: the general way decides what it is.
        """
        transfer = self._transfer
        data = parser.data
        at: i64 = parser.at
        end: i64 = len(data)
        size_max: i64 = parser.max_frame_size
        last_header: i64 = -1
        session: Session | None = None
        while end - at >= _TRANSFER_BYTES_MIN and self._frames_left > 0:
            size: i64 = uint_at(data, at)
            if size < _TRANSFER_BYTES_MIN or size > size_max or size > end - at:
                return
            header: i64 = uint_at(data, at + 4)
            if header >> 16 != _PLAIN_HEADER or uint_at(data, at + 8) != _TRANSFER_DESCRIPTOR:
                return
            if header != last_header:
                last_header = header
                session = self.sessions_by_remote_channel.get(header & 0xFFFF)
            if session is None or session.state != states.SESSION_MAPPED:
                return
            if not transfer.read(data, at + 12, at + size) or not session.on_plain_transfer(transfer, data, at + size):
                return
            at += size
            parser.at = at
            self._frames_left -= 1
            self.frames_count += 1
            self.frames_weight += 1
            extra: i64 = (size - 8) // LIGHT_FRAME_BYTES
            if extra > 0:
                self.spend_frames(extra)

    def _on_early_or_late_frame(self, frame: Frame) -> None:
        if self.state == states.OPENING or self.state == states.CLOSE_SENT:
            self._on_frame(frame)
        else:
            self._on_sasl_frame(frame)

    def _on_header(self, header: bytes) -> None:
        """Ours is written first by a client, in answer by a server; a wrong one is answered by the right one [2.2]."""
        is_first = self.state == states.HEADER
        if is_first and self.options.sasl_mechanisms and header == SASL_HEADER:
            if self.is_server:
                self.append(SASL_HEADER)
                self.append(encode_sasl_frame(SaslMechanisms(self.options.sasl_mechanisms)))
                self.state = states.SASL_INIT
            else:
                self.state = states.SASL_MECHANISMS
            return
        is_sasl_missing = is_first and (
            self.options.is_sasl_required if self.is_server else len(self.options.sasl_mechanisms) > 0
        )
        if header != AMQP_HEADER or is_sasl_missing:
            if self.is_server:
                self.append(SASL_HEADER if is_first and self.options.sasl_mechanisms else AMQP_HEADER)
            self._finish(AmqpError(FRAMING_ERROR, f"Not the protocol header we expect: {header!r}."))
            return
        if self.is_server:
            self.append(AMQP_HEADER)
        self._parser.max_frame_size = self.options.max_frame_size
        self.state = states.OPENING

    def _on_sasl_frame(self, frame: Frame) -> None:
        """Any fault here just ends the connection: there is no close before an open."""
        body: Performative | None = None
        if frame.kind == SASL and frame.at < frame.end:
            body, _ = decode_body(frame, DecodeBudget(self.elements_max))
        if isinstance(body, SaslInit) and self.state == states.SASL_INIT:
            self._on_init(body)
        elif isinstance(body, SaslMechanisms) and self.state == states.SASL_MECHANISMS:
            self._on_mechanisms(body)
        elif isinstance(body, SaslOutcome) and self.state == states.SASL_OUTCOME:
            self._on_outcome(body)
        else:
            self._finish(AmqpError(states.ILLEGAL_STATE, "Not the SASL frame we expect."))

    def _on_init(self, init: SaslInit) -> None:
        self.state = states.SASL_DECIDING
        if init.mechanism in self.options.sasl_mechanisms:
            self.events.append(SaslRequested(init.mechanism, init.initial_response or b"", init.hostname))
        else:
            self.sasl_done(1)

    def _on_mechanisms(self, mechanisms: SaslMechanisms) -> None:
        options = self.options
        init = choose_init(mechanisms, options.sasl_mechanisms, options.sasl_response, options.hostname)
        if init is None:
            self._finish(AmqpError(states.UNAUTHORIZED_ACCESS, "The server offers no SASL mechanism that we can use."))
            return
        self._is_holding = False
        self.append(encode_sasl_frame(init))
        self._is_holding = True
        self.state = states.SASL_OUTCOME

    def _on_outcome(self, outcome: SaslOutcome) -> None:
        self.events.append(SaslFinished(outcome.outcome))
        if outcome.outcome != 0:
            self._finish(AmqpError(states.UNAUTHORIZED_ACCESS, f"SASL failed with code {outcome.outcome}."))
            return
        self._is_holding = False
        held = self._held
        self._held = []
        for data in held:
            self.append(data)
        self.state = states.AMQP_HEADER

    # -- frames -------------------------------------------------------------------------------------------

    def _on_frame(self, frame: Frame) -> None:
        """One AMQP frame."""
        self.frames_count += 1
        self.frames_weight += 1
        extra = (frame.end - frame.at) // LIGHT_FRAME_BYTES
        if extra > 0:
            self.spend_frames(extra)
        if frame.at == frame.end:
            return  # a heartbeat
        if frame.kind == SASL:
            if self.state == states.CLOSE_SENT:
                return
            raise ProtocolError(CONNECTION, FRAMING_ERROR, "A SASL frame after SASL.")
        budget = self._budget
        if budget.elements_left != self.elements_max or budget.depth_left != DEPTH_MAX:
            budget = self._budget = DecodeBudget(self.elements_max)  # the usual frames cost nothing of it
        body, at = decode_body(frame, budget)
        if self.state == states.OPENED:
            session = self.sessions_by_remote_channel.get(frame.channel)
            if session is None or session.state != states.SESSION_MAPPED:
                self._on_sessionless_frame(frame.channel, session, body)
            elif isinstance(body, Transfer):
                session.on_transfer(body, frame.data, at, frame.end)
            elif isinstance(body, Disposition):
                session.on_disposition(body)
            elif isinstance(body, Flow):
                session.on_flow(body)
            else:
                self._on_session_frame(session, body, frame.end - frame.at)
        elif self.state == states.OPENING:
            self._on_open(body)
        elif isinstance(body, Close):
            self._finish(body.error)  # the answer to ours; all else is discarded

    def _on_session_frame(self, session: Session, body: Performative, size: int) -> None:
        if isinstance(body, Attach):
            session.on_attach(body, size)
        elif isinstance(body, Detach):
            session.on_detach(body)
        elif isinstance(body, End):
            self._on_end(session, body)
        else:
            self._on_sessionless_frame(session.remote_channel, session, body)

    def _on_sessionless_frame(self, channel: int, session: Session | None, body: Performative) -> None:
        """What concerns the connection, comes on a channel without a session, or on one whose session we have ended."""
        if isinstance(body, Close):
            self._write_close(None)
            self._finish(body.error)
        elif isinstance(body, Open):
            self.fail(states.ILLEGAL_STATE, "The connection is open already.")
        elif isinstance(body, Begin):
            self._on_begin(channel, body)
        elif session is None:
            self._on_unmapped(channel)
        elif isinstance(body, End):
            self._on_end(session, body)  # the answer to ours; all else is discarded

    def _on_unmapped(self, channel: int) -> None:
        if channel in self.ended_channels:
            return  # Python detaches its management links then (docs/wire.md, "Frames come after the end")
        if channel > self.options.channel_max:
            # "MUST close the connection with the framing-error error-code" [2.7.1]
            self.fail(FRAMING_ERROR, f"Channel {channel} is above channel-max.")
        else:
            self.fail(states.ILLEGAL_STATE, f"There is no session on channel {channel}.")

    def _on_open(self, body: Performative) -> None:
        if not isinstance(body, Open):
            self.fail(states.ILLEGAL_STATE, "A connection starts with an open.")
            return
        if body.max_frame_size < FRAME_BYTES_MIN:
            self.fail(INVALID_FIELD, f"max-frame-size is at least {FRAME_BYTES_MIN}.")
            return
        self.remote_open = body
        self.frame_bytes_max = min(body.max_frame_size, self.options.max_frame_size)
        self.state = states.OPENED
        if not self._is_open_sent:
            self._write_open()
        self.events.append(ConnectionOpened(body))

    def _on_begin(self, channel: int, begin: Begin) -> None:
        if channel > self.options.channel_max:
            self.fail(FRAMING_ERROR, f"Channel {channel} is above channel-max.")
            return
        if channel in self.sessions_by_remote_channel:
            self.fail(states.ILLEGAL_STATE, f"There is a session on channel {channel} already.")
            return
        session: Session | None
        if begin.remote_channel is not None:
            session = self.sessions.get(begin.remote_channel)
            if session is None or session.remote_channel >= 0:
                self.fail(states.ILLEGAL_STATE, f"No begin of ours waits on channel {begin.remote_channel}.")
                return
        elif len(self.sessions) >= self.sessions_max:
            text = f"This connection has {self.sessions_max} sessions, the most it may have."
            self.fail(states.RESOURCE_LIMIT_EXCEEDED, text)
            return
        else:
            local_channel = self._free_channel(channel)
            session = Session(self, local_channel)
            self.sessions[local_channel] = session
            session.charge(SESSION_BYTES)
            session.write_begin(channel)
        self.ended_channels.discard(channel)
        self.sessions_by_remote_channel[channel] = session
        session.on_begin(channel, begin)

    def _on_end(self, session: Session, end: End) -> None:
        session.on_end(end)
        del self.sessions_by_remote_channel[session.remote_channel]
        del self.sessions[session.local_channel]
        session.release()
        self.ended_channels.add(session.remote_channel)

    # -- faults -------------------------------------------------------------------------------------------

    def fail(self, condition: str, description: str) -> None:
        """The peer broke a rule of the connection: close it with an error, and tell the owner."""
        self._fail_with(AmqpError(condition, description))

    def _fail_with(self, error: AmqpError) -> None:
        if self.state >= states.CLOSE_SENT:
            return
        self.close(error)
        self._tell_closed(error)

    def _finish(self, error: AmqpError | None) -> None:
        """The end: nothing is read any more."""
        self.state = states.CLOSED
        self._tell_closed(error)

    def _tell_closed(self, error: AmqpError | None) -> None:
        if not self._is_closed_told:
            self._is_closed_told = True
            self.events.append(ConnectionClosed(error))

    # -- writing ------------------------------------------------------------------------------------------

    def write(self, channel: int, performative: Performative) -> None:
        """Put a frame behind what is to be written already."""
        self.append(encode_frame(channel, performative))

    def append(self, data: bytes) -> None:
        """Put bytes behind what is to be written already."""
        if self.state >= states.CLOSE_SENT:
            return  # a close is the last that is said [2.7.9]
        if self._is_holding:
            self._held.append(data)
        else:
            self._out.append(data)
            self._out_bytes += len(data)

    def _write_open(self) -> None:
        options = self.options
        properties: dict[object, object] | None = None
        if options.properties is not None:
            properties = {}
            for key, value in options.properties.items():
                properties[Symbol(key)] = value
        self._is_open_sent = True
        self.write(
            0,
            Open(
                options.container_id,
                options.hostname,
                options.max_frame_size,
                options.channel_max,
                options.idle_timeout_ms,
                properties=properties,
            ),
        )

    def _write_close(self, error: AmqpError | None) -> None:
        """A close comes behind an open, and behind everything that was to be said."""
        if not self._is_open_sent:
            self._write_open()
        for session in self.sessions.values():
            if session.state < states.SESSION_END_SENT:
                session.flush_runs()
        self.write(0, Close(error))

    # -- bookkeeping for sessions and links ---------------------------------------------------------------

    def _free_channel(self, wanted: int) -> int:
        """`wanted` if it is free and the peer allows it, else the lowest free channel."""
        channel_max = 65_535 if self.remote_open is None else self.remote_open.channel_max
        if wanted not in self.sessions and wanted <= channel_max:
            return wanted
        channel = 0
        while channel in self.sessions:
            channel += 1
        return channel

    def charge_partial(self, count: int) -> bool:
        """Count bytes of unfinished deliveries; False, and nothing counted, if they would be too many."""
        if count > 0 and self.partial_bytes + count > self.partial_bytes_max:
            return False
        self.partial_bytes += count
        self.account.charge(count)
        return True

    def note_name(self, link: "Link") -> None:
        self.names[(link.name, link.is_sender)] = link

    def unregister_name(self, link: "Link") -> None:
        key = (link.name, link.is_sender)
        if self.names.get(key) is link:
            del self.names[key]
