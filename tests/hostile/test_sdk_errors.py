"""What users of the official SDKs see when they do something wrong: the SDK's own exception, words, and no secret."""

from collections.abc import Iterator

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    ServiceBusAuthenticationError,
    ServiceBusError,
)

from tests.hostile.attacker import KEY, KEY_NAME, TARGET
from tests.hostile.scene import Scene
from tests.tools.js import JavaScript, JavaScriptError
from tests.tools.missing import assert_missing

SECRET = "bm90LXRoZS1rZXktYnV0LXNlY3JldA=="


def with_key(scene: Scene, name: str, key: str) -> str:
    text = scene.broker.connection_string
    return text.replace(f"SharedAccessKeyName={KEY_NAME}", f"SharedAccessKeyName={name}").replace(
        f"SharedAccessKey={KEY}", f"SharedAccessKey={key}"
    )


def python_error(connection_string: str, queue: str, message: ServiceBusMessage) -> ServiceBusError:
    """What the Python SDK raises when this is sent."""
    with (
        ServiceBusClient.from_connection_string(connection_string, retry_total=0) as client,
        pytest.raises(ServiceBusError) as raised,
        client.get_queue_sender(queue) as sender,
    ):
        sender.send_messages(message)
    assert KEY not in str(raised.value)
    assert SECRET not in str(raised.value)
    return raised.value


def long_properties(count: int, size: int) -> ServiceBusMessage:
    return ServiceBusMessage(b"x", application_properties={f"p{number}": "v" * size for number in range(count)})


def test_python_an_unknown_entity_is_named(attacked: Scene) -> None:
    error = python_error(attacked.broker.connection_string, "nowhere", ServiceBusMessage(b"x"))
    assert_missing(error, "nowhere")


def test_python_a_receiver_of_an_unknown_entity_is_told_so(attacked: Scene) -> None:
    with (
        ServiceBusClient.from_connection_string(attacked.broker.connection_string, retry_total=0) as client,
        pytest.raises(ServiceBusAuthenticationError) as raised,
        client.get_queue_receiver("nowhere") as receiver,
    ):
        receiver.receive_messages(max_wait_time=2)
    assert_missing(raised.value, "nowhere")


@pytest.mark.parametrize(("name", "key"), [(KEY_NAME, SECRET), ("Nobody", KEY), ("Nobody", SECRET)])
def test_python_a_wrong_key_or_name_says_what_to_check(attacked: Scene, name: str, key: str) -> None:
    error = python_error(with_key(attacked, name, key), TARGET, ServiceBusMessage(b"x"))
    assert isinstance(error, ServiceBusAuthenticationError)
    # The SDK keeps the broker's words in what it wraps, and writes "an error" over them.
    words = f"{error.inner_exception!s} {vars(error.inner_exception)}"
    assert "Check SharedAccessKeyName and SharedAccessKey" in words
    assert SECRET not in words


def test_python_a_message_too_large_says_how_large_it_may_be(attacked: Scene) -> None:
    error = python_error(attacked.broker.connection_string, TARGET, ServiceBusMessage(b"x" * 300_000))
    assert isinstance(error, MessageSizeExceededError)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (long_properties(70, 1_000), "65536"),
        (long_properties(1, 33_000), "32768"),
    ],
    ids=["properties too large", "a property too large"],
)
def test_python_what_is_over_a_limit_names_the_limit(attacked: Scene, message: ServiceBusMessage, words: str) -> None:
    error = python_error(attacked.broker.connection_string, TARGET, message)
    assert words in str(error)
    assert "TrackingId" in str(error)


def test_python_a_message_id_too_long_names_the_limit(attacked: Scene) -> None:
    """The SDK checks it too, but not when it is set on the AMQP message itself."""
    message = ServiceBusMessage(b"x")
    assert message.raw_amqp_message.properties is not None
    message.raw_amqp_message.properties.message_id = "i" * 129
    error = python_error(attacked.broker.connection_string, TARGET, message)
    assert "message-id has 129 characters; at most 128" in str(error)


@pytest.fixture(scope="module")
def javascript() -> Iterator[JavaScript]:
    with JavaScript() as js:
        yield js


def javascript_error(js: JavaScript, connection_string: str, queue: str, message: dict[str, object]) -> JavaScriptError:
    """What the JavaScript SDK rejects its promise with when this is sent."""
    client = f"c{abs(hash((connection_string, queue, str(message))))}"
    js.call("connect", client=client, connectionString=connection_string, options={"retryOptions": {"maxRetries": 0}})
    with pytest.raises(JavaScriptError) as raised:
        js.call("send", client=client, queue=queue, message=message)
    assert KEY not in str(raised.value)
    assert SECRET not in str(raised.value)
    js.call("close", client=client)
    return raised.value


def test_javascript_an_unknown_entity_is_named(attacked: Scene, javascript: JavaScript) -> None:
    error = javascript_error(javascript, attacked.broker.connection_string, "nowhere", {"body": b"x"})
    assert error.code == "MessagingEntityNotFound"
    assert "nowhere" in error.message


@pytest.mark.parametrize(("name", "key"), [(KEY_NAME, SECRET), ("Nobody", KEY)])
def test_javascript_a_wrong_key_or_name_says_what_to_check(
    attacked: Scene, javascript: JavaScript, name: str, key: str
) -> None:
    error = javascript_error(javascript, with_key(attacked, name, key), TARGET, {"body": b"x"})
    assert error.code == "UnauthorizedAccess"
    assert "Check SharedAccessKeyName and SharedAccessKey" in error.message


def test_javascript_a_message_too_large_is_its_own_error(attacked: Scene, javascript: JavaScript) -> None:
    error = javascript_error(javascript, attacked.broker.connection_string, TARGET, {"body": b"x" * 300_000})
    assert error.code == "MessageSizeExceeded"
    assert error.retryable is False


def test_javascript_properties_too_large_name_the_limit(attacked: Scene, javascript: JavaScript) -> None:
    message: dict[str, object] = {
        "body": b"x",
        "applicationProperties": {f"p{number}": "v" * 1_000 for number in range(70)},
    }
    error = javascript_error(javascript, attacked.broker.connection_string, TARGET, message)
    assert "65536" in error.message
    assert error.retryable is False
