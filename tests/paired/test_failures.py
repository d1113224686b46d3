"""What errors of the SDK mean: every condition that it knows, as it raises them, in every place that asks."""

import logging
from collections.abc import Callable

import pytest
from azure.core.exceptions import ClientAuthenticationError, HttpResponseError, ServiceRequestError
from azure.servicebus import exceptions as sdk
from azure.servicebus._common import constants
from azure.servicebus._pyamqp import error as amqp
from azure.servicebus._pyamqp._encode import encode_value
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport

from spillway.client.errors import LinkClosed, error_for
from spillway.model.failures import CONDITIONS, Blame, Failure
from spillway.paired.failover import Machine, State
from spillway.paired.failures import FailoverPolicy, failure_of
from spillway.paired.plan import Again, Raise, SendPlan
from spillway.paired.preflight import is_transient
from spillway.syphon import policy as syphon_policy
from spillway.syphon.policy import BUSY_PAUSE_S, DestinationState, EachAlone, Keep, RetryAt

VENDOR = sorted(
    value.decode()
    for name, value in vars(constants).items()
    if name.startswith("ERROR_CODE_") and isinstance(value, bytes)
)
KNOWN = sorted(condition.value.decode() for condition in amqp.ErrorCondition)
EVERY_CONDITION = sorted({*VENDOR, *KNOWN, *CONDITIONS, "com.contoso:never-heard-of"})
LOG = logging.getLogger("test")


def as_raised(inner: Exception) -> Exception:
    """What the SDK makes of it."""
    return PyamqpTransport.create_servicebus_exception(LOG, inner)


def refusal(condition: str) -> Exception:
    """As the SDK raises the outcome `rejected`: two classes, by whether it knows the condition."""
    try:
        return as_raised(amqp.MessageSendFailed(amqp.ErrorCondition(condition.encode()), description="d"))
    except ValueError:
        return as_raised(amqp.MessageException(condition.encode(), description="d"))


def request_refused(condition: str) -> Exception:
    """A request over `$management`: scheduling, cancelling."""
    try:
        PyamqpTransport.handle_amqp_mgmt_error(LOG, "refused", condition.encode(), "d", "400")  # type: ignore[arg-type]
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def link_ended(condition: str) -> Exception:
    return as_raised(amqp.AMQPLinkError(condition.encode(), description="d"))


def session_ended(condition: str) -> Exception:
    return as_raised(amqp.AMQPSessionError(condition.encode(), description="d"))


def connection_ended(condition: str) -> Exception:
    return as_raised(amqp.AMQPConnectionError(condition.encode(), description="d"))


LASTING = ("amqp:not-found", "amqp:resource-deleted", "amqp:unauthorized-access", "com.microsoft:auth-failed")
OF_MESSAGES = {
    "amqp:link:message-size-exceeded",
    "amqp:decode-error",
    "amqp:not-allowed",
    "amqp:invalid-field",
    "amqp:not-implemented",
    "amqp:precondition-failed",
    "com.microsoft:precondition-failed",
    "com.microsoft:argument-error",
    "com.microsoft:argument-out-of-range",
}


@pytest.mark.parametrize("condition", sorted({*VENDOR, *KNOWN}))
def test_every_condition_that_the_sdk_knows_is_in_the_table(condition: str) -> None:
    assert condition in CONDITIONS


@pytest.mark.parametrize("said", [refusal, request_refused], ids=["a message", "a request"])
@pytest.mark.parametrize("condition", EVERY_CONDITION)
def test_a_refusal_for_what_the_message_is_is_the_messages_and_no_other_is(
    condition: str, said: Callable[[str], Exception]
) -> None:
    failure = failure_of(said(condition))
    assert (failure.blame is Blame.MESSAGE) == (condition in OF_MESSAGES)
    if failure.blame is Blame.MESSAGE:
        assert not (failure.counts_against_entity or failure.is_retried or failure.is_outcome_unknown)


@pytest.mark.parametrize("said", [link_ended, session_ended, connection_ended], ids=["link", "session", "connection"])
@pytest.mark.parametrize("condition", EVERY_CONDITION)
def test_a_link_that_ends_is_nobodys_message_but_one_that_could_not_be_read(
    condition: str, said: Callable[[str], Exception]
) -> None:
    failure = failure_of(said(condition))
    is_unreadable = condition in ("amqp:link:message-size-exceeded", "amqp:decode-error")
    assert (failure.blame is Blame.MESSAGE) == is_unreadable
    # A sender whose link has ended is not used again, whoever is to blame.
    assert failure.spoils_sender or failure.blame is Blame.CALLER


@pytest.mark.parametrize("said", [refusal, request_refused, link_ended, session_ended, connection_ended])
@pytest.mark.parametrize("condition", EVERY_CONDITION)
def test_every_place_that_asks_does_what_the_table_says(condition: str, said: Callable[[str], Exception]) -> None:
    """Sender, backlog and ping, whatever the condition and however it was said."""
    error = said(condition)
    failure = failure_of(error)
    sender, entity = SendPlan(0.0, 60.0, 60.0, True, False), Machine("orders", 0.0)
    until_s = sender.primary_until_s(0.0)
    step, change = sender.after_primary(error, failure, entity, 0, until_s)  # when it is not tried again any more
    assert (entity.state is State.FAILED_OVER) == (change is not None) == failure.counts_against_entity
    if failure.is_busy:
        assert step == Again(until_s + 10.0, is_patient=True)
    else:
        assert step == (Again(until_s) if failure.counts_against_entity else Raise())
    backlog = SendPlan(0.0, 60.0, 60.0, True, False)
    step, guilty = backlog.after_backlog("queue", failure, 0.0, 1.0)
    assert guilty is None or failure.is_certain
    if failure.blame is Blame.MESSAGE:
        assert (step, guilty) == (Raise(), None)
    elif failure.is_busy or not failure.is_certain:
        assert guilty is None
    else:
        assert (step, guilty) == (Again(1.0), "queue")
    # A ping that waiting does not cure: only where the entity is gone or the client may not.
    assert failure.is_lasting == (condition in LASTING)


@pytest.mark.parametrize("is_link_over", [False, True], ids=["a message", "a link"])
@pytest.mark.parametrize("condition", EVERY_CONDITION)
def test_the_syphon_does_what_the_table_says(condition: str, is_link_over: bool) -> None:
    """Whatever the primary says to its own client of a batch, of one message, or of the link."""
    error = LinkClosed("d", condition) if is_link_over else error_for(condition, "d")
    failure = syphon_policy.failure_of(error)
    assert failure is CONDITIONS.get(condition, (failure, failure))[is_link_over]
    for count in (1, 5):
        decision = DestinationState().on_refused(error, count, 100.0)
        if failure.is_busy:
            assert decision == RetryAt(100.0 + BUSY_PAUSE_S)
        elif syphon_policy.is_of_message(failure):
            assert decision == (Keep() if count == 1 else EachAlone())
        else:
            assert isinstance(decision, RetryAt)
    # What one message is refused for holds nobody up; what everybody would be refused for blames no message.
    if failure.blame is Blame.MESSAGE:
        assert syphon_policy.is_of_message(failure)
    if failure.counts_against_entity and failure.is_certain:
        assert not syphon_policy.is_of_message(failure)


@pytest.mark.parametrize("condition", sorted(CONDITIONS))
def test_the_sdk_and_our_own_client_are_judged_alike(condition: str) -> None:
    """The same condition, said to a paired sender and to the syphon. The SDK has no class for some refusals, and says
    of these that the link ended; it knows time-outs by its own class."""
    ours = syphon_policy.failure_of(error_for(condition, "d"))
    theirs = failure_of(refusal(condition))
    assert (ours.blame, ours.is_busy, ours.is_certain) == (theirs.blame, theirs.is_busy, theirs.is_certain)


def http(status: int) -> Exception:
    error = HttpResponseError(message="what administration answered")
    error.status_code = status
    return error


@pytest.mark.parametrize(
    ("error", "may_pass"),
    [
        (http(400), False),
        (http(401), False),
        (http(404), False),
        (http(403), True),
        (http(409), True),
        (http(429), True),
        (http(500), True),
        (http(503), True),
        (ClientAuthenticationError("no token"), False),
        (ServiceRequestError("cannot connect"), True),
        (TimeoutError(), True),
        (OSError("no route"), True),
        (ValueError("a bad name"), False),
        (TypeError("a bad kind"), False),
        (RuntimeError("of a credential that nobody knows"), True),
        (error_for("amqp:unauthorized-access", "d"), False),
        (error_for("com.microsoft:server-busy", "d"), True),
        *(
            (refusal(condition), condition not in LASTING)
            for condition in ("amqp:unauthorized-access", "com.microsoft:timeout")
        ),
    ],
    ids=repr,
)
def test_pairing_asks_the_same_table_whether_another_attempt_may_get_further(error: Exception, may_pass: bool) -> None:
    assert is_transient(error) == may_pass


def raised_by_the_encoder(value: object) -> Exception:
    try:
        encode_value(bytearray(), value)
    except Exception as error:
        return as_raised(error)
    raise AssertionError(f"{value!r} can be encoded")


def nested(depth: int) -> list[object]:
    value: list[object] = []
    for _ in range(depth):
        value = [value]
    return value


def token_failure(status: object) -> Exception:
    make: Callable[..., Exception] = amqp.TokenAuthFailure
    return as_raised(make(status, b"what $cbs answered"))


def no_cbs_link() -> Exception:
    return as_raised(amqp.AuthenticationException(amqp.ErrorCondition.InternalError, description="no link to $cbs"))


def expired() -> Exception:
    return as_raised(amqp.TokenExpired(amqp.ErrorCondition.InternalError, description="CBS Authentication Expired."))


BY_CLASS: list[tuple[Exception, Blame]] = [
    (sdk.MessageSizeExceededError(), Blame.MESSAGE),
    *((raised_by_the_encoder(value), Blame.MESSAGE) for value in (2**70, object(), nested(2_000))),
    (ValueError("badly formed hexadecimal UUID string"), Blame.CALLER),
    (TypeError("a message is needed"), Blame.CALLER),
    (sdk.MessageAlreadySettled(), Blame.CALLER),
    (sdk.ServiceBusAuthenticationError(), Blame.CALLER),
    (sdk.ServiceBusAuthorizationError(), Blame.CALLER),
    (token_failure(401), Blame.CALLER),
    (expired(), Blame.CALLER),
    (as_raised(ClientAuthenticationError("no token")), Blame.CALLER),
    (token_failure(404), Blame.ENTITY),
    (sdk.MessagingEntityDisabledError(), Blame.ENTITY),
    (sdk.MessagingEntityNotFoundError(), Blame.ENTITY),
    (sdk.ServiceBusQuotaExceededError(), Blame.ENTITY),
    (sdk.ServiceBusServerBusyError(), Blame.ENTITY),
    (token_failure(503), Blame.WAY),
    (token_failure(amqp.ErrorCondition.ClientError), Blame.WAY),
    (no_cbs_link(), Blame.WAY),
    (sdk.OperationTimeoutError(), Blame.WAY),
    (sdk.ServiceBusCommunicationError(), Blame.WAY),
    (sdk.ServiceBusConnectionError(), Blame.WAY),
    (ConnectionResetError(), Blame.WAY),
    (TimeoutError(), Blame.WAY),
    (as_raised(TimeoutError("Authentication attempt timed-out.")), Blame.WAY),
    (as_raised(ConnectionResetError()), Blame.WAY),
    (as_raised(AttributeError("'NoneType' object has no attribute 'flow'")), Blame.WAY),  # of a link that is gone
    (as_raised(ValueError("Received invalid frame type: 84, expected: 0")), Blame.WAY),  # of a peer that speaks HTTP
    (as_raised(TypeError("a fault of the SDK's own")), Blame.WAY),
    (sdk.ServiceBusError(message="something else"), Blame.WAY),
]


@pytest.mark.parametrize(("error", "blame"), BY_CLASS, ids=lambda value: repr(value)[:60])
def test_what_has_no_condition_is_judged_by_its_class(error: Exception, blame: Blame) -> None:
    assert FailoverPolicy().judge(error).blame is blame


def test_a_time_out_leaves_a_sender_that_waits_and_a_broken_link_one_that_was_dead() -> None:
    """Only the second may have been so before: a sender that timed out is not tried once more on a new connection."""
    silent = failure_of(as_raised(amqp.AMQPException(amqp.ErrorCondition.ClientError, description="Send timed out")))
    assert (silent.spoils_sender, silent.ends_link) == (True, False)
    broken = failure_of(sdk.ServiceBusConnectionError())
    assert (broken.spoils_sender, broken.ends_link) == (True, True)


def test_a_subclass_of_the_policy_may_judge_otherwise() -> None:
    class Lenient(FailoverPolicy):
        def judge(self, error: BaseException) -> Failure:
            return (
                Failure(Blame.CALLER) if isinstance(error, sdk.ServiceBusQuotaExceededError) else super().judge(error)
            )

    assert Lenient().judge(sdk.ServiceBusQuotaExceededError()).blame is Blame.CALLER
    assert Lenient().judge(sdk.OperationTimeoutError()).blame is Blame.WAY
