"""What an error of the SDK means: one table, asked by sender, pool, backlog, ping, pairing and everybody else.

The same AMQP condition means one thing as the refusal of a message and another as the end of a link: a queue that
rejects a transfer with `amqp:not-allowed` speaks of that message, one that detaches with it speaks of itself. So an
error is looked up by its condition and by how it was said; what has no condition, by its class. In doubt it is the
entity's or the way's, since only those lead around.
https://learn.microsoft.com/azure/service-bus-messaging/service-bus-amqp-troubleshoot
"""

import enum
import struct
from dataclasses import dataclass, replace
from typing import Final

from azure.core.exceptions import ClientAuthenticationError
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


class Blame(enum.Enum):
    """Whose an error is."""

    MESSAGE = "message"  # nobody would take this one, whatever becomes of others
    CALLER = "caller"  # the client is set up wrongly: its key, its arguments
    ENTITY = "entity"  # the queue or topic; another may do
    NAMESPACE = "namespace"  # it cannot be connected to: none of its entities
    WAY = "way"  # link, connection, silence: whose it is cannot be told


@dataclass(frozen=True)
class Failure:
    """What to make of a failed send. `FailoverPolicy.judge` returns it."""

    blame: Blame
    is_busy: bool = False  # throttled: wait at least ten seconds, send again (contract D7, I6)
    is_retried: bool = False  # the same call tries again before it counts
    is_outcome_unknown: bool = False  # the service may have stored what was sent
    spoils_sender: bool = False  # a sender of the SDK that met it may be in any state
    ends_link: bool = False  # said of a link or connection, not of this message: an old one may have been dead before
    is_lasting: bool = False  # no waiting cures it, when a ping meets it: gone, or not allowed
    is_certain: bool = True  # False: a refusal in words that nobody knows, which may be the message's

    @property
    def counts_against_entity(self) -> bool:
        """Whether it starts the failover timer (contract D3, D5 to D7)."""
        return not self.is_busy and self.blame in (Blame.ENTITY, Blame.NAMESPACE, Blame.WAY)


OF_MESSAGE: Final = Failure(Blame.MESSAGE)
OF_CALLER: Final = Failure(Blame.CALLER)
UNAUTHORISED: Final = Failure(Blame.CALLER, spoils_sender=True, ends_link=True, is_lasting=True)
OF_ENTITY: Final = Failure(Blame.ENTITY)
MISSING: Final = Failure(Blame.ENTITY, spoils_sender=True, ends_link=True, is_lasting=True)
BUSY: Final = Failure(Blame.ENTITY, is_busy=True)
TROUBLED: Final = Failure(Blame.ENTITY, is_retried=True, is_outcome_unknown=True)
SILENT: Final = Failure(Blame.WAY, is_retried=True, is_outcome_unknown=True, spoils_sender=True)
BROKEN: Final = Failure(
    Blame.WAY, is_retried=True, is_outcome_unknown=True, spoils_sender=True, ends_link=True
)  # fmt: skip
UNKNOWN_REFUSAL: Final = Failure(Blame.ENTITY, is_certain=False)
UNKNOWN_END: Final = Failure(Blame.ENTITY, spoils_sender=True, ends_link=True)

# By condition: as the refusal of a message, and as the end of a link, session or connection.
CONDITIONS: Final[dict[str, tuple[Failure, Failure]]] = {
    # of messages
    "amqp:link:message-size-exceeded": (OF_MESSAGE, replace(OF_MESSAGE, spoils_sender=True)),
    "amqp:decode-error": (OF_MESSAGE, replace(OF_MESSAGE, spoils_sender=True)),
    "amqp:not-allowed": (OF_MESSAGE, UNKNOWN_END),
    "amqp:invalid-field": (OF_MESSAGE, UNKNOWN_END),
    "amqp:not-implemented": (OF_MESSAGE, UNKNOWN_END),
    "amqp:precondition-failed": (OF_MESSAGE, UNKNOWN_END),
    "com.microsoft:precondition-failed": (OF_MESSAGE, UNKNOWN_END),
    "com.microsoft:argument-error": (OF_MESSAGE, UNKNOWN_END),
    "com.microsoft:argument-out-of-range": (OF_MESSAGE, UNKNOWN_END),
    # of the client
    "amqp:unauthorized-access": (UNAUTHORISED, UNAUTHORISED),
    "com.microsoft:auth-failed": (UNAUTHORISED, UNAUTHORISED),
    "com.microsoft:message-lock-lost": (OF_CALLER, OF_CALLER),
    "com.microsoft:message-not-found": (OF_CALLER, OF_CALLER),
    "com.microsoft:session-lock-lost": (OF_CALLER, OF_CALLER),
    "com.microsoft:session-cannot-be-locked": (OF_CALLER, OF_CALLER),
    "com.microsoft:entity-already-exists": (OF_CALLER, OF_CALLER),
    # of the entity
    "amqp:not-found": (replace(OF_ENTITY, is_lasting=True), MISSING),
    "amqp:resource-deleted": (replace(OF_ENTITY, is_lasting=True), MISSING),
    "amqp:resource-limit-exceeded": (OF_ENTITY, UNKNOWN_END),
    "amqp:resource-locked": (TROUBLED, BROKEN),
    "amqp:internal-error": (TROUBLED, BROKEN),
    "com.microsoft:entity-disabled": (OF_ENTITY, UNKNOWN_END),
    "com.microsoft:operation-cancelled": (TROUBLED, BROKEN),
    "com.microsoft:server-busy": (BUSY, replace(BUSY, spoils_sender=True)),
    # of the way
    "com.microsoft:timeout": (SILENT, SILENT),
    "amqp:link:detach-forced": (BROKEN, BROKEN),
    "amqp:link:redirect": (BROKEN, BROKEN),
    "amqp:link:stolen": (BROKEN, BROKEN),
    "amqp:link:transfer-limit-exceeded": (BROKEN, BROKEN),
    "amqp:connection:forced": (BROKEN, BROKEN),
    "amqp:connection:framing-error": (BROKEN, BROKEN),
    "amqp:connection:redirect": (BROKEN, BROKEN),
    "amqp:session:errant-link": (BROKEN, BROKEN),
    "amqp:session:handle-in-use": (BROKEN, BROKEN),
    "amqp:session:unattached-handle": (BROKEN, BROKEN),
    "amqp:session:window-violation": (BROKEN, BROKEN),
    "amqp:frame-size-too-small": (BROKEN, BROKEN),
    "amqp:illegal-state": (BROKEN, BROKEN),
    # the SDK's own words
    "amqp:client-error": (BROKEN, BROKEN),
    "amqp:socket-error": (BROKEN, BROKEN),
    "amqp:unknown-error": (BROKEN, BROKEN),
    "amqp:vendor-error": (UNKNOWN_REFUSAL, UNKNOWN_END),
}
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
    (ClientAuthenticationError, UNAUTHORISED),
)
# What `$cbs` answered to a token, where that is something else than that the token is bad.
TOKEN_STATUS: Final = {404: MISSING, 408: SILENT, 500: BROKEN, 503: BROKEN}
# What the SDK's encoder raises. A peer that talks nonsense raises the same classes, elsewhere.
_UNENCODABLE: Final = (ValueError, TypeError, OverflowError, LookupError, RecursionError, struct.error)
_ENCODER: Final = "._encode"  # the end of its module's name
_REFUSALS: Final = ("MessageException", "MessageSendFailed")  # the SDK's, for an outcome that is not `accepted`


class FailoverPolicy:
    """The table. Replaceable: hand a subclass to the options, whose `judge` may return another `Failure`."""

    def judge(self, error: BaseException) -> Failure:
        return failure_of(error)


def failure_of(error: BaseException) -> Failure:
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
    condition = condition_of(error)
    if condition is not None:
        refused, ended = CONDITIONS.get(condition, (UNKNOWN_REFUSAL, UNKNOWN_END))
        return refused if is_refusal(error) else ended
    for kind, failure in CLASSES:
        if isinstance(error, kind):
            return failure
    return OF_CALLER


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
