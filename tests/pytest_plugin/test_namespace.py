"""A namespace inside the test process, as a test has it in its hands."""

import asyncio
import gc
import logging
import os
import socket
import tempfile
import threading
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient as AsyncServiceBusClient
from azure.servicebus.exceptions import ServiceBusAuthenticationError
from azure.servicebus.management import SqlRuleFilter

from spillway.client import OutgoingMessage, ServerBusy
from spillway.model.errors import EntityNotFound
from spillway.pytest_plugin import Counts, LocalNamespace, NamespaceFailed
from spillway.pytest_plugin.log import LINES_MAX, LOGGERS, NamespaceLog


@pytest.fixture
def namespace() -> Iterator[LocalNamespace]:
    with LocalNamespace() as opened:
        yield opened


# -- entities ----------------------------------------------------------------------------------------------------------


def test_settings_are_called_as_in_the_administration_client(namespace: LocalNamespace) -> None:
    queue = namespace.queue(
        "orders",
        lock_duration=timedelta(seconds=45),
        requires_session=True,
        max_delivery_count=3,
        default_message_time_to_live=timedelta(days=1, hours=2),
        dead_lettering_on_message_expiration=True,
        max_size_in_megabytes=2048,
        user_metadata="<&>",
    )
    assert queue == "orders"
    with namespace.administration() as administration:
        found = administration.get_queue("orders")
    assert (found.lock_duration, found.requires_session, found.max_delivery_count) == (timedelta(seconds=45), True, 3)
    assert found.default_message_time_to_live == timedelta(days=1, hours=2)
    assert (found.dead_lettering_on_message_expiration, found.max_size_in_megabytes) == (True, 2048)
    assert found.user_metadata == "<&>"


def test_entities_without_a_name_get_one_each(namespace: LocalNamespace) -> None:
    names = [namespace.queue(), namespace.queue(), namespace.topic()]
    names.append(namespace.subscription(names[2]))
    assert names == ["queue-1", "queue-2", "topic-3", "subscription-4"]


def test_a_subscription_gets_what_its_filter_selects_and_without_one_everything(namespace: LocalNamespace) -> None:
    topic = namespace.topic("news")
    namespace.subscription(topic, "all")
    namespace.subscription(topic, "sport", sql_filter="section = 'sport' AND size < 5", max_delivery_count=2)
    namespace.send(topic, "plain", OutgoingMessage("ball", application_properties={"section": "sport", "size": 3}))
    assert [message.body for message in namespace.peek("news/Subscriptions/all")] == [b"plain", b"ball"]
    assert [message.body for message in namespace.peek("news/Subscriptions/sport")] == [b"ball"]
    with namespace.administration() as administration:
        (rule,) = administration.list_rules("news", "sport")
        assert isinstance(rule.filter, SqlRuleFilter)
        assert (rule.name, rule.filter.sql_expression) == ("$Default", "section = 'sport' AND size < 5")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"lock_duration": timedelta(minutes=6)}, "queue 'q': The supplied lock time exceeds the allowed maximum"),
        ({"lock_duration": timedelta(0)}, "lock_duration must be longer than zero, not 0:00:00"),
        ({"lock_duration": 60.5}, "lock_duration must be a timedelta, a number, a string or True or False, not 60.5"),
        ({"lock_duratoin": timedelta(seconds=5)}, "'LockDuratoin' is not a property of a queue."),
        ({"max_delivery_count": 0}, "The value supplied must be between 1 and"),
        ({"x><y": 1}, "'x><y' is no setting"),
    ],
    ids=str,
)
def test_a_setting_that_cannot_be_is_refused_with_the_reason(
    namespace: LocalNamespace, settings: dict[str, object], said: str
) -> None:
    with pytest.raises(ValueError) as caught:
        namespace.queue("q", **settings)
    assert said in str(caught.value)
    with pytest.raises(EntityNotFound):
        namespace.counts("q")


def test_a_name_that_is_taken_or_none_is_refused(namespace: LocalNamespace) -> None:
    namespace.queue("q")
    with pytest.raises(ValueError, match="queue 'Q': Conflict"):
        namespace.queue("Q")
    with pytest.raises(ValueError, match="letters, digits"):
        namespace.queue("a b")
    with pytest.raises(ValueError, match="a namespace's name is letters, digits and '-'"):
        LocalNamespace("my namespace")


# -- messages ----------------------------------------------------------------------------------------------------------


def test_messages_are_counted_and_looked_at_in_every_state(namespace: LocalNamespace) -> None:
    queue = namespace.queue()
    later_ms = int((namespace.now() + timedelta(hours=1)).timestamp() * 1000)
    scheduled = OutgoingMessage("scheduled", scheduled_enqueue_time_ms=later_ms)
    namespace.send(queue, "locked", "deferred", "dead", b"waiting", scheduled)
    with (
        ServiceBusClient.from_connection_string(namespace.connection_string) as client,
        client.get_queue_receiver(queue) as receiver,
    ):
        _, deferred, dead = receiver.receive_messages(max_message_count=3, max_wait_time=5)
        receiver.defer_message(deferred)
        receiver.dead_letter_message(dead, reason="why", error_description="because")
        assert namespace.counts(queue) == Counts(active=2, scheduled=1, deferred=1, dead_letters=1)
        assert sorted(message.body for message in namespace.peek(queue)) == [
            b"deferred",
            b"locked",
            b"scheduled",
            b"waiting",
        ]
    (dead_letter,) = namespace.dead_letters(queue)
    assert (dead_letter.body, dead_letter.dead_letter_reason) == (b"dead", "why")


def test_more_messages_than_one_look_shows_are_all_seen(namespace: LocalNamespace) -> None:
    queue = namespace.queue()
    namespace.send(queue, *(f"{number:04}" + "x" * 2_000 for number in range(1_500)))
    assert [message.body[:4] for message in namespace.peek(queue)] == [b"%04d" % number for number in range(1_500)]


# -- time and trouble --------------------------------------------------------------------------------------------------


def test_time_passes_when_it_is_told_to(namespace: LocalNamespace) -> None:
    before = namespace.now()
    assert abs(before - datetime.now(UTC)) < timedelta(minutes=1)
    namespace.advance(timedelta(days=100))
    namespace.advance(0.5)
    assert timedelta(days=100, seconds=0.5) <= namespace.now() - before < timedelta(days=100, minutes=1)
    with pytest.raises(ValueError, match="time does not go back"):
        namespace.advance(timedelta(seconds=-1))


def test_a_client_whose_connection_was_cut_connects_again_by_itself(namespace: LocalNamespace) -> None:
    queue = namespace.queue()
    with (
        ServiceBusClient.from_connection_string(namespace.connection_string, retry_backoff_factor=0.01) as client,
        client.get_queue_sender(queue) as sender,
    ):
        sender.send_messages(ServiceBusMessage("before"))
        namespace.cut_connections()
        sender.send_messages(ServiceBusMessage("after"))
    assert [message.body for message in namespace.peek(queue)] == [b"before", b"after"]


async def test_everything_can_be_called_from_a_coroutine() -> None:
    async with LocalNamespace() as namespace:
        queue = namespace.queue(lock_duration=timedelta(seconds=5))
        namespace.send(queue, "x")
        client = AsyncServiceBusClient.from_connection_string(namespace.connection_string)
        async with client, client.get_queue_receiver(queue) as receiver:
            await receiver.receive_messages(max_wait_time=5)
            again = asyncio.create_task(receiver.receive_messages(max_wait_time=5))
            namespace.advance(timedelta(seconds=6))
            assert [message.delivery_count for message in await again] == [1]
        async with namespace.administration_aio() as administration:
            assert (await administration.get_queue(queue)).lock_duration == timedelta(seconds=5)
        assert namespace.counts(queue).active == 1


def test_a_namespace_can_be_had_that_throttles() -> None:
    with LocalNamespace("slow", limits={"operations-per-second": 1}) as namespace:
        queue = namespace.queue()
        with pytest.raises(ServerBusy):
            namespace.send(queue, *("x" for _ in range(50)))
    with pytest.raises(ValueError, match="there is no limit 'speed'; there are: operations-per-second"):
        LocalNamespace(limits={"speed": 1})


# -- its life ----------------------------------------------------------------------------------------------------------


def test_namespaces_know_nothing_of_each_other() -> None:
    with LocalNamespace("one") as one, LocalNamespace("two") as two:
        one.queue("q")
        two.queue("q")
        one.send("q", "x")
        two.advance(timedelta(days=1))
        assert (one.counts("q").active, two.counts("q").active) == (1, 0)
        assert two.now() - one.now() > timedelta(hours=23)
        assert one.port != two.port


def open_files() -> set[str]:
    """What this process has open, without what comes and goes with the interpreter."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue
    return {link for link in found if link.startswith(("socket:", "anon_inode:", "/tmp"))}


def test_nothing_is_left_of_a_namespace() -> None:
    with LocalNamespace() as namespace:  # what is made once in a process
        namespace.queue()
    gc.collect()
    threads, files = [thread.name for thread in threading.enumerate()], open_files()
    temporary = set(os.listdir(tempfile.gettempdir()))
    for _ in range(5):
        with LocalNamespace() as namespace:
            queue = namespace.queue()
            namespace.send(queue, "x")
            administration = namespace.administration()
            administration.get_queue(queue)
            port = namespace.port
            careless = [socket.create_connection(("localhost", port)) for _ in range(2)]  # nobody waits for them
            careless[1].sendall(b"AMQP\x03\x01\x00\x00")
            assert careless[1].recv(8) == b"AMQP\x03\x01\x00\x00"
        administration.close()
        for sock in careless:
            sock.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("localhost", port))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        gc.collect()
    assert [str(warning.message) for warning in warned] == []
    assert [thread.name for thread in threading.enumerate()] == threads
    assert open_files() == files
    assert {name for name in set(os.listdir(tempfile.gettempdir())) - temporary if name.startswith("spillway")} == set()


def test_a_namespace_is_used_while_it_is_open_and_may_be_opened_again() -> None:
    namespace = LocalNamespace()
    with pytest.raises(RuntimeError, match="the namespace local is not open: use it in a `with` block"):
        namespace.queue()
    namespace.start()
    with pytest.raises(RuntimeError, match="the namespace local is open already"):
        namespace.start()
    namespace.queue("q")
    assert repr(namespace) == f"<LocalNamespace local, port {namespace.port}>"
    namespace.close()
    namespace.close()
    assert repr(namespace) == "<LocalNamespace local, closed>"
    with namespace:
        assert namespace.queue("q") == "q", "nothing is kept"


def test_a_broker_that_breaks_fails_the_test_that_used_it() -> None:
    def broken() -> None:
        with LocalNamespace() as namespace:
            host = namespace._host

            async def fail() -> None:
                host.server.pump.on_failed(ValueError("planted"))

            host.run(fail())

    with pytest.raises(NamespaceFailed, match=r"the broker of local failed: ValueError\('planted'\)"):
        broken()


# -- what can be sent --------------------------------------------------------------------------------------------------


def test_a_message_of_the_sdk_arrives_with_everything_on_it() -> None:
    sent = ServiceBusMessage(
        "a body",
        message_id="one",
        session_id="s",
        subject="order",
        to="there",
        reply_to="here",
        reply_to_session_id="r",
        correlation_id="c",
        content_type="text/plain",
        partition_key="s",
        time_to_live=timedelta(minutes=5),
        application_properties={"count": 3, "is_late": True, "s": "x"},
    )
    with LocalNamespace() as namespace:
        queue = namespace.queue(requires_session=True)
        namespace.send(queue, sent)
        with (
            ServiceBusClient.from_connection_string(namespace.connection_string) as client,
            client.get_queue_receiver(queue, session_id="s") as receiver,
        ):
            (got,) = receiver.receive_messages(max_wait_time=5)
    assert (str(got), got.message_id, got.session_id, got.partition_key) == ("a body", "one", "s", "s")
    assert (got.subject, got.to, got.reply_to, got.reply_to_session_id) == ("order", "there", "here", "r")
    assert (got.correlation_id, got.content_type, got.time_to_live) == ("c", "text/plain", timedelta(minutes=5))
    properties = got.application_properties
    assert properties is not None
    assert properties[b"count"] == 3
    assert properties[b"is_late"] is True
    assert properties[b"s"] == b"x"


def test_whatever_a_test_has_at_hand_can_be_sent() -> None:
    scheduled = ServiceBusMessage("later")
    with LocalNamespace() as namespace:
        queue = namespace.queue()
        scheduled.scheduled_enqueue_time_utc = namespace.now() + timedelta(hours=1)
        namespace.send(queue, "text", b"bytes", {"order": 17}, OutgoingMessage("own"), ["one", b"two"], ("three",), [])
        namespace.send(queue, scheduled)
        found = namespace.peek(queue)
        counts = namespace.counts(queue)
    bodies = [message.body for message in found]
    assert bodies == [b"text", b"bytes", b'{"order": 17}', b"own", b"one", b"two", b"three", b"later"]
    assert found[2].properties is not None
    assert found[2].properties.content_type == "application/json"
    assert (counts.active, counts.scheduled) == (7, 1)


@pytest.mark.parametrize("wrong", [17, None, object(), {1, 2}])
def test_what_cannot_be_sent_is_said_with_what_can(wrong: object) -> None:
    with LocalNamespace() as namespace:
        queue = namespace.queue()
        with pytest.raises(TypeError, match=rf"send takes a text, bytes, a dict .*; not {type(wrong).__name__}"):
            namespace.send(queue, wrong)  # type: ignore[arg-type]


# -- its log -----------------------------------------------------------------------------------------------------------


def test_the_log_of_a_namespace_is_its_own_and_not_the_programs(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with LocalNamespace("one") as one, LocalNamespace("two") as two:
        queue = one.queue()
        wrong = one.connection_string.replace("SAS_KEY_VALUE", "hush")
        client = ServiceBusClient.from_connection_string(wrong, retry_total=0)
        with client, pytest.raises(ServiceBusAuthenticationError), client.get_queue_sender(queue):
            pass
        logging.getLogger("spillway.server.elsewhere").warning("a broker of another kind")
        logging.getLogger("program").info("its own line")
    assert any("spillway.audit refused namespace=one what=put-token" in line for line in one.log.lines)
    assert any("namespace=one client=127.0.0.1 connected" in line for line in one.log.lines)
    assert not any("namespace=one" in line or "refused" in line for line in two.log.lines)
    assert not any("hush" in line for line in one.log.lines)
    ours = [record.getMessage() for record in caplog.records if record.name.startswith(("spillway", "program"))]
    assert ours == ["a broker of another kind", "its own line"]


def test_loggers_are_left_as_they_were() -> None:
    def state() -> list[tuple[int, bool, int]]:
        loggers = [logging.getLogger(name) for name in LOGGERS]
        return [(logger.level, logger.propagate, len(logger.handlers)) for logger in loggers]

    before = state()
    with LocalNamespace(), LocalNamespace():
        assert state() != before
    assert state() == before


def test_a_log_keeps_its_last_lines_and_knows_which_are_new() -> None:
    log = NamespaceLog()
    for number in range(LINES_MAX + 10):
        log.add(f"line {number}")
    assert (len(log.lines), log.lines[0]) == (LINES_MAX, "line 10")
    assert log.since(LINES_MAX + 8) == [f"line {LINES_MAX + 8}", f"line {LINES_MAX + 9}"]
    assert log.since(log.count) == []


def test_the_authority_is_one_for_all_namespaces_of_a_process() -> None:
    with LocalNamespace("one") as one, LocalNamespace("two") as two:
        assert one.ca_file == two.ca_file
        assert Path(one.ca_file).read_text().startswith("-----BEGIN CERTIFICATE-----")
