"""A WebSocket as a transport, over a real socket on both loops: what it reads, when, and what it keeps."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import cast

import pytest
import uvloop

from spillway.admin.websocket import LINGERING_MAX, MESSAGE_BYTES, WebSockets, WebSocketStream
from spillway.model.budget import lone_account
from tests.hostile.websocket import BINARY, CLOSE, PING, TEXT, frame

KERNEL_BYTES = 64 * 1024


class Reader(asyncio.Protocol):
    """The one above: keeps what comes."""

    def __init__(self) -> None:
        self.shares: list[bytes] = []
        self.ends: list[str] = []
        self.is_writable = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.shares.append(data)

    def eof_received(self) -> None:
        self.ends.append("eof")

    def connection_lost(self, error: Exception | None) -> None:
        self.ends.append("lost")

    def pause_writing(self) -> None:
        self.is_writable = False

    def resume_writing(self) -> None:
        self.is_writable = True

    @property
    def heard(self) -> bytes:
        return b"".join(self.shares)


class Both:
    """Both ends: a stream with its reader, and the client's socket."""

    def __init__(self, together: WebSockets, client: socket.socket, stream: WebSocketStream, reader: Reader) -> None:
        self.together = together
        self.client = client
        self.stream = stream
        self.reader = reader
        self.loop = asyncio.get_running_loop()

    async def say(self, data: bytes) -> None:
        await self.loop.sock_sendall(self.client, data)

    async def hear(self, size: int) -> bytes:
        heard = b""
        while len(heard) < size:
            part = await asyncio.wait_for(self.loop.sock_recv(self.client, 262_144), 5)
            assert part, heard
            heard += part
        return heard

    async def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(5_000):
            if condition():
                return
            await asyncio.sleep(0.001)
        raise AssertionError("it never came to be")


async def joined(together: WebSockets) -> Both:
    ours, theirs = socket.socketpair()
    for sock in (ours, theirs):
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BYTES)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, KERNEL_BYTES)
    loop = asyncio.get_running_loop()
    reader = Reader()
    transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
    stream = WebSocketStream(transport, reader, None, together, loop)
    stream.begin(b"")
    return Both(together, theirs, stream, reader)


def on_both_loops(scenario: Callable[[Both], Awaitable[None]]) -> Callable[[str], None]:
    @pytest.mark.parametrize("loop_name", ["asyncio", "uvloop"])
    def run(loop_name: str) -> None:
        async def with_both() -> None:
            both = await joined(WebSockets())
            try:
                await scenario(both)
            finally:
                both.stream.abort()
                both.client.close()
                await asyncio.sleep(0)

        new_loop = asyncio.new_event_loop if loop_name == "asyncio" else uvloop.new_event_loop
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(with_both())

    run.__name__ = getattr(scenario, "__name__", "scenario")
    return run


def letters(count: int) -> bytes:
    return bytes(number % 251 for number in range(count))


@on_both_loops
async def test_small_frames_are_read_in_bounded_shares(both: Both) -> None:
    stream = letters(5_000)
    await both.say(b"".join(frame(BINARY, stream[at : at + 1]) for at in range(len(stream))))
    await both.until(lambda: len(both.reader.heard) == len(stream))
    assert both.reader.heard == stream
    assert max(len(share) for share in both.reader.shares) <= 128


@on_both_loops
async def test_nothing_is_read_while_the_reader_wants_nothing(both: Both) -> None:
    both.stream.pause_reading()
    sent = letters(20 * KERNEL_BYTES)
    saying = asyncio.ensure_future(both.say(frame(BINARY, sent)))
    await asyncio.sleep(0.1)
    assert not saying.done(), "the client feels it"
    assert both.reader.shares == []
    both.stream.resume_reading()
    await saying
    await both.until(lambda: len(both.reader.heard) == len(sent))
    assert both.reader.heard == sent


@on_both_loops
async def test_frames_that_came_before_the_reader_had_enough_wait_for_it(both: Both) -> None:
    stream = letters(2_000)
    await both.say(b"".join(frame(BINARY, stream[at : at + 1]) for at in range(len(stream))))
    await both.until(lambda: len(both.reader.heard) > 0)
    both.stream.pause_reading()
    seen = len(both.reader.heard)
    await asyncio.sleep(0.02)
    assert len(both.reader.heard) == seen < len(stream)
    both.stream.resume_reading()
    await both.until(lambda: both.reader.heard == stream)


@on_both_loops
async def test_a_large_write_becomes_messages_that_every_client_takes(both: Both) -> None:
    both.stream.writelines([b"a" * 100_000, b"b" * 100_000])
    both.stream.write(b"")
    heard = await both.hear(200_000 + 10 + 10 + 10 + 4)
    assert heard[:10] == b"\x82\x7f" + MESSAGE_BYTES.to_bytes(8, "big")
    assert heard.count(b"a") == heard.count(b"b") == 100_000


@on_both_loops
async def test_who_reads_no_pongs_is_owed_the_last_one_alone(both: Both) -> None:
    both.stream.set_write_buffer_limits(high=KERNEL_BYTES)
    both.stream.write(bytes(20 * KERNEL_BYTES))
    assert not both.reader.is_writable
    before = both.stream.get_write_buffer_size()
    for number in range(500):
        await both.say(frame(PING, b"%d" % number))
    await both.until(lambda: both.stream.pong == b"499")
    assert both.stream.get_write_buffer_size() <= before
    heard = b""
    while not heard.endswith(b"\x8a\x03499"):
        heard += await both.hear(1)
    assert heard.count(b"\x8a") == 1


@on_both_loops
async def test_a_client_that_broke_the_rules_is_cut_off_after_a_moment(both: Both) -> None:
    both.together.linger_s = 0.05
    await both.say(frame(BINARY, b"before") + frame(TEXT, b"x") + frame(BINARY, b"after"))
    heard = await both.hear(4)
    assert heard[:4] == b"\x88" + bytes([len(heard) - 2]) + (1003).to_bytes(2, "big")
    assert both.reader.heard == b"before"
    assert both.reader.ends == ["lost"], "who speaks above knows at once"
    assert await both.loop.sock_recv(both.client, 1) == b""
    assert both.reader.ends == ["lost"]
    assert not both.together.lingering


@on_both_loops
async def test_of_many_that_broke_the_rules_the_first_do_not_get_their_moment(both: Both) -> None:
    crowd = [both] + [await joined(both.together) for _ in range(LINGERING_MAX + 5)]
    for each in crowd:
        await each.say(frame(TEXT, b"x"))
        await each.hear(4)
    await both.until(lambda: len(both.together.lingering) == LINGERING_MAX)
    assert [each.stream in both.together.lingering for each in crowd] == [False] * 6 + [True] * LINGERING_MAX
    for each in crowd:
        each.stream.abort()
        each.client.close()


@on_both_loops
async def test_a_close_of_ours_waits_for_the_clients(both: Both) -> None:
    both.stream.write(b"goodbye")
    both.stream.close()
    both.stream.close()
    both.stream.write(b"too late")
    assert both.stream.is_closing()
    assert await both.hear(13) == b"\x82\x07goodbye\x88\x02\x03\xe8"
    await both.say(frame(BINARY, b"still talking") + frame(PING, b"?"))
    await asyncio.sleep(0.02)
    assert both.reader.ends == []
    await both.say(frame(CLOSE, b"\x03\xe8"))
    await both.until(lambda: both.reader.ends == ["eof", "lost"])
    assert both.reader.shares == []


@on_both_loops
async def test_a_client_that_hangs_up_in_the_middle_of_a_frame_has_left(both: Both) -> None:
    await both.say(frame(BINARY, b"whole") + frame(BINARY, b"half of it")[:-5])
    both.client.shutdown(socket.SHUT_WR)
    await both.until(lambda: both.reader.ends == ["eof", "lost"])
    assert both.reader.heard == b"wholehalf "


@on_both_loops
async def test_what_a_websocket_has_not_looked_at_is_charged(both: Both) -> None:
    account = both.stream.account = lone_account()
    seen: list[int] = []

    def all_came() -> bool:
        seen.append(account.held_bytes)
        return len(both.reader.heard) == 5_000

    await both.say(b"".join(frame(BINARY, b"x") for _ in range(5_000)))
    await both.until(all_came)
    await both.until(lambda: account.held_bytes == 0)
    assert max(seen) > 5_000
