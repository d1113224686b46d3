"""Whether an entity of the primary takes messages: one machine per entity, pure, driven by the times it is told.

    healthy ──qualifying failure──▶ suspect ──the interval passes without a success──▶ failed over
       ▲                              │                                                 │    │
       ├────── a send succeeds ───────┘                                    a ping gets through │ a ping is refused
       ├───────────────────────────────────────────────────────────────────────────────┘    │ for good
       └──────────── a ping gets through, or the owner says so ─────────── failed ◀──────────┘

With an interval of zero the first qualifying failure fails over. All senders of a factory share the machine of an
entity, and know nothing of other entities: those may sit on other nodes.

An entity that a ping brought back is on trial until it has taken a message: a ping needs no room, and a queue that is
full may answer it. Its first failure is a relapse, and fails over at once, whatever the interval.
"""

import enum
from dataclasses import dataclass


class State(enum.Enum):
    HEALTHY = "healthy"
    SUSPECT = "suspect"
    FAILED_OVER = "failed over"
    FAILED = "failed"  # it is away and will not come back by waiting: gone, or this client may not


class Route(enum.Enum):
    """Where a message goes now."""

    PRIMARY = "primary"
    BACKLOG = "backlog"
    NOWHERE = "nowhere"  # refused, or it would pile up for an entity that nobody can send to


@dataclass(frozen=True)
class Change:
    """A state was left for another one."""

    path: str
    before: State
    after: State
    at_s: float
    cause: BaseException | None


class Machine:
    """`interval_s` is how long failures are tolerated. Times are seconds of any clock that does not go back."""

    def __init__(self, path: str, interval_s: float) -> None:
        self.path = path
        self.interval_s = interval_s
        self.state = State.HEALTHY
        self.cause: BaseException | None = None  # of the state: the last error that told of it
        self.fail_over_at_s: float | None = None  # while suspect
        # Attempts remember the epoch they began in: one that began before a recovery says nothing about what is now.
        self.epoch = 0
        self.is_on_trial = False  # back by a ping, and no message was taken since
        self.relapses = 0  # in a row: fail-overs of an entity that was on trial

    def route(self) -> Route:
        if self.state is State.FAILED_OVER:
            return Route.BACKLOG
        return Route.NOWHERE if self.state is State.FAILED else Route.PRIMARY

    @property
    def is_away(self) -> bool:
        """Whether it is to be pinged."""
        return self.state in (State.FAILED_OVER, State.FAILED)

    def on_success(self, now_s: float) -> Change | None:
        """The primary accepted a message. Only a ping brings an entity back that was failed over."""
        if not self.is_away:
            self.is_on_trial = False
            self.relapses = 0
        self.is_on_trial = False
        return self._become(State.HEALTHY, now_s, None) if self.state is State.SUSPECT else None

    def on_failure(self, error: BaseException, epoch: int, now_s: float) -> Change | None:
        """A qualifying failure of an attempt that began in `epoch`."""
        assert epoch <= self.epoch, "no attempt began in an epoch that is still to come"
        if epoch != self.epoch or self.is_away:
            return None
        if self.is_on_trial:
            self.relapses += 1
        if self.interval_s <= 0 or self.is_on_trial:
            return self._become(State.FAILED_OVER, now_s, error)
        if self.state is State.SUSPECT:
            self.cause = error
            return self.on_time(now_s)
        self.fail_over_at_s = now_s + self.interval_s
        return self._become(State.SUSPECT, now_s, error)

    def on_time(self, now_s: float) -> Change | None:
        """The interval may be over."""
        if self.state is State.SUSPECT and self.fail_over_at_s is not None and now_s >= self.fail_over_at_s:
            return self._become(State.FAILED_OVER, now_s, self.cause)
        return None

    def on_ping_answered(self, now_s: float) -> Change | None:
        if not self.is_away:
            return None
        change = self._become(State.HEALTHY, now_s, None)
        self.is_on_trial = True
        return change

    def on_ping_failed(self, error: BaseException, is_lasting: bool, now_s: float) -> Change | None:
        if not self.is_away:
            return None
        after = State.FAILED if is_lasting else State.FAILED_OVER
        self.cause = error
        return self._become(after, now_s, error) if after is not self.state else None

    def mark_healthy(self, now_s: float) -> Change | None:
        """The owner knows better."""
        self.relapses = 0
        self.is_on_trial = False
        return self._become(State.HEALTHY, now_s, None) if self.state is not State.HEALTHY else None

    def _become(self, after: State, now_s: float, cause: BaseException | None) -> Change:
        assert after is not self.state, f"{self.path} is {after.value} already: a change leaves a state for another"
        change = Change(self.path, self.state, after, now_s, cause)
        self.state = after
        self.cause = cause
        self.is_on_trial = False
        if after is not State.SUSPECT:
            self.fail_over_at_s = None
        if after is State.HEALTHY:
            self.epoch += 1
        assert (self.fail_over_at_s is not None) == (after is State.SUSPECT), "who is suspect has a time"
        return change
