"""One session: windows, delivery ids and dispositions shared by its links [2.5].

What we send respects the peer's incoming window: deliveries wait here, in order, until it lets them out. What we
receive is let in by a window so large that only a hostile peer meets its end. What the peer numbers is never believed:
the Python SDK counts deliveries where the specification counts frames, and gives several deliveries under way one id
(every link of it counts for itself, and requests are numbered before they wait for their turn). An id is repeated in
what is said of the delivery, and means nothing else here.
"""

from typing import TYPE_CHECKING, Final

from spillway.amqp import states
from spillway.amqp.dispositions import DispositionRun
from spillway.amqp.errors import FRAMING_ERROR, INVALID_FIELD, AmqpError
from spillway.amqp.events import (
    AttachRequested,
    DispositionReceived,
    EndConfirmed,
    IncomingSettled,
    LinkDetached,
    SessionBegun,
    SessionEnded,
    WindowOpened,
)
from spillway.amqp.fast import PlainTransfer, disposition_frame
from spillway.amqp.link import Link
from spillway.amqp.outgoing import UNSETTLED_STEP, Outgoing
from spillway.amqp.performatives import (
    Attach,
    Begin,
    DeliveryState,
    Detach,
    Disposition,
    End,
    Flow,
    Received,
    Source,
    Terminus,
    Transfer,
)
from spillway.amqp.serial import MASK, serial_difference

if TYPE_CHECKING:
    from spillway.amqp.connection import Connection

OUTGOING_WINDOW: Final = (1 << 31) - 1  # we hold back nothing of our own accord
# AMQP has no limit. Thousands of links are kept by their names; those of the SDKs have some hundred characters.
NAME_CHARS_MAX: Final = 1_024
# What they take in memory, with what our owner keeps for them.
SESSION_BYTES: Final = 2_500
LINK_BYTES: Final = 2_500
NAME_CHAR_BYTES: Final = 4
HANDLE_BYTES: Final = 64
# An attach is decoded into values of which each may take a hundred times the bytes it came in; usually it is ten.
ATTACH_FACTOR: Final = 16


class Session:
    """Our end of a session. `links` is by our handle and stays as it was when the session ends."""

    def __init__(self, connection: "Connection", local_channel: int) -> None:
        self.connection = connection
        self.local_channel = local_channel
        self.remote_channel: int = -1
        self.state: int = states.SESSION_BEGIN_SENT
        self.is_fault_ours_to_tell = False  # the owner has heard SessionEnded already
        self.user: object | None = None
        self.links: dict[int, Link] = {}
        self.links_by_remote_handle: dict[int, Link] = {}
        self.awaiting: dict[tuple[str, bool], Link] = {}  # our attaches without an answer, by name and role
        self.errored_handles: set[int] = set()  # of the peer, detached by us with an error and answered
        self.remote_handle_max: int = (1 << 32) - 1
        self.outgoing = Outgoing(connection, local_channel)
        # -- incoming
        self.incoming_left: int = connection.options.incoming_window
        self.next_incoming_id: int = -1  # unknown before the peer's begin
        # -- to say when the output is taken
        self.is_dirty = False
        self.is_echo_due = False
        self.echo_links: list[Link] = []
        self.received_run = DispositionRun(True)
        self.sent_run = DispositionRun(False)
        self.held_bytes = 0  # charged for it and its links

    def charge(self, count: int) -> None:
        self.held_bytes += count
        self.connection.account.charge(count)

    def release(self) -> None:
        """Releases all that was charged for the session."""
        self.charge(-self.held_bytes)

    @property
    def is_ended(self) -> bool:
        return self.state >= states.SESSION_END_SENT

    @property
    def window(self) -> int:
        """Transfer frames the peer's incoming window still takes, beyond what is queued for it."""
        return max(self.outgoing.window - len(self.outgoing.queue), 0)

    # -- the owner's side ---------------------------------------------------------------------------------

    def attach_sender(
        self,
        name: str,
        source: Source | None,
        target: Terminus | None,
        *,
        snd_settle_mode: int = 0,
        rcv_settle_mode: int = 0,
        properties: dict[object, object] | None = None,
        initial_delivery_count: int = 0,
        max_message_size: int = 0,
    ) -> Link:
        """Ask the peer for a link on which we send."""
        link = Link(self, name, True, self.free_handle(0))
        link.initial_delivery_count = initial_delivery_count
        link.delivery_count = initial_delivery_count
        self.start_attach(link, source, target, snd_settle_mode, rcv_settle_mode, properties, max_message_size)
        return link

    def attach_receiver(
        self,
        name: str,
        source: Source | None,
        target: Terminus | None,
        *,
        snd_settle_mode: int = 0,
        rcv_settle_mode: int = 0,
        properties: dict[object, object] | None = None,
        max_message_size: int = 0,
    ) -> Link:
        """Ask the peer for a link on which we receive; `Link.grant` may follow at once."""
        link = Link(self, name, False, self.free_handle(0))
        self.start_attach(link, source, target, snd_settle_mode, rcv_settle_mode, properties, max_message_size)
        return link

    def settle(self, delivery_id: int, state: DeliveryState | None) -> None:
        """Settle a delivery we received."""
        self.add_disposition(self.received_run, delivery_id, True, state)

    def dispose(self, delivery_id: int, state: DeliveryState) -> None:
        """Tell the sender what we make of a delivery, and leave it to it to settle: `IncomingSettled` will follow."""
        self.add_disposition(self.received_run, delivery_id, False, state)

    def settle_sent(self, delivery_id: int, state: DeliveryState | None) -> None:
        """Settle a delivery we sent, in answer to what the receiver said of it. Nothing, if its link has gone."""
        if self.outgoing.pop_disposed(delivery_id):
            self.add_disposition(self.sent_run, delivery_id, True, state)

    def end(self, error: AmqpError | None = None) -> None:
        """End the session from our side. What the peer sent meanwhile is ignored until it answers."""
        if self.state >= states.SESSION_END_SENT:
            return
        self.flush_runs()
        self.connection.write(self.local_channel, End(error))
        self.state = states.SESSION_END_SENT
        self.free()

    # -- the session's own life ---------------------------------------------------------------------------

    def start_attach(
        self,
        link: Link,
        source: Source | None,
        target: Terminus | None,
        snd_settle_mode: int,
        rcv_settle_mode: int,
        properties: dict[object, object] | None,
        max_message_size: int,
    ) -> None:
        key = (link.name, link.is_sender)
        assert key not in self.awaiting, "one attach of a name at a time"
        link.snd_settle_mode = snd_settle_mode
        link.rcv_settle_mode = rcv_settle_mode
        link.max_message_size = max_message_size
        link.bytes_max = max_message_size
        self.links[link.local_handle] = link
        self.awaiting[key] = link
        self.connection.note_name(link)
        link.write_attach(source, target, properties)

    def free_handle(self, wanted: int) -> int:
        """`wanted` if it is free and the peer allows it, else the lowest free handle."""
        if wanted not in self.links and wanted <= self.remote_handle_max:
            return wanted
        handle = 0
        while handle in self.links:
            handle += 1
        return handle

    def free(self) -> None:
        """Free what the session holds for the wire; the links stay for the owner to walk."""
        for link in self.links.values():
            link.discard_partial()
            link.attach_bytes = 0
            link.held_bytes = 0
            if link.state < states.LINK_DETACH_SENT:
                self.connection.unregister_name(link)
                self.outgoing.withdraw(link)
            link.state = states.LINK_DETACHED
        self.connection.links_count -= len(self.links_by_remote_handle)
        self.outgoing.clear()
        self.release()
        self.awaiting.clear()
        self.errored_handles.clear()
        self.links_by_remote_handle.clear()
        self.is_echo_due = False

    def fail(self, condition: str, description: str) -> None:
        """The peer broke a rule of this session: end it with an error, and tell the owner."""
        if self.state >= states.SESSION_END_SENT:
            return
        error = AmqpError(condition, description)
        self.end(error)
        self.is_fault_ours_to_tell = True
        self.connection.events.append(SessionEnded(self, error))

    def on_begin(self, remote_channel: int, begin: Begin) -> None:
        """The peer's begin, its own or its answer to ours."""
        self.remote_channel = remote_channel
        self.next_incoming_id = begin.next_outgoing_id
        self.outgoing.window = begin.incoming_window
        self.remote_handle_max = begin.handle_max
        if self.state == states.SESSION_BEGIN_SENT:
            self.state = states.SESSION_MAPPED
            self.connection.events.append(SessionBegun(self))

    def write_begin(self, remote_channel: int | None) -> None:
        options = self.connection.options
        self.connection.write(
            self.local_channel,
            Begin(
                remote_channel,
                self.outgoing.next_outgoing_id,
                options.incoming_window,
                OUTGOING_WINDOW,
                options.handle_max,
            ),
        )

    def on_end(self, end: End) -> None:
        """The peer ends the session, or answers our end of it; the channel is free afterwards."""
        events = self.connection.events
        if self.state == states.SESSION_END_SENT:
            if not self.is_fault_ours_to_tell:
                events.append(EndConfirmed(self, end.error))
        else:
            self.end()
            events.append(SessionEnded(self, end.error))
        self.state = states.SESSION_ENDED

    # -- frames of links ----------------------------------------------------------------------------------

    def on_attach(self, attach: Attach, size: int) -> None:
        connection = self.connection
        if attach.handle > connection.options.handle_max:
            # "MUST close the connection with the framing-error error-code" [2.7.2]
            connection.fail(FRAMING_ERROR, f"Handle {attach.handle} is above handle-max.")
            return
        if attach.handle in self.links_by_remote_handle:
            self.fail(states.HANDLE_IN_USE, f"Handle {attach.handle} is attached already.")
            return
        if connection.links_count >= 2 * connection.links_max:
            connection.fail(states.RESOURCE_LIMIT_EXCEEDED, "Too many links, and refused ones not detached.")
            return
        if len(attach.name) > NAME_CHARS_MAX:
            self.fail(INVALID_FIELD, f"The name of a link has at most {NAME_CHARS_MAX} characters.")
            return
        if attach.handle in self.errored_handles:
            self.errored_handles.discard(attach.handle)
            self.charge(-HANDLE_BYTES)
        is_sender = attach.role
        link = self.awaiting.pop((attach.name, is_sender), None)
        if link is not None:
            self.map_link(link, attach.handle)
            link.on_attach(attach)
            return
        link = Link(self, attach.name, is_sender, self.free_handle(attach.handle))
        link.state = states.LINK_ATTACH_RCVD
        link.attach = attach
        link.snd_settle_mode = attach.snd_settle_mode
        link.rcv_settle_mode = attach.rcv_settle_mode
        if not is_sender:
            link.delivery_count = attach.initial_delivery_count or 0
        self.links[link.local_handle] = link
        self.map_link(link, attach.handle)
        link.charge(LINK_BYTES + NAME_CHAR_BYTES * len(link.name), ATTACH_FACTOR * size)
        self.admit(link)

    def map_link(self, link: Link, remote_handle: int) -> None:
        link.remote_handle = remote_handle
        self.links_by_remote_handle[remote_handle] = link
        self.connection.links_count += 1

    def admit(self, link: Link) -> None:
        """Ask the owner about a link of the peer's, after an older one of the same name has made room [2.6.1]."""
        connection = self.connection
        if connection.links_count > connection.links_max:
            text = f"This connection has {connection.links_max} links, the most it may have."
            link.refuse(AmqpError(states.RESOURCE_LIMIT_EXCEEDED, text))
            link.is_fault_ours_to_tell = True  # the owner never heard of it
            link.release_attach()
            link.attach = None
            return
        older = connection.names.get((link.name, link.is_sender))
        if older is not None:
            error = AmqpError(states.STOLEN, "Another link of the same name has been attached.")
            older.detach(error)
            older.is_fault_ours_to_tell = True
            connection.events.append(LinkDetached(older, error, True))
        connection.note_name(link)
        connection.events.append(AttachRequested(link))

    def find_link(self, handle: int) -> Link | None:
        """The link of a handle of the peer's; None after the session was ended for the lack of it."""
        link = self.links_by_remote_handle.get(handle)
        if link is None:
            if handle in self.errored_handles:
                self.fail(states.ERRANT_LINK, f"The link of handle {handle} was detached with an error.")
            else:
                self.fail(states.UNATTACHED_HANDLE, f"Handle {handle} is not attached.")
        return link

    def on_detach(self, detach: Detach) -> None:
        link = self.find_link(detach.handle)
        if link is None:
            return
        if link.detach_error is not None and detach.handle not in self.errored_handles:
            self.errored_handles.add(detach.handle)
            self.charge(HANDLE_BYTES)
        link.on_detach(detach)
        link.release()
        del self.links_by_remote_handle[detach.handle]
        del self.links[link.local_handle]
        self.connection.links_count -= 1

    def on_transfer(self, transfer: Transfer, data: bytes, at: int, end: int) -> None:
        if self.incoming_left <= 0:
            self.fail(states.WINDOW_VIOLATION, "More transfers than the incoming window allows.")
            return
        self.incoming_left -= 1
        self.next_incoming_id = (self.next_incoming_id + 1) & MASK
        if self.incoming_left * 2 < self.connection.options.incoming_window:
            self.mark_dirty()  # a flow with the next output opens it again
        link = self.find_link(transfer.handle)
        if link is not None:
            link.on_transfer(transfer, data, at, end)

    def on_plain_transfer(self, transfer: PlainTransfer, data: bytes, end: int) -> bool:
        """`on_transfer` of a whole delivery that nothing is to be said of.

        False, and nothing has changed, if anything is: then the general way does it.
        """
        left = self.incoming_left - 1
        if left < 0 or left + left < self.connection.options.incoming_window:  # a product of two large ones is dear
            return False
        link = self.links_by_remote_handle.get(transfer.handle)
        if link is None or not link.on_plain_transfer(transfer, data, end):
            return False
        self.incoming_left = left
        self.next_incoming_id = (self.next_incoming_id + 1) & MASK
        return True

    def on_flow(self, flow: Flow) -> None:
        if self.outgoing.set_window(flow.next_incoming_id, flow.incoming_window):
            self.connection.events.append(WindowOpened(self))
        if flow.handle is not None:
            link = self.find_link(flow.handle)
            if link is not None:
                link.on_flow(flow)
        elif flow.echo:
            self.is_echo_due = True
            self.mark_dirty()

    def on_disposition(self, disposition: Disposition) -> None:
        first = disposition.first
        last = first if disposition.last is None else disposition.last
        count = serial_difference(last, first) + 1
        if count <= 0:
            return  # a range that ends before it begins names nothing
        if not disposition.role:
            if disposition.settled:
                self.connection.events.append(IncomingSettled(self, first, last, disposition.state))
            return
        state = disposition.state
        if not disposition.settled and (state is None or isinstance(state, Received)):
            return  # how far the receiver has got decides nothing
        outgoing = self.outgoing
        deliveries = outgoing.find_unsettled(first, count)
        if not deliveries:
            return
        for delivery in deliveries:
            del outgoing.unsettled[delivery.delivery_id]
            if disposition.settled:
                delivery.link.outstanding -= 1
            else:
                outgoing.disposed[delivery.delivery_id] = delivery
        if outgoing.unsettled_paid > UNSETTLED_STEP:
            outgoing.settle_up()
        self.connection.events.append(DispositionReceived(deliveries, disposition.settled, disposition.state))

    # -- saying -------------------------------------------------------------------------------------------

    def mark_dirty(self) -> None:
        """Something is to be said when the output is taken."""
        if not self.is_dirty:
            self.is_dirty = True
            self.connection.dirty_sessions.append(self)

    def add_disposition(
        self, run: DispositionRun, delivery_id: int, settled: bool, state: DeliveryState | None
    ) -> None:
        """Add a delivery to a run, or write the run and begin another."""
        if self.state >= states.SESSION_END_SENT:
            return
        if run.is_open:
            if run.extend(delivery_id, settled, state):
                return
            self.write_run(run)
        run.begin(delivery_id, settled, state)
        self.mark_dirty()

    def write_run(self, run: DispositionRun) -> None:
        run.is_open = False
        frame = disposition_frame(self.local_channel, run.role, run.first, run.last, run.settled, run.state)
        if frame is not None:
            self.connection.append(frame)
        else:
            self.connection.write(
                self.local_channel, Disposition(run.role, run.first, run.last, run.settled, run.state)
            )

    def flush_runs(self) -> None:
        """Write what is to be said of deliveries, before anything that must come after it."""
        if self.received_run.is_open:
            self.write_run(self.received_run)
        if self.sent_run.is_open:
            self.write_run(self.sent_run)

    def flush(self) -> None:
        """Write everything that waited for the output to be taken."""
        self.is_dirty = False
        if self.state >= states.SESSION_END_SENT:
            return
        self.flush_runs()
        if self.echo_links:
            links = self.echo_links
            self.echo_links = []
            for link in links:
                link.answer_echo()
        if self.is_echo_due or self.incoming_left * 2 < self.connection.options.incoming_window:
            self.is_echo_due = False
            self.write_flow(None, None, None, False)

    def write_flow(self, handle: int | None, delivery_count: int | None, link_credit: int | None, drain: bool) -> None:
        """A flow always says where the session stands, and opens our window again."""
        window = self.connection.options.incoming_window
        self.incoming_left = window
        self.connection.write(
            self.local_channel,
            Flow(
                None if self.next_incoming_id < 0 else self.next_incoming_id,
                window,
                self.outgoing.next_outgoing_id,
                OUTGOING_WINDOW,
                handle,
                delivery_count,
                link_credit,
                drain=drain,
            ),
        )
