"""What every link of ours has in common: how it attaches, how it ends, and who is told.

A link lives in an AMQP session of its own (request links come in pairs and share one), so that the window of one
never holds up another and an error that ends a session ends one link's work only. Where links come and go by the
thousand, the session of one that has ended is kept for the next.
"""

import asyncio
from collections.abc import Awaitable
from typing import Protocol, TypeVar

from spillway.amqp.errors import AmqpError
from spillway.amqp.events import DispositionReceived, IncomingSettled, TransferReceived
from spillway.amqp.link import Link
from spillway.amqp.session import Session
from spillway.client.errors import ClientError, OperationTimeout, error_from

T = TypeVar("T")


class Carrier(Protocol):
    """What a link needs of the connection that carries it."""

    loop: asyncio.AbstractEventLoop
    is_writable: bool

    def flush_soon(self, size: int = 0) -> None: ...
    def register(self, end: "LinkEnd") -> None: ...
    def unregister(self, end: "LinkEnd") -> None: ...
    def keep_session(self, session: Session) -> None: ...


class LinkEnd:
    """Our end of a link. It fails once, and everything that waits on it fails with it."""

    def __init__(self, carrier: Carrier, link: Link, label: str, timeout_s: float) -> None:
        self.carrier = carrier
        self.link = link
        self.label = label
        self.timeout_s = timeout_s
        self.error: ClientError | None = None
        self.sibling: LinkEnd | None = None
        self.leaves_session = False  # for another link, when this one is ended by us
        self.attached: asyncio.Future[None] = carrier.loop.create_future()
        # An attach that nobody waits for any more (it was cancelled) may still fail: that is no news to anybody.
        self.attached.add_done_callback(mark_retrieved)
        assert link.user is None, "a link has one end here"
        link.user = self
        carrier.register(self)

    @property
    def name(self) -> str:
        """The link's name, e.g. for a management call that is associated with it."""
        return self.link.name

    @property
    def was_attached(self) -> bool:
        """Whether the peer has agreed to the link, whatever became of it."""
        attached = self.attached
        return attached.done() and not attached.cancelled() and attached.exception() is None

    async def wait_attached(self) -> None:
        """Wait for the peer's attach; when nobody waits any more, the link is given up."""
        try:
            await asyncio.shield(self.attached)
        except BaseException as error:
            self.end(error if isinstance(error, ClientError) else OperationTimeout("the attach was given up"))
            raise

    def end(self, error: ClientError) -> None:
        """Detach and end the session, without waiting for the peer to agree; whatever still waits fails."""
        is_alive = self.error is None and not self.link.is_detached and not self.link.session.is_ended
        if is_alive:
            self.link.detach()
        self._fail(error, is_alive and self.leaves_session and self.attached.done())

    def fail(self, error: ClientError) -> None:
        """The link is no more. Only the first reason counts."""
        self._fail(error, False)

    def _fail(self, error: ClientError, is_session_kept: bool) -> None:
        if self.error is not None:
            return
        self.error = error
        self.carrier.unregister(self)
        if not self.attached.done():
            self.attached.set_exception(error)
        self.on_failed(error)
        if self.sibling is not None:
            self.sibling.end(error)
        if is_session_kept:
            self.carrier.keep_session(self.link.session)
        elif not self.link.session.is_ended:
            self.link.session.end()
        self.carrier.flush_soon()

    # -- told by the wire ------------------------------------------------------------------------------------

    def on_attached(self) -> None:
        """The peer agreed; a refusal comes as a detach alone."""
        if not self.attached.done():
            self.attached.set_result(None)
            self.on_open()

    def on_detached(self, error: AmqpError | None) -> None:
        self.fail(error_from(error, f"the peer detached the link to {self.label}"))

    # -- for the kinds of link to fill in ----------------------------------------------------------------------

    def on_open(self) -> None:
        """The link may be used."""

    def on_failed(self, error: ClientError) -> None:
        """Fail everything that waits."""

    def on_flow(self, is_drained: bool) -> None:
        """Credit came, or the peer has drained ours."""

    def on_writable(self) -> None:
        """The socket takes bytes again."""

    def on_transfer(self, event: TransferReceived) -> None:
        """A message came."""

    def on_disposition(self, event: DispositionReceived) -> None:
        """The peer decided about messages that we sent."""

    def on_incoming_settled(self, event: IncomingSettled) -> None:
        """The peer confirmed settlements that we asked for."""

    def sweep(self, now_s: float) -> None:
        """Fail what has waited too long."""


async def within(awaitable: Awaitable[T], timeout_s: float, what: str) -> T:
    """Await something, but not for ever."""
    try:
        async with asyncio.timeout(timeout_s):
            return await awaitable
    except TimeoutError:
        raise OperationTimeout(f"{what}: no answer within {timeout_s:g} s") from None


def mark_retrieved(future: asyncio.Future[None]) -> None:
    """Look at the outcome of a future whose failure may come when nobody awaits it any more."""
    if not future.cancelled():
        future.exception()
