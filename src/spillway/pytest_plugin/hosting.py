"""A served namespace on a thread of this process.

Everything that is done to it happens on its own event loop, on behalf of the caller, who may be a coroutine of another
loop: nothing here needs the caller's loop to go on.
"""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import wait
from typing import Any, Final, Self, TypeVar

from spillway.broker.commands import Request
from spillway.broker.effects import Answer, Failed
from spillway.client import OutgoingMessage, ReceivedMessage, connect
from spillway.hosting.administration import administer
from spillway.loops.loop_thread import LoopThread
from spillway.model.entity import dead_letter_path
from spillway.model.quotas import Quotas
from spillway.server.clock import Clock, MovableClock
from spillway.server.keys import DEVELOPMENT_KEY, connection_string, root_rights
from spillway.server.namespace_server import NamespaceServer, ServerOptions
from spillway.server.tls import CertificateFiles, server_context
from spillway.store.journal import Journal
from spillway.store.memory import MemoryJournal

CALL_S: Final = 60.0  # for anything that is asked of the broker: it is in this process, so only a fault takes so long
PEEK_COUNT: Final = 1_000
T = TypeVar("T")


class HostedNamespace:
    """`failures` are those for which a broker of its own process would have stopped itself."""

    def __init__(
        self,
        name: str,
        certificates: CertificateFiles,
        journal: Journal | None = None,
        make_clock: Callable[[int], Clock] = MovableClock,
        quotas: Quotas | None = None,
    ) -> None:
        self.name = name
        self.certificates = certificates
        self.failures: list[BaseException] = []
        self._journal = journal or MemoryJournal()
        self._make_clock = make_clock
        self._options = ServerOptions(name, port=0, quotas=quotas or Quotas())
        self._thread = LoopThread(f"spillway {name}")

    def start(self) -> Self:
        """Returns when clients can connect. Raises what kept it from serving."""
        try:
            self.run(self._open())
        except BaseException:
            self._thread.close(CALL_S)
            raise
        self.connection_string = connection_string("localhost", self.server.port, DEVELOPMENT_KEY)
        return self

    def close(self, goodbye_s: float = 0.0) -> None:
        """Clients have `goodbye_s` to answer our close; without, their connections just end."""
        if self._thread.is_running:
            ending = self._thread.submit(self._shut(goodbye_s))
            assert wait([ending], CALL_S + goodbye_s).done, "the broker does not stop"
            error = ending.exception()
            if error is not None:
                self.failures.append(error)
            self._thread.close(CALL_S)
        elif self._thread.error is not None:
            self.failures.append(self._thread.error)

    @property
    def thread_id(self) -> int:
        return self._thread.thread_id

    async def _open(self) -> None:
        self.server = NamespaceServer(
            self._options,
            self._journal,
            root_rights(DEVELOPMENT_KEY),
            server_context(self.certificates),
            self.failures.append,
            make_clock=self._make_clock,
        )
        self.front = administer(self.server)
        self.server.start()
        try:
            self.server.listen()
        except BaseException:
            await self._shut(0.0)
            raise

    async def _shut(self, goodbye_s: float) -> None:
        self.front.stop()
        await self.server.stop(goodbye_s)
        self.front.abort()
        await asyncio.sleep(0)  # for the transports to hear of it

    # -- asking ----------------------------------------------------------------------------------------------------

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """On the broker's loop; the caller waits."""
        return self._thread.run(coroutine, CALL_S)

    def ask(self, make_request: Callable[[int], Request]) -> Answer:
        """A request to the core; its answer comes when it is durable. Raises the error it is refused with."""
        answer = self.run(self.server.pump.ask(make_request))
        if isinstance(answer, Failed):
            raise answer.error
        return answer

    def advance_ms(self, by_ms: int) -> None:
        """Let time pass at once, and what is due by then happen."""
        assert self.run(self.server.advance(by_ms)), "the namespace never came to rest"

    def cut(self) -> None:
        """Break every connection, as a failing network does: nobody says goodbye."""

        async def abort_all() -> None:
            for connection in list(self.server.pump.connections):
                connection.abort()
            await self.server.pump.until(self.server.pump.is_deserted, CALL_S)

        self.run(abort_all())

    # -- messages, where not the SDK's own way of sending or looking is in question ----------------------------------

    def send(self, entity: str, *messages: OutgoingMessage | str | bytes) -> None:
        """Send by our own client, all together and in this order."""

        async def send_all() -> None:
            async with await connect(self.connection_string) as connection:
                sender = await connection.sender(entity)
                made = [one if isinstance(one, OutgoingMessage) else OutgoingMessage(one) for one in messages]
                await asyncio.gather(*(sender.send(message) for message in made))

        self.run(send_all())

    def peek(self, entity: str) -> list[ReceivedMessage]:
        """All messages of a queue or subscription, whoever holds them."""

        async def peek_all() -> list[ReceivedMessage]:
            async with await connect(self.connection_string) as connection:
                management = connection.management(entity)
                found: list[ReceivedMessage] = []
                last = -1
                while more := await management.peek(last + 1, PEEK_COUNT):
                    found += more
                    last = more[-1].sequence_number or 0
                return found

        return self.run(peek_all())

    def dead_letters(self, entity: str) -> list[ReceivedMessage]:
        return self.peek(dead_letter_path(entity))
