"""The lobby: connections that have not yet shown a right to be here, bounded in number and in time.

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


class Guest(Protocol):
    @property
    def is_welcome(self) -> bool:
        """No longer a stranger (or gone already)."""

    def turn_away(self, error: BrokerError | None) -> None: ...


class Lobby:
    """Rows in order of arrival and so in order of deadline: sweeping looks at those due and at no other."""

    def __init__(self, guests_max: int = limits.GUESTS_MAX) -> None:
        self.guests_max = guests_max
        self.silent: dict[Guest, int] = {}  # nothing said yet -> when to stop waiting
        self.strangers: dict[Guest, int] = {}  # AMQP spoken, no token yet
        self.leaving: dict[Guest, int] = {}  # told to go -> when to stop waiting for its answer

    def __len__(self) -> int:
        return len(self.silent) + len(self.strangers)

    def enter_silent(self, guest: Guest, now_ms: int) -> None:
        self.silent[guest] = now_ms + limits.HEADER_TIMEOUT_MS
        self.make_room()

    def enter_stranger(self, guest: Guest, now_ms: int) -> None:
        self.strangers[guest] = now_ms + limits.TOKEN_TIMEOUT_MS
        self.make_room()

    def leave(self, guest: Guest) -> None:
        """Known, or gone: who is remembered here keeps everything it ever opened in memory."""
        self.silent.pop(guest, None)
        self.strangers.pop(guest, None)
        self.leaving.pop(guest, None)

    def make_room(self) -> None:
        while len(self) > self.guests_max:
            # From the longer row: that is where the flood is.
            row = self.silent if len(self.silent) >= len(self.strangers) else self.strangers
            guest = next(iter(row))
            del row[guest]
            if not guest.is_welcome:
                guest.turn_away(None)

    def sweep(self, now_ms: int) -> None:
        for guest in due(self.silent, now_ms):
            guest.turn_away(None)
        for guest in due(self.leaving, now_ms):
            guest.turn_away(None)
        # Who has shown a token is a stranger no more, also if the token ends: that is its own affair from then on.
        for guest in [guest for guest in self.strangers if guest.is_welcome]:
            del self.strangers[guest]
        for guest in due(self.strangers, now_ms):
            guest.turn_away(Unauthorized(NO_TOKEN_TEXT))
            self.leaving[guest] = now_ms + limits.HEADER_TIMEOUT_MS

    def clear_silent(self) -> None:
        """On the way out: who has said nothing needs no goodbye."""
        for guest in list(self.silent):  # who leaves takes itself out
            guest.turn_away(None)
        self.silent.clear()


def due(row: dict[Guest, int], now_ms: int) -> list[Guest]:
    """Take out those whose time is up; those that are welcome meanwhile just leave."""
    late: list[Guest] = []
    for guest, deadline_ms in row.items():
        if deadline_ms > now_ms:
            break
        late.append(guest)
    for guest in late:
        del row[guest]
    return [guest for guest in late if not guest.is_welcome]
