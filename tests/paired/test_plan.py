"""What a call does next, told of times and failures: no loop, no SDK."""

import pytest
from azure.servicebus.exceptions import OperationTimeoutError

from spillway.model.failures import (
    BROKEN,
    BUSY,
    OF_CALLER,
    OF_ENTITY,
    OF_MESSAGE,
    SILENT,
    UNAUTHORISED,
    UNKNOWN_REFUSAL,
    Blame,
    Failure,
)
from spillway.paired.failover import Machine, State
from spillway.paired.plan import (
    BUSY_WAIT_S,
    PRIMARY_SHARE,
    PROBE_S,
    RETRIES_MAX,
    Again,
    NoBacklog,
    Raise,
    SendPlan,
    Step,
)

UNREACHABLE = Failure(Blame.NAMESPACE, is_retried=True, is_outcome_unknown=True, spoils_sender=True, ends_link=True)
NOW_S = 1_000.0
ERROR = OSError("as the SDK raised it")


def plan(timeout_s: float = 60.0, may_divert: bool = True, is_held: bool = False) -> SendPlan:
    made = SendPlan(NOW_S, NOW_S + timeout_s, 60.0, may_divert, is_held)
    made.primary_until_s(NOW_S)
    return made


def entity(interval_s: float = 60.0) -> Machine:
    """It is away with its first failure, or will be after the interval."""
    return Machine("orders", interval_s)


def step_of(call: SendPlan, failure: Failure, of: Machine | None, now_s: float = NOW_S) -> Step:
    step, _ = call.after_primary(ERROR, failure, of, 0, now_s)
    return step


# -- the primary ------------------------------------------------------------------------------------------------------


def test_the_primary_has_the_whole_time_unless_the_backlog_may_need_some_of_it() -> None:
    assert plan(may_divert=False).primary_until_s(NOW_S) == NOW_S + 60.0
    assert plan(may_divert=True).primary_until_s(NOW_S) == NOW_S + 60.0 * PRIMARY_SHARE


@pytest.mark.parametrize(
    ("timeout_s", "now_s", "is_fair"),
    [
        (60.0, NOW_S, True),  # its whole share
        (5.0, NOW_S, True),  # the caller's own time-out is short: that is how long it cares to wait
        (60.0, NOW_S + 50.0, False),  # held, and little is left
        (3_660.0, NOW_S, True),  # held for an hour: a share is one of the operation's time
    ],
)
def test_a_time_out_counts_against_the_entity_if_it_had_a_fair_share_of_the_time(
    timeout_s: float, now_s: float, is_fair: bool
) -> None:
    call, orders = SendPlan(NOW_S, NOW_S + timeout_s, 60.0, True, True), entity(0.0)
    call.primary_until_s(now_s)
    _, change = call.after_primary(OperationTimeoutError(), SILENT._replace(is_retried=False), orders, 0, now_s)
    assert (change is not None) is (orders.state is State.FAILED_OVER) is is_fair


def test_what_may_pass_is_tried_again_with_growing_pauses_and_then_counts() -> None:
    call, orders = plan(), entity()
    pauses = []
    while isinstance(step := step_of(call, BROKEN, orders), Again):
        assert orders.state is State.HEALTHY
        pauses.append(round(step.at_s - NOW_S, 3))
    assert pauses == [0.1, 0.2, 0.4]
    assert len(pauses) == RETRIES_MAX
    assert (step, orders.state) == (Raise(), State.SUSPECT)


def test_what_is_tried_again_has_its_share_of_the_time_and_no_more() -> None:
    until_s = plan().primary_until_s(NOW_S)
    assert step_of(plan(), BROKEN, entity(0.0), until_s - 0.2) == Again(until_s - 0.2 + 0.1)
    assert step_of(plan(), BROKEN, entity(0.0), until_s - 0.05) == Again(until_s - 0.05)  # to the backlog


@pytest.mark.parametrize("failure", [OF_MESSAGE, OF_CALLER, UNAUTHORISED, OF_ENTITY, BUSY], ids=lambda f: f.blame)
def test_what_does_not_pass_is_not_tried_again(failure: Failure) -> None:
    call = plan()
    call.after_primary(ERROR, failure, entity(), 0, NOW_S)
    assert call.tries == 0


@pytest.mark.parametrize("is_held", [False, True])
@pytest.mark.parametrize("failure", [OF_MESSAGE, OF_CALLER, UNAUTHORISED], ids=lambda f: f.blame)
def test_what_is_the_callers_is_raised_whatever_the_entity_does(failure: Failure, is_held: bool) -> None:
    orders = entity(0.0)
    assert plan(is_held=is_held).after_primary(ERROR, failure, orders, 0, NOW_S) == (Raise(), None)
    assert orders.state is State.HEALTHY
    orders.on_failure(ERROR, 0, NOW_S)
    assert plan(is_held=is_held).after_primary(ERROR, failure, orders, 0, NOW_S) == (Raise(), None)


def test_who_is_not_paired_hears_of_it() -> None:
    assert plan(may_divert=False).after_primary(ERROR, OF_ENTITY, None, 0, NOW_S) == (Raise(), None)


@pytest.mark.parametrize(
    ("is_held", "is_away", "step"),
    [
        (False, False, Raise()),
        (False, True, Again(NOW_S)),
        (True, False, Again(NOW_S + PROBE_S)),
        (True, True, Again(NOW_S)),
    ],
)
def test_what_counts_against_the_entity_is_raised_held_or_diverted(
    is_held: bool, is_away: bool, step: Again | Raise
) -> None:
    orders = entity(0.0 if is_away else 60.0)
    assert step_of(plan(is_held=is_held), OF_ENTITY, orders) == step
    assert orders.state is (State.FAILED_OVER if is_away else State.SUSPECT)


@pytest.mark.parametrize(
    ("call", "now_s", "step"),
    [
        (plan(), NOW_S + 9.0, Again(NOW_S + 9.0)),
        (plan(is_held=True), NOW_S + 9.0, Again(NOW_S + 9.0)),
        (plan(may_divert=False), NOW_S + 9.0, Raise()),  # inside the interval the caller hears of it
        (plan(), NOW_S + 60.0, Raise()),  # its time is up
    ],
    ids=["at once", "held", "inside the interval", "too late"],
)
def test_an_entity_that_is_back_since_the_attempt_began_is_asked_again(
    call: SendPlan, now_s: float, step: Again | Raise
) -> None:
    orders = entity(0.0)
    orders.on_failure(ERROR, 0, NOW_S)
    orders.on_ping_answered(NOW_S)
    assert call.after_primary(ERROR, OF_ENTITY, orders, 0, now_s) == (step, None)
    assert orders.state is State.HEALTHY


@pytest.mark.contract("D7", "I6")
def test_who_is_throttled_waits_ten_seconds_if_there_is_time() -> None:
    assert step_of(plan(60.0), BUSY, entity(0.0)) == Again(NOW_S + BUSY_WAIT_S, is_patient=True)
    assert step_of(plan(60.0), BUSY, None) == Again(NOW_S + BUSY_WAIT_S, is_patient=True)
    assert step_of(plan(9.0), BUSY, entity(0.0)) == Raise()
    assert plan(60.0).after_backlog("q", BUSY, NOW_S, NOW_S) == (Again(NOW_S + BUSY_WAIT_S, is_patient=True), None)


# -- the backlog ------------------------------------------------------------------------------------------------------


@pytest.mark.contract("D11")
@pytest.mark.parametrize("failure", [OF_ENTITY, BROKEN, SILENT, UNAUTHORISED], ids=str)
def test_a_backlog_queue_that_fails_leaves_the_rotation_and_another_is_tried(failure: Failure) -> None:
    call = plan()
    assert call.after_backlog("one", failure, NOW_S, NOW_S) == (Again(NOW_S), "one")
    assert call.tried == {"one"}


def test_a_message_that_a_backlog_queue_refuses_is_its_callers_and_no_queue_is_to_blame() -> None:
    assert plan().after_backlog("one", OF_MESSAGE, NOW_S, NOW_S) == (Raise(), None)


def test_a_refusal_in_unknown_words_is_the_messages_if_two_queues_agree() -> None:
    call = plan()
    assert call.after_backlog("one", UNKNOWN_REFUSAL, NOW_S, NOW_S) == (Again(NOW_S), None)
    assert call.after_backlog("two", UNKNOWN_REFUSAL, NOW_S, NOW_S) == (Raise(), None)


def test_a_refusal_in_unknown_words_is_the_queues_if_the_next_one_takes_it() -> None:
    call = plan()
    call.after_backlog("one", UNKNOWN_REFUSAL, NOW_S, NOW_S)
    assert call.after_stored("two") == "one"
    assert call.after_stored("two") is None


def test_a_secondary_that_cannot_be_connected_to_blames_no_queue() -> None:
    step, guilty = plan(is_held=True).after_backlog("one", UNREACHABLE, NOW_S, NOW_S)
    assert (step, guilty) == (Again(NOW_S + PROBE_S), None)


def test_who_is_held_waits_for_either_side_to_its_end() -> None:
    call = plan(3.0, is_held=True)
    assert call.without_backlog(NOW_S) == Again(NOW_S + PROBE_S)
    assert call.without_backlog(NOW_S + 1.5) == Again(NOW_S + 1.5 + PROBE_S)
    assert call.without_backlog(NOW_S + 2.5) == NoBacklog()


def test_who_is_not_held_comes_back_a_few_times_if_a_failure_may_pass() -> None:
    call = plan()
    rounds = 0
    while True:
        call.after_backlog("one", BROKEN, NOW_S, NOW_S)
        step = call.without_backlog(NOW_S)
        if step == NoBacklog():
            break
        rounds += 1
        assert call.tried == set()
    assert rounds == RETRIES_MAX
    refused = plan()
    refused.after_backlog("one", OF_ENTITY, NOW_S, NOW_S)
    assert refused.without_backlog(NOW_S) == NoBacklog()


def test_a_queue_that_had_no_time_to_show_what_it_can_do_is_not_blamed() -> None:
    call = plan(1.0)
    assert call.after_backlog("one", SILENT, NOW_S, NOW_S + 1.0) == (NoBacklog(), None)
    assert plan(10.0).after_backlog("one", SILENT, NOW_S, NOW_S + 10.0) == (NoBacklog(), "one")


def test_who_has_no_time_to_wait_for_a_busy_backlog_queue_tries_another_and_blames_none() -> None:
    call = plan(5.0)
    assert call.after_backlog("one", BUSY, NOW_S, NOW_S) == (Again(NOW_S), None)
    assert call.tried == {"one"}
