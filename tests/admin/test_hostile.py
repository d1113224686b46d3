"""Strangers, bad XML, HTTP and names: a clear refusal, nothing made, nothing held (bad input B15 to B17, B20, B22)."""

import contextlib
import gzip
import http.client
import socket
import threading
import time
import tracemalloc
from collections.abc import Iterator
from urllib.parse import quote
from xml.etree.ElementTree import fromstring

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spillway.admin.http_refusals import HttpRefusal
from spillway.admin.paths import decode_path, parse_target
from spillway.admin.protocol import CONNECTIONS_MAX, REQUEST_TIMEOUT_S, Connections
from spillway.broker.commands import AddRule
from spillway.model.access import LISTEN, MANAGE, NAMESPACE_SCOPE, SEND, AccessRule
from spillway.model.entity import name_problem
from spillway.model.rules import CorrelationFilter, Rule
from spillway.server.pump import Pump
from tests.admin.client import SERVICE_BUS, Client, entry, token
from tests.admin.conftest import connections
from tests.wire.live import LiveBroker

QUEUE = entry("QueueDescription")
ATOM = "http://www.w3.org/2005/Atom"
XSI = 'xmlns:i="http://www.w3.org/2001/XMLSchema-instance"'
LAUGHS = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
MIB = 1024 * 1024

BODIES: dict[str, str | bytes] = {
    "nothing": b"",
    "no XML": "queue please",
    "half of it": QUEUE[:60],
    "a DTD": "<!DOCTYPE entry>" + QUEUE,
    "an external entity": f'<!DOCTYPE e [<!ENTITY x SYSTEM "file:///etc/passwd">]>{QUEUE.replace("><", ">&x;<", 1)}',
    "a parameter entity": f'<!DOCTYPE e [<!ENTITY % x SYSTEM "http://localhost:1/x"> %x;]>{QUEUE}',
    "a billion laughs": f'<!DOCTYPE e [<!ENTITY l0 "ha">{LAUGHS}]><entry xmlns="{ATOM}">&l9;</entry>',
    "a quadratic blow-up": f'<!DOCTYPE e [<!ENTITY a "{"a" * 50_000}">]><entry xmlns="{ATOM}">{"&a;" * 5_000}</entry>',
    "two roots": QUEUE + QUEUE,
    "two contents": QUEUE.replace("</entry>", "<content/></entry>"),
    "two descriptions": QUEUE.replace("</content>", f'<QueueDescription xmlns="{SERVICE_BUS}"/></content>'),
    "another root": QUEUE.replace("entry", "feed"),
    "another namespace": QUEUE.replace(SERVICE_BUS, "http://example.com/other"),
    "no namespace": "<entry><content><QueueDescription/></content></entry>",
    "a child of another namespace": entry("QueueDescription", '<LockDuration xmlns="urn:x">PT1M</LockDuration>'),
    "an unknown description": entry("EventHubDescription"),
    "a subscription": entry("SubscriptionDescription"),
    "an unknown property": entry("QueueDescription", "<LockDuraton>PT1M</LockDuraton>"),
    "a property twice": entry("QueueDescription", "<MaxDeliveryCount>1</MaxDeliveryCount>" * 2),
    "ten thousand elements": entry("QueueDescription", "<a/>" * 30_000),
    "a very deep tree": entry("QueueDescription", "<a>" * 9_000 + "</a>" * 9_000),
    "not UTF-8": b'<?xml version="1.0" encoding="utf-8"?>' + QUEUE.encode().replace(b"></Q", b">\xff\xfe</Q"),
    "an unknown encoding": b'<?xml version="1.0" encoding="martian"?>' + QUEUE.encode(),
    "a null byte": QUEUE.replace("></Q", ">\0</Q"),
    "a count in words": entry("QueueDescription", "<MaxDeliveryCount>ten</MaxDeliveryCount>"),
    "a count of zero": entry("QueueDescription", "<MaxDeliveryCount>0</MaxDeliveryCount>"),
    "a huge count": entry("QueueDescription", f"<MaxDeliveryCount>{'9' * 5_000}</MaxDeliveryCount>"),
    "a count in other digits": entry("QueueDescription", "<MaxDeliveryCount>\u0663</MaxDeliveryCount>"),
    "a boolean in words": entry("QueueDescription", "<RequiresSession>perhaps</RequiresSession>"),
    "a duration in words": entry("QueueDescription", "<LockDuration>a minute</LockDuration>"),
    "a negative duration": entry("QueueDescription", "<LockDuration>-PT1M</LockDuration>"),
    "a duration of nothing": entry("QueueDescription", "<DefaultMessageTimeToLive>PT0S</DefaultMessageTimeToLive>"),
    "long metadata": entry("QueueDescription", f"<UserMetadata>{'x' * 2_000}</UserMetadata>"),
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_a_bad_body_is_refused_before_anything_is_made(client: Client, body: str | bytes) -> None:
    tracemalloc.start()
    try:
        answer = client.ask("PUT", "/q", body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert answer.status == 400, answer
    assert answer.detail.startswith("SubCode=40000. ")
    assert "root:" not in answer.body
    assert peak < 32 * MIB
    assert client.names() == []


def test_ten_thousand_attributes_are_read_in_a_moment(client: Client) -> None:
    begun = time.monotonic()
    attributes = " ".join(f'a{number}="x"' for number in range(10_000))
    assert client.ask("PUT", "/q", entry("QueueDescription", attributes=attributes)).status == 201
    assert time.monotonic() - begun < 5


def test_a_body_of_more_than_a_mebibyte_is_refused(client: Client) -> None:
    answer = client.ask("PUT", "/q", QUEUE + " " * MIB)
    assert answer.status == 413
    assert "A body has at most 1048576 bytes" in answer.detail
    client.close()
    assert client.names() == []


def test_a_body_of_a_hundred_megabytes_is_not_waited_for(client: Client) -> None:
    said = conversation(client.port, head(client, "PUT", "/q", "Content-Length: 100000000"))
    assert said.startswith(b"HTTP/1.1 413 ")


def test_an_endless_body_in_chunks_is_cut_off(client: Client) -> None:
    with socket.create_connection(("localhost", client.port), timeout=20) as sock:
        sock.sendall(head(client, "PUT", "/q", "Transfer-Encoding: chunked"))
        chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < 64 * MIB:
                sock.sendall(chunk)
                sent += len(chunk)
        assert sent < 64 * MIB


def test_a_gzip_bomb_stays_packed(client: Client) -> None:
    bomb = gzip.compress(b" " * 100 * MIB)
    answer = client.ask("PUT", "/q", bomb, headers={"Content-Encoding": "gzip"})
    assert (answer.status, "not compressed" in answer.detail) == (400, True)


RULES = {
    "no type": "<Filter/>",
    "another type": f'<Filter {XSI} i:type="JsonFilter"/>',
    "no expression": f'<Filter {XSI} i:type="SqlFilter"/>',
    "a broken expression": f'<Filter {XSI} i:type="SqlFilter"><SqlExpression>((((</SqlExpression></Filter>',
    "a bad value": f'<Filter {XSI} i:type="CorrelationFilter"><Properties><KeyValueOfstringanyType><Key>k</Key>'
    '<Value i:type="x:int">many</Value></KeyValueOfstringanyType></Properties></Filter>',
    "a key twice": f'<Filter {XSI} i:type="CorrelationFilter"><Properties>'
    + "<KeyValueOfstringanyType><Key>k</Key><Value>v</Value></KeyValueOfstringanyType>" * 2
    + "</Properties></Filter>",
    "another action": f'<Filter {XSI} i:type="TrueFilter"/><Action {XSI} i:type="ExecAction"/>',
    "another name": f'<Filter {XSI} i:type="TrueFilter"/><Name>other</Name>',
    "a long expression": f'<Filter {XSI} i:type="SqlFilter"><SqlExpression>{"a" * 5_000}=1</SqlExpression></Filter>',
}


@pytest.mark.parametrize("inner", RULES.values(), ids=RULES.keys())
def test_a_bad_rule_is_refused(client: Client, inner: str) -> None:
    client.ask("PUT", "/t", entry("TopicDescription"))
    client.ask("PUT", "/t/subscriptions/s", entry("SubscriptionDescription"))
    answer = client.ask("PUT", "/t/subscriptions/s/rules/r", entry("RuleDescription", inner))
    assert answer.status == 400, answer
    assert client.ask("GET", "/t/subscriptions/s/rules").body.count("<Name>") == 1


# -- HTTP ----------------------------------------------------------------------------------------------------------


def head(client: Client, method: str, path: str, *lines: str, end: str = "\r\n") -> bytes:
    all_lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Authorization: {client.token}", *lines, "", ""]
    return end.join(all_lines).encode()


def conversation(port: int, said: bytes) -> bytes:
    """Say it, and hear everything until the other side closes."""
    with socket.create_connection(("localhost", port), timeout=20) as sock:
        sock.sendall(said)
        return heard_last(sock)


def heard_last(sock: socket.socket) -> bytes:
    heard = b""
    with contextlib.suppress(ConnectionResetError):
        while part := sock.recv(65_536):
            heard += part
    return heard


HEADS = {
    "two lengths": ("400", ("Content-Length: 5", "Content-Length: 6")),
    "a length twice": ("400", (f"Content-Length: {len(QUEUE)}", f"content-length: {len(QUEUE)}")),
    "a length twice in one line": ("400", (f"Content-Length: {len(QUEUE)}, {len(QUEUE)}",)),
    "a length and chunks": ("400", ("Content-Length: 5", "Transfer-Encoding: chunked")),
    "a length in words": ("400", ("Content-Length: five",)),
    "a negative length": ("400", ("Content-Length: -1",)),
    "an unknown transfer coding": ("400", ("Transfer-Encoding: braille",)),
    "a folded line": ("400", ("X-Folded: one", "  two")),
    "a blank before the colon": ("400", ("X-Blank : x",)),
    "a line without a colon": ("400", ("nonsense",)),
    "two hosts": ("400", ("Host: other",)),
    "two tokens": ("400", ("Authorization: SharedAccessSignature x", "Connection: close")),
    "ten thousand lines": ("431", (*("a:b" for _ in range(9_000)), "Connection: close")),
    "a long line": ("431", (f"X-Long: {'x' * 100_000}",)),
}


@pytest.mark.parametrize(("status", "lines"), HEADS.values(), ids=HEADS.keys())
def test_a_head_that_two_parsers_could_read_differently_is_refused_and_closed(
    client: Client, status: str, lines: tuple[str, ...]
) -> None:
    heard = conversation(client.port, head(client, "PUT", "/q", *lines) + QUEUE.encode())
    assert heard.startswith(f"HTTP/1.1 {status} ".encode()), heard[:300]
    assert heard.count(b"HTTP/1.1 ") == 1, "nothing that was smuggled behind it is answered"
    assert client.names() == []


@pytest.mark.parametrize(("status", "lines"), HEADS.values(), ids=HEADS.keys())
def test_such_a_head_is_refused_behind_another_request_too(client: Client, status: str, lines: tuple[str, ...]) -> None:
    asked = head(client, "GET", "/other") + head(client, "PUT", "/q", *lines) + QUEUE.encode()
    heard = conversation(client.port, asked)
    assert heard.startswith(b"HTTP/1.1 200 ")
    assert heard.count(b"HTTP/1.1 ") == 2
    assert f"HTTP/1.1 {status} ".encode() in heard
    assert client.names() == []


def test_a_bare_line_feed_ends_no_line(client: Client) -> None:
    assert conversation(client.port, head(client, "GET", "/q", end="\n")).startswith(b"HTTP/1.1 400 ")


def test_a_request_that_never_arrives_whole_is_given_up(broker: LiveBroker, client: Client) -> None:
    together = connections(broker)
    together.request_timeout_s = 0.3
    try:
        for said in (b"GET /q HTTP/1.1\r\nHost: loc", head(client, "PUT", "/q", "Content-Length: 100") + b"<entry"):
            assert conversation(client.port, said).startswith(b"HTTP/1.1 408 ")
    finally:
        together.request_timeout_s = REQUEST_TIMEOUT_S


def test_a_request_that_begins_behind_another_and_never_arrives_whole_is_given_up(
    broker: LiveBroker, client: Client
) -> None:
    together = connections(broker)
    together.request_timeout_s = 0.3
    try:
        heard = conversation(client.port, head(client, "GET", "/q") + b"GET /q HTTP/1.1\r\nHost: loc")
    finally:
        together.request_timeout_s = REQUEST_TIMEOUT_S
    assert heard.startswith(b"HTTP/1.1 200 ")
    assert b"HTTP/1.1 408 " in heard


def test_a_crowd_of_half_open_requests_does_not_keep_others_out(client: Client) -> None:
    crowd = [socket.create_connection(("localhost", client.port)) for _ in range(100)]
    for sock in crowd:
        sock.sendall(b"GET /q HTTP/1.1\r\n")
    assert client.ask("PUT", "/q", QUEUE).status == 201
    for sock in crowd:
        sock.close()


@pytest.fixture
def few(broker: LiveBroker) -> Iterator[Connections]:
    """Five administrators at a time."""
    together = connections(broker)
    broker.wait(lambda: not together.connections)
    together.connections_max = 5
    yield together
    together.connections_max = CONNECTIONS_MAX


async def turn(pump: Pump) -> None:
    pump.turn()


def test_who_has_been_idle_longest_makes_room_for_who_comes_next(
    broker: LiveBroker, few: Connections, client: Client
) -> None:
    clients = [Client(client.port) for _ in range(5)]
    for each in (*clients, clients[0]):
        assert each.ask("GET", "/q").status == 200
    assert client.ask("GET", "/q").status == 200
    broker.wait(lambda: len(few.connections) == len(few.waiting) == 5)
    with pytest.raises(http.client.RemoteDisconnected):
        clients[1].ask("GET", "/q")
    for each in (clients[0], *clients[2:], client):
        assert each.ask("GET", "/q").status == 200
        each.close()


def test_who_sends_half_a_request_makes_room_too_and_who_is_being_answered_does_not(
    broker: LiveBroker, few: Connections, client: Client
) -> None:
    pump = broker.server.pump
    pump.is_scheduled = True  # so it says: no turn begins
    asking = [socket.create_connection(("localhost", client.port), timeout=20) for _ in range(4)]
    for sock in asking:
        sock.sendall(head(client, "GET", "/q", "Connection: close"))
    broker.wait(lambda: len(few.connections) == 4 and not few.waiting)
    halves = [socket.create_connection(("localhost", client.port), timeout=20) for _ in range(2)]
    halves[0].sendall(b"GET /q HTTP/1.1\r\n")
    broker.wait(lambda: len(few.waiting) == 1)
    halves[1].sendall(b"GET /q HTTP/1.1\r\n")
    assert heard_last(halves[0]) == b""
    broker.run(turn(pump))
    for sock in asking:
        assert sock.recv(65_536).startswith(b"HTTP/1.1 200 ")
    for sock in (*asking, *halves):
        sock.close()


@pytest.mark.parametrize("method", ["POST", "PATCH", "HEAD", "OPTIONS", "TRACE"])
def test_other_methods_are_not_served(client: Client, method: str) -> None:
    assert client.ask(method, "/q").status == 405


def test_a_rule_that_xml_cannot_hold_leaves_the_list_readable(broker: LiveBroker, client: Client) -> None:
    client.ask("PUT", "/t", entry("TopicDescription"))
    client.ask("PUT", "/t/subscriptions/s", entry("SubscriptionDescription"))
    rule = Rule("odd", CorrelationFilter(label="a\x00\x1b<b>"), None, 0)
    broker.ask(lambda number: AddRule(number, "t/Subscriptions/s", rule))
    body = client.ask("GET", "/t/subscriptions/s/rules").body
    assert fromstring(body) is not None
    assert "<Label>a\ufffd\ufffd&lt;b&gt;</Label>" in body


# -- names ---------------------------------------------------------------------------------------------------------

NAMES = [
    "/../q", "/a/../q", "/%2e%2e/q", "/a%2f..%2fq", "/a//q", "//q", "/a/./q", "/$cbs", "/$management", "/q/$management",
    "/q/$DeadLetterQueue", "/q.", "/.q", "/q-", "/" + "q" * 261, "/q%20q", "/q%00", "/q%0d%0aX:y", "/%ff%fe", "/q%3fx",
    "/q%252fx", "/" + quote("q\u0430"), "/" + quote("\uff51"), "/", "/q@x", "/q%5cx", "/q;x", "/q%3cx",
    "/t/subscriptions/a%2fb", "/t/subscriptions/$x", "/t/subscriptions/" + "s" * 51, "/t/subscriptions//rules/r",
]  # fmt: skip


@pytest.mark.parametrize("path", NAMES)
def test_a_name_that_breaks_the_rules_is_refused(client: Client, path: str) -> None:
    body = entry("SubscriptionDescription") if "subscriptions" in path else QUEUE
    answer = client.ask("PUT", path, body)
    assert answer.status == 400, answer
    assert client.ask("DELETE", path).status == 400
    assert client.names() == []


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=40))
def test_no_path_gets_past_the_rules_of_names(name: str) -> None:
    try:
        target = parse_target(decode_path(b"/" + quote(name, safe="/").encode()))
    except HttpRefusal as fault:
        assert fault.status == 400
    else:
        assert target.root == "" or name_problem(target.root) is None


def test_names_are_the_same_in_any_case_and_encoding(client: Client) -> None:
    assert client.ask("PUT", "/Shop/Orders", QUEUE).status == 201
    assert client.ask("PUT", "/shop%2Forders", QUEUE).status == 409
    assert client.ask("PUT", "/SHOP/orders/", QUEUE).status == 409
    assert client.names() == ["Shop/Orders"]
    assert client.ask("PUT", "/shop/x-servicebus-transfer/0", QUEUE).status == 201, "a backlog of paired namespaces"


def test_one_name_is_one_entity(client: Client) -> None:
    assert client.ask("PUT", "/one", QUEUE).status == 201
    assert client.ask("PUT", "/one", entry("TopicDescription")).status == 409
    assert client.ask("PUT", "/one", entry("TopicDescription"), headers={"If-Match": "*"}).status == 400
    assert client.ask("PUT", "/one/subscriptions/s", entry("SubscriptionDescription")).status == 404
    assert client.ask("GET", "/one/subscriptions").status == 404
    assert "QueueDescription" in client.ask("GET", "/one").body


# -- tokens --------------------------------------------------------------------------------------------------------


def test_who_has_no_good_token_hears_401_and_nothing_else(client: Client) -> None:
    host = f"https://localhost:{client.port}"
    good = token(host)
    bad = [
        None, "", "Bearer x", "SharedAccessSignature ", good[:-1], good.replace("sig=", "sig=x"), good + "&sig=x",
        token(host, key="other"), token(host, name="Nobody"), token(host, valid_s=-1), token(f"{host}/q1"), good * 40,
        good.replace("sr=", "st="), "SharedAccessSignature sr=&sig=&se=&skn=",
    ]  # fmt: skip
    for each in bad:
        client.token = each
        for method, path in (("GET", "/$Resources/queues"), ("PUT", "/q"), ("PUT", "/q10"), ("GET", "/$namespaceinfo")):
            answer = client.ask(method, path, QUEUE if method == "PUT" else None)
            assert (answer.status, answer.detail) == (401, "claim is empty or token is invalid."), (each, path)
            assert answer.etag is None
    client.token = good
    assert client.names() == []


def test_a_token_for_the_bare_host_is_good_for_all_of_it(client: Client) -> None:
    for resource, status in (
        ("localhost", 200),
        (f"localhost:{client.port}", 200),
        ("LOCALHOST/$Resources", 200),
        ("localhost/other", 401),
        ("otherhost", 401),
    ):
        client.token = token(resource)
        assert client.ask("GET", "/$Resources/queues").status == status, resource


def test_a_token_for_an_entity_is_good_for_what_is_under_it(client: Client) -> None:
    host = f"https://localhost:{client.port}"
    client.token = token(f"{host}/t")
    assert client.ask("PUT", "/t", entry("TopicDescription")).status == 201
    assert client.ask("PUT", "/t/subscriptions/s", entry("SubscriptionDescription")).status == 201
    assert client.ask("PUT", "/t2", entry("TopicDescription")).status == 401
    client.token = token(f"{host}/t?api-version=2021-05")
    assert client.ask("GET", "/t?api-version=2021-05").status == 200
    assert client.ask("GET", "/t?api-version=2017-04").status == 401


def test_send_and_listen_do_not_administer(broker: LiveBroker, client: Client) -> None:
    book = broker.server.rights.book
    before = book.of(NAMESPACE_SCOPE)
    for name, rights in (("S", SEND), ("L", LISTEN), ("SL", SEND | LISTEN), ("M", MANAGE)):
        book.put(NAMESPACE_SCOPE, [*before, AccessRule(name, rights, "key")])
        client.token = token("https://localhost", key="key", name=name)
        answer = client.ask("GET", "/$Resources/queues")
        book.put(NAMESPACE_SCOPE, before)
        assert answer.status == (200 if name == "M" else 401)
        if name != "M":
            assert answer.detail == "Manage,EntityRead claims required for this operation."


# -- ETags ---------------------------------------------------------------------------------------------------------


def test_an_update_can_be_bound_to_what_was_read(broker: LiveBroker, client: Client) -> None:
    client.ask("PUT", "/q", QUEUE)
    read = client.ask("GET", "/q").etag
    assert read is not None
    broker.advance(1)
    first = client.ask("PUT", "/q", QUEUE, headers={"If-Match": read})
    assert first.status == 200
    assert first.etag not in (None, read)
    assert client.ask("PUT", "/q", QUEUE, headers={"If-Match": read}).status == 412


def test_pages_say_where_the_next_one_is(client: Client) -> None:
    for name in ("a", "b", "c"):
        client.ask("PUT", f"/{name}", QUEUE)
    first = client.ask("GET", "/$Resources/queues?$skip=0&$top=2&api-version=2021-05").body
    assert 'rel="next"' in first and "$skip=2&amp;$top=2" in first
    assert 'rel="next"' not in client.ask("GET", "/$Resources/queues?$skip=2&$top=2&api-version=2021-05").body
    for query in ("$skip=-1", "$top=0", "$top=x", "$skip=9999999999999"):
        assert client.ask("GET", f"/$Resources/queues?{query}").status == 400


def test_requests_behind_each_other_on_one_connection_are_all_answered(client: Client) -> None:
    asked = head(client, "GET", "/a") + head(client, "GET", "/b") + head(client, "GET", "/c", "Connection: close")
    heard = conversation(client.port, asked)
    assert heard.count(b"HTTP/1.1 200 OK") == 3


def test_many_administrators_at_once(client: Client) -> None:
    statuses: list[int] = []

    def make(number: int) -> None:
        own = Client(client.port)
        statuses.append(own.ask("PUT", f"/crowd-{number % 10}", QUEUE).status)
        own.close()

    threads = [threading.Thread(target=make, args=(number,)) for number in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(statuses) == [201] * 10 + [409] * 30
