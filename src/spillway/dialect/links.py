"""What a peer keeps for each of its links: whose they are, what they need, and how far their credit goes."""

from collections import deque
from typing import Final

from spillway.amqp.errors import AmqpError
from spillway.amqp.events import TransferTooLarge
from spillway.amqp.link import Link
from spillway.amqp.performatives import Rejected
from spillway.amqp.serial import serial_add, serial_difference
from spillway.amqp.types import Described
from spillway.broker.commands import ASKS_AGAIN, ASKS_MORE, ASKS_NOTHING, NOT_ASKED, Credit
from spillway.broker.effects import Deliver
from spillway.dialect.addresses import CBS, MANAGEMENT, Address
from spillway.dialect.annotations import BATCH_FORMAT
from spillway.dialect.errors import Tracker, amqp_error
from spillway.model import limits
from spillway.model.entity import split_subscription
from spillway.model.errors import BrokerError, MessageTooLarge

# How many deliveries the core may decide for a link beyond those it has handed over. A client can grant 2**32 - 1; what
# is decided and not yet written is memory of ours, so the core sees this much of it at a time. Deliveries wait behind
# the commit that is under way, so too few of them leave the link idle while the disk works: at 128 a receiver got
# 128 messages a commit and fell behind one sender.
DELIVERIES_AHEAD_MAX: Final = 1_000
DELIVERIES_AHEAD_MIN: Final = 16
DELIVERY_BYTES_AHEAD_MAX: Final = 2 * limits.MIB
REQUEST_CREDIT: Final = 100
# Python grants 10,000 once on its `$cbs` and `$management` links and never again, meaning "as many as you like".
GENEROUS_CREDIT: Final = 10_000
# Answers that a connection does not take: beyond this its links for them are ended.
HELD_REPLY_BYTES_MAX: Final = 4 * limits.MIB
HELD_REPLY_BYTES_STRANGER_MAX: Final = 64 * limits.KIB  # before the first token


def is_copy(path: str) -> bool:
    """Whether what is here came by a topic."""
    return split_subscription(path)[0] != ""


class PeerLink:
    """`number` is the link's in the core. `rights` (any of them) must be held on `scope` while the link lives."""

    def __init__(self, number: int, link: Link, address: Address, rights: int, tracker: Tracker) -> None:
        self.number = number
        self.link = link
        self.address = address
        self.path = address.path
        self.rights = rights
        self.tracker = tracker
        self.scope = address.path + "/$management" if address.node == MANAGEMENT else address.path

    def is_beside(self, other: "PeerLink") -> bool:
        """In the same session, to or from the same node."""
        return (
            self.link.session is other.link.session
            and self.address.node == other.address.node
            and self.address.key == other.address.key
        )

    @property
    def shown_path(self) -> str:
        return "$cbs" if self.address.node == CBS else self.scope

    def amqp_error(self, error: BrokerError, now_ms: int) -> AmqpError:
        """An error of this link, as its client reads it."""
        return amqp_error(error, self.tracker, self.shown_path, now_ms)

    def on_accepted(self) -> None:
        """The attach has been answered."""


class IncomingLink(PeerLink):
    """The client sends on the link: messages, or requests. It may have `credit_max` of them on their way."""

    def __init__(
        self, number: int, link: Link, address: Address, rights: int, tracker: Tracker, credit_max: int
    ) -> None:
        super().__init__(number, link, address, rights, tracker)
        self.credit_max = credit_max

    def on_accepted(self) -> None:
        """The attach has been answered: the client may send."""
        self.link.grant(self.credit_max)

    def top_up(self) -> None:
        """New credit when half of it is used up."""
        link = self.link
        if link.credit_left <= self.credit_max // 2:
            link.grant(self.credit_max)

    def on_too_large(self, event: TransferTooLarge, now_ms: int) -> None:
        self.top_up()
        what = "batch" if event.message_format == BATCH_FORMAT else "message"
        text = f"The {what} has {event.size} bytes; at most {self.link.max_message_size} are allowed."
        self.reject(event.delivery_id, event.settled, MessageTooLarge(text), now_ms)

    def reject(self, delivery_id: int, is_settled: bool, error: BrokerError, now_ms: int) -> None:
        """By a disposition (docs/wire.md, "Never detach for a refused send")."""
        if not is_settled:
            self.link.session.settle(delivery_id, Rejected(self.amqp_error(error, now_ms)))


class ClientReceiver(PeerLink):
    """The client receives from an entity.

    The core counts the deliveries it has decided for this link. `seen_count` counts those that have reached us, sent or
    refused, so `seen_count + credit` says in the core's terms how far it may go; `told_limit` is what it was told.
    """

    def __init__(self, number: int, link: Link, address: Address, rights: int, tracker: Tracker, deletes: bool) -> None:
        super().__init__(number, link, address, rights, tracker)
        self.deletes = deletes
        self.is_copying = is_copy(address.path)
        self.seen_count = 0
        self.told_limit = 0
        self.told_number = 0  # of the last `Credit`
        self.ahead_max: int = DELIVERIES_AHEAD_MAX  # fewer when messages are large
        self.is_draining = False
        self.untold_asks: int = NOT_ASKED  # since when the client does not read
        self.asked = 0  # the delivery-count up to which the client has granted credit
        self.session_descriptor: object = None  # of the session filter, until it is answered in the same form
        # ReceiveAndDelete: decided and deleted, but the client took its credit back meanwhile.
        self.held: list[Deliver] = []

    def session_filter(self, session_id: str) -> object:
        """The answer to a session filter, bare or described as that was: each SDK understands its own form only."""
        descriptor = self.session_descriptor
        self.session_descriptor = None
        return session_id if descriptor is None else Described(descriptor, session_id)

    def limit(self) -> int:
        """How far the core may go: link credit, the peer's session window and our own bound."""
        link = self.link
        ahead = link.credit - len(self.held)
        if ahead > self.ahead_max:
            ahead = self.ahead_max
        if ahead > 0 and link.session.window < ahead:
            ahead = link.session.window
        return self.seen_count + (ahead if ahead > 0 else 0)

    def told(self, limit: int, drains: bool, asks: int) -> Credit:
        """What the core is told now. What it has decided before it hears this is an answer to something else."""
        self.told_limit = limit
        self.told_number += 1
        return Credit(self.number, limit, drains, asks, self.told_number)

    def asks(self, credit: int, drain: bool) -> int:
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

    def is_window_bound(self) -> bool:
        """The session's window, not the credit, is what stops it."""
        credit = self.link.credit
        return self.link.session.window < (credit if credit < self.ahead_max else self.ahead_max)

    def note_size(self, size_bytes: int) -> None:
        """The last message says how large the next ones may be."""
        ahead = DELIVERY_BYTES_AHEAD_MAX // (size_bytes + 1)
        if ahead > DELIVERIES_AHEAD_MAX:
            ahead = DELIVERIES_AHEAD_MAX
        elif ahead < DELIVERIES_AHEAD_MIN:
            ahead = DELIVERIES_AHEAD_MIN
        self.ahead_max = ahead


class EmptyReceiver(PeerLink):
    """The client receives transfer dead letters, of which there are none: what cannot be passed on is a dead letter of
    its entity here."""


class RequestLink(IncomingLink):
    """The client sends requests to `$cbs` or `$management`."""

    def __init__(self, number: int, link: Link, address: Address, rights: int, tracker: Tracker) -> None:
        super().__init__(number, link, address, rights, tracker, REQUEST_CREDIT)

    def on_accepted(self) -> None:
        self.link.weight = limits.TOKEN_FRAMES if self.address.node == CBS else limits.REQUEST_FRAMES
        super().on_accepted()


class ReplyLink(PeerLink):
    """The client receives the answers. They wait here while its credit or its session's window is used up."""

    def __init__(
        self,
        number: int,
        link: Link,
        address: Address,
        rights: int,
        tracker: Tracker,
        target: str | None,
        source: str,
    ) -> None:
        super().__init__(number, link, address, rights, tracker)
        self.target = target
        self.source = source
        self.is_generous = False
        self.held: deque[bytes] = deque()
        self.held_bytes = 0
        self.paid_bytes = 0  # of them, charged to the connection
        self.sent_count = 0

    def answers_to(self, reply_to: str) -> bool:
        return reply_to == self.target or reply_to == self.link.name or reply_to == self.source

    def reply(self, payload: bytes) -> bool:
        """Send an answer, or keep it until it may be sent. False: nobody is there to hear it."""
        if not self.link.is_open:
            return False
        if self.held or not self.may_send():
            self.held.append(payload)
            self.held_bytes += len(payload)
            return True
        self._send(payload)
        return True

    def on_credit(self, drain: bool) -> None:
        if self.link.credit >= GENEROUS_CREDIT:
            self.is_generous = True
        self.send_held()
        if drain:
            self.link.drained()

    def send_held(self) -> None:
        while self.held and self.may_send():
            payload = self.held.popleft()
            self.held_bytes -= len(payload)
            self._send(payload)

    def forget_held(self) -> None:
        self.held.clear()
        self.held_bytes = 0
        self.paid_bytes = 0

    def may_send(self) -> bool:
        link = self.link
        return link.is_open and (link.credit > 0 or self.is_generous) and link.session.window > 0

    def _send(self, payload: bytes) -> None:
        self.sent_count += 1
        self.link.send(self.sent_count.to_bytes(8, "big"), payload, True)
