"""Bad frames, floods and silence inside a WebSocket: the same promises as on a bare socket."""

import asyncio
import socket
import ssl
import struct
import time
from collections.abc import AsyncIterator
from typing import cast

import pytest

from spillway.admin.front import HttpFront
from spillway.amqp.frames import SASL_HEADER
from spillway.amqp.performatives import Close, Disposition, Rejected, Transfer
from spillway.dialect.peer import Peer
from spillway.hosting.administration import administer
from spillway.model import limits
from spillway.model.entity import QUEUE
from spillway.server.connection import LINGER_MS
from tests.hostile.attacker import TARGET, accept, message
from tests.hostile.scene import BYTES, MIB, Scene
from tests.hostile.test_stalled import Moved, fill
from tests.hostile.websocket import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    RawWebSocket,
    WebSocketAttacker,
    frame,
    head,
)

BAD: dict[str, tuple[int, bytes]] = {
    "text": (1003, frame(TEXT, b"AMQP")),
    "text that is none": (1007, frame(TEXT, b"\xff\xfe")),
    "no mask": (1002, frame(BINARY, SASL_HEADER, is_masked=False)),
    "compressed": (1002, frame(BINARY, b"\xcaI\xcc", reserved=4)),
    "a reserved bit": (1002, frame(BINARY, b"x", reserved=1)),
    "a ping with a reserved bit": (1002, frame(PING, b"x", reserved=2)),
    "an unknown kind": (1002, frame(3, b"x")),
    "an unknown control": (1002, frame(11, b"x")),
    "the rest of nothing": (1002, frame(CONTINUATION, b"x")),
    "a message in a message": (1002, frame(BINARY, b"x", is_last=False) + frame(BINARY, b"y")),
    "a ping in parts": (1002, frame(PING, b"x", is_last=False)),
    "a long ping": (1002, frame(PING, b"x" * 126)),
    "a length that takes more room than it needs": (1002, b"\x82\xfe\x00\x05" + b"\0" * 9),
    "a length below zero": (1002, b"\x82\xff" + struct.pack(">Q", 1 << 63) + b"\0" * 4),
    "half a close code": (1002, frame(CLOSE, b"\x03")),
    "a close code that nobody may say": (1002, frame(CLOSE, struct.pack(">H", 1006))),
    "a close reason that is no text": (1007, frame(CLOSE, struct.pack(">H", 1000) + b"\xff")),
    "the next request": (1002, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    "AMQP without a WebSocket": (1002, SASL_HEADER),
}


@pytest.mark.parametrize(("code", "said"), BAD.values(), ids=BAD.keys())
def test_a_frame_that_breaks_the_rules_closes_the_websocket_with_the_reason(
    scene: Scene, code: int, said: bytes
) -> None:
    with RawWebSocket(scene.port) as bad:
        bad.say(said)
        closed = bad.hear_close()
        assert closed is not None
        assert closed[0] == code
        assert closed[1]
        bad.say(frame(BINARY, SASL_HEADER) * 1_000)  # nothing it says counts any more


def test_what_comes_right_behind_the_request_is_held_to_the_same_rules(attacked: Scene) -> None:
    with RawWebSocket(attacked.port, head() + b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n") as smuggler:
        assert smuggler.answer.startswith(b"HTTP/1.1 101 ")
        assert smuggler.hear_close() == (1002, "Invalid opcode 0x7")
    with RawWebSocket(attacked.port, head() + frame(BINARY, SASL_HEADER)) as hasty:
        assert hasty.hear()[:8] == SASL_HEADER


def test_a_message_in_a_thousand_parts_with_pings_in_between_is_one_stream(attacked: Scene) -> None:
    with RawWebSocket(attacked.port) as parted:
        parted.say(frame(BINARY, b"", is_last=False))
        for at in range(8):
            parted.say(frame(CONTINUATION, SASL_HEADER[at : at + 1], is_last=False), frame(PING, b"%d" % at))
            parted.say(*(frame(CONTINUATION, b"", is_last=False) for _ in range(120)))
        assert parted.hear()[:8] == SASL_HEADER
        parted.say(frame(CONTINUATION, b""), frame(PONG, b"unasked"), frame(CLOSE, struct.pack(">H", 1000)))
        assert parted.hear_close() == (1000, "")
        assert parted.pongs[-1] == b"7"
        assert parted.is_hung_up()


def test_a_frame_of_any_length_is_a_stream_and_not_waited_for(attacked: Scene) -> None:
    with WebSocketAttacker(attacked.port) as attacker:
        websocket = attacker.websocket
        key_of_zero = b"\0\0\0\0"
        websocket.say(b"\x82\xff" + struct.pack(">Q", 1 << 62) + key_of_zero)
        attacker.say = lambda data: websocket.say(data)  # type: ignore[method-assign]  # all of it is that one frame
        attacker.open().begin().attach_sender()
        before = attacked.growth_bytes
        for _ in range(1_000):
            attacker.transfer(Transfer(0, 0, b"tag", more=True), bytes(60_000))
        attacker.transfer(Transfer(0, more=False), b"")
        assert isinstance(attacker.hear(Disposition).state, Rejected), "60 MB are too much for a message"
        assert attacked.growth_bytes - before < 8 * MIB


@pytest.mark.parametrize(
    "flood",
    [frame(PING, b"x" * 125), frame(PING), frame(PONG), frame(BINARY)],
    ids=["long pings", "short pings", "pongs", "empty messages"],
)
def test_a_flood_of_frames_without_content_is_cut_off(attacked: Scene, flood: bytes) -> None:
    before = attacked.growth_bytes
    with RawWebSocket(attacked.port) as flooding:
        flooding.below.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        flooding.say(frame(BINARY, SASL_HEADER), flood * 20_000)
        assert flooding.hear_close() == (1008, "More than 1000 frames without content.")
        assert attacked.growth_bytes - before < 8 * MIB


def test_a_flood_of_the_smallest_frames_lets_others_have_their_turn(attacked: Scene) -> None:
    heartbeat = b"".join(frame(BINARY, bytes([byte])) for byte in b"\0\0\0\x08\x02\0\0\0")
    with WebSocketAttacker(attacked.port) as attacker:
        attacker.open()
        rounds = len(attacked.neighbour.rounds)
        attacker.websocket.say(heartbeat * 4_000)
        attacked.neighbour.is_content(rounds)
        assert max(one["took_s"] for one in attacked.neighbour.rounds[rounds:]) < 3.0, "it takes some 10 ms otherwise"
        attacker.is_served(0)


def test_tls_outside_changes_nothing_inside(attacked: Scene) -> None:
    tls = ssl.create_default_context(cafile=attacked.broker.ca_file)
    with WebSocketAttacker(attacked.port, tls) as attacker:
        attacker.open().begin().attach_sender(0, BYTES)
        fill(attacker, 20, 60_000)
        attacker.attach_receiver(1, BYTES, credit=20)
        for _ in range(20):
            attacker.hear(Transfer)
        attacker.tell(accept(0, 19))
        attacker.hear(Disposition)
        assert sum(len(payload) for payload in attacker.payloads) > 20 * 60_000
        attacker.tell(Close())
        attacker.hear(Close)
        assert attacker.websocket.hear_close() == (1000, "")
    with RawWebSocket(attacked.port, tls=tls) as bad:
        bad.say(frame(TEXT, b"x"))
        assert bad.hear_close() == (1003, "AMQP is binary: no text is taken.")


def test_a_client_that_stops_reading_gets_no_more(attacked: Scene) -> None:
    with WebSocketAttacker(attacked.port) as attacker:
        attacker.open().begin().attach_sender()
        fill(attacker, 400, 60_000)
        before = attacked.growth_bytes
        attacker.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        attacker.attach_receiver(1, credit=5_000)
        for _ in range(5):
            attacked.neighbour.is_content(len(attacked.neighbour.rounds))
        assert attacked.growth_bytes - before < 24 * MIB, "more than its share waits for it"


def test_websockets_that_come_and_go_leave_no_file_and_no_memory(attacked: Scene) -> None:
    files = attacked.open_files
    before = attacked.growth_bytes
    for number in range(300):
        with WebSocketAttacker(attacked.port) as attacker:
            if number % 4 == 0:
                attacker.open().begin().attach_receiver(1, TARGET, credit=10)
            elif number % 4 == 1:
                attacker.websocket.say(frame(BINARY, SASL_HEADER)[:-3])  # in the middle of a frame
            elif number % 4 == 2:
                attacker.websocket.say(frame(TEXT, b"x"))
    deadline = time.monotonic() + 10
    while attacked.open_files > files and time.monotonic() < deadline:
        time.sleep(0.05)
    assert attacked.open_files <= files
    assert attacked.growth_bytes - before < 8 * MIB


# -- in this process, where time can be moved


@pytest.fixture
async def moved() -> AsyncIterator[Moved]:
    made = Moved()
    front = administer(made.server)
    made.server.start()
    await made.server.ensure_entity(QUEUE, TARGET, None)
    made.server.listen()
    yield made
    front.stop()
    await made.server.stop()
    assert not made.faults


async def opened(moved: Moved, mechanism: str = "PLAIN") -> WebSocketAttacker:
    attacker = await asyncio.to_thread(WebSocketAttacker, moved.port)
    await asyncio.to_thread(attacker.open, mechanism)
    return attacker


async def test_who_puts_no_token_is_told_so_and_cut_off(moved: Moved) -> None:
    attacker = await opened(moved, "ANONYMOUS")
    moved.clock.advance(limits.TOKEN_TIMEOUT_MS - 1_000)
    await asyncio.sleep(0.01)
    assert len(moved.server.pump.connections) == 1
    moved.clock.advance(2_000)
    close = await asyncio.to_thread(attacker.hear, Close)
    assert close.error is not None
    assert close.error.condition == "amqp:unauthorized-access"
    moved.clock.advance(limits.HEADER_TIMEOUT_MS + 1_000)
    await moved.until(lambda: not moved.server.pump.connections)
    assert await asyncio.to_thread(attacker.websocket.is_hung_up)
    attacker.close()


async def test_who_says_nothing_after_the_upgrade_is_cut_off_in_the_same_time(moved: Moved) -> None:
    silent = await asyncio.to_thread(RawWebSocket, moved.port)
    await moved.until(lambda: len(moved.server.preauth.unauthenticated) == 1)
    moved.clock.advance(limits.TOKEN_TIMEOUT_MS + 1_000)
    moved.clock.advance(limits.HEADER_TIMEOUT_MS + 1_000)
    await moved.until(lambda: not moved.server.pump.connections)
    silent.close()


async def test_who_has_vanished_is_let_go_after_twice_its_idle_time(moved: Moved) -> None:
    """Pings are no sign of life: it is AMQP's heart that must beat."""
    attacker = await opened(moved)
    connections = moved.server.pump.connections
    moved.clock.advance(2 * limits.IDLE_TIMEOUT_MS - 2_000)
    attacker.websocket.say(frame(PING))
    await asyncio.sleep(0.05)
    assert len(connections) == 1
    moved.clock.advance(4_000)
    close = await asyncio.to_thread(attacker.hear, Close)
    assert close.error is not None
    moved.clock.advance(LINGER_MS + limits.IDLE_TIMEOUT_MS)
    await moved.until(lambda: not connections)
    attacker.close()


@pytest.mark.parametrize("says_close", [True, False], ids=["by a close", "by the end of its stream"])
async def test_who_leaves_and_never_reads_the_rest_is_cut_off(moved: Moved, says_close: bool) -> None:
    attacker = await asyncio.to_thread(stalled, moved.port)
    connections = moved.server.pump.connections
    await moved.until(lambda: not cast(Peer, next(iter(connections)).peer).is_writable)
    if says_close:
        attacker.websocket.say(frame(CLOSE))
    else:
        attacker.websocket.below.shutdown(socket.SHUT_WR)
    await asyncio.sleep(0.1)
    assert len(connections) == 1, "its last words are kept for it, for a while"
    moved.clock.advance(LINGER_MS + 1_000)
    await moved.until(lambda: not connections)
    attacker.close()


def stalled(port: int) -> WebSocketAttacker:
    """Has 100 messages of 60 KB on the way to it, and does not read."""
    attacker = WebSocketAttacker(port)
    attacker.open().begin().attach_sender()
    fill(attacker, 100, 60_000)
    attacker.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    attacker.attach_receiver(1, credit=5_000)
    return attacker


async def test_what_nobody_takes_is_not_read(moved: Moved) -> None:
    attacker = await opened(moved)
    await asyncio.to_thread(lambda: attacker.begin().attach_sender())
    moved.server.pump.set_held(True)
    filling = asyncio.create_task(asyncio.to_thread(fill, attacker, 600, 60_000))
    await asyncio.sleep(0.3)
    assert not moved.server.pump.dirty
    assert moved.server.core.directory.queues[TARGET].counters.active == 0
    moved.server.pump.set_held(False)
    await filling
    assert moved.server.core.directory.queues[TARGET].counters.active == 600
    attacker.close()


async def test_a_namespace_that_stops_says_so_in_amqp_and_then_in_the_websocket(moved: Moved) -> None:
    attacker = await opened(moved)
    front = moved.server.acceptor.http
    assert isinstance(front, HttpFront)
    front.stop()
    stopping = asyncio.create_task(moved.server.say_goodbye())
    close = await asyncio.to_thread(attacker.hear, Close)
    assert close.error is not None
    assert close.error.condition == "amqp:connection:forced"
    attacker.tell(Close())
    assert await asyncio.to_thread(attacker.websocket.hear_close) == (1001, "")
    attacker.websocket.say(frame(CLOSE, struct.pack(">H", 1001)))
    await stopping
    assert await asyncio.to_thread(attacker.websocket.is_hung_up)
    attacker.close()


async def test_a_client_that_says_goodbye_in_amqp_hears_a_normal_close(moved: Moved) -> None:
    attacker = await opened(moved)
    attacker.tell(Close())
    await asyncio.to_thread(attacker.hear, Close)
    assert await asyncio.to_thread(attacker.websocket.hear_close) == (1000, "")
    attacker.websocket.say(frame(CLOSE, struct.pack(">H", 1000)))
    await moved.until(lambda: not moved.server.pump.connections)
    attacker.close()


async def test_what_a_client_said_before_it_dropped_its_socket_counts_although_our_write_failed(moved: Moved) -> None:
    """docs/wire.md, "Frames come after the end", inside a WebSocket."""
    attacker = await opened(moved)
    await asyncio.to_thread(lambda: attacker.begin().attach_sender())
    (connection,) = moved.server.pump.connections
    connection.set_reading(False)
    attacker.send(0, message(b"the last words"))
    attacker.close()
    for _ in range(3):  # the first is answered by a reset, a later one fails
        connection.write([b"x" * 100])
        await asyncio.sleep(0.01)
    await moved.until(lambda: moved.server.core.directory.queues[TARGET].counters.active == 1)
    await moved.until(lambda: not moved.server.pump.connections)
