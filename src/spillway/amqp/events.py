"""Events: what a connection tells its owner, in the order in which it happened.

Plain values: the owner reads `Connection.drain_events()` and asks with `isinstance`, frequent cases first. Nothing here
is a call back; what the owner decides it says through the methods of connection, session and link.
"""

from typing import TYPE_CHECKING

from spillway.amqp.errors import AmqpError
from spillway.amqp.performatives import DeliveryState, Open

if TYPE_CHECKING:
    from spillway.amqp.link import Link
    from spillway.amqp.session import Session


class ConnectionEvent:
    """Something that happened on a connection."""


class SentDelivery:
    """A delivery we sent and that is not settled yet. The tag is its name; the id is its number on this session."""

    def __init__(self, link: "Link", delivery_id: int, tag: bytes) -> None:
        self.link = link
        self.delivery_id = delivery_id
        self.tag = tag


# -- messages ---------------------------------------------------------------------------------------------


class TransferReceived(ConnectionEvent):
    """A whole delivery has arrived. `state` is what its sender said of it (a transaction), nearly always None."""

    def __init__(
        self,
        link: "Link",
        delivery_id: int,
        tag: bytes,
        settled: bool,
        message_format: int,
        payload: bytes,
        state: DeliveryState | None,
    ) -> None:
        self.link = link
        self.delivery_id = delivery_id
        self.tag = tag
        self.settled = settled
        self.message_format = message_format
        self.payload = payload
        self.state = state


class TransferTooLarge(ConnectionEvent):
    """A whole delivery has arrived that outgrew `Link.bytes_max`; its bytes were dropped as they came."""

    def __init__(self, link: "Link", delivery_id: int, settled: bool, size: int, message_format: int) -> None:
        self.link = link
        self.delivery_id = delivery_id
        self.settled = settled
        self.size = size
        self.message_format = message_format


class TransferAborted(ConnectionEvent):
    """The sender gave a delivery up. It has used one credit, and nothing is to be settled."""

    def __init__(self, link: "Link", delivery_id: int) -> None:
        self.link = link
        self.delivery_id = delivery_id


class DispositionReceived(ConnectionEvent):
    """The peer spoke about deliveries WE sent. Settled: they are forgotten. Else: answer with `settle_sent`."""

    def __init__(self, deliveries: list[SentDelivery], settled: bool, state: DeliveryState | None) -> None:
        self.deliveries = deliveries
        self.settled = settled
        self.state = state


class IncomingSettled(ConnectionEvent):
    """The peer settled deliveries it sent us: the echo of a `dispose`.

    `first` and `last` are as the peer wrote them: look up what you are waiting for, do not count through the range.
    """

    def __init__(self, session: "Session", first: int, last: int, state: DeliveryState | None) -> None:
        self.session = session
        self.first = first
        self.last = last
        self.state = state


class FlowReceived(ConnectionEvent):
    """Credit of a link we send on has changed (`drain`: answer with `Link.drained` once nothing is left to send), or
    the peer has used up or given back all credit of a link we drained.

    `credit` is what this flow left us with; the link's own may be that of a later flow already."""

    def __init__(self, link: "Link", drain: bool, credit: int) -> None:
        self.link = link
        self.drain = drain
        self.credit = credit


class WindowOpened(ConnectionEvent):
    """The peer's incoming window was shut and is open again, also for more than what was queued for it."""

    def __init__(self, session: "Session") -> None:
        self.session = session


# -- links and sessions -----------------------------------------------------------------------------------


class AttachRequested(ConnectionEvent):
    """The peer wants a link: `Link.accept` or `Link.refuse`, now or later."""

    def __init__(self, link: "Link") -> None:
        self.link = link


class LinkAttached(ConnectionEvent):
    """The peer has answered our attach. A refusal is not an answer: only `LinkDetached` follows it."""

    def __init__(self, link: "Link") -> None:
        self.link = link


class LinkDetached(ConnectionEvent):
    """The link is over, by the peer's wish, by its fault or by another link of the same name; we have answered."""

    def __init__(self, link: "Link", error: AmqpError | None, closed: bool) -> None:
        self.link = link
        self.error = error
        self.closed = closed


class DetachConfirmed(ConnectionEvent):
    """The peer has answered the detach that our owner asked for."""

    def __init__(self, link: "Link", error: AmqpError | None) -> None:
        self.link = link
        self.error = error


class SessionBegun(ConnectionEvent):
    """The session is mapped both ways."""

    def __init__(self, session: "Session") -> None:
        self.session = session


class SessionEnded(ConnectionEvent):
    """The session is over, by the peer's wish or fault. Its links went with it: walk `session.links`."""

    def __init__(self, session: "Session", error: AmqpError | None) -> None:
        self.session = session
        self.error = error


class EndConfirmed(ConnectionEvent):
    """The peer has answered the end that our owner asked for."""

    def __init__(self, session: "Session", error: AmqpError | None) -> None:
        self.session = session
        self.error = error


# -- connection -------------------------------------------------------------------------------------------


class SaslRequested(ConnectionEvent):
    """Server: a client wants in. Answer with `Connection.sasl_done`; what it sends meanwhile is kept, unread."""

    def __init__(self, mechanism: str, response: bytes, hostname: str | None) -> None:
        self.mechanism = mechanism
        self.response = response
        self.hostname = hostname


class SaslFinished(ConnectionEvent):
    """Client: the server's outcome, 0 for welcome."""

    def __init__(self, code: int) -> None:
        self.code = code


class ConnectionOpened(ConnectionEvent):
    """The peer's open has arrived."""

    def __init__(self, open: Open) -> None:
        self.open = open


class ConnectionClosed(ConnectionEvent):
    """Nothing more will come: the peer closed, broke a rule, refused SASL or fell silent. At most one of these."""

    def __init__(self, error: AmqpError | None) -> None:
        self.error = error
