"""Planted keys and tokens: used and misused in every way, and then looked for wherever they must not be (S10, S23)."""

import asyncio
import base64
import contextlib
import io
import json
import logging
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from spillway.amqp.frames import SASL_HEADER, encode_sasl_frame
from spillway.amqp.performatives import SaslInit, SaslOutcome, Transfer
from spillway.cli.app import make_app, run
from spillway.client import OutgoingMessage, connect, parse_connection_string
from spillway.client.credentials import sign_sas
from spillway.server.logs import RedactingFormatter
from tests.admin.client import Client, entry
from tests.hostile.attacker import Attacker, put_token
from tests.tools.broker_process import PACKAGE_PARENT, BrokerProcess
from tests.wire.live import LiveBroker

ROOT = "RootManageSharedAccessKey"
UPGRADE = "Upgrade: websocket\r\nConnection: Upgrade"


def canary(number: int) -> str:
    """A key that nothing else looks like."""
    return base64.b64encode(f"canary {number} that must not sing".encode().ljust(32, b".")).decode()


KEYS = [canary(number) for number in range(7)]
FIRST, SECOND, READER, READER_2, ENTITY, ENTITY_2, STRANGER = KEYS


class SecretBroker(BrokerProcess):
    """With keys of its own, and everything it has to say in its log."""

    def __init__(self, data: Path) -> None:
        data.mkdir()
        rules = {
            ROOT: {"rights": ["Manage", "Send", "Listen"], "primary_key": FIRST, "secondary_key": SECOND},
            "reader": {"rights": ["Listen"], "primary_key": READER, "secondary_key": READER_2},
        }
        (data / "keys.json").write_text(json.dumps(rules))
        (data / "keys.json").chmod(0o644)
        super().__init__(data, queues=["q"], env={"SPILLWAY_LOG_LEVEL": "DEBUG"})

    def command(self) -> list[str]:
        return [part for part in super().command() if part != "--dev"]


class Heard:
    """Everything that anybody was told, and the secrets that were used meanwhile."""

    def __init__(self, broker: SecretBroker) -> None:
        self.broker = broker
        self.secrets = list(KEYS)
        self.texts: list[str] = []

    def sign(self, resource: str, name: str = ROOT, key: str = FIRST, valid_s: int = 600) -> str:
        """A token; its signature is a secret too."""
        token = sign_sas(resource, name, key, int(time.time()) + valid_s)
        found = re.search(r"sig=([^&]+)", token)
        assert found is not None
        self.secrets += [found[1], found[1].replace("%3D", "=").replace("%2F", "/").replace("%2B", "+")]
        return token

    def run(self, *options: str, code: int = 2, env: dict[str, str] | None = None) -> None:
        """A command that fails, or says something it may say to everybody."""
        out, err = io.StringIO(), io.StringIO()
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            patch.setattr(sys, "argv", ["spillway", *options])
            for name, value in (env or {}).items():
                patch.setenv(name, value)
            with pytest.raises(SystemExit) as ended:
                run(make_app())
        assert ended.value.code == code, err.getvalue()
        self.texts += [out.getvalue(), err.getvalue()]

    def run_process(self, *options: str, cwd: Path) -> None:
        """The same for one that would take over the log of this process."""
        done = subprocess.run(
            [sys.executable, "-m", "spillway", *options],
            cwd=cwd,
            env={**os.environ, "PYTHONPATH": str(PACKAGE_PARENT)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 1, done.stderr
        self.texts += [done.stdout, done.stderr]

    def find(self) -> list[tuple[str, str]]:
        """Where a secret was found."""
        return [(secret, text) for secret in self.secrets for text in self.texts if secret in text]


@pytest.fixture
def heard(tmp_path: Path) -> Iterator[Heard]:
    broker = SecretBroker(tmp_path / "data")
    with broker:
        yield Heard(broker)


def test_no_secret_is_found_where_it_must_not_be(heard: Heard, tmp_path: Path) -> None:
    broker = heard.broker
    assert FIRST in broker.connection_string, "the ready line is where it is shown"
    use_over_http(heard)
    use_over_amqp(heard)
    misuse_over_amqp(heard)
    misuse_over_http(heard)
    misuse_sockets(heard)
    misuse_commands(heard, tmp_path)
    heard.texts.append(Path(f"/proc/{broker.pid}/cmdline").read_text())
    assert broker.stop() == 0
    heard.texts.append(broker.stderr)
    assert "DEBUG" in broker.stderr and "spillway.audit refused" in broker.stderr
    for path in (tmp_path / "data").rglob("*"):
        if path.is_file() and path.name != "keys.json" and not path.name.startswith("journal.db"):
            heard.texts.append(path.read_text(errors="replace"))
    assert heard.find() == []
    assert not [text for text in heard.texts[:-20] if "Traceback" in text]
    assert (tmp_path / "data" / "keys.json").stat().st_mode & 0o077 == 0


# -- as it is meant ------------------------------------------------------------------------------------------------


def use_over_http(heard: Heard) -> None:
    """The one answer that shows keys is the one that was asked for them."""
    http = Client(heard.broker.port)
    host = f"https://localhost:{http.port}"
    http.token = heard.sign(host)
    rules = (
        "<AuthorizationRules><AuthorizationRule><Rights><AccessRights>Send</AccessRights></Rights><KeyName>own</KeyName>"
        f"<PrimaryKey>{ENTITY}</PrimaryKey><SecondaryKey>{ENTITY_2}</SecondaryKey></AuthorizationRule></AuthorizationRules>"
    )
    assert http.ask("PUT", "/ruled", entry("QueueDescription", rules)).status == 201
    assert ENTITY in http.ask("GET", "/ruled").body
    for path in ("/q", "/$namespaceinfo", "/$spillway/status", "/$Resources/topics?api-version=2021-05"):
        answer = http.ask("GET", path)
        assert answer.status == 200
        heard.texts.append(answer.body)
    assert http.ask("PUT", "/ruled", entry("QueueDescription"), headers={"If-Match": "*"}).status == 200
    http.close()


def use_over_amqp(heard: Heard) -> None:
    async def send_and_receive(connection_string: str) -> None:
        async with await connect(connection_string) as connection:
            await (await connection.sender("q")).send(OutgoingMessage("m"))
            receiver = await connection.receiver("q")
            (message,) = await receiver.receive(max_wait=5)
            await receiver.complete(message)

    for key in (FIRST, SECOND):
        asyncio.run(send_and_receive(heard.broker.connection_string.replace(FIRST, key)))


# -- and as it is not ----------------------------------------------------------------------------------------------


def misuse_over_amqp(heard: Heard) -> None:
    """What the SDKs and a client without manners are told."""
    string = heard.broker.connection_string
    swapped = string.replace(ROOT, "NAME").replace(FIRST, ROOT).replace("NAME", STRANGER)
    for wrong in (swapped, string.replace(ROOT, "reader").replace(FIRST, READER)):
        with (
            ServiceBusClient.from_connection_string(wrong, retry_total=0) as client,
            pytest.raises(ServiceBusError) as caught,
            client.get_queue_sender("q") as link,
        ):
            link.send_messages(ServiceBusMessage("never"))
        heard.texts += [str(caught.value), repr(caught.value)]
    audience = f"sb://localhost:{heard.broker.port}/q"
    good = heard.sign(audience)
    tokens = [
        good.replace("sig=", "sig=x"),
        good.replace("&se=", "&se=x"),
        good + "&sig=again",
        good.replace("SharedAccessSignature", "Bearer"),
        heard.sign(audience, valid_s=-10),
        heard.sign("sb://elsewhere/q"),
        heard.sign(audience, key=STRANGER),
        heard.sign(audience, name=STRANGER),
        f"SharedAccessSignature sr={STRANGER}&sig={STRANGER}&se={STRANGER}&skn={STRANGER}",
        STRANGER,
        f"SharedAccessKey={STRANGER}",
        good + "x" * 9_000,
    ]
    for token in tokens:
        with Attacker(heard.broker.port) as attacker:
            attacker.open("ANONYMOUS").begin().attach_receiver(0, "$cbs", credit=10).attach_sender(1, "$cbs")
            attacker.send(1, put_token(1, audience, token), handle=1)
            attacker.hear(Transfer)
            heard.texts += [each.decode("latin-1") for each in attacker.payloads]
    for response in (f"\0{ROOT}\0{STRANGER}", f"\0{STRANGER}\0{ROOT}", f"{STRANGER}\0{STRANGER}"):
        with Attacker(heard.broker.port) as attacker:
            attacker.say(SASL_HEADER)
            assert attacker.header() == SASL_HEADER
            attacker.say(encode_sasl_frame(SaslInit("PLAIN", response.encode())))
            assert attacker.hear(SaslOutcome).outcome == 1
            heard.texts.append(attacker.hear_end().decode("latin-1"))


def misuse_over_http(heard: Heard) -> None:
    http = Client(heard.broker.port)
    good = heard.sign(f"https://localhost:{http.port}")
    for token in (
        "",
        "x",
        f"Bearer {STRANGER}",
        f"SharedAccessKey={STRANGER}",
        good.replace("sig=", "sig=x"),
        STRANGER,
    ):
        http.token = token
        for method, path in (("GET", "/q"), ("PUT", "/q2"), ("GET", "/$spillway/status")):
            answer = http.ask(method, path)
            assert answer.status == 401
            heard.texts.append(answer.body)
    http.token = good
    bad_rule = (
        f"<AuthorizationRules><AuthorizationRule><Rights><AccessRights>{STRANGER}</AccessRights></Rights>"
        f"<KeyName>{STRANGER}</KeyName><PrimaryKey>{STRANGER}x</PrimaryKey></AuthorizationRule></AuthorizationRules>"
    )
    for method, path, body in (
        ("PUT", "/bad", entry("QueueDescription", bad_rule.replace(f"<AccessRights>{STRANGER}", "<AccessRights>Send"))),
        ("PUT", "/bad", f"<entry>SharedAccessKey={STRANGER}"),
        ("POST", "/$spillway/status", json.dumps({"key": STRANGER})),
        ("POST", "/$spillway/clock", '{"primary_key": "' + STRANGER),
        ("GET", f"/$spillway/nothing?key={quote(STRANGER)}", None),
        ("GET", f"/q?sig={quote(STRANGER)}&$top=x", None),
    ):
        answer = http.ask(method, path, body)
        heard.texts.append(answer.body)
    http.close()


def misuse_sockets(heard: Heard) -> None:
    """Bytes that no parser gets to the end of."""
    string = heard.broker.connection_string
    token = heard.sign("https://localhost")
    for said in (
        string.encode(),
        f"GET /q HTTP/1.1\r\nHost: localhost\r\nAuthorization: {token}\nX: y\r\n\r\n".encode(),
        f"GET /q HTTP/1.1\r\nAuthorization: {token}\r\nAuthorization: {token}\r\nHost: x\r\n\r\n".encode(),
        f"GET /q?{token} HTTP/9.9\r\n\r\n".encode(),
        f"GET /$servicebus/websocket?{token} HTTP/1.1\r\nHost: x\r\n{UPGRADE}\r\n\r\n".encode(),
        b"AMQP\x03\x01\x00\x00\xff\xff\xff\xff" + FIRST.encode(),
        b"\x16\x03\x01" + FIRST.encode(),
    ):
        with socket.create_connection(("127.0.0.1", heard.broker.port), timeout=5) as client:
            client.sendall(said)
            client.shutdown(socket.SHUT_WR)
            with contextlib.suppress(OSError):
                while data := client.recv(65_536):
                    heard.texts.append(data.decode("latin-1"))


def misuse_commands(heard: Heard, tmp_path: Path) -> None:
    string = heard.broker.connection_string
    config = tmp_path / "Config.json"
    for text in (
        '{"UserConfig": {"SharedAccessKey": "' + STRANGER,
        json.dumps({"UserConfig": {"Namespaces": [{"Name": f"SharedAccessKey={STRANGER}"}]}}),
        json.dumps(
            {"UserConfig": {"Namespaces": [{"Name": "n", "Queues": [{"Name": f"sb://x;SharedAccessKey={STRANGER};"}]}]}}
        ),
    ):
        config.write_text(text)
        heard.run("serve", "--config", str(config), "--memory")
    heard.run("serve", "--namespace", f"{string}=x", "--memory")
    heard.run("serve", "--queue", f"a;SharedAccessKey={STRANGER}", "--memory")
    for given, code in (
        (string.replace(FIRST, STRANGER), 1),
        (string.replace("Endpoint", "Endpint"), 2),
        (f"SharedAccessKey={STRANGER}", 2),
        (STRANGER, 2),
    ):
        heard.run("status", code=code, env={"SPILLWAY_CONNECTION_STRING": given})
    data = str(tmp_path / "data")
    heard.run("connection-string", "--data", data, "--rule", STRANGER)
    heard.run("connection-string", "--data", data, "--entity", "q", "--rule", STRANGER)
    heard.run("key", "list", "--data", data, code=0)
    heard.run("key", "list", "--json", "--data", data, code=0)
    heard.run("key", "remove", STRANGER, "--data", data, code=1)
    heard.run("key", "regenerate", "reader", "--json", "--data", data, code=0)
    spoilt = tmp_path / "spoilt"
    spoilt.mkdir()
    (spoilt / "keys.json").write_text(json.dumps({ROOT: {"rights": ["Send"], "primary_key": STRANGER + ";"}}))
    heard.run("key", "list", "--data", str(spoilt), code=1)
    heard.run_process("serve", "--data", str(spoilt), "--namespace", "a=0", cwd=tmp_path)


def test_a_fault_of_ours_in_the_middle_of_a_request_shows_no_token(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """To the client nothing but that there was one; to the log where, with what it was handling blotted out."""
    live = LiveBroker(tmp_path)
    http = Client(live.server.port)
    assert http.token is not None

    class Broken:
        def judge(self, token: str, path: str, sent: str, host: str, where: str) -> Any:
            raise ValueError(f"cannot read {token} of {live.connection_string}")

    http.ask("GET", "/q")
    front = live.server.acceptor.http
    namespace = front.namespace  # type: ignore[union-attr]
    object.__setattr__(namespace, "gate", Broken())
    caplog.set_level(logging.DEBUG)
    answer = http.ask("GET", "/q")
    assert answer.status == 500
    assert "SubCode=50000. The broker failed to answer; its log says why." in answer.body
    lines = "".join(RedactingFormatter().format(record) for record in caplog.records)
    assert "ValueError: cannot read SharedAccessSignature ***" in lines
    signature = http.token.partition("sig=")[2].partition("&")[0]
    key = parse_connection_string(live.connection_string).key
    assert key is not None
    for text in (answer.body, lines):
        assert signature not in text and key not in text
    assert str(Path(__file__).parent.parent) not in answer.body, "no path of this machine (S23)"
    http.close()
    live.close()
