"""Two namespaces without sockets, in time that is stepped: the library's own code on a loop whose clock jumps.

The peers stand where the SDK's client stands, and raise what the SDK raises. They can be up, down, frozen (nothing is
answered, and what was sent arrives when they thaw), restarted, and refuse by condition, one entity or all of them. What
they have stored is what a model asks for; plays against real brokers are the lab's (`spillway.lab.field`).
"""

import asyncio
import logging
import selectors
from collections import defaultdict
from typing import Any

from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus._pyamqp import error as amqp
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport

from spillway.paired.access import NamespaceAccess
from spillway.paired.messages import raw_of
from spillway.paired.namespace import FactoryNamespace

LOG = logging.getLogger("virtual")
ANSWER_S = 0.01  # a round trip
UP, DOWN, FROZEN = "up", "down", "frozen"


class VirtualLoop(asyncio.SelectorEventLoop):
    """Nobody waits: when nothing is ready, it is later."""

    def __init__(self) -> None:
        super().__init__(_Jumping(self))
        self.now_s = 1_000.0

    def time(self) -> float:
        return self.now_s


class _Jumping(selectors.SelectSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self.loop = loop

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0)
        if not found:
            assert timeout is not None, "everybody waits, and nobody will come"
            self.loop.now_s += max(timeout, 0.0)
        return found


def as_raised(inner: Exception) -> Exception:
    """What the SDK makes of it."""
    return PyamqpTransport.create_servicebus_exception(LOG, inner)


def refused(condition: str) -> Exception:
    try:
        return as_raised(amqp.MessageSendFailed(amqp.ErrorCondition(condition.encode()), description="refused"))
    except ValueError:
        return as_raised(amqp.MessageException(condition.encode(), description="refused"))


def detached(condition: str) -> Exception:
    return as_raised(amqp.AMQPLinkError(condition.encode(), description="the link has ended"))


def unconnected(text: str) -> Exception:
    return as_raised(amqp.AMQPConnectionError(amqp.ErrorCondition.SocketError, description=text))


def silence() -> Exception:
    return as_raised(TimeoutError("no answer"))


class Peer:
    """A namespace. `says`: by entity, what is raised instead of storing; `*` is for all of them."""

    def __init__(self) -> None:
        self.state = UP
        self.life = 0  # connections of an earlier one are dead
        self.says: dict[str, Exception] = {}
        self.stored: dict[str, list[str]] = defaultdict(list)  # message ids by entity
        self.open_count = 0
        self._changed = asyncio.Event()

    def become(self, state: str) -> None:
        if state != self.state and DOWN in (state, self.state):
            self.life += 1
        self.state = state
        self._wake()

    def restart(self) -> None:
        self.life += 1
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def answer(self, life: int, path: str, ids: list[str]) -> None:
        """Take these, or raise. What was sent to a peer that is frozen arrives when it thaws, unless it dies."""
        while self.state == FROZEN and self.life == life:
            await self._changed.wait()
        if self.life != life or self.state == DOWN:
            raise unconnected("Server unexpectedly closed connection")
        error = self.says.get(path) or self.says.get("*")
        if error is not None:
            raise error.with_traceback(None)
        self.stored[path] += [each for each in ids if each not in self.stored[path]]

    def has(self, identity: str) -> bool:
        return any(identity in ids for ids in self.stored.values())


class SdkSender:
    """As much of the SDK's sender as the library uses."""

    def __init__(self, peer: Peer, path: str) -> None:
        self.peer = peer
        self.path = path
        self.life: int | None = None  # of the peer, when it was connected
        self.is_closed = False
        self.late: set[asyncio.Task[None]] = set()

    async def send_messages(self, content: Any, timeout: float) -> None:
        await self._perform(_ids(content), timeout)

    async def create_message_batch(self, max_size_in_bytes: int | None = None) -> ServiceBusMessageBatch:
        await self._connect(60.0)
        return ServiceBusMessageBatch(max_size_in_bytes=max_size_in_bytes or 262_144)

    async def close(self) -> None:
        if self.life is not None and not self.is_closed:
            self.peer.open_count -= 1
        self.is_closed = True

    async def _connect(self, timeout: float) -> None:
        await asyncio.sleep(ANSWER_S)
        if self.life is not None:
            return
        try:
            async with asyncio.timeout(timeout):
                while self.peer.state == FROZEN:
                    await self.peer._changed.wait()
        except TimeoutError:
            raise silence() from None
        if self.peer.state == DOWN:
            raise unconnected("Failed to initiate the connection: refused")
        self.life = self.peer.life
        self.peer.open_count += 1

    async def _perform(self, ids: list[str], timeout: float) -> None:
        await self._connect(timeout)
        assert self.life is not None
        answering = asyncio.ensure_future(self.peer.answer(self.life, self.path, ids))
        done, _ = await asyncio.wait({answering}, timeout=timeout)
        if not done:  # it is on the wire, whoever has stopped to wait
            self.late.add(answering)
            answering.add_done_callback(_forget)
            raise silence()
        answering.result()


def _forget(task: "asyncio.Task[None]") -> None:
    if not task.cancelled():
        task.exception()


def _ids(content: Any) -> list[str]:
    if isinstance(content, ServiceBusMessageBatch):
        return [str(raw_of(message).properties.message_id) for message in content._messages]  # type: ignore[union-attr]
    messages = content if isinstance(content, list) else [content]
    return [str(raw_of(message).properties.message_id) for message in messages]  # type: ignore[union-attr]


class SdkClient:
    def __init__(self, peer: Peer) -> None:
        self.peer = peer

    def get_queue_sender(self, path: str) -> SdkSender:
        return SdkSender(self.peer, path)

    async def close(self) -> None:
        return


def namespace_of(peer: Peer, host: str, timeout_s: float) -> FactoryNamespace:
    """As a factory makes it."""
    make: Any = lambda **_: SdkClient(peer)  # noqa: E731
    return FactoryNamespace(NamespaceAccess(host), make, None, timeout_s, 1_000, 64 << 20, 4, {})
