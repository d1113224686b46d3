"""The bound on messages in flight: how much of a factory's may wait in memory at a time."""

import asyncio
from collections import deque


class InFlight:
    """One bound for everything that waits in memory, sends in flight and sends held back (contract G10 to G12):
    `count_max` messages of together `bytes_max` bytes; one that is larger than that by itself may go alone.

    Whoever comes when it is full waits for its turn, in order, as long as its own time allows. So a producer that is
    faster than the broker is slowed down instead of filling the memory.
    """

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self.count_max = count_max
        self.bytes_max = bytes_max
        self.count = 0
        self.bytes = 0
        self._waiting: deque[tuple[asyncio.Future[None], int, int]] = deque()

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def enter_now(self, count: int, size_bytes: int) -> bool:
        """Whether there was room at once, and nobody waiting for it."""
        if self._waiting or not (self.count == 0 or self._fits(count, size_bytes)):
            return False
        self.count += count
        self.bytes += size_bytes
        return True

    async def enter(self, count: int, size_bytes: int) -> None:
        if self.enter_now(count, size_bytes):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((turn, count, size_bytes))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave(count, size_bytes)  # it had its turn in the moment it gave up
            else:
                self._waiting = deque(each for each in self._waiting if each[0] is not turn)
                self._admit()
            raise

    def leave(self, count: int, size_bytes: int) -> None:
        self.count -= count
        self.bytes -= size_bytes
        assert self.count >= 0 and self.bytes >= 0, "what leaves has entered"
        if self._waiting:
            self._admit()

    def _admit(self) -> None:
        while self._waiting and self._fits(self._waiting[0][1], self._waiting[0][2]):
            turn, count, size_bytes = self._waiting.popleft()
            if not turn.done():
                self.count += count
                self.bytes += size_bytes
                turn.set_result(None)
        assert self.count > 0 or not self._waiting, "nobody waits for room while nothing is in flight"

    def _fits(self, count: int, size_bytes: int) -> bool:
        if self.count == 0:
            return True
        return self.count + count <= self.count_max and self.bytes + size_bytes <= self.bytes_max
