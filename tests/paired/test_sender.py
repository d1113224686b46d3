"""What a sender makes of what it is given: the SDK's own shapes, all of them or none."""

from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage

from spillway.paired.messages import raw_of
from spillway.paired.sender import request_of


def batch_of(*bodies: str) -> ServiceBusMessageBatch:
    batch = ServiceBusMessageBatch(max_size_in_bytes=10_000)
    for body in bodies:
        batch.add_message(ServiceBusMessage(body))
    return batch


@pytest.mark.parametrize(
    ("given", "bodies", "is_whole"),
    [
        (ServiceBusMessage("a"), ["a"], False),
        (AmqpAnnotatedMessage(data_body=b"a"), ["a"], False),
        ({"body": "a"}, ["a"], False),
        ([ServiceBusMessage("a"), AmqpAnnotatedMessage(data_body=b"b"), {"body": "c"}], ["a", "b", "c"], True),
        ((ServiceBusMessage(body) for body in "ab"), ["a", "b"], True),
        (batch_of("a", "b"), ["a", "b"], True),
        ([], [], True),
    ],
    ids=["message", "amqp", "dict", "list", "generator", "batch", "empty"],
)
def test_every_shape_that_the_sdk_takes_is_taken_and_every_message_has_an_id(
    given: Any, bodies: list[str], is_whole: bool
) -> None:
    request = request_of(given, is_paired=True)
    raws = [raw_of(message) for message in request.messages]
    assert [b"".join(raw.body).decode() for raw in raws] == bodies
    assert request.is_whole is is_whole
    assert list(request.body_sizes) == [1] * len(bodies)
    ids = {raw.properties.message_id for raw in raws if raw.properties is not None}
    assert len(ids) == len(bodies) and None not in ids


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ("text", "str"),
        (b"bytes", "bytes"),
        (None, "NoneType"),
        ([ServiceBusMessage("a"), "text"], "str"),
        ([[ServiceBusMessage("a"), ServiceBusMessage("lost")]], "list"),
        ([batch_of("a", "lost")], "ServiceBusMessageBatch"),
    ],
    ids=["str", "bytes", "none", "str in a list", "list in a list", "batch in a list"],
)
def test_what_is_no_message_is_refused_and_nothing_is_left_out(given: Any, named: str) -> None:
    with pytest.raises(TypeError, match=f"Received instead: {named}$"):
        request_of(given, is_paired=False)
