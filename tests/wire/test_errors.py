"""What the user sees: every row of docs/wire.md, "Error conditions", in three places, with three SDKs.

The broker is made to refuse with the condition of the row, as it attaches a link, as it answers a send, and on
`$management`; the SDK must raise its own exception for it and agree on whether to try again. The Python SDK takes half
a second to open a link, so all refusals are provoked side by side, once, and each test looks at its own.
"""

import re
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus import exceptions as sdk_errors

from spillway.model import errors, faults
from tests.tools.js import JavaScript, JavaScriptError, Long
from tests.wire.live import NAMESPACE, LiveBroker
from tests.wire.sdk import ASYNCIO, SYNC, Closing, JsClient, PythonSdk

SIDE_BY_SIDE = 24
RESULT_S = 120.0
PLACES = (faults.ATTACH, faults.SEND, faults.MANAGEMENT)
SEND_CALL: tuple[str, dict[str, Any]] = ("send", {"message": {"body": "x"}})
JS_CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    faults.ATTACH: SEND_CALL,
    faults.SEND: SEND_CALL,
    faults.MANAGEMENT: ("receiveDeferred", {"sequenceNumbers": [Long(1)]}),
}
TRACKED = re.compile(
    r"TrackingId:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}_\w+, SystemTracker:\S+, "
    r"Timestamp:\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d"
)


class Row(NamedTuple):
    """One line of the table. `is_retried` is what the SDK does by itself."""

    error: errors.BrokerError
    condition: str
    python: type[sdk_errors.ServiceBusError]
    is_retried_by_python: bool
    js_code: str
    is_retried_by_js: bool


def row(
    kind: type[errors.BrokerError],
    condition: str,
    python: type[sdk_errors.ServiceBusError],
    is_retried_by_python: bool,
    js_code: str,
    is_retried_by_js: bool,
) -> Row:
    error = kind(f"Refused with {condition}.")
    return Row(error, condition, python, is_retried_by_python, js_code, is_retried_by_js)


YES, NO = True, False
ROWS = [
    row(
        errors.EntityNotFound,
        "amqp:not-found",
        sdk_errors.MessagingEntityNotFoundError,
        NO,
        "ServiceCommunicationProblem",
        NO,
    ),
    row(
        errors.Unauthorized,
        "amqp:unauthorized-access",
        sdk_errors.ServiceBusAuthorizationError,
        NO,
        "UnauthorizedAccess",
        YES,
    ),
    row(
        errors.AuthFailed,
        "com.microsoft:auth-failed",
        sdk_errors.ServiceBusAuthorizationError,
        YES,
        "UnauthorizedAccess",
        YES,
    ),
    row(errors.NotAllowed, "amqp:not-allowed", sdk_errors.ServiceBusError, NO, "GeneralError", NO),
    row(
        errors.MessageTooLarge,
        "amqp:link:message-size-exceeded",
        sdk_errors.MessageSizeExceededError,
        NO,
        "MessageSizeExceeded",
        NO,
    ),
    row(
        errors.QuotaExceeded,
        "amqp:resource-limit-exceeded",
        sdk_errors.ServiceBusQuotaExceededError,
        NO,
        "QuotaExceeded",
        NO,
    ),
    row(errors.DetachForced, "amqp:link:detach-forced", sdk_errors.ServiceBusConnectionError, YES, "GeneralError", YES),
    row(errors.InternalError, "amqp:internal-error", sdk_errors.ServiceBusError, YES, "GeneralError", YES),
    row(errors.ServerBusy, "com.microsoft:server-busy", sdk_errors.ServiceBusServerBusyError, YES, "ServiceBusy", YES),
    row(errors.OperationTimeout, "com.microsoft:timeout", sdk_errors.OperationTimeoutError, YES, "ServiceTimeout", YES),
    row(
        errors.EntityDisabled,
        "com.microsoft:entity-disabled",
        sdk_errors.MessagingEntityDisabledError,
        YES,
        "MessagingEntityDisabled",
        NO,
    ),
    row(errors.ArgumentError, "com.microsoft:argument-error", sdk_errors.ServiceBusError, NO, "GeneralError", NO),
    row(
        errors.ArgumentOutOfRange,
        "com.microsoft:argument-out-of-range",
        sdk_errors.ServiceBusError,
        NO,
        "GeneralError",
        NO,
    ),
    row(
        errors.SessionCannotBeLocked,
        "com.microsoft:session-cannot-be-locked",
        sdk_errors.SessionCannotBeLockedError,
        YES,
        "SessionCannotBeLocked",
        NO,
    ),
    row(
        errors.SessionLockLost,
        "com.microsoft:session-lock-lost",
        sdk_errors.SessionLockLostError,
        NO,
        "SessionLockLost",
        NO,
    ),
    row(
        errors.MessageLockLost,
        "com.microsoft:message-lock-lost",
        sdk_errors.MessageLockLostError,
        NO,
        "MessageLockLost",
        NO,
    ),
    row(
        errors.MessageNotFound,
        "com.microsoft:message-not-found",
        sdk_errors.MessageNotFoundError,
        YES,
        "MessageNotFound",
        NO,
    ),
    row(
        errors.EntityAlreadyExists,
        "com.microsoft:entity-already-exists",
        sdk_errors.MessagingEntityAlreadyExistsError,
        YES,
        "MessagingEntityAlreadyExists",
        NO,
    ),
]
every_row = pytest.mark.parametrize("row", ROWS, ids=[row.condition.replace(":", "-") for row in ROWS])
every_place = pytest.mark.parametrize("place", PLACES)


class Refusals:
    """What each SDK raised for each row in each place."""

    def __init__(self, live: LiveBroker, closing: Closing, javascript: JavaScript) -> None:
        self.live = live
        self.closing = closing
        self.javascript = javascript
        self.raised: dict[tuple[str, str, str], Future[BaseException]] = {}

    def provoke(self) -> None:
        with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
            for one in ROWS:
                for place in PLACES:
                    for kind in (SYNC, ASYNCIO):
                        answer = pool.submit(self.ask_python, kind, one, place)
                        self.raised[kind, one.condition, place] = answer
                    self.raised["js", one.condition, place] = pool.submit(self.ask_js, one, place)

    def ask_python(self, kind: str, one: Row, place: str) -> BaseException:
        queue = self.live.queue()
        sdk = PythonSdk(kind, self.live.connection_string, self.closing)
        try:
            if place == faults.ATTACH:
                self.live.plant(queue, place, one.error)
                return raised_by(lambda: sdk.sender(queue))
            sender = sdk.sender(queue)
            self.live.plant(queue, place, one.error)
            if place == faults.SEND:
                return raised_by(lambda: sender.send_messages(ServiceBusMessage("x")))
            return raised_by(lambda: sender.cancel_scheduled_messages([1]))
        finally:
            sdk.close()

    def ask_js(self, one: Row, place: str) -> BaseException:
        queue = self.live.queue()
        js = JsClient(self.javascript, self.live.connection_string)
        self.live.plant(queue, place, one.error)
        try:
            command, arguments = JS_CALLS[place]
            return raised_by(lambda: js(command, queue=queue, **arguments))
        finally:
            js.close_later()

    def of(self, kind: str, one: Row, place: str) -> BaseException:
        return self.raised[kind, one.condition, place].result(RESULT_S)


def raised_by(call: Callable[[], Any]) -> BaseException:
    try:
        answer = call()
    except Exception as error:
        return error
    raise AssertionError(f"not refused: {answer!r}")


@pytest.fixture(scope="module")
def refusals(live_broker: LiveBroker, closing: Closing, javascript: JavaScript) -> Refusals:
    made = Refusals(live_broker, closing, javascript)
    made.provoke()
    return made


@pytest.mark.contract("G2", "G3", "G4")
@pytest.mark.parametrize("kind", [SYNC, ASYNCIO])
@every_place
@every_row
def test_a_condition_is_its_own_exception_in_python(refusals: Refusals, row: Row, place: str, kind: str) -> None:
    raised = refusals.of(kind, row, place)
    assert type(raised) is row.python, repr(raised)
    assert raised._retryable is row.is_retried_by_python
    assert f"Refused with {row.condition}." in str(raised), "the broker's own text reaches the user"
    assert TRACKED.search(str(raised)), str(raised)


@pytest.mark.contract("G2", "G3", "G4")
@every_place
@every_row
def test_a_condition_is_its_own_code_in_javascript(refusals: Refusals, row: Row, place: str) -> None:
    raised = refusals.of("js", row, place)
    assert isinstance(raised, JavaScriptError), repr(raised)
    assert (raised.name, raised.code) == ("ServiceBusError", row.js_code), repr(raised)
    assert raised.retryable is row.is_retried_by_js
    assert f"Refused with {row.condition}." in raised.message
    assert TRACKED.search(raised.message), raised.message


@every_row
def test_the_model_knows_every_condition(row: Row) -> None:
    assert row.error.condition == row.condition


@pytest.mark.parametrize("place", PLACES)
def test_not_found_in_javascript_with_the_sentence_it_looks_for(
    live: LiveBroker, js: JsClient, queue: str, place: str
) -> None:
    live.plant(queue, place, errors.entity_not_found(NAMESPACE, queue))
    command, arguments = JS_CALLS[place]
    with pytest.raises(JavaScriptError) as caught:
        js(command, queue=queue, **arguments)
    assert (caught.value.code, caught.value.retryable) == ("MessagingEntityNotFound", False)


def test_message_not_found_would_reach_a_peek_of_javascript_so_an_empty_queue_is_204(
    live: LiveBroker, js: JsClient, queue: str
) -> None:
    """The SDK means to swallow it there, and compares with a name that it has translated before."""
    assert js("peek", queue=queue) == []
    live.plant(queue, faults.MANAGEMENT, errors.MessageNotFound("Nothing there."))
    with pytest.raises(JavaScriptError) as caught:
        js("peek", queue=queue)
    assert caught.value.code == "MessageNotFound"
