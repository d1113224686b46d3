"""A consumer knows that it got exactly what the producer sent: over real sockets, through the real SDK."""

from collections.abc import Iterator

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from spillway.lab.messages import digest, identity_of, make_message
from spillway.pytest_plugin import LocalNamespace


@pytest.fixture
def namespace() -> Iterator[LocalNamespace]:
    with LocalNamespace() as made:
        yield made


def test_what_arrives_has_the_digest_of_what_was_sent_and_says_which_one_it_is(
    namespace: LocalNamespace,
) -> None:
    namespace.queue("orders")
    messages = [make_message("producer0", number, attempt, 50) for number, attempt in ((7, 0), (8, 3))]
    digests = [digest(message) for message in messages]
    with ServiceBusClient.from_connection_string(namespace.connection_string) as client:
        with client.get_queue_sender("orders") as sender:
            sender.send_messages(messages)
        with client.get_queue_receiver("orders") as receiver:
            received = receiver.receive_messages(2, max_wait_time=5)
            assert [identity_of(message) for message in received] == [("producer0-7", 0), ("producer0-8", 3)]
            assert [digest(message) for message in received] == digests


def test_an_alias_that_was_left_on_it_changes_the_digest() -> None:
    message, other = make_message("producer0", 7, 0, 50), make_message("producer0", 7, 0, 50)
    other.application_properties = {**(message.application_properties or {}), "x-ms-path": "orders"}
    assert digest(other) != digest(message)


def test_every_part_of_a_message_counts() -> None:
    assert len({digest(make_message("p", 7, attempt, size)) for attempt in (0, 1) for size in (1, 2)}) == 4
    one, other = make_message("p", 7, 0, 1), make_message("p", 7, 0, 1)
    other.subject = "another"
    assert digest(one) != digest(other)
    assert digest(make_message("p", 7, 0, 1)) == digest(one)


def test_the_attempts_of_a_message_have_one_id() -> None:
    assert make_message("p", 7, 0, 1).message_id == make_message("p", 7, 1, 1).message_id == "p-7"


def test_a_message_of_somebody_else_is_named(namespace: LocalNamespace) -> None:
    namespace.queue("orders")
    with ServiceBusClient.from_connection_string(namespace.connection_string) as client:
        with client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("hello", message_id="m", content_type="text/plain"))
        with client.get_queue_receiver("orders") as receiver:
            (received,) = receiver.receive_messages(1, max_wait_time=5)
            assert identity_of(received) == ("a stranger: text/plain m", 0)
