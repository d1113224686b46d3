"""The process beside an executor that keeps its locks: `python -m spillway.spark.source.lock_keeper PLACE PID BEGAN`.

Spark ends Python workers that have had no work for a minute, and the locks that they took have to last until a batch is
stored. So a worker hands them over (`KeeperClient`) to this process, which renews them by token. There is one for each
JVM and user. It is started by the first worker that needs it, and ends with the JVM, or when there was nothing to keep
for a while. It has no session and no standard streams of the worker's, so that nothing that ends workers ends it.

Message sessions are received by this process itself (`session_relay`), because their locks go with their links.

A request is a line of JSON over the socket, the answer another. Keys travel there and nowhere else: not on the command
line, not in a file.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from spillway.spark.platform.access import Access
from spillway.spark.platform.connection_pool import ConnectionPool
from spillway.spark.platform.processes import ProcessId, machine, owner
from spillway.spark.source.keeper_place import KeeperPlace, KeeperUnavailable
from spillway.spark.source.lock_renewer import LockBatch, LockRenewer
from spillway.spark.source.session_relay import RECEIVE, relay

MODULE: Final = "spillway.spark.source.lock_keeper"
LOCKS_MAX: Final = 500_000  # of one keeper: about 80 MB
TOKENS_MAX: Final = 10_000  # of one request
REQUEST_BYTES_MAX: Final = 1024 * 1024
REQUEST_S_MAX: Final = 10.0  # for a request to arrive
ANSWER_S_MAX: Final = 60.0  # to release what earlier batches left
LOOK_S: Final = 1.0  # whether the JVM is alive, and the queries
IDLE_S_MAX: Final = 60.0
# A machine that is very busy takes this long to start a Python process; locks last five seconds at the least.
START_S_MAX: Final = 30.0
RETRY_S: Final = 0.05

Request = dict[str, Any]
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


# -- in workers --------------------------------------------------------------------------------------------------------


class KeeperClient:
    """A worker's way to the lock keeper of its JVM."""

    def __init__(self, place: KeeperPlace | None = None) -> None:
        self.place = place or KeeperPlace(owner())

    async def renew(
        self,
        access: Access,
        entity: str,
        tokens: Sequence[uuid.UUID],
        interval_s: float,
        renew_s: float,
        batch: LockBatch | None,
    ) -> None:
        """Hand locks over. When this returns they are renewed, whatever becomes of this process."""
        # A secret that is only named is looked up here: the keeper has the environment of another worker.
        reached = asdict(Access(connection_string=access.resolve(), ca_file=access.ca_file, timeout_s=access.timeout_s))
        for at in range(0, len(tokens), TOKENS_MAX):
            some = [token.hex for token in tokens[at : at + TOKENS_MAX]]
            await self._ask(
                {
                    "do": "keep",
                    "access": reached,
                    "entity": entity,
                    "tokens": some,
                    "interval_s": interval_s,
                    "renew_s": renew_s,
                    "batch": batch,
                }
            )

    async def release_before(self, batch: LockBatch | None) -> int:
        """Release what the keeper has of earlier batches of this holder; the answer is how many messages.

        A keeper that is not running is started: no lock is to run while a Python process starts.
        """
        answer = await self._ask({"do": "release", "batch": batch})
        return int(str(answer.get("released", 0)))

    async def open(self, request: Request, more: bytes) -> Streams:
        """A connection over which the keeper has taken a request that goes on; `more` belongs to it."""
        streams: list[Streams] = []
        await self._ask(request, more, streams)
        return streams[0]

    async def _ask(
        self, request: Request, more: bytes = b"", kept: list[Streams] | None = None
    ) -> Mapping[str, object]:
        """The answer. The connection is closed, or `kept`."""
        until_s = time.monotonic() + START_S_MAX
        while True:
            answer = await self._answer(request, more, kept)
            if answer is not None:
                if "refused" in answer:
                    raise KeeperUnavailable(str(answer["refused"]))
                return answer
            if time.monotonic() > until_s:
                raise KeeperUnavailable(f"the lock keeper does not answer within {START_S_MAX:g} s")
            await asyncio.to_thread(start_keeper, self.place)
            await asyncio.sleep(RETRY_S)

    async def _answer(self, request: Request, more: bytes, kept: list[Streams] | None) -> Mapping[str, object] | None:
        """None where there is no keeper, or it ended before it answered."""
        try:
            reader, writer = await asyncio.open_unix_connection(str(self.place.socket), limit=REQUEST_BYTES_MAX)
        except OSError:
            return None
        is_kept = False
        try:
            writer.write(json.dumps(request).encode() + b"\n" + more)
            line = await asyncio.wait_for(reader.readline(), ANSWER_S_MAX)
            answer = None if not line else dict(json.loads(line))
            if kept is not None and answer == {}:
                kept.append((reader, writer))
                is_kept = True
            return answer
        except (OSError, TimeoutError):
            return None
        finally:
            if not is_kept:
                writer.close()


def start_keeper(place: KeeperPlace) -> None:
    """Start the process, and return when it listens or another one does."""
    place.make()
    command = [sys.executable, "-m", MODULE, str(place.directory.parent), str(place.owner.pid), place.owner.began]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    nothing = subprocess.DEVNULL
    try:
        started = subprocess.Popen(
            command, stdin=nothing, stdout=nothing, stderr=nothing, env=environment, start_new_session=True
        )
        if started.wait(START_S_MAX) != 0:
            raise KeeperUnavailable("the lock keeper cannot be started")
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KeeperUnavailable(f"the lock keeper cannot be started: {error}") from None


# -- the process -------------------------------------------------------------------------------------------------------


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
