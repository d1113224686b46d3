"""What follows from an answer of a namespace, and when to ask again. No IO and no clock: times are given.

Both drivers ask here and nowhere else: what a refusal says (`failure_of`, from the table of `model/failures.py`), what
becomes of the messages (`DestinationState`), how long a receive waits and how many messages it asks for (`Polls`,
`ReceiveSize`), and when something that failed is begun anew (`BackOff`).
"""

from dataclasses import dataclass
from typing import Final

from spillway.client import ClientError, ConnectionLost, LinkClosed
from spillway.model.failures import Blame, Failure, failure_for

PAUSE_S: Final = 0.5
PAUSE_MAX_S: Final = 10.0
BUSY_PAUSE_S: Final = 10.0  # contract I6
REFUSED_MAX: Final = 100  # messages that a destination refuses in a row, each for itself, before a pause
REFUSED_PAUSE_S: Final = 1.0

RESTART_S: Final = 1.0
RESTART_MAX_S: Final = 10.0
FURTHER_S: Final = 10.0  # between two looks behind as many held messages as are allowed
FURTHER_MAX_S: Final = 60.0

EARLY_SHARE: Final = 0.5  # of its wait: a receive that returned sooner, and with nothing, did not wait
EARLY_PAUSE_S: Final = 0.2
EARLY_PAUSE_MAX_S: Final = 30.0

RECEIVE_FIRST: Final = 50
RECEIVE_MAX: Final = 250
RECEIVE_BYTES: Final = 4 * 1024 * 1024  # about so many in one receive

RENEW_SHARE: Final = 0.5  # of a lock's span: then it is renewed
HOLD_S: Final = 300.0  # after that a lock is let go: another syphon may have better luck

PATH_CHARS_MAX: Final = 1_024  # far more than any service allows, and less than a frame


def failure_of(error: ClientError, is_link_over: bool = False) -> Failure:
    """What an error of our own client says, by the table that the paired senders ask too. `is_link_over`: it was said
    of the link, and messages that were under way on it heard it as well."""
    is_refusal = not (is_link_over or isinstance(error, (ConnectionLost, LinkClosed)))
    return failure_for(error.condition, is_refusal)


def is_of_message(failure: Failure) -> bool:
    """Whether others may fare better, so that each is to be sent for itself. In doubt it is the message's: what waits
    for one destination is not to wait for one message of it."""
    if failure.blame is Blame.CALLER:
        return not failure.is_lasting  # a key that may not send is everybody's
    return failure.blame is Blame.MESSAGE or not failure.is_certain


def as_client_error(error: BaseException) -> ClientError:
    """An error of the way, for whatever opening a connection or asking a credential may raise."""
    if isinstance(error, ClientError):
        return error
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return ConnectionLost(said)


def path_problem(path: str) -> str | None:
    """Why nothing is ever sent to a path that a message names; None if it may be that of an entity.

    A node of the service (`$cbs`, `orders/$management`) would take what a stranger wrote into the backlog for a request
    of this program.
    """
    if len(path) > PATH_CHARS_MAX:
        return f"its path has {len(path):,} characters"
    if any(part.startswith("$") for part in path.split("/")):
        return "its path is a node of the service, not an entity that takes messages"
    if not path.isprintable():
        return "its path has characters that cannot be printed"
    return None


# -- a destination ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Keep:
    """Refused for what it is: this message stays in the backlog, and holds up nobody."""


@dataclass(frozen=True)
class EachAlone:
    """One of them is to blame for the refusal of all: each is sent for itself."""


@dataclass(frozen=True)
class RetryAt:
    """Refused for what the destination is: these and those behind them wait until then."""

    at_s: float


Decision = Keep | EachAlone | RetryAt


class DestinationState:
    """One entity of the primary, as its answers show it.

    `refused_max`: so many messages that it refuses for what they are, one after the other, are followed by a pause, for
    it may refuse them all and each try is paid for. None where the number of tries is bounded anyway.
    """

    def __init__(self, refused_max: int | None = None) -> None:
        self.refused_max = refused_max
        self.blocked_until_s = 0.0
        self.retry_at_s = 0.0  # the same, but not forgotten when something behind it is accepted
        self.is_proven = True  # batches may go one behind the other; else one at a time, until it takes one
        self._pause_s = PAUSE_S
        self._refused_count = 0  # since it last took one

    def is_blocked(self, now_s: float) -> bool:
        return self.blocked_until_s > now_s

    def on_accepted(self) -> None:
        self.blocked_until_s = 0.0
        self.is_proven = True
        self._pause_s = PAUSE_S
        self._refused_count = 0

    def on_refused(self, error: ClientError, count: int, now_s: float, is_link_over: bool = False) -> Decision:
        """What becomes of `count` messages that were sent together, and that nobody took."""
        failure = failure_of(error, is_link_over)
        if not is_of_message(failure):
            return self._block(failure, now_s)
        if count > 1:
            return EachAlone()
        self._refused_count += 1
        if self.refused_max is not None and self._refused_count % self.refused_max == 0:
            pauses = self._refused_count // self.refused_max
            self._block_until(now_s + min(PAUSE_MAX_S, REFUSED_PAUSE_S * pauses))
        return Keep()

    def on_unreachable(self, error: ClientError, now_s: float) -> RetryAt:
        """There is no link to send on, for whatever reason: that says nothing of a message."""
        return self._block(failure_of(error, is_link_over=True), now_s)

    def _block(self, failure: Failure, now_s: float) -> RetryAt:
        is_first = now_s >= self.blocked_until_s  # of several that were under way together
        if is_first or failure.is_busy:
            least_s = BUSY_PAUSE_S if failure.is_busy else 0.0
            self._block_until(max(self.blocked_until_s, now_s + max(least_s, self._pause_s)))
        if is_first:
            self._pause_s = min(PAUSE_MAX_S, self._pause_s * 2)
        self.is_proven = False
        return RetryAt(self.retry_at_s)

    def _block_until(self, until_s: float) -> None:
        self.blocked_until_s = self.retry_at_s = until_s


# -- asking again -----------------------------------------------------------------------------------------------------


class BackOff:
    """Pauses that double, up to a most. What has gone well for longer than that begins with the first one again."""

    def __init__(self, first_s: float = RESTART_S, most_s: float = RESTART_MAX_S) -> None:
        self.first_s = first_s
        self.most_s = most_s
        self._next_s = first_s

    def after(self, lived_s: float = 0.0) -> float:
        """The pause after something that has failed now, and had gone well so long."""
        if lived_s > self.most_s:
            self.reset()
        pause_s = self._next_s
        self._next_s = min(self.most_s, self._next_s * 2)
        return pause_s

    def reset(self) -> None:
        self._next_s = self.first_s


class Polls:
    """Receives, one after the other. One that returns early with nothing is paced: it did not wait, and each is paid
    for, so that a service which answers at once would be asked for ever and no other task of the loop got its turn."""

    def __init__(self) -> None:
        self._early = BackOff(EARLY_PAUSE_S, EARLY_PAUSE_MAX_S)
        self.early_count = 0

    def on_returned(self, received: int, asked_s: float, took_s: float) -> float:
        """The pause before the next one."""
        if received or took_s >= asked_s * EARLY_SHARE:
            self._early.reset()
            return 0.0
        self.early_count += 1
        return self._early.after()


class ReceiveSize:
    """How many messages a receive asks for: more while they are small and many come, so that bytes stay bounded."""

    def __init__(self) -> None:
        self.count = RECEIVE_FIRST

    def on_received(self, count: int, size_bytes: int) -> None:
        if not count:
            return
        fitting = max(1, RECEIVE_BYTES * count // max(1, size_bytes))
        if fitting < self.count:
            self.count = fitting
        elif count >= self.count:
            self.count = min(RECEIVE_MAX, fitting, self.count * 2)
