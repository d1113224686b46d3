"""HTTP/1.1 on a connection that the listener has sniffed: h11 reads and writes it, and our limits are here.

No client is waited for as long as it likes. When all places are taken, the one that has kept us waiting longest gives
up its own: a flood pays for itself.
"""

import asyncio
import logging
import socket
from http import HTTPStatus
from typing import Any, Final, cast
from urllib.parse import unquote

import h11
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Scope

from spillway.admin.admission import serving
from spillway.admin.app import BODY_BYTES_MAX, ERROR, Administration, refuse_head
from spillway.admin.atom import error_xml
from spillway.admin.exchange import SAFE_HEADERS, Exchange, FlowControl
from spillway.admin.heads import HEAD_BYTES_MAX, StrictConnection
from spillway.admin.http_refusals import HttpRefusal, bad_request
from spillway.admin.upgrade import VERSION, accepting, is_wanted, refuse_upgrade
from spillway.admin.websocket import Opener, WebSockets, WebSocketStream
from spillway.model import limits
from spillway.model.budget import Account

log = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 500  # administrators of a namespace at the same time
REQUEST_TIMEOUT_S: Final = 20.0  # for a whole request to arrive
KEEP_ALIVE_S: Final = 120.0  # between an answer and the next request
INVALID: Final = "Invalid HTTP request received."
FAILED: Final = "SubCode=50000. The broker failed to answer; its log says why."
REQUEST_BYTES_MAX: Final = HEAD_BYTES_MAX + BODY_BYTES_MAX  # of a longer one nothing is kept
HELD_BYTES_MAX: Final = 4 * limits.MIB  # of one of them: a request, twice while it is read, and an answer


class Connections:
    """All HTTP connections of a namespace."""

    def __init__(self, app: Administration, request_timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        self.app = app
        self.request_timeout_s = request_timeout_s
        self.connections_max = CONNECTIONS_MAX
        self.connections: set[HttpConnection] = set()
        self.waiting: dict[HttpConnection, None] = {}  # for the client to go on, the longest first
        self.tasks: set[asyncio.Task[None]] = set()  # of requests that are being answered
        self.websockets = WebSockets()

    def accept(self, open_stream: Opener, raw: socket.socket | None) -> asyncio.Protocol:
        return HttpConnection(self, open_stream, raw)

    def make_room(self) -> None:
        """Those whose request is being answered stay; if they are all, there is no room."""
        while len(self.connections) > self.connections_max and self.waiting:
            next(iter(self.waiting)).push_out()

    def stop(self) -> None:
        self.websockets.is_leaving = True
        for connection in list(self.connections):
            connection.leave()

    def abort(self) -> None:
        """End what is left now: a client with TLS need not answer our goodbye."""
        for connection in list(self.connections):
            connection.transport.abort()


class HttpConnection(asyncio.Protocol):
    """A client, one request after the other."""

    transport: asyncio.Transport
    flow: FlowControl

    def __init__(self, together: Connections, open_stream: Opener, raw: socket.socket | None) -> None:
        self.together = together
        self.open_stream = open_stream
        self.raw = raw
        self.loop = asyncio.get_running_loop()
        self.conn = StrictConnection()
        self.exchange: Exchange | None = None  # the request that was last read, if any was
        self.timer: asyncio.TimerHandle | None = None
        self.idle_timer: asyncio.TimerHandle | None = None
        self.account = Account(together.app.namespace.budget, HELD_BYTES_MAX)
        self.account.on_over = self.push_out
        self.request_bytes = 0  # of the request that is read or answered
        self.paid_bytes = 0  # for it, and for an answer that is not read

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.flow = FlowControl(self.transport)
        self.together.connections.add(self)
        has_tls = transport.get_extra_info("ssl_object") is not None
        self.account.charge(limits.CONNECTION_BYTES + (limits.TLS_BYTES if has_tls else 0))
        self.together.waiting[self] = None
        self.together.make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self.account.close()
        self.stop_timers()
        self.together.waiting.pop(self, None)
        self.together.connections.discard(self)
        if self.exchange is not None:
            self.exchange.end()
        self.flow.writable.set()

    def pause_writing(self) -> None:
        self.flow.writable.clear()

    def resume_writing(self) -> None:
        self.flow.writable.set()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self.timer is None:
            self.start_timer()
        serving.set(self.transport)
        self.request_bytes += len(data)
        self.stop_idle_timer()
        self.conn.receive_data(data)
        self.handle_events()
        self.note_state()
        if self.account.is_closed:
            return  # it is a WebSocket now, or gone
        self.pay()
        if self.account.is_over:
            self.refuse(503, f"SubCode=50300. {self.account.why()}")

    # -- requests ------------------------------------------------------------------------------------------------------

    def handle_events(self) -> None:
        """Whatever has come whole. Nothing is read behind a request that is being answered."""
        while not self.transport.is_closing():
            try:
                event = self.conn.next_event()
            except h11.RemoteProtocolError:
                status, text = self.conn.problem or (400, INVALID)
                self.refuse(status, f"SubCode={status}00. {text}")
                return
            if event is h11.NEED_DATA:
                return
            if event is h11.PAUSED:
                self.flow.pause_reading()
                return
            if isinstance(event, h11.Request):
                self.stop_idle_timer()
                scope = self.scope_of(event)
                if is_wanted(Headers(raw=scope["headers"]), scope["raw_path"]):
                    self.upgrade(scope)
                    return
                self.begin(scope)
            elif isinstance(event, h11.Data):
                self.on_body(event)
            elif isinstance(event, h11.EndOfMessage):
                self.on_body_end()
                if self.conn.their_state is h11.MUST_CLOSE:
                    return  # it has said that this is its last request

    def scope_of(self, request: h11.Request) -> Scope:
        """The request as ASGI describes it."""
        path, _, query = request.target.partition(b"?")
        has_tls = self.transport.get_extra_info("sslcontext") is not None
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": request.http_version.decode("ascii"),
            "server": address(self.transport.get_extra_info("sockname")),
            "client": address(self.transport.get_extra_info("peername")),
            "scheme": "https" if has_tls else "http",
            "method": request.method.decode("ascii"),
            "root_path": "",
            "path": unquote(path.decode("ascii")),
            "raw_path": path,
            "query_string": query,
            "headers": list(request.headers),
        }

    def begin(self, scope: Scope) -> None:
        self.exchange = Exchange(scope, self.conn, self.flow, self.on_complete)
        task = self.loop.create_task(self.answer(self.exchange))
        self.together.tasks.add(task)
        task.add_done_callback(self.together.tasks.discard)

    async def answer(self, exchange: Exchange) -> None:
        try:
            await self.together.app(exchange.scope, exchange.receive, exchange.send)
        except Exception:
            log.exception("a fault of the administration")
            self.refuse(500, FAILED)
        finally:
            if not exchange.is_complete:
                self.transport.close()

    def on_body(self, data: h11.Data) -> None:
        """What comes of a body after the answer is dropped."""
        if self.conn.our_state is not h11.DONE:
            assert self.exchange is not None, "a body belongs to a request"
            self.exchange.accept_body(data.data)

    def on_body_end(self) -> None:
        if self.conn.our_state is h11.DONE:
            self.flow.resume_reading()
            self.conn.start_next_cycle()
            return
        assert self.exchange is not None, "a body belongs to a request"
        self.exchange.end_body()

    def on_complete(self) -> None:
        """The answer is said: the client may go on with the next request, or has sent that already."""
        if not self.transport.is_closing():
            self.stop_idle_timer()
            self.idle_timer = self.loop.call_later(KEEP_ALIVE_S, self.transport.close)
            self.flow.resume_reading()
            if self.conn.our_state is h11.DONE and self.conn.their_state is h11.DONE:
                self.conn.start_next_cycle()
                self.handle_events()
        self.note_state()
        self.request_bytes = len(self.conn.trailing_data[0])
        self.pay()

    def pay(self) -> None:
        """Charge what came of a request, as it came and as it is read, and what waits to be read of an answer."""
        held = 2 * min(self.request_bytes, REQUEST_BYTES_MAX) + self.transport.get_write_buffer_size()
        self.account.charge(held - self.paid_bytes)
        self.paid_bytes = held

    def note_state(self) -> None:
        """Note whose turn it is: ours, or the client's to send a request or the rest of one."""
        if self.conn.their_state is h11.IDLE:
            self.together.waiting.setdefault(self)
            if not self.conn.has_rest:
                self.stop_timer()
            elif self.timer is None:
                self.start_timer()
        elif self.conn.their_state is not h11.SEND_BODY:
            self.stop_timer()
            self.together.waiting.pop(self, None)

    def start_timer(self) -> None:
        self.timer = self.loop.call_later(self.together.request_timeout_s, self.on_late)

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def stop_idle_timer(self) -> None:
        if self.idle_timer is not None:
            self.idle_timer.cancel()
            self.idle_timer = None

    def stop_timers(self) -> None:
        self.stop_timer()
        self.stop_idle_timer()

    def on_late(self) -> None:
        self.timer = None
        self.refuse(408, f"SubCode=40800. A request must arrive within {self.together.request_timeout_s:g} s.")

    # -- WebSockets ----------------------------------------------------------------------------------------------------

    def upgrade(self, scope: Scope) -> None:
        """To anything else than a WebSocket is not changed: HTTP/1.1 goes on, as RFC 9110 section 7.8 allows."""
        headers = Headers(raw=scope["headers"])
        try:
            refuse_head(Request(scope))
            refuse_upgrade(scope["method"], scope["http_version"], scope["raw_path"], headers)
            self.together.app.refuse_pages(headers)
            if not isinstance(self.conn.next_event(), h11.EndOfMessage):
                raise bad_request("A request for a WebSocket has no body.")
        except HttpRefusal as fault:
            self.refuse(fault.status, fault.detail)
            return
        stream = self.open_stream()
        if stream is None:
            self.refuse(503, "SubCode=50300. The namespace has as many connections as it can serve.")
            return
        self.change_over(stream, headers)

    def change_over(self, stream: asyncio.Protocol, headers: Headers) -> None:
        """This protocol is over: the rest of the connection belongs to the WebSocket."""
        answer = h11.InformationalResponse(status_code=101, headers=accepting(headers), reason=b"Switching Protocols")
        self.transport.write(self.conn.send(answer) or b"")
        self.stop_timers()
        self.together.connections.discard(self)
        self.together.waiting.pop(self, None)
        self.account.close()
        rest = self.conn.trailing_data[0]
        account = getattr(stream, "account", None)  # it has its own
        WebSocketStream(self.transport, stream, self.raw, self.together.websockets, self.loop, account).begin(rest)

    # -- ends ----------------------------------------------------------------------------------------------------------

    def refuse(self, status: int, text: str) -> None:
        """Said past h11, which may be in no state to say it; nothing is read or written after it."""
        self.stop_timer()
        if self.transport.is_closing():
            return
        exchange = self.exchange
        if exchange is None or exchange.is_complete or not exchange.is_started:
            body = error_xml(status, text).encode()
            head = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", f"Content-Type: {ERROR}"]
            if status == 426:
                head += ["Upgrade: websocket", f"Sec-WebSocket-Version: {VERSION}"]
            head += [f"{name}: {value}" for name, value in SAFE_HEADERS]
            head += [f"Content-Length: {len(body)}", "Connection: close", "", ""]
            self.transport.write("\r\n".join(head).encode() + body)
        if exchange is not None:
            exchange.is_over = True
            exchange.changed.set()
        self.transport.close()

    def push_out(self) -> None:
        """End the connection: its place is another's at once, whenever the socket is gone."""
        self.account.close()
        self.stop_timers()
        self.together.connections.discard(self)
        self.together.waiting.pop(self, None)
        self.transport.abort()

    def leave(self) -> None:
        if self.exchange is None or self.exchange.is_complete:
            self.transport.close()
        else:
            self.exchange.keeps_alive = False


def address(found: Any) -> tuple[str, int] | None:
    """Host and port of an IP socket, whatever its family."""
    return (str(found[0]), int(found[1])) if isinstance(found, tuple) and len(found) > 1 else None
