"""Deadlines of calls: those that take too long are ended, with one timer for all of them.

`asyncio.timeout` sets a timer for every call and takes it away again, which for a send on a healthy primary would be a
good part of all that pairing costs. Nearly every call ends long before its time: so it is only written down when that
is, and the timer looks through what is written down. A call that did not hear of its end is told again.
"""

import asyncio
import math
from collections.abc import Callable
from types import TracebackType
from typing import Any

from spillway.paired.shutdown import AGAIN_S


class Deadlines:
    """Deadlines of calls that are under way, each in a task of its own."""

    def __init__(self, late: Callable[[], Exception] = TimeoutError) -> None:
        self.late = late  # what a call raises whose time has come
        self._calls: dict[asyncio.Task[Any], float] = {}  # until when each may take
        self._ended: dict[asyncio.Task[Any], int] = {}  # by us, so many times, and not yet aware of it
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = math.inf  # when it looks

    def limit(self, until_s: float) -> "Limit":
        """`with` it: what is inside ends when that time has come. One at a time for a task."""
        return Limit(self, until_s)

    def end_all(self) -> None:
        """Every call that is under way ends now, as if its time had come."""
        now_s = asyncio.get_running_loop().time()
        for task in self._calls:
            self._calls[task] = now_s
        if self._calls:
            self._set_timer(now_s)

    def close(self) -> None:
        """Nothing is waited for any more, unless a call is still under way: that one ends in its time."""
        if self._timer is not None and not self._calls:
            self._timer.cancel()
            self._timer = None
            self._timer_s = math.inf

    def _set_timer(self, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(at_s, self._check)
        self._timer_s = at_s

    def _check(self) -> None:
        assert self._timer is not None, "only the timer calls this"
        now_s = max(asyncio.get_running_loop().time(), self._timer_s)  # a timer may come a moment early
        self._timer = None
        self._timer_s = math.inf
        for task, until_s in self._calls.items():
            if until_s <= now_s:
                self._ended[task] = self._ended.get(task, 0) + 1
                self._calls[task] = now_s + AGAIN_S
                task.cancel()
        assert self._ended.keys() <= self._calls.keys(), "who was ended is under way until it has left"
        if self._calls:
            self._set_timer(min(self._calls.values()))


class Limit:
    """The time of one call."""

    __slots__ = ("_cancelling", "_deadlines", "_task", "_until_s")

    def __init__(self, deadlines: Deadlines, until_s: float) -> None:
        self._deadlines = deadlines
        self._until_s = until_s

    def __enter__(self) -> None:
        deadlines, task = self._deadlines, asyncio.current_task()
        assert task is not None and task not in deadlines._calls, "one call of a task at a time"
        self._task = task
        self._cancelling = task.cancelling()
        deadlines._calls[task] = self._until_s
        if self._until_s < deadlines._timer_s:
            deadlines._set_timer(self._until_s)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        deadlines, task = self._deadlines, self._task
        del deadlines._calls[task]
        if not deadlines._ended or task not in deadlines._ended:
            return
        ended = deadlines._ended.pop(task)
        is_ours = task.cancelling() <= self._cancelling + ended  # else somebody else wants it to end, too
        for _ in range(ended):
            task.uncancel()
        if is_ours and isinstance(error, asyncio.CancelledError):
            raise deadlines.late()
