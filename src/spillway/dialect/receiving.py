"""A link over which a client receives messages: the core hears how far its credit goes, and deliveries are sent on it.

What the core has decided comes when it is durable, and the client may have taken its credit back by then.
"""

from typing import Final

from spillway.amqp.events import SentDelivery
from spillway.amqp.link import Link
from spillway.amqp.performatives import Rejected
from spillway.amqp.serial import serial_add, serial_difference
from spillway.amqp.types import Described
from spillway.broker.commands import ASKS_AGAIN, ASKS_MORE, ASKS_NOTHING, NOT_ASKED, Credit, Settle, Undelivered
from spillway.broker.effects import Deliver, SettlementAnswered
from spillway.dialect.addresses import Address
from spillway.dialect.delivery import UsualHeads, encode_delivery
from spillway.dialect.errors import Tracker
from spillway.dialect.links import PeerLink, is_copy
from spillway.dialect.outbox import Outbox
from spillway.dialect.outcomes import echo_of
from spillway.model import limits
from spillway.model.budget import Account
from spillway.model.errors import BrokerError
from spillway.model.settlement import Settlement

# How many deliveries the core may decide for a link beyond those it has handed over. A client can grant 2**32 - 1; what
# is decided and not yet written is memory of ours, so the core sees this much of it at a time. Deliveries wait behind
# the commit that is under way, so too few of them leave the link idle while the disk works: at 128 a receiver got
# 128 messages a commit and fell behind one sender.
DELIVERIES_AHEAD_MAX: Final = 1_000
DELIVERIES_AHEAD_MIN: Final = 16
DELIVERY_BYTES_AHEAD_MAX: Final = 2 * limits.MIB


class ReceiverGroup:
    """What the receivers of one connection share: their way to the core, who pays for what they hold, and whether the
    client reads what is written to it."""

    def __init__(self, outbox: Outbox, account: Account) -> None:
        self.outbox = outbox
        self.account = account
        self.is_writable = True
        self.window_bound: dict[int, ClientReceiver] = {}  # would take more if the session's window opened

    def add_window_bound(self, receiver: "ClientReceiver") -> None:
        self.window_bound[receiver.number] = receiver

    def remove(self, receiver: "ClientReceiver") -> None:
        """The link has ended."""
        self.window_bound.pop(receiver.number, None)

    def advertise_window_bound(self) -> None:
        """Windows may have opened: the core hears of the receivers that may go on."""
        bound = self.window_bound
        self.window_bound = {}
        for receiver in bound.values():
            if receiver.link.is_open and receiver.limit() != receiver.advertised_credit:
                receiver.advertise_credit()
            elif receiver.link.is_open:
                self.add_window_bound(receiver)


class ClientReceiver(PeerLink):
    """The client receives from an entity.

    The core counts the deliveries it has decided for this link. `delivered_count` counts those that have reached us,
    sent or refused, so `delivered_count + credit` says in the core's terms how far it may go; `advertised_credit` is
    what it was told.
    """

    def __init__(
        self,
        number: int,
        link: Link,
        address: Address,
        rights: int,
        tracker: Tracker,
        group: ReceiverGroup,
        deletes: bool,
    ) -> None:
        super().__init__(number, link, address, rights, tracker)
        self.group = group
        self.outbox = group.outbox
        self.deletes = deletes
        self.is_copying = is_copy(address.path)
        self.heads: UsualHeads | None = None  # once something is handed over
        self.delivered_count = 0
        self.advertised_credit = 0
        self.advertised_number = 0  # of the last `Credit`
        self.ahead_max: int = DELIVERIES_AHEAD_MAX  # fewer when messages are large
        self.is_draining = False
        self.unadvertised_asks: int = NOT_ASKED  # since when the client does not read
        self.asked = 0  # the delivery-count up to which the client has granted credit
        self.session_descriptor: object = None  # of the session filter, until it is answered in the same form
        # ReceiveAndDelete: decided and deleted, but the client took its credit back meanwhile.
        self.held: list[Deliver] = []

    def session_filter(self, session_id: str) -> object:
        """The answer to a session filter, bare or described as that was: each SDK understands its own form only."""
        descriptor = self.session_descriptor
        self.session_descriptor = None
        return session_id if descriptor is None else Described(descriptor, session_id)

    # -- credit ---------------------------------------------------------------------------------------------------

    def on_credit(self, credit: int, drain: bool) -> None:
        asks = self._asks(credit, drain)  # before anything is sent: it goes by the delivery-count
        self.is_draining = drain
        while self.held and self.link.credit > 0:
            delivery = self.held.pop(0)
            self.group.account.charge(-_held_bytes(delivery))
            self._hand_over(delivery)
        self.advertise_credit(asks)

    def _asks(self, credit: int, drain: bool) -> int:
        """What a flow of the client means for its call to receive (docs/ledger.md).

        The Python SDK leaves its credit on the link when a call ends, and grants the same once more for the next one.
        Who drains ends the call, and grants more with it at most.
        """
        asked = serial_add(self.link.delivery_count, credit)
        more = serial_difference(asked, self.asked)
        self.asked = asked
        if more > 0:
            return ASKS_MORE
        if drain:
            return NOT_ASKED
        return ASKS_AGAIN if credit > 0 else ASKS_NOTHING

    def on_writable(self) -> None:
        """The client reads again, or no more. While it does not, the core sees no credit of its links."""
        if self.group.is_writable:
            self.advertise_credit()
        elif self.advertised_credit > self.delivered_count:
            self._advertise(self.delivered_count, False, NOT_ASKED)

    def advertise_credit(self, asks: int = NOT_ASKED) -> None:
        """Let the core know how far it may go; a drain is always told, for it is waited for, and what a client did."""
        group = self.group
        if not group.is_writable:
            self.unadvertised_asks = asks or self.unadvertised_asks
            return
        asks = asks or self.unadvertised_asks
        self.unadvertised_asks = NOT_ASKED
        limit = self.limit()
        if self.is_window_bound():
            group.add_window_bound(self)
        if limit != self.advertised_credit or self.is_draining or asks != NOT_ASKED:
            self._advertise(limit, self.is_draining, asks)

    def limit(self) -> int:
        """How far the core may go: link credit, the peer's session window and our own bound."""
        link = self.link
        ahead = link.credit - len(self.held)
        if ahead > self.ahead_max:
            ahead = self.ahead_max
        if ahead > 0 and link.session.window < ahead:
            ahead = link.session.window
        return self.delivered_count + (ahead if ahead > 0 else 0)

    def is_window_bound(self) -> bool:
        """The session's window, not the credit, is what stops it."""
        credit = self.link.credit
        return self.link.session.window < (credit if credit < self.ahead_max else self.ahead_max)

    def _advertise(self, limit: int, drains: bool, asks: int) -> None:
        """What the core is told now. What it has decided before it hears this is an answer to something else."""
        self.advertised_credit = limit
        self.advertised_number += 1
        self.outbox.commands.append(Credit(self.number, limit, drains, asks, self.advertised_number))

    def drained(self, number: int) -> None:
        """The core has nothing more for the credit it was told of, and counts it as used up."""
        if number != self.advertised_number:
            return  # it was decided before the client asked once more: that has an answer of its own
        link = self.link
        is_used_up = self.advertised_credit <= self.delivered_count
        self.advertised_credit = self.delivered_count
        if not self.is_draining or (is_used_up and link.credit > 0):
            # It changed its mind, or gave more credit than we told the core at once.
            self.advertise_credit()
            return
        self.is_draining = False
        link.drained()

    # -- deliveries -----------------------------------------------------------------------------------------------

    def deliver(self, effect: Deliver) -> bool:
        """Hand the message over, or hold it. False: it goes back, for the client has taken back the credit for it."""
        self.delivered_count += 1
        link = self.link
        if link.credit <= 0 or self.held:
            # The client took its credit back meanwhile. A locked message goes back; a deleted one must not get lost.
            if effect.lock_token:
                return False
            self.held.append(effect)
            self.group.account.charge(_held_bytes(effect))
            return True
        self._hand_over(effect)
        left = self.advertised_credit - self.delivered_count
        if left <= self.ahead_max // 2 and left < link.credit and not self.is_draining:
            self.advertise_credit()
        return True

    def _hand_over(self, effect: Deliver) -> None:
        stored = effect.stored
        heads = self.heads
        if heads is None:
            heads = self.heads = UsualHeads(self.is_copying)
        head = heads.head(stored, effect.lock_token, effect.locked_until_ms)
        if head is not None:
            message = stored.message
            rest = message.raw[message.bare_at :]
            self.link.send_behind(effect.lock_token, head, rest, self.deletes)
            self._note_size(len(head) + len(rest))
            return
        payload = encode_delivery(stored, effect.lock_token, effect.locked_until_ms, self.is_copying)
        # The tag is the lock token; what is deleted already has an empty one (docs/wire.md, "Transfers to clients").
        self.link.send(effect.lock_token, payload, self.deletes)
        self._note_size(len(payload))

    def _note_size(self, size_bytes: int) -> None:
        """The last message says how large the next ones may be."""
        ahead = DELIVERY_BYTES_AHEAD_MAX // (size_bytes + 1)
        if ahead > DELIVERIES_AHEAD_MAX:
            ahead = DELIVERIES_AHEAD_MAX
        elif ahead < DELIVERIES_AHEAD_MIN:
            ahead = DELIVERIES_AHEAD_MIN
        self.ahead_max = ahead

    # -- settlements ----------------------------------------------------------------------------------------------

    def settle(self, delivery: SentDelivery, settlement: Settlement, is_settled: bool) -> None:
        """The client has settled a delivery, and waits for the echo unless it `is_settled` already."""
        self.outbox.commands.append(Settle(self.number, delivery.delivery_id, delivery.tag, settlement, is_settled))

    def refuse_settlement(self, delivery: SentDelivery, error: BrokerError, now_ms: int) -> None:
        """The client asks for what cannot be done with a delivery."""
        self.link.session.settle_sent(delivery.delivery_id, Rejected(self.amqp_error(error, now_ms)))

    def echo(self, effect: SettlementAnswered, now_ms: int) -> None:
        """The settlement stands, or could not be applied."""
        error = effect.error
        state = echo_of(effect.kind) if error is None else Rejected(self.amqp_error(error, now_ms))
        self.link.session.settle_sent(effect.delivery_id, state)

    # -- the end --------------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """The link has ended. What was never begun on the wire goes back; what was keeps its lock (contract H13)."""
        group = self.group
        group.remove(self)
        for delivery in self.held:
            group.account.charge(-_held_bytes(delivery))
        self.held.clear()
        for tag in self.link.drain_unsent():
            if tag:
                self.outbox.commands.append(Undelivered(self.path, tag))
        self.outbox.detach(self.number)


def _held_bytes(delivery: Deliver) -> int:
    return delivery.stored.size_bytes + limits.RESIDENT_MESSAGE_BYTES
