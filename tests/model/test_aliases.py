"""What is read of a message in a backlog."""

from azure.servicebus._common.constants import MAX_ABSOLUTE_EXPIRY_TIME

from spillway.model.aliases import EXPIRY_MS_MAX


def test_a_life_that_ends_after_the_year_9999_ends_where_the_sdk_lets_it_end() -> None:
    assert EXPIRY_MS_MAX == MAX_ABSOLUTE_EXPIRY_TIME
