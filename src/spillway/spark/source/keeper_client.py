"""A worker's way to the lock keeper beside its executor (`lock_keeper`), which the first worker starts.

A request is a line of JSON over the keeper's socket, the answer another. Keys travel there and nowhere else: not on the
command line, not in a file.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from spillway.spark.platform.access import Access
from spillway.spark.platform.processes import owner
from spillway.spark.source.keeper_place import REQUEST_BYTES_MAX, KeeperPlace, KeeperUnavailable
from spillway.spark.source.lock_renewer import LockBatch

KEEPER: Final = "spillway.spark.source.lock_keeper"  # the module that is run
TOKENS_MAX: Final = 10_000  # of one request
ANSWER_S_MAX: Final = 60.0  # to release what earlier batches left
# A machine that is very busy takes this long to start a Python process; locks last five seconds at the least.
START_S_MAX: Final = 30.0
RETRY_S: Final = 0.05

Request = dict[str, Any]
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


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
    command = [sys.executable, "-m", KEEPER, str(place.directory.parent), str(place.owner.pid), place.owner.began]
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
