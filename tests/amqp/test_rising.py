"""Numbers that rise by little, as bytes."""

from hypothesis import given
from hypothesis import strategies as st

from spillway.amqp.rising import LAST_BYTES, Rising


@given(st.lists(st.integers(0, 2**32 - 1) | st.integers(0, 600), max_size=20))
def test_whatever_comes_after_what_the_bytes_are_those_of_the_number(numbers: list[int]) -> None:
    four, eight = Rising(4), Rising(8)
    for number in numbers:
        assert four.upper(number) + LAST_BYTES[number & 0xFF] == number.to_bytes(4, "big")
        larger = number << 30
        assert eight.upper(larger) + LAST_BYTES[larger & 0xFF] == larger.to_bytes(8, "big")


def test_all_but_the_last_byte_is_the_same_object_for_a_while() -> None:
    rising = Rising(8)
    kept = rising.upper(256)
    assert all(rising.upper(number) is kept for number in range(256, 512))
    assert rising.upper(512) is not kept
