"""What an error of the SDK means, asked by sender, pool, backlog, ping and pairing.

What a condition means stands in `model/failures.py`, for the syphon too; here are the SDK's ways to say one: as the
refusal of a message or request, as the end of a link, in a token's answer, in administration's HTTP status. What has no
condition is looked up by its class.
"""

import struct
from typing import Final

from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ServiceRequestError,
    ServiceResponseError,
)
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)

from spillway.model.failures import (
    BROKEN,
    BUSY,
    MISSING,
    OF_CALLER,
    OF_ENTITY,
    OF_MESSAGE,
    SILENT,
    TROUBLED,
    UNAUTHORISED,
    UNKNOWN_END,
    Failure,
    failure_for,
)

# By class, where the SDK gives no condition or another one than the service said. The first that fits.
CLASSES: Final[tuple[tuple[type[BaseException], Failure], ...]] = (
    (MessageSizeExceededError, OF_MESSAGE),
    (ServiceBusServerBusyError, BUSY),
    (ServiceBusAuthorizationError, UNAUTHORISED),
    (MessagingEntityNotFoundError, MISSING),
    (MessagingEntityDisabledError, UNKNOWN_END),
    (ServiceBusQuotaExceededError, OF_ENTITY),
    (ServiceBusError, BROKEN),
    (TimeoutError, SILENT),
    (OSError, BROKEN),
    (ServiceRequestError, BROKEN),
    (ServiceResponseError, BROKEN),
    (ClientAuthenticationError, UNAUTHORISED),
    (ValueError, OF_CALLER),
    (TypeError, OF_CALLER),
)
UNKNOWN: Final = OF_CALLER._replace(is_certain=False)  # of a class that stands nowhere here
# What `$cbs` answered to a token, where that is something else than that the token is bad.
TOKEN_STATUS: Final = {404: MISSING, 408: SILENT, 500: BROKEN, 503: BROKEN}
# What administration answers over HTTP; whatever else it answers passes.
ADMINISTRATION_STATUS: Final = {400: OF_CALLER._replace(is_lasting=True), 401: UNAUTHORISED, 404: MISSING}
# What the SDK's encoder raises. A peer that talks nonsense raises the same classes, elsewhere.
_UNENCODABLE: Final = (ValueError, TypeError, OverflowError, LookupError, RecursionError, struct.error)
_ENCODER: Final = "._encode"  # the end of its module's name
_REFUSALS: Final = ("MessageException", "MessageSendFailed")  # the SDK's, for an outcome that is not `accepted`


class FailoverPolicy:
    """The table. Replaceable: hand a subclass to the options, whose `judge` may return another `Failure`."""

    def judge(self, error: BaseException) -> Failure:
        """What an error means, whoever raised it: the SDK, Python's sockets, a credential, a caller's own argument."""
        inner = getattr(error, "inner_exception", None)
        if isinstance(error, ServiceBusAuthenticationError):
            return _of_token(inner)
        if isinstance(inner, ClientAuthenticationError):  # of the credential: no token could be had
            return UNAUTHORISED
        if isinstance(error, OperationTimeoutError) or isinstance(inner, TimeoutError):
            return SILENT
        if is_unencodable(error):
            return OF_MESSAGE
        if isinstance(error, HttpResponseError) and error.status_code is not None:
            return ADMINISTRATION_STATUS.get(error.status_code, TROUBLED)
        condition = condition_of(error)
        if condition is not None:
            return failure_for(condition, is_refusal(error))
        for kind, failure in CLASSES:
            if isinstance(error, kind):
                return failure
        return UNKNOWN


failure_of: Final = FailoverPolicy().judge  # for whoever has no policy


def _of_token(inner: object) -> Failure:
    """The SDK calls whatever is wrong with a token, or with the way to who looks at it, a failed authentication."""
    status = getattr(inner, "status_code", None)
    if isinstance(status, int):
        return TOKEN_STATUS.get(status, UNAUTHORISED)
    has_expired = type(inner).__name__ == "TokenExpired"
    return UNAUTHORISED if inner is None or has_expired else BROKEN


def condition_of(error: BaseException) -> str | None:
    """The AMQP condition behind an error of the SDK."""
    for at in (getattr(error, "inner_exception", None), error):
        condition = getattr(at, "condition", None) or getattr(at, "_condition", None)
        if condition is not None:
            value = getattr(condition, "value", condition)  # the SDK has an enumeration of those it knows
            return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return None


def is_refusal(error: BaseException) -> bool:
    """Whether the service said it of this message (or request) and not of the link."""
    inner = getattr(error, "inner_exception", None)
    return inner is None or type(inner).__name__ in _REFUSALS


def is_unencodable(error: BaseException) -> bool:
    """Whether the message could not be encoded. The SDK does that while it sends, and tells of it like of a handler
    that failed; so it is known by where the first error was raised. In doubt it is the way's."""
    inner = getattr(error, "inner_exception", None)
    if not isinstance(inner, _UNENCODABLE):
        return False
    step = inner.__traceback__
    while step is not None:
        if str(step.tb_frame.f_globals.get("__name__")).endswith(_ENCODER):
            return True
        step = step.tb_next
    return False
