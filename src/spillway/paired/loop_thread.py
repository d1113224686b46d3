"""The event loop of blocking programs: one for the process, on a thread of its own, and what a fork makes of it.

A fork has none of its parent's threads, but all of its connections. So it gets a loop of its own, and what was made
before says so instead of waiting for ever for a thread that is not there, or writing into the parent's connections.
"""

import asyncio
import atexit
import concurrent.futures
import os
import selectors
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final, Self, TypeVar

T = TypeVar("T")
STOP_S: Final = 5.0


class _EventLoop(asyncio.SelectorEventLoop):
    """One that a fork can leave alone: connections and the selector's kernel object are shared with the parent."""

    def __init__(self) -> None:
        self._own_selector = selectors.DefaultSelector()
        self.is_abandoned = False
        super().__init__(self._own_selector)

    def abandon(self) -> None:
        """In the fork: whatever is thrown away here touches nothing of the parent's."""
        self.is_abandoned = True
        self._own_selector.close()

    def is_closed(self) -> bool:
        return self.is_abandoned or super().is_closed()


class LoopThread:
    """One for the process, started when it is first needed."""

    def __init__(self) -> None:
        self.forks = 0  # how often the process was forked on the way here: what was made earlier is not ours
        self._abandoned: list[asyncio.AbstractEventLoop] = []  # kept, or calls of the parent would be ended here
        self._begin()

    def _begin(self) -> None:
        self._mutex = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._is_stopped = False

    def after_fork(self) -> None:
        """In the child, which has no thread but the one that forked."""
        if self._loop is not None:
            self._abandoned.append(self._loop)
            if isinstance(self._loop, _EventLoop):
                self._loop.abandon()
        self.forks += 1
        self._begin()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            loop = self._running()
        except RuntimeError:
            coroutine.close()
            raise
        future = asyncio.run_coroutine_threadsafe(coroutine, loop)
        try:
            return future.result()
        except (KeyboardInterrupt, concurrent.futures.CancelledError):
            future.cancel()
            raise

    def call(self, function: Callable[[], T]) -> T:
        """Something that is no coroutine but belongs to the loop's thread."""

        async def called() -> T:
            return function()

        return self.run(called())

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._mutex:
            if self._is_stopped:
                raise RuntimeError(
                    "spillway.paired.sync: the interpreter is ending and the library has stopped. Close factories "
                    "before, or in an atexit handler that is registered after the first factory was made"
                )
            if self._loop is None:
                self._loop = _EventLoop() if hasattr(os, "fork") else asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="spillway.paired", daemon=True)
                self._thread.start()
                atexit.register(self._stop)
            if threading.current_thread() is self._thread:
                raise RuntimeError("spillway.paired.sync was called from its own event loop; use spillway.paired there")
            return self._loop

    def _stop(self) -> None:
        with self._mutex:
            if self._loop is None or self._thread is None or self._is_stopped:
                return
            self._is_stopped = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_S)


LOOP: Final = LoopThread()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=LOOP.after_fork)


class Front:
    """What has its other half on the loop, and only in the process that made it."""

    _forks: int

    def __new__(cls, *positional: Any, **options: Any) -> Self:
        front = super().__new__(cls)
        front._forks = LOOP.forks
        return front

    @property
    def is_of_the_parent(self) -> bool:
        return self._forks != LOOP.forks

    def check_process(self) -> None:
        if self.is_of_the_parent:
            raise RuntimeError(
                f"this {type(self).__name__} was made before this process was forked: its connections are those of the "
                "parent. Make factories, and what comes of them, after the fork"
            )

    def call(self, function: Callable[[], T]) -> T:
        self.check_process()
        return LOOP.call(function)
