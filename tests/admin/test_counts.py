"""Counts that a topic shows of what belongs to it."""

from tests.admin.client import Client, entry

XSI = 'xmlns:i="http://www.w3.org/2001/XMLSchema-instance"'


def test_a_topic_counts_its_subscriptions_and_their_filters(client: Client) -> None:
    client.ask("PUT", "/t", entry("TopicDescription"))
    for name in ("a", "b"):
        client.ask("PUT", f"/t/subscriptions/{name}", entry("SubscriptionDescription"))
    rule = entry("RuleDescription", f'<Filter {XSI} i:type="CorrelationFilter"><Label>x</Label></Filter>')
    assert client.ask("PUT", "/t/subscriptions/a/rules/r", rule).status == 201
    body = client.ask("GET", "/t?api-version=2024-05").body
    assert (
        "<SubscriptionCount>2</SubscriptionCount><SqlFilterCount>2</SqlFilterCount>"
        "<CorrelationFilterCount>1</CorrelationFilterCount><AutoDeleteOnIdle>"
    ) in body
    assert "FilterCount" not in client.ask("GET", "/t?api-version=2021-05").body


def test_a_subscription_may_come_with_its_first_rule(client: Client) -> None:
    client.ask("PUT", "/t", entry("TopicDescription"))
    rule = (
        f'<DefaultRuleDescription {XSI}><Filter i:type="SqlFilter"><SqlExpression>a = 1</SqlExpression></Filter>'
        "<Name>first</Name></DefaultRuleDescription>"
    )
    assert client.ask("PUT", "/t/subscriptions/s", entry("SubscriptionDescription", rule)).status == 201
    listed = client.ask("GET", "/t/subscriptions/s/rules").body
    assert "<Name>first</Name>" in listed
    assert "$Default" not in listed
