"""Every row of the settlement table, both directions (docs/wire.md, "Settlement")."""

import uuid

import pytest

from spillway.amqp.codec import encode
from spillway.amqp.errors import AmqpError
from spillway.amqp.performatives import (
    Accepted,
    DeliveryState,
    Modified,
    Rejected,
    Released,
    TransactionalState,
)
from spillway.amqp.types import Array, Int, Symbol, Timestamp
from spillway.dialect.outcomes import echo_of, settlement_of
from spillway.model.errors import ArgumentError, ArgumentOutOfRange, NotImplementedHere
from spillway.model.settlement import ABANDON, COMPLETE, DEAD_LETTER, DEFER, RELEASE

DEAD = "com.microsoft:dead-letter"


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        (Accepted(), COMPLETE),
        (Modified(True, False), ABANDON),
        (Modified(False, False), ABANDON),
        (Modified(True, True), DEFER),
        (Modified(False, True), DEFER),
        (Rejected(AmqpError(DEAD)), DEAD_LETTER),
        (Rejected(AmqpError("amqp:internal-error", "oops")), DEAD_LETTER),
        (Rejected(None), DEAD_LETTER),
        (Released(), RELEASE),
    ],
)
def test_each_delivery_state_asks_for_one_settlement(state: DeliveryState, kind: int) -> None:
    settlement = settlement_of(state)
    assert (settlement.kind, settlement.reason, settlement.description, settlement.properties) == (
        kind,
        None,
        None,
        None,
    )


@pytest.mark.parametrize("key", [Symbol, str])
def test_reason_and_description_come_with_symbol_or_string_keys(key: type[str]) -> None:
    info: dict[object, object] = {key("DeadLetterReason"): "why", key("DeadLetterErrorDescription"): "how"}
    settlement = settlement_of(Rejected(AmqpError(DEAD, None, info)))
    assert (settlement.reason, settlement.description, settlement.properties) == ("why", "how", None)


def test_a_null_reason_is_left_out() -> None:
    info: dict[object, object] = {"DeadLetterReason": None, "DeadLetterErrorDescription": None}
    settlement = settlement_of(Rejected(AmqpError(DEAD, None, info)))
    assert (settlement.reason, settlement.description) == (None, None)


def test_what_else_javascript_puts_into_the_dead_letter_info_modifies_properties() -> None:
    info: dict[object, object] = {"DeadLetterReason": "r", "color": "red", "n": Int(1)}
    settlement = settlement_of(Rejected(AmqpError(DEAD, None, info)))
    assert settlement.properties == {"color": encode("red"), "n": encode(Int(1))}


def test_the_annotations_of_a_modified_become_properties_with_their_types() -> None:
    values: dict[object, object] = {
        Symbol("a"): "x",
        "t": Timestamp(5),
        "u": uuid.UUID(int=9),
        "none": None,
        "f": 1.5,
        "b": True,
    }
    settlement = settlement_of(Modified(True, False, values))
    assert settlement.properties == {str(key): encode(value) for key, value in values.items()}


@pytest.mark.parametrize("value", [[1], {"a": 1}, Array(0x54, [Int(1)])])
def test_a_property_must_be_a_simple_value(value: object) -> None:
    with pytest.raises(ArgumentError, match="'p'"):
        settlement_of(Modified(True, False, {"p": value}))


def test_a_property_needs_a_name() -> None:
    with pytest.raises(ArgumentError, match="message-annotations"):
        settlement_of(Modified(True, False, {Int(5): 1}))


@pytest.mark.parametrize(
    "values",
    [{"p": "x" * 40_000}, {f"p{number}": "x" * 1_000 for number in range(70)}, {"n" * 2_000: 1}],
)
def test_properties_are_bounded(values: dict[object, object]) -> None:
    with pytest.raises(ArgumentOutOfRange):
        settlement_of(Modified(True, False, values))


def test_a_dead_letter_reason_is_a_string_of_at_most_4096_characters() -> None:
    with pytest.raises(ArgumentError, match="DeadLetterReason"):
        settlement_of(Rejected(AmqpError(DEAD, None, {"DeadLetterReason": 5})))
    with pytest.raises(ArgumentOutOfRange, match="4096"):
        settlement_of(Rejected(AmqpError(DEAD, None, {"DeadLetterErrorDescription": "x" * 4_097})))


def test_a_transactional_state_is_refused() -> None:
    with pytest.raises(NotImplementedHere):
        settlement_of(TransactionalState(b"t", Accepted()))


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [(COMPLETE, Accepted), (ABANDON, Modified), (DEFER, Modified), (DEAD_LETTER, Rejected), (RELEASE, Released)],
)
def test_the_echo_is_the_outcome_that_was_asked_for(kind: int, outcome: type[DeliveryState]) -> None:
    assert type(echo_of(kind)) is outcome


def test_a_dead_letter_is_echoed_without_an_error() -> None:
    echo = echo_of(DEAD_LETTER)
    assert isinstance(echo, Rejected)
    assert echo.error is None
    assert encode(echo) == b"\x00\x53\x25\x45"
