"""The event loop of blocking programs: one for the process, and what a fork makes of it.

A fork gets a loop of its own, and what was made before says so instead of waiting for ever for a thread that is not
there, or writing into the parent's connections.
"""

import atexit
import os
from collections.abc import Callable, Coroutine
from typing import Any, Final, Self, TypeVar

from spillway.loops.loop_thread import LoopThread

T = TypeVar("T")
STOP_S: Final = 5.0


class ProcessLoop:
    """The loop of this process, started when it is first needed."""

    def __init__(self) -> None:
        self.forks = 0  # how often the process was forked on the way here: what was made earlier is not ours
        self._begin()

    def _begin(self) -> None:
        self._thread = LoopThread(
            "spillway.paired",
            if_stopped="spillway.paired.sync: the interpreter is ending and the library has stopped. Close factories "
            "before, or in an atexit handler that is registered after the first factory was made",
            if_on_loop="spillway.paired.sync was called from its own event loop; use spillway.paired there",
        )

    def after_fork(self) -> None:
        """In the child, which has no thread but the one that forked."""
        self.forks += 1
        self._begin()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            thread = self._running()
        except RuntimeError:
            coroutine.close()
            raise
        return thread.run(coroutine)

    def call(self, function: Callable[[], T]) -> T:
        """Something that is no coroutine but belongs to the loop's thread."""
        return self._running().call(function)

    def _running(self) -> LoopThread:
        if self._thread.start():
            atexit.register(self._thread.stop, STOP_S)
        return self._thread


LOOP: Final = ProcessLoop()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=LOOP.after_fork)


class BlockingFront:
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
