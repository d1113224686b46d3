"""What an HTTP client hears in a version that serves no administration: so, in words, and not a hung socket."""

import asyncio
from typing import Final, cast

HEAD_BYTES_MAX: Final = 64 * 1024
LINGER_S: Final = 2.0  # for a client that is still sending its body

TEXT: Final = (
    "This version of spillway serves queues over AMQP only: no administration over HTTP, no AMQP over WebSocket. "
    "Queues are made at start, by 'spillway serve --queue NAME' or '--config FILE'."
)
# As the service says errors (wire-contract 11.4): the SDKs' administration clients show the text to their user.
BODY: Final = f"<Error><Code>404</Code><Detail>{TEXT}</Detail></Error>\n"
ANSWER: Final = (
    "HTTP/1.1 404 Not Found\r\n"
    "Content-Type: application/xml; charset=utf-8\r\n"
    f"Content-Length: {len(BODY)}\r\n"
    "Cache-Control: no-store\r\n"
    "Connection: close\r\n"
    "\r\n"
    f"{BODY}"
).encode("ascii")


class Unserved(asyncio.Protocol):
    """Waits for the end of the request's head, answers, and reads on a little so that the answer is not cut off."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.head = b""
        self.is_answered = False
        self.timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self.timer = asyncio.get_running_loop().call_later(LINGER_S, self.transport.abort)

    def data_received(self, data: bytes) -> None:
        if self.is_answered or self.transport is None:
            return
        self.head += data
        if b"\r\n\r\n" in self.head or len(self.head) > HEAD_BYTES_MAX:
            self.is_answered = True
            self.head = b""
            self.transport.write(ANSWER)
            if self.transport.can_write_eof():
                self.transport.write_eof()
            else:
                self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if self.timer is not None:
            self.timer.cancel()
