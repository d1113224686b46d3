"""HTTP/1.1 on a connection that the listener has sniffed: uvicorn's protocol class, with the limits of ours.

h11 is lenient where two parsers may differ (a folded header line, a bare line feed); we are not (B16). It waits as
long as a client likes for the rest of a request; we do not.
"""

import asyncio
import re
from typing import Any, Final, cast

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from spillway.admin.app import ERROR, Administration
from spillway.admin.atom import error_xml

CONNECTIONS_MAX: Final = 500  # administrators of a namespace at the same time
HEAD_BYTES_MAX: Final = 64 * 1024
REQUEST_TIMEOUT_S: Final = 20.0  # for a whole request to arrive
KEEP_ALIVE_S: Final = 120
END_OF_HEAD: Final = b"\r\n\r\n"
AMBIGUOUS: Final = re.compile(rb"(?<!\r)\n|\n[ \t]")  # a line that does not end, or goes on in the next
REASONS: Final = {400: "Bad Request", 408: "Request Timeout", 431: "Request Header Fields Too Large"}


class Connections:
    """All HTTP connections of a namespace."""

    def __init__(self, app: Administration, request_timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        self.request_timeout_s = request_timeout_s
        self.state = ServerState()
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

    def accept(self) -> asyncio.Protocol:
        return HttpConnection(self.config, self.state, self.request_timeout_s)

    def stop(self) -> None:
        for connection in list(self.state.connections):
            assert isinstance(connection, HttpConnection), "every connection here is ours"
            connection.leave()


class HttpConnection(H11Protocol):
    def __init__(self, config: Config, state: ServerState, request_timeout_s: float) -> None:
        super().__init__(config, state, {})
        self.request_timeout_s = request_timeout_s
        self.head = b""  # of a request that is not there whole
        self.timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS_MAX:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self.timer is None:
            self.timer = self.loop.call_later(self.request_timeout_s, self.on_late)
        if self.conn.their_state is h11.IDLE:
            self.head += data
            end = self.head.find(END_OF_HEAD)
            if AMBIGUOUS.search(self.head if end < 0 else self.head[: end + 2]):
                self.refuse(400, "A header line must end with CR LF, and must not go on in the next.")
                return
            if (len(self.head) if end < 0 else end) > HEAD_BYTES_MAX:
                self.refuse(431, f"The head of a request has at most {HEAD_BYTES_MAX} bytes.")
                return
            if end < 0:
                return
            data, self.head = self.head, b""
        super().data_received(data)
        if self.conn.their_state is not h11.SEND_BODY:
            self.stop_timer()

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def on_late(self) -> None:
        self.timer = None
        self.refuse(408, f"A request must arrive within {self.request_timeout_s:g} s.")

    def _should_upgrade(self) -> bool:
        """The application says that it does not; uvicorn would advise the operator to install something."""
        return False

    def send_400_response(self, msg: str) -> None:
        self.refuse(400, msg)

    def refuse(self, status: int, text: str) -> None:
        """Said past h11, which may be in no state to say it; nothing is read or written after it."""
        self.stop_timer()
        if self.transport.is_closing():
            return
        cycle = self.current()
        if cycle is None or cycle.response_complete or not cycle.response_started:
            body = error_xml(status, f"SubCode={status}00. {text}").encode()
            head = f"HTTP/1.1 {status} {REASONS[status]}\r\nContent-Type: {ERROR}\r\nContent-Length: {len(body)}\r\n"
            self.transport.write(head.encode() + b"Connection: close\r\n\r\n" + body)
        if cycle is not None:
            cycle.disconnected = True
            cycle.message_event.set()
        self.transport.close()

    def leave(self) -> None:
        cycle = self.current()
        if cycle is None or cycle.response_complete:
            self.transport.close()
        else:
            cycle.keep_alive = False

    def current(self) -> RequestResponseCycle | None:
        """The request that was last read, if any was; uvicorn's types do not say so."""
        return cast("RequestResponseCycle | None", self.cycle)
