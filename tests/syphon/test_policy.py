"""The policy of both drivers, with given times."""

import pytest

from spillway.client import (
    ClientError,
    ConnectionLost,
    EntityDisabled,
    EntityNotFound,
    LinkClosed,
    MessageTooLarge,
    NotAllowed,
    OperationTimeout,
    QuotaExceeded,
    ServerBusy,
    Unauthorized,
)
from spillway.client.errors import error_for
from spillway.model.failures import Blame
from spillway.syphon.policy import (
    BUSY_PAUSE_S,
    EARLY_PAUSE_MAX_S,
    PAUSE_MAX_S,
    PAUSE_S,
    RECEIVE_BYTES,
    RECEIVE_FIRST,
    RECEIVE_MAX,
    BackOff,
    DestinationState,
    EachAlone,
    Keep,
    Polls,
    ReceiveSize,
    RetryAt,
    as_client_error,
    failure_of,
    is_of_message,
    path_problem,
)

FULL = QuotaExceeded("full")
BUSY = ServerBusy("busy")
BAD = NotAllowed("no session id")


@pytest.mark.parametrize(
    ("error", "is_messages"),
    [
        (BUSY, False),
        (ConnectionLost("gone"), False),
        (ConnectionLost("closed for it", "amqp:not-allowed"), False),
        (LinkClosed("detached for it", "amqp:not-allowed"), False),
        (MessageTooLarge("300 KB"), True),
        (BAD, True),
        (error_for("amqp:decode-error", None), True),
        (error_for("amqp:invalid-field", None), True),
        (error_for("amqp:not-implemented", None), True),
        (error_for("amqp:precondition-failed", None), True),
        (error_for("com.microsoft:argument-error", None), True),
        (error_for("com.contoso:never-heard-of", None), True),
        (FULL, False),
        (EntityNotFound("gone"), False),
        (EntityDisabled("off"), False),
        (Unauthorized("no"), False),
        (LinkClosed("detached"), False),
        (OperationTimeout("silent"), False),
        (error_for("amqp:internal-error", None), False),
        (error_for("amqp:resource-locked", None), False),
        (error_for("amqp:link:redirect", None), False),
        (error_for("amqp:session:unattached-handle", None), False),
        (ClientError("released", "amqp:illegal-state", is_transient=True), False),
    ],
    ids=lambda value: getattr(value, "condition", None) or str(value),
)
def test_a_refusal_is_of_the_message_or_of_whoever_was_to_take_it(error: ClientError, is_messages: bool) -> None:
    assert is_of_message(failure_of(error)) == is_messages


def test_what_ended_the_link_is_not_held_against_the_messages_that_were_under_way_on_it() -> None:
    assert DestinationState().on_refused(BAD, 1, 100.0) == Keep()
    assert DestinationState().on_refused(BAD, 1, 100.0, is_link_over=True) == RetryAt(100.0 + PAUSE_S)


def test_whatever_a_credential_or_a_socket_raises_is_an_error_of_the_way() -> None:
    for raised in (OSError("no route"), ValueError("the key"), RuntimeError()):
        told = as_client_error(raised)
        assert failure_of(told).blame is Blame.WAY
        assert type(raised).__name__ in str(told)
    assert as_client_error(BUSY) is BUSY


def test_a_destination_that_refuses_is_tried_again_after_pauses_that_double_up_to_ten_seconds() -> None:
    state = DestinationState()
    now_s, pauses = 100.0, []
    for _ in range(7):
        decision = state.on_refused(FULL, 20, now_s)
        assert isinstance(decision, RetryAt)
        pauses.append(decision.at_s - now_s)
        assert state.is_blocked(now_s) and not state.is_blocked(decision.at_s)
        now_s = decision.at_s
    assert pauses == [PAUSE_S, 1.0, 2.0, 4.0, 8.0, PAUSE_MAX_S, PAUSE_MAX_S]


def test_several_that_were_under_way_together_are_one_refusal() -> None:
    state = DestinationState()
    first = state.on_refused(FULL, 1, 100.0)
    assert state.on_refused(FULL, 1, 100.1) == first
    assert state.on_refused(FULL, 1, 100.5) == RetryAt(101.5)  # and this one came after the pause


def test_busy_waits_at_least_ten_seconds_also_when_it_comes_inside_a_shorter_pause() -> None:
    state = DestinationState()
    assert state.on_refused(BUSY, 5, 100.0) == RetryAt(100.0 + BUSY_PAUSE_S)
    other = DestinationState()
    other.on_refused(FULL, 5, 100.0)
    assert other.on_refused(BUSY, 5, 100.1) == RetryAt(100.1 + BUSY_PAUSE_S)


def test_after_a_refusal_batches_go_one_at_a_time_until_one_is_accepted() -> None:
    state = DestinationState()
    assert state.is_proven
    state.on_refused(FULL, 5, 100.0)
    assert not state.is_proven
    state.on_accepted()
    assert state.is_proven and not state.is_blocked(100.0)
    assert state.retry_at_s == 100.0 + PAUSE_S  # what was refused before keeps its time
    assert state.on_refused(FULL, 5, 200.0) == RetryAt(200.0 + PAUSE_S)  # the pauses begin again


def test_one_bad_message_of_many_is_found_by_sending_each_alone_and_then_kept() -> None:
    state = DestinationState()
    assert state.on_refused(BAD, 3, 100.0) == EachAlone()
    assert state.on_refused(BAD, 1, 100.0) == Keep()
    assert not state.is_blocked(100.0) and state.is_proven  # nobody else waits for it


def test_a_destination_that_refuses_every_message_for_what_it_is_gets_pauses_that_grow() -> None:
    state = DestinationState(refused_max=3)
    blocked = []
    for _ in range(7):
        assert state.on_refused(BAD, 1, 100.0) == Keep()
        blocked.append(state.blocked_until_s)
    assert blocked == [0.0, 0.0, 101.0, 101.0, 101.0, 102.0, 102.0]
    state.on_accepted()
    assert [state.on_refused(BAD, 1, 200.0), state.blocked_until_s] == [Keep(), 0.0]


def test_an_attach_that_is_refused_blocks_the_destination_whatever_the_condition() -> None:
    state = DestinationState()
    assert state.on_unreachable(BAD, 100.0) == RetryAt(100.0 + PAUSE_S)
    assert DestinationState().on_unreachable(BUSY, 100.0) == RetryAt(100.0 + BUSY_PAUSE_S)


def test_what_fails_again_and_again_is_begun_anew_less_and_less_often() -> None:
    back_off = BackOff(1.0, 10.0)
    assert [back_off.after() for _ in range(6)] == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    assert back_off.after(lived_s=3.0) == 10.0
    assert back_off.after(lived_s=11.0) == 1.0  # it had gone well for a while
    back_off.reset()
    assert back_off.after() == 1.0


def test_a_poll_that_returns_early_and_empty_is_paced_and_a_full_one_is_not() -> None:
    polls = Polls()
    assert polls.on_returned(0, 900.0, 900.0) == 0.0
    assert polls.on_returned(5, 900.0, 0.0) == 0.0
    pauses = [polls.on_returned(0, 900.0, 0.0) for _ in range(20)]
    assert pauses[0] > 0.0 and pauses[-1] == EARLY_PAUSE_MAX_S and pauses == sorted(pauses)
    assert polls.early_count == 20
    assert polls.on_returned(1, 900.0, 0.0) == 0.0
    assert polls.on_returned(0, 900.0, 0.1) == pauses[0]


def test_a_receive_asks_for_more_while_messages_are_small_and_for_few_when_they_are_large() -> None:
    size = ReceiveSize()
    assert size.count == RECEIVE_FIRST
    size.on_received(10, 10_000)
    assert size.count == RECEIVE_FIRST  # there were not more
    for _ in range(5):
        size.on_received(size.count, size.count * 1_000)
    assert size.count == RECEIVE_MAX
    size.on_received(RECEIVE_MAX, RECEIVE_MAX * 262_144)
    assert size.count == RECEIVE_BYTES // 262_144
    size.on_received(3, 3 * RECEIVE_BYTES)
    assert size.count == 1
    size.on_received(0, 0)
    assert size.count == 1


def test_only_what_may_be_an_entity_is_ever_sent_to() -> None:
    for path in ("orders", "a/b/c", "Ünïcode", "with a space", "topic"):
        assert path_problem(path) is None
    for path in ("$cbs", "orders/$management", "$", "x" * 5_000, "a\nb", "q/$DeadLetterQueue"):
        assert path_problem(path) is not None
