"""What a user sees of each fault on purpose: fault x operation x SDK. docs/faults.md shows the same.

A cell is what the SDK raises without retries of its own. `R`: it would have tried again by itself. `*`: the SDK's own
words, for the broker said nothing that reaches the user, hence no tracking id.
"""

from typing import NamedTuple

from spillway.model.faults import (
    DETACH,
    DISABLED,
    DROP,
    HIDDEN_KIND,
    LOCK_LOST,
    OPERATIONS,
    QUOTA,
    REFUSE,
    RESTART,
    SERVER_BUSY,
    SLOW,
    TIMEOUT,
    TIMEOUT_REFUSED,
)

PYTHON = "Python"
JAVASCRIPT = "JavaScript"
LATE = "late"  # it succeeds, so much later
EMPTY = "empty"  # no error: a receive call that ends without messages
DONE = "done"  # no error: what it does shows later
NONE = "–"  # cannot be planted: `reason_against` says why


class Cell(NamedTuple):
    what: str  # an exception's name, or one of the words above
    is_retried: bool = False
    is_tracked: bool = True  # what the user sees ends with the broker's tracking id

    def __str__(self) -> str:
        if self.what in (LATE, EMPTY, DONE, NONE):
            return self.what
        return f"`{self.what}`{' R' if self.is_retried else ''}{'' if self.is_tracked else ' *'}"


def cell(text: str) -> Cell:
    """From its words in the table below: `Name`, `Name R`, `Name R *`."""
    name, *marks = text.split()
    return Cell(name, "R" in marks, "*" not in marks)


def row(*texts: str) -> dict[str, Cell]:
    return {operation: cell(text) for operation, text in zip(OPERATIONS, texts, strict=True)}


#                send, receive, settle, attach, management, administration
TABLES: dict[str, dict[str, dict[str, Cell]]] = {
    PYTHON: {
        SERVER_BUSY: row(*["ServiceBusServerBusyError R"] * 5, "HttpResponseError R"),
        TIMEOUT: row(
            "OperationTimeoutError R *", EMPTY, *["OperationTimeoutError R *"] * 3, "ServiceResponseTimeoutError R *"
        ),
        TIMEOUT_REFUSED: row(*["OperationTimeoutError R"] * 5, "HttpResponseError R"),
        REFUSE: row(*["ServiceBusError"] * 5, "HttpResponseError"),
        DETACH: row(
            "ServiceBusConnectionError R *",
            "ServiceBusConnectionError R",
            "ServiceBusError *",
            "ServiceBusConnectionError R",
            "ServiceBusError *",
            NONE,
        ),
        DROP: row(*["ServiceBusConnectionError R *"] * 5, "ServiceResponseError R *"),
        SLOW: row(*[LATE] * 6),
        LOCK_LOST: row(NONE, NONE, "MessageLockLostError", NONE, "MessageLockLostError", NONE),
        QUOTA: row(
            "ServiceBusQuotaExceededError", NONE, NONE, *["ServiceBusQuotaExceededError"] * 2, "HttpResponseError"
        ),
        DISABLED: row(*["MessagingEntityDisabledError R"] * 5, NONE),
        HIDDEN_KIND: row(DONE, *[NONE] * 5),
        RESTART: row(
            "ServiceBusConnectionError R *",
            "ServiceBusConnectionError R",
            *["ServiceBusError R"] * 3,
            "HttpResponseError R",
        ),
    },
    JAVASCRIPT: {
        SERVER_BUSY: row(*["ServiceBusy R"] * 5, "ServerBusyError R"),
        TIMEOUT: row("ServiceTimeout R *", EMPTY, *["ServiceTimeout R *"] * 3, "AbortError *"),
        TIMEOUT_REFUSED: row(*["ServiceTimeout R"] * 5, "ServiceError R *"),
        REFUSE: row(*["GeneralError"] * 5, "ServiceError"),
        DETACH: row(
            "ServiceTimeout R *", "GeneralError R", "ServiceTimeout R *", "GeneralError R", "GeneralError R", NONE
        ),
        DROP: row(
            "ServiceTimeout R *", "Error *", "ServiceTimeout R *", "Error *", "ServiceTimeout R *", "ECONNRESET R *"
        ),
        SLOW: row(*[LATE] * 6),
        LOCK_LOST: row(NONE, NONE, "MessageLockLost", NONE, "MessageLockLost", NONE),
        QUOTA: row("QuotaExceeded", NONE, NONE, *["QuotaExceeded"] * 2, "QuotaExceededError"),
        DISABLED: row(*["MessagingEntityDisabled"] * 5, NONE),
        HIDDEN_KIND: row(DONE, *[NONE] * 5),
        RESTART: row(*["GeneralError R"] * 5, "InternalServerError R"),
    },
}
CELLS = [
    (sdk, kind, operation)
    for sdk, table in TABLES.items()
    for kind, cells in table.items()
    for operation in cells
    if cells[operation].what != NONE
]
