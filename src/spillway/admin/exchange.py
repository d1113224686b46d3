"""One request over an HTTP connection and its answer, as an ASGI application reads the one and says the other."""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

import h11
from starlette.types import Message, Scope

BODY_HELD_BYTES_MAX: Final = 64 * 1024  # of a body that the application has not asked for: no more is read then
# In every answer: a browser takes none of them for a script or a page.
SAFE_HEADERS: Final = (("X-Content-Type-Options", "nosniff"),)
SAFE_LINES: Final = tuple((name.lower().encode(), value.encode()) for name, value in SAFE_HEADERS)


class FlowControl:
    """Whether we read what a client sends, and whether it reads what it is sent."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.is_reading = True
        self.writable = asyncio.Event()
        self.writable.set()

    def pause_reading(self) -> None:
        if self.is_reading:
            self.is_reading = False
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if not self.is_reading:
            self.is_reading = True
            self.transport.resume_reading()


class Exchange:
    """`on_complete` is called when the last of the answer was said."""

    def __init__(self, scope: Scope, conn: h11.Connection, flow: FlowControl, on_complete: Callable[[], None]) -> None:
        self.scope = scope
        self.conn = conn
        self.flow = flow
        self.on_complete = on_complete
        self.keeps_alive = True  # the connection, for another request
        self.is_over = False  # nobody reads an answer any more
        self.is_continue_awaited = conn.they_are_waiting_for_100_continue
        self.body = bytearray()  # what has come of it and was not asked for yet
        self.has_more_body = True
        self.is_started = False  # the answer
        self.is_complete = False
        self.changed = asyncio.Event()

    # -- what the connection tells it --------------------------------------------------------------------------------

    def accept_body(self, data: bytes) -> None:
        self.body += data
        if len(self.body) > BODY_HELD_BYTES_MAX:
            self.flow.pause_reading()
        self.changed.set()

    def end_body(self) -> None:
        self.has_more_body = False
        self.changed.set()

    def end(self) -> None:
        """The client has gone, or was refused: the application hears of it when it next asks."""
        self.is_over = self.is_over or not self.is_complete
        self.changed.set()

    # -- what the application calls ----------------------------------------------------------------------------------

    async def receive(self) -> Message:
        if self.is_continue_awaited and not self.flow.transport.is_closing():
            self.is_continue_awaited = False
            self._write(h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue"))
        if not self.is_over and not self.is_complete:
            self.flow.resume_reading()
            await self.changed.wait()
            self.changed.clear()
        if self.is_over or self.is_complete:
            return {"type": "http.disconnect"}
        body, self.body = bytes(self.body), bytearray()
        return {"type": "http.request", "body": body, "more_body": self.has_more_body}

    async def send(self, message: Message) -> None:
        if not self.is_over:
            await self.flow.writable.wait()
        if self.is_over:
            return
        if not self.is_started:
            assert message["type"] == "http.response.start", "an answer begins with its head"
            self._say_head(message)
        else:
            assert message["type"] == "http.response.body" and not self.is_complete, "a head, a body, and no more"
            self._say_body(message)

    def _say_head(self, message: Message) -> None:
        self.is_started = True
        self.is_continue_awaited = False
        status = message["status"]
        headers = [*SAFE_LINES, *message.get("headers", ())]
        self._write(h11.Response(status_code=status, headers=headers, reason=HTTPStatus(status).phrase.encode()))

    def _say_body(self, message: Message) -> None:
        self._write(h11.Data(data=b"" if self.scope["method"] == "HEAD" else message.get("body", b"")))
        if message.get("more_body", False):
            return
        self.is_complete = True
        self.changed.set()
        self._write(h11.EndOfMessage())
        if self.conn.our_state is h11.MUST_CLOSE or not self.keeps_alive:
            self.flow.transport.close()
        self.on_complete()

    def _write(self, event: h11.InformationalResponse | h11.Response | h11.Data | h11.EndOfMessage) -> None:
        self.flow.transport.write(self.conn.send(event) or b"")
