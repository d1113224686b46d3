"""Which sequence numbers belong to a time: numbers and enqueued times grow together, so that halving finds them.

A message that waits for its time is numbered where it was sent and numbered anew when it is due: it tells nothing.
"""

from typing import Final, NamedTuple

from spillway.client import Management, ReceivedMessage
from spillway.spark.source.dead_letters import is_dead_letters
from spillway.spark.source.positions import SCHEDULED
from spillway.spark.source.sequence_bounds import LOOKED_AT_MAX, checked_number, first_from, last_of
from spillway.spark.source.time_options import MS_MAX

# A clock that is set back makes a later message look earlier. Times are looked for as if it could have been so much.
CLOCK_STEP_MS: Final = 60_000
PEEKED: Final = 50


class EnqueuedAt(NamedTuple):
    number: int
    enqueued_ms: int | None  # None: many wait for their time, or the service does not say


async def number_at(management: Management, first: int, last: int, at_ms: int, *, is_unknown_later: bool) -> int:
    """The number from which on messages were enqueued at this time or later, from `first` to behind `last`.

    Where the times of messages are not known, they count as later or as earlier.
    """
    low, high = first, last + 1  # what lies before `low` is earlier, what lies from `high` on is later
    while low < high:
        middle = (low + high) // 2
        found = await _timed(management, middle, high)
        if found is None:
            high = middle
        elif is_unknown_later if found.enqueued_ms is None else found.enqueued_ms >= at_ms:
            high = middle
        else:
            low = found.number + 1
    return low


async def between(
    management: Management, first: int, last: int, from_ms: int | None, to_ms: int | None
) -> tuple[int, int]:
    """From which number up to and without which one lie messages that were enqueued from one time to another; rather
    more of them than less. All from `first` to `last` where numbers do not grow with time."""
    start, end = first, last + 1
    if is_dead_letters(management.path):
        return start, end
    if from_ms is not None:
        start = await number_at(management, first, last, from_ms, is_unknown_later=True)
    if to_ms is not None:
        end = await number_at(management, start, last, to_ms, is_unknown_later=False)
    return start, end


async def start_at(management: Management, at_ms: int) -> int:
    """Where a stream begins that is to have what was enqueued at this time or later."""
    first = await first_from(management, 0)
    if first is None:
        return 0
    start, _ = await between(management, first, await last_of(management, first), at_ms, None)
    return start


def enqueued_between(
    entity: str, messages: list[ReceivedMessage], from_ms: int | None, to_ms: int | None
) -> list[ReceivedMessage]:
    """Dead letters are chosen one by one: where they keep their numbers, those do not grow with the time of death."""
    if (from_ms is None and to_ms is None) or not is_dead_letters(entity):
        return messages
    start, end = from_ms or 0, MS_MAX if to_ms is None else to_ms
    return [one for one in messages if one.enqueued_time_ms is not None and start <= one.enqueued_time_ms < end]


async def _timed(management: Management, at: int, end: int) -> EnqueuedAt | None:
    """The first message from `at` on that is not waiting for its time; None if there is none before `end`."""
    looked_at = 0
    while at < end:
        page = await management.peek(at, 1 if looked_at == 0 else PEEKED, omit_body=True)
        for message in page:
            at = checked_number(management, message.sequence_number)
            if at < end and message.state != SCHEDULED:
                return EnqueuedAt(at, message.enqueued_time_ms)
        looked_at += len(page)
        if not page:
            break
        if looked_at >= LOOKED_AT_MAX:
            return EnqueuedAt(at, None)
        at += 1
    return None
