"""Calls that take too long are ended, with one timer for all of them.

`asyncio.timeout` sets a timer for every call and takes it away again, which for a send on a healthy primary would be a
good part of all that pairing costs. Nearly every call ends long before its time: so it is only written down when that
is, and the timer looks through what is written down. A call that did not hear of its end is told again.
"""

import asyncio
import math
from collections.abc import Coroutine
from typing import Any, TypeVar

from spillway.paired.shutdown import AGAIN_S

T = TypeVar("T")


class Deadlines:
    def __init__(self) -> None:
        self._calls: dict[asyncio.Task[Any], float] = {}  # until when each may take
        self._ended: dict[asyncio.Task[Any], int] = {}  # by us, so many times, and not yet aware of it
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = math.inf  # when it looks

    async def limit(self, call: Coroutine[Any, Any, T], until_s: float) -> T:
        """Its result, or `TimeoutError` when that time has come. For one call of a task at a time."""
        task = asyncio.current_task()
        assert task is not None and task not in self._calls, "one call of a task at a time"
        cancelling = task.cancelling()
        self._calls[task] = until_s
        if until_s < self._timer_s:
            self._set_timer(until_s)
        try:
            return await call
        except asyncio.CancelledError:
            if task in self._ended and task.cancelling() <= cancelling + self._ended[task]:
                raise TimeoutError from None
            raise  # somebody else wants it to end
        finally:
            del self._calls[task]
            if self._ended and task in self._ended:
                for _ in range(self._ended.pop(task)):
                    task.uncancel()

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
        self._timer = asyncio.get_running_loop().call_at(at_s, self._look)
        self._timer_s = at_s

    def _look(self) -> None:
        assert self._timer is not None
        now_s = max(asyncio.get_running_loop().time(), self._timer_s)  # a timer may come a moment early
        self._timer = None
        self._timer_s = math.inf
        for task, until_s in self._calls.items():
            if until_s <= now_s:
                self._ended[task] = self._ended.get(task, 0) + 1
                self._calls[task] = now_s + AGAIN_S
                task.cancel()
        if self._calls:
            self._set_timer(min(self._calls.values()))
