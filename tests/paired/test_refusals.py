"""Which errors of a send speak of the message alone."""

from collections.abc import Callable

import pytest
from azure.servicebus import exceptions as sdk
from azure.servicebus._pyamqp._encode import encode_value
from azure.servicebus._pyamqp.error import AMQPException, ErrorCondition, TokenAuthFailure

from spillway.paired.policy import FailoverPolicy, Verdict, is_missing
from spillway.paired.refusals import is_of_message


def wrapped(inner: Exception) -> sdk.ServiceBusError:
    return sdk.ServiceBusError(message="Handler failed.", error=inner)


def token_failure(status: int) -> Exception:
    make: Callable[..., Exception] = TokenAuthFailure
    return make(status, b"what $cbs answered")


def raised_by_the_encoder(value: object) -> Exception:
    try:
        encode_value(bytearray(), value)
    except Exception as error:
        return error
    raise AssertionError(f"{value!r} can be encoded")


def nested(depth: int) -> list[object]:
    value: list[object] = []
    for _ in range(depth):
        value = [value]
    return value


OF_THE_MESSAGE = [
    sdk.MessageSizeExceededError(),
    ValueError("badly formed hexadecimal UUID string"),
    wrapped(AMQPException(ErrorCondition.NotAllowed)),
    wrapped(AMQPException(b"com.microsoft:argument-error")),
    *(wrapped(raised_by_the_encoder(value)) for value in (2**70, object(), nested(2_000))),
]
OF_THE_ENTITY = [
    sdk.MessagingEntityDisabledError(),
    sdk.MessagingEntityNotFoundError(),
    sdk.OperationTimeoutError(),
    sdk.ServiceBusAuthenticationError(),
    sdk.ServiceBusAuthorizationError(),
    sdk.ServiceBusCommunicationError(),
    sdk.ServiceBusConnectionError(),
    sdk.ServiceBusQuotaExceededError(),
    sdk.ServiceBusServerBusyError(),
    ConnectionResetError(),
    wrapped(AMQPException(ErrorCondition.InternalError)),
    wrapped(AMQPException(ErrorCondition.SessionErrantLink)),
    wrapped(ConnectionResetError()),
    wrapped(AttributeError("'NoneType' object has no attribute 'flow'")),  # the SDK, of a link that is gone
    sdk.ServiceBusError(message="something else"),
    wrapped(ValueError("Received invalid frame type: 84, expected: 0")),  # the SDK, of a peer that speaks HTTP
    wrapped(TypeError("a fault of the SDK's own")),
]


@pytest.mark.parametrize("error", OF_THE_MESSAGE, ids=repr)
def test_a_message_that_nobody_would_take_is_told_by_its_error(error: Exception) -> None:
    assert is_of_message(error, FailoverPolicy())


@pytest.mark.parametrize("error", OF_THE_ENTITY, ids=repr)
def test_an_entity_that_would_take_no_other_message_either_is_told_by_its_error(error: Exception) -> None:
    assert not is_of_message(error, FailoverPolicy())


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (sdk.ServiceBusAuthenticationError(error=token_failure(404)), Verdict.QUALIFIES),
        (sdk.ServiceBusAuthenticationError(error=token_failure(401)), Verdict.MISCONFIGURED),
        (sdk.ServiceBusAuthenticationError(), Verdict.MISCONFIGURED),
        (sdk.ServiceBusAuthorizationError(), Verdict.MISCONFIGURED),
        (sdk.MessagingEntityNotFoundError(), Verdict.QUALIFIES),
    ],
    ids=repr,
)
def test_a_token_refused_with_404_says_that_the_entity_is_missing(error: Exception, verdict: Verdict) -> None:
    """As Azure does; the SDK calls it a failed authentication."""
    policy = FailoverPolicy()
    assert policy.judge(error) is verdict
    assert policy.is_lasting(error)
    assert is_missing(error) == (verdict is Verdict.QUALIFIES)
