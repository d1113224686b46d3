"""One exception for every condition of docs/wire.md, "Error conditions"."""

import pytest

from spillway.amqp.errors import AmqpError
from spillway.client import errors

# The conditions, our exception, and whether trying again helps: the Python column of that table, where a lock or
# message that is gone stays gone.
ROWS = [
    ("amqp:not-found", errors.EntityNotFound, False),
    ("amqp:unauthorized-access", errors.Unauthorized, False),
    ("com.microsoft:auth-failed", errors.Unauthorized, True),
    ("amqp:not-allowed", errors.NotAllowed, False),
    ("amqp:link:message-size-exceeded", errors.MessageTooLarge, False),
    ("amqp:resource-limit-exceeded", errors.QuotaExceeded, False),
    ("amqp:link:detach-forced", errors.LinkClosed, True),
    ("amqp:internal-error", errors.ClientError, True),
    ("com.microsoft:server-busy", errors.ServerBusy, True),
    ("com.microsoft:timeout", errors.OperationTimeout, True),
    ("com.microsoft:entity-disabled", errors.EntityDisabled, True),
    ("com.microsoft:argument-error", errors.ClientError, False),
    ("com.microsoft:argument-out-of-range", errors.ClientError, False),
    ("com.microsoft:session-cannot-be-locked", errors.SessionCannotBeLocked, True),
    ("com.microsoft:session-lock-lost", errors.SessionLockLost, False),
    ("com.microsoft:message-lock-lost", errors.MessageLockLost, False),
    ("com.microsoft:message-not-found", errors.MessageNotFound, False),
    ("com.microsoft:entity-already-exists", errors.ClientError, False),
    ("vendor:unheard-of", errors.ClientError, False),
]


@pytest.mark.parametrize(("condition", "kind", "is_transient"), ROWS, ids=[row[0] for row in ROWS])
def test_a_condition_becomes_its_exception(condition: str, kind: type[errors.ClientError], is_transient: bool) -> None:
    error = errors.error_for(condition, "Because. TrackingId:1a-2b_G3, SystemTracker:q, Timestamp:2026-01-01T00:00:00")
    assert type(error) is kind
    assert (error.condition, error.is_transient, error.tracking_id) == (condition, is_transient, "1a-2b_G3")
    assert str(error).startswith(f"{condition}: Because.")


def test_an_error_without_words_says_so() -> None:
    assert errors.error_for("amqp:not-found", None).description == "the peer gave no reason"
    assert type(errors.error_from(None, "gone")) is errors.LinkClosed
    assert errors.error_for("amqp:not-found", "no tracking").tracking_id is None


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, errors.Unauthorized),
        (404, errors.EntityNotFound),
        (410, errors.MessageLockLost),
        (503, errors.ServerBusy),
        (400, errors.NotAllowed),
        (599, errors.ClientError),
    ],
)
def test_a_status_without_a_condition_says_enough(status: int, kind: type[errors.ClientError]) -> None:
    assert type(errors.error_for_status(status, None, None)) is kind


def test_a_close_with_an_error_keeps_its_condition() -> None:
    lost = errors.lost_from(AmqpError("amqp:connection:framing-error", "bad frame", None), "x")
    assert (type(lost), lost.condition) == (errors.ConnectionLost, "amqp:connection:framing-error")
