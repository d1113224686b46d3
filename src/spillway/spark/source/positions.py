"""Where a browsing stream stands in each entity, and whether that is still the entity it was.

A queue that was deleted and made anew numbers its messages from 1 again: a position in the old one would pass over what
is in the new one, in silence. Who may only listen cannot ask when an entity was made. So a position remembers a message
that it has passed, by its number and the moment it was enqueued; neither changes while the message is there.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from spillway.client import Management, ReceivedMessage
from spillway.spark.source.number_runs import Runs
from spillway.spark.source.sequence_bounds import checked_number

SCHEDULED: Final = 2  # numbered anew when its time has come
# In one entity a lower number was enqueued earlier, by a clock that may have been set back a little in between.
CLOCK_STEP_MS: Final = 2_000
DEAD_LETTERS: Final = "$deadletterqueue"


class Passed(NamedTuple):
    """A message that lies before a position."""

    number: int
    enqueued_ms: int


@dataclass(frozen=True)
class Position:
    """The next number to be read. `begins_at`: the batch that ends here began there, not where the one before ended.

    The others are of dead letters that may come with lower numbers than this (`dead_letters.py`).
    """

    next: int
    passed: Passed | None = None
    begins_at: int | None = None
    closed_below: int | None = None  # no number below it can come any more; None: none below `next`
    seen: Runs = Runs()  # from there on up to `next`
    late: Runs = Runs()  # of the batch that ends here, below the `next` of the one before
    is_renumbered: bool = False  # it is known that none come so

    @property
    def floor(self) -> int:
        return self.next if self.closed_below is None else min(self.next, self.closed_below)

    def to_plain(self) -> Any:
        """As a checkpoint keeps it: a bare number where nothing is known of what lies before it."""
        plain: dict[str, Any] = {"next": self.next}
        if self.passed is not None:
            plain["passed"] = list(self.passed)
        if self.begins_at is not None:
            plain["beginsAt"] = self.begins_at
        if self.floor < self.next:
            plain |= {"floor": self.floor, "seen": self.seen.to_plain()}
        if self.late.runs:
            plain["late"] = self.late.to_plain()
        if self.is_renumbered:
            plain["renumbered"] = True
        return plain if len(plain) > 1 else self.next


def position_of(plain: Any) -> Position | None:
    """From a checkpoint; None if that is not what it is."""
    if isinstance(plain, int):
        return Position(plain)
    if not isinstance(plain, Mapping) or not isinstance(plain.get("next"), int):
        return None
    passed = plain.get("passed")
    return Position(
        plain["next"],
        None if passed is None else Passed(*passed),
        plain.get("beginsAt"),
        plain.get("floor"),
        Runs.from_plain(plain.get("seen", ())),
        Runs.from_plain(plain.get("late", ())),
        plain.get("renumbered") is True,
    )


class Peeked(NamedTuple):
    """The first message at or after a position, if there is one; and why this is not the entity of that position."""

    first: ReceivedMessage | None
    reset: str = ""


async def peek_from(management: Management, at: Position) -> Peeked:
    """One request while what was passed is still there, and at most three."""
    passed = at.passed
    if passed is None:
        return Peeked(await _first(management, at.next))
    is_just_before = passed.number == at.next - 1
    found = await management.peek(passed.number, 2 if is_just_before else 1, omit_body=True)
    if found and checked_number(management, found[0].sequence_number) == passed.number:
        if found[0].enqueued_time_ms != passed.enqueued_ms:
            now = _moment(found[0].enqueued_time_ms or 0)
            told = f"message {passed.number:,}, enqueued {_moment(passed.enqueued_ms)}, is one enqueued {now}"
            return Peeked(None, told)
        found = found[1:]
    else:
        reset = await _later_below(management, passed)
        if reset:
            return Peeked(None, reset)
    if not is_just_before:
        return Peeked(await _first(management, at.next))
    return Peeked(found[0] if found else None)


async def _first(management: Management, number: int) -> ReceivedMessage | None:
    found = await management.peek(number, 1, omit_body=True)
    if not found:
        return None
    checked_number(management, found[0].sequence_number)
    return found[0]


async def _later_below(management: Management, passed: Passed) -> str:
    """What was passed has gone. The oldest message, with a lower number, cannot have been enqueued after it."""
    if management.path.lower().endswith(DEAD_LETTERS):
        return ""  # these come in the order they died, with the times they were enqueued
    oldest = await _first(management, 0)
    if oldest is None or (oldest.sequence_number or 0) >= passed.number or oldest.state == SCHEDULED:
        return ""
    if (oldest.enqueued_time_ms or 0) <= passed.enqueued_ms + CLOCK_STEP_MS:
        return ""
    return (
        f"message {oldest.sequence_number:,} was enqueued {_moment(oldest.enqueued_time_ms or 0)}, after message "
        f"{passed.number:,} was, {_moment(passed.enqueued_ms)}"
    )


async def end_position(management: Management, end: int, first: ReceivedMessage, before: Passed | None) -> Position:
    """The position behind a batch that begins with `first`, with the last message that is known to lie before it."""
    found = await management.peek(end - 1, 1, omit_body=True)
    for message in (*[one for one in found if one.sequence_number == end - 1], first):
        if message.state != SCHEDULED and message.enqueued_time_ms is not None:
            return Position(end, Passed(message.sequence_number or 0, message.enqueued_time_ms))
    return Position(end, before)


def _moment(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
