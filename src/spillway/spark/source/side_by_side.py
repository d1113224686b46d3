"""Many small things at a time on one loop, such as message sessions, handed out in pieces of a good size.

A row is cheap and a piece is not: messages of many sessions go on together. Those of one session stay in their order,
because one worker brings them.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from spillway.client import ReceivedMessage

PIECE: Final = 500  # messages that are worth handing out
FIRST_PIECE: Final = 10  # where it is not known whether anybody wants more
FIRST_WORKERS: Final = 4
GATHER_S: Final = 0.05  # and how long fewer wait for others
READY_BYTES_MAX: Final = 8 * 1024 * 1024  # that nobody has taken yet: then workers wait


class SideBySide:
    """`at_a_time` workers that bring messages with `put`, until each of them has returned.

    An error of one ends the others. It is raised by `next` after what they had brought was taken. One that
    `is_growing` begins with few of them and small pieces, and has twice as many with each piece that is asked for.
    """

    def __init__(
        self, worker: Callable[[], Coroutine[Any, Any, None]], at_a_time: int, is_growing: bool = False
    ) -> None:
        self._worker = worker
        self._at_a_time = at_a_time
        self._workers = min(at_a_time, FIRST_WORKERS) if is_growing else at_a_time  # that may be started so far
        self._piece = FIRST_PIECE if is_growing else PIECE
        self._started = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stopped = False
        self._ready: list[ReceivedMessage] = []
        self._ready_bytes = 0
        self._puts = 0
        self._changed = asyncio.Event()
        self._taken = asyncio.Event()
        self._error: BaseException | None = None

    async def put(self, messages: list[ReceivedMessage]) -> None:
        """Hand messages over, as soon as there is room for them."""
        while self._is_piece:
            self._taken.clear()
            await self._taken.wait()
        self.put_now(messages)

    def put_now(self, messages: list[ReceivedMessage]) -> None:
        """Whether there is room or not."""
        if not messages:
            return
        is_first = not self._ready
        self._ready += messages
        self._ready_bytes += sum(len(message.raw) for message in messages)
        self._puts += 1
        if is_first or self._is_piece:  # whoever waits for a piece is not woken by each of its parts
            self._changed.set()

    @property
    def _is_piece(self) -> bool:
        """Whether enough is ready to be handed out."""
        return len(self._ready) >= self._piece or self._ready_bytes >= READY_BYTES_MAX

    async def next(self) -> list[ReceivedMessage]:
        """What was brought; none when all workers are done."""
        self._start()
        while self._tasks and not self._is_piece:
            self._changed.clear()
            puts = self._puts
            try:
                async with asyncio.timeout(GATHER_S if self._ready else None):
                    await self._changed.wait()
            except TimeoutError:
                if self._ready and self._puts == puts:  # nobody has brought anything meanwhile
                    break
        if not self._ready and self._error is not None:
            raise self._error
        self._piece = min(PIECE, self._piece * 2)
        self._workers = min(self._at_a_time, self._workers * 2)
        return self.drain()

    def drain(self) -> list[ReceivedMessage]:
        """What was brought and not taken yet."""
        ready, self._ready, self._ready_bytes = self._ready, [], 0
        self._taken.set()
        return ready

    def discard(self, is_dropped: Callable[[ReceivedMessage], bool]) -> list[ReceivedMessage]:
        """Some of it is of no use any more; the answer is which."""
        dropped = [message for message in self._ready if is_dropped(message)]
        self.put_now([message for message in self.drain() if not is_dropped(message)])
        return dropped

    async def stop(self) -> None:
        """End the workers and wait until they have ended."""
        self._is_stopped = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self) -> None:
        while self._started < self._workers and not self._is_stopped and self._error is None:
            self._started += 1
            task = asyncio.get_running_loop().create_task(self._worker())
            self._tasks.add(task)
            task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and self._error is None:
            self._error = error
            for other in self._tasks:
                other.cancel()
        self._changed.set()
