"""What a failed send says about the entity it was sent to. Replaceable: hand another `FailoverPolicy` to the options.

The default follows the documents: time-outs and errors that no retry cures count against the entity; being throttled
means wait, being unauthorised means that the client is set up wrongly, and a message that nobody would take is the
caller's. https://learn.microsoft.com/azure/service-bus-messaging/service-bus-messaging-exceptions
"""

import enum
import struct
from typing import Final

from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusCommunicationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)


class Verdict(enum.Enum):
    """What to make of an error."""

    QUALIFIES = "qualifies"  # the entity may be unavailable: it starts the failover timer
    BUSY = "busy"  # throttled: wait at least ten seconds, send again
    MISCONFIGURED = "misconfigured"  # this client may not do that; no other place would help
    CALLERS = "callers"  # nobody would take this message


# Worth trying again within the same call: the way there may be broken, not the entity.
_RETRIED: Final = (OperationTimeoutError, ServiceBusConnectionError, ServiceBusCommunicationError, OSError)
# No waiting cures these when a ping meets them.
_LASTING: Final = (MessagingEntityNotFoundError, ServiceBusAuthenticationError, ServiceBusAuthorizationError)
NOT_FOUND: Final = 404  # what `$cbs` answers for an entity that is not there
# What the SDK's encoder raises. A peer that talks nonsense raises the same classes, elsewhere.
_UNENCODABLE: Final = (ValueError, TypeError, OverflowError, LookupError, RecursionError, struct.error)
_ENCODER: Final = "._encode"  # the end of its module's name


class FailoverPolicy:
    """The table of the documents."""

    def judge(self, error: BaseException) -> Verdict:
        if isinstance(error, ServiceBusServerBusyError):
            return Verdict.BUSY
        if is_unauthorised(error):
            return Verdict.MISCONFIGURED
        if isinstance(error, MessageSizeExceededError):
            return Verdict.CALLERS
        if isinstance(error, (ServiceBusError, OSError)):
            return Verdict.CALLERS if is_unencodable(error) else Verdict.QUALIFIES
        return Verdict.CALLERS

    def is_retried(self, error: BaseException) -> bool:
        """Whether the same call tries again before the error counts."""
        if isinstance(error, (MessagingEntityDisabledError, ServiceBusQuotaExceededError)):
            return False
        return isinstance(error, _RETRIED)

    def is_lasting(self, error: BaseException) -> bool:
        """Whether a ping that is refused like this says that waiting will not help: gone, or not allowed."""
        return isinstance(error, _LASTING)


def is_missing(error: BaseException) -> bool:
    """Whether the entity is not there. Azure says so when a token is put for it, with 404; the SDK calls whatever is
    wrong with a token a failed authentication."""
    if isinstance(error, ServiceBusAuthenticationError):
        return getattr(getattr(error, "inner_exception", None), "status_code", None) == NOT_FOUND
    return isinstance(error, MessagingEntityNotFoundError)


def is_unauthorised(error: BaseException) -> bool:
    """Whether the client may not do that: its key, not the entity, is to be looked at."""
    return isinstance(error, (ServiceBusAuthenticationError, ServiceBusAuthorizationError)) and not is_missing(error)


def is_unencodable(error: BaseException) -> bool:
    """Whether the message could not be encoded. The SDK does that while it sends, and tells of it like of a handler
    that failed; so it is known by where the first error was raised. In doubt it is the entity's."""
    inner = getattr(error, "inner_exception", None)
    if not isinstance(inner, _UNENCODABLE):
        return False
    step = inner.__traceback__
    while step is not None:
        if str(step.tb_frame.f_globals.get("__name__")).endswith(_ENCODER):
            return True
        step = step.tb_next
    return False
