"""What a caller of the paired library catches.

An error of the SDK's reaches the caller as an object that is both: the SDK's own class, so that programs written for
the SDK catch what they always caught, and `MessagingError`, which says whether a retry may help. The SDK's original is
its `__cause__`. What is the caller's own mistake (`ValueError`, `TypeError`, the size error) stays as it is.
"""

from typing import Any

from azure.servicebus.exceptions import ServiceBusError

from spillway.model.failures import Failure


class MessagingError(Exception):
    """`is_transient`: the same call may succeed later. `path`: the entity it was for."""

    is_transient: bool = False
    path: str = ""


class PairingError(MessagingError):
    """Pairing did not come about; the text says which parameter or which queue."""


class FactoryClosed(MessagingError):
    """The factory was closed, or faulted by its partner."""


class EntityFailed(MessagingError):
    """The entity is unavailable and no waiting brings it back: it is gone, or this client may not send to it."""


class BacklogUnavailableError(MessagingError):
    """The entity is unavailable and no backlog queue takes messages. The text names each and its cause.

    `is_outcome_unknown`: a send before may have been stored, and its answer was lost; else nothing was sent. Sending
    again with the same message id makes one message of it, where duplicates are detected.
    """

    is_outcome_unknown: bool = False


class SchedulingError(MessagingError):
    """A schedule that went to the backlog cannot be cancelled: its message has no number yet on the primary."""


_classes: dict[type, type] = {}


def wrapped(error: Exception, path: str, failure: Failure) -> Exception:
    """The error as the caller gets it; raise it `from` the original."""
    if isinstance(error, MessagingError) or not isinstance(error, (ServiceBusError, OSError)):
        return error
    kind = type(error)
    both = _classes.get(kind)
    if both is None:
        both = _classes[kind] = type(kind.__name__, (MessagingError, kind), {"__module__": __name__})
    twin: Any = Exception.__new__(both)
    twin.__dict__.update(error.__dict__)
    twin.args = error.args
    twin.is_transient = failure.is_retried or failure.is_busy
    twin.path = path
    assert isinstance(twin, MessagingError) and isinstance(twin, kind), "it is caught as either"
    return twin
