"""One port serves everything: sockets are accepted, looked at, and handed to whoever speaks their language.

The first bytes are peeked at on the bare socket, before a transport exists: a transport would have consumed them and
could not be turned into TLS any more (docs/design.md, "One port"). Inside TLS the first decrypted bytes are looked at
again.
"""

import asyncio
import contextlib
import errno
import ipaddress
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Final, cast

from spillway.model import limits
from spillway.model.errors import BrokerError, QuotaExceeded
from spillway.model.quotas import NO_LIMIT
from spillway.server import sniff
from spillway.server.connection import ClientConnection
from spillway.server.preauth import PreauthLimiter
from spillway.server.pump import Pump, PumpedPeer

log = logging.getLogger(__name__)

TOLD_FULL_MAX: Final = 100  # connections beyond the limit that are told so; others are just closed
TOLD_FULL_MS: Final = 5_000  # to hear it
ACCEPTS_PER_VISIT_MAX: Final = 100  # then the loop gets to serve those who are in
BACKLOG: Final = 1_024
PEEK_AGAIN_S: Final = 0.05
ACCEPT_AGAIN_S: Final = 1.0  # after the process has run out of file descriptors
ADDRESS_MISSING: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT)
# The header a client must open with: SASL first [AMQP 1.0 section 2.2, 5.3.2].
OUR_HEADER: Final = b"AMQP\x03\x01\x00\x00"


def bind(host: str, port: int) -> list[socket.socket]:
    """Listening sockets; `localhost` is both loopback addresses. Port 0 picks one that is free on all of them.

    Raises OSError with the address in it.
    """
    addresses = ["127.0.0.1", "::1"] if host == "localhost" else [host]
    for _ in range(20):
        bound: list[socket.socket] = []
        try:
            for address in addresses:
                bound += bind_one(address, bound[0].getsockname()[1] if bound else port, is_optional=bool(bound))
            return bound
        except OSError:
            for sock in bound:
                sock.close()
            if port != 0 or not bound:
                raise
    raise OSError(f"no port is free on all of {', '.join(addresses)}")


def bind_one(address: str, port: int, is_optional: bool) -> list[socket.socket]:
    """No socket if the address is optional and this machine does not have it (no IPv6)."""
    try:
        family, _, _, _, target = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError:
        if is_optional:
            return []
        raise
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.setblocking(False)
        sock.bind(target)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        if is_optional and error.errno in ADDRESS_MISSING:
            return []
        raise
    return [sock]


def is_loopback(address: str) -> bool:
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(ip, "ipv4_mapped", None)
    return bool((mapped or ip).is_loopback)


def address_of(sock: socket.socket) -> str:
    try:
        return str(sock.getpeername()[0])
    except OSError:  # gone already
        return ""


OpenStream = Callable[[], asyncio.Protocol | None]  # to the broker, through somebody else's protocol
# Speaks HTTP on a connection; given a way to the broker and the socket, if that can be read past the transport.
Http = Callable[[OpenStream, socket.socket | None], asyncio.Protocol]


class Acceptor:
    """The acceptor of connections: what every arrival needs to know, who serves, and who is let in."""

    def __init__(
        self,
        pump: Pump,
        preauth: PreauthLimiter,
        make_peer: Callable[[bool, str], PumpedPeer],
        tls: ssl.SSLContext | None,
        http: Http | None = None,
        is_clear_text_allowed: bool = False,
        connections_max: int = limits.CONNECTIONS_MAX,
    ) -> None:
        self.pump = pump
        self.preauth = preauth
        self.make_peer = make_peer  # told whether a password may come in as it is, and from where
        self.tls = tls
        self.http = http  # speaks HTTP, if somebody was handed in who does
        self.is_clear_text_allowed = is_clear_text_allowed  # from other machines; from this one it always is
        self.connections_max = connections_max
        self.told_full: dict[ClientConnection, int] = {}  # there is no room for them -> when they must go
        self.refused_count = 0
        self.logged_ms = 0
        self.connects_per_second: int = NO_LIMIT  # of one address
        self.second = 0
        self.came: dict[str, int] = {}  # by address, how many connected in this second
        self.tasks: set[asyncio.Task[None]] = set()

    def run(self, task: asyncio.Task[None]) -> None:
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def amqp(self, raw: socket.socket | None, where: str, is_secret: bool) -> asyncio.Protocol:
        """A client that speaks AMQP comes in, unauthenticated; when the namespace is full, only to be told so."""
        is_full = len(self.pump.connections) - len(self.told_full) >= self.connections_max
        if is_full and len(self.told_full) >= TOLD_FULL_MAX:
            return RejectingProtocol()
        connection = ClientConnection(self.pump, lambda: self.make_peer(is_secret, where), raw, where, self.leave)
        if is_full:
            self.tell_full(connection)
        self.preauth.enter_unauthenticated(connection, self.pump.clock.real_ms())
        return connection

    def is_slow_enough(self, sock: socket.socket) -> bool:
        """Whether the address of a socket has not connected too often in this second."""
        second = self.pump.clock.real_ms() // 1_000
        if second != self.second:
            self.second = second
            self.came.clear()
        address = address_of(sock)
        self.came[address] = self.came.get(address, 0) + 1
        if self.came[address] == self.connects_per_second + 1:
            log.warning("client=%s connects too often (limit connects-per-second): closed", address)
        if self.came[address] <= self.connects_per_second:
            return True
        self.refused_count += 1
        return False

    def tell_full(self, connection: ClientConnection) -> None:
        now_ms = self.pump.clock.real_ms()
        self.told_full[connection] = now_ms + TOLD_FULL_MS
        self.refused_count += 1
        if now_ms - self.logged_ms >= TOLD_FULL_MS or self.refused_count == 1:
            self.logged_ms = now_ms
            log.warning(
                "namespace=%s has its %d connections (limit connections): client=%s is refused; so far %d were",
                self.pump.name,
                self.connections_max,
                connection.where,
                self.refused_count,
            )
        connection.peer.refuse(self.full())

    def full(self) -> QuotaExceeded:
        return QuotaExceeded(
            f"The namespace '{self.pump.name}' has {self.connections_max} connections, the most it may have "
            "(limit connections)."
        )

    def leave(self, connection: ClientConnection) -> None:
        self.told_full.pop(connection, None)
        self.preauth.leave(connection)

    def sweep(self, now_ms: int) -> None:
        """Clients that there is no room for have had time to hear it. JavaScript comes again only if it is cut off."""
        for connection in [each for each, deadline_ms in self.told_full.items() if deadline_ms <= now_ms]:
            del self.told_full[connection]
            connection.reject(None)

    def open_stream(self, where: str, is_secret: bool) -> ClientConnection | None:
        """AMQP inside a WebSocket. None: there is not even room to say that there is no room."""
        stream = self.amqp(None, f"{where} (WebSocket)", is_secret)
        return stream if isinstance(stream, ClientConnection) else None

    def protocol_for(self, kind: int, raw: socket.socket | None, where: str, is_secret: bool) -> asyncio.Protocol:
        if kind == sniff.AMQP:
            return self.amqp(raw, where, is_secret)
        if kind == sniff.HTTP and self.http is not None:
            return self.http(partial(self.open_stream, where, is_secret), raw)
        return RejectingProtocol()


class RejectingProtocol(asyncio.Protocol):
    """A client that speaks something else: told what is spoken here [AMQP 1.0 section 2.2], and closed."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(OUR_HEADER)

    def data_received(self, data: bytes) -> None:
        """The first bytes are there: closing with them unread would reset our header away."""
        self.transport.close()


class Listener:
    def __init__(self, acceptor: Acceptor, sockets: list[socket.socket], loop: asyncio.AbstractEventLoop) -> None:
        self.acceptor = acceptor
        self.sockets = sockets
        self.loop = loop

    @property
    def port(self) -> int:
        return int(self.sockets[0].getsockname()[1])

    def start(self) -> None:
        for sock in self.sockets:
            self.loop.add_reader(sock.fileno(), self.accept, sock)

    def accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_VISIT_MAX):
            try:
                sock, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no more file descriptors: the socket stays readable, so look away for a while
                log.error("no connection can be accepted for now: %s", error)
                self.loop.remove_reader(listening.fileno())
                self.loop.call_later(ACCEPT_AGAIN_S, self.accept_again, listening)
                return
            if self.acceptor.connects_per_second and not self.acceptor.is_slow_enough(sock):
                sock.close()
                continue
            sock.setblocking(False)
            with contextlib.suppress(OSError):  # asyncio misses sockets accepted like this one
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            Arrival(self.acceptor, sock, self.loop).peek()

    def accept_again(self, listening: socket.socket) -> None:
        if listening.fileno() >= 0:
            self.loop.add_reader(listening.fileno(), self.accept, listening)

    def stop(self) -> None:
        for sock in self.sockets:
            self.loop.remove_reader(sock.fileno())
            sock.close()


class Arrival:
    """A socket that nobody owns yet: waits until its first bytes say what it is."""

    def __init__(self, acceptor: Acceptor, sock: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self.acceptor = acceptor
        self.sock = sock
        self.loop = loop
        self.is_admitted = False
        self.is_watched = False
        self.again: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[None] | None = None
        self.address = address_of(sock)
        acceptor.preauth.enter_silent(self, acceptor.pump.clock.real_ms())

    def peek(self) -> None:
        """Peek; decide, or come back when there is more to see."""
        self.unwatch()
        if self.is_admitted:
            return
        try:
            first = self.sock.recv(sniff.PEEK_BYTES, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            self.is_watched = True
            self.loop.add_reader(self.sock.fileno(), self.peek)
            return
        except OSError:
            first = b""
        if not first:
            self.leave()
            return
        kind = sniff.classify(first)
        if kind == sniff.UNDECIDED:  # bytes that were only peeked at keep the socket readable: do not spin on them
            self.again = self.loop.call_later(PEEK_AGAIN_S, self.peek)
            return
        self.task = self.loop.create_task(self.hand_over(kind))
        self.acceptor.run(self.task)

    async def hand_over(self, kind: int) -> None:
        """Give the socket to a transport. The handshake of TLS counts as silence: it has the same time-out."""
        is_local = is_loopback(self.address)
        try:
            if kind == sniff.TLS and self.acceptor.tls is not None:
                await self.loop.connect_accepted_socket(
                    lambda: InsideTls(self.acceptor, self.address),
                    self.sock,
                    ssl=self.acceptor.tls,
                    ssl_handshake_timeout=limits.HEADER_TIMEOUT_MS / 1000,
                )
            else:
                if kind != sniff.OTHER and not is_local and not self.acceptor.is_clear_text_allowed:
                    log.warning("client=%s refused: clear text from another machine; use TLS", self.address)
                    kind = sniff.OTHER
                protocol = self.acceptor.protocol_for(kind, self.sock, self.address, is_secret=is_local)
                self.settle()
                await self.loop.connect_accepted_socket(lambda: protocol, self.sock)
        except (OSError, asyncio.CancelledError) as error:  # ssl.SSLError is an OSError
            log.debug("client=%s gone before it was served: %s", self.address, error)
            self.sock.close()
        self.settle()

    def settle(self) -> None:
        """The socket is no longer ours to watch."""
        self.is_admitted = True
        self.acceptor.preauth.leave(self)

    def unwatch(self) -> None:
        if self.is_watched:
            self.is_watched = False
            self.loop.remove_reader(self.sock.fileno())
        if self.again is not None:
            self.again.cancel()
            self.again = None

    def leave(self) -> None:
        self.unwatch()
        self.settle()
        self.sock.close()

    def reject(self, error: BrokerError | None) -> None:
        if self.task is not None:
            self.task.cancel()
        else:
            self.leave()


class InsideTls(asyncio.Protocol):
    """The first decrypted bytes decide who takes the connection over."""

    def __init__(self, acceptor: Acceptor, where: str) -> None:
        self.acceptor = acceptor
        self.where = where
        self.first = b""
        self.is_admitted = False
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self.acceptor.preauth.enter_silent(self, self.acceptor.pump.clock.real_ms())

    def data_received(self, data: bytes) -> None:
        assert self.transport is not None
        self.first += data
        kind = sniff.classify(self.first)
        if kind == sniff.UNDECIDED:
            return
        self.settle()
        protocol = self.acceptor.protocol_for(kind, None, self.where, is_secret=True)
        self.transport.set_protocol(protocol)
        protocol.connection_made(self.transport)
        if not self.transport.is_closing():
            protocol.data_received(self.first)

    def connection_lost(self, error: Exception | None) -> None:
        self.settle()

    def settle(self) -> None:
        self.is_admitted = True
        self.acceptor.preauth.leave(self)

    def reject(self, error: BrokerError | None) -> None:
        if self.transport is not None:
            self.transport.abort()
