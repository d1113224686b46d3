"""The process beside an executor that keeps its locks: `python -m spillway.spark.source.lock_keeper PLACE PID BEGAN`.

Spark ends Python workers that have had no work for a minute, and the locks that they took have to last until a batch is
stored. So a worker hands them over (`keeper_client`) to this process, which renews them by token. There is one for each
JVM and user. It is started by the first worker that needs it, and ends with the JVM, or when there was nothing to keep
for a while. It has no session and no standard streams of the worker's, so that nothing that ends workers ends it.

Message sessions are received by this process itself (`session_relay`), because their locks go with their links.
"""

import asyncio
import json
import os
import socket
import sys
import time
import uuid
from collections.abc import Sequence
from typing import Any, Final

from spillway.spark.platform.access import Access
from spillway.spark.platform.connection_pool import ConnectionPool
from spillway.spark.platform.processes import ProcessId, machine
from spillway.spark.source.keeper_client import Request
from spillway.spark.source.keeper_place import REQUEST_BYTES_MAX, KeeperPlace
from spillway.spark.source.lock_renewer import LockBatch, LockRenewer
from spillway.spark.source.session_relay import RECEIVE, relay

LOCKS_MAX: Final = 500_000  # of one keeper: about 80 MB
REQUEST_S_MAX: Final = 10.0  # for a request to arrive
LOOK_S: Final = 1.0  # whether the JVM is alive, and the queries
IDLE_S_MAX: Final = 60.0


class LockKeeper:
    """Answers requests on a socket, renews what it was handed, and ends when it is of no use."""

    def __init__(
        self,
        place: KeeperPlace,
        pool: ConnectionPool,
        idle_s_max: float = IDLE_S_MAX,
        locks_max: int = LOCKS_MAX,
    ) -> None:
        self._place = place
        self._pool = pool
        self._renewer = LockRenewer(pool)
        self._idle_s_max = idle_s_max
        self._locks_max = locks_max
        self._busy_s = time.monotonic()
        self._is_ending = False

    async def serve(self, listening: socket.socket) -> None:
        """Until the JVM has ended, or there is nothing to keep."""
        server = await asyncio.start_unix_server(self._connected, sock=listening, limit=REQUEST_BYTES_MAX)
        try:
            await self._wait_for_end()
        finally:
            # What a JVM that died has left may be settled yet by others, from its files: it is not released.
            # From here on no request is answered; the socket's name goes first, so that the next keeper can have it.
            self._is_ending = True
            with self._place.mutex():
                self._place.socket.unlink(missing_ok=True)
            server.close()

    async def _wait_for_end(self) -> None:
        releasing = asyncio.create_task(self._renewer.release_orphans())
        while not self._place.owner.has_ended():
            await asyncio.sleep(LOOK_S)
            if releasing.done():
                releasing = asyncio.create_task(self._renewer.release_orphans())
            if self._renewer.count:
                self._busy_s = time.monotonic()
            elif time.monotonic() - self._busy_s > self._idle_s_max:
                return

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._busy_s = time.monotonic()
        try:
            line = await asyncio.wait_for(reader.readline(), REQUEST_S_MAX)
            if line and not self._is_ending:
                request = json.loads(line)
                answer = await self._answer(request)
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
                if request["do"] == RECEIVE and not answer:
                    batch = batch_of(request["batch"])
                    await relay(self._pool, self._renewer, request, batch, reader, writer)
        except (OSError, TimeoutError, EOFError, ValueError, KeyError, TypeError):
            pass  # whoever asked gets no answer, and asks again
        finally:
            writer.close()

    async def _answer(self, request: Request) -> dict[str, object]:
        batch = batch_of(request["batch"])
        if request["do"] == "release":
            return {"released": 0 if batch is None else await self._renewer.release_before(batch)}
        tokens = [uuid.UUID(token) for token in request.get("tokens", [])]
        if self._renewer.count + len(tokens) > self._locks_max:
            return {"refused": f"the lock keeper renews at most {self._locks_max:,} locks"}
        if request["do"] == RECEIVE:
            return {}
        access = Access(**request["access"])
        self._renewer.renew(access, request["entity"], tokens, request["interval_s"], request["renew_s"], batch)
        assert self._renewer.count <= self._locks_max, "what would be too much was refused"
        return {}


def batch_of(told: Any) -> LockBatch | None:
    """A batch as it came through the socket."""
    if told is None:
        return None
    holder, (began, number), planner = told
    return LockBatch(holder, (began, number), None if planner is None else ProcessId(*planner))


def main(arguments: Sequence[str]) -> None:
    """Listen, then go on in a process that is nobody's child: whoever started this one need not wait for it."""
    under, pid, began = arguments
    place = KeeperPlace(ProcessId(machine(), int(pid), began), under)
    place.make()
    with place.mutex():
        listening = place.listen()
    if listening is None or os.fork():
        os._exit(0)
    pool = ConnectionPool()
    pool.run(LockKeeper(place, pool).serve(listening))
    pool.close()


if __name__ == "__main__":
    main(sys.argv[1:])
