"""What a caller may hear when: the promise over the health of both sides, without a broker."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spillway.lab.field.health import Health, Spell
from spillway.lab.field.hearing import HeardCall, broken_promise
from spillway.lab.field.plan import PRIMARY, SECONDARY

EVERYWHERE = ("*",)


def ill(side: str, what: str, begin_s: float, end_s: float, *paths: str) -> Spell:
    return Spell(side, what, paths or EVERYWHERE, begin_s, end_s, end_s)


def told(call: HeardCall, *spells: Spell) -> str | None:
    """Of a good message whose call failed."""
    return broken_promise(call, Health(list(spells), 2))


def call(
    begin_s: float, end_s: float, interval_s: float = 0.0, pending: str = "raise", is_away: bool = False
) -> HeardCall:
    return HeardCall("orders", begin_s, end_s, interval_s, pending, is_away)


@pytest.mark.parametrize("interval_s", [0.0, 2.0])
@pytest.mark.parametrize("pending", ["raise", "hold"])
def test_an_entity_that_is_well_takes_what_is_sent(interval_s: float, pending: str) -> None:
    assert told(call(20, 24, interval_s, pending)) == "its entity was well all the time"
    restarted = ill(PRIMARY, "kill", 10, 15)
    assert told(call(20, 24, interval_s, pending), restarted) == "its entity was well all the time"
    neighbour = ill(PRIMARY, "disable", 19, 25, "other")
    assert told(call(20, 24, interval_s, pending), neighbour) == "its entity was well all the time"
    assert told(call(20, 24, interval_s, pending), ill(PRIMARY, "slow", 1, 50)) is not None, "slow is no excuse"


def test_only_where_nobody_can_take_it_yet_may_a_caller_hear_an_error_of_an_entity_that_is_well() -> None:
    """A ping must find out first that the entity is back."""
    back, away = ill(PRIMARY, "kill", 10, 15), ill(SECONDARY, "kill", 14, 30)
    assert told(call(17, 17.2), back, away) is None
    assert told(call(25, 25.2), back, away) is not None


def test_without_an_interval_the_failing_call_itself_is_diverted() -> None:
    away = ill(PRIMARY, "kill", 10, 30)
    assert told(call(20, 24), away) == "the secondary was well all the time"
    assert told(call(20, 24, 2.0), away) is None, "inside the interval the caller hears the error"
    assert told(call(20, 24, 2.0, is_away=True), away) == "the secondary was well all the time"
    assert told(call(20, 32, 2.0, "hold"), away) == "the secondary was well all the time"


def test_a_secondary_that_was_restarted_between_two_outages_takes_messages() -> None:
    spells = (ill(PRIMARY, "kill", 5, 10), ill(SECONDARY, "cut", 12, 12.1), ill(PRIMARY, "kill", 15, 30))
    assert told(call(16, 17), *spells) == "the secondary was well all the time"
    assert told(call(12.5, 13), *spells) is None, "it may have been cut off in the middle of a call"


def test_some_backlog_queues_that_refuse_are_no_excuse() -> None:
    away, some = ill(PRIMARY, "kill", 10, 30), ill(SECONDARY, "refuse", 10, 30, "0")
    assert told(call(20, 24), away, some) == "the secondary was well all the time"


@pytest.mark.parametrize("what", ["busy", "delete"])
def test_who_is_busy_is_waited_for_and_who_is_gone_is_refused(what: str) -> None:
    assert told(call(20, 24), ill(PRIMARY, what, 18, 26, "orders")) is None


def test_a_held_call_waits_for_either_side() -> None:
    away, other = ill(PRIMARY, "kill", 10, 60), ill(SECONDARY, "kill", 19, 23)
    held = call(20, 34, 2.0, "hold")
    assert told(held, away, other) == "it was held, and the secondary was well for 11.0 s of its time"
    assert told(held, away, ill(SECONDARY, "kill", 19, 25)) is None, "the interval must pass before it is asked"
    diverted = call(20, 32, 2.0, "hold", is_away=True)
    assert told(diverted, away, other) == "it was held, and the secondary was well for 9.0 s of its time"
    assert told(diverted, away, ill(SECONDARY, "kill", 19, 27)) is None
    back = (ill(PRIMARY, "kill", 10, 24), ill(SECONDARY, "kill", 19, 60))
    assert told(held, *back) == "it was held, and its entity was well for 10.0 s of its time"
    flapping = (ill(PRIMARY, "cut", 23, 23), ill(PRIMARY, "kill", 26, 30), ill(SECONDARY, "kill", 29, 34))
    assert told(held, *flapping) is None, "it could not go away before it had failed for the interval"
    assert told(call(20, 20.5), away, other) is None, "who is not held hears it at once"
    silent = ill(SECONDARY, "freeze", 19, 23)
    assert told(held, away, silent) is None, "a try that nobody answers takes its share of the time"


SPELLS = st.lists(
    st.builds(
        lambda side, what, begin_s, lasts_s: ill(side, what, begin_s, begin_s + lasts_s),
        st.sampled_from((PRIMARY, SECONDARY)),
        st.sampled_from(("kill", "freeze", "cut", "busy", "refuse", "delete", "slow")),
        st.integers(0, 60),
        st.integers(0, 20),
    ),
    max_size=6,
)


@given(
    SPELLS, SPELLS, st.integers(0, 60), st.integers(0, 14), st.sampled_from((0.0, 2.0)), st.booleans(), st.booleans()
)
def test_whatever_else_goes_wrong_excuses_more_and_never_less(
    spells: list[Spell], more: list[Spell], begin_s: int, lasts_s: int, interval_s: float, is_held: bool, is_away: bool
) -> None:
    asked = call(begin_s, begin_s + lasts_s, interval_s, "hold" if is_held else "raise", is_away)
    if told(asked, *spells) is None:
        assert told(asked, *spells, *more) is None
