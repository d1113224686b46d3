"""The JSON API under `/$spillway/`: what it answers, and whom."""

import json

import pytest

from spillway import __version__
from tests.admin.client import Client, entry, token
from tests.wire.live import LiveBroker


def test_the_status_shows_what_a_namespace_holds(broker: LiveBroker, client: Client) -> None:
    client.ask("PUT", "/orders", entry("QueueDescription"))
    client.ask("PUT", "/news", entry("TopicDescription"))
    client.ask("PUT", "/news/Subscriptions/all", entry("SubscriptionDescription"))
    broker.send("orders", "one", "two")
    answered = client.ask("GET", "/$spillway/status")
    assert (answered.status, answered.content_type) == (200, "application/json")
    facts = json.loads(answered.body)
    assert (facts["namespace"], facts["version"]) == ("wire", __version__)
    assert (facts["queues"], facts["topics"], facts["subscriptions"], facts["messages"]) == (1, 1, 1, 2)


def test_an_unknown_resource_is_named_with_those_there_are(client: Client) -> None:
    answered = client.ask("GET", "/$spillway/nonsense")
    assert answered.status == 404
    assert json.loads(answered.body)["error"].startswith("There is no '/$spillway/nonsense'. There is: ")


def test_a_verb_that_a_resource_does_not_know_is_refused(client: Client) -> None:
    answered = client.ask("DELETE", "/$spillway/status")
    assert answered.status == 405
    assert json.loads(answered.body)["error"].startswith("'status' takes GET, not DELETE.")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("{", "The body is not JSON"),
        ("[]", "The body must be a JSON object."),
        ('{"a": 1, "a": 2}', "'a' is in it more than once"),
        ("[" * 100_000, "The body is not JSON"),
    ],
)
def test_a_body_that_is_no_json_object_is_refused_with_the_reason(client: Client, body: str, said: str) -> None:
    answered = client.ask("GET", "/$spillway/status", body)
    assert answered.status == 400
    assert said in json.loads(answered.body)["error"]


def test_a_name_twice_in_the_query_is_refused(client: Client) -> None:
    answered = client.ask("GET", "/$spillway/status?a=1&a=2")
    assert (answered.status, "'a' is in the query more than once" in answered.body) == (400, True)


def test_nobody_without_a_good_token_is_answered(client: Client) -> None:
    client.token = None
    assert client.ask("GET", "/$spillway/status").status == 401
    client.token = token(f"https://localhost:{client.port}", key="another")
    answered = client.ask("GET", "/$spillway/status")
    assert answered.status == 401
    assert "TrackingId:" in json.loads(answered.body)["error"]
