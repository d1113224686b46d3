"""One link: a direction in which messages flow inside a session, with its credit [2.6].

The link knows its own counters and the delivery it is in the middle of receiving; windows, delivery ids and
dispositions belong to the session. It does not know what a message or an address means.
"""

from typing import TYPE_CHECKING, Final

from spillway.amqp import states
from spillway.amqp.errors import INVALID_FIELD, AmqpError
from spillway.amqp.events import (
    DetachConfirmed,
    FlowReceived,
    LinkAttached,
    LinkDetached,
    TransferAborted,
    TransferReceived,
    TransferTooLarge,
)
from spillway.amqp.fast import PlainTransfer
from spillway.amqp.performatives import (
    Attach,
    DeliveryState,
    Detach,
    Flow,
    Rejected,
    Source,
    Terminus,
    Transfer,
)
from spillway.amqp.serial import serial_add, serial_difference

if TYPE_CHECKING:
    from spillway.amqp.session import Session

TAG_BYTES_MAX: Final = 32  # [2.8.7]
# A multi-frame delivery may come in pieces of one byte. Each piece costs a Python object besides its bytes, so each is
# charged with this much when the bytes of unfinished deliveries are counted.
PART_OVERHEAD_BYTES: Final = 64
# A delivery state that came with the first frame is kept as the values it was decided into: at most a frame of them.
STATE_BYTES: Final = 256 * 1024


class PartialDelivery:
    """A delivery of which some frames have arrived. Its values are those of its first frame."""

    def __init__(self, delivery_id: int, tag: bytes, message_format: int, state: DeliveryState | None) -> None:
        self.delivery_id = delivery_id
        self.tag = tag
        self.message_format = message_format
        self.state = state
        self.settled = False
        self.size = 0
        self.charged_bytes = 0
        self.state_bytes = 0
        self.is_too_large = False
        self.parts: list[bytes] = []


class Link:
    """Our end of a link. `is_sender` is our role; `attach` is what the peer said, None until it has."""

    def __init__(self, session: "Session", name: str, is_sender: bool, local_handle: int) -> None:
        self.session = session
        self.name = name
        self.is_sender = is_sender
        self.local_handle = local_handle
        self.remote_handle: int = -1
        self.attach: Attach | None = None
        self.state: int = states.LINK_ATTACH_SENT
        self.detach_error: AmqpError | None = None  # that we ended it with
        self.is_fault_ours_to_tell = False  # the owner has heard LinkDetached already
        self.user: object | None = None
        self.snd_settle_mode: int = 0
        self.rcv_settle_mode: int = 0
        self.initial_delivery_count: int = 0
        self.delivery_count: int = 0
        # -- sending
        self.credit: int = 0
        self.is_drain_asked = False  # the peer wants its credit used up or given back
        self.unsent: int = 0
        self.outstanding: int = 0  # deliveries of its that the session knows as not settled
        self.is_unregistered = False  # it is over: what is said of its deliveries is not heard
        self.unsent_tags: list[bytes] = []  # of a link that ended before the session's window let them out
        self.is_drained_due = False
        self.is_flow_held = False  # flow came before our attach went out
        # -- receiving
        self.credit_left: int = 0
        self.is_draining = False  # we want our credit used up or given back
        self.max_message_size: int = 0
        self.bytes_max: int = 0
        self.weight: int = 0  # frames that a delivery counts as besides its own: what it asks for is work
        self.partial: PartialDelivery | None = None
        self.refused_id: int = -1  # the last delivery that came after we had detached
        self.is_echo_due = False
        # -- what our owner is charged for it
        self.held_bytes: int = 0
        self.attach_bytes: int = 0  # of it, until the attach is answered and forgotten

    @property
    def is_open(self) -> bool:
        """Attached on both sides."""
        return self.state == states.LINK_ATTACHED

    @property
    def is_detached(self) -> bool:
        """Nothing may be sent on it any more, and nothing that comes will be told."""
        return self.state >= states.LINK_DETACH_SENT

    # -- attaching and detaching --------------------------------------------------------------------------

    def charge(self, link_bytes: int, attach_bytes: int) -> None:
        self.held_bytes = link_bytes + attach_bytes
        self.attach_bytes = attach_bytes
        self.session.charge(link_bytes + attach_bytes)

    def release(self) -> None:
        self.session.charge(-self.held_bytes)
        self.held_bytes = 0
        self.attach_bytes = 0

    def release_attach(self) -> None:
        """The attach is answered. What the peer said at length would stay with us for as long as the link."""
        attach = self.attach
        if attach is not None:
            attach.source = None
            attach.target = None
            attach.unsettled = None
            attach.properties = None
            attach.offered_capabilities = None
            attach.desired_capabilities = None
        self.session.charge(-self.attach_bytes)
        self.held_bytes -= self.attach_bytes
        self.attach_bytes = 0

    def accept(
        self,
        source: Source | None,
        target: Terminus | None,
        properties: dict[object, object] | None = None,
        max_message_size: int = 0,
    ) -> None:
        """Answer the peer's attach. `max_message_size` is enforced from now on, or what you set `bytes_max` to then."""
        if self.is_detached:
            return  # the peer did not wait for the answer
        assert self.state == states.LINK_ATTACH_RCVD, "only a requested link can be accepted"
        self.max_message_size = max_message_size
        self.bytes_max = max_message_size
        self.state = states.LINK_ATTACHED
        self.write_attach(source, target, properties)
        if self.is_flow_held:
            self.is_flow_held = False
            self.session.connection.events.append(FlowReceived(self, self.is_drain_asked, self.credit))

    def refuse(self, error: AmqpError) -> None:
        """Answer the peer's attach with an attach to nowhere and a closing detach (how AMQP says no [2.6.3])."""
        assert self.is_detached or self.state == states.LINK_ATTACH_RCVD, "only a requested link can be refused"
        self.detach(error)

    def detach(self, error: AmqpError | None = None, closed: bool = True) -> None:
        """End the link from our side. What the peer sent meanwhile is ignored until it answers."""
        if self.state >= states.LINK_DETACH_SENT:
            return
        self.detach_error = error
        if self.partial is not None:
            self.refuse_late(self.partial.delivery_id, self.partial.settled)
        self.write_detach(error, closed)
        self.state = states.LINK_DETACH_SENT

    def write_attach(
        self, source: Source | None, target: Terminus | None, properties: dict[object, object] | None
    ) -> None:
        session = self.session
        session.connection.write(
            session.local_channel,
            Attach(
                self.name,
                self.local_handle,
                not self.is_sender,
                self.snd_settle_mode,
                self.rcv_settle_mode,
                source,
                target,
                initial_delivery_count=self.delivery_count if self.is_sender else None,
                max_message_size=self.max_message_size,
                properties=properties,
            ),
        )

    def write_detach(self, error: AmqpError | None, closed: bool) -> None:
        """Write the detach, after the attach that has to come first, and let go of everything in flight."""
        session = self.session
        if self.state == states.LINK_ATTACH_RCVD:
            self.write_attach(None, None, None)
        session.flush_runs()  # what was said of its deliveries was said before
        session.connection.write(session.local_channel, Detach(self.local_handle, closed, error))
        self.free()

    def free(self) -> None:
        """Free what the link holds: the half of a delivery, queued and unsettled deliveries, its name."""
        self.discard_partial()
        self.is_echo_due = False
        self.is_drained_due = False
        self.session.outgoing.unregister(self)
        self.session.connection.unregister_name(self)

    def fail(self, condition: str, description: str) -> None:
        """The peer broke a rule of this link: detach with an error, and tell the owner."""
        if self.state >= states.LINK_DETACH_SENT:
            return
        error = AmqpError(condition, description)
        self.detach(error)
        self.is_fault_ours_to_tell = True
        self.session.connection.events.append(LinkDetached(self, error, True))

    def on_attach(self, attach: Attach) -> None:
        """The peer's answer to our attach."""
        self.attach = attach
        self.remote_handle = attach.handle
        if self.state != states.LINK_ATTACH_SENT:
            return  # we have detached meanwhile
        if not self.is_sender:
            self.delivery_count = attach.initial_delivery_count or 0
        if (attach.target if self.is_sender else attach.source) is None:
            return  # refused: its detach is on the way [2.6.3]
        self.snd_settle_mode = attach.snd_settle_mode
        self.rcv_settle_mode = attach.rcv_settle_mode
        self.state = states.LINK_ATTACHED
        self.session.connection.events.append(LinkAttached(self))

    def on_detach(self, detach: Detach) -> None:
        """The peer ends the link, or answers our end of it; either way the handles are free afterwards."""
        events = self.session.connection.events
        if self.state == states.LINK_DETACH_SENT:
            if not self.is_fault_ours_to_tell:
                events.append(DetachConfirmed(self, detach.error))
        else:
            self.write_detach(None, detach.closed)
            events.append(LinkDetached(self, detach.error, detach.closed))
        self.state = states.LINK_DETACHED

    # -- sending ------------------------------------------------------------------------------------------

    def send(self, tag: bytes, payload: bytes, settled: bool, message_format: int = 0) -> int:
        """Send one delivery, in as many frames as the peer's frame size asks for, or queue it for the session window.

        Returns its delivery id. A queued delivery may still get another id (`drain_unsent`): know it by its tag.
        """
        assert self.is_sender and self.state == states.LINK_ATTACHED, "only an attached sender sends"
        self.credit -= 1
        self.delivery_count = serial_add(self.delivery_count, 1)
        return self.session.outgoing.send(self, tag, payload, settled, message_format)

    def send_behind(self, tag: bytes, head: bytes, rest: bytes, settled: bool) -> None:
        """`send` of a payload that is in two pieces; they are put together only if they have to wait."""
        assert self.is_sender and self.state == states.LINK_ATTACHED, "only an attached sender sends"
        self.credit -= 1
        self.delivery_count = serial_add(self.delivery_count, 1)
        session = self.session
        if session.outgoing.write_head(self, tag, len(head) + len(rest), settled):
            session.connection.append(head)
            session.connection.append(rest)
        else:
            session.outgoing.send(self, tag, head + rest, settled, 0)

    def drained(self) -> None:
        """Nothing is left to send: give the rest of the credit back [2.6.7]."""
        assert self.is_sender, "credit is a sender's"
        if self.state != states.LINK_ATTACHED:
            return
        if self.unsent > 0 or self.session.outgoing.is_half_sent(self):
            self.is_drained_due = True  # the queued deliveries come first
            return
        self.is_drained_due = False
        if self.credit > 0:
            self.delivery_count = serial_add(self.delivery_count, self.credit)
        self.credit = 0
        self.write_flow(True)
        self.is_drain_asked = False

    def drain_unsent(self) -> list[bytes]:
        """Tags of the deliveries that were queued for the session window and never begun; they will not be sent."""
        self.session.outgoing.withdraw(self)
        tags = self.unsent_tags
        self.unsent_tags = []
        return tags

    # -- receiving ----------------------------------------------------------------------------------------

    def grant(self, credit: int, drain: bool = False) -> None:
        """Let the peer send `credit` deliveries from here on; with `drain` it gives back at once what it cannot use."""
        assert not self.is_sender, "credit is granted by a receiver"
        if self.state != states.LINK_ATTACHED and self.state != states.LINK_ATTACH_SENT:
            return
        self.credit_left = credit
        self.is_draining = drain
        self.write_flow(drain)

    def write_flow(self, drain: bool) -> None:
        """Say where the link stands."""
        session = self.session
        delivery_count: int | None
        if self.is_sender:
            # Queued deliveries are counted by us, but not yet by the peer.
            delivery_count = serial_add(self.delivery_count, -self.unsent)
            credit = self.credit + self.unsent
        else:
            delivery_count = None if self.attach is None else self.delivery_count  # [2.7.4]
            credit = self.credit_left
        session.write_flow(self.local_handle, delivery_count, max(credit, 0), drain)

    def on_flow(self, flow: Flow) -> None:
        """The peer's view of the link; only what it may decide is taken from it."""
        if self.state >= states.LINK_DETACH_SENT:
            return
        if self.is_sender:
            self.on_credit(flow)
        else:
            self.on_sender_flow(flow)
        if flow.echo and not self.is_echo_due:
            # One answer for all that asked since the output was last taken: a storm of echoes is answered by a breeze.
            self.is_echo_due = True
            self.session.echo_links.append(self)
            self.session.mark_dirty()

    def answer_echo(self) -> None:
        """Say where the link stands, if the peer still wants to know."""
        if self.is_echo_due:
            self.is_echo_due = False
            if self.state == states.LINK_ATTACHED:
                self.write_flow(self.is_drain_asked if self.is_sender else self.is_draining)

    def on_credit(self, flow: Flow) -> None:
        """Credit is absolute: what the peer has seen plus what it grants, less what we have sent [2.6.7]."""
        if flow.link_credit is not None:
            # Before our attach has reached it, the peer cannot know our count [2.7.4].
            seen = self.initial_delivery_count if flow.delivery_count is None else flow.delivery_count
            left = flow.link_credit + serial_difference(seen, self.delivery_count)
            self.credit = left if left > 0 else 0
        self.is_drain_asked = flow.drain
        if self.state == states.LINK_ATTACHED:
            self.session.connection.events.append(FlowReceived(self, flow.drain, self.credit))
        else:
            self.is_flow_held = True

    def on_sender_flow(self, flow: Flow) -> None:
        """A sender may only say that it has used credit up. Python's flows on its sender links say nothing."""
        if flow.delivery_count is not None:
            given_back = serial_difference(flow.delivery_count, self.delivery_count)
            if given_back > 0 and given_back <= self.credit_left:
                self.delivery_count = flow.delivery_count
                self.credit_left -= given_back
        self.tell_if_drained()

    def tell_if_drained(self) -> None:
        if self.is_draining and self.credit_left <= 0:
            self.is_draining = False
            self.session.connection.events.append(FlowReceived(self, True, 0))

    def on_transfer(self, transfer: Transfer, data: bytes, at: int, end: int) -> None:
        """One frame of a delivery; the payload is `data[at:end]`."""
        if self.state != states.LINK_ATTACHED or self.is_sender:
            self.refuse_transfer(transfer)
            return
        partial = self.partial
        if partial is None:
            delivery_id = transfer.delivery_id
            tag = transfer.delivery_tag
            if delivery_id is None or tag is None:
                self.fail(INVALID_FIELD, "The first transfer of a delivery needs a delivery-id and a delivery-tag.")
                return
            if len(tag) > TAG_BYTES_MAX:
                self.fail(INVALID_FIELD, "A delivery-tag has at most 32 bytes.")
                return
            self.delivery_count = serial_add(self.delivery_count, 1)
            self.credit_left -= 1
            message_format = transfer.message_format or 0
            if not transfer.more and not transfer.aborted and (self.bytes_max == 0 or end - at <= self.bytes_max):
                self.session.connection.events.append(
                    TransferReceived(
                        self, delivery_id, tag, transfer.settled is True, message_format, data[at:end], transfer.state
                    )
                )
                if self.weight:
                    self.session.connection.spend_frames(self.weight)
                if self.is_draining:
                    self.tell_if_drained()
                return
            partial = PartialDelivery(delivery_id, tag, message_format, transfer.state)
            self.partial = partial
            if transfer.state is not None:
                partial.state_bytes = STATE_BYTES
                self.session.connection.account.charge(STATE_BYTES)
        elif transfer.delivery_id is not None and transfer.delivery_id != partial.delivery_id:
            self.fail(INVALID_FIELD, "A delivery began before the one in progress on this link was complete.")
            return
        self.on_part(partial, transfer, data, at, end)

    def on_plain_transfer(self, transfer: PlainTransfer, data: bytes, end: int) -> bool:
        """`on_transfer` of a whole delivery, where nothing but to tell it is to be done; False, and nothing, if not."""
        at = transfer.payload_at
        if self.state != states.LINK_ATTACHED or self.is_sender or self.partial is not None:
            return False
        if self.is_draining or self.weight or (0 < self.bytes_max < end - at):
            return False
        self.delivery_count = serial_add(self.delivery_count, 1)
        self.credit_left -= 1
        tag = data[transfer.tag_at : transfer.tag_end]
        self.session.connection.events.append(
            TransferReceived(self, transfer.delivery_id, tag, transfer.is_settled, 0, data[at:end], None)
        )
        return True

    def refuse_transfer(self, transfer: Transfer) -> None:
        if self.state >= states.LINK_DETACH_SENT:
            if transfer.delivery_id is not None:
                self.refuse_late(transfer.delivery_id, transfer.settled is True)
            return
        if self.is_sender:
            self.fail(states.ILLEGAL_STATE, "The receiver of a link cannot transfer on it.")
        else:
            self.fail(states.TRANSFER_LIMIT_EXCEEDED, "A transfer came before the link was attached.")

    def refuse_late(self, delivery_id: int, is_settled: bool) -> None:
        """A delivery was on its way when we detached. rhea waits for an outcome all the same.

        The session, which dispositions belong to, is still there to say why there is none.
        """
        error = self.detach_error
        if error is not None and not is_settled and delivery_id != self.refused_id:
            self.refused_id = delivery_id
            self.session.settle(delivery_id, Rejected(error))

    def on_part(self, partial: PartialDelivery, transfer: Transfer, data: bytes, at: int, end: int) -> None:
        """Keep one frame of a delivery of several; tell the delivery when it was the last."""
        connection = self.session.connection
        if transfer.settled is True:
            partial.settled = True  # on any of its frames [2.7.5]
        if transfer.aborted:
            self.discard_partial()
            connection.events.append(TransferAborted(self, partial.delivery_id))
            self.tell_if_drained()
            return
        partial.size += end - at
        if self.bytes_max > 0 and partial.size > self.bytes_max:
            self.release_parts(partial)
            partial.is_too_large = True
        elif not partial.is_too_large and end > at:
            if not connection.charge_partial(end - at + PART_OVERHEAD_BYTES):
                self.fail(states.RESOURCE_LIMIT_EXCEEDED, "Too many bytes of unfinished deliveries on this connection.")
                return
            partial.charged_bytes += end - at + PART_OVERHEAD_BYTES
            partial.parts.append(data[at:end])
        if not transfer.more:
            self.finish(partial)

    def finish(self, partial: PartialDelivery) -> None:
        events = self.session.connection.events
        delivery_id = partial.delivery_id
        if partial.is_too_large:
            events.append(TransferTooLarge(self, delivery_id, partial.settled, partial.size, partial.message_format))
        else:
            payload = b"".join(partial.parts)
            events.append(
                TransferReceived(
                    self, delivery_id, partial.tag, partial.settled, partial.message_format, payload, partial.state
                )
            )
            self.session.connection.spend_frames(self.weight)
        self.discard_partial()
        self.tell_if_drained()

    def release_parts(self, partial: PartialDelivery) -> None:
        self.session.connection.charge_partial(-partial.charged_bytes)
        partial.charged_bytes = 0
        partial.parts = []

    def discard_partial(self) -> None:
        partial = self.partial
        if partial is not None:
            self.release_parts(partial)
            self.session.connection.account.charge(-partial.state_bytes)
            self.partial = None
