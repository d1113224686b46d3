"""Ending what calls the SDK: tasks, also those that did not hear of it, and what the SDK gave us.

`asyncio.wait_for` of Python 3.11, under every read of the SDK, loses a cancellation that comes in the same moment as
what it waits for. A task that has lost one goes on as if nothing had been: so it is told again.
"""

import asyncio
import contextlib
import traceback
from typing import Any, Final

CLOSE_S: Final = 5.0  # for a link or a connection to say goodbye
AGAIN_S: Final = CLOSE_S + 1.0  # longer than a task may take to clean up


async def end(*tasks: asyncio.Task[Any]) -> None:
    """Cancel them, and return when all have ended; who cancels this meanwhile waits for that too."""
    left = {task for task in tasks if not task.done()}
    interruption: asyncio.CancelledError | None = None
    while left:
        for task in left:
            task.cancel()
        try:
            await asyncio.wait(left, timeout=AGAIN_S)
        except asyncio.CancelledError as error:
            interruption = error
        left = {task for task in left if not task.done()}
    for task in tasks:
        assert task.done(), "nobody goes on before all have ended"
        if not task.cancelled():
            task.exception()  # what it ended with is no longer of interest
    if interruption is not None:
        raise interruption


def release_locals(error: BaseException) -> None:
    """Let go of what the functions held that an error came through: the SDK's hold the error in turn, so that messages
    and connections would wait for the garbage collector, and be kept for as long as somebody keeps the error."""
    waiting, seen = [error], set[int]()
    while waiting:
        each = waiting.pop()
        if id(each) not in seen:
            seen.add(id(each))
            traceback.clear_frames(each.__traceback__)
            names = ("__cause__", "__context__", "inner_exception", "exc_value")  # the last two are the SDK's
            others = [getattr(each, name, None) for name in names]
            waiting += [other for other in others if isinstance(other, BaseException)]


def stream_of(handler: Any) -> asyncio.StreamWriter | None:
    """The stream under a handler of the SDK, which is what its senders and receivers make for a connection. None if it
    has none or keeps it elsewhere: nothing in the SDK's interface leads there, so nothing may depend on it."""
    stream = handler
    for name in ("_connection", "_transport", "writer"):
        stream = getattr(stream, name, None)
    return stream if isinstance(stream, asyncio.StreamWriter) else None


class HandlerWatch:
    """Knows the sockets of a sender of the SDK. The sender itself forgets a handler whose opening was cut short, and a
    handler forgets the stream of a connection that died: either socket would be open until garbage is collected."""

    __slots__ = ("handler", "sdk", "stream")

    def __init__(self, sdk: Any) -> None:
        self.sdk = sdk
        self.handler: Any = None
        self.stream: asyncio.StreamWriter | None = None  # of the handler, once it is connected
        if hasattr(sdk, "_create_handler"):
            sdk._create_handler = self._create

    def on_connected(self) -> None:
        self.stream = stream_of(self.handler)

    async def close(self) -> None:
        try:
            await close_quietly(self.sdk)
        finally:
            self._close_streams()
            with contextlib.suppress(AttributeError):
                del self.sdk._create_handler  # ours, so that no cycle is left for the garbage collector

    def _create(self, *arguments: Any, **options: Any) -> None:
        self._close_streams()
        type(self.sdk)._create_handler(self.sdk, *arguments, **options)
        self.handler = self.sdk._handler

    def _close_streams(self) -> None:
        for stream in (self.stream, stream_of(self.handler)):
            if stream is not None:
                stream.close()
        self.handler = self.stream = None


async def close_quietly(closable: Any) -> None:
    """A peer that has fallen silent does not keep us from leaving. Of what the SDK gave us the socket is closed too,
    which it leaves to the garbage collector if the connection is dead."""
    stream = stream_of(getattr(closable, "_handler", None))
    try:
        with contextlib.suppress(Exception):
            async with asyncio.timeout(CLOSE_S):
                await closable.close()
    finally:
        if stream is not None:
            stream.close()
