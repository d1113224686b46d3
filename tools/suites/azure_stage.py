"""A pytest plugin: the stage on which the live tests of Azure's Python SDK are played against Spillway.

Their tests ask Azure's resource manager for namespaces, queues and topics, and connect to `<namespace><suffix>` by TLS.
Here every worker of pytest has a broker of its own, `localhost` leads to it whatever Azure's port, its certificate is
trusted, and the resource manager is a few lines on the SDK's own administration client. Nothing of theirs is changed.
Some of them dial names that are nobody's (`fakeaddress.com`) and expect to fail: no other machine is asked or sent to.

Loaded by tools/suites/python.py with `-p azure_stage`. It runs in the SDK's environment: it imports nothing of ours.
"""

import base64
import errno
import hashlib
import importlib
import ipaddress
import json
import os
import socket
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HOST = "localhost"
KEY_NAME = "RootManageSharedAccessKey"
AZURE_PORTS = (5671, 443)
READY_S = 60


class Stage:
    """The broker of this worker."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="spillway-suite-"))
        self.command: list[str] = json.loads(os.environ["SPILLWAY_SUITE_COMMAND"])
        self.log = (self.directory / "broker.log").open("wb")
        arguments = ["serve", "--memory", "--namespace", "suite=0", "--data", str(self.directory / "data"), "--json"]
        self.process = subprocess.Popen(
            [*self.command, *arguments], stdout=subprocess.PIPE, stderr=self.log, env=self.environment()
        )
        assert self.process.stdout is not None
        ready = json.loads(self.process.stdout.readline() or b"{}")
        found = ready["namespaces"][0]
        self.port: int = found["port"]
        self.ca_file: str = found["ca_file"]
        self.key = field_of(found["connection_string"], "SharedAccessKey")
        self.admin: Any = None

    def environment(self) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": os.environ["SPILLWAY_SUITE_PYTHONPATH"]}

    def connection_string(self, rule: str, key: str, entity: str = "") -> str:
        text = f"Endpoint=sb://{HOST}/;SharedAccessKeyName={rule};SharedAccessKey={key}"
        return text + (f";EntityPath={entity}" if entity else "")

    def add_rule(self, name: str, rights: list[str]) -> str:
        """A rule of the namespace; its key."""
        wanted = "Manage" if "Manage" in rights else ",".join(rights)
        self.ask("key", "add", name, "--rights", wanted)
        return field_of(self.ask("connection-string", "--rule", name), "SharedAccessKey")

    def ask(self, *arguments: str) -> str:
        """What a command of ours prints."""
        command = [*self.command, *arguments, "--data", str(self.directory / "data")]
        made = subprocess.run(command, capture_output=True, check=True, env=self.environment())
        return made.stdout.decode()

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(30)
        self.log.close()


def field_of(text: str, name: str) -> str:
    """Of a connection string."""
    return text.split(f"{name}=", 1)[1].split(";", 1)[0].strip()


_stage: list[Stage] = []


def stage() -> Stage:
    if not _stage:
        stay_on_this_machine()
        _stage.append(Stage())
        lead_to(_stage[0].port)
        trust(_stage[0].ca_file)
    return _stage[0]


def lead_to(port: int) -> None:
    """Azure's ports on `localhost` are the broker's."""
    ask = socket.getaddrinfo

    def getaddrinfo(host: Any, wanted: Any, *arguments: Any, **named: Any) -> Any:
        if host in (HOST, HOST.encode()) and str(wanted) in [str(one) for one in AZURE_PORTS]:
            return ask("127.0.0.1", port, *arguments, **named)
        return ask(host, wanted, *arguments, **named)

    vars(socket)["getaddrinfo"] = getaddrinfo


def stay_on_this_machine() -> None:
    """Whatever this process looks up or sends to: another machine is refused, before anything leaves this one."""
    looked_up = ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr")

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if event in looked_up and not is_here(arguments[0]):
            raise socket.gaierror(socket.EAI_NONAME, f"{text_of(arguments[0])} is not this machine")
        if event in ("socket.connect", "socket.sendto", "socket.sendmsg") and isinstance(arguments[1], tuple):
            host = arguments[1][0]
            if not is_here(host):
                raise ConnectionRefusedError(errno.ECONNREFUSED, f"{text_of(host)} is not this machine")

    sys.addaudithook(refuse)


def is_here(host: Any) -> bool:
    name = text_of(host)
    if name in ("", HOST):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def text_of(host: Any) -> str:
    return host.decode() if isinstance(host, bytes) else str(host or "")


def trust(ca_file: str) -> None:
    import certifi

    bundle = Path(ca_file).with_name("bundle.pem")
    bundle.write_bytes(Path(certifi.where()).read_bytes() + b"\n" + Path(ca_file).read_bytes())
    certifi.where = lambda: str(bundle)
    for name in ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "CURL_CA_BUNDLE"):
        os.environ[name] = str(bundle)


# -- the resource manager -------------------------------------------------------------------------------------------


class Made:
    """A resource: all they look at is its name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.id = name


class Settings:
    """The models of the resource manager: what they are given."""

    def __init__(self, **given: Any) -> None:
        self.given = given


class Keys:
    def __init__(self, rule: str, key: str, entity: str = "") -> None:
        self.key_name = rule
        self.primary_key = key
        self.primary_connection_string = stage().connection_string(rule, key, entity)


class Later:
    """A long operation that is over already."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def result(self) -> Any:
        return self.value

    def wait(self, timeout: float = 0) -> None:
        pass

    def done(self) -> bool:
        return True


def administration() -> Any:
    if stage().admin is None:
        from azure.servicebus.management import ServiceBusAdministrationClient

        text = stage().connection_string(KEY_NAME, stage().key)
        stage().admin = ServiceBusAdministrationClient.from_connection_string(text)
    return stage().admin


def rights_of(settings: Any) -> list[str]:
    return [str(getattr(right, "value", right)) for right in settings.given["rights"]]


class Namespaces:
    def __init__(self) -> None:
        self.rules = {KEY_NAME: stage().key}

    def begin_create_or_update(self, group: str, name: str, settings: Any) -> Later:
        return Later(Made(HOST))

    def create_or_update_authorization_rule(self, group: str, namespace: str, name: str, settings: Any) -> Made:
        self.rules[name] = stage().add_rule(name, rights_of(settings))
        return Made(name)

    def list_keys(self, group: str, namespace: str, name: str) -> Keys:
        return Keys(name, self.rules[name])

    def delete_authorization_rule(self, group: str, namespace: str, name: str) -> None:
        pass

    def delete(self, group: str, name: str) -> None:
        pass


class Queues:
    rules: dict[tuple[str, str], str] = {}

    def create_or_update(self, group: str, namespace: str, name: str, settings: Settings) -> Made:
        given = dict(settings.given)
        given["dead_lettering_on_message_expiration"] = given.pop("dead_lettering_on_message_expiration", False)
        administration().create_queue(name, **given)
        return Made(name)

    def create_or_update_authorization_rule(
        self, group: str, namespace: str, queue: str, name: str, settings: Any
    ) -> Made:
        from azure.servicebus.management import AuthorizationRule

        key = base64.b64encode(hashlib.sha256(name.encode()).digest()).decode()
        rule = AuthorizationRule(
            key_name=name,
            primary_key=key,
            secondary_key=base64.b64encode(hashlib.sha256(key.encode()).digest()).decode(),
            rights=rights_of(settings),
            claim_type="SharedAccessKey",
            claim_value="None",
            type="SharedAccessAuthorizationRule",
        )
        found = administration().get_queue(queue)
        found.authorization_rules = [*(found.authorization_rules or []), rule]
        administration().update_queue(found)
        self.rules[queue, name] = key
        return Made(name)

    def list_keys(self, group: str, namespace: str, queue: str, name: str) -> Keys:
        return Keys(name, self.rules[queue, name], queue)

    def delete_authorization_rule(self, group: str, namespace: str, queue: str, name: str) -> None:
        pass

    def delete(self, group: str, namespace: str, name: str) -> None:
        administration().delete_queue(name)


class Topics:
    def create_or_update(self, group: str, namespace: str, name: str, settings: Any) -> Made:
        administration().create_topic(name)
        return Made(name)

    def delete(self, group: str, namespace: str, name: str) -> None:
        administration().delete_topic(name)


class Subscriptions:
    def create_or_update(self, group: str, namespace: str, topic: str, name: str, settings: Settings) -> Made:
        administration().create_subscription(topic, name, **settings.given)
        return Made(name)

    def delete(self, group: str, namespace: str, topic: str, name: str) -> None:
        administration().delete_subscription(topic, name)


class ManagementClient:
    def __init__(self, *_: Any, **__: Any) -> None:
        self.namespaces = Namespaces()
        self.queues = Queues()
        self.topics = Topics()
        self.subscriptions = Subscriptions()


class ResourceGroups:
    def create_or_update(self, name: str, parameters: Any) -> Made:
        return Made(name)

    def begin_delete(self, name: str, polling: bool = True) -> Later:
        return Later(None)


class ResourceClient:
    def __init__(self, *_: Any, **__: Any) -> None:
        self.resource_groups = ResourceGroups()


class AccessRights:
    manage = "Manage"
    send = "Send"
    listen = "Listen"


def module(name: str, **contents: Any) -> None:
    made = types.ModuleType(name)
    for key, value in contents.items():
        setattr(made, key, value)
    sys.modules[name] = made


def stand_in() -> None:
    """The modules of the resource manager, and of what no test of theirs needs in truth."""
    models = {"SBQueue": Settings, "SBSubscription": Settings, "SBAuthorizationRule": Settings}
    module("azure.mgmt")
    module("azure.mgmt.resource", ResourceManagementClient=ResourceClient)
    module("azure.mgmt.resource.resources", ResourceManagementClient=ResourceClient)
    module("azure.mgmt.servicebus", ServiceBusManagementClient=ManagementClient)
    module("azure.mgmt.servicebus.models", AccessRights=AccessRights, **models)
    error = type("AzureHttpError", (Exception,), {})
    module("azure.common", AzureHttpError=error, AzureConflictHttpError=type("AzureConflictHttpError", (error,), {}))


def set_environment() -> None:
    key = stage().key
    os.environ.update(
        {
            "AZURE_TEST_RUN_LIVE": "true",
            "AZURE_SKIP_LIVE_RECORDING": "true",
            "SERVICEBUS_ENDPOINT_SUFFIX": "",
            "SERVICEBUS_CONNECTION_STR": stage().connection_string(KEY_NAME, key),
            "SERVICEBUS_FULLY_QUALIFIED_NAMESPACE": HOST,
            "SERVICEBUS_SAS_POLICY": KEY_NAME,
            "SERVICEBUS_SAS_KEY": key,
            "SERVICEBUS_TOPIC_NAME": "suite-topic",
            "SERVICEBUS_SUBSCRIPTION_NAME": "suite-subscription",
            "SERVICEBUS_QUEUE_NAME": "suite-queue",
            "SERVICEBUS_SESSION_QUEUE_NAME": "suite-session-queue",
            "SERVICEBUS_SESSION_ID": "suite-session",
            "SERVICEBUS_SESSION_QUEUE_SAS_POLICY": KEY_NAME,
            "SERVICEBUS_SESSION_QUEUE_SAS_KEY": key,
        }
    )


def named_key(**named: Any) -> Any:
    """In place of Entra's credential: the namespace's key, as the SDK keeps the one of a connection string."""
    where = "azure.servicebus.aio._base_handler_async" if named.get("is_async") else "azure.servicebus._base_handler"
    return importlib.import_module(where).ServiceBusSharedKeyCredential(KEY_NAME, stage().key)


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("PYTEST_XDIST_WORKER") is None and config.getoption("numprocesses", None):
        stand_in()  # the one who hands out the tests has no broker
        return
    stand_in()
    set_environment()
    tools: Any = importlib.import_module("devtools_testutils")
    tools.get_credential = named_key
    cases: Any = importlib.import_module("devtools_testutils.azure_recorded_testcase")
    cases.get_credential = named_key
    make: Callable[..., Any] = lambda self, client, **named: client()  # noqa: E731 - it becomes a method of theirs
    tools.AzureMgmtPreparer.create_mgmt_client = make


@pytest.fixture(scope="session")
def test_proxy() -> None:
    """Theirs records what is said over HTTP. Nothing is recorded here."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("playback_test_only"):
            item.add_marker(pytest.mark.skip(reason="plays back a recording"))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    outcome: Any = yield
    report = outcome.get_result()
    if _stage and not _stage[0].is_alive():
        report.outcome = "failed"
        report.longrepr = f"the broker has ended: {_stage[0].directory}"


def pytest_unconfigure(config: pytest.Config) -> None:
    for one in _stage:
        one.close()
