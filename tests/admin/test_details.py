"""Details of the administration API that Microsoft's own tests assert: those of the Go and JavaScript SDKs."""

import re
from collections.abc import Iterator

import pytest

from spillway.model.access import LISTEN, NAMESPACE_SCOPE, AccessRule
from tests.admin.client import Answered, Client, entry, token
from tests.wire.live import LiveBroker

QUEUE = entry("QueueDescription")
TOPIC = entry("TopicDescription")
SUBSCRIPTION = entry("SubscriptionDescription")
NOTHING = "Publicly Listed Services"


@pytest.fixture
def listener(broker: LiveBroker, client: Client) -> Iterator[Client]:
    """Has a good token, without the right Manage."""
    book = broker.server.rights.book
    before = book.of(NAMESPACE_SCOPE)
    book.put(NAMESPACE_SCOPE, [*before, AccessRule("listener", LISTEN, "key")])
    made = Client(broker.server.port)
    made.token = token("https://localhost", key="key", name="listener")
    yield made
    made.close()
    book.put(NAMESPACE_SCOPE, before)


def shown(answer: Answered, name: str) -> str:
    found = re.search(f"<{name}>([^<]*)</{name}>", answer.body)
    assert found is not None, answer.body
    return found[1]


# -- without the right Manage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/absent", "/absent?api-version=2021-05", "/a/b"])
def test_without_manage_an_absent_entity_is_not_found(listener: Client, path: str) -> None:
    answer = listener.ask("GET", path)
    assert (answer.status, NOTHING in answer.body) == (200, True)  # the SDKs take this for 404


def test_without_manage_what_is_there_is_refused_by_what_was_asked(client: Client, listener: Client) -> None:
    for path, body in (("/q", QUEUE), ("/t", TOPIC), ("/t/subscriptions/s", SUBSCRIPTION)):
        assert client.ask("PUT", path, body).status == 201
    read = "Manage,EntityRead claims required for this operation."
    write = "Authorization failed for specified action: Manage,EntityWrite."
    delete = "Authorization failed for specified action: Manage,EntityDelete."
    part = "SubCode=40100: Unauthorized : Unauthorized access for '{}' operation on"
    asked = [
        ("GET", "/q", read),
        ("GET", "/T", read),
        ("GET", "/$Resources/queues", read),
        ("GET", "/$namespaceinfo", read),
        ("PUT", "/absent", write),
        ("PUT", "/q", write),
        ("DELETE", "/q", delete),
        ("DELETE", "/absent", delete),
        ("GET", "/t/subscriptions/s", part.format("GetSubscription")),
        ("GET", "/t/subscriptions/absent", part.format("GetSubscription")),
        ("GET", "/t/subscriptions", part.format("EnumerateSubscriptions")),
        ("PUT", "/t/subscriptions/s", part.format("CreateOrUpdateSubscription")),
        ("DELETE", "/t/subscriptions/s", part.format("DeleteSubscription")),
        ("GET", "/t/subscriptions/s/rules", part.format("EnumerateRules")),
    ]
    for method, path, text in asked:
        answer = listener.ask(method, path, QUEUE if method == "PUT" else None)
        assert (answer.status, answer.detail[: len(text)]) == (401, text), (method, path, answer.body)
    assert client.names() == ["q", "t"]


@pytest.mark.parametrize("path", ["/absent", "/", "/q"])
def test_a_bad_token_learns_nothing_of_what_is_there(broker: LiveBroker, client: Client, path: str) -> None:
    client.ask("PUT", "/q", QUEUE)
    stranger = Client(broker.server.port)
    for bad in (None, token("https://localhost", key="wrong"), "", "nonsense"):
        stranger.token = bad
        answer = stranger.ask("GET", path)
        assert (answer.status, answer.detail) == (401, "claim is empty or token is invalid.")
    stranger.close()


# -- the namespace's own address -----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/", "/?api-version=2021-05"])
def test_the_address_of_the_namespace_is_an_empty_list(client: Client, listener: Client, path: str) -> None:
    client.ask("PUT", "/q", QUEUE)
    for who in (client, listener):
        answer = who.ask("GET", path)
        assert (answer.status, answer.content_type) == (200, "application/atom+xml;type=feed;charset=utf-8")
        assert NOTHING in answer.body
        assert "<entry" not in answer.body
    assert client.ask("PUT", "/", QUEUE).status == 400
    assert client.ask("DELETE", "/").status == 400
    assert client.names() == ["q"]


# -- lists ---------------------------------------------------------------------------------------------------------


def ids(feed: str) -> list[str]:
    return re.findall(r"<entry[^>]*><id>([^<]*)</id>", feed)


@pytest.mark.parametrize("version", ["", "api-version=2021-05"])
def test_addresses_in_lists_have_a_version_if_one_was_asked_for(client: Client, version: str) -> None:
    client.ask("PUT", "/q", QUEUE)
    client.ask("PUT", "/t", TOPIC)
    client.ask("PUT", "/t/subscriptions/s", SUBSCRIPTION)
    host = f"http://localhost:{client.port}"
    tail = f"?{version}" if version else ""
    for path, below in (
        ("/$Resources/queues", "/q"),
        ("/$Resources/topics", "/t"),
        ("/t/subscriptions", "/t/subscriptions/s"),
        ("/t/subscriptions/s/rules", "/t/subscriptions/s/rules/$Default"),
    ):
        feed = client.ask("GET", f"{path}{tail}").body
        assert ids(feed) == [f"{host}{below}{tail}"]
        assert feed.count("api-version=") == (feed.count("api-version=2021-05") if version else 0)


def test_the_next_page_is_asked_for_without_a_version_if_this_one_was(client: Client) -> None:
    for name in ("a", "b"):
        client.ask("PUT", f"/{name}", QUEUE)
    feed = client.ask("GET", "/$Resources/queues?$top=1").body
    assert '<link rel="next" href="http://localhost:' in feed
    assert '$Resources/queues?$skip=1&amp;$top=1"' in feed


def test_rules_are_listed_by_name(client: Client) -> None:
    client.ask("PUT", "/t", TOPIC)
    client.ask("PUT", "/t/subscriptions/s", SUBSCRIPTION)
    rule = entry(
        "RuleDescription", "<Filter i:type='TrueFilter'/>", 'xmlns:i="http://www.w3.org/2001/XMLSchema-instance"'
    )
    for name in ("sql", "Middle", "a"):
        assert client.ask("PUT", f"/t/subscriptions/s/rules/{name}", rule).status == 201
    feed = client.ask("GET", "/t/subscriptions/s/rules").body
    assert [each.rpartition("/")[2] for each in ids(feed)] == ["$Default", "a", "Middle", "sql"]


# -- properties ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("asked", "expected"), [("", "false"), ("true", "true"), ("false", "false")])
def test_a_partitioned_topic_keeps_its_support_of_ordering(client: Client, asked: str, expected: str) -> None:
    said = f"<SupportOrdering>{asked}</SupportOrdering>" if asked else ""
    body = entry("TopicDescription", f"{said}<EnablePartitioning>true</EnablePartitioning>")
    assert shown(client.ask("PUT", "/t", body), "SupportOrdering") == expected
    assert shown(client.ask("GET", "/t"), "SupportOrdering") == expected


@pytest.mark.parametrize("given", ["sb://contoso.servicebus.windows.net/target", "sb://localhost/target"])
def test_forward_to_is_returned_as_it_was_given(broker: LiveBroker, client: Client, given: str) -> None:
    client.ask("PUT", "/target", QUEUE)
    client.ask("PUT", "/t", TOPIC)
    names = ("ForwardTo", "ForwardDeadLetteredMessagesTo")
    fields = "".join(f"<{name}>{given}</{name}>" for name in names)
    for path, kind in (("/q", "QueueDescription"), ("/t/subscriptions/s", "SubscriptionDescription")):
        made = client.ask("PUT", path, entry(kind, fields))
        read = client.ask("GET", path)
        updated = client.ask("PUT", path, entry(kind, fields), headers={"If-Match": "*"})
        for answer in (made, read, updated):
            assert [shown(answer, name) for name in names] == [given, given]
    assert broker.see("q", lambda queue: queue.settings.forward_to) == "target"
    loud = "".join(f"<{name}>{given.upper()}</{name}>" for name in names)
    client.ask("PUT", "/q", entry("QueueDescription", loud), headers={"If-Match": "*"})
    assert shown(client.ask("GET", "/q"), "ForwardTo") == given.replace("/target", "/TARGET")
    # A bare path is shown as an address, with the host that the client asked.
    bare = "".join(f"<{name}>target</{name}>" for name in names)
    client.ask("PUT", "/q", entry("QueueDescription", bare), headers={"If-Match": "*"})
    assert shown(client.ask("GET", "/q"), "ForwardTo") == f"sb://localhost:{client.port}/target"
