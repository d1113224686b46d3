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


PREMIUM = Difference("recorded on a Premium namespace; ours is Standard", 400, "SubCode=40000. Bad Request.")
SMALLER = Difference("recorded on a Premium namespace, whose messages are larger", 200, "Kilobytes>256<")
MADE_SMALLER = Difference(SMALLER.reason, 201, SMALLER.text)
TOO_LARGE = Difference(PREMIUM.reason, 400, "must be between 256 and 256")
NEVER_MADE = Difference("follows from a step that was refused: it was never made", 200, "Publicly Listed Services")
NOT_THERE = Difference("follows from a step that was refused: it was never made", 404, "No service is hosted")

QUEUE_PREMIUM = "test_mgmt_queue_premium_create_with_queue_description"
TOPIC_PREMIUM = "test_mgmt_topic_premium_create_with_topic_description"

DIFFERENCES: dict[tuple[str, str], dict[int, Difference]] = {
    ("queues", QUEUE_PREMIUM): {
        **dict.fromkeys((1, 3, 4), PREMIUM),
        2: MADE_SMALLER,
        **dict.fromkeys((6, 8), SMALLER),
        7: TOO_LARGE,
        5: NEVER_MADE,
        9: NOT_THERE,
    },
    ("topics", TOPIC_PREMIUM): {
        **dict.fromkeys((1, 7, 8), PREMIUM),
        3: MADE_SMALLER,
        **dict.fromkeys((4, 6), SMALLER),
        5: TOO_LARGE,
        2: NEVER_MADE,
        9: NOT_THERE,
    },
}
