"""Preflight with a secondary that is away, silent, half there or not trusted: how long it takes and what it says."""

import asyncio
import datetime
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusConnectionError
from azure.servicebus.management import QueueProperties

import spillway
from spillway.client.faults import Fault, RemoteFaults
from spillway.paired import (
    FactoryClosed,
    MessagingFactory,
    NamespaceManager,
    PairingError,
    SendAvailabilityPairedNamespaceOptions,
)
from spillway.paired.preflight import QUEUES_AT_A_TIME
from spillway.paired.problems import SUMMARY_CHARS_MAX, is_untrusted, one_line, summary
from tests.paired.namespaces import NO_KEEP_ALIVE, Namespaces

AT_ONCE = datetime.timedelta(0)
TIMEOUT_S = 2.0
SLACK_S = 1.5  # for a machine that is busy
KEY = "SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE"


def local(port: int) -> str:
    return f"Endpoint=sb://localhost:{port};{KEY};UseDevelopmentEmulator=true;"


class Setup:
    """A primary that is well, and options that lead to one secondary or another."""

    def __init__(self, primary: MessagingFactory, secondary: MessagingFactory, manager: NamespaceManager) -> None:
        self.primary = primary
        self.secondary = secondary
        self.manager = manager

    def options(self, count: int = 10, *, enable_syphon: bool = False) -> SendAvailabilityPairedNamespaceOptions:
        return SendAvailabilityPairedNamespaceOptions(self.manager, self.secondary, count, AT_ONCE, enable_syphon)

    async def refused(self, options: SendAvailabilityPairedNamespaceOptions) -> tuple[PairingError, float]:
        """Why it cannot be paired, and how long it took to hear it."""
        began_s = time.monotonic()
        with pytest.raises(PairingError) as refused:
            await self.primary.pair_namespace(options)
        return refused.value, time.monotonic() - began_s


@asynccontextmanager
async def leading_to(
    namespaces: Namespaces, conn_str: str, manager: NamespaceManager | None = None, timeout_s: float = TIMEOUT_S
) -> AsyncIterator[Setup]:
    name = namespaces.unique_name()
    primary = namespaces.primary_factory(namespace_name=name, operation_timeout=timeout_s)
    secondary = MessagingFactory.from_connection_string(conn_str, **NO_KEEP_ALIVE)
    manager = manager or NamespaceManager.from_connection_string(conn_str)
    async with primary, secondary, manager:
        yield Setup(primary, secondary, manager)


# -- options ----------------------------------------------------------------------------------------------------------


async def test_options_of_a_try_that_failed_can_be_used_again(namespaces: Namespaces) -> None:
    path = namespaces.queue()
    away = namespaces.refuse(path)
    faults = RemoteFaults(namespaces.secondary.connection_string)
    async with leading_to(namespaces, namespaces.secondary.connection_string, timeout_s=10.0) as setup:
        options = setup.options(3)
        before = {name: getattr(options, name) for name in vars(options)}
        with faults.planted(Fault("refuse", "*", ["administration"], condition="amqp:not-allowed")):
            for _ in range(2):
                await setup.refused(options)
        assert {name: getattr(options, name) for name in vars(options)} == before
        await setup.primary.pair_namespace(options)
        assert options.backlog_queue_count == 3
        await setup.primary.create_message_sender(path).send_messages(ServiceBusMessage("x"))
        assert setup.primary.counters["diverted"] == 1
        away.clear()


async def test_options_of_a_factory_that_was_closed_can_be_used_again(namespaces: Namespaces) -> None:
    async with leading_to(namespaces, namespaces.secondary.connection_string, timeout_s=10.0) as setup:
        options = setup.options(1)
        await setup.primary.pair_namespace(options)
        async with namespaces.primary_factory(namespace_name=namespaces.unique_name()) as other:
            with pytest.raises(PairingError, match="options: another factory is paired with them"):
                await other.pair_namespace(options)
            await setup.primary.close()
            await other.pair_namespace(options)
            assert other.pairing is options.pairing


async def test_options_belong_to_the_factory_that_is_being_paired_with_them(namespaces: Namespaces) -> None:
    faults = RemoteFaults(namespaces.secondary.connection_string)
    async with leading_to(namespaces, namespaces.secondary.connection_string, timeout_s=10.0) as setup:
        options = setup.options(1)
        with faults.planted(Fault("slow", "*", ["administration"], delay_ms=500)):
            pairing = asyncio.create_task(setup.primary.pair_namespace(options))
            await asyncio.sleep(0)
            async with namespaces.primary_factory(namespace_name=namespaces.unique_name()) as other:
                with pytest.raises(PairingError, match="options: another factory is paired with them"):
                    await other.pair_namespace(options)
            with pytest.raises(PairingError, match="pair_namespace: this factory is being paired already"):
                await setup.primary.pair_namespace(setup.options(1))
            await pairing


async def test_what_is_read_once_cannot_be_set_later(namespaces: Namespaces) -> None:
    async with leading_to(namespaces, namespaces.secondary.connection_string) as setup:
        options = setup.options(1)
        for name in ("enable_syphon", "failover_interval", "pending", "policy", "messaging_factory"):
            with pytest.raises(AttributeError, match=name):
                setattr(options, name, "nonsense")
        with pytest.raises(AttributeError, match="backlog_queue_count"):
            options.backlog_queue_count = 3  # type: ignore[misc]
        options.ping_primary_interval = datetime.timedelta(seconds=5)
        with pytest.raises(TypeError, match="ping_primary_interval must be a timedelta"):
            options.ping_primary_interval = 5  # type: ignore[assignment]


# -- one deadline -----------------------------------------------------------------------------------------------------


async def test_a_secondary_that_is_frozen_takes_one_time_out_however_many_queues(namespaces: Namespaces) -> None:
    async with leading_to(namespaces, namespaces.secondary.connection_string) as setup:
        options = setup.options(10)
        namespaces.secondary.pause()
        try:
            error, took_s = await setup.refused(options)
        finally:
            namespaces.secondary.resume()
        assert took_s < TIMEOUT_S + SLACK_S
        assert "For all 10 queues: no answer within 2 s, the operation_timeout" in str(error)
        assert error.is_transient
        await setup.primary.pair_namespace(options)
        assert options.backlog_queue_count == 10


async def test_a_socket_that_accepts_and_never_answers_takes_one_time_out(namespaces: Namespaces) -> None:
    is_over = asyncio.Event()

    async def listen(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await is_over.wait()
        writer.close()

    server = await asyncio.start_server(listen, "localhost", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        async with leading_to(namespaces, local(port)) as setup:
            _, took_s = await setup.refused(setup.options(10))
            assert took_s < TIMEOUT_S + SLACK_S
    finally:
        server.close()
        is_over.set()
        await asyncio.sleep(0)


class Frozen(NamespaceManager):
    """Finds everything, and then nothing answers any more: the broker is frozen between two steps of preflight."""

    namespaces: Namespaces

    async def ensure_backlog_queue(self, path: str) -> tuple[QueueProperties, bool]:
        made = await super().ensure_backlog_queue(path)
        self.namespaces.secondary.pause()
        return made


@pytest.mark.parametrize("enable_syphon", [False, True])
async def test_a_secondary_that_falls_silent_before_the_keys_are_tried_takes_the_same_time_out(
    namespaces: Namespaces, enable_syphon: bool
) -> None:
    manager = Frozen.from_connection_string(namespaces.secondary.connection_string)
    manager.namespaces = namespaces
    try:
        async with leading_to(namespaces, namespaces.secondary.connection_string, manager) as setup:
            error, took_s = await setup.refused(setup.options(1, enable_syphon=enable_syphon))
            namespaces.secondary.resume()
        assert took_s < TIMEOUT_S + SLACK_S
        assert str(error).startswith("messaging_factory: it cannot send to ")
    finally:
        namespaces.secondary.resume()


async def test_a_secondary_that_refuses_connections_is_told_at_once_and_once(
    namespaces: Namespaces, unused_tcp_port: int
) -> None:
    async with leading_to(namespaces, local(unused_tcp_port), timeout_s=10.0) as setup:
        error, took_s = await setup.refused(setup.options(10))
        assert took_s < 5.0, "there is nothing to wait for"
        assert "For all 10 queues: Cannot connect to host" in str(error)
        assert str(error).count("x-servicebus-transfer") <= 1
        assert len(str(error)) < 400
        assert error.is_transient


@pytest.fixture
def unused_tcp_port() -> int:
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


async def test_queues_that_do_not_answer_in_time_are_missed_and_the_others_are_used(namespaces: Namespaces) -> None:
    faults = RemoteFaults(namespaces.secondary.connection_string)
    async with leading_to(namespaces, namespaces.secondary.connection_string) as setup:
        slow = [f"{setup.primary.namespace_name}/x-servicebus-transfer/{index}" for index in (0, 5)]
        options = setup.options(6)
        for path in slow:
            faults.add(Fault("slow", path, ["administration"], delay_ms=3_000))
        try:
            began_s = time.monotonic()
            await setup.primary.pair_namespace(options)
            took_s = time.monotonic() - began_s
        finally:
            faults.clear()
        assert took_s < TIMEOUT_S + SLACK_S
        assert options.backlog_queue_count == 4
        assert setup.primary.pairing is not None
        assert setup.primary.pairing.missed_backlog_paths == slow
        assert setup.primary.counters["backlog-queue-removed"] == 2


class Counting(NamespaceManager):
    """Knows how many queues are looked at side by side."""

    now_count = 0
    most_count = 0

    async def ensure_backlog_queue(self, path: str) -> tuple[QueueProperties, bool]:
        self.now_count += 1
        self.most_count = max(self.most_count, self.now_count)
        try:
            return await super().ensure_backlog_queue(path)
        finally:
            self.now_count -= 1


async def test_a_few_queues_are_looked_at_side_by_side_and_no_more(namespaces: Namespaces) -> None:
    manager = Counting.from_connection_string(namespaces.secondary.connection_string)
    async with leading_to(namespaces, namespaces.secondary.connection_string, manager, 10.0) as setup:
        await setup.primary.pair_namespace(setup.options(10))
        assert manager.most_count == QUEUES_AT_A_TIME


async def test_a_factory_that_is_closed_while_it_is_paired_is_not_paired(namespaces: Namespaces) -> None:
    faults = RemoteFaults(namespaces.secondary.connection_string)
    async with leading_to(namespaces, namespaces.secondary.connection_string, timeout_s=10.0) as setup:
        options = setup.options(1, enable_syphon=True)
        with faults.planted(Fault("slow", "*", ["administration"], delay_ms=500)):
            pairing = asyncio.create_task(setup.primary.pair_namespace(options))
            await asyncio.sleep(0.1)
            await setup.primary.close()
            with pytest.raises(FactoryClosed):
                await pairing
        assert setup.primary.pairing is None
        assert setup.primary.syphon is None
        assert not options.is_in_use


# -- what is said -----------------------------------------------------------------------------------------------------


async def test_a_key_that_is_not_good_is_told_once_with_what_the_service_said(namespaces: Namespaces) -> None:
    wrong = namespaces.secondary_with("both", "d3Jvbmc=")
    async with leading_to(namespaces, wrong, timeout_s=10.0) as setup:
        error, _ = await setup.refused(setup.options(10))
        assert "For all 10 queues: " in str(error)
        assert "token is invalid" in str(error)
        assert "TrackingId" not in str(error)
        assert not error.is_transient
    right = NamespaceManager.from_connection_string(namespaces.secondary.connection_string)
    async with leading_to(namespaces, wrong, right, 10.0) as setup:
        error, _ = await setup.refused(setup.options(1))
        assert "Check SharedAccessKeyName and SharedAccessKey" in str(error)
        assert not error.is_transient


def test_one_cause_of_all_queues_is_told_once_and_several_by_how_many_they_met() -> None:
    paths = [f"n/x-servicebus-transfer/{index}" for index in range(10)]
    same = {path: OSError(f"'{path}' cannot be reached. TrackingId:{path}_G1, SystemTracker:a, x") for path in paths}
    assert summary(dict(same), "NamespaceManager") == (
        "For all 10 queues: 'n/x-servicebus-transfer/…' cannot be reached, x"
    )
    mixed: dict[str, BaseException] = {path: OSError("gone") for path in paths}
    mixed[paths[3]] = OSError("odd")
    assert summary(mixed, "NamespaceManager") == f"For {paths[0]} and 8 more: gone; for {paths[3]}: odd"


def test_however_many_causes_there_are_the_text_has_a_bound() -> None:
    problems = {f"n/x-servicebus-transfer/{index}": OSError(f"cause {index} " + "x" * 5_000) for index in range(1_000)}
    told = summary(dict(problems), "NamespaceManager")
    assert len(told) <= SUMMARY_CHARS_MAX
    assert "cause 0" in told
    few = {f"n/x-servicebus-transfer/{index}": OSError(f"cause {index}") for index in range(9)}
    assert summary(dict(few), "NamespaceManager").endswith("; and 6 other causes")


def test_an_error_without_words_is_told_by_its_name() -> None:
    assert one_line(HttpResponseError(), "NamespaceManager") != ""
    assert one_line(OSError(), "NamespaceManager") == "OSError"


# -- TLS --------------------------------------------------------------------------------------------------------------


def over_tls(namespaces: Namespaces) -> str:
    return namespaces.secondary.connection_string.replace("UseDevelopmentEmulator=true;", "")


async def test_a_manager_that_does_not_trust_the_broker_is_told_how_to(namespaces: Namespaces) -> None:
    async with leading_to(namespaces, over_tls(namespaces), timeout_s=10.0) as setup:
        error, took_s = await setup.refused(setup.options(10))
    assert took_s < 5.0, "trying again does not help"
    assert not error.is_transient
    for part in ("the certificate is not trusted", "ca_file= to NamespaceManager", "SSL_CERT_FILE", "tls/ca.pem"):
        assert str(error).count(part) == 1, part


async def test_a_factory_that_does_not_trust_the_broker_is_told_how_to(namespaces: Namespaces) -> None:
    name = namespaces.unique_name()
    primary = namespaces.primary_factory(namespace_name=name)
    secondary = MessagingFactory.from_connection_string(
        over_tls(namespaces), custom_endpoint_address=f"sb://localhost:{namespaces.secondary.port}"
    )
    async with primary, secondary, namespaces.manager() as manager:
        with pytest.raises(PairingError, match="messaging_factory: it cannot send to .*not trusted") as refused:
            await primary.pair_namespace(SendAvailabilityPairedNamespaceOptions(manager, secondary, 2))
    for part in ("ca_file= to MessagingFactory", "tls/ca.pem"):
        assert part in str(refused.value)
    assert not refused.value.is_transient


def test_an_untrusted_certificate_is_seen_in_what_the_sdk_says_of_a_plain_connection() -> None:
    said = "Failed to initiate the connection due to exception: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify"
    assert is_untrusted(ServiceBusConnectionError(message=said))
    assert not is_untrusted(ServiceBusConnectionError(message="Failed to initiate the connection"))


TRUSTING = """
import asyncio, sys
from spillway.paired import MessagingFactory, NamespaceManager, SendAvailabilityPairedNamespaceOptions

async def main(primary, secondary, over_tls, name):
    first = MessagingFactory.from_connection_string(primary, namespace_name=name)
    second = MessagingFactory.from_connection_string(secondary)
    manager = NamespaceManager.from_connection_string(over_tls)
    async with first, second, manager:
        options = SendAvailabilityPairedNamespaceOptions(manager, second, 2)
        await first.pair_namespace(options)
        print(options.backlog_queue_count)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize(("variable", "is_read"), [("SSL_CERT_FILE", True), ("REQUESTS_CA_BUNDLE", False)])
def test_the_variable_that_is_named_is_the_one_that_works(namespaces: Namespaces, variable: str, is_read: bool) -> None:
    assert namespaces.secondary.ca_file is not None
    environment = {**os.environ, "PYTHONPATH": str(Path(spillway.__file__).parent.parent)}
    environment[variable] = namespaces.secondary.ca_file
    arguments = [namespaces.primary.connection_string, namespaces.secondary.connection_string, over_tls(namespaces)]
    done = subprocess.run(
        [sys.executable, "-c", TRUSTING, *arguments, namespaces.unique_name()],
        env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.stdout == "2\n") is is_read, done.stderr
    assert ("the certificate is not trusted" in done.stderr) is not is_read


@pytest.mark.parametrize("is_clear_text", [True, False])
async def test_a_local_broker_is_administered_in_clear_text_unless_an_authority_is_given(
    namespaces: Namespaces, is_clear_text: bool
) -> None:
    """The relay sees the first byte: 22 is a TLS handshake."""
    first_bytes: list[int] = []
    ended: list[asyncio.Event] = []

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ended.append(is_over := asyncio.Event())
        head = await reader.read(1)
        first_bytes.extend(head)
        there_reader, there_writer = await asyncio.open_connection("localhost", namespaces.secondary.port)
        there_writer.write(head)
        await asyncio.gather(_copy(reader, there_writer), _copy(there_reader, writer))
        is_over.set()

    server = await asyncio.start_server(relay, "localhost", 0)
    port = server.sockets[0].getsockname()[1]
    at = namespaces.secondary.connection_string.replace(f":{namespaces.secondary.port}", f":{port}")
    ca_file = None if is_clear_text else namespaces.secondary.ca_file
    async with NamespaceManager.from_connection_string(at, ca_file=ca_file) as manager:
        path = f"{namespaces.unique_name()}/x-servicebus-transfer/0"
        _, is_new = await manager.ensure_backlog_queue(path)
        _, is_new_again = await manager.ensure_backlog_queue(path)
    server.close()
    await asyncio.gather(*(each.wait() for each in ended))
    assert (is_new, is_new_again) == (True, False)
    assert first_bytes and set(first_bytes) <= ({ord("G"), ord("P")} if is_clear_text else {22})


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()
