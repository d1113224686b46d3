"""`AuthorizationRules` of queues and topics: kept, shown, bounded, and refused without showing a key (S1, S10)."""

import base64
import re

import pytest

from spillway.admin.access import access_rules_xml
from spillway.model.access import ALL_RIGHTS, LISTEN, SEND, AccessRule
from tests.admin.client import Client, entry, token
from tests.wire.live import LiveBroker

INSTANCE = 'xmlns:i="http://www.w3.org/2001/XMLSchema-instance"'
ONE = base64.b64encode(b"1" * 32).decode()
TWO = base64.b64encode(b"2" * 32).decode()
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
