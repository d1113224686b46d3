"""The pre-auth limiter: connections that have not yet shown a right to be here, bounded in number and in time.

A socket may be silent for `HEADER_TIMEOUT_MS` and unauthorised for `TOKEN_TIMEOUT_MS` (Azure's 20 s rule). When there
are too many of them the oldest goes: a real client shows its token within milliseconds, so it is the flood that
pays, not the client that comes next.
"""

from typing import Final, Protocol

from spillway.model import limits
from spillway.model.errors import BrokerError, Unauthorized

NO_TOKEN_TEXT: Final = (
    f"No valid token was put within {limits.TOKEN_TIMEOUT_MS // 1000} s of connecting. "
    "Put a token of a rule of this namespace to $cbs, or authenticate with SASL PLAIN."
)


class PendingConnection(Protocol):
    @property
    def is_admitted(self) -> bool:
        """Whether the connection is authenticated by now (or gone already)."""

    def reject(self, error: BrokerError | None) -> None: ...


class PreauthLimiter:
    """Pending connections in order of arrival and so in order of deadline: a sweep checks those due and no other."""

    def __init__(self, pending_max: int = limits.PENDING_CONNECTIONS_MAX) -> None:
        self.pending_max = pending_max
        self.silent: dict[PendingConnection, int] = {}  # nothing said yet -> when to stop waiting
        self.unauthenticated: dict[PendingConnection, int] = {}  # AMQP spoken, no token yet
        self.leaving: dict[PendingConnection, int] = {}  # told to go -> when to stop waiting for its answer

    def __len__(self) -> int:
        return len(self.silent) + len(self.unauthenticated)

    def enter_silent(self, pending: PendingConnection, now_ms: int) -> None:
        self.silent[pending] = now_ms + limits.HEADER_TIMEOUT_MS
        self.make_room()

    def enter_unauthenticated(self, pending: PendingConnection, now_ms: int) -> None:
        self.unauthenticated[pending] = now_ms + limits.TOKEN_TIMEOUT_MS
        self.make_room()

    def leave(self, pending: PendingConnection) -> None:
        """A connection is authenticated, or gone: one that stays here keeps everything it ever opened in memory."""
        self.silent.pop(pending, None)
        self.unauthenticated.pop(pending, None)
        self.leaving.pop(pending, None)

    def make_room(self) -> None:
        while len(self) > self.pending_max:
            # From the longer row: that is where the flood is.
            row = self.silent if len(self.silent) >= len(self.unauthenticated) else self.unauthenticated
            pending = next(iter(row))
            del row[pending]
            if not pending.is_admitted:
                pending.reject(None)

    def sweep(self, now_ms: int) -> None:
        for pending in due(self.silent, now_ms):
            pending.reject(None)
        for pending in due(self.leaving, now_ms):
            pending.reject(None)
        # Who has shown a token is unauthenticated no more, also if the token ends: that is its own affair from then on.
        for pending in [pending for pending in self.unauthenticated if pending.is_admitted]:
            del self.unauthenticated[pending]
        for pending in due(self.unauthenticated, now_ms):
            pending.reject(Unauthorized(NO_TOKEN_TEXT))
            self.leaving[pending] = now_ms + limits.HEADER_TIMEOUT_MS

    def clear_silent(self) -> None:
        """Rejects the silent ones on the way out: they need no goodbye."""
        for pending in list(self.silent):  # who leaves takes itself out
            pending.reject(None)
        self.silent.clear()


def due(row: dict[PendingConnection, int], now_ms: int) -> list[PendingConnection]:
    """Pop the connections whose time is up; those that were admitted meanwhile just leave."""
    late: list[PendingConnection] = []
    for pending, deadline_ms in row.items():
        if deadline_ms > now_ms:
            break
        late.append(pending)
    for pending in late:
        del row[pending]
    return [pending for pending in late if not pending.is_admitted]
