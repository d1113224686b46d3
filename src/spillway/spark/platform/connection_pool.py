"""The way from a Spark process to namespaces: one event loop in a thread of its own, connections kept between tasks.

Workers are forked and used again for the next batch, and end after about a minute without work. So connections are
kept for as long as the process lives, never counted on, and made anew in a process that was forked.
"""

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from spillway.client import (
    ClientError,
    Connection,
    EntityNotFound,
    Management,
    NotAllowed,
    NoToken,
    Unauthorized,
    connect,
)
from spillway.loops.loop_thread import LoopThread
from spillway.spark.platform.access import Access
from spillway.syphon.depths import Backlogs

T = TypeVar("T")
CLOSE_S: Final = 2.0
Key = tuple[str, str, float, str]  # connection string, certificate file, time-out, purpose


class ConnectionPool:
    """The loop and the connections of one process. Blocking calls from any thread; coroutines run on the loop."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._connections: dict[Key, Connection] = {}
        self._managements: dict[Connection, dict[str, Management]] = {}  # of connections that live
        self._mutexes: dict[Key, asyncio.Lock] = {}
        self._thread = LoopThread("spillway")
        self._thread.start()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """For what is on it already."""
        return self._thread.loop

    def start(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """Begin it on the loop; the answer comes through a future that may be waited for in any thread."""
        return self._thread.submit(work)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do it on the loop and wait. What interrupts the waiting cancels the work."""
        return self._thread.run(work)

    async def connection(self, access: Access, purpose: str = "") -> Connection:
        """The connection to this namespace, made if there is none that lives. `purpose` asks for one of its own."""
        text = access.resolve()
        key = (text, access.ca_file, access.timeout_s, purpose)
        async with self._mutexes.setdefault(key, asyncio.Lock()):
            found = self._connections.get(key)
            if found is None or found.error is not None:
                if found is not None:
                    self._managements.pop(found, None)
                found = await connect(text, ca_file=access.ca_file or None, operation_timeout=access.timeout_s)
                self._connections[key] = found
            return found

    def management(self, connection: Connection, entity: str) -> Management:
        """Requests to this entity, over links that are kept with the connection."""
        kept = self._managements.setdefault(connection, {})
        if entity not in kept:
            kept[entity] = connection.management(entity)
        return kept[entity]

    def close(self) -> None:
        """Say goodbye to every namespace and end the loop."""
        if not self._thread.is_running:
            return
        # The process ends: whoever is at the other end notices anyway.
        with contextlib.suppress(Exception):
            self._thread.run(self._close_all(), CLOSE_S)
        with contextlib.suppress(Exception):
            self._thread.close(CLOSE_S)

    async def _close_all(self) -> None:
        found, self._connections = list(self._connections.values()), {}
        await asyncio.gather(*[connection.close() for connection in found], return_exceptions=True)


_pool: ConnectionPool | None = None
_pool_mutex = threading.Lock()


def connection_pool() -> ConnectionPool:
    """This process's. One that was forked starts with none: its parent's thread did not come along."""
    global _pool
    if _pool is None or _pool.pid != os.getpid():
        with _pool_mutex:
            if _pool is None or _pool.pid != os.getpid():
                _pool = ConnectionPool()
                atexit.register(_pool.close)
    assert _pool.pid == os.getpid(), "a pool is not carried over a fork"
    return _pool


def _after_fork() -> None:
    """The parent may have held the mutex at that moment."""
    global _pool_mutex
    _pool_mutex = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def backlogs_of(secondary: Access, name: str, probes: int) -> Backlogs:
    """The backlog queues of a primary, asked over a connection that is kept. To be run on the pool's loop."""
    return Backlogs(
        secondary.resolve(), secondary.ca_file, name, probes, lambda: connection_pool().connection(secondary)
    )


class NamespaceError(RuntimeError):
    """A namespace said no. The text says which entity, and in plain words why; `cause` is the error that it said."""

    def __init__(self, text: str, cause: ClientError | None = None) -> None:
        super().__init__(text)
        self.cause = cause


def plain(error: ClientError, entity: str, right: str) -> NamespaceError:
    """What a user can do something about, before the service's own words."""
    if isinstance(error, EntityNotFound):
        said = f"there is no entity '{entity}' in this namespace"
    elif isinstance(error, NoToken):
        said = f"'{entity}' cannot be opened"
    elif isinstance(error, Unauthorized):
        said = f"the key or token is not good for '{entity}': it needs the right to {right.lower()}"
    elif isinstance(error, NotAllowed):
        said = f"'{entity}' does not do this"
    else:
        said = f"'{entity}'"
    return NamespaceError(f"{said} ({error})", error)
