"""The failover machine: its rules one by one, and random lives against a model written down separately."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from spillway.paired.failover import Machine, Route, State

BROKEN = OSError("broken")
GONE = LookupError("gone")


def machine(interval_s: float = 60.0) -> Machine:
    return Machine("orders", interval_s)


@pytest.mark.contract("D1")
def test_a_healthy_entity_is_sent_to_and_successes_change_nothing() -> None:
    healthy = machine()
    assert healthy.on_success(1.0) is None
    assert (healthy.state, healthy.route(), healthy.is_away) == (State.HEALTHY, Route.PRIMARY, False)


@pytest.mark.contract("D3")
def test_a_failure_starts_the_timer_and_sends_still_go_to_the_primary() -> None:
    failing = machine(60.0)
    change = failing.on_failure(BROKEN, failing.epoch, 10.0)
    assert change is not None
    assert (change.before, change.after, change.cause) == (State.HEALTHY, State.SUSPECT, BROKEN)
    assert (failing.fail_over_at_s, failing.route()) == (70.0, Route.PRIMARY)


@pytest.mark.contract("D4", "A12")
def test_the_interval_without_a_success_fails_over() -> None:
    failing = machine(60.0)
    failing.on_failure(BROKEN, failing.epoch, 10.0)
    failing.on_failure(BROKEN, failing.epoch, 40.0)
    assert failing.on_time(69.9) is None
    change = failing.on_time(70.0)
    assert change is not None
    assert (change.after, change.cause, failing.route()) == (State.FAILED_OVER, BROKEN, Route.BACKLOG)


@pytest.mark.contract("D4")
def test_a_success_inside_the_interval_stops_the_timer() -> None:
    failing = machine(60.0)
    failing.on_failure(BROKEN, failing.epoch, 10.0)
    change = failing.on_success(69.0)
    assert change is not None
    assert (failing.state, failing.fail_over_at_s) == (State.HEALTHY, None)
    assert failing.on_time(1_000.0) is None


@pytest.mark.contract("A13")
def test_an_interval_of_zero_fails_over_at_the_first_failure() -> None:
    failing = machine(0.0)
    change = failing.on_failure(BROKEN, failing.epoch, 5.0)
    assert change is not None
    assert (change.before, change.after) == (State.HEALTHY, State.FAILED_OVER)


@pytest.mark.contract("D15")
def test_a_ping_that_gets_through_brings_the_entity_back() -> None:
    away = machine(0.0)
    away.on_failure(BROKEN, away.epoch, 5.0)
    assert away.on_ping_failed(BROKEN, False, 6.0) is None
    change = away.on_ping_answered(7.0)
    assert change is not None
    assert (change.before, away.route()) == (State.FAILED_OVER, Route.PRIMARY)


def test_a_ping_refused_for_good_stops_the_piling_up_until_one_gets_through() -> None:
    away = machine(0.0)
    away.on_failure(BROKEN, away.epoch, 5.0)
    away.on_ping_failed(GONE, True, 6.0)
    assert (away.state, away.route(), away.is_away, away.cause) == (State.FAILED, Route.NOWHERE, True, GONE)
    away.on_ping_failed(BROKEN, False, 7.0)
    assert (away.state, away.route()) == (State.FAILED_OVER, Route.BACKLOG)
    away.on_ping_failed(GONE, True, 8.0)
    away.on_ping_answered(9.0)
    assert away.state is State.HEALTHY


def test_the_owner_may_say_that_it_is_healthy() -> None:
    away = machine(0.0)
    away.on_failure(BROKEN, away.epoch, 5.0)
    away.on_ping_failed(GONE, True, 6.0)
    change = away.mark_healthy(7.0)
    assert change is not None
    assert (change.after, away.route()) == (State.HEALTHY, Route.PRIMARY)
    assert away.mark_healthy(8.0) is None


def test_an_attempt_from_before_the_recovery_says_nothing_about_now() -> None:
    entity = machine(0.0)
    old = entity.epoch
    entity.on_failure(BROKEN, old, 1.0)
    entity.on_ping_answered(2.0)
    assert entity.on_failure(BROKEN, old, 3.0) is None
    assert entity.state is State.HEALTHY
    assert entity.on_failure(BROKEN, entity.epoch, 4.0) is not None


def test_an_entity_that_a_ping_brought_back_is_on_trial_until_it_takes_a_message() -> None:
    full = machine(60.0)
    full.on_failure(BROKEN, full.epoch, 0.0)
    full.on_time(60.0)
    full.on_ping_answered(61.0)
    assert (full.state, full.is_on_trial, full.relapses) == (State.HEALTHY, True, 0)
    full.on_failure(BROKEN, full.epoch, 62.0)  # the ping told of no room
    assert (full.state, full.relapses) == (State.FAILED_OVER, 1)
    full.on_ping_answered(63.0)
    full.on_success(64.0)
    assert (full.is_on_trial, full.relapses) == (False, 0)
    full.on_failure(BROKEN, full.epoch, 65.0)
    assert full.state is State.SUSPECT


class Lives(RuleBasedStateMachine):
    """Failures, successes, pings and time in any order. The model is a history, looked through anew at each step."""

    @initialize(interval_s=st.sampled_from([0.0, 1.0, 30.0, 60.0]))
    def begin(self, interval_s: float) -> None:
        self.entity = Machine("orders", interval_s)
        self.now_s = 100.0
        self.history: list[tuple[str, float]] = []
        self.epochs = [self.entity.epoch]

    @rule(step_s=st.sampled_from([0.0, 0.5, 1.0, 29.0, 31.0, 61.0]))
    def time_passes(self, step_s: float) -> None:
        self.now_s += step_s
        self.entity.on_time(self.now_s)
        self.note("time")

    @rule()
    def a_send_succeeds(self) -> None:
        self.entity.on_success(self.now_s)
        self.note("success")

    @rule()
    def a_send_fails(self) -> None:
        self.entity.on_failure(BROKEN, self.entity.epoch, self.now_s)
        self.note("failure")

    @precondition(lambda self: len(self.epochs) > 1)
    @rule(data=st.data())
    def a_send_of_long_ago_fails(self, data: st.DataObject) -> None:
        before = self.entity.state
        old = data.draw(st.sampled_from(self.epochs[:-1]))
        self.entity.on_failure(BROKEN, old, self.now_s)
        assert self.entity.state is before

    @rule()
    def a_ping_gets_through(self) -> None:
        self.entity.on_ping_answered(self.now_s)
        self.note("answered")

    @rule(is_lasting=st.booleans())
    def a_ping_fails(self, is_lasting: bool) -> None:
        self.entity.on_ping_failed(GONE if is_lasting else BROKEN, is_lasting, self.now_s)
        self.note("refused" if is_lasting else "unanswered")

    @rule()
    def the_owner_says_it_is_healthy(self) -> None:
        self.entity.mark_healthy(self.now_s)
        self.note("marked")

    def note(self, what: str) -> None:
        self.history.append((what, self.now_s))
        if self.entity.epoch != self.epochs[-1]:
            self.epochs.append(self.entity.epoch)

    def expected(self) -> State:
        """The rules of the contract, told as a story."""
        state = State.HEALTHY
        suspect_since_s = 0.0
        is_on_trial = False
        for what, at_s in self.history:
            if what == "marked":
                state = State.HEALTHY
                is_on_trial = False
            elif state is State.HEALTHY:
                if what == "failure":
                    is_at_once = self.entity.interval_s == 0 or is_on_trial
                    state = State.FAILED_OVER if is_at_once else State.SUSPECT
                    suspect_since_s = at_s
                if what in ("failure", "success"):
                    is_on_trial = False
            elif state is State.SUSPECT:
                is_over = at_s >= suspect_since_s + self.entity.interval_s
                if what == "success":
                    state = State.HEALTHY
                elif what in ("time", "failure") and is_over:
                    state = State.FAILED_OVER
            elif what == "answered":
                state = State.HEALTHY
                is_on_trial = True
            elif what == "refused":
                state = State.FAILED
            elif what == "unanswered":
                state = State.FAILED_OVER
        return state

    @invariant()
    def it_is_where_the_story_says(self) -> None:
        if not hasattr(self, "entity"):
            return
        assert self.entity.state is self.expected()
        assert (self.entity.fail_over_at_s is not None) == (self.entity.state is State.SUSPECT)
        assert (self.entity.route() is Route.BACKLOG) == (self.entity.state is State.FAILED_OVER)
        assert self.entity.state is not State.SUSPECT or self.entity.interval_s > 0


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
