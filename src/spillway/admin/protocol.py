"""HTTP/1.1 on a connection that the listener has sniffed: uvicorn's protocol class, with the limits of ours.

It waits as long as a client likes for a request and for the rest of it; we do not. When all places are taken, the
client that has kept us waiting longest gives up its own: a flood pays for itself.
"""

import asyncio
import socket
from http import HTTPStatus
from typing import Any, Final, cast

import h11
from starlette.datastructures import Headers
from starlette.requests import Request
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from spillway.admin.admission import serving
from spillway.admin.app import BODY_BYTES_MAX, ERROR, Administration, refuse_head
from spillway.admin.atom import error_xml
from spillway.admin.faults import Fault, bad_request
from spillway.admin.heads import HEAD_BYTES_MAX, StrictConnection
from spillway.admin.upgrade import VERSION, accepting, is_wanted, refuse_upgrade
from spillway.admin.websocket import Opener, WebSockets, WebSocketStream
from spillway.model import limits
from spillway.model.budget import Account

CONNECTIONS_MAX: Final = 500  # administrators of a namespace at the same time
REQUEST_TIMEOUT_S: Final = 20.0  # for a whole request to arrive
KEEP_ALIVE_S: Final = 120
SAFE_HEADERS: Final = (("X-Content-Type-Options", "nosniff"),)
REQUEST_BYTES_MAX: Final = HEAD_BYTES_MAX + BODY_BYTES_MAX  # of a longer one nothing is kept
HELD_BYTES_MAX: Final = 4 * limits.MIB  # of one of them: a request, twice while it is read, and an answer


class Connections:
    """All HTTP connections of a namespace."""

    def __init__(self, app: Administration, request_timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        self.app = app
        self.request_timeout_s = request_timeout_s
        self.connections_max = CONNECTIONS_MAX
        # uvicorn puts these into every answer of the application. A browser takes none of them for a script or a page.
        self.state = ServerState()
        self.state.default_headers = [(name.lower().encode(), value.encode()) for name, value in SAFE_HEADERS]
        self.waiting: dict[HttpConnection, None] = {}  # for the client to go on, the longest first
        self.websockets = WebSockets()
        self.config = Config(
            app,
            http=H11Protocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        )

    def accept(self, open_stream: Opener, raw: socket.socket | None) -> asyncio.Protocol:
        return HttpConnection(self, open_stream, raw)

    def make_room(self) -> None:
        """Those whose request is being answered stay; if they are all, there is no room."""
        while len(self.state.connections) > self.connections_max and self.waiting:
            next(iter(self.waiting)).push_out()

    def stop(self) -> None:
        self.websockets.is_leaving = True
        for connection in list(self.state.connections):
            assert isinstance(connection, HttpConnection), "every connection here is ours"
            connection.leave()

    def abort(self) -> None:
        """End what is left now: a client with TLS need not answer our goodbye."""
        for connection in list(self.state.connections):
            connection.transport.abort()


class HttpConnection(H11Protocol):
    def __init__(self, together: Connections, open_stream: Opener, raw: socket.socket | None) -> None:
        super().__init__(together.config, together.state, {})
        self.together = together
        self.open_stream = open_stream
        self.raw = raw
        self.conn: StrictConnection = StrictConnection()
        self.timer: asyncio.TimerHandle | None = None
        self.account = Account(together.app.namespace.budget, HELD_BYTES_MAX)
        self.account.on_over = self.push_out
        self.request_bytes = 0  # of the request that is read or answered
        self.paid_bytes = 0  # for it, and for an answer that is not read

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        has_tls = transport.get_extra_info("ssl_object") is not None
        self.account.charge(limits.CONNECTION_BYTES + (limits.TLS_BYTES if has_tls else 0))
        self.together.waiting[self] = None
        self.together.make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self.account.close()
        self.stop_timer()
        self.together.waiting.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self.timer is None:
            self.start_timer()
        serving.set(self.transport)
        self.request_bytes += len(data)
        super().data_received(data)
        self.note_state()
        if self.account.is_closed:
            return  # it is a WebSocket now, or gone
        self.pay()
        if self.account.is_over:
            self.refuse(503, f"SubCode=50300. {self.account.why()}")

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.note_state()
        self.request_bytes = len(self.conn.trailing_data[0])
        self.pay()

    def pay(self) -> None:
        """For what came of a request, as it came and as it is read, and for what waits to be read of an answer."""
        held = 2 * min(self.request_bytes, REQUEST_BYTES_MAX) + self.transport.get_write_buffer_size()
        self.account.charge(held - self.paid_bytes)
        self.paid_bytes = held

    def note_state(self) -> None:
        """Whose turn it is: ours, or the client's to send a request or the rest of one."""
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

    def on_late(self) -> None:
        self.timer = None
        self.refuse(408, f"SubCode=40800. A request must arrive within {self.together.request_timeout_s:g} s.")

    # -- WebSockets ----------------------------------------------------------------------------------------------------

    def _should_upgrade(self) -> bool:
        """Anything else than a WebSocket is not changed to: HTTP/1.1 goes on, as RFC 9110 section 7.8 allows."""
        return is_wanted(Headers(raw=self.headers), self.scope["raw_path"])

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        headers = Headers(raw=self.headers)
        try:
            refuse_head(Request(dict(self.scope)))
            version = self.scope["http_version"]
            refuse_upgrade(self.scope["method"], version, self.scope["raw_path"], headers)
            self.together.app.refuse_pages(headers)
            if not isinstance(self.conn.next_event(), h11.EndOfMessage):
                raise bad_request("A request for a WebSocket has no body.")
        except Fault as fault:
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
        self.stop_timer()
        self._unset_keepalive_if_required()
        self.connections.discard(self)
        self.together.waiting.pop(self, None)
        self.account.close()
        rest = self.conn.trailing_data[0]
        account = getattr(stream, "account", None)  # it has its own
        WebSocketStream(self.transport, stream, self.raw, self.together.websockets, self.loop, account).begin(rest)

    # -- ends ----------------------------------------------------------------------------------------------------------

    def send_400_response(self, msg: str) -> None:
        status, text = self.conn.problem or (400, msg)
        self.refuse(status, f"SubCode={status}00. {text}")

    def refuse(self, status: int, text: str) -> None:
        """Said past h11, which may be in no state to say it; nothing is read or written after it."""
        self.stop_timer()
        if self.transport.is_closing():
            return
        cycle = self.current()
        if cycle is None or cycle.response_complete or not cycle.response_started:
            body = error_xml(status, text).encode()
            head = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", f"Content-Type: {ERROR}"]
            if status == 426:
                head += ["Upgrade: websocket", f"Sec-WebSocket-Version: {VERSION}"]
            head += [f"{name}: {value}" for name, value in SAFE_HEADERS]
            head += [f"Content-Length: {len(body)}", "Connection: close", "", ""]
            self.transport.write("\r\n".join(head).encode() + body)
        if cycle is not None:
            cycle.disconnected = True
            cycle.message_event.set()
        self.transport.close()

    def push_out(self) -> None:
        """Its place is another's at once, whenever the socket is gone."""
        self.account.close()
        self.stop_timer()
        self.connections.discard(self)
        self.together.waiting.pop(self, None)
        self.transport.abort()

    def leave(self) -> None:
        cycle = self.current()
        if cycle is None or cycle.response_complete:
            self.transport.close()
        else:
            cycle.keep_alive = False

    def current(self) -> RequestResponseCycle | None:
        """The request that was last read, if any was; uvicorn's types do not say so."""
        return cast("RequestResponseCycle | None", self.cycle)
