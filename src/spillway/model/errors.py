"""Refusals of the broker: what can be refused, by whose fault, and with which condition.

`BrokerError` is the caller's fault: it carries the AMQP condition the SDKs map to their own exceptions
(docs/wire.md, "Error conditions") and a text that says what to do. It is returned as a value inside effects more often
than raised. The peer's faults (`ProtocolError`) live in `amqp`; our own are assertions.
"""

from typing import ClassVar, Final


class BrokerError(Exception):
    """A request that cannot be granted. `condition` decides which exception the SDK raises and whether it retries."""

    condition: ClassVar[str] = "amqp:internal-error"
    status_code: ClassVar[int] = 500

    def __init__(self, description: str) -> None:
        super().__init__(description)
        self.description = description

    def said_condition(self) -> str:
        """As it is said on the wire; `GivenError` has its own."""
        return self.condition


class InternalError(BrokerError):
    """Ours to mend; the client may try again."""


class EntityNotFound(BrokerError):
    condition: ClassVar[str] = "amqp:not-found"
    status_code: ClassVar[int] = 404


def entity_not_found(namespace: str, path: str) -> EntityNotFound:
    """JavaScript knows one by the first of these (docs/wire.md, "The sentence for a missing entity")."""
    return EntityNotFound(
        f"The messaging entity 'sb://{namespace}/{path}' could not be found. Check its name, or create it first."
    )


class Unauthorized(BrokerError):
    """No valid token, or one without the claim that the operation needs."""

    condition: ClassVar[str] = "amqp:unauthorized-access"
    status_code: ClassVar[int] = 401


class NotAllowed(BrokerError):
    condition: ClassVar[str] = "amqp:not-allowed"
    status_code: ClassVar[int] = 400


class NotImplementedHere(BrokerError):
    condition: ClassVar[str] = "amqp:not-implemented"
    status_code: ClassVar[int] = 501


class MessageTooLarge(BrokerError):
    condition: ClassVar[str] = "amqp:link:message-size-exceeded"
    status_code: ClassVar[int] = 413


class QuotaExceeded(BrokerError):
    condition: ClassVar[str] = "amqp:resource-limit-exceeded"
    status_code: ClassVar[int] = 403


class DetachForced(BrokerError):
    condition: ClassVar[str] = "amqp:link:detach-forced"
    status_code: ClassVar[int] = 503


class ConnectionForced(BrokerError):
    """The broker ends a connection for reasons of its own; clients connect again."""

    condition: ClassVar[str] = "amqp:connection:forced"
    status_code: ClassVar[int] = 503


class ServerBusy(BrokerError):
    """Wait ten seconds, then send again (contract D7, I5, I6)."""

    condition: ClassVar[str] = "com.microsoft:server-busy"
    status_code: ClassVar[int] = 503


class OperationTimeout(BrokerError):
    condition: ClassVar[str] = "com.microsoft:timeout"
    status_code: ClassVar[int] = 408


class EntityDisabled(BrokerError):
    condition: ClassVar[str] = "com.microsoft:entity-disabled"
    status_code: ClassVar[int] = 403


def entity_disabled(path: str, status: str) -> EntityDisabled:
    return EntityDisabled(
        f"Messaging entity '{path}' is currently disabled. Its status is {status}: an administrator can change it."
    )


class ArgumentError(BrokerError):
    condition: ClassVar[str] = "com.microsoft:argument-error"
    status_code: ClassVar[int] = 400


class ArgumentOutOfRange(BrokerError):
    condition: ClassVar[str] = "com.microsoft:argument-out-of-range"
    status_code: ClassVar[int] = 400


class MessageLockLost(BrokerError):
    """The lock expired or was settled already; the message is back in its queue, or gone."""

    condition: ClassVar[str] = "com.microsoft:message-lock-lost"
    status_code: ClassVar[int] = 410


class SessionLockLost(BrokerError):
    condition: ClassVar[str] = "com.microsoft:session-lock-lost"
    status_code: ClassVar[int] = 410


class SessionCannotBeLocked(BrokerError):
    condition: ClassVar[str] = "com.microsoft:session-cannot-be-locked"
    status_code: ClassVar[int] = 409


class MessageNotFound(BrokerError):
    condition: ClassVar[str] = "com.microsoft:message-not-found"
    status_code: ClassVar[int] = 404


class EntityAlreadyExists(BrokerError):
    condition: ClassVar[str] = "com.microsoft:entity-already-exists"
    status_code: ClassVar[int] = 409


class AuthFailed(BrokerError):
    condition: ClassVar[str] = "com.microsoft:auth-failed"
    status_code: ClassVar[int] = 401


class GivenError(BrokerError):
    """Refused with a condition that somebody has chosen and that is none of the above: faults on purpose."""

    def __init__(self, condition: str, description: str) -> None:
        super().__init__(description)
        self.given_condition = condition

    def said_condition(self) -> str:
        return self.given_condition


KNOWN_ERRORS: Final[list[type[BrokerError]]] = [
    InternalError,
    EntityNotFound,
    Unauthorized,
    NotAllowed,
    NotImplementedHere,
    MessageTooLarge,
    QuotaExceeded,
    DetachForced,
    ConnectionForced,
    ServerBusy,
    OperationTimeout,
    EntityDisabled,
    ArgumentError,
    ArgumentOutOfRange,
    MessageLockLost,
    SessionLockLost,
    SessionCannotBeLocked,
    MessageNotFound,
    EntityAlreadyExists,
    AuthFailed,
]


def error_of(condition: str, description: str) -> BrokerError:
    """The error that has this condition; `GivenError` if we have no word for it."""
    for kind in KNOWN_ERRORS:
        if kind.condition == condition:
            return kind(description)
    return GivenError(condition, description)
