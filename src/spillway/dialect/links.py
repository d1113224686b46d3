"""What all links of a client have in common, and those that end here: requests, their answers, and where nothing is.

Links that the core knows are in `sending` and `receiving`.
"""

from collections import deque
from typing import Final

from spillway.amqp.errors import AmqpError
from spillway.amqp.events import TransferTooLarge
from spillway.amqp.link import Link
from spillway.amqp.performatives import Rejected
from spillway.dialect.addresses import CBS, MANAGEMENT, Address
from spillway.dialect.annotations import BATCH_FORMAT
from spillway.dialect.errors import Tracker, amqp_error
from spillway.model import limits
from spillway.model.entity import split_subscription
from spillway.model.errors import BrokerError, MessageTooLarge

REQUEST_CREDIT: Final = 100
# Python grants 10,000 once on its `$cbs` and `$management` links and never again, meaning "as many as you like".
GENEROUS_CREDIT: Final = 10_000
# Answers that a connection does not take: beyond this its links for them are ended.
HELD_REPLY_BYTES_MAX: Final = 4 * limits.MIB
HELD_REPLY_BYTES_UNAUTHENTICATED_MAX: Final = 64 * limits.KIB  # before the first token


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

    def on_credit(self, credit: int, drain: bool) -> None:
        """The client has given credit for what we send on the link, or taken it back."""

    def leave(self) -> None:
        """The link has ended: nothing is held for it, and the core hears of it, if it knows the link."""


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


class EmptyReceiver(PeerLink):
    """The client receives transfer dead letters, of which there are none: what cannot be passed on is a dead letter of
    its entity here."""

    def on_credit(self, credit: int, drain: bool) -> None:
        if drain:
            self.link.drained()


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

    def on_credit(self, credit: int, drain: bool) -> None:
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

    def discard_held(self) -> None:
        self.held.clear()
        self.held_bytes = 0
        self.paid_bytes = 0

    def may_send(self) -> bool:
        link = self.link
        return link.is_open and (link.credit > 0 or self.is_generous) and link.session.window > 0

    def _send(self, payload: bytes) -> None:
        self.sent_count += 1
        self.link.send(self.sent_count.to_bytes(8, "big"), payload, True)
