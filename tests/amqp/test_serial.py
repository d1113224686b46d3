"""Serial numbers wrap, and order survives the wrap."""

from hypothesis import given
from hypothesis import strategies as st

from spillway.amqp.serial import serial_add, serial_difference

SERIALS = st.one_of(st.integers(0, 2**32 - 1), st.integers(2**32 - 5, 2**32 - 1), st.integers(0, 5))
STEPS = st.one_of(st.integers(-(2**31), 2**31 - 1), st.integers(-3, 3))


@given(SERIALS, STEPS)
def test_the_difference_undoes_the_addition_across_the_wrap(serial: int, steps: int) -> None:
    later = serial_add(serial, steps)
    assert 0 <= later < 2**32
    assert serial_difference(later, serial) == steps


def test_the_number_after_the_last_is_zero() -> None:
    assert serial_add(2**32 - 1, 1) == 0
    assert serial_difference(0, 2**32 - 1) == 1
    assert serial_difference(2**32 - 1, 0) == -1
    assert serial_difference(7, 7) == 0
