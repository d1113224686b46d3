"""One event loop and the thread that it runs on, in the process that started it.

A fork has none of its parent's threads. So there every call is refused, instead of waiting for ever for a thread that
is not there or writing into the parent's connections; and everything of the parent is kept as it is until the fork
ends.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from spillway.loops.event_loop import ForkableLoop, new_loop

T = TypeVar("T")


class LoopThread:
    """Started when it is first needed, or by `start`. Its methods may be called from any thread but its own."""

    def __init__(self, name: str, *, if_stopped: str = "", if_on_loop: str = "") -> None:
        """`name` is the thread's. The texts are what a call is refused with after the end, and on the loop itself."""
        self.name = name
        self.error: SystemExit | None = None  # what ended the loop although nobody had asked for it
        self._if_stopped = if_stopped or f"the event loop of {name} has stopped"
        self._if_on_loop = if_on_loop or f"{name} was called from its own event loop, and would wait for itself"
        self._mutex = threading.RLock()  # what is thrown away in the middle of a call may make one of its own
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._is_stopped = False
        self._is_of_the_parent = False

    # -- its life --------------------------------------------------------------------------------------------------

    def start(self) -> bool:
        """Whether it was started now; it may be running already."""
        with self._mutex:
            self._check_usable()
            if self._loop is not None:
                return False
            self._begin()
            return True

    def _begin(self) -> asyncio.AbstractEventLoop:
        """Under the mutex."""
        loop = new_loop()
        thread = threading.Thread(target=self._work, args=(loop,), name=self.name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # there cannot be another thread: nothing has begun
            loop.close()
            raise
        self._loop, self._thread = loop, thread
        _LIVING.add(self)
        return loop

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            loop.run_forever()
        except SystemExit as error:  # of a task or callback: all others are the loop's to report
            self.error = error
            self._is_stopped = True
            loop.run_until_complete(_see_out())  # whoever waits for something is told that it is cancelled
            loop.close()
        finally:
            _LIVING.discard(self)

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The running loop, for who is on it."""
        with self._mutex:
            self._check_usable()
            return self._loop or self._begin()

    @property
    def thread_id(self) -> int:
        assert self._thread is not None and self._thread.ident is not None, "started"
        return self._thread.ident

    @property
    def is_running(self) -> bool:
        """Whether it was started, in this process, and nobody has ended it."""
        return self._loop is not None and not self._is_stopped and not self._is_of_the_parent

    def stop(self, timeout_s: float) -> None:
        """The loop stops where it is, and what is under way stays there: for the end of the process."""
        with self._mutex:
            if not self.is_running:
                return
            assert self._loop is not None and self._thread is not None, "running"
            self._is_stopped = True
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Cancel what is under way, see it out, and end the thread. TimeoutError if that takes longer."""
        with self._mutex:
            if not self.is_running:
                return
            assert self._loop is not None and self._thread is not None, "running"
            self._is_stopped = True
            ending = asyncio.run_coroutine_threadsafe(_see_out(), self._loop)
        try:
            ending.result(timeout_s)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise TimeoutError(f"the event loop of {self.name} does not stop")
        self._loop.close()

    def abandon(self) -> None:
        """In the fork, where nobody else holds the mutex any more."""
        self._mutex = threading.RLock()
        self._is_of_the_parent = True
        if isinstance(self._loop, ForkableLoop):
            self._loop.abandon()

    # -- calls -----------------------------------------------------------------------------------------------------

    def submit(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Begin it on the loop; the answer comes through a future that may be waited for in any other thread."""
        try:
            with self._mutex:
                self._check_usable()
                return asyncio.run_coroutine_threadsafe(work, self._loop or self._begin())
        except RuntimeError:
            work.close()
            raise

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Do it on the loop and wait. What interrupts the waiting cancels the work."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError(self._if_on_loop)
        future = self.submit(work)
        try:
            return future.result(timeout_s)
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Callable[[], T]) -> T:
        """Something that is no coroutine but belongs to the loop's thread."""

        async def called() -> T:
            return function()

        return self.run(called())

    def _check_usable(self) -> None:
        if self._is_of_the_parent:
            raise RuntimeError(f"the event loop of {self.name} was started before this process was forked")
        if self._is_stopped:
            raise RuntimeError(self._if_stopped) from self.error


async def _see_out() -> None:
    """As `asyncio.run` ends: tasks are cancelled and waited for, then asynchronous generators and threads."""
    loop = asyncio.get_running_loop()
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    for ended in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(ended, Exception):
            loop.call_exception_handler({"message": "a task failed when the loop was closed", "exception": ended})
    await loop.shutdown_asyncgens()
    await loop.shutdown_default_executor()


_LIVING: Final[set[LoopThread]] = set()  # whose threads run
_ABANDONED: Final[list[LoopThread]] = []  # kept, or calls of the parent would be ended here


def _after_fork() -> None:
    """In the child, which has no thread but the one that forked."""
    for living in _LIVING:
        living.abandon()
    _ABANDONED.extend(_LIVING)
    _LIVING.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
