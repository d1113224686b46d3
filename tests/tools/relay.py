"""A TCP relay that makes the network longer, not narrower: every chunk is handed on `delay_ms` after it was read.

Chunks are delayed side by side, as on a long cable: many may be under way at once, so a client that pipelines is not
slowed down and one that waits for each answer pays the round trip each time.

In a test: `with Relay("127.0.0.1", broker.port, delay_ms=35) as relay: … relay.port`.
As a process: `python -m tests.tools.relay --to 127.0.0.1:5672 --delay-ms 35` prints `{"port": …}`.
"""

import argparse
import asyncio
import json
import sys
import threading
from collections import deque
from types import TracebackType
from typing import cast

# Bytes read and not yet handed on, per direction: the delay times a fast loopback stays far below it.
UNDER_WAY_BYTES_MAX = 64 * 1024 * 1024


class _Direction(asyncio.Protocol):
    """What is read here is written to `peer` after the delay, in order."""

    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s
        self.peer: _Direction | None = None
        self.transport: asyncio.Transport | None = None
        # b"" stands for the end of the stream, as in a read.
        self.under_way: deque[bytes] = deque()
        self.under_way_bytes = 0
        self.early_count = 0
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance

    def join(self, peer: "_Direction") -> None:
        """The other side has been reached; what came early starts its way now."""
        self.peer = peer
        for _ in range(self.early_count):
            asyncio.get_running_loop().call_later(self.delay_s, self._hand_on)
        self.early_count = 0

    def data_received(self, data: bytes) -> None:
        self._hand_on_later(data)

    def eof_received(self) -> bool:
        self._hand_on_later(b"")
        return True  # the other direction may still have something to say

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        if self.peer is not None:
            asyncio.get_running_loop().call_later(self.delay_s, self.peer.close)

    def close(self) -> None:
        if self.transport is not None and not self.is_lost:
            self.transport.close()

    def _hand_on_later(self, data: bytes) -> None:
        self.under_way.append(data)
        self.under_way_bytes += len(data)
        if self.under_way_bytes > UNDER_WAY_BYTES_MAX and self.transport is not None:
            self.transport.pause_reading()
        if self.peer is None:
            self.early_count += 1
        else:
            asyncio.get_running_loop().call_later(self.delay_s, self._hand_on)

    def _hand_on(self) -> None:
        """One timer a chunk; each takes the oldest chunk, so the order holds whichever timer fires first."""
        data = self.under_way.popleft()
        self.under_way_bytes -= len(data)
        if self.transport is not None and not self.is_lost and self.under_way_bytes <= UNDER_WAY_BYTES_MAX // 2:
            self.transport.resume_reading()
        peer = self.peer
        if peer is None or peer.transport is None or peer.is_lost:
            return
        if data:
            peer.transport.write(data)
        elif peer.transport.can_write_eof():
            peer.transport.write_eof()


class Relay:
    """Listens on a free loopback port, on a thread of its own, and relays to `host:port`."""

    def __init__(self, host: str, port: int, *, delay_ms: float) -> None:
        self.host = host
        self.target_port = port
        self.delay_s = delay_ms / 1000
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._connections: set[_Direction] = set()
        self._pending: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)

    def __enter__(self) -> "Relay":
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self.listen(), self._loop).result(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._shut(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def cut(self) -> None:
        """Break every connection at once, as a lost network would after its time-out."""
        self._loop.call_soon_threadsafe(self._cut)

    def through(self, connection_string: str) -> str:
        """The same connection string, led through the relay."""
        parts = [part for part in connection_string.split(";") if not part.startswith("Endpoint=")]
        return ";".join([f"Endpoint=sb://localhost:{self.port}", *parts])

    async def listen(self, port: int = 0) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accept, "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]

    def _accept(self) -> _Direction:
        near = _Direction(self.delay_s)
        task = asyncio.get_running_loop().create_task(self._reach(near))
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)
        return near

    async def _reach(self, near: _Direction) -> None:
        loop = asyncio.get_running_loop()
        far = _Direction(self.delay_s)
        try:
            await loop.create_connection(lambda: far, self.host, self.target_port)
        except OSError:
            near.close()
            return
        far.join(near)
        near.join(far)
        self._connections = {one for one in self._connections if not one.is_lost} | {near, far}

    def _cut(self) -> None:
        for one in self._connections:
            if one.transport is not None:
                one.transport.abort()

    async def _shut(self) -> None:
        assert self._server is not None
        self._server.close()
        self._cut()
        for task in list(self._pending):
            task.cancel()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()


async def _serve(host: str, port: int, delay_ms: float) -> None:
    relay = Relay(host, port, delay_ms=delay_ms)
    await relay.listen()
    sys.stdout.write(json.dumps({"port": relay.port}) + "\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", required=True, metavar="HOST:PORT")
    parser.add_argument("--delay-ms", type=float, default=35.0, help="added each way")
    chosen = parser.parse_args()
    host, _, port = chosen.to.rpartition(":")
    asyncio.run(_serve(host, int(port), chosen.delay_ms))


if __name__ == "__main__":
    main()
