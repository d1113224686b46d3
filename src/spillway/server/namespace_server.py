"""One namespace being served: its journal, its core, its pump and its port, put together and taken apart in order."""

import asyncio
import logging
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from spillway.broker.commands import CreateQueue, UpdateQueue
from spillway.broker.effects import Failed
from spillway.broker.namespace import Namespace
from spillway.dialect.peer import Peer, PeerOptions
from spillway.dialect.rights import Rights
from spillway.model.entity import QueueSettings, entity_key
from spillway.server.clock import BrokerClock, Clock
from spillway.server.listener import CONNECTIONS_MAX, Door, Listener, bind
from spillway.server.lobby import GUESTS_MAX, Lobby
from spillway.server.numbers import Numbers, Tracking
from spillway.server.pump import Pump
from spillway.store.journal import Journal

log = logging.getLogger(__name__)

FINISH_S: Final = 10.0  # for what was taken from the sockets to become durable
GOODBYE_S: Final = 2.0  # for clients to read our close and answer it


@dataclass(frozen=True)
class ServerOptions:
    """Read once at the edge, handed down."""

    name: str
    host: str = "localhost"
    port: int = 5672
    also_ports: tuple[int, ...] = ()
    is_clear_text_allowed: bool = False  # from other machines
    connections_max: int = CONNECTIONS_MAX
    guests_max: int = GUESTS_MAX


class NamespaceServer:
    """`on_fatal` is called when nothing can be promised any more; it does not return to serving."""

    def __init__(
        self,
        options: ServerOptions,
        journal: Journal,
        rights: Rights,
        tls: ssl.SSLContext | None,
        on_fatal: Callable[[BaseException], None],
        http: Callable[[], asyncio.Protocol] | None = None,
        make_clock: Callable[[int], Clock] = BrokerClock,
    ) -> None:
        """Reads what is remembered. Raises what the journal raises if that cannot be trusted."""
        self.options = options
        self.journal = journal
        self.rights = rights
        self.loop = asyncio.get_running_loop()
        self.numbers = Numbers()
        self.tracking = Tracking(options.name)
        catalogue = journal.recover()
        self.settings = {entity_key(row.put.path): row.put.settings for row in catalogue.entities}
        self.clock = make_clock(catalogue.clock_ms)
        self.core = Namespace(options.name, catalogue, os.urandom(8))
        self.pump = Pump(options.name, self.core, journal, self.clock, self.numbers, self.loop, on_fatal)
        self.lobby = Lobby(options.guests_max)
        self.door = Door(
            self.pump, self.lobby, self.make_peer, tls, http, options.is_clear_text_allowed, options.connections_max
        )
        self.listeners: list[Listener] = []
        self.pump.on_tick.append(self.lobby.sweep)

    def make_peer(self, is_plain_allowed: bool) -> Peer:
        options = PeerOptions(self.options.name)
        return Peer(options, self.core, self.rights, self.numbers, self.tracking, is_plain_allowed, self.clock.now_ms())

    @property
    def port(self) -> int:
        return self.listeners[0].port

    @property
    def queue_names(self) -> list[str]:
        """As they were written when they were made; dead-letter queues are not counted as queues."""
        return sorted(queue.path for queue in self.core.queues.values() if queue.parent is None)

    def start(self) -> None:
        """Begin to decide and to remember; nobody can connect yet."""
        self.pump.start()

    def listen(self) -> None:
        """Let clients in. Raises OSError if a port is taken."""
        for port in (self.options.port, *self.options.also_ports):
            self.listeners.append(Listener(self.door, bind(self.options.host, port), self.loop))
        for listener in self.listeners:
            listener.start()

    async def ensure_queue(self, name: str, settings: QueueSettings | None) -> None:
        """A queue that is missing is made; one that is there keeps its messages (and settings, if none are given)."""
        known = self.settings.get(entity_key(name))
        wanted = settings or QueueSettings()
        if known is None:
            answer = await self.pump.ask(lambda number: CreateQueue(number, name, wanted))
        elif settings is not None and known != settings.to_json():
            answer = await self.pump.ask(lambda number: UpdateQueue(number, name, wanted))
        else:
            return
        if isinstance(answer, Failed):
            raise answer.error
        self.settings[entity_key(name)] = wanted.to_json()

    async def stop(self) -> None:
        """Accept nobody, finish what was begun, say goodbye, and only then let go of the store."""
        for listener in self.listeners:
            listener.stop()
        self.lobby.clear_silent()
        self.pump.hold(True)
        if not await self.pump.until(self.pump.is_idle, FINISH_S):
            log.warning(
                "namespace=%s the disk is slow: clients are closed before everything is answered", self.options.name
            )
        await self.say_goodbye()
        self.pump.stop()
        self.journal.close()

    async def say_goodbye(self) -> None:
        """`amqp:connection:forced` to everyone; who does not answer in time is cut off."""
        for connection in list(self.pump.connections):
            connection.peer.close(None)
            self.pump.mark_dirty(connection)
        self.pump.hold(False)
        await self.pump.until(self.pump.is_deserted, GOODBYE_S)
        for connection in list(self.pump.connections):
            connection.abort()
        await asyncio.sleep(0)
