"""The way in: `connect`, and the senders, receivers and management calls of one connection."""

import asyncio
import ssl
import uuid
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final

from spillway import __version__
from spillway.amqp.connection import Connection as Engine
from spillway.amqp.connection import ConnectionOptions
from spillway.amqp.performatives import RCV_FIRST, RCV_SECOND, SND_SETTLED, SND_UNSETTLED, Source, Target
from spillway.amqp.types import Symbol, UInt
from spillway.client.authorisation import CBS, Authorisation
from spillway.client.connection_string import NO_CREDENTIAL, ConnectionString, parse_connection_string, parse_host
from spillway.client.credentials import AnyCredential, Credential, SasCredential, SignatureCredential, credential_of
from spillway.client.entra import EntraCredential
from spillway.client.errors import ClientError, ConnectionLost
from spillway.client.link import within
from spillway.client.management import Management
from spillway.client.receiver import PEEK_LOCK, RECEIVE_AND_DELETE, Receiver
from spillway.client.requests import RequestPair
from spillway.client.sender import WINDOW, WINDOW_BYTES, Sender
from spillway.client.wire import Wire
from spillway.dialect.annotations import SESSION_FILTER, TIMEOUT

if TYPE_CHECKING:
    from spillway.client.websocket import WebSocket

OPERATION_TIMEOUT_S: Final = 60.0
LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
CLOSE_S_MAX: Final = 5.0  # how long we wait for the peer's goodbye
IDLE_TIMEOUT_MS: Final = 60_000
# Large deliveries arrive in frames of this size; the peer has its own for ours.
MAX_FRAME_SIZE: Final = 65_536
_SESSION_FILTER: Final = Symbol(SESSION_FILTER)
_TIMEOUT: Final = Symbol(TIMEOUT)
PARTIAL_BYTES_MAX: Final = 128 * 1024 * 1024  # of unfinished deliveries: a premium namespace has messages of 100 MB


async def connect(
    connection_string: str,
    *,
    ca_file: str | Path | None = None,
    tls: bool | None = None,
    credential: AnyCredential | None = None,
    operation_timeout: float = OPERATION_TIMEOUT_S,
) -> "Connection":
    """Connect to a namespace. TLS unless the string has `UseDevelopmentEmulator=true`; there is no way back to clear.

    With `TransportType=AmqpWebSockets` in the string AMQP goes inside a WebSocket.

    `ca_file` asks for TLS and trusts that authority alone. `credential` replaces the key of the string: anything
    with a `get_token` like azure-identity's credentials, azure-core's key and signature, or one of this package's.
    """
    return await _connect(parse_connection_string(connection_string), ca_file, tls, credential, operation_timeout)


async def connect_host(
    host: str,
    credential: AnyCredential,
    *,
    ca_file: str | Path | None = None,
    tls: bool = True,
    websocket: bool = False,
    operation_timeout: float = OPERATION_TIMEOUT_S,
) -> "Connection":
    """Connect to a namespace by its host name, `contoso.servicebus.windows.net`, and a credential, as `connect` does.

    `websocket` puts AMQP inside a WebSocket.
    """
    name, port = parse_host(host)
    target = ConnectionString(name, port, is_websocket=websocket)
    return await _connect(target, ca_file, tls, credential, operation_timeout)


async def _connect(
    target: ConnectionString,
    ca_file: str | Path | None,
    tls: bool | None,
    credential: AnyCredential | None,
    operation_timeout: float,
) -> "Connection":
    context = _tls_context(target, ca_file, tls)
    tokens = _credential(target, credential)
    if target.identity is not None and context is None and target.address not in LOOPBACK:
        raise ValueError("a token of Entra ID is not sent in clear to another machine: TLS is needed")
    loop = asyncio.get_running_loop()
    wire = Wire(Engine(_options(target), False, int(loop.time() * 1000)), loop)
    port = target.port_for(context is not None)
    try:
        await within(_open(wire, target, port, context), operation_timeout, f"connecting to {target.host}:{port}")
    except BaseException:
        wire.abort()
        raise
    return Connection(wire, target, tokens, operation_timeout)


class Connection:
    """One connection to a namespace, for one event loop."""

    def __init__(self, wire: Wire, target: ConnectionString, credential: Credential, operation_timeout: float) -> None:
        self._wire = wire
        self._timeout_s = operation_timeout
        self._id = uuid.uuid4().hex
        self._links_count = 0
        self._authorisation = Authorisation(
            credential,
            target.authority,
            lambda: RequestPair(wire, wire.engine.begin(), CBS, operation_timeout),
            operation_timeout,
        )

    async def __aenter__(self) -> "Connection":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def error(self) -> ClientError | None:
        """Why the connection is over; None while it lives."""
        return self._wire.error

    async def sender(
        self,
        path: str,
        *,
        window: int = WINDOW,
        window_bytes: int = WINDOW_BYTES,
        presettled: bool = False,
        timeout: float | None = None,
    ) -> Sender:
        """Attach a sender to a queue or topic. `window` bounds what may be posted without an outcome.

        `presettled` sends without asking for outcomes: fast, and nothing is ever reported (contract G13, G14).
        """
        if window < 1 or window_bytes < 1:
            raise ValueError("a window holds at least one message and one byte")
        path = _checked(path)
        attaching = self._attach_sender(path, window, window_bytes, presettled)
        return await within(attaching, self._timeout_s if timeout is None else timeout, f"attaching to {path}")

    async def _attach_sender(self, path: str, window: int, window_bytes: int, presettled: bool) -> Sender:
        await self._authorise(path)
        name = f"{path}-{uuid.uuid4().hex}"
        link = self._wire.engine.begin().attach_sender(
            name,
            Source(name),
            Target(path),
            snd_settle_mode=SND_SETTLED if presettled else SND_UNSETTLED,
            rcv_settle_mode=RCV_FIRST,
        )
        sender = Sender(self._wire, link, path, self._timeout_s, window, window_bytes, presettled)
        self._wire.flush_soon()
        await sender.wait_attached()
        return sender

    async def receiver(
        self,
        path: str,
        *,
        mode: str = PEEK_LOCK,
        credit: int = 0,
        limit: int | None = None,
        timeout: float | None = None,
    ) -> Receiver:
        """Attach a receiver. `credit` messages are fetched ahead; 0 fetches what each `receive` asks for.

        With a `limit` no more are ever fetched ahead than that many in all: nothing is locked in vain at the end.
        """
        if mode not in (PEEK_LOCK, RECEIVE_AND_DELETE):
            raise ValueError(f"mode is {PEEK_LOCK!r} or {RECEIVE_AND_DELETE!r}")
        if credit < 0:
            raise ValueError("credit cannot be negative")
        if limit is not None and limit < 1:
            raise ValueError("limit must be at least 1")
        path = _checked(path)
        attaching = self._attach_receiver(Source(path), mode, credit, limit=limit)
        return await within(attaching, self._timeout_s if timeout is None else timeout, f"attaching to {path}")

    async def session_receiver(
        self,
        path: str,
        session_id: str | None = None,
        *,
        mode: str = PEEK_LOCK,
        credit: int = 0,
        max_wait: float | None = None,
    ) -> Receiver:
        """Attach a receiver that holds a message session: the named one, or the next that is free and has messages.

        `max_wait` seconds for the next one; then `OperationTimeout`. Which one it got is `session_id`.
        """
        path = _checked(path)
        wait_s = self._timeout_s if max_wait is None else max_wait
        source, properties = _session_source(path, session_id, wait_s)
        attaching = self._attach_receiver(source, mode, credit, properties)
        return await within(attaching, wait_s + self._timeout_s, f"accepting a session of {path}")

    async def ask_session(
        self, path: str, session_id: str, count: int, *, mode: str = PEEK_LOCK, max_wait: float | None = None
    ) -> Receiver:
        """Ask for a named message session, and for up to `count` messages of it in the same go; wait for neither.

        `receive` of the receiver has the answer: messages, or the error that `session_receiver` would have raised. Its
        `is_drained` says whether fewer than `count` are all that there are. For many short sessions: an answer takes
        one wait, and the AMQP session of a receiver that was closed is used for the next.
        """
        if count < 1:
            raise ValueError("count must be at least 1")
        path = _checked(path)
        wait_s = self._timeout_s if max_wait is None else max_wait
        await self._authorise(path)
        receiver = self._start_receiver(*_session_source(path, session_id, wait_s), mode, is_short=True)
        receiver.ask_early(count, wait_s + self._timeout_s)
        return receiver

    async def _attach_receiver(
        self,
        source: Source,
        mode: str,
        credit: int,
        properties: dict[object, object] | None = None,
        limit: int | None = None,
    ) -> Receiver:
        await self._authorise(source.address or "")
        receiver = self._start_receiver(source, properties, mode, credit, limit)
        await receiver.wait_attached()
        return receiver

    def _start_receiver(
        self,
        source: Source,
        properties: dict[object, object] | None,
        mode: str,
        credit: int = 0,
        limit: int | None = None,
        is_short: bool = False,
    ) -> Receiver:
        path = source.address or ""
        self._links_count += 1
        name = f"{path}-{self._id}-{self._links_count}"
        session = self._wire.session() if is_short else self._wire.engine.begin()
        # Peek-lock is settle-mode "second" (docs/wire.md, "Client receivers").
        link = session.attach_receiver(
            name,
            source,
            Target(name),
            snd_settle_mode=SND_UNSETTLED if mode == PEEK_LOCK else SND_SETTLED,
            rcv_settle_mode=RCV_SECOND if mode == PEEK_LOCK else RCV_FIRST,
            properties=properties,
        )
        receiver = Receiver(self._wire, link, path, self._timeout_s, mode, credit, limit)
        receiver.leaves_session = is_short
        self._wire.flush_soon()
        return receiver

    def management(self, path: str, *, link_name: str | None = None) -> Management:
        """Calls to `<path>/$management`; attached with the first one. `link_name` associates them with a receiver."""
        path = _checked(path)

        async def open_pair() -> RequestPair:
            await self._authorise(path)
            pair = RequestPair(self._wire, self._wire.engine.begin(), f"{path}/$management", self._timeout_s)
            await pair.wait_attached()
            return pair

        return Management(path, open_pair, self._timeout_s, link_name)

    async def close(self) -> None:
        """Give back what was prefetched, say close and wait for the answer, for a moment.

        Whatever still waits fails with `ConnectionLost`; close a sender first to wait for its outcomes.
        """
        self._authorisation.stop()
        prefetching = [end for end in self._wire.ends() if isinstance(end, Receiver) and end.credit]
        try:
            await asyncio.gather(*[receiver.close() for receiver in prefetching])
            self._wire.close()
            await asyncio.wait([self._wire.closed], timeout=CLOSE_S_MAX)
        finally:
            self._wire.close()
            self._wire.abort()

    async def _authorise(self, path: str) -> None:
        self._raise_if_over()
        await self._authorisation.authorise(path)
        self._raise_if_over()

    def _raise_if_over(self) -> None:
        if self._wire.error is not None:
            raise self._wire.error.with_traceback(None)


async def _open(wire: Wire, target: ConnectionString, port: int, context: ssl.SSLContext | None) -> None:
    server_hostname = target.address if context is not None else None
    websocket = _websocket(wire, target, port) if target.is_websocket else None
    try:
        await wire.loop.create_connection(
            lambda: websocket or wire, target.address, port, ssl=context, server_hostname=server_hostname
        )
    except ssl.SSLError as error:
        raise ConnectionLost(f"no TLS with {target.host}:{port}: {error.reason or error}", is_transient=False) from None
    except OSError as error:
        raise ConnectionLost(f"cannot reach {target.host}:{port}: {error.strerror or error}") from None
    if websocket is not None:
        try:
            await websocket.accepted
        except BaseException:
            websocket.abort()
            raise
    await wire.opened


def _websocket(wire: Wire, target: ConnectionString, port: int) -> "WebSocket":
    """A WebSocket; what it takes is imported where one is asked for."""
    from spillway.client.websocket import WebSocket

    return WebSocket(wire, f"{target.host}:{port}", wire.loop)


def _options(target: ConnectionString) -> ConnectionOptions:
    return ConnectionOptions(
        container_id=f"spillway-{uuid.uuid4().hex}",
        hostname=target.host,
        max_frame_size=MAX_FRAME_SIZE,
        idle_timeout_ms=IDLE_TIMEOUT_MS,
        sasl_mechanisms=["ANONYMOUS"],  # "not yet authorised": rights come from $cbs
        sasl_response=b"",
        partial_bytes_max=PARTIAL_BYTES_MAX,
        properties={"product": "spillway", "version": __version__},
    )


def _tls_context(target: ConnectionString, ca_file: str | Path | None, tls: bool | None) -> ssl.SSLContext | None:
    wanted = ca_file is not None or target.demands_tls or not target.is_emulator if tls is None else tls
    if not wanted:
        if ca_file is not None:
            raise ValueError("ca_file is for TLS, and tls=False rules that out")
        if target.demands_tls:
            raise ValueError("an amqps:// endpoint is never spoken to in clear")
        return None
    return ssl.create_default_context(cafile=None if ca_file is None else str(ca_file))


def _credential(target: ConnectionString, credential: AnyCredential | None) -> Credential:
    if credential is not None:
        return credential_of(credential)
    if target.key_name is not None and target.key is not None:
        return SasCredential(target.key_name, target.key)
    if target.signature is not None:
        return SignatureCredential(target.signature)
    if target.identity is not None:
        return EntraCredential(target.identity)
    raise ValueError(f"{NO_CREDENTIAL}: give a credential")


def _session_source(path: str, session_id: str | None, wait_s: float) -> tuple[Source, dict[object, object]]:
    """Where a message session comes from, and the properties of the link that asks for it."""
    return Source(path, filter={_SESSION_FILTER: session_id}), {_TIMEOUT: UInt(int(wait_s * 1000))}


def _checked(path: str) -> str:
    path = path.strip("/")
    if not path:
        raise ValueError("the path of an entity must not be empty")
    return path
