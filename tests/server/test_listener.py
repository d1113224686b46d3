"""One port, real sockets: what the first bytes say decides who serves a connection."""

import asyncio
import contextlib
import socket
import ssl
import warnings
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import pytest
import uvloop

from spillway.model import limits
from spillway.model.errors import BrokerError, QuotaExceeded, Unauthorized
from spillway.server import listener as listening
from spillway.server import sniff
from spillway.server.connection import ClientConnection
from spillway.server.listener import (
    OUR_HEADER,
    TOLD_FULL_MAX,
    TOLD_FULL_MS,
    Acceptor,
    Listener,
    OpenStream,
    bind,
    is_loopback,
)
from spillway.server.preauth import PreauthLimiter
from spillway.server.tls import CertificateFiles, ensure_certificates, server_context
from tests.server.doubles import Bench, ScriptedPeer

SASL_HEADER = b"AMQP\x03\x01\x00\x00"


class EchoPeer(ScriptedPeer):
    """Says back what it is told."""

    def receive(self, data: bytes, now_ms: int, frames_max: int = 1 << 62) -> None:
        super().receive(data, now_ms)
        self.output.append(b"heard " + data)

    def close(self, error: BrokerError | None) -> None:
        super().close(error)
        self.is_closed = False  # as long as the client has not answered


class HttpEar(asyncio.Protocol):
    """Speaks HTTP, more or less: says the first line back."""

    def __init__(self, open_stream: OpenStream, raw: socket.socket | None) -> None:
        self.open_stream = open_stream
        self.raw = raw

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(b"HTTP heard: " + data.partition(b"\r\n")[0])
        self.transport.close()


class Port:
    """A listener with everything behind it but the dialect."""

    def __init__(self, certificates: CertificateFiles) -> None:
        self.certificates = certificates
        self.bench = Bench()
        self.preauth = PreauthLimiter(pending_max=20)
        self.bench.pump.on_tick += [self.preauth.sweep, lambda now_ms: self.acceptor.sweep(now_ms)]
        self.peers: list[EchoPeer] = []
        self.secrets: list[bool] = []
        self.acceptor = Acceptor(
            self.bench.pump, self.preauth, self.make_peer, server_context(certificates), HttpEar, connections_max=30
        )
        self.listener = Listener(self.acceptor, bind("localhost", 0), asyncio.get_running_loop())
        self.listener.start()

    def make_peer(self, is_secret: bool, where: str) -> EchoPeer:
        self.secrets.append(is_secret)
        self.peers.append(EchoPeer())
        return self.peers[-1]

    async def connect(self, **options: object) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.listener.port, **options)  # type: ignore[arg-type]

    async def connect_tls(self, name: str = "localhost") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await self.connect(ssl=trusting(self.certificates), server_hostname=name)

    async def close(self) -> None:
        self.listener.stop()
        for connection in list(self.bench.pump.connections):
            connection.abort()
        await asyncio.sleep(0.01)

    async def until_peers(self, count: int) -> None:
        await until(lambda: len(self.bench.pump.connections) >= count)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> CertificateFiles:
    return ensure_certificates(tmp_path_factory.mktemp("tls"), "localhost")


def on_both_loops(scenario: Callable[[Port], Awaitable[None]]) -> Callable[[str, CertificateFiles], None]:
    """`serve` runs on uvloop where it is installed, else on the loop of the standard library."""

    @pytest.mark.parametrize("loop_name", ["asyncio", "uvloop"])
    def run(loop_name: str, certificates: CertificateFiles) -> None:
        async def with_port() -> None:
            port = Port(certificates)
            try:
                await scenario(port)
            finally:
                await port.close()

        new_loop = asyncio.new_event_loop if loop_name == "asyncio" else uvloop.new_event_loop
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(with_port())

    run.__name__ = getattr(scenario, "__name__", "scenario")
    run.__doc__ = scenario.__doc__
    return run


async def until(condition: Callable[[], bool]) -> None:
    """Real sockets take real time: look again until it is so."""
    for _ in range(5_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came to be")


def trusting(certificates: CertificateFiles) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificates.ca))


async def rest(reader: asyncio.StreamReader) -> bytes:
    with contextlib.suppress(ConnectionResetError):
        return await asyncio.wait_for(reader.read(), 5)
    return b""


@pytest.mark.parametrize(
    ("first", "kind"),
    [
        (b"AMQP\x03\x01\x00\x00", sniff.AMQP),
        (b"AMQP\x00\x09\x09\x09", sniff.AMQP),
        (b"AMQ", sniff.UNDECIDED),
        (b"A", sniff.UNDECIDED),
        (b"\x16\x03\x01", sniff.TLS),
        (b"\x16", sniff.TLS),
        (b"GET / HT", sniff.HTTP),
        (b"DELETE /", sniff.HTTP),
        (b"OPTIONS ", sniff.HTTP),
        (b"OPTI", sniff.UNDECIDED),
        (b"GETTING", sniff.OTHER),
        (b"AMQT", sniff.OTHER),
        (b"\x00\x00", sniff.OTHER),
        (b"SSH-2.0-", sniff.OTHER),
    ],
)
def test_the_first_bytes_say_what_is_spoken(first: bytes, kind: int) -> None:
    assert sniff.classify(first) == kind


@on_both_loops
async def test_plain_amqp_reaches_a_peer_with_its_first_byte(port: Port) -> None:
    reader, writer = await port.connect()
    writer.write(SASL_HEADER)
    assert await reader.readexactly(14) == b"heard " + SASL_HEADER
    assert port.secrets == [True]  # loopback
    writer.close()


@on_both_loops
async def test_amqp_inside_tls_reaches_a_peer_on_the_same_port(port: Port) -> None:
    for name in ("localhost", "127.0.0.1"):
        reader, writer = await port.connect_tls(name)
        writer.write(SASL_HEADER)
        assert await reader.readexactly(14) == b"heard " + SASL_HEADER
        writer.write(b"more")
        assert await reader.readexactly(10) == b"heard more"
        writer.close()


@on_both_loops
async def test_tls_below_1_2_is_refused(port: Port) -> None:
    old = trusting(port.certificates)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that is the point
        old.minimum_version = ssl.TLSVersion.TLSv1
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("DEFAULT:@SECLEVEL=0")
    with pytest.raises(OSError):  # an alert, or the reset behind it
        await port.connect(ssl=old, server_hostname="localhost")
    assert port.peers == []


@on_both_loops
async def test_a_header_that_comes_in_two_parts_is_waited_for(port: Port) -> None:
    reader, writer = await port.connect()
    writer.write(b"AM")
    await asyncio.sleep(0.02)
    writer.write(b"QP\x03\x01\x00\x00")
    assert await reader.readexactly(14) == b"heard " + SASL_HEADER
    writer.close()


@on_both_loops
async def test_http_is_handed_to_whoever_speaks_it_in_clear_text_and_inside_tls(port: Port) -> None:
    for reader, writer in (await port.connect(), await port.connect_tls()):
        writer.write(b"PUT /myqueue?api-version=2021-05 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello")
        assert await rest(reader) == b"HTTP heard: PUT /myqueue?api-version=2021-05 HTTP/1.1"
        writer.close()


@on_both_loops
async def test_who_speaks_http_can_be_led_to_the_broker_and_counts_as_any_client(port: Port) -> None:
    """A password may come in as it is if the connection it came through is one where it may."""
    for is_secret in (True, False):
        ear = port.acceptor.protocol_for(sniff.HTTP, None, "192.0.2.1", is_secret)
        assert isinstance(ear, HttpEar)
        connection = ear.open_stream()
        assert isinstance(connection, ClientConnection)
        assert port.secrets[-1] is is_secret
        assert connection in port.preauth.unauthenticated


@on_both_loops
async def test_anything_else_gets_our_header_and_is_closed(port: Port) -> None:
    reader, writer = await port.connect()
    writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
    assert await rest(reader) == OUR_HEADER
    writer.close()
    assert port.peers == []


@on_both_loops
async def test_a_client_that_leaves_before_a_word_leaves_no_trace(port: Port) -> None:
    _, writer = await port.connect()
    await until(lambda: len(port.preauth) == 1)
    writer.close()
    await until(lambda: len(port.preauth) == 0)
    assert port.peers == []


@on_both_loops
async def test_a_silent_socket_is_closed_after_the_header_timeout(port: Port) -> None:
    reader, writer = await port.connect()
    half_reader, half_writer = await port.connect()
    half_writer.write(b"AM")
    await until(lambda: len(port.preauth) == 2)
    await asyncio.sleep(0.02)
    port.bench.clock.advance(limits.HEADER_TIMEOUT_MS - 1)
    assert len(port.preauth) == 2
    port.bench.clock.advance(1_000)
    assert await rest(reader) == b""
    assert await rest(half_reader) == b""
    writer.close()
    half_writer.close()


@on_both_loops
async def test_a_connection_without_a_token_is_told_so_and_then_cut_off(port: Port) -> None:
    reader, writer = await port.connect()
    writer.write(SASL_HEADER)
    await reader.readexactly(14)
    port.bench.clock.advance(limits.TOKEN_TIMEOUT_MS + 1_000)
    assert await reader.readexactly(6) == b"close\n"
    assert isinstance(port.peers[0].close_error, Unauthorized)
    port.bench.clock.advance(limits.HEADER_TIMEOUT_MS + 1_000)
    assert await rest(reader) == b""
    writer.close()


@on_both_loops
async def test_a_connection_with_a_token_stays(port: Port) -> None:
    reader, writer = await port.connect()
    writer.write(SASL_HEADER)
    await reader.readexactly(14)
    port.peers[0].is_authorised = True
    port.bench.clock.advance(limits.TOKEN_TIMEOUT_MS * 3)
    writer.write(b"still here")
    assert await reader.readexactly(16) == b"heard still here"
    assert len(port.preauth) == 0
    writer.close()


@on_both_loops
async def test_a_flood_of_strangers_pushes_out_strangers_and_not_the_client_that_comes_next(port: Port) -> None:
    flood = [await port.connect() for _ in range(25)]
    for _, writer in flood[:20]:
        writer.write(SASL_HEADER)
    await asyncio.sleep(0.05)
    reader, writer = await port.connect()
    writer.write(SASL_HEADER)
    assert await reader.readexactly(14) == b"heard " + SASL_HEADER
    assert len(port.preauth) <= 20
    for _, each in (*flood, (reader, writer)):
        each.close()


@on_both_loops
async def test_a_full_namespace_tells_the_next_connections_so_and_serves_those_it_has(port: Port) -> None:
    members = []
    for number in range(30):
        reader, writer = await port.connect()
        writer.write(SASL_HEADER)
        await reader.readexactly(14)
        port.peers[number].is_authorised = True
        members.append((reader, writer))
    refused, refused_writer = await port.connect()
    refused_writer.write(SASL_HEADER)
    await refused.readexactly(14)
    error = port.peers[30].refusal
    assert isinstance(error, QuotaExceeded)
    assert "has 30 connections" in error.description
    port.peers[30].is_authorised = True
    members[0][1].write(b"x")
    assert await members[0][0].readexactly(7) == b"heard x"
    assert len(port.acceptor.told_full) == 1
    port.bench.clock.advance(TOLD_FULL_MS)
    assert await rest(refused) == b""
    assert port.acceptor.told_full == {}
    refused_writer.close()
    members.pop()[1].close()
    await until(lambda: len(port.bench.pump.connections) == 29)
    reader, writer = await port.connect()
    writer.write(SASL_HEADER)
    await reader.readexactly(14)
    assert port.peers[31].refusal is None
    for _, each in (*members, (reader, writer)):
        each.close()


@on_both_loops
async def test_only_so_many_are_told_and_the_others_are_closed(port: Port) -> None:
    port.acceptor.connections_max = 0
    port.preauth.pending_max = 2 * TOLD_FULL_MAX
    clients = []
    for _ in range(TOLD_FULL_MAX):
        reader, writer = await port.connect()
        writer.write(SASL_HEADER)
        await reader.readexactly(14)
        clients.append(writer)
    reader, writer = await port.connect()
    writer.write(SASL_HEADER)
    assert await rest(reader) == SASL_HEADER
    assert len(port.peers) == TOLD_FULL_MAX
    for each in (*clients, writer):
        each.close()


@on_both_loops
async def test_an_address_that_connects_too_often_in_a_second_is_closed_until_the_next(port: Port) -> None:
    port.acceptor.connects_per_second = 3
    clients = [await port.connect() for _ in range(5)]
    for reader, writer in clients[:3]:
        writer.write(SASL_HEADER)
        assert await reader.readexactly(14) == b"heard " + SASL_HEADER
    for reader, _ in clients[3:]:
        assert await rest(reader) == b""
    assert port.acceptor.refused_count == 2
    port.bench.clock.advance(1_000)
    reader, writer = await port.connect()
    writer.write(SASL_HEADER)
    assert await reader.readexactly(14) == b"heard " + SASL_HEADER
    for _, each in (*clients, (reader, writer)):
        each.close()


@on_both_loops
async def test_a_connection_that_sends_too_many_frames_is_read_no_faster_and_others_are(port: Port) -> None:
    port.bench.pump.frames_per_second = 100
    reader, writer = await port.connect()
    writer.write(SASL_HEADER)
    await reader.readexactly(14)
    other_reader, other_writer = await port.connect()
    other_writer.write(SASL_HEADER)
    await other_reader.readexactly(14)
    port.peers[0].frames_count = 300  # three seconds' worth, all at once
    writer.write(b"a")
    assert await reader.readexactly(7) == b"heard a"
    writer.write(b"b")
    other_writer.write(b"x")
    assert await other_reader.readexactly(7) == b"heard x"
    port.bench.clock.advance(2_900)
    await asyncio.sleep(0.01)
    assert port.peers[0].received[-1] == b"a"
    port.bench.clock.advance(100)
    assert await reader.readexactly(7) == b"heard b"
    for each in (writer, other_writer):
        each.close()


@on_both_loops
async def test_a_stranger_is_read_no_faster_than_strangers_are_without_any_limit_being_set(port: Port) -> None:
    reader, writer = await port.connect()
    writer.write(SASL_HEADER)
    await reader.readexactly(14)
    port.peers[0].frames_count = 3 * limits.UNAUTHENTICATED_FRAMES_PER_SECOND
    writer.write(b"a")
    assert await reader.readexactly(7) == b"heard a"
    writer.write(b"b")
    port.bench.clock.advance(2_900)
    await asyncio.sleep(0.01)
    assert port.peers[0].received[-1] == b"a"
    port.bench.clock.advance(100)
    assert await reader.readexactly(7) == b"heard b"
    port.peers[0].is_authorised = True
    port.peers[0].frames_count = 1_000_000
    for word in (b"c", b"d"):
        writer.write(word)
        assert await reader.readexactly(7) == b"heard " + word
    writer.close()


@on_both_loops
async def test_a_stranger_that_sends_more_than_is_read_of_it_is_cut(port: Port) -> None:
    reader, writer = await port.connect()
    writer.write(SASL_HEADER)
    await reader.readexactly(14)
    port.peers[0].has_unread = True
    port.peers[0].unread_bytes = limits.UNAUTHENTICATED_UNREAD_BYTES_MAX + 1
    port.peers[0].is_authorised = False
    writer.write(b"a")
    await rest(reader)
    writer.close()


@on_both_loops
async def test_what_a_client_said_before_it_closed_is_heard_although_our_write_failed(port: Port) -> None:
    """A client drops its socket behind its last dispositions (docs/wire.md, "Frames come after the end")."""
    sock = socket.create_connection(("127.0.0.1", port.listener.port))
    sock.sendall(SASL_HEADER)
    await port.until_peers(1)
    port.peers[0].is_authorised = True
    connection = next(iter(port.bench.pump.connections))
    connection.set_reading(False)
    sock.sendall(b"last disposition")
    sock.close()
    await asyncio.sleep(0.01)
    for _ in range(3):  # the first is answered by a reset, a later one fails
        connection.write([b"x" * 100])
        await asyncio.sleep(0.01)
    assert b"".join(port.peers[0].received) == SASL_HEADER + b"last disposition"


@on_both_loops
async def test_a_client_that_does_not_read_is_unwritable_and_others_are_served(port: Port) -> None:
    slow, slow_writer = await port.connect(limit=1)
    slow_writer.write(SASL_HEADER)
    await port.until_peers(1)
    connection = next(iter(port.bench.pump.connections))
    slow_writer.transport.pause_reading()  # type: ignore[attr-defined]
    while port.peers[0].is_writable:
        connection.write([bytes(256 * limits.KIB)])
        await asyncio.sleep(0)
    reader, writer = await port.connect()
    writer.write(SASL_HEADER)
    assert await reader.readexactly(14) == b"heard " + SASL_HEADER
    connection.write([bytes(65 * limits.MIB)])
    await asyncio.sleep(0.01)
    assert connection.is_lost
    for each in (slow_writer, writer):
        each.close()


def test_localhost_is_both_loopback_addresses_on_one_port() -> None:
    sockets = bind("localhost", 0)
    addresses = {sock.getsockname()[:2] for sock in sockets}
    number = sockets[0].getsockname()[1]
    for sock in sockets:
        sock.close()
    assert ("127.0.0.1", number) in addresses
    assert addresses <= {("127.0.0.1", number), ("::1", number)}


def test_a_machine_without_ipv6_is_served_on_ipv4_alone() -> None:
    missing = "192.0.2.1"  # no machine has it (RFC 5737): the error is the one of a missing ::1
    assert listening.bind_one(missing, 0, is_optional=True) == []
    with pytest.raises(OSError):
        listening.bind_one(missing, 0, is_optional=False)


def test_a_port_in_use_is_an_error() -> None:
    sockets = bind("localhost", 0)
    with pytest.raises(OSError):
        bind("localhost", sockets[0].getsockname()[1])
    for sock in sockets:
        sock.close()


def test_loopback_is_told_by_address_and_never_by_name() -> None:
    assert [is_loopback(each) for each in ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1")] == [True] * 4
    assert [is_loopback(each) for each in ("10.0.0.1", "::", "0.0.0.0", "localhost", "fe80::1%eth0", "")] == [False] * 6


def test_the_certificates_of_a_data_directory_are_made_once(tmp_path: Path) -> None:
    first = ensure_certificates(tmp_path / "tls", "localhost")
    before = first.server.read_bytes(), first.ca.read_bytes()
    second = ensure_certificates(tmp_path / "tls", "localhost")
    assert (second.server.read_bytes(), second.ca.read_bytes()) == before
