"""What can go wrong for a caller of the client, in one hierarchy.

Whatever the peer refused arrives as a `ClientError` that carries the AMQP condition, the peer's text, the tracking id
found in it and whether trying again can be expected to help (contract G2 to G4). Which class it is follows from the
condition alone (docs/wire.md, "Error conditions"). Malformed arguments are ValueErrors: the caller's own fault.
"""

import re
from typing import ClassVar, Final

from spillway.amqp.errors import AmqpError

_TRACKING_ID: Final = re.compile(r"TrackingId:([^\s,]+)")


class ClientError(Exception):
    """The peer, or the way to it, said no."""

    default_condition: ClassVar[str] = "amqp:internal-error"
    default_is_transient: ClassVar[bool] = False

    def __init__(self, description: str, condition: str | None = None, is_transient: bool | None = None) -> None:
        super().__init__(description)
        self.description = description
        self.condition = self.default_condition if condition is None else condition
        self.is_transient = self.default_is_transient if is_transient is None else is_transient
        found = _TRACKING_ID.search(description)
        self.tracking_id: str | None = None if found is None else found.group(1)

    def __str__(self) -> str:
        return f"{self.condition}: {self.description}"


class ConnectionLost(ClientError):
    """The connection has ended: by a broken socket, silence, the peer's close or our own. Connect again."""

    default_condition: ClassVar[str] = "amqp:connection:forced"
    default_is_transient: ClassVar[bool] = True


class LinkClosed(ClientError):
    """The link has ended while its connection lives on: attach a new one."""

    default_condition: ClassVar[str] = "amqp:link:detach-forced"
    default_is_transient: ClassVar[bool] = True


class OperationTimeout(ClientError):
    """No answer in time, ours or the service's. Whether the operation was carried out is not known."""

    default_condition: ClassVar[str] = "com.microsoft:timeout"
    default_is_transient: ClassVar[bool] = True


class WindowFull(ClientError):
    """More was posted than the sender's window holds: await `sender.ready()` between posts (contract G10, G11)."""

    default_condition: ClassVar[str] = "amqp:session:window-violation"
    default_is_transient: ClassVar[bool] = True


class SettlementFailed(ClientError):
    """The peer settled a delivery with another outcome than the one that was asked for."""

    default_condition: ClassVar[str] = "amqp:illegal-state"


class EntityNotFound(ClientError):
    default_condition: ClassVar[str] = "amqp:not-found"


class Unauthorized(ClientError):
    """No valid token, or one without the right that the operation needs."""

    default_condition: ClassVar[str] = "amqp:unauthorized-access"


class NoToken(Unauthorized):
    """Entra ID gave no token: the identity, its secret or its tenant is wrong, or this machine has no identity."""


class NotAllowed(ClientError):
    default_condition: ClassVar[str] = "amqp:not-allowed"


class MessageTooLarge(ClientError):
    default_condition: ClassVar[str] = "amqp:link:message-size-exceeded"


class QuotaExceeded(ClientError):
    default_condition: ClassVar[str] = "amqp:resource-limit-exceeded"


class ServerBusy(ClientError):
    """Hold this message back for at least ten seconds, then send it again (contract I5, I6)."""

    default_condition: ClassVar[str] = "com.microsoft:server-busy"
    default_is_transient: ClassVar[bool] = True


class EntityDisabled(ClientError):
    default_condition: ClassVar[str] = "com.microsoft:entity-disabled"
    default_is_transient: ClassVar[bool] = True


class MessageLockLost(ClientError):
    """The lock expired or was settled already; the message is back in its queue, or gone (contract H12, H17)."""

    default_condition: ClassVar[str] = "com.microsoft:message-lock-lost"


class SessionLockLost(ClientError):
    default_condition: ClassVar[str] = "com.microsoft:session-lock-lost"


class SessionCannotBeLocked(ClientError):
    default_condition: ClassVar[str] = "com.microsoft:session-cannot-be-locked"
    default_is_transient: ClassVar[bool] = True


class MessageNotFound(ClientError):
    default_condition: ClassVar[str] = "com.microsoft:message-not-found"


_BY_CONDITION: Final[dict[str, type[ClientError]]] = {
    cls.default_condition: cls
    for cls in (
        LinkClosed,
        OperationTimeout,
        EntityNotFound,
        Unauthorized,
        NotAllowed,
        MessageTooLarge,
        QuotaExceeded,
        ServerBusy,
        EntityDisabled,
        MessageLockLost,
        SessionLockLost,
        SessionCannotBeLocked,
        MessageNotFound,
    )
}
_BY_CONDITION["com.microsoft:auth-failed"] = Unauthorized
_BY_CONDITION["amqp:resource-deleted"] = EntityNotFound

# Conditions without a class of their own that pass by themselves.
_TRANSIENT: Final = frozenset({"amqp:internal-error", "com.microsoft:auth-failed", "amqp:connection:forced"})

# For a $cbs answer, or a management one without an errorCondition: the status says as much (docs/wire.md, "Tokens").
_BY_STATUS: Final[dict[int, str]] = {
    401: "amqp:unauthorized-access",
    403: "amqp:resource-limit-exceeded",
    404: "amqp:not-found",
    408: "com.microsoft:timeout",
    410: "com.microsoft:message-lock-lost",
    413: "amqp:link:message-size-exceeded",
    500: "amqp:internal-error",
    501: "amqp:not-implemented",
    503: "com.microsoft:server-busy",
}


def error_for(condition: str, description: str | None) -> ClientError:
    """The exception for a condition that came over the wire."""
    cls = _BY_CONDITION.get(condition, ClientError)
    is_transient = True if condition in _TRANSIENT else None
    return cls(description or "the peer gave no reason", condition, is_transient)


def error_from(error: AmqpError | None, otherwise: str) -> ClientError:
    """The exception for the `error` of a detach, end or rejected outcome; `otherwise` is said when there is none."""
    if error is None:
        return LinkClosed(otherwise)
    return error_for(error.condition, error.description)


def error_for_status(status_code: int, condition: str | None, description: str | None) -> ClientError:
    """The exception for a failed request over `$cbs` or `$management`."""
    if condition is None:
        condition = _BY_STATUS.get(status_code, "amqp:internal-error" if status_code >= 500 else "amqp:not-allowed")
    return error_for(condition, description or f"status {status_code}")


def lost_from(error: AmqpError | None, otherwise: str) -> ConnectionLost:
    """`ConnectionLost`, with what the peer said when it closed."""
    if error is None:
        return ConnectionLost(otherwise)
    return ConnectionLost(error.description or otherwise, error.condition)
