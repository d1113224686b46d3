"""What can be asked of a fault, and the words for what cannot."""

import json

import pytest

from spillway.model import limits
from spillway.model.errors import ArgumentError, GivenError, ServerBusy, error_of
from spillway.model.faults import (
    INJECTED,
    KINDS,
    OPERATIONS,
    Fault,
    FaultReport,
    fault_from_plain,
    operations_of,
    reason_against,
    report_from_plain,
)

NEEDED: dict[str, dict[str, object]] = {
    "refuse": {"condition": "amqp:not-allowed"},
    "slow": {"delay_ms": 500},
    "hidden": {"delay_ms": 60_000},
    "restart": {"duration_ms": 5_000},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_without_operations_befalls_all_that_its_kind_can(kind: str) -> None:
    fault = fault_from_plain({"kind": kind, **NEEDED.get(kind, {})})
    assert fault.operations == operations_of(kind)
    assert fault.path == "*"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_a_kind_cannot_befall_is_refused_with_the_reason(kind: str, operation: str) -> None:
    values = {"kind": kind, "operations": [operation], **NEEDED.get(kind, {})}
    reason = reason_against(kind, operation)
    if not reason:
        assert fault_from_plain(values).operations == (operation,)
        return
    with pytest.raises(ArgumentError) as caught:
        fault_from_plain(values)
    assert str(caught.value) == f"A fault '{kind}' cannot befall {operation}: {reason}."


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_survives_json(kind: str) -> None:
    fault = fault_from_plain({"kind": kind, "path": "a/Subscriptions/b", **NEEDED.get(kind, {})})
    assert fault_from_plain(json.loads(json.dumps(fault.to_plain()))).to_plain() == fault.to_plain()
    report = FaultReport(3, fault, INJECTED, 7, 2, 1_000, True)
    assert report_from_plain(json.loads(json.dumps(report.to_plain()))).to_plain() == report.to_plain()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "'kind' is missing: one of server-busy, timeout,"),
        ({"kind": "nonsense"}, "'nonsense' is no kind of fault; there are server-busy,"),
        ({"kind": 3}, "'kind' must be a string."),
        ({"kind": "drop", "operations": ["sends"]}, "'sends' is no operation; there are send, receive,"),
        ({"kind": "drop", "operations": "send"}, "'operations' must be a list of strings."),
        ({"kind": "drop", "operations": [1]}, "'operations' must be a list of strings."),
        ({"kind": "drop", "operations": ["send", "send"]}, "An operation is named twice."),
        ({"kind": "drop", "path": ""}, "an entity name must not be empty"),
        ({"kind": "drop", "path": "a b"}, "not ' '"),
        ({"kind": "drop", "path": "t/Subscriptions/a/b"}, "the name of a subscription has no '/'"),
        ({"kind": "drop", "path": "../x"}, "is no place for a fault: it is '*' or the path of an entity"),
        ({"kind": "drop", "colour": "red"}, "A fault has no 'colour'; it has kind, path,"),
        (
            {"kind": "drop", "condition": "amqp:not-found"},
            "'condition' is for refuse, detach, restart, not for 'drop'.",
        ),
        ({"kind": "drop", "text": "x"}, "'text' is for faults that refuse; 'drop' says nothing."),
        ({"kind": "drop", "delay_ms": 5}, "'delay_ms' is for slow, hidden, restart, not for 'drop'."),
        ({"kind": "drop", "probability": 0}, "'probability' is above 0 and at most 1, not 0.0."),
        ({"kind": "drop", "probability": 1.5}, "'probability' is above 0 and at most 1, not 1.5."),
        ({"kind": "drop", "probability": 10**400}, "'probability' is above 0 and at most 1."),
        ({"kind": "drop", "probability": float("nan")}, "'probability' is above 0 and at most 1, not nan."),
        ({"kind": "drop", "probability": True}, "'probability' must be a number."),
        ({"kind": "drop", "count": -1}, "'count' is from 0 to 1000000000, not -1."),
        ({"kind": "drop", "count": 1.5}, "'count' must be a whole number."),
        ({"kind": "drop", "count": True}, "'count' must be a whole number."),
        ({"kind": "drop", "after": 10**18}, "'after' is from 0 to 1000000000, not"),
        ({"kind": "drop", "duration_ms": 10**9}, "'duration_ms' is from 0 to 86400000, not 1000000000."),
        ({"kind": "drop", "seed": 1 << 60}, "'seed' is from 0 to"),
        ({"kind": "slow"}, "'delay_ms' is missing: for how long 'slow' is."),
        ({"kind": "hidden", "delay_ms": 900_001}, "'delay_ms' is from 0 to 900000, not 900001."),
        ({"kind": "refuse"}, "'condition' is missing: with what to refuse"),
        ({"kind": "refuse", "condition": "a b"}, "it has ASCII characters without blanks only"),
        ({"kind": "refuse", "condition": "x" * 129}, "it has at most 128 characters"),
        ({"kind": "refuse", "condition": "x", "text": "x" * 1_025}, "'text' has at most 1024 characters"),
        ({"kind": "restart"}, "'duration_ms' is missing: for how long operations suffer after the restart."),
        ({"kind": "restart", "duration_ms": 5, "count": 1}, "A restart befalls everything"),
        ({"kind": "restart", "duration_ms": 5, "delay_ms": 5, "condition": "x"}, "slow ('delay_ms') or refused"),
        (
            {"kind": "quota", "text": "\ud83d"},
            "'text' is no text: its character 1 is U+D83D, half of a surrogate pair.",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_with_what_is_allowed(values: dict[str, object], said: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        fault_from_plain(values)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("path", ["orders", "a/b", "/Orders/", "orders/$DeadLetterQueue", "t/subscriptions/s"])
def test_any_entity_may_have_faults_whether_it_is_there_or_not(path: str) -> None:
    assert Fault("drop", path).path == path


def test_a_condition_that_we_have_no_word_for_is_said_all_the_same() -> None:
    known = error_of("com.microsoft:server-busy", "Busy.")
    assert isinstance(known, ServerBusy)
    given = error_of("vendor:tuesday", "Not today.")
    assert isinstance(given, GivenError)
    assert (given.said_condition(), given.status_code) == ("vendor:tuesday", 500)
    assert known.said_condition() == ServerBusy.condition


def test_hidden_lasts_as_long_as_the_contract_says_and_no_longer() -> None:
    assert limits.FAULT_DELAY_MS_MAX == 15 * 60_000
