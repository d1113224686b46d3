"""The plan of a call: what a sender does next. Pure, told of times and failures, tested without a loop.

A call has one deadline. On the primary it tries a few times within its share of that; in the backlog it goes from queue
to queue. Every failure is answered by one of three steps: `Again` at some moment (on whichever side is right by then),
`Raise` (this error is the caller's to hear), or `NoBacklog` (no queue takes it, and there is no time to wait).
"""

from dataclasses import dataclass
from typing import Final

from azure.servicebus.exceptions import OperationTimeoutError

from spillway.model.failures import Blame, Failure
from spillway.paired.failover import Change, Machine, Route

RETRIES_MAX: Final = 3
BACKOFF_S: Final = 0.1
BUSY_WAIT_S: Final = 10.0  # contract D7, I6
PROBE_S: Final = 1.0  # between two tries of a call that is held
PRIMARY_SHARE: Final = 0.6  # of a call's time, where the rest may be needed for the backlog
FAIR_SHARE: Final = PRIMARY_SHARE / 2  # less says nothing about the primary
BACKLOG_SHARE: Final = 0.5  # of what is left, so that another backlog queue can still be tried
FAIR_TRY_S: Final = 2.0  # less says nothing about a backlog queue


@dataclass(frozen=True)
class Again:
    """Go on at `at_s`; before that if the entity's state changes, unless `is_patient`."""

    at_s: float
    is_patient: bool = False


@dataclass(frozen=True)
class Raise:
    """The error is the caller's."""


@dataclass(frozen=True)
class NoBacklog:
    """The entity is away, and no backlog queue took it in time."""


Step = Again | Raise | NoBacklog


class SendPlan:
    """The plan of one call. `may_divert`: the backlog may have to take its messages within this very call."""

    def __init__(
        self, began_s: float, deadline_s: float, operation_timeout_s: float, may_divert: bool, is_held: bool
    ) -> None:
        assert deadline_s >= began_s, "a call ends after it began"
        self.began_s = began_s
        self.deadline_s = deadline_s
        self.operation_timeout_s = operation_timeout_s
        self.may_divert = may_divert
        self.is_held = is_held
        self.tries = 0  # on the primary, since it last was its turn
        self.tried: set[str] = set()  # backlog queues, since the last pause
        self.rounds = 0  # over all backlog queues, without success
        self.is_worth_another_round = False
        self.doubted: str | None = None  # the queue that refused this message in words nobody knows
        self._until_s = 0.0
        self._share_s = 0.0

    # -- the primary ----------------------------------------------------------------------------------------------

    def primary_until_s(self, now_s: float) -> float:
        """How long the primary may take. A call that was held gets a new share of what is left."""
        if now_s >= self._until_s:
            left_s = self.deadline_s - now_s
            if self.may_divert:
                self._share_s = min(self.operation_timeout_s, left_s) * PRIMARY_SHARE
            else:
                self._share_s = left_s
            self._until_s = now_s + self._share_s
        return self._until_s

    @property
    def is_fair(self) -> bool:
        """Whether a time-out says something about the entity: what is left of a call that was held, or that waited for
        its turn, may be too little for anybody."""
        return self._share_s >= min(self.operation_timeout_s, self.deadline_s - self.began_s) * FAIR_SHARE

    def after_primary(
        self, error: Exception, failure: Failure, entity: Machine | None, epoch: int, now_s: float
    ) -> tuple[Step, Change | None]:
        """The primary did not take it, in an attempt that began in `epoch`. With the step: what became of the entity,
        against which it counts if it is not tried again before. `entity` is None where there is no other way."""
        if failure.is_retried and self.tries < RETRIES_MAX:
            at_s = now_s + BACKOFF_S * (1 << self.tries)
            if at_s < self._until_s:
                self.tries += 1
                return Again(at_s), None
        self.tries = 0
        if failure.is_busy:
            return self._when_busy(now_s), None
        if entity is None or not failure.counts_against_entity:
            return Raise(), None
        change = None
        if self.is_fair or not isinstance(error, OperationTimeoutError):
            change = entity.on_failure(error, epoch, now_s)
        # That it is back since the attempt began makes the failure one of the past.
        is_outdated = entity.epoch != epoch and self.may_divert and now_s < self.deadline_s
        if is_outdated or entity.route() is not Route.PRIMARY:
            return Again(now_s), change
        if not self.is_held or now_s >= self.deadline_s:
            return Raise(), change
        return Again(min(self.deadline_s, now_s + PROBE_S)), change

    # -- the backlog ----------------------------------------------------------------------------------------------

    def backlog_until_s(self, now_s: float) -> float:
        left_s = self.deadline_s - now_s
        return now_s + max(left_s * BACKLOG_SHARE, min(FAIR_TRY_S, left_s))

    def after_backlog(self, path: str, failure: Failure, began_s: float, now_s: float) -> tuple[Step, str | None]:
        """This backlog queue did not take it. With the step: the queue that is to leave the rotation for it."""
        if failure.blame is Blame.MESSAGE or (not failure.is_certain and self.doubted not in (None, path)):
            return Raise(), None  # two that refuse it in words nobody knows: it is the message
        self.is_worth_another_round = self.is_worth_another_round or failure.is_retried
        if failure.blame is Blame.NAMESPACE:
            return self.without_backlog(now_s), None  # none of its queues would fare better
        if failure.is_busy:
            return self._after_busy_backlog(path, now_s), None
        self.tried.add(path)
        had_time = self.backlog_until_s(began_s) - began_s >= FAIR_TRY_S
        if not failure.is_certain:
            self.doubted = path
        is_guilty = failure.is_certain and (had_time or now_s < self.deadline_s)
        return Again(now_s) if now_s < self.deadline_s else NoBacklog(), path if is_guilty else None

    def _after_busy_backlog(self, path: str, now_s: float) -> Step:
        """A call that has no time to wait ten seconds tries the others."""
        if now_s + BUSY_WAIT_S < self.deadline_s:
            return Again(now_s + BUSY_WAIT_S, is_patient=True)
        self.tried.add(path)
        return Again(now_s) if now_s < self.deadline_s else NoBacklog()

    def after_stored(self, path: str) -> str | None:
        """A backlog queue took it. The one that was in doubt is to leave the rotation: it was not the message."""
        doubted, self.doubted = self.doubted, None
        self.tried.clear()
        return doubted if doubted != path else None

    def without_backlog(self, now_s: float) -> Step:
        """No queue is left to try. Who is held waits for either side; who is not comes back a few times, if one of the
        failures was of the passing kind."""
        self.tried.clear()
        pause_s = PROBE_S
        if not self.is_held:
            if not self.is_worth_another_round or self.rounds >= RETRIES_MAX:
                return NoBacklog()
            pause_s = BACKOFF_S * (1 << self.rounds)
        self.rounds += 1
        assert self.is_held or self.rounds <= RETRIES_MAX, "who is not held comes back a few times"
        self.is_worth_another_round = False
        return Again(now_s + pause_s) if now_s + pause_s < self.deadline_s else NoBacklog()

    def _when_busy(self, now_s: float) -> Step:
        at_s = now_s + BUSY_WAIT_S
        return Again(at_s, is_patient=True) if at_s < self.deadline_s else Raise()
