"""`AuthorizationRules` of queues and topics: kept, shown, bounded, and refused without showing a key (S1, S10)."""

import base64
import contextlib
import re
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway.admin.access import access_rules_xml
from spillway.admin.http_refusals import HttpRefusal
from spillway.admin.paths import NAMESPACE_INFO, QUEUES, TOPICS, parse_target
from spillway.broker.commands import CreateEntity
from spillway.broker.queue import Queue
from spillway.broker.topic import Subscription
from spillway.dialect.addresses import CBS, parse_address, strip_authority
from spillway.model.access import ALL_RIGHTS, LISTEN, SEND, AccessRule
from spillway.model.entity import QUEUE, SUBSCRIPTION, TOPIC, EntitySettings, entity_key, root_key
from spillway.testing.core import CoreHarness
from tests.admin.client import Client, entry, token
from tests.wire.live import LiveBroker

INSTANCE = 'xmlns:i="http://www.w3.org/2001/XMLSchema-instance"'
ONE = base64.b64encode(b"1" * 32).decode()
TWO = base64.b64encode(b"2" * 32).decode()
FIXED = (NAMESPACE_INFO, QUEUES, TOPICS)
CANARY = base64.b64encode(b"canary-canary-canary-canary-cana").decode()


def rule(name: str = "r", rights: str = "Send", keys: str = "", attributes: str = "", more: str = "") -> str:
    shown = "".join(f"<AccessRights>{right}</AccessRights>" for right in rights.split(",") if right)
    return (
        f"<AuthorizationRule {attributes}><ClaimType>SharedAccessKey</ClaimType><ClaimValue>None</ClaimValue>"
        f"<Rights>{shown}</Rights><KeyName>{name}</KeyName>{keys}{more}</AuthorizationRule>"
    )


def keys(primary: str, secondary: str = "") -> str:
    second = f"<SecondaryKey>{secondary}</SecondaryKey>" if secondary else ""
    return f"<PrimaryKey>{primary}</PrimaryKey>{second}"


def queue(*rules: str) -> str:
    return entry("QueueDescription", f"<AuthorizationRules>{''.join(rules)}</AuthorizationRules>", INSTANCE)


def rules_of(broker: LiveBroker, path: str) -> list[AccessRule]:
    return broker.server.rights.book.of(path)


def test_rules_are_kept_and_shown_in_the_services_elements_and_order(broker: LiveBroker, client: Client) -> None:
    typed = 'i:type="SharedAccessAuthorizationRule"'
    made = client.ask(
        "PUT", "/q", queue(rule("own", "Listen,Send", keys(ONE, TWO), typed), rule("all", "Manage,Send,Listen"))
    )
    assert made.status == 201
    own, whole = rules_of(broker, "q")
    assert (own.name, own.rights, own.primary_key, own.secondary_key) == ("own", SEND | LISTEN, ONE, TWO)
    assert whole.rights == ALL_RIGHTS
    for answer in (made, client.ask("GET", "/q"), client.ask("GET", "/$Resources/queues?api-version=2021-05")):
        assert access_rules_xml([own, whole]) in answer.body
    elements = re.findall(r"<([A-Za-z]+)", access_rules_xml([own]))
    assert elements == (
        ["AuthorizationRules", "AuthorizationRule", "ClaimType", "ClaimValue", "Rights", "AccessRights", "AccessRights"]
        + ["CreatedTime", "ModifiedTime", "KeyName", "PrimaryKey", "SecondaryKey"]
    )


def test_keys_that_are_left_out_are_random_and_an_update_keeps_them(broker: LiveBroker, client: Client) -> None:
    client.ask("PUT", "/q", queue(rule("own", "Send")))
    (made,) = rules_of(broker, "q")
    assert len({made.primary_key, made.secondary_key}) == 2
    assert all(len(base64.b64decode(key)) == 32 for key in made.secrets())
    broker.advance(5)
    client.ask("PUT", "/q", queue(rule("OWN", "Listen")), headers={"If-Match": "*"})
    (changed,) = rules_of(broker, "q")
    assert (changed.name, changed.rights, changed.secrets()) == ("OWN", LISTEN, made.secrets())
    assert changed.created_ms == made.created_ms
    assert changed.modified_ms >= made.modified_ms + 5_000
    client.ask("PUT", "/q", queue(rule("OWN", "Listen", keys(ONE))), headers={"If-Match": "*"})
    assert rules_of(broker, "q")[0].secrets() == [ONE, made.secondary_key]


def test_an_update_that_does_not_speak_of_rules_leaves_them_and_an_empty_list_removes_them(
    broker: LiveBroker, client: Client
) -> None:
    client.ask("PUT", "/q", queue(rule("own", "Send")))
    before = [each.to_plain() for each in rules_of(broker, "q")]
    assert client.ask("PUT", "/q", entry("QueueDescription"), headers={"If-Match": "*"}).status == 200
    assert [each.to_plain() for each in rules_of(broker, "q")] == before
    assert client.ask("PUT", "/q", queue(), headers={"If-Match": "*"}).status == 200
    assert rules_of(broker, "q") == []


def test_rules_go_with_their_entity(broker: LiveBroker, client: Client) -> None:
    client.ask("PUT", "/q", queue(rule("own", "Send", keys(ONE, TWO))))
    assert list(broker.server.rights.book.scopes_of("own", ONE)) == ["q"]
    client.ask("DELETE", "/q")
    client.ask("PUT", "/q", entry("QueueDescription"))
    assert rules_of(broker, "q") == []
    assert broker.server.rights.book.scopes_of("own", ONE) == {}


def test_a_subscription_takes_the_rules_of_its_topic(broker: LiveBroker, client: Client) -> None:
    body = entry(
        "TopicDescription",
        f"<AuthorizationRules>{rule('own', 'Manage,Send,Listen', keys(ONE, TWO))}</AuthorizationRules>",
    )
    assert client.ask("PUT", "/t", body).status == 201
    client.token = token(f"https://localhost:{client.port}/t", ONE, "own")
    assert client.ask("PUT", "/t/subscriptions/s", entry("SubscriptionDescription")).status == 201
    assert client.ask("GET", "/t/Subscriptions/s/Rules/$Default").status == 200
    refused = client.ask(
        "PUT",
        "/t/subscriptions/s2",
        entry("SubscriptionDescription", f"<AuthorizationRules>{rule('x', 'Send', keys(CANARY))}</AuthorizationRules>"),
    )
    assert refused.status == 400
    assert "it takes those of its topic" in refused.detail
    assert CANARY not in refused.body


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        ([rule("a b")], "letters, digits, '_', '-' and '.' only"),
        ([rule("")], "must not be empty"),
        ([rule("x" * 257)], "at most 256 characters"),
        ([rule("a"), rule("A")], "two shared access rules are called 'A'"),
        ([rule(f"r{number}") for number in range(13)], "at most 12 shared access rules, not 13"),
        ([rule(rights="")], "at least one of the rights"),
        ([rule(rights="Manage")], "Manage permission should also include Send and Listen"),
        ([rule(rights="Manage,Send")], "Manage permission should also include Send and Listen"),
        ([rule(rights="Send,Send")], "more than once"),
        ([rule(rights="send")], "not 'send'"),
        ([rule(rights="Everything")], "a right is Manage, Send or Listen"),
        ([rule(keys=keys(CANARY[:-1]))], "44 characters of base64, not 43"),
        ([rule(keys=keys("!" + CANARY[1:]))], "44 characters of base64, and nothing else"),
        ([rule(keys=keys(ONE, "é" + CANARY[1:]))], "44 characters of base64, and nothing else"),
        ([rule(keys=keys(CANARY) + keys(CANARY))], "'PrimaryKey' is there more than once"),
        ([rule(name=CANARY)], "letters, digits"),
        ([rule(attributes='i:type="AllowRule"')], "SharedAccessAuthorizationRule"),
        ([rule(more="<Key>x</Key>")], "and nothing else"),
        (["<Rule/>"], "each of them is an 'AuthorizationRule'"),
        ([rule().replace("SharedAccessKey", "nameidentifier")], "ClaimType is 'SharedAccessKey'"),
    ],
)
def test_a_wrong_rule_is_refused_by_name_and_no_key_is_repeated(client: Client, rules: list[str], text: str) -> None:
    refused = client.ask("PUT", "/q", queue(*rules))
    assert refused.status == 400
    assert text in refused.detail.replace("&apos;", "'")
    assert CANARY[1:-1] not in refused.body
    assert client.names() == []


def test_who_manages_one_entity_forwards_to_another_only_with_send_there(client: Client) -> None:
    host = f"https://localhost:{client.port}"
    rights = {"front": "Manage,Send,Listen", "back": "Send", "other": "Listen"}
    for path, names in rights.items():
        client.ask("PUT", f"/{path}", queue(rule("own", names, keys({"front": ONE}.get(path, TWO)))))
    client.token = token(host, ONE, "own")
    body = entry(
        "QueueDescription",
        "<ForwardTo>{0}</ForwardTo><ForwardDeadLetteredMessagesTo>{1}</ForwardDeadLetteredMessagesTo>",
    )
    update = {"If-Match": "*"}
    both = ("ServiceBusSupplementaryAuthorization", "ServiceBusDlqSupplementaryAuthorization")
    good, weak = token(f"{host}/back", TWO, "own"), token(f"{host}/other", TWO, "own")
    for target, headers, status in (
        ("back", {}, 401),
        ("back", {both[0]: good}, 401),
        ("back", {both[1]: good}, 401),
        ("back", {both[0]: token(host, "wrong", "own"), both[1]: good}, 401),
        ("back", {both[0]: weak, both[1]: good}, 401),
        ("other", dict.fromkeys(both, weak), 401),
        ("back", dict.fromkeys(both, good), 200),
        ("back", {}, 200),
        ("other", {}, 401),
        ("", {}, 200),
        ("back", {}, 401),
    ):
        text = body.format(target, target) if target else entry("QueueDescription")
        answer = client.ask("PUT", "/front", text, headers={**update, **headers})
        assert answer.status == status, (target, headers)
        if status == 401:
            assert "MissingToken: forwarding to" in answer.detail


def test_a_request_whose_rule_goes_while_its_body_is_on_its_way_is_refused(broker: LiveBroker, client: Client) -> None:
    client.ask("PUT", "/q", queue(rule("own", "Manage,Send,Listen", keys(ONE, TWO))))
    signed = token(f"https://localhost:{client.port}", ONE, "own")
    body = entry("QueueDescription", "<UserMetadata>changed</UserMetadata>").encode()
    head = (
        f"PUT /q HTTP/1.1\r\nHost: localhost\r\nAuthorization: {signed}\r\nIf-Match: *\r\nContent-Length: {len(body)}"
    )
    with socket.create_connection(("127.0.0.1", client.port), timeout=10) as slow:
        slow.sendall(f"{head}\r\nExpect: 100-continue\r\n\r\n".encode())
        assert slow.recv(100).startswith(b"HTTP/1.1 100"), "who asks was let in, and is waited for"
        client.ask("PUT", "/q", queue(), headers={"If-Match": "*"})
        slow.sendall(body)
        assert slow.recv(100).startswith(b"HTTP/1.1 401")
    assert "changed" not in client.ask("GET", "/q").body


def test_twelve_rules_are_allowed_and_work(client: Client) -> None:
    twelve = [rule(f"r{number}", "Manage,Send,Listen", keys(ONE, TWO)) for number in range(12)]
    assert client.ask("PUT", "/q", queue(*twelve)).status == 201
    for number in range(12):
        client.token = token(f"https://localhost:{client.port}", TWO, f"r{number}")
        assert client.ask("GET", "/q").status == 200


def test_manage_on_an_entity_is_not_manage_on_the_namespace(client: Client) -> None:
    for path in ("q", "q1", "q/b"):
        client.ask("PUT", f"/{path}", queue(rule("own", "Manage,Send,Listen", keys(ONE if path == "q" else TWO))))
    for resource in ("", "/q"):
        client.token = token(f"https://localhost:{client.port}{resource}", ONE, "own")
        assert client.ask("GET", "/q").status == 200
        assert (
            client.ask("PUT", "/q", queue(rule("own", "Manage,Send,Listen")), headers={"If-Match": "*"}).status == 200
        )
        for method, path in (
            ("GET", "/q1"),
            ("GET", "/q/b"),
            ("DELETE", "/q%2Fb"),
            ("PUT", "/new"),
            ("GET", "/$Resources/queues"),
            ("GET", "/$namespaceinfo"),
            ("GET", "/$spillway/status"),
            ("GET", "/"),
        ):
            assert client.ask(method, path, queue() if method == "PUT" else None).status == 401, (method, path)
    client.token = token(f"https://localhost:{client.port}/q", ONE, "own")
    assert client.ask("DELETE", "/q").status == 200


# -- one way to read a path ----------------------------------------------------------------------------------------

_SEGMENT = st.sampled_from(
    [
        "a",
        "B",
        "a.b",
        "subscriptions",
        "Subscriptions",
        "Rules",
        "$DeadLetterQueue",
        "$management",
        "$cbs",
        "..",
        "",
        "%2F",
        "a:",
    ]
)
_PATHS = st.lists(_SEGMENT, min_size=1, max_size=6).map("/".join)


@given(_PATHS)
def test_whom_a_path_is_authorised_for_is_whom_it_is_about(path: str) -> None:
    """Were there two opinions about where an entity's name ends, the rule of one entity would open another."""
    with contextlib.suppress(HttpRefusal):
        target = parse_target(path.removeprefix("/").removesuffix("/"))
        assert root_key(path) == ("" if target.kind in FIXED else entity_key(target.root))
    address = parse_address(path)
    if address.node != CBS:
        assert root_key(address.path) == root_key(strip_authority(path))


@pytest.fixture(scope="module")
def core() -> CoreHarness:
    made = CoreHarness()
    for kind, path in (
        (QUEUE, "a"),
        (QUEUE, "a/b"),
        (TOPIC, "b"),
        (TOPIC, "b/a"),
        (SUBSCRIPTION, "b/Subscriptions/a"),
        (SUBSCRIPTION, "b/a/Subscriptions/b"),
    ):
        made.apply(CreateEntity(1, kind, path, EntitySettings()))
    return made


@given(path=_PATHS)
def test_what_the_core_finds_under_a_path_belongs_to_whom_it_was_authorised_for(core: CoreHarness, path: str) -> None:
    found = core.namespace.directory.find(parse_address(path).path)
    if isinstance(found, Queue) and found.parent is not None:
        found = found.parent
    if isinstance(found, Subscription):
        found = found.topic
    if found is not None:
        assert entity_key(found.path) == root_key(strip_authority(path))
