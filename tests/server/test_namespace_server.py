"""A whole namespace in this process: real peers, real core, real sockets, the official SDK."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from spillway.amqp.connection import Connection, ConnectionOptions
from spillway.amqp.events import ConnectionClosed, ConnectionEvent, ConnectionOpened
from spillway.model import limits
from spillway.model.entity import QUEUE, STATUS_DISABLED, SUBSCRIPTION, TOPIC, EntitySettings
from spillway.model.errors import EntityAlreadyExists, EntityNotFound
from spillway.model.rules import Rule, SqlFilter
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
    await made.ensure_entity(QUEUE, "q", None)
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
    assert server.acceptor.tasks == set()
    assert not server.preauth.unauthenticated
    assert not server.preauth.leaving


async def test_who_has_said_nothing_does_not_keep_a_broker_from_stopping(tmp_path: Path) -> None:
    server = new_server(tmp_path / "journal.db")
    server.start()
    server.listen()
    loop = asyncio.get_running_loop()
    silent = [socket.socket() for _ in range(3)]
    for sock in silent:
        sock.setblocking(False)
        await loop.sock_connect(sock, ("127.0.0.1", server.port))
    await until(lambda: len(server.preauth.silent) == 3)
    await server.stop()
    for sock in silent:
        assert await loop.sock_recv(sock, 1) == b""
        sock.close()


async def test_a_broker_that_has_failed_stops_without_waiting_for_what_cannot_come() -> None:
    server = NamespaceServer(
        ServerOptions("test", port=0), MemoryJournal(), root_rights(DEVELOPMENT_KEY), None, lambda error: None
    )
    server.start()
    server.listen()
    asking = asyncio.ensure_future(server.ensure_entity(QUEUE, "q", None))
    await asyncio.sleep(0)
    server.pump.on_failed(OSError("the disk"))
    await asyncio.wait_for(server.stop(), 5)
    asking.cancel()


async def test_a_queue_that_is_there_keeps_its_settings_unless_others_are_given(tmp_path: Path) -> None:
    settings = EntitySettings()
    settings.lock_duration_ms = 30_000
    for wanted, expected_ms in ((settings, 30_000), (None, 30_000), (EntitySettings(), 60_000)):
        server = NamespaceServer(
            ServerOptions("test", port=0),
            SqliteJournal(tmp_path / "journal.db"),
            root_rights(DEVELOPMENT_KEY),
            None,
            fail_the_test,
        )
        server.start()
        await server.ensure_entity(QUEUE, "q", wanted)
        assert server.core.directory.queues["q"].settings.lock_duration_ms == expected_ms
        await server.stop()


def new_server(path: Path) -> NamespaceServer:
    return NamespaceServer(
        ServerOptions("test", port=0), SqliteJournal(path), root_rights(DEVELOPMENT_KEY), None, fail_the_test
    )


def with_rules(*rules: Rule) -> EntitySettings:
    settings = EntitySettings()
    settings.rules = list(rules)
    return settings


def rule(name: str, expression: str) -> Rule:
    return Rule(name, SqlFilter(expression), None, 0)


def rules_of(server: NamespaceServer, path: str) -> dict[str, str]:
    found = server.core.directory.find(path)
    assert found is not None
    return {
        each.name: each.filter.expression if isinstance(each.filter, SqlFilter) else each.filter.kind
        for each in found.settings.rules
    }


async def test_a_topic_and_its_subscriptions_are_made_in_the_order_asked_for(tmp_path: Path) -> None:
    server = new_server(tmp_path / "journal.db")
    server.start()
    made = [server.ensure_entity(TOPIC, "t", None)]
    made += [server.ensure_entity(SUBSCRIPTION, f"t/Subscriptions/s{number}", None) for number in range(100)]
    await asyncio.gather(*made)
    assert len(server.core.directory.topics["t"].subscriptions) == 100
    assert rules_of(server, "t/Subscriptions/s7") == {"$Default": "true"}
    with pytest.raises(EntityNotFound):
        await server.ensure_entity(SUBSCRIPTION, "other/Subscriptions/s", None)
    await server.stop()


async def test_the_rules_of_a_subscription_are_brought_in_line_and_the_others_keep_their_time(tmp_path: Path) -> None:
    path = "t/Subscriptions/s"
    server = new_server(tmp_path / "journal.db")
    server.start()
    await server.ensure_entity(TOPIC, "t", None)
    await server.ensure_entity(
        SUBSCRIPTION, path, with_rules(rule("a", "x = 1"), rule("b", "x = 2"), rule("c", "x = 3"))
    )
    made = {each.name: each.created_ms for each in server.core.directory.queues[path.lower()].settings.rules}
    assert all(made.values())
    await server.stop()
    server = new_server(tmp_path / "journal.db")
    server.start()
    changed = with_rules(rule("d", "x = 4"), rule("A", "x = 1"), rule("b", "x = 5"), rule("c", "x = 3"))
    changed.lock_duration_ms = 7_000
    await server.ensure_entity(SUBSCRIPTION, path, changed)
    found = server.core.directory.queues[path.lower()].settings
    assert rules_of(server, path) == {"c": "x = 3", "d": "x = 4", "A": "x = 1", "b": "x = 5"}
    assert found.lock_duration_ms == 7_000
    assert {each.name: each.created_ms for each in found.rules}["c"] == made["c"]
    await server.stop()
    again = new_server(tmp_path / "journal.db")
    again.start()
    await again.ensure_entity(SUBSCRIPTION, path, EntitySettings())  # says nothing about rules
    assert rules_of(again, path) == {"c": "x = 3", "d": "x = 4", "A": "x = 1", "b": "x = 5"}
    assert again.core.directory.queues[path.lower()].settings.lock_duration_ms == 60_000
    await again.stop()


async def test_what_is_as_asked_for_is_not_touched(tmp_path: Path) -> None:
    server = new_server(tmp_path / "journal.db")
    server.start()
    wanted = with_rules(rule("a", "x = 1"))
    for kind, path, settings in ((TOPIC, "t", EntitySettings()), (SUBSCRIPTION, "t/Subscriptions/s", wanted)):
        await server.ensure_entity(kind, path, settings)
        before = server.pump.last_ticket
        await server.ensure_entity(kind, path.upper(), settings)
        assert server.pump.last_ticket == before
    await server.stop()


async def test_a_file_that_has_no_word_for_the_status_leaves_it_as_it_is(tmp_path: Path) -> None:
    disabled = EntitySettings()
    disabled.status = STATUS_DISABLED
    disabled.dead_letter_on_filter_error = False
    wanted = EntitySettings()
    wanted.lock_duration_ms = 30_000
    for settings in (disabled, wanted):
        server = new_server(tmp_path / "journal.db")
        server.start()
        await server.ensure_entity(QUEUE, "q", settings)
        found = server.core.directory.queues["q"].settings
        assert (found.lock_duration_ms, found.status) == (settings.lock_duration_ms, STATUS_DISABLED)
        assert not found.dead_letter_on_filter_error
        await server.stop()


async def test_an_entity_of_another_kind_is_said_so(server: NamespaceServer) -> None:
    with pytest.raises(EntityAlreadyExists, match="'q' is a queue already"):
        await server.ensure_entity(TOPIC, "Q", None)


async def test_queues_are_named_as_they_were_made_and_dead_letter_queues_are_none(tmp_path: Path) -> None:
    rights = root_rights(DEVELOPMENT_KEY)
    for wanted in (["Orders"], ["orders", "bills"]):  # the second time what is on disk is read back
        journal = SqliteJournal(tmp_path / "journal.db")
        server = NamespaceServer(ServerOptions("test", port=0), journal, rights, None, fail_the_test)
        server.start()
        for name in wanted:
            await server.ensure_entity(QUEUE, name, None)
        names = server.entity_names
        await server.stop()
    assert names == ["Orders", "bills"]


async def test_a_stop_answers_what_was_taken_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    rights = root_rights(DEVELOPMENT_KEY)
    server = NamespaceServer(ServerOptions("test", port=0), SqliteJournal(path), rights, None, fail_the_test)
    server.start()
    await server.ensure_entity(QUEUE, "q", None)
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
    await until(
        lambda: (
            server.core.directory.queues.get("q") is not None and server.core.directory.queues["q"].counters.active > 20
        )
    )
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
        writer.write(b"".join(client.drain_output()))
    else:
        await asyncio.sleep(0.02)
        clock.advance(limits.HEADER_TIMEOUT_MS + 1_000)
    assert await asyncio.wait_for(reader.read(), 5) == b""
    await until(lambda: not server.pump.connections)
    writer.close()
    await server.stop()


async def talk_until(
    client: Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kind: type[ConnectionEvent]
) -> ConnectionEvent:
    """Say what the client has to say and hear what the broker answers, until it is this."""
    while True:
        writer.write(b"".join(client.drain_output()))
        data = await asyncio.wait_for(reader.read(65536), 5)
        assert data, f"closed before {kind.__name__}"
        client.receive(data, 0)
        for event in client.drain_events():
            if isinstance(event, kind):
                return event
