"""Clients that stop reading, never ask, vanish, or never say who they are."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable

import pytest

from spillway.amqp.frames import SASL_HEADER
from spillway.amqp.performatives import Attach, Close, Disposition, Flow, Transfer
from spillway.client import OutgoingMessage, connect
from spillway.model import limits
from spillway.model.entity import QUEUE
from spillway.model.quotas import Quotas
from spillway.server.keys import DEVELOPMENT_KEY, root_rights
from spillway.server.namespace_server import NamespaceServer, ServerOptions
from spillway.store.memory import MemoryJournal
from spillway.testing.clock import FakeClock
from tests.hostile.attacker import Attacker, accept, message, receiver
from tests.hostile.scene import BYTES, MIB, Scene

LINKS = 500


def fill(attacker: Attacker, count: int, size: int) -> None:
    """Messages in the queue, accepted."""
    seen = 0
    for number in range(count):
        attacker.send(number, message(b"x" * size, f"stalled-{number}"))
        attacker.drain()
    while seen < count:
        settled = attacker.hear(Disposition, 30)
        seen += (settled.last if settled.last is not None else settled.first) - settled.first + 1


# -- stops reading


def test_receivers_that_never_grant_credit_cost_at_most_64_kib_each(attacked: Scene) -> None:
    before = attacked.growth_bytes
    with attacked.attacker().open().begin().attach_sender() as attacker:
        fill(attacker, 50, 10_000)
        for handle in range(1, LINKS + 1):
            attacker.tell(receiver(handle))
        for _ in range(LINKS):
            attacker.hear(Attach)
        attacked.neighbour.is_content(len(attacked.neighbour.rounds))
        assert attacked.growth_bytes - before < LINKS * 64 * 1024


def test_receivers_whose_session_takes_nothing_are_given_nothing_and_others_are(attacked: Scene) -> None:
    with attacked.attacker().open().begin().attach_sender(0, BYTES) as attacker:
        attacker.begin(1, incoming_window=0)
        attacker.attach_receiver(1, BYTES, channel=1)
        attacker.tell(Flow(0, 0, 0, 5_000, 1, 0, 1_000), channel=1)
        attacker.send(0, message(b"for somebody else"))
        attacker.hear(Disposition)
        assert not attacker.said(Transfer)
        attacker.attach_receiver(2, BYTES, credit=1)
        attacker.hear(Transfer)
        attacker.tell(accept(0))
        assert attacker.hear(Disposition).settled


# -- stops taking


def test_a_client_that_stops_reading_gets_no_more(attacked: Scene) -> None:
    """400 messages of 60 KB are there for it, with credit for all, and it reads none."""
    with attacked.attacker().open().begin().attach_sender() as attacker:
        fill(attacker, 400, 60_000)
        before = attacked.growth_bytes
        attacker.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        attacker.attach_receiver(1, credit=5_000)
        for _ in range(5):
            attacked.neighbour.is_content(len(attacked.neighbour.rounds))
        assert attacked.growth_bytes - before < 24 * MIB, "more than its share waits for it"


# -- comes and goes


def test_connections_that_come_and_go_leave_no_file_and_no_memory(attacked: Scene) -> None:
    files = attacked.open_files
    before = attacked.growth_bytes
    for number in range(600):
        with attacked.attacker() as attacker:
            if number % 3 == 0:
                attacker.open().begin().attach_receiver(1, "bytes", credit=10)
            elif number % 3 == 1:
                attacker.say(SASL_HEADER)
    deadline = time.monotonic() + 10
    while attacked.open_files > files and time.monotonic() < deadline:
        time.sleep(0.05)
    assert attacked.open_files <= files
    assert attacked.growth_bytes - before < 8 * MIB


# -- never says who it is, or vanishes: in this process, where time can be moved


class Moved:
    """A broker in this process whose clock stands still until it is moved."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.faults: list[BaseException] = []
        quotas = Quotas()
        quotas.set("connections-without-token", 200)
        self.server = NamespaceServer(
            ServerOptions("test", port=0, quotas=quotas),
            MemoryJournal(),
            root_rights(DEVELOPMENT_KEY),
            None,
            self.faults.append,
            make_clock=lambda floor_ms: self.clock,
        )

    @property
    def port(self) -> int:
        return self.server.port

    async def until(self, condition: Callable[[], bool]) -> None:
        for _ in range(5_000):
            if condition():
                return
            await asyncio.sleep(0.001)
        raise AssertionError("it never came to be")


@pytest.fixture
async def moved() -> AsyncIterator[Moved]:
    made = Moved()
    made.server.start()
    await made.server.ensure_entity(QUEUE, "q", None)
    made.server.listen()
    yield made
    await made.server.stop()
    assert not made.faults


@pytest.mark.parametrize("says_close", [True, False], ids=["by a close", "by the end of its stream"])
async def test_a_client_that_leaves_and_never_reads_the_rest_is_cut_off(moved: Moved, says_close: bool) -> None:
    attacker = await asyncio.to_thread(stalled, moved.port)
    connections = moved.server.pump.connections
    await moved.until(lambda: not next(iter(connections)).peer.has_commands)
    await asyncio.sleep(0.1)
    if says_close:
        attacker.tell(Close())
    else:
        attacker.socket.shutdown(socket.SHUT_WR)
    await asyncio.sleep(0.1)
    assert len(connections) == 1, "its last words are kept for it, for a while"
    moved.clock.advance(15_000)
    await moved.until(lambda: not connections)
    attacker.close()


def stalled(port: int) -> Attacker:
    """Has 100 messages of 60 KB on the way to it, and does not read."""
    attacker = Attacker(port).open().begin().attach_sender(0, "q")
    fill(attacker, 100, 60_000)
    attacker.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    return attacker.attach_receiver(1, "q", credit=5_000)


async def held(moved: Moved, count: int, first: bytes) -> list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    made = []
    for _ in range(count):
        reader, writer = await asyncio.open_connection("127.0.0.1", moved.port)
        writer.write(first)
        made.append((reader, writer))
    return made


async def ended(reader: asyncio.StreamReader) -> bytes:
    try:
        return await asyncio.wait_for(reader.read(), 5)
    except ConnectionError:
        return b""


@pytest.mark.parametrize(
    ("first", "patience_ms"),
    [(b"", limits.HEADER_TIMEOUT_MS), (b"AM", limits.HEADER_TIMEOUT_MS), (SASL_HEADER, limits.TOKEN_TIMEOUT_MS)],
    ids=["silent", "half a header", "no token"],
)
async def test_sockets_that_do_not_log_in_are_dropped_in_time(moved: Moved, first: bytes, patience_ms: int) -> None:
    held_open = await held(moved, 100, first)
    lobby = moved.server.preauth
    row = lobby.unauthenticated if first == SASL_HEADER else lobby.silent
    await moved.until(lambda: len(row) == 100)
    moved.clock.advance(patience_ms - 1_000)
    await asyncio.sleep(0.05)
    assert len(row) == 100, "not before their time"
    moved.clock.advance(2_000)
    for reader, writer in held_open:
        await ended(reader)
        writer.close()
    await moved.until(lambda: len(moved.server.preauth) == 0 and not moved.server.pump.connections)


async def test_a_flood_of_strangers_pushes_out_its_own_and_not_the_client_that_comes_next(moved: Moved) -> None:
    held_open = await held(moved, 400, SASL_HEADER)
    lobby = moved.server.preauth
    await moved.until(lambda: not lobby.silent and 150 < len(lobby.unauthenticated) <= 200)
    text = f"Endpoint=sb://localhost:{moved.port};SharedAccessKeyName=RootManageSharedAccessKey;"
    text += f"SharedAccessKey={DEVELOPMENT_KEY};UseDevelopmentEmulator=true"
    async with await connect(text, operation_timeout=5) as client:
        sender = await client.sender("q")
        await sender.send(OutgoingMessage(b"in spite of them"))
        gone = 0
        for reader, _ in held_open[:150]:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(reader.read(), 1)
                gone += 1
        assert gone == 150, "the oldest are the ones that go"
    for _, writer in held_open:
        writer.close()


async def test_a_peer_that_has_vanished_is_let_go_after_twice_its_idle_time(moved: Moved) -> None:
    text = f"Endpoint=sb://localhost:{moved.port};SharedAccessKeyName=RootManageSharedAccessKey;"
    text += f"SharedAccessKey={DEVELOPMENT_KEY};UseDevelopmentEmulator=true"
    client = await connect(text, operation_timeout=5)
    await client.receiver("q")
    connections = moved.server.pump.connections
    assert len(connections) == 1
    moved.clock.advance(2 * limits.IDLE_TIMEOUT_MS - 2_000)
    await asyncio.sleep(0.05)
    assert len(connections) == 1
    moved.clock.advance(4_000)
    await moved.until(lambda: not connections)
    assert not moved.server.pump.owners
    assert not moved.server.core.links.receivers.by_number
    await client.close()
