"""Pages of strangers, in the browser of somebody who runs a broker with the key that everybody knows.

A page can be served under a name that leads to this machine a moment later (DNS rebinding): for the browser the broker
is then its own server. It can sign tokens, for it knows the key; what it cannot do is to hide its name.
"""

import http.client
from collections.abc import Iterator

import pytest

from spillway.model.access import MANAGE, NAMESPACE_SCOPE, AccessRule
from spillway.server.keys import KEY_NAME
from tests.admin.client import Client, entry, token
from tests.admin.conftest import connections
from tests.hostile.websocket import RawWebSocket
from tests.wire.live import LiveBroker

SECRET = "c2VjcmV0IHNlY3JldCBzZWNyZXQgc2VjcmV0ISE="
STRANGERS = [
    *("evil.example", "evil.example:5672", "localhost.evil.example", "127.0.0.1.nip.io"),
    *("10.0.0.7:5672", "[fd00::7]"),
]
FRIENDS = [
    *(
        "localhost",
        "LOCALHOST:5672",
        "127.0.0.1:5672",
        "127.1.2.3",
        "[::1]:5672",
        "broker",
        "broker:5672",
        "x.localhost",
    ),
    *("host.docker.internal", "sb.test", "contoso.servicebus.windows.net"),
]


@pytest.mark.parametrize("host", STRANGERS)
def test_a_request_to_a_name_that_a_web_site_can_have_is_refused(client: Client, host: str) -> None:
    refused = client.ask("PUT", "/planted", entry("QueueDescription"), headers={"Host": host})
    assert refused.status == 403
    name = host.removesuffix(":5672").strip("[]")
    assert f"'{name}' ('Host') may be the name of a web site" in refused.detail
    assert f"spillway serve --allow-host {name}" in refused.detail
    assert client.names() == []


@pytest.mark.parametrize("host", FRIENDS)
def test_a_request_to_a_name_of_this_machine_is_served(client: Client, host: str) -> None:
    client.token = token(f"https://{host}")
    assert client.ask("PUT", "/wanted", entry("QueueDescription"), headers={"Host": host}).status == 201


@pytest.mark.parametrize("origin", ["https://evil.example", "http://localhost.evil.example:5672", "null"])
def test_a_page_of_another_machine_is_refused(client: Client, origin: str) -> None:
    refused = client.ask("GET", "/$spillway/status", headers={"Origin": origin})
    assert refused.status == 403
    assert "('Origin') may not" in refused.body or "('Origin') may be the name" in refused.body
    assert client.ask("GET", "/$spillway/status", headers={"Origin": "http://localhost:3000"}).status == 200


def test_a_websocket_to_a_name_that_a_web_site_can_have_is_refused(client: Client) -> None:
    with RawWebSocket(client.port, Host="evil.example:5672") as refused:
        assert refused.answer.startswith(b"HTTP/1.1 403 ")
        assert b"'evil.example' ('Host')" in refused.answer


def test_names_that_were_allowed_are_served(broker: LiveBroker, client: Client) -> None:
    app = connections(broker).app
    app.allowed_hosts = frozenset({"sb.contoso.example"})
    try:
        for headers in ({"Host": "SB.contoso.example:443"}, {"Origin": "https://sb.contoso.example"}):
            assert client.ask("GET", "/$spillway/status", headers=headers).status == 200
        with RawWebSocket(client.port, Host="sb.contoso.example") as accepted:
            assert accepted.answer.startswith(b"HTTP/1.1 101 ")
    finally:
        app.allowed_hosts = frozenset()


@pytest.fixture
def secret(broker: LiveBroker) -> Iterator[str]:
    book = broker.server.rights.book
    known = book.of(NAMESPACE_SCOPE)
    book.put(NAMESPACE_SCOPE, [AccessRule(KEY_NAME, MANAGE, SECRET)])
    yield SECRET
    book.put(NAMESPACE_SCOPE, known)


def test_where_the_key_is_a_secret_any_name_will_do(client: Client, secret: str) -> None:
    """Behind a proxy, say: a page knows no key and cannot sign anything."""
    asked = {"Host": "sb.contoso.example", "Authorization": token("https://sb.contoso.example", secret)}
    assert client.ask("GET", "/$spillway/status", headers=asked).status == 200


# -- and what a browser makes of an answer --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("GET", "/", {}),
        ("GET", "/$Resources/queues", {}),
        ("GET", "/$spillway/status", {}),
        ("GET", "/$spillway/nothing", {}),
        ("GET", "/nothing", {}),
        ("GET", "/", {"Authorization": "none"}),
        ("GET", "/", {"Host": "evil.example"}),
        ("GET", "/$servicebus/websocket", {}),
        ("PUT", "/q", {"Content-Encoding": "gzip"}),
        ("GET", "/", {"X-Long": "x" * 70_000}),
        ("DELETE", "/$Resources/queues", {}),
        ("OPTIONS", "/", {}),
    ],
    ids=lambda value: str(value)[:30],
)
def test_no_answer_is_taken_for_something_else_than_it_says(
    client: Client, method: str, path: str, headers: dict[str, str]
) -> None:
    connection = http.client.HTTPConnection("localhost", client.port, timeout=20)
    assert client.token is not None
    connection.request(method, path, None, {"Authorization": client.token, **headers})
    response = connection.getresponse()
    assert response.headers.get_all("X-Content-Type-Options") == ["nosniff"], response.status
    connection.close()
