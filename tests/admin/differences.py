"""Where our answers differ from Azure's recorded ones, and why. Everything that is not listed here is the same.

Beyond the steps below, three values are taken for equal everywhere: the scheme and host of a URL (Azure answers some
requests with `sb://`), times, and a duration of nearly for ever, which the Python SDK sends back for "for ever".
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Difference:
    """What we answer instead: the status, and a text that is in the answer."""

    reason: str
    status: int
    text: str


AUTO_DELETE = Difference("deleting idle entities is not served", 400, "AutoDeleteOnIdle other than for ever")
PREMIUM = Difference("recorded on a Premium namespace; ours is Standard", 400, "SubCode=40000. Bad Request.")
NEVER_MADE = Difference("follows from a step that was refused: it was never made", 200, "Publicly Listed Services")
NOT_THERE = Difference("follows from a step that was refused: it was never made", 404, "No service is hosted")
NO_PART = Difference("follows from a step that was refused: it was never made", 404, "was not found")
UNCHANGED = Difference("follows from a step that was refused: it is as it was", 200, "Description")

QUEUE_CREATE = "test_mgmt_queue_create_with_queue_description"
QUEUE_PREMIUM = "test_mgmt_queue_premium_create_with_queue_description"
TOPIC_PREMIUM = "test_mgmt_topic_premium_create_with_topic_description"
SUBSCRIPTION_CREATE = "test_mgmt_subscription_create_with_subscription_description"

DIFFERENCES: dict[tuple[str, str], dict[int, Difference]] = {
    ("queues", QUEUE_CREATE): {
        **dict.fromkeys((2, 3), AUTO_DELETE),
        **dict.fromkeys((5, 6), NEVER_MADE),
        **dict.fromkeys((7, 8), NOT_THERE),
    },
    ("queues", QUEUE_PREMIUM): {
        **dict.fromkeys((1, 2, 7), AUTO_DELETE),
        **dict.fromkeys((3, 4), PREMIUM),
        **dict.fromkeys((5, 6, 8), NEVER_MADE),
        **dict.fromkeys((9, 10), NOT_THERE),
    },
    ("queues", "test_mgmt_queue_update_dict_success"): {
        **dict.fromkeys((4, 6), AUTO_DELETE),
        **dict.fromkeys((5, 7), UNCHANGED),
    },
    ("queues", "test_mgmt_queue_update_success"): {
        **dict.fromkeys((9, 11, 13), AUTO_DELETE),
        **dict.fromkeys((10, 12, 14), UNCHANGED),
    },
    ("topics", "test_mgmt_topic_create_with_topic_description"): {
        **dict.fromkeys((1, 3), AUTO_DELETE),
        **dict.fromkeys((2, 4), NEVER_MADE),
        **dict.fromkeys((6, 7), NOT_THERE),
    },
    ("topics", TOPIC_PREMIUM): {
        **dict.fromkeys((1, 3, 5), AUTO_DELETE),
        **dict.fromkeys((2, 4, 6), NEVER_MADE),
        **dict.fromkeys((7, 8), PREMIUM),
        **dict.fromkeys((9, 10), NOT_THERE),
    },
    ("topics", "test_mgmt_topic_update_dict_success"): {
        **dict.fromkeys((4, 6), AUTO_DELETE),
        **dict.fromkeys((5, 7), UNCHANGED),
    },
    ("topics", "test_mgmt_topic_update_success"): {
        **dict.fromkeys((4, 6, 8), AUTO_DELETE),
        **dict.fromkeys((5, 7, 9), UNCHANGED),
    },
    ("subscriptions", SUBSCRIPTION_CREATE): {
        **dict.fromkeys((2, 4), AUTO_DELETE),
        **dict.fromkeys((3, 5, 6, 7), NO_PART),
    },
    ("subscriptions", "test_mgmt_subscription_update_dict_success"): {
        **dict.fromkeys((5, 7, 9), AUTO_DELETE),
        **dict.fromkeys((6, 8, 10), UNCHANGED),
    },
    ("subscriptions", "test_mgmt_subscription_update_success"): {
        **dict.fromkeys((6, 8, 14, 16), AUTO_DELETE),
        **dict.fromkeys((7, 9, 15, 17), UNCHANGED),
    },
}
