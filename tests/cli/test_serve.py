"""`spillway serve` as users and scripts see it: a process, its one line, its exit status."""

import json
import os
import re
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from azure.core.exceptions import HttpResponseError
from azure.servicebus import ServiceBusClient, ServiceBusMessage, TransportType
from azure.servicebus.exceptions import ServiceBusAuthenticationError
from azure.servicebus.management import ServiceBusAdministrationClient

from spillway.amqp.connection import Connection, ConnectionOptions
from spillway.amqp.events import ConnectionClosed, ConnectionEvent, ConnectionOpened
from spillway.cli.errors import UsageError
from spillway.cli.parts.serve_plan import EntityPlan, ServePlan
from spillway.cli.parts.serving import names_text
from spillway.cli.serve import make_plan, parse_host
from spillway.model.entity import QUEUE, SUBSCRIPTION, TOPIC
from spillway.server.memory import memory_mb_default
from tests.emulator_config.sample_config import SAMPLE
from tests.tools.broker_process import PACKAGE_PARENT, BrokerProcess

READY_S_MAX = 15.0  # alone it takes well under one; the machine of the tests may be busy


def spillway(*options: str, cwd: Path, timeout_s: float = 30) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "spillway", *options],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(PACKAGE_PARENT)},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def assert_one_line(result: subprocess.CompletedProcess[str], code: int, pattern: str) -> None:
    assert result.returncode == code, result.stderr
    assert result.stdout == ""
    lines = [line for line in result.stderr.splitlines() if line.startswith("spillway: ")]
    assert len(lines) == 1, result.stderr
    assert re.search(pattern, lines[0]), lines[0]
    assert "Traceback" not in result.stderr


def plan(**given: object) -> ServePlan:
    usual: dict[str, object] = {
        "namespaces": [],
        "host": "localhost",
        "data": None,
        "is_development": False,
        "config": None,
        "queues": [],
        "topics": [],
        "subscriptions": [],
        "is_memory": False,
        "also_listen": [],
        "allow_hosts": [],
        "is_clear_text_allowed": False,
        "is_clock_movable": False,
        "limits": [],
        "loop": "auto",
        "delivers_early": True,
        "is_json": False,
        "is_verbose": False,
    }
    return make_plan(**{**usual, **given})  # type: ignore[arg-type]


def send(connection_string: str, queue: str, text: str) -> None:
    with (
        ServiceBusClient.from_connection_string(connection_string) as client,
        client.get_queue_sender(queue) as sender,
    ):
        sender.send_messages(ServiceBusMessage(text))


def receive(connection_string: str, queue: str) -> list[str]:
    with (
        ServiceBusClient.from_connection_string(connection_string) as client,
        client.get_queue_receiver(queue) as receiver,
    ):
        messages = receiver.receive_messages(max_message_count=10, max_wait_time=5)
        for message in messages:
            receiver.complete_message(message)
        return [str(message) for message in messages]


# -- what is asked for ---------------------------------------------------------------------------------------------


def test_without_options_one_namespace_is_served_where_the_emulator_would_be() -> None:
    made = plan()
    assert [(each.name, each.port) for each in made.namespaces] == [("sbemulatorns", 5672)]
    assert made.data == Path("spillway-data")
    assert not made.is_memory


def test_a_queue_is_made_in_every_namespace() -> None:
    made = plan(namespaces=["a=1", "b=2"], queues=["orders"])
    assert [each.entities for each in made.namespaces] == [[EntityPlan(QUEUE, "orders")]] * 2


def test_a_topic_comes_before_its_subscriptions_and_each_is_asked_for_once() -> None:
    (made,) = plan(queues=["q"], topics=["t"], subscriptions=["t/a", "T/b", "x/y/c", "t/A"]).namespaces
    assert [(each.kind, each.path) for each in made.entities] == [
        (QUEUE, "q"),
        (TOPIC, "t"),
        (SUBSCRIPTION, "t/Subscriptions/a"),
        (SUBSCRIPTION, "T/Subscriptions/b"),
        (TOPIC, "x/y"),
        (SUBSCRIPTION, "x/y/Subscriptions/c"),
    ]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"namespaces": ["a"]}, "must be NAME=PORT"),
        ({"namespaces": ["a=x"]}, "must be NAME=PORT"),
        ({"namespaces": ["a=-1"]}, "must be NAME=PORT"),
        ({"namespaces": ["a=٣"]}, "must be NAME=PORT"),
        ({"namespaces": ["a=70000"]}, "between 1 and 65535"),
        ({"namespaces": ["=5672"]}, "a namespace's name is"),
        ({"namespaces": ["../x=5672"]}, "a namespace's name is"),
        ({"namespaces": ["lock=5672"]}, "any but lock and tls"),
        ({"namespaces": ["TLS=5672"]}, "any but lock and tls"),
        ({"namespaces": ["a=1", "A=2"]}, "there is a namespace a already"),
        ({"namespaces": ["a=5672", "b=5672"]}, "port 5672 is asked for twice"),
        ({"also_listen": [5672]}, "port 5672 is asked for twice"),
        ({"also_listen": [-5]}, "between 1 and 65535"),
        ({"queues": ["bad name"]}, "letters, digits"),
        ({"topics": ["bad name"]}, "--topic bad name: an entity name has letters, digits"),
        ({"topics": ["t/Subscriptions/s"]}, "a name without '/Subscriptions/'"),
        ({"subscriptions": ["s"]}, "--subscription s: must be TOPIC/NAME"),
        ({"subscriptions": ["/s"]}, "--subscription /s: must be TOPIC/NAME"),
        ({"subscriptions": ["t/"]}, "must not be empty"),
        ({"subscriptions": ["t/$x"]}, "begins and ends with a letter or a digit"),
        ({"subscriptions": ["bad name/s"]}, "letters, digits"),
        ({"limits": ["connections"]}, "--limit connections: must be NAME=NUMBER"),
        ({"limits": ["connections=-1"]}, "--limit connections=-1: must be NAME=NUMBER"),
        ({"limits": ["connections=many"]}, "must be NAME=NUMBER"),
        ({"limits": ["connections=0"]}, "--limit connections=0: connections is between 1 and 100000, not 0"),
        ({"limits": ["store-mb=9999999999"]}, "between 1 and 1073741824, or 0 for no limit, not 9999999999"),
        ({"limits": ["messages=5"]}, "--limit messages=5: there is no limit 'messages'; there are: operations-per-"),
        ({"loop": "trio"}, "--loop trio: must be auto, uvloop or asyncio"),
        ({"is_development": True, "host": "0.0.0.0"}, "serves this machine only"),
        ({"is_development": True, "host": "broker.example"}, "serves this machine only"),
    ],
)
def test_a_bad_option_is_named_with_what_is_allowed(given: dict[str, object], text: str) -> None:
    with pytest.raises(UsageError, match=re.escape(text)):
        plan(**given)


def test_memory_is_limited_to_most_of_what_there_is_and_nothing_else_is_throttled() -> None:
    quotas = plan().quotas
    assert quotas.memory_mb == memory_mb_default() > 0
    assert (quotas.operations_per_second, quotas.entity_operations_per_second, quotas.store_mb) == (0, 0, 0)


def test_nothing_is_throttled_in_development_unless_asked_for() -> None:
    quotas = plan(is_development=True).quotas
    assert (quotas.operations_per_second, quotas.memory_mb, quotas.store_mb) == (0, 0, 0)
    quotas = plan(is_development=True, limits=["operations-per-second=50", "memory-mb=200"]).quotas
    assert (quotas.operations_per_second, quotas.memory_mb) == (50, 200)


def test_a_limit_of_the_command_line_holds_in_every_namespace(tmp_path: Path) -> None:
    options = ["--limit", "entities=1", "--queue", "q"]
    with BrokerProcess(tmp_path / "data", namespaces=("one", "two"), options=options) as broker:
        for listening in broker.namespaces.values():
            with (
                ServiceBusAdministrationClient.from_connection_string(
                    listening.connection_string, connection_verify=listening.ca_file, retry_total=0
                ) as client,
                pytest.raises(HttpResponseError, match="limit entities"),
            ):
                client.create_queue("another")


def config_file(path: Path, *namespaces: str) -> Path:
    queue = {"Name": "orders", "Properties": {"LockDuration": "PT30S", "MaxDeliveryCount": 5}}
    named = [{"Name": name, "Queues": [queue]} for name in namespaces]
    path.write_text(json.dumps({"UserConfig": {"Namespaces": named}}))
    return path


def test_a_configuration_names_the_namespace_and_its_queues(tmp_path: Path) -> None:
    made = plan(config=config_file(tmp_path / "Config.json", "mine"))
    assert [(each.name, each.port) for each in made.namespaces] == [("mine", 5672)]
    (orders,) = made.namespaces[0].entities
    assert (orders.kind, orders.path) == (QUEUE, "orders")
    assert orders.settings is not None
    assert orders.settings.lock_duration_ms == 30_000


def test_what_a_configuration_says_of_an_entity_stands_against_an_option(tmp_path: Path) -> None:
    (made,) = plan(config=config_file(tmp_path / "Config.json", "mine"), queues=["Orders", "more"]).namespaces
    assert [(each.path, each.settings is None) for each in made.entities] == [("orders", False), ("more", True)]


@pytest.mark.parametrize("name", ["lock", "tls", "Lock"])
def test_a_configuration_cannot_name_a_namespace_like_something_in_the_data_directory(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(UsageError, match=r"Namespaces\[0\].Name.*any but lock and tls"):
        plan(config=config_file(tmp_path / "Config.json", name))


def test_namespaces_of_a_configuration_without_a_port_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--namespace one=5672 --namespace two=5673"):
        plan(config=config_file(tmp_path / "Config.json", "one", "two"))
    with pytest.raises(UsageError, match="namespace two is not served"):
        plan(config=config_file(tmp_path / "Config.json", "one", "two"), namespaces=["one=5672"])


# -- the process -----------------------------------------------------------------------------------------------------


def test_it_says_one_line_when_it_is_ready_and_leaves_in_order_on_sigterm(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", queues=["q"], namespaces=["one", "two"]).start()
    with broker:
        assert broker.ready_s < READY_S_MAX
        assert list(broker.namespaces) == ["one", "two"]
        for entry in broker.namespaces.values():
            assert entry.connection_string == (
                f"Endpoint=sb://localhost:{entry.port};SharedAccessKeyName=RootManageSharedAccessKey;"
                "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
            )
            assert entry.ca_file is not None
            assert Path(entry.ca_file).read_text().startswith("-----BEGIN CERTIFICATE-----")
        assert broker.stop() == 0


def test_a_build_that_could_not_be_compiled_says_why_when_it_is_ready(tmp_path: Path) -> None:
    """pip hides what the build says; a user who never asks has half the speed and does not know why."""
    plain = tmp_path / "plain"
    sources = Path(__file__).resolve().parents[2] / "src" / "spillway"
    shutil.copytree(sources, plain / "spillway", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    (plain / "spillway" / "build.json").write_text('{"not_compiled_because": "no C compiler (cc)"}')
    with BrokerProcess(tmp_path / "data", queues=["q"], namespaces=["one"], python_path=plain) as broker:
        port = broker.port
    assert f" ready: one={port}; plain Python, less than half as fast as compiled: no C compiler (cc)" in broker.stderr


def test_what_was_sent_before_a_stop_is_received_after_the_next_start(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", queues=["q"]) as broker:
        send(broker.connection_string, "q", "kept")
        assert broker.stop() == 0
        broker.start()
        assert receive(broker.connection_string, "q") == ["kept"]


def test_clients_are_closed_with_connection_forced(tmp_path: Path) -> None:
    client = anonymous_client()
    with BrokerProcess(tmp_path / "data") as broker, socket.create_connection(("127.0.0.1", broker.port)) as sock:
        sock.settimeout(10)
        talk_until(client, sock, ConnectionOpened)
        broker.signal(signal.SIGTERM)
        closed = talk_until(client, sock, ConnectionClosed)
        assert isinstance(closed, ConnectionClosed)
        assert closed.error is not None
        assert closed.error.condition == "amqp:connection:forced"
        sock.sendall(b"".join(client.drain_output()))  # our own close: the broker need not wait any longer
        assert broker.wait(5) == 0


def anonymous_client() -> Connection:
    options = ConnectionOptions(container_id="test", hostname="localhost", sasl_mechanisms=["ANONYMOUS"])
    client = Connection(options, False, 0)
    client.open()
    return client


def talk_until(client: Connection, sock: socket.socket, kind: type[ConnectionEvent]) -> ConnectionEvent:
    """Say what the client has to say and hear what the broker answers, until it is this."""
    while True:
        sock.sendall(b"".join(client.drain_output()))
        data = sock.recv(65536)
        assert data, f"closed before {kind.__name__}"
        client.receive(data, 0)
        for event in client.drain_events():
            if isinstance(event, kind):
                return event


def test_a_second_signal_is_not_waited_for(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", queues=["q"]).start()
    # A client that does not answer our close keeps the orderly end waiting; one that has not opened would just be cut.
    with socket.create_connection(("127.0.0.1", broker.port)) as sock:
        sock.settimeout(10)
        talk_until(anonymous_client(), sock, ConnectionOpened)
        broker.signal(signal.SIGTERM)
        deadline = time.monotonic() + 5
        while "stopping" not in broker.stderr and time.monotonic() < deadline:
            time.sleep(0.01)
        broker.signal(signal.SIGTERM)
        assert broker.wait(1) == -signal.SIGTERM


def test_a_second_process_on_the_same_directory_is_refused(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        result = spillway("serve", "--namespace", "b=0", "--data", str(tmp_path / "data"), cwd=tmp_path)
        assert_one_line(result, 1, rf"in use by process {broker.pid}")


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = spillway("serve", "--namespace", f"a={port}", "--data", "data", cwd=tmp_path)
    said = rf"namespace a cannot listen on localhost:{port}: Address already in use; another port: --namespace a=PORT"
    assert_one_line(result, 1, said)


def test_a_host_that_is_no_address_is_one_line(tmp_path: Path) -> None:
    result = spillway("serve", "--namespace", "a=0", "--host", "no.such.host.invalid", "--data", "data", cwd=tmp_path)
    assert_one_line(result, 1, r"--host no\.such\.host\.invalid is no address of this machine")


@pytest.mark.parametrize(
    ("names", "text"),
    [([], "none yet"), (["a", "B"], "a, B"), ([str(number) for number in range(1_012)], "8, 9 and 1,002 more")],
)
def test_queues_are_named_up_to_ten(names: list[str], text: str) -> None:
    assert names_text(names).endswith(text)


def test_a_namespace_without_a_queue_is_warned_about(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        assert broker.stop() == 0
        assert "namespace=sbemulatorns has no queue or topic: make one with --queue NAME" in broker.stderr


def test_a_wrong_key_is_one_line_in_the_log_though_the_sdk_says_nothing(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", queues=["q"]) as broker:
        wrong = broker.connection_string.replace("SAS_KEY_VALUE", "mistyped")
        with (
            pytest.raises(ServiceBusAuthenticationError),
            ServiceBusClient.from_connection_string(wrong, retry_total=0) as client,
            client.get_queue_sender("q") as sender,
        ):
            sender.send_messages(ServiceBusMessage("never"))
        assert broker.stop() == 0
        (line,) = [line for line in broker.stderr.splitlines() if " spillway.audit refused " in line]
        assert "WARNING" in line
        assert "Check SharedAccessKeyName and SharedAccessKey" in line
        assert "mistyped" not in broker.stderr


def test_an_unusable_directory_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = spillway("serve", "--namespace", "a=0", "--data", "file/data", cwd=tmp_path)
    assert_one_line(result, 1, "the data directory .*file/data cannot be used: ")


def test_bad_options_are_one_line_and_status_2(tmp_path: Path) -> None:
    assert_one_line(spillway("serve", "--namespace", "a", cwd=tmp_path), 2, "--namespace a: must be NAME=PORT")
    assert not (tmp_path / "spillway-data").exists()


def test_a_mistake_in_the_configuration_is_one_line_and_status_2(tmp_path: Path) -> None:
    config = config_file(tmp_path / "Config.json", "mine")
    config.write_text(config.read_text().replace("PT30S", "PT30X"))
    assert_one_line(spillway("serve", "--config", "Config.json", cwd=tmp_path), 2, r"LockDuration.*PT30X")


def receive_from(connection_string: str, topic: str, subscription: str) -> list[str]:
    with (
        ServiceBusClient.from_connection_string(connection_string) as client,
        client.get_subscription_receiver(topic, subscription) as receiver,
    ):
        messages = receiver.receive_messages(max_message_count=10, max_wait_time=1)
        for message in messages:
            receiver.complete_message(message)
        return [str(message) for message in messages]


def publish(connection_string: str, topic: str, *messages: ServiceBusMessage) -> None:
    with (
        ServiceBusClient.from_connection_string(connection_string) as client,
        client.get_topic_sender(topic) as sender,
    ):
        sender.send_messages(list(messages))


def test_the_sample_configuration_is_served(tmp_path: Path) -> None:
    config = tmp_path / "Config.json"
    config.write_text(json.dumps(SAMPLE))
    with BrokerProcess(tmp_path / "data", config=config) as broker:
        send(broker.connection_string, "queue.1", "to the queue")
        assert receive(broker.connection_string, "queue.1") == ["to the queue"]
        publish(
            broker.connection_string,
            "topic.1",
            ServiceBusMessage("by its user property", application_properties={"prop3": "value3"}),
            ServiceBusMessage("by SQL", message_id="123456", application_properties={"userProp1": "value1"}),
        )
        got = {n: receive_from(broker.connection_string, "topic.1", f"subscription.{n}") for n in range(1, 5)}
        assert got == {
            1: [],
            2: ["by its user property"],
            3: ["by its user property", "by SQL"],
            4: ["by SQL"],
        }


def test_a_configuration_forwards_to_entities_that_stand_behind_and_a_restart_changes_nothing(tmp_path: Path) -> None:
    config = tmp_path / "Config.json"
    queues = [
        {"Name": "front", "Properties": {"ForwardTo": "topic", "ForwardDeadLetteredMessagesTo": "back"}},
        {"Name": "back", "Properties": {"ForwardDeadLetteredMessagesTo": "front"}},
    ]
    topics = [{"Name": "topic", "Subscriptions": [{"Name": "s", "Properties": {"ForwardTo": "back"}}]}]
    namespace = {"Name": "sbemulatorns", "Queues": queues, "Topics": topics}
    config.write_text(json.dumps({"UserConfig": {"Namespaces": [namespace]}}))
    with BrokerProcess(tmp_path / "data", config=config) as broker:
        send(broker.connection_string, "front", "one")
        assert broker.stop() == 0
        broker.start()
        send(broker.connection_string, "front", "two")
        assert receive(broker.connection_string, "back") == ["one", "two"]


def test_topics_and_subscriptions_of_the_command_line_are_made_and_kept(tmp_path: Path) -> None:
    options = ["--subscription", "orders/audit", "--topic", "orders", "--topic", "empty"]
    with BrokerProcess(tmp_path / "data", options=options) as broker:
        publish(broker.connection_string, "orders", ServiceBusMessage("kept"))
        assert broker.stop() == 0
        broker.start()
        assert receive_from(broker.connection_string, "orders", "audit") == ["kept"]


def test_one_name_for_a_queue_and_a_topic_is_one_line(tmp_path: Path) -> None:
    result = spillway("serve", "--namespace", "a=0", "--memory", "--queue", "x", "--topic", "X", cwd=tmp_path)
    assert_one_line(result, 1, "topic X in a: 'X' exists already")


def test_queues_of_a_configuration_are_made_once_and_changed_settings_take_hold(tmp_path: Path) -> None:
    config = config_file(tmp_path / "Config.json", "sbemulatorns")
    with BrokerProcess(tmp_path / "data", config=config) as broker:
        send(broker.connection_string, "orders", "first")
        assert broker.stop() == 0
        config.write_text(config.read_text().replace("PT30S", "PT7S"))
        broker.start()
        with (
            ServiceBusClient.from_connection_string(broker.connection_string) as client,
            client.get_queue_receiver("orders") as receiver,
        ):
            (message,) = receiver.receive_messages(max_wait_time=5)
            assert str(message) == "first"
            assert message.locked_until_utc is not None
            assert message.locked_until_utc.timestamp() - time.time() < 8


def test_keys_are_random_unless_asked_otherwise_and_can_be_shown_again(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with BrokerProcess(data, queues=["q"]) as broker:
        assert broker.stop() == 0
    process = subprocess.Popen(
        [sys.executable, "-m", "spillway", "serve", "--namespace", "a=0", "--data", str(data), "--queue", "q"],
        env={**os.environ, "PYTHONPATH": str(PACKAGE_PARENT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        said = [process.stdout.readline().strip() for _ in range(4)]
        shown = spillway("connection-string", "--data", str(data), cwd=tmp_path)
        send(said[1], "q", "with a random key")
    finally:
        process.terminate()
        assert process.wait(10) == 0
        process.stdout.close()
    assert re.fullmatch(r"Namespace a is ready on port \d+:", said[0])
    assert "SAS_KEY_VALUE" not in said[1]
    assert said[2] == "queues and topics: q"
    assert said[3].endswith("tls/ca.pem")
    assert shown.stdout.strip() == said[1]
    assert stat.S_IMODE((data / "keys.json").stat().st_mode) == 0o600


def test_a_connection_string_of_no_broker_is_one_line(tmp_path: Path) -> None:
    assert_one_line(spillway("connection-string", cwd=tmp_path), 1, "no broker has served from here yet")


def test_in_memory_nothing_is_left_behind(tmp_path: Path) -> None:
    with BrokerProcess(None, queues=["q"], log_dir=tmp_path) as broker:
        send(broker.connection_string, "q", "passing")
        assert receive(broker.connection_string, "q") == ["passing"]
        assert broker.ca_file is not None
        directory = Path(broker.ca_file).parent.parent
        assert directory.exists()
        assert broker.stop() == 0
        assert not directory.exists()


def test_one_port_speaks_plain_and_tls_and_a_second_port_can_be_added(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        also = free.getsockname()[1]
    with BrokerProcess(tmp_path / "data", options=["--also-listen", str(also)]) as broker:
        assert broker.ca_file is not None
        context = ssl.create_default_context(cafile=broker.ca_file)
        for port in (broker.port, also):
            with socket.create_connection(("127.0.0.1", port)) as plain:
                plain.sendall(b"AMQP\x03\x01\x00\x00")
                assert plain.recv(8) == b"AMQP\x03\x01\x00\x00"
            with (
                socket.create_connection(("127.0.0.1", port)) as below,
                context.wrap_socket(below, server_hostname="localhost") as tls,
            ):
                tls.sendall(b"AMQP\x03\x01\x00\x00")
                assert tls.recv(8) == b"AMQP\x03\x01\x00\x00"


def test_the_sdk_works_over_tls_when_it_trusts_the_ca(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", queues=["q"]) as broker:
        real = broker.connection_string.replace("UseDevelopmentEmulator=true;", "")
        with (
            ServiceBusClient.from_connection_string(
                real,
                custom_endpoint_address=f"sb://localhost:{broker.port}",
                connection_verify=broker.ca_file,
                transport_type=TransportType.Amqp,
            ) as client,
            client.get_queue_sender("q") as sender,
        ):
            sender.send_messages(ServiceBusMessage("encrypted"))
        assert receive(broker.connection_string, "q") == ["encrypted"]


@pytest.mark.parametrize("value", ["https://sb.contoso.com", "sb.contoso.com:443", "", "a b"])
def test_a_host_that_is_to_be_allowed_is_a_name(value: str) -> None:
    with pytest.raises(UsageError, match="--allow-host .*: must be a name without scheme and port"):
        parse_host(value)
    assert parse_host("SB.Contoso.com.") == "sb.contoso.com"
