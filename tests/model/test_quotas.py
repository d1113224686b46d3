"""Limits that an operator sets."""

import pytest

from spillway.model import limits
from spillway.model.quotas import CAN_BE_OFF, NO_LIMIT, SETTABLE, Quotas


@pytest.mark.parametrize("name", SETTABLE)
def test_every_limit_is_set_within_its_bounds_and_not_outside_them(name: str) -> None:
    least, most = SETTABLE[name]
    quotas = Quotas()
    for value in (least, most):
        quotas.set(name, value)
        assert quotas.value(name) == value
    for value in (least - 1, most + 1):
        if value == NO_LIMIT and name in CAN_BE_OFF:
            continue
        with pytest.raises(ValueError, match=f"{name} is between {least} and {most}"):
            quotas.set(name, value)
    assert quotas.value(name) == most


@pytest.mark.parametrize("name", SETTABLE)
def test_the_defaults_may_be_set(name: str) -> None:
    quotas = Quotas()
    quotas.set(name, quotas.value(name))


def test_what_has_no_such_name_is_answered_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="there is no limit 'messages'; there are: operations-per-second, "):
        Quotas().set("messages", 1)


def test_little_memory_leaves_little_for_waiting_messages_and_for_the_disk_to_catch_up() -> None:
    quotas = Quotas()
    assert quotas.resident_bytes_max() == limits.RESIDENT_NAMESPACE_BYTES_MAX
    assert quotas.pending_bytes_pause() == limits.PENDING_BYTES_PAUSE
    assert quotas.ids_in_memory_max() == limits.ID_MEMORY_MAX
    quotas.set("memory-mb", 128)
    assert quotas.resident_bytes_max() == 32 * limits.MIB
    assert quotas.pending_bytes_pause() == 16 * limits.MIB
    assert quotas.ids_in_memory_max() * limits.ID_MEMORY_BYTES <= 16 * limits.MIB
    quotas.set("memory-mb", 1 << 20)
    assert quotas.resident_bytes_max() == limits.RESIDENT_NAMESPACE_BYTES_MAX
    assert quotas.pending_bytes_pause() == limits.PENDING_BYTES_PAUSE
