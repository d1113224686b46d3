"""A whole namespace in this process: real peers, real core, real sockets, the official SDK."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from spillway.amqp.connection import Connection, ConnectionOptions
from spillway.amqp.events import ConnectionClosed, ConnectionOpened, Event
from spillway.model import limits
from spillway.model.entity import QueueSettings
from spillway.server.keys import DEVELOPMENT_KEY, connection_string, root_rights
from spillway.server.namespace_server import NamespaceServer, ServerOptions
from spillway.store.memory import MemoryJournal
from spillway.store.sqlite import SqliteJournal
from spillway.testing.clock import FakeClock

SASL_HEADER = b"AMQP\x03\x01\x00\x00"


@pytest.fixture
async def server() -> AsyncIterator[NamespaceServer]:
    made = NamespaceServer(
        ServerOptions("test", port=0), MemoryJournal(), root_rights(DEVELOPMENT_KEY), None, fail_the_test
    )
    made.start()
    await made.ensure_queue("q", None)
    made.listen()
    yield made
    await made.stop()


def fail_the_test(error: BaseException) -> None:
    raise AssertionError("the broker stopped itself") from error


def send_and_complete(port: int, count: int) -> int:
    """The SDK blocks, so it has a thread of its own."""
    with ServiceBusClient.from_connection_string(connection_string("localhost", port, DEVELOPMENT_KEY)) as client:
        with client.get_queue_sender("q") as sender:
            sender.send_messages([ServiceBusMessage(f"number {number}") for number in range(count)])
        done = 0
        with client.get_queue_receiver("q") as receiver:
            while done < count:
                for message in receiver.receive_messages(max_message_count=count, max_wait_time=5):
                    receiver.complete_message(message)
                    done += 1
        return done


async def until(condition: Callable[[], bool]) -> None:
    """Real sockets take real time: look again until it is so."""
    for _ in range(5_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came to be")


async def test_clients_that_have_gone_leave_nothing_behind(server: NamespaceServer) -> None:
    assert await asyncio.to_thread(send_and_complete, server.port, 20) == 20
    await until(lambda: not server.pump.connections)
    assert server.pump.owners == {}
    assert server.pump.asked == {}
    assert server.pump.dirty == {}


async def test_connections_that_come_and_go_leave_nothing_behind(server: NamespaceServer) -> None:
    loop = asyncio.get_running_loop()
    for _ in range(100):
        with socket.socket() as sock:
            sock.setblocking(False)
            await loop.sock_connect(sock, ("127.0.0.1", server.port))
            await loop.sock_sendall(sock, SASL_HEADER)
            assert await loop.sock_recv(sock, 8) == SASL_HEADER
    await until(lambda: not server.pump.connections)
    assert server.pump.owners == {}
    assert server.door.tasks == set()
    assert not server.lobby.strangers
    assert not server.lobby.leaving


async def test_a_queue_that_is_there_keeps_its_settings_unless_others_are_given(tmp_path: Path) -> None:
    settings = QueueSettings()
    settings.lock_duration_ms = 30_000
    for wanted, expected_ms in ((settings, 30_000), (None, 30_000), (QueueSettings(), 60_000)):
        server = NamespaceServer(
            ServerOptions("test", port=0),
            SqliteJournal(tmp_path / "journal.db"),
            root_rights(DEVELOPMENT_KEY),
            None,
            fail_the_test,
        )
        server.start()
        await server.ensure_queue("q", wanted)
        assert server.core.queues["q"].settings.lock_duration_ms == expected_ms
        await server.stop()


async def test_queues_are_named_as_they_were_made_and_dead_letter_queues_are_none(tmp_path: Path) -> None:
    rights = root_rights(DEVELOPMENT_KEY)
    for wanted in (["Orders"], ["orders", "bills"]):  # the second time what is on disk is read back
        journal = SqliteJournal(tmp_path / "journal.db")
        server = NamespaceServer(ServerOptions("test", port=0), journal, rights, None, fail_the_test)
        server.start()
        for name in wanted:
            await server.ensure_queue(name, None)
        names = server.queue_names
        await server.stop()
    assert names == ["Orders", "bills"]


async def test_a_stop_answers_what_was_taken_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    rights = root_rights(DEVELOPMENT_KEY)
    server = NamespaceServer(ServerOptions("test", port=0), SqliteJournal(path), rights, None, fail_the_test)
    server.start()
    await server.ensure_queue("q", None)
    server.listen()

    def send_until_refused(port: int) -> int:
        done = 0
        text = connection_string("localhost", port, DEVELOPMENT_KEY)
        with ServiceBusClient.from_connection_string(text, retry_total=0) as client:
            sender = client.get_queue_sender("q")
            try:
                while True:
                    sender.send_messages(ServiceBusMessage(f"number {done}"), timeout=3)
                    done += 1
            except Exception:  # whichever of the SDK's errors the stop leads to
                return done

    sending = asyncio.ensure_future(asyncio.to_thread(send_until_refused, server.port))
    await until(lambda: server.core.queues.get("q") is not None and server.core.queues["q"].counters.active > 20)
    await server.stop()
    acknowledged = await sending
    again = SqliteJournal(path)
    rows = {row.put.path: row.counters.active for row in again.recover().entities}
    again.close()
    assert acknowledged > 20
    assert rows["q"] >= acknowledged


@pytest.mark.parametrize("answers", [True, False], ids=["who answers", "who does not answer"])
async def test_a_client_without_a_token_is_closed_after_twenty_seconds(answers: bool) -> None:
    clock = FakeClock()
    server = NamespaceServer(
        ServerOptions("test", port=0),
        MemoryJournal(),
        root_rights(DEVELOPMENT_KEY),
        None,
        fail_the_test,
        make_clock=lambda floor_ms: clock,
    )
    server.start()
    server.listen()
    client = Connection(ConnectionOptions(container_id="test", sasl_mechanisms=["ANONYMOUS"]), False, 0)
    client.open()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    await talk_until(client, reader, writer, ConnectionOpened)
    clock.advance(limits.TOKEN_TIMEOUT_MS + 1_000)
    closed = await talk_until(client, reader, writer, ConnectionClosed)
    assert isinstance(closed, ConnectionClosed)
    assert closed.error is not None
    assert closed.error.condition == "amqp:unauthorized-access"
    if answers:
        writer.write(b"".join(client.take_output()))
    else:
        await asyncio.sleep(0.02)
        clock.advance(limits.HEADER_TIMEOUT_MS + 1_000)
    assert await asyncio.wait_for(reader.read(), 5) == b""
    await until(lambda: not server.pump.connections)
    writer.close()
    await server.stop()


async def talk_until(
    client: Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kind: type[Event]
) -> Event:
    """Say what the client has to say and hear what the broker answers, until it is this."""
    while True:
        writer.write(b"".join(client.take_output()))
        data = await asyncio.wait_for(reader.read(65536), 5)
        assert data, f"closed before {kind.__name__}"
        client.receive(data, 0)
        for event in client.take_events():
            if isinstance(event, kind):
                return event
