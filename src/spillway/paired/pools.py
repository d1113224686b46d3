"""All pools of senders of a namespace, by entity. Senders that nobody has used for a while are closed, and those of an
entity when its last `MessageSender` is."""

import asyncio
import math
from collections.abc import Callable
from typing import Final

from azure.servicebus.aio import ServiceBusSender

from spillway.paired.pool import ErrorJudge, SenderPool

IDLE_S: Final = 60.0  # a sender that nobody has used for so long is closed
IDLE_MAX: Final = 32  # senders of a namespace that nobody uses; the oldest make room


class SenderPools:
    """The pools of one namespace."""

    def __init__(
        self,
        make_sender: Callable[[str], ServiceBusSender],
        senders_per_entity: int,
        namespace: ErrorJudge,
    ) -> None:
        self.make_sender = make_sender
        self.senders_per_entity = senders_per_entity
        self.namespace = namespace
        self.by_path: dict[str, SenderPool] = {}
        self._users: dict[str, int] = {}  # `MessageSender`s that are open, by entity
        self._timer: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()

    def at(self, path: str) -> SenderPool:
        key = path.strip("/").lower()
        pool = self.by_path.get(key)
        if pool is None:
            pool = self.by_path[key] = self.reserved(path, self.senders_per_entity, self._on_idle)
        return pool

    def reserved(self, path: str, senders_max: int, on_idle: Callable[[], None] = lambda: None) -> SenderPool:
        """A pool of its own, for whoever closes it: a ping must not wait behind sends."""
        return SenderPool(path, lambda: self.make_sender(path), senders_max, self.namespace, on_idle)

    def open(self, path: str) -> None:
        """Another `MessageSender` sends to this entity."""
        key = path.strip("/").lower()
        self._users[key] = self._users.get(key, 0) + 1

    def leave(self, path: str) -> None:
        """A `MessageSender` that was opened is closed; with the last one go the senders that nobody uses."""
        key = path.strip("/").lower()
        assert self._users.get(key, 0) > 0, "who leaves was opened, and leaves once"
        self._users[key] -= 1
        if self._users[key] == 0:
            del self._users[key]
            if key in self.by_path:
                self.by_path[key].close_idle(math.inf)

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await asyncio.gather(*(pool.close() for pool in self.by_path.values()))

    @property
    def idle_count(self) -> int:
        return sum(len(pool.idle) for pool in self.by_path.values())

    def _on_idle(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(IDLE_S / 2, self._sweep)
        if len(self.by_path) * self.senders_per_entity > IDLE_MAX and self.idle_count > IDLE_MAX:
            pools = [pool for pool in self.by_path.values() if pool.idle]
            oldest = min(pools, key=lambda pool: pool.idle[0].idle_since_s)
            oldest.close_idle(oldest.idle[0].idle_since_s)

    def _sweep(self) -> None:
        self._timer = None
        before_s = asyncio.get_running_loop().time() - IDLE_S
        left = [pool.close_idle(before_s) for pool in self.by_path.values()]
        for key in [key for key, pool in self.by_path.items() if pool.is_unused and key not in self._users]:
            del self.by_path[key]
        if any(left):
            self._timer = asyncio.get_running_loop().call_later(IDLE_S / 2, self._sweep)
