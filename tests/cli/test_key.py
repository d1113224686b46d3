"""`spillway key` and the connection strings of its rules; a broker that runs follows (S4)."""

import asyncio
import base64
import json
import stat
import time
from pathlib import Path

import pytest

from spillway.cli import connection_string, key
from spillway.cli.errors import CommandError, UsageError
from spillway.client import LinkClosed, Unauthorized, connect, parse_connection_string
from spillway.model.access import LISTEN, MANAGE, SEND
from spillway.server.keys import DEVELOPMENT_KEY, KEY_NAME, ensure_rules, read_rules
from tests.admin.client import Client, entry
from tests.tools.broker_process import BrokerProcess

WITHIN_S = 3.0  # a second (S4), and what a machine that is busy with other tests takes on top
LOOK_AGAIN_S = 0.02
ENTITY_KEY = base64.b64encode(b"the key of an entity, 32 bytes..").decode()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """As a broker leaves it that was once started here."""
    ensure_rules(tmp_path)
    facts = {"host": "localhost", "is_clear_text": True, "is_development": False, "ports": {"ns": 5672}}
    (tmp_path / "running.json").write_text(json.dumps(facts))
    return tmp_path


def rules(data: Path) -> dict[str, int]:
    return {rule.name: rule.rights for rule in read_rules(data) or []}


def test_under_dev_the_key_in_force_is_listed(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key.add("reader", "Listen", data)
    facts = {"host": "localhost", "is_clear_text": True, "is_development": True, "ports": {"ns": 5672}}
    (data / "running.json").write_text(json.dumps(facts))
    capsys.readouterr()
    key.list_rules(data, show_keys=True)
    root, reader, note = capsys.readouterr().out.splitlines()
    assert root.split() == [KEY_NAME, "Manage,Send,Listen", DEVELOPMENT_KEY]
    assert reader.startswith("reader")
    assert note.startswith("Last served with --dev: ")
    (data / "keys.json").unlink()
    key.list_rules(data, show_keys=True, as_json=True)
    listed = json.loads(capsys.readouterr().out)
    assert listed["is_development"] is True
    assert [(rule["name"], rule["primary_key"]) for rule in listed["rules"]] == [(KEY_NAME, DEVELOPMENT_KEY)]


def test_rules_are_added_listed_and_removed(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key.add("reader", "Listen", data)
    key.add("both", "send, listen", data)
    key.add("boss", "Manage", data)
    assert "spillway connection-string --rule boss" in capsys.readouterr().out
    assert rules(data) == {KEY_NAME: 7, "reader": LISTEN, "both": SEND | LISTEN, "boss": MANAGE | SEND | LISTEN}
    assert stat.S_IMODE((data / "keys.json").stat().st_mode) == 0o600
    key.list_rules(data)
    listed = capsys.readouterr().out.splitlines()
    assert [line.split() for line in listed[:2]] == [[KEY_NAME, "Manage,Send,Listen"], ["reader", "Listen"]]
    key.remove("Reader", data)
    assert list(rules(data)) == [KEY_NAME, "both", "boss"]


def test_keys_are_listed_when_asked_for_and_not_otherwise(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = (read_rules(data) or [])[0]
    key.list_rules(data)
    key.list_rules(data, as_json=True)
    key.regenerate(KEY_NAME, "secondary", data, as_json=True)
    hidden = capsys.readouterr().out
    assert root.primary_key not in hidden and root.secondary_key not in hidden
    key.list_rules(data, show_keys=True)
    assert root.primary_key in capsys.readouterr().out
    key.list_rules(data, show_keys=True, as_json=True)
    (shown,) = json.loads(capsys.readouterr().out)["rules"]
    assert (shown["name"], shown["rights"]) == (KEY_NAME, ["Manage", "Send", "Listen"])
    assert shown["primary_key"] == root.primary_key
    assert shown["secondary_key"] != root.secondary_key


@pytest.mark.parametrize(
    ("which", "is_first_new", "is_second_new"), [("primary", 1, 0), ("secondary", 0, 1), ("both", 1, 1)]
)
def test_one_key_of_two_is_replaced(data: Path, which: str, is_first_new: bool, is_second_new: bool) -> None:
    key.add("reader", "Listen", data)
    before = next(rule for rule in read_rules(data) or [] if rule.name == "reader")
    key.regenerate("reader", which, data)
    after = next(rule for rule in read_rules(data) or [] if rule.name == "reader")
    assert (before.primary_key != after.primary_key, before.secondary_key != after.secondary_key) == (
        is_first_new,
        is_second_new,
    )
    assert after.rights == LISTEN


def test_a_connection_string_names_the_rule_and_the_entity(data: Path) -> None:
    key.add("reader", "Listen", data)
    reader = next(rule for rule in read_rules(data) or [] if rule.name == "reader")
    parsed = parse_connection_string(connection_string.find(data, None, "READER"))
    assert (parsed.key_name, parsed.key, parsed.entity_path) == ("reader", reader.primary_key, None)
    second = parse_connection_string(connection_string.find(data, None, "reader", is_secondary=True))
    assert second.key == reader.secondary_key
    assert parse_connection_string(connection_string.find(data, None, None, "a/b")).entity_path == "a/b"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda data: key.add("a b", "Send", data), "letters, digits"),
        (lambda data: key.add("a", "Read", data), "a right is Manage, Send or Listen"),
        (lambda data: key.add("a", "", data), "a right is Manage, Send or Listen"),
        (lambda data: key.add("a", "Manage,Send", data), "should also include"),
        (lambda data: key.add(KEY_NAME.lower(), "Send", data), "already"),
        (lambda data: key.remove("nobody", data), f"there is: {KEY_NAME}"),
        (lambda data: key.remove(KEY_NAME, data), "spillway key regenerate"),
        (lambda data: key.regenerate("nobody", "both", data), "there is no such rule"),
        (lambda data: key.regenerate(KEY_NAME, "third", data), "primary, secondary or both"),
        (lambda data: key.list_rules(data / "missing"), "no data directory here"),
        (lambda data: connection_string.find(data, None, "nobody"), f"the namespace has {KEY_NAME}"),
    ],
)
def test_what_cannot_be_done_is_one_line(data: Path, call: object, text: str) -> None:
    with pytest.raises((CommandError, UsageError), match=text):
        call(data)  # type: ignore[operator]
    assert list(rules(data)) == [KEY_NAME]


def test_a_thirteenth_rule_is_refused(data: Path) -> None:
    for number in range(11):
        key.add(f"r{number}", "Send", data)
    with pytest.raises(CommandError, match="the most there may be"):
        key.add("one-more", "Send", data)


def test_a_file_that_cannot_be_used_is_one_line_without_its_keys(data: Path) -> None:
    (data / "keys.json").write_text('{"r": {"rights": ["Send"], "primary_key": "CANARY"}}')
    with pytest.raises(CommandError) as listing:
        key.list_rules(data)
    with pytest.raises(CommandError) as adding:
        key.add("a", "Send", data)
    assert "CANARY" not in str(listing.value) + str(adding.value)


def test_a_running_broker_follows_soon(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with BrokerProcess(data, queues=["q"]) as broker:
        key.add("reader", "Listen", data)
        asyncio.run(follow(data))
        administrator = Client(broker.port)
        rule = (
            "<AuthorizationRules><AuthorizationRule><Rights><AccessRights>Send</AccessRights></Rights>"
            f"<KeyName>reader</KeyName><PrimaryKey>{ENTITY_KEY}</PrimaryKey></AuthorizationRule></AuthorizationRules>"
        )
        assert administrator.ask("PUT", "/orders", entry("QueueDescription", rule)).status == 201
        administrator.close()
        own = parse_connection_string(connection_string.find(data, None, "reader", "orders"))
        assert (own.key_name, own.key, own.entity_path) == ("reader", ENTITY_KEY, "orders")
        with pytest.raises(UsageError, match="orders has none of this name"):
            connection_string.find(data, None, "nobody", "orders")
        with pytest.raises(CommandError, match="no such queue or topic"):
            connection_string.find(data, None, "reader", "missing")
        assert parse_connection_string(connection_string.find(data, None)).key == DEVELOPMENT_KEY
    assert (
        'done namespace=sbemulatorns what="access rules" rule="the key file" text="rule reader added' in broker.stderr
    )
    assert 'text="rule reader removed"' in broker.stderr
    assert f"done namespace=sbemulatorns what=PUT rule={KEY_NAME} client=" in broker.stderr
    assert ENTITY_KEY not in broker.stderr
    with pytest.raises(CommandError, match="no broker answers"):
        connection_string.find(data, None, "reader", "orders")


async def follow(data: Path) -> None:
    """A rule comes, gets another key, and goes; a link notices each."""
    first = connection_string.find(data, None, "reader")
    begun = time.monotonic()
    while True:
        connection = await connect(first)
        try:
            receiver = await connection.receiver("q", credit=1)
            break
        except Unauthorized:
            await connection.close()
            assert time.monotonic() - begun < WITHIN_S
            await asyncio.sleep(LOOK_AGAIN_S)
    key.regenerate("reader", "secondary", data)
    assert await receiver.receive(max_wait=0.5) == [], "the key in use is still there"
    key.regenerate("reader", "primary", data)
    await ended(receiver)
    await connection.close()
    async with await connect(connection_string.find(data, None, "reader", is_secondary=True)) as another:
        receiver = await another.receiver("q", credit=1)
        key.remove("reader", data)
        await ended(receiver)
        with pytest.raises(Unauthorized):
            await another.receiver("q")


async def ended(receiver: object) -> None:
    begun = time.monotonic()
    with pytest.raises((Unauthorized, LinkClosed)) as caught:
        await receiver.receive(max_wait=10)  # type: ignore[attr-defined]
    assert time.monotonic() - begun < WITHIN_S
    assert "has changed or gone" in str(caught.value)
