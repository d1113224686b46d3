"""Serial numbers wrap, and order survives the wrap."""

from hypothesis import given
from hypothesis import strategies as st

from spillway.amqp.serial import serial_add, serial_difference, serial_less

SERIALS = st.one_of(st.integers(0, 2**32 - 1), st.integers(2**32 - 5, 2**32 - 1), st.integers(0, 5))
STEPS = st.one_of(st.integers(-(2**31), 2**31 - 1), st.integers(-3, 3))


@given(SERIALS, STEPS)
def test_the_difference_undoes_the_addition_across_the_wrap(serial: int, steps: int) -> None:
    later = serial_add(serial, steps)
    assert 0 <= later < 2**32
    assert serial_difference(later, serial) == steps
    assert serial_less(serial, later) == (steps > 0) or steps == -(2**31)


def test_the_number_after_the_last_is_zero() -> None:
    assert serial_add(2**32 - 1, 1) == 0
    assert serial_less(2**32 - 1, 0)
    assert not serial_less(0, 2**32 - 1)
    assert not serial_less(7, 7)
